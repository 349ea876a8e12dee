// Which of five it was when memory ran out, and what to do about it in the words of the software and the platform that
// said so (studies/failure_log.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/enum_names.h"
#include "studies/failure_log.h"

namespace tencache {

enum class FailureKind : std::uint8_t {
  too_large,      // there is not enough on the device, whoever uses it
  others,         // other programs have what is missing
  fragmentation,  // it is reserved and free, but in no one piece
  limit,          // a limit of the program, the driver or the container stands before the memory's end
  host,           // CPU memory
};
template <>
inline constexpr auto enum_texts<FailureKind> = std::to_array<std::string_view>({"too_large", "others", "fragmentation",
                                                                                 "limit", "host"});

struct FailureCause {
  std::optional<FailureKind> kind;              // none: the message does not tell
  bool uncertain = false;                       // the printed figures' rounding could make it another
  std::string headline;                         // one sentence
  std::vector<std::string> sentences, actions;  // actions: the best first
  Bytes missing = 0;                            // at least
  std::optional<Bytes> beside_pytorch;          // of this process: the context, libraries
  std::optional<Bytes> of_others;               // of other programs
};

// `settings`: those of PyTorch's allocator as they were, so that nothing is advised that is there already. Throws Error
// where they are none.
FailureCause explain_failure(const Failure& failure, std::string_view settings, bool on_windows);

struct WhyAnswered {
  FailureLog log;
  std::vector<FailureCause> causes;  // of each failure
  std::size_t verdict = 0;  // the failure that counts: in the last job, the last try of the rank that failed first
};
WhyAnswered explain_failures(FailureLog log, std::string_view settings);

}  // namespace tencache
