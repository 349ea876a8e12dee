#include "executor/calibrate.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/check.h"
#include "core/error.h"
#include "executor/clock.h"
#include "executor/host_machine.h"

namespace tencache {
namespace {

constexpr Bytes large_copy = 16 * MiB;
constexpr std::array<Bytes, 3> copy_sizes{64 * KiB, 1 * MiB, large_copy};
constexpr Bytes arena_bytes = 4 * large_copy;         // of each tier while measuring
constexpr std::uint64_t adam_parameters = 4'000'000;  // 64 MB of state: beyond any cache
constexpr TensorId measured_tensor = 0;

class NoBodies final : public OpBodies {
  void run(std::uint8_t, OpIndex, std::span<const Use>, HostMachine&) override {}
};

Nanoseconds median(std::vector<Nanoseconds>& times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

// The graph that is measured and written, its figures still open.
MachineSpec graph(const CalibrateOptions& options) {
  MachineSpec machine;
  machine.name = options.name;
  machine.description = "Measured on this computer; the GPU is a capped arena of its memory";
  machine.tiers.push_back({"gpu", TierKind::gpu, arena_bytes, page_bytes, {}});
  machine.tiers.push_back({"cpu", TierKind::cpu, arena_bytes, page_bytes, {}});
  machine.links.push_back({"h2d", 1, 0, unlimited, 0, {}});
  machine.links.push_back({"d2h", 0, 1, unlimited, 0, {}});
  machine.initial_tier = 1;
  if (options.directories.empty()) return machine;
  const Bytes file_bytes = arena_bytes * options.directories.size();
  machine.tiers.push_back({"nvme", TierKind::nvme, file_bytes, page_bytes, options.directories});
  machine.links.push_back({"nvme_read", 2, 1, unlimited, 0, {}});
  machine.links.push_back({"nvme_write", 1, 2, unlimited, 0, {}});
  machine.staging = {1, 4, large_copy};
  return machine;
}

void expect_done(HostMachine& host) {
  Completion completion;
  const bool arrived = host.wait(completion);
  TENCACHE_CHECK(arrived);
  if (completion.status != CompletionStatus::done) throw Error("calibration: " + host.last_error());
}

Nanoseconds time_copy(HostMachine& host, LinkId index, Bytes bytes) {
  const Link& link = host.spec().links[index];
  CopyCommand copy;
  copy.link = index;
  copy.tensor = measured_tensor;
  copy.chunk = 0;
  copy.bytes = bytes;
  copy.from = {link.from, 0};
  copy.to = {link.to, 0};
  const Nanoseconds start_ns = clock_ns();
  host.submit(copy, 0, 0);
  expect_done(host);
  return clock_ns() - start_ns;
}

// What a run moves has mostly left the caches; a copy repeated on the same bytes would run from them, at twice the
// speed.
class CacheFlusher {
 public:
  CacheFlusher() : bytes_(arena_bytes) {}  // beyond a core's own caches and its share of the common one
  void flush() { std::fill(bytes_.begin(), bytes_.end(), ++value_); }

 private:
  std::vector<unsigned char> bytes_;
  unsigned char value_ = 0;
};

std::vector<CopyTime> time_link(HostMachine& host, LinkId link, int repetitions, CacheFlusher& caches) {
  std::vector<CopyTime> result;
  const MachineSpec& machine = host.spec();
  const bool in_memory = machine.tiers[machine.links[link].from].kind != TierKind::nvme &&
                         machine.tiers[machine.links[link].to].kind != TierKind::nvme;
  for (const Bytes bytes : copy_sizes) {
    std::vector<Nanoseconds> times;
    time_copy(host, link, bytes);  // touches pages, reserves the file
    for (int i = 0; i < repetitions; i++) {
      if (in_memory) caches.flush();
      times.push_back(time_copy(host, link, bytes));
    }
    result.push_back({bytes, median(times)});
  }
  return result;
}

MappingCost time_mapping(Bytes bytes, int repetitions) {
  ChunkMemory memory("mapping", arena_bytes, page_bytes);
  memory.create(measured_tensor, bytes);
  memory.map(measured_tensor, 0, bytes, 0);
  memory.unmap(measured_tensor, 0, bytes);  // its pages exist from here on
  const ChunkMemoryStatistics before = memory.statistics();
  for (int i = 0; i < repetitions; i++) {
    memory.map(measured_tensor, 0, bytes, 0);
    memory.unmap(measured_tensor, 0, bytes);
  }
  const ChunkMemoryStatistics after = memory.statistics();
  return {static_cast<double>(after.map_ns - before.map_ns) / repetitions,
          static_cast<double>(after.unmap_ns - before.unmap_ns) / repetitions, bytes};
}

Nanoseconds time_empty_op(HostMachine& host) {
  std::vector<Nanoseconds> times;
  for (int i = 0; i < 2000; i++) {
    const Nanoseconds start_ns = clock_ns();
    host.execute({.lane = 0, .op = 0, .idle = false, .duration_ns = 0, .uses = {}}, 0, 0);
    expect_done(host);
    times.push_back(clock_ns() - start_ns);
  }
  return median(times);
}

Bytes free_disk(const std::vector<std::string>& directories) {
  Bytes least = unlimited;
  for (const std::string& directory : directories) {
    struct statvfs disk {};
    if (::statvfs(directory.c_str(), &disk) != 0) continue;
    least = std::min(least, static_cast<Bytes>(disk.f_bavail) * disk.f_frsize);
  }
  return least * directories.size();  // chunks go to them in turn
}

Bytes whole_mib(Bytes bytes) { return bytes / MiB * MiB; }

void set_capacities(MachineSpec& machine, const CalibrateOptions& options, const auto& add_fact) {
  const Bytes memory = available_memory();
  const Bytes gpu = options.gpu_bytes != 0 ? options.gpu_bytes : whole_mib(memory / 4);
  if (gpu >= memory) {
    throw Error("calibration: a GPU arena of " + format_bytes(gpu) + ", and this computer has " + format_bytes(memory) +
                " of memory left; ask for less");
  }
  machine.tiers[0].capacity = gpu;
  machine.tiers[1].capacity = whole_mib((memory - gpu) / 4 * 3);
  add_fact("tiers.gpu.capacity", options.gpu_bytes != 0 ? "as asked for" : "a quarter of MemAvailable");
  add_fact("tiers.cpu.capacity", "three quarters of what MemAvailable leaves");
  if (machine.tiers.size() < 3) return;
  machine.tiers[2].capacity = whole_mib(free_disk(options.directories) / 10 * 9);
  add_fact("tiers.nvme.capacity", "nine tenths of what the disks have free");
}

std::string line_of(const std::string& what, Nanoseconds time_ns) {
  return what + ": " + format_duration(time_ns) + "\n";
}

}  // namespace

LinkFigures fit_link(const std::vector<CopyTime>& times) {
  TENCACHE_CHECK(!times.empty());
  // Minimise Σ ((a + b x − t) / t)²: weights 1 / t².
  double weight = 0, x_sum = 0, t_sum = 0, xx_sum = 0, xt_sum = 0;
  for (const CopyTime& time : times) {
    const double t = static_cast<double>(std::max<Nanoseconds>(time.time_ns, 1));
    const double x = static_cast<double>(time.bytes);
    const double w = 1 / (t * t);
    weight += w;
    x_sum += w * x;
    t_sum += w * t;
    xx_sum += w * x * x;
    xt_sum += w * x * t;
  }
  const double determinant = weight * xx_sum - x_sum * x_sum;
  double slope = determinant > 0 ? (weight * xt_sum - x_sum * t_sum) / determinant : 0;
  double latency = slope > 0 ? (t_sum - slope * x_sum) / weight : -1;
  if (latency < 0) {  // a line through the origin
    latency = 0;
    slope = xt_sum / xx_sum;
  }
  return {static_cast<BytesPerSecond>(std::llround(1e9 / slope)), std::llround(latency)};
}

Calibration calibrate(const CalibrateOptions& options) {
  Calibration result;
  result.machine = graph(options);
  MachineSpec& machine = result.machine;
  const auto add_fact = [&](const std::string& path, const std::string& source) {
    machine.facts.push_back({path, source, "measured", options.date});
  };
  {
    NoBodies bodies;
    HostMachineOptions host_options;
    host_options.pace = false;
    host_options.prefault = true;
    HostMachine host(machine, bodies, host_options);
    host.tensor_created(measured_tensor, large_copy);
    for (TierId tier = 0; tier < machine.tiers.size(); tier++) {
      host.map(measured_tensor, 0, 0, large_copy, {tier, 0});
      host.initialise(measured_tensor, 0, 0, large_copy, {tier, 0});
    }
    CacheFlusher caches;
    for (LinkId link = 0; link < machine.links.size(); link++) {
      result.copies.push_back(time_link(host, link, options.repetitions, caches));
    }
    result.op_round_trip_ns = time_empty_op(host);
    result.notes += host.describe();
  }
  const std::string method = "copies of 64 KiB, 1 MiB and 16 MiB, caches cold, medians of " +
                             std::to_string(options.repetitions) + ", from submission to completion";
  for (LinkId link = 0; link < machine.links.size(); link++) {
    const LinkFigures figures = fit_link(result.copies[link]);
    machine.links[link].bandwidth = figures.bandwidth;
    machine.links[link].latency_ns = figures.latency_ns;
    add_fact("links." + machine.links[link].name + ".bandwidth", method);
    add_fact("links." + machine.links[link].name + ".latency", method);
  }
  set_capacities(machine, options, add_fact);
  result.mapping = {time_mapping(page_bytes, 1000), time_mapping(large_copy, 50)};
  if (options.adam_step) {
    options.adam_step(adam_parameters);
    std::vector<Nanoseconds> times;
    for (int i = 0; i < 5; i++) {
      const Nanoseconds start_ns = clock_ns();
      options.adam_step(adam_parameters);
      times.push_back(clock_ns() - start_ns);
    }
    machine.cpu_adam_parameters_per_second =
        static_cast<double>(adam_parameters) / to_seconds(std::max<Nanoseconds>(median(times), 1));
    add_fact("cpu.adam_parameters_per_second", "an AdamW step on 4 million parameters, median of 5");
  }
  result.notes += line_of("an empty op, from execute to wait", result.op_round_trip_ns);
  for (const MappingCost& cost : result.mapping) {
    result.notes += line_of("mapping " + format_bytes(cost.bytes), std::llround(cost.map_ns));
    result.notes += line_of("unmapping " + format_bytes(cost.bytes), std::llround(cost.unmap_ns));
  }
  return result;
}

}  // namespace tencache
