// What the lanes of the real machine move, in bytes a second: files by block size and depth, and the links of a machine
// of which TENCACHE_BENCH_MACHINE names the file (`tencache calibrate` writes one), paced to its bandwidths. Files lie
// in TENCACHE_BENCH_DIRECTORY (default /var/tmp). bench/file_bandwidth.py compares the files with fio.
#include <benchmark/benchmark.h>
#include <xxhash.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <string>

#include "configs/machine_yaml.h"
#include "executor/host_machine.h"

namespace tencache {
namespace {

constexpr Bytes chunk_bytes = 16 * MiB;
constexpr std::uint32_t chunk_count = 32;

std::string directory() {
  const char* given = std::getenv("TENCACHE_BENCH_DIRECTORY");
  return given != nullptr ? given : "/var/tmp";
}

struct Buffer {
  Buffer() : data(static_cast<std::byte*>(::operator new[](chunk_bytes, std::align_val_t{page_bytes}))) {
    for (Bytes i = 0; i < chunk_bytes; i++) data[i] = static_cast<std::byte>(i * 2654435761U >> 11);
  }
  ~Buffer() { ::operator delete[](data, std::align_val_t{page_bytes}); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::byte* data;
};

// Chunk after chunk of a file of 512 MiB that has been written before; blocks go through `buffer_bytes` of memory again
// and again.
void move_chunks(benchmark::State& state, const Tier& tier, bool write, Bytes buffer_bytes) {
  SwapFiles files(tier);
  FileLane lane(files);
  const Buffer buffer;
  const Progress go_on = [](Bytes) { return true; };
  std::vector<std::vector<FileBlock>> chunks;
  for (TensorId chunk = 0; chunk < chunk_count; chunk++) {
    files.take(chunk, 0, chunk_bytes);
    chunks.push_back(files.blocks(chunk, 0, chunk_bytes));
    for (FileBlock& block : chunks.back()) block.begin %= buffer_bytes;
    lane.write(chunks.back(), buffer.data, go_on);
  }
  std::size_t next = 0;
  for (auto _ : state) {
    const std::vector<FileBlock>& blocks = chunks[next++ % chunk_count];
    write ? lane.write(blocks, buffer.data, go_on) : lane.read(blocks, buffer.data, go_on);
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * chunk_bytes));
  state.SetLabel(lane.fallback_reason());
}

// As fio does, over a buffer for each block in flight: memory that caches hold is filled up to a third faster than
// fresh memory.
void file(benchmark::State& state, bool write) {
  Tier tier{"nvme", TierKind::nvme, chunk_count * chunk_bytes, page_bytes, {directory()}};
  tier.io_block_bytes = static_cast<Bytes>(state.range(0)) * KiB;
  tier.io_depth = static_cast<std::uint32_t>(state.range(1));
  move_chunks(state, tier, write, tier.io_depth * tier.io_block_bytes);
}
void file_read(benchmark::State& state) { file(state, false); }
void file_write(benchmark::State& state) { file(state, true); }
BENCHMARK(file_read)->ArgsProduct({{128, 1024}, {1, 4, 16}})->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(file_write)->ArgsProduct({{128, 1024}, {1, 4, 16}})->UseRealTime()->Unit(benchmark::kMillisecond);

// What checksums cost: the hash alone, and chunks of 16 MiB written and read with and without it, each block at its own
// place in memory.
void checksum_alone(benchmark::State& state) {
  const Buffer buffer;
  const std::span<const std::byte> content(buffer.data, static_cast<std::size_t>(state.range(0)) * KiB);
  for (auto _ : state) benchmark::DoNotOptimize(XXH64(content.data(), content.size(), 0));
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * content.size()));
}
BENCHMARK(checksum_alone)->Arg(64)->Arg(1024)->Arg(16 * 1024);

void checked_file(benchmark::State& state, bool write, bool checksums) {
  Tier tier{"nvme", TierKind::nvme, chunk_count * chunk_bytes, page_bytes, {directory()}};
  tier.checksums = checksums;
  move_chunks(state, tier, write, chunk_bytes);
}
BENCHMARK_CAPTURE(checked_file, read, false, false)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(checked_file, read_checked, false, true)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(checked_file, write, true, false)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(checked_file, write_checked, true, true)->UseRealTime()->Unit(benchmark::kMillisecond);

// Copies of 16 MiB in a row over one link, or over `beside` too, which gets as many, while the GPU's lane waits as for
// a long op. The counter is the share of the link's own bandwidth.
class NoBodies final : public OpBodies {
 public:
  void run(std::uint8_t, OpIndex, std::span<const Use>, HostMachine&) override {}
};

void link(benchmark::State& state, const std::string& name, const std::string& beside) {
  const char* file = std::getenv("TENCACHE_BENCH_MACHINE");
  MachineSpec spec = with_real_pages(read_machine(file != nullptr ? file : "small-host"));
  for (Tier& tier : spec.tiers) {
    tier.capacity = 16 * chunk_bytes;
    if (tier.kind == TierKind::nvme) tier.directories = {directory()};
  }
  NoBodies bodies;
  HostMachine machine(spec, bodies);
  std::vector<LinkId> links;
  for (LinkId id = 0; id < spec.links.size(); id++) {
    if (spec.links[id].name == name || spec.links[id].name == beside) links.push_back(id);
  }
  if (links.size() != (beside.empty() ? 1U : 2U)) return state.SkipWithError("the machine has no such link");
  constexpr TensorId copies = 8;
  for (TensorId tensor = 0; tensor < 2 * copies; tensor++) {
    machine.tensor_created(tensor, chunk_bytes);
    const Link& of = spec.links[links[tensor / copies % links.size()]];
    if (tensor / copies >= links.size()) continue;
    for (const TierId tier : {of.from, of.to}) {
      machine.map(tensor, tensor, 0, chunk_bytes, {tier, 0}, MappedFor::op);
      machine.initialise(tensor, tensor, 0, chunk_bytes, {tier, 0});
    }
  }
  for (auto _ : state) {
    for (TensorId tensor = 0; tensor < copies * links.size(); tensor++) {
      const LinkId id = links[tensor / copies];
      CopyCommand copy;
      copy.link = id;
      copy.tensor = copy.chunk = tensor;
      copy.bytes = chunk_bytes;
      copy.from = {spec.links[id].from, 0};
      copy.to = {spec.links[id].to, 0};
      machine.submit(copy, 0);
    }
    Completion completion;
    while (machine.wait(completion)) {
    }
  }
  const double moved = static_cast<double>(state.iterations()) * copies * chunk_bytes;
  state.counters["of_bandwidth"] =
      benchmark::Counter(moved / static_cast<double>(spec.links[links[0]].bandwidth), benchmark::Counter::kIsRate);
  state.SetBytesProcessed(static_cast<std::int64_t>(moved) * static_cast<std::int64_t>(links.size()));
}
BENCHMARK_CAPTURE(link, h2d, "h2d", "")->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(link, d2h, "d2h", "")->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(link, h2d_beside_d2h, "h2d", "d2h")->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(link, nvme_read, "nvme_read", "")->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(link, nvme_write, "nvme_write", "")->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tencache

BENCHMARK_MAIN();
