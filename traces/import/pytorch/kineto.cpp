#include "traces/import/pytorch/kineto.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <unordered_map>

#include "core/error.h"
#include "traces/generate/gpu_spec.h"
#include "traces/import/pytorch/json_elements.h"
#include "traces/import/pytorch/steps.h"

namespace tencache {
namespace {

constexpr double latest_us = 9e15;  // as nanoseconds within 64 bits
constexpr Nanoseconds longest_event_ns = 3600 * second_ns;

// The fields of an event that are of interest.
class KinetoEvent {
 public:
  KinetoEvent(const JsonElements& elements, dom::object object) : elements_(elements), object_(object) {
    has_arguments_ = !object["args"].get_object().get(arguments_);
    if (object["cat"].get_string().get(category)) category = {};
    // PyTorch built without Kineto (Debian's) has no categories.
    std::string_view process;
    if (category.empty() && !object["pid"].get_string().get(process) && process == "CPU functions") category = "cpu_op";
    if (object["name"].get_string().get(name)) name = {};
    if (object["ph"].get_string().get(phase)) phase = {};
  }

  Nanoseconds time(std::string_view key) const { return nanoseconds(object_, key); }
  std::uint64_t thread() const {
    std::int64_t thread = 0;
    return object_["tid"].get_int64().get(thread) ? 0 : static_cast<std::uint64_t>(thread);
  }
  std::uint64_t argument(std::string_view key) const {
    std::uint64_t value = 0;
    return !has_arguments_ || arguments_[key].get_uint64().get(value) ? 0 : value;
  }
  std::int64_t signed_argument(std::string_view key) const {
    std::int64_t value = 0;
    return !has_arguments_ || arguments_[key].get_int64().get(value) ? 0 : value;
  }
  bool has_argument(std::string_view key) const {
    dom::element value;
    return has_arguments_ && !arguments_[key].get(value);
  }
  std::uint64_t external_id() const {
    const std::uint64_t id = argument("External id");
    return id != 0 ? id : argument("external id");
  }
  // False where there is no such list.
  bool list(std::string_view key, dom::array& values) const {
    return has_arguments_ && !arguments_[key].get_array().get(values);
  }

  bool is_annotation() const { return category == "user_annotation"; }
  bool is_call() const {
    return phase == "X" &&
           (category == "cpu_op" || category == "Operator" || category == "operator" || is_annotation());
  }
  bool is_launch() const {
    return category == "cuda_runtime" || category == "cuda_driver" || category == "Runtime" ||
           category == "xpu_runtime";
  }
  bool is_work() const {
    return category == "kernel" || category == "Kernel" || category == "gpu_memcpy" || category == "Memcpy" ||
           category == "gpu_memset" || category == "Memset";
  }
  bool is_memory() const { return name == "[memory]" && phase == "i"; }

  std::string_view category, name, phase;

 private:
  Nanoseconds nanoseconds(const dom::object& object, std::string_view key) const {
    std::int64_t whole = 0;
    double number = 0;
    dom::element value;
    if (object[key].get(value)) return 0;
    if (!value.get_int64().get(whole)) {
      if (static_cast<double>(whole) > latest_us || static_cast<double>(whole) < -latest_us) out_of_range(key);
      return whole * 1000;
    }
    std::string_view text;
    if (value.get_double().get(number)) {
      if (value.get_string().get(text) ||
          std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc()) {
        elements_.fail("'" + std::string(key) + "' is no number");
      }
    }
    if (!(std::abs(number) <= latest_us)) out_of_range(key);
    return std::llround(number * 1000);
  }
  [[noreturn]] void out_of_range(std::string_view key) const {
    elements_.fail("'" + std::string(key) + "' is beyond any time in microseconds; the file is damaged");
  }

  const JsonElements& elements_;
  dom::object object_, arguments_;
  bool has_arguments_ = false;
};

dom::object object_of(JsonElements& elements) {
  dom::object object;
  if (elements.parse().get_object().get(object)) elements.fail("an event that is no object; the file is damaged");
  return object;
}

void make_iterations(KinetoIterations& found, Nanoseconds first, Nanoseconds last) {
  std::ranges::sort(found.marks, {}, &KinetoMark::begin_ns);
  std::vector<const KinetoMark*> steps, updates;
  for (const KinetoMark& mark : found.marks) (is_profiler_step(mark.name) ? steps : updates).push_back(&mark);
  const auto add = [&](Nanoseconds begin, Nanoseconds end, std::int64_t number, bool numbered, bool known_begin) {
    const bool complete = known_begin && std::ranges::any_of(updates, [&](const KinetoMark* update) {
                            return update->begin_ns >= begin && update->end_ns <= end;
                          });
    found.all.push_back({begin, end, number, complete, numbered});
  };
  for (std::size_t i = 0; i < steps.size(); ++i) {
    std::int64_t number = 0;
    const std::string_view digits = std::string_view(steps[i]->name).substr(steps[i]->name.find('#') + 1);
    std::from_chars(digits.data(), digits.data() + digits.size(), number);
    add(steps[i]->begin_ns, i + 1 < steps.size() ? steps[i + 1]->begin_ns : steps[i]->end_ns, number, true, true);
  }
  if (!steps.empty()) return;
  Nanoseconds begin = first;
  for (std::size_t i = 0; i < updates.size(); ++i) {
    // What comes before the first step also holds the start of the program.
    add(begin, updates[i]->end_ns, static_cast<std::int64_t>(i), false, i > 0 || updates.size() == 1);
    begin = updates[i]->end_ns;
  }
  if (updates.empty()) found.all.push_back({first, last, 0, false, false});
}

// `properties`: empty where the file has none, of which simdjson would copy 0 bytes from nowhere.
std::string first_device_name(std::string_view properties) {
  if (properties.empty()) return "";
  dom::parser parser;
  dom::element element;
  dom::array devices;
  std::string_view name;
  if (parser.parse(properties.data(), properties.size()).get(element) || element.get_array().get(devices)) return "";
  for (const dom::element device : devices) {
    if (!device["name"].get_string().get(name)) return std::string(name);
  }
  return "";
}

// The bytes of an element, by the profiler's names of types; 0: no tensor.
std::uint64_t bytes_of_type(std::string_view type) {
  if (type == "float" || type == "int") return 4;
  if (type == "double" || type == "long" || type == "long int") return 8;
  if (type == "c10::Half" || type == "c10::BFloat16" || type == "short") return 2;
  if (type == "bool" || type == "unsigned char" || type == "signed char") return 1;
  return 0;
}

constexpr std::uint64_t largest_stride = std::uint64_t{1} << 50;

class WindowReader {
 public:
  WindowReader(const std::string& path, const KinetoIteration& iteration, const ImportProgress& progress)
      : stream_(path, ".json"), elements_(stream_, "traceEvents", progress) {
    window_.begin_ns = iteration.begin_ns;
    window_.end_ns = iteration.end_ns;
    // The GPU may run behind the host.
    latest_work_ns_ = iteration.end_ns + (iteration.end_ns - iteration.begin_ns);
  }

  KinetoWindow read() {
    std::string_view text;
    while (elements_.next_text(text)) take(KinetoEvent(elements_, object_of(elements_)));
    window_.file = stream_.name();
    window_.hardware = first_device_name(elements_.document_value("deviceProperties"));
    nest_calls();
    link_work();
    std::ranges::stable_sort(window_.memory, {}, &KinetoMemory::time_ns);
    for (KinetoMemory& event : window_.memory) event.call = innermost(event.thread, event.time_ns);
    return std::move(window_);
  }

 private:
  void take(const KinetoEvent& event) {
    const bool call = event.is_call(), launch = event.is_launch(), work = event.is_work(), memory = event.is_memory();
    if (!call && !launch && !work && !memory) return;
    const Nanoseconds begin = event.time("ts");
    if (begin < window_.begin_ns || begin >= (work ? latest_work_ns_ : window_.end_ns)) return;
    const Nanoseconds end = begin + std::max<Nanoseconds>(0, event.time("dur"));
    if (end - begin > longest_event_ns) {
      elements_.fail(
          "'" + std::string(event.name) + "' takes " + format_duration(end - begin) +
          ", which cannot be right: Kineto wrote its end by another clock; remove the event, or record again");
    }
    if (call) {
      if (is_profiler_step(event.name)) return;
      KinetoCall added{begin,
                       end,
                       event.thread(),
                       event.argument("Record function id"),
                       event.external_id(),
                       window_.names.intern(event.name)};
      added.annotation = event.is_annotation();
      add_inputs(event, added);
      window_.calls.push_back(added);
    } else if (launch) {
      launches_.emplace(event.argument("correlation"), Launch{begin, event.thread()});
    } else if (work) {
      window_.work.push_back({begin, end, event.argument("correlation"), event.external_id()});
    } else {
      if (!event.has_argument("Addr")) {
        elements_.fail(
            "a [memory] event without 'Addr', as PyTorch before 1.12 writes them: without addresses no free belongs to "
            "an "
            "allocation; record again with 1.12 or newer");
      }
      KinetoMemory added{begin, event.thread(), event.argument("Addr"), event.signed_argument("Bytes"),
                         event.argument("Total Allocated")};
      added.host = event.argument("Device Type") == 0;
      window_.memory.push_back(added);
    }
  }

  void add_inputs(const KinetoEvent& event, KinetoCall& call) {
    dom::array shapes, types;
    call.first_input = static_cast<std::uint32_t>(window_.inputs.size());
    if (!event.list("Input Dims", shapes) || !event.list("Input type", types)) return;
    dom::array strides, values;
    const bool has_strides = event.list("Input Strides", strides) && strides.size() == shapes.size();
    if (event.list("Concrete Inputs", values)) add_truths(values, call);
    auto type = types.begin();
    std::size_t position = 0;
    for (const dom::element shape : shapes) {
      if (type == types.end()) break;
      const std::size_t at = position++;
      std::string_view type_name;
      const bool named = !(*type).get_string().get(type_name);
      ++type;
      const std::uint64_t item_bytes = named ? bytes_of_type(type_name) : 0;
      if (named && arithmetic_of(event.name) != Arithmetic::none) {
        if (type_name == "c10::Half") ++window_.products[static_cast<std::size_t>(Precision::fp16)];
        if (type_name == "c10::BFloat16") ++window_.products[static_cast<std::size_t>(Precision::bf16)];
        if (type_name == "float") ++window_.products[static_cast<std::size_t>(Precision::fp32)];
      }
      dom::array sizes;
      if (item_bytes == 0 || shape.get_array().get(sizes)) continue;
      double bytes = static_cast<double>(item_bytes);
      OpTensor tensor;
      tensor.element_bytes = static_cast<unsigned>(item_bytes);
      for (const dom::element size : sizes) {
        std::uint64_t value = 0;
        bytes *= size.get_uint64().get(value) ? 0 : static_cast<double>(value);
        tensor.sizes.push_back(static_cast<std::int64_t>(value));
      }
      if (!(bytes >= 1 && bytes < 1e15)) continue;
      if (has_strides) add_strides(strides.at(at), tensor);
      window_.inputs.push_back(std::move(tensor));
    }
    call.input_count = static_cast<std::uint32_t>(window_.inputs.size()) - call.first_input;
  }

  static void add_strides(simdjson::simdjson_result<dom::element> list, OpTensor& tensor) {
    dom::array strides;
    if (list.get_array().get(strides) || strides.size() != tensor.sizes.size()) return;
    for (const dom::element stride : strides) {
      std::uint64_t value = 0;
      if (stride.get_uint64().get(value) || value > largest_stride) {
        tensor.strides.clear();
        return;
      }
      tensor.strides.push_back(static_cast<std::int64_t>(value));
    }
  }

  static void add_truths(dom::array values, KinetoCall& call) {
    std::uint32_t position = 0;
    for (const dom::element value : values) {
      std::string_view text;
      if (position < 32 && !value.get_string().get(text) && text == "True") call.true_arguments |= 1u << position;
      ++position;
    }
  }

  // Times in whole microseconds make a call and the one around it equal: ids count up with the beginnings.
  void nest_calls() {
    std::vector<KinetoCall>& calls = window_.calls;
    std::ranges::stable_sort(calls, [](const KinetoCall& a, const KinetoCall& b) {
      if (a.begin_ns != b.begin_ns) return a.begin_ns < b.begin_ns;
      if (a.end_ns != b.end_ns) return a.end_ns > b.end_ns;
      return a.external_id < b.external_id;
    });
    std::map<std::uint64_t, std::vector<std::uint32_t>> open;  // by thread
    for (std::uint32_t i = 0; i < calls.size(); ++i) {
      std::vector<std::uint32_t>& stack = open[calls[i].thread];
      const auto contains = [&](std::uint32_t outer) {
        return calls[outer].end_ns > calls[i].begin_ns ||
               (calls[outer].end_ns == calls[i].begin_ns && calls[outer].begin_ns == calls[i].begin_ns);
      };
      while (!stack.empty() && !contains(stack.back())) stack.pop_back();
      if (!stack.empty()) calls[i].parent = stack.back();
      stack.push_back(i);
      calls_of_[calls[i].thread].push_back(i);
    }
  }

  // The innermost call of a thread at a time.
  std::uint32_t innermost(std::uint64_t thread, Nanoseconds time) const {
    const auto found = calls_of_.find(thread);
    if (found == calls_of_.end()) return none;
    const std::vector<std::uint32_t>& calls = found->second;
    const auto after =
        std::ranges::upper_bound(calls, time, {}, [&](std::uint32_t i) { return window_.calls[i].begin_ns; });
    if (after == calls.begin()) return none;
    std::uint32_t call = *(after - 1);
    while (call != none && window_.calls[call].end_ns < time) call = window_.calls[call].parent;
    return call;
  }

  // By the launch on the host, or else by the id that it shares with a call.
  void link_work() {
    std::unordered_map<std::uint64_t, std::uint32_t> by_id;
    for (std::uint32_t i = 0; i < window_.calls.size(); ++i) {
      if (window_.calls[i].external_id != 0) by_id.emplace(window_.calls[i].external_id, i);
    }
    std::erase_if(window_.work, [&](KinetoWork& work) {
      if (const auto launch = launches_.find(work.correlation); work.correlation != 0 && launch != launches_.end()) {
        work.call = innermost(launch->second.thread, launch->second.begin_ns);
      } else if (const auto call = by_id.find(work.external_id); launches_.empty() && call != by_id.end()) {
        work.call = call->second;
      } else {
        if (work.begin_ns < window_.end_ns) ++window_.unlinked_work;  // later ones are the next iteration's
        return true;
      }
      return false;
    });
    std::ranges::stable_sort(window_.work, {}, &KinetoWork::begin_ns);
  }

  struct Launch {
    Nanoseconds begin_ns;
    std::uint64_t thread;
  };

  ByteStream stream_;
  JsonElements elements_;
  KinetoWindow window_;
  Nanoseconds latest_work_ns_;
  std::unordered_map<std::uint64_t, Launch> launches_;            // by correlation
  std::map<std::uint64_t, std::vector<std::uint32_t>> calls_of_;  // by thread
};

}  // namespace

KinetoIterations find_kineto_iterations(const std::string& path, const ImportProgress& progress) {
  ByteStream stream(path, ".json");
  JsonElements elements(stream, "traceEvents", progress);
  KinetoIterations found;
  Nanoseconds first = std::numeric_limits<Nanoseconds>::max(), last = std::numeric_limits<Nanoseconds>::min();
  bool marked = false;
  std::string_view text;
  while (elements.next_text(text)) {
    ++found.events;
    const bool mark =
        text.find("ProfilerStep#") != std::string_view::npos || text.find("Optimizer.step#") != std::string_view::npos;
    found.memory = found.memory || text.find("\"[memory]\"") != std::string_view::npos;
    found.gpu_work = found.gpu_work || text.find("ernel\"") != std::string_view::npos;  // "kernel", or "Kernel" once
    // Without marks the extent of the calls is needed, but not once there are some.
    if (!mark && marked && found.calls > 0) continue;
    if (!mark && text.find("cpu_op") == std::string_view::npos && text.find("perator") == std::string_view::npos &&
        text.find("CPU functions") == std::string_view::npos) {
      continue;
    }
    const KinetoEvent event(elements, object_of(elements));
    if (!event.is_call()) continue;
    ++found.calls;
    const Nanoseconds begin = event.time("ts"), end = begin + std::max<Nanoseconds>(0, event.time("dur"));
    first = std::min(first, begin);
    last = std::max(last, end);
    if (!is_profiler_step(event.name) && !is_optimizer_step(event.name)) continue;
    marked = is_profiler_step(event.name) || marked;
    found.marks.push_back({std::string(event.name), begin, end, event.argument("Record function id")});
  }
  if (found.calls == 0) {
    throw Error(stream.name(), 0,
                "has " + std::to_string(found.events) +
                    " events, but none of an op of PyTorch's: it is a Chrome trace of another program, or was recorded "
                    "without ProfilerActivity.CPU");
  }
  make_iterations(found, first, last);
  return found;
}

const KinetoIteration& choose_iteration(const KinetoIterations& found, const std::optional<std::int64_t>& number,
                                        const std::string& file, std::string& evidence) {
  const auto name = [](const KinetoIteration& iteration) {
    return (iteration.numbered ? "ProfilerStep#" : "the part up to Optimizer.step number ") +
           std::to_string(iteration.number);
  };
  if (number) {
    const auto chosen = std::ranges::find(found.all, *number, &KinetoIteration::number);
    if (chosen == found.all.end()) {
      std::string numbers;
      for (std::size_t i = 0; i < found.all.size() && i < 20; ++i) {
        numbers += (i == 0 ? "" : ", ") + std::to_string(found.all[i].number);
      }
      throw Error(
          file, 0,
          "has no iteration " + std::to_string(*number) + "; it has " + numbers + (found.all.size() > 20 ? ", …" : ""));
    }
    evidence = name(*chosen) + ", as given";
    return *chosen;
  }
  for (auto i = found.all.rbegin(); i != found.all.rend(); ++i) {
    if (!i->complete) continue;
    evidence = name(*i) + ", the last complete of " + std::to_string(found.all.size());
    return *i;
  }
  evidence = found.marks.empty()
                 ? "the whole recording: it has neither ProfilerStep annotations nor an optimizer's step"
                 : name(found.all.back()) + ": none has an optimizer's step";
  return found.all.back();
}

KinetoWindow read_kineto_window(const std::string& path, const KinetoIteration& iteration,
                                const ImportProgress& progress) {
  return WindowReader(path, iteration, progress).read();
}

}  // namespace tencache
