#include "tests/live/rules/call_stack.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace tencache::rules {
namespace {

struct Frame {
  const Frame* next;
  void* returns_to;
};
constexpr std::uintptr_t largest_frame = 1 << 18;

std::string name_of(void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "?";
  std::string name = "?";
  if (info.dli_sname != nullptr) {
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> plain(
        abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), &std::free);
    name = status == 0 ? plain.get() : info.dli_sname;
  }
  char offset[32];
  std::snprintf(offset, sizeof offset, "+0x%zx",
                static_cast<std::size_t>(static_cast<char*>(address) - static_cast<char*>(info.dli_fbase)));
  return name + " (" + info.dli_fname + offset + ")";
}

}  // namespace

// A frame lies above the one that it called, and not far: whatever else stands in the register is no frame.
[[gnu::noinline, gnu::no_sanitize("address", "thread", "undefined")]] CallStack CallStack::here() {
  CallStack stack;
  const auto* frame = static_cast<const Frame*>(__builtin_frame_address(0));
  for (void*& at : stack.frames) {
    at = frame->returns_to;
    const auto here = reinterpret_cast<std::uintptr_t>(frame), next = reinterpret_cast<std::uintptr_t>(frame->next);
    if (next <= here || next - here > largest_frame || next % sizeof(void*) != 0) break;
    frame = frame->next;
  }
  return stack;
}

std::string CallStack::describe() const {
  std::string text;
  for (void* frame : frames) {
    if (frame == nullptr) break;
    text += "    " + name_of(frame) + "\n";
  }
  return text;
}

}  // namespace tencache::rules
