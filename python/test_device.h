// Where tests put the GPU of live runs: a module of theirs has this function, which gives the setting an accelerator,
// and the options what goes with it (tests/live/python_rules.cpp), or options that only tests have
// (tests/live/python_moved.cpp). Elsewhere nothing happens.
#pragma once

#include "answers/live_run.h"

namespace tencache {

void put_on_test_device(LiveSetting& setting, LiveRunOptions& options);

}  // namespace tencache
