// Sensitivity analyses, sweeps and traces.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "answers/line_chart.h"
#include "answers/result.h"
#include "gui/model/cost.h"
#include "gui/model/describe.h"
#include "gui/report/html.h"
#include "gui/report/page.h"
#include "traces/summary.h"

namespace tencache::gui {
namespace {

constexpr std::size_t most_workloads = 6, most_points = 2000, most_curves = 40;

// ---- Sensitivity ----------------------------------------------------------------------------------------------------

tencache::Chart small_chart_of(const SensitivityAnswer& plot) {
  const SensitivityParameter& axis = plot.axis();
  tencache::Chart chart;
  chart.x_label = axis.name;
  chart.y_label = "seconds an iteration";
  std::vector<double> values;
  for (const SensitivityLine& curve : plot.lines) {
    for (const SensitivityPoint& point : curve.points) values.push_back(point.value);
  }
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
  constexpr std::size_t ticks = 7;
  const std::size_t step = std::max<std::size_t>(1, values.size() / ticks);
  for (std::size_t i = 0; i < values.size(); i += step) chart.ticks.emplace_back(values[i], axis.text(values[i]));
  if (axis.machine_value > 0) chart.here = {axis.machine_value, "this machine"};
  ChartPanel panel;
  for (const SensitivityLine& curve : plot.lines) {
    if (panel.lines.size() == most_curves) break;
    ChartLine line;
    line.name = label_of(plot, curve);
    line.reference = is_bound(curve);
    line.points = plotted(curve.points);
    if (curve.knee && curve.knee->fits) line.mark = {curve.knee->value, curve.knee->iteration_seconds};
    panel.lines.push_back(std::move(line));
  }
  chart.panels.push_back(std::move(panel));
  return chart;
}

// ---- Sweeps ---------------------------------------------------------------------------------------------------------

std::string dollars(double usd) { return fmt::format("{:.4g} $", usd); }

constexpr double left = 80, plot_width = 860, plot_height = 300, top = 14, bottom = 50;

std::string scatter(const CostChart& chart) {
  double least = 1e300, most = 0, most_usd = 0;
  for (const CostPoint& point : chart.points) {
    least = std::min(least, point.seconds);
    most = std::max(most, point.seconds);
    most_usd = std::max(most_usd, point.usd);
  }
  if (!(most > 0) || !(most_usd > 0)) return "";
  least /= 1.1;
  most *= 1.1;
  most_usd *= 1.05;
  const auto x = [&](double seconds) { return left + std::log(seconds / least) / std::log(most / least) * plot_width; };
  const auto y = [&](double usd) { return top + plot_height * (1 - usd / most_usd); };
  std::string svg =
      fmt::format("<svg viewBox=\"0 0 {0} {1}\" width=\"{0}\" role=\"img\" aria-label=\"Cost against time\">\n",
                  coordinate(left + plot_width + 20), coordinate(top + plot_height + bottom));
  const double step = round_step(most_usd);
  for (int i = 0; i * step <= most_usd; ++i) {
    svg += fmt::format(
        "<path class=\"grid\" d=\"M{0} {1}h{2}\"/><text class=\"faint\" x=\"{3}\" y=\"{4}\" text-anchor=\"end\">{5}"
        "</text>\n",
        coordinate(left), coordinate(y(i * step)), coordinate(plot_width), coordinate(left - 8),
        coordinate(y(i * step) + 4), dollars(i * step));
  }
  for (double power = std::pow(10, std::floor(std::log10(least))); power <= most; power *= 10) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double seconds = power * factor;
      if (seconds < least || seconds > most) continue;
      svg += fmt::format(
          "<path class=\"grid\" d=\"M{0} {1}v{2}\"/><text class=\"faint\" x=\"{0}\" y=\"{3}\" "
          "text-anchor=\"middle\">{4}"
          "</text>\n",
          coordinate(x(seconds)), coordinate(top), coordinate(plot_height), coordinate(top + plot_height + 16),
          round_figure(format_seconds(seconds)));
    }
  }
  std::string front, dots;
  std::size_t drawn = 0;
  for (const CostPoint& point : chart.points) {
    if (point.on_front) {
      front +=
          fmt::format("{}{} {}", front.empty() ? "M" : "L", coordinate(x(point.seconds)), coordinate(y(point.usd)));
    } else if (drawn++ >= most_points) {
      continue;
    }
    dots += fmt::format("<circle class=\"{}\" cx=\"{}\" cy=\"{}\" r=\"{}\"", point.on_front ? "best" : "dot",
                        coordinate(x(point.seconds)), coordinate(y(point.usd)), point.on_front ? 4 : 2);
    dots += !point.on_front
                ? "/>\n"
                : fmt::format("><title>{} under {}: {}, {}</title></circle>\n", html_text(point.row->machine, 60),
                              html_text(point.row->policy, 60), format_seconds(point.seconds), dollars(point.usd));
  }
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">time of an iteration</text>\n",
                     coordinate(left + plot_width / 2), coordinate(top + plot_height + 38));
  return svg + "<path class=\"front\" d=\"" + front + "\"/>\n" + dots + "</svg>\n";
}

std::string front_table(const CostChart& chart) {
  std::string html = fmt::format(
      "<div class=\"scroll\"><table><thead><tr><th>machine</th><th class=\"left\">policy</th><th "
      "class=\"left\">memory</th>"
      "<th>iteration</th><th>{}</th><th>$ an hour</th></tr></thead><tbody>\n",
      html_text(label_of(chart.unit)));
  for (const CostPoint& point : chart.points) {
    if (!point.on_front) continue;
    const SweepRow& row = *point.row;
    std::string memory = row.gpu_memory.empty() ? "" : "GPU " + row.gpu_memory;
    if (!row.cpu_memory.empty()) memory += (memory.empty() ? "CPU " : ", CPU ") + row.cpu_memory;
    html += fmt::format(
        "<tr data-seconds=\"{}\" data-usd=\"{}\"><td>{}</td><td class=\"left\">{}</td><td "
        "class=\"left\">{}</td><td>{}</td>"
        "<td>{}</td><td>{}</td></tr>\n",
        point.seconds, point.usd, html_text(row.machine), html_text(row.policy), html_text(memory),
        format_seconds(point.seconds), dollars(point.usd),
        row.usd_per_hour ? fmt::format("{:.4g}", *row.usd_per_hour) : std::string());
  }
  return html + "</tbody></table></div>\n";
}

}  // namespace

std::string sensitivity_section(const SensitivityAnswer& plot) {
  std::string html = "<section>\n<h2>Time against " + html_text(plot.axis().name) + "</h2>\n<p>" +
                     html_text(title_of(plot)) + "</p>\n";
  html += "<figure class=\"whole\">\n" + draw_svg(small_chart_of(plot)) + "<figcaption>A ring marks " +
          knee_meaning(plot) + ".</figcaption></figure>\n";
  html +=
      "<div class=\"scroll\"><table><thead><tr><th>policy</th><th class=\"left\">enough is</th></tr></thead><tbody>\n";
  for (std::size_t i = 0; i < std::min(plot.lines.size(), most_curves); ++i) {
    const SensitivityLine& curve = plot.lines[i];
    if (is_bound(curve)) continue;
    html += "<tr><td>" + html_text(label_of(plot, curve)) + "</td><td class=\"left wide\">" +
            html_text(knee_text(plot, curve)) + "</td></tr>\n";
  }
  return html + "</tbody></table></div>\n</section>\n";
}

std::string sweep_section(const std::vector<SweepRow>& rows) {
  std::string html = "<section>\n<h2>Cost against time</h2>\n";
  const std::vector<std::string> workloads = workloads_of(rows);
  for (std::size_t i = 0; i < std::min(workloads.size(), most_workloads); ++i) {
    CostFilter filter;
    filter.workload = workloads[i];
    const CostChart chart = cost_chart(rows, filter);
    html += "<h3>" + html_text(workloads[i]) + "</h3>\n";
    if (!chart.points.empty()) {
      html += fmt::format(
          "<figure>\n{}<figcaption>Each point is a machine under a policy; {} upwards, time to the right. The "
          "line joins those that nothing beats in both.</figcaption></figure>\n",
          scatter(chart), html_text(label_of(chart.unit)));
      html += front_table(chart);
    }
    std::string rest = fmt::format("{} combinations with a price", chart.points.size());
    if (chart.misfits != 0) rest += fmt::format(", {} that do not fit", chart.misfits);
    if (chart.without_price != 0) rest += fmt::format(", {} whose price is not known", chart.without_price);
    html += "<p class=\"faint\">" + rest + ".</p>\n";
  }
  if (workloads.size() > most_workloads) {
    html +=
        fmt::format("<p class=\"faint\">{} more workloads are in the file.</p>\n", workloads.size() - most_workloads);
  }
  return html + "</section>\n";
}

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
