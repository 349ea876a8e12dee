#include "policies/planning/linear_program.h"

#include <cstddef>

#include "core/check.h"

namespace tencache {
namespace {

constexpr double tolerance = 1e-9;

// basic = limit - sum over free variables of row × free; the last row is the objective, negated.
class Tableau {
 public:
  Tableau(const LinearProgram& program, bool with_artificial)
      : free_count_(program.cost.size() + (with_artificial ? 1 : 0)) {
    for (std::size_t i = 0; i < program.rows.size(); ++i) {
      std::vector<double> row = program.rows[i];
      TENCACHE_CHECK(row.size() == program.cost.size());
      if (with_artificial) row.push_back(-1);
      row.push_back(program.limits[i]);
      cells_.push_back(std::move(row));
      basic_.push_back(free_count_ + i);
    }
    for (std::size_t i = 0; i < free_count_; ++i) free_.push_back(i);
  }

  // `cost` by variable, slacks cost nothing.
  void set_cost(const std::vector<double>& cost) {
    std::vector<double> row(free_count_ + 1, 0.0);
    const auto of = [&](std::size_t variable) { return variable < cost.size() ? cost[variable] : 0; };
    for (std::size_t j = 0; j < free_count_; ++j) row[j] = of(free_[j]);
    for (std::size_t i = 0; i < basic_.size(); ++i) {
      const double each = of(basic_[i]);
      for (std::size_t j = 0; j < free_count_; ++j) row[j] -= each * cells_[i][j];
      row[free_count_] -= each * cells_[i][free_count_];
    }
    objective_ = std::move(row);
  }

  // False: unbounded.
  bool minimise() {
    for (;;) {
      std::size_t enter = free_count_;
      for (std::size_t j = 0; j < free_count_; ++j) {
        if (objective_[j] < -tolerance && (enter == free_count_ || free_[j] < free_[enter])) enter = j;
      }
      if (enter == free_count_) return true;
      std::size_t leave = basic_.size();
      double least = 0;
      for (std::size_t i = 0; i < basic_.size(); ++i) {
        if (cells_[i][enter] <= tolerance) continue;
        const double ratio = cells_[i][free_count_] / cells_[i][enter];
        const bool smaller = leave == basic_.size() || ratio < least - tolerance;
        if (!smaller && !(ratio <= least + tolerance && basic_[i] < basic_[leave])) continue;
        if (leave == basic_.size() || ratio < least) least = ratio;
        leave = i;
      }
      if (leave == basic_.size()) return false;
      pivot(leave, enter);
    }
  }

  void pivot(std::size_t leave, std::size_t enter) {
    std::vector<double>& row = cells_[leave];
    const double by = row[enter];
    row[enter] = 1;
    for (double& cell : row) cell /= by;
    const auto reduce = [&](std::vector<double>& other) {
      const double factor = other[enter];
      other[enter] = 0;
      for (std::size_t j = 0; j <= free_count_; ++j) other[j] -= factor * row[j];
    };
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      if (i != leave) reduce(cells_[i]);
    }
    reduce(objective_);
    std::swap(basic_[leave], free_[enter]);
  }

  // The variable becomes free, if it is basic; which other one becomes basic is open.
  void drive_out(std::size_t variable) {
    for (std::size_t i = 0; i < basic_.size(); ++i) {
      if (basic_[i] != variable) continue;
      for (std::size_t j = 0; j < free_count_; ++j) {
        if (cells_[i][j] > tolerance || cells_[i][j] < -tolerance) return pivot(i, j);
      }
    }
  }
  // It stays 0.
  void fix(std::size_t variable) {
    for (std::size_t j = 0; j < free_count_; ++j) {
      if (free_[j] != variable) continue;
      for (std::vector<double>& row : cells_) row[j] = 0;
    }
  }

  std::size_t row_of_least_limit() const {
    std::size_t least = 0;
    for (std::size_t i = 1; i < cells_.size(); ++i) {
      if (cells_[i][free_count_] < cells_[least][free_count_]) least = i;
    }
    return least;
  }
  double limit(std::size_t row) const { return cells_[row][free_count_]; }
  double value(std::size_t variable) const {
    for (std::size_t i = 0; i < basic_.size(); ++i) {
      if (basic_[i] == variable) return cells_[i][free_count_];
    }
    return 0;
  }

 private:
  std::size_t free_count_;
  std::vector<std::vector<double>> cells_;
  std::vector<double> objective_;
  std::vector<std::size_t> basic_, free_;
};

}  // namespace

std::optional<std::vector<double>> solve(const LinearProgram& program) {
  TENCACHE_CHECK(program.rows.size() == program.limits.size() && !program.rows.empty());
  const std::size_t variables = program.cost.size(), artificial = variables;
  // Rows are relaxed by one more variable until all can hold; then it is driven to 0.
  Tableau tableau(program, true);
  std::vector<double> cost(variables + 1, 0.0);
  cost[artificial] = 1;
  tableau.set_cost(cost);
  if (const std::size_t row = tableau.row_of_least_limit(); tableau.limit(row) < 0) tableau.pivot(row, artificial);
  if (!tableau.minimise() || tableau.value(artificial) > tolerance) return std::nullopt;
  tableau.drive_out(artificial);
  cost = program.cost;
  cost.push_back(0);
  tableau.fix(artificial);
  tableau.set_cost(cost);
  if (!tableau.minimise()) return std::nullopt;
  std::vector<double> x(variables);
  for (std::size_t i = 0; i < variables; ++i) x[i] = tableau.value(i);
  return x;
}

}  // namespace tencache
