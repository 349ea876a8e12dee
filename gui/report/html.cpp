#include "gui/report/html.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/text.h"
#include "gui/model/palette.h"

namespace tencache::gui {
namespace {

constexpr std::string_view replacement = "\xef\xbf\xbd", ellipsis = "\xe2\x80\xa6";

// Bytes of the UTF-8 character that begins here; 0: none does that a document may hold.
std::size_t character_bytes(std::string_view text) {
  const auto [code, bytes] = first_character(text);
  return code == 0xfffe || code == 0xffff ? 0 : bytes;
}

void append(std::string& result, std::string_view character) {
  switch (character[0]) {
    case '&':
      result += "&amp;";
      return;
    case '<':
      result += "&lt;";
      return;
    case '>':
      result += "&gt;";
      return;
    case '"':
      result += "&quot;";
      return;
    case '\'':
      result += "&#39;";
      return;
    case '\n':
    case '\t':
      result += ' ';
      return;
    default:
      break;
  }
  const char32_t code = first_character(character).first;
  result += code < 0x20 || (code >= 0x7f && code < 0xa0) ? replacement : character;
}

constexpr const char* rules = R"(
*{box-sizing:border-box}
body{margin:0 auto;padding:24px 20px 60px;max-width:1120px;background:var(--background);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1{font-size:26px;line-height:1.25;margin:0 0 2px}
h2{font-size:19px;margin:34px 0 6px}
h3{font-size:15px;margin:18px 0 4px}
p{margin:6px 0;max-width:78ch}
.faint,figcaption,footer{color:var(--faint)}
.answer{font-size:17px}
section{break-inside:auto}
figure{margin:12px 0;padding:12px 14px;background:var(--panel);border:1px solid var(--grid);border-radius:6px;
overflow-x:auto;break-inside:avoid}
figcaption{font-size:13px;margin-top:6px}
svg{display:block;max-width:100%;height:auto}
figure:not(.whole) svg text{fill:var(--text);font:12px system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif}
figure svg text.faint{fill:var(--faint)}
figure svg text.title{font-weight:600}
.lane{fill:var(--lane)}
.grid{stroke:var(--grid);stroke-width:1;fill:none}
.axis{stroke:var(--border);stroke-width:1;fill:none}
.mark{stroke:var(--text);stroke-width:1.5;fill:none}
.step{stroke:var(--faint);stroke-width:1;stroke-dasharray:2 3;fill:none}
.limit{stroke:var(--error);stroke-width:1.5;stroke-dasharray:6 3;fill:none}
.front{stroke:var(--accent);stroke-width:1.5;fill:none}
.bound{stroke:var(--text);stroke-width:1.2;stroke-dasharray:2 3;fill:none}
.pale{fill-opacity:.5}
.dot{fill:var(--faint)}
.best{fill:var(--accent)}
.outline{fill:var(--lane);stroke:var(--faint);stroke-width:1}
.between{fill:var(--error);fill-opacity:.6}
.mark{stroke:var(--faint);stroke-width:1;fill:none}
figure.whole{background:#fff}
.scroll{overflow-x:auto}
table{border-collapse:collapse;margin:8px 0;background:var(--panel);font-size:14px}
th,td{padding:4px 10px;border-bottom:1px solid var(--grid);text-align:right;vertical-align:top;white-space:nowrap}
th{font-weight:600;border-bottom:2px solid var(--border)}
th:first-child,td:first-child,.left{text-align:left}
td.wide{text-align:left;white-space:normal}
tr.best td{font-weight:600}
tr.reference td{color:var(--faint)}
td.no{color:var(--error)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;margin:8px 0}
dt{color:var(--faint)}
dd{margin:0;overflow-wrap:anywhere}
code{font:13px ui-monospace,"DejaVu Sans Mono",Consolas,monospace;overflow-wrap:anywhere}
ul.legend{display:flex;flex-wrap:wrap;gap:2px 16px;list-style:none;margin:6px 0 2px;padding:0;font-size:13px}
ul.legend svg{display:inline-block;vertical-align:-1px;margin-right:5px}
footer{margin-top:40px;font-size:13px;border-top:1px solid var(--grid);padding-top:8px}
@media print{body{max-width:none;padding:0;background:#fff;font-size:11pt}
figure,table{border-color:#bbb;background:#fff}*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
h2{break-after:avoid}}
)";

}  // namespace

std::string html_text(std::string_view text, std::size_t most) {
  std::string result;
  std::size_t characters = 0;
  while (!text.empty()) {
    if (characters++ == most) return result.append(ellipsis);
    const std::size_t bytes = character_bytes(text);
    if (bytes == 0) {
      result += replacement;
    } else {
      append(result, text.substr(0, bytes));
    }
    text.remove_prefix(std::max<std::size_t>(1, bytes));
  }
  return result;
}

std::string shortened_to(std::string_view text, std::size_t most) {
  std::vector<std::size_t> begins;  // of characters
  for (std::size_t i = 0; i < text.size(); i += std::max<std::size_t>(1, character_bytes(text.substr(i)))) {
    begins.push_back(i);
  }
  if (begins.size() <= most || most < 3) return std::string(text);
  const std::size_t after = (most - 1) / 2, before = most - 1 - after;
  return std::string(text.substr(0, begins[before])) + std::string(ellipsis) +
         std::string(text.substr(begins[begins.size() - after]));
}

std::string class_of_slot(std::optional<StallCause> link, std::size_t slot) {
  if (link) return fmt::format("c{}{}", static_cast<std::size_t>(*link), slot == urgent_slot ? "" : " pale");
  if (slot < gap_slot) return fmt::format("p{}", slot);
  return slot == gap_slot ? "gap" : fmt::format("c{}", slot - first_stall_slot);
}

std::string label_of_slot(std::optional<StallCause> link, std::size_t slot) {
  if (link) return label_of(*link) + std::string(slot == urgent_slot ? ", waited for" : ", asked for in advance");
  if (slot < gap_slot) return label_of_op(slot);
  if (slot == gap_slot) return "host time between ops";
  return std::string("waits for ") + label_of(static_cast<StallCause>(slot - first_stall_slot));
}

std::string style_sheet() {
  std::string light, dark, fills;
  for (const auto& [name, in_light, in_dark] : colours) {
    light += fmt::format("--{}:#{:06x};", name, in_light);
    dark += fmt::format("--{}:#{:06x};", name, in_dark);
    fills += fmt::format(".{0}{{fill:var(--{0})}}", name);
  }
  return fmt::format(
      ":root{{color-scheme:light dark;{}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{}}}}}\n{}{}", light,
      dark, fills, rules);
}

std::string legend(const std::vector<LegendEntry>& entries) {
  std::string html = "<ul class=\"legend\">";
  for (const LegendEntry& entry : entries) {
    html += fmt::format(
        "<li><svg width=\"12\" height=\"12\" aria-hidden=\"true\"><rect width=\"12\" height=\"12\" class=\"{}\"/></svg>"
        "{}</li>",
        entry.colour_class, html_text(entry.label));
  }
  return html + "</ul>\n";
}

void add_fact(std::string& html, const char* label, const std::string& value) {
  if (!value.empty()) html += fmt::format("<dt>{}</dt><dd>{}</dd>\n", label, html_text(value, 2000));
}

void BoxPath::add(double x, double y, double width, double height) {
  if (width <= 0 || height <= 0) return;
  if (!boxes_.empty()) {
    Box& last = boxes_.back();
    if (last.y == y && last.height == height && last.x + last.width == x) {
      last.width += width;
      return;
    }
  }
  boxes_.push_back({x, y, width, height});
}

std::string BoxPath::svg() const {
  if (boxes_.empty()) return "";
  std::string path = "<path class=\"" + class_ + "\" d=\"";
  for (const Box& box : boxes_) {
    path += fmt::format("M{} {}h{}v{}h-{}z", coordinate(box.x), coordinate(box.y), coordinate(box.width),
                        coordinate(box.height), coordinate(box.width));
  }
  return path + "\"/>\n";
}

std::string coordinate(double value) {
  std::string text = fmt::format("{:.1f}", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text == "-0" ? "0" : text;
}

}  // namespace tencache::gui
