#include "policies/foresight/plan.h"

namespace tencache {
namespace {

std::string to_string(Exclusive exclusive) {
  return exclusive == Exclusive::none ? "" : exclusive == Exclusive::gpu ? " exclusive=gpu" : " exclusive=both";
}

}  // namespace

bool decides_the_same(const ForesightPlan& a, const ForesightPlan& b) {
  return a.cpu_share == b.cpu_share && a.relieves_gpu == b.relieves_gpu && a.latest_first == b.latest_first &&
         a.knobs == b.knobs;
}

std::string short_number(double value) { return std::to_string(value).substr(0, 4); }

std::string to_string(const ForesightPlan& plan) {
  return (plan.cpu_share ? "cpu_share=" + short_number(*plan.cpu_share) + " " : std::string()) +
         (plan.relieves_gpu ? "relieve=true " : "") + (plan.latest_first ? "order=latest " : "") +
         "gpu_share=" + short_number(plan.knobs.gpu_share) + " follow=" + (plan.knobs.follow ? "true" : "false") +
         to_string(plan.knobs.exclusive);
}

}  // namespace tencache
