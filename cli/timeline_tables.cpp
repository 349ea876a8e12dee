#include "cli/timeline_tables.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <iterator>
#include <memory>

#include "core/error.h"
#include "traces/csv_table.h"
#include "traces/file_io.h"

namespace tencache {
namespace {

constexpr const char* schema = R"(
PRAGMA application_id = 1415933548;
CREATE TABLE runs(run INTEGER PRIMARY KEY, name TEXT NOT NULL, machine TEXT NOT NULL);
CREATE TABLE tiers(run INTEGER, tier INTEGER, name TEXT NOT NULL, kind TEXT NOT NULL, capacity_bytes INTEGER,
                   PRIMARY KEY(run, tier)) WITHOUT ROWID;
CREATE TABLE lanes(run INTEGER, lane INTEGER, name TEXT NOT NULL, from_tier INTEGER, to_tier INTEGER,
                   PRIMARY KEY(run, lane)) WITHOUT ROWID;
CREATE TABLE ops(run INTEGER, op INTEGER, name TEXT NOT NULL, module TEXT NOT NULL, phase TEXT NOT NULL,
                 device TEXT NOT NULL, duration_ns INTEGER NOT NULL, gap_before_ns INTEGER NOT NULL,
                 flops INTEGER NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY(run, op)) WITHOUT ROWID;
CREATE TABLE tensors(run INTEGER, tensor INTEGER, name TEXT NOT NULL, bytes INTEGER NOT NULL, role TEXT NOT NULL,
                     persistent INTEGER NOT NULL, PRIMARY KEY(run, tensor)) WITHOUT ROWID;
CREATE TABLE accesses(run INTEGER, op INTEGER, tensor INTEGER, writes INTEGER NOT NULL);
CREATE TABLE spans(run INTEGER, start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL, kind TEXT NOT NULL,
                   lane INTEGER NOT NULL, iteration INTEGER NOT NULL, op INTEGER, tensor INTEGER, bytes INTEGER,
                   cause TEXT, urgent INTEGER, from_tier INTEGER, to_tier INTEGER);
CREATE TABLE occupancy(run INTEGER, time_ns INTEGER NOT NULL, tier INTEGER NOT NULL, tensor INTEGER,
                       role TEXT NOT NULL, used_bytes INTEGER NOT NULL, change_bytes INTEGER NOT NULL);
)";

constexpr std::string_view kinds[] = {"op", "gap", "stall", "transfer"};

std::string_view kind_of(const Span& span) { return kinds[static_cast<std::size_t>(span.kind)]; }

std::string lane_name(const MachineSpec& machine, std::size_t lane) {
  return lane == 0 ? "GPU" : lane == 1 ? "CPU" : machine.links[lane - 2].name;
}

// A value that may be missing: ids that do not apply.
struct Null {};
struct Id {
  std::uint32_t value;
};
struct TierOrNull {
  TierId value;
};

class Database {
 public:
  explicit Database(const std::string& path) : path_(path) {
    sqlite3* opened = nullptr;
    const int result = sqlite3_open(":memory:", &opened);
    database_.reset(opened);
    check(result);
    execute(schema);
    execute("BEGIN");
  }

  void execute(const char* sql) { check(sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr)); }

  class Insert {
   public:
    Insert(Database& database, const std::string& table, int columns) : database_(database) {
      std::string sql = "INSERT INTO " + table + " VALUES(?";
      for (int i = 1; i < columns; ++i) sql += ",?";
      database.check(sqlite3_prepare_v2(database.database_.get(), (sql + ")").c_str(), -1, &statement_, nullptr));
    }
    ~Insert() { sqlite3_finalize(statement_); }
    Insert(const Insert&) = delete;
    Insert& operator=(const Insert&) = delete;

    template <typename... Values>
    void row(const Values&... values) {
      int at = 0;
      (database_.check(bind(++at, values)), ...);
      const int result = sqlite3_step(statement_);
      database_.check(result == SQLITE_DONE ? SQLITE_OK : result);
      database_.check(sqlite3_reset(statement_));
    }

   private:
    int bind(int at, Null) { return sqlite3_bind_null(statement_, at); }
    int bind(int at, Id id) { return id.value == none ? bind(at, Null()) : bind(at, std::uint64_t{id.value}); }
    int bind(int at, TierOrNull tier) {
      return tier.value == no_tier ? bind(at, Null()) : bind(at, std::uint64_t{tier.value});
    }
    int bind(int at, std::int64_t value) { return sqlite3_bind_int64(statement_, at, value); }
    int bind(int at, std::uint64_t value) { return bind(at, static_cast<std::int64_t>(value)); }
    int bind(int at, std::string_view text) {
      return sqlite3_bind_text(statement_, at, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
    }

    Database& database_;
    sqlite3_stmt* statement_ = nullptr;
  };

  // The file's bytes.
  void write() {
    execute("COMMIT");
    sqlite3_int64 size = 0;
    const std::unique_ptr<unsigned char, void (*)(void*)> bytes(sqlite3_serialize(database_.get(), "main", &size, 0),
                                                                sqlite3_free);
    if (bytes == nullptr) throw Error(path_, 0, "this computer has not enough memory for the database");
    write_file(path_, {reinterpret_cast<const char*>(bytes.get()), static_cast<std::size_t>(size)});
  }

 private:
  void check(int result) const {
    if (result != SQLITE_OK) throw Error(path_, 0, sqlite3_errmsg(database_.get()));
  }
  struct Close {
    void operator()(sqlite3* database) const { sqlite3_close(database); }
  };

  const std::string& path_;
  std::unique_ptr<sqlite3, Close> database_;
};

void insert_program(Database& database, std::uint64_t run, const TimelineProcess& process) {
  const MachineSpec& machine = *process.machine;
  const Trace& trace = *process.trace;
  Database::Insert(database, "runs", 3).row(run, process.name, machine.name);
  Database::Insert tiers(database, "tiers", 5), lanes(database, "lanes", 5), ops(database, "ops", 10),
      tensors(database, "tensors", 6), accesses(database, "accesses", 4);
  for (std::uint64_t i = 0; i < machine.tiers.size(); ++i) {
    const Tier& tier = machine.tiers[i];
    if (tier.capacity >= unlimited) {
      tiers.row(run, i, tier.name, to_string(tier.kind), Null());
    } else {
      tiers.row(run, i, tier.name, to_string(tier.kind), tier.capacity);
    }
  }
  for (std::uint64_t lane = 0; lane < 2 + machine.links.size(); ++lane) {
    const TierId from = lane < 2 ? no_tier : machine.links[lane - 2].from;
    const TierId to = lane < 2 ? no_tier : machine.links[lane - 2].to;
    lanes.row(run, lane, lane_name(machine, lane), TierOrNull{from}, TierOrNull{to});
  }
  for (std::uint64_t i = 0; i < trace.ops.size(); ++i) {
    const Op& op = trace.ops[i];
    ops.row(run, i, trace.name(op), trace.module(op), to_string(op.phase), to_string(op.device), op.duration_ns,
            op.gap_before_ns, op.flops, op.bytes);
    for (const TensorId id : trace.reads(op)) accesses.row(run, i, Id{id}, std::uint64_t{0});
    for (const TensorId id : trace.writes(op)) accesses.row(run, i, Id{id}, std::uint64_t{1});
  }
  for (std::uint64_t i = 0; i < trace.tensors.size(); ++i) {
    const Tensor& tensor = trace.tensors[i];
    tensors.row(run, i, trace.name(tensor), tensor.bytes, to_string(tensor.role), std::uint64_t{tensor.persistent});
  }
}

void insert_timeline(Database& database, std::uint64_t run, const Timeline& timeline) {
  Database::Insert spans(database, "spans", 13), occupancy(database, "occupancy", 7);
  for (const Span& span : timeline.spans) {
    const auto row = [&](const auto&... rest) {
      spans.row(run, span.start_ns, span.end_ns, kind_of(span), std::uint64_t{span.lane}, span.iteration, Id{span.op},
                rest...);
    };
    if (span.kind == SpanKind::transfer) {
      row(Id{span.tensor}, span.bytes, Null(), std::uint64_t{span.urgent}, TierOrNull{span.from}, TierOrNull{span.to});
    } else if (span.kind == SpanKind::stall) {
      row(Null(), Null(), to_string(span.cause), Null(), Null(), Null());
    } else {
      row(Null(), Null(), Null(), Null(), Null(), Null());
    }
  }
  for (const OccupancySample& sample : timeline.occupancy) {
    occupancy.row(run, sample.time_ns, std::uint64_t{sample.tier}, Id{sample.tensor}, to_string(sample.role),
                  sample.used, sample.change);
  }
}

}  // namespace

void write_timeline_sqlite(const std::string& path, const std::vector<TimelineProcess>& processes) {
  Database database(path);
  for (std::uint64_t run = 0; run < processes.size(); ++run) {
    insert_program(database, run, processes[run]);
    insert_timeline(database, run, *processes[run].timeline);
  }
  database.write();
}

void write_timeline_csv(const std::string& path, const std::vector<TimelineProcess>& processes) {
  AtomicFile file(path);
  file.write("run,iteration,lane,kind,start_ns,end_ns,op,module,phase,tensor,bytes,cause,urgent,from_tier,to_tier\n");
  for (const TimelineProcess& process : processes) {
    const Trace& trace = *process.trace;
    const MachineSpec& machine = *process.machine;
    const std::string run = csv_field(process.name);
    for (const Span& span : process.timeline->spans) {
      const bool moves = span.kind == SpanKind::transfer;
      std::string line = fmt::format("{},{},{},{},{},{}", run, span.iteration, csv_field(lane_name(machine, span.lane)),
                                     kind_of(span), span.start_ns, span.end_ns);
      const auto out = std::back_inserter(line);
      if (span.op < trace.ops.size()) {
        const Op& op = trace.ops[span.op];
        fmt::format_to(out, ",{},{},{}", csv_field(trace.name(op)), csv_field(trace.module(op)), to_string(op.phase));
      } else {
        line += ",,,";
      }
      if (moves) {
        const bool known = span.tensor < trace.tensors.size();
        fmt::format_to(out, ",{},{},,{},{},{}\n",
                       known ? csv_field(trace.name(trace.tensors[span.tensor])) : std::string(), span.bytes,
                       span.urgent ? 1 : 0, csv_field(machine.tiers[span.from].name),
                       csv_field(machine.tiers[span.to].name));
      } else {
        fmt::format_to(out, ",,,{},,,\n", span.kind == SpanKind::stall ? to_string(span.cause) : std::string_view());
      }
      file.write(line);
    }
  }
  file.commit();
}

void write_timeline(const std::string& path, const std::vector<TimelineProcess>& processes) {
  if (path.ends_with(".sqlite") || path.ends_with(".db")) {
    write_timeline_sqlite(path, processes);
  } else if (path.ends_with(".csv")) {
    write_timeline_csv(path, processes);
  } else {
    write_chrome_trace(path, processes);
  }
}

}  // namespace tencache
