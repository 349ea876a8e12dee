#include "answers/fragment.h"

#include <fmt/format.h>

#include "answers/questions.h"
#include "core/remark.h"
#include "studies/allocation_source.h"
#include "studies/fragment.h"
#include "traces/file/allocation_file.h"
#include "traces/file/output_files.h"

namespace tencache {
namespace {

constexpr std::uint32_t map_columns = 240, map_rows = 96;

struct FragmentQuestion {
  AllocationSource source;
  std::vector<std::string> allocators;
  std::string conf, limit, gradients = "freed", gpu, output;
  std::uint64_t rounds = 3;
  bool no_advice = false;
};

Answered fragment(const FragmentQuestion& asked, const GivenTraces& given, const Json& command) {
  if (asked.source.files.empty()) throw Error("name a file with allocations; a message is explained by `tencache why`");
  check_output("-o", asked.output, asked.source.files);
  std::vector<FragmentAllocator> allocators;
  for (const std::string& name : asked.allocators.empty() ? usual_fragment_allocators() : asked.allocators) {
    allocators.push_back(fragment_allocator(name));
  }
  if (!asked.conf.empty()) allocators.insert(allocators.begin(), fragment_allocator(asked.conf));
  std::optional<Bytes> limit;
  if (!asked.limit.empty()) limit = parse_capacity(asked.limit);
  AllocationSource source = asked.source;
  source.given = given;
  source.traces.rounds = static_cast<unsigned>(asked.rounds);
  source.traces.gradients_kept = asked.gradients == "kept";
  if (!asked.gpu.empty()) source.gpu = std::stoll(asked.gpu);

  ProgressLine progress;
  const LoadedAllocations loaded = load_allocations(source, [&](std::uint64_t consumed, std::uint64_t total) {
    if (total > 0) progress.show(fmt::format("reading, {} %", 100 * consumed / total));
  });
  if (!asked.output.empty()) write_allocations(loaded.allocations, asked.output);
  const Bytes room = limit.value_or(no_fragment_limit);
  AddressMap map;
  map.columns = map_columns;
  map.rows = map_rows;
  std::vector<FragmentRun> runs;
  for (const FragmentAllocator& allocator : allocators) {
    progress.show(fmt::format("{} of {}: {}", runs.size() + 1, allocators.size(), allocator.name));
    runs.push_back(run_fragment(loaded.allocations, allocator, room, runs.empty() ? &map : nullptr));
  }
  std::optional<FragmentAdvice> advice;
  if (!asked.no_advice) {
    progress.show("trying settings");
    advice = advise_on_fragments(loaded.allocations, room);
  }
  FragmentAnswer answer = fragment_answer(loaded, runs, advice, limit, map);
  const bool fits = answer.fits;
  return answered(std::move(answer), fits, command);
}

}  // namespace

std::unique_ptr<Question> fragment_question() {
  auto question = std::make_unique<Question>("fragment");
  question->help = {
      .summary = "Why memory ran out: what allocators reserve for a program, and what of it nobody asked for",
      .json = "The same as JSON (schemas/fragment.schema.json)",
      .footer =
          "PyTorch's caching allocator is replayed exactly, others beside it: GMLake stitches free blocks, STWeaver "
          "and `planned` place all blocks before\n"
          "the run, `exact` is what is asked for. No policy runs: all is on the GPU. docs/fragment.md says what each "
          "column means. Exit code 1: the first\n"
          "allocator runs out of memory.\n\n"
          "Examples:\n"
          "  tencache fragment step.trace.jsonl.zst --limit 22GiB\n"
          "  tencache fragment short.trace.jsonl.zst long.trace.jsonl.zst -a default -a expandable -a "
          "max_split_size_mb:128\n"
          "  tencache fragment profile.json.gz"};
  question->repeatable = true;
  question->schemas = [] {
    return std::vector{schema_named<FragmentAnswer>(
        "fragment", "What allocators reserve for a program",
        "What `tencache fragment --json` prints; docs/fragment.md explains it. Bytes are the most over all "
        "events; rounding, remainders, holes and idle segments are those when most was reserved, or when "
        "memory ran out. Iteration 0 is what comes before the first.")};
  };
  auto request = std::make_shared<FragmentQuestion>();
  QuestionOptions& options = question->options;
  options.list("FILES", request->source.files,
               "Traces (several take turns as iterations); or one recording of torch.profiler with profile_memory, "
               ".alloc.jsonl file, or log of STAlloc's");
  options
      .list("--allocator,-a", request->allocators,
            "default, expandable, gmlake, stweaver, planned, exact, or settings such as max_split_size_mb:128; any "
            "number of times (default: a table of all)")
      .with_type("NAME");
  options.text("--conf", request->conf, "PYTORCH_CUDA_ALLOC_CONF as the program has it: the first row")
      .with_type("SETTINGS");
  options.word("--limit", request->limit, "Memory that the allocator may reserve, such as 22GiB (default: no limit)")
      .with_type("SIZE");
  options.whole("--iterations", request->rounds, 1, 10'000, "Of traces: how often they run, all in turn");
  options.text("--gradients", request->gradients, "Of traces: freed after the step, or kept until the next one begins")
      .one_of({"freed", "kept"});
  options.text("--gpu", request->gpu, "Of a recording of several GPUs: its index (default: that which allocates most)")
      .one_of({"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15"})
      .with_type("INDEX");
  options.flag("--no-advice", request->no_advice, "Do not try settings that are no row");
  options.output("--events,-o", request->output, "Write the allocations to this file (.alloc.jsonl, .alloc.jsonl.zst)");
  question->ask = [request, question = question.get()] {
    return fragment(*request, *question->options.traces(), command_json(*question));
  };
  return question;
}

}  // namespace tencache
