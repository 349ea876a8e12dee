#include "studies/bisection.h"

#include <algorithm>

namespace tencache {

std::uint64_t last_that_fits(std::uint64_t fits_at, std::uint64_t misfits_at,
                             const std::function<bool(std::uint64_t)>& fits) {
  const auto apart = [&] { return std::max(fits_at, misfits_at) - std::min(fits_at, misfits_at); };
  while (apart() > 1) {
    const std::uint64_t middle = std::min(fits_at, misfits_at) + apart() / 2;
    (fits(middle) ? fits_at : misfits_at) = middle;
  }
  return fits_at;
}

std::uint64_t least_that_fits(std::uint64_t enough, std::uint64_t too_little,
                              const std::function<std::optional<std::uint64_t>(std::uint64_t)>& missing,
                              std::uint64_t within) {
  std::uint64_t guess = 0, failed = 0, wait = 0;  // so many halvings before the next guess, after `failed` wrong ones
  const auto apart = [&] { return within == 0 ? 1 : std::max<std::uint64_t>(1, too_little / within); };
  for (bool below = false; enough - too_little > apart();) {
    // A guess just above what is too little, far from what is enough, says nothing if it is wrong, as it is mostly.
    const bool guesses =
        wait == 0 && guess > too_little && guess < enough && guess - too_little >= (enough - guess) / 512;
    const std::uint64_t tried = guesses ? guess : too_little + (enough - too_little) / 2;
    const std::optional<std::uint64_t> lacks = missing(tried);
    if (!guesses) {
      wait -= std::min<std::uint64_t>(wait, 1);
    } else {
      failed = lacks ? failed + 1 : 0;
      wait = failed;
    }
    below = !lacks && guesses && !below;
    guess = lacks ? tried + std::max<std::uint64_t>(*lacks, 1) : below ? tried - 1 : 0;
    (lacks ? too_little : enough) = tried;
  }
  return enough;
}

std::uint64_t least_that_fits_near(std::uint64_t enough, std::uint64_t too_little,
                                   const std::function<std::optional<std::uint64_t>(std::uint64_t)>& missing,
                                   std::uint64_t lacked, std::uint64_t within) {
  for (std::uint64_t step = 1; enough - too_little > std::max(step, lacked); step *= 4) {
    const bool follows = lacked > step;
    const std::uint64_t tried = too_little + std::max(step, lacked);
    const std::optional<std::uint64_t> lacks = missing(tried);
    if (lacks) {
      too_little = tried;
      lacked = *lacks;
      continue;
    }
    enough = tried;
    if (!follows) break;
    if (missing(enough - 1)) return enough;  // it lacked just that
    --enough;
    break;
  }
  return least_that_fits(enough, too_little, missing, within);
}

}  // namespace tencache
