#include "gui/model/timeline_database.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace tencache::gui {
namespace {

class Database {
 public:
  explicit Database(const std::string& path) : path_(path) {
    sqlite3* opened = nullptr;
    const int result = sqlite3_open_v2(path.c_str(), &opened, SQLITE_OPEN_READONLY, nullptr);
    database_.reset(opened);
    if (result != SQLITE_OK) fail();
  }
  [[noreturn]] void fail() const { throw Error(path_, 0, sqlite3_errmsg(database_.get())); }
  // `what`: of the table that is wrong.
  void require(bool condition, const char* what) const {
    if (!condition) throw Error(path_, 0, std::string("is damaged: ") + what + " is none of a timeline");
  }

  class Rows;
  template <typename OnRow>
  void each(const char* sql, OnRow on_row) const;

 private:
  struct Close {
    void operator()(sqlite3* database) const { sqlite3_close(database); }
  };
  const std::string& path_;
  std::unique_ptr<sqlite3, Close> database_;
};

class Database::Rows {
 public:
  Rows(const Database& database, const char* sql) : database_(database) {
    if (sqlite3_prepare_v2(database.database_.get(), sql, -1, &statement_, nullptr) != SQLITE_OK) database.fail();
  }
  ~Rows() { sqlite3_finalize(statement_); }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  bool next() {
    const int result = sqlite3_step(statement_);
    if (result != SQLITE_ROW && result != SQLITE_DONE) database_.fail();
    return result == SQLITE_ROW;
  }
  bool has(int column) const { return sqlite3_column_type(statement_, column) != SQLITE_NULL; }
  std::int64_t signed_number(int column) const { return sqlite3_column_int64(statement_, column); }
  std::uint64_t number(int column) const { return static_cast<std::uint64_t>(signed_number(column)); }
  std::uint32_t id(int column) const { return has(column) ? static_cast<std::uint32_t>(signed_number(column)) : none; }
  std::string text(int column) const {
    const unsigned char* bytes = sqlite3_column_text(statement_, column);
    return bytes == nullptr ? std::string() : reinterpret_cast<const char*>(bytes);
  }

 private:
  const Database& database_;
  sqlite3_stmt* statement_ = nullptr;
};

template <typename OnRow>
void Database::each(const char* sql, OnRow on_row) const {
  Rows rows(*this, sql);
  while (rows.next()) on_row(rows);
}

using Rows = Database::Rows;
using Recordings = std::map<std::uint64_t, Recording>;

template <typename Enum, std::size_t count>
Enum named(const Database& database, const std::string& name, const char* what) {
  for (std::size_t i = 0; i < count; ++i) {
    if (to_string(static_cast<Enum>(i)) == name) return static_cast<Enum>(i);
  }
  database.require(false, what);
  return {};
}

Recording& recording_of(const Database& database, Recordings& recordings, const Rows& row) {
  const auto found = recordings.find(row.number(0));
  database.require(found != recordings.end(), "the run of a row");
  return found->second;
}

void read_machines(const Database& database, const std::string& path, Recordings& recordings) {
  database.each("SELECT run, name, machine FROM runs", [&](const Rows& row) {
    Recording& recording = recordings[row.number(0)];
    recording.title = row.text(1);
    recording.source = path;
    recording.origin = recording.title.starts_with("measured") ? Origin::measured : Origin::predicted;
    recording.machine.name = row.text(2);
  });
  database.each("SELECT run, name, kind, capacity_bytes FROM tiers ORDER BY run, tier", [&](const Rows& row) {
    Tier& tier = recording_of(database, recordings, row).machine.tiers.emplace_back();
    tier.name = row.text(1);
    const std::string kind = row.text(2);
    tier.kind = kind == "gpu" ? TierKind::gpu : kind == "cpu" ? TierKind::cpu : TierKind::nvme;
    tier.capacity = row.has(3) ? row.number(3) : unlimited;
  });
  database.each("SELECT run, name, from_tier, to_tier FROM lanes WHERE lane >= 2 ORDER BY run, lane",
                [&](const Rows& row) {
                  MachineSpec& machine = recording_of(database, recordings, row).machine;
                  Link& link = machine.links.emplace_back();
                  link.name = row.text(1);
                  const std::size_t tiers = machine.tiers.size();
                  database.require(row.number(2) < tiers && row.number(3) < tiers, "a lane");
                  link.from = static_cast<TierId>(row.number(2));
                  link.to = static_cast<TierId>(row.number(3));
                });
  for (const auto& [run, recording] : recordings) {
    const std::size_t tiers = recording.machine.tiers.size();
    database.require(tiers > 0 && tiers <= max_tiers && recording.machine.links.size() <= max_links, "a machine");
  }
}

void read_programs(const Database& database, Recordings& recordings) {
  database.each("SELECT run, name, bytes, role, persistent FROM tensors ORDER BY run, tensor", [&](const Rows& row) {
    const std::optional<Role> role = parse_role(row.text(3));
    database.require(role.has_value(), "a tensor's role");
    recording_of(database, recordings, row).trace.add_tensor(row.text(1), row.number(2), *role, row.number(4) != 0);
  });
  struct Lists {
    std::vector<TensorId> reads, writes;
  };
  std::map<std::pair<std::uint64_t, std::uint64_t>, Lists> accesses;  // by run and op
  database.each("SELECT run, op, tensor, writes FROM accesses ORDER BY rowid", [&](const Rows& row) {
    const std::size_t tensors = recording_of(database, recordings, row).trace.tensors.size();
    database.require(row.number(2) < tensors, "an access");
    Lists& lists = accesses[{row.number(0), row.number(1)}];
    (row.number(3) != 0 ? lists.writes : lists.reads).push_back(row.id(2));
  });
  constexpr const char* ops =
      "SELECT run, op, name, module, phase, device, duration_ns, gap_before_ns, flops, bytes FROM ops ORDER BY run, op";
  database.each(ops, [&](const Rows& row) {
    Trace& trace = recording_of(database, recordings, row).trace;
    database.require(row.number(1) == trace.ops.size(), "the number of an op");
    const std::optional<Phase> phase = parse_phase(row.text(4));
    database.require(phase.has_value(), "an op's phase");
    Op op;
    op.name = trace.names.intern(row.text(2));
    op.module = trace.names.intern(row.text(3));
    op.phase = *phase;
    op.device = row.text(5) == to_string(Device::cpu) ? Device::cpu : Device::gpu;
    op.duration_ns = row.signed_number(6);
    op.gap_before_ns = row.signed_number(7);
    op.flops = row.number(8);
    op.bytes = row.number(9);
    const Lists& lists = accesses[{row.number(0), row.number(1)}];
    trace.add_op(op, lists.reads, lists.writes);
  });
}

void read_timelines(const Database& database, Recordings& recordings) {
  constexpr std::string_view kinds[] = {"op", "gap", "stall", "transfer"};
  constexpr const char* spans =
      "SELECT run, start_ns, end_ns, kind, lane, iteration, op, tensor, bytes, cause, urgent, from_tier, to_tier "
      "FROM spans ORDER BY rowid";
  database.each(spans, [&](const Rows& row) {
    Recording& recording = recording_of(database, recordings, row);
    const MachineSpec& machine = recording.machine;
    Span span;
    const auto* const kind = std::ranges::find(kinds, row.text(3));
    database.require(kind != std::end(kinds) && row.number(4) < 2 + machine.links.size(), "a span");
    span.start_ns = row.signed_number(1);
    span.end_ns = row.signed_number(2);
    database.require(span.end_ns >= span.start_ns, "a span's time");
    span.kind = static_cast<SpanKind>(kind - std::begin(kinds));
    span.lane = static_cast<std::uint8_t>(row.number(4));
    span.iteration = row.number(5);
    if (row.id(6) < recording.trace.ops.size()) span.op = row.id(6);
    if (span.kind == SpanKind::stall) {
      span.cause = named<StallCause, stall_cause_count>(database, row.text(9), "a stall's cause");
    } else if (span.kind == SpanKind::transfer) {
      database.require(span.lane >= 2, "a copy's lane");
      span.cause = cause_of(machine, static_cast<LinkId>(span.lane - 2));
      span.tensor = row.id(7);
      span.bytes = row.number(8);
      span.urgent = row.number(10) != 0;
      database.require(row.number(11) < machine.tiers.size() && row.number(12) < machine.tiers.size(), "a copy's tier");
      span.from = static_cast<TierId>(row.number(11));
      span.to = static_cast<TierId>(row.number(12));
    }
    recording.timeline.spans.push_back(span);
  });
  constexpr const char* occupancy =
      "SELECT run, time_ns, tier, tensor, role, used_bytes, change_bytes FROM occupancy ORDER BY rowid";
  database.each(occupancy, [&](const Rows& row) {
    Recording& recording = recording_of(database, recordings, row);
    const std::optional<Role> role = parse_role(row.text(4));
    database.require(role.has_value() && row.number(2) < recording.machine.tiers.size(), "what a tier holds");
    recording.timeline.occupancy.push_back({row.signed_number(1), static_cast<TierId>(row.number(2)), *role, row.id(3),
                                            row.number(5), row.signed_number(6)});
  });
}

}  // namespace

bool is_timeline_database(const std::string& path) {
  try {
    const Database database(path);
    std::size_t tables = 0;
    database.each("SELECT name FROM sqlite_master WHERE type = 'table' AND name IN ('runs', 'spans', 'occupancy')",
                  [&tables](const Rows&) { ++tables; });
    return tables == 3;
  } catch (const Error&) {
    return false;
  }
}

std::vector<Recording> read_timeline_database(const std::string& path) {
  const Database database(path);
  Recordings recordings;
  read_machines(database, path, recordings);
  read_programs(database, recordings);
  read_timelines(database, recordings);
  if (recordings.empty()) throw Error(path, 0, "holds no run");
  std::vector<Recording> list;
  for (auto& [run, recording] : recordings) list.push_back(std::move(recording));
  return list;
}

}  // namespace tencache::gui
