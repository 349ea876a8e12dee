#include "policies/planning/expert_odds.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/error.h"

namespace tencache {
namespace {

constexpr double gates_before = 4;  // by which all experts are alike; chosen by trial

}  // namespace

void require_gates(const Trace& trace, const char* policy) {
  for (const Op& op : trace.ops) {
    if (trace.detail(op).revealed_by != none) continue;
    for (const TensorId tensor : trace.reads(op)) {
      if (trace.tensors[tensor].role != Role::expert) continue;
      throw Error(std::string("policy '") + policy + "': op '" + trace.name(op) + "' reads expert '" +
                  trace.name(trace.tensors[tensor]) +
                  "', and the trace does not say which op chooses it: give the op `revealed_by`, the id of its gate");
    }
  }
}

ExpertOdds::ExpertOdds(const Trace& trace, double kept) : op_count_(trace.ops.size()), kept_(kept * kept) {
  if (!has_gates(trace)) return;
  experts_.emplace_back(trace);
  layers_.resize(experts().layers());
  for (std::uint32_t layer = 0; layer < layers_.size(); ++layer) {
    layers_[layer].chosen.assign(experts().count_in(layer), 0);
    layers_[layer].last.assign(experts().count_in(layer), 0);
    layers_[layer].counted.assign(experts().count_in(layer), 0);
  }
  for (const OpIndex gate : experts().gates()) layers_[experts().layer(gate)].gates.push_back(gate);
  // Experts that run: each is a row of ops in a module.
  std::vector<double> runs(layers_.size(), 0);
  NameId module = 0;
  for (const Op& op : trace.ops) {
    const OpIndex gate = trace.detail(op).revealed_by;
    if (gate != none && op.module != module) ++runs[experts().layer(gate)];
    module = gate == none ? 0 : op.module;
  }
  for (std::uint32_t layer = 0; layer < layers_.size(); ++layer) {
    const auto all = static_cast<double>(layers_[layer].gates.size() * layers_[layer].chosen.size());
    layers_[layer].share = all == 0 ? 1 : std::min(1.0, runs[layer] / all);
  }
}

void ExpertOdds::chosen(OpIndex gate, std::span<const Use> decided) {
  Layer& layer = layers_[experts().layer(gate)];
  const std::uint32_t number = ++layer.decided;
  std::vector<std::uint32_t> chosen;
  for (const Use& use : decided) {
    const Experts::Place place = experts().place(use.tensor);
    if (place.layer == none || layer.counted[place.expert] == number) continue;  // another of its weights
    layer.counted[place.expert] = number;
    ++layer.chosen[place.expert];
    chosen.push_back(place.expert);
  }
  if (chosen.size() == layer.chosen.size()) return;  // says nothing of which come next
  for (const std::uint32_t last : layer.last) could_repeat_ += last != 0 && last + 1 == number ? 1 : 0;
  for (const std::uint32_t expert : chosen) {
    repeated_ += layer.last[expert] != 0 && layer.last[expert] + 1 == number ? 1 : 0;
    layer.last[expert] = number;
  }
}

double ExpertOdds::gates_until(std::uint32_t index, std::uint32_t expert) const {
  const Layer& layer = layers_[index];
  const double probability = std::max(
      1e-6, (layer.chosen[expert] + gates_before * layer.share) / (static_cast<double>(layer.decided) + gates_before));
  if (layer.decided == 0 || layer.last[expert] != layer.decided) return 1 / probability;
  const double again = (static_cast<double>(repeated_) + gates_before * probability) /
                       (static_cast<double>(could_repeat_) + gates_before);
  return kept_ / probability + (1 - kept_) * (again + (1 - again) * (1 + 1 / probability));
}

// Beyond half a round it is a matter of order alone: all that may come is pressed into the other half.
std::uint32_t ExpertOdds::ops_until(std::uint32_t index, std::uint32_t expert, OpIndex op) const {
  const std::vector<OpIndex>& gates = layers_[index].gates;
  const auto round = static_cast<double>(gates.size()), half = round / 2;
  double after = gates_until(index, expert) - 1;  // gates after the next one
  if (after > half) after = half + std::max(0.0, round - 1 - half) * (1 - half / after);
  const auto next = static_cast<std::size_t>(std::ranges::upper_bound(gates, op) - gates.begin());
  const auto ops_after = [&](std::size_t gate) {
    const std::size_t rounds = (next + gate) / gates.size();
    return static_cast<double>(gates[(next + gate) % gates.size()] + rounds * op_count_) - static_cast<double>(op);
  };
  const auto whole = static_cast<std::size_t>(after);
  const double first = ops_after(whole);
  const double between = (ops_after(whole + 1) - first) * (after - static_cast<double>(whole));
  return static_cast<std::uint32_t>(std::clamp(first + between, 1.0, static_cast<double>(op_count_ - 1)));
}

std::uint32_t ExpertOdds::ops_until_gate(std::uint32_t index, OpIndex op) const {
  const std::vector<OpIndex>& gates = layers_[index].gates;
  const auto next = std::ranges::upper_bound(gates, op);
  if (next != gates.end()) return *next - op;
  return std::min(gates.front() + static_cast<OpIndex>(op_count_) - op, static_cast<OpIndex>(op_count_) - 1);
}

}  // namespace tencache
