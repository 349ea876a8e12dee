// fifo: the tensor that came first leaves, used or not (the textbook rule, with its anomaly: Belady, Nelson, Shedler
// 1969), with a prefetch window. Without touches the engine keeps the tiers in order of arrival: O(1) a victim.
#include "policies/classic.h"
#include "policies/policy_library.h"

namespace tencache {
namespace {

class Fifo final : public ClassicPolicy {
 public:
  explicit Fifo(Options& options) : ClassicPolicy(options) { layout_.use_touches = false; }
};

}  // namespace

TENCACHE_POLICY({"fifo", "the tensor that came first leaves; prefetch window of w accesses", "textbook",
                 make_policy_of<Fifo>, 50})

}  // namespace tencache
