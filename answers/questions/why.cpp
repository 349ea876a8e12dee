#include "answers/why.h"

#include <fmt/format.h>

#include <filesystem>

#include "answers/questions.h"
#include "studies/scenario_options.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

struct WhyQuestion {
  std::string said, conf, machine;
  GenerateSettings model;
};

// The words themselves, unless they name a file or standard input.
std::pair<std::string, std::string> text_and_name(const std::string& said) {
  std::error_code ignored;
  if (said == "-") return {read_file("/dev/stdin", longest_failure_log), "standard input"};
  if (std::filesystem::exists(said, ignored)) return {read_file(said, longest_failure_log), said};
  if (said.find_first_of(" \n") == std::string::npos) {
    throw Error("there is no file '" + said +
                "'; name a log, `-` for standard input, or give the message in quotation marks");
  }
  return {said, "the message"};
}

Answered why(const WhyQuestion& asked) {
  const auto [text, name] = text_and_name(asked.said);
  WhyAnswer answer = why_answer(explain_failures(read_failure_log(text, name), asked.conf));
  if (!asked.model.empty()) {
    if (asked.machine.empty()) throw Error("--machine is required with --model: where does it have to fit?");
    const std::unique_ptr<Question> fit = question_named("fit");
    QuestionSettings settings(asked.model.begin(), asked.model.end());
    settings.emplace_back("machine", asked.machine);
    fit->options.set(settings, "fit");
    const Answered answered = fit->ask();
    answer.fit = answered.json();
    answer.fit_text = answered.text();
  }
  return answered(std::move(answer), true, Json());
}

}  // namespace

std::unique_ptr<Question> why_question() {
  auto question = std::make_unique<Question>("why");
  question->help = {
      .summary = "Why did it run out of memory: a message or a log, explained, and what to do",
      .json = "The same as JSON (schemas/why.schema.json)",
      .footer =
          "Read are messages of PyTorch (1.0 to now, on CUDA, ROCm, XPU, MPS, NPU and the CPU), DeepSpeed, "
          "bitsandbytes, "
          "vLLM, SGLang, llama.cpp, Ollama\n"
          "and of Linux. A log may have several ranks and several tries. docs/why.md has what each cause means.\n\n"
          "Examples:\n"
          "  tencache why train.log\n"
          "  python train.py 2>&1 | tencache why -\n"
          "  tencache why 'CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.69 GiB total …'\n"
          "  tencache why train.log --model llama-3-8b --batch 4 --seq 2048 --machine rtx-4090"};
  question->schemas = [] {
    return std::vector{schema_named<WhyAnswer>(
        "why", "Why memory ran out",
        "What `tencache why --json` prints; docs/why.md explains it. Figures that a message does not have are null.")};
  };
  auto request = std::make_shared<WhyQuestion>();
  QuestionOptions& options = question->options;
  options.word("LOG", request->said, "A log file, `-` for standard input, or the message itself").needed();
  options
      .text("--conf", request->conf,
            "The allocator's settings as the program had them (PYTORCH_CUDA_ALLOC_CONF): they are not advised again")
      .with_type("SETTINGS");
  options.word("--machine,-m", request->machine, "With --model: where it has to fit");
  add_model_options(options, request->model);
  question->ask = [request] { return why(*request); };
  return question;
}

}  // namespace tencache
