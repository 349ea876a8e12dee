#include "configs/machine_yaml.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>

#include "configs/machine_lookup.h"
#include "configs/machine_node.h"
#include "configs/machine_overrides.h"
#include "configs/yaml_layers.h"
#include "core/error.h"
#include "core/splitmix.h"

namespace tencache {
namespace {

constexpr std::uint32_t max_ranks = 64;
constexpr std::uint32_t max_base_files = 8;
constexpr Nanoseconds capacity_draws = 1024;  // then they repeat

const std::vector<std::string> machine_keys = {
    "name",         "description", "base", "gpu",   "tiers",       "resources",        "links",     "staging",
    "initial_tier", "cpu",         "host", "ranks", "issue_ahead", "copies_in_flight", "run_ahead", "price"};
const std::vector<std::string> rank_keys = {"gpu",          "tiers", "resources", "links",       "staging",
                                            "initial_tier", "cpu",   "host",      "issue_ahead", "copies_in_flight",
                                            "run_ahead"};

template <typename Part>
std::vector<std::string> names_of(const std::vector<Part>& parts) {
  std::vector<std::string> names;
  for (const Part& part : parts) names.push_back(part.name);
  return names;
}

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
    if (const auto value = keys.get("initial_tier")) {
      machine_.initial_tier = tier(*value, "initial_tier");
    } else {
      fail_at(keys.top(), "key 'initial_tier' is missing in a machine: write the tier that data lie in at the start, " +
                              join_names(names_of(machine_.tiers)));
    }
    if (keys.get("cpu")) read_cpu(keys.layers_of("cpu"));
    if (keys.get("host")) {
      const YamlMap host(keys.layers_of("host"), "host", {"per_module", "per_transfer", "page_lock"});
      figures_.take(host, "per_module", "host.", machine_.host.per_module_ns, &FigureReader::duration);
      figures_.take(host, "per_transfer", "host.", machine_.host.per_transfer_ns, &FigureReader::duration);
      figures_.take(host, "page_lock", "host.", machine_.host.lock_bandwidth, &FigureReader::bandwidth);
    }
    if (keys.get("run_ahead")) {
      const YamlMap run_ahead(keys.layers_of("run_ahead"), "run_ahead", {"ops", "time"});
      figures_.take(run_ahead, "ops", "run_ahead.", machine_.run_ahead.ops, &FigureReader::count, 0, most_run_ahead);
      figures_.take(run_ahead, "time", "run_ahead.", machine_.run_ahead.time_ns, &FigureReader::duration);
    }
    figures_.take(keys, "issue_ahead", "", machine_.issue_ahead, &FigureReader::count, 1, 1000);
    figures_.take(keys, "copies_in_flight", "", machine_.copies_in_flight, &FigureReader::count, 1, 1000);
    lane_uses();
    for (const auto& [changing, value] : changing_) {
      const bool staged = machine_.staging.count > 0 && machine_.staging.tier == changing;
      if (!staged && machine_.initial_tier != changing) continue;
      fail_at(value, "tiers." + machine_.tiers[changing].name +
                         ".capacity_over_time: " + (staged ? "staging buffers lie there" : "tensors start there") +
                         ", and stay where the tier shrinks; name another tier as " +
                         (staged ? "staging.tier" : "initial_tier"));
    }
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

  // The position of the part that the value names. `what`: "tier".
  template <typename Part>
  std::uint8_t named(const std::vector<Part>& parts, const char* what, const YamlValue& value,
                     const std::string& path) const {
    const std::string wanted = figures_.text(value, path);
    const auto found = std::ranges::find(parts, wanted, &Part::name);
    if (found != parts.end()) return static_cast<std::uint8_t>(found - parts.begin());
    fail_at(value, path + ": there is no " + what + " '" + wanted + "'; valid are " + join_names(names_of(parts)));
  }
  TierId tier(const YamlValue& value, const std::string& path) const {
    return named(machine_.tiers, "tier", value, path);
  }
  std::vector<std::uint8_t> resources(const YamlValue& value, const std::string& path) const {
    std::vector<std::uint8_t> used;
    each_item(value, path, [&](const YamlValue& item) {
      const std::uint8_t index = named(machine_.resources, "resource", item, path);
      if (std::ranges::find(used, index) != used.end()) {
        fail_at(item, path + ": '" + machine_.resources[index].name + "' stands twice");
      }
      used.push_back(index);
    });
    return used;
  }

  template <typename Part>
  static void refuse_name_of(const std::vector<Part>& parts, const char* what, const YamlValue& value,
                             const std::string& name) {
    if (std::ranges::find(parts, name, &Part::name) == parts.end()) return;
    fail_at(value, "'" + name + "' is the name of a " + what + " already");
  }
  // Tiers and links are keys of the same objects in results.
  void claim_name(const YamlValue& value, const std::string& name) const {
    refuse_name_of(machine_.tiers, "tier", value, name);
    refuse_name_of(machine_.links, "link", value, name);
  }

  // Either the GPU's name, or a map. The resources come later in the file: their names are kept until then.
  void read_gpu(std::vector<YamlValue> layers) {
    const auto plain = std::ranges::find_if(layers, [](const YamlValue& v) { return !v.node.IsMap(); });
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
    const YamlMap keys(
        layers, "a tier",
        {"name", "kind", "capacity", "reserved", "granularity", "directories", "io_block", "io_depth", "checksums",
         "shared_by", "allocation", "tbw", "allocator", "bandwidth", "expand", "capacity_over_time"});
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
    const auto granularity = figures_.take(keys, "granularity", path, result.granularity, &FigureReader::bytes);
    if (!std::has_single_bit(result.granularity)) fail_at(*granularity, path + "granularity: must be a power of two");
    if (const auto directories = keys.get("directories")) {
      if (result.kind != TierKind::nvme) fail_at(*directories, path + "directories: only tiers of kind nvme have them");
      each_item(*directories, path + "directories", [&](const YamlValue& item) {
        result.directories.push_back(figures_.text(item, path + "directories"));
        if (result.directories.back().empty()) fail_at(item, path + "directories: an empty path");
      });
    }
    for (const auto& [key, kind_of_it] : {std::pair("io_block", TierKind::nvme),
                                          {"io_depth", TierKind::nvme},
                                          {"checksums", TierKind::nvme},
                                          {"tbw", TierKind::nvme},
                                          {"allocator", TierKind::gpu},
                                          {"bandwidth", TierKind::gpu},
                                          {"expand", TierKind::gpu}}) {
      const auto value = keys.get(key);
      if (!value || result.kind == kind_of_it) continue;
      fail_at(*value, path + key + ": only tiers of kind " + std::string(to_string(kind_of_it)) + " have it");
    }
    if (const auto value = figures_.take(keys, "io_block", path, result.io_block_bytes, &FigureReader::bytes)) {
      if (result.io_block_bytes == 0 || result.io_block_bytes % (4 * KiB) != 0 || result.io_block_bytes > GiB) {
        fail_at(*value, path + "io_block: must be a multiple of 4KiB up to 1GiB");
      }
    }
    figures_.take(keys, "io_depth", path, result.io_depth, &FigureReader::count, 1, 1024);
    if (const auto value = keys.get("checksums")) {
      result.checksums = figures_.choice(*value, path + "checksums", {"false", "true"}) == 1;
    }
    if (const auto value =
            figures_.take(keys, "tbw", path, result.rated_written_bytes, &FigureReader::capacity, "TB")) {
      if (result.rated_written_bytes == 0) fail_at(*value, path + "tbw: must be above 0");
    }
    if (const auto value = keys.get("allocator")) {
      result.allocator = gpu_allocators[figures_.choice(*value, path + "allocator", names_of(gpu_allocators))];
      if (result.allocator == AllocatorKind::movable && !machine_.tiers.empty()) {
        fail_at(*value, path + "allocator: chunks move in the first tier only");
      }
    }
    figures_.take(keys, "bandwidth", path, result.bandwidth, &FigureReader::bandwidth);
    figures_.take(keys, "expand", path, result.expand_bandwidth, &FigureReader::bandwidth);
    if (const auto value = keys.get("capacity_over_time")) {
      if (result.kind != TierKind::gpu || machine_.tiers.empty() || result.allocator != AllocatorKind::exact) {
        fail_at(*value, path +
                            "capacity_over_time: only a tier of kind gpu behind the first one, with allocator exact, "
                            "holds nothing that must stay where it shrinks");
      }
      result.over_time = over_time(keys.layers_of("capacity_over_time"), path + "capacity_over_time.", result.capacity);
      changing_.emplace_back(static_cast<TierId>(machine_.tiers.size()), *value);
    }
    if (keys.get("allocation")) result.allocation = allocation(keys.layers_of("allocation"), path + "allocation.");
    machine_.tiers.push_back(std::move(result));
  }

  CapacityOverTime over_time(const std::vector<YamlValue>& layers, const std::string& path, Bytes whole) {
    const YamlMap keys(layers, path.substr(0, path.size() - 1), {"changes", "period", "draws"});
    const auto capacity_of = [&](const YamlValue& value, const std::string& key) {
      const Bytes bytes = figures_.bytes(value, path + key);
      if (bytes > whole) fail_at(value, path + key + ": above the tier's capacity of " + format_bytes(whole));
      return bytes;
    };
    CapacityOverTime result;
    if (const auto draws = keys.get("draws")) {
      if (const auto other = keys.get("changes"); other || keys.get("period")) {
        fail_at(*draws, path + "draws: stands alone; leave out changes and period");
      }
      const YamlMap drawn({*draws}, path + "draws", {"seed", "every", "least", "most"});
      std::uint64_t state = 0;
      if (const auto seed = drawn.get("seed")) state = figures_.count(*seed, path + "draws.seed", 0, 0xffff'ffff);
      const YamlValue every = drawn.require("every");
      const Nanoseconds step_ns = figures_.duration(every, path + "draws.every");
      if (step_ns == 0) fail_at(every, path + "draws.every: must be above 0");
      const auto least = drawn.get("least"), most = drawn.get("most");
      const Bytes low = least ? capacity_of(*least, "draws.least") : 0;
      const Bytes high = most ? capacity_of(*most, "draws.most") : whole;
      if (low > high) fail_at(*draws, path + "draws: least is above most");
      for (Nanoseconds number = 1; number < capacity_draws; ++number) {
        result.changes.push_back({number * step_ns, low + splitmix(state) % (high - low + 1)});
      }
      result.period_ns = capacity_draws * step_ns;
      return result;
    }
    each_item(keys.require("changes"), path + "changes", [&](const YamlValue& item) {
      const YamlMap change({item}, path + "changes", {"at", "capacity"});
      const YamlValue at = change.require("at");
      const Nanoseconds at_ns = figures_.duration(at, path + "changes.at");
      if (at_ns <= (result.any() ? result.changes.back().at_ns : 0)) {
        fail_at(at, path + "changes.at: times rise, from above 0");
      }
      result.changes.push_back({at_ns, capacity_of(change.require("capacity"), "changes.capacity")});
    });
    if (!result.any()) fail_at(keys.top(), path + "changes: is empty; leave the key out");
    const auto period = figures_.take(keys, "period", path, result.period_ns, &FigureReader::duration);
    if (period && result.period_ns <= result.changes.back().at_ns) {
      fail_at(*period, path + "period: must be longer than the last change's time");
    }
    return result;
  }

  AllocationCost allocation(const std::vector<YamlValue>& layers, const std::string& path) {
    const YamlMap keys(layers, path.substr(0, path.size() - 1), {"per_call", "bandwidth", "round"});
    AllocationCost cost;
    figures_.take(keys, "per_call", path, cost.per_call_ns, &FigureReader::duration);
    figures_.take(keys, "bandwidth", path, cost.bandwidth, &FigureReader::bandwidth);
    if (const auto value = keys.get("round")) {
      cost.power_of_two = figures_.choice(*value, path + "round", {"exact", "power_of_two"}) == 1;
    }
    return cost;
  }

  void read_resource(const std::vector<YamlValue>& layers) {
    const YamlMap keys(layers, "a resource", {"name", "bandwidth", "iops", "block", "shared_by"});
    Resource result;
    result.name = figures_.name(keys.require("name"), "resources.name");
    const std::string path = "resources." + result.name + ".";
    refuse_name_of(machine_.resources, "resource", keys.require("name"), result.name);
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
    figures_.take(keys, "latency", path, result.latency_ns, &FigureReader::duration);
    if (const auto value = keys.get("uses")) result.uses = resources(*value, path + "uses");
    figures_.take(keys, "queue_depth", path, result.queue_depth, &FigureReader::count, 1, 65536);
    const auto paged = figures_.take(keys, "paged", path, result.paged_efficiency, &FigureReader::positive_number);
    if (paged && result.paged_efficiency > 1) fail_at(*paged, path + "paged: a share of the bandwidth, at most 1");
    const auto pageable = figures_.take(keys, "pageable", path, result.pageable_bandwidth, &FigureReader::bandwidth);
    if (result.pageable_bandwidth > result.bandwidth) fail_at(*pageable, path + "pageable: above the link's bandwidth");
    read_storage(keys, path, result);
    machine_.links.push_back(std::move(result));
  }

  // min(bandwidth, iops × block). Vendors that publish no streaming rate publish that many small requests a second,
  // which is a lower bound of it: a file that builds on another and states a bandwidth knows better than the other's.
  BytesPerSecond effective_bandwidth(const YamlMap& keys, const std::string& path) {
    if (keys.stands_above("bandwidth", "iops") && keys.stands_above("bandwidth", "block")) {
      return figures_.bandwidth(keys.require("bandwidth"), path + "bandwidth");
    }
    if (!has_both(keys, path, "iops", "block")) {
      return figures_.bandwidth(keys.require("bandwidth"), path + "bandwidth");
    }
    const double rate = figures_.positive_number(keys.require("iops"), path + "iops");
    const Bytes request = figures_.bytes(keys.require("block"), path + "block");
    const double small = std::floor(rate * static_cast<double>(request));
    if (!(small >= 1 && small <= 0x1p60))
      fail_at(keys.require("iops"), path + "iops × block: must be from 1 B/s to 1 EiB/s");
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

  static bool has_both(const YamlMap& keys, const std::string& path, const char* first, const char* second) {
    const auto a = keys.get(first), b = keys.get(second);
    if (a.has_value() != b.has_value()) {
      fail_at(a ? *a : *b, path + first + " and " + second + ": either both or neither");
    }
    return a.has_value();
  }

  void read_storage(const YamlMap& keys, const std::string& path, Link& link) {
    if (has_both(keys, path, "devices", "stripe")) {
      link.devices = figures_.count(keys.require("devices"), path + "devices", 1, 64);
      link.stripe_bytes = figures_.bytes(keys.require("stripe"), path + "stripe");
      if (link.stripe_bytes == 0) fail_at(keys.require("stripe"), path + "stripe: must be above 0");
    }
    if (has_both(keys, path, "sustained", "burst")) {
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
    if (has_both(keys, "cpu.", "tflops", "bandwidth")) {
      const double tflops = figures_.positive_number(keys.require("tflops"), "cpu.tflops");
      machine_.cpu.flops_per_second = tflops * 1e12 / sharers(shared);
      machine_.cpu.bandwidth = figures_.bandwidth(keys.require("bandwidth"), "cpu.bandwidth") / sharers(shared);
    }
    lane_values_[1] = keys.get("uses");
  }

  std::uint32_t rank_, rank_count_;
  FigureReader figures_;
  std::array<std::optional<YamlValue>, 2> lane_values_;
  std::vector<std::pair<TierId, YamlValue>> changing_;  // tiers whose capacities change
  MachineSpec machine_;
};

// A file and those it builds on.
class MachineReader {
 public:
  MachineReader(std::string_view text, const std::string& file) { load(load_yaml(text, file), file); }
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

  void load(const YAML::Node& node, const std::string& file) {
    auto source = std::make_unique<Source>(Source{file, node});
    const YamlValue root{source->root, &source->file};
    if (!source->root.IsMap())
      fail_at(root, "expected a map with the keys of a machine, found " + tencache::describe(root.node));
    refuse_other_software(root);
    sources_.push_back(std::move(source));
    const auto base = YamlMap({root}, "a machine", machine_keys).get("base");
    if (!base) return;
    if (sources_.size() > max_base_files) fail_at(*base, "base: files that build on one another in a circle");
    const std::string name = FigureReader().text(*base, "base");
    MachineText found;
    try {
      found = find_machine(name, file);
    } catch (const Error& error) {
      fail_at(*base, "base: " + std::string(error.what()));
    }
    load(load_yaml(found.text, found.file), found.file);
  }

  // Files that configure what runs on a machine.
  static void refuse_other_software(const YamlValue& root) {
    const bool deepspeed = static_cast<bool>(root.node["zero_optimization"]);
    for (const char* key : {"zero_optimization", "deepspeed_config", "fsdp_config", "compute_environment"}) {
      if (!root.node[key]) continue;
      const std::string option = deepspeed ? "deepspeed=" : "accelerate=";
      fail_at({root.node[key], root.file},
              std::string("is a configuration of ") + (deepspeed ? "DeepSpeed" : "Accelerate") +
                  ", not a machine: give it as --with " + option + *root.file +
                  " to `tencache fit`, and the machine as -m (tencache machines, or -m here)");
    }
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
    figures.take(keys, "description", "", machine.description, &FigureReader::text);
    machine.file = sources_.front()->file;
    for (std::size_t i = 1; i < sources_.size(); ++i) machine.base_files.push_back(sources_[i]->file);
    // An own file that takes the price away has none, whatever a price table says of what it builds on.
    if (keys.is_null("price")) machine.price.currency.clear();
    if (keys.get("price")) {
      const YamlMap price(keys.layers_of("price"), "price", {"on_demand", "spot", "currency"});
      figures.take(price, "on_demand", "price.", machine.price.on_demand, &FigureReader::positive_number);
      figures.take(price, "spot", "price.", machine.price.spot, &FigureReader::positive_number);
      figures.take(price, "currency", "price.", machine.price.currency, &FigureReader::name);
    }
    for (Fact& fact : figures.take_facts()) machine.facts.push_back(std::move(fact));
    std::ranges::sort(machine.facts, {}, &Fact::path);
  }

  // Results have one set of tiers and links for all ranks, and what is shared has one bandwidth.
  static void check_alike(const YamlValue& entry, const MachineSpec& first, const MachineSpec& rank) {
    if (names_of(first.tiers) != names_of(rank.tiers) || names_of(first.links) != names_of(rank.links) ||
        names_of(first.resources) != names_of(rank.resources)) {
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
