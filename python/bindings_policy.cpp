// Policies written in Python: an object that the engine asks as any other.
//
// Every call takes Python's lock, so that runs under such policies take turns; runs under others do not wait for them.
#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "answers/result.h"
#include "core/error.h"
#include "core/policy.h"
#include "policies/registry.h"
#include "python/bindings.h"
#include "python/policy_call.h"

namespace tencache {
namespace {

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
  Layout layout;
  for (const auto& [key, value] : values) {
    const std::string name = converted<std::string>(key, method + ": a key must be a str");
    const std::string rule = method + ": " + name + " must be ";
    if (name == "chunk_bytes") {
      layout.chunk_bytes = converted<Bytes>(value, rule + "a number of bytes from 0");
    } else if (name == "exclusive_copies") {
      layout.exclusive_copies = converted<bool>(value, rule + "a bool");
    } else if (name == "promote") {
      layout.promote = converted<bool>(value, rule + "a bool");
    } else if (name == "use_touches") {
      layout.use_touches = converted<bool>(value, rule + "a bool");
    } else if (name == "free_dead") {
      const std::string text = converted<std::string>(value, rule + "a str");
      constexpr std::array<std::string_view, 3> valid = {"now", "when_victim", "never"};
      const auto found = std::find(valid.begin(), valid.end(), text);
      if (found == valid.end()) throw Error("free_dead: unknown '" + text + "'; valid are now, when_victim, never");
      layout.free_dead = static_cast<FreeDead>(found - valid.begin());
    } else if (name == "blocking_step") {
      layout.blocking_step = converted<bool>(value, rule + "a bool");
    } else if (name == "fallback_eviction") {
      layout.fallback_eviction = converted<bool>(value, rule + "a bool");
    } else if (name == "initial") {
      const auto tiers = converted<std::map<std::string, std::size_t>>(value, rule + "a dict of tiers by role");
      for (const auto& [role, tier] : tiers) {
        if (tier >= machine.tiers.size()) throw Error("initial: tier " + std::to_string(tier) + " does not exist");
        layout.initial[static_cast<std::size_t>(choose<Role>(role, role_count, "initial"))] = static_cast<TierId>(tier);
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
        requirements.governed[static_cast<std::size_t>(choose<Role>(role, role_count, "governed"))] = true;
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
