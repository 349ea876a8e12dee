// Random users of a range of an accelerator's addresses (executor/accelerator.h), for a machine and alone.
#pragma once

#include <functional>
#include <string>

#include "executor/accelerator.h"
#include "tests/property/random_case.h"

namespace tencache {

// The case's GPU becomes an arena, of whole pages of the accelerator. The case was made with CaseOptions::movable.
void make_arena(RandomCase& made, Bytes page);

// Copies into, out of and within a range, onto themselves too, one after the other without waiting; between some of
// them another library of the program makes another context current (`interfere`). Empty, or what was wrong with a
// content. Throws Error as the accelerator does.
std::string use_arena(Accelerator& accelerator, Random& random, Bytes capacity, const std::function<void()>& interfere);

}  // namespace tencache
