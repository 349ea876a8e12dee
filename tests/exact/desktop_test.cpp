// Machines without a file: desktops around a card, this computer as /proc and /sys describe it, what options change.
#include "configs/desktop.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "configs/gpu_yaml.h"
#include "configs/machine_overrides.h"
#include "configs/machine_yaml.h"
#include "configs/model_yaml.h"
#include "core/error.h"
#include "core/names.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tencache {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

Link link_of(const MachineSpec& machine, const std::string& name) {
  for (const Link& link : machine.links) {
    if (link.name == name) return link;
  }
  ADD_FAILURE() << machine.name << " has no link " << name;
  return {};
}

TEST(Names, AreFoundAsPeopleWriteThem) {
  const std::vector<std::string> valid{"rtx-4090", "rtx-4080", "rtx-4080-super", "h100", "llama-3-8b"};
  EXPECT_EQ(match_name("RTX4090", valid), "rtx-4090");
  EXPECT_EQ(match_name("meta-llama/Llama-3-8B", valid), "llama-3-8b");
  EXPECT_FALSE(match_name("rtx-409", valid));
  EXPECT_FALSE(match_name("", valid));
  EXPECT_FALSE(match_name("a100", {"a-100", "a1-00"})) << "two are meant";
  EXPECT_THAT(nearest_names("rtx-4008", valid), ElementsAre("rtx-4080", "rtx-4090"))
      << "neighbours that changed places: 1";
  EXPECT_THAT(valid_names("h10", {"a", "h100"}, ""), HasSubstr("valid names are a, h100"));
  const std::vector<std::string> many(20, "abcdefgh");
  EXPECT_THAT(valid_names("zzzz", many, "`tencache x`"), HasSubstr("`tencache x` lists all 20"));
}

TEST(Names, OfModelsAndGpus) {
  EXPECT_EQ(read_model("meta-llama/Llama-3.1-8B").name, "llama-3.1-8b");
  EXPECT_EQ(read_model("Qwen/Qwen3-32B").name, "qwen3-32b");
  EXPECT_THAT(error_of([] { read_model("meta-llama/Llama-9-8B"); }),
              AllOf(HasSubstr("unknown model"), HasSubstr("nearest")));
  EXPECT_THAT(error_of([] { read_model("./no/config.json"); }), Not(HasSubstr("unknown model"))) << "a path";
  EXPECT_EQ(read_gpu("RTX 5090").name, "rtx-5090");
  EXPECT_THAT(error_of([] { read_gpu("rtx-5900"); }), AllOf(HasSubstr("rtx-5090"), HasSubstr("`tencache gpus`")));
}

// Every shipped model has as many parameters as it says.
TEST(Names, NewModelsAddUp) {
  for (const ModelDescription& model : list_models()) {
    if (model.published_parameters == 0) continue;
    EXPECT_EQ(parameter_count(model, usual_head(model)), model.published_parameters) << model.name;
  }
}

TEST(Desktops, EveryCardHasOne) {
  std::size_t cards = 0;
  for (const auto& [gpu, host] : list_hosted_gpus()) {
    if (host.empty()) continue;
    ++cards;
    const std::string& card = gpu.name;
    const MachineSpec machine = read_machine(card);
    EXPECT_EQ(machine.name, card);
    EXPECT_EQ(machine.gpu, card);
    EXPECT_LT(machine.tiers.front().capacity, gpu.memory) << card;
    EXPECT_GE(machine.tiers.front().capacity, gpu.memory / 2) << card;
    const bool unified = host == "apple" || host == "unified";
    EXPECT_EQ(machine.tier_of(Device::cpu) == no_tier, unified) << card;
    for (const Fact& fact : machine.facts) {
      EXPECT_FALSE(fact.source.empty()) << card << " " << fact.path;
      const bool of_the_card = fact.path == "tiers.gpu.capacity";
      EXPECT_TRUE(of_the_card || fact.confidence == "estimated") << card << " " << fact.path << ": all else is assumed";
    }
  }
  EXPECT_GE(cards, 50u);
  EXPECT_EQ(read_machine("4090").name, "rtx-4090");
  EXPECT_EQ(link_of(read_machine("rtx-4060-ti-16g"), "h2d").bandwidth, *pcie_bandwidth("pcie4x8"));
  EXPECT_THAT(error_of([] { read_machine("rtx-5900"); }), AllOf(HasSubstr("unknown machine"), HasSubstr("rtx-5090")));
}

// No figure of a GPU is without a source, none is said to be more than it is, and the rates of tensor cores have the
// origin of their own.
TEST(Names, OfGpusHaveTheirOrigin) {
  for (const GpuSpec& gpu : list_gpus()) {
    for (const Fact& fact : gpu.facts) {
      EXPECT_FALSE(fact.source.empty()) << gpu.name << " " << fact.path;
      EXPECT_THAT(fact.source, Not(HasSubstr("remembered"))) << gpu.name << " " << fact.path;
    }
  }
  const std::string text =
      "gpus:\n  - {name: x, kernels: k, host: pcie4x8, multiprocessors: 1, cache: 1MiB, memory: 8GiB,\n"
      "     memory_bandwidth: 100GB/s, fp32_tflops: 10, source: a list, confidence: published, fp16_tflops: 20,\n"
      "     tensor: {source: twice, confidence: estimated}}\n";
  const GpuSpec gpu = parse_gpus(text, "gpus.yaml").front();
  const auto confidence = [&](const std::string& path) {
    return std::ranges::find(gpu.facts, path, &Fact::path)->confidence;
  };
  EXPECT_EQ(confidence("fp32_tflops"), "published");
  EXPECT_EQ(confidence("fp16_tflops"), "estimated");
  std::string none = text;
  none.replace(none.find("source: twice, "), 15, "");
  EXPECT_THAT(error_of([&] { parse_gpus(none, "gpus.yaml"); }), AllOf(HasSubstr("gpus.yaml"), HasSubstr("source")));
}

TEST(Desktops, PcieRates) {
  EXPECT_NEAR(static_cast<double>(*pcie_bandwidth("pcie4x16")), 24.7e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(*pcie_bandwidth("pcie3x8")), 6.18e9, 0.05e9);
  for (const char* text : {"pcie", "pcie4", "pcie4x", "pcie4x17", "pcie7x16", "pcie0x4", "pcie4x-1", "nvlink"}) {
    EXPECT_FALSE(pcie_bandwidth(text)) << text;
  }
}

TEST(Desktops, AFileMayBuildOnOne) {
  const MachineSpec mine = parse_machine(
      "name: mine\nbase: rtx-3090\nranks: 2\ntiers: {cpu: {capacity: 131GiB}}\nprice: null\n", "mine.yaml");
  EXPECT_EQ(mine.rank_count(), 2u);
  EXPECT_EQ(mine.tiers[mine.tier_of(Device::cpu)].capacity, 64 * GiB) << "(131 − 3) ÷ 2";
  EXPECT_EQ(mine.gpu, "rtx-3090");
}

TEST(Desktops, ChangesOfOptions) {
  MachineSpec machine = read_machine("rtx-3090");
  const MachineSpec before = machine;
  const TierId cpu = machine.tier_of(Device::cpu);
  override_gpus(machine, "--gpus", "2");
  override_link(machine, "--link", "pcie3x8");
  override_nvme(machine, "--nvme", "3GB/s,2GB/s");
  ASSERT_EQ(machine.rank_count(), 2u);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const MachineSpec& one = machine.of_rank(rank);
    EXPECT_EQ(one.tiers.front().capacity, before.tiers.front().capacity);
    EXPECT_EQ(one.tiers[cpu].capacity, before.tiers[cpu].capacity / 2);
    EXPECT_DOUBLE_EQ(one.cpu.adam_parameters_per_second, before.cpu.adam_parameters_per_second / 2);
    EXPECT_EQ(link_of(one, "d2h").bandwidth, *pcie_bandwidth("pcie3x8"));
    EXPECT_EQ(link_of(one, "nvme_read").bandwidth, 3'000'000'000u);
    EXPECT_EQ(link_of(one, "nvme_write").bandwidth, 2'000'000'000u);
    for (std::size_t i = 0; i < one.resources.size(); ++i) {
      EXPECT_EQ(one.resources[i].shared, machine.resources[i].shared) << "all are the computer's";
      EXPECT_NE(one.resources[i].shared, none) << one.resources[i].name;
      if (one.resources[i].name == "nvme_writes") {
        EXPECT_EQ(one.resources[i].bandwidth, 2'000'000'000u);
      }
    }
  }
  machine.validate();
  // Where no CPU memory lies between, SSDs are the computer's all the same, and each GPU's own bus stays its own.
  MachineSpec direct = parse_machine(
      "name: direct\ninitial_tier: nvme\n"
      "tiers: [{name: gpu, kind: gpu, capacity: 1GiB}, {name: nvme, kind: nvme, capacity: 8GiB}]\n"
      "resources: [{name: bus, bandwidth: 9GB/s}, {name: ssd, bandwidth: 5GB/s}]\n"
      "links:\n"
      "  - {name: nvme_read, from: nvme, to: gpu, bandwidth: 4GB/s, uses: [ssd]}\n"
      "  - {name: nvme_write, from: gpu, to: nvme, bandwidth: 3GB/s, uses: [ssd]}\n"
      "gpu: {name: a100-40g, uses: [bus]}\n",
      "direct.yaml");
  override_gpus(direct, "--gpus", "2");
  const auto shared = [&](const std::string& name) {
    return std::ranges::find(direct.resources, name, &Resource::name)->shared != none;
  };
  EXPECT_TRUE(shared("ssd"));
  EXPECT_TRUE(shared("nvme_reads"));
  EXPECT_FALSE(shared("bus"));
  // Four of a machine's eight: its CPU memory is divided by four.
  MachineSpec large = read_machine("p4d.24xlarge");
  const Bytes eighth = large.tiers[1].capacity;
  override_gpus(large, "--gpus", "4");
  EXPECT_EQ(large.rank_count(), 4u);
  EXPECT_EQ(large.of_rank(3).tiers[1].capacity, 2 * eighth);
  EXPECT_THAT(error_of([&] { override_link(machine, "--link", "pcie9x8"); }), HasSubstr("pcie4x8"));
  EXPECT_THAT(error_of([&] { override_gpus(machine, "--gpus", "0"); }), HasSubstr("from 1 to 64"));
  MachineSpec apple = read_machine("m4-max");
  EXPECT_THAT(error_of([&] { override_link(apple, "--link", "pcie4x8"); }), HasSubstr("no link between GPU and CPU"));
}

class SystemTree : public ::testing::Test {
 protected:
  ~SystemTree() override { std::filesystem::remove_all(root_); }
  void write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = root_ / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  const std::filesystem::path root_ =
      std::filesystem::temp_directory_path() / ("tencache_desktop_test." + std::to_string(getpid()));
};

TEST_F(SystemTree, ThisComputerIsReadFromItsSystem) {
  for (const char* bus : {"0000:01:00.0", "0000:02:00.0"}) {
    write(std::string("proc/driver/nvidia/gpus/") + bus + "/information",
          std::string("Model: \t\t NVIDIA GeForce RTX 3090\nIRQ:   \t\t 70\nBus Location: \t ") + bus + "\n");
    write(std::string("sys/bus/pci/devices/") + bus + "/max_link_speed", "16.0 GT/s PCIe\n");
    write(std::string("sys/bus/pci/devices/") + bus + "/current_link_width", "8\n");
  }
  write("proc/meminfo", "MemTotal:       65536000 kB\nMemFree: 1 kB\n");
  write("proc/cpuinfo",
        "processor\t: 0\nphysical id\t: 0\ncore id\t\t: 0\n\nprocessor\t: 1\nphysical id\t: 0\ncore id\t\t: 0\n\n"
        "processor\t: 2\nphysical id\t: 0\ncore id\t\t: 1\n");
  write("sys/block/nvme0n1/size", "1953525168\n");
  const MachineText text = machine_of_system(root_.string());
  const MachineSpec machine = parse_machine(text.text, text.file);
  EXPECT_EQ(machine.name, "here");
  EXPECT_EQ(machine.gpu, "rtx-3090");
  EXPECT_EQ(machine.rank_count(), 2u);
  EXPECT_EQ(link_of(machine, "h2d").bandwidth, *pcie_bandwidth("pcie4x8"));
  EXPECT_EQ(machine.tiers[1].capacity, (65536000 * KiB - 3 * GiB) / 2);
  EXPECT_EQ(machine.tiers[2].capacity, 1953525168ull * 512 / 2);
  EXPECT_NEAR(machine.cpu.adam_parameters_per_second, 0.15e9, 1e6) << "two cores, a half each";

  std::filesystem::remove_all(root_ / "sys/block");
  const MachineText diskless = machine_of_system(root_.string());
  EXPECT_EQ(parse_machine(diskless.text, diskless.file).tiers.size(), 2u);
  std::filesystem::remove_all(root_ / "proc/driver");
  EXPECT_THAT(error_of([&] { machine_of_system(root_.string()); }), HasSubstr("--machine rtx-4090"));
}

TEST(Desktops, CpuFiguresFollowMemoryAndCores) {
  const CpuFigures desktop = cpu_figures(2, 5600, 8), server = cpu_figures(12, 4800, 96);
  EXPECT_NEAR(static_cast<double>(desktop.bandwidth), 0.6 * 2 * 5600e6 * 8, 1e6);
  EXPECT_DOUBLE_EQ(desktop.adam_parameters_per_second, 8 * 0.15e9) << "the cores decide";
  EXPECT_NEAR(server.adam_parameters_per_second, 0.6 * 12 * 4800e6 * 8 / 28, 1e6) << "the memory decides";
}

}  // namespace
}  // namespace tencache
