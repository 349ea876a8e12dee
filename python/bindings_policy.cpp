// Policies written in Python: an object that the engine asks as any other.
//
// Every call takes Python's lock, so that runs under such policies take turns; runs under others do not wait for them.
#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "answers/result.h"
#include "core/error.h"
#include "core/policy.h"
#include "policies/registry.h"
#include "python/bindings.h"

namespace tencache {
namespace {

// What a policy that is written in Python may look at and do: view, memory, event, actions and request.
//
// They are valid during the call that hands them over only; later they raise Error.

// What the present call may look at; null between calls.
struct PolicyCall {
  const View* view = nullptr;
  const Event* event = nullptr;
  Actions* actions = nullptr;
  const RoomRequest* request = nullptr;
  py::object machine;
  std::shared_ptr<PythonTrace> program;  // a copy, made when it is first asked for
};

template <typename T>
const T& present(const T* part) {
  if (part == nullptr)
    throw Error("view, event, actions and request are valid during the policy's call only; keep the figures you need");
  return *part;
}

// What Python holds of a call: handles on the same.
struct ViewHandle {
  std::shared_ptr<PolicyCall> call;
  const View& get() const { return present(call->view); }
};
struct MemoryHandle {
  std::shared_ptr<PolicyCall> call;
  const Residency& get() const { return present(call->view).memory; }
  const Residency& with_tensor(TensorId tensor) const { return check(tensor, get().tensor_count(), "tensor"); }
  const Residency& with_chunk(ChunkId chunk) const { return check(chunk, get().chunk_total(), "chunk"); }
  const Residency& with_tier(std::size_t tier) const { return check(tier, get().tier_count(), "tier"); }
  const Residency& with(ChunkId chunk, std::size_t tier) const {
    with_chunk(chunk);
    return with_tier(tier);
  }

 private:
  const Residency& check(std::size_t index, std::size_t count, const char* what) const {
    if (index < count) return get();
    throw py::index_error(std::string(what) + " " + std::to_string(index) + " does not exist; there are " +
                          std::to_string(count));
  }
};
struct EventHandle {
  std::shared_ptr<PolicyCall> call;
  const Event& get() const { return present(call->event); }
};
struct ActionsHandle {
  std::shared_ptr<PolicyCall> call;
  void push(const Action& action) const {
    present(static_cast<const Actions*>(call->actions));
    const MemoryHandle memory{call};
    memory.with_tensor(action.tensor);
    memory.with_tier(action.tier);
    if (action.destination != no_tier) memory.with_tier(action.destination);
    call->actions->push(action);
  }
};
struct RequestHandle {
  std::shared_ptr<PolicyCall> call;
  const RoomRequest& get() const { return present(call->request); }
};

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

// The Python classes of the handles.
void bind_policy_call(py::module_& module) {
  bind_memory(module);
  bind_view(module);
  bind_event(module);
  bind_actions(module);
  bind_request(module);
}

// In a message, however long it is.
std::string shown(const py::handle value) {
  constexpr std::size_t most = 80;
  const std::string text = py::repr(value);
  return text.size() <= most ? text : text.substr(0, most) + "…";
}

// `rule`: "Lru.make_room must return chunk numbers".
template <typename T>
T converted(const py::handle value, const std::string& rule) {
  try {
    return py::cast<T>(value);
  } catch (const py::cast_error&) {
    throw Error(rule + ", not " + shown(value));
  }
}

// `method`: "Lru.layout", for messages; so below.
Layout layout_from(const py::dict& values, const MachineSpec& machine, const std::string& method) {
  static const std::map<std::string_view, bool Layout::*> flags = {{"exclusive_copies", &Layout::exclusive_copies},
                                                                   {"promote", &Layout::promote},
                                                                   {"use_touches", &Layout::use_touches},
                                                                   {"blocking_step", &Layout::blocking_step},
                                                                   {"fallback_eviction", &Layout::fallback_eviction}};
  Layout layout;
  for (const auto& [key, value] : values) {
    const std::string name = converted<std::string>(key, method + ": a key must be a str");
    const std::string rule = method + ": " + name + " must be ";
    if (const auto flag = flags.find(name); flag != flags.end()) {
      layout.*flag->second = converted<bool>(value, rule + "a bool");
    } else if (name == "chunk_bytes") {
      layout.chunk_bytes = converted<Bytes>(value, rule + "a number of bytes from 0");
    } else if (name == "free_dead") {
      const std::string text = converted<std::string>(value, rule + "a str");
      constexpr std::array<std::string_view, 3> valid = {"now", "when_victim", "never"};
      const auto found = std::find(valid.begin(), valid.end(), text);
      if (found == valid.end()) throw Error("free_dead: unknown '" + text + "'; valid are now, when_victim, never");
      layout.free_dead = static_cast<FreeDead>(found - valid.begin());
    } else if (name == "initial") {
      const auto tiers = converted<std::map<std::string, std::size_t>>(value, rule + "a dict of tiers by role");
      for (const auto& [role, tier] : tiers) {
        if (tier >= machine.tiers.size()) throw Error("initial: tier " + std::to_string(tier) + " does not exist");
        layout.initial[static_cast<std::size_t>(named<Role>(role, "initial"))] = static_cast<TierId>(tier);
      }
    } else {
      throw Error(method + ": unknown key '" + name +
                  "'; valid are chunk_bytes, exclusive_copies, promote, use_touches, free_dead, blocking_step, "
                  "fallback_eviction, initial");
    }
  }
  return layout;
}

Requirements requirements_from(const py::dict& values, const std::string& method) {
  Requirements requirements;
  for (const auto& [key, value] : values) {
    const std::string name = converted<std::string>(key, method + ": a key must be a str");
    if (name == "governed") {
      requirements.governed.fill(false);
      for (const std::string& role :
           converted<std::vector<std::string>>(value, method + ": governed must be a list of roles")) {
        requirements.governed[static_cast<std::size_t>(named<Role>(role, "governed"))] = true;
      }
    } else if (name == "module_hooks") {
      requirements.module_hooks = converted<bool>(value, method + ": module_hooks must be a bool");
    } else {
      throw Error(method + ": unknown key '" + name + "'; valid are governed, module_hooks");
    }
  }
  return requirements;
}

py::object machine_dict(const MachineSpec& machine) {
  return py::module_::import("json").attr("loads")(machine_json(machine).dump());
}

class PythonPolicy final : public Policy {
 public:
  // `self`: an object of a subclass of tencache.Policy. With Python's lock.
  explicit PythonPolicy(py::object self) : self_(std::move(self)), call_(std::make_shared<PolicyCall>()) {
    const py::object base = py::module_::import("tencache").attr("Policy");
    const py::object type = py::type::of(self_);
    const auto overrides = [&](const char* name) { return !type.attr(name).is(base.attr(name)); };
    name_ = py::cast<std::string>(type.attr("__qualname__"));
    if (overrides("on")) on_ = self_.attr("on");
    if (overrides("make_room")) make_room_ = self_.attr("make_room");
    if (overrides("fingerprint")) fingerprint_ = self_.attr("fingerprint");
    const py::object events = type.attr("events");
    heard_.fill(events.is_none());
    if (!events.is_none()) {
      for (const std::string& name : py::cast<std::vector<std::string>>(py::list(events))) {
        heard_[static_cast<std::size_t>(named<EventKind>(name, "events"))] = true;
      }
    }
    view_ = py::cast(ViewHandle{call_});
    event_ = py::cast(EventHandle{call_});
    actions_ = py::cast(ActionsHandle{call_});
    request_ = py::cast(RequestHandle{call_});
  }
  PythonPolicy(const PythonPolicy&) = delete;
  PythonPolicy& operator=(const PythonPolicy&) = delete;

  ~PythonPolicy() override {
    const py::gil_scoped_acquire gil;
    call_->machine = py::object();
    for (py::object* object : {&self_, &on_, &make_room_, &fingerprint_, &view_, &event_, &actions_, &request_}) {
      *object = py::object();
    }
  }

  Requirements requirements() const override {
    const py::gil_scoped_acquire gil;
    const std::optional<py::dict> answer = dict_of(self_.attr("requirements")(), "requirements");
    return answer ? requirements_from(*answer, name_ + ".requirements") : Requirements();
  }

  Layout layout(const MachineSpec& machine, const Program* program) const override {
    const py::gil_scoped_acquire gil;
    if (!call_->machine) call_->machine = machine_dict(machine);
    const std::optional<py::dict> answer = dict_of(self_.attr("layout")(call_->machine, program_of(program)), "layout");
    return answer ? layout_from(*answer, machine, name_ + ".layout") : Layout();
  }

  bool hears(EventKind kind) const override { return on_ && heard_[static_cast<std::size_t>(kind)]; }
  void on(const Event& event, const View& view, Actions& actions) override {
    const py::gil_scoped_acquire gil;
    const Present during(*call_, {.view = &view, .event = &event, .actions = &actions});
    on_(event_, view_, actions_);
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (!make_room_) return Policy::make_room(request, view, victims);
    const py::gil_scoped_acquire gil;
    const Present during(*call_, {.view = &view, .request = &request});
    append(make_room_(request_, view_), "make_room must return chunk numbers", victims);
  }

  std::uint64_t fingerprint() const override {
    if (!fingerprint_) return 0;
    const py::gil_scoped_acquire gil;
    const py::int_ value = fingerprint_();
    const std::uint64_t low = PyLong_AsUnsignedLongLongMask(value.ptr());
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    return low;
  }

  void notes(std::vector<std::string>& notes) const override {
    const py::gil_scoped_acquire gil;
    append(self_.attr("notes")(), "notes must return sentences", notes);
  }

 private:
  struct Parts {
    const View* view = nullptr;
    const Event* event = nullptr;
    Actions* actions = nullptr;
    const RoomRequest* request = nullptr;
  };
  // A call may come within another: a policy that rehearses, or an event that an action of it caused.
  class Present {
   public:
    Present(PolicyCall& call, const Parts& parts)
        : call_(call), before_{call.view, call.event, call.actions, call.request} {
      set(parts);
    }
    ~Present() { set(before_); }
    Present(const Present&) = delete;
    Present& operator=(const Present&) = delete;

   private:
    void set(const Parts& parts) {
      call_.view = parts.view;
      call_.event = parts.event;
      call_.actions = parts.actions;
      call_.request = parts.request;
    }
    PolicyCall& call_;
    Parts before_;
  };

  // What a method returned.
  std::optional<py::dict> dict_of(const py::object& answer, const char* method) const {
    if (answer.is_none()) return std::nullopt;
    if (py::isinstance<py::dict>(answer)) return py::dict(answer);
    throw Error(name_ + "." + method + " must return a dict or None, not " + shown(answer));
  }
  template <typename T>
  void append(const py::object& answer, const char* rule, std::vector<T>& values) const {
    const std::string whole_rule = name_ + "." + rule;
    if (!py::isinstance<py::iterable>(answer)) throw Error(whole_rule + ", not " + shown(answer));
    for (const py::handle value : py::iter(answer)) values.push_back(converted<T>(value, whole_rule));
  }

  py::object program_of(const Program* program) const {
    if (program == nullptr) return py::none();
    call_->program = std::make_shared<PythonTrace>(PythonTrace{program->trace});
    return py::cast(call_->program);
  }

  py::object self_, on_, make_room_, fingerprint_;
  py::object view_, event_, actions_, request_;
  std::string name_;  // of the class
  std::array<bool, event_kind_count> heard_{};
  std::shared_ptr<PolicyCall> call_;
};

// The class's `options` (name to default) as the registry declares them, then an object with the values in `options`.
std::unique_ptr<Policy> make(const py::object& type, Options& options) {
  const py::gil_scoped_acquire gil;
  py::dict values;
  for (const auto& [key, value] : converted<py::dict>(type.attr("options"), "options must be a dict")) {
    const std::string name = converted<std::string>(key, "options: a name must be a str");
    const std::string rule = "options: the default of '" + name + "' must be a bool, an int of 0 or more, or a float";
    if (py::isinstance<py::bool_>(value)) {
      bool flag = py::cast<bool>(value);
      options.flag(name, flag, "");
      values[key] = flag;
    } else if (py::isinstance<py::int_>(value)) {
      std::uint64_t number = converted<std::uint64_t>(value, rule);
      options.number(name, number, "", "");
      values[key] = number;
    } else if (py::isinstance<py::float_>(value)) {
      double real = py::cast<double>(value);
      options.real(name, real, "", "");
      values[key] = real;
    } else {
      throw Error(rule + ", not " + shown(value));
    }
  }
  py::object self = type.attr("__new__")(type);
  self.attr("options") = values;
  self.attr("__init__")();
  return std::make_unique<PythonPolicy>(std::move(self));
}

void register_class(const std::string& name, const std::string& summary, py::object type) {
  // Let go of with Python's lock, whichever thread does it.
  const std::shared_ptr<py::object> kept(new py::object(std::move(type)), [](py::object* object) {
    if (Py_IsInitialized() == 0) return;
    const py::gil_scoped_acquire gil;
    delete object;
  });
  Options trial(name);
  make(*kept, trial);  // a class that cannot be made is refused: every command makes one of each that is registered
  register_policy({name, summary, "Python", [kept](Options& options) { return make(*kept, options); }},
                  "Python class " + py::cast<std::string>(kept->attr("__qualname__")));
}

}  // namespace

void bind_policy(py::module_& module) {
  bind_policy_call(module);
  module.attr("EVENT_KINDS") = names_of<EventKind>(event_kind_count);
  module.def("register_policy", &register_class, py::arg("name"), py::arg("summary"), py::arg("type"),
             "Makes a subclass of tencache.Policy known under this name.");
}

}  // namespace tencache
