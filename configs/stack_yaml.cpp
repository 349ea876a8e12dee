#include "configs/stack_yaml.h"

#include <yaml-cpp/yaml.h>

#include "configs/shipped_files.h"
#include "configs/yaml_layers.h"
#include "core/error.h"
#include "core/parse_number.h"
#include "core/split.h"
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
    const std::vector<std::string> keys = split(names, ", ");
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
  return FiguresReader(file).read(load_yaml(text, file));
}

StackFigures read_stack_figures() {
  const std::string path = config_file("stacks.yaml");
  return parse_stack_figures(read_file(path, maximum_stack_file_bytes), path);
}

}  // namespace tencache
