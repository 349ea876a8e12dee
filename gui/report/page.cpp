#include "gui/report/page.h"

#include <fmt/format.h>

#include <filesystem>

#include "answers/compare.h"
#include "answers/cost.h"
#include "core/error.h"
#include "core/remark.h"
#include "core/text.h"
#include "core/units.h"
#include "gui/model/describe.h"
#include "gui/model/results.h"
#include "gui/report/html.h"
#include "traces/file/file_io.h"
#include "traces/file/output_files.h"
#include "traces/summary.h"

namespace tencache::gui {

namespace {

// A trace: what it is of, and its tensors by role.
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

// A section a workload.
std::string sweep_sections(const std::vector<SweepRow>& rows) {
  constexpr std::size_t most_workloads = 6;
  std::string html;
  const std::vector<std::string> workloads = workloads_of(rows);
  for (std::size_t i = 0; i < std::min(workloads.size(), most_workloads); ++i) {
    CostFilter filter;
    filter.workload = workloads[i];
    html += document_section(document_of(cost_chart(rows, filter)), "Cost against time: " + workloads[i]);
  }
  if (workloads.size() > most_workloads) {
    html +=
        fmt::format("<p class=\"faint\">{} more workloads are in the file.</p>\n", workloads.size() - most_workloads);
  }
  return html;
}

// All but results, which stand together by trace and machine.
std::string sections_of(const Document& document) {
  std::string html;
  if (document.kind == Document::Kind::timeline) html += timeline_section(document);
  if (document.sensitivity != nullptr) {
    const tencache::Document answer = document_of(*document.sensitivity);
    html += document_section(answer, answer.title);
  }
  if (!document.sweep_rows.empty()) html += sweep_sections(document.sweep_rows);
  if (document.trace != nullptr) html += trace_section(document);
  if (html.empty() && document.results.empty()) {
    if (document.tables.empty()) throw Error(document.path, 0, "holds nothing that could be shown");
    html = document_section(document);
  }
  if (document.answer && !document.results.empty()) {  // of a measured run, beside its row
    html += document_section(*document.answer, document.answer->title);
  }
  return html;
}

// What the reader would look for in vain.
std::string errors_section(const std::vector<std::string>& errors) {
  if (errors.empty()) return "";
  std::string html = "<section class=\"errors\">\n<h2>Not shown</h2>\n<ul>\n";
  for (const std::string& error : errors) html += "<li class=\"error\">" + html_text(error, 2000) + "</li>\n";
  return html + "</ul>\n</section>\n";
}

}  // namespace

std::string report_page(const std::vector<DocumentPointer>& documents, const std::string& title,
                        std::vector<std::string>& errors) {
  const std::vector<CompareAnswer> groups = comparisons_of(open_results(documents));
  std::string body, name = title;
  if (name.empty() && !groups.empty()) name = groups.front().title;
  for (const CompareAnswer& group : groups) {
    const bool said = groups.size() == 1 && title.empty();  // by the page's heading
    const std::string heading = group.results.size() == 1 ? "The result" : "The policies compared";
    body += document_section(document_of(group), said ? heading : group.title);
  }
  std::string files;
  for (const DocumentPointer& document : documents) {
    try {
      body += sections_of(*document);
    } catch (const std::exception& error) {
      const std::string what = error.what();
      errors.push_back(what.find(document->path) == std::string::npos ? document->path + ": " + what : what);
      continue;
    }
    files += (files.empty() ? "" : ", ") + std::filesystem::path(document->path).filename().string();
    if (name.empty()) name = std::filesystem::path(document->path).filename().string();
  }
  if (body.empty()) throw Error(errors.empty() ? "report: a file is missing" : errors.front());
  body = errors_section(errors) + body;
  return fmt::format(
      "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\"/>\n<title>{0}</title>\n<style>{1}</style>\n"
      "</head>\n<body>\n<header><h1>{0}</h1>\n<p class=\"faint\">How a training step runs when not all of its tensors "
      "fit in GPU "
      "memory: {3}.</p></header>\n{2}"
      "<footer>Made by tencache {4} from {5}. This page is one file and loads nothing else. Times of simulations are "
      "predictions; what they are worth stands beside each. Sizes with i (MiB, GiB) are powers of 1024, those without "
      "of "
      "1000.</footer>\n</body>\n</html>\n",
      html_text(name, 160), style_sheet(), body, "simulated or measured with TenCache", TENCACHE_VERSION,
      html_text(files, 2000));
}

bool write_report(const std::vector<std::string>& files, const std::string& output, const std::string& title) {
  check_output("--output", output, files);
  std::vector<DocumentPointer> documents;
  std::vector<std::string> errors;
  for (const std::string& file : files) {
    try {
      documents.push_back(open_document(file));
      if (!documents.back()->note.empty()) remark(documents.back()->note);
    } catch (const std::exception& error) {  // the others are shown all the same
      const std::string what = error.what();
      errors.push_back(what.find(file) == std::string::npos ? file + ": " + what : what);
    }
  }
  if (documents.empty()) throw Error(join(errors));
  const std::string page = report_page(documents, title, errors);
  write_file(output, page);
  for (const std::string& error : errors) remark("tencache: " + error);
  remark(fmt::format("{}: {}{}", output, format_bytes(page.size()),
                     errors.empty() ? std::string() : fmt::format(", without {} of the files", errors.size())));
  return errors.empty();
}

}  // namespace tencache::gui
