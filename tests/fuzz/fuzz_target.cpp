// The entry of libFuzzer: one program a reader, fuzz_<reader>. tests/fuzz/README.md says how they are built and run.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/readers.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tencache::fuzz::read_or_refuse(TENCACHE_FUZZ_READER, {reinterpret_cast<const char*>(data), size});
  return 0;
}
