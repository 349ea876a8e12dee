// Kineto traces: what torch.profiler exports as Chrome JSON ({"traceEvents": […]}). Times, kernels and, with
// profile_memory, allocations and frees; no identities of tensors.
//
// A file is read twice: once for its iterations, once for the events of one of them, so that memory grows with one
// iteration and not with the file.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/trace.h"
#include "traces/import/pytorch/byte_stream.h"
#include "traces/import/pytorch/op_kernel.h"

namespace tencache {

// An annotation that marks iterations: "ProfilerStep#7", "Optimizer.step#Adam.step".
struct KinetoMark {
  std::string name;
  Nanoseconds begin_ns = 0, end_ns = 0;
  std::uint64_t rf_id = 0;  // of the record function; 0: not recorded
};

struct KinetoIteration {
  Nanoseconds begin_ns = 0, end_ns = 0;
  std::int64_t number = 0;  // of ProfilerStep#, else counted from 0
  bool complete = false;    // has an optimizer's step, and its beginning is known
  bool numbered = false;    // by ProfilerStep#
};

struct KinetoIterations {
  std::vector<KinetoIteration> all;
  std::vector<KinetoMark> marks;
  std::uint64_t events = 0, calls = 0;
  bool memory = false;    // has events of profile_memory
  bool gpu_work = false;  // has kernels
};

// The iterations by ProfilerStep annotations, else up to the end of each optimizer's step, else the whole recording.
// Throws Error for a file that is no Kineto trace of PyTorch's.
KinetoIterations find_kineto_iterations(const std::string& path, const ImportProgress& progress = {});

// The last complete one (of those that are not complete, the last), or the one with the number. `evidence` says which.
const KinetoIteration& choose_iteration(const KinetoIterations& found, const std::optional<std::int64_t>& number,
                                        const std::string& file, std::string& evidence);

// An op or an annotation on the host.
struct KinetoCall {
  Nanoseconds begin_ns = 0, end_ns = 0;
  std::uint64_t thread = 0, rf_id = 0, external_id = 0;
  NameId name = 0;
  std::uint32_t parent = none;                     // the innermost call around it on its thread
  std::uint32_t first_input = 0, input_count = 0;  // in KinetoWindow::inputs
  bool annotation = false;
  std::uint32_t true_arguments = 0;  // a bit for each of the first 32 that is true, where they are recorded
};

// A kernel, copy or fill on the GPU.
struct KinetoWork {
  Nanoseconds begin_ns = 0, end_ns = 0;
  std::uint64_t correlation = 0, external_id = 0;
  std::uint32_t call = none;  // the innermost call that launched it
};

// An allocation (bytes > 0) or a free (bytes < 0).
struct KinetoMemory {
  Nanoseconds time_ns = 0;
  std::uint64_t thread = 0, address = 0;
  std::int64_t bytes = 0;
  std::uint64_t total_allocated = 0;  // afterwards; 0: not recorded
  std::uint32_t call = none;          // the innermost call in which it happened
  bool host = false;
};

struct KinetoWindow {
  std::string file, hardware;
  Nanoseconds begin_ns = 0, end_ns = 0;
  NamePool names;
  std::vector<KinetoCall> calls;            // by begin, the outer before the inner
  std::vector<KinetoWork> work;             // launched within the window; by begin
  std::vector<KinetoMemory> memory;         // by time
  std::vector<OpTensor> inputs;             // tensors that calls were given, with record_shapes
  std::array<std::uint64_t, 3> products{};  // arguments of matrix products by Precision
  std::uint64_t unlinked_work = 0;          // of no call: not in `work`

  std::span<const OpTensor> inputs_of(const KinetoCall& call) const {
    return std::span(inputs).subspan(call.first_input, call.input_count);
  }
};

KinetoWindow read_kineto_window(const std::string& path, const KinetoIteration& iteration,
                                const ImportProgress& progress = {});

}  // namespace tencache
