#include "core/fault_plan.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "core/error.h"

namespace tencache {
namespace {

constexpr Nanoseconds longest_delay_ns = 3600 * second_ns;
constexpr std::uint64_t largest_factor = 1'000'000;

// The finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e37'79b9'7f4a'7c15;
  value = (value ^ (value >> 30)) * 0xbf58'476d'1ce4'e5b9;
  value = (value ^ (value >> 27)) * 0x94d0'49bb'1331'11eb;
  return value ^ (value >> 31);
}

[[noreturn]] void fail(std::string_view entry, const std::string& message) {
  throw Error("fault plan: '" + std::string(entry) + "': " + message);
}

template <typename Number>
bool read_number(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

FaultRate read_rate(std::string_view entry, std::string_view text) {
  FaultRate rate;
  if (text.starts_with('@')) {
    rate.onwards = text.ends_with('+');
    const std::string_view digits = text.substr(1, text.size() - (rate.onwards ? 2 : 1));
    if (!read_number(digits, rate.at) || rate.at == FaultRate::never) {
      fail(entry, "write @N for the N-th time, counted from 0, or @N+ from it on");
    }
  } else if (!read_number(text, rate.probability) || !(rate.probability >= 0 && rate.probability <= 1)) {
    fail(entry, "a rate is a probability from 0 to 1, @N for the N-th time, or @N+ from it on");
  }
  return rate;
}

std::string rate_text(const FaultRate& rate) {
  if (rate.at != FaultRate::never) {
    std::string text(1, '@');
    text += std::to_string(rate.at);
    return rate.onwards ? text + '+' : text;
  }
  char text[32];
  const auto [end, error] = std::to_chars(std::begin(text), std::end(text), rate.probability);
  return {text, end};
}

std::string duration_text(Nanoseconds duration_ns) {
  for (const auto& [unit, ns] :
       {std::pair("s", second_ns), {"ms", Nanoseconds{1'000'000}}, {"us", Nanoseconds{1000}}}) {
    if (duration_ns % ns == 0) return std::to_string(duration_ns / ns) + unit;
  }
  return std::to_string(duration_ns) + "ns";
}

void read_entry(FaultPlan& plan, std::string_view entry) {
  const std::size_t equals = std::min(entry.find('='), entry.size());
  const std::string_view name = entry.substr(0, equals);
  const std::string_view value = entry.substr(std::min(equals + 1, entry.size()));
  if (name == "seed") {
    if (!read_number(value, plan.seed)) fail(entry, "a seed is a whole number from 0");
    return;
  }
  const std::optional<FaultKind> kind = parse_enum<FaultKind>(name);
  if (!kind) fail(entry, "unknown kind; valid ones are seed, " + enum_names<FaultKind>());
  const FaultKind fault = *kind;
  if (plan.has(fault)) fail(entry, "stands twice");
  if (fault == FaultKind::disk_full) {
    if (!value.ends_with('%') || !read_number(value.substr(0, value.size() - 1), plan.disk_percent) ||
        plan.disk_percent > 100) {
      fail(entry, "write how much of its capacity the tier comes to hold, such as 60%");
    }
    return;
  }
  const std::size_t colon = std::min(value.find(':'), value.size());
  const std::string_view amount = value.substr(std::min(colon + 1, value.size()));
  plan.rate(fault) = read_rate(entry, value.substr(0, colon));
  if (fault == FaultKind::delay) {
    plan.delay_ns = amount.empty() ? 0 : parse_duration(amount);
    if (plan.delay_ns <= 0 || plan.delay_ns > longest_delay_ns) fail(entry, "write how long, such as delay=0.05:2ms");
  } else if (fault == FaultKind::slow_link) {
    if (!amount.ends_with('x') || !read_number(amount.substr(0, amount.size() - 1), plan.slow_factor) ||
        plan.slow_factor < 1 || plan.slow_factor > largest_factor) {
      fail(entry, "write how much slower, such as slow_link=0.02:10x");
    }
  } else if (fault == FaultKind::device_gone) {
    plan.gone_tier = amount;
  } else if (colon < value.size()) {
    fail(entry, "takes a rate alone");
  }
}

// A mixture in which each kind is there or not, the worse it is the rarer; never an empty one.
void draw_mixture(FaultPlan& plan) {
  constexpr std::array<double, 6> probabilities = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05};
  constexpr std::array<std::uint64_t, fault_kind_count> one_in = {2, 2, 3, 8, 4, 3, 2, 4, 8};
  bool empty = true;
  for (std::size_t kind = 0; kind < fault_kind_count; ++kind) {
    const auto fault = static_cast<FaultKind>(kind);
    auto next = [&plan, fault, index = std::uint64_t{0}](std::uint64_t end) mutable {
      return plan.draw(fault, index++, FaultRate::never) % end;
    };
    if (next(one_in[kind]) != 0) continue;
    empty = false;
    if (fault == FaultKind::disk_full) {
      plan.disk_percent = 10 * (1 + next(9));
    } else if (fault == FaultKind::device_gone) {
      plan.rate(fault).at = next(std::uint64_t{1} << (4 + next(14)));
    } else {
      plan.rate(fault).probability = probabilities[next(probabilities.size())];
    }
    if (fault == FaultKind::delay) plan.delay_ns = Nanoseconds{10'000} << next(9);
    if (fault == FaultKind::slow_link) plan.slow_factor = std::uint64_t{2} << next(4);
  }
  if (empty) plan.rate(FaultKind::copy_error).probability = 0.01;
}

}  // namespace

std::uint64_t FaultPlan::draw(FaultKind kind, std::uint64_t index, std::uint64_t stream) const {
  return mixed(mixed(mixed(mixed(seed) ^ static_cast<std::uint64_t>(kind)) ^ stream) ^ index);
}

bool FaultPlan::strikes(FaultKind kind, std::uint64_t index, std::uint64_t stream) const {
  const FaultRate& of_kind = rate(kind);
  if (of_kind.at != FaultRate::never) return of_kind.onwards ? index >= of_kind.at : index == of_kind.at;
  if (of_kind.probability <= 0) return false;
  // 53 bits, exact in a double: below 1.
  return static_cast<double>(draw(kind, index, stream) >> 11) * 0x1p-53 < of_kind.probability;
}

FaultPlan FaultPlan::of_rank(std::size_t rank) const {
  FaultPlan result = *this;
  if (rank > 0) result.seed = mixed(seed ^ mixed(rank));
  return result;
}

Bytes FaultPlan::disk_room(Bytes capacity) const {
  if (disk_percent >= 100 || capacity >= unlimited) return capacity;
  return capacity / 100 * disk_percent + capacity % 100 * disk_percent / 100;
}

FaultPlan parse_fault_plan(std::string_view text) {
  FaultPlan plan;
  std::size_t entries = 0;
  bool seeded = false;
  for (std::size_t begin = 0; begin <= text.size(); ++entries) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    const std::string_view entry = text.substr(begin, comma - begin);
    if (entry.starts_with("seed=") && std::exchange(seeded, true)) fail(entry, "stands twice");
    read_entry(plan, entry);
    begin = comma + 1;
  }
  if (seeded && entries == 1) draw_mixture(plan);
  return plan;
}

std::string to_string(const FaultPlan& plan) {
  std::string text = "seed=" + std::to_string(plan.seed);
  for (std::size_t i = 0; i < fault_kind_count; ++i) {
    const auto kind = static_cast<FaultKind>(i);
    if (!plan.has(kind)) continue;
    text.append(",").append(to_string(kind)).append("=");
    if (kind == FaultKind::disk_full) {
      text += std::to_string(plan.disk_percent) + "%";
      continue;
    }
    text += rate_text(plan.rate(kind));
    if (kind == FaultKind::delay) text.append(":").append(duration_text(plan.delay_ns));
    if (kind == FaultKind::slow_link) text.append(":").append(std::to_string(plan.slow_factor)).append("x");
    if (kind == FaultKind::device_gone && !plan.gone_tier.empty()) text.append(":").append(plan.gone_tier);
  }
  if (text.find(',') == std::string::npos) text += ",copy_error=0";  // a seed alone is a mixture
  return text;
}

std::string to_string(const FaultCounts& counts) {
  std::string text;
  for (std::size_t i = 0; i < fault_kind_count; ++i) {
    if (counts[i] != 0)
      text += (text.empty() ? "" : ", ") + std::to_string(counts[i]) + " " + std::string(enum_texts<FaultKind>[i]);
  }
  return text.empty() ? "none" : text;
}

FaultInjector::FaultInjector(FaultPlan plan, const MachineSpec& spec) : plan_(std::move(plan)), spec_(spec) {
  const std::uint64_t drawn = plan_.draw(FaultKind::device_gone, 0) % spec.tiers.size();
  if (plan_.gone_tier.empty()) gone_tier_ = static_cast<TierId>(drawn);
  std::string valid;
  for (std::size_t tier = 0; tier < spec.tiers.size(); ++tier) {
    if (spec.tiers[tier].name == plan_.gone_tier) gone_tier_ = static_cast<TierId>(tier);
    valid += (valid.empty() ? "" : ", ") + spec.tiers[tier].name;
  }
  if (gone_tier_ == no_tier) {
    throw Error("fault plan: device_gone: machine '" + spec.name + "' has no tier '" + plan_.gone_tier +
                "'; its tiers are " + valid);
  }
}

bool FaultInjector::met(FaultKind kind, std::uint64_t index, std::uint64_t stream) {
  if (!plan_.strikes(kind, index, stream)) return false;
  count(kind);
  return true;
}

CopyFault FaultInjector::next_copy(LinkId id) {
  const Link& link = spec_.links[id];
  const std::uint64_t index = copies_++;
  CopyFault fault;
  if (met(FaultKind::delay, index)) fault.delay_ns = plan_.delay_ns;
  if (met(FaultKind::slow_link, copies_of_link_[id]++ / FaultPlan::slow_group, id)) {
    fault.slow_factor = plan_.slow_factor;
  }
  if (!gone_ && met(FaultKind::device_gone, index)) gone_ = true;
  if (is_gone(link)) {
    fault.failure = FaultKind::device_gone;
    return fault;
  }
  if (met(FaultKind::copy_error, index)) {
    fault.failure = FaultKind::copy_error;
    return fault;
  }
  const bool reads = spec_.tiers[link.from].kind == TierKind::nvme;
  if (!reads && spec_.tiers[link.to].kind != TierKind::nvme) return fault;
  const FaultKind quiet = reads ? FaultKind::short_read : FaultKind::torn_write;
  if (met(FaultKind::io_error, index)) {
    fault.in_file = FaultKind::io_error;
  } else if (met(quiet, index)) {
    fault.in_file = quiet;
  }
  if (fault.in_file) fault.block = plan_.draw(*fault.in_file, index, 1);
  return fault;
}

void FaultInjector::next_room(TierId tier, Bytes bytes) {
  if (!met(FaultKind::no_memory, rooms_++)) return;
  throw Error("tier '" + spec_.tiers[tier].name + "' has no memory for " + format_bytes(bytes) + " (injected)");
}

std::string FaultInjector::reason(FaultKind kind, LinkId id) const {
  const Link& link = spec_.links[id];
  const std::string of_link = "link '" + link.name + "': ";
  switch (kind) {
    case FaultKind::device_gone:
      return of_link + "the device of tier '" + spec_.tiers[gone_tier_].name + "' is gone (injected)";
    case FaultKind::torn_write:
      return of_link + "the checksum of what was read is wrong";
    default:
      return of_link + std::string(to_string(kind)) + " (injected)";
  }
}

}  // namespace tencache
