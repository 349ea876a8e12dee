#include "executor/torch/recorder/op_lists.h"

#include <algorithm>
#include <array>
#include <utility>

namespace tencache {
namespace {

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

}  // namespace

bool writes_unannounced(std::string_view op, std::string_view argument) {
  if (goes_on_after_return(op)) {  // before 2.0 arguments have numbers, and what is sent is the second
    return op != "c10d::send" && op != "c10d::check_for_nan" && !argument.starts_with("input") && argument != "_1";
  }
  return contains(unannounced_writes, op, argument);
}
bool goes_on_after_return(std::string_view op) { return op.starts_with("c10d::"); }
bool is_made_of_collectives(std::string_view op) {
  return op.starts_with("_c10d_functional") || op == "_dtensor::shard_dim_alltoall";
}
bool overwrites(std::string_view op, std::string_view argument) { return contains(overwritten, op, argument); }
bool is_metadata_only(std::string_view op) {
  return op.starts_with("profiler::") || contains(metadata_only, op);  // marks of a profiler touch no memory
}
bool reads_shape_only(std::string_view op, std::string_view argument) { return contains(shape_only, op, argument); }
bool returns_uninitialised(std::string_view op) { return contains(uninitialised, op); }
bool is_on_lists(std::string_view op) {
  return op.starts_with("aten::_foreach_") || op.starts_with("aten::_fused_ad") || op == "aten::_fused_sgd" ||
         op == "aten::_fused_sgd_" || op.starts_with("aten::_amp_foreach_");
}
bool touches_memory_itself(std::string_view op) { return contains(opaque_composites, op); }

}  // namespace tencache
