// The makers that the registry lists, one a policy file.
#pragma once

#include <memory>

#include "core/policy.h"
#include "policies/options.h"

namespace tencache {

std::unique_ptr<Policy> make_belady(Options& options);
std::unique_ptr<Policy> make_capuchin(Options& options);
std::unique_ptr<Policy> make_deep_optimizer_states(Options& options);
std::unique_ptr<Policy> make_deepum(Options& options);
std::unique_ptr<Policy> make_fifo(Options& options);
std::unique_ptr<Policy> make_flashneuron(Options& options);
std::unique_ptr<Policy> make_foresight(Options& options);
std::unique_ptr<Policy> make_g10(Options& options);
std::unique_ptr<Policy> make_ideal(Options& options);
std::unique_ptr<Policy> make_l2l(Options& options);
std::unique_ptr<Policy> make_layer_streaming(Options& options);
std::unique_ptr<Policy> make_lfu(Options& options);
std::unique_ptr<Policy> make_lru(Options& options);
std::unique_ptr<Policy> make_mlp_offload(Options& options);
std::unique_ptr<Policy> make_on_demand(Options& options);
std::unique_ptr<Policy> make_patrickstar(Options& options);
std::unique_ptr<Policy> make_ssdtrain(Options& options);
std::unique_ptr<Policy> make_stronghold(Options& options);
std::unique_ptr<Policy> make_ten_cache(Options& options);
std::unique_ptr<Policy> make_tensile(Options& options);
std::unique_ptr<Policy> make_teraio(Options& options);
std::unique_ptr<Policy> make_vdnn(Options& options);
std::unique_ptr<Policy> make_zero_infinity(Options& options);
std::unique_ptr<Policy> make_zero_offload(Options& options);

}  // namespace tencache
