// Policy libraries that must be refused, one a definition; `marker` leaves a file where it is loaded, the policies of
// `throwing` fail while they run.
#include <fstream>
#include <stdexcept>

#include "policies/policy_library.h"

namespace {

class Nothing final : public tencache::Policy {
 public:
  explicit Nothing(tencache::Options&) {}
};

}  // namespace

#if defined(FAULT_no_entry)
extern "C" int not_the_function() { return sizeof(Nothing); }
#elif defined(FAULT_marker)
[[maybe_unused]] const bool loaded = std::ofstream("loaded").is_open();
TENCACHE_POLICY_LIBRARY({"marker", "was loaded", "", tencache::make_policy_of<Nothing>})
#elif defined(FAULT_throwing)
template <bool number>
class Throwing final : public tencache::Policy {
 public:
  explicit Throwing(tencache::Options&) {}
  void on(const tencache::Event&, const tencache::View&, tencache::Actions&) override {
    if (number) throw 42;
    throw std::runtime_error("boom");
  }
};
TENCACHE_POLICY_LIBRARY({"throws-text", "fails", "", tencache::make_policy_of<Throwing<false>>},
                        {"throws-number", "fails", "", tencache::make_policy_of<Throwing<true>>})
#elif defined(FAULT_taken_name)
TENCACHE_POLICY_LIBRARY({"fine", "its first policy is", "", tencache::make_policy_of<Nothing>},
                        {"lru", "there is one", "", tencache::make_policy_of<Nothing>})
#elif defined(FAULT_bad_name)
TENCACHE_POLICY_LIBRARY({"all", "means something else", "", tencache::make_policy_of<Nothing>})
#else
extern "C" const tencache::PolicyLibrary* tencache_policy_library() {
  static tencache::PolicyLibrary library = {tencache::policy_abi_version, 0, tencache::policy_abi_layout(), __VERSION__,
                                            nullptr};
#if defined(FAULT_old_version)
  library.abi_version = 0;
#elif defined(FAULT_other_layout)
  library.abi_layout ^= 1;
#endif
  return &library;
}
#endif
