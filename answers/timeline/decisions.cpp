#include "answers/timeline/decisions.h"

#include <nlohmann/json.hpp>

namespace tencache {
namespace {

using Json = nlohmann::ordered_json;

Json op_name(OpIndex op, const View& view) {
  if (op == none || view.program == nullptr) return nullptr;
  return view.program->trace.name(view.program->trace.ops[op]);
}

Json op_index(OpIndex op) { return op == none ? Json(nullptr) : Json(op); }

Json tensor_name(TensorId tensor, const View& view) {
  const TensorId id = view.program_tensor(tensor);
  if (id == none || view.program == nullptr) return nullptr;
  return view.program->trace.name(view.program->trace.tensors[id]);
}

Json tier_name(TierId tier, const View& view) {
  return tier == no_tier ? Json(nullptr) : Json(view.machine.tiers[tier].name);
}

// Of the chunk's copy in `tier`: its last one, or one of several, or of no use.
const char* state_of(ChunkId chunk, TierId tier, const View& view) {
  if (view.dead(view.memory.tensor_of(chunk))) return "dead";
  return view.memory.valid_elsewhere(chunk, tier) ? "clean" : "dirty";
}

Json reason(const Why& why, const View& view) {
  Json json{{"reason", to_string(why.reason)}};
  if (why.reason == Reason::policy) json["event"] = to_string(why.event);
  if (why.op != none) {
    json["op"] = op_name(why.op, view);
    json["op_index"] = why.op;
  }
  if (why.chunk != none) {
    const TensorId tensor = view.memory.tensor_of(why.chunk);
    json["for_tensor"] = tensor_name(tensor, view);
    json["for_chunk"] = why.chunk - view.memory.first_chunk(tensor);
  }
  if (why.reason == Reason::room || why.reason == Reason::coldest) json["for_prefetch"] = why.prefetch;
  return json;
}

}  // namespace

void DecisionLog::write(const Decision& decision, const View& view) {
  if (decision.kind == Decision::Kind::start_op) return;  // no tensor is moved by it; see the timeline
  Json json{{"time_ns", decision.now},
            {"iteration", view.iteration},
            {"op", op_name(decision.op, view)},
            {"op_index", op_index(decision.op)},
            {"action", to_string(decision.kind)}};
  if (decision.chunk != none) {
    const Residency& memory = view.memory;
    const TensorId tensor = memory.tensor_of(decision.chunk);
    const std::uint32_t distance = view.distance_to_next_use(tensor);
    json["tensor"] = tensor_name(tensor, view);
    json["tensor_id"] = tensor;
    json["role"] = to_string(memory.role(tensor));
    json["chunk"] = decision.chunk - memory.first_chunk(tensor);
    json["chunks"] = memory.chunk_count(tensor);
    json["bytes"] = memory.bytes_of(decision.chunk);
    if (decision.from != no_tier) json["state"] = state_of(decision.chunk, decision.from, view);
    json["next_use_in_ops"] = distance == none || view.dead(tensor) ? Json(nullptr) : Json(distance);
  }
  json["from"] = tier_name(decision.from, view);
  json["to"] = tier_name(decision.to, view);
  if (decision.kind == Decision::Kind::move) json["offset"] = decision.offset;
  if (decision.kind == Decision::Kind::refuse) json["refusal"] = to_string(decision.refusal);
  json["why"] = reason(decision.why, view);
  file_.write(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  ++count_;
}

}  // namespace tencache
