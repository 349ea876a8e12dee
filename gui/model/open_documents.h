// The files that are open, those that are being opened, and plots that are being made; in the background. One thread
// owns it, and takes over what is finished.
#pragma once

#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gui/model/document.h"
#include "studies/workload.h"

namespace tencache::gui {

// The bundled sample: beside an installed program, else in the source tree.
std::string sample_file();

class OpenDocuments {
 public:
  struct Opened {
    DocumentPointer document;
    std::optional<Workload> workload;
    std::string error;
  };

  // `wanted`: of a trace; without a machine or policy the usual ones.
  void open(const std::string& path, const Scenario& wanted);
  // What a result says was simulated.
  void open_result(const Json& result, const std::string& file);
  // The next that is read, in the order in which they were asked for; its document is one of `all` then.
  std::optional<Opened> take();

  const std::vector<DocumentPointer>& all() const { return all_; }
  // Of all result files, in order of opening.
  std::vector<const Json*> results() const;
  // Of all sensitivity files that are open, and of those that a slider asked for; the newest last.
  const std::vector<SensitivityPointer>& plots() const { return plots_; }
  // Of all sweeps that are open.
  const std::vector<SweepRow>& sweep_rows() const { return sweep_rows_; }

  // One at a time.
  void plot(const Workload& workload, const std::string& parameter, double from, double to,
            const std::vector<std::string>& policies);
  bool plotting() const { return plotting_.valid(); }
  // True if a plot is done. Throws what went wrong.
  bool take_plot();

  bool busy() const { return !opening_.empty() || plotting(); }
  void wait() const;

 private:
  std::vector<std::future<Opened>> opening_;
  std::vector<DocumentPointer> all_;
  std::vector<SensitivityPointer> plots_;
  std::vector<SweepRow> sweep_rows_;
  std::future<SensitivityPointer> plotting_;
};

}  // namespace tencache::gui
