// Files of ids made from a distribution: Zipf's, or the reuse of rows that Meta published of its recommendation models.
//
// Where a row lies in its table has nothing to do with how often it is used: ids of such models are hashed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/rows/row_ids.h"

namespace tencache {

// Of the rows that a period of `samples` samples uses: how many are used how often, in classes of reuse.
struct ReuseHistogram {
  struct Class {
    double least = 0, most = 0;    // a row of it is used more than `least` and up to `most` times
    double rows = 0, lookups = 0;  // shares of all
  };
  std::uint64_t samples = 0, lookups = 0, rows = 0;
  std::vector<Class> classes;  // from rarely used ones to often used ones

  // Different rows that a table of so many lookups per period uses.
  std::uint64_t rows_of(std::uint64_t lookups_per_period) const;
  // How often each of these rows is used in a period: the least used first, in sum `lookups_per_period`.
  std::vector<std::uint32_t> uses_of(std::uint64_t lookups_per_period) const;
};
// The first period of a file as dlrm_datasets has it (locality_stats.txt). Throws Error with file and line.
ReuseHistogram parse_reuse_histogram(std::string_view text, const std::string& file);
ReuseHistogram read_reuse_histogram(const std::string& path);

struct RowGeneration {
  std::vector<RowTable> tables;
  std::uint64_t batches = 100;
  std::uint64_t samples = 2048;  // of a batch
  std::uint64_t pooling = 1;     // lookups per sample and table
  // A period's lookups have exactly the histogram, in random order; each period uses the same rows. Without a histogram
  // each lookup is drawn alone: the row of rank k with a probability proportional to k^-zipf; 0: all alike.
  std::optional<ReuseHistogram> histogram;
  double zipf = 1;
  std::uint64_t seed = 1;
};

// Writes the file. Throws Error: for tables with fewer rows than the histogram uses, and for more than 2^32 lookups per
// period. The same request gives the same bytes; with Zipf's as far as pow() does.
void generate_row_ids(const RowGeneration& request, const std::string& path,
                      const std::function<void(double share)>& progress = {});

}  // namespace tencache
