#include <algorithm>

#include "executor/calibrate.h"
#include "executor/clock.h"

namespace tencache {
std::vector<AcceleratorCost> time_accelerator(Accelerator& accelerator, bool quick) {
  std::vector<Bytes> sizes = {2 * MiB, 16 * MiB, 64 * MiB};
  if (quick) sizes = {16 * MiB};
  const int repetitions = quick ? 5 : 15;
  const std::unique_ptr<CopyEngine> engine = accelerator.copy_engine();
  std::vector<AcceleratorCost> costs;
  for (const Bytes size : sizes) {
    AcceleratorCost& cost = costs.emplace_back();
    const Bytes page = accelerator.granularity();
    cost.bytes = round_up(size, page);
    const std::unique_ptr<TierMemory> memory = accelerator.memory("calibration", cost.bytes, page, false);
    memory->create(measured_tensor, cost.bytes);
    std::vector<std::byte> host(cost.bytes, std::byte{1});  // ordinary memory
    std::vector<double> up, down, map, unmap;
    for (int i = 0; i <= repetitions; i++) {
      const double mapped = seconds_of([&] { memory->map(measured_tensor, 0, cost.bytes, 0); });
      std::byte* device = memory->address(measured_tensor);
      const double uploaded = seconds_of([&] {
        engine->upload(device, host.data(), cost.bytes);
        engine->wait(0);
      });
      const double downloaded = seconds_of([&] {
        engine->download(host.data(), device, cost.bytes);
        engine->wait(0);
      });
      const double unmapped = seconds_of([&] { memory->unmap(measured_tensor, 0, cost.bytes); });
      if (i == 0) continue;  // its physical memory exists from here on
      map.push_back(mapped);
      up.push_back(static_cast<double>(cost.bytes) / uploaded);
      down.push_back(static_cast<double>(cost.bytes) / downloaded);
      unmap.push_back(unmapped);
    }
    cost.map = measured_median(std::move(map));
    cost.pageable_h2d = measured_median(std::move(up));
    cost.pageable_d2h = measured_median(std::move(down));
    cost.unmap = measured_median(std::move(unmap));
  }
  return costs;
}

}  // namespace tencache
