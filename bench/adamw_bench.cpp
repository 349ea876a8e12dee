// The optimizer on the CPU against memory bandwidth: AdamW and STREAM's triad (a = b + s × c), in turn in one process,
// on arrays far larger than the caches. `share` is the median over the pairs of AdamW's bytes a second ÷ the triad's.
//
// Bytes are those that cross to memory, and what is written without being read first is read all the same: 16 an
// element of the triad (STREAM says 12 and so a bandwidth a quarter lower), 28 a parameter of AdamW. Times are
// the threads' own CPU time, in which waiting for memory counts and waiting for a core does not; the longest of the
// threads counts.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "executor/adamw.h"

namespace tencache {
namespace {

constexpr std::size_t elements = std::size_t{48} << 20;  // 192 MiB each array of floats

struct Arrays {
  std::vector<float> parameter = std::vector<float>(elements, 0.5f), gradient = std::vector<float>(elements, 0.25f);
  std::vector<float> first_moment = std::vector<float>(elements, 0.125f);
  std::vector<float> second_moment = std::vector<float>(elements, 0.0625f);
};

Arrays& arrays() {
  static Arrays instance;
  return instance;
}

void triad(std::size_t begin, std::size_t count) {
  float* __restrict a = arrays().parameter.data() + begin;
  const float* __restrict b = arrays().gradient.data() + begin;
  const float* __restrict c = arrays().first_moment.data() + begin;
  for (std::size_t i = 0; i < count; ++i) a[i] = b[i] + 0.5f * c[i];
}

void adamw(std::size_t begin, std::size_t count) {
  Arrays& all = arrays();
  adamw_step(std::span(all.parameter).subspan(begin, count), std::span(all.gradient).subspan(begin, count),
             std::span(all.first_moment).subspan(begin, count), std::span(all.second_moment).subspan(begin, count), 10,
             {});
}

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Of the thread that took longest.
double seconds_of(std::size_t threads, const std::function<void(std::size_t begin, std::size_t count)>& work) {
  const std::size_t part = elements / threads;
  std::vector<double> seconds(threads);
  std::vector<std::thread> running;
  for (std::size_t i = 0; i < threads; ++i) {
    running.emplace_back([&, i] {
      const double start = thread_seconds();
      work(i * part, part);
      seconds[i] = thread_seconds() - start;
    });
  }
  for (std::thread& thread : running) thread.join();
  return *std::max_element(seconds.begin(), seconds.end());
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void against_triad(benchmark::State& state, void (*update)(std::size_t, std::size_t), double bytes_a_parameter) {
  const auto threads = static_cast<std::size_t>(state.range(0));
  constexpr auto count = static_cast<double>(elements);
  std::vector<double> triads, updates, shares;
  for (auto _ : state) {
    triads.push_back(16 * count / seconds_of(threads, triad));
    const double seconds = seconds_of(threads, update);
    state.SetIterationTime(seconds);
    updates.push_back(bytes_a_parameter * count / seconds);
    shares.push_back(updates.back() / triads.back());
  }
  state.counters["triad_GB/s"] = median(triads) / 1e9;
  state.counters["update_GB/s"] = median(updates) / 1e9;
  state.counters["parameters/s"] = median(updates) / bytes_a_parameter;
  state.counters["share"] = median(shares);
}

void thread_counts(benchmark::internal::Benchmark* bench) {
  bench->ArgName("threads")->Arg(1);
  if (const unsigned cores = std::thread::hardware_concurrency(); cores > 1) bench->Arg(cores);
  bench->UseManualTime()->Iterations(15)->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(against_triad, fp32, adamw, 28)->Apply(thread_counts);

}  // namespace
}  // namespace tencache

BENCHMARK_MAIN();
