// What optimizers keep for a parameter beside the parameter and its gradient, as their reference codes do: bitsandbytes
// (optim/optimizer.py), GaLore (jiaweizzhao/GaLore, galore_torch), APOLLO (zhuhanqing/APOLLO, apollo_torch), LOMO and
// AdaLomo (OpenLMLab/LOMO), Adafactor (Shazeer and Stern 2018).
//
// Low-rank optimizers project the gradients of linear weights whose name holds `attn` or `mlp`, and keep full states of
// all else: embeddings, head, norms, biases. Their random or singular vectors are kept, too, as in their codes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "traces/generate/generate.h"

namespace tencache {

struct OptimizerState {
  std::string name;
  Bytes bytes = 0;
};

// Kinds of parameters, which optimizers treat differently.
enum class ParameterKind : std::uint8_t { linear, embedding, other_matrix, vector };
template <>
inline constexpr auto enum_texts<ParameterKind> =
    std::to_array<std::string_view>({"linear, of attention and MLP", "embedding", "other matrix", "vector"});
inline constexpr std::size_t parameter_kind_count = 4;

class OptimizerStates {
 public:
  explicit OptimizerStates(const GenerateOptions& options);

  // By the Hugging Face name; a vector has one row or one column.
  static ParameterKind kind_of(std::string_view name, std::uint64_t rows, std::uint64_t columns);

  // Of `elements` of a parameter of that shape, which may be a rank's part of it; without a master copy.
  std::vector<OptimizerState> of(std::string_view name, std::uint64_t rows, std::uint64_t columns,
                                 std::uint64_t elements) const;
  bool keeps_master() const { return master_; }
  // Whether updates go through a projection to a low rank, of which kind of parameter.
  bool low_rank(ParameterKind kind) const;
  // The rank of a matrix whose shorter side is that.
  std::uint64_t rank(std::uint64_t shorter) const;

  // Bytes for people, of a matrix m × n with m ≤ n and rank r: "4 + 4 an element", "2·(m·r + 2·r·n)".
  std::string formula(ParameterKind kind) const;

 private:
  Optimizer optimizer_;
  bool master_;
  Bytes element_;        // of a parameter
  Bytes state_element_;  // of a state that is as large as the parameter
  std::uint64_t rank_;
  bool full_embeddings_;  // 32 bits under 8-bit optimizers
};

}  // namespace tencache
