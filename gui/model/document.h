// Files that the commands write, opened: traces, results, timelines.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "answers/document.h"
#include "answers/json.h"
#include "gui/model/run.h"
#include "gui/model/sensitivity.h"
#include "gui/model/simulator.h"
#include "gui/model/table.h"
#include "studies/sweep/sweep_row.h"

namespace tencache::gui {

// What people read of the document; none where no command of tencache prints it. Throws Error where it is damaged.
std::optional<tencache::Document> document_of(const Json& document, const std::string& file);
// Of the candidates that `tune --csv` writes; empty where the table is another.
std::optional<ScatterChart> candidates_of(const DataTable& table);

struct Document {
  enum class Kind : std::uint8_t { trace, results, timeline, sensitivity, sweep, table };
  std::string path;
  Kind kind = Kind::trace;
  std::shared_ptr<const Trace> trace;  // of a trace
  std::vector<RunPointer> runs;        // of a timeline, predicted before measured
  std::string note;                    // on a file that is not whole
  std::vector<Json> results;           // docs/results.md; rows of `compare`, or one
  SensitivityPointer sensitivity;
  std::vector<SweepRow> sweep_rows;
  DataTables tables;                         // of all that is JSON or CSV
  std::optional<tencache::Document> answer;  // what people read of what a command printed

  template <typename Block>
  const Block* first() const {  // of what people read; null: it has none
    return answer ? answer->first<Block>() : nullptr;
  }
};
using DocumentPointer = std::shared_ptr<const Document>;

// Tells the kind by the content. Throws Error that says what is wrong with the file.
DocumentPointer open_document(const std::string& path);

// What a result's manifest says was simulated, read again; paths are taken from the present folder, then from that of
// the result. Throws Error where the trace or the machine is not there any more.
Workload workload_of(const Json& result, const std::string& result_file);

}  // namespace tencache::gui
