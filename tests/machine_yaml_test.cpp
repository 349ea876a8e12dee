// Machine files: what is shipped, what comes back after writing, and what is said about mistakes.
#include "configs/machine_yaml.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "core/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tencache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A valid file; tests replace parts of it. Line numbers matter.
const std::string valid =                                                                    // line
    "name: test\n"                                                                           // 1
    "gpu: a100-40g\n"                                                                        // 2
    "tiers:\n"                                                                               // 3
    "  - {name: gpu, kind: gpu, capacity: 40GiB, reserved: 1GiB}\n"                          // 4
    "  - {name: cpu, kind: cpu, capacity: 128GiB}\n"                                         // 5
    "resources:\n"                                                                           // 6
    "  - {name: pcie, bandwidth: 16GB/s}\n"                                                  // 7
    "links:\n"                                                                               // 8
    "  - {name: h2d, from: cpu, to: gpu, bandwidth: 12GB/s, latency: 10us, uses: [pcie]}\n"  // 9
    "  - {name: d2h, from: gpu, to: cpu, bandwidth: 12GB/s}\n"                               // 10
    "initial_tier: cpu\n"                                                                    // 11
    "cpu: {adam_parameters_per_second: 1.5e9}\n"                                             // 12
    "issue_ahead: 2\n";                                                                      // 13

std::string replaced(const std::string& what, const std::string& with) {
  std::string text = valid;
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), with);
}

std::string error_of(const std::string& text) {
  try {
    parse_machine(text, "m.yaml");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

void expect_equal(const MachineSpec& a, const MachineSpec& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.description, b.description);
  EXPECT_EQ(a.gpu, b.gpu);
  ASSERT_EQ(a.tiers.size(), b.tiers.size());
  for (std::size_t i = 0; i < a.tiers.size(); ++i) {
    EXPECT_EQ(a.tiers[i].name, b.tiers[i].name);
    EXPECT_EQ(a.tiers[i].kind, b.tiers[i].kind);
    EXPECT_EQ(a.tiers[i].capacity, b.tiers[i].capacity);
    EXPECT_EQ(a.tiers[i].granularity, b.tiers[i].granularity);
    EXPECT_EQ(a.tiers[i].directories, b.tiers[i].directories);
  }
  ASSERT_EQ(a.resources.size(), b.resources.size());
  for (std::size_t i = 0; i < a.resources.size(); ++i) {
    EXPECT_EQ(a.resources[i].name, b.resources[i].name);
    EXPECT_EQ(a.resources[i].bandwidth, b.resources[i].bandwidth);
  }
  ASSERT_EQ(a.links.size(), b.links.size());
  for (std::size_t i = 0; i < a.links.size(); ++i) {
    EXPECT_EQ(a.links[i].name, b.links[i].name);
    EXPECT_EQ(a.links[i].from, b.links[i].from);
    EXPECT_EQ(a.links[i].to, b.links[i].to);
    EXPECT_EQ(a.links[i].bandwidth, b.links[i].bandwidth);
    EXPECT_EQ(a.links[i].latency_ns, b.links[i].latency_ns);
    EXPECT_EQ(a.links[i].uses, b.links[i].uses);
  }
  EXPECT_EQ(a.staging.tier, b.staging.tier);
  EXPECT_EQ(a.staging.count, b.staging.count);
  EXPECT_EQ(a.staging.bytes, b.staging.bytes);
  EXPECT_EQ(a.initial_tier, b.initial_tier);
  EXPECT_EQ(a.cpu_adam_parameters_per_second, b.cpu_adam_parameters_per_second);
  EXPECT_EQ(a.issue_ahead, b.issue_ahead);
  EXPECT_EQ(a.copies_in_flight, b.copies_in_flight);
  ASSERT_EQ(a.facts.size(), b.facts.size());
  for (std::size_t i = 0; i < a.facts.size(); ++i) {
    EXPECT_EQ(a.facts[i].path, b.facts[i].path);
    EXPECT_EQ(a.facts[i].source, b.facts[i].source);
    EXPECT_EQ(a.facts[i].confidence, b.facts[i].confidence);
    EXPECT_EQ(a.facts[i].retrieved, b.facts[i].retrieved);
  }
}

TEST(MachineYaml, ReadsEveryKey) {
  const MachineSpec machine = parse_machine(valid, "m.yaml");
  EXPECT_EQ(machine.file, "m.yaml");
  EXPECT_EQ(machine.gpu, "a100-40g");
  EXPECT_EQ(machine.tiers[0].capacity, 39 * GiB);  // 40 less 1 reserved
  EXPECT_EQ(machine.tiers[1].capacity, 128 * GiB);
  EXPECT_EQ(machine.links[0].bandwidth, 12'000'000'000u);
  EXPECT_EQ(machine.links[0].latency_ns, 10'000);
  EXPECT_EQ(machine.links[0].from, 1);
  EXPECT_EQ(machine.links[0].to, 0);
  EXPECT_THAT(machine.links[0].uses, ::testing::ElementsAre(0));
  EXPECT_EQ(machine.links[1].latency_ns, 0);
  EXPECT_EQ(machine.initial_tier, 1);
  EXPECT_EQ(machine.cpu_adam_parameters_per_second, 1.5e9);
  EXPECT_EQ(machine.issue_ahead, 2u);
  EXPECT_EQ(machine.copies_in_flight, 1u);
  EXPECT_TRUE(machine.facts.empty());
}

TEST(MachineYaml, KeepsWhereFiguresComeFrom) {
  const MachineSpec machine = parse_machine(replaced("bandwidth: 12GB/s, latency",
                                                     "bandwidth: {value: 12GB/s, source: 'a \"paper\": p. 3', "
                                                     "retrieved: 2026-07-01, confidence: published}, latency"),
                                            "m.yaml");
  ASSERT_EQ(machine.facts.size(), 1u);
  EXPECT_EQ(machine.facts[0].path, "links.h2d.bandwidth");
  EXPECT_EQ(machine.facts[0].source, "a \"paper\": p. 3");
  EXPECT_EQ(machine.facts[0].retrieved, "2026-07-01");
  EXPECT_EQ(machine.facts[0].confidence, "published");
  EXPECT_EQ(machine.links[0].bandwidth, 12'000'000'000u);
  expect_equal(machine, parse_machine(write_machine_yaml(machine), "again"));
}

TEST(MachineYaml, ShippedMachinesReadAndRoundTrip) {
  const std::vector<MachineSpec> machines = list_machines();
  std::vector<std::string> names;
  for (const MachineSpec& machine : machines) {
    SCOPED_TRACE(machine.file);
    names.push_back(machine.name);
    EXPECT_EQ(std::filesystem::path(machine.file).stem().string(), machine.name);
    expect_equal(machine, parse_machine(write_machine_yaml(machine), "again"));
    expect_equal(machine, read_machine(machine.name));
    expect_equal(machine, read_machine(machine.file));
  }
  for (const char* name : {"g10-a100", "10cache-l40s", "teraio-h100", "mlp-offload", "demo-small-gpu", "small-host"}) {
    EXPECT_THAT(names, ::testing::Contains(name));
  }
}

// Machines that stand for real ones say of each figure that decides a result where it comes from.
TEST(MachineYaml, ShippedFiguresHaveSources) {
  for (const MachineSpec& machine : list_machines()) {
    if (machine.gpu.empty()) continue;  // invented
    const auto sourced = [&](const std::string& path) {
      return std::any_of(machine.facts.begin(), machine.facts.end(),
                         [&](const Fact& fact) { return fact.path == path && !fact.source.empty(); });
    };
    for (const Tier& tier : machine.tiers) {
      EXPECT_TRUE(sourced("tiers." + tier.name + ".capacity")) << machine.name << " " << tier.name;
    }
    for (const Link& link : machine.links) {
      EXPECT_TRUE(sourced("links." + link.name + ".bandwidth")) << machine.name << " " << link.name;
    }
    EXPECT_TRUE(sourced("cpu.adam_parameters_per_second")) << machine.name;
  }
}

TEST(MachineYaml, G10IsItsPapersMachine) {
  const MachineSpec machine = read_machine("g10-a100");
  EXPECT_EQ(machine.tiers[0].capacity, 40 * GiB);
  EXPECT_EQ(machine.tiers[1].capacity, 128 * GiB);
  EXPECT_EQ(machine.tiers[2].capacity, unlimited);
  for (const Link& link : machine.links) {
    const bool ssd = machine.tiers[link.from].kind == TierKind::nvme || machine.tiers[link.to].kind == TierKind::nvme;
    EXPECT_EQ(link.bandwidth, ssd ? 3'200'000'000u : 15'754'000'000u) << link.name;
    EXPECT_EQ(link.latency_ns, 0);
    EXPECT_TRUE(link.from == 0 || link.to == 0) << link.name;
    ASSERT_EQ(link.uses.size(), 1u);  // SSD and CPU share a direction of PCIe
    EXPECT_EQ(machine.resources[link.uses[0]].name, link.to == 0 ? "pcie_h2d" : "pcie_d2h");
  }
  EXPECT_EQ(machine.tiers[machine.initial_tier].kind, TierKind::nvme);
}

MachineSpec random_machine(std::mt19937_64& random) {
  const auto below = [&](std::uint64_t n) { return random() % n; };
  MachineSpec machine;
  machine.name = "m" + std::to_string(below(1000));
  if (below(2)) machine.description = "line\nbreak, \"quotes\", back\\slash: # é \x01";
  if (below(2)) machine.gpu = "h100";
  const std::size_t tiers = 2 + below(3);
  for (std::size_t i = 0; i < tiers; ++i) {
    Tier tier;
    tier.name = "t" + std::to_string(i);
    tier.kind = i == 0 ? TierKind::gpu : i == 1 ? TierKind::cpu : TierKind::nvme;
    tier.capacity = i > 0 && below(3) == 0 ? unlimited : 1 + below(1ull << 50);
    tier.granularity = 1ull << below(22);
    if (tier.kind == TierKind::nvme && below(2)) tier.directories = {"/a b/\"c\"", "d: e"};
    machine.tiers.push_back(tier);
    if (below(2)) {
      machine.facts.push_back(
          {"tiers." + tier.name + ".capacity", "a: \"b\"\n'c'", "estimated", below(2) ? "2026-01-02" : ""});
    }
  }
  const std::size_t resources = below(3);
  for (std::size_t i = 0; i < resources; ++i) {
    machine.resources.push_back({"r" + std::to_string(i), below(4) == 0 ? unlimited : 1 + below(1ull << 40)});
  }
  for (std::size_t from = 0; from < tiers; ++from) {
    for (std::size_t to = 0; to < tiers; ++to) {
      if (from == to) continue;
      Link link;
      link.name = "l" + std::to_string(from) + std::to_string(to);
      link.from = static_cast<TierId>(from);
      link.to = static_cast<TierId>(to);
      link.bandwidth = 1 + below(1ull << 40);
      link.latency_ns = below(2) ? static_cast<Nanoseconds>(below(1ull << 40)) : 0;
      for (std::size_t r = 0; r < resources; ++r) {
        if (below(2)) link.uses.push_back(static_cast<std::uint8_t>(r));
      }
      machine.links.push_back(link);
    }
  }
  if (below(2)) machine.staging = {1, static_cast<std::uint32_t>(1 + below(100)), 1 + below(1ull << 30)};
  machine.initial_tier = static_cast<TierId>(1 + below(tiers - 1));
  if (below(2)) machine.cpu_adam_parameters_per_second = static_cast<double>(1 + below(1ull << 53)) / 7.0;
  machine.issue_ahead = static_cast<std::uint32_t>(1 + below(5));
  machine.copies_in_flight = static_cast<std::uint32_t>(1 + below(5));
  return machine;
}

TEST(MachineYaml, RandomMachinesRoundTrip) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 300; ++i) {
    const MachineSpec machine = random_machine(random);
    const std::string text = write_machine_yaml(machine);
    SCOPED_TRACE(text);
    expect_equal(machine, parse_machine(text, "again"));
    if (HasFailure()) return;
  }
}

struct Mistake {
  const char* what;
  const char* with;
  const char* place;    // "m.yaml:line:"
  const char* message;  // a part of it
};

TEST(MachineYaml, MistakesAreNamedWithTheirLine) {
  const std::vector<Mistake> mistakes = {
      {"gpu: a100-40g", "gup: a100-40g",
       "m.yaml:2:", "unknown key 'gup' in a machine; valid keys are name, description"},
      {"reserved: 1GiB", "reservd: 1GiB", "m.yaml:4:", "valid keys are name, kind, capacity, reserved, granularity"},
      {"latency: 10us", "delay: 10us", "m.yaml:9:", "valid keys are name, from, to, bandwidth, latency, uses"},
      {"{adam_parameters_per_second: 1.5e9}", "{adam: 1}", "m.yaml:12:", "valid keys are adam_parameters_per_second"},
      {"capacity: 40GiB", "capacity: 40Gib", "m.yaml:4:", "tiers.gpu.capacity: not a size: '40Gib'"},
      {"capacity: 40GiB", "capacity: [40]", "m.yaml:4:", "tiers.gpu.capacity: expected a value, found a list"},
      {"capacity: 40GiB", "capacity: {value: 40GiB}", "m.yaml:4:", "key 'confidence' is missing"},
      {"capacity: 40GiB", "capacity: {value: 40GiB, confidence: sure}", "m.yaml:4:", "published, measured, estimated"},
      {"capacity: 40GiB", "capacity: {valu: 40GiB}",
       "m.yaml:4:", "valid keys are value, source, retrieved, confidence"},
      {"capacity: 40GiB", "capacity: 0", "m.yaml:4:", "reserved: leaves nothing"},
      {"capacity: 128GiB", "capacity: 0", "m.yaml:5:", "must be above 0"},
      {"capacity: 128GiB", "capacity: -1", "m.yaml:5:", "not a size"},
      {"capacity: 128GiB", "", "m.yaml:5:", "key 'capacity' is missing in a tier"},
      {"capacity: 128GiB", "capacity: 1GiB, granularity: 3", "m.yaml:5:", "power of two"},
      {"capacity: 128GiB", "capacity: 1GiB, directories: [/tmp]", "m.yaml:5:", "only tiers of kind nvme"},
      {"reserved: 1GiB", "reserved: 41GiB", "m.yaml:4:", "leaves nothing"},
      {"kind: gpu", "kind: tpu", "m.yaml:4:", "unknown kind 'tpu'; valid are gpu, cpu, nvme"},
      {"name: cpu, kind", "name: gpu, kind", "m.yaml:5:", "name of a tier already"},
      {"name: h2d", "name: gpu", "m.yaml:9:", "name of a tier already"},
      {"name: d2h", "name: h2d", "m.yaml:10:", "name of a link already"},
      {"name: test", "name: a b", "m.yaml:1:", "is no name"},
      {"from: cpu, to: gpu", "from: ssd, to: gpu", "m.yaml:9:", "there is no tier 'ssd'; valid are gpu, cpu"},
      {"from: cpu, to: gpu", "from: gpu, to: gpu", "m.yaml:9:", "joins a tier with itself"},
      {"from: gpu, to: cpu", "from: cpu, to: gpu", "m.yaml:10:", "is there already"},
      {"bandwidth: 12GB/s, latency", "bandwidth: fast, latency", "m.yaml:9:", "not a bandwidth: 'fast'"},
      {"bandwidth: 12GB/s, latency", "bandwidth: 0, latency", "m.yaml:9:", "must be above 0"},
      {"latency: 10us", "latency: soon", "m.yaml:9:", "not a time: 'soon'"},
      {"uses: [pcie]", "uses: [pci]", "m.yaml:9:", "there is no resource 'pci'; valid are pcie"},
      {"uses: [pcie]", "uses: pcie", "m.yaml:9:", "expected a list, found 'pcie'"},
      {"uses: [pcie]", "uses: [pcie, pcie]", "m.yaml:9:", "stands twice"},
      {"initial_tier: cpu", "initial_tier: disk", "m.yaml:11:", "there is no tier 'disk'"},
      {"issue_ahead: 2", "issue_ahead: two", "m.yaml:13:", "not a whole number"},
      {"issue_ahead: 2", "issue_ahead: 0", "m.yaml:13:", "from 1 to"},
      {"issue_ahead: 2", "gpu: h100", "m.yaml:13:", "key 'gpu' stands twice"},
      {"issue_ahead: 2", "staging: {tier: cpu, count: 4}", "m.yaml:13:", "key 'bytes' is missing in staging"},
      {"1.5e9", "fast", "m.yaml:12:", "not a number above 0"},
      {"1.5e9", "-1", "m.yaml:12:", "not a number above 0"},
      {"issue_ahead: 2", "issue_ahead: [", "m.yaml:1", "not valid YAML"},
      {"issue_ahead: 2", "\tissue_ahead: 2", "m.yaml:1", "not valid YAML"},
  };
  for (const Mistake& mistake : mistakes) {
    EXPECT_THAT(error_of(replaced(mistake.what, mistake.with)),
                AllOf(HasSubstr(mistake.place), HasSubstr(mistake.message)))
        << mistake.with;
  }
}

TEST(MachineYaml, BrokenFilesAreErrors) {
  EXPECT_THAT(error_of(""), HasSubstr("expected a map"));
  EXPECT_THAT(error_of("- a\n- b\n"), HasSubstr("expected a map with the keys of a machine, found a list"));
  EXPECT_THAT(error_of("just text"), HasSubstr("expected a map"));
  EXPECT_THAT(error_of("name: x\n"), HasSubstr("key 'tiers' is missing"));
  EXPECT_THAT(error_of("name: x\ntiers: []\n"), HasSubstr("m.yaml"));
  EXPECT_THAT(error_of("name: x\ntiers:\n  - {name: cpu, kind: cpu, capacity: 1GiB}\n"), HasSubstr("m.yaml"));
  EXPECT_THAT(error_of(std::string("\0\x01\x02\xff\xfe binary", 12)), HasSubstr("m.yaml"));
  // Cut anywhere, a file is an error or another machine, never a crash.
  for (std::size_t length = 0; length < valid.size(); ++length) error_of(valid.substr(0, length));
}

TEST(MachineYaml, UnknownMachineListsTheNames) {
  try {
    read_machine("g10-a1000");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("unknown machine 'g10-a1000'"), HasSubstr("10cache-l40s, demo-small-gpu, g10-a100")));
  }
  EXPECT_THROW(read_machine("./no-such-file.yaml"), Error);
  EXPECT_THROW(read_machine(::testing::TempDir()), Error);
}

TEST(MachineYaml, AnotherFolderOfConfigs) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "machine_yaml_test_configs";
  std::filesystem::create_directories(folder / "machines");
  std::ofstream(folder / "machines" / "mine.yaml") << replaced("name: test", "name: mine");
  ::setenv("TENCACHE_CONFIGS", folder.c_str(), 1);
  const std::vector<MachineSpec> machines = list_machines();
  EXPECT_THROW(read_machine("g10-a100"), Error);
  ::unsetenv("TENCACHE_CONFIGS");
  std::filesystem::remove_all(folder);
  ASSERT_EQ(machines.size(), 1u);
  EXPECT_EQ(machines[0].name, "mine");
}

}  // namespace
}  // namespace tencache
