#include "answers/kv_cache.h"

#include <fmt/format.h>

#include "answers/line_chart.h"
#include "answers/questions.h"
#include "core/remark.h"
#include "traces/file/file_io.h"
#include "traces/file/output_files.h"
#include "traces/import/request_file.h"

namespace tencache {
namespace {

struct KvQuestion {
  std::string trace, csv, svg;
  std::vector<std::string> policies;
  std::uint64_t block_tokens = 0;
  KvRequest request;
};

Answered kv_cache(const KvQuestion& asked, const Json& command) {
  if (asked.trace.empty()) throw Error("a trace of blocks is missing, or `generate`; see tencache kv-cache --help");
  check_output("--csv", asked.csv, {asked.trace});
  check_output("--svg", asked.svg, {asked.trace, asked.csv});
  KvRequest request = asked.request;
  for (const std::string& name : asked.policies) request.policies.push_back(&kv_policy(name));
  if (request.policies.empty()) {
    for (const KvPolicy& policy : kv_policies()) request.policies.push_back(&policy);
  }
  if (request.sizes == decltype(request.sizes){}) request.sizes[0] = {"1%", "2%", "5%", "10%", "20%", "50%", "100%"};

  ProgressLine progress;
  progress.show("reading " + asked.trace);
  const BlockTrace trace = read_block_trace(asked.trace, static_cast<std::uint32_t>(asked.block_tokens));
  progress.show("simulating");
  KvCacheAnswer answer = kv_cache_answer(trace, study_kv_cache(trace, request));
  if (!asked.csv.empty()) write_file(asked.csv, table_csv(kv_cache_table(answer)));
  if (!asked.svg.empty()) write_file(asked.svg, draw_svg(kv_cache_chart(answer)));
  return answered(std::move(answer), true, command);
}

struct DocumentsQuestion {
  std::string output, order = "shuffle";
  DocumentRounds rounds;
};

Answered generate_kv_trace(DocumentsQuestion asked) {
  asked.rounds.shuffled = asked.order == "shuffle";
  check_output("-o", asked.output, {});
  write_document_rounds(asked.rounds, asked.output);
  const BlockTrace trace = read_block_trace(asked.output);
  return answered(
      KvTraceAnswer{asked.output, sha256_of_file(asked.output), trace.requests(),
                    trace.requests() * asked.rounds.tokens, trace.blocks().size(), trace.different_blocks()},
      true, Json());
}

}  // namespace

std::unique_ptr<Question> kv_cache_question() {
  auto question = std::make_unique<Question>("kv-cache");
  question->help = {
      .summary = "Caches of KV blocks across requests: hits, bytes moved, prefill saved, fetch or recompute",
      .json = "The same as JSON (schemas/kv-cache.schema.json)",
      .footer =
          "Requests run one after the other, without the engine: docs/kv-cache.md has the rules, the format of the "
          "trace and what each column means.\n\n"
          "Examples:\n"
          "  tencache kv-cache generate --documents 32 -o documents.jsonl\n"
          "  tencache kv-cache documents.jsonl --gpu-cache 20GiB --cpu-cache 80GiB --warm-up 32\n"
          "  tencache kv-cache conversation_trace.jsonl --svg hits.svg\n"
          "  tencache kv-cache conversation_trace.jsonl -p vllm --gpu-cache 40GiB --cpu-cache 200GiB --cpu-cache 1TiB "
          "--ssd-cache 3TiB --json"};
  question->repeatable = true;
  question->schemas = [] {
    return std::vector{
        schema_named<KvCacheAnswer>("kv-cache", "Caches of KV blocks",
                                    "What `tencache kv-cache --json` prints; docs/kv-cache.md explains it. Figures "
                                    "beside `trace` are those of the first run. Rates are shares of blocks, or of "
                                    "tokens, of the requests that count."),
        schema_named<KvTraceAnswer>("kv-cache-generate", "A generated trace of blocks",
                                    "What `tencache kv-cache generate --json` prints.")};
  };
  auto asked = std::make_shared<KvQuestion>();
  QuestionOptions& options = question->options;
  options.text("TRACE", asked->trace, "A trace of requests with blocks (docs/kv-cache.md), or `generate`");
  std::string names;
  for (const KvPolicy& policy : kv_policies()) names += (names.empty() ? "" : ", ") + std::string(policy.name);
  options.list("--policy,-p", asked->policies, names + "; any number of times (default: all)").with_type("NAME");
  ByKvTier<std::vector<std::string>>& sizes = asked->request.sizes;
  options
      .list("--gpu-cache", sizes[0],
            "GPU memory for blocks: a size, a share of the different blocks such as 10%, or unlimited; any number of "
            "times (default where no other tier has a cache: 1% to 100%)")
      .with_type("SIZE");
  options.list("--cpu-cache", sizes[1], "The same of CPU memory, behind each of the GPU's sizes (default: none)")
      .with_type("SIZE");
  options.list("--ssd-cache", sizes[2], "The same of SSDs (default: none)").with_type("SIZE");
  options.whole("--warm-up", asked->request.warm_up, 0, 1'000'000'000,
                "So many requests fill the caches and do not count");
  options.whole("--block-tokens", asked->block_tokens, 0, most_block_tokens,
                "Tokens of a block; 0: 512, of requests with a chat_id 16");
  options.text("--model", asked->request.model, "Model whose keys, values and prefill these are");
  options
      .word("--machine,-m", asked->request.machine.name,
            "Machine: its GPU computes, its links fetch (default: p5.4xlarge)")
      .with_type("MACHINE");
  options.word("--link", asked->request.machine.link,
               "Between GPU and CPU memory: pcie4x8, or a bandwidth such as 12GB/s");
  options.word("--nvme", asked->request.machine.nvme,
               "What the SSDs reach together: 7GB/s, or 7GB/s,5GB/s to read and write");
  options.output("--csv", asked->csv, "The table as CSV");
  options.output("--svg", asked->svg, "Hit rates against capacity as a picture");
  question->ask = [asked, question = question.get()] { return kv_cache(*asked, command_json(*question)); };
  return question;
}

std::unique_ptr<Question> kv_cache_generate_question() {
  auto question = std::make_unique<Question>("kv-cache generate");
  question->help = {
      .summary = "Make a trace of long documents that are asked about again and again",
      .json = "The same as JSON (schemas/kv-cache-generate.schema.json)",
      .footer =
          "The workload of vLLM's benchmark_long_document_qa: each round asks about each document once.\n\n"
          "Examples:\n"
          "  tencache kv-cache generate --documents 32 --tokens 20010 --rounds 2 -o documents.jsonl"};
  auto asked = std::make_shared<DocumentsQuestion>();
  QuestionOptions& options = question->options;
  options.output("--output,-o", asked->output, "File to write (.jsonl, .jsonl.zst)").needed();
  options.whole("--documents", asked->rounds.documents, 1, 1'000'000, "Documents");
  options.whole("--tokens", asked->rounds.tokens, 1, longest_request, "Tokens of a document");
  options.whole("--rounds", asked->rounds.rounds, 1, 1'000'000, "Rounds");
  options.text("--order", asked->order, "shuffle: each round in an order of its own; same: in the same order")
      .one_of({"shuffle", "same"});
  options.seed("--seed", asked->rounds.seed, "Seed of the orders");
  question->ask = [asked] { return generate_kv_trace(*asked); };
  return question;
}

}  // namespace tencache
