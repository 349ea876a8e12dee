#include "core/trace.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <span>
#include <utility>

#include "core/check.h"
#include "core/error.h"

namespace tencache {
namespace {

constexpr Bytes largest_tensor = Bytes{1} << 50;

constexpr std::uint64_t hash_bits = 0xffff'ffff'0000'0000;  // of a name pool's slot

bool fits(std::size_t names, std::size_t slots) { return 4 * names <= 3 * slots; }

// Eight bytes at a time; names are long and alike, so each byte must reach the bits that choose the slot.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = text.size();
  const auto mix = [&hash](std::uint64_t word) {
    hash = (hash ^ word) * 0x9e37'79b9'7f4a'7c15;
    hash ^= hash >> 32;
  };
  for (; text.size() >= sizeof(std::uint64_t); text.remove_prefix(sizeof(std::uint64_t))) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data(), sizeof word);
    mix(word);
  }
  std::uint64_t rest = 0;
  if (!text.empty()) std::memcpy(&rest, text.data(), text.size());
  mix(rest);
  return hash * 0xbf58'476d'1ce4'e5b9;
}

// Empty if the kernel is as its kind demands.
std::string mistake_in(const Kernel& kernel) {
  const std::size_t numbers = shape_size(kernel.kind);
  for (std::size_t i = 0; i < kernel.shape.size(); ++i) {
    if (kernel.shape[i] > largest_shape_number) return "a number above 2^40 in its shape; give the true size";
    if (i >= numbers && kernel.shape[i] != 0) {
      return "more than the " + std::to_string(numbers) + " numbers that the shape of a kernel of kind '" +
             to_string(kernel.kind) + "' has; leave the others out";
    }
  }
  if (kernel.launches == 0) return "a kernel that is launched 0 times; give 1 or more";
  if (!is_attention(kernel.kind) && (kernel.causal || kernel.attention != AttentionKernel::unspecified)) {
    return "a causal mask or an attention kernel, but its kernel is not of a kind of attention; leave them out";
  }
  if (kernel.unaligned && kernel.kind != KernelKind::matmul) {
    return "unaligned rows, but its kernel is not a matmul; leave that out";
  }
  if (kernel.fp8 && kernel.kind != KernelKind::matmul) {
    return "operands in fp8, but its kernel is not a matmul; leave that out";
  }
  return "";
}

// Checks RecomputeChoice against the uses of the tensors that its ops read and make.
class ChoiceCheck {
 public:
  explicit ChoiceCheck(const Trace& trace)
      : trace_(trace), writers_(trace.tensors.size()), made_(trace.tensors.size()) {
    for (OpIndex op = 0; op < trace.ops.size(); ++op) {
      for (const TensorId id : trace.writes(trace.ops[op])) writers_[id].push_back(op);
    }
  }

  // Empty if all is well with the trace's choice of this number.
  std::string mistake_in(std::size_t number) {
    const RecomputeChoice& choice = trace_.choices[number];
    if (choice.before >= trace_.ops.size()) return "has a backward pass at an op that does not exist";
    if (number > 0 && choice.before < trace_.choices[number - 1].before) {
      return "is before an earlier op than the choice above it; put choices in the order of 'before'";
    }
    if (!choice.again.front().empty()) return "has ops for the level 'keep', which runs none again";
    for (std::size_t level = 1; level < recompute_level_count; ++level) {
      const std::string mistake = mistake_in(number, choice.again[level], choice.before);
      if (mistake.empty()) continue;
      return "runs at level '" + std::string(to_string(static_cast<RecomputeLevel>(level))) + "' " + mistake;
    }
    return "";
  }

 private:
  struct Made {
    std::size_t choice = 0, list = 0;  // by which choice, from 1, and in which list, from 1; 0: none
  };

  std::string mistake_in(std::size_t number, std::span<const OpIndex> again, OpIndex before) {
    ++list_;
    if (std::ranges::adjacent_find(again, std::greater_equal()) != again.end()) {
      return "ops that do not rise; list each once, in their order";
    }
    for (const OpIndex run : again) {
      if (run >= before) return "ops that do not all come before its backward pass";
      const Op& op = trace_.ops[run];
      const std::string what = "op '" + trace_.name(op) + "' again, which ";
      if (op.device != Device::gpu || op.stream != OpStream::compute || op.rendezvous != 0 || op.rank != 0) {
        return what + "is not one of the first rank's GPU by itself; choices are for traces of one rank";
      }
      for (const TensorId id : trace_.reads(op)) {
        if (made_[id].list == list_) continue;
        const OpIndex changed = writer_of(id, run, before);
        if (changed == none) continue;
        return what + "reads tensor '" + trace_.name(trace_.tensors[id]) + "', but op '" +
               trace_.name(trace_.ops[changed]) +
               "' changes that before the backward pass; run what makes it again, too";
      }
      for (const TensorId id : trace_.writes(op)) {
        if (trace_.tensors[id].persistent) {
          return what + "writes tensor '" + trace_.name(trace_.tensors[id]) + "', which is persistent";
        }
        const std::size_t maker = made_[id].choice;
        if (maker != 0 && maker != number + 1 && trace_.choices[maker - 1].before == before) {
          return what + "makes tensor '" + trace_.name(trace_.tensors[id]) + "', as another choice before that op does";
        }
        made_[id] = {number + 1, list_};
        for (OpIndex next = writer_of(id, run + 1, before); next != none; next = writer_of(id, next + 1, before)) {
          if (std::ranges::binary_search(again, next)) continue;
          return what + "makes tensor '" + trace_.name(trace_.tensors[id]) + "', but not op '" +
                 trace_.name(trace_.ops[next]) + "', which changes it";
        }
      }
    }
    return "";
  }

  // The first op that writes the tensor, of those from `from` to before `end`; none: no op does.
  OpIndex writer_of(TensorId id, OpIndex from, OpIndex end) const {
    const auto found = std::ranges::lower_bound(writers_[id], from);
    return found != writers_[id].end() && *found < end ? *found : none;
  }

  const Trace& trace_;
  std::vector<std::vector<OpIndex>> writers_;  // by tensor, rising
  std::vector<Made> made_;                     // by tensor
  std::size_t list_ = 0;
};

}  // namespace

std::size_t shape_size(KernelKind kind) {
  if (kind == KernelKind::matmul) return 4;
  if (kind == KernelKind::collective) return 1;
  return is_attention(kind) ? 6 : 0;
}

const std::string* Provenance::option(std::string_view name) const {
  const auto found = std::ranges::find(made_with, name, &std::pair<std::string, std::string>::first);
  return found == made_with.end() ? nullptr : &found->second;
}

NameId NamePool::intern(std::string_view text) {
  if (slots_.empty()) index(first_slot_count, size());
  const std::uint64_t hash = hash_of(text) & hash_bits;
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = static_cast<std::size_t>(hash >> 32) & mask;
  for (; static_cast<NameId>(slots_[at]) != none; at = (at + 1) & mask) {
    const NameId id = static_cast<NameId>(slots_[at]);
    if ((slots_[at] & hash_bits) == hash && (*this)[id] == text) return id;
  }
  const NameId id = static_cast<NameId>(size());
  TENCACHE_CHECK(id != none);
  texts_ += text;
  add_begin();
  slots_[at] = hash | id;
  if (!fits(size(), slots_.size())) index(slots_.size(), size());
  return id;
}

// The next name begins where the texts end.
void NamePool::add_begin() {
  if (begins_.size() % (std::size_t{1} << block_bits) == 0) blocks_.push_back(texts_.size());
  const std::uint64_t begin = texts_.size() - blocks_.back();
  TENCACHE_CHECK(begin == static_cast<std::uint32_t>(begin));
  begins_.push_back(static_cast<std::uint32_t>(begin));
}

void NamePool::reserve(std::size_t names) {
  begins_.reserve(names + 1);
  if (!fits(names, slots_.size())) index(std::max(first_slot_count, slots_.size()), names);
}

void NamePool::index(std::size_t slots, std::size_t names) {
  while (!fits(names, slots)) slots *= 2;
  settle();  // before the new ones are there
  slots_.assign(slots, none);
  for (NameId id = 0; id < size(); ++id) {
    const std::uint64_t hash = hash_of((*this)[id]) & hash_bits;
    std::size_t at = static_cast<std::size_t>(hash >> 32) & (slots - 1);
    while (static_cast<NameId>(slots_[at]) != none) at = (at + 1) & (slots - 1);
    slots_[at] = hash | id;
  }
}

KernelId KernelPool::intern(const Kernel& kernel) {
  if (last_ < kernels_.size() && kernels_[last_] == kernel) return last_;
  const auto [found, added] = ids_.try_emplace(kernel, static_cast<KernelId>(kernels_.size()));
  if (added) kernels_.push_back(kernel);
  return last_ = found->second;
}

std::uint32_t Trace::add_detail(const OpDetail& detail) {
  if (detail == OpDetail{}) return 0;
  if (details.size() == 1 || details.back() != detail) details.push_back(detail);
  return static_cast<std::uint32_t>(details.size() - 1);
}

TensorId Trace::add_tensor(std::string_view name, Bytes bytes, Role role, bool persistent) {
  tensors.push_back({.name = names.intern(name), .role = role, .persistent = persistent, .bytes = bytes});
  return static_cast<TensorId>(tensors.size() - 1);
}

OpIndex Trace::add_op(Op op, std::span<const TensorId> reads, std::span<const TensorId> writes,
                      std::span<const TensorId> frees) {
  TENCACHE_CHECK(accesses.size() + reads.size() + writes.size() + frees.size() < none);
  op.accesses = {static_cast<std::uint32_t>(accesses.size()), static_cast<std::uint32_t>(reads.size()),
                 static_cast<std::uint32_t>(writes.size()), static_cast<std::uint32_t>(frees.size())};
  for (const std::span<const TensorId> list : {reads, writes, frees}) {
    accesses.insert(accesses.end(), list.begin(), list.end());
  }
  ops.push_back(op);
  return static_cast<OpIndex>(ops.size() - 1);
}

std::vector<OpIndex> Trace::deaths() const {
  std::vector<OpIndex> result(tensors.size(), none);
  for (OpIndex index = 0; index < ops.size(); ++index) {
    for (const std::span<const TensorId> list : {reads(ops[index]), writes(ops[index]), frees(ops[index])}) {
      for (const TensorId tensor : list) result[tensor] = index;
    }
  }
  return result;
}

void Trace::validate(const std::string& file, std::span<const std::uint64_t> line_of_op) const {
  const auto line = [&](OpIndex op) { return op < line_of_op.size() ? line_of_op[op] : 0; };
  if (ops.empty()) throw Error(file, 0, "the trace has no ops; record or generate one that has");
  for (const Tensor& tensor : tensors) {
    if (tensor.bytes == 0 || tensor.bytes > largest_tensor) {
      throw Error(file, 0,
                  "tensor '" + name(tensor) + "' has " + std::to_string(tensor.bytes) +
                      " bytes; a tensor has between 1 byte and 1 PiB");
    }
  }
  std::vector<bool> written(tensors.size(), false), freed(tensors.size(), false), right(kernels.size(), false);
  for (OpIndex i = 0; i < ops.size(); ++i) {
    const Op& op = ops[i];
    if (op.duration_ns < 0 || op.gap_before_ns < 0 || op.issue_ns < 0) {
      throw Error(file, line(i), "op '" + name(op) + "' has a negative duration or gap");
    }
    if (op.stream == OpStream::communication && op.device == Device::cpu) {
      throw Error(file, line(i), "op '" + name(op) + "' runs on the CPU, which has no communication stream");
    }
    if (op.kernel >= kernels.size() || op.detail >= details.size()) {
      throw Error(file, line(i), "op '" + name(op) + "' names a kernel or a detail that does not exist");
    }
    if (!right[op.kernel]) {
      const std::string mistake = mistake_in(kernel(op));
      if (!mistake.empty()) throw Error(file, line(i), "op '" + name(op) + "' has " + mistake);
      right[op.kernel] = true;
    }
    if (op.detail != 0) {
      const OpDetail& more = detail(op);
      if (more.revealed_by != none && more.revealed_by >= i) {
        throw Error(file, line(i),
                    "op '" + name(op) + "' is revealed by op " + std::to_string(more.revealed_by) +
                        ", which does not come before it; name an earlier op");
      }
      if (more.cpu_duration_ns < 0) throw Error(file, line(i), "op '" + name(op) + "' has a negative time on the CPU");
    }
    for (TensorId id : reads(op)) {
      if (id >= tensors.size())
        throw Error(file, line(i),
                    "op '" + name(op) + "' reads tensor " + std::to_string(id) + ", which does not exist");
      if (!tensors[id].persistent && !written[id]) {
        throw Error(file, line(i),
                    "op '" + name(op) + "' reads tensor '" + name(tensors[id]) +
                        "' before any op of the iteration writes it; mark it persistent if it keeps its content "
                        "between iterations");
      }
    }
    for (TensorId id : writes(op)) {
      if (id >= tensors.size())
        throw Error(file, line(i),
                    "op '" + name(op) + "' writes tensor " + std::to_string(id) + ", which does not exist");
      written[id] = true;
    }
    for (TensorId id : frees(op)) {
      const std::string what = "op '" + name(op) + "' frees tensor ";
      if (id >= tensors.size()) throw Error(file, line(i), what + std::to_string(id) + ", which does not exist");
      const char* mistake = tensors[id].persistent                 ? "which is persistent"
                            : op.stream == OpStream::communication ? "but runs on the communication stream"
                            : !written[id]                         ? "which no op has written yet"
                            : freed[id]                            ? "which another op frees already"
                                                                   : nullptr;
      if (mistake != nullptr) throw Error(file, line(i), what + "'" + name(tensors[id]) + "', " + mistake);
      freed[id] = true;
    }
  }
  if (choices.empty()) return;
  ChoiceCheck check(*this);
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const std::string mistake = check.mistake_in(i);
    if (mistake.empty()) continue;
    throw Error(file, line_of_op.empty() ? 0 : line_of_op.back() + 1 + i,
                "the choice for micro-batch " + std::to_string(choices[i].micro_batch) + " of '" +
                    names[choices[i].module] + "' " + mistake);
  }
}

}  // namespace tencache
