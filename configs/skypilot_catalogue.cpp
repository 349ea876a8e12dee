#include "configs/skypilot_catalogue.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "configs/yaml_layers.h"
#include "core/error.h"

namespace tencache {
namespace {

constexpr double placeholder_price = 700;
constexpr double highest_listed_price = 10'000;  // USD an hour of a machine; dearer ones are slips
constexpr double host_memory_tolerance = 0.1;

struct Line {
  std::uint64_t number = 0;
  std::vector<std::string> cells;
};

// RFC 4180: cells in double quotes may hold commas, line ends and doubled quotes.
std::vector<Line> parse_csv(std::string_view text, const std::string& file) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  std::vector<Line> lines;
  std::uint64_t number = 1;
  Line line{.number = 1, .cells = {""}};
  bool quoted = false;
  const auto end_line = [&] {
    if (line.cells.size() > 1 || !line.cells.front().empty()) lines.push_back(line);
    line = {.number = number, .cells = {""}};
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') ++number;
    if (quoted) {
      if (c != '"') {
        line.cells.back() += c;
      } else if (i + 1 < text.size() && text[i + 1] == '"') {
        line.cells.back() += text[++i];
      } else {
        quoted = false;
      }
    } else if (c == '"' && line.cells.back().empty()) {
      quoted = true;
    } else if (c == ',') {
      line.cells.emplace_back();
    } else if (c == '\n') {
      end_line();
    } else if (c != '\r') {
      line.cells.back() += c;
    }
  }
  if (quoted) throw Error(file, line.number, "a quoted cell does not end");
  end_line();
  return lines;
}

// A Python literal of dicts, lists, strings and numbers as JSON; null where it is none.
nlohmann::json parse_python(const std::string& text) {
  std::string json;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\'' || c == '"') {
      std::string literal;
      for (++i; i < text.size() && text[i] != c; ++i) {
        if (text[i] == '\\' && i + 1 < text.size()) ++i;
        literal += text[i];
      }
      json += nlohmann::json(literal).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    } else if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      std::string word;
      for (; i < text.size() && std::isalpha(static_cast<unsigned char>(text[i])) != 0; ++i) word += text[i];
      --i;
      json += word == "None" ? "null" : word == "True" ? "true" : word == "False" ? "false" : word;
    } else {
      json += c;
    }
  }
  return nlohmann::json::parse(json, nullptr, false);
}

// What GpuInfo says; 0 and empty: nothing.
struct GpuInfo {
  std::string name;
  double count = 0;
  double mib = 0;        // of one GPU
  double total_mib = 0;  // as the field of that name says
};

double number_in(const nlohmann::json& json, const char* key) {
  return json.is_object() && json.contains(key) && json[key].is_number() ? json[key].get<double>() : 0;
}

GpuInfo parse_gpu_info(const std::string& text) {
  GpuInfo info;
  if (text.empty()) return info;
  if (text.front() != '{') {
    info.name = text;
    return info;
  }
  const nlohmann::json json = parse_python(text);
  if (!json.is_object()) return info;
  info.total_mib = number_in(json, "TotalGpuMemoryInMiB");
  if (!json.contains("Gpus") || !json["Gpus"].is_array() || json["Gpus"].empty()) return info;
  const nlohmann::json& gpu = json["Gpus"].front();
  if (gpu.is_object() && gpu.contains("Name") && gpu["Name"].is_string()) info.name = gpu["Name"].get<std::string>();
  info.count = number_in(gpu, "Count");
  if (gpu.is_object() && gpu.contains("MemoryInfo")) info.mib = number_in(gpu["MemoryInfo"], "SizeInMiB");
  return info;
}

std::optional<double> parse_number(const std::string& text) {
  double value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

// "A100-80GB", "a100-80g" -> "a10080". The G of the A10G, which no hyphen parts from its number, is no unit: the A10 is
// another GPU.
std::string plain_gpu_name(std::string name) {
  const std::size_t hyphen = name.rfind('-');
  const std::size_t unit = hyphen == std::string::npos ? hyphen : name.find_first_not_of("0123456789", hyphen + 1);
  if (unit != std::string::npos && unit > hyphen + 1) {
    const std::string_view rest = std::string_view(name).substr(unit);
    if (rest == "GB" || rest == "G" || rest == "gb" || rest == "g") name.resize(unit);
  }
  std::string plain;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return plain;
}

// The catalogue gives the plain name to the GPU of the smaller memory, and does not tell the kinds of H100 apart.
bool same_gpu(const std::string& listed, const std::string& ours) {
  const std::string a = plain_gpu_name(listed), b = plain_gpu_name(ours);
  if (a == b) return true;
  static const std::multimap<std::string, std::string> also = {
      {"v100", "v10016"}, {"a100", "a10040"}, {"h100", "h100nvl"}, {"h10080", "h100"}, {"h100sxm", "h100"}};
  const auto [begin, end] = also.equal_range(a);
  return std::any_of(begin, end, [&](const auto& entry) { return entry.second == b; });
}

// Of the whole machine, without what the system keeps for itself.
double host_gib(const MachineSpec& machine) {
  const TierId tier = machine.tier_of(Device::cpu);
  if (tier == no_tier) return 0;
  return static_cast<double>(machine.tiers[tier].capacity) * static_cast<double>(machine.rank_count()) / (1ull << 30);
}

class Importer {
 public:
  Importer(std::string_view csv, const CatalogueOptions& options, const std::vector<MachineSpec>& machines)
      : options_(options), machines_(machines), lines_(parse_csv(csv, options.file)) {}

  CatalogueImport run() {
    read_header();
    result_.table.cloud = options_.cloud;
    result_.table.region = options_.region;
    std::set<std::string> regions;
    std::vector<const Line*> rows;
    for (std::size_t i = 1; i < lines_.size(); ++i) {
      ++result_.rows;
      if (lines_[i].cells.size() < columns_.size()) {
        ++result_.cut_short;
        const std::string type = cell(lines_[i], "InstanceType");
        if (machine_of(type) != nullptr) note(lines_[i].number, type, true, "the row is cut short");
        continue;
      }
      const std::string region = cell(lines_[i], "Region");
      regions.insert(region);
      if (options_.region.empty() || region.empty() || region == options_.region) {
        rows.push_back(&lines_[i]);
      } else {
        ++result_.other_region;
      }
    }
    if (rows.empty() && result_.rows != result_.cut_short) {
      throw Error(options_.file, 0,
                  "no row is of region '" + options_.region + "'; its regions are " +
                      join_names({regions.begin(), regions.end()}));
    }
    for (const Line* row : rows) read_gpu_price(*row);
    for (const Line* row : rows) read_row(*row);
    if (result_.table.machines.empty()) note(0, "", true, "no row gives a price of a machine that is known here");
    return std::move(result_);
  }

 private:
  void read_header() {
    if (lines_.empty()) throw Error(options_.file, 0, "the catalogue is empty");
    const Line& header = lines_.front();
    for (std::size_t i = 0; i < header.cells.size(); ++i) columns_.emplace(header.cells[i], i);
    for (const char* needed : {"InstanceType", "Price"}) {
      if (!columns_.contains(needed)) {
        throw Error(options_.file, header.number,
                    std::string("no column is called '") + needed + "'; this is no SkyPilot catalogue of machines");
      }
    }
  }

  std::string cell(const Line& line, const char* column) const {
    const auto found = columns_.find(column);
    return found == columns_.end() || found->second >= line.cells.size() ? std::string() : line.cells[found->second];
  }
  void note(std::uint64_t line, const std::string& type, bool rejected, std::string text) {
    result_.notes.push_back({.line = line, .type = type, .rejected = rejected, .text = std::move(text)});
  }

  // None, having said why, where the cell is no price.
  std::optional<double> price_in(const Line& line, const char* column) const {
    const std::optional<double> price = parse_number(cell(line, column));
    if (!price || *price <= 0 || *price == placeholder_price || *price > highest_listed_price) return std::nullopt;
    return price;
  }
  static void keep_lowest(std::optional<PriceFigure>& kept, const PriceFigure& figure) {
    if (!kept || figure.value < kept->value) kept = figure;
  }
  PriceFigure figure(double value, const std::string& more = "") const {
    return {.value = value,
            .source = "SkyPilot catalogue " + options_.file + more,
            .retrieved = options_.retrieved,
            .confidence = "published"};
  }

  // Rows without a machine: what a number of GPUs costs beside its host (trap 4).
  void read_gpu_price(const Line& line) {
    if (!cell(line, "InstanceType").empty()) return;
    const std::string gpu = plain_gpu_name(cell(line, "AcceleratorName"));
    const std::optional<double> count = parse_number(cell(line, "AcceleratorCount"));
    if (gpu.empty() || !count || *count <= 0) return;
    const auto keep = [&](const char* column, std::map<std::string, double>& prices) {
      if (const auto price = price_in(line, column)) {
        const auto [found, is_new] = prices.emplace(gpu, *price / *count);
        if (!is_new) found->second = std::min(found->second, *price / *count);
      }
    };
    keep("Price", gpu_prices_);
    keep("SpotPrice", gpu_spot_prices_);
  }

  // Azure's names have a prefix here that ours have not.
  const MachineSpec* machine_of(const std::string& type) const {
    const std::string name = type.starts_with("Standard_") ? type.substr(9) : type;
    const auto found = std::find_if(machines_.begin(), machines_.end(),
                                    [&](const MachineSpec& machine) { return machine.name == name; });
    return found == machines_.end() ? nullptr : &*found;
  }

  void read_row(const Line& line) {
    const std::string type = cell(line, "InstanceType");
    if (type.empty()) return;
    const MachineSpec* machine = machine_of(type);
    if (machine == nullptr) {
      ++result_.not_ours;
      return;
    }
    if (const std::string contradiction = contradicts(line, *machine); !contradiction.empty()) {
      return note(line.number, type, true, contradiction);
    }
    std::optional<double> price = price_in(line, "Price");
    if (!price) {
      return note(line.number, type, true,
                  "price '" + cell(line, "Price") + "' is none" +
                      (parse_number(cell(line, "Price")) == placeholder_price ? ": 700.0 stands for not known"
                       : parse_number(cell(line, "Price")).value_or(0) > highest_listed_price ? ": above 10,000 $/h"
                                                                                              : ""));
    }
    std::optional<double> spot = price_in(line, "SpotPrice");
    std::string more;
    if (options_.cloud == "gcp" && !add_gpus(line, *machine, price, spot, more)) return;
    keep_lowest(result_.table.machines[machine->name].on_demand, figure(*price, more));
    if (spot && *spot >= *price) {
      note(line.number, type, false, "the spot price is that on demand, or above: left out");
      spot.reset();
    } else if (!spot && !cell(line, "SpotPrice").empty()) {
      note(line.number, type, false, "spot price '" + cell(line, "SpotPrice") + "' is none: left out");
    }
    if (spot) keep_lowest(result_.table.machines[machine->name].spot, figure(*spot, more));
  }

  // Host and GPUs together (trap 4). A row that names its GPUs, or costs as much as they do alone, has them in its
  // price already: hosts are a quarter of it. False, having said so, where what the GPUs cost is not to be had.
  bool add_gpus(const Line& line, const MachineSpec& machine, std::optional<double>& price, std::optional<double>& spot,
                std::string& more) {
    const auto price_of = [&](const std::map<std::string, double>& prices) -> std::optional<double> {
      for (const auto& [gpu, each] : prices) {
        if (same_gpu(gpu, machine.gpu)) return each * static_cast<double>(machine.rank_count());
      }
      return std::nullopt;
    };
    const std::optional<double> gpus = price_of(gpu_prices_);
    const bool names_gpus = !cell(line, "AcceleratorName").empty() || !cell(line, "GpuInfo").empty();
    if (names_gpus && gpus && *price < *gpus) {
      note(line.number, machine.name, true,
           "the row names its GPUs, but costs less than they do in rows of their own (" + text_of(*gpus) + ")");
      return false;
    }
    if (names_gpus || (gpus && *price >= *gpus)) {
      note(line.number, machine.name, false, "the price has its GPUs in it: nothing is added");
      return true;
    }
    if (!gpus) {
      note(line.number, machine.name, true,
           "the host's price leaves its GPUs out, and no row gives that of " + machine.gpu);
      return false;
    }
    note(line.number, machine.name, false, "the price of its GPUs, from a row of their own, is added to the host's");
    price = *price + *gpus;
    const std::optional<double> spot_gpus = price_of(gpu_spot_prices_);
    if (spot && spot_gpus) {
      spot = *spot + *spot_gpus;
    } else {
      spot.reset();
    }
    more = ", host and GPUs";
    return true;
  }

  // What the row says against our own description; corrections of known slips are noted.
  std::string contradicts(const Line& line, const MachineSpec& machine) {
    const std::string type = cell(line, "InstanceType");
    const std::string info_text = cell(line, "GpuInfo");
    const GpuInfo info = parse_gpu_info(info_text);
    const std::string name = cell(line, "AcceleratorName").empty() ? info.name : cell(line, "AcceleratorName");
    if (!name.empty() && !same_gpu(name, machine.gpu)) {
      return "it is listed with the GPU " + name + ", ours has " + machine.gpu;
    }
    std::optional<double> count = parse_number(cell(line, "AcceleratorCount"));
    if (!count && info.count > 0) count = info.count;
    const auto ours = static_cast<double>(machine.rank_count());
    if (count && *count != ours) {
      const bool known_slip = *count == 12 && ours == 8 && type.find("H100_v5") != std::string::npos;
      if (!known_slip) return "it is listed with " + text_of(*count) + " GPUs, ours has " + text_of(ours);
      note(line.number, type, false, "listed with 12 GPUs, which are 8");
    }
    if (const auto memory = parse_number(cell(line, "MemoryGiB")); memory && *memory > 0) {
      const double gib = host_gib(machine);
      if (gib > 0 && std::abs(*memory - gib) > host_memory_tolerance * std::max(*memory, gib) + 4) {
        return "it is listed with " + text_of(*memory) + " GiB of memory, ours has " + text_of(std::round(gib));
      }
    }
    return check_gpu_memory(line, machine, info);
  }

  std::string check_gpu_memory(const Line& line, const MachineSpec& machine, const GpuInfo& info) {
    const double mib = info.mib > 0 ? info.mib : info.total_mib;  // both are of one GPU
    if (mib <= 0) return "";
    const double ours = static_cast<double>(machine.tiers.front().capacity) / (1 << 20);
    const std::string gpu = plain_gpu_name(machine.gpu);
    if ((gpu == "h200" || gpu == "b200" || gpu == "gh200") && std::abs(mib - 81920) < 2500) {
      note(line.number, cell(line, "InstanceType"), false,
           "listed with 80 GB of GPU memory, which are " + text_of(std::round(ours / 1024)) + " GiB");
      return "";
    }
    // Ours is less what a context takes, and datasheets count in GB.
    if (std::abs(mib - ours) <= 0.15 * std::max(mib, ours)) return "";
    return "it is listed with " + text_of(std::round(mib)) + " MiB of memory a GPU, ours has " +
           text_of(std::round(ours));
  }

  static std::string text_of(double value) {
    char text[32];
    return {text, std::to_chars(text, text + sizeof text, value).ptr};
  }

  const CatalogueOptions& options_;
  const std::vector<MachineSpec>& machines_;
  std::vector<Line> lines_;
  std::map<std::string, std::size_t> columns_;
  std::map<std::string, double> gpu_prices_, gpu_spot_prices_;  // of one, by plain name
  CatalogueImport result_;
};

}  // namespace

CatalogueImport import_skypilot(std::string_view csv, const CatalogueOptions& options,
                                const std::vector<MachineSpec>& machines) {
  return Importer(csv, options, machines).run();
}

}  // namespace tencache
