#include "configs/machine_lookup.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "configs/gpu_yaml.h"
#include "configs/machine_yaml.h"
#include "configs/shipped_files.h"
#include "core/error.h"
#include "core/names.h"
#include "core/text.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

constexpr Bytes maximum_machine_file_bytes = 4 * MiB;

MachineText text_of(const std::string& path) { return {read_file(path, maximum_machine_file_bytes), path}; }

// "h100": of a data centre's GPU the machines that have it, or one by another name ("h100-pcie").
void refuse_gpu(const std::string& name) {
  const std::string wanted = plain_name(name);
  std::vector<std::string> machines;
  try {
    for (const MachineSpec& machine : list_machines()) {
      const std::string gpu = plain_name(machine.gpu);
      if (wanted.size() > 1 && gpu.starts_with(wanted)) machines.push_back(machine.name + " (" + machine.gpu + ")");
    }
  } catch (const Error&) {  // a broken file among them is not what was asked for
    return;
  }
  if (machines.empty()) return;
  constexpr std::size_t most_shown = 6;
  const std::string all = machines.size() > most_shown ? ", …" : "";
  machines.resize(std::min(machines.size(), most_shown));
  throw Error("'" + name + "' is a GPU, no machine; machines with it: " + join(machines) + all +
              "; `tencache machines` lists all");
}

}  // namespace

MachineText find_machine(const std::string& name_or_file, const std::string& from_file) {
  if (is_config_path(name_or_file)) {
    const std::filesystem::path folder = std::filesystem::path(from_file).parent_path();
    return text_of(from_file.empty() ? name_or_file : (folder / name_or_file).string());
  }
  if (const auto path = find_shipped("machines", name_or_file)) return text_of(*path);
  if (name_or_file == "here") return machine_of_system("");
  if (auto desktop = desktop_with(name_or_file)) return std::move(*desktop);
  std::vector<std::string> desktops{"here"};
  for (const auto& [gpu, host] : list_hosted_gpus()) {
    if (!host.empty()) desktops.push_back(gpu.name);
  }
  if (from_file.empty()) refuse_gpu(name_or_file);
  fail_unknown("machines", "machine", name_or_file, name_or_file + ".yaml", desktops);
}

std::vector<std::string> machine_folders() { return config_folders("machines"); }

MachineSpec read_machine(const std::string& name_or_file) {
  const MachineText machine = find_machine(name_or_file, "");
  return parse_machine(machine.text, machine.file);
}

std::vector<MachineSpec> list_machines() {
  std::vector<MachineSpec> result;
  for (const auto& [name, path] : shipped_files("machines")) result.push_back(parse_machine(text_of(path).text, path));
  return result;
}

}  // namespace tencache
