// Tables of published training throughput inside a validation file (docs/validation-format.md): a line becomes a
// workload, an unlimited machine with its GPU, and a row that compares tokens per second.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "configs/yaml_layers.h"
#include "studies/validation/file.h"

namespace tencache {

// At most so many data-parallel ranks and micro-batches are simulated: more change the time of a token no further,
// but for communication between hosts, which is not modelled.
inline constexpr std::uint64_t simulated_ranks = 8;
inline constexpr std::uint64_t simulated_micro_batches = 2;

class ThroughputReader {
 public:
  // Both outlive the reader.
  ThroughputReader(const std::string& file, ValidationFile& result) : file_(file), result_(result) {}

  // A description as of docs/model-format.md; without max_sequence it takes each row's sequence.
  void read_model_entry(const YamlValue& item);
  // Adds an experiment, with its workloads and systems. Throws Error with file and line.
  void read_section(const YamlValue& item);

 private:
  struct Line;
  struct Section;
  ValidationRow read_row(const YamlValue& item, const Section& section);
  void take_times(const YamlValue& value, Section& section) const;
  void take_options(const YamlValue& value, Section& section);
  ValidationWorkload workload_of(const YamlValue& item, const Line& line, const Section& section) const;
  ModelDescription inline_model(const YamlValue& where, const std::string& name, std::uint64_t sequence) const;
  std::string add_workload(ValidationWorkload workload, const std::string& gpu);
  void add_system(const YamlValue& where, const std::string& gpu);

  const std::string& file_;
  ValidationFile& result_;
  FigureReader figures_;
  std::map<std::string, YAML::Node> models_;
  // What has been generated already, by its options and system, and the workload's name.
  std::map<std::pair<GenerateSettings, std::string>, std::string> workloads_;
};

}  // namespace tencache
