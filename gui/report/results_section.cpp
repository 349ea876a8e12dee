// Results: what was run, the table of `compare`, bars of time by cause.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "answers/intervals.h"
#include "answers/result_file.h"
#include "gui/model/bar_parts.h"
#include "gui/model/describe.h"
#include "gui/report/html.h"
#include "gui/report/page.h"

namespace tencache::gui {
namespace {

constexpr double label_width = 180, bars_width = 660, figure_width = 200, bar_height = 20, bar_step = 28;
constexpr double least_part_width = 1.5;

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.is_null() ? std::string() : value.dump();
}

std::string file_name(const std::string& path) { return std::filesystem::path(path).filename().string(); }

std::string main_wait(const ComparisonRow& row) {
  const StallSeconds& stalls = row.parts.stall_seconds;
  const StallCause worst = *std::ranges::max_element(all_causes, {}, [&](StallCause cause) { return stalls[cause]; });
  if (!(stalls[worst] > 0) || !(row.seconds > 0)) return "";
  return fmt::format("{} {:.0f} %", label_of(worst), 100 * stalls[worst] / row.seconds);
}

const ComparisonRow* bound_of(const std::vector<ComparisonRow>& rows) {
  const auto found = std::ranges::find_if(rows, [](const ComparisonRow& row) { return row.bound && row.seconds > 0; });
  return found == rows.end() ? nullptr : &*found;
}

std::string name_of(const ComparisonRow& row) { return row.is_measured() ? row.policy + " (measured)" : row.policy; }

// ---- What was run ---------------------------------------------------------------------------------------------------

std::string price_words(const std::optional<ManifestPrice>& price) {
  if (!price) return "not known, so no cost is stated";
  std::string words = fmt::format("{:.4g} {} an hour", price->per_hour, price->currency);
  if (!price->source.empty()) {
    words += " (" + price->source + (price->retrieved.empty() ? "" : ", " + price->retrieved) + ")";
  }
  return words;
}

// Options of the command that change what is asked, as one would type them.
std::string options_words(const Json& run) {
  std::string words;
  for (const char* option :
       {"gpu_memory", "cpu_memory", "iterations", "assume_gpu", "scale_bytes", "scale_time", "samples"}) {
    const Json& value = member(run, option);
    if (value.is_null() || value == "1") continue;
    std::string name = option;
    std::ranges::replace(name, '_', '-');
    words += fmt::format("{}--{} {}", words.empty() ? "" : " ", name, text_of(value));
  }
  for (const Json& limit : member(run, "limits")) words += (words.empty() ? "--limit " : " --limit ") + text_of(limit);
  if (member(run, "no_rescale") == true) words += words.empty() ? "--no-rescale" : " --no-rescale";
  return words;
}

// Those that make another machine of it, for headings.
std::string title_options(const ManifestRun& run) {
  std::string words;
  if (run.gpu_memory) words += ", GPU memory " + *run.gpu_memory;
  if (run.cpu_memory) words += ", CPU memory " + *run.cpu_memory;
  for (const std::string& limit : run.limits.value_or(std::vector<std::string>())) words += ", " + limit;
  return words;
}

std::string what_was_run(const ResultGroup& group) {
  const Manifest& manifest = group.rows.front().manifest;
  const auto short_hash = [](const std::string& hash) {
    return hash.empty() ? std::string() : ", SHA-256 " + hash.substr(0, 12) + "…";
  };
  std::string html = "<dl>\n";
  add_fact(html, "trace", group.rows.front().trace + short_hash(manifest.hashes.trace.value_or("")));
  add_fact(html, "made by", group.rows.front().manifest.run.recorded_by);
  add_fact(html, "machine", group.rows.front().machine + short_hash(manifest.hashes.machine));
  add_fact(html, "changed by", options_words(to_json_of(manifest.run)));
  add_fact(html, "price", price_words(manifest.price));
  add_fact(html, "note", fmt::format("{}", fmt::join(group.rows.front().notes, "; ")));
  std::vector<std::string> files;
  for (const ComparisonRow& row : group.rows) {
    if (std::ranges::find(files, row.file) == files.end()) files.push_back(row.file);
  }
  std::string from, again;
  for (const std::string& file : files) {
    from += (from.empty() ? "" : ", ") + file_name(file);
    again += (again.empty() ? "" : "; ") + ("tencache reproduce " + file_name(file));
  }
  add_fact(html, "tencache", manifest.version);
  add_fact(html, "results from", from);
  html += fmt::format("<dt>to have it again</dt><dd><code>{}</code></dd>\n", html_text(again, 2000));
  return html + "</dl>\n";
}

// ---- Table ----------------------------------------------------------------------------------------------------------

// The interval has a column of its own.
std::string how_sure(const ComparisonRow& row) {
  if (!row.interval) return row.belief();
  return row.validity.substr(0, row.validity.find(" ("));
}

bool is_generation(const ComparisonRow& row) { return row.generation.has_value(); }

std::string table_row(const ComparisonRow& row, bool best, bool intervals, bool generations) {
  const std::size_t columns = 7 + (intervals ? 1 : 0) + (generations ? 3 : 0);
  std::string html = fmt::format("<tr{} data-policy=\"{}\"",
                                 best                ? " class=\"best\""
                                 : is_reference(row) ? " class=\"reference\""
                                                     : "",
                                 html_text(row.policy));
  if (!row.fits) {
    return html + fmt::format("><td>{}</td><td class=\"no wide\" colspan=\"{}\">does not fit: {}</td></tr>\n",
                              html_text(name_of(row)), columns - 1, html_text(row.reason));
  }
  html += fmt::format(" data-seconds=\"{}\"><td>{}</td><td>{}</td>", row.seconds, html_text(name_of(row)),
                      format_seconds(row.seconds));
  if (intervals) {
    html += "<td>";
    if (row.interval) {
      Interval interval;
      interval.low = row.interval->first;
      interval.high = row.interval->second;
      html += (row.ties_with_best.value_or(false) ? "= " : "") + format_interval(interval);
    }
    html += "</td>";
  }
  if (generations) {
    const GenerationAnswer generation = row.generation.value_or(GenerationAnswer());
    const auto seconds = [](const std::optional<double>& value) { return value ? format_seconds(*value) : ""; };
    html +=
        fmt::format("<td>{}</td><td>{}</td><td>{}</td>",
                    is_generation(row) && row.tokens_per_second ? fmt::format("{:.4g}", *row.tokens_per_second) : "",
                    seconds(generation.time_to_first_token_seconds), seconds(generation.time_per_output_token_seconds));
  }
  html += "<td>" + (row.ideal_seconds > 0 ? fmt::format("{:.3f}", row.slowdown()) : std::string()) + "</td><td>" +
          (row.hits.accesses && !row.bound ? fmt::format("{:.1f} %", 100 * *row.hits.accesses) : std::string()) +
          "</td><td>" + (row.bound ? std::string() : moved_text(row.moved_bytes())) + "</td>";
  html += fmt::format("<td class=\"left\">{}</td>", html_text(row.bound ? row.bound_term : main_wait(row)));
  return html + fmt::format("<td class=\"left wide\">{}</td></tr>\n", html_text(how_sure(row)));
}

std::string table(const ResultGroup& group) {
  const bool intervals =
      std::ranges::any_of(group.rows, [](const ComparisonRow& row) { return row.interval.has_value(); });
  const bool generations = std::ranges::any_of(group.rows, is_generation);
  const ComparisonRow* best = best_of(group.rows);
  std::string html = fmt::format(
      "<div class=\"scroll\"><table>\n<thead><tr><th>policy</th><th>iteration</th>{}{}<th>× ideal</th><th>hits</th>"
      "<th>moved</th><th class=\"left\">waits most for</th><th class=\"left\">to be "
      "believed</th></tr></thead>\n<tbody>\n",
      intervals ? "<th>interval</th>" : "",
      generations ? "<th>tokens/s</th><th>first token</th><th>per token</th>" : "");
  for (const ComparisonRow& row : group.rows) html += table_row(row, best == &row, intervals, generations);
  html += "</tbody></table></div>\n";
  html +=
      "<p class=\"faint\">Of one steady iteration. × ideal: against unlimited GPU memory. Hits: accesses that found "
      "their tensor in GPU memory. Moved: over all links.";
  if (generations) html += " First token: time to it, mean over passes; per token: time for each one after it.";
  if (intervals) {
    html +=
        " Interval: 90 % of samples of the machine's figures within what their sources allow; = ties with the best.";
  }
  return html + "</p>\n";
}

// ---- Bars -----------------------------------------------------------------------------------------------------------

struct Part {
  std::string colour_class, label;
  double seconds;
};

// In the order in which they are drawn.
std::vector<Part> parts_of(const ComparisonRow& row) {
  std::vector<Part> parts{{"busy", "GPU computes", row.parts.compute_seconds},
                          {"gap", label_of_slot({}, gap_slot), row.parts.gap_seconds}};
  for (const StallCause cause : all_causes) {
    const std::size_t slot = first_stall_slot + static_cast<std::size_t>(cause);
    parts.push_back({class_of_slot({}, slot), label_of_slot({}, slot), row.parts.stall_seconds[cause]});
  }
  return parts;
}

std::string axis(double longest, double height) {
  const double step = round_step(longest);
  std::string svg;
  for (int i = 0; i * step <= longest * 1.0001; ++i) {
    const double seconds = i * step, x = label_width + seconds / longest * bars_width;
    svg += fmt::format(
        "<path class=\"grid\" d=\"M{0} 0V{1}\"/><text class=\"faint\" x=\"{0}\" y=\"{2}\" "
        "text-anchor=\"middle\">{3}</text>\n",
        coordinate(x), coordinate(height), coordinate(height + 15),
        i == 0 ? "0" : time_text(seconds * 1e9, step * 1e9));
  }
  return svg;
}

std::string bar(const ComparisonRow& row, double top, double longest) {
  const double scale = bars_width / longest;
  const bool cut = row.seconds > longest * 1.0001;
  std::string svg = fmt::format("<g data-policy=\"{}\"><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n",
                                html_text(row.policy), coordinate(label_width - 8), coordinate(top + 14.5),
                                html_text(name_of(row), 26));
  const std::vector<Part> parts = parts_of(row);
  std::vector<double> values;
  for (const Part& part : parts) values.push_back(part.seconds);
  const std::vector<double> widths = part_widths(values, scale, bars_width, least_part_width);
  double at = label_width;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!(widths[i] > 0)) continue;
    svg += fmt::format(
        "<rect class=\"{}\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" data-seconds=\"{}\"><title>{}: {}"
        "</title></rect>\n",
        parts[i].colour_class, at, coordinate(top), widths[i], coordinate(bar_height), parts[i].seconds,
        html_text(parts[i].label), format_seconds(parts[i].seconds));
    at += widths[i];
  }
  if (row.interval && std::min(row.interval->second, longest) > row.interval->first) {
    const double y = top + bar_height / 2, low = label_width + row.interval->first * scale,
                 high = label_width + std::min(row.interval->second, longest) * scale;
    const bool beyond = row.interval->second > longest * 1.0001;  // then it ends in an arrow
    svg += fmt::format("<path class=\"mark\" d=\"M{0} {1}H{2}M{0} {3}v8M{4} {3}{5}\"/>\n", coordinate(low),
                       coordinate(y), coordinate(high), coordinate(y - 4), coordinate(beyond ? high - 4 : high),
                       beyond ? "l4 4l-4 4" : "v8");
  }
  const double end =
      label_width + std::min(std::max(row.seconds, row.interval ? row.interval->second : 0.0), longest) * scale;
  svg += fmt::format("<text x=\"{}\" y=\"{}\">{}{}</text></g>\n", coordinate(end + 7), coordinate(top + 14.5),
                     cut ? "▸ " : "", format_seconds(row.seconds));
  return svg;
}

std::string bars(const ResultGroup& group) {
  std::vector<const ComparisonRow*> rows;
  for (const ComparisonRow& row : group.rows) {
    if (row.fits && !row.bound && row.seconds > 0) rows.push_back(&row);
  }
  if (rows.empty()) return "";
  const ComparisonRow* bound = bound_of(group.rows);
  const double longest = longest_bar_seconds(group.rows);
  const double height = bar_step * static_cast<double>(rows.size()) + 6;
  const double width = label_width + bars_width + figure_width;
  std::string svg = fmt::format(
      "<svg viewBox=\"0 -18 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\" aria-label=\"Time of an "
      "iteration by cause\">\n",
      coordinate(width), coordinate(height + 40));
  svg += axis(longest, height);
  std::vector<LegendEntry> entries;
  for (const Part& part : parts_of(*rows.front())) {
    const bool any = std::ranges::any_of(rows, [&](const ComparisonRow* row) {
      const auto parts = parts_of(*row);
      return std::ranges::any_of(parts,
                                 [&](const Part& other) { return other.label == part.label && other.seconds > 0; });
    });
    if (any) entries.push_back({part.colour_class, part.label});
  }
  for (std::size_t i = 0; i < rows.size(); ++i) svg += bar(*rows[i], bar_step * static_cast<double>(i) + 6, longest);
  if (bound != nullptr) {
    const std::string x = coordinate(label_width + bound->seconds / longest * bars_width);
    svg += fmt::format(
        "<path class=\"bound\" d=\"M{0} 0V{1}\"/><text x=\"{0}\" y=\"-5\" text-anchor=\"middle\" "
        "data-seconds=\"{2}\">bound {3}</text>\n",
        x, coordinate(height), bound->seconds, format_seconds(bound->seconds));
  }
  const bool whiskers = std::ranges::any_of(rows, [](const ComparisonRow* row) { return row->interval.has_value(); });
  return "<figure>\n" + legend(entries) + svg +
         "</svg>\n<figcaption>Where the time of an iteration goes: what the GPU does, or "
         "waits for." +
         (bound != nullptr ? " No policy can be faster than the bound." : "") +
         (whiskers ? " Whiskers: the interval." : "") + "</figcaption>\n</figure>\n";
}

}  // namespace

std::vector<ResultGroup> result_groups(const std::vector<DocumentPointer>& documents) {
  std::vector<ResultGroup> groups;
  std::vector<std::string> keys;
  for (ComparisonRow& row : comparison_rows(documents)) {
    const std::string key = row.trace + "\n" + row.machine + "\n" + row.altered;
    const auto found = std::ranges::find(keys, key);
    if (found == keys.end()) {
      const std::string options = title_options(row.manifest.run);
      groups.push_back({file_name(row.trace) + " on " + row.machine + options, {}});
      keys.push_back(key);
      groups.back().rows.push_back(std::move(row));
    } else {
      groups[static_cast<std::size_t>(found - keys.begin())].rows.push_back(std::move(row));
    }
  }
  return groups;
}

std::string answer(const ResultGroup& group) {
  const ComparisonRow* best = best_of(group.rows);
  if (group.rows.size() == 1 && best != nullptr) {
    return fmt::format("An iteration takes {} under {}.", format_seconds(best->seconds), name_of(*best));
  }
  if (best == nullptr) return "It fits under none of the policies.";
  std::string text = fmt::format("{} is the fastest: {} an iteration", name_of(*best), format_seconds(best->seconds));
  if (best->ideal_seconds > 0)
    text += fmt::format(", {:.2f} times the time with unlimited GPU memory", best->slowdown());
  if (const ComparisonRow* bound = bound_of(group.rows)) {
    text += fmt::format("; no policy can take less than {}", format_seconds(bound->seconds));
  }
  text += ".";
  std::string ties;
  std::size_t misfits = 0;
  for (const ComparisonRow& row : group.rows) {
    if (row.ties_with_best.value_or(false) && &row != best) ties += (ties.empty() ? "" : ", ") + row.policy;
    misfits += row.fits ? 0 : 1;
  }
  if (!ties.empty()) text += " Within the machine's uncertainty it ties with " + ties + ".";
  if (misfits != 0) text += fmt::format(" Under {} of the policies it does not fit.", misfits);
  return text;
}

std::string results_section(const ResultGroup& group, const std::string& heading) {
  return "<section>\n<h2>" + html_text(heading) + "</h2>\n<p class=\"answer\">" + html_text(answer(group)) + "</p>\n" +
         bars(group) + table(group) + "<h3>What was run</h3>\n" + what_was_run(group) + "</section>\n";
}

}  // namespace tencache::gui
