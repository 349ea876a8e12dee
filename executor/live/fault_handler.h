// Memory of a live runtime that is touched while it is not there: numpy's views, `.tolist()`, pickle and whatever else
// reads or writes a tensor's address without an op. The handler of SIGSEGV brings the tensor in and lets the access go on.
//
// What cannot be served ends the process with a message instead of a fault: no room, memory inside an op that was not
// given it, a child process. System calls that are given such an address fail with EFAULT and never get here: pin the
// tensors for those. Faults that are nobody's go to the handler that was there before.
#pragma once

namespace tencache {

class LiveRuntime;

// From now on for this runtime, which has raw access (HostMachineOptions); nullptr: for none. Of one at a time.
void serve_faults(LiveRuntime* runtime);

}  // namespace tencache
