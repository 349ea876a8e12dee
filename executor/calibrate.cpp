#include "executor/calibrate.h"

#include <sys/statvfs.h>

#include <Eigen/Dense>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <thread>

#include "core/check.h"
#include "core/error.h"
#include "executor/choose_device.h"
#include "executor/clock.h"
#include "executor/host_machine.h"
#include "executor/swap_file.h"

namespace tencache {
namespace {

constexpr TensorId first_tensor = 0, second_tensor = 1;  // the two directions at once need one each
constexpr std::uint64_t adam_parameters = 16'000'000;    // 256 MB of state: beyond a core's caches
constexpr Bytes usual_file_bytes = 2 * GiB, quick_file_bytes = 128 * MiB;

class NoBodies final : public OpBodies {
  void run(std::uint8_t, OpIndex, std::span<const Use>, HostMachine&) override {}
};

double seconds_since(Nanoseconds start_ns) {
  return static_cast<double>(std::max<Nanoseconds>(clock_ns() - start_ns, 1)) * 1e-9;
}

// The graph that is measured and written, its figures still open.
MachineSpec graph(const CalibrateOptions& options, Bytes largest_copy) {
  MachineSpec machine;
  machine.name = options.name;
  machine.description = options.accelerator != nullptr ? "Measured on this computer; " + options.accelerator->describe()
                                                       : "Measured on this computer; the GPU is a capped arena of its "
                                                         "memory";
  const Bytes arena_bytes = 2 * largest_copy;
  machine.tiers.push_back({"gpu", TierKind::gpu, arena_bytes, page_bytes, {}});
  machine.initial_tier = 1;
  // The next one's memory is mapped while one is copied.
  if (options.accelerator == nullptr) machine.copies_in_flight = 2;
  if (options.cpu_tier) {
    machine.tiers.push_back({"cpu", TierKind::cpu, arena_bytes, page_bytes, {}});
    machine.links.push_back({"h2d", 1, 0, unlimited, 0, {}});
    machine.links.push_back({"d2h", 0, 1, unlimited, 0, {}});
    machine.staging = {1, 4, 16 * MiB};
  }
  if (options.directories.empty()) {
    machine.staging = {};
    return machine;
  }
  const auto files = static_cast<TierId>(machine.tiers.size()), above = static_cast<TierId>(files - 1);
  machine.tiers.push_back(
      {"nvme", TierKind::nvme, arena_bytes * options.directories.size(), page_bytes, options.directories});
  machine.links.push_back({"nvme_read", files, above, unlimited, 0, {}});
  machine.links.push_back({"nvme_write", above, files, unlimited, 0, {}});
  return machine;
}

void expect_done(HostMachine& host, Completion& completion) {
  const bool arrived = host.wait(completion);
  TENCACHE_CHECK(arrived);
  if (completion.status != CompletionStatus::done) throw Error("calibration: " + host.last_error());
}

void submit(HostMachine& host, LinkId index, TensorId tensor, Bytes bytes) {
  const Link& link = host.spec().links[index];
  CopyCommand copy;
  copy.link = index;
  copy.tensor = tensor;
  copy.chunk = tensor;
  copy.bytes = bytes;
  copy.from = {link.from, 0};
  copy.to = {link.to, 0};
  host.submit(copy, index);
}

double time_copy(HostMachine& host, LinkId link, Bytes bytes) {
  const Nanoseconds start_ns = clock_ns();
  submit(host, link, first_tensor, bytes);
  Completion completion;
  expect_done(host, completion);
  return seconds_since(start_ns);
}

// What a run moves has mostly left the caches; a copy repeated on the same bytes would run from them, at twice the
// speed.
class CacheFlusher {
 public:
  CacheFlusher() : bytes_(64 * MiB) {}  // beyond a core's own caches and its share of the common one
  void flush() { std::fill(bytes_.begin(), bytes_.end(), ++value_); }

 private:
  std::vector<unsigned char> bytes_;
  unsigned char value_ = 0;
};

std::vector<CopyTime> time_link(HostMachine& host, LinkId link, const std::vector<Bytes>& sizes, int repetitions,
                                CacheFlusher& caches) {
  std::vector<CopyTime> result;
  const MachineSpec& machine = host.spec();
  const bool in_memory = machine.tiers[machine.links[link].from].kind != TierKind::nvme &&
                         machine.tiers[machine.links[link].to].kind != TierKind::nvme;
  for (const Bytes bytes : sizes) {
    std::vector<double> times;
    time_copy(host, link, bytes);  // touches pages, reserves the file
    for (int i = 0; i < repetitions; i++) {
      if (in_memory) caches.flush();
      times.push_back(time_copy(host, link, bytes));
    }
    const MeasuredMedian time = measured_median(std::move(times));
    result.push_back({bytes, std::llround(time.value * 1e9), time.spread});
  }
  return result;
}

// Copies over the links, each always busy, for as long as `kernel` runs: bytes per second of all links together, and
// the kernel's seconds.
struct Beside {
  double bytes_per_second = 0, kernel_seconds = 0;
};
Beside run_beside(HostMachine& host, const std::vector<LinkId>& links, Bytes bytes, double (*kernel)(), int kernels) {
  Beside result;
  std::atomic<bool> computing = true;
  std::exception_ptr failure;
  std::thread copies([&] {
    try {
      const Nanoseconds start_ns = clock_ns();
      Bytes moved = 0;
      for (const LinkId link : links) submit(host, link, link == links.front() ? first_tensor : second_tensor, bytes);
      for (std::size_t under_way = links.size(); under_way > 0;) {
        Completion completion;
        expect_done(host, completion);
        moved += bytes;
        if (computing) {
          const auto link = static_cast<LinkId>(completion.tag);
          submit(host, link, link == links.front() ? first_tensor : second_tensor, bytes);
        } else {
          --under_way;
        }
      }
      result.bytes_per_second = static_cast<double>(moved) / seconds_since(start_ns);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  std::vector<double> times;
  for (int i = 0; i < kernels; i++) times.push_back(kernel());
  computing = false;
  copies.join();
  if (failure) std::rethrow_exception(failure);
  result.kernel_seconds = measured_median(std::move(times)).value;
  return result;
}

Contention measure_contention(HostMachine& host, Bytes bytes, bool quick, double matmul_alone, double triad_alone) {
  const int kernels = quick ? 4 : 25, repetitions = quick ? 2 : 7;
  std::vector<double> h2d, d2h, both, matmul, triad;
  for (int i = 0; i < repetitions; i++) {  // interleaved: what else the computer does hits all alike
    h2d.push_back(run_beside(host, {0}, bytes, time_matmul, kernels).bytes_per_second);
    d2h.push_back(run_beside(host, {1}, bytes, time_matmul, kernels).bytes_per_second);
    const Beside at_once = run_beside(host, {0, 1}, bytes, time_matmul, kernels);
    both.push_back(at_once.bytes_per_second);
    matmul.push_back(at_once.kernel_seconds);
    triad.push_back(run_beside(host, {0, 1}, bytes, time_triad, std::max(1, kernels / 5)).kernel_seconds);
  }
  Contention contention;
  contention.h2d = measured_median(std::move(h2d));
  contention.d2h = measured_median(std::move(d2h));
  contention.both = measured_median(std::move(both));
  contention.duplex_factor = contention.both.value / (contention.h2d.value + contention.d2h.value);
  contention.matmul_slowdown = measured_median(std::move(matmul)).value / matmul_alone - 1;
  contention.triad_slowdown = measured_median(std::move(triad)).value / triad_alone - 1;
  return contention;
}

MeasuredMedian repeat(double (*kernel)(), double amount, int repetitions) {
  std::vector<double> rates;
  kernel();
  for (int i = 0; i < repetitions; i++) rates.push_back(amount / kernel());
  return measured_median(std::move(rates));
}

MeasuredMedian time_empty_op(HostMachine& host) {
  std::vector<double> times;
  Completion completion;
  for (int i = 0; i < 2000; i++) {
    const Nanoseconds start_ns = clock_ns();
    host.execute({.lane = 0, .op = 0, .idle = false, .duration_ns = 0, .uses = {}}, 0);
    expect_done(host, completion);
    times.push_back(seconds_since(start_ns));
  }
  return measured_median(std::move(times));
}

Bytes free_disk(const std::vector<std::string>& directories) {
  Bytes least = unlimited;
  std::map<unsigned long, std::uint64_t> folders_of;  // by file system: several folders may share one
  std::vector<struct statvfs> disks(directories.size());
  for (std::size_t i = 0; i < directories.size(); i++) {
    if (::statvfs(directories[i].c_str(), &disks[i]) == 0) ++folders_of[disks[i].f_fsid];
  }
  for (const struct statvfs& disk : disks) {
    if (disk.f_frsize == 0) continue;
    least = std::min(least, static_cast<Bytes>(disk.f_bavail) * disk.f_frsize / folders_of[disk.f_fsid]);
  }
  return least * directories.size();  // blocks go to them in turn
}

// What a run may take for a while: a quarter of what is free.
Bytes choose_file_bytes(const CalibrateOptions& options) {
  const Bytes most = free_disk(options.directories) / 4;
  if (options.file_bytes > most) {
    throw Error("calibration: files of " + format_bytes(options.file_bytes) + ", but no more than " +
                format_bytes(most) + " are taken, a quarter of what the disks have free; ask for less");
  }
  if (options.file_bytes != 0) return options.file_bytes;
  return std::min(options.quick ? quick_file_bytes : usual_file_bytes, most);
}

Bytes whole_mib(Bytes bytes) { return bytes / MiB * MiB; }

// Adds the measured figures and where they come from to the machine.
class FactWriter {
 public:
  FactWriter(MachineSpec& machine, std::string date) : machine_(machine), date_(std::move(date)) {}
  void add(const std::string& path, const std::string& source, double spread = 0) {
    // To three digits; a repetition that gave the same time again is no proof of an exact figure.
    const double rounded = std::round(std::min(spread, 10.0) * 1000) / 1000;
    machine_.facts.push_back({path, source, "measured", date_, rounded});
  }

 private:
  MachineSpec& machine_;
  std::string date_;
};

void set_file_capacity(MachineSpec& machine, const CalibrateOptions& options, FactWriter& facts) {
  if (machine.tiers.back().kind != TierKind::nvme) return;
  machine.tiers.back().capacity = whole_mib(free_disk(options.directories) / 10 * 9);
  facts.add("tiers.nvme.capacity", "nine tenths of what the disks have free");
}

void set_capacities(MachineSpec& machine, const CalibrateOptions& options, FactWriter& facts) {
  const Bytes memory = available_memory();
  if (options.accelerator != nullptr) {
    const Bytes free = options.accelerator->free_bytes();
    if (options.gpu_bytes > free) {
      throw Error("calibration: a GPU tier of " + format_bytes(options.gpu_bytes) + ", and the GPU has " +
                  format_bytes(free) + " free; ask for less");
    }
    machine.tiers[0].capacity = whole_mib(options.gpu_bytes != 0 ? options.gpu_bytes : free - free / 16);
    machine.tiers[1].capacity = whole_mib(memory / 4 * 3);
    facts.add("tiers.gpu.capacity",
              options.gpu_bytes != 0 ? "as asked for" : "what the GPU has free, less a sixteenth");
    facts.add("tiers.cpu.capacity", "three quarters of MemAvailable");
    set_file_capacity(machine, options, facts);
    return;
  }
  const Bytes gpu = options.gpu_bytes != 0 ? options.gpu_bytes : whole_mib(memory / 4);
  if (gpu >= memory) {
    throw Error("calibration: a GPU arena of " + format_bytes(gpu) + ", and this computer has " + format_bytes(memory) +
                " of memory left; ask for less");
  }
  machine.tiers[0].capacity = gpu;
  facts.add("tiers.gpu.capacity", options.gpu_bytes != 0 ? "as asked for" : "a quarter of MemAvailable");
  if (options.cpu_tier) {
    machine.tiers[1].capacity = whole_mib((memory - gpu) / 4 * 3);
    facts.add("tiers.cpu.capacity", "three quarters of what MemAvailable leaves");
  }
  set_file_capacity(machine, options, facts);
}

// A resource that both links use, where together they move only this share of the sum of the two.
void add_resource(MachineSpec& machine, FactWriter& facts, const std::string& name, double share, double spread,
                  LinkId a, LinkId b, const std::string& source) {
  constexpr double worth_a_resource = 0.9;
  if (share <= 0 || share >= worth_a_resource) return;
  const double apart =
      static_cast<double>(machine.links[a].bandwidth) + static_cast<double>(machine.links[b].bandwidth);
  const auto index = static_cast<std::uint8_t>(machine.resources.size());
  machine.resources.push_back({name, static_cast<BytesPerSecond>(std::llround(share * apart)), none});
  machine.links[a].uses.push_back(index);
  machine.links[b].uses.push_back(index);
  facts.add("resources." + name + ".bandwidth", source, spread);
}

// The copies that each link is timed with.
struct CopySizes {
  std::vector<Bytes> bytes;
  int repetitions = 0;

  Bytes largest() const { return bytes.back(); }
  std::string text(bool queued = false) const {
    return "copies of " + format_bytes(bytes.front()) + " to " + format_bytes(largest()) + ", medians of " +
           std::to_string(repetitions) + (queued ? ", each behind others" : ", from submission to completion");
  }
};

CopySizes copy_sizes(bool quick) {
  if (quick) return {{64 * KiB, 1 * MiB, 16 * MiB}, 5};
  return {{4 * KiB, 64 * KiB, 256 * KiB, 1 * MiB, 4 * MiB, 16 * MiB, 64 * MiB}, 15};
}

// Copies over each link, over both at once beside computing, and ops: on the lanes that a run has, unpaced.
void measure_lanes(const CalibrateOptions& options, const CopySizes& sizes,
                   const std::function<void(const std::string&)>& say, Calibration& result) {
  const MachineSpec& machine = result.machine;
  NoBodies bodies;
  HostMachineOptions host_options;
  host_options.pace = false;
  host_options.prefault = true;
  host_options.accelerator = options.accelerator;
  HostMachine host(machine, bodies, host_options);
  for (const TensorId tensor : {first_tensor, second_tensor}) {
    host.tensor_created(tensor, sizes.largest());
    for (TierId tier = 0; tier < machine.tiers.size(); tier++) {
      host.map(tensor, tensor, 0, sizes.largest(), {tier, 0}, MappedFor::op);
      host.initialise(tensor, tensor, 0, sizes.largest(), {tier, 0});
    }
  }
  CacheFlusher caches;
  for (LinkId link = 0; link < machine.links.size(); link++) {
    say("link " + machine.links[link].name + ": " + sizes.text());
    result.copies.push_back(time_link(host, link, sizes.bytes, sizes.repetitions, caches));
  }
  say("both directions at once, beside computing");
  result.contention =
      measure_contention(host, sizes.largest() / 4, options.quick, matmul_operations / result.matmul_flops.value,
                         triad_traffic / result.triad_bytes.value);
  result.op_round_trip = time_empty_op(host);
  result.description = host.describe();
}

// `on_accelerator`: the first two links are its, whose copies were queued.
void set_links(const Calibration& measured, const CopySizes& sizes, bool on_accelerator, MachineSpec& machine,
               FactWriter& facts) {
  for (LinkId link = 0; link < machine.links.size(); link++) {
    const std::vector<CopyTime>& times = measured.copies[link];
    const LinkFigures figures = fit_link(times);
    machine.links[link].bandwidth = figures.bandwidth;
    machine.links[link].latency_ns = figures.latency_ns;
    const std::string path = "links." + machine.links[link].name;
    const std::string how = sizes.text(on_accelerator && link < 2);
    facts.add(path + ".bandwidth", how, times.back().spread);
    facts.add(path + ".latency", how, times.front().spread);
  }
}

// What reading and writing at once lose, with the blocks that a run uses.
void add_resource_of_files(const std::vector<FileRate>& rates, MachineSpec& machine, FactWriter& facts) {
  const SwapFileOptions usual;
  const auto as_used = std::find_if(rates.begin(), rates.end(), [&usual](const FileRate& rate) {
    return rate.block_bytes == usual.block_bytes && rate.queue_depth == usual.queue_depth;
  });
  if (as_used == rates.end()) return;
  const auto read = static_cast<LinkId>(machine.links.size() - 2), write = static_cast<LinkId>(read + 1);
  add_resource(machine, facts, "files", as_used->mixed.value / (as_used->read.value + as_used->write.value),
               as_used->mixed.spread, read, write, "reads and writes at once against each alone, blocks as in a run");
}

MeasuredMedian time_adam(const CalibrateOptions& options) {
  const std::uint64_t parameters = options.quick ? adam_parameters / 4 : adam_parameters;
  options.adam_step(parameters);
  std::vector<double> rates;
  for (int i = 0; i < (options.quick ? 5 : 11); i++) {
    const Nanoseconds start_ns = clock_ns();
    options.adam_step(parameters);
    rates.push_back(static_cast<double>(parameters) / seconds_since(start_ns));
  }
  return measured_median(std::move(rates));
}

}  // namespace

MeasuredMedian measured_median(std::vector<double> values) {
  TENCACHE_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const auto quantile = [&](double part) {
    const double at = part * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(at);
    const std::size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
  };
  const double median = quantile(0.5);
  return {median, median > 0 ? (quantile(0.75) - quantile(0.25)) / median : 0};
}

LinkFigures fit_link(const std::vector<CopyTime>& times) {
  TENCACHE_CHECK(!times.empty());
  // Minimise Σ ((a + b x - t) / t)²: each row over its time.
  const auto rows = static_cast<Eigen::Index>(times.size());
  Eigen::MatrixXd design(rows, 2);
  for (Eigen::Index i = 0; i < rows; i++) {
    const CopyTime& time = times[static_cast<std::size_t>(i)];
    const double t = static_cast<double>(std::max<Nanoseconds>(time.time_ns, 1));
    design(i, 0) = 1 / t;
    design(i, 1) = static_cast<double>(time.bytes) / t;
  }
  const Eigen::VectorXd ones = Eigen::VectorXd::Ones(rows);
  double latency = -1, slope = 0;
  if (rows > 1) {
    const Eigen::VectorXd line = design.colPivHouseholderQr().solve(ones);
    latency = line(0);
    slope = line(1);
  }
  if (latency < 0 || slope <= 0) {  // a line through the origin
    latency = 0;
    const Eigen::MatrixXd bytes = design.col(1);
    slope = bytes.colPivHouseholderQr().solve(ones)(0);
  }
  return {static_cast<BytesPerSecond>(std::llround(1e9 / slope)), std::llround(latency)};
}

Calibration calibrate(const CalibrateOptions& options) {
  const auto say = [&options](const std::string& what) {
    if (options.progress) options.progress(what);
  };
  TENCACHE_CHECK(options.cpu_tier || (!options.directories.empty() && options.accelerator == nullptr));
  Calibration result;
  if (!options.directories.empty()) result.file_bytes = choose_file_bytes(options);
  const CopySizes sizes = copy_sizes(options.quick);
  result.machine = with_real_pages(graph(options, sizes.largest()), options.accelerator.get());
  MachineSpec& machine = result.machine;
  FactWriter facts(machine, options.date);

  say("compute: matrix products and memory traffic");
  result.matmul_flops = repeat(time_matmul, matmul_operations, options.quick ? 5 : 100);
  result.triad_bytes = repeat(time_triad, triad_traffic, options.quick ? 3 : 15);
  measure_lanes(options, sizes, say, result);
  if (options.accelerator != nullptr) {
    say("copies of the GPU that follow each other");
    QueuedCopies queued = time_queued_copies(*options.accelerator, sizes.bytes, sizes.repetitions);
    result.copies[0] = std::move(queued.h2d);  // as `graph` orders them
    result.copies[1] = std::move(queued.d2h);
  }
  set_links(result, sizes, options.accelerator != nullptr, machine, facts);
  if (options.cpu_tier) {
    add_resource(machine, facts, "copies", result.contention.duplex_factor, result.contention.both.spread, 0, 1,
                 "both directions at once against each alone, while a core computes");
  }

  say("memory: copies, allocation and mapping");
  result.memory = time_memory(options.quick, result.not_measured);
  if (options.accelerator != nullptr) {
    result.accelerator = time_accelerator(*options.accelerator, options.quick);
    result.page_locking = time_page_locking(*options.accelerator, options.quick, result.not_measured);
    say("copies within the GPU's memory");
    result.device_copy = time_device_copy(*options.accelerator, options.quick);
    machine.tiers[0].bandwidth = static_cast<BytesPerSecond>(std::llround(result.device_copy.value));
    if (machine.tiers[0].bandwidth != 0) {
      facts.add("tiers.gpu.bandwidth", "copies within it, read and written", result.device_copy.spread);
      // As runs there have it, so that simulations on the machine are of such runs.
      machine.tiers[0].allocator = AllocatorKind::movable;
      machine.tiers[0].granularity = movable_unit;
      machine.run_ahead.ops = gpu_run_ahead;
    }
    result.not_measured.push_back("the GPU's matrix products and memory traffic: compute is one core's");
  }
  if (options.directories.empty()) {
    result.not_measured.push_back("files: there is no folder for them (--no-files)");
  } else {
    say("files of " + format_bytes(result.file_bytes) + ": by block size and queue depth");
    const Tier files = machine.tiers.back();
    result.files = time_files(files, result.file_bytes, options.quick);
    add_resource_of_files(result.files, machine, facts);
  }
  set_capacities(machine, options, facts);
  if (options.adam_step) {
    say("the optimizer on the CPU");
    const MeasuredMedian rate = time_adam(options);
    machine.cpu.adam_parameters_per_second = rate.value;
    facts.add("cpu.adam_parameters_per_second", "AdamW steps on state beyond a core's caches, one core, median",
              rate.spread);
  } else {
    result.not_measured.push_back("the optimizer on the CPU");
  }
  return result;
}

}  // namespace tencache
