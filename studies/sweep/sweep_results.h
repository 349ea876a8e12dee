// Results of a sweep on disk: one SQLite file, table `results` with a row a combination (the columns of
// studies/sweep/sweep_row.h) and table `sweep` of names and values (name, file, build, combinations, …).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "studies/sweep/sweep_row.h"

struct sqlite3;
struct sqlite3_stmt;

namespace tencache {

struct SweepResults {
  std::map<std::string, std::string> about;  // table `sweep`
  std::vector<SweepRow> rows;                // by position
};
// Whether its fronts and advice have policies that no system runs.
bool advises_any_policy(const SweepResults& results);
// Also while the sweep goes on: what is there so far. Throws Error if the file is no results file.
SweepResults read_sweep(const std::string& path);

// The file while a sweep writes it. One object at a time has it, across processes: a second one is refused. Whatever
// happens to the process, rows that add() was given are there whole, or not at all. Not thread-safe.
class SweepStore {
 public:
  // Opens or makes the file; an empty path keeps everything in memory. Throws Error if it cannot be written, is no
  // results file, or another process has it.
  explicit SweepStore(const std::string& path);
  ~SweepStore();
  SweepStore(const SweepStore&) = delete;
  SweepStore& operator=(const SweepStore&) = delete;

  std::map<std::string, std::string> about();
  void set_about(const std::map<std::string, std::string>& about);
  std::vector<SweepRow> rows();  // by position
  // All of them or, where it throws, none; a row of a key that is there already replaces it.
  void add(const std::vector<SweepRow>& rows);
  void remove(const std::vector<std::string>& keys);

 private:
  void run(const std::string& sql);
  [[noreturn]] void fail(const std::string& what) const;

  std::string path_;
  int lock_ = -1;
  sqlite3* database_ = nullptr;
};

// The rows as CSV (quoted as in RFC 4180, lines end in \n) with a header line.
std::string sweep_csv(const std::vector<SweepRow>& rows);

}  // namespace tencache
