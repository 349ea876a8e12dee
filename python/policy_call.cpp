#include "python/policy_call.h"

#include <optional>
#include <span>
#include <vector>

namespace tencache {
namespace {

std::optional<std::uint32_t> known(std::uint32_t id) { return id == none ? std::nullopt : std::optional(id); }
std::optional<int> known_tier(TierId tier) { return tier == no_tier ? std::nullopt : std::optional<int>(tier); }

void bind_memory(py::module_& module) {
  using H = MemoryHandle;
  py::class_<H>(module, "Memory", "Where every chunk is. A chunk is a part of a tensor, or all of it (chunk_bytes 0).")
      .def_property_readonly("tensor_count", [](const H& h) { return h.get().tensor_count(); })
      .def_property_readonly("tier_count", [](const H& h) { return h.get().tier_count(); })
      .def(
          "bytes", [](const H& h, TensorId t) { return h.with_tensor(t).bytes(t); }, py::arg("tensor"))
      .def(
          "role", [](const H& h, TensorId t) { return std::string(to_string(h.with_tensor(t).role(t))); },
          py::arg("tensor"))
      .def(
          "persistent", [](const H& h, TensorId t) { return h.with_tensor(t).persistent(t); }, py::arg("tensor"))
      .def(
          "chunks",
          [](const H& h, TensorId t) {
            const Residency& memory = h.with_tensor(t);
            const ChunkId first = memory.first_chunk(t);
            return py::module_::import("builtins").attr("range")(first, first + memory.chunk_count(t));
          },
          py::arg("tensor"), "The tensor's chunks, a range.")
      .def(
          "tensor_of", [](const H& h, ChunkId c) { return h.with_chunk(c).tensor_of(c); }, py::arg("chunk"))
      .def(
          "bytes_of", [](const H& h, ChunkId c) { return h.with_chunk(c).bytes_of(c); }, py::arg("chunk"))
      .def(
          "footprint", [](const H& h, ChunkId c, TierId tier) { return h.with(c, tier).footprint(c, tier); },
          py::arg("chunk"), py::arg("tier") = 0, "What the chunk takes in the tier.")
      .def(
          "capacity", [](const H& h, TierId tier) { return h.with_tier(tier).capacity(tier); }, py::arg("tier") = 0)
      .def(
          "used", [](const H& h, TierId tier) { return h.with_tier(tier).used(tier); }, py::arg("tier") = 0)
      .def(
          "free", [](const H& h, TierId tier) { return h.with_tier(tier).free(tier); }, py::arg("tier") = 0)
      .def(
          "leaving", [](const H& h, TierId tier) { return h.with_tier(tier).leaving(tier); }, py::arg("tier") = 0,
          "Room that evictions on their way will free.")
      .def(
          "valid", [](const H& h, ChunkId c, TierId tier) { return h.with(c, tier).valid(c, tier); }, py::arg("chunk"),
          py::arg("tier") = 0, "Whether the tier has a copy of the present value.")
      .def(
          "resident",
          [](const H& h, TensorId t, TierId tier) {
            h.with_tensor(t);
            return h.with_tier(tier).resident(t, tier);
          },
          py::arg("tensor"), py::arg("tier") = 0)
      .def(
          "evictable", [](const H& h, ChunkId c, TierId tier) { return h.with(c, tier).evictable(c, tier); },
          py::arg("chunk"), py::arg("tier") = 0)
      .def(
          "coldest", [](const H& h, TierId tier) { return known(h.with_tier(tier).coldest(tier)); },
          py::arg("tier") = 0, "The least recently used chunk there, or None.")
      .def(
          "warmer", [](const H& h, ChunkId c, TierId tier) { return known(h.with(c, tier).warmer(c, tier)); },
          py::arg("chunk"), py::arg("tier") = 0, "The next one in that order, or None.")
      .def(
          "by_age",
          [](const H& h, TierId tier) {
            const Residency& memory = h.with_tier(tier);
            std::vector<ChunkId> chunks;
            for (ChunkId c = memory.coldest(tier); c != none; c = memory.warmer(c, tier)) {
              if (memory.evictable(c, tier)) chunks.push_back(c);
            }
            return to_array(chunks);
          },
          py::arg("tier") = 0, "All chunks there that may leave, the least recently used first: an array.");
}

void bind_view(py::module_& module) {
  using H = ViewHandle;
  py::class_<H>(module, "View", "What a policy may look at.")
      .def_property_readonly(
          "machine",
          [](const H& h) {
            h.get();
            return h.call->machine;
          },
          "A dict: tiers, links and what else the machine's JSON has.")
      .def_property_readonly("memory",
                             [](const H& h) {
                               h.get();
                               return MemoryHandle{h.call};
                             })
      .def_property_readonly(
          "program",
          [](const H& h) -> std::shared_ptr<PythonTrace> {
            return h.get().program == nullptr ? nullptr : h.call->program;
          },
          "The recorded iteration, a Trace; None until it is known.")
      .def_property_readonly("now_ns", [](const H& h) { return h.get().now; })
      .def_property_readonly("iteration", [](const H& h) { return h.get().iteration; })
      .def_property_readonly(
          "op", [](const H& h) { return known(h.get().op); }, "The GPU's position in the program.")
      .def(
          "distance_to_next_use",
          [](const H& h, TensorId t) {
            MemoryHandle{h.call}.with_tensor(t);
            return known(h.get().distance_to_next_use(t));
          },
          py::arg("tensor"), "Ops until the tensor is used again, over the iteration's end; None: never.")
      .def(
          "dead",
          [](const H& h, TensorId t) {
            MemoryHandle{h.call}.with_tensor(t);
            return h.get().dead(t);
          },
          py::arg("tensor"), "Nobody will read its present value.")
      .def(
          "uses",
          [](const H& h, OpIndex op) {
            const View& view = h.get();
            if (view.schedule == nullptr || op >= view.schedule->op_count()) throw py::index_error("no such op");
            std::vector<TensorId> tensors;
            for (const Use& use : view.schedule->uses(op)) tensors.push_back(use.tensor);
            return to_array(tensors);
          },
          py::arg("op"), "The op's tensors, each once: an array.")
      .def(
          "ops_of",
          [](const H& h, TensorId t) {
            const View& view = h.get();
            if (view.schedule == nullptr || t >= view.schedule->tensor_count()) throw py::index_error("no such tensor");
            const std::span<const OpIndex> ops = view.schedule->ops_of(t);
            return to_array(std::vector<OpIndex>(ops.begin(), ops.end()));
          },
          py::arg("tensor"), "The ops that use the tensor, ascending: an array.")
      .def(
          "transfers_on",
          [](const H& h, std::size_t link) {
            if (link >= h.get().machine.links.size()) throw py::index_error("no such link");
            return h.get().transfers_on(static_cast<LinkId>(link));
          },
          py::arg("link"), "Transfers queued or running on the link.");
}

void bind_event(py::module_& module) {
  using E = EventHandle;
  py::class_<E>(module, "Event", "What happened.")
      .def_property_readonly("kind", [](const E& e) { return std::string(to_string(e.get().kind)); })
      .def_property_readonly("refusal", [](const E& e) { return std::string(to_string(e.get().refusal)); })
      .def_property_readonly("device", [](const E& e) { return std::string(to_string(e.get().device)); })
      .def_property_readonly("op", [](const E& e) { return known(e.get().op); })
      .def_property_readonly("tensor", [](const E& e) { return known(e.get().tensor); })
      .def_property_readonly("chunk", [](const E& e) { return known(e.get().chunk); })
      .def_property_readonly("from_tier", [](const E& e) { return known_tier(e.get().from); })
      .def_property_readonly("to_tier", [](const E& e) { return known_tier(e.get().to); })
      .def_property_readonly(
          "uses",
          [](const E& e) {
            py::list uses;
            for (const Use& use : e.get().uses) uses.append(py::make_tuple(use.tensor, use.read, use.write));
            return uses;
          },
          "Of op events: (tensor, read, write) each.");
}

void bind_actions(py::module_& module) {
  using A = ActionsHandle;
  const auto bind = [](py::class_<A>& actions, const char* name, Verb verb, const char* text) {
    actions.def(
        name,
        [verb](const A& a, TensorId tensor, TierId tier) { a.push({.verb = verb, .tier = tier, .tensor = tensor}); },
        py::arg("tensor"), py::arg("tier") = 0, text);
  };
  const auto bind_out = [](py::class_<A>& actions, const char* name, Verb verb, const char* text) {
    actions.def(
        name,
        [verb](const A& a, TensorId tensor, std::optional<TierId> destination, TierId tier, bool urgent) {
          a.push({.verb = verb,
                  .tier = tier,
                  .destination = destination.value_or(no_tier),
                  .urgent = urgent,
                  .tensor = tensor});
        },
        py::arg("tensor"), py::arg("destination") = std::nullopt, py::arg("tier") = 0, py::arg("urgent") = false, text);
  };
  py::class_<A> actions(module, "Actions", "What a policy wants done; one that is not needed costs nothing.");
  actions.def(
      "fetch",
      [](const A& a, TensorId tensor, TierId tier, std::optional<OpIndex> not_before, bool urgent) {
        a.push({.verb = Verb::fetch,
                .tier = tier,
                .urgent = urgent,
                .tensor = tensor,
                .not_before = not_before.value_or(none)});
      },
      py::arg("tensor"), py::arg("tier") = 0, py::arg("not_before") = std::nullopt, py::arg("urgent") = false,
      "Bring the tensor's missing chunks into the tier.");
  bind_out(actions, "evict", Verb::evict, "Free its room: dropped where another copy or death allows, else moved.");
  bind_out(actions, "clean", Verb::clean, "Copy it to the destination and keep it.");
  bind(actions, "drop", Verb::drop, "As evict, but only what needs no transfer.");
  bind(actions, "cancel", Verb::cancel, "Take back prefetches that have not started.");
  actions.def(
      "hold",
      [](const A& a, OpIndex op, TensorId tensor, TierId tier) {
        a.push({.verb = Verb::hold, .tier = tier, .tensor = tensor, .op = op});
      },
      py::arg("op"), py::arg("tensor"), py::arg("tier") = 0,
      "Do not start the op while the tensor is on its way to the tier.");
}

void bind_request(py::module_& module) {
  using R = RequestHandle;
  py::class_<R>(module, "RoomRequest", "Room that is needed.")
      .def_property_readonly("tier", [](const R& r) { return static_cast<int>(r.get().tier); })
      .def_property_readonly(
          "bytes", [](const R& r) { return r.get().bytes; }, "Still to be freed.")
      .def_property_readonly(
          "prefetch", [](const R& r) { return r.get().prefetch; }, "For a prefetch: naming nobody is a fair answer.")
      .def_property_readonly(
          "incoming", [](const R& r) { return known(r.get().incoming); },
          "The chunk that the room is for; None: an op's outputs.");
}

}  // namespace

void bind_policy_call(py::module_& module) {
  bind_memory(module);
  bind_view(module);
  bind_event(module);
  bind_actions(module);
  bind_request(module);
}

}  // namespace tencache
