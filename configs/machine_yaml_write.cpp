#include <array>
#include <charconv>
#include <cstdio>

#include "configs/machine_yaml.h"

namespace tencache {
namespace {

// A double-quoted scalar: YAML's escapes are those of JSON.
std::string quote(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      result += escape.data();
    } else {
      result += c;
    }
  }
  return result + '"';
}

// The largest unit that keeps the number whole, so that reading gives the same.
template <std::size_t n>
std::string whole(std::uint64_t value, const std::array<std::pair<std::uint64_t, const char*>, n>& units) {
  for (const auto& [factor, suffix] : units) {
    if (value != 0 && value % factor == 0) return std::to_string(value / factor) + suffix;
  }
  return std::to_string(value);
}

std::string write_bytes(Bytes bytes) {
  if (bytes >= unlimited) return "unlimited";
  return whole<4>(bytes, {{{GiB, "GiB"}, {MiB, "MiB"}, {KiB, "KiB"}, {1, "B"}}});
}

std::string write_bandwidth(BytesPerSecond bandwidth) {
  if (bandwidth >= unlimited) return "unlimited";
  return whole<3>(bandwidth, {{{1'000'000'000, "GB/s"}, {1'000'000, "MB/s"}, {1, "B/s"}}});
}

std::string write_duration(Nanoseconds duration) {
  return whole<4>(static_cast<std::uint64_t>(duration),
                  {{{1'000'000'000, "s"}, {1'000'000, "ms"}, {1'000, "us"}, {1, "ns"}}});
}

std::string write_number(double value) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

std::string write_count(std::uint32_t count) { return std::to_string(count); }

std::string enclosed(char open, const std::string& text, char close) {
  std::string result(1, open);
  result += text;
  result += close;
  return result;
}

// Keys and their values in YAML's flow style, in order; an empty value is a null: not there.
using Entries = std::vector<std::pair<std::string, std::string>>;

std::string flow(const Entries& entries, bool with_nulls) {
  std::string text;
  for (const auto& [key, value] : entries) {
    if (value.empty() && !with_nulls) continue;
    text += (text.empty() ? "" : ", ") + key + ": " + (value.empty() ? "null" : value);
  }
  return enclosed('{', text, '}');
}

// What of `rank` is different.
Entries difference(const Entries& first, const Entries& rank) {
  Entries result;
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (first[i].second != rank[i].second) result.push_back(rank[i]);
  }
  return result;
}

// The entries of one rank. All ranks have the same keys in the same order.
class RankWriter {
 public:
  // With nulls, so that an entry replaces all of the first rank's.
  RankWriter(const MachineSpec& machine, std::uint32_t rank_count) : machine_(machine), rank_count_(rank_count) {}

  Entries tier(const Tier& tier) const {
    const std::string path = "tiers." + tier.name + ".";
    std::string directories;
    for (const std::string& directory : tier.directories) {
      directories += (directories.empty() ? "" : ", ") + quote(directory);
    }
    return {{"kind", std::string(to_string(tier.kind))},
            {"capacity", figure(path + "capacity", write_bytes(tier.capacity))},
            // Taken off the capacity when it was read; what remains of it is its source.
            {"reserved", fact(path + "reserved") != nullptr ? figure(path + "reserved", "0") : ""},
            {"granularity", figure(path + "granularity", write_bytes(tier.granularity))},
            {"directories", directories.empty() ? "" : enclosed('[', directories, ']')},
            unless<Bytes>(path, "io_block", tier.io_block_bytes, 0, write_bytes),
            unless(path, "io_depth", tier.io_depth, 0u, write_count),
            {"allocator", tier.allocator == AllocatorKind::exact ? "" : std::string(to_string(tier.allocator))},
            {"checksums", tier.checksums ? figure(path + "checksums", "true") : ""},
            unless<Bytes>(path, "tbw", tier.rated_written_bytes, 0, write_bytes),
            unless<BytesPerSecond>(path, "bandwidth", tier.bandwidth, 0, write_bandwidth),
            unless<BytesPerSecond>(path, "expand", tier.expand_bandwidth, 0, write_bandwidth),
            {"capacity_over_time", over_time(tier.over_time)},
            {"allocation", allocation(path + "allocation.", tier.allocation)}};
  }

  // Draws are written as what was drawn.
  static std::string over_time(const CapacityOverTime& over_time) {
    if (!over_time.any()) return "";
    std::string changes;
    for (const CapacityOverTime::Change& change : over_time.changes) {
      if (!changes.empty()) changes += ", ";
      changes += "{at: " + write_duration(change.at_ns) + ", capacity: " + write_bytes(change.bytes) + "}";
    }
    return flow({{"changes", enclosed('[', changes, ']')},
                 {"period", over_time.period_ns == 0 ? "" : write_duration(over_time.period_ns)}},
                false);
  }

  Entries resource(const Resource& resource, std::uint32_t shared_by) const {
    const std::string path = "resources." + resource.name + ".";
    std::string shared;
    if (shared_by > 1) shared = shared_by == rank_count_ ? "all" : std::to_string(shared_by);
    return {{"bandwidth", figure(path + "bandwidth", write_bandwidth(resource.bandwidth))}, {"shared_by", shared}};
  }

  Entries link(const Link& link) const {
    const std::string path = "links." + link.name + ".";
    const bool striped = link.devices > 1 || link.stripe_bytes != 0;
    const bool bursts = link.sustained_bandwidth != 0;
    return {{"from", machine_.tiers[link.from].name},
            {"to", machine_.tiers[link.to].name},
            {"bandwidth", figure(path + "bandwidth", write_bandwidth(link.bandwidth))},
            {"latency", figure(path + "latency", write_duration(link.latency_ns))},
            {"uses", uses(link.uses)},
            unless(path, "queue_depth", link.queue_depth, 1u, write_count),
            unless(path, "paged", link.paged_efficiency, Link().paged_efficiency, write_number),
            unless<BytesPerSecond>(path, "pageable", link.pageable_bandwidth, 0, write_bandwidth),
            {"devices", striped ? figure(path + "devices", std::to_string(link.devices)) : ""},
            {"stripe", striped ? figure(path + "stripe", write_bytes(link.stripe_bytes)) : ""},
            {"sustained", bursts ? figure(path + "sustained", write_bandwidth(link.sustained_bandwidth)) : ""},
            {"burst", bursts ? figure(path + "burst", write_bytes(link.burst_bytes)) : ""}};
  }

  Entries top() const {
    std::string gpu = machine_.gpu.empty() ? "" : quote(machine_.gpu);
    if (!machine_.lane_uses[0].empty()) gpu = map({{"name", gpu}, {"uses", uses(machine_.lane_uses[0])}});
    std::string staging, cpu, host, run_ahead;
    if (machine_.staging.count != 0) {
      staging = map({{"tier", machine_.tiers[machine_.staging.tier].name},
                     {"count", figure("staging.count", std::to_string(machine_.staging.count))},
                     {"bytes", figure("staging.bytes", write_bytes(machine_.staging.bytes))}});
    }
    const CpuRates& rates = machine_.cpu;
    if (rates.adam_parameters_per_second > 0 || rates.can_compute() || !machine_.lane_uses[1].empty()) {
      const auto rate = [&](const char* key, double value) {
        return value > 0 ? figure(std::string("cpu.") + key, write_number(value)) : "";
      };
      cpu = map({{"adam_parameters_per_second", rate("adam_parameters_per_second", rates.adam_parameters_per_second)},
                 {"tflops", rate("tflops", rates.flops_per_second / 1e12)},
                 {"bandwidth", rates.bandwidth > 0 ? figure("cpu.bandwidth", write_bandwidth(rates.bandwidth)) : ""},
                 {"uses", uses(machine_.lane_uses[1])}});
    }
    const BytesPerSecond locks = machine_.host.lock_bandwidth;
    if (machine_.host.per_module_ns != 0 || machine_.host.per_transfer_ns != 0 || locks != 0) {
      host = map({{"per_module", figure("host.per_module", write_duration(machine_.host.per_module_ns))},
                  {"per_transfer", figure("host.per_transfer", write_duration(machine_.host.per_transfer_ns))},
                  {"page_lock", locks != 0 ? figure("host.page_lock", write_bandwidth(locks)) : ""}});
    }
    if (machine_.run_ahead != RunAhead{}) {
      run_ahead = map({{"ops", figure("run_ahead.ops", std::to_string(machine_.run_ahead.ops))},
                       {"time", figure("run_ahead.time", write_duration(machine_.run_ahead.time_ns))}});
    }
    return {{"gpu", gpu},
            {"staging", staging},
            {"initial_tier", machine_.initial_tier == no_tier ? "" : machine_.tiers[machine_.initial_tier].name},
            {"cpu", cpu},
            {"host", host},
            {"issue_ahead", figure("issue_ahead", std::to_string(machine_.issue_ahead))},
            {"copies_in_flight", figure("copies_in_flight", std::to_string(machine_.copies_in_flight))},
            {"run_ahead", run_ahead}};
  }

  // The value, with where it comes from if that is known.
  std::string figure(const std::string& path, const std::string& value) const {
    const Fact* known = fact(path);
    if (known == nullptr) return value;
    std::string result = "{value: " + value;
    if (!known->source.empty()) result += ", source: " + quote(known->source);
    if (!known->retrieved.empty()) result += ", retrieved: " + quote(known->retrieved);
    if (known->spread > 0) result += ", spread: " + write_number(known->spread);
    return result + ", confidence: " + known->confidence + "}";
  }

 private:
  const Fact* fact(const std::string& path) const {
    for (const Fact& candidate : machine_.facts) {
      if (candidate.path == path) return &candidate;
    }
    return nullptr;
  }

  // Empty where it is the standard.
  template <typename Value>
  Entries::value_type unless(const std::string& path, const char* key, Value value, Value standard,
                             std::string (*write)(Value)) const {
    return {key, value == standard ? "" : figure(path + key, write(value))};
  }

  std::string allocation(const std::string& path, const AllocationCost& cost) const {
    if (cost.per_call_ns == 0 && cost.bandwidth == 0 && !cost.power_of_two) return "";
    return map({{"per_call", figure(path + "per_call", write_duration(cost.per_call_ns))},
                unless<BytesPerSecond>(path, "bandwidth", cost.bandwidth, 0, write_bandwidth),
                {"round", cost.power_of_two ? "power_of_two" : "exact"}});
  }

  std::string map(const Entries& entries) const { return flow(entries, rank_count_ > 1); }

  std::string uses(const std::vector<std::uint8_t>& resources) const {
    std::string text;
    for (const std::uint8_t resource : resources) {
      text += (text.empty() ? "" : ", ") + machine_.resources[resource].name;
    }
    return text.empty() ? "" : enclosed('[', text, ']');
  }

  const MachineSpec& machine_;
  std::uint32_t rank_count_;
};

class MachineWriter {
 public:
  explicit MachineWriter(const MachineSpec& machine) : machine_(machine) {
    for (std::size_t rank = 0; rank < machine.rank_count(); ++rank) {
      writers_.emplace_back(machine.of_rank(rank), static_cast<std::uint32_t>(machine.rank_count()));
    }
  }

  std::string write() {
    line("name: " + machine_.name);
    if (!machine_.description.empty()) line("description: " + quote(machine_.description));
    const RankWriter& first = writers_.front();
    write_entries(first.top());
    line("tiers:");
    for (const Tier& tier : machine_.tiers) write_element(tier.name, first.tier(tier));
    if (!machine_.resources.empty()) line("resources:");
    for (std::size_t i = 0; i < machine_.resources.size(); ++i) {
      write_element(machine_.resources[i].name, first.resource(machine_.resources[i], sharing_ranks(i)));
    }
    if (!machine_.links.empty()) line("links:");
    for (const Link& link : machine_.links) write_element(link.name, first.link(link));
    write_ranks();
    const Price& price = machine_.price;
    if (price.on_demand > 0 || price.spot > 0) {
      const auto hourly = [&](const char* path, double value) {
        return value > 0 ? first.figure(path, write_number(value)) : std::string();
      };
      line("price: " + flow({{"on_demand", hourly("price.on_demand", price.on_demand)},
                             {"spot", hourly("price.spot", price.spot)},
                             {"currency", price.currency}},
                            false));
    }
    return std::move(text_);
  }

 private:
  void line(const std::string& content) { text_ += content + "\n"; }

  void write_entries(const Entries& entries) {
    for (const auto& [key, value] : entries) {
      if (!value.empty()) line(key + ": " + value);
    }
  }

  void write_element(const std::string& name, const Entries& entries) {
    line("  - name: " + name);
    for (const auto& [key, value] : entries) {
      if (!value.empty()) line("    " + key + ": " + value);
    }
  }

  // How many consecutive ranks share the first one's resource.
  std::uint32_t sharing_ranks(std::size_t resource) const {
    const std::uint32_t shared = machine_.resources[resource].shared;
    if (shared == none) return 1;
    std::uint32_t count = 0;
    while (count < machine_.rank_count() && machine_.of_rank(count).resources[resource].shared == shared) ++count;
    return count;
  }

  // The number of ranks where they are alike, else what is different of each.
  void write_ranks() {
    if (machine_.other_ranks.empty()) return;
    std::string entries;
    bool alike = true;
    for (std::size_t rank = 0; rank < machine_.rank_count(); ++rank) {
      const Entries changes = changes_of(rank);
      alike = alike && changes.empty();
      entries += "  - " + flow(changes, true) + "\n";
    }
    text_ += alike ? "ranks: " + std::to_string(machine_.rank_count()) + "\n" : "ranks:\n" + entries;
  }

  Entries changes_of(std::size_t rank) const {
    const MachineSpec& spec = machine_.of_rank(rank);
    const RankWriter &first = writers_.front(), &writer = writers_[rank];
    Entries tiers, resources, links;
    const auto add = [](Entries& changes, const std::string& name, const Entries& different) {
      if (!different.empty()) changes.emplace_back(name, flow(different, true));
    };
    for (std::size_t i = 0; i < spec.tiers.size(); ++i) {
      add(tiers, spec.tiers[i].name, difference(first.tier(machine_.tiers[i]), writer.tier(spec.tiers[i])));
    }
    for (std::size_t i = 0; i < spec.resources.size(); ++i) {
      const std::uint32_t shared_by = sharing_ranks(i);
      add(resources, spec.resources[i].name,
          difference(first.resource(machine_.resources[i], shared_by), writer.resource(spec.resources[i], shared_by)));
    }
    for (std::size_t i = 0; i < spec.links.size(); ++i) {
      add(links, spec.links[i].name, difference(first.link(machine_.links[i]), writer.link(spec.links[i])));
    }
    Entries changes = difference(first.top(), writer.top());
    add(changes, "tiers", tiers);
    add(changes, "resources", resources);
    add(changes, "links", links);
    return changes;
  }

  const MachineSpec& machine_;
  std::vector<RankWriter> writers_;
  std::string text_;
};

}  // namespace

std::string write_machine_yaml(const MachineSpec& machine) { return MachineWriter(machine).write(); }

}  // namespace tencache
