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
  return whole<3>(bytes, {{{GiB, "GiB"}, {MiB, "MiB"}, {KiB, "KiB"}}});
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

class MachineWriter {
 public:
  explicit MachineWriter(const MachineSpec& machine) : machine_(machine) {}

  std::string write() {
    line("name: " + machine_.name);
    if (!machine_.description.empty()) line("description: " + quote(machine_.description));
    if (!machine_.gpu.empty()) line("gpu: " + quote(machine_.gpu));
    write_tiers();
    write_resources();
    write_links();
    if (machine_.staging.count != 0) {
      line("staging:");
      line("  tier: " + machine_.tiers[machine_.staging.tier].name);
      line("  count: " + figure("staging.count", std::to_string(machine_.staging.count)));
      line("  bytes: " + figure("staging.bytes", write_bytes(machine_.staging.bytes)));
    }
    if (machine_.initial_tier != no_tier) line("initial_tier: " + machine_.tiers[machine_.initial_tier].name);
    if (machine_.cpu_adam_parameters_per_second > 0) {
      line("cpu:");
      const std::string rate = write_number(machine_.cpu_adam_parameters_per_second);
      line("  adam_parameters_per_second: " + figure("cpu.adam_parameters_per_second", rate));
    }
    line("issue_ahead: " + figure("issue_ahead", std::to_string(machine_.issue_ahead)));
    line("copies_in_flight: " + figure("copies_in_flight", std::to_string(machine_.copies_in_flight)));
    return std::move(text_);
  }

 private:
  void line(const std::string& content) { text_ += content + "\n"; }

  const Fact* fact(const std::string& path) const {
    for (const Fact& candidate : machine_.facts) {
      if (candidate.path == path) return &candidate;
    }
    return nullptr;
  }

  // The value, with where it comes from if that is known.
  std::string figure(const std::string& path, const std::string& value) const {
    const Fact* known = fact(path);
    if (known == nullptr) return value;
    std::string result = "{value: " + value;
    if (!known->source.empty()) result += ", source: " + quote(known->source);
    if (!known->retrieved.empty()) result += ", retrieved: " + quote(known->retrieved);
    return result + ", confidence: " + known->confidence + "}";
  }

  void write_tiers() {
    line("tiers:");
    for (const Tier& tier : machine_.tiers) {
      const std::string path = "tiers." + tier.name + ".";
      line("  - name: " + tier.name);
      line("    kind: " + std::string(to_string(tier.kind)));
      line("    capacity: " + figure(path + "capacity", write_bytes(tier.capacity)));
      // Taken off the capacity when it was read; what remains of it is its source.
      if (fact(path + "reserved") != nullptr) line("    reserved: " + figure(path + "reserved", "0"));
      line("    granularity: " + figure(path + "granularity", write_bytes(tier.granularity)));
      if (tier.directories.empty()) continue;
      line("    directories:");
      for (const std::string& directory : tier.directories) line("      - " + quote(directory));
    }
  }

  void write_resources() {
    if (machine_.resources.empty()) return;
    line("resources:");
    for (const Resource& resource : machine_.resources) {
      line("  - name: " + resource.name);
      line("    bandwidth: " +
           figure("resources." + resource.name + ".bandwidth", write_bandwidth(resource.bandwidth)));
    }
  }

  void write_links() {
    if (machine_.links.empty()) return;
    line("links:");
    for (const Link& link : machine_.links) {
      const std::string path = "links." + link.name + ".";
      line("  - name: " + link.name);
      line("    from: " + machine_.tiers[link.from].name);
      line("    to: " + machine_.tiers[link.to].name);
      line("    bandwidth: " + figure(path + "bandwidth", write_bandwidth(link.bandwidth)));
      line("    latency: " + figure(path + "latency", write_duration(link.latency_ns)));
      if (link.uses.empty()) continue;
      std::string uses;
      for (const std::uint8_t resource : link.uses) {
        uses += (uses.empty() ? "" : ", ") + machine_.resources[resource].name;
      }
      line("    uses: [" + uses + "]");
    }
  }

  const MachineSpec& machine_;
  std::string text_;
};

}  // namespace

std::string write_machine_yaml(const MachineSpec& machine) { return MachineWriter(machine).write(); }

}  // namespace tencache
