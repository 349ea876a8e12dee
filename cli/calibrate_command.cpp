#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <ctime>
#include <memory>

#include "cli/command_line.h"
#include "cli/report.h"
#include "configs/machine_yaml.h"
#include "executor/adamw.h"
#include "executor/calibrate.h"
#include "traces/file_io.h"

namespace tencache {
namespace {

struct CalibrateArguments {
  std::string output;
  std::string name = "this-computer";
  std::string gpu_memory;
  std::vector<std::string> directories;
  bool no_files = false;
  bool json = false;
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
    adamw_step(parameter_, gradient_, first_moment_, second_moment_, 1.0f, ++step_, AdamWOptions{});
  }

 private:
  std::vector<float> parameter_, gradient_, first_moment_, second_moment_;
  std::uint64_t step_ = 0;
};

ExitCode measure(const CalibrateArguments& arguments) {
  CalibrateOptions options;
  options.name = arguments.name;
  options.date = today();
  if (!arguments.gpu_memory.empty()) {
    try {
      options.gpu_bytes = parse_bytes(arguments.gpu_memory);
    } catch (const Error& error) {
      throw Error(std::string("--gpu-memory: ") + error.what());
    }
    if (options.gpu_bytes == 0) throw Error("--gpu-memory: must be above 0");
  }
  options.directories = arguments.directories;
  if (options.directories.empty() && !arguments.no_files) options.directories = {"/var/tmp"};
  AdamStep adam;
  options.adam_step = [&adam](std::uint64_t parameters) { adam.run(parameters); };

  // Before seconds are spent on measuring: the file can be written, and its name can be read back.
  AtomicFile file(arguments.output);
  Calibration calibration;
  {
    ProgressLine progress;
    progress.show("measuring copies, files and compute; this takes a few seconds");
    calibration = calibrate(options);
  }
  const std::string text = write_machine_yaml(calibration.machine);
  MachineSpec machine = parse_machine(text, arguments.output);
  file.write(text);
  file.commit();

  if (arguments.json) {
    Json json = machine_json(machine);
    json["file"] = arguments.output;
    json["notes"] = calibration.notes;
    json["op_round_trip_seconds"] = to_seconds(calibration.op_round_trip_ns);
    print_json(json);
    return ExitCode::done;
  }
  std::string report = fmt::format("{}\n", arguments.output);
  for (const Tier& tier : machine.tiers) report += fmt::format("  {:<14} {}\n", tier.name, format_bytes(tier.capacity));
  for (const Link& link : machine.links) {
    report +=
        fmt::format("  {:<14} {} to {}: {}, latency {}\n", link.name, machine.tiers[link.from].name,
                    machine.tiers[link.to].name, format_bandwidth(link.bandwidth), format_duration(link.latency_ns));
  }
  if (machine.cpu_adam_parameters_per_second > 0) {
    report += fmt::format("  {:<14} {:.0f} million parameters/s\n", "CPU Adam",
                          machine.cpu_adam_parameters_per_second * 1e-6);
  }
  std::size_t begin = 0;
  while (begin < calibration.notes.size()) {
    const std::size_t end = std::min(calibration.notes.find('\n', begin), calibration.notes.size());
    report += "  " + calibration.notes.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  print(report);
  return ExitCode::done;
}

}  // namespace

void add_calibrate_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("calibrate", "Measure this computer into a machine file");
  auto arguments = std::make_shared<CalibrateArguments>();
  command->add_option("--output,-o", arguments->output, "The machine file to write (YAML)")->required();
  refuse_empty(command->add_option("--name", arguments->name, "The machine's name"))->capture_default_str();
  refuse_empty(
      command->add_option("--gpu-memory", arguments->gpu_memory,
                          "Size of the memory that stands in for the GPU's (default: a quarter of what is free)"));
  CLI::Option* directory = command
                               ->add_option("--directory", arguments->directories,
                                            "Folder for files, one a device, any number of times (default: /var/tmp)")
                               ->allow_extra_args(false)
                               ->take_all();
  command->add_flag("--no-files", arguments->no_files, "Leave files out")->excludes(directory);
  command->add_flag("--json", arguments->json, "What was measured as JSON");
  command->footer(
      "Takes a few seconds; ordinary memory stands in for the GPU's.\n\nExamples:\n"
      "  tencache calibrate -o this-computer.yaml\n"
      "  tencache calibrate -o this-computer.yaml --directory /mnt/nvme0 --directory /mnt/nvme1");
  command->callback([arguments, &chosen] { chosen = [arguments] { return measure(*arguments); }; });
}

}  // namespace tencache
