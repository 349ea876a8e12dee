// A trace: what it is of, and its tensors by role.
#include <fmt/format.h>

#include <filesystem>

#include "gui/model/describe.h"
#include "gui/report/html.h"
#include "gui/report/page.h"
#include "traces/summary.h"

namespace tencache::gui {

std::string trace_section(const Document& document) {
  const TraceSummary summary = summarize(*document.trace);
  const TraceHeader& header = summary.header;
  std::string html =
      "<section>\n<h2>Trace " + html_text(std::filesystem::path(document.path).filename().string()) + "</h2>\n<dl>\n";
  add_fact(html, "model", header.model);
  if (header.batch != 0) {
    add_fact(html, "batch",
             std::to_string(header.batch) +
                 (header.sequence_length != 0 ? fmt::format(" × {} tokens", header.sequence_length) : std::string()));
  }
  add_fact(html, "precision", header.precision);
  add_fact(html, "durations of", header.hardware);
  add_fact(html, "kernels of", header.stack);
  add_fact(html, "made by", header.recorded_by);
  add_fact(html, "ops",
           fmt::format("{}, {} of computing and {} between them", summary.all_ops.count,
                       duration_text(summary.all_ops.duration_ns), duration_text(summary.gap_ns)));
  add_fact(html, "most alive at once", format_bytes(summary.peak_demand.bytes));
  add_fact(html, "largest op needs", format_bytes(summary.working_set.bytes));
  html += "</dl>\n<table><thead><tr><th>role</th><th>tensors</th><th>bytes</th></tr></thead><tbody>\n";
  for (std::size_t role = 0; role < role_count; ++role) {
    const TensorTotal& tensors = summary.tensors[role];
    if (tensors.count == 0) continue;
    html += fmt::format("<tr data-bytes=\"{}\"><td>{}</td><td>{}</td><td>{}</td></tr>\n", tensors.bytes,
                        label_of(static_cast<Role>(role)), tensors.count, format_bytes(tensors.bytes));
  }
  return html + "</tbody></table>\n</section>\n";
}

}  // namespace tencache::gui
