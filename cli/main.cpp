#include "cli/command_line.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

int main(int argc, char** argv) {
#if defined(__GLIBC__)
  // Runs of a large program make and free the same hundreds of megabytes again and again: kept, the kernel need not
  // clear their pages each time.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
  return tencache::run_command_line(argc, argv);
}
