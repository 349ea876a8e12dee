#include "sim/rows/row_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "traces/file/byte_source.h"

namespace tencache {
namespace {

static_assert(std::endian::native == std::endian::little, "ids are read and written as they lie in memory");

using Json = nlohmann::json;

constexpr std::size_t most_header_bytes = std::size_t{16} << 20;
constexpr std::size_t piece_words = std::size_t{1} << 18;  // a damaged count does not fill the memory
constexpr std::uint64_t most_batches = 0xffff'ffff - 1;
constexpr std::uint64_t most_ids = std::uint64_t{1} << 30;  // of a table in a batch

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {
    auto file = std::make_unique<FileSource>(path);
    file_ = file.get();
    source_ = std::move(file);
    decompress(source_, path);
  }

  RowIds read(const std::function<void(double)>& progress) {
    const std::uint64_t batches = read_header();
    RowIds ids(path_, tables_);
    std::vector<Row> lookups;
    for (std::uint64_t batch = 0; batch < batches; ++batch) {
      lookups.clear();
      for (std::size_t table = 0; table < tables_.size(); ++table) {
        const std::size_t begin = lookups.size();
        read_table(batch, table, lookups);
        const Row first = ids.first_row(table);
        const std::uint64_t rows = tables_[table].rows;
        for (std::size_t i = begin; i < lookups.size(); ++i) {
          if (lookups[i] >= rows) beyond(batch, table, lookups[i]);
          lookups[i] += first;
        }
      }
      ids.add_batch(lookups);
      if (progress && file_->file_bytes() > 0) {
        progress(static_cast<double>(file_->consumed_bytes()) / static_cast<double>(file_->file_bytes()));
      }
    }
    char more = 0;
    if (source_->read(&more, 1) != 0) {
      fail(fmt::format("something follows the {} batches of its first line: correct \"batches\"", batches));
    }
    return ids;
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw Error(path_, 0, message); }
  std::string place(std::uint64_t batch, std::size_t table) const {
    return fmt::format("batch {}, table '{}'", batch + 1, tables_[table].name);
  }
  [[noreturn]] void beyond(std::uint64_t batch, std::size_t table, Row id) const {
    fail(fmt::format("{}: id {} is beyond the table's {} rows: raise \"rows\" in the first line, or correct the ids",
                     place(batch, table), id, tables_[table].rows));
  }

  // How many batches there are.
  std::uint64_t read_header() {
    constexpr const char* help = "; docs/rows.md has the format, and `tencache rows generate` makes such files";
    std::string line;
    for (char one = 0; source_->read(&one, 1) == 1 && one != '\n';) {
      if (line.empty() && one != '{') fail(std::string("is no file of ids: it does not begin with '{'") + help);
      if (line.size() == most_header_bytes) fail(std::string("its first line has no end") + help);
      line += one;
    }
    const Json header = Json::parse(line, nullptr, false);
    if (!header.is_object() || !header.contains("row_ids")) {
      fail(std::string("is no file of ids: its first line is no object with \"row_ids\"") + help);
    }
    if (header["row_ids"] != 1) fail("is of a version that is not known here: \"row_ids\" is 1");
    const auto number = [&](const Json& object, const char* key, std::uint64_t most) {
      const auto found = object.find(key);
      if (found == object.end() || !found->is_number_unsigned() || found->get<std::uint64_t>() > most) {
        fail(fmt::format("first line: \"{}\" is missing, or no whole number up to {}", key, most));
      }
      return found->get<std::uint64_t>();
    };
    if (!header.contains("tables") || !header["tables"].is_array()) fail("first line: \"tables\" is no list");
    for (const Json& table : header["tables"]) {
      if (!table.is_object()) fail("first line: a table is no object");
      RowTable& made = tables_.emplace_back();
      made.name = table.contains("name") && table["name"].is_string() ? table["name"].get<std::string>()
                                                                      : std::to_string(tables_.size());
      made.rows = number(table, "rows", most_rows);
      made.row_bytes = number(table, "row_bytes", most_row_bytes);
      made.optimizer_bytes = table.contains("optimizer_bytes") ? number(table, "optimizer_bytes", most_row_bytes) : 0;
    }
    check_row_tables(tables_, path_);
    return number(header, "batches", most_batches);
  }

  void read_words(std::uint64_t batch, std::size_t table, std::uint32_t* words, std::size_t count) {
    if (source_->read(reinterpret_cast<char*>(words), 4 * count) == 4 * count) return;
    fail(place(batch, table) +
         ": the file ends here, before the batches of its first line: copy it again, or correct \"batches\"");
  }

  void read_table(std::uint64_t batch, std::size_t table, std::vector<Row>& lookups) {
    std::uint32_t count = 0;
    read_words(batch, table, &count, 1);
    if (count > most_ids) fail(fmt::format("{}: {} ids; {} are possible", place(batch, table), count, most_ids));
    while (count > 0) {
      const auto piece = static_cast<std::uint32_t>(std::min<std::size_t>(count, piece_words));
      const std::size_t begin = lookups.size();
      lookups.resize(begin + piece);
      read_words(batch, table, lookups.data() + begin, piece);
      count -= piece;
    }
  }

  std::string path_;
  std::unique_ptr<ByteSource> source_;
  const FileSource* file_ = nullptr;  // below decompression
  std::vector<RowTable> tables_;
};

}  // namespace

RowIds read_row_ids(const std::string& path, const std::function<void(double)>& progress) {
  return Reader(path).read(progress);
}

RowIdWriter::RowIdWriter(const std::string& path, const std::vector<RowTable>& tables, std::uint64_t batches)
    : file_(path), missing_(batches * tables.size()) {
  check_row_tables(tables, path);
  nlohmann::ordered_json header = {{"row_ids", 1}, {"batches", batches}};
  for (const RowTable& table : tables) {
    header["tables"].push_back({{"name", table.name},
                                {"rows", table.rows},
                                {"row_bytes", table.row_bytes},
                                {"optimizer_bytes", table.optimizer_bytes}});
  }
  file_.write(header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void RowIdWriter::add(std::span<const std::uint32_t> ids) {
  TENCACHE_CHECK(missing_ > 0 && ids.size() <= most_ids);
  --missing_;
  const auto count = static_cast<std::uint32_t>(ids.size());
  file_.write({reinterpret_cast<const char*>(&count), sizeof count});
  file_.write({reinterpret_cast<const char*>(ids.data()), ids.size_bytes()});
}

void RowIdWriter::commit() {
  TENCACHE_CHECK(missing_ == 0);
  file_.commit();
}

}  // namespace tencache
