// on-demand: no prefetch; what an op misses is fetched while the GPU waits, the coldest chunk leaves. What unified
// memory does, in chunks. The rules live in the engine, so the policy only chooses among them.
//
// mode=g10-uvm repeats the UVM baseline of G10's simulator (MICRO'23, its public code) for comparison with its
// published times: copies are exclusive (every eviction writes), the victim is the first to arrive, and dead tensors
// are written out and fetched back when they are born again. Our own mode drops dead tensors, and is 2 to 4 times
// faster for it.
#include "policies/common_options.h"
#include "policies/policy_library.h"

namespace tencache {
namespace {

class OnDemand final : public Policy {
 public:
  explicit OnDemand(Options& options) {
    options
        .choice("mode", mode_, {"ours", "g10-uvm"},
                "g10-uvm: as G10's baseline; unless set, victim=fifo, free_dead=never, copies=exclusive, chunk=2MiB")
        .fixed(Options::rules_of_a_system);
    if (mode_ == "g10-uvm") {
      victim_ = "fifo";
      free_dead_ = "never";
      copies_ = "exclusive";
      layout_.chunk_bytes = 2 * MiB;  // unified memory moves blocks of 2 MiB
    }
    options.choice("victim", victim_, {"lru", "fifo"},
                   "lru: the least recently used leaves; fifo: the first to have arrived");
    options
        .choice("free_dead", free_dead_, {"now", "when_victim", "never"},
                "what becomes of a tensor after its last use of the iteration")
        .fixed(Options::rules_of_a_system);
    options
        .choice("copies", copies_, {"inclusive", "exclusive"},
                "inclusive: a fetched chunk's copy below stays valid until it is written")
        .fixed(Options::rules_of_a_system);
    add_promote_option(options, layout_.promote);
    add_chunk_option(options, layout_.chunk_bytes);
    layout_.use_touches = victim_ == "lru";
    layout_.free_dead = free_dead_ == "now"     ? FreeDead::now
                        : free_dead_ == "never" ? FreeDead::never
                                                : FreeDead::when_victim;
    layout_.exclusive_copies = copies_ == "exclusive";
  }

  Layout layout(const MachineSpec&, const Program*) const override { return layout_; }

 private:
  std::string mode_ = "ours", victim_ = "lru", free_dead_ = "now", copies_ = "inclusive";
  Layout layout_;
};

}  // namespace

TENCACHE_POLICY({"on-demand", "no prefetch: a miss is fetched while the GPU waits, the least recently used leaves",
                 "what unified memory does; comparison mode: G10's UVM baseline (MICRO'23)", make_policy_of<OnDemand>,
                 30})

}  // namespace tencache
