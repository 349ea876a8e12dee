#include "traces/import/pytorch/to_trace.h"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include "core/check.h"
#include "core/error.h"
#include "traces/import/pytorch/pieces.h"

namespace tencache {
namespace {

constexpr Bytes smallest_host_op = MiB;
constexpr Bytes largest_number = 8;

std::string plural(std::uint64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

void note(std::vector<std::string>& notes, std::uint64_t count, const std::string& text) {
  if (count != 0) notes.push_back(text);
}

// The iteration's calls as the trace's ops, without what is none of the trace's.
class PieceMaker {
 public:
  explicit PieceMaker(const TraceParts& parts)
      : in_(parts), recording_(parts.recording), initialised_(parts.storages.storages.size(), false) {}

  std::vector<Piece> make(NamePool& names) {
    for (const CallOp& op : in_.ops) {
      if (taken(op)) takes_part(op);
    }
    for (const CallOp& op : in_.ops) {
      if (taken(op)) add_pieces(op);
    }
    if (pieces_.empty()) {
      throw Error(recording_.file, 0,
                  "no op of the chosen iteration touches memory: it holds no model, or nothing but collectives; choose "
                  "another one with --iteration");
    }
    modules_ = infer_modules(in_, pieces_, names);
    return std::move(pieces_);
  }

  void add_notes(std::vector<std::string>& notes) const {
    note(notes, split_calls_, plural(split_calls_, "op") + " on lists of tensors divided into one op a tensor");
    note(notes, creating_ops_,
         plural(creating_ops_, "op") +
             " with which a first step creates the optimizer's states left out, as a steady iteration has "
             "them already; --as-recorded keeps them");
    note(notes, modules_,
         plural(modules_, "module") + " inferred: one begins where the forward pass first reads a parameter");
    note(notes, number_ops_, plural(number_ops_, "op") + " on nothing but numbers left out");
    note(notes, host_ops_,
         plural(host_ops_, "op") + " on less than 1 MiB of host memory left out: the host's bookkeeping");
    note(notes, cpu_ops_, plural(cpu_ops_, "op") + " on host memory are ops of the CPU");
    note(notes, host_operand_bytes_,
         "host operands of GPU ops (" + format_bytes(host_operand_bytes_) + ") are no tensors of the trace");
  }

 private:
  bool taken(const CallOp& op) const { return op.node >= in_.iteration.begin && op.node < in_.iteration.end; }
  bool on_host(const StorageUse& use) const { return gpu_recording_ && in_.storage(use).device == TensorDevice::host; }

  // A loss, a count of steps, a factor: nothing worth moving.
  bool is_number(const StorageUse& use) const {
    if (use.ref == none || in_.storage(use).bytes > largest_number) return false;
    const StorageRole& known = in_.role(use);
    return known.role != Role::parameter && (known.role != Role::gradient || known.of_activation);
  }

  void takes_part(const CallOp& op) {
    for (const StorageUse& use : op.uses) {
      gpu_recording_ = gpu_recording_ || in_.storage(use).device == TensorDevice::accelerator;
    }
  }

  // Of a state that is created on first use, the op that gives it its first content.
  bool creates_state(const CallOp& op) const {
    return std::ranges::any_of(op.uses, [&](const StorageUse& use) {
      return in_.role(use).created_on_first_use && use.write && !initialised_[use.storage];
    });
  }

  void add_pieces(const CallOp& op) {
    if (!in_.as_recorded && creates_state(op)) {
      for (const StorageUse& use : op.uses) initialised_[use.storage] = initialised_[use.storage] || use.write;
      ++creating_ops_;
      return;
    }
    Piece piece;
    piece.call = &op;
    Bytes host_bytes = 0;
    for (const StorageUse& use : op.uses) {
      if (is_number(use)) continue;
      if (on_host(use)) {
        host_bytes += in_.storage(use).bytes;
      } else {
        piece.uses.push_back(use);
      }
    }
    if (piece.uses.empty()) {
      if (host_bytes < smallest_host_op) {
        ++(host_bytes > 0 ? host_ops_ : number_ops_);
        return;
      }
      piece.uses = op.uses;
      piece.device = Device::cpu;
      ++cpu_ops_;
    } else if (host_bytes > 0) {
      host_operand_bytes_ += host_bytes;
    }
    const OpCost cost = cost_of(recording_, in_.storages, op);
    piece.cost = cost;
    const std::uint32_t positions = positions_of(op, piece.uses);
    if (positions < 2) {
      pieces_.push_back(std::move(piece));
      return;
    }
    ++split_calls_;
    const std::vector<StorageUse> all = std::move(piece.uses);
    std::vector<std::vector<StorageUse>> by_position(positions);
    for (const StorageUse& use : all) {
      for (std::uint32_t p = use.position == none ? 0 : use.position; p < positions; ++p) {
        by_position[p].push_back(use);
        if (use.position != none) break;
      }
    }
    for (std::uint32_t p = 0; p < positions; ++p) {
      Piece part = piece;
      part.uses = std::move(by_position[p]);
      part.cost = {{.kind = cost.kernel.kind == KernelKind::optimizer ? KernelKind::optimizer : KernelKind::unknown},
                   cost.precision,
                   0,
                   traffic_of(recording_, in_.storages, recording_.nodes[op.node], part.uses)};
      part.first = p == 0;
      if (!part.uses.empty()) pieces_.push_back(std::move(part));
    }
  }

  // How many independent ops the call is; 0 or 1: it is not one on lists.
  std::uint32_t positions_of(const CallOp& op, const std::vector<StorageUse>& uses) const {
    const std::string_view name = recording_.name(recording_.nodes[op.node]);
    if (name.find("_foreach_") == std::string_view::npos && name.find("_fused_") == std::string_view::npos) return 0;
    std::uint32_t positions = 0;
    for (const StorageUse& use : uses) {
      if (use.several_positions) return 0;
      if (use.position != none) positions = std::max(positions, use.position + 1);
    }
    // A norm of each is split, a shared result is not.
    for (const StorageUse& use : uses) {
      if (use.position == none && use.write && use.ref != none) return 0;
    }
    return positions;
  }

  const TraceParts& in_;
  const ExecutionTrace& recording_;
  std::vector<Piece> pieces_;
  std::vector<bool> initialised_;  // by storage: a state created on first use that was given its first content
  bool gpu_recording_ = false;
  std::uint64_t host_ops_ = 0, cpu_ops_ = 0, split_calls_ = 0, creating_ops_ = 0, modules_ = 0, number_ops_ = 0;
  Bytes host_operand_bytes_ = 0;
};

// When each piece runs: as recorded, else as modelled.
class PieceTimes {
 public:
  PieceTimes(const TraceParts& parts, std::vector<Piece>& pieces)
      : in_(parts), recording_(parts.recording), pieces_(pieces) {}

  void set() {
    std::vector<std::uint32_t> call_of(recording_.nodes.size(), none);  // by node: its first piece
    for (std::uint32_t i = 0; i < pieces_.size(); ++i) {
      if (pieces_[i].first) call_of[pieces_[i].call->node] = i;
    }
    std::vector<bool> measured(pieces_.size(), false);
    if (in_.measured != nullptr) measure(call_of, measured);
    for (std::uint32_t i = 0; i < pieces_.size();) {
      std::uint32_t end = i + 1;
      while (end < pieces_.size() && pieces_[end].call == pieces_[i].call) ++end;
      if (!measured[i]) model(i);
      divide(i, end, measured[i]);
      i = end;
    }
  }

  void add_notes(std::vector<std::string>& notes) const {
    if (in_.measured != nullptr) {
      note(notes, unmatched_,
           plural(unmatched_, "op") + " without a measured time: " +
               (in_.gpu ? "modelled for the " + in_.gpu->name : "0 ns; --assume-gpu NAME models them"));
      note(notes, foreign_ns_ > 0,
           format_duration(foreign_ns_) + " of recorded work belongs to no op of the trace: counted as gaps");
      note(notes, overrun_ns_ > 0,
           "the recorded work ends " + format_duration(overrun_ns_) +
               " after the iteration's period: the trace is that much longer");
    } else {
      notes.push_back("no times recorded: durations are modelled for the " + in_.gpu->name + ", gaps its launch gap");
    }
  }

 private:
  KernelModel& model(Precision precision) {
    const auto found = models_.find(precision);
    if (found != models_.end()) return found->second;
    GpuSpec gpu = *in_.gpu;
    // What a GPU does not compute in, it computes in fp32.
    if ((precision == Precision::fp16 && gpu.fp16_flops <= 0) ||
        (precision == Precision::bf16 && gpu.bf16_flops <= 0)) {
      precision = Precision::fp32;
    }
    return models_.try_emplace(precision, gpu, precision).first->second;
  }

  void model(std::uint32_t i) {
    Piece& piece = pieces_[i];
    if (in_.measured != nullptr) ++unmatched_;
    if (in_.gpu == nullptr || piece.device == Device::cpu) return;
    const OpCost cost = cost_of(recording_, in_.storages, *piece.call);
    piece.duration_ns = model(cost.precision).duration_ns(cost.kernel, cost.flops, cost.bytes);
  }

  // A call's time over its pieces, by their memory traffic.
  void divide(std::uint32_t begin, std::uint32_t end, bool measured) {
    const Nanoseconds total = pieces_[begin].duration_ns;
    Bytes all = 0, before = 0;
    for (std::uint32_t i = begin; i < end; ++i) all += std::max<Bytes>(pieces_[i].cost.bytes, 1);
    const auto part = [&](Bytes bytes) {
      return static_cast<Nanoseconds>(static_cast<double>(total) *
                                      (static_cast<double>(bytes) / static_cast<double>(all)));
    };
    for (std::uint32_t i = begin; i < end; ++i) {
      const Bytes bytes = std::max<Bytes>(pieces_[i].cost.bytes, 1);
      const Nanoseconds until = i + 1 == end ? total : part(before + bytes);
      pieces_[i].duration_ns = until - part(before);
      before += bytes;
      pieces_[i].source = measured ? DurationSource::measured : DurationSource::modelled;
    }
  }

  void measure(const std::vector<std::uint32_t>& call_of, std::vector<bool>& measured) {
    const MeasuredIteration& recorded = *in_.measured;
    for (std::uint32_t i = 0; i < pieces_.size(); ++i) {
      measured[i] = pieces_[i].first && recorded.matched[pieces_[i].call->node];
    }
    const OpTimes times =
        times_of_ops(recorded.activities, recorded.duration_ns, pieces_.size(), [&](std::uint32_t node) {
          while (node != none && (call_of[node] == none || !measured[call_of[node]]))
            node = recording_.nodes[node].parent;
          return node == none ? none : call_of[node];
        });
    for (std::uint32_t i = 0; i < pieces_.size(); ++i) {
      pieces_[i].duration_ns = times.duration_ns[i];
      pieces_[i].gap_ns = times.gap_before_ns[i];
    }
    foreign_ns_ = times.foreign_ns;
    overrun_ns_ = times.overrun_ns;
  }

  const TraceParts& in_;
  const ExecutionTrace& recording_;
  std::vector<Piece>& pieces_;
  std::map<Precision, KernelModel> models_;
  std::uint64_t unmatched_ = 0;
  Nanoseconds foreign_ns_ = 0, overrun_ns_ = 0;
};

class Maker {
 public:
  explicit Maker(const TraceParts& parts)
      : in_(parts),
        recording_(parts.recording),
        tensor_of_(parts.storages.storages.size(), none),
        written_(parts.storages.storages.size(), false) {}

  ImportedTrace make() {
    PieceMaker maker(in_);
    std::vector<Piece> pieces = maker.make(out_.trace.names);
    PieceTimes times(in_, pieces);
    times.set();
    for (const Piece& piece : pieces) emit(piece);
    add_notes(maker, times);
    set_precision(pieces);
    return std::move(out_);
  }

 private:
  TensorId tensor(const StorageUse& use) {
    TensorId& id = tensor_of_[use.storage];
    if (id != none) return id;
    const StorageRole& known = in_.role(use);
    const bool persistent = known.persistent && use.ref != none && !(in_.as_recorded && known.created_on_first_use);
    const Storage& what = in_.storage(use);
    const bool is_workspace = use.ref == none;
    const Role its_role = is_workspace ? Role::workspace : known.role;
    std::string name;
    if (what.born == none || persistent || (its_role == Role::gradient && !known.of_activation)) {
      name = numbered(to_string(its_role), ordinals_[static_cast<std::size_t>(its_role)]++);
    } else {
      const CallNode& node = recording_.nodes[what.born];
      name = numbered(short_name(recording_.name(node)), node.id);
      if (const std::uint32_t earlier = born_at_[what.born]++; earlier != 0) name = numbered(name, earlier);
    }
    id = out_.trace.add_tensor(name, std::max<Bytes>(what.bytes, 1), its_role, persistent);
    if (persistent) written_[use.storage] = true;
    return id;
  }

  void emit(const Piece& piece) {
    reads_.clear();
    writes_.clear();
    const CallNode& node = recording_.nodes[piece.call->node];
    for (const StorageUse& use : piece.uses) {
      const TensorId id = tensor(use);
      if (use.read && (written_[use.storage] || !use.write)) {
        if (!written_[use.storage]) add_source(use, piece);
        reads_.push_back(id);
      }
      if (use.write) writes_.push_back(id);
    }
    for (const StorageUse& use : piece.uses) written_[use.storage] = written_[use.storage] || use.write;
    Op op;
    op.name = out_.trace.names.intern(recording_.name(node));
    op.module = piece.module;
    op.phase = in_.parts[piece.call->node].phase;
    op.device = piece.device;
    op.duration_ns = piece.duration_ns;
    op.duration_source = piece.source;
    op.gap_before_ns = piece.gap_ns;
    op.flops = piece.cost.flops;
    op.bytes = piece.cost.bytes;
    if (piece.device == Device::gpu) op.kernel = out_.trace.kernels.intern(piece.cost.kernel);
    flops_[static_cast<std::size_t>(piece.cost.precision)] += piece.cost.flops;
    out_.trace.add_op(op, reads_, writes_);
  }

  // What is read and was never seen written got its content from a call that the recording does not show.
  void add_source(const StorageUse& use, const Piece& piece) {
    ++sources_;
    Op op;
    op.name = out_.trace.names.intern("content not recorded");
    op.phase = in_.parts[piece.call->node].phase;
    op.module = piece.module;
    op.device = piece.device;
    op.duration_source = DurationSource::modelled;
    const TensorId id = tensor_of_[use.storage];
    out_.trace.add_op(op, {}, std::span(&id, 1));
    written_[use.storage] = true;
  }

  void add_notes(const PieceMaker& maker, const PieceTimes& times) {
    std::vector<std::string>& notes = out_.notes;
    note(notes, in_.storages.reused,
         plural(in_.storages.reused, "storage id") + " of " + std::to_string(in_.storages.addresses) +
             " allocated more than once: split into generations, " + std::to_string(in_.storages.storages.size()) +
             " storages in all");
    maker.add_notes(notes);
    note(notes, sources_,
         plural(sources_, "tensor") + " read without a recorded write: an op 'content not recorded' writes each");
    note(notes, recording_.orphans, plural(recording_.orphans, "node") + " whose parent is not in the file");
    times.add_notes(notes);
    notes.push_back("frees are not recorded: a tensor that is not persistent lives to its last use");
  }

  // That of the parameters' elements; where there are none, of the products.
  void set_precision(const std::vector<Piece>& pieces) {
    std::array<Bytes, 3> bytes{};
    for (const Piece& piece : pieces) {
      for (const StorageUse& use : piece.uses) {
        if (use.ref == none || in_.role(use).role != Role::parameter) continue;
        const ElementType type = recording_.refs[use.ref].type;
        if (type == ElementType::other) continue;
        const Precision precision = type == ElementType::fp16   ? Precision::fp16
                                    : type == ElementType::bf16 ? Precision::bf16
                                                                : Precision::fp32;
        bytes[static_cast<std::size_t>(precision)] += in_.storage(use).bytes;
      }
    }
    const auto largest = [](const auto& values) { return std::ranges::max_element(values) - values.begin(); };
    const bool has_parameters = std::ranges::any_of(bytes, [](Bytes b) { return b > 0; });
    const auto precision = static_cast<Precision>(has_parameters ? largest(bytes) : largest(flops_));
    const auto computed = static_cast<Precision>(largest(flops_));
    if (has_parameters || flops_[static_cast<std::size_t>(computed)] > 0) {
      out_.trace.header.precision = to_string(precision);
    }
    if (has_parameters && flops_[static_cast<std::size_t>(computed)] > 0 && computed != precision) {
      out_.notes.push_back("most arithmetic is in " + std::string(to_string(computed)) + ", the parameters are in " +
                           std::string(to_string(precision)));
    }
  }

  const TraceParts& in_;
  const ExecutionTrace& recording_;
  ImportedTrace out_;
  std::vector<TensorId> tensor_of_;  // by storage
  std::vector<bool> written_;        // by storage: has content
  std::unordered_map<std::uint32_t, std::uint32_t> born_at_;
  std::array<std::uint64_t, role_count> ordinals_{};
  std::vector<TensorId> reads_, writes_;
  std::array<std::uint64_t, 3> flops_{};
  std::uint64_t sources_ = 0;
};

}  // namespace

ImportedTrace make_trace(const TraceParts& parts) { return Maker(parts).make(); }

}  // namespace tencache
