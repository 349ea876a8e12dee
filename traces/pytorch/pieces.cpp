#include "traces/pytorch/pieces.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>

namespace tencache {
namespace {

// Smaller tensors are scalars that every update may read.
constexpr Bytes smallest_grouping_bytes = 16;

// The autograd sequence number that a call has, its own or that of the call around it; -1: none.
std::int64_t sequence_of(const ExecutionTrace& recording, std::uint32_t node) {
  for (; node != none; node = recording.nodes[node].parent) {
    if (recording.nodes[node].sequence >= 0) return recording.nodes[node].sequence;
  }
  return -1;
}

// That of the backward function around a call.
std::int64_t backward_sequence_of(const ExecutionTrace& recording, std::uint32_t node) {
  for (; node != none; node = recording.nodes[node].parent) {
    if (recording.nodes[node].scope == 1 && recording.nodes[node].sequence >= 0) return recording.nodes[node].sequence;
  }
  return -1;
}

std::uint32_t root(std::vector<std::uint32_t>& of, std::uint32_t i) {
  while (of[i] != i) i = of[i] = of[of[i]];
  return i;
}

bool is_update(const TraceParts& parts, const Piece& piece) {
  return parts.parts[piece.call->node].in_step && piece.device == Device::gpu;
}

void add_to_update(Piece& update, Piece piece) {
  if (update.call == nullptr) {
    update = std::move(piece);
    update.update = true;
    return;
  }
  update.duration_ns += piece.duration_ns;
  update.gap_ns += piece.gap_ns;
  update.cost.flops += piece.cost.flops;
  if (piece.source == DurationSource::modelled) update.source = DurationSource::modelled;
  for (const StorageUse& use : piece.uses) {
    const auto known = std::ranges::find(update.uses, use.storage, &StorageUse::storage);
    if (known == update.uses.end()) {
      update.uses.push_back(use);
      continue;
    }
    // What the update itself wrote before is no input of it.
    known->read = known->read || (use.read && !known->write);
    known->write = known->write || use.write;
    if (known->ref == none) known->ref = use.ref;
  }
}

}  // namespace

std::uint64_t infer_modules(const TraceParts& parts, std::vector<Piece>& pieces, NamePool& names) {
  const ExecutionTrace& recording = parts.recording;
  std::vector<bool> seen(parts.storages.storages.size(), false);
  std::unordered_map<std::int64_t, NameId> module_of;
  NameId current = 0;
  std::uint64_t modules = 0;
  for (Piece& piece : pieces) {
    const std::uint32_t node = piece.call->node;
    const Phase phase = parts.parts[node].phase;
    if (phase == Phase::optimizer) continue;
    if (phase == Phase::backward) {
      const auto found = module_of.find(backward_sequence_of(recording, node));
      if (found != module_of.end()) current = found->second;
      piece.module = current;
      continue;
    }
    bool begins = false;
    for (const StorageUse& use : piece.uses) {
      if (parts.roles.of_storage[use.storage].role != Role::parameter || !use.read || seen[use.storage]) continue;
      seen[use.storage] = true;
      begins = true;
    }
    if (begins) current = names.intern(numbered(short_name(recording.name(recording.nodes[node])), modules++));
    piece.module = current;
    if (const std::int64_t sequence = sequence_of(recording, node); sequence >= 0) {
      module_of.try_emplace(sequence, current);
    }
  }
  return modules;
}

std::uint64_t find_groups(const TraceParts& parts, std::vector<Piece>& pieces) {
  const std::vector<Storage>& storages = parts.storages.storages;
  std::vector<std::uint32_t> of(storages.size());
  std::iota(of.begin(), of.end(), 0u);
  const auto binds = [&](const StorageUse& use) { return storages[use.storage].bytes > smallest_grouping_bytes; };
  for (const Piece& piece : pieces) {
    if (!is_update(parts, piece)) continue;
    std::uint32_t first = none;
    for (const StorageUse& use : piece.uses) {
      if (!binds(use)) continue;
      if (first == none) first = root(of, use.storage);
      of[root(of, use.storage)] = first;
    }
  }
  std::map<std::uint32_t, std::int32_t> group_of;
  for (Piece& piece : pieces) {
    if (!is_update(parts, piece)) continue;
    const auto use = std::ranges::find_if(piece.uses, binds);
    if (use == piece.uses.end()) continue;
    piece.group = group_of.emplace(root(of, use->storage), static_cast<std::int32_t>(group_of.size())).first->second;
  }
  if (group_of.size() > 1) return group_of.size();
  for (Piece& piece : pieces) piece.group = -1;
  return 0;
}

std::uint64_t fuse_updates(const TraceParts& parts, std::vector<Piece>& pieces) {
  std::map<std::int32_t, std::uint32_t> left;
  for (const Piece& piece : pieces) {
    if (piece.group >= 0) ++left[piece.group];
  }
  std::map<std::int32_t, Piece> fused;
  std::vector<Piece> kept;
  std::uint64_t count = 0;
  for (Piece& piece : pieces) {
    if (piece.group < 0) {
      kept.push_back(std::move(piece));
      continue;
    }
    const std::int32_t group = piece.group;
    Piece& update = fused[group];
    add_to_update(update, std::move(piece));
    ++count;
    if (--left[group] != 0) continue;
    update.cost.bytes =
        traffic_of(parts.recording, parts.storages, parts.recording.nodes[update.call->node], update.uses);
    kept.push_back(std::move(update));
  }
  pieces = std::move(kept);
  return count;
}

std::string_view update_name(const ExecutionTrace& recording, const Piece& piece) {
  for (std::uint32_t node = piece.call->node; node != none; node = recording.nodes[node].parent) {
    const std::string_view name = recording.name(recording.nodes[node]);
    if (is_optimizer_step(name)) return name.substr(name.find('#') + 1);
  }
  return "optimizer.step";
}

std::string_view short_name(std::string_view name) { return name.starts_with("aten::") ? name.substr(6) : name; }

std::string numbered(std::string_view name, std::uint64_t number) {
  std::string text(name);
  text += '.';
  text += std::to_string(number);
  return text;
}

}  // namespace tencache
