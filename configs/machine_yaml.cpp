#include "configs/machine_yaml.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>

#include "configs/machine_lookup.h"
#include "configs/machine_node.h"
#include "configs/yaml_layers.h"
#include "core/error.h"

namespace tencache {
namespace {

constexpr std::uint32_t max_ranks = 64;
constexpr std::uint32_t max_base_files = 8;

const std::vector<std::string> machine_keys = {
    "name",         "description", "base", "gpu",   "tiers",       "resources",        "links", "staging",
    "initial_tier", "cpu",         "host", "ranks", "issue_ahead", "copies_in_flight", "price"};
const std::vector<std::string> rank_keys = {"gpu",          "tiers", "resources", "links",       "staging",
                                            "initial_tier", "cpu",   "host",      "issue_ahead", "copies_in_flight"};

// One rank of a machine.
class RankReader {
 public:
  // Of `count` ranks; layers: the rank's own entry if it has one, the file, what it builds on.
  RankReader(std::uint32_t rank, std::uint32_t count) : rank_(rank), rank_count_(count) {}

  MachineSpec read(const YamlMap& keys) {
    if (keys.get("gpu")) read_gpu(keys.layers_of("gpu"));
    keys.require("tiers");
    for (const auto& layers : keys.elements("tiers")) read_tier(layers);
    for (const auto& layers : keys.elements("resources")) read_resource(layers);
    for (const auto& layers : keys.elements("links")) read_link(layers);
    if (keys.get("staging")) read_staging(keys.layers_of("staging"));
    if (const auto value = keys.get("initial_tier")) machine_.initial_tier = tier(*value, "initial_tier");
    if (keys.get("cpu")) read_cpu(keys.layers_of("cpu"));
    if (keys.get("host")) {
      const YamlMap host(keys.layers_of("host"), "host", {"per_module", "per_transfer"});
      if (const auto value = host.get("per_module")) {
        machine_.host_module_ns = figures_.duration(*value, "host.per_module");
      }
      if (const auto value = host.get("per_transfer")) {
        machine_.host_transfer_ns = figures_.duration(*value, "host.per_transfer");
      }
    }
    if (const auto value = keys.get("issue_ahead")) {
      machine_.issue_ahead = figures_.count(*value, "issue_ahead", 1, 1000);
    }
    if (const auto value = keys.get("copies_in_flight")) {
      machine_.copies_in_flight = figures_.count(*value, "copies_in_flight", 1, 1000);
    }
    lane_uses();
    machine_.facts = figures_.take_facts();
    return std::move(machine_);
  }

 private:
  // "all" or how many consecutive ranks share one; 1 where nothing is shared.
  std::uint32_t shared_by(const YamlMap& keys, const std::string& path) const {
    const auto value = keys.get("shared_by");
    if (!value) return 1;
    if (value->node.IsScalar() && value->node.Scalar() == "all") return rank_count_;
    FigureReader count;
    const std::uint32_t ranks = count.count(*value, path + "shared_by (a count of ranks, or all)", 1, max_ranks);
    if (ranks > rank_count_) {
      fail_at(*value, path + "shared_by: the machine has no more than " + std::to_string(rank_count_) + " ranks");
    }
    return ranks;
  }

  // Of how many ranks this one's part is, where each `shared` of them share something: the last group may be smaller.
  std::uint32_t sharers(std::uint32_t shared) const {
    const std::uint32_t first = rank_ / shared * shared;
    return std::min(shared, rank_count_ - first);
  }

  TierId tier(const YamlValue& value, const std::string& path) const {
    std::vector<std::string> names;
    for (const Tier& candidate : machine_.tiers) names.push_back(candidate.name);
    const std::string wanted = figures_.text(value, path);
    const auto found = std::find(names.begin(), names.end(), wanted);
    if (found == names.end()) {
      fail_at(value, path + ": there is no tier '" + wanted + "'; valid are " + join_names(names));
    }
    return static_cast<TierId>(found - names.begin());
  }

  std::vector<std::uint8_t> resources(const YamlValue& value, const std::string& path) const {
    std::vector<std::string> names;
    for (const Resource& candidate : machine_.resources) names.push_back(candidate.name);
    std::vector<std::uint8_t> used;
    each_item(value, path, [&](const YamlValue& item) {
      const std::string wanted = figures_.text(item, path);
      const auto found = std::find(names.begin(), names.end(), wanted);
      if (found == names.end()) {
        fail_at(item, path + ": there is no resource '" + wanted + "'; valid are " + join_names(names));
      }
      const auto index = static_cast<std::uint8_t>(found - names.begin());
      if (std::find(used.begin(), used.end(), index) != used.end()) {
        fail_at(item, path + ": '" + wanted + "' stands twice");
      }
      used.push_back(index);
    });
    return used;
  }

  // Tiers and links are keys of the same objects in results.
  void claim_name(const YamlValue& value, const std::string& name) {
    for (const Tier& other : machine_.tiers) {
      if (other.name == name) fail_at(value, "'" + name + "' is the name of a tier already");
    }
    for (const Link& other : machine_.links) {
      if (other.name == name) fail_at(value, "'" + name + "' is the name of a link already");
    }
  }

  // Either the GPU's name, or a map. The resources come later in the file: their names are kept until then.
  void read_gpu(std::vector<YamlValue> layers) {
    const auto plain = std::find_if(layers.begin(), layers.end(), [](const YamlValue& v) { return !v.node.IsMap(); });
    if (plain != layers.end()) machine_.gpu = figures_.text(*plain, "gpu");
    layers.erase(plain, layers.end());
    if (layers.empty()) return;
    const YamlMap keys(layers, "gpu", {"name", "uses"});
    if (const auto value = keys.get("name")) machine_.gpu = figures_.text(*value, "gpu.name");
    lane_values_[0] = keys.get("uses");
  }

  void lane_uses() {
    const char* const paths[] = {"gpu.uses", "cpu.uses"};
    for (std::size_t lane = 0; lane < lane_values_.size(); ++lane) {
      if (lane_values_[lane]) machine_.lane_uses[lane] = resources(*lane_values_[lane], paths[lane]);
    }
  }

  void read_tier(const std::vector<YamlValue>& layers) {
    const YamlMap keys(layers, "a tier",
                       {"name", "kind", "capacity", "reserved", "granularity", "directories", "io_block", "io_depth",
                        "checksums", "shared_by", "allocation", "tbw", "allocator", "expand"});
    Tier result;
    result.name = figures_.name(keys.require("name"), "tiers.name");
    claim_name(keys.require("name"), result.name);
    if (machine_.tiers.size() == max_tiers) fail_at(keys.top(), "more than " + std::to_string(max_tiers) + " tiers");
    const std::string path = "tiers." + result.name + ".";
    const YamlValue kind = keys.require("kind");
    const std::vector<std::string> kinds = {"gpu", "cpu", "nvme"};
    result.kind = static_cast<TierKind>(figures_.choice(kind, path + "kind", kinds));
    result.capacity = figures_.capacity(keys.require("capacity"), path + "capacity");
    if (const auto reserved = keys.get("reserved")) {
      const Bytes taken = figures_.bytes(*reserved, path + "reserved");
      if (taken >= result.capacity) fail_at(*reserved, path + "reserved: leaves nothing of the capacity");
      if (result.capacity != unlimited) result.capacity -= taken;
    }
    const std::uint32_t shared = shared_by(keys, path);
    if (shared > 1 && result.kind == TierKind::gpu) {
      fail_at(keys.require("shared_by"), path + "shared_by: each rank has its own GPU");
    }
    if (result.capacity != unlimited) result.capacity /= sharers(shared);
    if (result.capacity == 0) fail_at(keys.require("capacity"), path + "capacity: must be above 0");
    if (const auto granularity = keys.get("granularity")) {
      result.granularity = figures_.bytes(*granularity, path + "granularity");
      if (!std::has_single_bit(result.granularity)) {
        fail_at(*granularity, path + "granularity: must be a power of two");
      }
    }
    if (const auto directories = keys.get("directories")) {
      if (result.kind != TierKind::nvme) fail_at(*directories, path + "directories: only tiers of kind nvme have them");
      each_item(*directories, path + "directories", [&](const YamlValue& item) {
        result.directories.push_back(figures_.text(item, path + "directories"));
        if (result.directories.back().empty()) fail_at(item, path + "directories: an empty path");
      });
    }
    for (const char* key : {"io_block", "io_depth", "checksums", "tbw"}) {
      const auto value = keys.get(key);
      if (value && result.kind != TierKind::nvme) fail_at(*value, path + key + ": only tiers of kind nvme have it");
    }
    if (const auto value = keys.get("io_block")) {
      result.io_block_bytes = figures_.bytes(*value, path + "io_block");
      if (result.io_block_bytes == 0 || result.io_block_bytes % (4 * KiB) != 0 || result.io_block_bytes > GiB) {
        fail_at(*value, path + "io_block: must be a multiple of 4KiB up to 1GiB");
      }
    }
    if (const auto value = keys.get("io_depth")) result.io_depth = figures_.count(*value, path + "io_depth", 1, 1024);
    if (const auto value = keys.get("checksums")) {
      result.checksums = figures_.choice(*value, path + "checksums", {"false", "true"}) == 1;
    }
    if (const auto value = keys.get("tbw")) {
      result.rated_written_bytes = figures_.capacity(*value, path + "tbw", "TB");
      if (result.rated_written_bytes == 0) fail_at(*value, path + "tbw: must be above 0");
    }
    if (const auto value = keys.get("allocator")) {
      if (result.kind != TierKind::gpu) fail_at(*value, path + "allocator: only tiers of kind gpu have it");
      const bool caching = figures_.choice(*value, path + "allocator", {"exact", "caching"}) == 1;
      result.allocator = caching ? AllocatorKind::caching : AllocatorKind::exact;
    }
    if (const auto value = keys.get("expand")) {
      if (result.kind != TierKind::gpu) fail_at(*value, path + "expand: only tiers of kind gpu have it");
      result.expand_bandwidth = figures_.bandwidth(*value, path + "expand");
    }
    if (keys.get("allocation")) result.allocation = allocation(keys.layers_of("allocation"), path + "allocation");
    machine_.tiers.push_back(std::move(result));
  }

  AllocationCost allocation(const std::vector<YamlValue>& layers, const std::string& path) {
    const YamlMap keys(layers, path, {"per_call", "bandwidth", "round"});
    AllocationCost cost;
    if (const auto value = keys.get("per_call")) cost.per_call_ns = figures_.duration(*value, path + ".per_call");
    if (const auto value = keys.get("bandwidth")) cost.bandwidth = figures_.bandwidth(*value, path + ".bandwidth");
    if (const auto value = keys.get("round")) {
      cost.power_of_two = figures_.choice(*value, path + ".round", {"exact", "power_of_two"}) == 1;
    }
    return cost;
  }

  void read_resource(const std::vector<YamlValue>& layers) {
    const YamlMap keys(layers, "a resource", {"name", "bandwidth", "iops", "block", "shared_by"});
    Resource result;
    result.name = figures_.name(keys.require("name"), "resources.name");
    const std::string path = "resources." + result.name + ".";
    for (const Resource& other : machine_.resources) {
      if (other.name == result.name) {
        fail_at(keys.require("name"), "'" + result.name + "' is the name of a resource already");
      }
    }
    if (machine_.resources.size() == 255) fail_at(keys.top(), "more than 255 resources");
    result.bandwidth = effective_bandwidth(keys, path);
    const std::uint32_t shared = shared_by(keys, path);
    if (shared > 1) {
      result.shared = static_cast<std::uint32_t>(machine_.resources.size()) * max_ranks + rank_ / shared;
    }
    machine_.resources.push_back(std::move(result));
  }

  void read_link(const std::vector<YamlValue>& layers) {
    const YamlMap keys(layers, "a link",
                       {"name", "from", "to", "bandwidth", "latency", "uses", "queue_depth", "devices", "stripe",
                        "sustained", "burst", "iops", "block", "paged", "pageable"});
    Link result;
    result.name = figures_.name(keys.require("name"), "links.name");
    claim_name(keys.require("name"), result.name);
    if (machine_.links.size() == max_links) fail_at(keys.top(), "more than " + std::to_string(max_links) + " links");
    const std::string path = "links." + result.name + ".";
    result.from = tier(keys.require("from"), path + "from");
    result.to = tier(keys.require("to"), path + "to");
    if (result.from == result.to) fail_at(keys.top(), "link '" + result.name + "' joins a tier with itself");
    if (machine_.link_between(result.from, result.to) != no_link) {
      fail_at(keys.top(), "a link from " + machine_.tiers[result.from].name + " to " + machine_.tiers[result.to].name +
                              " is there already");
    }
    result.bandwidth = effective_bandwidth(keys, path);
    if (const auto value = keys.get("latency")) result.latency_ns = figures_.duration(*value, path + "latency");
    if (const auto value = keys.get("uses")) result.uses = resources(*value, path + "uses");
    if (const auto value = keys.get("queue_depth")) {
      result.queue_depth = figures_.count(*value, path + "queue_depth", 1, 65536);
    }
    if (const auto value = keys.get("paged")) {
      result.paged_efficiency = figures_.positive_number(*value, path + "paged");
      if (result.paged_efficiency > 1) fail_at(*value, path + "paged: a share of the bandwidth, at most 1");
    }
    if (const auto value = keys.get("pageable")) {
      result.pageable_bandwidth = figures_.bandwidth(*value, path + "pageable");
      if (result.pageable_bandwidth > result.bandwidth) fail_at(*value, path + "pageable: above the link's bandwidth");
    }
    read_storage(keys, path, result);
    machine_.links.push_back(std::move(result));
  }

  // min(bandwidth, iops × block). Vendors that publish no streaming rate publish that many small requests a second,
  // which is a lower bound of it: a file that builds on another and states a bandwidth knows better than the other's.
  BytesPerSecond effective_bandwidth(const YamlMap& keys, const std::string& path) {
    if (keys.stands_above("bandwidth", "iops") && keys.stands_above("bandwidth", "block")) {
      return figures_.bandwidth(keys.require("bandwidth"), path + "bandwidth");
    }
    const auto iops = keys.get("iops"), block = keys.get("block");
    if (iops.has_value() != block.has_value()) {
      fail_at(iops ? *iops : *block, path + "iops and block: either both or neither");
    }
    if (!iops) return figures_.bandwidth(keys.require("bandwidth"), path + "bandwidth");
    const double rate = figures_.positive_number(*iops, path + "iops");
    const Bytes request = figures_.bytes(*block, path + "block");
    const double small = std::floor(rate * static_cast<double>(request));
    if (!(small >= 1 && small <= 0x1p60)) fail_at(*iops, path + "iops × block: must be from 1 B/s to 1 EiB/s");
    const std::optional<Fact> rate_fact = figures_.take_fact(path + "iops");
    figures_.take_fact(path + "block");
    const auto small_requests = static_cast<BytesPerSecond>(small);
    if (const auto value = keys.get("bandwidth")) {
      const BytesPerSecond streaming = figures_.bandwidth(*value, path + "bandwidth");
      if (streaming <= small_requests) return streaming;
      figures_.take_fact(path + "bandwidth");
    }
    Fact fact = rate_fact.value_or(Fact{});
    fact.path = path + "bandwidth";
    fact.confidence = "estimated";
    fact.source += (fact.source.empty() ? "" : "; ") + std::string("as requests of ") + format_bytes(request);
    figures_.add_fact(std::move(fact));
    return small_requests;
  }

  void read_storage(const YamlMap& keys, const std::string& path, Link& link) {
    const auto pair = [&](const char* first, const char* second) {
      const auto a = keys.get(first), b = keys.get(second);
      if (a.has_value() != b.has_value()) {
        fail_at(a ? *a : *b, path + first + " and " + second + ": either both or neither");
      }
      return a.has_value();
    };
    if (pair("devices", "stripe")) {
      link.devices = figures_.count(keys.require("devices"), path + "devices", 1, 64);
      link.stripe_bytes = figures_.bytes(keys.require("stripe"), path + "stripe");
      if (link.stripe_bytes == 0) fail_at(keys.require("stripe"), path + "stripe: must be above 0");
    }
    if (pair("sustained", "burst")) {
      const YamlValue sustained = keys.require("sustained");
      link.sustained_bandwidth = figures_.bandwidth(sustained, path + "sustained");
      if (link.sustained_bandwidth > link.bandwidth) fail_at(sustained, path + "sustained: above the link's bandwidth");
      link.burst_bytes = figures_.bytes(keys.require("burst"), path + "burst");
    }
  }

  void read_staging(const std::vector<YamlValue>& layers) {
    const YamlMap keys(layers, "staging", {"tier", "count", "bytes"});
    machine_.staging.tier = tier(keys.require("tier"), "staging.tier");
    machine_.staging.count = figures_.count(keys.require("count"), "staging.count", 1, 1'000'000);
    machine_.staging.bytes = figures_.bytes(keys.require("bytes"), "staging.bytes");
    if (machine_.staging.bytes == 0) fail_at(keys.require("bytes"), "staging.bytes: must be above 0");
  }

  void read_cpu(const std::vector<YamlValue>& layers) {
    const YamlMap keys(layers, "cpu", {"adam_parameters_per_second", "tflops", "bandwidth", "shared_by", "uses"});
    const std::uint32_t shared = shared_by(keys, "cpu.");
    if (const auto rate = keys.get("adam_parameters_per_second")) {
      machine_.cpu.adam_parameters_per_second =
          figures_.positive_number(*rate, "cpu.adam_parameters_per_second") / sharers(shared);
    }
    const auto tflops = keys.get("tflops"), bandwidth = keys.get("bandwidth");
    if (tflops.has_value() != bandwidth.has_value()) {
      fail_at(tflops ? *tflops : *bandwidth, "cpu.tflops and bandwidth: either both or neither");
    }
    if (tflops) {
      machine_.cpu.flops_per_second = figures_.positive_number(*tflops, "cpu.tflops") * 1e12 / sharers(shared);
      machine_.cpu.bandwidth = figures_.bandwidth(*bandwidth, "cpu.bandwidth") / sharers(shared);
    }
    lane_values_[1] = keys.get("uses");
  }

  std::uint32_t rank_, rank_count_;
  FigureReader figures_;
  std::array<std::optional<YamlValue>, 2> lane_values_;
  MachineSpec machine_;
};

// A file and those it builds on.
class MachineReader {
 public:
  MachineReader(std::string_view text, const std::string& file) { load(text, file); }
  MachineReader(const YAML::Node& root, const std::string& file) { load(root, file); }

  MachineSpec read() {
    std::vector<YamlValue> layers;
    for (const auto& source : sources_) layers.push_back({source->root, &source->file});
    const YamlMap keys(layers, "a machine", machine_keys);
    const std::vector<std::optional<YamlValue>> entries = rank_entries(keys);
    std::vector<MachineSpec> ranks;
    for (const auto& entry : entries) {
      std::vector<YamlValue> rank_layers = layers;
      if (entry) {
        const YamlMap known({*entry}, "a rank", rank_keys);
        rank_layers.insert(rank_layers.begin(), *entry);
      }
      RankReader reader(static_cast<std::uint32_t>(ranks.size()), static_cast<std::uint32_t>(entries.size()));
      ranks.push_back(reader.read(YamlMap(std::move(rank_layers), "a machine", machine_keys)));
      describe(keys, ranks.back());
      ranks.back().validate();
      check_alike(entry ? *entry : keys.top(), ranks.front(), ranks.back());
    }
    MachineSpec machine = std::move(ranks.front());
    machine.other_ranks.assign(std::make_move_iterator(ranks.begin() + 1), std::make_move_iterator(ranks.end()));
    return machine;
  }

 private:
  struct Source {
    std::string file;
    YAML::Node root;
  };

  void load(std::string_view text, const std::string& file) {
    YAML::Node root;
    try {
      root = YAML::Load(std::string(text));
    } catch (const YAML::Exception& error) {
      // -1: the whole file.
      const int line = error.mark.line;
      throw Error(file, line < 0 ? 0 : static_cast<std::uint64_t>(line) + 1, "not valid YAML: " + error.msg);
    }
    load(root, file);
  }

  void load(const YAML::Node& node, const std::string& file) {
    auto source = std::make_unique<Source>(Source{file, node});
    const YamlValue root{source->root, &source->file};
    if (!source->root.IsMap())
      fail_at(root, "expected a map with the keys of a machine, found " + tencache::describe(root.node));
    sources_.push_back(std::move(source));
    const auto base = YamlMap({root}, "a machine", machine_keys).get("base");
    if (!base) return;
    if (sources_.size() > max_base_files) fail_at(*base, "base: files that build on one another in a circle");
    const std::string name = FigureReader().text(*base, "base");
    std::string base_file, base_text;
    try {
      base_file = find_base_machine(name, file);
      base_text = read_machine_text(base_file);
    } catch (const Error& error) {
      fail_at(*base, "base: " + std::string(error.what()));
    }
    load(base_text, base_file);
  }

  // What is different of each rank, if anything.
  static std::vector<std::optional<YamlValue>> rank_entries(const YamlMap& keys) {
    const auto ranks = keys.get("ranks");
    if (!ranks) return {std::nullopt};
    if (!ranks->node.IsSequence())
      return std::vector<std::optional<YamlValue>>(FigureReader().count(*ranks, "ranks", 1, max_ranks));
    std::vector<std::optional<YamlValue>> entries;
    each_item(*ranks, "ranks", [&](const YamlValue& item) { entries.emplace_back(item); });
    if (entries.empty() || entries.size() > max_ranks) {
      fail_at(*ranks, "ranks: from 1 to " + std::to_string(max_ranks) + " are possible");
    }
    return entries;
  }

  // What all ranks have in common.
  void describe(const YamlMap& keys, MachineSpec& machine) const {
    FigureReader figures;
    const YamlMap own({keys.top()}, "a machine", machine_keys);  // a name is not taken over
    machine.name = figures.name(own.require("name"), "name");
    if (const auto value = keys.get("description")) machine.description = figures.text(*value, "description");
    machine.file = sources_.front()->file;
    for (std::size_t i = 1; i < sources_.size(); ++i) machine.base_files.push_back(sources_[i]->file);
    if (keys.get("price")) {
      const YamlMap price(keys.layers_of("price"), "price", {"on_demand", "spot", "currency"});
      if (const auto value = price.get("on_demand")) {
        machine.price.on_demand = figures.positive_number(*value, "price.on_demand");
      }
      if (const auto value = price.get("spot")) machine.price.spot = figures.positive_number(*value, "price.spot");
      if (const auto value = price.get("currency")) machine.price.currency = figures.name(*value, "price.currency");
    }
    for (Fact& fact : figures.take_facts()) machine.facts.push_back(std::move(fact));
    std::sort(machine.facts.begin(), machine.facts.end(), [](const Fact& a, const Fact& b) { return a.path < b.path; });
  }

  // Results have one set of tiers and links for all ranks, and what is shared has one bandwidth.
  static void check_alike(const YamlValue& entry, const MachineSpec& first, const MachineSpec& rank) {
    const auto names = [](const auto& parts) {
      std::vector<std::string> result;
      for (const auto& part : parts) result.push_back(part.name);
      return result;
    };
    if (names(first.tiers) != names(rank.tiers) || names(first.links) != names(rank.links) ||
        names(first.resources) != names(rank.resources)) {
      fail_at(entry, "ranks: all have the same tiers, links and resources, of what size and rate ever");
    }
    for (std::size_t i = 0; i < first.resources.size(); ++i) {
      const Resource &a = first.resources[i], &b = rank.resources[i];
      if ((a.shared != none || b.shared != none) &&
          (a.bandwidth != b.bandwidth || (a.shared == none) != (b.shared == none))) {
        fail_at(entry, "ranks: resource '" + a.name + "' is shared and cannot differ");
      }
    }
  }

  std::vector<std::unique_ptr<Source>> sources_;  // the file, then what it builds on
};

}  // namespace

MachineSpec parse_machine(std::string_view text, const std::string& file) { return MachineReader(text, file).read(); }

MachineSpec machine_of_node(const YAML::Node& root, const std::string& file) {
  return MachineReader(root, file).read();
}

}  // namespace tencache
