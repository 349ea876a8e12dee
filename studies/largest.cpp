#include "studies/largest.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "configs/generate_settings.h"
#include "core/error.h"
#include "policies/registry.h"
#include "studies/bisection.h"
#include "studies/fit_system.h"
#include "studies/minimum.h"
#include "traces/generate/generate.h"

namespace tencache {
namespace {

constexpr std::uint64_t most_requests = 1 << 20, most_prompt = 1 << 24, most_ops = 2'000'000;

// How the workload's trace was generated; empty: it was not.
GenerateSettings generated_by(const Workload& workload) {
  const GenerateSettings& asked = workload.scenario.trace.generate;
  if (!asked.empty()) return asked;
  const GenerateSettings* const made_with = generate_settings_of(workload.trace->header);
  return made_with != nullptr ? *made_with : GenerateSettings();
}

void set_option(GenerateSettings& settings, const std::string& name, std::string text) {
  const auto at = std::ranges::find(settings, name, &GenerateSettings::value_type::first);
  at == settings.end() ? settings.emplace_back(name, std::move(text)), void() : void(at->second = std::move(text));
}

// The workload with another value on one axis.
class Growth {
 public:
  Growth(const Workload& workload, GenerationAxis axis)
      : workload_(workload),
        axis_(axis),
        settings_(generated_by(workload)),
        options_(parse_generate_settings(settings_)) {}

  std::uint64_t asked() const {
    return axis_ == GenerationAxis::micro_batches ? options_.micro_batches
           : axis_ == GenerationAxis::requests    ? options_.batch / options_.micro_batches
                                                  : options_.sequence_lengths.front();
  }
  // A trace grows with its micro-batches, and no further than what simulates in seconds.
  std::uint64_t most() const {
    if (axis_ == GenerationAxis::requests) return most_requests;
    if (axis_ == GenerationAxis::prompt) return most_prompt;
    return std::max<std::uint64_t>(asked(), most_ops * asked() / workload_.trace->ops.size());
  }
  // Throws Error, as when the prompt is longer than the model's context.
  Trace trace(std::uint64_t value) const {
    GenerateSettings settings = settings_;
    if (axis_ == GenerationAxis::prompt) {
      set_option(settings, "prompt", std::to_string(value));
    } else {
      const bool of_requests = axis_ == GenerationAxis::requests;
      const std::uint64_t requests = of_requests ? value : options_.batch / options_.micro_batches;
      const std::uint64_t batches = of_requests ? options_.micro_batches : value;
      set_option(settings, "block", std::to_string(requests) + "x" + std::to_string(batches));
    }
    Workload grown = workload_;
    grown.scenario.trace.generate = settings;
    grown.scenario.trace.loaded.reset();
    grown.scenario.trace.file.clear();
    return *load_workload(grown.scenario).trace;
  }

 private:
  const Workload& workload_;
  GenerationAxis axis_;
  GenerateSettings settings_;
  GenerateOptions options_;
};

}  // namespace

std::vector<GenerationAxis> axes_of(const Workload& workload) {
  const GenerateSettings settings = generated_by(workload);
  if (settings.empty()) return {};
  const GenerateOptions options = parse_generate_settings(settings);
  if (!options.generation) return {};
  std::vector<GenerationAxis> axes{GenerationAxis::requests};
  if (options.generation->order == BlockOrder::zigzag) axes.push_back(GenerationAxis::micro_batches);
  if (options.sequence_lengths.size() == 1) axes.push_back(GenerationAxis::prompt);
  return axes;
}

std::vector<GenerationAxis> parse_axes(const std::string& text, const Workload& workload) {
  const std::vector<GenerationAxis> known = axes_of(workload);
  if (known.empty()) {
    throw Error("--largest: this is no text generation of `tencache generate`; give --model with --new-tokens");
  }
  if (text == "all") return known;
  std::vector<GenerationAxis> axes;
  std::stringstream stream(text);
  for (std::string name; std::getline(stream, name, ',');) {
    const std::optional<GenerationAxis> axis = parse_enum<GenerationAxis>(name);
    if (!axis) {
      throw Error("--largest: unknown '" + name + "'; valid are " + enum_names<GenerationAxis>() + ", all, none");
    }
    if (std::ranges::find(known, *axis) == known.end()) {
      throw Error("--largest " + name + ": " +
                  (*axis == GenerationAxis::prompt ? "the prompts have several lengths; give --prompt one"
                                                   : "in row order their number takes no memory; give --order zigzag"));
    }
    if (std::ranges::find(axes, *axis) == axes.end()) axes.push_back(*axis);
  }
  return axes;
}

LargestGeneration largest_generation(const Workload& workload, GenerationAxis axis, const std::string& policy,
                                     const std::map<std::string, std::string>& settings) {
  make_policy(policy, settings);  // a wrong option is bad usage
  const Growth growth(workload, axis);
  LargestGeneration answer;
  answer.policy = policy;
  answer.axis = to_string(axis);
  answer.asked = growth.asked();
  const RunLimits limits = limits_of(workload.scenario.iterations);
  Tried tried = Tried::early;
  std::map<std::uint64_t, std::string> reasons;  // of what does not fit
  std::optional<std::uint64_t> refused;          // the least that is no generation of this model
  const auto fits = [&](std::uint64_t value) {
    try {
      if (policy == "ideal") {  // which nothing limits: what the GPU holds
        const Resident all = resident(growth.trace(value), workload.machine);
        if (all.fits) return true;
        reasons[value] = format_bytes(all.peak_bytes) + " of " + format_bytes(all.capacity_bytes) + " of GPU memory";
        return false;
      }
      const RunResult result =
          try_policy(growth.trace(value), workload.machine, policy, settings, limits, tried).result;
      if (result.fits) return true;
      reasons[value] = result.misfit;
    } catch (const Error& error) {
      reasons[value] = error.what();
      refused = std::min(value, refused.value_or(value));
    }
    return false;
  };
  const std::uint64_t most = growth.most();
  const auto search = [&](std::uint64_t first) -> std::optional<std::uint64_t> {
    std::uint64_t good = 0, bad = 0;  // 0: none known; nothing that is 0 is a block
    for (std::uint64_t value = first; bad == 0;) {
      if (fits(value)) {
        good = value;
        if (value == most) return good;
        value = value > most / 2 ? most : 2 * value;
      } else {
        bad = value;
      }
    }
    while (good == 0 && bad > 1) {  // downwards
      const std::uint64_t value = bad / 2;
      (fits(value) ? good : bad) = value;
    }
    if (good == 0) return std::nullopt;
    return last_that_fits(good, bad, fits);
  };
  answer.largest = search(std::min(answer.asked, most));
  tried = Tried::whole;
  while (answer.largest && !fits(*answer.largest)) {
    answer.largest = *answer.largest == 1 ? std::nullopt : search(*answer.largest - 1);
  }
  if (answer.largest == most) {
    answer.limit = axis == GenerationAxis::micro_batches ? "more would be a trace of over 2 million ops" : "not tried";
    return answer;
  }
  const std::uint64_t next = answer.largest.value_or(0) + 1;
  (refused && *refused <= next ? answer.limit : answer.overflow) = reasons[next];
  return answer;
}

}  // namespace tencache
