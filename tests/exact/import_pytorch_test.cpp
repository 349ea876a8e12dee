// Import of PyTorch's execution traces: schemas, storages, which calls are ops, roles, iterations, errors, and the
// published recordings.
#include "traces/import/pytorch/import_pytorch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <functional>

#include "core/error.h"
#include "tests/exact/recorded_calls.h"
#include "traces/demand.h"
#include "traces/file/file_io.h"
#include "traces/file/trace_file.h"
#include "traces/summary.h"
#include "traces/transform/fold_updates.h"

namespace tencache {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string mm = "aten::mm(Tensor self, Tensor mat2) -> Tensor";
const std::string empty = "aten::empty.memory_format(SymInt[] size) -> Tensor";
const std::string view = "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)";
const std::string add_ = "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)";
const std::string fill_ = "aten::fill_.Scalar(Tensor(a!) self, Scalar value) -> Tensor(a!)";
const std::string zero_ = "aten::zero_(Tensor(a!) self) -> Tensor(a!)";
const std::string relu = "aten::relu(Tensor self) -> Tensor";

// A GPU of round figures: 1 TB/s, 10 TFLOP/s, no fixed costs.
GpuSpec round_gpu() {
  GpuSpec gpu;
  gpu.name = "round";
  gpu.memory_bandwidth = 1'000'000'000'000;
  gpu.multiprocessors = 64;
  gpu.fp32_flops = 10e12;
  gpu.fp16_flops = gpu.bf16_flops = 40e12;
  return gpu;
}

class ImportPytorch : public ::testing::Test {
 protected:
  ImportPytorch() { std::filesystem::create_directories(directory_); }
  ~ImportPytorch() override { std::filesystem::remove_all(directory_); }

  std::string write(const std::string& text, const std::string& name = "et.json") {
    write_file((directory_ / name).string(), text);
    return (directory_ / name).string();
  }

  Trace import(const std::string& text, const std::function<void(PytorchImportOptions&)>& change = {}) {
    PytorchImportOptions options;
    options.execution_trace = write(text);
    options.gpu = round_gpu();
    if (change) change(options);
    ImportedTrace imported = import_pytorch(options);
    notes_ = std::move(imported.notes);
    return std::move(imported.trace);
  }

  std::string error(const std::string& text, const std::string& name = "et.json") {
    try {
      PytorchImportOptions options;
      options.execution_trace = write(text, name);
      options.gpu = round_gpu();
      import_pytorch(options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  // "name reads -> writes" by names of tensors.
  static std::vector<std::string> ops_of(const Trace& trace) {
    std::vector<std::string> ops;
    for (const Op& op : trace.ops) {
      std::string text(trace.name(op));
      for (const TensorId id : trace.reads(op)) text += " " + trace.name(trace.tensors[id]);
      text += " ->";
      for (const TensorId id : trace.writes(op)) text += " " + trace.name(trace.tensors[id]);
      ops.push_back(text);
    }
    return ops;
  }

  static std::vector<std::string> tensors_of(const Trace& trace) {
    std::vector<std::string> tensors;
    for (const Tensor& tensor : trace.tensors) {
      tensors.push_back(trace.name(tensor) + " " + std::to_string(tensor.bytes) + (tensor.persistent ? " kept" : ""));
    }
    return tensors;
  }

  std::filesystem::path directory_ =
      std::filesystem::temp_directory_path() / ("tencache_import_pytorch_test_" + std::to_string(::getpid()));
  std::vector<std::string> notes_;
};

// y = x W, gradient of W, W -= gradient. Of the calls only mm, mm and add_ touch memory.
std::vector<RecordedCall> training_step(std::uint64_t first = 1, int number = 0) {
  const RecordedValue weight = tensor(901, 910, {4, 4}), input = tensor(902, 920, {2, 4});
  const RecordedValue output = tensor(903, 930, {2, 4}), gradient = tensor(904, 940, {4, 4});
  const auto id = [&](std::uint64_t offset) { return first + offset; };
  return {
      around(id(0), 0, "ProfilerStep#" + std::to_string(number)),
      op(id(1), id(0), "aten::matmul(Tensor self, Tensor other) -> Tensor", {input, weight}, {output}, 5),
      op(id(2), id(1), mm, {input, weight}, {output}, 5),
      around(id(3), 0, "autograd::engine::evaluate_function: MmBackward0", 0, 2),
      around(id(4), id(3), "MmBackward0", 1, 2, 5, {output}),
      op(id(5), id(4), view, {input}, {tensor(905, 920, {4, 2})}),
      op(id(6), id(4), mm, {tensor(905, 920, {4, 2}), output}, {gradient}),
      around(id(7), id(3), "torch::autograd::AccumulateGrad", 1, 2, -1, {gradient}),
      around(id(8), id(0), "Optimizer.step#SGD.step"),
      op(id(9), id(8), add_, {weight, gradient, number < 0 ? output : RecordedValue{"-0.1", "[]", "Double", "[]"}},
         {weight}),
  };
}

TEST_F(ImportPytorch, ATrainingStepIsItsInnermostCallsThatTouchMemory) {
  const Trace trace = import(recording(training_step()));
  EXPECT_THAT(ops_of(trace), ElementsAre("aten::mm input.0 parameter.0 -> mm.3", "aten::mm input.0 mm.3 -> gradient.0",
                                         "aten::add_ parameter.0 gradient.0 -> parameter.0"));
  EXPECT_THAT(tensors_of(trace), ElementsAre("input.0 32 kept", "parameter.0 64 kept", "mm.3 32", "gradient.0 64"));
  EXPECT_EQ(trace.ops[0].phase, Phase::forward);
  EXPECT_EQ(trace.ops[1].phase, Phase::backward);
  EXPECT_EQ(trace.ops[2].phase, Phase::optimizer);
  EXPECT_EQ(trace.module(trace.ops[0]), "mm.0");
  EXPECT_EQ(trace.module(trace.ops[1]), "mm.0") << "by the sequence number of autograd";
  EXPECT_EQ(trace.header.precision, "fp32");
  EXPECT_EQ(trace.header.hardware, "modelled: round");
}

TEST_F(ImportPytorch, AllSchemasSayTheSame) {
  const Trace flat = import(recording(training_step(), "1.0.1"));
  const Trace nested = import(recording(training_step(), "1.1.0-chakra.0.0.4"));
  const Trace strided = import(recording(training_step(), "1.1.1-chakra.0.0.4"));
  std::string early = recording(training_step(), "1.1.0-chakra.0.0.4");
  early.replace(early.find("1.1.0-chakra"), 5, "1.0.2");
  EXPECT_EQ(import(early).ops.size(), nested.ops.size()) << "PyTorch's 1.0.2-chakra has the form of 1.1";
  EXPECT_EQ(ops_of(flat), ops_of(nested));
  EXPECT_EQ(tensors_of(flat), tensors_of(nested));
  EXPECT_EQ(ops_of(strided), ops_of(nested));
  EXPECT_EQ(tensors_of(strided), tensors_of(nested));
  EXPECT_THAT(error(recording(training_step(), "2.0.0")), HasSubstr("schema '2.0.0', which is not supported"));
}

// mm: 2·2·4·4 = 64 flop and 32 + 64 + 32 bytes: 0.128 ns by memory, which is 0; so larger ones.
TEST_F(ImportPytorch, DurationsAreThoseOfTheKernels) {
  const RecordedValue a = tensor(1, 11, {1000, 1000}), b = tensor(2, 12, {1000, 1000}), c = tensor(3, 13, {1000, 1000});
  const Trace trace =
      import(recording({op(20, 0, mm, {a, b}, {c}), op(21, 0, relu, {c}, {tensor(4, 14, {1000, 1000})})}));
  ASSERT_EQ(trace.ops.size(), 2u);
  EXPECT_EQ(trace.ops[0].flops, 2'000'000'000u);
  EXPECT_EQ(trace.ops[0].bytes, 12'000'000u);
  EXPECT_EQ(trace.kernel(trace.ops[0]), (Kernel{.kind = KernelKind::matmul, .shape = {1, 1000, 1000, 1000}}));
  EXPECT_EQ(trace.kernel(trace.ops[1]), (Kernel{.kind = KernelKind::elementwise}));
  // 2 GFLOP at 10 TFLOP/s, in tiles that reach over the edges by 5 %.
  EXPECT_NEAR(static_cast<double>(trace.ops[0].duration_ns), 209'700, 500);
  EXPECT_EQ(trace.ops[1].flops, 0u);
  EXPECT_EQ(trace.ops[1].duration_ns, 8'000);  // 8 MB at 1 TB/s
  EXPECT_EQ(trace.ops[1].duration_source, DurationSource::modelled);
  const RecordedValue half = tensor(1, 11, {1000, 1000}, "cuda:0", 0, "c10::Half", 2);
  const Trace fp16 =
      import(recording({op(20, 0, mm, {half, half}, {tensor(3, 13, {1000, 1000}, "cuda:0", 0, "c10::Half", 2)})}));
  EXPECT_NEAR(static_cast<double>(fp16.ops[0].duration_ns), 52'430, 100);  // at 40 TFLOP/s
}

TEST_F(ImportPytorch, OpsHaveTheirKernels) {
  const auto half = [](int id, const std::vector<std::uint64_t>& sizes) {
    return tensor(id, 10 + id, sizes, "cuda:0", 0, "c10::Half", 2);
  };
  const Trace trace = import(recording({op(20, 0, mm, {half(1, {16, 24}), half(2, {24, 10})}, {half(3, {16, 10})}),
                                        op(21, 0, "aten::bmm(Tensor self, Tensor mat2) -> Tensor",
                                           {half(4, {3, 8, 16}), half(5, {3, 16, 8})}, {half(6, {3, 8, 8})}),
                                        op(22, 0, "aten::_softmax(Tensor self, int dim, bool half_to_float) -> Tensor",
                                           {half(6, {3, 8, 8})}, {half(7, {3, 8, 8})})}));
  ASSERT_EQ(trace.ops.size(), 3u);
  const auto kernel = [&](OpIndex op) { return trace.kernel(trace.ops[op]); };
  EXPECT_EQ(kernel(0), (Kernel{.kind = KernelKind::matmul, .unaligned = true, .shape = {1, 16, 10, 24}}));
  EXPECT_EQ(kernel(1), (Kernel{.kind = KernelKind::matmul, .shape = {3, 8, 8, 16}}));
  EXPECT_EQ(kernel(2), (Kernel{.kind = KernelKind::norm}));
}

TEST_F(ImportPytorch, WithoutTimesAndWithoutAGpuTheErrorSaysWhatToGive) {
  try {
    import(recording(training_step()), [](PytorchImportOptions& options) { options.gpu.reset();
  });
  FAIL();
}
catch (const Error& error) {
  EXPECT_THAT(error.what(), AllOf(HasSubstr("Kineto trace"), HasSubstr("--assume-gpu NAME")));
}
}  // namespace

// The allocator hands out address 30 twice, and the address of the input after it.
TEST_F(ImportPytorch, AnAddressAllocatedAgainIsAnotherStorage) {
  const Trace trace = import(recording({
      op(1, 0, relu, {tensor(1, 10, {8})}, {tensor(2, 30, {8})}),
      op(2, 0, relu, {tensor(2, 30, {8})}, {tensor(3, 40, {8})}),
      op(3, 0, empty, {}, {tensor(4, 30, {16})}),
      op(4, 0, fill_, {tensor(4, 30, {16}), number(1)}, {tensor(4, 30, {16})}),
      op(5, 0, relu, {tensor(4, 30, {16})}, {tensor(5, 10, {16})}),
  }));
  EXPECT_THAT(tensors_of(trace), ElementsAre("input.0 32 kept", "relu.1 32", "relu.2 32", "empty.3 64", "relu.5 64"));
  EXPECT_THAT(notes_, Contains(HasSubstr("2 storage ids of 3 allocated more than once")));
}

TEST_F(ImportPytorch, ViewsAreTheirStorageAndExpandedOnesDoNotEnlargeIt) {
  const std::string expand = "aten::expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)";
  const std::vector<RecordedCall> calls{
      op(1, 0, relu, {tensor(1, 10, {8})}, {tensor(2, 30, {8})}),
      op(2, 0, expand, {tensor(2, 30, {8})}, {tensor(3, 30, {100, 8})}),
      op(3, 0, view, {tensor(3, 30, {100, 8})}, {tensor(4, 30, {800})}),
      op(4, 0, relu, {tensor(4, 30, {800})}, {tensor(5, 40, {800})}),
  };
  const Trace trace = import(recording(calls));
  EXPECT_THAT(ops_of(trace), ElementsAre("aten::relu input.0 -> relu.1", "aten::relu relu.1 -> relu.4"));
  EXPECT_THAT(tensors_of(trace), ElementsAre("input.0 32 kept", "relu.1 32", "relu.4 3200"));
}

TEST_F(ImportPytorch, StridesGiveTheExactExtent) {
  // Of 2 × 3 elements with strides 100 and 2, the last is at 100 + 4.
  RecordedValue strided = tensor(1, 10, {2, 3});
  strided.strides = "[100, 2]";
  const Trace trace = import(recording({op(1, 0, relu, {strided}, {tensor(2, 30, {2, 3})})}, "1.1.1"));
  EXPECT_THAT(tensors_of(trace), ElementsAre("input.0 420 kept", "relu.1 24"));
}

// What a call around ops computes itself: its result is written by none of them, or only filled.
TEST_F(ImportPytorch, ACallAroundOpsIsAnOpWhereItsResultWouldComeFromNowhere) {
  const RecordedValue gradient = tensor(1, 10, {4}), indices = tensor(2, 20, {4}, "cuda:0", 0, "long", 8);
  const RecordedValue table = tensor(3, 30, {16});
  const Trace embedding = import(recording({
      op(1, 0, "aten::embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt n) -> Tensor",
         {gradient, indices}, {table}),
      op(2, 1, empty, {}, {table}),
      op(3, 1, zero_, {table}, {table}),
      op(4, 3, fill_, {table, number(0)}, {table}),
  }));
  EXPECT_THAT(ops_of(embedding),
              ElementsAre("aten::fill_ -> empty.2", "aten::embedding_dense_backward input.0 input.1 -> empty.2"));
  const Trace zeros = import(recording({
      op(1, 0, "aten::zeros_like(Tensor self) -> Tensor", {gradient}, {table}),
      op(2, 1, empty, {}, {table}),
      op(3, 1, fill_, {table, number(0)}, {table}),
  }));
  EXPECT_THAT(ops_of(zeros), ElementsAre("aten::fill_ -> empty.2")) << "it does not look at its argument";
  const RecordedValue bias = tensor(4, 40, {4}), weight = tensor(5, 50, {4});
  const Trace convolution = import(recording({
      op(1, 0, "aten::convolution_backward(Tensor grad_output, Tensor input) -> (Tensor, Tensor)", {gradient, indices},
         {weight, bias}),
      op(2, 1, empty, {}, {weight}),
      op(3, 1, "aten::sum.dim_IntList(Tensor self) -> Tensor", {gradient}, {bias}),
  }));
  EXPECT_THAT(ops_of(convolution),
              ElementsAre("aten::sum input.0 -> sum.3", "aten::convolution_backward input.0 input.1 -> empty.2"));
}

// nll_loss_backward allocates its result without a call to empty; the first that is seen of it is zero_ within.
TEST_F(ImportPytorch, WhatACallMakesWithoutSayingSoIsItsOwn) {
  const Trace trace = import(recording({
      op(1, 0, relu, {tensor(1, 10, {8})}, {tensor(2, 30, {8})}),
      op(2, 0, relu, {tensor(2, 30, {8})}, {tensor(3, 40, {8})}),
      op(3, 0, "aten::nll_loss_backward(Tensor grad_output, Tensor self) -> Tensor", {tensor(3, 40, {8})},
         {tensor(4, 30, {8})}),
      op(4, 3, zero_, {tensor(4, 30, {8})}, {tensor(4, 30, {8})}),
      op(5, 4, fill_, {tensor(4, 30, {8}), number(0)}, {tensor(4, 30, {8})}),
  }));
  EXPECT_THAT(ops_of(trace), ElementsAre("aten::relu input.0 -> relu.1", "aten::relu relu.1 -> relu.2",
                                         "aten::fill_ -> nll_loss_backward.3",
                                         "aten::nll_loss_backward relu.2 -> nll_loss_backward.3"));
}

TEST_F(ImportPytorch, WhatOnlyOneOpSeesIsItsWorkspace) {
  const Trace trace = import(recording({
      op(1, 0, mm, {tensor(1, 10, {2, 2}), tensor(2, 20, {2, 2})}, {tensor(3, 30, {2, 2})}),
      op(2, 1, empty, {}, {tensor(4, 40, {1024})}),
  }));
  EXPECT_THAT(ops_of(trace), ElementsAre("aten::mm input.0 input.1 -> mm.1 empty.2"));
  EXPECT_EQ(trace.tensors[3].role, Role::workspace);
}

TEST_F(ImportPytorch, BatchNormUpdatesItsStatisticsThoughItsSchemaDoesNotSaySo) {
  const Trace trace =
      import(recording({op(1, 0, "aten::cudnn_batch_norm(Tensor input, Tensor weight, Tensor? running_mean) -> Tensor",
                           {tensor(1, 10, {2, 2}), tensor(2, 20, {2}), tensor(3, 30, {2})}, {tensor(4, 40, {2, 2})})}));
  EXPECT_THAT(ops_of(trace),
              ElementsAre("aten::cudnn_batch_norm input.0 parameter.0 parameter.1 -> parameter.1 cudnn_batch_norm.1"));
}

// What an unnamed kernel reads and writes in place is not known to be a parameter.
TEST_F(ImportPytorch, WhatIsUpdatedInPlaceIsNoParameterByThat) {
  RecordedCall call = around(1, 0, "triton_poi_fused_add_0", 0, 1, -1, {tensor(1, 10, {8})});
  call.kernel_backend = "triton";
  const Trace trace = import(recording({call}));
  EXPECT_THAT(ops_of(trace), ElementsAre("triton_poi_fused_add_0 input.0 -> input.0"));
  EXPECT_TRUE(trace.tensors[0].persistent);
}

// FBGEMM's tables are updated by their own backward op, in place of an optimizer's.
TEST_F(ImportPytorch, EmbeddingTablesAreParametersAndHaveStates) {
  const Trace trace = import(recording(
      {op(1, 0,
          "fbgemm::split_embedding_codegen_lookup_adagrad_function(Tensor dev_weights, Tensor indices, Tensor "
          "momentum1_dev) -> Tensor",
          {tensor(1, 10, {100, 4}), tensor(2, 20, {8}), tensor(3, 30, {100, 4})}, {tensor(5, 50, {8, 4})})}));
  EXPECT_THAT(ops_of(trace), ElementsAre(::testing::StartsWith(
                                 "fbgemm::split_embedding_codegen_lookup_adagrad_function parameter.0 input.0 "
                                 "optimizer_state.0 -> ")));
}

TEST_F(ImportPytorch, CompiledKernelsWriteWhatHasNoContentYet) {
  const RecordedValue x = tensor(1, 10, {8}), y = tensor(2, 20, {8});
  const auto compiled = [](std::uint64_t id, const std::vector<RecordedValue>& inputs) {
    RecordedCall call = around(id, 0, "triton_poi_fused_relu_0", 0, 1, -1, inputs);
    call.kernel_backend = "triton";
    return call;
  };
  const Trace trace = import(recording({op(1, 0, empty, {}, {y}), compiled(2, {x, y}), compiled(3, {y})}));
  EXPECT_THAT(ops_of(trace),
              ElementsAre("triton_poi_fused_relu_0 input.0 -> empty.1", "triton_poi_fused_relu_0 empty.1 -> empty.1"));
}

TEST_F(ImportPytorch, TensorsOnTheHostAreNoTensorsOfAGpusTrace) {
  const RecordedValue scalar = tensor(2, 20, {1}, "cpu"), step = tensor(3, 30, {1}, "cpu");
  const RecordedValue large = tensor(5, 50, {1 << 20}, "cpu");
  const Trace trace = import(recording({
      op(1, 0, add_, {tensor(1, 10, {2}), scalar}, {tensor(1, 10, {2})}),
      op(2, 0, add_, {step, scalar}, {step}),
      op(3, 0, relu, {large}, {tensor(6, 60, {1 << 20}, "cpu")}),
  }));
  EXPECT_THAT(ops_of(trace), ElementsAre("aten::add_ parameter.0 -> parameter.0", "aten::relu input.0 -> relu.3"));
  EXPECT_EQ(trace.ops[0].device, Device::gpu);
  EXPECT_EQ(trace.ops[1].device, Device::cpu);
  EXPECT_THAT(notes_, Contains(HasSubstr("1 op on less than 1 MiB of host memory left out")));
  const Trace host = import(recording({op(2, 0, add_, {step, scalar}, {step})}));
  EXPECT_THAT(ops_of(host), ElementsAre("aten::add_ parameter.0 -> parameter.0")) << "all of it is on the CPU";
  EXPECT_EQ(host.ops[0].device, Device::gpu) << "the device that computes";
}

// Adam by lists over two parameters, its state created in the only recorded step.
std::vector<RecordedCall> first_adam_step() {
  const auto weight = [](std::uint64_t i) { return tensor(100 + i, 200 + i, {8 * (i + 1)}); };
  const auto gradient = [](std::uint64_t i) { return tensor(110 + i, 210 + i, {8 * (i + 1)}); };
  const auto state = [](std::uint64_t i) { return tensor(120 + i, 220 + i, {8 * (i + 1)}); };
  const auto root = [](std::uint64_t i) { return tensor(130 + i, 230 + i, {8 * (i + 1)}); };
  return {
      around(1, 0, "ProfilerStep#3"),
      op(2, 1, relu, {weight(0)}, {tensor(1, 300, {8})}),
      op(3, 1, relu, {weight(1)}, {tensor(2, 301, {16})}),
      around(4, 0, "autograd::engine::evaluate_function: ReluBackward0", 0, 2),
      op(5, 4, relu, {tensor(1, 300, {8})}, {gradient(0)}),
      op(6, 4, relu, {tensor(2, 301, {16})}, {gradient(1)}),
      around(7, 4, "torch::autograd::AccumulateGrad", 1, 2, -1, {gradient(0)}),
      around(8, 4, "torch::autograd::AccumulateGrad", 1, 2, -1, {gradient(1)}),
      around(9, 1, "Optimizer.step#Adam.step"),
      op(10, 9, "aten::zeros_like(Tensor self) -> Tensor", {weight(0)}, {state(0)}),
      op(11, 10, empty, {}, {state(0)}),
      op(12, 10, fill_, {state(0), number(0)}, {state(0)}),
      op(13, 9, "aten::zeros_like(Tensor self) -> Tensor", {weight(1)}, {state(1)}),
      op(14, 13, empty, {}, {state(1)}),
      op(15, 13, fill_, {state(1), number(0)}, {state(1)}),
      op(16, 9, "aten::_foreach_add_.List(Tensor(a!)[] self, Tensor[] other) -> ()",
         {list({state(0), state(1)}), list({gradient(0), gradient(1)})}, {}),
      op(17, 9, "aten::_foreach_sqrt(Tensor[] self) -> Tensor[]", {list({state(0), state(1)})},
         {list({root(0), root(1)})}),
      op(18, 9, "aten::_foreach_addcdiv_.Scalar(Tensor(a!)[] self, Tensor[] tensor1, Tensor[] tensor2) -> ()",
         {list({weight(0), weight(1)}), list({state(0), state(1)}), list({root(0), root(1)})}, {}),
      around(19, 0, "ProfilerStep#4"),
  };
}

TEST_F(ImportPytorch, AnOptimizersStepIsOneUpdateAParameter) {
  Trace trace = import(recording(first_adam_step()));
  ASSERT_EQ(trace.ops.size(), 10u);
  EXPECT_EQ(ops_of(trace)[4], "aten::_foreach_add_ optimizer_state.0 gradient.0 -> optimizer_state.0");
  EXPECT_EQ(ops_of(trace)[7], "aten::_foreach_sqrt optimizer_state.1 -> _foreach_sqrt.17.1");
  EXPECT_EQ(fold_updates(trace).to_string(), "the optimizer's 6 kernels are simulated as 2 updates");
  EXPECT_THAT(ops_of(trace),
              ElementsAre("aten::relu parameter.0 -> relu.2", "aten::relu parameter.1 -> relu.3",
                          "aten::relu relu.2 -> gradient.0", "aten::relu relu.3 -> gradient.1",
                          "update optimizer_state.0 gradient.0 parameter.0 -> optimizer_state.0 parameter.0 "
                          "parameter.0.update:workspace",
                          "update optimizer_state.1 gradient.1 parameter.1 -> optimizer_state.1 parameter.1 "
                          "parameter.1.update:workspace"));
  for (const Tensor& tensor : trace.tensors) {
    const bool kept = tensor.role == Role::parameter || tensor.role == Role::optimizer_state;
    EXPECT_EQ(tensor.persistent, kept) << trace.name(tensor);
  }
  EXPECT_TRUE(trace.ops[5].placeable && trace.ops[5].reorderable);
  EXPECT_THAT(notes_, Contains(HasSubstr("created on first use")));
  EXPECT_THAT(notes_, Contains(HasSubstr("2 ops with which a first step creates the optimizer's states left out")));
}

TEST_F(ImportPytorch, AsRecordedKeepsTheStepOpByOpAndWhatAFirstStepCreates) {
  const Trace trace =
      import(recording(first_adam_step()), [](PytorchImportOptions& options) { options.as_recorded = true; });
  ASSERT_EQ(trace.ops.size(), 12u);
  EXPECT_THAT(ops_of(trace)[4], "aten::fill_ -> empty.11");
  EXPECT_THAT(ops_of(trace)[6], "aten::_foreach_add_ empty.11 gradient.0 -> empty.11");
  EXPECT_THAT(ops_of(trace)[7], "aten::_foreach_add_ empty.14 gradient.1 -> empty.14");
  EXPECT_EQ(trace.tensors[trace.writes(trace.ops[4])[0]].role, Role::optimizer_state);
  EXPECT_FALSE(trace.tensors[trace.writes(trace.ops[4])[0]].persistent);
  // A list's time is divided by traffic: positions of 8 and 16 elements.
  EXPECT_EQ(trace.ops[6].bytes * 2, trace.ops[7].bytes);
}

TEST_F(ImportPytorch, TheLastCompleteIterationIsTakenOrTheGivenOne) {
  std::vector<RecordedCall> calls = training_step(1, 6);
  for (const RecordedCall& call : training_step(101, 7)) calls.push_back(call);
  calls.push_back(around(201, 0, "ProfilerStep#8"));
  calls.push_back(op(202, 201, relu, {tensor(1, 10, {8})}, {tensor(2, 30, {8})}));
  EXPECT_EQ(import(recording(calls)).ops.size(), 3u);
  EXPECT_THAT(notes_.front(), HasSubstr("ProfilerStep#7, the last complete of 2"));
  import(recording(calls), [](PytorchImportOptions& options) { options.iteration.number = 6;
});
EXPECT_THAT(notes_.front(), HasSubstr("ProfilerStep#6, as given"));
EXPECT_EQ(import(recording(calls), [](PytorchImportOptions& o) { o.iteration.number = 8; }).ops.size(), 1u);
try {
    import(recording(calls), [](PytorchImportOptions& options) { options.iteration.number = 9;
});
FAIL();
}  // namespace tencache
catch (const Error& error) {
  EXPECT_THAT(error.what(), HasSubstr("no iteration 9; it has 6, 7, 8 (without an optimizer's step)"));
}
const auto nodes = [](PytorchImportOptions& options) { options.iteration = {{}, 1, 3}; };
EXPECT_EQ(import(recording(calls), nodes).ops.size(), 1u);
}

TEST_F(ImportPytorch, WithoutTheProfilersStepsAnIterationEndsWithTheOptimizers) {
  std::vector<RecordedCall> calls = training_step(1), second = training_step(101);
  calls.insert(calls.end(), second.begin(), second.end());
  for (RecordedCall& call : calls) {
    if (call.name.starts_with("ProfilerStep")) call.name = "step";
  }
  EXPECT_EQ(import(recording(calls)).ops.size(), 3u);
  EXPECT_THAT(notes_.front(), HasSubstr("up to Optimizer.step number 1, the last complete of 2"));
}

// What the second iteration reads of the first one's storages was there before.
TEST_F(ImportPytorch, StatesKeptFromOneStepToTheNextAreKnownByThat) {
  std::vector<RecordedCall> calls = first_adam_step();
  calls.pop_back();
  const std::size_t one = calls.size();
  for (std::size_t i = 0; i < one; ++i) {
    RecordedCall call = calls[i];
    if (call.id >= 10 && call.id <= 15) continue;  // the states are there
    call.id += 100;
    if (call.parent != 0) call.parent += 100;
    if (call.name == "ProfilerStep#3") call.name = "ProfilerStep#4";
    calls.push_back(call);
  }
  const Trace trace = import(recording(calls));
  EXPECT_EQ(trace.ops.size(), 10u);
  EXPECT_THAT(notes_, Contains(HasSubstr("optimizer_state: used by the optimizer's step only, kept")));
  EXPECT_EQ(summarize(trace).tensors[static_cast<std::size_t>(Role::optimizer_state)].bytes, 96u);
  EXPECT_EQ(summarize(trace).tensors[static_cast<std::size_t>(Role::workspace)].bytes, 96u);
}

TEST_F(ImportPytorch, DamagedAndForeignFilesAreOneClearError) {
  const std::string good = recording(training_step());
  EXPECT_THAT(error(good.substr(0, good.size() / 2)), HasSubstr("cut short"));
  EXPECT_THAT(error(""), HasSubstr("is empty"));
  EXPECT_THAT(error("<!DOCTYPE html><html>404</html>"), HasSubstr("HTML or XML"));
  EXPECT_THAT(error("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 4\n"), HasSubstr("git lfs pull"));
  EXPECT_THAT(error("{\"a\": [1, 2]}"), HasSubstr("has no \"nodes\""));
  EXPECT_THAT(error(R"({"schemaVersion": 1, "traceEvents": []})"), HasSubstr("Kineto trace"));
  EXPECT_THAT(error(R"({"schema": "1.1.0", "nodes": []})"), HasSubstr("has no nodes"));
  EXPECT_THAT(error(R"({"nodes": [{}]})"), HasSubstr("does not name its \"schema\""));
  EXPECT_THAT(error(R"({"schema": "1.1.0", "nodes": [7]})"), HasSubstr("no object"));
  EXPECT_THAT(error(R"({"schema": "1.1.0", "nodes": [{"name": "x"}]})"), HasSubstr("'id'"));
  EXPECT_THAT(error(R"({"schema": "1.1.0", "nodes": [{"id": 3, "name": "x"}]})"), HasSubstr("node 3"));
  EXPECT_THAT(error("{\"schema\": \"1.1.0\", \"nodes\": [" + std::string(5000, '[')), HasSubstr("nested deeper"));
  EXPECT_THAT(error(good + "garbage"), HasSubstr("something follows"));
  EXPECT_THAT(error("PK\x03\x04 zip"), HasSubstr("zip archive"));
}

TEST_F(ImportPytorch, AbsurdSizesAndCirclesAreErrorsThatNameTheNode) {
  const auto with = [&](const std::function<void(std::vector<RecordedCall>&)>& change) {
    std::vector<RecordedCall> calls = training_step();
    change(calls);
    return error(recording(calls));
  };
  const auto tensor_text = [](const std::string& text) { return RecordedValue{text, "[1]", "Tensor(float)", "[1]"}; };
  EXPECT_THAT(with([&](auto& c) { c[2].inputs[0] = tensor_text("[1, 2, 0, 1000000000000000000, 4, \"cuda:0\"]"); }),
              AllOf(HasSubstr("node 3"), HasSubstr("cannot be right")));
  EXPECT_THAT(with([&](auto& c) { c[2].inputs[0] = tensor_text("[1, 2, 0, -1, 4, \"cuda:0\"]"); }),
              HasSubstr("node 3"));
  EXPECT_THAT(with([&](auto& c) { c[2].inputs[0] = tensor_text("[1, 2, 0, 1]"); }),
              HasSubstr("that is not [tensor id"));
  EXPECT_THAT(with([&](auto& c) { c[2].parent = 9; }), HasSubstr("node 3: its parent is 9, which begins later"));
  EXPECT_THAT(with([&](auto& c) { c[2].id = 2; }), HasSubstr("stands twice"));
}

TEST_F(ImportPytorch, WhateverIsDamagedIsAnErrorOrATrace) {
  std::size_t traces = 0;
  for (const char* schema : {"1.0.1", "1.1.1-chakra.0.0.4"}) {
    const std::string good = recording(first_adam_step(), schema);
    for (unsigned seed = 0; seed < 300; ++seed) {
      try {
        import(damaged(good, seed));
        ++traces;
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("et.json")) << seed;
      }
    }
  }
  EXPECT_GT(traces, 20u) << "some damage does not matter";
}

std::string gzip(const std::string& text) {
  std::string out(text.size() + 1000, '\0');
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string tar(const std::string& name, const std::string& text) {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  char size[12];
  std::snprintf(size, sizeof size, "%011zo", text.size());
  header.replace(124, 11, size);
  header[156] = '0';
  header.replace(257, 5, "ustar");
  std::string archive = header + text;
  archive.resize((archive.size() + 511) / 512 * 512 + 1024, '\0');
  return archive;
}

TEST_F(ImportPytorch, CompressedFilesAndArchivesAreReadAsTheyAre) {
  const std::string text = recording(training_step());
  const std::string plain = format_trace(import(text));
  PytorchImportOptions options;
  options.gpu = round_gpu();
  options.model = "et";
  for (const auto& [name, bytes] :
       {std::pair<std::string, std::string>{"et.json.gz", gzip(text)},
        {"et.tar", tar("a/et.json", text)},
        {"et.json.tar.gz", gzip(tar("a/readme.md", "no").substr(0, 1024) + tar("et.json", text))}}) {
    options.execution_trace = write(bytes, name);
    EXPECT_EQ(format_trace(import_pytorch(options).trace), plain) << name;
  }
  const std::string compressed = gzip(text);
  EXPECT_THAT(error(compressed + "tail", "a.gz"), HasSubstr("follows the gzip data"));
  EXPECT_THAT(error(compressed.substr(0, compressed.size() - 20), "a.gz"), HasSubstr("cut short"));
  std::string corrupt = compressed;
  corrupt[compressed.size() / 2] = static_cast<char>(corrupt[compressed.size() / 2] ^ 0x55);
  EXPECT_THAT(error(corrupt, "a.gz"), HasSubstr("a.gz"));
  EXPECT_THAT(error(tar("notes.txt", "no"), "a.tar"), HasSubstr("no member that ends in .json; it has notes.txt"));
  EXPECT_THAT(error(tar("et.json", text).substr(0, 700), "a.tar"), HasSubstr("cut short"));
}

// ------------------------------------------------------------------------------------------ the published recordings

class PytorchRecording : public ::testing::Test {
 protected:
  ImportedTrace read(const std::string& file, const std::function<void(PytorchImportOptions&)>& change = {}) {
    PytorchImportOptions options;
    options.execution_trace = folder + file;
    options.gpu = round_gpu();
    if (change) change(options);
    return import_pytorch(options);
  }
  void SetUp() override {
    if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no recordings in " << folder;
  }
  static TensorTotal of(const TraceSummary& summary, Role role) {
    return summary.tensors[static_cast<std::size_t>(role)];
  }
  const std::string folder = std::string(TENCACHE_SOURCE_DIR) + "/../shared/traces/pytorch/";
};

// GPT-2 Large: 774,030,080 parameters in 436 tensors (36 layers of 12, two tables, a last norm of two).
TEST_F(PytorchRecording, Gpt2Large) {
  const ImportedTrace imported = read("hf_GPT2_et.json.tar.gz");
  const TraceSummary summary = summarize(imported.trace);
  constexpr Bytes parameter_bytes = 774'030'080ull * 4;
  EXPECT_EQ(of(summary, Role::parameter).count, 436u);
  EXPECT_EQ(of(summary, Role::parameter).bytes, parameter_bytes);
  EXPECT_EQ(summary.gradients_of_step.count, 436u);
  EXPECT_EQ(summary.gradients_of_step.bytes, parameter_bytes);  // 3,096 MB
  EXPECT_EQ(of(summary, Role::optimizer_state).count, 2 * 436u);
  EXPECT_EQ(of(summary, Role::optimizer_state).bytes, 2 * parameter_bytes);
  EXPECT_EQ(imported.trace.header.precision, "fp32");
  EXPECT_THAT(imported.notes, Contains(HasSubstr("optimizer_state, created on first use")));
  Trace trace = imported.trace;
  EXPECT_EQ(fold_updates(trace).updates, 436u);
}

TEST_F(PytorchRecording, Gpt2LargesPeakIsInsideTheAdamStepThatCreatesItsStates) {
  const ImportedTrace imported =
      read("hf_GPT2_et.json.tar.gz", [](PytorchImportOptions& options) { options.as_recorded = true; });
  const Demand demand = demands_of(imported.trace).front();
  EXPECT_EQ(imported.trace.ops[demand.peak.op].phase, Phase::optimizer);
  EXPECT_EQ(demand.peak.by_role[static_cast<std::size_t>(Role::optimizer_state)], 2 * 774'030'080ull * 4);
}

// ResNet-50: 25,557,032 parameters in 161 tensors, and 53 norms of running mean, variance and count.
TEST_F(PytorchRecording, ResNetInBothSchemas) {
  for (const char* file : {"resnet_1gpu_et.json.tar.gz", "resnet_et.json.gz"}) {
    const ImportedTrace imported = read(file);
    const TraceSummary summary = summarize(imported.trace);
    EXPECT_EQ(of(summary, Role::parameter).count, 161u + 3 * 53u) << file;
    EXPECT_EQ(of(summary, Role::parameter).bytes, 25'557'032ull * 4 + 2 * 26'560ull * 4 + 53 * 8) << file;
    EXPECT_EQ(of(summary, Role::optimizer_state).bytes, 25'557'032ull * 4) << "momentum";
    EXPECT_EQ(summary.gradients_of_step.bytes, 25'557'032ull * 4);
    EXPECT_THAT(imported.notes, Contains(HasSubstr("used by the backward pass only (a bucket): 5 of 97.49 MiB")));
    Trace trace = imported.trace;
    EXPECT_EQ(fold_updates(trace).updates, 161u);
    EXPECT_THAT(imported.notes.front(), HasSubstr("ProfilerStep#8, the last complete of 3"));
  }
}

// 20 layers of 1024 × 1024 and biases, and what the recording calls 21: each has its gradient.
TEST_F(PytorchRecording, Linear) {
  const TraceSummary summary = summarize(read("linear_et.json.gz").trace);
  EXPECT_EQ(of(summary, Role::parameter).count, 42u);
  EXPECT_EQ(of(summary, Role::parameter).bytes, 21ull * (1024 * 1024 + 1024) * 4);
  EXPECT_EQ(summary.gradients_of_step.bytes, of(summary, Role::parameter).bytes);
  EXPECT_EQ(of(summary, Role::optimizer_state).count, 0u);
}

}  // namespace
}  // namespace tencache
