// The decision log: one JSON object a line for each thing the engine decided about a tensor, with the reason.
// The fields: docs/decisions.md.
#pragma once

#include <cstdint>
#include <string>

#include "core/engine/event_log.h"
#include "traces/file/file_io.h"

namespace tencache {

class DecisionLog {
 public:
  // Opens the file (compressed if its name ends in .zst). Throws Error if it cannot be written.
  explicit DecisionLog(const std::string& path) : file_(path) {}

  // To be handed to the engine; this object must outlive it. Ops and tensors go by the names of the view's program.
  DecisionSink sink() {
    return [this](const Decision& decision, const View& view) { write(decision, view); };
  }
  std::uint64_t count() const { return count_; }
  // The file appears under its name. Once, last.
  void commit() { file_.commit(); }

 private:
  void write(const Decision& decision, const View& view);

  AtomicFile file_;
  std::uint64_t count_ = 0;
};

}  // namespace tencache
