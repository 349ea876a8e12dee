#include "policies/registry.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "core/error.h"
#include "policies/policies.h"

namespace tencache {
namespace {

using Entry = PolicyEntry;

constexpr std::array entries{
    Entry{"10cache", "an active window of tensors slides over the recorded order; buffers of one size each are reused",
          "10Cache (SoCC'25), arXiv 2511.14124", make_ten_cache},
    Entry{"ideal", "GPU memory without limit: nothing moves, the compute time alone", "reference point", make_ideal},
    Entry{"on-demand", "no prefetch: a miss is fetched while the GPU waits, the least recently used leaves",
          "what unified memory does; comparison mode: G10's UVM baseline (MICRO'23)", make_on_demand},
    Entry{"lru", "the least recently used tensor leaves; prefetch window of w accesses", "textbook", make_lru},
    Entry{"fifo", "the tensor that came first leaves; prefetch window of w accesses", "textbook", make_fifo},
    Entry{"lfu", "the least frequently used tensor leaves; prefetch window of w accesses", "textbook", make_lfu},
    Entry{"belady", "the tensor whose next use is farthest leaves; prefetch=ordered fetches ahead in trace order",
          "Belady (IBM Systems Journal 1966); ordered: Cao et al. (SIGMETRICS'95)", make_belady},
    Entry{"l2l", "only the running layer's parameters are on the GPU: fetched at its start, dropped at its end",
          "L2L (Pudipeddi et al. 2020), 10Cache's slowest baseline", make_l2l},
    Entry{"foresight",
          "fetches in trace order, cleans what will have to leave, drops what is needed last; planned by rehearsal",
          "TenCache; docs/policies.md", make_foresight},
    Entry{"g10",
          "plans evictions and prefetches over inactive periods of tensors, to the SSD first, then to CPU memory",
          "G10 (MICRO'23)", make_g10},
    Entry{"deepum", "unified memory that fetches what the kernel 8 further on reads and keeps what comes before it",
          "DeepUM (ASPLOS'23); comparison mode: G10's baseline (MICRO'23)", make_deepum},
    Entry{"flashneuron",
          "the earliest activations go to the SSD until the rest fits, and come back during the backward pass",
          "FlashNeuron (FAST'21)", make_flashneuron},
    Entry{"layer-streaming", "host memory is home; the next layer streams in while this one runs, gradients stream out",
          "the schedule of layer-streaming trainers (MegaTrain, Horizon-LM)", make_layer_streaming},
    Entry{"capuchin",
          "the tensors with the most free time between their transfers are swapped, after a passive iteration",
          "Capuchin (ASPLOS'20), its swapping", make_capuchin},
    Entry{"tensile",
          "lowers the peak again and again: the largest idle tensor that has free slots on the link is swapped",
          "TENSILE, arXiv 2105.13336, its swapping", make_tensile},
    Entry{"teraio",
          "plans offloads and prefetches over inactive periods of tensors by the time they relieve, to the SSD first",
          "TERAIO (NeurIPS'25), arXiv 2506.06472", make_teraio},
    Entry{"patrickstar", "model data moves in chunks of 64 MiB; the chunk whose next use is farthest leaves the GPU",
          "PatrickStar (IEEE TPDS 2023), arXiv 2108.05818", make_patrickstar},
    Entry{"ssdtrain", "activations are stored on the SSD as they are made and fetched back module by module",
          "SSDTrain (DAC'25), arXiv 2408.10013", make_ssdtrain},
    Entry{"stronghold", "a window of whole layers moves over the model on the GPU; the CPU updates what it has left",
          "StrongHold (SC'22)", make_stronghold},
    Entry{"deep-optimizer-states",
          "as zero-offload, but every second sub-group of the optimizer is updated on the GPU, beside the CPU's",
          "Deep Optimizer States (Middleware'24), arXiv 2410.21316", make_deep_optimizer_states},
    Entry{"mlp-offload",
          "the CPU updates sub-groups whose states are spread over several storage tiers; the last ones stay in memory",
          "MLP-Offload (SC'25), arXiv 2509.02480", make_mlp_offload},
    Entry{"vdnn",
          "layer inputs leave during their layer's forward pass and return one layer ahead in the backward pass",
          "vDNN (MICRO'16), its static policies", make_vdnn},
    Entry{
        "zero-infinity",
        "parameters visit the GPU module by module, prefetched in recorded order; the rest lives in CPU memory or NVMe",
        "ZeRO-Infinity (SC'21), DeepSpeed stage 3", make_zero_infinity},
    Entry{"zero-offload",
          "parameters stay on the GPU, gradients go to the CPU, which keeps the states and runs the optimizer",
          "ZeRO-Offload (USENIX ATC'21)", make_zero_offload},
};

struct Registered {
  PolicyMaker maker;
  bool replaceable = false;
};

std::vector<Registered> shipped() {
  std::vector<Registered> list;
  for (const Entry& entry : entries) list.push_back({{entry.name, entry.summary, entry.source, entry.make}});
  return list;
}

struct Registry {
  std::mutex mutex;
  std::vector<Registered> all = shipped();
};
Registry& registry() {
  static Registry one;
  return one;
}

std::vector<Registered> registered() {
  const std::lock_guard lock(registry().mutex);
  return registry().all;
}

void add(std::vector<Registered>& all, Registered entry, const std::string& origin) {
  const std::string& name = entry.maker.name;
  const bool fit = !name.empty() && name != "all" && name != "bound" &&
                   name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string::npos;
  if (!fit) throw Error(origin, 0, "has a policy named '" + name + "'; names are of a-z, 0-9 and -, and not 'all'");
  const auto same = std::ranges::find_if(all, [&](const Registered& other) { return name == other.maker.name; });
  if (same == all.end()) {
    all.push_back(std::move(entry));
  } else if (same->replaceable && entry.replaceable) {
    *same = std::move(entry);
  } else {
    throw Error(origin, 0, "has a policy '" + name + "', which there is already; give it another name");
  }
}

}  // namespace

void register_policies(std::span<const PolicyEntry> more, const std::string& origin) {
  const std::lock_guard lock(registry().mutex);
  std::vector<Registered> all = registry().all;
  for (const PolicyEntry& entry : more) {
    add(all, {{entry.name, entry.summary, entry.source, entry.make}}, origin);
  }
  registry().all = std::move(all);
}

void register_policy(PolicyMaker maker, const std::string& origin) {
  const std::lock_guard lock(registry().mutex);
  add(registry().all, {std::move(maker), true}, origin);
}

std::vector<PolicyInfo> list_policies() {
  std::vector<PolicyInfo> list;
  for (const auto& [maker, replaceable] : registered()) {
    Options options(maker.name);
    maker.make(options);
    list.push_back({maker.name, maker.summary, maker.source, options.declared()});
  }
  return list;
}

MadePolicy make_policy(const std::string& name, const std::map<std::string, std::string>& settings) {
  std::string valid;
  for (const auto& [maker, replaceable] : registered()) {
    if (name == maker.name) {
      Options options(name, settings);
      std::unique_ptr<Policy> policy = maker.make(options);
      options.check_all_known();
      return {std::move(policy), options.resolved()};
    }
    valid += (valid.empty() ? "" : ", ") + maker.name;
  }
  throw Error("no policy is named '" + name + "'; there are: " + valid);
}

}  // namespace tencache
