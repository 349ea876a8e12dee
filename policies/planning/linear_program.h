// Small dense linear programs: the simplex method on the full tableau (Dantzig 1951) with Bland's rule, which always
// ends (Bland 1977). For tens of variables.
#pragma once

#include <optional>
#include <vector>

namespace tencache {

struct LinearProgram {
  // Minimise cost · x over x >= 0 with rows[i] · x <= limits[i].
  std::vector<double> cost;
  std::vector<std::vector<double>> rows;
  std::vector<double> limits;
};

// x; nullopt: no x satisfies the rows, or the minimum is not bounded.
std::optional<std::vector<double>> solve(const LinearProgram& program);

}  // namespace tencache
