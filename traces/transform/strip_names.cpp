#include "traces/transform/strip_names.h"

#include <array>
#include <unordered_map>
#include <vector>

namespace tencache {
namespace {

// Neutral names by number, one for each name that is replaced.
class Numbers {
 public:
  explicit Numbers(NamePool& names) : names_(names) {}
  NameId operator()(NameId old, std::string_view prefix) {
    if (old == 0) return 0;
    const auto [found, added] = number_of_.try_emplace(old, number_of_.size());
    std::string name(prefix);
    name += '.';
    name += std::to_string(found->second);
    return names_.intern(name);
  }

 private:
  NamePool& names_;
  std::unordered_map<NameId, std::size_t> number_of_;
};

}  // namespace

Trace strip_names(const Trace& trace) {
  Trace stripped;
  stripped.header = trace.header;
  stripped.header.model = "model";
  stripped.header.provenance.made_with.clear();
  stripped.header.recorded_by = "names stripped";
  stripped.kernels = trace.kernels;
  stripped.details = trace.details;
  std::array<std::size_t, role_count> numbers{};
  for (const Tensor& tensor : trace.tensors) {
    std::string name(to_string(tensor.role));
    name += '.';
    name += std::to_string(numbers[static_cast<std::size_t>(tensor.role)]++);
    const TensorId id = stripped.add_tensor(name, tensor.bytes, tensor.role, tensor.persistent);
    stripped.tensors[id].stored_bytes = tensor.stored_bytes;
  }
  Numbers ops(stripped.names), modules(stripped.names), keys(stripped.names);
  for (const Op& recorded : trace.ops) {
    Op op = recorded;
    const std::string_view name = trace.name(recorded);
    const bool attention =
        name.find("flash") != std::string_view::npos || name.find("scaled_dot_product") != std::string_view::npos;
    op.name = ops(recorded.name, attention ? "scaled_dot_product" : "op");
    op.module = modules(recorded.module, "module");
    op.rendezvous = keys(recorded.rendezvous, "rendezvous");
    stripped.add_op(op, trace.reads(recorded), trace.writes(recorded));
  }
  return stripped;
}

}  // namespace tencache
