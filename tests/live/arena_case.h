// Random users of a range of an accelerator's addresses (executor/accelerator.h), for a machine and alone.
#pragma once

#include <functional>
#include <string>

#include "executor/accelerator.h"
#include "tests/property/random_case.h"

namespace tencache {

// The case's GPU becomes an arena, of whole pages of the accelerator. The case was made with CaseOptions::movable.
void make_arena(RandomCase& made, Bytes page);

struct UserTrouble {
  std::function<void()> interfere;                   // another library of the program makes another context current
  std::function<void(const char* function)> fail{};  // the driver's next call of that function fails; empty: none does
};

// Copies into, out of and within a range, onto themselves too, one after the other without waiting. Empty, or what was
// wrong with a content. Throws Error as the accelerator does, but for what failed by `fail`.
std::string use_arena(Accelerator& accelerator, Random& random, Bytes capacity, const UserTrouble& trouble);

}  // namespace tencache
