#include "configs/kernel_yaml.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <functional>

#include "configs/shipped_files.h"
#include "configs/yaml_layers.h"
#include "core/error.h"
#include "core/parse_number.h"
#include "traces/file/file_io.h"
#include "traces/import/csv_table.h"

namespace tencache {
namespace {

namespace fs = std::filesystem;

constexpr Bytes maximum_kernel_file_bytes = 16 * MiB;

// Figures of one section of the file.
class Section {
 public:
  Section(const YamlValue& value, const std::string& what, std::vector<std::string> keys)
      : map_({value}, what, with_source(std::move(keys))), what_(what) {
    text("source");
    const std::string confidence = text("confidence");
    if (confidence != "published" && confidence != "measured" && confidence != "estimated") {
      fail_at(map_.require("confidence"),
              what + ": confidence '" + confidence + "'; valid are published, measured, estimated");
    }
  }

  std::string text(const std::string& key) const {
    const YamlValue value = map_.require(key);
    if (!value.node.IsScalar()) fail_at(value, what_ + ": " + key + " is " + describe(value.node) + "; expected text");
    return value.node.Scalar();
  }
  bool has(const std::string& key) const { return map_.get(key).has_value(); }
  YamlValue value(const std::string& key) const { return map_.require(key); }
  double number(const std::string& key, double least, double most) const {
    const std::optional<double> value = parse_number(text(key));
    if (!value || *value < least || *value > most) {
      fail_at(map_.require(key),
              what_ + ": " + key + " '" + text(key) + "' is not a number from " + shown(least) + " to " + shown(most));
    }
    return *value;
  }
  template <typename Parse>
  auto parsed(const std::string& key, Parse parse) const {
    try {
      return parse(text(key));
    } catch (const Error& error) {
      fail_at(map_.require(key), what_ + ": " + key + ": " + error.what());
    }
  }
  double nanoseconds(const std::string& key) const {
    return static_cast<double>(parsed(key, [](const std::string& t) { return parse_duration(t); }));
  }

 private:
  static std::string shown(double number) {
    std::string text = std::to_string(number);
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
    return text;
  }
  static std::vector<std::string> with_source(std::vector<std::string> keys) {
    keys.insert(keys.end(), {"source", "licence", "confidence"});
    return keys;
  }
  YamlMap map_;
  std::string what_;
};

// What products of all precisions have.
Section read_tiles(const YamlValue& value, const std::string& what, std::vector<std::string> more,
                   MatmulConstants& constants) {
  more.insert(more.begin(), {"start", "share", "half_tile", "quarter_tile", "depth", "tail", "memory_share",
                             "cache_share", "split_start"});
  Section section(value, what, std::move(more));
  constexpr double any = 10;
  constants.start_ns = section.nanoseconds("start");
  constants.share = section.number("share", 0.01, 1);
  constants.half_tile = section.number("half_tile", 0.01, any);
  constants.quarter_tile = section.number("quarter_tile", 0.01, any);
  constants.depth = section.number("depth", 0, 1e5);
  constants.tail = section.number("tail", 0, 1);
  constants.memory_share = section.number("memory_share", 0.01, 1);
  constants.cache_share = section.number("cache_share", 0.01, any);
  constants.split_start_ns = section.nanoseconds("split_start");
  return section;
}

void read_matmul(const YamlValue& value, MatmulConstants& constants) {
  const Section section = read_tiles(value, "matmul", {"unaligned_share", "fp32_share"}, constants);
  constants.unaligned_share = section.number("unaligned_share", 0.001, 1);
  constants.fp32_share = section.has("fp32_share") ? section.number("fp32_share", 0.01, 2) : 1;
}

AttentionConstants read_attention(const YamlValue& value) {
  const Section section(value, "attention",
                        {"kernel", "head_dimension", "causal", "start", "share", "depth", "tail", "memory_share",
                         "cache_share", "backward"});
  AttentionConstants constants;
  const auto kernel = parse_enum<AttentionKernel>(section.text("kernel"));
  if (!kernel) {
    fail_at(section.value("kernel"),
            "attention: unknown kernel '" + section.text("kernel") + "'; valid are " + enum_names<AttentionKernel>());
  }
  constants.kernel = *kernel;
  constants.head_dimension = static_cast<std::uint64_t>(section.number("head_dimension", 1, 4096));
  constants.causal = !section.has("causal") || section.text("causal") != "false";
  constants.start_ns = section.nanoseconds("start");
  constants.share = section.number("share", 0.001, 1);
  constants.depth = section.number("depth", 0, 1e5);
  constants.tail = section.number("tail", 0, 100);
  constants.memory_share = section.has("memory_share") ? section.number("memory_share", 0.01, 1) : 1;
  constants.cache_share = section.has("cache_share") ? section.number("cache_share", 0.01, 10) : 1;
  constants.backward = section.number("backward", 0.1, 10);
  return constants;
}

CollectiveConstants read_collective(const YamlValue& value) {
  const Section section(value, "collectives", {"ranks", "bandwidth", "latency", "root"});
  CollectiveConstants constants;
  constants.ranks = static_cast<std::uint64_t>(section.number("ranks", 2, 65535));
  constants.bandwidth = section.parsed("bandwidth", [](const std::string& text) { return parse_bandwidth(text); });
  if (constants.bandwidth == 0) fail_at(section.value("bandwidth"), "collectives: bandwidth must be above 0");
  constants.latency_ns = static_cast<Nanoseconds>(section.nanoseconds("latency"));
  constants.ns_a_root_byte = section.has("root") ? section.number("root", 0, 1e6) : 0;
  return constants;
}

// A number by kind of kernel.
template <typename Read>
void read_kinds(const YamlValue& value, const std::string& what, std::array<double, kernel_kind_count>& numbers,
                Read read) {
  std::vector<std::string> names;
  for (std::size_t i = 1; i < kernel_kind_count; ++i) names.emplace_back(to_string(static_cast<KernelKind>(i)));
  const Section section(value, what, names);
  for (const std::string& name : names) {
    if (section.has(name)) numbers[static_cast<std::size_t>(*parse_enum<KernelKind>(name))] = read(section, name);
  }
}

struct File {
  KernelConstants constants;
  std::string table, table_fp8;  // empty: none
};

// Returns the name of its table; empty: none.
std::string read_matmul_fp8(const YamlValue& value, KernelConstants& constants) {
  const Section section = read_tiles(value, "matmul_fp8", {"table", "error"}, constants.matmul_fp8);
  if (constants.matmul_fp8.start_ns == 0) fail_at(section.value("start"), "matmul_fp8: start must be above 0");
  constants.error_fp8 = section.number("error", 0.0001, 10);
  return section.has("table") ? section.text("table") : "";
}

File parse_file(const std::string& text, const std::string& file) {
  File result;
  const YamlMap map({{load_yaml(text, file), &file}}, "a chip's kernels",
                    {"name", "measured", "table", "matmul", "matmul_fp8", "attention", "kernel_start", "sustained",
                     "bandwidth_share", "error", "collectives", "calibrated", "factor"});
  const auto scalar = [&](const char* key) {
    const YamlValue value = map.require(key);
    if (!value.node.IsScalar()) fail_at(value, std::string(key) + " is " + describe(value.node) + "; expected text");
    return value.node.Scalar();
  };
  KernelConstants& constants = result.constants;
  constants.name = scalar("name");
  const std::string measured = scalar("measured");
  if (measured != "true" && measured != "false") {
    fail_at(map.require("measured"), "measured: '" + measured + "'; valid are true, false");
  }
  constants.measured = measured == "true";
  if (map.get("table")) result.table = scalar("table");
  read_matmul(map.require("matmul"), constants.matmul);
  if (const auto fp8 = map.get("matmul_fp8")) result.table_fp8 = read_matmul_fp8(*fp8, constants);
  each_item(map.require("attention"), "attention",
            [&](const YamlValue& item) { constants.attention.push_back(read_attention(item)); });
  read_kinds(map.require("kernel_start"), "kernel_start", constants.start_ns,
             [](const Section& section, const std::string& key) { return section.nanoseconds(key); });
  const Section sustained(map.require("sustained"), "sustained", {"value"});
  constants.sustained = sustained.number("value", 0.1, 1.2);
  const auto up_to = [](double least, double most) {
    return [=](const Section& section, const std::string& key) { return section.number(key, least, most); };
  };
  read_kinds(map.require("bandwidth_share"), "bandwidth_share", constants.bandwidth_share, up_to(0.01, 2));
  // It stands for the kinds that are not there.
  constexpr auto elementwise = static_cast<std::size_t>(KernelKind::elementwise);
  if (constants.start_ns[elementwise] == 0)
    fail_at(map.require("kernel_start"), "kernel_start: 'elementwise' is missing");
  if (constants.bandwidth_share[elementwise] == 0) {
    fail_at(map.require("bandwidth_share"), "bandwidth_share: 'elementwise' is missing");
  }
  read_kinds(map.require("error"), "error", constants.error, up_to(0, 10));
  if (constants.error[elementwise] == 0) {
    fail_at(map.require("error"), "error: 'elementwise' is missing, or 0");
  }
  if (const auto collectives = map.get("collectives")) {
    each_item(*collectives, "collectives",
              [&](const YamlValue& item) { constants.collectives.push_back(read_collective(item)); });
  }
  if (const auto factor = map.get("factor")) read_kinds(*factor, "factor", constants.factor, up_to(0, 1000));
  if (const auto calibrated = map.get("calibrated")) {
    const Section section(*calibrated, "calibrated", {"gpu", "ops"});
    constants.calibrated_for = section.text("gpu");
    constants.calibrated_from = section.text("source");
    constants.calibrated_ops = static_cast<std::uint64_t>(section.number("ops", 0, 1e9));
  }
  return result;
}

// "8x20x4x1536x1536x128".
void read_shape(const CsvTable& table, std::string_view text, Kernel& kernel) {
  const std::size_t wanted = shape_size(kernel.kind);
  std::size_t count = 0;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end && count < wanted) {
    const auto [rest, error] = std::from_chars(at, end, kernel.shape[count]);
    if (error != std::errc() || kernel.shape[count] == 0 || kernel.shape[count] > (std::uint64_t{1} << 40)) break;
    ++count;
    at = rest;
    if (at != end && *at++ != 'x') break;
  }
  if (at != end || count != wanted) {
    table.fail("shape '" + std::string(text) + "' of a " + std::string(to_string(kernel.kind)) + "; it takes " +
               std::to_string(wanted) + " numbers with x between them");
  }
}

// `fp8`: a table of products in fp8.
std::vector<MeasuredKernel> read_table(const std::string& path, bool fp8) {
  CsvTable table(path, maximum_kernel_file_bytes);
  const std::vector<std::string> names{"kind", "shape", "causal", "attention_kernel", "bytes", "time_ns", "set"};
  std::vector<std::size_t> columns;
  for (const std::string& name : names) {
    columns.push_back(table.find(name));
    if (columns.back() == CsvTable::no_column) {
      throw Error(path, 1, "column '" + name + "' is missing; a table of kernels has " + join_names(names));
    }
  }
  std::vector<MeasuredKernel> rows;
  while (table.next_row()) {
    MeasuredKernel row;
    const auto kind = parse_enum<KernelKind>(table.field(columns[0]));
    if (!kind) {
      table.fail("unknown kind '" + std::string(table.field(columns[0])) + "'; valid are " + enum_names<KernelKind>());
    }
    row.kernel.kind = *kind;
    row.kernel.fp8 = fp8;
    if (fp8 && *kind != KernelKind::matmul) {
      table.fail("kind '" + std::string(to_string(*kind)) + "' in a table of fp8 products; it takes matmul only");
    }
    read_shape(table, table.field(columns[1]), row.kernel);
    row.kernel.causal = table.field(columns[2]) == "1";
    if (!table.field(columns[3]).empty()) {
      const auto attention = parse_enum<AttentionKernel>(table.field(columns[3]));
      if (!attention) {
        table.fail("unknown attention_kernel '" + std::string(table.field(columns[3])) + "'; valid are " +
                   enum_names<AttentionKernel>());
      }
      row.kernel.attention = *attention;
    }
    row.bytes = table.number(columns[4], Bytes{1} << 50, true);
    row.time_ns = static_cast<Nanoseconds>(table.number(columns[5], std::uint64_t{1} << 50));
    if (row.time_ns == 0) table.fail("time_ns is 0; a kernel takes at least a nanosecond (is the unit right?)");
    const std::string_view set = table.field(columns[6]);
    if (set != "fit" && set != "judge") table.fail("unknown set '" + std::string(set) + "'; valid are fit, judge");
    row.judge = set == "judge";
    rows.push_back(row);
  }
  if (rows.empty()) throw Error(path, 0, "has no rows");
  return rows;
}

}  // namespace

KernelConstants parse_kernels(const std::string& text, const std::string& file) {
  return parse_file(text, file).constants;
}

std::vector<MeasuredKernel> read_kernel_table(const std::string& folder, const std::string& name) {
  const std::string path = (fs::path(folder) / (name + ".yaml")).string();
  const File file = parse_file(read_file(path, maximum_kernel_file_bytes), path);
  std::vector<MeasuredKernel> rows;
  if (!file.table.empty()) rows = read_table((fs::path(folder) / file.table).string(), false);
  if (!file.table_fp8.empty()) {
    const std::vector<MeasuredKernel> fp8 = read_table((fs::path(folder) / file.table_fp8).string(), true);
    rows.insert(rows.end(), fp8.begin(), fp8.end());
  }
  return rows;
}

namespace {

// `place` gives the path of a table from its name.
template <typename Place>
void take_tables(File& file, Place place) {
  for (const bool fp8 : {false, true}) {
    const std::string& table = fp8 ? file.table_fp8 : file.table;
    if (table.empty()) continue;
    std::vector<MeasuredMatmul>& measured = fp8 ? file.constants.measured_matmuls_fp8 : file.constants.measured_matmuls;
    for (const MeasuredKernel& row : read_table(place(table), fp8)) {
      if (row.judge || row.kernel.kind != KernelKind::matmul) continue;
      const auto& shape = row.kernel.shape;
      measured.push_back({shape[0] * shape[1], shape[2], shape[3], row.time_ns});
    }
  }
}

}  // namespace

KernelConstants read_kernels(const std::string& folder, const std::string& name) {
  const std::string path = (fs::path(folder) / (name + ".yaml")).string();
  File file = parse_file(read_file(path, maximum_kernel_file_bytes), path);
  if (file.constants.name != name) {
    throw Error(path, 0, "is of '" + file.constants.name + "'; the file is named after its chip");
  }
  take_tables(file, [&](const std::string& table) { return (fs::path(folder) / table).string(); });
  return std::move(file.constants);
}

KernelConstants read_kernel_file(const std::string& path) {
  File file = parse_file(read_file(path, maximum_kernel_file_bytes), path);
  take_tables(file, [&](const std::string& name) {
    const fs::path table = fs::path(path).parent_path() / name;
    std::error_code ignored;
    return (fs::exists(table, ignored) ? table : fs::path(kernel_folder()) / name).string();
  });
  return std::move(file.constants);
}

std::string calibrated_kernels(const GpuSpec& gpu, const std::vector<KernelFactor>& factors, const std::string& trace) {
  const std::string path = (fs::path(kernel_folder()) / (gpu.kernels.name + ".yaml")).string();
  std::string text = read_file(path, maximum_kernel_file_bytes);
  if (!text.empty() && text.back() != '\n') text += '\n';
  const auto quoted = [](const std::string& plain) {
    std::string result = "\"";
    for (const char c : plain) {
      if (c == '"' || c == '\\') result += '\\';
      result += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
    return result + '"';
  };
  std::uint64_t ops = 0;
  std::string kinds, counts;
  for (const KernelFactor& factor : factors) {
    ops += factor.ops;
    std::array<char, 32> number{};
    const auto [end, error] = std::to_chars(number.data(), number.data() + number.size(),
                                            std::clamp(factor.factor, 0.001, 1000.0), std::chars_format::fixed, 4);
    kinds += "  " + std::string(to_string(factor.kind)) + ": " +
             (error == std::errc() ? std::string(number.data(), end) : std::string("1")) + "\n";
    counts += (counts.empty() ? "" : ", ") + std::to_string(factor.ops) + " " + std::string(to_string(factor.kind));
  }
  text += "calibrated: {gpu: " + gpu.name + ", ops: " + std::to_string(ops) + ", source: " + quoted(trace) +
          ", confidence: measured}\n";
  text += "factor:  # of times by the constants above\n" + kinds +
          "  source: " + quoted("medians of measured over modelled times: " + counts) + "\n  confidence: measured\n";
  return text;
}

std::string calibration_note(const KernelConstants& kernels) {
  if (kernels.calibrated_from.empty()) return "";
  return "kernels: calibrated from " + kernels.calibrated_from + " (" + std::to_string(kernels.calibrated_ops) +
         " ops)";
}

std::string kernel_folder() { return config_file("kernels"); }

Nanoseconds modelled_ns(const KernelModel& model, const MeasuredKernel& row) {
  const Kernel& kernel = row.kernel;
  if (!is_attention(kernel.kind)) return model.duration_ns(kernel, 0, row.bytes);
  const auto& [batch, heads, cached_heads, queries, keys, dimension] = kernel.shape;
  const Bytes bytes = 2 * batch * dimension * bytes_of(model.precision()) * (heads * queries + cached_heads * keys);
  const Nanoseconds written = kernel.causal ? model.cache_write_ns(kernel) : 0;
  return model.duration_ns(kernel, 4 * batch * heads * queries * keys * dimension, bytes) + written;
}

}  // namespace tencache
