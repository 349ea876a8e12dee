#include "configs/machine_lookup.h"

#include <filesystem>

#include "configs/machine_yaml.h"
#include "configs/shipped_files.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

constexpr Bytes maximum_machine_file_bytes = 4 * MiB;

MachineSpec read_machine_file(const std::string& path) { return parse_machine(read_machine_text(path), path); }

}  // namespace

std::string read_machine_text(const std::string& path) { return read_file(path, maximum_machine_file_bytes); }

std::string find_base_machine(const std::string& base, const std::string& from_file) {
  if (is_config_path(base)) return (std::filesystem::path(from_file).parent_path() / base).string();
  return find_config("machines", "machine", base);
}

std::vector<std::string> machine_folders() { return config_folders("machines"); }

MachineSpec read_machine(const std::string& name_or_file) {
  return read_machine_file(find_config("machines", "machine", name_or_file));
}

std::vector<MachineSpec> list_machines() {
  std::vector<MachineSpec> result;
  for (const auto& [name, path] : shipped_files("machines")) result.push_back(read_machine_file(path));
  return result;
}

}  // namespace tencache
