#include "gui/model/open_documents.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

namespace tencache::gui {
namespace {

bool ready(const auto& future) { return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }

}  // namespace

std::string sample_file() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path installed = fs::read_symlink("/proc/self/exe", error).parent_path() / "../share/tencache/samples";
  for (const fs::path& folder : {installed, fs::path(TENCACHE_SAMPLES_OF_THE_SOURCE_TREE)}) {
    const fs::path file = folder / "gpt-small.trace.jsonl.zst";
    if (fs::exists(file, error)) return file.lexically_normal().string();
  }
  return "gpt-small.trace.jsonl.zst";
}

void OpenDocuments::open(const std::string& path, const Scenario& wanted) {
  opening_.push_back(std::async(std::launch::async, [path, scenario = wanted]() mutable {
    Opened opened;
    try {
      opened.document = open_document(path);
      if (opened.document->kind == Document::Kind::trace) {
        const bool sample = path == sample_file();
        scenario.trace.file = path;
        scenario.trace.loaded = opened.document->trace;
        scenario.trace.rescale.where_known = true;
        if (scenario.machine.name.empty()) scenario.machine.name = sample ? "demo-small-gpu" : "g10-a100";
        if (scenario.policy.name.empty()) scenario.policy.name = sample ? "on-demand" : "foresight";
        opened.workload = load_workload(scenario);
      } else if (opened.document->kind == Document::Kind::results) {
        for (const Json& result : opened.document->results) {
          if (result["fits"] != true || result["policy"] == "bound" || result["policy"] == "ideal") continue;
          opened.workload = workload_of(result, path);  // `compare` gives the fastest first
          break;
        }
      }
    } catch (const std::exception& error) {
      opened.error = error.what();
    }
    return opened;
  }));
}

void OpenDocuments::open_result(const Json& result, const std::string& file) {
  opening_.push_back(std::async(std::launch::async, [result, file] {
    Opened opened;
    try {
      opened.workload = workload_of(result, file);
    } catch (const std::exception& error) {
      opened.error = error.what();
    }
    return opened;
  }));
}

std::optional<OpenDocuments::Opened> OpenDocuments::take() {
  if (opening_.empty() || !ready(opening_.front())) return std::nullopt;
  Opened opened = opening_.front().get();
  opening_.erase(opening_.begin());
  if (const DocumentPointer& document = opened.document; document != nullptr) {
    all_.push_back(document);
    if (document->sensitivity != nullptr) plots_.push_back(document->sensitivity);
    sweep_rows_.insert(sweep_rows_.end(), document->sweep_rows.begin(), document->sweep_rows.end());
  }
  return opened;
}

std::vector<const Json*> OpenDocuments::results() const {
  std::vector<const Json*> list;
  for (const DocumentPointer& document : all_) {
    for (const Json& result : document->results) list.push_back(&result);
  }
  return list;
}

void OpenDocuments::plot(const Workload& workload, const std::string& parameter, double from, double to,
                         const std::vector<std::string>& policies) {
  plotting_ = std::async(std::launch::async, [=] {
    simulate_behind_drawing();
    return std::make_shared<const SensitivityAnswer>(plot_sensitivity(workload, parameter, from, to, policies));
  });
}

bool OpenDocuments::take_plot() {
  if (!plotting() || !ready(plotting_)) return false;
  plots_.push_back(plotting_.get());
  return true;
}

void OpenDocuments::wait() const {
  for (const std::future<Opened>& future : opening_) future.wait();
  if (plotting()) plotting_.wait();
}

}  // namespace tencache::gui
