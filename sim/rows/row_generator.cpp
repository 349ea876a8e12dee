#include "sim/rows/row_generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "core/error.h"
#include "core/parse_number.h"
#include "sim/rows/row_file.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

constexpr Bytes most_histogram_bytes = 16 * MiB;
constexpr std::uint64_t most_lookups = std::uint64_t{1} << 32;
// Shares are printed with three digits behind the point: smaller ones have less than two.
constexpr double least_known_share = 0.01;

// From 0 to below `bound`, all alike: the upper half of a product (Lemire, "Fast random integer generation in an
// interval", 2019), without his correction, which changes less than one in 2^32 of the draws.
std::uint64_t draw(std::mt19937_64& generator, std::uint64_t bound) {
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(generator()) * bound) >> 64);
}
double draw_real(std::mt19937_64& generator) { return static_cast<double>(generator() >> 11) * 0x1p-53; }

// Ranks to rows of a table: one to one, neighbours far apart.
class Scatter {
 public:
  Scatter(std::uint64_t rows, std::mt19937_64& generator) : rows_(rows), offset_(draw(generator, rows)) {
    constexpr double golden = 0.6180339887498949;
    factor_ = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(static_cast<double>(rows) * golden));
    while (std::gcd(factor_, rows_) != 1) ++factor_;
  }
  std::uint32_t row_of(std::uint64_t rank) const {
    return static_cast<std::uint32_t>((rank * factor_ + offset_) % rows_);
  }

 private:
  std::uint64_t rows_, factor_, offset_;
};

// Ranks from 0, by rejection and inversion (Hörmann and Derflinger, "Rejection-inversion to generate variates from
// monotone discrete distributions", 1996).
class Zipf {
 public:
  Zipf(std::uint64_t rows, double exponent) : rows_(rows), exponent_(exponent) {
    if (exponent_ == 0) return;
    from_ = integral(1.5) - 1;
    to_ = integral(static_cast<double>(rows) + 0.5);
    accepted_ = 2 - inverse(integral(2.5) - std::pow(2, -exponent_));
  }
  std::uint64_t operator()(std::mt19937_64& generator) const {
    if (exponent_ == 0) return draw(generator, rows_);
    while (true) {
      const double u = to_ + draw_real(generator) * (from_ - to_), x = inverse(u);
      const double k = std::clamp(std::floor(x + 0.5), 1.0, static_cast<double>(rows_));
      if (k - x <= accepted_ || u >= integral(k + 0.5) - std::pow(k, -exponent_)) {
        return static_cast<std::uint64_t>(k) - 1;
      }
    }
  }

 private:
  bool is_logarithm() const { return std::abs(exponent_ - 1) < 1e-9; }
  double integral(double x) const {
    return is_logarithm() ? std::log(x) : (std::pow(x, 1 - exponent_) - 1) / (1 - exponent_);
  }
  double inverse(double y) const {
    return is_logarithm() ? std::exp(y) : std::pow(std::max(0.0, 1 + y * (1 - exponent_)), 1 / (1 - exponent_));
  }

  std::uint64_t rows_;
  double exponent_, from_ = 0, to_ = 0, accepted_ = 0;
};

// The lookups of a table, period after period.
class Reuse {
 public:
  Reuse(const ReuseHistogram& histogram, std::uint64_t pooling) {
    const std::vector<std::uint32_t> uses = histogram.uses_of(histogram.samples * pooling);
    for (std::uint32_t rank = 0; rank < uses.size(); ++rank) period_.insert(period_.end(), uses[rank], rank);
    left_ = period_.size();
  }
  std::uint64_t operator()(std::mt19937_64& generator) {
    if (left_ == 0) left_ = period_.size();
    std::swap(period_[draw(generator, left_)], period_[left_ - 1]);
    return period_[--left_];
  }

 private:
  std::vector<std::uint32_t> period_;  // what was drawn stands behind what was not
  std::size_t left_ = 0;
};

std::string line_at(std::string_view text, std::size_t& at) {
  const std::size_t end = std::min(text.find('\n', at), text.size());
  std::string line(text.substr(at, end - at));
  if (line.ends_with('\r')) line.pop_back();
  at = end + 1;
  return line;
}

}  // namespace

std::uint64_t ReuseHistogram::rows_of(std::uint64_t lookups_per_period) const {
  return uses_of(lookups_per_period).size();
}

std::vector<std::uint32_t> ReuseHistogram::uses_of(std::uint64_t lookups_per_period) const {
  const double sum_of_shares = std::accumulate(classes.begin(), classes.end(), 0.0,
                                               [](double sum, const Class& one) { return sum + one.lookups; });
  const double scale = static_cast<double>(lookups_per_period) / static_cast<double>(lookups);
  std::vector<std::uint32_t> uses;
  double share = 0, rows_sum = 0;
  std::uint64_t given = 0;
  for (const Class& one : classes) {
    share += one.lookups;
    const auto to =
        static_cast<std::uint64_t>(std::llround(share / sum_of_shares * static_cast<double>(lookups_per_period)));
    // Where the share of rows has too few digits, the lookups say how many there are: each row has the middle of its
    // class, on a logarithmic scale.
    const double middle = std::sqrt(std::max(one.least, 1.0) * one.most);
    rows_sum += scale * (one.rows >= least_known_share ? one.rows * static_cast<double>(rows)
                                                       : one.lookups * static_cast<double>(lookups) / middle);
    const auto rows_to = static_cast<std::uint64_t>(std::llround(rows_sum));
    if (rows_to <= uses.size() || to <= given) continue;  // too few for a row: what is left goes to the next class
    // What its printed shares say beyond the class, or below it, the next class makes up for.
    const std::uint64_t left = lookups_per_period - given, least_each = static_cast<std::uint64_t>(one.least) + 1;
    const std::uint64_t count = std::min(rows_to - uses.size(), left / least_each);
    if (count == 0) continue;
    const auto most_each = static_cast<std::uint64_t>(one.most);
    const std::uint64_t sum = std::min(std::clamp(to - given, count * least_each, count * most_each), left);
    const std::uint64_t more = sum % count;
    uses.insert(uses.end(), count - more, static_cast<std::uint32_t>(sum / count));
    uses.insert(uses.end(), more, static_cast<std::uint32_t>(sum / count + 1));
    given += sum;
  }
  if (given < lookups_per_period) {
    if (uses.empty()) uses.push_back(0);
    uses.back() += static_cast<std::uint32_t>(lookups_per_period - given);
  }
  return uses;
}

ReuseHistogram parse_reuse_histogram(std::string_view text, const std::string& file) {
  ReuseHistogram histogram;
  std::size_t at = 0, line_number = 0, filled = 0;
  const auto fail = [&](const std::string& message) { throw Error(file, line_number, message); };
  const auto number = [&](const std::string& words) {
    const auto value = parse_number<std::uint64_t>(words);
    if (!value || *value == 0) fail("'" + words + "' is no number of one or more");
    return *value;
  };
  enum class Part : std::uint8_t { head, rows, lookups } part = Part::head;
  constexpr std::string_view size_words = " of size ",
                             ids_words = "Avg # of indices: ", rows_words = "Avg # of unique cols: ";
  while (at < text.size()) {
    const std::string line = line_at(text, at);
    ++line_number;
    if (line.starts_with("Locality stats")) {
      if (part != Part::head) break;  // another period
      const std::size_t found = line.rfind(size_words);
      if (found == std::string::npos) fail("the size of a batch is missing");
      histogram.samples = number(line.substr(found + size_words.size()));
    } else if (line.starts_with(ids_words)) {
      histogram.lookups = number(line.substr(ids_words.size()));
    } else if (line.starts_with(rows_words)) {
      histogram.rows = number(line.substr(rows_words.size()));
    } else if (line.starts_with("Histogram of col sizes")) {
      part = Part::rows;
    } else if (line.starts_with("Ratio of index distribution")) {
      part = Part::lookups;
    } else if (line.starts_with("(") && part != Part::head) {
      // "(512, 1024]: 0.049" or "(32768+: 0.019", whose rows are taken to be used up to twice as often.
      const std::size_t colon = line.find(": "), comma = line.find_first_of(",+");
      const double value = colon == std::string::npos ? -1 : parse_number<double>(line.substr(colon + 2)).value_or(-1);
      const double least =
          comma == std::string::npos ? -1 : parse_number<double>(line.substr(1, comma - 1)).value_or(-1);
      if (value < 0 || value > 1 || least < 0 || least > 1e9) {
        fail("is no class of a histogram, such as '(1, 2]: 0.152'");
      }
      if (part == Part::rows) {
        if (!histogram.classes.empty()) histogram.classes.back().most = least;
        histogram.classes.push_back({least, 2 * std::max(least, 1.0), value, 0});
      } else {
        if (filled == histogram.classes.size() || histogram.classes[filled].least != least) {
          fail("is of a class that the histogram above does not have");
        }
        histogram.classes[filled++].lookups = value;
      }
    }
  }
  line_number = 0;
  for (std::size_t i = 0; i < histogram.classes.size(); ++i) {
    if (histogram.classes[i].most <= histogram.classes[i].least) fail("its classes are not in ascending order");
  }
  const bool has_lookups = std::ranges::any_of(histogram.classes, [](const auto& one) { return one.lookups > 0; });
  if (histogram.samples == 0 || histogram.lookups == 0 || histogram.rows == 0 || !has_lookups ||
      filled != histogram.classes.size() || histogram.rows > histogram.lookups) {
    fail(
        "has no reuse histogram: batch size, indices, unique columns and two lists of classes, as the "
        "locality_stats.txt of dlrm_datasets; the file may be cut short");
  }
  return histogram;
}

ReuseHistogram read_reuse_histogram(const std::string& path) {
  return parse_reuse_histogram(read_file(path, most_histogram_bytes), path);
}

void generate_row_ids(const RowGeneration& request, const std::string& path,
                      const std::function<void(double)>& progress) {
  check_row_tables(request.tables, path);
  std::mt19937_64 generator(request.seed);
  std::vector<Scatter> scatter;
  std::vector<std::function<std::uint64_t(std::mt19937_64&)>> ranks;
  if (request.histogram && request.histogram->samples * request.pooling >= most_lookups / request.tables.size()) {
    throw Error(fmt::format("a period of {} samples has more than {} lookups: lower --pooling or take fewer tables",
                            request.histogram->samples, most_lookups));
  }
  for (const RowTable& table : request.tables) {
    scatter.emplace_back(table.rows, generator);
    if (!request.histogram) {
      ranks.emplace_back(Zipf(table.rows, request.zipf));
      continue;
    }
    const std::uint64_t used = request.histogram->rows_of(request.histogram->samples * request.pooling);
    if (used > table.rows) {
      throw Error(
          fmt::format("table '{}' has {} rows, but {} lookups per sample use {} by the histogram: give it that "
                      "many rows, or lower --pooling",
                      table.name, table.rows, request.pooling, used));
    }
    ranks.emplace_back(Reuse(*request.histogram, request.pooling));
  }
  RowIdWriter writer(path, request.tables, request.batches);
  std::vector<std::uint32_t> ids(request.samples * request.pooling);
  for (std::uint64_t batch = 0; batch < request.batches; ++batch) {
    for (std::size_t table = 0; table < request.tables.size(); ++table) {
      for (std::uint32_t& id : ids) id = scatter[table].row_of(ranks[table](generator));
      writer.add(ids);
    }
    if (progress) progress(static_cast<double>(batch + 1) / static_cast<double>(request.batches));
  }
  writer.commit();
}

}  // namespace tencache
