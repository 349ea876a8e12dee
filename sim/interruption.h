// Long computations ask now and then whether they are still wanted: the program that runs them may say no.
#pragma once

namespace tencache {

// What is asked, from any thread that simulates; it may throw, which ends the computation. For the whole process; null
// (at first) asks nobody. Set while nothing is simulated.
void set_interruption_check(void (*check)());

// Between simulations, and every some ten thousand events of one. Changes no result.
void interruption_point();

}  // namespace tencache
