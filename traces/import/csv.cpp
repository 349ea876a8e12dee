#include "traces/import/csv.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "core/parse_number.h"
#include "traces/import/csv_table.h"

namespace tencache {
namespace {

constexpr std::size_t no_column = CsvTable::no_column;

struct RoleName {
  std::string_view name;
  Role role;
  bool may_be_given;  // the content comes from outside: persistent where it is read before any op writes it
};

// The names of G10's recordings; our own are valid as well. Running statistics of a batch norm are content of the
// model, like a parameter that no gradient changes.
constexpr std::array<RoleName, 17> csv_roles{{{"act", Role::activation, false},
                                              {"bn_save", Role::activation, false},
                                              {"bn_stat", Role::activation, false},
                                              {"dropout_mask", Role::activation, true},
                                              {"mask", Role::activation, true},
                                              {"grad_act", Role::gradient, false},
                                              {"grad_weight", Role::gradient, false},
                                              {"grad_bias", Role::gradient, false},
                                              {"grad_bn_param", Role::gradient, false},
                                              {"bn_gstat", Role::gradient, false},
                                              {"bn_gsave", Role::gradient, false},
                                              {"weight", Role::parameter, false},
                                              {"bias", Role::parameter, false},
                                              {"bn_param", Role::parameter, false},
                                              {"bn_running", Role::parameter, false},
                                              {"const", Role::input, true},
                                              {"input", Role::input, true}}};

std::optional<RoleName> find_role(std::string_view name) {
  for (const RoleName& role : csv_roles) {
    if (role.name == name) return role;
  }
  if (const std::optional<Role> role = parse_enum<Role>(name)) return RoleName{name, *role, *role == Role::input};
  return std::nullopt;
}

std::string csv_role_names() {
  std::string all = enum_names<Role>();
  for (const RoleName& role : csv_roles) {
    if (!parse_enum<Role>(role.name)) all += ", " + std::string(role.name);
  }
  return all;
}

std::optional<Phase> find_phase(std::string_view name) {
  if (name == "fwd") return Phase::forward;
  if (name == "bwd") return Phase::backward;
  if (name == "upd") return Phase::optimizer;
  return parse_enum<Phase>(name);
}

bool is_kept_by_role(Role role) {
  return role == Role::parameter || role == Role::optimizer_state || role == Role::master_parameter ||
         role == Role::kv_cache || role == Role::expert;
}

// Names all of these columns that the file lacks.
void require(const CsvTable& table, std::initializer_list<std::pair<std::size_t, const char*>> columns) {
  std::string names;
  for (const auto& [column, name] : columns) {
    if (column == no_column) names += (names.empty() ? "" : ", ") + std::string(name);
  }
  if (!names.empty()) throw Error(table.file(), 1, "lacks the columns " + names + "; it has " + table.column_list());
}

void add_to_total(const CsvTable& table, std::uint64_t& total, std::uint64_t amount, const char* what) {
  if (amount > largest_quantity || (total += amount) > largest_quantity) {
    table.fail("the " + std::string(what) + " add up to more than 2^61, which cannot be right");
  }
}

// What a row of the file of tensors says.
class TensorRows {
 public:
  TensorRows(const std::string& file, const CsvImportOptions& options)
      : table_(file, options.maximum_bytes), size_(table_.find(options.size_column)) {
    require(table_, {{id_, "id"}, {role_, "role"}});
    if (size_ == no_column) {
      throw Error(table_.file(), 1,
                  "has no column '" + options.size_column +
                      "' for the sizes; choose one with --size-column: " + table_.column_list());
    }
  }

  bool next() { return table_.next_row(); }
  const CsvTable& table() const { return table_; }
  std::uint64_t id() const { return table_.number(id_, largest_quantity); }
  RoleName role() const {
    const std::optional<RoleName> role = find_role(table_.field(role_));
    if (!role) table_.fail("unknown role '" + std::string(table_.field(role_)) + "'; it is one of " + csv_role_names());
    return *role;
  }
  Bytes bytes() const { return table_.number(size_, Bytes{1} << 50); }
  std::string_view name() const { return table_.field(name_); }
  // Empty where the file does not say.
  std::optional<bool> persistent() const {
    const std::string_view text = table_.field(persistent_);
    if (text.empty()) return std::nullopt;
    if (text == "1" || text == "true") return true;
    if (text == "0" || text == "false") return false;
    table_.fail("column 'persistent' is '" + std::string(text) + "'; it takes 0, 1, false or true");
  }
  // Codes in `birth`: the id of an op, -1 for "none", -2 for "always there".
  bool is_always_there() const {
    const std::string_view text = table_.field(birth_);
    if (text.empty() || text == "-1" || parse_number<std::uint64_t>(text)) return false;
    if (text != "-2")
      table_.fail("column 'birth' is '" + std::string(text) +
                  "'; it takes the id of an op, or -2 for a tensor that is always there");
    return true;
  }

 private:
  CsvTable table_;
  std::size_t size_;
  std::size_t id_ = table_.find("id"), role_ = table_.find("role"), name_ = table_.find("name"),
              persistent_ = table_.find("persistent"), birth_ = table_.find("birth");
};

// What a row of the file of ops says. All totals stay below 2^61.
class OpRows {
 public:
  OpRows(const std::string& file, Bytes maximum_bytes) : table_(file, maximum_bytes) {
    if (kernel_ == no_column) kernel_ = table_.find("op");
    require(table_, {{id_, "id"},
                     {phase_, "phase"},
                     {kernel_, "kernel (or op)"},
                     {time_, "time_ms"},
                     {inputs_, "inputs"},
                     {outputs_, "outputs"}});
  }

  bool next() { return table_.next_row(); }
  const CsvTable& table() const { return table_; }
  std::uint64_t id() const { return table_.number(id_, largest_quantity); }
  std::size_t inputs() const { return inputs_; }  // columns
  std::size_t outputs() const { return outputs_; }
  Bytes workspace_bytes() const { return table_.number(workspace_, Bytes{1} << 50, true); }
  Op op(NamePool& names) {
    Op op;
    op.name = names.intern(table_.field(kernel_));
    op.module = names.intern(module_of_op());
    const std::optional<Phase> phase = find_phase(table_.field(phase_));
    if (!phase) {
      table_.fail("unknown phase '" + std::string(table_.field(phase_)) + "'; it is one of " + enum_names<Phase>() +
                  ", fwd, bwd, upd");
    }
    op.phase = *phase;
    if (const std::string_view device = table_.field(device_); !device.empty()) {
      const std::optional<Device> parsed = parse_enum<Device>(device);
      if (!parsed) table_.fail("unknown device '" + std::string(device) + "'; it is one of gpu, cpu");
      op.device = *parsed;
    }
    op.duration_ns = table_.milliseconds(time_);
    op.gap_before_ns = table_.milliseconds(gap_, true);
    op.flops = table_.number(flops_, largest_quantity, true);
    op.bytes = table_.number(bytes_, largest_quantity, true);
    add_to_total(table_, total_ns_, static_cast<std::uint64_t>(op.duration_ns), "times");
    add_to_total(table_, total_ns_, static_cast<std::uint64_t>(op.gap_before_ns), "times");
    add_to_total(table_, total_flops_, op.flops, "flops");
    add_to_total(table_, total_traffic_, op.bytes, "bytes");
    return op;
  }

 private:
  // G10 numbers its layers; a number alone is no name.
  std::string module_of_op() const {
    if (const std::string_view module = table_.field(module_); !module.empty()) return std::string(module);
    const std::string_view layer = table_.field(layer_);
    return parse_number<std::uint64_t>(layer) ? "layer" + std::string(layer) : std::string(layer);
  }

  CsvTable table_;
  std::size_t id_ = table_.find("id"), phase_ = table_.find("phase"), kernel_ = table_.find("kernel"),
              time_ = table_.find("time_ms"), inputs_ = table_.find("inputs"), outputs_ = table_.find("outputs"),
              layer_ = table_.find("layer"), module_ = table_.find("module"), device_ = table_.find("device"),
              gap_ = table_.find("gap_before_ms"), flops_ = table_.find("flops"), bytes_ = table_.find("bytes"),
              workspace_ = table_.find("workspace_bytes");
  std::uint64_t total_ns_ = 0, total_flops_ = 0, total_traffic_ = 0;
};

class CsvImporter {
 public:
  CsvImporter(const CsvImportOptions& options, const std::string& ops_file, const std::string& tensors_file)
      : tensors_(tensors_file, options), ops_(ops_file, options.maximum_bytes) {}

  Trace run() {
    while (tensors_.next()) read_tensor();
    if (trace_.tensors.empty()) throw Error(tensors_.table().file(), 0, "has no tensors");
    while (ops_.next()) read_op();
    trace_.validate(ops_.table().file(), line_of_op_);
    write_notes();
    return std::move(trace_);
  }

  std::vector<std::string> take_notes() { return std::move(notes_); }

 private:
  static constexpr TensorId dropped = none;

  void read_tensor() {
    const std::uint64_t id = tensors_.id();
    const RoleName role = tensors_.role();
    const Bytes bytes = tensors_.bytes();
    const auto [position, is_new] = id_of_.emplace(id, dropped);
    if (!is_new) tensors_.table().fail("a second tensor " + std::to_string(id));
    if (bytes == 0) {
      ++dropped_tensors_;
      return;
    }
    add_to_total(tensors_.table(), total_bytes_, bytes, "sizes of the tensors");
    std::string name(tensors_.name());
    if (name.empty()) name = std::string(role.name) + "_" + std::to_string(id);
    const std::optional<bool> told = tensors_.persistent();
    const bool keeps = told.value_or(tensors_.is_always_there() || is_kept_by_role(role.role));
    position->second = trace_.add_tensor(name, bytes, role.role, keeps);
    may_be_given_.push_back(!told && !keeps && role.may_be_given);
    written_.push_back(false);
  }

  void read_op() {
    const std::uint64_t id = ops_.id();
    if (!line_of_op_.empty() && id <= last_op_id_) {
      ops_.table().fail("op " + std::to_string(id) + " after op " + std::to_string(last_op_id_) +
                        "; rows stand in the order of execution, with rising ids");
    }
    last_op_id_ = id;
    const Op op = ops_.op(trace_.names);
    read_ids(ops_.inputs(), reads_);
    read_ids(ops_.outputs(), writes_);
    add_workspace(id);
    note_given_tensors();
    line_of_op_.push_back(ops_.table().line());
    trace_.add_op(op, reads_, writes_);
  }

  void read_ids(std::size_t column, std::vector<TensorId>& ids) {
    ids.clear();
    std::string_view rest = ops_.table().field(column);
    while (true) {
      rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
      if (rest.empty()) return;
      const std::string_view word = rest.substr(0, rest.find(' '));
      rest.remove_prefix(word.size());
      const std::optional<std::uint64_t> id = parse_number<std::uint64_t>(word);
      if (!id) {
        ops_.table().fail("column '" + ops_.table().column(column) + "' holds '" + std::string(word) +
                          "'; it takes ids of tensors, separated by spaces");
      }
      const auto found = id_of_.find(*id);
      if (found == id_of_.end()) {
        ops_.table().fail("column '" + ops_.table().column(column) + "' names tensor " + std::string(word) +
                          ", which " + tensors_.table().file() + " does not have");
      }
      if (found->second != dropped) add_once(ids, found->second);
    }
  }

  void add_once(std::vector<TensorId>& ids, TensorId id) {
    if (last_list_.size() < trace_.tensors.size()) last_list_.resize(trace_.tensors.size(), 0);
    // Lists are numbered; each op has two.
    const std::uint64_t list = 2 * line_of_op_.size() + (&ids == &writes_ ? 2 : 1);
    if (last_list_[id] == list) {
      ++repeated_ids_;
      return;
    }
    last_list_[id] = list;
    ids.push_back(id);
  }

  void add_workspace(std::uint64_t op_id) {
    const Bytes bytes = ops_.workspace_bytes();
    const auto is_workspace = [&](TensorId id) { return trace_.tensors[id].role == Role::workspace; };
    if (bytes == 0 || std::any_of(reads_.begin(), reads_.end(), is_workspace) ||
        std::any_of(writes_.begin(), writes_.end(), is_workspace)) {
      return;
    }
    add_to_total(ops_.table(), total_bytes_, bytes, "sizes of the tensors");
    writes_.push_back(trace_.add_tensor("workspace_of_op_" + std::to_string(op_id), bytes, Role::workspace, false));
    may_be_given_.push_back(false);
    written_.push_back(false);
    ++added_workspaces_;
  }

  void note_given_tensors() {
    for (const TensorId id : reads_) {
      if (written_[id] || !may_be_given_[id] || trace_.tensors[id].persistent) continue;
      trace_.tensors[id].persistent = true;
      ++given_tensors_;
    }
    for (const TensorId id : writes_) written_[id] = true;
  }

  void write_notes() {
    const auto note = [&](std::uint64_t count, const std::string& what) {
      if (count != 0) notes_.push_back(std::to_string(count) + (count == 1 ? " tensor " : " tensors ") + what);
    };
    note(dropped_tensors_, "of size 0 dropped; the ids of later ones move up");
    note(given_tensors_, "read before any op writes them and with content from outside: taken as persistent");
    note(added_workspaces_, "added for the workspace_bytes of ops that list no workspace");
    if (repeated_ids_ != 0)
      notes_.push_back(std::to_string(repeated_ids_) + " repeated ids within inputs or outputs counted once");
    for (const Op& op : trace_.ops) {
      for (const TensorId id : trace_.reads(op)) written_[id] = true;
    }
    const auto unused = static_cast<std::uint64_t>(std::count(written_.begin(), written_.end(), false));
    note(unused, "that no op uses kept");
  }

  TensorRows tensors_;
  OpRows ops_;
  Trace trace_;
  std::vector<std::string> notes_;
  std::unordered_map<std::uint64_t, TensorId> id_of_;  // from the file's ids
  std::vector<bool> may_be_given_, written_;           // by TensorId
  std::vector<std::uint64_t> last_list_;               // by TensorId: the list that had it last
  std::vector<std::uint64_t> line_of_op_;
  std::vector<TensorId> reads_, writes_;
  std::uint64_t last_op_id_ = 0;
  std::uint64_t dropped_tensors_ = 0, given_tensors_ = 0, added_workspaces_ = 0, repeated_ids_ = 0;
  std::uint64_t total_bytes_ = 0;
};

// directory/stem.csv, .csv.gz or .csv.zst, whichever is there.
std::string find_file(const std::filesystem::path& directory, const std::string& stem) {
  for (const char* ending : {".csv", ".csv.gz", ".csv.zst"}) {
    const std::filesystem::path candidate = directory / (stem + ending);
    std::error_code ignored;
    if (std::filesystem::exists(candidate, ignored)) return candidate.string();
  }
  throw Error(directory.string(), 0,
              "holds no " + stem + ".csv, " + stem + ".csv.gz or " + stem +
                  ".csv.zst; name a directory that does, or the two files");
}

}  // namespace

Trace import_csv(const CsvImportOptions& options, std::vector<std::string>* notes) {
  std::string ops_file = options.ops_file;
  std::error_code ignored;
  if (std::filesystem::is_directory(ops_file, ignored)) ops_file = find_file(ops_file, "ops");
  const std::filesystem::path parent = std::filesystem::path(ops_file).parent_path();
  std::string tensors_file = options.tensors_file;
  if (!std::filesystem::exists(ops_file, ignored))
    throw Error(ops_file, 0, "cannot be read: No such file or directory");
  if (tensors_file.empty()) tensors_file = find_file(parent.empty() ? "." : parent, "tensors");

  CsvImporter importer(options, ops_file, tensors_file);
  Trace trace = importer.run();
  TraceHeader& header = trace.header;
  header.model = options.model.empty()
                     ? std::filesystem::absolute(ops_file, ignored).lexically_normal().parent_path().filename().string()
                     : options.model;
  header.batch = options.batch;
  header.sequence_length = options.sequence_length;
  header.precision = options.precision;
  header.hardware = options.hardware;
  header.provenance = {MadeBy::imported, {{"size-column", options.size_column}}};
  header.recorded_by = "import csv, sizes from " + options.size_column;
  if (notes) *notes = importer.take_notes();
  return trace;
}

}  // namespace tencache
