#include "studies/fragment.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "configs/caching_settings.h"
#include "core/error.h"
#include "studies/placement.h"

namespace tencache {
namespace {

using Kind = FragmentAllocator::Kind;

// ---- Allocators behind one interface --------------------------------------------------------------------------------

class Replayed {
 public:
  virtual ~Replayed() = default;
  virtual bool allocate(std::uint32_t block, Bytes bytes, std::uint32_t stream) = 0;
  virtual void release(std::uint32_t block) = 0;
  virtual Bytes allocated() const = 0;
  virtual Bytes reserved() const = 0;
  virtual AllocatorFigures figures() const = 0;
  virtual std::vector<BlockView> blocks() const = 0;
  virtual bool is_planned() const { return false; }
  // Of the device, where a request finds no block.
  virtual Bytes asks_for(Bytes bytes) const { return bytes; }
};

template <typename Allocator>
class Online : public Replayed {
 public:
  template <typename Settings>
  Online(const Settings& settings, Bytes limit, std::uint32_t blocks) : allocator_(settings, limit), address_(blocks) {}

  bool allocate(std::uint32_t block, Bytes bytes, std::uint32_t stream) override {
    const std::optional<std::uint64_t> address = allocator_.allocate(bytes, stream);
    if (address) address_[block] = *address;
    return address.has_value();
  }
  void release(std::uint32_t block) override { allocator_.release(address_[block]); }
  Bytes allocated() const override { return allocator_.allocated(); }
  Bytes reserved() const override { return allocator_.reserved(); }
  AllocatorFigures figures() const override { return allocator_.figures(); }
  std::vector<BlockView> blocks() const override { return allocator_.blocks(); }
  Bytes asks_for(Bytes bytes) const override {
    if constexpr (requires { allocator_.segment_size(bytes); })
      return allocator_.segment_size(allocator_.rounded(bytes));
    return bytes;
  }

 private:
  Allocator allocator_;
  std::vector<std::uint64_t> address_;
};

// Places that are known before; without any, only the sum counts.
class Offline : public Replayed {
 public:
  Offline(const Allocations& allocations, const Placement* placement, Bytes limit)
      : limit_(limit), bytes_(allocations.blocks, 0), alive_(allocations.blocks, 0) {
    if (placement != nullptr) placement_ = *placement;
    planned_ = placement != nullptr;
    if (planned_) now_.device_allocations = 1;
  }

  bool allocate(std::uint32_t block, Bytes bytes, std::uint32_t) override {
    if (planned_ ? placement_.height > limit_ : now_.requested + bytes > limit_) return false;
    bytes_[block] = bytes;
    alive_[block] = 1;
    now_.requested += bytes;
    now_.allocated += taken(block);
    return true;
  }
  void release(std::uint32_t block) override {
    alive_[block] = 0;
    now_.requested -= bytes_[block];
    now_.allocated -= taken(block);
  }
  Bytes allocated() const override { return now_.allocated; }
  Bytes reserved() const override { return planned_ ? placement_.height : now_.requested; }
  AllocatorFigures figures() const override {
    AllocatorFigures now = now_;
    now.reserved = reserved();
    now.rounding = now.allocated - now.requested;
    now.in_holes = now.reserved - now.allocated;
    return now;
  }
  std::vector<BlockView> blocks() const override {
    std::vector<BlockView> all;
    if (!planned_) return all;
    for (std::uint32_t block = 0; block < alive_.size(); ++block) {
      if (alive_[block] != 0) all.push_back({placement_.offset[block], taken(block), 0, true});
    }
    std::ranges::sort(all, {}, &BlockView::address);
    std::uint64_t at = 0;
    const std::size_t in_use = all.size();
    for (std::size_t i = 0; i <= in_use; ++i) {
      const std::uint64_t next = i < in_use ? all[i].address : placement_.height;
      if (next > at) all.push_back({at, next - at, 0, false});
      if (i < in_use) at = all[i].address + all[i].bytes;
    }
    return all;
  }
  Bytes asks_for(Bytes bytes) const override { return planned_ ? placement_.height : bytes; }
  bool is_planned() const override { return planned_; }

 private:
  Bytes taken(std::uint32_t block) const { return planned_ ? round_up(bytes_[block], Bytes{512}) : bytes_[block]; }

  Bytes limit_;
  Placement placement_;
  bool planned_ = false;
  std::vector<Bytes> bytes_;
  std::vector<char> alive_;
  AllocatorFigures now_;
};

std::unique_ptr<Replayed> make(const Allocations& allocations, const FragmentAllocator& allocator, Bytes limit) {
  switch (allocator.kind) {
    case Kind::caching:
      return std::make_unique<Online<CachingAllocator>>(allocator.settings, limit, allocations.blocks);
    case Kind::gmlake:
      return std::make_unique<Online<StitchingAllocator>>(allocator.stitching, limit, allocations.blocks);
    case Kind::stweaver:
    case Kind::planned: {
      const Placement placement = place(
          allocations, allocator.kind == Kind::planned ? PlacementRule::largest_first : PlacementRule::split_and_fuse);
      return std::make_unique<Offline>(allocations, &placement, limit);
    }
    case Kind::exact:
      break;
  }
  return std::make_unique<Offline>(allocations, nullptr, limit);
}

}  // namespace

std::string FragmentAllocator::setting() const {
  if (kind != Kind::caching || name == "default") return {};
  return name == "expandable" ? "expandable_segments:True" : name;
}

FragmentAllocator fragment_allocator(const std::string& name) {
  constexpr std::array<std::pair<std::string_view, Kind>, 4> others = {
      {{"gmlake", Kind::gmlake}, {"stweaver", Kind::stweaver}, {"planned", Kind::planned}, {"exact", Kind::exact}}};
  FragmentAllocator made;
  made.name = name;
  for (const auto& [known, kind] : others) {
    if (name != known) continue;
    made.kind = kind;
    return made;
  }
  if (name == "expandable") {
    made.settings.expandable_segments = true;
  } else if (name.find(':') != std::string::npos) {
    made.settings = parse_caching_settings(name);
  } else if (name != "default") {
    throw Error(
        fmt::format("unknown allocator '{}'; known are default, expandable, gmlake, stweaver, planned, exact, and "
                    "settings such as max_split_size_mb:128",
                    name));
  }
  return made;
}

std::vector<std::string> usual_fragment_allocators() {
  return {"default", "expandable", "max_split_size_mb:512", "gmlake", "stweaver", "planned", "exact"};
}

double FragmentRun::utilisation() const {
  return reserved_peak == 0 ? 1 : static_cast<double>(allocated_peak) / static_cast<double>(reserved_peak);
}

FragmentRun run_fragment(const Allocations& allocations, const FragmentAllocator& allocator, Bytes limit,
                         AddressMap* map) {
  FragmentRun run;
  run.allocator = allocator;
  const std::unique_ptr<Replayed> replayed = make(allocations, allocator, limit);
  std::optional<AddressMapPainter> painter;
  if (map != nullptr) painter.emplace(*map, allocations.events.size());
  Bytes requested = 0;
  std::vector<Bytes> bytes(allocations.blocks, 0);
  std::uint64_t calls_before = 0, retries_before = 0;
  run.iterations.emplace_back();
  const auto end_iteration = [&] {
    const AllocatorFigures now = replayed->figures();
    FragmentIteration& over = run.iterations.back();
    over.device_calls = now.device_allocations + now.device_frees - calls_before;
    over.retries = now.retries - retries_before;
    calls_before += over.device_calls;
    retries_before += over.retries;
  };
  for (std::size_t index = 0; index < allocations.events.size(); ++index) {
    const AllocationEvent& event = allocations.events[index];
    if (event.kind == AllocationEvent::Kind::release) {
      requested -= bytes[event.block];
      replayed->release(event.block);
    } else if (event.kind == AllocationEvent::Kind::iteration) {
      end_iteration();
      run.iterations.emplace_back();
      if (painter) painter->iteration(index);
    } else {
      if (!replayed->allocate(event.block, event.bytes, event.stream)) {
        const auto iteration = static_cast<std::uint32_t>(run.iterations.size() - 1);
        run.out_of_memory = {index, iteration, event.bytes, replayed->asks_for(event.bytes), replayed->figures()};
        run.at_peak = run.out_of_memory->then;
        break;
      }
      requested += bytes[event.block] = event.bytes;
      run.requested_peak = std::max(run.requested_peak, requested);
      FragmentIteration& now = run.iterations.back();
      now.allocated_bytes = std::max(now.allocated_bytes, replayed->allocated());
      now.reserved_bytes = std::max(now.reserved_bytes, replayed->reserved());
      run.allocated_peak = std::max(run.allocated_peak, now.allocated_bytes);
      const bool grew = now.reserved_bytes > run.reserved_peak;
      run.reserved_peak = std::max(run.reserved_peak, now.reserved_bytes);
      // A plan reserves all at once: then it counts how full it gets.
      if (grew || (replayed->is_planned() && replayed->allocated() > run.at_peak.allocated)) {
        run.at_peak = replayed->figures();
      }
    }
    while (painter && painter->wants(index)) painter->add(replayed->blocks());
  }
  end_iteration();
  run.at_end = replayed->figures();
  if (painter) painter->paint();
  return run;
}

FragmentAdvice advise_on_fragments(const Allocations& allocations, Bytes limit) {
  using Verdict = FragmentVerdict;
  constexpr double worthwhile = 0.01;  // of what is reserved
  FragmentAdvice advice;
  advice.standard = run_fragment(allocations, fragment_allocator("default"), limit);
  if (advice.standard.out_of_memory && run_fragment(allocations, fragment_allocator("exact"), limit).out_of_memory) {
    advice.verdict = Verdict::needs_memory;
    return advice;
  }
  // Each retry stands for the whole device; then fewer calls of the driver.
  const auto better = [](const FragmentRun& one, const FragmentRun& other) {
    const auto calls = [](const FragmentRun& run) { return run.at_end.device_allocations + run.at_end.device_frees; };
    if (one.at_end.retries != other.at_end.retries) return one.at_end.retries < other.at_end.retries;
    if (one.reserved_peak != other.reserved_peak) return one.reserved_peak < other.reserved_peak;
    return calls(one) < calls(other);
  };
  const auto try_out = [&](const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      FragmentRun run = run_fragment(allocations, fragment_allocator(name), limit);
      if (!run.out_of_memory && (!advice.best || better(run, *advice.best))) advice.best = std::move(run);
    }
  };
  try_out({"expandable", "max_split_size_mb:64", "max_split_size_mb:128", "max_split_size_mb:256",
           "max_split_size_mb:512", "roundup_power2_divisions:4", "roundup_power2_divisions:8"});
  if (!advice.standard.out_of_memory) {
    const Bytes reserved = advice.standard.reserved_peak;
    const bool gains = advice.best && static_cast<double>(advice.best->reserved_peak) <
                                          (1 - worthwhile) * static_cast<double>(reserved);
    advice.verdict = gains ? Verdict::fits_gains : Verdict::fits_no_gain;
    if (!gains) advice.best.reset();
  } else if (advice.best) {
    advice.verdict = Verdict::cured;
  } else {
    advice.verdict = Verdict::needs_another;
    try_out({"gmlake", "planned"});
  }
  return advice;
}

}  // namespace tencache
