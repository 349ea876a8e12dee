#include "policies/foresight/future.h"

namespace tencache {

Future::Future(const Trace& trace, const Schedule& schedule, const std::vector<Bytes>& footprints, bool forgets) {
  const std::size_t ops = trace.ops.size();
  devices_.resize(ops);
  first_use_.resize(ops + 1);
  for (OpIndex op = 0; op < ops; ++op) {
    devices_[op] = trace.ops[op].device;
    first_use_[op + 1] = first_use_[op] + schedule.uses(op).size();
  }
  after_.resize(first_use_.back());
  dies_.resize(first_use_.back());
  born_.resize(ops);
  died_.resize(ops);
  alive_.resize(ops);
  const std::vector<OpIndex> deaths = trace.deaths();
  for (OpIndex op = 0; op < ops; ++op) {
    for (const TensorId tensor : trace.frees(trace.ops[op])) {
      const bool used = schedule.ops_of(tensor).back() == op;  // then it counts below
      if (devices_[op] == Device::gpu && deaths[tensor] == op && !used) died_[op] += footprints[tensor];
    }
  }
  // Backwards over two rounds: the second sees what comes after the iteration's end.
  constexpr std::int64_t unknown = -1;
  struct Ahead {
    std::int64_t gpu = unknown, cpu = unknown, touch = unknown;
    std::int64_t overwritten = unknown;  // if nothing reads it before
  };
  std::vector<Ahead> ahead(trace.tensors.size());
  const auto distances = [](const Ahead& a, std::int64_t from) {
    const auto distance = [from](std::int64_t place) {
      return place == unknown ? none : static_cast<std::uint32_t>(place - from);
    };
    return Needs{distance(a.gpu), distance(a.cpu), distance(a.touch)};
  };
  for (std::int64_t round = 1; round >= 0; --round) {
    for (OpIndex op = static_cast<OpIndex>(ops); op-- > 0;) {
      const std::int64_t place = round * static_cast<std::int64_t>(ops) + op;
      const auto uses = schedule.uses(op);
      for (std::size_t i = 0; i < uses.size(); ++i) {
        const Use& use = uses[i];
        const Tensor& tensor = trace.tensors[use.tensor];
        const auto others = schedule.ops_of(use.tensor);
        Ahead& a = ahead[use.tensor];
        const std::size_t index = first_use_[op] + i;
        const std::int64_t end = (round + 1) * static_cast<std::int64_t>(ops);  // of the iteration
        const bool forgotten = forgets && tensor.persistent && a.overwritten != unknown && a.overwritten < end;
        const bool last = !tensor.persistent && others.back() == op;
        dies_[index] = forgotten || (last && deaths[use.tensor] == op) ? 1 : 0;
        if (forgotten || last) a = {};
        a.overwritten = use.read ? unknown : place;
        if (round == 0) after_[index] = distances(a, place);
        if (devices_[op] == Device::gpu) {
          if (use.write) a.cpu = unknown;
          a.gpu = use.read ? place : unknown;
          a.touch = place;
          if (round == 0 && dies_[index] != 0) died_[op] += footprints[use.tensor];
          if (round == 0 && !tensor.persistent && others.front() == op) born_[op] += footprints[use.tensor];
        } else {
          a.cpu = use.read ? place : unknown;
          if (use.write) a.gpu = a.touch = unknown;
        }
      }
    }
  }
  at_start_.resize(trace.tensors.size());
  for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    if (trace.tensors[tensor].persistent) at_start_[tensor] = distances(ahead[tensor], -1);
  }
  std::int64_t alive = 0;
  for (OpIndex op = 0; op < ops; ++op) {
    alive += static_cast<std::int64_t>(born_[op]);
    alive_[op] = alive;
    alive -= static_cast<std::int64_t>(died_[op]);
  }
  alive_each_ = alive;
}

}  // namespace tencache
