// The dashboard with a timeline of one million spans: opening it, what its frames prepare, whole frames of the views
// (all but the drawing by the GPU), and a what-if simulation from input to result.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "answers/timeline/chrome_trace.h"
#include "gui/model/session.h"
#include "gui/model/timeline_file.h"
#ifdef TENCACHE_WITH_GUI
#include <imgui.h>

#include "gui/shell/app.h"
#include "gui/shell/headless.h"
#endif

namespace tencache::gui {
namespace {

constexpr std::uint32_t op_count = 2'000, iterations = 100;  // 200,000 ops, as many stalls, 600,000 copies

// Ops with a stall before each; three copies an op over four links; each takes room and gives some back.
Recording million_spans() {
  Recording recording;
  recording.title = "predicted: synthetic";
  recording.machine.name = "synthetic";
  recording.machine.tiers = {{"gpu", TierKind::gpu, 40 * GiB, 1, {}},
                             {"cpu", TierKind::cpu, 128 * GiB, 1, {}},
                             {"nvme", TierKind::nvme, 1024 * GiB, 1, {}}};
  recording.machine.links = {{"h2d", 1, 0, 12'000'000'000, 0, {}},
                             {"d2h", 0, 1, 12'000'000'000, 0, {}},
                             {"read", 2, 1, 3'000'000'000, 0, {}},
                             {"write", 1, 2, 3'000'000'000, 0, {}}};
  Trace& trace = recording.trace;
  for (std::uint32_t i = 0; i < op_count; ++i) {
    trace.add_tensor("block" + std::to_string(i / 20) + ".weight" + std::to_string(i), 16 * MiB,
                     static_cast<Role>(i % role_count), false);
  }
  for (std::uint32_t i = 0; i < op_count; ++i) {
    Op op;
    op.name = trace.names.intern("op" + std::to_string(i));
    op.module = trace.names.intern("block" + std::to_string(i / 20));
    op.phase = static_cast<Phase>(i * phase_count / op_count);
    trace.add_op(op, std::vector<TensorId>{i, (i * 7) % op_count}, {});
  }
  std::array<Nanoseconds, 4> link_free{};
  std::array<Bytes, 3> used{};
  Nanoseconds now = 0;
  Timeline& timeline = recording.timeline;
  for (std::uint64_t iteration = 0; iteration < iterations; ++iteration) {
    for (std::uint32_t i = 0; i < op_count; ++i) {
      const auto stall = static_cast<Nanoseconds>(1'000 + 997 * (i % 13)),
                 length = Nanoseconds{20'000} + 31 * (i % 701);
      for (std::uint8_t copy = 0; copy < 3; ++copy) {
        const auto link = static_cast<std::uint8_t>((i + copy) % 4);
        Span span;
        span.kind = SpanKind::transfer;
        span.start_ns = std::max(now, link_free[link]);
        span.end_ns = span.start_ns + 9'000 + 100 * ((i + copy) % 30);
        link_free[link] = span.end_ns;
        span.lane = static_cast<std::uint8_t>(first_link_lane + link);
        span.urgent = i % 5 == 0;
        span.iteration = iteration;
        span.op = i;
        span.tensor = (i + copy) % op_count;
        span.chunk = span.tensor;
        span.bytes = 16 * MiB;
        span.from = recording.machine.links[link].from;
        span.to = recording.machine.links[link].to;
        timeline.spans.push_back(span);
      }
      const TierId tier = static_cast<TierId>(i % 3);
      const bool takes = (i / 3) % 2 == 0;
      used[tier] = takes ? used[tier] + 16 * MiB : used[tier] - 16 * MiB;
      timeline.occupancy.push_back({now, tier, static_cast<Role>(i % role_count), takes ? i : i - 3, used[tier],
                                    takes ? std::int64_t{16} << 20 : -(std::int64_t{16} << 20)});
      Span waits;
      waits.kind = SpanKind::stall;
      waits.cause = static_cast<StallCause>(i % 4);
      waits.iteration = iteration;
      waits.op = i;
      waits.start_ns = now;
      waits.end_ns = now + stall;
      Span runs = waits;
      runs.kind = SpanKind::op;
      runs.start_ns = waits.end_ns;
      runs.end_ns = now = waits.end_ns + length;
      timeline.spans.push_back(waits);
      timeline.spans.push_back(runs);
    }
  }
  return recording;
}

RunPointer million_run() {
  static const RunPointer run = std::make_shared<const Run>(million_spans());
  return run;
}

double resident_megabytes() {
  long pages = 0, resident = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%ld %ld", &pages, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  return static_cast<double>(resident) * 4096 / 1e6;
}

// What the process holds more once the file is open.
void open_million_spans(benchmark::State& state) {
  const std::string file = (std::filesystem::temp_directory_path() / "tencache-gui-bench.json").string();
  {
    const Recording recording = million_spans();
    write_chrome_trace(file, {{recording.title, &recording.timeline, &recording.machine, &recording.trace}});
  }
  const double before = resident_megabytes();
  double held = 0, most = 0;
  for (auto _ : state) {
    const DocumentPointer document = open_document(file);
    benchmark::DoNotOptimize(document->runs.front()->tracks().size());
    held = static_cast<double>(document->runs.front()->memory_bytes()) / 1e6;
    most = std::max(most, resident_megabytes() - before);
  }
  state.counters["spans"] = static_cast<double>(million_run()->spans().size());
  state.counters["held_MB"] = held;
  state.counters["process_MB"] = most;
  state.counters["file_MB"] = static_cast<double>(std::filesystem::file_size(file)) / 1e6;
  std::filesystem::remove(file);
}
BENCHMARK(open_million_spans)->Unit(benchmark::kMillisecond)->Iterations(3);

// All lanes and tiers of the whole run, of an iteration, of a few ops. Arguments: the part shown (1/n), pixels.
void prepare_frame(benchmark::State& state) {
  const Run& run = *million_run();
  const auto whole = static_cast<double>(run.iteration_begin_ns(run.iteration_count()));
  const double length = whole / static_cast<double>(state.range(0));
  const auto pixels = static_cast<std::size_t>(state.range(1));
  VisibleTrack visible;
  std::vector<OccupancyColumn> columns;
  double begin = 0;
  for (auto _ : state) {
    begin = begin + length > whole ? 0 : begin + length / 7;
    for (const Track& track : run.tracks()) {
      track.collect(begin, begin + length, pixels, visible);
      benchmark::DoNotOptimize(visible.items.data());
    }
    for (TierId tier = 0; tier < run.machine().tiers.size(); ++tier) {
      run.occupancy().collect(tier, begin, begin + length, pixels, columns);
      benchmark::DoNotOptimize(columns.data());
    }
  }
}
BENCHMARK(prepare_frame)->ArgsProduct({{1, 10, 100, 10'000}, {1280, 3840}})->Unit(benchmark::kMillisecond);

#ifdef TENCACHE_WITH_GUI
// A whole frame of a view, to the lists that a GPU draws. Arguments: the view, the part shown (1/n).
void build_frame(benchmark::State& state) {
  ImGui::CreateContext();
  ImGuiIO& io = ImGui::GetIO();
  io.IniFilename = nullptr;
  io.DisplaySize = {1280, 720};
  io.BackendFlags |= ImGuiBackendFlags_RendererHasVtxOffset;
  {
    App app(false, 1);
    app.session().show({million_run()});
    app.choose_view(state.range(0) == 0 ? "timeline" : "memory");
    const auto frame = [&] {
      if (app.fonts_changed()) {
        unsigned char* pixels = nullptr;
        int width = 0, height = 0;
        io.Fonts->GetTexDataAsRGBA32(&pixels, &width, &height);
      }
      io.DeltaTime = 1.0f / 60;
      ImGui::NewFrame();
      app.frame();
      ImGui::Render();
    };
    for (int i = 0; i < 3; ++i) frame();
    app.session().align(0);
    app.session().fit_all();
    const double whole = app.session().window.length_ns();
    app.session().window = {0, whole / static_cast<double>(state.range(1))};
    app.session().cursor_ns = whole / 2;
    frame();
    for (auto _ : state) frame();
    state.counters["vertices"] = ImGui::GetDrawData()->TotalVtxCount;
  }
  ImGui::DestroyContext();
}
BENCHMARK(build_frame)->ArgsProduct({{0, 1}, {1, 100, 10'000}})->Unit(benchmark::kMillisecond);
#endif

constexpr const char* policies[] = {"on-demand", "10cache", "g10", "foresight"};

// The shipped recording of GPT-2 small, on a machine that is too small for it.
void open_gpt2(Session& session, const char* policy) {
  session.wanted.machine.name = "demo-small-gpu";
  session.wanted.machine.gpu_memory = "1300MiB";
  session.wanted.machine.cpu_memory = "3GiB";
  session.wanted.policy.name = policy;
  session.open(TENCACHE_SOURCE_DIR "/traces/samples/gpt2-small.trace.jsonl.zst");
  session.wait();
}

// The GPU memory is moved a little, as a dragged slider does. Returns what it is now.
double move_slider(Session& session) {
  Knob& knob = session.what_if->knobs()[0];
  knob.value = knob.value > 1.2 * knob.original ? knob.original : knob.value * 1.01;
  return knob.value;
}

// From a moved slider to the run to draw.
void what_if(benchmark::State& state) {
  Session session;
  open_gpt2(session, policies[state.range(0)]);
  if (session.simulated() == nullptr || !session.simulated()->fits) {
    state.SkipWithError(session.messages().last().c_str());
    return;
  }
  state.SetLabel(session.wanted.policy.name);
  for (auto _ : state) {
    move_slider(session);
    benchmark::DoNotOptimize(simulate_workload(session.what_if->workload())->run.get());
  }
  state.counters["ops"] = static_cast<double>(session.what_if->base().trace->ops.size());
}
BENCHMARK(what_if)->DenseRange(0, 3)->Unit(benchmark::kMillisecond);

// The plan of before on the changed machine, which stands in until the new one is there.
void old_plan(benchmark::State& state) {
  Session session;
  open_gpt2(session, policies[state.range(0)]);
  std::unique_ptr<RecordedPlan> plan;
  if (!session.what_if || !simulate_workload(session.what_if->workload(), {}, &plan)->fits) {
    state.SkipWithError(session.messages().last().c_str());
    return;
  }
  state.SetLabel(session.wanted.policy.name);
  std::size_t misfits = 0;
  double iterations = 0;
  for (auto _ : state) {
    move_slider(session);
    const SimulatedPointer old = simulate_old_plan(session.what_if->workload(), *plan);
    misfits += !old->fits;
    iterations = static_cast<double>(old->result.iterations);
  }
  state.counters["misfits"] = static_cast<double>(misfits);
  state.counters["iterations"] = iterations;
}
BENCHMARK(old_plan)->DenseRange(0, 3)->Unit(benchmark::kMillisecond);

#ifdef TENCACHE_WITH_GUI
// A window of 1280×720 that shows the what-if view, drawn by EGL (Mesa's software renderer where there is no GPU).
class WhatIfScreen {
 public:
  explicit WhatIfScreen(const char* policy) {
    open_gpt2(app_.session(), policy);
    app_.choose_view("what-if");
    for (int i = 0; i < 3; ++i) frame();
  }
  Session& session() { return app_.session(); }
  // Returns the milliseconds it took.
  double frame() {
    const auto start = std::chrono::steady_clock::now();
    if (app_.fonts_changed()) headless_.fonts_changed();
    headless_.frame([this] { app_.frame(); });
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  Headless headless_{1280, 720};
  App app_{false, 1};
};

// From a moved slider until a picture with its result is drawn: as many whole frames as that takes. Of a policy that
// plans for long, the result is its old plan on the new machine.
void input_to_picture(benchmark::State& state) {
  WhatIfScreen screen(policies[state.range(0)]);
  Session& session = screen.session();
  if (!session.what_if) {
    state.SkipWithError(session.messages().last().c_str());
    return;
  }
  state.SetLabel(session.wanted.policy.name);
  double slowest = 0, slow = 0;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    move_slider(session);
    session.rerun();
    const Bytes wanted = session.what_if->workload().machine.tiers[0].capacity;
    while (session.simulated()->workload.machine.tiers[0].capacity != wanted) screen.frame();
    const double took = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    slowest = std::max(slowest, took);
    slow += took > 50;
  }
  state.counters["slowest_ms"] = slowest;
  state.counters["above_50_ms"] = slow;
}
BENCHMARK(input_to_picture)->DenseRange(0, 3)->Unit(benchmark::kMillisecond)->Iterations(100)->UseRealTime();

// Frames while nothing happens, and while foresight plans anew for every one of them in the background.
void frame_at_rest(benchmark::State& state) {
  WhatIfScreen screen("foresight");
  for (auto _ : state) screen.frame();
}
BENCHMARK(frame_at_rest)->Unit(benchmark::kMillisecond)->Iterations(100)->UseRealTime();

void frame_while_simulating(benchmark::State& state) {
  WhatIfScreen screen("foresight");
  double slowest = 0, slow = 0;
  for (auto _ : state) {
    if (!screen.session().what_if) break;
    move_slider(screen.session());
    screen.session().rerun();
    const double took = screen.frame();
    slowest = std::max(slowest, took);
    slow += took > 33;
  }
  state.counters["slowest_ms"] = slowest;
  state.counters["above_33_ms"] = slow;
}
BENCHMARK(frame_while_simulating)->Unit(benchmark::kMillisecond)->Iterations(300)->UseRealTime();
#endif

}  // namespace
}  // namespace tencache::gui

BENCHMARK_MAIN();
