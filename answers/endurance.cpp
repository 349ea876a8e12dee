#include "answers/endurance.h"

#include <fmt/format.h>

#include <algorithm>

#include "answers/result.h"
#include "core/text.h"
#include "studies/generation.h"

namespace tencache {
namespace {

// Where the rating of a tier comes from.
std::string rating_of(const TierWear& wear, const WearOptions& options, const std::string& rated) {
  if (!wear.rated_by) return "not known, as the capacity is not: --tbw says it";
  if (*wear.rated_by == "machine") return "the machine's tbw";
  if (!rated.empty()) return "--tbw " + rated;
  const std::string writes = fmt::format("{} drive writes a day for {} years", options.drive_writes_per_day.value_or(1),
                                         options.warranty_years);
  return *wear.rated_by == "options" ? writes
                                     : "assumed: " + writes + ", as data-centre SSDs often are; --tbw says yours";
}

// Tiers may differ: one that the machine rates beside one that it does not.
std::string ratings_of(const std::vector<TierWear>& wears, const WearOptions& options, const std::string& rated) {
  const bool alike =
      std::ranges::all_of(wears, [&](const TierWear& other) { return other.rated_by == wears.front().rated_by; });
  if (alike) return wears.empty() ? "" : rating_of(wears.front(), options, rated);
  std::vector<std::string> texts;
  for (const TierWear& wear : wears) {
    texts.push_back(fmt::format("{} by {}", wear.tier, rating_of(wear, options, rated)));
  }
  return join(texts);
}

Cell drive_cell(double bytes) { return {drive_bytes_text(bytes), bytes, FigureUnit::drive_bytes}; }

Cell years_cell(const TierWear& wear) {
  if (wear.ssd_written_bytes_per_day <= 0) return "nothing is written";
  if (!wear.years) return "rating not known: --tbw";
  return {with_unit(*wear.years, FigureUnit::years), *wear.years, FigureUnit::years};
}

DocumentTable tiers_table(const EnduranceAnswer& answer) {
  DocumentTable table{
      "tiers", "", {"tier", "SSDs", "an iteration", "a day", "drive writes a day", "rated", "each lasts"}};
  for (const TierWear& wear : answer.tiers) {
    const auto each = [](double bytes) { return " × " + drive_bytes_text(bytes); };
    table.add({wear.tier,
               fmt::format("{}{}", wear.ssds,
                           wear.ssd_capacity_bytes ? each(static_cast<double>(*wear.ssd_capacity_bytes)) : ""),
               drive_cell(wear.ssd_written_bytes_per_iteration), drive_cell(wear.ssd_written_bytes_per_day),
               wear.drive_writes_per_day
                   ? Cell(fmt::format("{:.3g}", *wear.drive_writes_per_day), *wear.drive_writes_per_day)
                   : text_cell("-", ""),
               wear.ssd_rated_bytes ? drive_cell(*wear.ssd_rated_bytes) : text_cell("-", ""), years_cell(wear)});
  }
  return table;
}

}  // namespace

EnduranceAnswer endurance_answer(const Workload& workload, const Outcome& outcome, const WearOptions& options,
                                 const std::string& rated) {
  EnduranceAnswer answer;
  answer.policy = outcome.policy;
  answer.machine = workload.machine.name;
  answer.trace = workload.scenario.trace.file;
  answer.fits = outcome.result.fits;
  answer.duty = options.duty;
  answer.write_amplification = options.write_amplification;
  if (answer.fits) {
    answer.iteration_seconds = outcome.result.iteration_seconds();
    answer.tiers = wear_of(outcome, workload.machine, options);
    answer.rating = ratings_of(answer.tiers, options, rated);
    if (const auto generation = generation_of(*workload.trace, outcome.rank); generation && generation->tokens > 0) {
      double bytes = 0;
      for (const TierWear& wear : answer.tiers) {
        bytes += static_cast<double>(wear.ssds) * wear.ssd_written_bytes_per_iteration;
      }
      answer.written_bytes_per_million_tokens.emplace(bytes / static_cast<double>(generation->tokens) * 1e6);
    }
  } else {
    answer.reason = outcome.result.misfit;
  }
  answer.notes = notes_of(workload);
  answer.rescaled = rescaling_answer(workload);
  answer.gpu_time = gpu_time_answer(workload);
  answer.manifest = manifest_json(workload, outcome.policy, outcome.options);
  answer.timing = {workload.load_seconds, outcome.seconds};
  answer.title = fmt::format("{} on {} under {}", trace_title(workload), machine_title(workload), outcome.policy);
  for (const Tier& tier : workload.machine.tiers) {
    if (!is_parallel_file_system(tier)) continue;
    answer.left_out += tier.name + " is left out: a parallel file system, no SSD of the machine\n";
  }
  return answer;
}

Document document_of(const EnduranceAnswer& answer) {
  Document document{.kind = "endurance"};
  document.add_text((answer.title.empty()
                         ? fmt::format("{} on {} under {}", answer.trace, answer.machine, answer.policy)
                         : answer.title) +
                    "\n");
  if (!answer.fits || !answer.iteration_seconds) {
    document.add_text("  does not fit: " + printable(answer.reason.value_or("")) + "\n");
    document.add_paragraph("Does not fit: " + answer.reason.value_or(""));
    return document;
  }
  const double a_day = answer.duty * 86'400 / *answer.iteration_seconds;
  document.add_text(fmt::format("  iteration {}, {:.0f} a day\n\n", format_seconds(*answer.iteration_seconds), a_day));
  document.add_table(tiers_table(answer));
  std::string below =
      fmt::format("Written to each SSD, in the steady state. Rated for: {}.\n", answer.rating.value_or(""));
  if (answer.write_amplification != 1) {
    below += fmt::format("A day's figure with a write amplification of {}.\n", answer.write_amplification);
  }
  if (answer.written_bytes_per_million_tokens) {
    below += fmt::format("Per million generated tokens {} are written.\n",
                         drive_bytes_text(*answer.written_bytes_per_million_tokens));
  }
  document.add_text("\n" + below + answer.left_out);
  document.add_paragraph(below);
  for (const std::string& note : answer.notes) document.add_text(note + "\n");
  return document;
}

}  // namespace tencache
