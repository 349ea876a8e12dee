// lru: the least recently used tensor leaves (the textbook rule; Belady 1966 and Denning 1968 study it for pages), with
// a prefetch window. The engine keeps the tiers in this order already: victims are the first of the list, O(1) each.
#include "policies/classic.h"
#include "policies/policy_library.h"

namespace tencache {

TENCACHE_POLICY({"lru", "the least recently used tensor leaves; prefetch window of w accesses", "textbook",
                 make_policy_of<ClassicPolicy>, 40})

}  // namespace tencache
