// Memory of a live runtime that is touched while it is not there: numpy's views, `.tolist()`, pickle and whatever else
// reads or writes a tensor's address without an op. The handler of SIGSEGV brings the tensor in and lets the access go on.
//
// What cannot be served ends the process with a message instead of a fault: no room, memory inside an op that was not
// given it, a child process. Faults that are nobody's go to the handler of others, whenever that was installed.
//
// System calls do not fault: given such an address they fail with EFAULT. Those of other libraries (read, write and
// their kin, through libc) are served as well (system_calls.h).
#pragma once

namespace tencache {

class LiveRuntime;

// From now on for this runtime, which has raw access (HostMachineOptions); nullptr: for none. Of one at a time.
void serve_faults(LiveRuntime* runtime);
// Call it now and then, such as when an address gets known outside: libraries that were loaded since, and handlers of
// SIGSEGV that were installed since without asking libc, are found here. Cheap where there are none.
void keep_serving_faults();

}  // namespace tencache
