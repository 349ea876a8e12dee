#include "traces/import/pytorch/kineto_allocations.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "core/error.h"
#include "core/text.h"
#include "traces/import/pytorch/json_elements.h"
#include "traces/import/pytorch/steps.h"

namespace tencache {
namespace {

constexpr std::int64_t cuda = 1;  // c10::DeviceType

struct MemoryEvent {
  double time_us = 0;
  std::uint64_t address = 0;
  std::int64_t bytes = 0;  // 0: an iteration begins
  std::uint64_t allocated = 0, reserved = 0;
};

class MemoryEventReader {
 public:
  MemoryEventReader(const std::string& path, const ImportProgress& progress)
      : stream_(path, ".json"), elements_(stream_, "traceEvents", progress) {}

  // By device.
  std::map<std::int64_t, std::vector<MemoryEvent>> read() {
    std::string_view text;
    while (elements_.next_text(text)) {
      const bool memory = text.find("\"[memory]\"") != std::string_view::npos;
      if (memory || text.find("ProfilerStep#") != std::string_view::npos) take(memory);
    }
    return std::move(events_);
  }
  const std::vector<double>& steps() const { return steps_; }
  const std::string& file() const { return stream_.name(); }

 private:
  void take(bool memory) {
    dom::object event, arguments;
    std::string_view name;
    double time = 0;
    if (elements_.parse().get_object().get(event)) elements_.fail("an event that is no object; the file is damaged");
    if (event["name"].get_string().get(name) || event["ts"].get_double().get(time)) return;
    if (!memory) {
      std::string_view category;
      const bool host = event["cat"].get_string().get(category) || category != "gpu_user_annotation";
      if (host && is_profiler_step(name)) steps_.push_back(time);
      return;
    }
    std::int64_t kind = 0, device = 0;
    MemoryEvent added;
    added.time_us = time;
    if (name != "[memory]" || event["args"].get_object().get(arguments)) return;
    if (arguments["Device Type"].get_int64().get(kind) || kind != cuda) return;
    if (arguments["Device Id"].get_int64().get(device)) device = 0;
    if (arguments["Addr"].get_uint64().get(added.address) || arguments["Bytes"].get_int64().get(added.bytes)) {
      elements_.fail("a [memory] event without 'Addr' or 'Bytes': recorded by a PyTorch before 1.12?");
    }
    if (arguments["Total Allocated"].get_uint64().get(added.allocated)) added.allocated = 0;
    if (arguments["Total Reserved"].get_uint64().get(added.reserved)) added.reserved = 0;
    if (added.bytes != 0) events_[device].push_back(added);
  }

  ByteStream stream_;
  JsonElements elements_;
  std::map<std::int64_t, std::vector<MemoryEvent>> events_;
  std::vector<double> steps_;
};

std::int64_t chosen_device(const std::map<std::int64_t, std::vector<MemoryEvent>>& events,
                           std::optional<std::int64_t> wanted, const std::string& file) {
  if (events.empty()) {
    throw Error(file, 0, "has no allocation on a GPU; record with torch.profiler.profile(profile_memory=True)");
  }
  if (wanted && !events.contains(*wanted)) {
    std::vector<std::string> known;
    for (const auto& [device, list] : events) known.push_back(std::to_string(device));
    throw Error(file, 0, fmt::format("has no allocation on GPU {}; it has some on {}", *wanted, join(known)));
  }
  if (wanted) return *wanted;
  return std::ranges::max_element(events, {}, [](const auto& one) { return one.second.size(); })->first;
}

}  // namespace

Allocations read_kineto_allocations(const std::string& path, std::optional<std::int64_t> device,
                                    const ImportProgress& progress) {
  MemoryEventReader reader(path, progress);
  std::map<std::int64_t, std::vector<MemoryEvent>> by_device = reader.read();
  std::vector<MemoryEvent>& events = by_device[chosen_device(by_device, device, reader.file())];
  for (const double step : reader.steps()) events.push_back({step});
  // A mark stands before what happens in the same microsecond.
  std::ranges::stable_sort(events, [](const MemoryEvent& a, const MemoryEvent& b) {
    return a.time_us != b.time_us ? a.time_us < b.time_us : (a.bytes == 0) > (b.bytes == 0);
  });

  AddressedAllocations made;
  Bytes allocated = 0, reserved = 0;
  std::optional<std::int64_t> before;  // what was allocated before the first event
  std::uint64_t twice = 0;
  for (const MemoryEvent& event : events) {
    if (event.bytes == 0) {
      made.begin_iteration();
      continue;
    }
    allocated = std::max(allocated, event.allocated);
    reserved = std::max(reserved, event.reserved);
    if (!before && event.allocated > 0) before = static_cast<std::int64_t>(event.allocated) - event.bytes;
    if (event.bytes > 0) {
      twice += made.allocate(event.address, static_cast<Bytes>(event.bytes), 0) ? 0 : 1;
    } else if (!made.release(event.address)) {
      made.was_there(event.address, static_cast<Bytes>(-event.bytes), 0);
      made.release(event.address);
    }
  }
  const auto known = static_cast<std::int64_t>(made.bytes_before());
  std::vector<std::string> notes;
  if (made.there_before() > 0) {
    notes.push_back(fmt::format("{} blocks, {}, were there before the recording began", made.there_before(),
                                format_bytes(made.bytes_before())));
  }
  if (before && *before > known) {
    made.was_there(0, static_cast<Bytes>(*before - known), 0);
    notes.push_back(
        fmt::format("{} were there before the recording began and are not freed in it; their blocks are not "
                    "known: taken as one",
                    format_bytes(static_cast<Bytes>(*before - known))));
  }
  if (twice > 0) {
    notes.push_back(
        fmt::format("{} allocations at an address that was not freed are left out: events are lost", twice));
  }
  Allocations result = made.finish();
  result.name = path;
  result.notes = std::move(notes);
  if (allocated > 0) result.recorded_allocated = allocated;
  if (reserved > 0) result.recorded_reserved = reserved;
  return result;
}

}  // namespace tencache
