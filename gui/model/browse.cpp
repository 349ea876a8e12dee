#include "gui/model/browse.h"

#include <algorithm>

namespace tencache::gui {
namespace {

template <typename Row, typename Key>
void sort_by(std::vector<Row>& rows, bool ascending, Key key) {
  std::ranges::stable_sort(rows,
                           [&](const Row& a, const Row& b) { return ascending ? key(a) < key(b) : key(b) < key(a); });
}

}  // namespace

std::vector<OpRow> op_rows(const Run& run, std::size_t iteration) {
  const Trace& trace = run.trace();
  std::vector<OpRow> rows(trace.ops.size());
  for (OpIndex op = 0; op < rows.size(); ++op) {
    rows[op].op = op;
    for (const std::span<const TensorId> tensors : {trace.reads(trace.ops[op]), trace.writes(trace.ops[op])}) {
      for (const TensorId tensor : tensors) rows[op].touches += trace.tensors[tensor].bytes;
    }
  }
  const std::uint64_t id = run.iteration_id(iteration);
  for (std::uint32_t i = 0; i < run.spans().size(); ++i) {
    const Span& span = run.spans()[i];
    if (span.kind == SpanKind::move) continue;
    if (span.kind == SpanKind::transfer) {
      if (run.used_by(i) == none) continue;
      const Span& user = run.spans()[run.used_by(i)];  // of the iteration after the copy's, where it was made ahead
      if (user.iteration == id && user.op < rows.size()) rows[user.op].brought += span.bytes;
    } else if (span.op < rows.size() && span.iteration == id) {
      const Nanoseconds length = span.end_ns - span.start_ns;
      if (span.kind == SpanKind::op) rows[span.op].takes_ns += length;
      if (span.kind == SpanKind::stall) rows[span.op].waits_ns += length;
    }
  }
  return rows;
}

std::vector<TensorRow> tensor_rows(const Run& run, std::size_t iteration) {
  const Trace& trace = run.trace();
  std::vector<TensorRow> rows(trace.tensors.size());
  for (TensorId tensor = 0; tensor < rows.size(); ++tensor) {
    rows[tensor].tensor = tensor;
    rows[tensor].bytes = trace.tensors[tensor].bytes;
    for (const std::uint32_t transfer : copies_of(run, tensor, iteration)) {
      ++rows[tensor].copies;
      rows[tensor].moved += run.spans()[transfer].bytes;
    }
  }
  std::vector<OpIndex> last(rows.size(), none);  // an op that reads and writes a tensor uses it once
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    for (const std::span<const TensorId> tensors : {trace.reads(trace.ops[op]), trace.writes(trace.ops[op])}) {
      for (const TensorId tensor : tensors) {
        rows[tensor].uses += last[tensor] != op;
        last[tensor] = op;
      }
    }
  }
  return rows;
}

void sort_rows(std::vector<OpRow>& rows, const Run& run, OpColumn column, bool ascending) {
  switch (column) {
    case OpColumn::order:
      return sort_by(rows, ascending, [](const OpRow& row) { return row.op; });
    case OpColumn::name:
      return sort_by(rows, ascending, [&](const OpRow& row) { return run.op_name(row.op); });
    case OpColumn::phase:
      return sort_by(rows, ascending, [&](const OpRow& row) { return run.trace().ops[row.op].phase; });
    case OpColumn::takes:
      return sort_by(rows, ascending, [](const OpRow& row) { return row.takes_ns; });
    case OpColumn::waits:
      return sort_by(rows, ascending, [](const OpRow& row) { return row.waits_ns; });
    case OpColumn::touches:
      return sort_by(rows, ascending, [](const OpRow& row) { return row.touches; });
    case OpColumn::brought:
      return sort_by(rows, ascending, [](const OpRow& row) { return row.brought; });
  }
}

void sort_rows(std::vector<TensorRow>& rows, const Run& run, TensorColumn column, bool ascending) {
  switch (column) {
    case TensorColumn::name:
      return sort_by(rows, ascending, [&](const TensorRow& row) { return run.tensor_name(row.tensor); });
    case TensorColumn::role:
      return sort_by(rows, ascending, [&](const TensorRow& row) { return run.trace().tensors[row.tensor].role; });
    case TensorColumn::bytes:
      return sort_by(rows, ascending, [](const TensorRow& row) { return row.bytes; });
    case TensorColumn::uses:
      return sort_by(rows, ascending, [](const TensorRow& row) { return row.uses; });
    case TensorColumn::copies:
      return sort_by(rows, ascending, [](const TensorRow& row) { return row.copies; });
    case TensorColumn::moved:
      return sort_by(rows, ascending, [](const TensorRow& row) { return row.moved; });
  }
}

std::vector<Stay> stays_of(const Run& run, TensorId tensor) {
  std::vector<Stay> stays;
  std::array<Stay, max_tiers> present{};
  const auto close = [&](TierId tier, Nanoseconds time) {
    Stay& stay = present[tier];
    stay.tier = tier;
    stay.end_ns = time;
    if (stay.bytes > 0 && stay.end_ns > stay.begin_ns) stays.push_back(stay);
    stay.begin_ns = time;
  };
  for (const OccupancySample& change : run.occupancy_changes()) {
    if (change.tensor != tensor) continue;
    close(change.tier, change.time_ns);
    present[change.tier].bytes += static_cast<Bytes>(change.change);  // wraps back to what is left
  }
  const Nanoseconds end = run.iteration_begin_ns(run.iteration_count());
  for (TierId tier = 0; tier < run.machine().tiers.size(); ++tier) close(tier, end);
  std::ranges::stable_sort(stays, {}, &Stay::tier);
  return stays;
}

std::vector<std::uint32_t> copies_of(const Run& run, TensorId tensor, std::size_t iteration) {
  const Nanoseconds begin = run.iteration_begin_ns(iteration), end = begin + run.iteration_ns(iteration);
  std::vector<std::uint32_t> copies;
  for (const std::uint32_t transfer : run.transfers_of(tensor)) {
    const Span& span = run.spans()[transfer];
    if (span.start_ns < end && span.end_ns > begin) copies.push_back(transfer);
  }
  return copies;
}

std::vector<OpIndex> uses_of(const Run& run, TensorId tensor) {
  std::vector<OpIndex> ops;
  const Trace& trace = run.trace();
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    const auto reads = trace.reads(trace.ops[op]), writes = trace.writes(trace.ops[op]);
    if (std::ranges::find(reads, tensor) != reads.end() || std::ranges::find(writes, tensor) != writes.end()) {
      ops.push_back(op);
    }
  }
  return ops;
}

}  // namespace tencache::gui
