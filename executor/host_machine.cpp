#include "executor/host_machine.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/check.h"
#include "core/error.h"
#include "core/text.h"
#include "executor/clock.h"

namespace tencache {

void OpBodies::initialise(TensorId /*tensor*/, Bytes /*begin*/, std::span<std::byte> content) {
  std::memset(content.data(), 0, content.size());
}

MachineSpec with_real_pages(MachineSpec spec, const Accelerator* accelerator) {
  for (Tier& tier : spec.tiers) {
    const bool there = accelerator != nullptr && tier.kind == TierKind::gpu;
    tier.granularity = std::max(tier.granularity, there ? accelerator->granularity() : page_bytes);
    if (tier.capacity >= unlimited) continue;
    if (tier.capacity != 0 && tier.capacity < tier.granularity) {
      throw Error(spec.file, 0,
                  "tier '" + tier.name + "': " + format_bytes(tier.capacity) + " are less than a page, " +
                      format_bytes(tier.granularity) + (there ? " of the GPU" : "") + "; give it more");
    }
    tier.capacity -= tier.capacity % tier.granularity;
  }
  return spec;
}

HostMachine::HostMachine(const MachineSpec& spec, OpBodies& bodies, Options options)
    : spec_(spec),
      bodies_(bodies),
      options_(std::move(options)),
      origin_ns_(clock_ns()),
      cpu_tier_(spec.tier_of(Device::cpu)) {
  if (options_.faults) {
    faults_.emplace(*options_.faults, spec_);
    options_.files.faults = *options_.faults;
  }
  try {
    build_tiers();
    build_staging();
    build_lanes();
  } catch (...) {
    close();
    throw;
  }
  report_fallback();
}

HostMachine::~HostMachine() { close(); }

void HostMachine::close() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    stopped_ = true;
    for (auto& [fence, pending] : pending_) pending.work->cancelled = true;
    for (const auto& lane : links_) lane->wake.notify_all();
    for (const auto& lane : op_lanes_) {
      if (lane != nullptr) lane->wake.notify_all();
    }
    arrived_.notify_all();
  }
  const auto join = [](Lane* lane) {  // nullptr, or without a thread, where the constructor failed
    if (lane != nullptr && lane->thread.joinable()) lane->thread.join();
  };
  for (const auto& lane : links_) join(lane.get());
  for (const auto& lane : op_lanes_) join(lane.get());
  if (staging_pinned_) options_.accelerator->unpin(staging_);
  if (staging_ != nullptr) ::munmap(staging_, staging_stride_ * spec_.staging.count);
}

void HostMachine::build_tiers() {
  TENCACHE_CHECK(!spec_.tiers.empty() && spec_.tiers.size() <= max_tiers);
  TENCACHE_CHECK(options_.addressed.empty() || options_.addressed.size() == spec_.tiers.size());
  for (const Link& link : spec_.links) {
    TENCACHE_CHECK(link.from < spec_.tiers.size() && link.to < spec_.tiers.size());
    if (spec_.tiers[link.from].kind == TierKind::nvme && spec_.tiers[link.to].kind == TierKind::nvme) {
      throw Error(spec_.file, 0,
                  "link '" + link.name + "' joins two tiers of files; on a real machine copies go through memory");
    }
    if (options_.accelerator != nullptr && spec_.tiers[link.from].kind == TierKind::gpu &&
        spec_.tiers[link.to].kind == TierKind::gpu) {
      throw Error(spec_.file, 0, "link '" + link.name + "' joins two tiers of kind gpu; a run uses one device");
    }
  }
  for (std::size_t i = 0; i < spec_.tiers.size(); i++) {
    const Tier& tier = spec_.tiers[i];
    if (tier.kind == TierKind::nvme) {
      tiers_[i].files = std::make_unique<SwapFiles>(tier, options_.files);
      continue;
    }
    if (tier.granularity % page_bytes != 0) {
      throw Error(spec_.file, 0,
                  "tier '" + tier.name + "': granularity " + format_bytes(tier.granularity) +
                      ", but pages of real memory have 4 KiB; give a multiple of that");
    }
    ChunkMemoryOptions memory;
    memory.addressed = !options_.addressed.empty() && options_.addressed[i];
    memory.populate = options_.populate;
    memory.prefault = options_.prefault;
    memory.accelerator = options_.accelerator;
    const Bytes capacity = i == 0 && options_.unlimited_gpu ? unlimited : tier.capacity;
    if (options_.accelerator != nullptr && tier.kind == TierKind::gpu) {
      tiers_[i].memory = options_.accelerator->memory(tier.name, capacity, tier.granularity, memory.addressed);
    } else {
      auto pages = std::make_unique<ChunkMemory>(tier.name, capacity, tier.granularity, memory);
      tiers_[i].pages = pages.get();
      tiers_[i].memory = std::move(pages);
    }
  }
}

void HostMachine::build_staging() {
  if (spec_.staging.count == 0) return;
  staging_stride_ = round_up(spec_.staging.bytes, page_bytes);
  const Bytes bytes = staging_stride_ * spec_.staging.count;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(spec_.file, 0,
                "staging: " + format_bytes(bytes) + " of buffers: " + std::strerror(errno) +
                    "; lower the staging count or bytes");
  }
  staging_ = static_cast<std::byte*>(memory);
  if (options_.accelerator != nullptr) {
    std::string reason;  // of CPU memory, too, and said there
    staging_pinned_ = options_.accelerator->pin(staging_, bytes, reason);
  }
  staging_locked_ = staging_pinned_ || ::mlock(memory, bytes) == 0;
  if (staging_locked_) return;
  const std::string reason = std::strerror(errno);
  struct rlimit limit {};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  std::fprintf(stderr,
               "tencache: the staging buffers, %s, are ordinary memory that the system may swap out: locking it failed "
               "(%s); the limit is %s (ulimit -l)\n",
               format_bytes(bytes).c_str(), reason.c_str(), format_bytes(limit.rlim_cur).c_str());
}

void HostMachine::build_lanes() {
  for (const Link& link : spec_.links) {
    const SwapFiles* from = tiers_[link.from].files.get();
    const SwapFiles* to = tiers_[link.to].files.get();
    auto lane = std::make_unique<Lane>();
    Accelerator* accelerator =
        tiers_[link.from].on_accelerator() || tiers_[link.to].on_accelerator() ? options_.accelerator.get() : nullptr;
    lane->copy = std::make_unique<CopyLane>(link, options_.pace, from != nullptr ? from : to, accelerator);
    links_.push_back(std::move(lane));
  }
  for (std::uint8_t i = 0; i < op_lanes_.size(); i++) {
    op_lanes_[i] = std::make_unique<Lane>();
    op_lanes_[i]->op_lane = i;
  }
  for (const auto& lane : links_) lane->thread = std::thread([this, at = lane.get()] { serve(*at); });
  for (const auto& lane : op_lanes_) lane->thread = std::thread([this, at = lane.get()] { serve(*at); });
}

void HostMachine::report_fallback() const {
  for (std::size_t i = 0; i < links_.size(); i++) {
    const std::string reason = links_[i]->copy->fallback_reason();
    if (reason.empty()) continue;
    std::fprintf(stderr, "tencache: files are read and written with pread and pwrite: %s\n", reason.c_str());
    return;
  }
}

// --- Room -----------------------------------------------------------------------------------------------------------

void HostMachine::map(TensorId tensor, ChunkId /*chunk*/, Bytes begin, Bytes bytes, Place place) {
  TierStore& tier = tiers_[place.tier];
  if (tier.files != nullptr) {
    take_slot(*tier.files, tensor, begin, bytes);
  } else {
    if (faults_) faults_->next_room(place.tier, bytes);
    tier.memory->map(tensor, begin, bytes, place.offset);
  }
}

void HostMachine::unmap(TensorId tensor, ChunkId /*chunk*/, Bytes begin, Bytes bytes, Place place) {
  TierStore& tier = tiers_[place.tier];
  if (tier.files != nullptr) {
    tier.files->give(tensor, begin);
  } else {
    tier.memory->unmap(tensor, begin, bytes);
  }
}

void HostMachine::tensor_created(TensorId tensor, Bytes bytes) {
  for (const TierStore& tier : tiers_) {
    if (tier.memory != nullptr) tier.memory->create(tensor, bytes);
  }
}

void HostMachine::retire(TensorId tensor) {
  for (const TierStore& tier : tiers_) {
    if (tier.memory != nullptr) tier.memory->retire(tensor);
  }
}

void HostMachine::tensor_destroyed(TensorId tensor) {
  for (const TierStore& tier : tiers_) {
    if (tier.memory != nullptr) tier.memory->destroy(tensor);
    if (tier.files != nullptr) tier.files->give_all(tensor);
  }
}

void HostMachine::initialise(TensorId tensor, ChunkId /*chunk*/, Bytes begin, Bytes bytes, Place place) {
  TierStore& tier = tiers_[place.tier];
  if (tier.pages != nullptr) {
    bodies_.initialise(tensor, begin, {tier.memory->address(tensor) + begin, bytes});
    return;
  }
  const AlignedBuffer buffer = aligned_buffer(bytes, std::byte{0});
  bodies_.initialise(tensor, begin, {buffer.get(), bytes});
  if (tier.on_accelerator()) {
    transfer_directly(tensor, begin, place.tier, buffer.get(), bytes, true);
    return;
  }
  if (!tier.files->has(tensor, begin)) tier.files->take(tensor, begin, bytes);
  FileLane lane(*tier.files);
  lane.write(tier.files->blocks(tensor, begin, bytes), buffer.get(), [](Bytes) { return true; });
}

// On the calling thread, past the lanes.
void HostMachine::transfer_directly(TensorId tensor, Bytes begin, TierId tier, std::byte* content, Bytes bytes,
                                    bool upload) {
  const std::unique_ptr<CopyEngine> engine = options_.accelerator->copy_engine();
  std::byte* device = address(tensor, tier) + begin;
  upload ? engine->upload(device, content, bytes) : engine->download(content, device, bytes);
  engine->wait(0);
}

std::byte* HostMachine::address(TensorId tensor, TierId tier) const {
  TENCACHE_CHECK(tier < spec_.tiers.size() && tiers_[tier].memory != nullptr);
  return tiers_[tier].memory->address(tensor);
}

Bytes HostMachine::bytes(TensorId tensor) const { return tiers_[0].memory->bytes(tensor); }

std::vector<std::byte> HostMachine::content(TensorId tensor, Bytes begin, Bytes bytes, TierId tier) {
  std::vector<std::byte> result(bytes);
  if (tiers_[tier].on_accelerator()) {
    transfer_directly(tensor, begin, tier, result.data(), bytes, false);
    return result;
  }
  if (tiers_[tier].memory != nullptr) {
    std::memcpy(result.data(), address(tensor, tier) + begin, bytes);
    return result;
  }
  const SwapFiles& from = *tiers_[tier].files;
  const AlignedBuffer buffer = aligned_buffer(bytes, std::byte{0});
  FileLane lane(from);
  lane.read(from.blocks(tensor, begin, bytes), buffer.get(), [](Bytes) { return true; });
  std::memcpy(result.data(), buffer.get(), bytes);
  return result;
}

std::string HostMachine::describe() const {
  std::string text;
  for (std::size_t i = 0; i < spec_.tiers.size(); i++) {
    const Tier& tier = spec_.tiers[i];
    const char* what = tier.kind == TierKind::nvme ? " of files" : " of memory";
    text += tier.name + ": " + format_bytes(tier.capacity) + what;
    if (tiers_[i].on_accelerator()) text += " of " + options_.accelerator->describe();
    if (tiers_[i].pages != nullptr && options_.accelerator != nullptr) {
      const std::string& refusal = tiers_[i].pages->pin_refusal();
      text += refusal.empty() ? ", page-locked" : ", not page-locked, so that copies are slower: " + refusal;
    }
    for (const std::string& directory : tier.directories) text += " " + directory;
    if (tiers_[i].files != nullptr && tiers_[i].files->checksums()) text += ", with checksums";
    text += "\n";
  }
  for (std::size_t i = 0; i < links_.size(); i++) {
    const Link& link = spec_.links[i];
    text += link.name + ": ";
    if (spec_.tiers[link.from].kind != TierKind::nvme && spec_.tiers[link.to].kind != TierKind::nvme) {
      text += tiers_[link.from].on_accelerator() || tiers_[link.to].on_accelerator() ? "copy engine" : "memcpy";
    } else {
      const std::string reason = links_[i]->copy->fallback_reason();
      const std::string indirect = links_[i]->copy->indirect_reason();
      const bool to_accelerator = tiers_[link.from].on_accelerator() || tiers_[link.to].on_accelerator();
      if (to_accelerator && indirect.empty()) {
        text += "GPUDirect Storage";
      } else {
        text += reason.empty() ? "io_uring with O_DIRECT" : "pread and pwrite, " + reason;
        if (to_accelerator) text += ", through page-locked buffers (" + indirect + ")";
      }
    }
    text += options_.pace ? ", paced to " + format_bandwidth(link.bandwidth) + "\n" : ", not paced\n";
  }
  if (staging_ != nullptr) {
    text += "staging: " + std::to_string(spec_.staging.count) + " × " + format_bytes(spec_.staging.bytes) +
            (staging_locked_ ? ", locked\n" : ", not locked (RLIMIT_MEMLOCK)\n");
  }
  return text;
}

ChunkMemoryStatistics HostMachine::memory_statistics(TierId tier) const {
  TENCACHE_CHECK(tier < spec_.tiers.size() && tiers_[tier].memory != nullptr);
  return tiers_[tier].memory->statistics();
}

const SwapFiles& HostMachine::files(TierId tier) const {
  TENCACHE_CHECK(tier < spec_.tiers.size() && tiers_[tier].files != nullptr);
  return *tiers_[tier].files;
}

}  // namespace tencache
