// Where a yes turns into a no, asked for as few times as can be.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

namespace tencache {

// Of two values, of which one fits and the other, larger or smaller, does not: the last that fits, by bisection.
std::uint64_t last_that_fits(std::uint64_t fits_at, std::uint64_t misfits_at,
                             const std::function<bool(std::uint64_t)>& fits);

// The least that is enough, above what is too little. `missing`: none if so much is enough, else how much lacked. That
// is often all that lacks, so a trial follows it, and the next looks just below if it was enough. All other trials are
// in the middle: at least every third, more of them after each guess that was wrong, and wherever what lacked is less
// than a 512th of what is left to search. `within`: what is returned may be too much by 1/within of it; 0: it is exact.
std::uint64_t least_that_fits(std::uint64_t enough, std::uint64_t too_little,
                              const std::function<std::optional<std::uint64_t>(std::uint64_t)>& missing,
                              std::uint64_t within = 0);

// The same where the answer is thought to lie near `too_little`: in steps that grow from there, or by what lacked in the
// step before if that is more, then as above within the last step. `lacked`: at `too_little`, if that is known.
std::uint64_t least_that_fits_near(std::uint64_t enough, std::uint64_t too_little,
                                   const std::function<std::optional<std::uint64_t>(std::uint64_t)>& missing,
                                   std::uint64_t lacked = 0, std::uint64_t within = 0);

}  // namespace tencache
