// Machine files: what is shipped, what comes back after writing, and what is said about mistakes.
#include "configs/machine_yaml.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "configs/machine_overrides.h"
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

// Resources are the same where the same ranks share them, whatever number they go by.
std::uint32_t sharing_ranks(const MachineSpec& machine, std::size_t resource) {
  if (machine.resources[resource].shared == none) return 1;
  std::uint32_t count = 0;
  for (std::size_t rank = 0; rank < machine.rank_count(); ++rank) {
    count += machine.of_rank(rank).resources[resource].shared == machine.resources[resource].shared ? 1u : 0u;
  }
  return count;
}

void expect_equal(const MachineSpec& a, const MachineSpec& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.lane_uses, b.lane_uses);
  EXPECT_EQ(a.host.per_module_ns, b.host.per_module_ns);
  EXPECT_EQ(a.host.per_transfer_ns, b.host.per_transfer_ns);
  EXPECT_EQ(a.host.lock_bandwidth, b.host.lock_bandwidth);
  EXPECT_EQ(a.run_ahead, b.run_ahead);
  EXPECT_EQ(a.price.on_demand, b.price.on_demand);
  EXPECT_EQ(a.price.spot, b.price.spot);
  EXPECT_EQ(a.price.currency, b.price.currency);
  ASSERT_EQ(a.rank_count(), b.rank_count());
  for (std::size_t i = 0; i < a.other_ranks.size(); ++i) {
    SCOPED_TRACE("rank " + std::to_string(i + 1));
    expect_equal(a.other_ranks[i], b.other_ranks[i]);
  }
  EXPECT_EQ(a.description, b.description);
  EXPECT_EQ(a.gpu, b.gpu);
  ASSERT_EQ(a.tiers.size(), b.tiers.size());
  for (std::size_t i = 0; i < a.tiers.size(); ++i) {
    EXPECT_EQ(a.tiers[i].name, b.tiers[i].name);
    EXPECT_EQ(a.tiers[i].kind, b.tiers[i].kind);
    EXPECT_EQ(a.tiers[i].capacity, b.tiers[i].capacity);
    EXPECT_EQ(a.tiers[i].granularity, b.tiers[i].granularity);
    EXPECT_EQ(a.tiers[i].directories, b.tiers[i].directories);
    EXPECT_EQ(a.tiers[i].io_block_bytes, b.tiers[i].io_block_bytes);
    EXPECT_EQ(a.tiers[i].io_depth, b.tiers[i].io_depth);
    EXPECT_EQ(a.tiers[i].checksums, b.tiers[i].checksums);
    EXPECT_EQ(a.tiers[i].allocator, b.tiers[i].allocator);
    EXPECT_EQ(a.tiers[i].bandwidth, b.tiers[i].bandwidth);
    EXPECT_EQ(a.tiers[i].rated_written_bytes, b.tiers[i].rated_written_bytes);
    EXPECT_EQ(a.tiers[i].expand_bandwidth, b.tiers[i].expand_bandwidth);
    EXPECT_EQ(a.tiers[i].over_time, b.tiers[i].over_time);
    EXPECT_EQ(a.tiers[i].allocation.per_call_ns, b.tiers[i].allocation.per_call_ns);
    EXPECT_EQ(a.tiers[i].allocation.bandwidth, b.tiers[i].allocation.bandwidth);
    EXPECT_EQ(a.tiers[i].allocation.power_of_two, b.tiers[i].allocation.power_of_two);
  }
  ASSERT_EQ(a.resources.size(), b.resources.size());
  for (std::size_t i = 0; i < a.resources.size(); ++i) {
    EXPECT_EQ(a.resources[i].name, b.resources[i].name);
    EXPECT_EQ(a.resources[i].bandwidth, b.resources[i].bandwidth);
    EXPECT_EQ(sharing_ranks(a, i), sharing_ranks(b, i));
  }
  ASSERT_EQ(a.links.size(), b.links.size());
  for (std::size_t i = 0; i < a.links.size(); ++i) {
    EXPECT_EQ(a.links[i].name, b.links[i].name);
    EXPECT_EQ(a.links[i].from, b.links[i].from);
    EXPECT_EQ(a.links[i].to, b.links[i].to);
    EXPECT_EQ(a.links[i].bandwidth, b.links[i].bandwidth);
    EXPECT_EQ(a.links[i].latency_ns, b.links[i].latency_ns);
    EXPECT_EQ(a.links[i].uses, b.links[i].uses);
    EXPECT_EQ(a.links[i].queue_depth, b.links[i].queue_depth);
    EXPECT_EQ(a.links[i].paged_efficiency, b.links[i].paged_efficiency);
    EXPECT_EQ(a.links[i].pageable_bandwidth, b.links[i].pageable_bandwidth);
    EXPECT_EQ(a.links[i].devices, b.links[i].devices);
    EXPECT_EQ(a.links[i].stripe_bytes, b.links[i].stripe_bytes);
    EXPECT_EQ(a.links[i].sustained_bandwidth, b.links[i].sustained_bandwidth);
    EXPECT_EQ(a.links[i].burst_bytes, b.links[i].burst_bytes);
  }
  EXPECT_EQ(a.staging.tier, b.staging.tier);
  EXPECT_EQ(a.staging.count, b.staging.count);
  EXPECT_EQ(a.staging.bytes, b.staging.bytes);
  EXPECT_EQ(a.initial_tier, b.initial_tier);
  EXPECT_EQ(a.cpu.adam_parameters_per_second, b.cpu.adam_parameters_per_second);
  EXPECT_DOUBLE_EQ(a.cpu.flops_per_second, b.cpu.flops_per_second);
  EXPECT_EQ(a.cpu.bandwidth, b.cpu.bandwidth);
  EXPECT_EQ(a.issue_ahead, b.issue_ahead);
  EXPECT_EQ(a.copies_in_flight, b.copies_in_flight);
  ASSERT_EQ(a.facts.size(), b.facts.size());
  for (std::size_t i = 0; i < a.facts.size(); ++i) {
    EXPECT_EQ(a.facts[i].path, b.facts[i].path);
    EXPECT_EQ(a.facts[i].source, b.facts[i].source);
    EXPECT_EQ(a.facts[i].confidence, b.facts[i].confidence);
    EXPECT_EQ(a.facts[i].spread, b.facts[i].spread);
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
  EXPECT_EQ(machine.cpu.adam_parameters_per_second, 1.5e9);
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
  for (const char* name : {"g10-a100", "10cache-l40s", "teraio-h100", "mlp-offload", "demo-small-gpu", "small-host",
                           "g5.xlarge", "p4d.24xlarge", "NC24ads_A100_v4", "a2-highgpu-1g", "gpu_1x_gh200"}) {
    EXPECT_THAT(names, ::testing::Contains(name));
  }
}

TEST(MachineYaml, CloudMachinesShareWhatTheirHostHas) {
  const MachineSpec one = read_machine("g4dn.xlarge");
  EXPECT_EQ(one.rank_count(), 1u);
  EXPECT_EQ(one.price.on_demand, 0);                  // stands in a price table
  EXPECT_EQ(one.links[0].bandwidth, 6'200'000'000u);  // PCIe 3 x8
  const MachineSpec eight = read_machine("p4d.24xlarge");
  ASSERT_EQ(eight.rank_count(), 8u);
  EXPECT_EQ(eight.tiers[1].capacity, (1152 - 3) * GiB / 8);
  const auto resource = [&](std::size_t rank, const std::string& name) {
    for (const Resource& candidate : eight.of_rank(rank).resources) {
      if (candidate.name == name) return candidate;
    }
    return Resource{};
  };
  EXPECT_EQ(resource(0, "nvme_reads").bandwidth, 16'300'000'000u);
  EXPECT_EQ(resource(0, "nvme_reads").shared, resource(7, "nvme_reads").shared);
  EXPECT_EQ(resource(0, "switch_h2d").shared, resource(1, "switch_h2d").shared);
  EXPECT_NE(resource(1, "switch_h2d").shared, resource(2, "switch_h2d").shared);
  EXPECT_NE(resource(0, "switch_h2d").shared, none);
  const MachineSpec four = read_machine("mlp-offload-4gpu"), quarter = read_machine("mlp-offload");
  EXPECT_EQ(four.tiers[1].capacity, quarter.tiers[1].capacity);
  EXPECT_EQ(four.of_rank(3).cpu.adam_parameters_per_second, quarter.cpu.adam_parameters_per_second);
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

const Fact* fact_of(const MachineSpec& machine, const std::string& path) {
  const auto found = std::find_if(machine.facts.begin(), machine.facts.end(),
                                  [&](const Fact& candidate) { return candidate.path == path; });
  return found == machine.facts.end() ? nullptr : &*found;
}

TEST(MachineYaml, ReadsStorageAllocationHostAndPrice) {
  const MachineSpec machine = parse_machine(
      "name: test\n"
      "gpu: {name: l40s, uses: [hbm]}\n"
      "tiers:\n"
      "  - {name: gpu, kind: gpu, capacity: 40GiB}\n"
      "  - {name: cpu, kind: cpu, capacity: 1TiB,\n"
      "     allocation: {per_call: 10us, bandwidth: 2.8GB/s, round: power_of_two}}\n"
      "  - {name: ssd, kind: nvme, capacity: unlimited}\n"
      "resources: [{name: hbm, bandwidth: 800GB/s}, {name: dram, bandwidth: 100GB/s}]\n"
      "links:\n"
      "  - {name: h2d, from: cpu, to: gpu, bandwidth: 12GB/s, uses: [dram]}\n"
      "  - {name: read, from: ssd, to: cpu, bandwidth: 8GB/s, queue_depth: 32, devices: 4, stripe: 512KiB}\n"
      "  - {name: write, from: cpu, to: ssd, bandwidth: 6GB/s, sustained: 2GB/s, burst: 100GB}\n"
      "initial_tier: cpu\n"
      "staging: {tier: cpu, count: 4, bytes: 1MiB}\n"
      "cpu: {adam_parameters_per_second: 2e9, uses: [dram]}\n"
      "host: {per_module: 40us, per_transfer: {value: 30us, confidence: measured, spread: 0.25}, page_lock: 8GB/s}\n"
      "run_ahead: {ops: 256, time: 3ms}\n"
      "price: {on_demand: {value: 1.006, source: a list, retrieved: 2026-07, confidence: published}, spot: 0.5}\n",
      "m.yaml");
  EXPECT_EQ(machine.gpu, "l40s");
  EXPECT_EQ(machine.tiers[1].allocation.per_call_ns, 10'000);
  EXPECT_EQ(machine.tiers[1].allocation.bandwidth, 2'800'000'000u);
  EXPECT_TRUE(machine.tiers[1].allocation.power_of_two);
  EXPECT_EQ(machine.tiers[2].allocation.bandwidth, 0u);
  EXPECT_THAT(machine.lane_uses[0], ::testing::ElementsAre(0));
  EXPECT_THAT(machine.lane_uses[1], ::testing::ElementsAre(1));
  EXPECT_EQ(machine.links[1].queue_depth, 32u);
  EXPECT_EQ(machine.links[1].devices, 4u);
  EXPECT_EQ(machine.links[1].stripe_bytes, 512 * KiB);
  EXPECT_EQ(machine.links[2].sustained_bandwidth, 2'000'000'000u);
  EXPECT_EQ(machine.links[2].burst_bytes, 100'000'000'000u);
  EXPECT_EQ(machine.host.per_module_ns, 40'000);
  EXPECT_EQ(machine.run_ahead.ops, 256u);
  EXPECT_EQ(machine.run_ahead.time_ns, 3'000'000);
  EXPECT_EQ(machine.host.per_transfer_ns, 30'000);
  EXPECT_EQ(machine.host.lock_bandwidth, 8'000'000'000u);
  ASSERT_NE(fact_of(machine, "host.per_transfer"), nullptr);
  EXPECT_EQ(fact_of(machine, "host.per_transfer")->spread, 0.25);
  EXPECT_EQ(machine.price.on_demand, 1.006);
  EXPECT_EQ(machine.price.spot, 0.5);
  EXPECT_EQ(machine.price.currency, "USD");
  ASSERT_NE(fact_of(machine, "price.on_demand"), nullptr);
  EXPECT_EQ(fact_of(machine, "price.on_demand")->retrieved, "2026-07");
  expect_equal(machine, parse_machine(write_machine_yaml(machine), "again"));
}

TEST(MachineYaml, RequestsASecondLimitABandwidth) {
  const auto link = [](const std::string& keys) {
    return parse_machine(replaced("bandwidth: 12GB/s, latency: 10us, uses: [pcie]", keys), "m.yaml");
  };
  // Alone they are a lower bound of the streaming rate, however well they are known themselves.
  const MachineSpec alone =
      link("iops: {value: 42500, source: a list, retrieved: 2026-07, confidence: published}, block: 4KiB");
  EXPECT_EQ(alone.links[0].bandwidth, 42'500u * 4096);
  ASSERT_NE(fact_of(alone, "links.h2d.bandwidth"), nullptr);
  EXPECT_EQ(fact_of(alone, "links.h2d.bandwidth")->confidence, "estimated");
  EXPECT_EQ(fact_of(alone, "links.h2d.bandwidth")->source, "a list; as requests of 4.00 KiB");
  EXPECT_EQ(fact_of(alone, "links.h2d.bandwidth")->retrieved, "2026-07");
  EXPECT_EQ(alone.facts.size(), 1u);
  expect_equal(alone, parse_machine(write_machine_yaml(alone), "again"));

  const std::string streaming = "bandwidth: {value: 1GB/s, source: the maker, confidence: published}, ";
  const MachineSpec small_requests = link(streaming + "iops: 1e5, block: 4KiB");
  EXPECT_EQ(small_requests.links[0].bandwidth, 409'600'000u);
  EXPECT_EQ(fact_of(small_requests, "links.h2d.bandwidth")->source, "as requests of 4.00 KiB");
  const MachineSpec large_requests = link(streaming + "iops: 1e5, block: 1MiB");
  EXPECT_EQ(large_requests.links[0].bandwidth, 1'000'000'000u);
  EXPECT_EQ(fact_of(large_requests, "links.h2d.bandwidth")->source, "the maker");
}

// Of which only bounds are known: the middle of their ratio, with a spread that reaches both.
TEST(MachineYaml, ABandwidthBetweenBounds) {
  const auto link = [](const std::string& bandwidth) {
    return parse_machine(replaced("bandwidth: 12GB/s, latency: 10us", "bandwidth: {" + bandwidth + "}"), "m.yaml");
  };
  const MachineSpec machine = link("low: 1GB/s, high: 4GB/s, source: a list, confidence: estimated");
  EXPECT_EQ(machine.links[0].bandwidth, 2'000'000'000u);
  const Fact* const fact = fact_of(machine, "links.h2d.bandwidth");
  ASSERT_NE(fact, nullptr);
  EXPECT_EQ(fact->spread, 1);  // 2 ÷ (1 + 1), 2 × (1 + 1)
  EXPECT_EQ(fact->source, "a list");
  expect_equal(machine, parse_machine(write_machine_yaml(machine), "again"));

  const std::string end = ", confidence: estimated";
  EXPECT_THROW(link("low: 4GB/s, high: 1GB/s" + end), Error);
  EXPECT_THROW(link("low: 1GB/s, high: 1GB/s" + end), Error);
  EXPECT_THROW(link("low: 1GB/s" + end), Error);
  EXPECT_THROW(link("high: 1GB/s" + end), Error);
  EXPECT_THROW(link("low: 1, high: 2GB/s" + end), Error);
  EXPECT_THROW(link("low: 1B/s, high: 1GB/s" + end), Error) << "nothing is known";
  EXPECT_THROW(link("low: 1GB/s, high: unlimited" + end), Error);
  EXPECT_THROW(link("low: {value: 1GB/s, confidence: measured}, high: 2GB/s" + end), Error);
  EXPECT_THROW(link("value: 1GB/s, low: 1GB/s, high: 2GB/s" + end), Error);
  EXPECT_THROW(link("low: 1GB/s, high: 2GB/s, confidence: measured"), Error);
  EXPECT_THROW(link("low: 1GB/s, high: 2GB/s"), Error);
}

// What a file knows better than the one it builds on: its own bandwidth replaces requests a second, of a link and of a
// resource, its own requests a second do not replace a bandwidth.
TEST(MachineYaml, ABandwidthOfItsOwnReplacesInheritedRequestsASecond) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "machine_yaml_test_iops";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "server.yaml") << replaced("bandwidth: 12GB/s, latency: 10us, uses: [pcie]",
                                                    "iops: 40600, block: 4KiB, latency: 80us");
  const auto h2d = [&](const std::string& keys) {
    const std::string text = "name: mine\nbase: ./server.yaml\nlinks: {h2d: {" + keys + "}}\n";
    return parse_machine(text, (folder / "mine.yaml").string());
  };
  EXPECT_EQ(h2d("latency: 1us").links[0].bandwidth, 40'600u * 4096);
  const MachineSpec own = h2d("bandwidth: {value: 7GB/s, source: the maker, confidence: published}");
  EXPECT_EQ(own.links[0].bandwidth, 7'000'000'000u);
  EXPECT_EQ(own.links[0].latency_ns, 80'000);
  EXPECT_EQ(fact_of(own, "links.h2d.bandwidth")->source, "the maker");
  EXPECT_EQ(h2d("bandwidth: 7GB/s, iops: 1e5").links[0].bandwidth, 409'600'000u);
  EXPECT_EQ(h2d("bandwidth: null").links[0].bandwidth, 40'600u * 4096);
  const MachineSpec requests = parse_machine(
      "name: mine\nbase: ./server.yaml\nlinks: {d2h: {iops: 1e5, block: 4KiB}}\nresources: {pcie: {bandwidth: "
      "1GB/s}}\n",
      (folder / "mine.yaml").string());
  EXPECT_EQ(requests.links[1].bandwidth, 409'600'000u);
  EXPECT_EQ(requests.resources[0].bandwidth, 1'000'000'000u);
  std::filesystem::remove_all(folder);
}

TEST(MachineYaml, BandwidthsAreShownInAUnitThatSaysSomething) {
  EXPECT_EQ(format_bandwidth(12'000'000'000), "12.00 GB/s");
  EXPECT_EQ(format_bandwidth(100'000'000), "0.10 GB/s");
  EXPECT_EQ(format_bandwidth(9'900'000), "9.90 MB/s");
  EXPECT_EQ(format_bandwidth(5'000), "5.00 KB/s");
  EXPECT_EQ(format_bandwidth(12), "12 B/s");
  EXPECT_EQ(format_bandwidth(unlimited), "unlimited");
}

TEST(MachineYaml, RanksShareWhatIsSaidToBeShared) {
  const MachineSpec machine = parse_machine(
      "name: test\n"
      "tiers:\n"
      "  - {name: gpu, kind: gpu, capacity: 40GiB}\n"
      "  - {name: cpu, kind: cpu, capacity: 100GiB, reserved: 4GiB, shared_by: all}\n"
      "resources:\n"
      "  - {name: own, bandwidth: 1GB/s}\n"
      "  - {name: switch, bandwidth: 2GB/s, shared_by: 2}\n"
      "  - {name: dram, bandwidth: 3GB/s, shared_by: all}\n"
      "links: [{name: h2d, from: cpu, to: gpu, bandwidth: 12GB/s, uses: [own, switch, dram]}]\n"
      "initial_tier: cpu\n"
      "cpu: {adam_parameters_per_second: 3e9, shared_by: all}\n"
      "ranks: 3\n",
      "m.yaml");
  ASSERT_EQ(machine.rank_count(), 3u);
  const auto shared = [&](std::size_t rank, std::size_t resource) {
    return machine.of_rank(rank).resources[resource].shared;
  };
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(machine.of_rank(rank).tiers[0].capacity, 40 * GiB);
    EXPECT_EQ(machine.of_rank(rank).tiers[1].capacity, 32 * GiB);
    EXPECT_EQ(machine.of_rank(rank).cpu.adam_parameters_per_second, 1e9);
    EXPECT_EQ(shared(rank, 0), none);
    EXPECT_EQ(shared(rank, 2), shared(0, 2));
  }
  EXPECT_NE(shared(0, 1), none);
  EXPECT_EQ(shared(0, 1), shared(1, 1));
  EXPECT_NE(shared(1, 1), shared(2, 1));
  EXPECT_NE(shared(0, 1), shared(0, 2));
  expect_equal(machine, parse_machine(write_machine_yaml(machine), "again"));
}

TEST(MachineYaml, RanksMayDiffer) {
  const std::string ranks =
      "ranks:\n"
      "  - {}\n"
      "  - gpu: v100\n"
      "    tiers: {gpu: {capacity: 16GiB, reserved: null}}\n"
      "    links: {h2d: {bandwidth: {value: 3GB/s, source: a cable, confidence: measured}}}\n";
  const MachineSpec machine = parse_machine(valid + ranks, "m.yaml");
  ASSERT_EQ(machine.rank_count(), 2u);
  EXPECT_EQ(machine.gpu, "a100-40g");
  EXPECT_EQ(machine.tiers[0].capacity, 39 * GiB);
  const MachineSpec& other = machine.of_rank(1);
  EXPECT_EQ(other.gpu, "v100");
  EXPECT_EQ(other.tiers[0].capacity, 16 * GiB);
  EXPECT_EQ(other.links[0].bandwidth, 3'000'000'000u);
  EXPECT_EQ(other.links[0].latency_ns, 10'000);
  ASSERT_NE(fact_of(other, "links.h2d.bandwidth"), nullptr);
  EXPECT_EQ(fact_of(machine, "links.h2d.bandwidth"), nullptr);
  expect_equal(machine, parse_machine(write_machine_yaml(machine), "again"));

  const std::string entry = "ranks:\n  - {}\n  - ";  // lines 14 to 16
  const auto mistake = [&](const std::string& text) { return error_of(valid + entry + text + "\n"); };
  EXPECT_THAT(mistake("{name: b}"), AllOf(HasSubstr("m.yaml:16:"), HasSubstr("unknown key 'name' in a rank")));
  EXPECT_THAT(mistake("{tiers: {ssd: {capacity: 1}}}"),
              AllOf(HasSubstr("m.yaml:16:"), HasSubstr("there is no 'ssd' to change; valid are gpu, cpu")));
  EXPECT_THAT(mistake("{links: {h2d: {speed: 1}}}"), AllOf(HasSubstr("m.yaml:16:"), HasSubstr("unknown key 'speed'")));
  EXPECT_THAT(mistake("{links: {h2d: null}}"), HasSubstr("m.yaml"));
  EXPECT_THAT(mistake("{links: {d2h: null}}"), AllOf(HasSubstr("m.yaml:16:"), HasSubstr("the same tiers, links")));
  EXPECT_THAT(mistake("{resources: {pcie: {shared_by: all}}}"),
              AllOf(HasSubstr("m.yaml:16:"), HasSubstr("'pcie' is shared and cannot differ")));
  EXPECT_THAT(mistake("4"), AllOf(HasSubstr("m.yaml:16:"), HasSubstr("expected a map")));
}

TEST(MachineYaml, AFileBuildsOnAnother) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "machine_yaml_test_bases";
  std::filesystem::create_directories(folder);
  const std::string mine = (folder / "mine.yaml").string(), server = (folder / "server.yaml").string();
  std::ofstream(server) << valid;
  const std::string changes =
      "name: mine\n"
      "base: ./server.yaml\n"
      "tiers: {cpu: {capacity: 64GiB}}\n"
      "links: {h2d: {bandwidth: 6GB/s}}\n"
      "cpu: {adam_parameters_per_second: null}\n";
  const MachineSpec machine = parse_machine(changes, mine);
  EXPECT_EQ(machine.name, "mine");
  EXPECT_EQ(machine.file, mine);
  EXPECT_THAT(machine.base_files, ::testing::ElementsAre((folder / "./server.yaml").string()));
  EXPECT_EQ(machine.tiers[0].capacity, 39 * GiB);
  EXPECT_EQ(machine.tiers[1].capacity, 64 * GiB);
  EXPECT_EQ(machine.links[0].bandwidth, 6'000'000'000u);
  EXPECT_EQ(machine.links[0].latency_ns, 10'000);
  EXPECT_EQ(machine.cpu.adam_parameters_per_second, 0);

  const auto error = [&](const std::string& text) {
    try {
      parse_machine(text, mine);
    } catch (const Error& failed) {
      return std::string(failed.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error("base: ./server.yaml\n"), HasSubstr("key 'name' is missing"));
  EXPECT_THAT(error("name: mine\nbase: ./none.yaml\n"), HasSubstr("mine.yaml:2: base: "));
  EXPECT_THAT(error("name: mine\nbase: no-such\n"),
              AllOf(HasSubstr("mine.yaml:2: base: "), HasSubstr("`tencache machines`")));
  EXPECT_THAT(error("name: mine\nbase: ./server.yaml\ntiers: {gpu: {capacity: 1MiB}}\n"),
              HasSubstr("server.yaml:4: tiers.gpu.reserved: leaves nothing"));
  std::ofstream(mine) << "name: mine\nbase: ./mine.yaml\n";
  EXPECT_THAT(error("name: mine\nbase: ./mine.yaml\n"), HasSubstr("in a circle"));
  std::filesystem::remove_all(folder);
}

// Copies of the first rank, some of which differ, that share some of its resources.
void add_ranks(MachineSpec& machine, std::mt19937_64& random) {
  const auto below = [&](std::uint64_t n) { return random() % n; };
  const std::size_t count = 2 + below(5);
  const MachineSpec first = machine;
  for (std::size_t rank = 1; rank < count; ++rank) machine.other_ranks.push_back(first);
  for (std::size_t resource = 0; resource < first.resources.size(); ++resource) {
    const std::size_t shared_by = 1 + below(count);
    for (std::size_t rank = 0; rank < count && shared_by > 1; ++rank) {
      MachineSpec& spec = rank == 0 ? machine : machine.other_ranks[rank - 1];
      spec.resources[resource].shared = static_cast<std::uint32_t>(100 * resource + rank / shared_by);
    }
  }
  for (MachineSpec& rank : machine.other_ranks) {
    if (below(2)) continue;
    if (below(2)) rank.gpu = below(2) ? "" : "v100";
    if (below(2)) rank.tiers[0].capacity = 1 + below(1ull << 40);
    if (below(2)) rank.tiers[1].allocation = {};
    if (below(2)) {
      Link& link = rank.links[0];
      link.bandwidth = link.sustained_bandwidth = 1 + below(1ull << 40);
      link.pageable_bandwidth = std::min(link.pageable_bandwidth, link.bandwidth);
    }
    if (below(2)) rank.links[0].queue_depth = 1;
    if (below(2)) rank.lane_uses = {};
    if (below(2)) rank.cpu.adam_parameters_per_second = 0;
    if (below(2)) rank.staging = {};
    if (below(2)) rank.host.per_module_ns = 0;
    if (below(2)) rank.facts.clear();
  }
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
    if (below(2)) tier.allocation = {static_cast<Nanoseconds>(below(10)), below(2) * 1'000'000, below(2) != 0};
    if (tier.kind == TierKind::nvme && below(2)) tier.directories = {"/a b/\"c\"", "d: e"};
    if (tier.kind == TierKind::nvme && below(2)) tier.io_block_bytes = 4096 * (1 + below(1000));
    if (tier.kind == TierKind::nvme && below(2)) tier.io_depth = static_cast<std::uint32_t>(1 + below(1000));
    if (tier.kind == TierKind::gpu && below(2)) tier.allocator = gpu_allocators[below(gpu_allocators.size())];
    if (tier.kind == TierKind::gpu && below(2)) tier.bandwidth = 1 + below(1ull << 40);
    if (tier.kind == TierKind::nvme) tier.checksums = below(2) != 0;
    if (tier.kind == TierKind::nvme && below(2)) tier.rated_written_bytes = 1 + below(1ull << 50);
    if (tier.kind == TierKind::gpu && below(2)) tier.expand_bandwidth = 1 + below(1ull << 40);
    machine.tiers.push_back(tier);
    if (below(2)) {
      machine.facts.push_back({"tiers." + tier.name + ".capacity", "a: \"b\"\n'c'", "estimated",
                               below(2) ? "2026-01-02" : "",
                               below(2) ? static_cast<double>(1 + below(1000)) / 700.0 : 0.0});
    }
  }
  const std::size_t resources = below(3);
  for (std::size_t i = 0; i < resources; ++i) {
    machine.resources.push_back({"r" + std::to_string(i), below(4) == 0 ? unlimited : 1 + below(1ull << 40), none});
  }
  for (std::size_t from = 0; from < tiers; ++from) {
    for (std::size_t to = 0; to < tiers; ++to) {
      if (from == to) continue;
      Link link;
      link.name = "l" + std::to_string(from) + std::to_string(to);
      link.from = static_cast<TierId>(from);
      link.to = static_cast<TierId>(to);
      if (below(3) == 0) link.paged_efficiency = static_cast<double>(1 + below(1000)) / 1000;
      link.bandwidth = 1 + below(1ull << 40);
      if (below(3) == 0) link.pageable_bandwidth = 1 + below(link.bandwidth);
      link.latency_ns = below(2) ? static_cast<Nanoseconds>(below(1ull << 41)) : 0;
      for (std::size_t r = 0; r < resources; ++r) {
        if (below(2)) link.uses.push_back(static_cast<std::uint8_t>(r));
      }
      if (below(2)) link.queue_depth = static_cast<std::uint32_t>(1 + below(64));
      if (below(2)) link.devices = static_cast<std::uint32_t>(1 + below(8)), link.stripe_bytes = 1 + below(1ull << 20);
      if (below(2)) link.sustained_bandwidth = 1 + below(link.bandwidth), link.burst_bytes = below(1ull << 40);
      machine.links.push_back(link);
    }
  }
  for (std::vector<std::uint8_t>& uses : machine.lane_uses) {
    if (resources > 0 && below(2)) uses = {static_cast<std::uint8_t>(below(resources))};
  }
  if (below(2)) machine.host.per_module_ns = static_cast<Nanoseconds>(below(1'000'000));
  if (below(2)) machine.host.per_transfer_ns = static_cast<Nanoseconds>(below(1'000'000));
  if (below(2)) {
    machine.run_ahead.ops = static_cast<std::uint32_t>(below(1000));
    machine.run_ahead.time_ns = 1 + static_cast<Nanoseconds>(below(10'000'000));
  }
  if (below(2)) machine.price = {static_cast<double>(1 + below(1'000'000)) / 7.0, 0.5, "EUR"};
  if (below(2)) machine.staging = {1, static_cast<std::uint32_t>(1 + below(100)), 1 + below(1ull << 30)};
  machine.initial_tier = static_cast<TierId>(1 + below(tiers - 1));
  if (below(2)) machine.cpu.adam_parameters_per_second = static_cast<double>(1 + below(1ull << 53)) / 7.0;
  if (below(2)) {
    machine.cpu.flops_per_second = static_cast<double>(1 + below(1ull << 40)) / 7.0;
    machine.cpu.bandwidth = 1 + below(1ull << 40);
  }
  machine.issue_ahead = static_cast<std::uint32_t>(1 + below(5));
  machine.copies_in_flight = static_cast<std::uint32_t>(1 + below(5));
  if (below(2)) add_ranks(machine, random);
  return machine;
}

// An own file, a cloud machine of several GPUs, the two that it builds on: what is changed of a link stays in the
// element that it was meant for, however many layers lie below.
TEST(MachineYaml, EveryMachineOfSeveralGpusCanBeChanged) {
  std::size_t tried = 0;
  for (const MachineSpec& shipped : list_machines()) {
    if (shipped.rank_count() == 1) continue;
    ++tried;
    std::string text = "name: mine\nbase: " + shipped.name + "\ntiers: {gpu: {capacity: 20GiB, reserved: 0}}\nlinks:\n";
    for (const Link& link : shipped.links) text += "  " + link.name + ": {bandwidth: 3GB/s, latency: 7us}\n";
    const MachineSpec mine = parse_machine(text, "mine.yaml");
    for (std::size_t rank = 0; rank < mine.rank_count(); ++rank) {
      const MachineSpec &changed = mine.of_rank(rank), &before = shipped.of_rank(rank);
      ASSERT_EQ(changed.links.size(), before.links.size()) << shipped.name;
      for (std::size_t i = 0; i < before.links.size(); ++i) {
        const Link &link = changed.links[i], &was = before.links[i];
        EXPECT_EQ(link.name, was.name) << shipped.name;
        EXPECT_EQ(link.from, was.from) << shipped.name << " " << was.name;
        EXPECT_EQ(link.to, was.to) << shipped.name << " " << was.name;
        EXPECT_EQ(link.uses, was.uses) << shipped.name << " " << was.name;
        EXPECT_EQ(link.bandwidth, 3'000'000'000u) << shipped.name << " " << was.name;
        EXPECT_EQ(link.latency_ns, 7'000) << shipped.name << " " << was.name;
      }
      EXPECT_EQ(changed.tiers.front().capacity, 20 * GiB) << shipped.name;
      EXPECT_EQ(changed.tiers.back().capacity, before.tiers.back().capacity) << shipped.name;
    }
  }
  EXPECT_GE(tried, 8u);
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
       "m.yaml:4:", "valid keys are value, source, retrieved, confidence, spread"},
      {"capacity: 40GiB", "capacity: 0", "m.yaml:4:", "reserved: leaves nothing"},
      {"capacity: 128GiB", "capacity: 0", "m.yaml:5:", "must be above 0"},
      {"capacity: 128GiB", "capacity: -1", "m.yaml:5:", "not a size"},
      {"capacity: 128GiB", "", "m.yaml:5:", "key 'capacity' is missing in a tier"},
      {"capacity: 128GiB", "capacity: 1GiB, granularity: 3", "m.yaml:5:", "power of two"},
      {"capacity: 128GiB", "capacity: 1GiB, directories: [/tmp]", "m.yaml:5:", "only tiers of kind nvme"},
      {"capacity: 128GiB", "capacity: 1GiB, io_depth: 4", "m.yaml:5:", "only tiers of kind nvme"},
      {"capacity: 128GiB", "capacity: 1GiB, checksums: true", "m.yaml:5:", "only tiers of kind nvme"},
      {"capacity: 128GiB", "capacity: 1GiB, tbw: 1.2PB", "m.yaml:5:", "only tiers of kind nvme"},
      {"capacity: 128GiB", "capacity: 1GiB, allocator: caching", "m.yaml:5:", "only tiers of kind gpu"},
      {"reserved: 1GiB", "reserved: 1GiB, allocator: best", "m.yaml:4:", "valid are exact, caching"},
      {"latency: 10us", "latency: 10us, paged: 2", "m.yaml:9:", "at most 1"},
      {"reserved: 1GiB", "reserved: 41GiB", "m.yaml:4:", "leaves nothing"},
      {"kind: gpu", "kind: tpu", "m.yaml:4:", "tiers.gpu.kind: unknown 'tpu'; valid are gpu, cpu, nvme"},
      {"name: cpu, kind", "name: gpu, kind", "m.yaml:5:", "name of a tier already"},
      {"name: h2d", "name: gpu", "m.yaml:9:", "name of a tier already"},
      {"name: d2h", "name: h2d", "m.yaml:10:", "name of a link already"},
      {"name: test", "name: a b", "m.yaml:1:", "is no name"},
      {"from: cpu, to: gpu", "from: ssd, to: gpu", "m.yaml:9:", "there is no tier 'ssd'; valid are gpu, cpu"},
      {"from: cpu, to: gpu", "from: gpu, to: gpu", "m.yaml:9:", "joins a tier with itself"},
      {"from: gpu, to: cpu", "from: cpu, to: gpu", "m.yaml:10:", "is there already"},
      {"bandwidth: 12GB/s, latency", "bandwidth: fast, latency", "m.yaml:9:", "not a bandwidth: 'fast'"},
      {"bandwidth: 12GB/s, latency", "bandwidth: 0, latency", "m.yaml:9:", "must be above 0"},
      {"bandwidth: 12GB/s, latency", "bandwidth: 12, latency", "m.yaml:9:", "'12' has no unit; write 12GB/s"},
      {"bandwidth: 12GB/s, latency", "bandwidth: 12/s, latency", "m.yaml:9:", "'12/s' has no unit; write 12GB/s"},
      {"bandwidth: 12GB/s, latency", "bandwidth: 3.2e9, latency", "m.yaml:9:", "'3.2e9' has no unit; write 3.2GB/s"},
      {"latency: 10us", "latency: 10", "m.yaml:9:", "'10' has no unit; write 10us, 10ms or 10s"},
      {"capacity: 128GiB", "capacity: 128", "m.yaml:5:", "'128' has no unit; write 128GiB"},
      {"{name: cpu, kind: cpu", "{name: cpu, kind: nvme, tbw: 600", "m.yaml:5:", "'600' has no unit; write 600TB"},
      {"latency: 10us", "latency: soon", "m.yaml:9:", "not a time: 'soon'"},
      {"uses: [pcie]", "uses: [pci]", "m.yaml:9:", "there is no resource 'pci'; valid are pcie"},
      {"uses: [pcie]", "uses: pcie", "m.yaml:9:", "expected a list, found 'pcie'"},
      {"uses: [pcie]", "uses: [pcie, pcie]", "m.yaml:9:", "stands twice"},
      {"initial_tier: cpu", "", "m.yaml:1:", "key 'initial_tier' is missing in a machine: write the tier that"},
      {"initial_tier: cpu", "initial_tier: disk", "m.yaml:11:", "there is no tier 'disk'"},
      {"issue_ahead: 2", "issue_ahead: two", "m.yaml:13:", "not a whole number"},
      {"issue_ahead: 2", "issue_ahead: 0", "m.yaml:13:", "from 1 to"},
      {"issue_ahead: 2", "gpu: h100", "m.yaml:13:", "key 'gpu' stands twice"},
      {"issue_ahead: 2", "staging: {tier: cpu, count: 4}", "m.yaml:13:", "key 'bytes' is missing in staging"},
      {"1.5e9", "fast", "m.yaml:12:", "not a number above 0"},
      {"1.5e9", "-1", "m.yaml:12:", "not a number above 0"},
      {"issue_ahead: 2", "issue_ahead: [", "m.yaml:1", "not valid YAML"},
      {"capacity: 128GiB", "capacity: 2048PiB", "m.yaml:5:", "more than 1 EiB"},
      {"bandwidth: 16GB/s", "bandwidth: 2e9GB/s", "m.yaml:7:", "more than 1 EiB/s"},
      {"latency: 10us", "latency: 2e4s", "m.yaml:9:", "more than an hour"},
      {"latency: 10us", "latency: -1us", "m.yaml:9:", "not a time"},
      {"latency: 10us", "queue_depth: 0", "m.yaml:9:", "from 1 to 65536"},
      {"latency: 10us", "devices: 4", "m.yaml:9:", "devices and stripe: either both or neither"},
      {"latency: 10us", "burst: 4GB", "m.yaml:9:", "sustained and burst: either both or neither"},
      {"latency: 10us", "sustained: 13GB/s, burst: 4GB", "m.yaml:9:", "above the link's bandwidth"},
      {"latency: 10us", "iops: 4", "m.yaml:9:", "iops and block: either both or neither"},
      {"latency: 10us", "iops: 1e30, block: 4KiB", "m.yaml:9:", "from 1 B/s to 1 EiB/s"},
      {"capacity: 128GiB", "capacity: 1GiB, allocation: {round: up}",
       "m.yaml:5:", "unknown 'up'; valid are exact, power_of_two"},
      {"capacity: 128GiB", "capacity: 1GiB, allocation: {rate: 1}",
       "m.yaml:5:", "valid keys are per_call, bandwidth, round"},
      {"capacity: 128GiB", "capacity: 1GiB, shared_by: 2", "m.yaml:5:", "the machine has no more than 1 ranks"},
      {"capacity: 128GiB", "capacity: 1GiB, shared_by: some", "m.yaml:5:", "a count of ranks, or all"},
      {"issue_ahead: 2", "ranks: 65", "m.yaml:13:", "from 1 to 64"},
      {"issue_ahead: 2", "ranks: -1", "m.yaml:13:", "from 1 to 64"},
      {"issue_ahead: 2", "ranks: []", "m.yaml:13:", "from 1 to 64"},
      {"issue_ahead: 2", "host: {per_call: 1us}", "m.yaml:13:", "valid keys are per_module, per_transfer, page_lock"},
      {"issue_ahead: 2", "price: {on_demand: 0}", "m.yaml:13:", "not a number above 0"},
      {"issue_ahead: 2", "price: {hourly: 1}", "m.yaml:13:", "valid keys are on_demand, spot, currency"},
      {"gpu: a100-40g", "gpu: {name: a, uses: [hbm]}", "m.yaml:2:", "there is no resource 'hbm'; valid are pcie"},
      {"issue_ahead: 2", "\tissue_ahead: 2", "m.yaml:1", "not valid YAML"},
  };
  for (const Mistake& mistake : mistakes) {
    EXPECT_THAT(error_of(replaced(mistake.what, mistake.with)),
                AllOf(HasSubstr(mistake.place), HasSubstr(mistake.message)))
        << mistake.with;
  }
}

TEST(MachineYaml, FilesOfOtherSoftwareAreNamed) {
  EXPECT_THAT(error_of("compute_environment: LOCAL_MACHINE\nfsdp_config:\n  fsdp_version: 2\n"),
              AllOf(HasSubstr("m.yaml:"), HasSubstr("a configuration of Accelerate, not a machine"),
                    HasSubstr("--with accelerate=m.yaml")));
  EXPECT_THAT(error_of("{\"zero_optimization\": {\"stage\": 3}}"),
              AllOf(HasSubstr("m.yaml:1"), HasSubstr("--with deepspeed=m.yaml")));
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

TEST(MachineYaml, UnknownMachineListsTheNearest) {
  try {
    read_machine("g10-a1000");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("unknown machine 'g10-a1000'"), HasSubstr("the nearest are g10-a100"),
                                    HasSubstr("`tencache machines` (cards: `tencache gpus`) lists all")));
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

// 0.9 of the 3350 GB/s that gpus.yaml has for an H100, unless the file says it.
TEST(MachineOverridesTest, HowGpuMemoryIsLaidOut) {
  const std::string text = R"(name: m
gpu: h100
tiers:
  - {name: gpu, kind: gpu, capacity: 24GiB, allocator: movable}
  - {name: cpu, kind: cpu, capacity: 64GiB}
links:
  - {name: h2d, from: cpu, to: gpu, bandwidth: 20GB/s}
  - {name: d2h, from: gpu, to: cpu, bandwidth: 20GB/s}
initial_tier: cpu
)";
  MachineSpec machine = parse_machine(text, "m.yaml");
  EXPECT_EQ(machine.tiers[0].allocator, AllocatorKind::movable);
  find_memory_bandwidth(machine);
  EXPECT_EQ(machine.tiers[0].bandwidth, 3'015'000'000'000U);
  machine.tiers[0].bandwidth = 1;
  find_memory_bandwidth(machine);
  EXPECT_EQ(machine.tiers[0].bandwidth, 1U);
  override_allocator(machine, "--gpu-allocator", "");
  EXPECT_EQ(machine.tiers[0].allocator, AllocatorKind::movable);
  override_allocator(machine, "--gpu-allocator", "caching");
  EXPECT_EQ(machine.tiers[0].allocator, AllocatorKind::caching);
  machine.tiers[0].granularity = 2 * MiB;  // pages, of what is mapped chunk by chunk
  override_allocator(machine, "--gpu-allocator", "movable");
  EXPECT_EQ(machine.tiers[0].granularity, movable_unit);
  try {
    override_allocator(machine, "--gpu-allocator", "best_fit");
    FAIL() << "a policy's allocator";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("--gpu-allocator"), HasSubstr("best_fit"), HasSubstr("movable")));
  }
}

// GPU, CPU memory, and another GPU of 20 GB whose capacity changes.
std::string with_peer(const std::string& over_time, const std::string& rest = "initial_tier: cpu") {
  return "name: pair\n"
         "tiers:\n"
         "  - {name: gpu, kind: gpu, capacity: 10GB}\n"
         "  - {name: cpu, kind: cpu, capacity: 100GB}\n"
         "  - name: peer\n"
         "    kind: gpu\n"
         "    capacity: 20GB\n"
         "    capacity_over_time: " +
         over_time +
         "\n"
         "links:\n"
         "  - {name: h2d, from: cpu, to: gpu, bandwidth: 25GB/s}\n"
         "  - {name: d2h, from: gpu, to: cpu, bandwidth: 25GB/s}\n"
         "  - {name: p2d, from: peer, to: gpu, bandwidth: 200GB/s}\n" +
         rest + "\n";
}

TEST(CapacityOverTime, FollowsItsChangesAndRepeats) {
  const MachineSpec machine =
      parse_machine(with_peer("{changes: [{at: 2s, capacity: 5GB}, {at: 3s, capacity: 0B}], period: 4s}"), "m.yaml");
  const CapacityOverTime& over_time = machine.tiers[2].over_time;
  const auto at = [&](double seconds) {
    return over_time.at(static_cast<Nanoseconds>(seconds * 1e9), machine.tiers[2].capacity) / 1'000'000'000;
  };
  EXPECT_EQ(at(0), 20u);
  EXPECT_EQ(at(1.999), 20u);
  EXPECT_EQ(at(2), 5u);
  EXPECT_EQ(at(3.5), 0u);
  EXPECT_EQ(at(4), 20u);
  EXPECT_EQ(at(6.5), 5u);
  EXPECT_EQ(over_time.phase(6'500'000'000), 2'500'000'000);
  expect_equal(machine, parse_machine(write_machine_yaml(machine), "again.yaml"));
  const MachineSpec once = parse_machine(with_peer("{changes: [{at: 2s, capacity: 5GB}]}"), "m.yaml");
  EXPECT_EQ(once.tiers[2].over_time.at(std::int64_t{1} << 50, 20), 20u);  // never above the tier's capacity
  EXPECT_EQ(once.tiers[2].over_time.phase(5'000'000'000), once.tiers[2].over_time.phase(9'000'000'000));
}

TEST(CapacityOverTime, IsDrawnFromASeed) {
  const auto drawn = [](const char* seed) {
    const std::string draws = std::string("{draws: {seed: ") + seed + ", every: 500ms, least: 1GB, most: 3GB}}";
    return parse_machine(with_peer(draws), "m.yaml").tiers[2].over_time;
  };
  const CapacityOverTime over_time = drawn("7");
  EXPECT_EQ(over_time, drawn("7"));
  EXPECT_NE(over_time, drawn("8"));
  EXPECT_EQ(over_time.period_ns, 1024 * 500'000'000ll);
  double mean = 0;
  for (const CapacityOverTime::Change& change : over_time.changes) {
    EXPECT_GE(change.bytes, 1'000'000'000u);
    EXPECT_LE(change.bytes, 3'000'000'000u);
    mean += static_cast<double>(change.bytes) / static_cast<double>(over_time.changes.size());
  }
  EXPECT_EQ(over_time.changes.front().at_ns, 500'000'000);
  EXPECT_NEAR(mean, 2e9, 6 * 0.577e9 / 32);  // six deviations of the mean of 1023 even draws
}

TEST(CapacityOverTime, RefusesWhatMustStay) {
  const std::string change = "{changes: [{at: 2s, capacity: 5GB}]}";
  EXPECT_THAT(error_of(with_peer(change, "initial_tier: peer")),
              AllOf(HasSubstr("m.yaml:8: tiers.peer.capacity_over_time: tensors start there")));
  EXPECT_THAT(error_of(with_peer(change, "initial_tier: cpu\nstaging: {tier: peer, count: 2, bytes: 1MB}")),
              HasSubstr("m.yaml:8: tiers.peer.capacity_over_time: staging buffers lie there"));
  std::string first = with_peer(change);
  first.replace(first.find("capacity: 10GB"), 14, "capacity: 10GB, capacity_over_time: " + change);
  EXPECT_THAT(error_of(first), HasSubstr("m.yaml:3: tiers.gpu.capacity_over_time: only a tier of kind gpu behind the "
                                         "first one"));
}

TEST(CapacityOverTime, RefusesSchedulesThatMakeNoSense) {
  EXPECT_THAT(error_of(with_peer("{changes: [{at: 2s, capacity: 21GB}]}")),
              HasSubstr("m.yaml:8: tiers.peer.capacity_over_time.changes.capacity: above the tier's capacity of "));
  EXPECT_THAT(error_of(with_peer("{changes: [{at: 2s, capacity: 1GB}, {at: 2s, capacity: 2GB}]}")),
              HasSubstr("m.yaml:8: tiers.peer.capacity_over_time.changes.at: times rise"));
  EXPECT_THAT(error_of(with_peer("{changes: [{at: 2s, capacity: 1GB}], period: 2s}")),
              HasSubstr("period: must be longer than the last change's time"));
  EXPECT_THAT(error_of(with_peer("{changes: []}")), HasSubstr("is empty; leave the key out"));
  EXPECT_THAT(error_of(with_peer("{draws: {every: 1s}, period: 2s}")), HasSubstr("draws: stands alone"));
  EXPECT_THAT(error_of(with_peer("{draws: {every: 1s, least: 2GB, most: 1GB}}")), HasSubstr("least is above most"));
}

}  // namespace
}  // namespace tencache
