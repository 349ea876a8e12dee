// lru: the least recently used tensor leaves (the textbook rule; Belady 1966 and Denning 1968 study it for pages), with
// a prefetch window. The engine keeps the tiers in this order already: victims are the first of the list, O(1) each.
#include "policies/classic.h"
#include "policies/policies.h"

namespace tencache {

std::unique_ptr<Policy> make_lru(Options& options) { return std::make_unique<ClassicPolicy>(options); }

}  // namespace tencache
