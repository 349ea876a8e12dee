// The list of tests of the real machine on an accelerator (cuda_machine_cases.cpp), which two programs run: one on the
// driver of rules, one on a GPU.
#pragma once

#include <memory>
#include <string>

#include "executor/accelerator.h"

namespace tencache {

// The accelerator under test, opened anew. Null, with the reason, where there is none.
std::shared_ptr<Accelerator> test_accelerator(std::string& why_not);
// At the end of each test, when all is destroyed: empty, or what is wrong.
std::string test_accelerator_leftovers();

}  // namespace tencache
