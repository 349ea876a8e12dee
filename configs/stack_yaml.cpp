#include "configs/stack_yaml.h"

#include <yaml-cpp/yaml.h>

#include <filesystem>

#include "configs/gpu_yaml.h"
#include "configs/yaml_layers.h"
#include "core/error.h"
#include "core/parse_number.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

constexpr Bytes maximum_stack_file_bytes = MiB;

class FiguresReader {
 public:
  explicit FiguresReader(const std::string& file) : file_(file) {}

  StackFigures read(const YAML::Node& root) {
    const YamlMap map({{root, &file_}}, "the file of stacks", {"launch", "exposed"});
    section(map.require("launch"), "launch", enum_names<Stack>(),
            [&](const std::string& name, const std::string& text) {
              figures_.launch_ns[static_cast<std::size_t>(*parse_enum<Stack>(name))] = parse_duration(text);
            });
    section(map.require("exposed"), "exposed", enum_names<Communication>(),
            [&](const std::string& name, const std::string& text) {
              const std::optional<double> share = parse_number(text);
              if (!share || *share < 0 || *share > 1) throw Error("'" + text + "' is no share from 0 to 1");
              figures_.exposed[static_cast<std::size_t>(*parse_enum<Communication>(name))] = *share;
            });
    return std::move(figures_);
  }

 private:
  template <typename Set>
  void section(const YamlValue& value, const std::string& what, const std::string& names, Set set) {
    std::vector<std::string> keys;
    for (std::size_t begin = 0; begin < names.size();) {
      const std::size_t end = std::min(names.find(", ", begin), names.size());
      keys.push_back(names.substr(begin, end - begin));
      begin = end + 2;
    }
    const YamlMap map({value}, what, keys);
    for (const std::string& key : keys) {
      const YamlMap figure({map.require(key)}, what + "." + key, {"value", "source", "confidence"});
      const auto text = [&](const char* name) {
        const YamlValue found = figure.require(name);
        if (!found.node.IsScalar()) fail_at(found, std::string(name) + " is " + describe(found.node));
        return found.node.Scalar();
      };
      try {
        set(key, text("value"));
      } catch (const Error& error) {
        fail_at(figure.require("value"), what + "." + key + ": " + error.what());
      }
      figures_.facts.push_back({what + "." + key, text("source"), text("confidence"), "", 0});
    }
  }

  const std::string& file_;
  StackFigures figures_;
};

}  // namespace

StackFigures parse_stack_figures(const std::string& text, const std::string& file) {
  try {
    return FiguresReader(file).read(YAML::Load(text));
  } catch (const YAML::Exception& error) {
    const int line = error.mark.line;
    throw Error(file, line < 0 ? 0 : static_cast<std::uint64_t>(line) + 1, "not valid YAML: " + error.msg);
  }
}

StackFigures read_stack_figures() {
  const std::string path = (std::filesystem::path(gpu_file()).parent_path() / "stacks.yaml").string();
  return parse_stack_figures(read_file(path, maximum_stack_file_bytes), path);
}

}  // namespace tencache
