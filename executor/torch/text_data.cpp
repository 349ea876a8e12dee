#include "executor/torch/text_data.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "core/error.h"

namespace tencache {
namespace {

// SplitMix64: one well-mixed number for each counter value.
std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

std::string read_whole(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) throw Error(path.string() + ": the training text cannot be read");
  return content;
}

}  // namespace

std::string read_text(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return read_whole(path);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const std::filesystem::path extension = entry.path().extension();
    if (entry.is_regular_file() && (extension == ".md" || extension == ".txt")) files.push_back(entry.path());
  }
  if (files.empty()) throw Error(path + ": no *.md or *.txt files to train on in this folder");
  std::sort(files.begin(), files.end());
  std::string text;
  for (const std::filesystem::path& file : files) text += read_whole(file);
  return text;
}

TextData::TextData(std::string text, std::int64_t batch, std::int64_t context, std::uint64_t seed)
    : text_(std::move(text)), batch_(batch), context_(context), seed_(seed) {
  if (text_.size() <= static_cast<std::size_t>(context_)) {
    throw Error("the training text has " + std::to_string(text_.size()) + " bytes; a sequence of " +
                std::to_string(context_) + " tokens needs at least one more than that");
  }
}

TokenBatch TextData::batch(std::uint64_t step) const {
  TokenBatch result;
  result.tokens.reserve(static_cast<std::size_t>(batch_ * context_));
  result.targets.reserve(static_cast<std::size_t>(batch_ * context_));
  const auto context = static_cast<std::size_t>(context_);
  for (std::int64_t row = 0; row < batch_; ++row) {
    const std::uint64_t draw =
        mixed(mixed(seed_) + step * static_cast<std::uint64_t>(batch_) + static_cast<std::uint64_t>(row));
    const std::size_t start = draw % (text_.size() - context);
    for (std::size_t i = start; i < start + context; ++i) {
      result.tokens.push_back(static_cast<unsigned char>(text_[i]));
      result.targets.push_back(static_cast<unsigned char>(text_[i + 1]));
    }
  }
  return result;
}

}  // namespace tencache
