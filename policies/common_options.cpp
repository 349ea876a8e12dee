#include "policies/common_options.h"

namespace tencache {

void add_overflow_option(Options& options, std::string& overflow) {
  options
      .choice("overflow", overflow, {"oom", "evict"},
              "when what stays on the GPU does not fit: report out of memory, or evict the coldest")
      .fixed(Options::counts_misfits);
}

void add_chunk_option(Options& options, Bytes& chunk_bytes, bool or_staging) {
  options
      .bytes("chunk", chunk_bytes,
             or_staging ? "unit that moves, or 'whole' (a staging buffer where the SSD needs one)"
                        : "unit that moves, or 'whole'")
      .of_pieces();
}

void add_limit_option(Options& options, double& limit) {
  options.share("limit", limit, "of the GPU's memory that the plan may fill");
}

void add_oracle_option(Options& options, bool& oracle) {
  options.flag("oracle", oracle, "sees which experts a gate will choose before it does: a bound, which no system is")
      .fixed(Options::rules_of_a_system);
}

void add_promote_option(Options& options, bool& promote) {
  options.flag("promote", promote, "demand lifts a queued prefetch of the same chunk")
      .fixed(Options::rules_of_a_system);
}

void add_overlap_faults_option(Options& options, bool& overlap_faults) {
  options
      .flag("overlap_faults", overlap_faults,
            "an op computes beside its own prefetches that are late; in simulation only")
      .fixed(Options::rules_of_a_system);
}

}  // namespace tencache
