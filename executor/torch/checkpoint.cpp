#include "executor/torch/checkpoint.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/error.h"
#include "executor/torch/interception.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* format_name = "tencache checkpoint";
constexpr int format_version = 1;
constexpr std::size_t digest_digits = 64;
constexpr std::size_t block_bytes = std::size_t{1} << 20;

// What a checkpoint must agree in with the program that reads it.
Json identity(const TrainingConfig& config, const std::string& text_sha256) {
  Json identity = {{"layers", config.layers},
                   {"width", config.width},
                   {"heads", config.heads},
                   {"context", config.context},
                   {"dropout", config.dropout},
                   {"tied_head", config.tied_head},
                   {"precision", config.precision == TrainingPrecision::bf16 ? "bf16" : "fp32"},
                   {"batch", config.batch},
                   {"seed", config.seed},
                   {"text_sha256", text_sha256}};
  if (config.vocabulary != TrainingConfig{}.vocabulary) identity["vocabulary"] = config.vocabulary;
  return identity;
}

std::string to_hex(const std::string& bytes) {
  std::string hex;
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    hex += {"0123456789abcdef"[value >> 4], "0123456789abcdef"[value & 15]};
  }
  return hex;
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

Json description(const std::vector<std::pair<std::string, torch::Tensor>>& tensors) {
  Json list = Json::array();
  for (const auto& [name, tensor] : tensors) {
    list.push_back({{"name", name}, {"type", c10::toString(tensor.scalar_type())}, {"shape", tensor.sizes().vec()}});
  }
  return list;
}

[[noreturn]] void damaged(const std::string& path, const std::string& how) {
  throw Error(path, 0, "this checkpoint is damaged (" + how + "); resume from another one or start anew");
}

std::string read_exactly(std::ifstream& file, std::uint64_t bytes, const std::string& path) {
  std::string content(bytes, '\0');
  file.read(content.data(), static_cast<std::streamsize>(bytes));
  if (!file) damaged(path, "it ends too early");
  return content;
}

// Reads all of it and compares digests; the file is then at its beginning again.
void verify(std::ifstream& file, const std::string& path) {
  file.seekg(0, std::ios::end);
  const auto size = static_cast<std::uint64_t>(file.tellg());
  file.seekg(0);
  if (size <= digest_digits) damaged(path, "it has " + std::to_string(size) + " bytes");
  Sha256 hash;
  for (std::uint64_t left = size - digest_digits; left != 0;) {
    const std::uint64_t part = std::min<std::uint64_t>(left, block_bytes);
    hash.update(read_exactly(file, part, path));
    left -= part;
  }
  if (read_exactly(file, digest_digits, path) != hash.hex_digest()) damaged(path, "its SHA-256 is wrong");
  file.seekg(0);
}

void require_same_program(const std::string& path, const TrainingConfig& config, const Json& stored,
                          const Json& expected) {
  for (const auto& [key, value] : expected.items()) {
    const Json found = stored.is_object() && stored.contains(key) ? stored[key] : Json();
    if (found == value) continue;
    throw Error(path, 0,
                "this checkpoint is of another program: its " + key + " is " + found.dump() + ", that of " +
                    config.file + " is " + value.dump());
  }
}

}  // namespace

void check_checkpoint_name(const std::string& path) {
  if (path.ends_with(".zst")) throw Error(path, 0, "checkpoints are not compressed; choose a name without .zst");
}

void write_checkpoint(const std::string& path, const TrainingConfig& config, const std::string& text_sha256,
                      const Checkpoint& checkpoint, LiveRuntime* runtime) {
  check_checkpoint_name(path);
  const Json header = {{"format", format_name},
                       {"version", format_version},
                       {"program", identity(config, text_sha256)},
                       {"steps", checkpoint.steps},
                       {"random", to_hex(checkpoint.random.to_bytes())},
                       {"tensors", description(checkpoint.tensors)}};
  AtomicFile file(path);
  Sha256 hash;
  const auto write = [&](std::string_view bytes) {
    hash.update(bytes);
    file.write(bytes);
  };
  write(header.dump() + "\n");
  for (const auto& [name, tensor] : checkpoint.tensors) {
    TENCACHE_CHECK(tensor.is_contiguous());
    const torch::Tensor content =
        runtime != nullptr ? bring_back(*runtime, tensor.detach()) : tensor.detach().to(torch::kCPU);
    write({static_cast<const char*>(content.data_ptr()), content.nbytes()});
  }
  file.write(hash.hex_digest());
  file.commit();
}

void read_checkpoint(const std::string& path, const TrainingConfig& config, const std::string& text_sha256,
                     Checkpoint& checkpoint) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(path, 0, "this checkpoint cannot be opened; give a file that --checkpoint wrote");
  verify(file, path);
  std::string line;
  std::getline(file, line);
  Json header = Json::parse(line, nullptr, false);
  if (!header.is_object() || header["format"] != format_name) throw Error(path, 0, "is no checkpoint of tencache");
  if (header["version"] != format_version) {
    throw Error(path, 0,
                "is a checkpoint of version " + header["version"].dump() + "; this program reads version " +
                    std::to_string(format_version));
  }
  require_same_program(path, config, header["program"], identity(config, text_sha256));
  if (header["tensors"] != description(checkpoint.tensors)) {
    throw Error(path, 0, "this checkpoint has other tensors than the program of " + config.file);
  }
  if (!header["random"].is_string() || !header["steps"].is_number_unsigned()) damaged(path, "its header");
  checkpoint.random = RandomState::from_bytes(from_hex(header["random"].get<std::string>()));
  checkpoint.steps = header["steps"].get<std::uint64_t>();
  const torch::NoGradGuard no_gradient;
  for (auto& [name, tensor] : checkpoint.tensors) {
    std::string content = read_exactly(file, tensor.nbytes(), path);
    tensor.copy_(torch::from_blob(content.data(), tensor.sizes(), tensor.scalar_type()));
  }
}

}  // namespace tencache
