#include "configs/deepspeed_keys.h"

#include <iterator>
#include <sstream>

namespace tencache::deepspeed {
namespace {

std::vector<std::string> words(const char* text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

}  // namespace

const std::vector<std::string>& other_keys(std::string_view section) {
  static const std::vector<std::string> zero_keys = words(
      "stage contiguous_gradients reduce_scatter use_multi_rank_bucket_allreduce allgather_partitions "
      "allgather_bucket_size overlap_comm compute_grad_norm load_from_fp32_weights elastic_checkpoint offload_param "
      "offload_optimizer zenflow stage3_model_persistence_threshold stage3_gather_16bit_weights_on_model_save "
      "stage3_module_granularity_threshold stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential "
      "ignore_unused_parameters legacy_stage1 round_robin_gradients parameter_alignment zero_hpz_partition_size "
      "zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients mics_shard_size "
      "mics_hierarchical_params_gather memory_efficient_linear pipeline_loading_checkpoint override_module_apply "
      "log_trace_cache_warnings enable_sanity_checks save_muon_momentum_buffer_in_memory leaf_module");
  static const std::vector<std::string> param_keys = words("nvme_path");
  static const std::vector<std::string> optimizer_keys =
      words("nvme_path pin_memory fast_init ratio super_offload cpuadam_cores_perc");
  static const std::vector<std::string> aio_keys =
      words("block_size queue_depth intra_op_parallelism single_submit overlap_events use_gds");
  static const std::vector<std::string> top_keys = words(
      "zero_optimization aio bf16 fp16 bfloat16 amp train_batch_size train_micro_batch_size_per_gpu "
      "gradient_accumulation_steps optimizer scheduler gradient_clipping steps_per_print wall_clock_breakdown "
      "activation_checkpointing zero_allow_untested_optimizer zero_force_ds_cpu_optimizer communication_data_type "
      "prescale_gradients gradient_predivide_factor data_types tensorboard wandb comet csv_monitor flops_profiler "
      "autotuning elasticity comms_logger checkpoint compression_training data_efficiency curriculum_learning "
      "dump_state memory_breakdown sparse_attention sparse_gradients disable_allgather fp32_allreduce "
      "seq_parallel_communication_data_type dataloader_drop_last hybrid_engine pipeline tensor_parallel "
      "torch_autocast compile timers progressive_layer_drop eigenvalue quantize_training gradient_allreduce_op "
      "use_data_before_expert_parallelism use_node_local_storage log_level");
  if (section == zero) return zero_keys;
  if (section == param) return param_keys;
  if (section == optimizer) return optimizer_keys;
  return section == "aio" ? aio_keys : top_keys;
}

}  // namespace tencache::deepspeed
