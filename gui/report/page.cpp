#include "gui/report/page.h"

#include <fmt/format.h>

#include <filesystem>

#include "core/error.h"
#include "gui/report/html.h"

namespace tencache::gui {

std::string report_page(const std::vector<DocumentPointer>& documents, const std::string& title) {
  const std::vector<ResultGroup> groups = result_groups(documents);
  std::string body, name = title;
  if (name.empty() && !groups.empty()) name = groups.front().title;
  if (name.empty() && !documents.empty()) name = std::filesystem::path(documents.front()->path).filename().string();
  for (const ResultGroup& group : groups) {
    const bool said = groups.size() == 1 && title.empty();  // by the page's heading
    const std::string heading = group.rows.size() == 1 ? "The result" : "The policies compared";
    body += results_section(group, said ? heading : group.title);
  }
  std::string files;
  for (const DocumentPointer& document : documents) {
    if (document->kind == Document::Kind::timeline) body += timeline_section(*document);
    if (document->sensitivity != nullptr) body += sensitivity_section(*document->sensitivity);
    if (!document->sweep_rows.empty()) body += sweep_section(document->sweep_rows);
    if (document->trace != nullptr) body += trace_section(*document);
    if (document->results.empty() && document->runs.empty() && document->sensitivity == nullptr &&
        document->sweep_rows.empty() && document->trace == nullptr) {
      throw Error(document->path, 0,
                  "holds nothing that a report shows; it takes results (replay, compare, run), timelines, sensitivity "
                  "analyses, sweeps and traces");
    }
    files += (files.empty() ? "" : ", ") + std::filesystem::path(document->path).filename().string();
  }
  if (body.empty()) throw Error("report: a file is missing");
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

}  // namespace tencache::gui
