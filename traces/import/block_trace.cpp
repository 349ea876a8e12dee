#include "traces/import/block_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string_view>

#include "core/check.h"
#include "core/error.h"
#include "traces/file/file_io.h"
#include "traces/import/request_file.h"

namespace tencache {
namespace {

using Json = nlohmann::json;

constexpr Bytes most_bytes = 2 * GiB;
constexpr std::uint32_t mooncake_tokens = 512, bailian_tokens = 16;

class BlockReader {
 public:
  BlockReader(const std::string& file, std::uint32_t block_tokens) : file_(file), block_tokens_(block_tokens) {}

  BlockTrace read(std::string_view text) {
    std::optional<BlockTrace> trace;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      const std::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      ++line_;
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      const Json json = Json::parse(line, nullptr, false);
      if (!json.is_object()) {
        fail("the line is no JSON object: copy the file again if it is cut short, or correct the line");
      }
      if (!trace) {
        if (block_tokens_ == 0) block_tokens_ = json.contains("chat_id") ? bailian_tokens : mooncake_tokens;
        trace.emplace(block_tokens_, file_);
      }
      const std::uint64_t tokens = length(json, "input_length", 1);
      length(json, "output_length", 0);
      check_time(json);
      read_hashes(json, tokens);
      trace->add(tokens, hashes_);
    }
    if (!trace) throw Error(file_, 0, "there are no requests in the file: it is empty");
    return std::move(*trace);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw Error(file_, line_, message); }

  const Json& value(const Json& json, const char* key) const {
    const auto found = json.find(key);
    if (found == json.end()) {
      fail(
          fmt::format("key '{}' is missing: a request has timestamp, input_length, output_length and hash_ids "
                      "(docs/kv-cache.md)",
                      key));
    }
    return *found;
  }

  std::uint64_t length(const Json& json, const char* key, std::uint64_t least) const {
    const Json& found = value(json, key);
    if (found.is_number_unsigned()) {
      const auto number = found.get<std::uint64_t>();
      if (number >= least && number <= longest_request) return number;
    }
    fail(fmt::format("{}: '{}' is no whole number of tokens from {} to {}", key, text_of(found), least,
                     longest_request));
  }

  void check_time(const Json& json) {
    const Json& found = value(json, "timestamp");
    if (!found.is_number()) fail(fmt::format("timestamp: '{}' is no number", text_of(found)));
    const auto time = found.get<double>();
    if (time < time_) {
      fail(fmt::format("timestamp {} is before that of the request before, {}: sort the file by timestamp",
                       text_of(found), time_));
    }
    time_ = time;
  }

  void read_hashes(const Json& json, std::uint64_t tokens) {
    const Json& found = value(json, "hash_ids");
    if (!found.is_array()) fail("hash_ids is no list");
    const std::uint64_t full = tokens / block_tokens_, all = (tokens + block_tokens_ - 1) / block_tokens_;
    if (found.size() < full || found.size() > all) {
      fail(fmt::format("{} hash_ids for {} tokens, which are {} blocks of {}: {}", found.size(), tokens, all,
                       block_tokens_,
                       found.size() < full ? "the list has a gap; correct it, or give --block-tokens"
                                           : "give --block-tokens, or correct the list"));
    }
    hashes_.clear();
    for (const Json& hash : found) {
      if (!hash.is_number_integer()) fail(fmt::format("hash_ids: '{}' is no whole number", text_of(hash)));
      hashes_.push_back(hash.is_number_unsigned() ? hash.get<std::uint64_t>()
                                                  : static_cast<std::uint64_t>(hash.get<std::int64_t>()));
    }
  }

  static std::string text_of(const Json& json) {
    std::string text = json.dump(-1, ' ', true, Json::error_handler_t::replace);
    constexpr std::size_t most = 40;
    if (text.size() > most) text = text.substr(0, most) + "...";
    return text;
  }

  std::string file_;
  std::uint32_t block_tokens_;
  std::uint64_t line_ = 0;
  double time_ = -std::numeric_limits<double>::infinity();
  std::vector<std::uint64_t> hashes_;
};

}  // namespace

void BlockTrace::add(std::uint64_t input_tokens, std::span<const std::uint64_t> hashes) {
  TENCACHE_CHECK(hashes.size() >= input_tokens / block_tokens_);
  TENCACHE_CHECK(hashes.size() <= (input_tokens + block_tokens_ - 1) / block_tokens_);
  Block before = static_cast<Block>(-1);
  for (const std::uint64_t hash : hashes) {
    const auto [at, is_new] = numbers_.try_emplace({before, hash}, different_);
    if (is_new) ++different_;
    before = at->second;
    blocks_.push_back(before);
  }
  begins_.push_back(blocks_.size());
  input_tokens_.push_back(input_tokens);
  longest_ = std::max(longest_, input_tokens);
}

BlockTrace read_block_trace(const std::string& file, std::uint32_t block_tokens) {
  const std::string text = read_file(file, most_bytes, [&](std::string_view head) {
    const std::size_t first = head.find_first_not_of(" \t\r\n");
    if (first != std::string_view::npos && head[first] != '{') {
      throw Error(file, 1,
                  "is no trace of blocks, which is JSON lines with timestamp, input_length, output_length and "
                  "hash_ids; see docs/kv-cache.md, or make one with `tencache kv-cache generate`");
    }
  });
  return BlockReader(file, block_tokens).read(text);
}

void write_document_rounds(const DocumentRounds& rounds, const std::string& file) {
  const std::uint64_t blocks = (rounds.tokens + mooncake_tokens - 1) / mooncake_tokens;
  constexpr std::uint64_t most_ids = std::uint64_t{1} << 27;  // a file of about a gigabyte
  if (rounds.documents * rounds.rounds > most_ids / blocks) {
    throw Error(fmt::format("{} documents of {} blocks, {} times, are more than {} blocks: ask for fewer",
                            rounds.documents, blocks, rounds.rounds, most_ids));
  }
  std::vector<std::uint64_t> order(rounds.documents);
  for (std::uint64_t i = 0; i < rounds.documents; ++i) order[i] = i;
  std::mt19937_64 random(rounds.seed);
  AtomicFile out(file);
  for (std::uint64_t round = 0; round < rounds.rounds; ++round) {
    for (std::uint64_t i = rounds.documents; rounds.shuffled && i > 1; --i)
      std::swap(order[i - 1], order[random() % i]);
    for (std::uint64_t i = 0; i < rounds.documents; ++i) {
      std::string line = fmt::format(R"({{"timestamp": {}, "input_length": {}, "output_length": 10, "hash_ids": [)",
                                     (round * rounds.documents + i) * 1000, rounds.tokens);
      for (std::uint64_t block = 0; block < blocks; ++block) {
        fmt::format_to(std::back_inserter(line), "{}{}", block == 0 ? "" : ", ", order[i] * blocks + block);
      }
      out.write(line + "]}\n");
    }
  }
  out.commit();
}

}  // namespace tencache
