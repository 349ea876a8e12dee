// Which tensors have a value that somebody needs. By id of the memory; ids of tensors that have gone are used again.
#pragma once

#include <cstdint>
#include <vector>

#include "core/trace.h"

namespace tencache {

struct TensorLives {
  // The value is needed no more: nothing copies it. A write, from the op's issue on, begins a new life.
  std::vector<std::uint8_t> dead;
  // It has had content in this life. Never with `dead`, but for victims that keep their room (FreeDead::when_victim).
  std::vector<std::uint8_t> born;
  // Destroyed by the program, and therefore dead; gone when the last transfer and copy are.
  std::vector<std::uint8_t> doomed;

  void reserve(std::size_t tensors) {  // these will begin
    for (auto* flags : {&dead, &born, &doomed}) flags->reserve(tensors);
  }
  void begin(TensorId tensor) {
    if (tensor >= dead.size()) {
      for (auto* flags : {&dead, &born, &doomed}) flags->resize(tensor + std::size_t{1}, 0);
    }
    dead[tensor] = born[tensor] = doomed[tensor] = 0;
  }
};

}  // namespace tencache
