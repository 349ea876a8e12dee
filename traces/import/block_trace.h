// Requests of a service that generates text, with the blocks of tokens that their prompts are made of: what a cache of
// keys and values that outlives a request is asked for.
//
// JSON lines, plain, gzip or zstd, in the order of their timestamps; all other keys are passed over:
//
//   {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, …]}     Mooncake's traces
//   {"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.1, …, "turn": 1, "hash_ids": [9, …]}  Bailian's
//
// hash_ids name the prompt's blocks of 512 tokens (of 16 where the request has a chat_id), in order. The last one may
// be there or not where it is not full.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tencache {

// Blocks are numbered from 0 as they come. A block is its tokens and all tokens before it: the same hash after another
// block is another one, so where a block is known, all before it were as well.
class BlockTrace {
 public:
  using Block = std::uint32_t;

  explicit BlockTrace(std::uint32_t block_tokens = 512, std::string file = {})
      : file_(std::move(file)), block_tokens_(block_tokens) {}

  // `hashes`: at least one for each full block of the tokens, and none beyond the last.
  void add(std::uint64_t input_tokens, std::span<const std::uint64_t> hashes);

  const std::string& file() const { return file_; }
  std::uint32_t block_tokens() const { return block_tokens_; }
  std::size_t requests() const { return input_tokens_.size(); }
  std::uint64_t input_tokens(std::size_t request) const { return input_tokens_[request]; }
  std::span<const Block> blocks(std::size_t request) const {
    return std::span(blocks_).subspan(begins_[request], begins_[request + 1] - begins_[request]);
  }
  std::span<const Block> blocks() const { return blocks_; }  // of all requests, one after the other
  Block different_blocks() const { return different_; }
  std::uint64_t longest_input() const { return longest_; }

 private:
  struct Key {
    Block before;
    std::uint64_t hash;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const {
      std::uint64_t mixed = (key.hash ^ std::uint64_t{key.before} << 32) * 0x9e37'79b9'7f4a'7c15;
      return static_cast<std::size_t>(mixed ^ mixed >> 32);
    }
  };

  std::string file_;
  std::uint32_t block_tokens_;
  std::vector<std::uint64_t> input_tokens_;
  std::vector<std::size_t> begins_ = {0};
  std::vector<Block> blocks_;
  std::unordered_map<Key, Block, Hash> numbers_;
  Block different_ = 0;
  std::uint64_t longest_ = 0;
};

inline constexpr std::uint64_t most_block_tokens = 1u << 20;

// `block_tokens`: 0: as above. Throws Error with file and line for what is no request, out of order, or has more or
// fewer hashes than its input_length needs.
BlockTrace read_block_trace(const std::string& file, std::uint32_t block_tokens = 0);

// Long documents that are asked about again and again: the workload of vLLM's benchmark_long_document_qa. Each round
// has each document once.
struct DocumentRounds {
  std::uint64_t documents = 8, tokens = 20'000, rounds = 2;
  bool shuffled = true;  // in each round anew; else always in the same order
  std::uint64_t seed = 1;
};
// Mooncake's form, a request a second. Throws Error where there are too many blocks.
void write_document_rounds(const DocumentRounds& rounds, const std::string& file);

}  // namespace tencache
