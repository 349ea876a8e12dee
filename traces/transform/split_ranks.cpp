#include "traces/transform/split_ranks.h"

#include <algorithm>
#include <tuple>

#include "core/error.h"

namespace tencache {

std::size_t rank_count(const Trace& trace) {
  std::size_t count = 1;
  for (const Op& op : trace.ops) count = std::max<std::size_t>(count, op.rank + std::size_t{1});
  return count;
}

std::vector<Trace> split_ranks(Trace trace) {
  const std::size_t count = rank_count(trace);
  std::vector<Trace> ranks(count);
  if (count == 1) {
    ranks[0] = std::move(trace);
    return ranks;
  }
  std::vector<OpIndex> first_user(trace.tensors.size(), none);
  for (OpIndex i = 0; i < trace.ops.size(); ++i) {
    const Op& op = trace.ops[i];
    const auto claim = [&](std::span<const TensorId> tensors) {
      for (const TensorId tensor : tensors) {
        OpIndex& user = first_user[tensor];
        if (user == none) user = i;
        if (trace.ops[user].rank == op.rank) continue;
        throw Error("tensor '" + trace.name(trace.tensors[tensor]) + "' is used by rank " +
                    std::to_string(trace.ops[user].rank) + " (op '" + trace.name(trace.ops[user]) + "') and by rank " +
                    std::to_string(op.rank) + " (op '" + trace.name(op) +
                    "'); each rank has tensors of its own, and a rendezvous joins the ops that exchange them");
      }
    };
    claim(trace.reads(op));
    claim(trace.writes(op));
    claim(trace.frees(op));
  }
  std::vector<TensorId> id(trace.tensors.size());
  for (Trace& rank : ranks) {
    rank.header = trace.header;
    rank.names = trace.names;
    rank.kernels = trace.kernels;
  }
  std::size_t of_last = 0;
  for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    if (first_user[tensor] != none) of_last = trace.ops[first_user[tensor]].rank;
    Trace& rank = ranks[of_last];
    id[tensor] = static_cast<TensorId>(rank.tensors.size());
    rank.tensors.push_back(trace.tensors[tensor]);
  }
  std::vector<TensorId> reads, writes, frees;
  const auto renumber = [&id](std::span<const TensorId> tensors, std::vector<TensorId>& renumbered) {
    renumbered.clear();
    for (const TensorId tensor : tensors) renumbered.push_back(id[tensor]);
  };
  std::vector<OpIndex> index(trace.ops.size());  // within the rank
  for (OpIndex i = 0; i < trace.ops.size(); ++i) {
    Op op = trace.ops[i];
    Trace& rank = ranks[op.rank];
    OpDetail detail = trace.detail(op);
    if (detail.revealed_by != none) {
      const Op& revealing = trace.ops[detail.revealed_by];
      if (revealing.rank != op.rank) {
        throw Error("op '" + trace.name(op) + "' of rank " + std::to_string(op.rank) + " is revealed by op '" +
                    trace.name(revealing) + "' of rank " + std::to_string(revealing.rank) +
                    "; name an op of the same rank, for instance the receiving end of the transfer");
      }
      detail.revealed_by = index[detail.revealed_by];
    }
    op.detail = rank.add_detail(detail);
    renumber(trace.reads(op), reads);
    renumber(trace.writes(op), writes);
    renumber(trace.frees(op), frees);
    index[i] = rank.add_op(op, reads, writes, frees);
  }
  for (std::size_t rank = 0; rank < count; ++rank) {
    if (ranks[rank].ops.empty()) {
      throw Error("the trace has ops of " + std::to_string(count) + " ranks, but none of rank " + std::to_string(rank));
    }
  }
  return ranks;
}

namespace {

bool alike(const Op& a, const Op& b) {
  const auto of = [](const Op& op) {
    return std::tuple(op.rendezvous != 0, op.group, op.phase, op.device, op.placeable, op.reorderable, op.stream,
                      op.duration_ns, op.gap_before_ns, op.issue_ns, op.flops, op.bytes, op.accesses.reads,
                      op.accesses.writes, op.accesses.frees);
  };
  return of(a) == of(b);
}

bool alike(const Trace& a, const Trace& b) {
  const auto same_tensor = [](const Tensor& x, const Tensor& y) {
    return x.bytes == y.bytes && x.role == y.role && x.persistent == y.persistent && x.stored_bytes == y.stored_bytes &&
           x.profiled_uses == y.profiled_uses;
  };
  return a.accesses == b.accesses && std::ranges::equal(a.tensors, b.tensors, same_tensor) &&
         std::ranges::equal(a.ops, b.ops, [&](const Op& x, const Op& y) {
           return alike(x, y) && a.kernel(x) == b.kernel(y) && a.detail(x) == b.detail(y);
         });
}

}  // namespace

std::vector<std::size_t> alike_ranks(std::span<const Trace> ranks) {
  std::vector<std::size_t> first(ranks.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    while (first[rank] < rank && (first[first[rank]] != first[rank] || !alike(ranks[first[rank]], ranks[rank]))) {
      ++first[rank];
    }
  }
  return first;
}

}  // namespace tencache
