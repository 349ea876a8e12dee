// A page to send: what was simulated or measured, as one HTML file that loads nothing from elsewhere.
//
// Its figures are those of the files, in the words and digits of `tencache compare`; cells and bars carry the unrounded
// ones (`data-…`). The same files give the same bytes.
#pragma once

#include <string>
#include <vector>

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

// Runs of a timeline one above the other, with what the tiers held.
std::string timeline_section(const Document& timeline);

// What people read of an answer.
std::string document_section(const tencache::Document& document, const std::string& heading);
// The same of what commands print; and tables.
std::string document_section(const Document& document);

}  // namespace tencache::gui
