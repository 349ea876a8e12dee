#include "traces/import/pytorch/pieces.h"

#include <unordered_map>

namespace tencache {
namespace {

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

std::string_view short_name(std::string_view name) { return name.starts_with("aten::") ? name.substr(6) : name; }

std::string numbered(std::string_view name, std::uint64_t number) {
  std::string text(name);
  text += '.';
  text += std::to_string(number);
  return text;
}

}  // namespace tencache
