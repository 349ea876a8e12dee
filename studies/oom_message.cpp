#include "studies/oom_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <regex>

#include "configs/caching_settings.h"
#include "core/error.h"

namespace tencache {
namespace {

// The figure in front of or behind some words; absent where they are not there.
std::optional<Bytes> figure(const std::string& text, const char* pattern) {
  std::smatch found;
  if (!std::regex_search(text, found, std::regex(pattern))) return std::nullopt;
  const std::string unit = found[2].str() == "bytes" ? "" : found[2].str();
  return parse_bytes(found[1].str() + unit);
}

#define TENCACHE_FIGURE "([0-9]+(?:\\.[0-9]+)?) ?(bytes|KiB|MiB|GiB|TiB)"

// Line breaks of a terminal, and what it lays around a line, are spaces.
std::string on_one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const bool space = std::isspace(static_cast<unsigned char>(c)) != 0;
    if (space && (line.empty() || line.back() == ' ')) continue;
    line += space ? ' ' : c;
  }
  return line;
}

}  // namespace

OomMessage parse_oom_message(std::string_view text) {
  const std::string line = on_one_line(text);
  OomMessage message;
  const auto tried = figure(line, "[Tt]ried to allocate " TENCACHE_FIGURE);
  if (!tried) {
    throw Error(
        "--message: has no 'Tried to allocate …': paste the whole line of PyTorch's \"CUDA out of memory\", in "
        "quotation marks");
  }
  message.tried = *tried;
  message.total = figure(line, TENCACHE_FIGURE " total capacity");
  if (!message.total) message.total = figure(line, "total capaci?ty of " TENCACHE_FIGURE);
  message.allowed = figure(line, TENCACHE_FIGURE " allowed");
  message.free = figure(line, "of which " TENCACHE_FIGURE " is free");
  if (!message.free) message.free = figure(line, TENCACHE_FIGURE " free;");
  message.process = figure(line, "this process has " TENCACHE_FIGURE " memory in use");
  message.allocated = figure(line, TENCACHE_FIGURE " already allocated");
  if (!message.allocated) message.allocated = figure(line, TENCACHE_FIGURE " is allocated by PyTorch");
  message.private_pools = figure(line, TENCACHE_FIGURE " allocated in private pools");
  message.unallocated = figure(line, TENCACHE_FIGURE " is reserved by PyTorch but unallocated");
  const auto reserved = figure(line, TENCACHE_FIGURE " reserved in total by PyTorch");
  if (reserved && message.allocated) message.unallocated = *reserved - std::min(*reserved, *message.allocated);
  return message;
}

OomExplanation explain_oom(const OomMessage& message, std::string_view text) {
  const CachingSettings settings = parse_caching_settings(text);
  OomExplanation explained;
  explained.message = message;
  const auto say = [&](std::string sentence) { explained.sentences.push_back(std::move(sentence)); };
  const Bytes segment = settings.large_segment_size;
  if (!settings.expandable_segments && message.tried == segment) {
    say(
        fmt::format("{} is what PyTorch asks the device for whenever a request of 1 to 10 MiB finds no free block: the "
                    "tensor itself is smaller.",
                    format_bytes(segment)));
  } else if (!settings.expandable_segments && message.tried == 2 * MiB) {
    say("2 MiB is what PyTorch asks the device for whenever a request of up to 1 MiB finds no free block: the tensor "
        "itself is smaller.");
  }
  if (!message.total || !message.allocated || !message.unallocated) {
    say("The message has not all its figures (total, allocated, reserved but unallocated): what it says alone does not "
        "tell fragmentation from a real need.");
    explained.next.push_back("paste the message to its end");
    return explained;
  }
  const Bytes reserved = *message.allocated + *message.unallocated + message.private_pools.value_or(0);
  const Bytes free = message.free.value_or(*message.total - std::min(*message.total, reserved));
  const Bytes limit = std::min(*message.total, message.allowed.value_or(*message.total));
  if (message.process) explained.beside_pytorch = *message.process - std::min(*message.process, reserved);
  const Bytes in_use = *message.total - std::min(*message.total, free);
  const Bytes known = message.process.value_or(reserved);
  // The messages before 2.1 do not say what else this process has: half a gibibyte is common.
  if (message.process && in_use > known) explained.of_others = in_use - known;

  const Bytes usable = message.allowed ? limit - std::min(limit, reserved) : free;
  if (*message.unallocated >= message.tried) {
    explained.cause = OomCause::fragmentation;
    say(fmt::format(
        "Fragmentation: {} is reserved but unallocated, more than the {} that were asked for, but no single "
        "free block holds them.",
        format_bytes(*message.unallocated), format_bytes(message.tried)));
  } else if (*message.unallocated + usable >= message.tried) {
    explained.cause = OomCause::both;
    say(fmt::format(
        "Partly fragmentation: {} reserved but unallocated and {} free would be enough for {} together, but "
        "neither is alone.",
        format_bytes(*message.unallocated), format_bytes(usable), format_bytes(message.tried)));
  } else {
    explained.missing = message.tried - usable - *message.unallocated;
    const bool others = explained.of_others.value_or(0) >= explained.missing;
    explained.cause = others ? OomCause::others : OomCause::need;
    say(fmt::format(
        "A real need: even with all that is reserved but unallocated ({}) and free ({}), {} are missing for "
        "this one request, and what comes after it is not counted.",
        format_bytes(*message.unallocated), format_bytes(usable), format_bytes(explained.missing)));
    if (others) {
      say(fmt::format("Other processes have {} of the GPU, which would be enough.",
                      format_bytes(*explained.of_others)));
    }
  }
  if (message.allowed) {
    say(fmt::format("The program allows itself {} of {} (set_per_process_memory_fraction).", format_bytes(limit),
                    format_bytes(*message.total)));
  }

  const bool fragments = explained.cause == OomCause::fragmentation || explained.cause == OomCause::both;
  if (explained.cause == OomCause::others) {
    explained.next.push_back("end the other processes on this GPU (nvidia-smi lists them)");
  }
  if (fragments && !settings.expandable_segments) {
    explained.next.push_back("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, before the program starts");
  }
  if (fragments && settings.max_split_size >= unlimited && !settings.expandable_segments) {
    explained.next.push_back(
        "where that is not available (Windows, PyTorch before 2.1): PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512, and "
        "less only if that fails: the smaller, the more retries");
  }
  if (fragments && settings.expandable_segments) {
    say("expandable_segments is on already: what is left are holes between tensors that are alive, which no setting "
        "closes.");
    explained.next.push_back(
        "torch.cuda.empty_cache() before the largest request, or tensors of one size: pad batches");
  }
  explained.next.push_back(fragments
                               ? "tencache fragment on a recording of the program (profile_memory=True, or a "
                                 "memory snapshot): what each setting gains"
                               : "a smaller batch, recomputation, or memory beside the GPU: tencache fit says what "
                                 "is enough");
  return explained;
}

}  // namespace tencache
