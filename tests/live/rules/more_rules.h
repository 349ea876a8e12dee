// Functions of the driver of rules that executor/cuda does not call yet, and its table so does not have: words
// that streams write, and what a program that captures graphs does. An entry moves to
// add_work_rules when the table gets it.
#pragma once

#include <cuda.h>

namespace tencache::rules {

struct MoreRules {
  decltype(&::cuStreamWriteValue64) cuStreamWriteValue64 = nullptr;
  decltype(&::cuStreamBeginCapture) cuStreamBeginCapture = nullptr;
  decltype(&::cuStreamEndCapture) cuStreamEndCapture = nullptr;  // the graph is null: nobody launches it here
  decltype(&::cuStreamIsCapturing) cuStreamIsCapturing = nullptr;
  decltype(&::cuThreadExchangeStreamCaptureMode) cuThreadExchangeStreamCaptureMode = nullptr;
};

// Of the driver that is active.
MoreRules more_rules();

}  // namespace tencache::rules
