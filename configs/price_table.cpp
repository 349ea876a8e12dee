#include "configs/price_table.h"

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "configs/shipped_files.h"
#include "configs/yaml_layers.h"
#include "core/error.h"
#include "core/parse_number.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

constexpr Bytes maximum_price_file_bytes = 16 * MiB;
constexpr double highest_price = 1e6;  // an hour; dearer ones are slips

class TableReader {
 public:
  explicit TableReader(const std::string& file) : file_(file) {}

  PriceTable read(const YAML::Node& root) {
    const YamlMap keys({{root, &file_}}, "a price table",
                       {"cloud", "region", "currency", "source", "retrieved", "confidence", "attached_storage",
                        "spot_interruptions_per_hour", "prices"});
    PriceTable table;
    table.file = file_;
    table.cloud = figures_.name(keys.require("cloud"), "cloud");
    if (const auto value = keys.get("region")) table.region = figures_.name(*value, "region");
    if (const auto value = keys.get("currency")) figures_.choice(*value, "currency", {"USD"});
    usual_.source = figures_.text(keys.require("source"), "source");
    usual_.retrieved = figures_.text(keys.require("retrieved"), "retrieved");
    const YamlValue confidence = keys.require("confidence");
    figures_.choice(confidence, "confidence", {"published", "measured", "estimated"});
    usual_.confidence = confidence.node.Scalar();
    table.storage = figure(keys, "attached_storage", "attached_storage");
    table.interruptions = figure(keys, "spot_interruptions_per_hour", "spot_interruptions_per_hour");
    const YamlValue prices = keys.require("prices");
    if (!prices.node.IsMap()) fail_at(prices, "prices: expected a map from machines to prices");
    for (const auto& entry : prices.node) {
      const std::string type = figures_.name({entry.first, &file_}, "prices");
      const YamlMap row({{entry.second, &file_}}, "the price of " + type, {"on_demand", "spot"});
      MachinePrice price{.on_demand = figure(row, "on_demand", type + ".on_demand"),
                         .spot = figure(row, "spot", type + ".spot")};
      if (!table.machines.emplace(type, std::move(price)).second) {
        fail_at({entry.first, &file_}, "'" + type + "' stands twice");
      }
    }
    return table;
  }

 private:
  std::optional<PriceFigure> figure(const YamlMap& keys, const char* key, const std::string& path) {
    const auto value = keys.get(key);
    if (!value) return std::nullopt;
    PriceFigure figure = usual_;
    figure.value = figures_.positive_number(*value, path);
    if (figure.value > highest_price) fail_at(*value, path + ": no machine costs that");
    if (const auto fact = figures_.take_fact(path)) {
      if (!fact->source.empty()) figure.source = fact->source;
      if (!fact->retrieved.empty()) figure.retrieved = fact->retrieved;
      figure.confidence = fact->confidence;
    }
    return figure;
  }

  const std::string& file_;
  FigureReader figures_;
  PriceFigure usual_;  // what a figure does not say itself
};

void set_fact(MachineSpec& machine, const std::string& path, const PriceFigure& figure) {
  std::erase_if(machine.facts, [&](const Fact& fact) { return fact.path == path; });
  machine.facts.push_back({.path = path,
                           .source = figure.source,
                           .confidence = figure.confidence,
                           .retrieved = figure.retrieved,
                           .spread = 0});
  std::ranges::sort(machine.facts, {}, &Fact::path);
}

void set_price(MachineSpec& machine, const MachinePrice& price) {
  if (price.on_demand || price.spot) machine.price.currency = "USD";
  if (price.on_demand) {
    machine.price.on_demand = price.on_demand->value;
    set_fact(machine, "price.on_demand", *price.on_demand);
  }
  if (price.spot) {
    machine.price.spot = price.spot->value;
    set_fact(machine, "price.spot", *price.spot);
  }
}

// The machine's own price with what its file says of it.
PriceFigure figure_of(const MachineSpec& machine, const std::string& path, double value) {
  for (const Fact& fact : machine.facts) {
    if (fact.path == path) return {value, fact.source, fact.retrieved, fact.confidence};
  }
  return {.value = value, .source = {}, .retrieved = {}, .confidence = {}};
}

// `price`: the user's, in USD; the machine's own is not. Either all of the machine's is replaced, or nothing.
void refuse_mixed_currencies(const MachineSpec& machine, const MachinePrice& price) {
  if (!price.on_demand && !price.spot) return;
  for (const auto& [has, own, other, how] :
       {std::tuple(machine.price.on_demand > 0, price.on_demand.has_value(), "on demand", ""),
        std::tuple(machine.price.spot > 0, price.spot.has_value(), "on spot", ":spot")}) {
    if (!has || own) continue;
    const PriceFigure& usd = price.on_demand ? *price.on_demand : *price.spot;
    throw Error("the price of machine '" + machine.name + "' " + other + " is in " + machine.price.currency +
                ", and its other one (" + usd.source +
                ") in USD, which do not go together; give both in USD: --price " + machine.name + how + "=…");
  }
}

struct Found {
  const PriceTable* table = nullptr;
  const MachinePrice* price = nullptr;
};

// By the machine's name, else by those of the files that it builds on, the nearest first.
Found find(const std::vector<PriceTable>& tables, const MachineSpec& machine) {
  std::vector<std::string> names = {machine.name};
  for (const std::string& base : machine.base_files) names.push_back(std::filesystem::path(base).stem().string());
  for (const std::string& name : names) {
    for (const PriceTable& table : tables) {
      const auto found = table.machines.find(name);
      if (found != table.machines.end()) return {&table, &found->second};
    }
  }
  return {};
}

}  // namespace

PriceTable parse_price_table(std::string_view text, const std::string& file) {
  PriceTable table = TableReader(file).read(load_yaml(text, file));
  table.sha256 = sha256_hex(text);
  return table;
}

PriceTable read_price_table(const std::string& path) {
  return parse_price_table(read_file(path, maximum_price_file_bytes), path);
}

std::vector<PriceTable> list_price_tables() {
  std::vector<PriceTable> tables;
  for (const auto& [name, path] : shipped_files("prices")) tables.push_back(read_price_table(path));
  return tables;
}

Prices::Prices(const PriceChoice& choice) : shipped_(list_price_tables()) {
  if (!choice.file.empty()) own_.push_back(read_price_table(choice.file));
  for (const std::string& text : choice.prices) {
    Given given;
    given.text = text;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos && equals > 0) {
      given.type = text.substr(0, equals);
      given.spot = given.type.ends_with(":spot");
      if (given.spot) given.type.resize(given.type.size() - 5);
      given.value = parse_number(std::string_view(text).substr(equals + 1)).value_or(0);
    }
    if (given.type.empty() || !(given.value > 0) || given.value > highest_price) {
      throw Error("--price " + text + ": write it as TYPE=3.06, USD an hour above 0, or TYPE:spot=1.1");
    }
    given_.push_back(std::move(given));
  }
}

PriceUsed Prices::apply(MachineSpec& machine) {
  const Found own = find(own_, machine), shipped = find(shipped_, machine);
  MachinePrice price = own.price == nullptr ? MachinePrice{} : *own.price;
  bool from_own_table = price.on_demand.has_value();
  for (Given& given : given_) {
    if (given.type != machine.name) continue;
    given.used = true;
    (given.spot ? price.spot : price.on_demand) =
        PriceFigure{.value = given.value, .source = "--price " + given.text, .retrieved = "", .confidence = "given"};
    if (!given.spot) from_own_table = false;
  }
  PriceUsed used;
  if (from_own_table) used.sha256 = own.table->sha256;
  const bool has_on_demand = price.on_demand || machine.price.on_demand > 0;
  const bool has_spot = price.spot || machine.price.spot > 0;
  const bool in_usd = machine.price.currency == "USD" || (machine.price.on_demand <= 0 && machine.price.spot <= 0);
  if (!in_usd) refuse_mixed_currencies(machine, price);
  if (shipped.price != nullptr && in_usd && !machine.price.currency.empty()) {  // empty: price: null
    if (!has_on_demand && shipped.price->on_demand) {
      price.on_demand = shipped.price->on_demand;
      used.sha256 = shipped.table->sha256;
    }
    if (!has_spot && shipped.price->spot) price.spot = shipped.price->spot;
  }
  set_price(machine, price);
  used.on_demand = figure_of(machine, "price.on_demand", machine.price.on_demand);
  used.spot = figure_of(machine, "price.spot", machine.price.spot);

  const auto take_rates = [&](const PriceTable& table) {
    if (!used.storage) used.storage = table.storage;
    if (!used.interruptions) used.interruptions = table.interruptions;
  };
  for (const PriceTable& table : own_) {
    const bool same_cloud = shipped.table != nullptr && shipped.table->cloud == table.cloud;
    if (own.table == &table || same_cloud) take_rates(table);
  }
  if (shipped.table != nullptr) take_rates(*shipped.table);
  return used;
}

void Prices::check_all_used() const {
  for (const Given& given : given_) {
    if (!given.used) throw Error("--price " + given.text + ": no machine here is called '" + given.type + "'");
  }
}

}  // namespace tencache
