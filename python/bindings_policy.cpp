// Policies written in Python: an object that the engine asks as any other.
//
// Every call takes Python's lock, so that runs under such policies take turns; runs under others do not wait for them.
#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "cli/report.h"
#include "core/error.h"
#include "core/policy.h"
#include "policies/registry.h"
#include "python/bindings.h"
#include "python/policy_call.h"

namespace tencache {
namespace {

constexpr std::size_t event_kind_count = 13;

template <typename Enum>
Enum choose(const std::string& text, std::size_t count, const char* what) {
  std::string valid;
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = static_cast<Enum>(i);
    if (to_string(value) == text) return value;
    valid += (i == 0 ? "" : ", ") + std::string(to_string(value));
  }
  throw Error(std::string(what) + ": unknown '" + text + "'; valid are " + valid);
}

Layout layout_from(const py::dict& values, const MachineSpec& machine) {
  Layout layout;
  for (const auto& [key, value] : values) {
    const std::string name = py::cast<std::string>(key);
    if (name == "chunk_bytes") {
      layout.chunk_bytes = py::cast<Bytes>(value);
    } else if (name == "exclusive_copies") {
      layout.exclusive_copies = py::cast<bool>(value);
    } else if (name == "promote") {
      layout.promote = py::cast<bool>(value);
    } else if (name == "use_touches") {
      layout.use_touches = py::cast<bool>(value);
    } else if (name == "free_dead") {
      const std::string text = py::cast<std::string>(value);
      constexpr std::array<std::string_view, 3> valid = {"now", "when_victim", "never"};
      const auto found = std::find(valid.begin(), valid.end(), text);
      if (found == valid.end()) throw Error("free_dead: unknown '" + text + "'; valid are now, when_victim, never");
      layout.free_dead = static_cast<FreeDead>(found - valid.begin());
    } else if (name == "blocking_step") {
      layout.blocking_step = py::cast<bool>(value);
    } else if (name == "fallback_eviction") {
      layout.fallback_eviction = py::cast<bool>(value);
    } else if (name == "initial") {
      for (const auto& [role, tier] : py::cast<std::map<std::string, std::size_t>>(value)) {
        if (tier >= machine.tiers.size()) throw Error("initial: tier " + std::to_string(tier) + " does not exist");
        layout.initial[static_cast<std::size_t>(choose<Role>(role, role_count, "initial"))] = static_cast<TierId>(tier);
      }
    } else {
      throw Error("layout: unknown key '" + name +
                  "'; valid are chunk_bytes, exclusive_copies, promote, use_touches, free_dead, blocking_step, "
                  "fallback_eviction, initial");
    }
  }
  return layout;
}

Requirements requirements_from(const py::dict& values) {
  Requirements requirements;
  for (const auto& [key, value] : values) {
    const std::string name = py::cast<std::string>(key);
    if (name == "governed") {
      requirements.governed.fill(false);
      for (const std::string& role : py::cast<std::vector<std::string>>(value)) {
        requirements.governed[static_cast<std::size_t>(choose<Role>(role, role_count, "governed"))] = true;
      }
    } else if (name == "module_hooks") {
      requirements.module_hooks = py::cast<bool>(value);
    } else {
      throw Error("requirements: unknown key '" + name + "'; valid are governed, module_hooks");
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
    if (overrides("on")) on_ = self_.attr("on");
    if (overrides("make_room")) make_room_ = self_.attr("make_room");
    if (overrides("fingerprint")) fingerprint_ = self_.attr("fingerprint");
    const py::object events = type.attr("events");
    heard_.fill(events.is_none());
    if (!events.is_none()) {
      for (const std::string& name : py::cast<std::vector<std::string>>(py::list(events))) {
        heard_[static_cast<std::size_t>(choose<EventKind>(name, event_kind_count, "events"))] = true;
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
    const py::object answer = self_.attr("requirements")();
    return answer.is_none() ? Requirements() : requirements_from(answer);
  }

  Layout layout(const MachineSpec& machine, const Program* program) const override {
    const py::gil_scoped_acquire gil;
    if (!call_->machine) call_->machine = machine_dict(machine);
    const py::object answer = self_.attr("layout")(call_->machine, program_of(program));
    return answer.is_none() ? Layout() : layout_from(answer, machine);
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (!on_ || !heard_[static_cast<std::size_t>(event.kind)]) return;
    const py::gil_scoped_acquire gil;
    const Present during(*call_, {.view = &view, .event = &event, .actions = &actions});
    on_(event_, view_, actions_);
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (!make_room_) return Policy::make_room(request, view, victims);
    const py::gil_scoped_acquire gil;
    const Present during(*call_, {.view = &view, .request = &request});
    for (const py::handle chunk : py::iter(make_room_(request_, view_))) victims.push_back(py::cast<ChunkId>(chunk));
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
    for (const std::string& note : py::cast<std::vector<std::string>>(py::list(self_.attr("notes")()))) {
      notes.push_back(note);
    }
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

  py::object program_of(const Program* program) const {
    if (program == nullptr) return py::none();
    call_->program = std::make_shared<PythonTrace>(PythonTrace{program->trace});
    return py::cast(call_->program);
  }

  py::object self_, on_, make_room_, fingerprint_;
  py::object view_, event_, actions_, request_;
  std::array<bool, event_kind_count> heard_{};
  std::shared_ptr<PolicyCall> call_;
};

// The class's `options` (name to default) as the registry declares them, then an object with the values in `options`.
std::unique_ptr<Policy> make(const py::object& type, Options& options) {
  const py::gil_scoped_acquire gil;
  py::dict values;
  for (const auto& [key, value] : py::cast<py::dict>(type.attr("options"))) {
    const std::string name = py::cast<std::string>(key);
    if (py::isinstance<py::bool_>(value)) {
      bool flag = py::cast<bool>(value);
      options.flag(name, flag, "");
      values[key] = flag;
    } else if (py::isinstance<py::int_>(value)) {
      std::uint64_t number = py::cast<std::uint64_t>(value);
      options.number(name, number, "", "");
      values[key] = number;
    } else if (py::isinstance<py::float_>(value)) {
      double real = py::cast<double>(value);
      options.real(name, real, "", "");
      values[key] = real;
    } else {
      throw Error("options: the default of '" + name + "' must be a bool, an int of 0 or more, or a float");
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
