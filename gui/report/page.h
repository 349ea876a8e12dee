// A page to send: what was simulated or measured, as one HTML file that loads nothing from elsewhere.
//
// Its figures are those of the files, in the words and digits of `tencache compare`; cells and bars carry the unrounded
// ones (`data-…`). The same files give the same bytes.
#pragma once

#include <string>
#include <vector>

#include "gui/model/comparison.h"
#include "gui/model/document.h"

namespace tencache::gui {

// An empty title is made from what was run. `errors`: what could not be opened, which the page names; what cannot be
// shown is added. Throws Error where there is nothing to show.
std::string report_page(const std::vector<DocumentPointer>& documents, const std::string& title,
                        std::vector<std::string>& errors);

// Writes the page of files that commands wrote. What it says beside it goes to remarks. False: some of the files could
// not be shown, as the page says. Throws Error where none can, or the page cannot be written.
bool write_report(const std::vector<std::string>& files, const std::string& output, const std::string& title);

// The sections; each is empty where the documents have nothing for it.

// Rows of one trace on one machine with the same changes.
struct ResultGroup {
  std::string title;  // "gpt2-small.trace.jsonl.zst on g10-a100, GPU memory 6GiB"
  std::vector<ComparisonRow> rows;
};
std::vector<ResultGroup> result_groups(const std::vector<DocumentPointer>& documents);
// One or two sentences: what is fastest, and how far from the ideal and the bound. Empty for a group of one row.
std::string answer(const ResultGroup& group);
std::string results_section(const ResultGroup& group, const std::string& heading);

// Runs of a timeline one above the other, with what the tiers held.
std::string timeline_section(const Document& timeline);

std::string sensitivity_section(const SensitivityAnswer& plot);
std::string sweep_section(const std::vector<SweepRow>& rows);
std::string trace_section(const Document& trace);
// Of what the other commands print, and of tables.
std::string document_section(const Document& document);

}  // namespace tencache::gui
