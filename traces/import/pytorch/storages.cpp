#include "traces/import/pytorch/storages.h"

#include <algorithm>
#include <unordered_map>

namespace tencache {
namespace {

class StorageFinder {
 public:
  explicit StorageFinder(const ExecutionTrace& trace) : trace_(trace) { found_.of_ref.resize(trace.refs.size(), none); }

  Storages find() {
    walk(
        trace_, [this](std::uint32_t node) { begin(node); }, [this](std::uint32_t node) { end(node); });
    found_.addresses = current_.size();
    found_.reused = static_cast<std::uint64_t>(
        std::ranges::count_if(current_, [](const auto& entry) { return entry.second.allocations > 1; }));
    return std::move(found_);
  }

 private:
  struct Current {
    std::uint32_t storage = none;
    std::uint32_t allocations = 0;
    std::uint8_t item_bytes = 0;
  };

  static bool defined(const TensorRef& ref) { return ref.device != TensorDevice::undefined && ref.bytes() > 0; }

  std::uint32_t add(const TensorRef& ref, std::uint32_t born) {
    Current& current = current_[ref.storage];
    current.storage = static_cast<std::uint32_t>(found_.storages.size());
    ++current.allocations;
    current.item_bytes = ref.item_bytes;
    found_.storages.push_back({0, ref.device, born});
    return current.storage;
  }

  void note(std::uint32_t index, std::uint32_t storage, bool expanded) {
    const TensorRef& ref = trace_.refs[index];
    found_.of_ref[index] = storage;
    Bytes& bytes = found_.storages[storage].bytes;
    bytes = std::max(bytes, expanded ? std::max<Bytes>(ref.item_bytes, 1) : ref.extent);
  }

  void begin(std::uint32_t node_index) {
    const CallNode& node = trace_.nodes[node_index];
    for (std::uint32_t i = 0; i < node.input_count; ++i) {
      const std::uint32_t index = node.first_ref + i;
      const TensorRef& ref = trace_.refs[index];
      if (!defined(ref)) continue;
      const auto current = current_.find(ref.storage);
      std::uint32_t storage = current == current_.end() ? none : current->second.storage;
      if (made_by_caller(node, ref, storage)) {
        expanded_.erase(ref.tensor);
        storage = add(ref, node.parent);
      } else if (storage != none && is_number(ref, current->second)) {
        storage = add(ref, node_index);
      } else if (storage == none) {
        storage = add(ref, none);
      }
      note(index, storage, is_expanded(ref, storage));
    }
  }

  // Rule 5.
  static bool is_number(const TensorRef& ref, const Current& current) {
    return ref.rank == 0 && ref.numel == 1 && ref.item_bytes > current.item_bytes;
  }

  // Rule 3. `storage`: what is known at the address.
  bool made_by_caller(const CallNode& node, const TensorRef& ref, std::uint32_t storage) const {
    if (node.parent == none) return false;
    const CallNode& caller = trace_.nodes[node.parent];
    if (caller.schema == 0 || is_born_within(storage, node.parent)) return false;
    return std::ranges::none_of(trace_.inputs(caller),
                                [&](const TensorRef& input) { return input.storage == ref.storage; });
  }

  bool is_born_within(std::uint32_t storage, std::uint32_t node) const {
    if (storage == none) return false;
    const std::uint32_t born = found_.storages[storage].born;
    return born != none && born >= node && born <= trace_.nodes[node].last;
  }

  void end(std::uint32_t node_index) {
    const CallNode& node = trace_.nodes[node_index];
    for (std::uint32_t i = 0; i < node.output_count; ++i) {
      const std::uint32_t index = node.first_ref + node.input_count + i;
      const TensorRef& ref = trace_.refs[index];
      if (!defined(ref)) continue;
      const TensorRef* source = nullptr;  // the input it is a view of, the one with the most elements
      for (const TensorRef& input : trace_.inputs(node)) {
        if (input.storage == ref.storage && defined(input) && (!source || input.numel > source->numel)) source = &input;
      }
      const auto current = current_.find(ref.storage);
      const bool known = current != current_.end();
      const bool created_within = known && is_born_within(current->second.storage, node_index);
      const bool passed_on = known && node.schema == 0;
      if (!source && !created_within && !passed_on) {
        expanded_.erase(ref.tensor);
        note(index, add(ref, node_index), false);
        continue;
      }
      const std::uint32_t storage = current->second.storage;
      bool expanded = false;
      if (!ref.exact_extent) {
        if (source) expanded = ref.numel > source->numel || is_expanded(*source, storage);
        // The same tensor may have been seen within the call.
        if (!source) expanded = is_expanded(ref, storage);
        if (expanded) {
          expanded_[ref.tensor] = storage;
        } else {
          expanded_.erase(ref.tensor);
        }
      }
      note(index, storage, expanded);
    }
  }

  bool is_expanded(const TensorRef& ref, std::uint32_t storage) const {
    if (ref.exact_extent) return false;
    const auto found = expanded_.find(ref.tensor);
    return found != expanded_.end() && found->second == storage;
  }

  const ExecutionTrace& trace_;
  Storages found_;
  std::unordered_map<std::uint64_t, Current> current_;         // by address
  std::unordered_map<std::uint64_t, std::uint32_t> expanded_;  // storage by tensor id
};

}  // namespace

Storages find_storages(const ExecutionTrace& trace) { return StorageFinder(trace).find(); }

}  // namespace tencache
