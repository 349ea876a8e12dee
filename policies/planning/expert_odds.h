// When each expert will probably be chosen again: from what gates have chosen so far.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/reveal.h"
#include "core/trace.h"

namespace tencache {

// Throws Error, in the name of `policy`, where an op reads an expert that no gate chooses for it.
void require_gates(const Trace& trace, const char* policy);

// Choices are taken for independent of each other, but that an expert that the layer's last gate chose is chosen again
// with a probability of its own, which all layers share; not if that gate chose all of them, as a prompt's may. The
// probability of each expert is its share of the layer's choices so far, with a few gates more by which all are alike,
// as many as the trace says that a gate will choose. The more experts are kept, the longer each is kept, and the less
// the last gate says of it: it counts for 1 less the square of the share that is kept (by trial).
class ExpertOdds {
 public:
  ExpertOdds() = default;
  // Of a program, sealed or not, which must outlive this object; `kept`: the share of experts that are. Linear.
  explicit ExpertOdds(const Trace& trace, double kept = 0);

  bool empty() const { return experts_.empty(); }
  const Experts& experts() const { return experts_.front(); }
  bool of_expert(TensorId tensor) const { return !empty() && experts().place(tensor).layer != none; }

  // The gate has chosen: `decided` as EventKind::revealed has them, but ids of the program.
  void chosen(OpIndex gate, std::span<const Use> decided);
  // How many gates of its layer until one chooses it, the next one being the first: the mean.
  double gates_until(std::uint32_t layer, std::uint32_t expert) const;
  // As gates_until, in ops after `op`, going round: less than a round.
  std::uint32_t ops_until(std::uint32_t layer, std::uint32_t expert, OpIndex op) const;
  // The same until the layer's next gate.
  std::uint32_t ops_until_gate(std::uint32_t layer, OpIndex op) const;

 private:
  struct Layer {
    std::vector<OpIndex> gates;          // ascending
    std::vector<std::uint32_t> chosen;   // by expert: how often
    std::vector<std::uint32_t> last;     // by expert: the number of the gate that chose it last, from 1; 0: none yet
    std::vector<std::uint32_t> counted;  // the same, gates that chose all experts included
    std::uint32_t decided = 0;           // gates
    double share = 1;                    // of the experts that a gate chooses, by the trace
  };

  std::vector<Experts> experts_;  // one, or none if there are no gates
  std::vector<Layer> layers_;
  std::size_t op_count_ = 0;
  double kept_ = 0;                                // squared
  std::uint64_t could_repeat_ = 0, repeated_ = 0;  // choices of gates before the last, and those chosen once more
};

}  // namespace tencache
