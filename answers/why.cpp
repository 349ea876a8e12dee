#include "answers/why.h"

#include <fmt/format.h>

#include "core/text.h"

namespace tencache {
namespace {

constexpr std::size_t failures_shown = 24;

std::optional<Bytes> bytes_of(const std::optional<PrintedBytes>& figure) {
  return figure ? std::optional(figure->bytes) : std::nullopt;
}

WhyFailure failure_answer(const Failure& failure, const FailureCause& cause) {
  WhyFailure answer;
  answer.kind = cause.kind;
  answer.platform = failure.platform;
  answer.software = failure.software;
  if (!failure.rank.empty()) answer.rank = failure.rank;
  answer.gpu = failure.gpu;
  answer.line = failure.place.line;
  answer.times = failure.place.times;
  answer.job = failure.place.job;
  answer.uncertain = cause.uncertain;
  answer.headline = cause.headline;
  answer.words = printable(failure.words);
  answer.tried_bytes = bytes_of(failure.tried);
  answer.total_bytes = bytes_of(failure.total);
  answer.free_bytes = bytes_of(failure.free);
  answer.allowed_bytes = bytes_of(failure.allowed);
  answer.allocated_bytes = bytes_of(failure.allocated);
  answer.unallocated_bytes = bytes_of(failure.unallocated);
  answer.private_pool_bytes = bytes_of(failure.private_pools);
  answer.process_bytes = bytes_of(failure.process);
  answer.beside_pytorch_bytes = cause.beside_pytorch;
  answer.other_bytes = cause.of_others;
  answer.missing_bytes = cause.missing;
  for (const OtherProcess& process : failure.processes) answer.processes.push_back({process.id, process.bytes});
  answer.explanation = cause.sentences;
  answer.actions = cause.actions;
  return answer;
}

const char* label_of(const std::optional<FailureKind>& kind) {
  if (!kind) return "Not told apart";
  switch (*kind) {
    case FailureKind::too_large:
      return "Too large";
    case FailureKind::others:
      return "Other programs";
    case FailureKind::fragmentation:
      return "Fragmentation";
    case FailureKind::limit:
      return "A limit";
    case FailureKind::host:
      return "CPU memory";
  }
  return "";
}

// "PyTorch on CUDA".
std::string setting_of(const WhyAnswer& answer) {
  static constexpr const char* platforms[] = {"CUDA",         "ROCm",   "Intel's XPU", "Apple's MPS",
                                              "Ascend's NPU", "Vulkan", "the CPU",     "another device"};
  static constexpr const char* programs[] = {"PyTorch", "DeepSpeed", "bitsandbytes", "Transformers", "vLLM",
                                             "SGLang",  "llama.cpp", "Ollama",       "NumPy",        "the system"};
  return fmt::format("{} on {}", programs[static_cast<std::size_t>(answer.software)],
                     platforms[static_cast<std::size_t>(answer.platform)]);
}

DocumentTable figures_of(const WhyFailure& failure) {
  DocumentTable figures{"figures", "", {"", ""}};
  const auto add = [&](const char* name, const std::optional<Bytes>& bytes) {
    if (bytes) figures.add({name, bytes_cell(*bytes)});
  };
  add("tried to allocate", failure.tried_bytes);
  add("allocated: blocks that tensors have", failure.allocated_bytes);
  add("of these in private pools: of CUDA graphs", failure.private_pool_bytes);
  add("reserved but unallocated: free blocks of PyTorch's", failure.unallocated_bytes);
  add("of this process beside PyTorch: the context, libraries", failure.beside_pytorch_bytes);
  add("of others", failure.other_bytes);
  add("free on the device", failure.free_bytes);
  add("allowed", failure.allowed_bytes);
  add("in all", failure.total_bytes);
  return figures;
}

DocumentTable failures_of(const WhyAnswer& answer) {
  DocumentTable table{
      "failures", "What the log has", {"line", "rank", "GPU", "cause", "tried", "free", "unallocated", "times"}};
  const bool several_jobs = answer.failures.back().job > 0;
  if (several_jobs) table.columns.emplace_back("job");
  const auto bytes = [](const std::optional<Bytes>& figure) { return figure ? bytes_cell(*figure) : Cell("-"); };
  for (const WhyFailure& failure : answer.failures) {
    table.add({count_cell(failure.line), failure.rank ? printable(*failure.rank) : std::string("-"),
               failure.gpu ? std::to_string(*failure.gpu) : std::string("-"),
               failure.kind ? std::string(to_string(*failure.kind)) : std::string("-"), bytes(failure.tried_bytes),
               bytes(failure.free_bytes), bytes(failure.unallocated_bytes), count_cell(failure.times)});
    if (several_jobs) table.rows.back().cells.push_back(count_cell(failure.job + 1));
    if (table.rows.size() == failures_shown) break;
  }
  return table;
}

}  // namespace

WhyAnswer why_answer(const WhyAnswered& why) {
  WhyAnswer answer;
  for (std::size_t i = 0; i < why.causes.size(); ++i) {
    answer.failures.push_back(failure_answer(why.log.failures[i], why.causes[i]));
  }
  const WhyFailure& verdict = answer.failures.at(why.verdict);
  answer.verdict = why.verdict;
  answer.kind = verdict.kind;
  answer.platform = verdict.platform;
  answer.software = verdict.software;
  answer.headline = fmt::format("{}: {}.", label_of(verdict.kind), verdict.headline);
  answer.explanation = verdict.explanation;
  answer.actions = verdict.actions;
  return answer;
}

Document document_of(const WhyAnswer& answer) {
  Document document{.kind = "why", .title = "Out of memory, explained", .blocks = {}};
  std::string text = answer.headline + "\n";
  document.add_paragraph(answer.headline);
  for (const std::string& sentence : answer.explanation) {
    text += sentence + "\n";
    document.add_paragraph(sentence);
  }
  text += fmt::format("\nWhat to do ({}):\n", setting_of(answer));
  for (std::size_t i = 0; i < answer.actions.size(); ++i) text += fmt::format("  {}. {}\n", i + 1, answer.actions[i]);
  document.add_text(text + "\n");
  for (const std::string& action : answer.actions) document.add_paragraph("Next: " + action);
  if (answer.failures.size() > 1) {
    document.add_text("What the log has\n\n");
    document.add_table(failures_of(answer));
    if (answer.failures.size() > failures_shown) {
      document.add_text(fmt::format("and {} more\n", answer.failures.size() - failures_shown));
    }
    document.add_text(fmt::format("\nThe figures of line {}\n", answer.failures[answer.verdict].line));
  }
  DocumentTable figures = figures_of(answer.failures[answer.verdict]);
  if (!figures.rows.empty()) document.add_table(std::move(figures));
  if (!answer.fit_text.empty()) document.add_text("\nWhat `tencache fit` says of that model\n\n" + answer.fit_text);
  return document;
}

}  // namespace tencache
