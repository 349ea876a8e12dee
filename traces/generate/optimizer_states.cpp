#include "traces/generate/optimizer_states.h"

#include <fmt/format.h>

#include <algorithm>

namespace tencache {
namespace {

using Count = std::uint64_t;

constexpr Count usual_galore_rank = 128, usual_apollo_rank = 256;

// Quantised in blocks of 256 with one fp32 scale each, as bitsandbytes has it; small tensors stay in fp32.
Bytes bytes_in_8_bits(Count elements) {
  constexpr Count block = 256, smallest = 4096;
  return elements < smallest ? 4 * elements : elements + 4 * ((elements + block - 1) / block);
}

bool has_master(const GenerateOptions& options) {
  if (stored_in_fp32(options.precision)) return false;
  if (options.master) return *options.master;
  switch (options.optimizer) {
    case Optimizer::adamw:
    case Optimizer::sgd:
    case Optimizer::adafactor:
    case Optimizer::lamb:
      return true;
    case Optimizer::adam8bit:
    case Optimizer::apollo_mini:
    case Optimizer::apollo:
    case Optimizer::galore:
    case Optimizer::galore8bit:
    case Optimizer::lomo:
    case Optimizer::adalomo:
      break;
  }
  return false;
}

bool is_low_rank(Optimizer optimizer) {
  return optimizer == Optimizer::apollo_mini || optimizer == Optimizer::apollo || optimizer == Optimizer::galore ||
         optimizer == Optimizer::galore8bit;
}

}  // namespace

OptimizerStates::OptimizerStates(const GenerateOptions& options)
    : optimizer_(options.optimizer),
      master_(has_master(options)),
      element_(bytes_of(options.precision)),
      state_element_(master_ || options.fp32_states ? 4 : element_),
      rank_(options.low_rank),
      full_embeddings_(options.fp32_embedding_states) {
  if (rank_ == 0) rank_ = optimizer_ == Optimizer::apollo ? usual_apollo_rank : usual_galore_rank;
  if (optimizer_ == Optimizer::apollo_mini) rank_ = 1;
}

ParameterKind OptimizerStates::kind_of(std::string_view name, Count rows, Count columns) {
  const auto holds = [name](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (rows <= 1 || columns <= 1) return ParameterKind::vector;
  for (const std::string_view part : {"embed", "wte", "wpe"}) {
    if (holds(part)) return ParameterKind::embedding;
  }
  return holds("attn") || holds("mlp") ? ParameterKind::linear : ParameterKind::other_matrix;
}

bool OptimizerStates::low_rank(ParameterKind kind) const {
  return kind == ParameterKind::linear && is_low_rank(optimizer_);
}

Count OptimizerStates::rank(Count shorter) const { return std::min(rank_, shorter); }

std::vector<OptimizerState> OptimizerStates::of(std::string_view name, Count rows, Count columns,
                                                Count elements) const {
  const ParameterKind kind = kind_of(name, rows, columns);
  const Count whole = std::max<Count>(1, rows * columns);
  // The part of a vector, or of a smaller matrix, that belongs to these elements.
  const auto part = [&](Count length) { return std::max<Count>(1, length * elements / whole); };
  const Count shorter = std::min(rows, columns), longer = std::max(rows, columns);
  const auto full = [&](Bytes each) {
    return std::vector<OptimizerState>{{"exp_avg", each * elements}, {"exp_avg_sq", each * elements}};
  };
  switch (optimizer_) {
    case Optimizer::adamw:
    case Optimizer::lamb:
      return full(state_element_);
    case Optimizer::sgd:
      return {{"momentum_buffer", state_element_ * elements}};
    case Optimizer::adafactor:
    case Optimizer::adalomo:
      if (kind == ParameterKind::vector) return {{"exp_avg_sq", 4 * elements}};
      return {{"exp_avg_sq_row", 4 * part(rows)}, {"exp_avg_sq_col", 4 * part(columns)}};
    case Optimizer::lomo:
      return {};
    case Optimizer::adam8bit:
      if (full_embeddings_ && kind == ParameterKind::embedding) {
        return {{"state1", 4 * elements}, {"state2", 4 * elements}};
      }
      return {{"state1", bytes_in_8_bits(elements)}, {"state2", bytes_in_8_bits(elements)}};
    case Optimizer::galore8bit:
      if (kind != ParameterKind::linear) {
        return {{"state1", bytes_in_8_bits(elements)}, {"state2", bytes_in_8_bits(elements)}};
      }
      return {{"projector", element_ * part(shorter * rank(shorter))},
              {"state1", bytes_in_8_bits(part(longer * rank(shorter)))},
              {"state2", bytes_in_8_bits(part(longer * rank(shorter)))}};
    case Optimizer::galore:
    case Optimizer::apollo:
    case Optimizer::apollo_mini: {
      if (kind != ParameterKind::linear) return full(element_);
      std::vector<OptimizerState> states = {{"projector", element_ * part(shorter * rank(shorter))},
                                            {"exp_avg", element_ * part(longer * rank(shorter))},
                                            {"exp_avg_sq", element_ * part(longer * rank(shorter))}};
      if (optimizer_ != Optimizer::galore) states.push_back({"update_norm", 4});
      return states;
    }
  }
  return {};
}

std::string OptimizerStates::formula(ParameterKind kind) const {
  const std::string full_element = fmt::format("{0} + {0} an element", element_);
  const std::string in_8_bits = "1 + 1 and 8/256 an element";
  switch (optimizer_) {
    case Optimizer::adamw:
    case Optimizer::lamb:
      return fmt::format("{0} + {0} an element", state_element_);
    case Optimizer::sgd:
      return fmt::format("{} an element", state_element_);
    case Optimizer::adafactor:
    case Optimizer::adalomo:
      return kind == ParameterKind::vector ? "4 an element" : "4·(m + n)";
    case Optimizer::lomo:
      return "none";
    case Optimizer::adam8bit:
      return full_embeddings_ && kind == ParameterKind::embedding ? "4 + 4 an element" : in_8_bits;
    case Optimizer::galore8bit:
      return kind == ParameterKind::linear ? fmt::format("{}·m·r + (2 + 8/256)·r·n, r = {}", element_, rank_)
                                           : in_8_bits;
    case Optimizer::galore:
    case Optimizer::apollo:
    case Optimizer::apollo_mini:
      return kind == ParameterKind::linear ? fmt::format("{}·(m·r + 2·r·n), r = {}", element_, rank_) : full_element;
  }
  return {};
}

}  // namespace tencache
