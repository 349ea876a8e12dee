// Measures this computer into a machine description: the same lanes, files and memory that a run uses, unpaced. What a
// machine file has no place for (rates by block size, computing beside copies, …) is returned beside it.
//
// Figures are medians; their spread is the interquartile range over the median, of the machine's figures as
// Fact::spread, which `--samples` draws from.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/machine_spec.h"
#include "executor/accelerator.h"

namespace tencache {

inline constexpr TensorId measured_tensor = 0;  // what copies of a calibration are of

struct CalibrateOptions {
  std::string name = "this-computer";
  Bytes gpu_bytes = 0;  // capacity of the GPU's tier; 0: of the stand-in a quarter of the memory that is free, of a GPU
                        // what it has free, less a sixteenth
  std::vector<std::string> directories;  // for files; empty: no tier of files
  bool cpu_tier = true;                  // false: files are read and written from the GPU's stand-in, with nothing
                                         // between; needs directories, and no accelerator
  std::string date;                      // written to every figure's `retrieved`
  Bytes file_bytes = 0;  // of the files that rates are measured on; 0: 2 GiB, less where the disk is full
  bool quick = false;    // a few seconds: fewer repetitions, less data, fewer sizes
  std::shared_ptr<Accelerator> accelerator = nullptr;  // the GPU; nullptr: ordinary memory stands in
  // Runs an Adam step on so many parameters on the CPU and returns when it is done; empty: not measured.
  std::function<void(std::uint64_t parameters)> adam_step;
  std::function<void(const std::string& what)> progress;  // what is measured next; may be empty
};

// A median with the interquartile range over it.
struct MeasuredMedian {
  double value = 0;  // 0: not measured
  double spread = 0;
};
MeasuredMedian measured_median(std::vector<double> values);  // not empty

// Time of one copy against its size; the link is the line through them.
struct CopyTime {
  Bytes bytes = 0;
  Nanoseconds time_ns = 0;  // median, from submission to completion
  double spread = 0;
};

// Files, in bytes per second. `mixed`: one lane reads while another writes, both together.
struct FileRate {
  Bytes block_bytes = 0;
  std::uint32_t queue_depth = 0;
  MeasuredMedian read, write, mixed;
};

// A thread's copies in memory, and what memory costs before it can be used, by size.
struct MemoryCost {
  Bytes bytes = 0;
  MeasuredMedian pageable_copy, pinned_copy;  // bytes per second, caches cold; pinned: locked with mlock
  MeasuredMedian allocate, allocate_pinned;   // seconds: mmap with its pages touched; the same and mlock
  MeasuredMedian map, unmap;                  // seconds: of a tier's memory whose pages exist
};

// What a GPU's own memory takes, and copies of memory that is not page-locked; the links' are of memory that is.
struct AcceleratorCost {
  Bytes bytes = 0;
  MeasuredMedian pageable_h2d, pageable_d2h;  // bytes per second
  MeasuredMedian map, unmap;                  // seconds, of device memory that is there
};

// Memory of the host that a GPU's copies reach at full speed: bytes per second at which fresh pages are made by so many
// threads, and at which they are locked then.
struct PageLockCost {
  unsigned threads = 0;
  MeasuredMedian touch, lock;
};

// What runs at the same time slows each other down: both directions beside a computing core, and that core.
struct Contention {
  // Bytes per second beside matrix products, into the GPU's tier and out of it; both: the two links together.
  MeasuredMedian h2d, d2h, both;
  double duplex_factor = 0;    // both ÷ (h2d + d2h)
  double matmul_slowdown = 0;  // of matrix products beside both links: time ÷ time alone - 1
  double triad_slowdown = 0;   // of memory traffic
};

struct Calibration {
  MachineSpec machine;  // every figure has a Fact of confidence "measured"; write it with configs/machine_yaml.h
  std::vector<std::vector<CopyTime>> copies;  // by link
  std::vector<MemoryCost> memory;
  std::vector<AcceleratorCost> accelerator;  // by size; with an accelerator
  std::vector<PageLockCost> page_locking;    // by threads; with an accelerator
  MeasuredMedian device_copy;  // bytes per second, read and written, within its memory; with an accelerator
  std::vector<FileRate> files;
  Bytes file_bytes = 0;  // that they were measured on
  Contention contention;
  MeasuredMedian matmul_flops;            // per second, 256 × 256 × 256 floats in plain loops on one core: not a BLAS
  MeasuredMedian triad_bytes;             // per second, a[i] = b[i] + s c[i] over 3 × 64 MiB on one core
  MeasuredMedian op_round_trip;           // seconds, execute → wait of an empty op
  std::string description;                // how files are accessed, a line a tier and link
  std::vector<std::string> not_measured;  // what, and why
};

// Less than a minute on one SSD, a few seconds if `quick`. Throws Error when a directory cannot be used.
Calibration calibrate(const CalibrateOptions& options);

struct LinkFigures {
  BytesPerSecond bandwidth = 0;
  Nanoseconds latency_ns = 0;
};
// The line latency + bytes / bandwidth through the times, by least squares of the relative error, latency not below 0.
LinkFigures fit_link(const std::vector<CopyTime>& times);

// ---- Parts of it, each in a file of its own.
// calibrate_memory.cpp
std::vector<AcceleratorCost> time_accelerator(Accelerator& accelerator, bool quick);
// Copies within its memory: bytes per second, read and written. 0 where too little of it is free.
MeasuredMedian time_device_copy(Accelerator& accelerator, bool quick);
// Says in `not_measured` where locking is refused.
std::vector<PageLockCost> time_page_locking(Accelerator& accelerator, bool quick,
                                            std::vector<std::string>& not_measured);
// Of page-locked memory, one behind the other on a stream: what each adds, by size.
struct QueuedCopies {
  std::vector<CopyTime> h2d, d2h;
};
QueuedCopies time_queued_copies(Accelerator& accelerator, const std::vector<Bytes>& sizes, int repetitions);
// Says in `not_measured` where locking memory is refused.
std::vector<MemoryCost> time_memory(bool quick, std::vector<std::string>& not_measured);
// One matrix product, one triad; seconds each takes.
double time_matmul();
double time_triad();
inline constexpr double matmul_operations = 2.0 * 256 * 256 * 256;
inline constexpr double triad_traffic = 3.0 * 64 * 1024 * 1024;
// calibrate_files.cpp. The tier's files are written once over `bytes`, then read and written for `seconds` each way.
std::vector<FileRate> time_files(const Tier& tier, Bytes bytes, bool quick);

}  // namespace tencache
