#include "gui/model/run.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "answers/timeline/transfer_uses.h"
#include "core/recompute.h"

namespace tencache::gui {
namespace {

// Lists of span indices by id, `none` and unknown ids left out; spans come in the order of `order`.
template <typename IdOf>
void group(const std::vector<std::uint32_t>& order, std::size_t ids, IdOf id_of, std::vector<std::uint32_t>& list,
           std::vector<std::uint32_t>& first) {
  first.assign(ids + 1, 0);
  for (const std::uint32_t span : order) {
    const std::uint32_t id = id_of(span);
    if (id < ids) ++first[id + std::size_t{1}];
  }
  std::partial_sum(first.begin(), first.end(), first.begin());
  list.resize(first.back());
  std::vector<std::uint32_t> next(first.begin(), first.end() - 1);
  for (const std::uint32_t span : order) {
    const std::uint32_t id = id_of(span);
    if (id < ids) list[next[id]++] = span;
  }
}

}  // namespace

Run::Run(Recording recording)
    : recording_(std::move(recording)),
      again_(recomputed_ops(recording_.trace)),
      occupancy_(recording_.timeline, recording_.machine.tiers.size()) {
  make_tracks();
  find_iterations();
  find_steps();
  index_spans();
  match_uses();
  add_up_traffic();
}

void Run::add_up_traffic() {
  arrivals_.resize(tracks_.size());
  for (std::size_t t = 0; t < tracks_.size(); ++t) {
    if (!tracks_[t].is_link()) continue;
    std::vector<Arrival>& arrivals = arrivals_[t];
    arrivals.reserve(tracks_[t].items().size());
    for (const TrackItem& item : tracks_[t].items()) arrivals.push_back({item.end_ns, spans()[item.span].bytes});
    std::ranges::sort(arrivals, {}, &Arrival::end_ns);
    for (std::size_t i = 1; i < arrivals.size(); ++i) arrivals[i].bytes += arrivals[i - 1].bytes;
  }
}

Bytes Run::moved(std::size_t track, Nanoseconds begin_ns, Nanoseconds end_ns) const {
  const std::vector<Arrival>& arrivals = arrivals_[track];
  const auto until = [&arrivals](Nanoseconds time) {
    const auto after = std::ranges::upper_bound(arrivals, time, {}, &Arrival::end_ns);
    return after == arrivals.begin() ? Bytes{0} : std::prev(after)->bytes;
  };
  return end_ns <= begin_ns ? 0 : until(end_ns) - until(begin_ns);
}

void Run::make_tracks() {
  const std::vector<Span>& all = spans();
  std::vector<std::size_t> counts(first_link_lane + machine().links.size(), 0);
  for (const Span& span : all) {
    if (span.lane < counts.size()) ++counts[span.lane];
  }
  std::vector<std::size_t> track_of(counts.size(), none);
  for (std::size_t lane = 0; lane < counts.size(); ++lane) {
    if (counts[lane] == 0 && lane != 0) continue;
    std::string name = lane == gpu_lane ? "GPU" : lane == cpu_lane ? "CPU" : "GPU, communication";
    if (lane >= first_link_lane) {
      const Link& link = machine().links[lane - first_link_lane];
      name = tier_name(link.from) + std::string(" to ").append(tier_name(link.to));
    }
    track_of[lane] = tracks_.size();
    tracks_.emplace_back(std::move(name), static_cast<std::uint8_t>(lane));
    tracks_.back().reserve(counts[lane]);
  }
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    const Span& span = all[i];
    if (span.lane >= counts.size()) continue;
    TrackItem item{span.start_ns, span.end_ns, i, 0, 0};
    switch (span.kind) {
      case SpanKind::op:
        if (span.op >= trace().ops.size()) break;
        item.slot = recomputes(span.op) ? recompute_slot : static_cast<std::uint8_t>(trace().ops[span.op].phase);
        break;
      case SpanKind::gap:
        item.slot = gap_slot;
        break;
      case SpanKind::stall:
        item.slot = static_cast<std::uint8_t>(slot_of(span.cause));
        break;
      case SpanKind::transfer:
        item.slot = span.urgent ? urgent_slot : ahead_slot;
        break;
      case SpanKind::move:
        continue;  // what waits for it is drawn there: a stall of the GPU, or a link before its copy
    }
    tracks_[track_of[span.lane]].add(item);
  }
  for (Track& track : tracks_) track.finish();
}

void Run::find_iterations() {
  std::map<std::uint64_t, Nanoseconds> begins;
  Nanoseconds end = 0;
  for (const Span& span : spans()) {
    if (span.lane != 0) continue;
    const auto [place, is_new] = begins.emplace(span.iteration, span.start_ns);
    if (!is_new) place->second = std::min(place->second, span.start_ns);
    end = std::max(end, span.end_ns);
  }
  if (begins.empty()) begins.emplace(0, 0);
  for (const auto& [iteration, begin] : begins) {
    iteration_ids_.push_back(iteration);
    boundaries_.push_back(begin);
  }
  boundaries_.push_back(std::max(end, boundaries_.back()));
}

void Run::find_steps() {
  std::vector<const Span*> ops;
  for (const Span& span : spans()) {
    if (span.kind != SpanKind::op || span.op >= trace().ops.size()) continue;
    const Phase phase = trace().ops[span.op].phase;
    if (phase == Phase::prefill || phase == Phase::decode) ops.push_back(&span);
  }
  std::ranges::stable_sort(ops, {}, &Span::start_ns);
  const Span* last = nullptr;
  for (const Span* span : ops) {
    const Op& op = trace().ops[span->op];
    const std::uint32_t step = trace().detail(op).step;
    const bool same = last != nullptr && span->iteration == last->iteration && op.phase == steps_.back().phase &&
                      step == steps_.back().step;
    if (!same) steps_.push_back({span->start_ns, op.phase, step});
    last = span;
  }
}

void Run::index_spans() {
  const std::vector<Span>& all = spans();
  std::vector<std::uint32_t> order(all.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&all](std::uint32_t a, std::uint32_t b) {
    return std::tie(all[a].start_ns, a) < std::tie(all[b].start_ns, b);
  });
  group(
      order, trace().ops.size(), [&](std::uint32_t i) { return all[i].kind == SpanKind::op ? all[i].op : none; },
      spans_of_op_, first_of_op_);
  group(
      order, trace().tensors.size(),
      [&](std::uint32_t i) { return all[i].kind == SpanKind::transfer ? all[i].tensor : none; }, transfers_,
      first_of_tensor_);
}

void Run::match_uses() {
  used_by_.assign(spans().size(), none);
  for_each_first_use(recording_.timeline, machine(), trace(),
                     [this](std::uint32_t transfer, std::uint32_t op) { used_by_[transfer] = op; });
}

std::vector<std::uint32_t> Run::brought_for(std::uint32_t op_span) const {
  std::vector<std::uint32_t> list;
  const Span& span = spans()[op_span];
  if (span.kind != SpanKind::op || span.op >= trace().ops.size()) return list;
  const Op& op = trace().ops[span.op];
  for (const std::span<const TensorId> tensors : {trace().reads(op), trace().writes(op)}) {
    for (const TensorId tensor : tensors) {
      for (const std::uint32_t transfer : transfers_of(tensor)) {
        if (used_by_[transfer] == op_span) list.push_back(transfer);
      }
    }
  }
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return list;
}

std::string_view Run::op_name(OpIndex op) const {
  return op < trace().ops.size() ? std::string_view(trace().name(trace().ops[op])) : std::string_view();
}
std::string_view Run::module_name(OpIndex op) const {
  return op < trace().ops.size() ? std::string_view(trace().module(trace().ops[op])) : std::string_view();
}
std::string_view Run::tensor_name(TensorId tensor) const {
  return tensor < trace().tensors.size() ? std::string_view(trace().name(trace().tensors[tensor])) : std::string_view();
}
std::string_view Run::tier_name(TierId tier) const {
  return tier < machine().tiers.size() ? std::string_view(machine().tiers[tier].name) : std::string_view();
}

std::size_t Run::memory_bytes() const {
  const auto of = [](const auto& list) { return list.capacity() * sizeof(list[0]); };
  std::size_t bytes = of(steps_) + of(recording_.timeline.spans) + of(recording_.timeline.occupancy) +
                      of(spans_of_op_) + of(first_of_op_) + of(transfers_) + of(first_of_tensor_) + of(used_by_) +
                      of(trace().ops) + of(trace().tensors) + of(trace().accesses);
  for (const Track& track : tracks_) bytes += track.memory_bytes();
  for (const std::vector<Arrival>& arrivals : arrivals_) bytes += of(arrivals);
  return bytes;
}

}  // namespace tencache::gui
