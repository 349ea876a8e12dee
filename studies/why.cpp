#include "studies/why.h"

#include <fmt/format.h>

#include <algorithm>

#include "configs/caching_settings.h"
#include "core/text.h"

namespace tencache {
namespace {

using Form = FailureForm;
using Kind = FailureKind;
using Platform = FailurePlatform;
using Software = FailureSoftware;

constexpr Bytes usual_context = 1 * GiB;  // what a process has beside PyTorch's memory, where the message does not say
constexpr Bytes intel_largest_allocation = 4 * GiB;

std::string text_of(const PrintedBytes& figure) { return format_bytes(figure.bytes); }

// The allocator's variable that this platform reads; empty: it has none.
std::string variable_of(const Failure& failure) {
  if (!failure.variable.empty() && failure.platform != Platform::mps) return failure.variable;
  switch (failure.platform) {
    case Platform::cuda:
      return "PYTORCH_CUDA_ALLOC_CONF";
    case Platform::rocm:
      return "PYTORCH_HIP_ALLOC_CONF";
    case Platform::npu:
      return "PYTORCH_NPU_ALLOC_CONF";
    default:
      return "";
  }
}

std::string device_name(const Failure& failure) {
  std::string name = failure.platform == Platform::npu ? "NPU" : "GPU";
  if (failure.gpu) name += fmt::format(" {}", *failure.gpu);
  return name;
}

std::string processes_listed_by(Platform platform) {
  switch (platform) {
    case Platform::rocm:
      return "rocm-smi --showpids";
    case Platform::xpu:
      return "xpu-smi ps";
    case Platform::npu:
      return "npu-smi info";
    case Platform::mps:
      return "Activity Monitor";
    default:
      return "nvidia-smi";
  }
}

// Says and advises; decides nothing.
class Advice {
 public:
  Advice(const Failure& failure, const CachingSettings& settings, bool on_windows, FailureCause& cause)
      : failure_(failure), settings_(settings), on_windows_(on_windows), cause_(cause) {}

  void act(std::string action) { cause_.actions.push_back(std::move(action)); }

  void less_memory() {
    switch (failure_.software) {
      case Software::deepspeed:
        act("ds.json: \"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\"}}, then "
            "\"offload_param\": {\"device\": \"cpu\"}");
        act("ds.json: smaller stage3_max_live_parameters, stage3_prefetch_bucket_size and reduce_bucket_size; "
            "train_micro_batch_size_per_gpu 1, with gradient_accumulation_steps for the rest");
        break;
      case Software::vllm:
        act("a smaller --max-model-len and --max-num-seqs, --kv-cache-dtype fp8");
        act("a quantised checkpoint, --tensor-parallel-size over more GPUs, or --cpu-offload-gb");
        break;
      case Software::sglang:
        act("a smaller --context-length, --mem-fraction-static or --chunked-prefill-size; --tp over more GPUs, or "
            "--cpu-offload-gb");
        break;
      case Software::llama_cpp:
      case Software::ollama:
        llama();
        break;
      case Software::bitsandbytes:
      case Software::transformers:
        act("load_in_4bit=True in place of load_in_8bit, device_map=\"auto\" with max_memory, and "
            "llm_int8_enable_fp32_cpu_offload=True if parts may stay on the CPU");
        act("for training: optim=\"paged_adamw_8bit\", gradient_checkpointing=True, a smaller batch");
        break;
      default:
        act("a smaller batch or shorter sequences, with gradient accumulation for the rest; under inference "
            "torch.inference_mode()");
        act("recomputation (gradient_checkpointing_enable(), torch.utils.checkpoint), a 16-bit or 8-bit format, LoRA");
        if (failure_.platform == Platform::cuda || failure_.platform == Platform::rocm) {
          act("offloading: DeepSpeed's offload_optimizer and offload_param, FSDP's CPUOffload, Accelerate's "
              "device_map=\"auto\"");
        }
        break;
    }
    act("tencache fit --model NAME --batch B --seq S --machine MACHINE: what would fit, and what it costs");
  }

  void llama() {
    if (failure_.layers.all && failure_.tried && failure_.free && *failure_.layers.all > 0 &&
        failure_.tried->bytes > 0 && !failure_.allocated) {
      // The weights' own buffer: its layers are alike, and a tenth stays for the cache and for computing.
      const double share = 0.9 * static_cast<double>(failure_.free->bytes) / static_cast<double>(failure_.tried->bytes);
      const auto layers = static_cast<std::uint64_t>(
          std::clamp(share, 0.0, 1.0) * static_cast<double>(failure_.layers.wanted.value_or(*failure_.layers.all)));
      act(fmt::format("fewer layers on the GPU: about -ngl {} of {} (--n-gpu-layers)", layers, *failure_.layers.all));
    } else {
      act("fewer layers on the GPU: a smaller -ngl (--n-gpu-layers); of a mixture of experts --n-cpu-moe instead");
    }
    act("a smaller context -c, --cache-type-k q8_0 and --cache-type-v q8_0 (with -fa), a smaller -ub");
    act("a file with fewer bits a weight (Q4_K_M)");
  }

  void defragment() {
    const std::string variable = variable_of(failure_);
    const bool is_split = settings_.max_split_size < unlimited;
    if (variable.empty()) {
      act(failure_.platform == Platform::xpu ? "torch.xpu.empty_cache() before the largest request"
                                             : "empty the allocator's cache before the largest request");
    } else if (settings_.expandable_segments) {
      cause_.sentences.push_back(
          "expandable_segments is on already: what is left are holes between tensors that are alive, which no setting "
          "closes.");
      act(std::string(failure_.platform == Platform::npu ? "torch.npu" : "torch.cuda") +
          ".empty_cache() before the largest request, or tensors of one size: pad batches");
    } else {
      if (!on_windows_) act(variable + "=expandable_segments:True, before the program starts");
      if (!is_split) {
        act(std::string(on_windows_ ? "" : "without that (Windows, PyTorch before 2.1): ") + variable +
            "=max_split_size_mb:512, less if that fails");
      }
    }
    if (failure_.platform == Platform::cuda || failure_.platform == Platform::rocm) {
      act("tencache fragment on a recording (profile_memory=True, or a memory snapshot): what each setting gains");
    }
  }

  void end_others() {
    std::string ids;
    for (const OtherProcess& process : failure_.processes) {
      ids += fmt::format("{}{} ({})", ids.empty() ? "" : ", ", process.id, format_bytes(process.bytes));
    }
    const std::string lists = processes_listed_by(failure_.platform);
    act(ids.empty() ? fmt::format("end the other programs on this {} ({} lists them), or take another one",
                                  device_name(failure_), lists)
                    : fmt::format("end the other programs on this {}, or take another one: {} has process {}",
                                  device_name(failure_), lists, ids));
    if (failure_.platform == Platform::cuda) {
      act("runs of yours that hang keep their memory: `ps` for the ids; CUDA_VISIBLE_DEVICES chooses another GPU");
    } else if (failure_.platform == Platform::rocm) {
      act("HIP_VISIBLE_DEVICES chooses another GPU");
    } else if (failure_.platform == Platform::npu) {
      act("ASCEND_RT_VISIBLE_DEVICES chooses another NPU");
    }
  }

 private:
  const Failure& failure_;
  const CachingSettings& settings_;
  bool on_windows_;
  FailureCause& cause_;
};

class Explainer {
 public:
  Explainer(const Failure& failure, std::string_view settings, bool on_windows)
      : failure_(failure),
        settings_(parse_caching_settings(settings)),
        on_windows_(on_windows),
        advice_(failure, settings_, on_windows, cause_) {}

  FailureCause explain() {
    switch (failure_.form) {
      case Form::allocator:
        failure_.platform == Platform::mps ? mps() : allocator();
        break;
      case Form::bare:
        bare();
        break;
      case Form::one_buffer:
        one_buffer();
        break;
      case Form::share:
        share();
        break;
      case Form::cache:
        cache();
        break;
      case Form::start:
        start();
        break;
      case Form::too_large:
        is(Kind::too_large, "the GPU is too small for the model in this format");
        say("Accelerate found no place for all modules on the GPU.");
        advice_.less_memory();
        break;
      default:
        host();
    }
    return std::move(cause_);
  }

 private:
  void say(std::string sentence) { cause_.sentences.push_back(std::move(sentence)); }
  void is(std::optional<Kind> kind, std::string headline) {
    cause_.kind = kind;
    cause_.headline = std::move(headline);
  }

  void segments() {
    if (failure_.platform == Platform::xpu) return;
    const Bytes segment = settings_.large_segment_size;
    if (settings_.expandable_segments) return;
    if (failure_.tried->bytes == segment) {
      say(fmt::format(
          "{} is what PyTorch asks the device for whenever a request of 1 to 10 MiB finds no free block: the "
          "tensor itself is smaller.",
          format_bytes(segment)));
    } else if (failure_.tried->bytes == 2 * MiB) {
      say("2 MiB is what PyTorch asks the device for whenever a request of up to 1 MiB finds no free block: the tensor "
          "itself is smaller.");
    }
  }

  void allocator() {
    segments();
    if (!failure_.total || !failure_.allocated || !failure_.unallocated) {
      is(std::nullopt, "the message lacks figures");
      say("The message has not all its figures (total, allocated, reserved but unallocated): what it says alone does "
          "not "
          "tell fragmentation from a real need.");
      advice_.act("paste the message to its end");
      return;
    }
    const Bytes tried = failure_.tried->bytes, total = failure_.total->bytes;
    const Bytes unallocated = failure_.unallocated->bytes, allocated = failure_.allocated->bytes;
    const Bytes reserved = allocated + unallocated;  // private pools are a part of what is allocated
    const Bytes left = total - std::min(total, reserved);
    const Bytes free = failure_.free ? failure_.free->bytes : left;
    others(total, reserved);

    if (allocated > total + failure_.allocated->rounding + failure_.total->rounding) {
      spilled(allocated, tried, total);
      return;
    }
    const bool limited = failure_.allowed && failure_.allowed->bytes < total;
    const Bytes allowed = limited ? failure_.allowed->bytes : total;
    const Bytes within = limited ? std::min(free, allowed - std::min(allowed, reserved)) : free;
    const Bytes rounding = failure_.tried->rounding + (failure_.free ? failure_.free->rounding : 0);
    const Bytes others = cause_.of_others.value_or(0);
    if (within >= tried + rounding && !(tried == 0)) {
      refused(tried, free);
      return;
    }
    const bool others_first = others > unallocated && others >= total / 4;
    const Bytes both_rounding = rounding + failure_.unallocated->rounding;
    if (unallocated >= tried && !others_first) {
      fragmented(tried, unallocated, within);
      cause_.uncertain = unallocated < tried + failure_.unallocated->rounding + failure_.tried->rounding;
    } else if (unallocated + within >= tried && !others_first) {
      fragmented(tried, unallocated, within);
      cause_.uncertain = unallocated + within < tried + both_rounding;
    } else if (limited && free >= tried) {
      is(Kind::limit, fmt::format("the program allows itself {} of {}", format_bytes(allowed), format_bytes(total)));
      say(fmt::format("{} are free on the device, more than the {} that were asked for.", format_bytes(free),
                      format_bytes(tried)));
      advice_.act("a larger fraction in torch.cuda.set_per_process_memory_fraction(), or none");
      advice_.less_memory();
    } else {
      const Bytes there = unallocated + within;
      cause_.missing = tried - std::min(tried, there);
      cause_.uncertain = cause_.missing <= both_rounding && !others_first;
      if (others_first || (others >= cause_.missing && others > 0)) {
        is(Kind::others, fmt::format("other programs have {} of the {} that {} has in all", format_bytes(others),
                                     format_bytes(total), device_name(failure_)));
        say(fmt::format("This process asked for {}; {} were free, and {} of its own reserved memory unallocated.",
                        format_bytes(tried), format_bytes(within), format_bytes(unallocated)));
        if (unallocated >= tried) {
          say("Its own unallocated memory would be enough as well, were it in one piece.");
        }
        advice_.end_others();
        if (unallocated >= tried) advice_.defragment();
        advice_.less_memory();
      } else {
        is(Kind::too_large, fmt::format("{} lacks {} for a request of {}", device_name(failure_),
                                        format_bytes(cause_.missing), format_bytes(tried)));
        say(fmt::format(
            "Even with all that is reserved but unallocated ({}) and free ({}), {} are missing for this one "
            "request, and what comes after it is not counted.",
            format_bytes(unallocated), format_bytes(within), format_bytes(cause_.missing)));
        advice_.less_memory();
      }
    }
    if (limited && cause_.kind != Kind::limit) {
      say(fmt::format("The program allows itself {} of {} (set_per_process_memory_fraction).", format_bytes(allowed),
                      format_bytes(total)));
    }
    if (cause_.uncertain) {
      say(fmt::format(
          "The message's figures are rounded by up to {}, which is more than the difference: this is close, "
          "and could be another cause.",
          format_bytes(both_rounding)));
    }
  }

  // What this process has beside PyTorch's memory, and what others have.
  void others(Bytes total, Bytes reserved) {
    if (failure_.process) cause_.beside_pytorch = failure_.process->bytes - std::min(failure_.process->bytes, reserved);
    if (!failure_.free) return;
    const Bytes in_use = total - std::min(total, failure_.free->bytes);
    if (failure_.process) {
      if (in_use > failure_.process->bytes) cause_.of_others = in_use - failure_.process->bytes;
    } else if (in_use > reserved + 2 * usual_context) {
      cause_.of_others = in_use - reserved - usual_context;
    }
  }

  void fragmented(Bytes tried, Bytes unallocated, Bytes within) {
    if (unallocated >= tried) {
      is(Kind::fragmentation, fmt::format("{} are reserved but unallocated, more than the {} that were asked for",
                                          format_bytes(unallocated), format_bytes(tried)));
      say("No single free block holds them.");
    } else {
      is(Kind::fragmentation,
         fmt::format("partly: {} reserved but unallocated and {} free would be enough for {} together, but neither is "
                     "alone",
                     format_bytes(unallocated), format_bytes(within), format_bytes(tried)));
    }
    advice_.defragment();
    if (cause_.of_others.value_or(0) > 0) {
      say(fmt::format("Other programs have {} of the device.", format_bytes(*cause_.of_others)));
      advice_.end_others();
    }
    if (failure_.private_pools) {
      say(fmt::format("{} are in private pools of CUDA graphs, whose free blocks nothing else may use.",
                      text_of(*failure_.private_pools)));
    }
  }

  // More is allocated than the card has: a driver that lends CPU memory.
  void spilled(Bytes allocated, Bytes tried, Bytes total) {
    cause_.missing = allocated + tried - std::min(total, allocated + tried);
    is(Kind::too_large,
       fmt::format("{} are allocated on a card of {}: its driver was already using CPU memory for the rest",
                   format_bytes(allocated), format_bytes(total)));
    say(
        fmt::format("Windows' driver lends CPU memory to programs that ask for more than the card has (system memory "
                    "fallback), over the bus and slowly. The true need is {} at least.",
                    format_bytes(allocated + tried)));
    advice_.act(
        "NVIDIA Control Panel, CUDA - Sysmem Fallback Policy: Prefer No Sysmem Fallback, so that the program fails "
        "at the card's end rather than crawls beyond it");
    advice_.less_memory();
  }

  // Enough was free, and the device still refused.
  void refused(Bytes tried, Bytes free) {
    const bool intel = failure_.platform == Platform::xpu;
    if (intel && tried >= intel_largest_allocation) {
      is(Kind::limit, fmt::format("Intel's driver refuses a single allocation of 4 GiB and more; this one is {}",
                                  format_bytes(tried)));
      say(fmt::format("Memory was not short: {} of {} are not PyTorch's.", format_bytes(free),
                      text_of(*failure_.total)));
      advice_.act("smaller tensors: split the batch, attention or VAE into pieces (slicing, tiling) below 4 GiB each");
      advice_.act("UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS=1, before the program starts");
      return;
    }
    if (failure_.free) {
      is(Kind::limit,
         fmt::format("the device refused {} although {} were free", format_bytes(tried), format_bytes(free)));
      say("Memory was not short by these figures, and holes in PyTorch's own do not matter: free memory alone would "
          "have "
          "been enough. What refused is the driver, the container, or a limit of the process.");
    } else {
      is(Kind::limit, fmt::format("memory was not short: PyTorch has {} of {}, and {} were asked for",
                                  format_bytes(failure_.allocated->bytes + failure_.unallocated->bytes),
                                  text_of(*failure_.total), format_bytes(tried)));
      say("The message does not say what other programs have. If they have little, the driver or the container "
          "refused.");
    }
    switch (failure_.platform) {
      case Platform::rocm:
        advice_.act(
            "`dmesg | grep -i amdgpu`: what the driver says; `rocm-smi --showmeminfo vram gtt`; on an APU the GTT "
            "or carve-out size in the BIOS");
        advice_.act("many small mappings: `sysctl vm.max_map_count`, `ulimit -v`, `ulimit -l`");
        break;
      case Platform::xpu:
        advice_.act("`xpu-smi ps` for other programs; a newer driver; under WSL2 try it on Linux itself");
        advice_.act("torch.xpu.empty_cache(), and smaller single tensors");
        break;
      case Platform::npu:
        advice_.act("`npu-smi info` at the moment of the failure; the driver's log");
        break;
      default:
        advice_.act(
            "run it alone and look at nvidia-smi while it starts: another program may have taken memory for a "
            "moment");
        advice_.act(
            "`dmesg | grep -i nvrm`: what the driver says; `ulimit -v`; limits of the container, vGPU or MIG slice; "
            "on Windows the page file's size");
        advice_.act("processes that were forked after CUDA began (DataLoader, multiprocessing): start them with spawn");
    }
    const std::string variable = variable_of(failure_);
    if (!variable.empty() && !settings_.expandable_segments && !on_windows_) {
      advice_.act("as a try, not as a cure: " + variable +
                  "=expandable_segments:True, which asks the driver in another way");
    }
  }

  void mps() {
    const Bytes tried = failure_.tried->bytes;
    if (!failure_.allowed || !failure_.allocated) {
      is(std::nullopt, "the message lacks figures");
      advice_.act("paste the message to its end");
      return;
    }
    const Bytes allowed = failure_.allowed->bytes, mine = failure_.allocated->bytes;
    const Bytes other = failure_.other ? failure_.other->bytes : 0;
    const Bytes left = allowed - std::min(allowed, mine + other);
    const Bytes rounding = failure_.allowed->rounding + failure_.allocated->rounding + failure_.tried->rounding;
    const std::string lift =
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 lifts the limit, and macOS swaps: slow, and it may "
        "freeze the computer";
    if (left >= tried + rounding) {
      is(Kind::limit, fmt::format("Metal refused {} although {} of the allowed {} were left", format_bytes(tried),
                                  format_bytes(left), format_bytes(allowed)));
      say("A single buffer may be at most as large as the device's maxBufferLength.");
      advice_.act("smaller single tensors: shorter sequences, sliced attention");
      advice_.act(lift);
      return;
    }
    cause_.missing = tried - std::min(tried, left);
    if (failure_.other) cause_.of_others = other;
    if (other > mine && other >= cause_.missing) {
      is(Kind::others, fmt::format("{} of the allowed {} are other allocations, not PyTorch's tensors",
                                   format_bytes(other), format_bytes(allowed)));
      say(fmt::format(
          "{} were asked for, and {} left. Other allocations are Metal's own buffers, compiled graphs and what "
          "else uses the GPU's memory.",
          format_bytes(tried), format_bytes(left)));
      advice_.act("close other programs that draw or compute (Activity Monitor), and restart this one");
      advice_.act("torch.mps.empty_cache(); inputs of few different shapes, since each compiles a graph that stays");
    } else {
      is(Kind::too_large, fmt::format("PyTorch has {} of the allowed {}; {} more are too much", format_bytes(mine),
                                      format_bytes(allowed), format_bytes(tried)));
      say(fmt::format("{} were left.", format_bytes(left)));
      advice_.act("a smaller model, batch or picture; 16-bit or quantised weights; sliced attention");
      advice_.act("torch.mps.empty_cache() between stages, and stages that are not needed at once freed");
    }
    say("The limit is 1.7 times what macOS recommends (PYTORCH_MPS_HIGH_WATERMARK_RATIO).");
    advice_.act(lift);
  }

  void bare() {
    if (failure_.software == Software::llama_cpp) {
      llama();
      return;
    }
    Bytes listed = 0;
    for (const OtherProcess& process : failure_.processes) listed += process.bytes;
    is(std::nullopt, "GPU memory ran out, in a message without figures");
    if (failure_.processes.size() > 1) {
      cause_.of_others = listed;
      is(Kind::others,
         fmt::format("{} programs share the GPU, with {}", failure_.processes.size(), format_bytes(listed)));
      advice_.end_others();
    }
    say("The message is not of PyTorch's allocator: a library's workspace (cuBLAS, cuDNN, NCCL), the context itself, "
        "or "
        "page-locked CPU memory did not fit.");
    if (failure_.software == Software::bitsandbytes) {
      say("bitsandbytes' paged optimizers take unified memory: the CPU's may have run out as well.");
    }
    advice_.act(fmt::format("`{}` at the moment of the failure: is the GPU full, and whose is it?",
                            processes_listed_by(failure_.platform)));
    advice_.act("leave a gibibyte to libraries: torch.cuda.set_per_process_memory_fraction(0.95), or a smaller batch");
    advice_.act(
        "if the GPU is nearly empty: page-locked CPU memory (`free -h`, pin_memory=False, DeepSpeed's pin_memory), "
        "or a GPU in exclusive mode that another process has");
  }

  void llama() {
    if (failure_.tried && failure_.free) {
      const Bytes used = failure_.allocated ? failure_.allocated->bytes : 0;
      const Bytes needed = used + failure_.tried->bytes;
      cause_.missing = needed - std::min(needed, failure_.free->bytes);
      if (cause_.missing == 0) {
        is(Kind::others,
           fmt::format("{} were free at the start and {} needed so far: another program took memory since",
                       text_of(*failure_.free), format_bytes(needed)));
        advice_.end_others();
        advice_.less_memory();
        return;
      }
      is(Kind::too_large,
         fmt::format("{} are needed so far, and {} were free", format_bytes(needed), text_of(*failure_.free)));
    } else if (failure_.tried) {
      is(Kind::too_large, fmt::format("a buffer of {} does not fit beside what is there", text_of(*failure_.tried)));
    } else {
      is(Kind::too_large, "the model's buffers do not fit into the GPU's memory");
    }
    say("llama.cpp allocates its weights, its cache and its compute buffers at the start, in a piece each: nothing "
        "fragments. The log's lines \"buffer size\" say what each takes.");
    advice_.less_memory();
  }

  void one_buffer() {
    const std::string size = failure_.tried ? " (" + text_of(*failure_.tried) + ")" : "";
    if (failure_.platform == Platform::xpu) {
      is(Kind::limit, "Intel's driver refuses a single allocation of 4 GiB and more" + size);
      advice_.act("smaller tensors: split the batch, attention or VAE into pieces below 4 GiB each");
      advice_.act("UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS=1, before the program starts");
    } else if (failure_.platform == Platform::vulkan) {
      is(Kind::limit, "one buffer is larger than the Vulkan driver allows" + size);
      advice_.act(
          "a smaller -ub and -c, -fa on; GGML_VK_FORCE_MAX_ALLOCATION_SIZE sets what llama.cpp asks for at once");
      advice_.act("the CUDA or ROCm build of llama.cpp, which has no such limit");
    } else {
      is(Kind::limit, "one buffer is larger than Metal allows" + size);
      say("A single buffer may be at most maxBufferLength, about half of the memory. Attention that keeps all scores "
          "is "
          "the usual one.");
      advice_.act(
          "shorter sequences, a smaller picture, sliced or fused attention "
          "(torch.nn.functional.scaled_dot_product_attention)");
    }
  }

  void share() {
    if (failure_.software == Software::sglang) {
      is(Kind::limit, "the share of the GPU that SGLang takes leaves nothing for its cache");
      advice_.act("a larger --mem-fraction-static (such as 0.9)");
    } else {
      is(Kind::limit, "the share of the GPU that vLLM takes (--gpu-memory-utilization) leaves nothing for its cache");
      say("Weights and the largest activations fill that share.");
      advice_.act("a larger --gpu-memory-utilization (such as 0.95)");
    }
    advice_.less_memory();
  }

  void cache() {
    if (failure_.tried && failure_.free) {
      cause_.missing = failure_.tried->bytes - std::min(failure_.tried->bytes, failure_.free->bytes);
      is(Kind::too_large, fmt::format("the cache of one request of full length needs {}, and {} are left for it",
                                      text_of(*failure_.tried), text_of(*failure_.free)));
    } else {
      is(Kind::too_large, "the cache of one request of full length does not fit");
    }
    if (failure_.longest) advice_.act(fmt::format("--max-model-len {}", *failure_.longest));
    advice_.act("a larger --gpu-memory-utilization (such as 0.95)");
    advice_.less_memory();
  }

  void start() {
    if (failure_.total && failure_.free) {
      const Bytes in_use = failure_.total->bytes - std::min(failure_.total->bytes, failure_.free->bytes);
      cause_.of_others = in_use;
      is(Kind::others,
         fmt::format("{} of {} were in use before vLLM began", format_bytes(in_use), text_of(*failure_.total)));
      if (failure_.tried) {
        cause_.missing = failure_.tried->bytes - std::min(failure_.tried->bytes, failure_.free->bytes);
        if (in_use <= usual_context) {
          is(Kind::limit,
             fmt::format("vLLM wants {} and {} are free", text_of(*failure_.tried), text_of(*failure_.free)));
        }
      }
    } else {
      is(Kind::others, "less is free than vLLM wants at its start");
    }
    advice_.end_others();
    advice_.act("a smaller --gpu-memory-utilization, so that it asks for what is free");
  }

  void host() {
    const std::string size = failure_.tried ? fmt::format(" ({} were asked for)", text_of(*failure_.tried)) : "";
    switch (failure_.form) {
      case Form::killed:
        is(Kind::host, "the system ended a process, nearly always because CPU memory ran out");
        say("Signal 9 leaves no message in the program itself; the system's log confirms it.");
        advice_.act(
            "`dmesg | grep -i 'out of memory'` or `journalctl -k`: which process, and how much it had; in a "
            "container the memory limit (docker --memory, resources.limits.memory, Slurm --mem)");
        break;
      case Form::shared_memory:
        is(Kind::host, "shared memory (/dev/shm) is full");
        advice_.act("docker run --shm-size=8g or --ipc=host; fewer DataLoader workers (num_workers)");
        return;
      default:
        is(Kind::host, "CPU memory ran out" + size);
    }
    switch (failure_.software) {
      case Software::llama_cpp:
        advice_.act(
            "a file with fewer bits a weight, more layers on the GPU (-ngl), without --no-mmap and --mlock, a smaller "
            "-c");
        break;
      case Software::ollama:
        advice_.act("a smaller model or one with fewer bits a weight; a smaller num_ctx; end other programs");
        break;
      case Software::numpy:
        advice_.act("np.load(…, mmap_mode=\"r\") or pieces of the array; a smaller dtype");
        break;
      default:
        advice_.act(
            "while loading: low_cpu_mem_usage=True, safetensors files, one rank at a time (each rank loads a copy)");
        advice_.act("fewer DataLoader workers (num_workers) and a smaller prefetch_factor: each worker is a process");
        advice_.act(
            "offloading to CPU memory: DeepSpeed's offload_optimizer keeps 12 bytes a parameter there and "
            "offload_param 2, page-locked; \"device\": \"nvme\" with fewer buffers needs less");
    }
    advice_.act(
        "tencache fit --model NAME --batch B --seq S --machine MACHINE --cpu-memory SIZE: what the CPU has to hold");
  }

  const Failure& failure_;
  CachingSettings settings_;
  bool on_windows_;
  FailureCause cause_;
  Advice advice_;
};

}  // namespace

FailureCause explain_failure(const Failure& failure, std::string_view settings, bool on_windows) {
  return Explainer(failure, settings, on_windows).explain();
}

WhyAnswered explain_failures(FailureLog log, std::string_view settings) {
  WhyAnswered why;
  why.log = std::move(log);
  for (const Failure& failure : why.log.failures) {
    why.causes.push_back(explain_failure(failure, settings, why.log.on_windows));
  }
  // The last job of a log, and in it the last try of the rank that failed first: a batch is halved until it fits or
  // nothing is left of it. Other ranks often fail because the first one did.
  const std::vector<Failure>& failures = why.log.failures;
  const auto job_of = [](const Failure& failure) { return failure.place.job; };
  const auto first =
      static_cast<std::size_t>(std::ranges::find(failures, failures.back().place.job, job_of) - failures.begin());
  why.verdict = first;
  for (std::size_t i = first; i < failures.size(); ++i) {
    const bool mine = failures[i].rank == failures[first].rank && failures[i].gpu == failures[first].gpu &&
                      failures[i].platform == failures[first].platform;
    if (mine && (why.causes[i].kind || !why.causes[why.verdict].kind)) why.verdict = i;
  }
  return why;
}

}  // namespace tencache
