#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <memory>
#include <optional>
#include <string_view>

#include "answers/result.h"
#include "cli/command_line.h"
#include "cli/console.h"
#include "configs/gpu_yaml.h"
#include "configs/kernel_yaml.h"
#include "configs/machine_yaml.h"
#include "executor/adamw.h"
#include "executor/calibrate.h"
#include "executor/choose_device.h"
#include "studies/calibrate_program.h"
#include "traces/file/file_io.h"
#include "traces/file/output_files.h"
#include "traces/file/trace_file.h"
#include "traces/generate/kernel_factors.h"
#include "traces/transform/rescale.h"

namespace tencache {
namespace {

struct CalibrateArguments {
  std::string output;
  std::string name = "this-computer";
  std::string gpu_memory, file_bytes;
  std::vector<std::string> directories;
  std::string device = "auto";
  std::string trace, gpu;  // of --from-trace
  std::string answers;     // of --import
  bool no_files = false;
  bool no_cpu_tier = false;
  bool quick = false;
  bool json = false;
  bool named = false;  // --name was given
};

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm date{};
  gmtime_r(&now, &date);
  return fmt::format("{:04}-{:02}-{:02}", date.tm_year + 1900, date.tm_mon + 1, date.tm_mday);
}

// The very step that training runs, on values that keep every operation an ordinary one.
class AdamStep {
 public:
  void run(std::uint64_t parameters) {
    const auto size = static_cast<std::size_t>(parameters);
    if (parameter_.size() != size) {
      parameter_.assign(size, 0.5f);
      gradient_.assign(size, 0.01f);
      first_moment_.assign(size, 0.001f);
      second_moment_.assign(size, 0.0001f);
    }
    adamw_step(parameter_, gradient_, first_moment_, second_moment_, ++step_, AdamWOptions{});
  }

 private:
  std::vector<float> parameter_, gradient_, first_moment_, second_moment_;
  std::uint64_t step_ = 0;
};

Bytes size_of_option(const char* option, const std::string& text) {
  if (text.empty()) return 0;
  try {
    const Bytes bytes = parse_bytes(text);
    if (bytes == 0) throw Error("must be above 0");
    return bytes;
  } catch (const Error& error) {
    throw Error(std::string(option) + ": " + error.what());
  }
}

Json measured_json(const MeasuredMedian& figure) {
  if (figure.value <= 0) return nullptr;
  return {{"value", figure.value}, {"spread", figure.spread}};
}

Json calibration_json(const Calibration& calibration, const MeasuredMedian& host_cost) {
  const MachineSpec& machine = calibration.machine;
  Json json = machine_json(machine);
  Json copies = Json::object();
  for (std::size_t link = 0; link < machine.links.size(); ++link) {
    Json times = Json::array();
    for (const CopyTime& time : calibration.copies[link]) {
      times.push_back({{"bytes", time.bytes}, {"seconds", to_seconds(time.time_ns)}, {"spread", time.spread}});
    }
    copies[machine.links[link].name] = std::move(times);
  }
  Json memory = Json::array(), files = Json::array(), accelerator = Json::array();
  Json page_locking = Json::array();
  for (const AcceleratorCost& cost : calibration.accelerator) {
    accelerator.push_back({{"bytes", cost.bytes},
                           {"pageable_h2d_bytes_per_second", measured_json(cost.pageable_h2d)},
                           {"pageable_d2h_bytes_per_second", measured_json(cost.pageable_d2h)},
                           {"map_seconds", measured_json(cost.map)},
                           {"unmap_seconds", measured_json(cost.unmap)}});
  }
  for (const MemoryCost& cost : calibration.memory) {
    memory.push_back({{"bytes", cost.bytes},
                      {"pageable_copy_bytes_per_second", measured_json(cost.pageable_copy)},
                      {"pinned_copy_bytes_per_second", measured_json(cost.pinned_copy)},
                      {"allocate_seconds", measured_json(cost.allocate)},
                      {"allocate_pinned_seconds", measured_json(cost.allocate_pinned)},
                      {"map_seconds", measured_json(cost.map)},
                      {"unmap_seconds", measured_json(cost.unmap)}});
  }
  for (const PageLockCost& cost : calibration.page_locking) {
    page_locking.push_back({{"threads", cost.threads},
                            {"touch_bytes_per_second", measured_json(cost.touch)},
                            {"lock_bytes_per_second", measured_json(cost.lock)}});
  }
  for (const FileRate& rate : calibration.files) {
    files.push_back({{"block_bytes", rate.block_bytes},
                     {"queue_depth", rate.queue_depth},
                     {"read_bytes_per_second", measured_json(rate.read)},
                     {"write_bytes_per_second", measured_json(rate.write)},
                     {"mixed_bytes_per_second", measured_json(rate.mixed)}});
  }
  const Contention& contention = calibration.contention;
  json["copies"] = std::move(copies);
  json["memory"] = std::move(memory);
  json["gpu_memory"] = std::move(accelerator);
  json["gpu_memory_bytes_per_second"] = measured_json(calibration.device_copy);
  json["page_locking"] = std::move(page_locking);
  json["files"] = {{"bytes", calibration.file_bytes}, {"rates", std::move(files)}};
  json["beside_computing"] = {{"h2d_bytes_per_second", measured_json(contention.h2d)},
                              {"d2h_bytes_per_second", measured_json(contention.d2h)},
                              {"both_bytes_per_second", measured_json(contention.both)},
                              {"duplex_factor", contention.duplex_factor},
                              {"matmul_slowdown", contention.matmul_slowdown},
                              {"triad_slowdown", contention.triad_slowdown}};
  json["compute"] = {{"matmul_flops_per_second", measured_json(calibration.matmul_flops)},
                     {"triad_bytes_per_second", measured_json(calibration.triad_bytes)}};
  json["op_round_trip_seconds"] = measured_json(calibration.op_round_trip);
  json["host_seconds_per_transfer"] = measured_json(host_cost);
  json["not_measured"] = calibration.not_measured;
  json["description"] = calibration.description;
  return json;
}

// "12.3 ±4 %", with a number before the spread as `format` writes it.
std::string with_spread(const MeasuredMedian& figure, const auto& format) {
  if (figure.value <= 0) return "-";
  return fmt::format("{} ±{:.0f} %", format(figure.value), 100 * figure.spread);
}
std::string rate_text(const MeasuredMedian& figure) {
  return with_spread(figure, [](double value) { return format_bandwidth(static_cast<BytesPerSecond>(value)); });
}
std::string time_text(const MeasuredMedian& figure) { return with_spread(figure, format_seconds); }

std::string calibration_text(const Calibration& calibration, const MeasuredMedian& host_cost) {
  const MachineSpec& machine = calibration.machine;
  std::string text;
  for (const Tier& tier : machine.tiers) text += fmt::format("  {:<14} {}\n", tier.name, format_bytes(tier.capacity));
  for (const Link& link : machine.links) {
    text +=
        fmt::format("  {:<14} {} to {}: {}, latency {}\n", link.name, machine.tiers[link.from].name,
                    machine.tiers[link.to].name, format_bandwidth(link.bandwidth), format_duration(link.latency_ns));
  }
  for (const Resource& resource : machine.resources) {
    text +=
        fmt::format("  {:<14} {} for the links that share it\n", resource.name, format_bandwidth(resource.bandwidth));
  }
  const auto millions = [](double value) { return fmt::format("{:.0f} million parameters/s", value * 1e-6); };
  if (machine.cpu.adam_parameters_per_second > 0) {
    text += fmt::format("  {:<14} {}\n", "CPU Adam", millions(machine.cpu.adam_parameters_per_second));
  }
  text += fmt::format("  {:<14} {} of host time\n", "each copy", time_text(host_cost));
  text += fmt::format(
      "  {:<14} {} (plain loops on one core), memory {}\n", "matrix product",
      with_spread(calibration.matmul_flops, [](double value) { return fmt::format("{:.1f} GFLOP/s", value * 1e-9); }),
      rate_text(calibration.triad_bytes));
  const Contention& contention = calibration.contention;
  text += fmt::format(
      "  {:<14} {} {}, {} {}, both at once {}: {:.2f} of their sum;\n"
      "  {:<14} copies slow matrix products by {:.1f} %, memory traffic by {:.1f} %\n",
      "beside compute", machine.links[0].name, rate_text(contention.h2d), machine.links[1].name,
      rate_text(contention.d2h), rate_text(contention.both), contention.duplex_factor, "",
      100 * contention.matmul_slowdown, 100 * contention.triad_slowdown);
  text += fmt::format("  {:<14} {} from execute to wait\n\n", "an empty op", time_text(calibration.op_round_trip));

  Table copies([&] {
    std::vector<std::string> header = {"  copies of"};
    for (const Link& link : machine.links) header.push_back(link.name);
    return header;
  }());
  for (std::size_t i = 0; i < calibration.copies.front().size(); ++i) {
    std::vector<std::string> row = {"  " + format_bytes(calibration.copies.front()[i].bytes)};
    for (const std::vector<CopyTime>& times : calibration.copies) {
      row.push_back(time_text({to_seconds(times[i].time_ns), times[i].spread}));
    }
    copies.add(std::move(row));
  }
  text += copies.text();
  Table memory({"  memory of", "copied", "copied, locked", "fresh", "fresh, locked", "mapped", "unmapped"});
  for (const MemoryCost& cost : calibration.memory) {
    memory.add({"  " + format_bytes(cost.bytes), rate_text(cost.pageable_copy), rate_text(cost.pinned_copy),
                time_text(cost.allocate), time_text(cost.allocate_pinned), time_text(cost.map), time_text(cost.unmap)});
  }
  text += "\n" + memory.text();
  if (!calibration.accelerator.empty()) {
    text += fmt::format("\n  GPU memory, copied within it, read and written: {}", rate_text(calibration.device_copy));
    Table gpu({"  GPU memory of", "to it, unlocked", "from it, unlocked", "mapped", "unmapped"});
    for (const AcceleratorCost& cost : calibration.accelerator) {
      gpu.add({"  " + format_bytes(cost.bytes), rate_text(cost.pageable_h2d), rate_text(cost.pageable_d2h),
               time_text(cost.map), time_text(cost.unmap)});
    }
    text += "\n" + gpu.text();
  }
  for (const PageLockCost& cost : calibration.page_locking) {
    text += fmt::format("  pages made by {} thread{}: {}; locked: {}\n", cost.threads, cost.threads == 1 ? "" : "s",
                        rate_text(cost.touch), rate_text(cost.lock));
  }
  if (!calibration.files.empty()) {
    Table files({"  files in blocks of", "in flight", "read", "write", "both at once"});
    for (const FileRate& rate : calibration.files) {
      files.add({"  " + format_bytes(rate.block_bytes), std::to_string(rate.queue_depth), rate_text(rate.read),
                 rate_text(rate.write), rate_text(rate.mixed)});
    }
    text += fmt::format("\n{}  on {} of files\n", files.text(), format_bytes(calibration.file_bytes));
  }
  for (const std::string& missing : calibration.not_measured) text += "  not measured: " + missing + "\n";
  return text;
}

// The kernel model's constants from a recording of a GPU.
ExitCode calibrate_kernels(const CalibrateArguments& arguments) {
  check_output("--output", arguments.output, {arguments.trace});
  const Trace trace = read_trace(arguments.trace);
  const std::vector<GpuSpec> gpus = list_gpus();
  const std::string hardware = arguments.gpu.empty() ? trace.header.hardware : arguments.gpu;
  const GpuSpec* const gpu = find_gpu(gpus, hardware);
  if (gpu == nullptr) {
    std::string names;
    for (const GpuSpec& known : gpus) names += (names.empty() ? "" : ", ") + known.name;
    throw Error(arguments.trace, 1,
                (hardware.empty() ? std::string("does not say which GPU its durations are of")
                                  : "its durations are of '" + hardware + "', which is none of the known GPUs") +
                    "; say --assume-gpu NAME (" + names + ")");
  }
  const auto precision = parse_enum<Precision>(trace.header.precision.empty() ? "fp32" : trace.header.precision);
  if (!precision) {
    throw Error(arguments.trace, 1,
                "its precision '" + trace.header.precision + "' is unknown; valid are fp16, bf16, fp32");
  }
  const std::vector<KernelFactor> factors = kernel_factors(trace, KernelModel(*gpu, *precision));
  if (factors.empty()) {
    throw Error(arguments.trace, 0,
                fmt::format("has no kind of kernel with {} measured ops whose shape or traffic is known; record with "
                            "tencache_recorder on a GPU, or import a Kineto trace recorded with record_shapes=True",
                            fewest_factor_ops));
  }
  const std::string text = calibrated_kernels(*gpu, factors, arguments.trace);
  const KernelConstants written = parse_kernels(text, arguments.output);
  AtomicFile file(arguments.output);
  file.write(text);
  file.commit();
  if (arguments.json) {
    Json kinds = Json::object();
    for (const KernelFactor& factor : factors) {
      kinds[std::string(to_string(factor.kind))] = {{"ops", factor.ops}, {"factor", factor.factor}};
    }
    print_json({{"file", arguments.output}, {"gpu", gpu->name}, {"kernels", std::move(kinds)}});
    return ExitCode::done;
  }
  Table table({"  kernel", "ops", "measured / modelled"});
  for (const KernelFactor& factor : factors) {
    table.add(
        {"  " + std::string(to_string(factor.kind)), std::to_string(factor.ops), fmt::format("{:.3f}", factor.factor)});
  }
  print(fmt::format("{}: kernels of the {}, {}\n{}", arguments.output, gpu->name,
                    calibration_note(written).substr(std::string_view("kernels: ").size()), table.text()));
  return ExitCode::done;
}

// The calls of the driver that a copy of a chunk costs the host: its memory comes and goes, it is started, and marked.
constexpr std::array transfer_calls = {"cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemcpyHtoDAsync",
                                       "cuEventRecord"};

// Of the smallest size that was timed, while nothing else ran. None where one is missing.
std::optional<MeasuredMedian> transfer_cost(const Json& calls) {
  MeasuredMedian sum;
  for (const std::string_view call : transfer_calls) {
    const Json* smallest = nullptr;
    for (const Json& row : calls) {
      if (row.at("call") != call || row.at("beside_kernel").get<bool>()) continue;
      if (smallest == nullptr || row.at("bytes") < smallest->at("bytes")) smallest = &row;
    }
    if (smallest == nullptr) return std::nullopt;
    sum.value += smallest->at("median_us").get<double>() * 1e-6;
    sum.spread = std::max(sum.spread, smallest->at("spread").get<double>());
  }
  return sum;
}

// What bench/gpu_day.sh brought home from another computer.
ExitCode import_answers(const CalibrateArguments& arguments) try {
  check_output("--output", arguments.output, {arguments.answers});
  const Json day = Json::parse(read_file(arguments.answers));
  const Json& steps = day.at("steps");
  if (!steps.contains("calibrate") || !steps.at("calibrate").contains("machine")) {
    throw Error(arguments.answers, 0, "has no calibration; part a of bench/gpu_day.sh writes one if it succeeds there");
  }
  MachineSpec machine = parse_machine(steps.at("calibrate").at("machine").get<std::string>(), arguments.answers);
  if (arguments.named) machine.name = arguments.name;
  if (steps.contains("probe") && steps.at("probe").contains("probe")) {
    if (const auto cost = transfer_cost(steps.at("probe").at("probe").at("calls"))) {
      machine.host.per_transfer_ns = std::llround(cost->value * 1e9);
      machine.facts.push_back({"host.per_transfer", "calls of the driver for a chunk that is copied", "measured",
                               day.at("date").get<std::string>(), std::min(cost->spread, 10.0)});
    }
  }
  const std::string text = write_machine_yaml(machine);
  parse_machine(text, arguments.output);
  AtomicFile file(arguments.output);
  file.write(text);
  file.commit();
  const std::string card = day.contains("card") && day.at("card").is_object() ? day.at("card").at("name") : "no card";
  if (arguments.json) {
    print_json({{"file", arguments.output}, {"card", card}, {"host_per_transfer_ns", machine.host.per_transfer_ns}});
  } else {
    print(fmt::format("{}: {}, measured on {}\n", arguments.output, card, day.at("date").get<std::string>()));
  }
  return ExitCode::done;
} catch (const nlohmann::json::exception& error) {
  throw Error(arguments.answers, 0,
              std::string("is no file of answers, such as bench/gpu_day.sh writes: ") + error.what());
}

// As the executor does it: the most threads make the pages, then the driver locks them.
void state_page_locking(Calibration& calibration, const std::string& date) {
  if (calibration.page_locking.empty()) return;
  const PageLockCost& cost = *std::ranges::max_element(calibration.page_locking, {}, &PageLockCost::threads);
  if (cost.touch.value <= 0 || cost.lock.value <= 0) return;
  calibration.machine.host.lock_bandwidth =
      static_cast<BytesPerSecond>(std::llround(1 / (1 / cost.touch.value + 1 / cost.lock.value)));
  calibration.machine.facts.push_back({"host.page_lock",
                                       fmt::format("fresh pages by {} threads, then locked", cost.threads), "measured",
                                       date, std::min(std::max(cost.touch.spread, cost.lock.spread), 10.0)});
}

// For durations of other GPUs, which are rescaled to it. `described`: its name, a comma, more.
void name_gpu(Calibration& calibration, const std::string& described) {
  const std::string card = described.substr(0, described.find(','));
  const std::vector<GpuSpec> gpus = list_gpus();
  if (const GpuSpec* const gpu = find_gpu(gpus, card)) {
    calibration.machine.gpu = gpu->name;
  } else {
    calibration.not_measured.push_back("which GPU of `gpus.yaml` the " + card +
                                       " is: traces' durations are not rescaled to it");
  }
}

ExitCode measure(const CalibrateArguments& arguments) {
  if (!arguments.trace.empty()) return calibrate_kernels(arguments);
  if (!arguments.answers.empty()) return import_answers(arguments);
  CalibrateOptions options;
  options.name = arguments.name;
  options.date = today();
  options.gpu_bytes = size_of_option("--gpu-memory", arguments.gpu_memory);
  options.file_bytes = size_of_option("--file-bytes", arguments.file_bytes);
  options.quick = arguments.quick;
  options.cpu_tier = !arguments.no_cpu_tier;
  MachineSpec asked;
  asked.tiers.push_back({"gpu", TierKind::gpu, options.gpu_bytes, 1, {}});
  options.accelerator = choose_device(arguments.no_cpu_tier ? "host" : arguments.device, asked).accelerator;
  options.directories = arguments.directories;
  if (options.directories.empty() && !arguments.no_files) options.directories = {"/var/tmp"};
  AdamStep adam;
  options.adam_step = [&adam](std::uint64_t parameters) { adam.run(parameters); };

  // Before seconds are spent on measuring: the file can be written, and its name can be read back.
  AtomicFile file(arguments.output);
  MachineSpec nameless;
  nameless.name = arguments.name;
  nameless.tiers.push_back({"gpu", TierKind::gpu, 1, 1, {}});
  nameless.initial_tier = 0;
  parse_machine(write_machine_yaml(nameless), arguments.output);
  Calibration calibration;
  MeasuredMedian host_cost;
  {
    ProgressLine progress;
    options.progress = [&progress](const std::string& what) { progress.show("measuring " + what); };
    calibration = calibrate(options);
    if (options.accelerator == nullptr) {
      options.progress("what copies cost a program, beside the links' time");
      host_cost = measure_host_cost(calibration.machine, options.quick);
    } else {
      name_gpu(calibration, options.accelerator->describe());
      calibration.not_measured.push_back(
          "what copies cost a live program beside the links' time: bench/gpu_day.sh times the driver's calls");
    }
  }
  calibration.machine.host.per_transfer_ns = std::llround(host_cost.value * 1e9);
  if (host_cost.value > 0)
    calibration.machine.facts.push_back({"host.per_transfer", "a small program with and without room, less simulated",
                                         "measured", options.date, std::min(host_cost.spread, 10.0)});
  state_page_locking(calibration, options.date);
  const std::string text = write_machine_yaml(calibration.machine);
  parse_machine(text, arguments.output);
  file.write(text);
  file.commit();

  if (arguments.json) {
    Json json = calibration_json(calibration, host_cost);
    json["file"] = arguments.output;
    print_json(json);
  } else {
    print(arguments.output + "\n" + calibration_text(calibration, host_cost));
  }
  return ExitCode::done;
}

}  // namespace

void add_calibrate_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("calibrate", "Measure this computer into a machine file");
  auto arguments = std::make_shared<CalibrateArguments>();
  command
      ->add_option("--output,-o", arguments->output,
                   "The machine file to write (YAML); of --from-trace, the file of kernels")
      ->required();
  refuse_empty(command->add_option("--from-trace", arguments->trace,
                                   "Measure nothing: calibrate the model of a GPU's kernels by this recording's"));
  refuse_empty(
      command->add_option("--assume-gpu", arguments->gpu, "The GPU of the recording (default: what its header says)"))
      ->needs("--from-trace");
  refuse_empty(command->add_option("--import", arguments->answers,
                                   "Measure nothing: take what a GPU's computer answered (answers-a.json of "
                                   "bench/gpu_day.sh)"))
      ->excludes("--from-trace");
  CLI::Option* name = refuse_empty(command->add_option("--name", arguments->name, "The machine's name"));
  name->capture_default_str();
  refuse_empty(command->add_option(
      "--gpu-memory", arguments->gpu_memory,
      "Size of the GPU's tier (default: of a GPU what it has free, else a quarter of free memory)"));
  CLI::Option* directory = command
                               ->add_option("--directory", arguments->directories,
                                            "Folder for files, one a device, any number of times (default: /var/tmp)")
                               ->allow_extra_args(false)
                               ->take_all();
  refuse_empty(command->add_option("--file-bytes", arguments->file_bytes,
                                   "Data that files are measured with (default 2GiB); more than the drive's cache"))
      ->excludes(command->add_flag("--no-files", arguments->no_files, "Leave files out")->excludes(directory));
  command
      ->add_option("--device", arguments->device,
                   "Where the GPU's memory lies: cuda (a GPU), host (ordinary memory stands in), auto (a GPU where "
                   "there is one with enough memory)")
      ->check(CLI::IsMember(device_names()))
      ->capture_default_str();
  command
      ->add_flag("--no-cpu-tier", arguments->no_cpu_tier,
                 "A computer without a GPU as it is: its memory, and files right below it")
      ->excludes("--no-files")
      ->excludes("--device");
  command->add_flag("--quick", arguments->quick, "A few seconds instead of most of a minute; coarser");
  command->add_flag("--json", arguments->json, "What was measured as JSON");
  command->footer(
      "Takes less than a minute on a quiet computer; anything else that runs shows in the figures. Each figure comes\n"
      "with its spread, which `--samples` of replay and compare draws from. Without a GPU ordinary memory "
      "stands in.\n\n"
      "Examples:\n"
      "  tencache calibrate -o this-computer.yaml\n"
      "  tencache calibrate -o this-computer.yaml --directory /mnt/nvme0 --directory /mnt/nvme1\n"
      "  tencache calibrate -o cpu-box.yaml --no-cpu-tier --directory /mnt/nvme\n"
      "  tencache calibrate --from-trace step.trace.jsonl -o my-h100.yaml\n"
      "  tencache calibrate --import answers-a.json -o h200.yaml");
  command->callback([arguments, name, &chosen] {
    arguments->named = name->count() > 0;
    chosen = [arguments] { return measure(*arguments); };
  });
}

}  // namespace tencache
