#include "executor/torch/recorder/op_schema.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace tencache {
namespace {

// What the schemas of LibTorch's ops do not say, as data. An op is named without its overload, "aten::fill_".

using OpArgument = std::pair<std::string_view, std::string_view>;

constexpr OpArgument unannounced_writes[] = {
    {"aten::native_batch_norm", "running_mean"},
    {"aten::native_batch_norm", "running_var"},
    {"aten::_batch_norm_impl_index", "running_mean"},
    {"aten::_batch_norm_impl_index", "running_var"},
    {"aten::cudnn_batch_norm", "running_mean"},
    {"aten::cudnn_batch_norm", "running_var"},
    {"aten::miopen_batch_norm", "running_mean"},
    {"aten::miopen_batch_norm", "running_var"},
    {"aten::batch_norm_update_stats", "running_mean"},
    {"aten::batch_norm_update_stats", "running_var"},
    {"aten::batch_norm_gather_stats", "running_mean"},
    {"aten::batch_norm_gather_stats", "running_var"},
    {"aten::batch_norm_gather_stats_with_counts", "running_mean"},
    {"aten::batch_norm_gather_stats_with_counts", "running_var"},
    {"aten::rrelu_with_noise", "noise"},
    {"aten::rrelu_with_noise_", "noise"},
    {"aten::_cudnn_rnn", "dropout_state"},
    {"aten::mkldnn_rnn_layer_backward", "workspace"},  // 2.x; its forward pass has left room there
};

constexpr OpArgument overwritten[] = {
    {"aten::zero_", "self"},      {"aten::fill_", "self"},        {"aten::copy_", "self"},
    {"aten::normal_", "self"},    {"aten::uniform_", "self"},     {"aten::random_", "self"},
    {"aten::bernoulli_", "self"}, {"aten::exponential_", "self"}, {"aten::log_normal_", "self"},
    {"aten::cauchy_", "self"},    {"aten::geometric_", "self"},
};

// Views without alias annotation, changes of strides in place, questions about sizes, storages that change hands.
constexpr std::string_view metadata_only[] = {
    "aten::_unsafe_view",
    "aten::squeeze_",
    "aten::unsqueeze_",
    "aten::t_",
    "aten::transpose_",
    "aten::swapaxes_",
    "aten::swapdims_",
    "aten::as_strided_",
    "aten::detach_",
    "aten::requires_grad_",
    "aten::set_",
    "aten::set_data",
    "aten::rename_",
    "aten::_coalesced_",
    "aten::size",
    "aten::sym_size",
    "aten::stride",
    "aten::sym_stride",
    "aten::numel",
    "aten::sym_numel",
    "aten::dim",
    "aten::is_same_size",
    "aten::is_contiguous",
    "aten::sparse_dim",
    "aten::dense_dim",
    "aten::_nnz",
    "aten::_dimI",
    "aten::_dimV",
    "aten::is_coalesced",
    "aten::_version",
    "aten::is_leaf",
    "aten::output_nr",
    "aten::retain_grad",
    "aten::storage_offset",
    "aten::sym_storage_offset",
    "aten::is_set_to",
    "aten::is_pinned",
    "aten::_has_compatible_shallow_copy_type",
};

constexpr OpArgument shape_only[] = {
    {"aten::empty_like", "self"},
    {"aten::zeros_like", "self"},
    {"aten::ones_like", "self"},
    {"aten::full_like", "self"},
    {"aten::rand_like", "self"},
    {"aten::randn_like", "self"},
    {"aten::randint_like", "self"},
    {"aten::new_empty", "self"},
    {"aten::new_empty_strided", "self"},
    {"aten::new_zeros", "self"},
    {"aten::new_ones", "self"},
    {"aten::new_full", "self"},
    {"aten::native_layer_norm_backward", "bias"},
};

// Whoever calls them writes the memory next, perhaps without an op.
constexpr std::string_view uninitialised[] = {
    "aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided",
};

constexpr std::string_view opaque_composites[] = {
    "aten::quantile",     // in 2.15
    "aten::nanquantile",  // likewise
    "aten::max_pool1d",   // where no gradient is wanted
    "aten::_sobol_engine_draw",
    "aten::_sobol_engine_ff_",
    "aten::_sobol_engine_scramble_",
    "aten::_sobol_engine_initialize_state_",
    "aten::_rowwise_prune",
    "aten::_saturate_weight_to_fp16",
    "aten::choose_qparams_optimized",
    "aten::ctc_loss",
    "aten::tensor_split",
    "aten::repeat_interleave",
    "aten::embedding_bag",
    "aten::_embedding_bag_sparse_backward",
    "aten::lstm",
    "aten::gru",
    "aten::rnn_tanh",
    "aten::rnn_relu",
    "aten::quantized_lstm_cell",
    "aten::quantized_gru_cell",
    "aten::quantized_rnn_relu_cell",
    "aten::quantized_rnn_tanh_cell",
    "aten::_pad_packed_sequence",
    "aten::_pack_padded_sequence_backward",
    "aten::sparse_coo_tensor",
    "aten::sparse_compressed_tensor",
    "aten::sparse_csr_tensor",
    "aten::sparse_csc_tensor",
    "aten::sparse_bsr_tensor",
    "aten::sparse_bsc_tensor",
    "aten::_validate_sparse_coo_tensor_args",
    "aten::_validate_sparse_compressed_tensor_args",
    "aten::_validate_sparse_csr_tensor_args",
    "aten::_validate_sparse_csc_tensor_args",
    "aten::_validate_sparse_bsr_tensor_args",
    "aten::_validate_sparse_bsc_tensor_args",
};

template <std::size_t count>
bool contains(const std::string_view (&list)[count], std::string_view op) {
  return std::find(std::begin(list), std::end(list), op) != std::end(list);
}
template <std::size_t count>
bool contains(const OpArgument (&list)[count], std::string_view op, std::string_view argument) {
  return std::find(std::begin(list), std::end(list), OpArgument{op, argument}) != std::end(list);
}

// Its tensors may be read and written until the Work that it returns is over.
bool goes_on_after_return(std::string_view op) { return op.starts_with("c10d::"); }

// The op writes the argument although its schema says that it only reads it. Found by reading kernels; the audit of
// interception.h finds others.
bool writes_unannounced(std::string_view op, std::string_view argument) {
  if (goes_on_after_return(op)) {  // before 2.0 arguments have numbers, and what is sent is the second
    return op != "c10d::send" && op != "c10d::check_for_nan" && !argument.starts_with("input") && argument != "_1";
  }
  return contains(unannounced_writes, op, argument);
}
// Calls such ops, and others on what they return.
bool is_made_of_collectives(std::string_view op) {
  return op.starts_with("_c10d_functional") || op == "_dtensor::shard_dim_alltoall";
}
// The op writes every byte of the argument's tensor without reading any: where the tensor is all of its storage, the
// storage needs room but not its content.
bool overwrites(std::string_view op, std::string_view argument) { return contains(overwritten, op, argument); }
// The op looks at sizes, strides or types only, or changes only these: no tensor's content is touched.
bool is_metadata_only(std::string_view op) {
  return op.starts_with("profiler::") || contains(metadata_only, op);  // marks of a profiler touch no memory
}
// Of the argument only sizes and types matter.
bool reads_shape_only(std::string_view op, std::string_view argument) { return contains(shape_only, op, argument); }
// Gives memory that the caller fills, not always by an op (at::tensor does not).
bool returns_uninitialised(std::string_view op) { return contains(uninitialised, op); }
// Works on lists of tensors element by element (_foreach_*, fused optimizers): on parts of the lists, one after the
// other, it does the same.
bool is_on_lists(std::string_view op) {
  return op.starts_with("aten::_foreach_") || op.starts_with("aten::_fused_ad") || op == "aten::_fused_sgd" ||
         op == "aten::_fused_sgd_" || op.starts_with("aten::_amp_foreach_");
}
// Made of other ops by its registration, but touches memory itself: must not be looked through.
bool touches_memory_itself(std::string_view op) { return contains(opaque_composites, op); }

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
  info.return_count = schema.returns().size();
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

OpSchema& described(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static auto* const all = new std::unordered_map<const void*, std::unique_ptr<OpSchema>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<OpSchema>& info = (*all)[&op.schema()];
  if (info == nullptr) {
    info = std::make_unique<OpSchema>();
    describe(op, *info);
  }
  return *info;
}

}  // namespace

OpSchema& op_schema(const c10::OperatorHandle& op) {
  struct Seen {
    const void* schema;
    OpSchema* info;
  };
  constinit thread_local std::array<Seen, 1024> seen{};  // more than a program has ops
  const void* const schema = &op.schema();
  Seen& mine = seen[reinterpret_cast<std::uintptr_t>(schema) / alignof(std::max_align_t) % seen.size()];
  if (mine.schema != schema) mine = {schema, &described(op)};
  return *mine.info;
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
