#include "executor/torch/train.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "core/error.h"
#include "executor/clock.h"
#include "executor/cuda/cuda_backend.h"
#include "executor/torch/interception.h"
#include "executor/torch/torch_cuda.h"
#include "policies/registry.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

// Runs the steps; `before` is called before each one, counted from 0 where this run begins.
void run_steps(TrainingProgram& program, std::uint64_t steps, const TrainingOptions& options, TrainingResult& result,
               const std::function<void(std::uint64_t)>& before) {
  result.parameter_count = program.parameter_count();
  if (!options.resume.empty()) result.resumed_steps = program.resume(options.resume);
  if (result.resumed_steps >= steps) {
    throw Error(options.resume, 0,
                "this checkpoint has " + std::to_string(result.resumed_steps) + " steps behind it, and " +
                    std::to_string(steps) + " are asked for: nothing is left to do");
  }
  for (std::uint64_t step = result.resumed_steps; step < steps; ++step) {
    const Nanoseconds start_ns = clock_ns();
    before(step - result.resumed_steps);
    result.losses.push_back(program.step(step));
    result.step_ns.push_back(clock_ns() - start_ns);
    if (options.on_step) options.on_step(step + 1, result.losses.back(), result.step_ns.back());
    const bool due = options.checkpoint_every != 0 && (step + 1) % options.checkpoint_every == 0;
    if (!options.checkpoint.empty() && (due || step + 1 == steps)) {
      program.save(options.checkpoint, step + 1);
      if (options.on_checkpoint) options.on_checkpoint(step + 1);
    }
  }
}

std::uint64_t steps_of(const TrainingConfig& config, const TrainingOptions& options) {
  return options.steps != 0 ? options.steps : static_cast<std::uint64_t>(config.steps);
}

// In whole GiB, at least one.
Bytes memory_of_this_computer() {
  struct sysinfo information {};
  if (sysinfo(&information) != 0) throw Error("this computer does not say how much memory it has");
  return std::max(Bytes{information.totalram} * information.mem_unit / GiB, Bytes{1}) * GiB;
}

// But for what LibTorch and the driver take.
Bytes memory_of_gpu(const Accelerator& accelerator) {
  const Bytes free = accelerator.free_bytes();
  return (free - free / 16) / accelerator.granularity() * accelerator.granularity();
}

// A policy that is to run without a limit on GPU memory (`ideal`) gets what there is.
MachineSpec with_unlimited_gpu(MachineSpec machine, const Policy& policy, const Accelerator* accelerator) {
  if (policy.layout(machine, nullptr).unlimited_gpu) {
    const Bytes all = accelerator != nullptr ? memory_of_gpu(*accelerator) : memory_of_this_computer();
    machine.tiers[0].capacity = std::max(machine.tiers[0].capacity, all);
  }
  return machine;
}

std::byte* address_of(const torch::Tensor& tensor) {
  return const_cast<std::byte*>(static_cast<const std::byte*>(std::as_const(tensor.storage()).data()));
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

}  // namespace

void run_updates(Optimizer& optimizer, LiveRuntime* runtime, const UpdateKernels& kernels) {
  std::vector<LiveTask> live;
  for (Optimizer::Task& task : optimizer.next_step()) {
    if (runtime == nullptr) {
      std::vector<std::byte*> addresses;
      for (const Optimizer::Use& use : task.uses) addresses.push_back(address_of(use.tensor));
      task.body(kernels.device != nullptr ? *kernels.device : *kernels.host, addresses);
      continue;
    }
    LiveTask& added = live.emplace_back();
    added.name = std::move(task.name);
    added.group = task.group;
    added.reorderable = task.reorderable;
    for (const Optimizer::Use& use : task.uses) added.uses.push_back({live_id(use.tensor), use.read, use.write});
    const auto on = [&task](const std::shared_ptr<AdamWKernels>& lane) {
      return [body = task.body, lane](std::span<std::byte* const> addresses) { body(*lane, addresses); };
    };
    added.body = on(kernels.host);
    if (kernels.device != nullptr) added.device_body = on(kernels.device);
  }
  if (runtime != nullptr) runtime->run_tasks(std::move(live));
}

// ---- The program ----------------------------------------------------------------------------------------------------

TrainingDevice cuda_training_device() {
  TrainingDevice device;
  if (torch_cuda::available()) device.accelerator = open_cuda();  // says more of what is missing than LibTorch does
  device.torch = torch_cuda::open().type();
  device.fence = torch_cuda::synchronize;
  return device;
}

TrainingProgram::TrainingProgram(const TrainingConfig& config, const TextData& data, LiveRuntime* runtime,
                                 const TrainingDevice& device)
    : config_(config), data_(data), runtime_(runtime), device_(device) {
  // Plain training on the CPU has nothing on the accelerator.
  const bool on_accelerator = runtime != nullptr || device.torch != c10::DeviceType::CPU;
  if (device.accelerator != nullptr && on_accelerator) kernels_.device = device.accelerator->adamw_kernels();
  torch::manual_seed(config.seed);
  model_ = Gpt(config);
  if (device_.torch != c10::DeviceType::CPU) model_->to(c10::Device(device_.torch));
  std::vector<std::pair<std::string, torch::Tensor>> parameters;
  for (const auto& parameter : model_->named_parameters()) {
    parameters.emplace_back(parameter.key(), parameter.value());
    parameter_count_ += static_cast<std::uint64_t>(parameter.value().numel());
  }
  optimizer_ = std::make_unique<Optimizer>(std::move(parameters), config);
  if (runtime_ != nullptr) announce_state();
}

void TrainingProgram::announce_state() {
  for (const auto& parameter : model_->named_parameters()) {
    mark(*runtime_, parameter.value(), Role::parameter, parameter.key());
  }
  for (const auto& buffer : model_->named_buffers()) mark(*runtime_, buffer.value(), Role::input, buffer.key());
  for (const Optimizer::State& state : optimizer_->states()) mark(*runtime_, state.tensor, state.role, state.name);
  model_->set_listener([runtime = runtime_](const std::string& module, bool begins) {
    begins ? runtime->module_begin(module) : runtime->module_end();
  });
}

void TrainingProgram::enter(Phase phase) {
  if (runtime_ != nullptr) runtime_->set_phase(phase);
}

float TrainingProgram::step(std::uint64_t number) {
  enter(Phase::forward);
  TokenBatch batch = data_.batch(number);
  // The vectors' memory is nobody's but theirs: the copy is what the runtime pages.
  const auto tensor = [&](std::vector<std::int64_t>& ids, const char* name) {
    const torch::Tensor original = torch::from_blob(ids.data(), {config_.batch, config_.context}, torch::kInt64);
    const torch::Tensor copy =
        device_.torch == c10::DeviceType::CPU ? original.clone() : original.to(c10::Device(device_.torch));
    if (runtime_ != nullptr) mark(*runtime_, copy, Role::input, name);
    return copy;
  };
  const torch::Tensor tokens = tensor(batch.tokens, "tokens"), targets = tensor(batch.targets, "targets");
  const torch::Tensor loss = model_->loss(tokens, targets);
  enter(Phase::backward);
  loss.backward();
  model_->finish_backward();
  const float value = loss.item<float>();
  enter(Phase::optimizer);
  run_optimizer();
  return value;
}

void TrainingProgram::run_optimizer() {
  if (runtime_ == nullptr && device_.fence) device_.fence();  // the kernels' stream is another one
  if (runtime_ != nullptr) {
    for (const auto& parameter : model_->named_parameters()) {
      mark(*runtime_, parameter.value().grad(), Role::gradient, parameter.key() + ".grad");
    }
  }
  run_updates(*optimizer_, runtime_, kernels_);
  for (torch::Tensor& parameter : model_->parameters()) parameter.mutable_grad().reset();
}

Checkpoint TrainingProgram::state() {
  Checkpoint checkpoint;
  for (const auto& parameter : model_->named_parameters()) {
    checkpoint.tensors.emplace_back(parameter.key(), parameter.value());
  }
  for (const Optimizer::State& state : optimizer_->states()) {
    if (state.role != Role::workspace) checkpoint.tensors.emplace_back(state.name, state.tensor);
  }
  if (text_sha256_.empty()) text_sha256_ = sha256_hex(data_.text());
  return checkpoint;
}

void TrainingProgram::save(const std::string& path, std::uint64_t steps) {
  Checkpoint checkpoint = state();
  checkpoint.steps = steps;
  checkpoint.random = RandomState::capture();
  std::optional<AsideScope> aside;
  if (runtime_ != nullptr) {
    runtime_->finish_tasks();  // or throws what went wrong in one: then there is no checkpoint of it
    aside.emplace(*runtime_);
  }
  write_checkpoint(path, config_, text_sha256_, checkpoint, runtime_);
}

std::uint64_t TrainingProgram::resume(const std::string& path) {
  Checkpoint checkpoint = state();
  read_checkpoint(path, config_, text_sha256_, checkpoint);
  checkpoint.random.restore();
  optimizer_->set_steps(checkpoint.steps);
  return checkpoint.steps;
}

std::vector<float> TrainingProgram::weights() {
  std::vector<float> weights;
  weights.reserve(parameter_count_);
  for (const torch::Tensor& parameter : model_->parameters()) {
    const torch::Tensor whole = parameter.detach().to(torch::kFloat32);
    const torch::Tensor value = runtime_ != nullptr ? bring_back(*runtime_, whole) : whole.to(torch::kCPU);
    const float* first = value.data_ptr<float>();
    weights.insert(weights.end(), first, first + value.numel());
  }
  return weights;
}

// ---- Training -------------------------------------------------------------------------------------------------------

TrainingResult train_plain(const TrainingConfig& config, const TextData& data, const TrainingOptions& options,
                           const TrainingDevice& device) {
  TrainingResult result;
  TrainingProgram program(config, data, nullptr, device);
  run_steps(program, steps_of(config, options), options, result, [](std::uint64_t) {});
  if (options.keep_weights) result.weights = program.weights();
  return result;
}

PagedTraining train_paged(const TrainingConfig& config, const TextData& data, const MachineSpec& machine,
                          Policy& policy, const LiveOptions& live, const TrainingOptions& options,
                          const TrainingDevice& device) {
  PagedTraining result;
  result.machine = with_unlimited_gpu(machine, policy, device.accelerator.get());
  LiveRuntime runtime(result.machine, policy, on_device(live, device));
  runtime.describe_recording(recording_header(config, device));
  const ThreadGuard guard(runtime, device.torch);
  TrainingProgram program(config, data, &runtime, device);
  const std::uint64_t steps = steps_of(config, options);
  Counters window_begin;
  run_steps(program, steps, options, result.training, [&](std::uint64_t step) {
    runtime.iteration_boundary();
    if (step == 0 || step == 2) window_begin = runtime.counters();
    if (options.on_boundary) options.on_boundary(runtime);
  });
  runtime.finish_tasks();
  runtime.iteration_boundary();
  if (options.on_boundary) options.on_boundary(runtime);
  result.run = runtime.result();
  result.run.window = runtime.counters() - window_begin;
  result.run.period = result.training.counted_steps();
  if (runtime.has_recorded()) {
    result.recorded = runtime.recorded();
    result.program = runtime.program();
  }
  result.faults = runtime.fault_counts();
  result.peak_live_bytes = runtime.peak_live_bytes();
  result.largest_op_bytes = runtime.largest_op_bytes();
  result.largest_op = runtime.largest_op();
  result.deviations = runtime.deviations();
  result.first_deviation = runtime.first_deviation();
  if (options.keep_weights) result.training.weights = program.weights();
  return result;
}

LiveOptions on_device(LiveOptions live, const TrainingDevice& device) {
  live.machine.accelerator = device.accelerator;
  live.fence = device.fence;
  return live;
}

TraceHeader recording_header(const TrainingConfig& config, const TrainingDevice& device) {
  TraceHeader header;
  header.model = config.name;
  header.batch = static_cast<std::uint64_t>(config.batch);
  header.sequence_length = static_cast<std::uint64_t>(config.context);
  header.precision = config.precision == TrainingPrecision::bf16 ? "bf16" : "fp32";
  header.hardware = device.accelerator != nullptr ? device.accelerator->describe() : processor_name();
  header.recorded_by = "tencache record";
  return header;
}

MachineSpec uncapped_machine(const Accelerator* accelerator) {
  MachineSpec machine;
  machine.name = "uncapped";
  const auto add_tier = [&](const char* name, TierKind kind, Bytes capacity) {
    Tier& tier = machine.tiers.emplace_back();
    tier.name = name;
    tier.kind = kind;
    tier.capacity = capacity;
    tier.granularity = 4096;
  };
  const auto add_link = [&](const char* name, TierId from, TierId to) {
    Link& link = machine.links.emplace_back();
    link.name = name;
    link.from = from;
    link.to = to;
    link.bandwidth = 10'000'000'000;
  };
  add_tier("gpu", TierKind::gpu, accelerator != nullptr ? memory_of_gpu(*accelerator) : memory_of_this_computer());
  add_tier("cpu", TierKind::cpu, GiB);
  add_link("h2d", 1, 0);
  add_link("d2h", 0, 1);
  machine.initial_tier = 0;
  machine.validate();
  return machine;
}

PagedTraining measure_demand(const TrainingConfig& config, const TextData& data, const TrainingDevice& device) {
  const MadePolicy made = make_policy("on-demand");
  TrainingOptions options;
  options.steps = 2;
  return train_paged(config, data, uncapped_machine(device.accelerator.get()), *made.policy, {}, options, device);
}

}  // namespace tencache
