#include "configs/desktop.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "configs/gpu_yaml.h"
#include "core/error.h"
#include "core/names.h"
#include "core/parse_number.h"
#include "traces/transform/rescale.h"

namespace tencache {
namespace {

namespace fs = std::filesystem;

std::string figure(const std::string& value, const std::string& source, const char* confidence = "estimated") {
  return fmt::format("{{value: {}, source: \"{}\", confidence: {}}}", value, source, confidence);
}

std::string rate(BytesPerSecond bandwidth) { return fmt::format("{}B/s", bandwidth); }

std::string memory_of(const GpuSpec& gpu) { return fmt::format("{}B", gpu.memory); }

std::string card_text(const std::string& name, const GpuSpec& gpu, const std::string& link, const std::string& whence) {
  const std::string bandwidth =
      figure(rate(pcie_bandwidth(link).value_or(1)), whence + " " + link + ", of which pinned copies reach 78 %");
  const std::string pageable =
      figure(rate(pcie_bandwidth(link).value_or(2) / 2), "half of that: the copy passes a pinned buffer");
  return fmt::format(
      "name: {}\nbase: ./machines/bases/desktop.yaml\ngpu: {}\n"
      "tiers: {{gpu: {{capacity: {}}}}}\n"
      "links: {{h2d: {{bandwidth: {}, pageable: {}}}, d2h: {{bandwidth: {}, pageable: {}}}}}\n",
      name, gpu.name, figure(memory_of(gpu), "the card's, of configs/gpus.yaml", "published"), bandwidth, pageable,
      bandwidth, pageable);
}

// ---- This computer --------------------------------------------------------------------------------------------------

std::string first_line(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  while (!line.empty() && (line.back() == '\n' || line.back() == ' ' || line.back() == '\r')) line.pop_back();
  return line;
}

std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) entries.push_back(entry.path());
  std::ranges::sort(entries);
  return entries;
}

// What stands behind "Key:" on a line of its own.
std::string value_of(const fs::path& file, const std::string& key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t begin = line.find_first_not_of(" \t:", key.size());
    return begin == line.npos ? "" : line.substr(begin);
  }
  return "";
}

// "pcie4x8" of a PCI device; empty: not known. A resting link is slower, so that its highest speed counts.
std::string link_of(const fs::path& device) {
  const double speed =
      parse_number(first_line(device / "max_link_speed").substr(0, first_line(device / "max_link_speed").find(' ')))
          .value_or(0);
  const std::string lanes = first_line(device / "current_link_width");
  const int generation = speed >= 64   ? 6
                         : speed >= 32 ? 5
                         : speed >= 16 ? 4
                         : speed >= 8  ? 3
                         : speed >= 5  ? 2
                         : speed > 0   ? 1
                                       : 0;
  const std::string link = fmt::format("pcie{}x{}", generation, lanes);
  return pcie_bandwidth(link) ? link : "";
}

struct Card {
  std::string model, link;
};

std::vector<Card> cards_of(const fs::path& root) {
  std::vector<Card> cards;
  for (const fs::path& gpu : sorted_entries(root / "proc/driver/nvidia/gpus")) {
    const std::string bus = value_of(gpu / "information", "Bus Location");
    cards.push_back({value_of(gpu / "information", "Model"), link_of(root / "sys/bus/pci/devices" / bus)});
  }
  return cards;
}

// Cores without their second threads.
std::uint32_t cores_of(const fs::path& root) {
  std::ifstream stream(root / "proc/cpuinfo");
  std::set<std::pair<std::string, std::string>> cores;
  std::uint32_t processors = 0;
  std::string socket;
  for (std::string line; std::getline(stream, line);) {
    const std::size_t colon = line.find(':');
    const std::string value = colon == line.npos || colon + 2 > line.size() ? "" : line.substr(colon + 2);
    if (line.starts_with("processor")) ++processors;
    if (line.starts_with("physical id")) socket = value;
    if (line.starts_with("core id")) cores.emplace(socket, value);
  }
  return std::max<std::uint32_t>(1, cores.empty() ? processors : static_cast<std::uint32_t>(cores.size()));
}

}  // namespace

CpuFigures cpu_figures(std::uint32_t channels, double mega_transfers, std::uint32_t cores) {
  constexpr double reached = 0.6, a_core = 10e9, adam_bytes = 28, adam_of_a_core = 0.15e9, tflops_of_a_core = 0.08;
  CpuFigures figures;
  const double nominal = channels * mega_transfers * 1e6 * 8;
  figures.bandwidth = static_cast<BytesPerSecond>(std::min(reached * nominal, cores * a_core));
  figures.adam_parameters_per_second =
      std::min(static_cast<double>(figures.bandwidth) / adam_bytes, cores * adam_of_a_core);
  figures.tflops = cores * tflops_of_a_core;
  return figures;
}

std::optional<MachineText> desktop_with(const std::string& card) {
  const std::vector<HostedGpu> gpus = list_hosted_gpus();
  std::vector<std::string> cards;
  for (const auto& [gpu, host] : gpus) {
    if (!host.empty()) cards.push_back(gpu.name);
  }
  std::optional<std::string> found = match_name(card, cards);
  for (const char* maker : {"rtx-", "rx-", "arc-"}) {
    if (!found) found = match_name(maker + card, cards);
  }
  if (!found) {
    std::string plain = plain_name(card);
    for (const std::string word : {"nvidia", "geforce", "amd", "radeon", "intel", "apple"}) {
      if (plain.starts_with(word)) plain.erase(0, word.size());
    }
    found = match_name(plain, cards);
  }
  if (!found) return std::nullopt;
  const auto& [gpu, host] = *std::ranges::find(gpus, *found, [](const HostedGpu& one) { return one.gpu.name; });
  if (host != "apple" && host != "unified") return MachineText{card_text(*found, gpu, host, "assumed:"), gpu_file()};
  const std::string reserved = host == "apple" ? figure(fmt::format("{}B", gpu.memory / 4),
                                                        "macOS recommends three quarters of its memory to Metal")
                                               : figure("8GiB", "assumed: operating system, Python and its libraries");
  return MachineText{
      fmt::format(
          "name: {}\nbase: ./machines/bases/unified.yaml\ngpu: {}\ntiers: {{gpu: {{capacity: {}, reserved: {}}}}}\n",
          *found, gpu.name,
          figure(memory_of(gpu), "the largest that is sold; --gpu-memory says otherwise", "published"), reserved),
      gpu_file()};
}

MachineText machine_of_system(const std::string& root_folder) {
  const fs::path root = root_folder.empty() ? "/" : root_folder;
  const std::vector<Card> cards = cards_of(root);
  if (cards.empty()) {
    throw Error(
        "--machine here: this computer has no GPU with NVIDIA's driver; name a card in its place (--machine rtx-4090 "
        "--cpu-memory 64GiB; `tencache gpus` lists them), or write a machine file (docs/machine-format.md)");
  }
  const std::vector<GpuSpec> gpus = list_gpus();
  const GpuSpec* const gpu = find_gpu(gpus, cards.front().model);
  if (gpu == nullptr) {
    throw Error("--machine here: its GPU '" + cards.front().model +
                "' is in no list; name the nearest of `tencache gpus` as --machine, or write a machine file with "
                "docs/machine-format.md");
  }
  const std::string link = cards.front().link.empty() ? "pcie4x16" : cards.front().link;
  std::string text = card_text("here", *gpu, link, cards.front().link.empty() ? "assumed:" : "as the system says:");
  const std::size_t tiers = text.find("tiers: ");
  text.erase(tiers, text.find('\n', tiers) - tiers + 1);
  if (cards.size() > 1) text += fmt::format("ranks: {}\n", cards.size());

  const std::uint64_t kilobytes =
      parse_number<std::uint64_t>(
          value_of(root / "proc/meminfo", "MemTotal").substr(0, value_of(root / "proc/meminfo", "MemTotal").find(' ')))
          .value_or(0);
  std::string cpu, nvme = "null";
  if (kilobytes > 4 * 1024 * 1024)
    cpu = ", cpu: {capacity: " + figure(fmt::format("{}KiB", kilobytes), "/proc/meminfo", "measured") + "}";
  for (const fs::path& disk : sorted_entries(root / "sys/block")) {
    const std::string name = disk.filename().string();
    const auto sectors = parse_number<std::uint64_t>(first_line(disk / "size"));
    if (!name.starts_with("nvme") || !sectors || *sectors == 0) continue;
    nvme = "{capacity: " + figure(fmt::format("{}B", *sectors * 512), "/sys/block/" + name, "measured") + "}";
    break;
  }
  text += fmt::format("tiers: {{gpu: {{capacity: {}}}{}, nvme: {}}}\n",
                      figure(memory_of(*gpu), "the card's, of configs/gpus.yaml", "published"), cpu, nvme);
  if (nvme == "null") {
    const std::size_t links = text.find("links: {");
    text.insert(links + 8, "nvme_read: null, nvme_write: null, ");
    text += "staging: null\n";
  }
  const std::uint32_t cores = cores_of(root), channels = cores > 64 ? 12 : cores > 16 ? 8 : 2;
  const CpuFigures figures = cpu_figures(channels, 3200, cores);
  const std::string source = fmt::format(
      "{} cores; memory assumed: {} channels of DDR4-3200; `tencache calibrate` measures it", cores, channels);
  text += fmt::format("cpu: {{adam_parameters_per_second: {}, tflops: {}, bandwidth: {}}}\n",
                      figure(fmt::format("{:.3g}", figures.adam_parameters_per_second), source),
                      figure(fmt::format("{:.3g}", figures.tflops), source), figure(rate(figures.bandwidth), source));
  return {text, gpu_file()};
}

}  // namespace tencache
