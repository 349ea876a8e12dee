#include "traces/import/pytorch/calls.h"

#include <algorithm>
#include <array>
#include <unordered_map>

namespace tencache {
namespace {

// Calls that touch no memory, though some have results or are marked as writing: rule 1.
constexpr std::array<std::string_view, 22> untouching{"aten::empty",
                                                      "aten::empty_like",
                                                      "aten::empty_strided",
                                                      "aten::new_empty",
                                                      "aten::new_empty_strided",
                                                      "aten::resize_",
                                                      "aten::resize_as_",
                                                      "aten::result_type",
                                                      "aten::can_cast",
                                                      "aten::lift_fresh",
                                                      "aten::detach_",
                                                      "aten::set_",
                                                      "aten::requires_grad_",
                                                      "aten::is_same_size",
                                                      "aten::record_stream",
                                                      "aten::rename_",
                                                      "aten::retain_grad",
                                                      "aten::is_pinned",
                                                      "aten::transpose_",
                                                      "aten::squeeze_",
                                                      "aten::unsqueeze_",
                                                      "aten::_has_compatible_shallow_copy_type"};

// Their results do not depend on what they are given.
bool ignores_arguments(std::string_view name) {
  return name.ends_with("_like") || name.starts_with("aten::new_") || name == "aten::zeros" || name == "aten::ones" ||
         name == "aten::full";
}

bool reads_without_result(std::string_view name) {
  return name == "aten::_local_scalar_dense" || name == "aten::equal";
}

bool only_fills(std::string_view name) {
  return name == "aten::fill_" || name == "aten::zero_" || name == "aten::zeros" || name == "aten::_foreach_zero_";
}

// In-place ops that do not look at what was there.
bool overwrites(std::string_view name) {
  constexpr std::array<std::string_view, 10> names{
      "aten::fill_",    "aten::zero_",      "aten::copy_",          "aten::normal_",        "aten::random_",
      "aten::uniform_", "aten::bernoulli_", "aten::_foreach_zero_", "aten::_foreach_copy_", "aten::exponential_"};
  return std::ranges::find(names, name) != names.end();
}

// Rule 6.
bool is_whole(std::string_view name) {
  constexpr std::array<std::string_view, 6> names{"aten::addmm",   "aten::addmm_", "aten::addbmm",
                                                  "aten::baddbmm", "aten::addmv",  "aten::addr"};
  return std::ranges::find(names, name) != names.end();
}

bool reads_shape_only(std::string_view name, std::string_view argument) {
  return name == "aten::native_layer_norm_backward" && argument == "bias";
}

bool is_collective_call(std::string_view name) {
  return name == "record_param_comms" || name.starts_with("c10d::") || name.starts_with("_c10d_functional::");
}

class CallFinder {
 public:
  CallFinder(const ExecutionTrace& trace, const Storages& storages)
      : trace_(trace),
        storages_(storages),
        within_(trace.nodes.size()),
        use_of_(storages.storages.size(), none),
        has_content_(storages.storages.size(), false) {}

  std::vector<CallOp> find() {
    walk(
        trace_, [](std::uint32_t) {}, [this](std::uint32_t node) { end(node); });
    add_workspaces();
    return std::move(ops_);
  }

 private:
  // What the ops within a call did to a storage.
  struct Touch {
    std::uint32_t storage;
    bool computed, filled;
  };
  struct Within {
    bool any = false;
    std::vector<Touch> touches;
  };

  const SchemaArguments& arguments_of(const CallNode& node) {
    const auto [found, added] = arguments_.try_emplace(node.schema);
    if (added) {
      found->second = parse_schema(trace_.schema_of(node));
      SchemaArguments& arguments = found->second;
      if (trace_.name(node).find("batch_norm") != std::string_view::npos &&
          trace_.name(node).find("backward") == std::string_view::npos) {
        for (std::size_t i = 0; i < arguments.names.size(); ++i) {
          if (arguments.names[i].starts_with("running_")) arguments.written[i] = true;
        }
      }
    }
    return found->second;
  }

  std::uint32_t storage_of(const CallNode& node, std::uint32_t i) const { return storages_.of_ref[node.first_ref + i]; }

  bool is_input(const CallNode& node, std::uint32_t storage) const {
    for (std::uint32_t i = 0; i < node.input_count; ++i) {
      if (storage_of(node, i) == storage) return true;
    }
    return false;
  }

  void end(std::uint32_t index) {
    const CallNode& node = trace_.nodes[index];
    Within& within = within_[index];
    const std::string_view name = trace_.name(node);
    CallOp op;
    op.node = index;
    if (node.compiled) {
      use_compiled(node, op);
    } else if (is_collective_call(name)) {
      if (!within.any) use_all(node, op);
    } else if (node.schema == 0) {
      if (!within.any && node.scope == 0 && !name.starts_with("autograd::"))
        use_results(index, op, [](auto) { return true; });
    } else if (touches_memory(name)) {
      if (is_whole(name)) {
        while (!ops_.empty() && ops_.back().node > index) ops_.pop_back();
        within = {};
      }
      if (!within.any) {
        use_as_innermost(index, op);
      } else if (!ignores_arguments(name)) {
        use_around_ops(index, within, op);
      }
    }
    hand_up(index, op);
    for (const StorageUse& use : op.uses) has_content_[use.storage] = has_content_[use.storage] || use.write;
    if (!op.uses.empty()) ops_.push_back(std::move(op));
    within = {};
  }

  void add_use(CallOp& op, std::uint32_t ref, bool read, bool write) {
    const std::uint32_t storage = storages_.of_ref[ref];
    if (storage == none) return;
    const TensorRef& tensor = trace_.refs[ref];
    const std::uint32_t position = tensor.in_list ? tensor.position : none;
    std::uint32_t& slot = use_of_[storage];
    if (slot >= op.uses.size() || op.uses[slot].storage != storage) {
      slot = static_cast<std::uint32_t>(op.uses.size());
      op.uses.push_back({storage, ref, read, write, position});
      return;
    }
    StorageUse& use = op.uses[slot];
    use.read = use.read || read;
    use.write = use.write || write;
    use.several_positions = use.several_positions || use.position != position;
    // The larger tensor stands for the storage.
    if (tensor.numel > trace_.refs[use.ref].numel) use.ref = ref;
  }

  void use_all(const CallNode& node, CallOp& op) {
    for (std::uint32_t i = 0; i < node.input_count + node.output_count; ++i) {
      add_use(op, node.first_ref + i, i < node.input_count, true);
    }
  }

  // Rule 5.
  void use_compiled(const CallNode& node, CallOp& op) {
    const auto fresh = [&](std::uint32_t storage) {
      return storage != none && storages_.storages[storage].born != none && !has_content_[storage];
    };
    bool any_fresh = false;
    for (std::uint32_t i = 0; i < node.input_count; ++i) any_fresh = any_fresh || fresh(storage_of(node, i));
    for (std::uint32_t i = 0; i < node.input_count; ++i) {
      const bool result = fresh(storage_of(node, i));
      add_use(op, node.first_ref + i, !result, result || !any_fresh);
    }
  }

  // Rule 2; nothing where the call only views.
  void use_as_innermost(std::uint32_t index, CallOp& op) {
    const CallNode& node = trace_.nodes[index];
    const SchemaArguments& arguments = arguments_of(node);
    bool writes = false;
    for (std::uint32_t i = 0; i < node.input_count; ++i) writes = writes || is_written(node, arguments, i);
    for (std::uint32_t i = 0; i < node.output_count; ++i) writes = writes || is_new(node, i);
    if (!writes && !reads_without_result(trace_.name(node))) return;
    use_inputs(node, arguments, op);
    for (std::uint32_t i = 0; i < node.output_count; ++i) {
      if (is_new(node, i)) add_use(op, node.first_ref + node.input_count + i, false, true);
    }
  }

  bool is_written(const CallNode& node, const SchemaArguments& arguments, std::uint32_t i) const {
    const std::uint16_t argument = trace_.refs[node.first_ref + i].argument;
    return argument < arguments.written.size() && arguments.written[argument] && storage_of(node, i) != none;
  }

  bool is_shape_only(const CallNode& node, const SchemaArguments& arguments, std::uint32_t i) const {
    const std::uint16_t argument = trace_.refs[node.first_ref + i].argument;
    return argument < arguments.names.size() && reads_shape_only(trace_.name(node), arguments.names[argument]);
  }

  bool is_new(const CallNode& node, std::uint32_t output) const {
    const std::uint32_t storage = storage_of(node, node.input_count + output);
    return storage != none && !is_input(node, storage);
  }

  void use_inputs(const CallNode& node, const SchemaArguments& arguments, CallOp& op) {
    const std::string_view name = trace_.name(node);
    for (std::uint32_t i = 0; i < node.input_count; ++i) {
      const TensorRef& ref = trace_.refs[node.first_ref + i];
      const bool write = is_written(node, arguments, i);
      const bool is_result = write && ref.argument < arguments.names.size() &&
                             (overwrites(name) || arguments.names[ref.argument].starts_with("out"));
      const std::uint32_t storage = storage_of(node, i);
      if (is_shape_only(node, arguments, i)) continue;
      const bool whole = storage != none && ref.bytes() >= storages_.storages[storage].bytes;
      add_use(op, node.first_ref + i, !(is_result && whole), write);
    }
  }

  // Rule 4: results that were allocated here or within.
  template <typename Condition>
  void use_results(std::uint32_t index, CallOp& op, Condition condition) {
    const CallNode& node = trace_.nodes[index];
    bool any = false;
    for (std::uint32_t i = 0; i < node.output_count; ++i) {
      const std::uint32_t storage = storage_of(node, node.input_count + i);
      if (!is_new(node, i) || !born_within(index, storage) || !condition(storage)) continue;
      if (!any) {
        for (std::uint32_t input = 0; input < node.input_count; ++input) {
          if (!is_shape_only(node, arguments_of(node), input)) add_use(op, node.first_ref + input, true, false);
        }
      }
      any = true;
      add_use(op, node.first_ref + node.input_count + i, false, true);
    }
  }

  bool born_within(std::uint32_t index, std::uint32_t storage) const {
    const std::uint32_t born = storages_.storages[storage].born;
    return born != none && born >= index && born <= trace_.nodes[index].last;
  }

  // Rules 3 and 7.
  void use_around_ops(std::uint32_t index, Within& within, CallOp& op) {
    const CallNode& node = trace_.nodes[index];
    const auto touched = [&](std::uint32_t storage) {
      return std::ranges::find(within.touches, storage, &Touch::storage);
    };
    bool left_unread = false, writes_itself = false;
    const SchemaArguments& arguments = arguments_of(node);
    for (std::uint32_t i = 0; i < node.input_count; ++i) {
      const std::uint32_t storage = storage_of(node, i);
      if (storage == none || touched(storage) != within.touches.end()) continue;
      left_unread = true;
      writes_itself = writes_itself || is_written(node, arguments, i);
    }
    if (writes_itself) {
      use_inputs(node, arguments, op);
      return;
    }
    use_results(index, op, [&](std::uint32_t storage) {
      const auto touch = touched(storage);
      if (touch == within.touches.end()) return true;
      return !touch->computed && touch->filled && left_unread;
    });
  }

  // Only calls with a schema ask what happened within them.
  void hand_up(std::uint32_t index, const CallOp& op) {
    const std::uint32_t parent = trace_.nodes[index].parent;
    if (parent == none) return;
    Within& mine = within_[index];
    Within& above = within_[parent];
    above.any = above.any || mine.any || !op.uses.empty();
    if (trace_.nodes[parent].schema == 0) return;
    const bool fills = only_fills(trace_.name(trace_.nodes[index]));
    for (const StorageUse& use : op.uses) mine.touches.push_back({use.storage, !fills, fills});
    for (const Touch& touch : mine.touches) {
      const auto found = std::ranges::find(above.touches, touch.storage, &Touch::storage);
      if (found == above.touches.end()) {
        above.touches.push_back(touch);
      } else {
        found->computed = found->computed || touch.computed;
        found->filled = found->filled || touch.filled;
      }
    }
  }

  void add_workspaces() {
    std::vector<bool> used(storages_.storages.size(), false);
    std::vector<std::uint32_t> op_of(trace_.nodes.size(), none);
    for (std::uint32_t i = 0; i < ops_.size(); ++i) {
      op_of[ops_[i].node] = i;
      for (const StorageUse& use : ops_[i].uses) used[use.storage] = true;
    }
    for (std::uint32_t storage = 0; storage < used.size(); ++storage) {
      if (used[storage]) continue;
      for (std::uint32_t node = storages_.storages[storage].born; node != none; node = trace_.nodes[node].parent) {
        if (op_of[node] == none) continue;
        ops_[op_of[node]].uses.push_back({storage, none, false, true, none});
        break;
      }
    }
  }

  const ExecutionTrace& trace_;
  const Storages& storages_;
  std::vector<Within> within_;
  std::unordered_map<NameId, SchemaArguments> arguments_;
  std::vector<std::uint32_t> use_of_;  // by storage: its place in the uses of the op that is being made
  std::vector<bool> has_content_;      // by storage: some op wrote it
  std::vector<CallOp> ops_;
};

}  // namespace

std::vector<CallOp> find_ops(const ExecutionTrace& trace, const Storages& storages) {
  return CallFinder(trace, storages).find();
}

bool touches_memory(std::string_view name) { return std::ranges::find(untouching, name) == untouching.end(); }

SchemaArguments parse_schema(std::string_view schema) {
  SchemaArguments arguments;
  const std::size_t open = schema.find('(');
  if (open == std::string_view::npos) return arguments;
  int depth = 0;
  std::size_t begin = open + 1;
  for (std::size_t i = begin; i < schema.size(); ++i) {
    const char c = schema[i];
    if (c == '(' || c == '[') ++depth;
    if ((c == ',' || c == ')') && depth == 0) {
      std::string_view argument = schema.substr(begin, i - begin);
      argument.remove_prefix(std::min(argument.find_first_not_of(' '), argument.size()));
      begin = i + 1;
      if (!argument.empty() && argument != "*") {
        const std::size_t space = argument.find_last_of(' ', std::min(argument.find('='), argument.size()));
        std::string_view name = space == std::string_view::npos ? argument : argument.substr(space + 1);
        arguments.names.push_back(name.substr(0, name.find('=')));
        arguments.written.push_back(argument.find('!') != std::string_view::npos);
      }
      if (c == ')') break;
    } else if (c == ')' || c == ']') {
      --depth;
    }
  }
  return arguments;
}

}  // namespace tencache
