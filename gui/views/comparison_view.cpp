// Results beside each other (answers/compare.h): the figures of each, its time in parts, and what to believe of it.
#include <imgui.h>

#include <string>

#include "answers/compare.h"
#include "gui/model/results.h"
#include "gui/views/canvas.h"
#include "gui/views/document_table.h"
#include "gui/views/view.h"

namespace tencache::gui {
namespace {

tencache::Document document_of_open(const Session& session) {
  CompareAnswer answer;
  answer.results = open_results(session.documents().all());
  return tencache::document_of(answer);
}

class ComparisonView : public View {
 public:
  const char* name() const override { return "comparison"; }
  const char* title() const override { return "Comparison"; }
  void draw(Session& session, const Theme& theme) override;
  std::vector<std::pair<const char*, const char*>> keys() const override {
    return {{"U", "time, or use of memory and links"},
            {"click a heading", "sort by it"},
            {"click a row", "show its timeline, simulated again"}};
  }
  std::string csv(const Session& session) const override {
    const tencache::Document document = document_of_open(session);
    const auto* const table = document.first<DocumentTable>();
    return table == nullptr ? std::string() : table_csv(*table);
  }

 private:
  DocumentTableView times_, uses_;
  bool uses_shown_ = false;
  std::size_t documents_ = ~std::size_t{0};
};

void ComparisonView::draw(Session& session, const Theme& theme) {
  if (documents_ != session.documents().all().size()) {
    documents_ = session.documents().all().size();
    times_.show({}), uses_.show({});
    for (DocumentBlock& block : document_of_open(session).blocks) {
      auto* const table = std::get_if<DocumentTable>(&block);
      if (table != nullptr && table->name == "results") times_.show(std::move(*table));
      if (table != nullptr && table->name == "use") uses_.show(std::move(*table));
    }
  }
  if (times_.empty()) {
    ImGui::TextDisabled(
        "%s",
        "No results: open what `tencache compare TRACE -m MACHINE --json` printed; --samples 100 adds intervals.");
    return;
  }
  if (!ImGui::GetIO().WantTextInput && ImGui::IsKeyPressed(key_of('U'), false)) uses_shown_ = !uses_shown_;
  if (ImGui::RadioButton("time", !uses_shown_)) uses_shown_ = false;
  ImGui::SameLine();
  if (ImGui::RadioButton("use of memory and links", uses_shown_)) uses_shown_ = true;
  ImGui::SameLine(0, theme.px(18));
  DocumentTableView& shown = uses_shown_ ? uses_ : times_;
  shown.draw_legend(theme);
  const std::optional<std::string> clicked = shown.draw(theme);
  if (!clicked) return;
  const ResultAnswer& result = open_results(session.documents().all())[std::stoul(*clicked)];
  const Json* const json = session.documents().results()[std::stoul(*clicked)];
  if (result.fits && result.policy != bound_row) session.show_result(*json, result.file);
}

}  // namespace

std::unique_ptr<View> make_comparison_view() { return std::make_unique<ComparisonView>(); }

}  // namespace tencache::gui
