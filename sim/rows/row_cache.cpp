#include "sim/rows/row_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/text.h"

namespace tencache {
namespace {

constexpr std::array all_policies = {
    RowPolicy{RowPolicyKind::cached_embedding, "cached-embedding",
              "CachedEmbedding, LFU: victims by lookups since they came in", 16, 16, 1},
    RowPolicy{RowPolicyKind::cached_embedding_dataset, "cached-embedding-dataset",
              "CachedEmbedding, DATASET: the rows that the data set uses most stay", 16, 16, 1},
    RowPolicy{RowPolicyKind::uvm_lru, "uvm-lru", "TorchRec's fused UVM cache: sets of 32 slots, least recently used", 4,
              16, 0},
    RowPolicy{RowPolicyKind::uvm_lfu, "uvm-lfu", "the same, least frequently used: a row enters only if used as often",
              12, 16, 0},
    RowPolicy{RowPolicyKind::scratchpipe, "scratchpipe", "ScratchPipe: rows come in batches ahead, in a pipeline", 4, 9,
              2},
    RowPolicy{RowPolicyKind::belady, "belady", "a bound: keeps the rows whose next use is nearest", 0, 0, 0},
};

// In ascending order: what goes first, then what of equal ones does.
constexpr std::uint64_t pack(std::uint32_t key, std::uint32_t tie) { return std::uint64_t{key} << 32 | tie; }
constexpr std::uint32_t low_half(std::uint64_t packed) { return static_cast<std::uint32_t>(packed); }

// Moves the `count` smallest to the front, in no order that depends on anything but the values.
void smallest_first(std::vector<std::uint64_t>& values, std::size_t count) {
  const auto end = values.begin() + static_cast<std::ptrdiff_t>(count);
  if (count < values.size()) std::ranges::nth_element(values, end);
  std::sort(values.begin(), end);
}

// Any row in any slot.
class FlatCache : public RowCache {
 public:
  std::uint32_t slot_of(Row row) const final { return slot_of_row_[row]; }

 protected:
  FlatCache(const RowIds& ids, const RowCacheOptions& options)
      : RowCache(options.slots), ids_(ids), slot_of_row_(ids.rows(), no_slot), row_of_slot_(slots_) {}

  bool is_used(std::uint32_t slot) const { return slot < used_; }
  std::uint32_t free_slots() const { return slots_ - used_; }
  Row row_in(std::uint32_t slot) const { return row_of_slot_[slot]; }

  std::uint32_t enter(Row row, std::uint32_t slot) {
    slot_of_row_[row] = slot;
    row_of_slot_[slot] = row;
    return slot;
  }
  std::uint32_t enter_free(Row row) { return enter(row, used_++); }
  void leave(std::uint32_t slot, RowPlan& plan) {
    plan.out.push_back({row_of_slot_[slot], slot});
    slot_of_row_[row_of_slot_[slot]] = no_slot;
  }
  void warm_up(Row row) { warm_.push_back({row, enter_free(row)}); }

  // The missing rows enter: into free slots, then into those of victims.
  void replace(const std::vector<Row>& missing, const std::vector<std::uint32_t>& victims, RowPlan& plan) {
    for (const std::uint32_t slot : victims) leave(slot, plan);
    const std::size_t into_free = missing.size() - victims.size();
    for (std::size_t i = 0; i < missing.size(); ++i) {
      plan.in.push_back(
          {missing[i], i < into_free ? enter_free(missing[i]) : enter(missing[i], victims[i - into_free])});
    }
  }

  const RowIds& ids_;

 private:
  std::vector<std::uint32_t> slot_of_row_;
  std::vector<Row> row_of_slot_;
  std::uint32_t used_ = 0;  // slots from 0 on; none becomes free again but to be filled at once
};

// Caches that hold all that a window of batches needs.
class WindowCache : public FlatCache {
 protected:
  WindowCache(const RowIds& ids, const RowCacheOptions& options) : FlatCache(ids, options), needed_(slots_, 0) {}

  [[noreturn]] void fail(std::size_t first, std::size_t last, std::uint64_t rows, const char* remedy) const {
    throw TooFewSlots(
        ids_.file(), 0,
        fmt::format("batches {} to {} need {} different rows at once, more than {} slots: raise --slots to "
                    "that, or {}",
                    first + 1, last, rows, slots_, remedy));
  }

  // Victims among the slots that no batch from `since` on needs.
  template <typename KeyOf>
  const std::vector<std::uint32_t>& victims(std::uint32_t count, std::uint32_t since, KeyOf key_of) {
    candidates_.clear();
    chosen_.clear();
    if (count == 0) return chosen_;
    for (std::uint32_t slot = 0; is_used(slot); ++slot) {
      if (needed_[slot] <= since) candidates_.push_back(key_of(slot));
    }
    if (candidates_.size() < count) return chosen_;
    smallest_first(candidates_, count);
    for (std::uint32_t i = 0; i < count; ++i) chosen_.push_back(low_half(candidates_[i]));
    return chosen_;
  }

  std::vector<std::uint32_t> needed_;  // of each slot 1 + the last batch that is known to need it; 0: none
  std::vector<Row> missing_;

 private:
  std::vector<std::uint64_t> candidates_;
  std::vector<std::uint32_t> chosen_;
};

class CachedEmbedding final : public WindowCache {
 public:
  CachedEmbedding(const RowIds& ids, const RowCacheOptions& options, bool dataset)
      : WindowCache(ids, options), window_(std::max(options.ahead, 1u)), dataset_(dataset), lookups_(slots_, 0) {
    const auto wanted = static_cast<std::uint32_t>(std::ceil(slots_ * options.warm_up));
    const std::uint32_t rows = std::min({wanted, slots_, ids.rows()});
    if (dataset) {
      count_data_set(rows);
    } else {
      for (Row row = 0; row < rows; ++row) warm_up(row);
    }
  }

  void plan(std::size_t batch, RowPlan& plan) override {
    plan.clear();
    if (batch % window_ != 0) return;
    const std::size_t last = std::min(batch + window_, ids_.batches());
    std::span<const Row> rows = ids_.batch(batch);
    std::span<const std::uint32_t> counts = ids_.counts(batch), first_counts = counts;
    if (window_ > 1) {
      ids_.unite(batch, last, united_);
      rows = united_.rows;
      counts = united_.counts;
      first_counts = united_.first_counts;
    }
    if (rows.size() > slots_) {
      fail(batch, last, rows.size(), window_ > 1 ? "lower --ahead" : "make batches smaller");
    }
    const auto now = static_cast<std::uint32_t>(batch);
    missing_.clear();
    missing_counts_.clear();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::uint32_t slot = slot_of(rows[i]);
      if (slot == no_slot) {
        missing_.push_back(rows[i]);
        missing_counts_.push_back(counts[i]);
        plan.missed_lookups += first_counts[i];
      } else {
        needed_[slot] = now + 1;
        lookups_[slot] += counts[i];
      }
    }
    const auto wanted = static_cast<std::uint32_t>(missing_.size());
    const std::uint32_t leaving = wanted - std::min(wanted, free_slots());
    replace(missing_,
            dataset_ ? victims_of_data_set(leaving, now)
                     : victims(leaving, now, [&](std::uint32_t slot) { return pack(lookups_[slot], slot); }),
            plan);
    for (std::size_t i = 0; i < plan.in.size(); ++i) {
      needed_[plan.in[i].slot] = now + 1;
      lookups_[plan.in[i].slot] = missing_counts_[i];
    }
  }

 private:
  const std::vector<std::uint32_t>& victims_of_data_set(std::uint32_t count, std::uint32_t now) {
    victims_ =
        victims(count, now, [&](std::uint32_t slot) { return pack(uses_[row_in(slot)], most_rows - row_in(slot)); });
    for (std::uint32_t& row : victims_) row = slot_of(most_rows - row);
    return victims_;
  }

  void count_data_set(std::uint32_t warm_rows) {
    uses_.assign(ids_.rows(), 0);
    for (std::size_t batch = 0; batch < ids_.batches(); ++batch) {
      const auto rows = ids_.batch(batch);
      const auto counts = ids_.counts(batch);
      for (std::size_t i = 0; i < rows.size(); ++i) uses_[rows[i]] += counts[i];
    }
    std::vector<std::uint64_t> used;
    for (Row row = 0; row < ids_.rows(); ++row) {
      if (uses_[row] > 0) used.push_back(pack(~uses_[row], row));
    }
    const std::size_t most_used = std::min<std::size_t>(warm_rows, used.size());
    smallest_first(used, most_used);
    for (std::size_t i = 0; i < most_used; ++i) warm_up(low_half(used[i]));
    for (Row row = 0; warm_.size() < warm_rows; ++row) {
      if (uses_[row] == 0) warm_up(row);
    }
  }

  std::size_t window_;
  bool dataset_;
  std::vector<std::uint32_t> lookups_;  // of each slot, since its row came in
  std::vector<std::uint32_t> uses_;     // of each row, in the whole data set
  RowIds::United united_;
  std::vector<std::uint32_t> missing_counts_, victims_;
};

class ScratchPipe final : public WindowCache {
 public:
  ScratchPipe(const RowIds& ids, const RowCacheOptions& options)
      : WindowCache(ids, options), ahead_(options.ahead), last_of_row_(ids.rows(), 0) {}

  void plan(std::size_t batch, RowPlan& plan) override {
    plan.clear();
    for (; looked_at_ < std::min<std::size_t>(batch + ahead_ + 1, ids_.batches()); ++looked_at_) {
      for (const Row row : ids_.batch(looked_at_)) {
        last_of_row_[row] = static_cast<std::uint32_t>(looked_at_ + 1);
        if (slot_of(row) != no_slot) needed_[slot_of(row)] = last_of_row_[row];
      }
    }
    const std::span<const Row> rows = ids_.batch(batch);
    missing_.clear();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (slot_of(rows[i]) != no_slot) continue;
      missing_.push_back(rows[i]);
      plan.missed_lookups += ids_.counts(batch)[i];
    }
    const auto wanted = static_cast<std::uint32_t>(missing_.size());
    const std::uint32_t leaving = wanted - std::min(wanted, free_slots());
    const auto since = static_cast<std::uint32_t>(batch - std::min<std::size_t>(batch, scratchpipe_behind));
    const auto& leave = victims(leaving, since, [&](std::uint32_t slot) { return pack(needed_[slot], slot); });
    if (leave.size() < leaving) {
      RowIds::United united;
      ids_.unite(since, looked_at_, united);
      fail(since, looked_at_, united.rows.size(), "lower --ahead");
    }
    replace(missing_, leave, plan);
    for (const RowMove& in : plan.in) needed_[in.slot] = last_of_row_[in.row];
  }

 private:
  std::uint32_t ahead_;
  std::size_t looked_at_ = 0;               // batches that the pipe has seen the ids of
  std::vector<std::uint32_t> last_of_row_;  // of each row 1 + the last of these that has it
};

class Belady final : public FlatCache {
 public:
  Belady(const RowIds& ids, const RowCacheOptions& options)
      : FlatCache(ids, options), next_uses_(ids.next_uses()), next_(slots_, RowIds::never) {}

  void plan(std::size_t batch, RowPlan& plan) override {
    plan.clear();
    const std::span<const Row> rows = ids_.batch(batch);
    const std::uint64_t begin = ids_.begin_of(batch);
    missing_.clear();
    for (std::uint32_t i = 0; i < rows.size(); ++i) {
      const std::uint32_t slot = slot_of(rows[i]);
      if (slot == no_slot) {
        missing_.push_back(i);
        plan.missed_lookups += ids_.counts(batch)[i];
      } else {
        next_[slot] = next_uses_[begin + i];
      }
    }
    const std::size_t dropped = missing_.size() - std::min<std::size_t>(missing_.size(), free_slots());
    // The furthest next use first, of equal ones missing rows: then nothing moves.
    candidates_.clear();
    for (std::uint32_t i = 0; dropped > 0 && i < missing_.size(); ++i) {
      candidates_.push_back(pack(~next_uses_[begin + missing_[i]], i));
    }
    for (std::uint32_t slot = 0; dropped > 0 && is_used(slot); ++slot) {
      candidates_.push_back(pack(~next_[slot], cached_ | slot));
    }
    smallest_first(candidates_, dropped);
    victims_.clear();
    for (std::size_t i = 0; i < dropped; ++i) {
      const std::uint32_t at = low_half(candidates_[i]);
      if ((at & cached_) != 0) {
        victims_.push_back(at & ~cached_);
      } else {
        plan.direct.push_back(rows[missing_[at]]);
        missing_[at] = stays_out_;
      }
    }
    entering_.clear();
    entering_next_.clear();
    for (const std::uint32_t i : missing_) {
      if (i == stays_out_) continue;
      entering_.push_back(rows[i]);
      entering_next_.push_back(next_uses_[begin + i]);
    }
    replace(entering_, victims_, plan);
    for (std::size_t i = 0; i < plan.in.size(); ++i) next_[plan.in[i].slot] = entering_next_[i];
  }

 private:
  static constexpr std::uint32_t cached_ = 0x8000'0000, stays_out_ = 0xffff'ffff;

  std::vector<std::uint32_t> next_uses_, next_;  // of each row of each batch; of each slot
  std::vector<std::uint32_t> missing_, victims_, entering_next_;
  std::vector<Row> entering_;
  std::vector<std::uint64_t> candidates_;
};

// A row in one of the 32 slots of its set.
class UvmCache final : public RowCache {
 public:
  UvmCache(const RowIds& ids, const RowCacheOptions& options, bool lfu)
      : RowCache(sets_for(options.slots) * uvm_set_slots),
        ids_(ids),
        sets_(sets_for(options.slots)),
        ahead_(options.ahead),
        lfu_(lfu),
        rows_(slots_, empty),
        used_(slots_, 0),
        keys_(lfu ? slots_ : 0, 0),
        lookups_(lfu ? ids.rows() : 0, 0) {}

  std::uint32_t slot_of(Row row) const override {
    const std::uint32_t begin = set_of(row) * uvm_set_slots;
    std::uint32_t found = no_slot;
    for (std::uint32_t slot = begin; slot < begin + uvm_set_slots; ++slot) {
      if (rows_[slot] == row) found = slot;
    }
    return found;
  }

  void plan(std::size_t batch, RowPlan& plan) override {
    plan.clear();
    const std::span<const Row> rows = ids_.batch(batch);
    const std::span<const std::uint32_t> counts = ids_.counts(batch);
    const auto now = static_cast<std::uint32_t>(batch + 1);  // 0: never used
    missing_.clear();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (lfu_) lookups_[rows[i]] += counts[i];
      const std::uint32_t slot = slot_of(rows[i]);
      if (slot == no_slot) {
        missing_.push_back(lfu_ ? pack(~lookups_[rows[i]], rows[i]) : rows[i]);
        plan.missed_lookups += counts[i];
      } else {
        used_[slot] = now;
        if (lfu_) keys_[slot] = lookups_[rows[i]];
      }
    }
    if (lfu_) std::ranges::sort(missing_);
    const std::uint32_t locked = now - std::min(now - 1, ahead_);
    const std::vector<std::uint32_t>& keys = lfu_ ? keys_ : used_;
    for (const std::uint64_t packed : missing_) {
      const Row row = low_half(packed);
      const std::uint32_t slot = victim(set_of(row) * uvm_set_slots, locked, keys);
      if (slot == no_slot || (lfu_ && rows_[slot] != empty && keys_[slot] > lookups_[row])) {
        plan.direct.push_back(row);
        continue;
      }
      if (rows_[slot] != empty) plan.out.push_back({rows_[slot], slot});
      plan.in.push_back({row, slot});
      rows_[slot] = row;
      used_[slot] = now;
      if (lfu_) keys_[slot] = lookups_[row];
    }
  }

 private:
  static constexpr Row empty = 0xffff'ffff;

  static std::uint32_t sets_for(std::uint32_t slots) { return (slots + uvm_set_slots - 1) / uvm_set_slots; }

  std::uint32_t set_of(Row row) const {
    std::uint64_t hash = row;
    hash = (hash ^ (hash >> 33)) * 0xff51afd7ed558ccd;
    hash = (hash ^ (hash >> 33)) * 0xc4ceb9fe1a85ec53;
    return static_cast<std::uint32_t>((hash ^ (hash >> 33)) % sets_);
  }

  // The smallest key of those that are not in use since `locked`; an empty slot has 0, and its use as well.
  std::uint32_t victim(std::uint32_t begin, std::uint32_t locked, const std::vector<std::uint32_t>& keys) const {
    std::uint64_t best = ~std::uint64_t{0};
    for (std::uint32_t slot = begin; slot < begin + uvm_set_slots; ++slot) {
      const std::uint64_t at = used_[slot] >= locked ? ~std::uint64_t{0} : pack(keys[slot], slot);
      best = std::min(best, at);
    }
    return low_half(best);
  }

  const RowIds& ids_;
  std::uint32_t sets_, ahead_;
  bool lfu_;
  std::vector<Row> rows_;                   // of each slot
  std::vector<std::uint32_t> used_, keys_;  // of each slot: 1 + the last batch that used it; LFU: its row's lookups
  std::vector<std::uint32_t> lookups_;      // LFU: of each row, from the beginning
  std::vector<std::uint64_t> missing_;
};

}  // namespace

std::span<const RowPolicy> row_policies() { return all_policies; }

const RowPolicy& row_policy(const std::string& name) {
  std::vector<std::string> names;
  for (const RowPolicy& policy : all_policies) {
    if (policy.name == name) return policy;
    names.emplace_back(policy.name);
  }
  throw Error(fmt::format("unknown row policy '{}'; there are {}", name, join(names)));
}

void RowPlan::clear() {
  missed_lookups = 0;
  out.clear();
  in.clear();
  direct.clear();
}

std::unique_ptr<RowCache> make_row_cache(const RowPolicy& policy, const RowIds& ids, const RowCacheOptions& options) {
  switch (policy.kind) {
    case RowPolicyKind::cached_embedding:
    case RowPolicyKind::cached_embedding_dataset:
      return std::make_unique<CachedEmbedding>(ids, options, policy.kind == RowPolicyKind::cached_embedding_dataset);
    case RowPolicyKind::uvm_lru:
    case RowPolicyKind::uvm_lfu:
      return std::make_unique<UvmCache>(ids, options, policy.kind == RowPolicyKind::uvm_lfu);
    case RowPolicyKind::scratchpipe:
      return std::make_unique<ScratchPipe>(ids, options);
    case RowPolicyKind::belady:
      break;
  }
  return std::make_unique<Belady>(ids, options);
}

std::uint64_t enough_row_slots(const RowPolicy& policy, const RowIds& ids, std::uint32_t ahead) {
  switch (policy.kind) {
    case RowPolicyKind::cached_embedding:
    case RowPolicyKind::cached_embedding_dataset:
      return ids.largest_union(std::max(ahead, 1u), true);
    case RowPolicyKind::scratchpipe:
      return ids.largest_union(scratchpipe_behind + 1 + ahead, false);
    case RowPolicyKind::uvm_lru:
    case RowPolicyKind::uvm_lfu:
    case RowPolicyKind::belady:
      break;
  }
  return 0;
}

}  // namespace tencache
