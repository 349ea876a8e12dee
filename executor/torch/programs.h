// Training programs of other kinds than the GPT, to be recorded: made of LibTorch's own modules, with random data.
#pragma once

#include <string>
#include <vector>

#include "executor/torch/record.h"

namespace tencache {

struct ProgramInfo {
  std::string name, description;
};
const std::vector<ProgramInfo>& list_programs();

// As record_training. Throws Error for a name that is not in the list.
Recording record_program(const std::string& name, const RecordingOptions& options);

}  // namespace tencache
