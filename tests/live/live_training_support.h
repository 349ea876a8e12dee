// What the tests of training share: small configurations, machines, and comparing weights bit by bit.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "executor/torch/train.h"

namespace tencache::training_test {

namespace fs = std::filesystem;

// Short sequences: most of the memory is parameters, gradients and optimizer states, and a step is quick.
inline TrainingConfig five_million_parameters() {
  TrainingConfig config;
  config.name = "gpt-test";
  config.layers = 7;
  config.width = 256;
  config.heads = 8;
  config.context = 16;
  config.batch = 4;
  config.seed = 11;
  config.sub_group_parameters = 200'000;
  return config;
}

inline TrainingConfig tiny() {
  TrainingConfig config = five_million_parameters();
  config.layers = 2;
  config.width = 64;
  config.sub_group_parameters = 20'000;
  return config;
}

inline TextData text_for(const TrainingConfig& config) {
  return TextData(read_text(TENCACHE_SOURCE_DIR "/configs/training/text.txt"), config.batch, config.context,
                  config.seed);
}

class Folder {
 public:
  Folder() : path_(fs::path(testing::TempDir()) / ("tencache-training-" + std::to_string(getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

inline Tier tier(const char* name, TierKind kind, Bytes capacity) {
  Tier tier;
  tier.name = name;
  tier.kind = kind;
  tier.capacity = capacity;
  tier.granularity = 4 * KiB;
  return tier;
}

inline Link link(const char* name, TierId from, TierId to) {
  Link link;
  link.name = name;
  link.from = from;
  link.to = to;
  link.bandwidth = 10'000'000'000;
  return link;
}

// All of it is taken at the start, which costs time: room for everything alive, and half as much again.
inline MachineSpec with_cpu_memory_behind(Bytes gpu_bytes) {
  MachineSpec machine;
  machine.name = "cpu-behind";
  machine.tiers = {tier("gpu", TierKind::gpu, gpu_bytes), tier("cpu", TierKind::cpu, 160 * MiB)};
  machine.links = {link("h2d", 1, 0), link("d2h", 0, 1)};
  machine.initial_tier = 0;
  machine.cpu.adam_parameters_per_second = 1e8;
  machine.validate();
  return machine;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !a.empty() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace tencache::training_test
