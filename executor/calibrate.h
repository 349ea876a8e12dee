// Measures this computer into a machine description: the same lanes, files and memory that a run uses, unpaced.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/machine_spec.h"

namespace tencache {

struct CalibrateOptions {
  std::string name = "this-computer";
  Bytes gpu_bytes = 0;                   // capacity of the GPU's stand-in; 0: a quarter of the memory that is free
  std::vector<std::string> directories;  // for files; empty: no tier of files
  std::string date;                      // written to every figure's `retrieved`
  int repetitions = 15;                  // of each copy; their median counts
  // Runs an Adam step on so many parameters on the CPU and returns when it is done; empty: not measured.
  std::function<void(std::uint64_t parameters)> adam_step;
};

// Time of one copy against its size; the link is the line through them.
struct CopyTime {
  Bytes bytes = 0;
  Nanoseconds time_ns = 0;  // median, from submission to completion
};

struct MappingCost {
  double map_ns = 0, unmap_ns = 0;  // of one chunk of this size, its pages touched before
  Bytes bytes = 0;
};

struct Calibration {
  MachineSpec machine;  // every figure has a Fact of confidence "measured"; write it with configs/machine_yaml.h
  std::vector<std::vector<CopyTime>> copies;  // by link
  std::vector<MappingCost> mapping;           // 4 KiB and 16 MiB
  Nanoseconds op_round_trip_ns = 0;           // execute → wait of an empty op, median
  std::string notes;                          // for people: a line per figure that the machine file has no place for
};

// Takes a few seconds. Throws Error when a directory cannot be used.
Calibration calibrate(const CalibrateOptions& options);

struct LinkFigures {
  BytesPerSecond bandwidth = 0;
  Nanoseconds latency_ns = 0;
};
// The line latency + bytes / bandwidth through the times, by least squares of the relative error, latency not below 0.
LinkFigures fit_link(const std::vector<CopyTime>& times);

}  // namespace tencache
