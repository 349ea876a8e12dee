#include "executor/torch/recorder/op_schema.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "executor/torch/recorder/op_lists.h"

namespace tencache {
namespace {

bool is_metadata_op(const c10::FunctionSchema& schema) {
  if (is_metadata_only(schema.name())) return true;
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) return false;
  }
  // Views: everything that comes back is what went in.
  return !schema.returns().empty() &&
         std::all_of(schema.returns().begin(), schema.returns().end(),
                     [](const c10::Argument& result) { return result.alias_info() != nullptr; });
}

// Ops that are made of other ops are looked through. Ops of others' libraries are not: those are registered as "made of
// other ops" by default, whatever they do.
bool is_composite(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  if (is_made_of_collectives(name)) return true;
  return name.starts_with("aten::") && op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CPU) && !op.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

void describe(const c10::OperatorHandle& op, OpSchema& info) {
  const c10::FunctionSchema& schema = op.schema();
  info.base_name = schema.name();
  info.name = schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name();
  info.touches_memory = touches_memory_itself(schema.name()) || (!is_composite(op) && !is_metadata_op(schema));
  info.uninitialised = returns_uninitialised(info.base_name);
  info.goes_on = goes_on_after_return(info.base_name);
  info.on_lists = is_on_lists(info.base_name);
  info.argument_count = schema.arguments().size();
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (argument.name() == "is_causal") info.causal_position = i;
    const std::string type = argument.type()->str();
    if (type.find("Tensor") == std::string::npos && type.find("Storage") == std::string::npos) continue;
    ArgumentInfo& entry = info.arguments.emplace_back();
    entry.name = argument.name();
    entry.position = i;
    entry.content = !reads_shape_only(info.base_name, entry.name);
    entry.overwritten = overwrites(info.base_name, entry.name);
    entry.written = (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) ||
                    writes_unannounced(info.base_name, entry.name);
  }
}

}  // namespace

OpSchema& op_schema(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const void*, OpSchema*> seen;
  OpSchema*& mine = seen[&op.schema()];
  if (mine != nullptr) return *mine;
  static std::mutex mutex;
  static auto* const all = new std::unordered_map<const void*, std::unique_ptr<OpSchema>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<OpSchema>& info = (*all)[&op.schema()];
  if (info == nullptr) {
    info = std::make_unique<OpSchema>();
    describe(op, *info);
  }
  mine = info.get();
  return *mine;
}

const void* base_address(const c10::Storage& storage) { return std::as_const(*storage.unsafeGetStorageImpl()).data(); }

bool covers_storage(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.storage_offset() == 0 && tensor.is_contiguous() &&
         tensor.nbytes() == tensor.storage().nbytes();
}

c10::SmallVector<at::Tensor, 2> parts_of(const at::Tensor& tensor) {
  const c10::Layout layout = tensor.layout();
  if (layout == c10::kSparse) {
    const auto* sparse = static_cast<const at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
    return {sparse->indices(), sparse->values()};
  }
  if (layout == c10::kSparseCsr || layout == c10::kSparseCsc || layout == c10::kSparseBsr ||
      layout == c10::kSparseBsc) {
    const auto* sparse = static_cast<const at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
    return {sparse->compressed_indices(), sparse->plain_indices(), sparse->values()};
  }
  return {tensor};
}

}  // namespace tencache
