// A run's ops and tensors as rows of tables, and the life of one tensor.
#pragma once

#include <array>
#include <vector>

#include "gui/model/run.h"

namespace tencache::gui {

struct OpRow {
  OpIndex op = none;
  Nanoseconds takes_ns = 0;
  Nanoseconds waits_ns = 0;  // stalls before it
  Bytes touches = 0;         // of its tensors
  Bytes brought = 0;         // for it
};

struct TensorRow {
  TensorId tensor = none;
  Bytes bytes = 0;
  std::uint32_t uses = 0;    // ops of an iteration
  std::uint32_t copies = 0;  // those that `copies_of` lists
  Bytes moved = 0;           // by them
};

// Of one iteration. Linear in the run: of a generation, not of a frame.
std::vector<OpRow> op_rows(const Run& run, std::size_t iteration);
std::vector<TensorRow> tensor_rows(const Run& run, std::size_t iteration);

enum class OpColumn { order, name, phase, takes, waits, touches, brought };
enum class TensorColumn { name, role, bytes, uses, copies, moved };
void sort_rows(std::vector<OpRow>& rows, const Run& run, OpColumn column, bool ascending);
void sort_rows(std::vector<TensorRow>& rows, const Run& run, TensorColumn column, bool ascending);

// Where a tensor's bytes were when.
struct Stay {
  TierId tier = 0;
  Nanoseconds begin_ns = 0, end_ns = 0;
  Bytes bytes = 0;
};
// In order of time within each tier; those that last beyond the recording end with it. Linear in the occupancy.
std::vector<Stay> stays_of(const Run& run, TensorId tensor);
// Its copies that lie in an iteration or reach into it, in order.
std::vector<std::uint32_t> copies_of(const Run& run, TensorId tensor, std::size_t iteration);
// The ops that read or write it, in order.
std::vector<OpIndex> uses_of(const Run& run, TensorId tensor);

}  // namespace tencache::gui
