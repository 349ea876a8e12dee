#include "studies/sweep/sweep_results.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "traces/file/file_io.h"
#include "traces/import/csv_table.h"

namespace tencache {
namespace {

// "TenC": so that `file` and we tell a results file from any other database.
constexpr int application_id = 0x54656e43;
constexpr int busy_milliseconds = 10'000;

struct ColumnType {
  std::string operator()(const std::string&) const { return "TEXT NOT NULL"; }
  std::string operator()(bool) const { return "INTEGER NOT NULL"; }
  std::string operator()(std::uint64_t) const { return "INTEGER NOT NULL"; }
  std::string operator()(const std::optional<std::uint64_t>&) const { return "INTEGER"; }
  std::string operator()(const std::optional<double>&) const { return "REAL"; }
};

std::string columns(bool with_types) {
  std::string text;
  SweepRow row;
  for_each_field(row, [&](const char* name, const auto& field) {
    if (!text.empty()) text += ", ";
    text += name;
    if (!with_types) return;
    text += ' ';
    text += ColumnType{}(field);
    if (std::strcmp(name, "key") == 0) text += " PRIMARY KEY";
  });
  return text;
}

class Statement {
 public:
  Statement(sqlite3* database, const std::string& path, const std::string& sql) : database_(database), path_(path) {
    check(sqlite3_prepare_v2(database, sql.c_str(), -1, &statement_, nullptr));
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  void bind(int at, const std::string& text) {
    check(sqlite3_bind_text(statement_, at, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT));
  }
  void bind(int at, bool value) { check(sqlite3_bind_int(statement_, at, value ? 1 : 0)); }
  void bind(int at, std::uint64_t value) {
    check(sqlite3_bind_int64(statement_, at, static_cast<sqlite3_int64>(value)));
  }
  void bind(int at, const std::optional<std::uint64_t>& value) {
    value ? bind(at, *value) : check(sqlite3_bind_null(statement_, at));
  }
  void bind(int at, const std::optional<double>& value) {
    check(value ? sqlite3_bind_double(statement_, at, *value) : sqlite3_bind_null(statement_, at));
  }

  void get(int at, std::string& text) const {
    const unsigned char* bytes = sqlite3_column_text(statement_, at);
    text.assign(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(sqlite3_column_bytes(statement_, at)));
  }
  void get(int at, bool& value) const { value = sqlite3_column_int(statement_, at) != 0; }
  void get(int at, std::uint64_t& value) const {
    value = static_cast<std::uint64_t>(sqlite3_column_int64(statement_, at));
  }
  template <typename T>
  void get(int at, std::optional<T>& value) const {
    value.reset();
    if (sqlite3_column_type(statement_, at) == SQLITE_NULL) return;
    if constexpr (std::is_same_v<T, double>) {
      value = sqlite3_column_double(statement_, at);
    } else {
      get(at, value.emplace());
    }
  }

  // Whether there is a row.
  bool step() {
    const int result = sqlite3_step(statement_);
    if (result != SQLITE_ROW && result != SQLITE_DONE) check(result);
    return result == SQLITE_ROW;
  }
  void reset() { sqlite3_reset(statement_); }

 private:
  void check(int result) const {
    if (result != SQLITE_OK) throw Error(path_, 0, sqlite3_errmsg(database_));
  }

  sqlite3* database_;
  const std::string& path_;
  sqlite3_stmt* statement_ = nullptr;
};

// Throws Error where the rows have other columns than those of this version.
void check_columns(sqlite3* database, const std::string& path) {
  try {
    Statement(database, path, "SELECT " + columns(false) + " FROM results LIMIT 0");
  } catch (const Error& error) {
    throw Error(path + " was written by another version of tencache (" + error.what() + "); sweep it anew");
  }
}

std::vector<SweepRow> read_rows(sqlite3* database, const std::string& path) {
  std::vector<SweepRow> rows;
  Statement select(database, path, "SELECT " + columns(false) + " FROM results ORDER BY position, key");
  while (select.step()) {
    int at = 0;
    for_each_field(rows.emplace_back(), [&](const char*, auto& field) { select.get(at++, field); });
  }
  return rows;
}

std::map<std::string, std::string> read_about(sqlite3* database, const std::string& path) {
  std::map<std::string, std::string> about;
  Statement select(database, path, "SELECT name, value FROM sweep");
  while (select.step()) {
    std::string name, value;
    select.get(0, name);
    select.get(1, value);
    about.emplace(std::move(name), std::move(value));
  }
  return about;
}

// 0 of a file that is empty or not there.
std::uint64_t application_of(sqlite3* database, const std::string& path) {
  Statement pragma(database, path, "PRAGMA application_id");
  std::uint64_t id = 0;
  if (pragma.step()) pragma.get(0, id);
  return id;
}

std::uint64_t table_count(sqlite3* database, const std::string& path) {
  Statement select(database, path, "SELECT count(*) FROM sqlite_master");
  std::uint64_t count = 0;
  if (select.step()) select.get(0, count);
  return count;
}

std::string no_results_file(const std::string& path) { return path + " is no results file of a sweep"; }

struct CsvCell {
  std::string operator()(const std::string& text) const { return csv_field(text); }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::uint64_t value) const { return fmt::format("{}", value); }
  template <typename T>
  std::string operator()(const std::optional<T>& value) const {
    return value ? fmt::format("{}", *value) : std::string();
  }
};

}  // namespace

bool advises_any_policy(const SweepResults& results) { return results.about.contains("any_policy"); }

SweepResults read_sweep(const std::string& path) {
  sqlite3* database = nullptr;
  // Where it may be written, what a killed sweep left half done is rolled back.
  const int opened = sqlite3_open_v2(path.c_str(), &database, SQLITE_OPEN_READWRITE, nullptr);
  const std::unique_ptr<sqlite3, int (*)(sqlite3*)> owner(database, sqlite3_close);
  if (opened != SQLITE_OK) throw Error("cannot open " + path + ": " + sqlite3_errmsg(database));
  sqlite3_busy_timeout(database, busy_milliseconds);
  std::uint64_t application = 0, tables = 0;
  try {
    application = application_of(database, path);
    tables = table_count(database, path);
  } catch (const Error&) {
    throw Error(no_results_file(path));
  }
  if (application == 0 && tables == 0) return {};  // a sweep has only just begun
  if (application != application_id) throw Error(no_results_file(path));
  SweepResults results;
  check_columns(database, path);
  results.about = read_about(database, path);
  results.rows = read_rows(database, path);
  return results;
}

SweepStore::SweepStore(const std::string& path) : path_(path.empty() ? ":memory:" : path) {
  if (!path.empty()) {
    // Not closed before the database is: closing any descriptor of a file drops SQLite's own locks on it.
    lock_ = open(file_to_write(path).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock_ < 0) throw Error("cannot write " + path + ": " + std::strerror(errno));
    if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
      close(lock_);
      throw Error(path + " is being written by another sweep; wait for it, or name another file");
    }
  }
  try {
    if (sqlite3_open(path_.c_str(), &database_) != SQLITE_OK) fail("cannot be opened");
    sqlite3_busy_timeout(database_, busy_milliseconds);
    std::uint64_t application = 0, tables = 0;
    try {
      application = application_of(database_, path_);
      tables = table_count(database_, path_);
    } catch (const Error&) {
      throw Error(no_results_file(path_) + "; name another");
    }
    if (application != application_id && tables != 0) throw Error(no_results_file(path_) + "; name another");
    run("PRAGMA synchronous = NORMAL");
    if (application != application_id) {
      run("BEGIN IMMEDIATE; CREATE TABLE sweep (name TEXT PRIMARY KEY, value TEXT NOT NULL); CREATE TABLE results (" +
          columns(true) + "); PRAGMA application_id = " + std::to_string(application_id) + "; COMMIT");
    }
    check_columns(database_, path_);
  } catch (...) {
    sqlite3_close(database_);
    if (lock_ >= 0) close(lock_);
    throw;
  }
}

SweepStore::~SweepStore() {
  sqlite3_close(database_);
  if (lock_ >= 0) close(lock_);
}

void SweepStore::fail(const std::string& what) const { throw Error(path_, 0, what + ": " + sqlite3_errmsg(database_)); }

void SweepStore::run(const std::string& sql) {
  if (sqlite3_exec(database_, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK) return;
  const std::string message = sqlite3_errmsg(database_);
  if (sqlite3_get_autocommit(database_) == 0) sqlite3_exec(database_, "ROLLBACK", nullptr, nullptr, nullptr);
  throw Error(path_, 0, message);
}

std::map<std::string, std::string> SweepStore::about() { return read_about(database_, path_); }

void SweepStore::set_about(const std::map<std::string, std::string>& about) {
  run("BEGIN IMMEDIATE; DELETE FROM sweep");
  {
    Statement insert(database_, path_, "INSERT INTO sweep VALUES (?, ?)");
    for (const auto& [name, value] : about) {
      insert.bind(1, name);
      insert.bind(2, value);
      insert.step();
      insert.reset();
    }
  }
  run("COMMIT");
}

std::vector<SweepRow> SweepStore::rows() { return read_rows(database_, path_); }

void SweepStore::add(const std::vector<SweepRow>& rows) {
  std::string places;
  SweepRow any;
  for_each_field(any, [&](const char*, const auto&) { places += places.empty() ? "?" : ", ?"; });
  run("BEGIN IMMEDIATE");
  {
    Statement insert(database_, path_, "INSERT OR REPLACE INTO results VALUES (" + places + ")");
    for (const SweepRow& row : rows) {
      int at = 0;
      for_each_field(row, [&](const char*, const auto& field) { insert.bind(++at, field); });
      insert.step();
      insert.reset();
    }
  }
  run("COMMIT");
}

void SweepStore::remove(const std::vector<std::string>& keys) {
  run("BEGIN IMMEDIATE");
  {
    Statement erase(database_, path_, "DELETE FROM results WHERE key = ?");
    for (const std::string& key : keys) {
      erase.bind(1, key);
      erase.step();
      erase.reset();
    }
  }
  run("COMMIT");
}

std::string sweep_csv(const std::vector<SweepRow>& rows) {
  std::string text;
  const auto line = [&text](const SweepRow& row, const auto& cell_of) {
    bool first = true;
    for_each_field(row, [&](const char* name, const auto& field) {
      if (!first) text += ',';
      text += cell_of(name, field);
      first = false;
    });
    text += "\n";
  };
  line({}, [](const char* name, const auto&) { return std::string(name); });
  for (const SweepRow& row : rows) line(row, [](const char*, const auto& field) { return CsvCell{}(field); });
  return text;
}

}  // namespace tencache
