// What tencache.EmbeddingBag asks before each batch: which rows leave and enter the arena, and where those of the batch
// lie then.
#include <fmt/format.h>

#include <algorithm>

#include "python/bindings.h"
#include "sim/rows/row_cache.h"

namespace tencache {
namespace {

class PlannedRows {
 public:
  PlannedRows(const std::string& policy, std::uint64_t rows, Bytes row_bytes, std::uint64_t slots)
      : ids_("EmbeddingBag", tables_of(rows, row_bytes)) {
    const RowPolicy& chosen = row_policy(policy);
    if (chosen.kind != RowPolicyKind::cached_embedding && chosen.kind != RowPolicyKind::uvm_lru &&
        chosen.kind != RowPolicyKind::uvm_lfu) {
      throw Error(
          fmt::format("row policy '{}' needs ids before they are looked up: take cached-embedding, uvm-lru or "
                      "uvm-lfu",
                      policy));
    }
    RowCacheOptions options;
    options.slots = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(slots, 1, ids_.rows()));
    options.ahead = chosen.ahead;
    options.warm_up = 0;
    cache_ = make_row_cache(chosen, ids_, options);
  }

  std::uint32_t slots() const { return cache_->slots(); }

  // (where each id lies, rows that leave, their slots, rows that enter, their slots, rows without a slot). The latter
  // lie behind the slots, in the order of their list.
  py::tuple plan(const py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>& ids) {
    const std::int64_t* const begin = ids.data();
    std::vector<Row> lookups;
    lookups.reserve(static_cast<std::size_t>(ids.size()));
    for (py::ssize_t i = 0; i < ids.size(); ++i) {
      if (begin[i] < 0 || begin[i] >= ids_.rows()) {
        throw Error(fmt::format("id {} is beyond the table's {} rows", begin[i], ids_.rows()));
      }
      lookups.push_back(static_cast<Row>(begin[i]));
    }
    std::vector<Row> sorted = lookups;
    const std::size_t batch = ids_.batches();
    ids_.forget_before(batch);
    ids_.add_batch(sorted);
    cache_->plan(batch, plan_);
    std::ranges::sort(plan_.direct);
    std::vector<std::int64_t> places, direct(plan_.direct.begin(), plan_.direct.end());
    places.reserve(lookups.size());
    for (const Row row : lookups) {
      const std::uint32_t slot = cache_->slot_of(row);
      const auto behind = std::ranges::lower_bound(plan_.direct, row) - plan_.direct.begin();
      places.push_back(slot != no_slot ? slot : std::int64_t{slots()} + behind);
    }
    return py::make_tuple(to_array(places), numbers(plan_.out, &RowMove::row), numbers(plan_.out, &RowMove::slot),
                          numbers(plan_.in, &RowMove::row), numbers(plan_.in, &RowMove::slot), to_array(direct));
  }

  // (rows, slots) of all that lies in the arena.
  py::tuple held() const {
    std::vector<std::int64_t> rows, slots;
    for (Row row = 0; row < ids_.rows(); ++row) {
      if (const std::uint32_t slot = cache_->slot_of(row); slot != no_slot) rows.push_back(row), slots.push_back(slot);
    }
    return py::make_tuple(to_array(rows), to_array(slots));
  }

 private:
  static std::vector<RowTable> tables_of(std::uint64_t rows, Bytes row_bytes) {
    std::vector<RowTable> tables = {{"table", rows, row_bytes, 0}};
    check_row_tables(tables, "EmbeddingBag");
    return tables;
  }
  static py::array_t<std::int64_t> numbers(const std::vector<RowMove>& moves, std::uint32_t RowMove::*which) {
    std::vector<std::int64_t> values;
    values.reserve(moves.size());
    for (const RowMove& move : moves) values.push_back(move.*which);
    return to_array(values);
  }

  RowIds ids_;
  std::unique_ptr<RowCache> cache_;
  RowPlan plan_;
};

}  // namespace

void bind_rows(py::module_& module) {
  py::class_<PlannedRows>(module, "PlannedRows")
      .def(py::init<const std::string&, std::uint64_t, Bytes, std::uint64_t>(), py::arg("policy"), py::arg("rows"),
           py::arg("row_bytes"), py::arg("slots"))
      .def_property_readonly("slots", &PlannedRows::slots)
      .def("plan", &PlannedRows::plan, py::arg("ids"))
      .def("held", &PlannedRows::held);
}

}  // namespace tencache
