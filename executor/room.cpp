#include "executor/room.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>

#include "core/error.h"
#include "core/remark.h"
#include "executor/chunk_memory.h"

namespace tencache {
namespace {

// What is needed of a file system: folders of several tiers may lie on one.
struct Disk {
  Bytes needed = 0, available = 0;
  std::string who;   // "tier nvme: /a, /b; tier ssd: /c"
  std::string tier;  // the last one there
};

void state_disk(const Tier& tier, Bytes needed, std::map<dev_t, Disk>& disks) {
  for (const std::string& directory : tier.directories) {
    std::error_code error;
    const std::filesystem::space_info space = std::filesystem::space(directory, error);
    if (error) {
      throw Error(
          fmt::format("tier {}: {}: {}; give another folder with --directory", tier.name, directory, error.message()));
    }
    if (needed >= unlimited) {
      remark(fmt::format("tier {}: {} free in {}", tier.name, format_bytes(space.available), directory));
      continue;
    }
    const Bytes part = needed / tier.directories.size();
    remark(fmt::format("tier {}: up to {} of {} free in {}", tier.name, format_bytes(part),
                       format_bytes(space.available), directory));
    struct stat status {};
    if (::stat(directory.c_str(), &status) != 0) continue;  // it went just now; opening it will say so
    Disk& disk = disks[status.st_dev];
    disk.needed += part;
    disk.available = space.available;
    const std::string before = disk.who.empty() ? "" : disk.tier == tier.name ? ", " : "; ";
    disk.who += before + (disk.tier == tier.name ? "" : "tier " + tier.name + ": ") + directory;
    disk.tier = tier.name;
  }
}

}  // namespace

void choose_directories(MachineSpec& machine, const std::vector<std::string>& directories) {
  for (const std::string& directory : directories) {
    std::error_code error;
    if (!std::filesystem::is_directory(directory, error)) throw Error("--directory " + directory + ": is no folder");
    if (access(directory.c_str(), W_OK | X_OK) != 0) {
      throw Error("--directory " + directory + ": " + std::strerror(errno));
    }
  }
  for (Tier& tier : machine.tiers) {
    if (tier.kind != TierKind::nvme) continue;
    if (!directories.empty()) tier.directories = directories;
    if (tier.directories.empty()) tier.directories = {"/var/tmp"};
  }
}

void fit_to_disks(MachineSpec& machine, std::uint64_t ranks) {
  // Capacities by file system: tiers and folders that share one share its space.
  std::map<dev_t, std::pair<Bytes, Bytes>> disks;  // wanted, free
  const auto each_share = [&](Tier& tier, const auto& visit) {
    for (const std::string& directory : tier.directories) {
      struct stat status {};
      std::error_code error;
      const std::filesystem::space_info space = std::filesystem::space(directory, error);
      if (error || ::stat(directory.c_str(), &status) != 0) continue;  // opening its files will say so
      visit(status.st_dev, tier.capacity / tier.directories.size(), static_cast<Bytes>(space.available) / ranks);
    }
  };
  for (Tier& tier : machine.tiers) {
    if (tier.capacity >= unlimited) continue;
    each_share(tier, [&](dev_t disk, Bytes share, Bytes available) {
      disks[disk].first += share;
      disks[disk].second = available;
    });
  }
  for (Tier& tier : machine.tiers) {
    if (tier.capacity >= unlimited) continue;
    double part = 1;  // of its capacity, where its fullest disk leaves that
    each_share(tier, [&](dev_t disk, Bytes, Bytes) {
      const auto& [wanted, available] = disks[disk];
      if (wanted > available)
        part = std::min(part, 0.95 * static_cast<double>(available) / static_cast<double>(wanted));
    });
    if (part >= 1) continue;
    const Bytes before = tier.capacity;
    tier.capacity = static_cast<Bytes>(static_cast<double>(before) * part) / tier.granularity * tier.granularity;
    remark(fmt::format("tier {}: {} instead of {}, which its disks do not have free", tier.name,
                       format_bytes(tier.capacity), format_bytes(before)));
  }
}

void state_room(const MachineSpec& machine, Bytes demand, const std::string& advice, const Accelerator* accelerator) {
  Bytes memory = machine.staging.all_bytes();
  bool known = true;
  std::map<dev_t, Disk> disks;
  for (const Tier& tier : machine.tiers) {
    if (accelerator != nullptr && tier.kind == TierKind::gpu) continue;
    const Bytes needed = std::min(demand, tier.capacity);
    if (tier.kind == TierKind::nvme) {
      state_disk(tier, needed, disks);
    } else if (needed >= unlimited) {
      known = false;
    } else {
      memory += needed;
    }
  }
  for (const auto& [device, disk] : disks) {
    if (demand >= unlimited || disk.needed <= disk.available) continue;
    throw Error(fmt::format("{}: {} may be needed there, {} are free; give other folders with --directory, or {}",
                            disk.who, format_bytes(disk.needed), format_bytes(disk.available), advice));
  }
  const Bytes available = available_memory();
  remark(known ? fmt::format("memory: up to {} of {} available", format_bytes(memory), format_bytes(available))
               : fmt::format("memory: {} available", format_bytes(available)));
  if (demand < unlimited && memory > available) {
    throw Error(fmt::format("{} of memory may be needed, {} are available; make it smaller with {}",
                            format_bytes(memory), format_bytes(available), advice));
  }
}

void state_expected_writes(const MachineSpec& machine, const RunResult& expected, std::uint64_t iterations) {
  for (std::size_t i = 0; i < machine.links.size(); ++i) {
    const Link& link = machine.links[i];
    if (machine.tiers[link.to].kind != TierKind::nvme) continue;
    const std::string& tier = machine.tiers[link.to].name;
    if (!expected.fits) {
      remark(fmt::format("tier {}: no writes are expected, since the run is expected not to fit", tier));
      continue;
    }
    const double an_iteration =
        static_cast<double>(expected.window.links[i].bytes) / static_cast<double>(expected.period);
    const double seconds = expected.iteration_seconds();
    const double a_day = seconds > 0 ? an_iteration / seconds * 86400 : 0;
    remark(fmt::format("tier {}: about {} will be written over {}, {} an iteration; {} a day at that rate", tier,
                       format_bytes(static_cast<Bytes>(an_iteration * static_cast<double>(iterations))), link.name,
                       format_bytes(static_cast<Bytes>(an_iteration)), format_bytes(static_cast<Bytes>(a_day))));
  }
}

}  // namespace tencache
