#include "executor/host_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/error.h"

namespace tencache {

StagingBuffers::StagingBuffers(const MachineSpec& spec, Accelerator* accelerator)
    : count_(spec.staging.count), buffer_bytes_(spec.staging.bytes), accelerator_(accelerator) {
  if (count_ == 0) return;
  stride_ = round_up(buffer_bytes_, page_bytes);
  const Bytes bytes = stride_ * count_;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(spec.file, 0,
                "staging: " + format_bytes(bytes) + " of buffers: " + std::strerror(errno) +
                    "; lower the staging count or bytes");
  }
  memory_ = static_cast<std::byte*>(memory);
  if (accelerator_ != nullptr) {
    std::string reason;  // of CPU memory, too, and said there
    pinned_ = accelerator_->pin(memory_, bytes, reason);
  }
  locked_ = pinned_ || ::mlock(memory, bytes) == 0;
  if (locked_) return;
  const std::string reason = std::strerror(errno);
  struct rlimit limit {};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  std::fprintf(stderr,
               "tencache: the staging buffers, %s, are ordinary memory that the system may swap out: locking it failed "
               "(%s); the limit is %s (ulimit -l)\n",
               format_bytes(bytes).c_str(), reason.c_str(), format_bytes(limit.rlim_cur).c_str());
}

StagingBuffers::~StagingBuffers() {
  if (pinned_) accelerator_->unpin(memory_);
  if (memory_ != nullptr) ::munmap(memory_, stride_ * count_);
}

std::byte* StagingBuffers::address(std::uint64_t first, Bytes bytes) const {
  TENCACHE_CHECK(memory_ != nullptr && first + (bytes + buffer_bytes_ - 1) / buffer_bytes_ <= count_);
  return memory_ + first * stride_;
}

std::string StagingBuffers::describe() const {
  if (memory_ == nullptr) return {};
  return "staging: " + std::to_string(count_) + " × " + format_bytes(buffer_bytes_) +
         (locked_ ? ", locked\n" : ", not locked (RLIMIT_MEMLOCK)\n");
}

std::vector<bool> addressed_tiers(const MachineSpec& spec, const Layout& layout) {
  std::vector<bool> addressed;
  for (const AllocatorSpec& allocator : allocators_of(spec, layout)) {
    addressed.push_back(allocator.kind != AllocatorKind::exact);
  }
  return addressed;
}

HostMemory::HostMemory(const MachineSpec& spec, const HostMachineOptions& options, FaultInjector* faults)
    : spec_(spec), accelerator_(options.accelerator), faults_(faults) {
  TENCACHE_CHECK(!spec_.tiers.empty() && spec_.tiers.size() <= max_tiers);
  TENCACHE_CHECK(options.addressed.empty() || options.addressed.size() == spec_.tiers.size());
  for (TierId tier = 0; tier < spec_.tiers.size(); ++tier) build(tier, options);
  staging_.emplace(spec_, accelerator_.get());
}

void HostMemory::build(TierId at, const HostMachineOptions& options) {
  const Tier& tier = spec_.tiers[at];
  if (tier.kind == TierKind::nvme) {
    tiers_[at].files = std::make_unique<SwapFiles>(tier, options.files);
    return;
  }
  const bool addressed = !options.addressed.empty() && options.addressed[at];
  const bool on_accelerator = options.accelerator != nullptr && tier.kind == TierKind::gpu;
  if (on_accelerator && addressed && tier.allocator == AllocatorKind::movable) {
    auto arena = std::make_unique<ArenaMemory>(*options.accelerator, tier.name, tier.capacity, tier.granularity);
    tiers_[at].arena = arena.get();
    tiers_[at].memory = std::move(arena);
    return;
  }
  Bytes granularity = tier.granularity;
  if (on_accelerator && tier.allocator == AllocatorKind::movable) {  // without a limit nothing has to move
    granularity = std::max(granularity, options.accelerator->granularity());
  }
  if (granularity % page_bytes != 0) {
    throw Error(spec_.file, 0,
                "tier '" + tier.name + "': granularity " + format_bytes(tier.granularity) +
                    ", but pages of real memory have 4 KiB; give a multiple of that");
  }
  ChunkMemoryOptions memory;
  memory.addressed = addressed;
  memory.populate = options.populate;
  memory.parks = at != 0;
  memory.prefault = options.prefault;
  memory.raw_access = at == 0 && options.raw_access;
  memory.accelerator = options.accelerator;
  memory.locked = options.accelerator != nullptr ? options.locked : 0;
  if (options.share != nullptr && at == spec_.tier_of(Device::cpu) && !addressed) memory.most = options.share->pool();
  const Bytes capacity = at == 0 && options.unlimited_gpu ? unlimited : tier.capacity;
  if (on_accelerator) {
    tiers_[at].memory = options.accelerator->memory(tier.name, capacity, granularity, addressed);
  } else {
    tiers_[at].raw_access = at == 0 && options.raw_access;
    auto pages = std::make_unique<ChunkMemory>(tier.name, capacity, tier.granularity, memory);
    tiers_[at].pages = pages.get();
    tiers_[at].memory = std::move(pages);
  }
}

void HostMemory::map(TensorId tensor, Bytes begin, Bytes bytes, Place place, MappedFor what) {
  TierStore& tier = tiers_[place.tier];
  if (tier.files != nullptr) {
    if (!tier.files->has(tensor, begin)) take_slot(*tier.files, tensor, begin, bytes);
  } else {
    if (!tier.stored.empty() && tier.stored.erase({tensor, begin}) != 0) return;
    if (faults_) faults_->next_room(place.tier, bytes);
    if (!tier.has(tensor)) give_addresses(tier, tensor, tiers_[0].memory->bytes(tensor));
    if (tier.raw_access && what == MappedFor::copy) {
      tier.pages->map_hidden(tensor, begin, bytes, place.offset);
    } else {
      tier.memory->map(tensor, begin, bytes, place.offset);
    }
  }
}

void HostMemory::unmap(TensorId tensor, Bytes begin, Bytes bytes, Place place) {
  TierStore& tier = tiers_[place.tier];
  if (tier.files != nullptr) {
    tier.files->give(tensor, begin);
  } else {
    tier.memory->unmap(tensor, begin, bytes);
  }
}

void HostMemory::move(const MoveCommand& move) {
  const TierStore& tier = tiers_[move.from.tier];
  TENCACHE_CHECK((tier.pages != nullptr || tier.arena != nullptr) && move.to.tier == move.from.tier);
  if (tier.arena != nullptr) return tier.arena->move(move.tensor, move.to.offset);
  tier.pages->move(move.tensor, move.begin, move.bytes, move.to.offset);
}

void HostMemory::store_in_file(TensorId tensor, Bytes begin, Bytes bytes, TierId tier,
                               std::shared_ptr<const SourceFile> file) {
  TENCACHE_CHECK(tiers_[tier].files != nullptr && accelerator_ == nullptr);
  tiers_[tier].files->store_in_file(tensor, begin, bytes, std::move(file));
}

std::byte* HostMemory::room_to_store(TensorId tensor, Bytes begin, Bytes bytes, TierId at) {
  TierStore& tier = tiers_[at];
  TENCACHE_CHECK(at != 0 && tier.pages != nullptr);
  if (tier.pages->addressed()) return nullptr;
  map(tensor, begin, bytes, {at, 0}, MappedFor::op);
  tier.stored.emplace(tensor, begin);
  return tier.memory->address(tensor) + begin;
}

void HostMemory::create(TensorId tensor, Bytes bytes) {
  TENCACHE_CHECK(!tiers_[0].has(tensor));
  give_addresses(tiers_[0], tensor, bytes);
}

void HostMemory::give_addresses(TierStore& tier, TensorId tensor, Bytes bytes) {
  tier.memory->create(tensor, bytes);
  if (tensor >= tier.tensors.size()) tier.tensors.resize(tensor + std::size_t{1}, 0);
  tier.tensors[tensor] = 1;
}

void HostMemory::retire(TensorId tensor) {
  for (const TierStore& tier : in_use()) {
    if (tier.has(tensor)) tier.memory->retire(tensor);
  }
}

void HostMemory::destroy(TensorId tensor) {
  for (TierStore& tier : in_use()) {
    if (!tier.stored.empty()) {
      std::erase_if(tier.stored, [tensor](const auto& chunk) { return chunk.first == tensor; });
    }
    if (tier.has(tensor)) {
      tier.memory->destroy(tensor);
      tier.tensors[tensor] = 0;
    }
    if (tier.files != nullptr) tier.files->give_all(tensor);
  }
}

// On the calling thread, past the lanes.
void HostMemory::transfer_directly(TensorId tensor, Bytes begin, TierId tier, std::byte* content, Bytes bytes,
                                   bool upload) {
  const std::unique_ptr<CopyEngine> engine = accelerator_->copy_engine();
  std::byte* device = address(tensor, tier) + begin;
  const DeviceCopy copy = {device, content, bytes};
  upload ? engine->upload({&copy, 1}) : engine->download({&copy, 1});
  engine->wait(0);
}

void HostMemory::fill(TensorId tensor, Bytes begin, Bytes bytes, TierId tier,
                      const std::function<void(std::span<std::byte> content)>& write) {
  if (tiers_[tier].pages != nullptr) return write({address(tensor, tier) + begin, bytes});
  const AlignedBuffer buffer = aligned_buffer(bytes, std::byte{0});
  write({buffer.get(), bytes});
  if (on_accelerator(tier)) return transfer_directly(tensor, begin, tier, buffer.get(), bytes, true);
  SwapFiles& files = *tiers_[tier].files;
  if (!files.has(tensor, begin)) files.take(tensor, begin, bytes);
  FileLane lane(files);
  lane.write(files.blocks(tensor, begin, bytes), buffer.get(), [](Bytes) { return true; });
}

std::byte* HostMemory::address(TensorId tensor, TierId tier) const {
  TENCACHE_CHECK(tier < spec_.tiers.size() && tiers_[tier].memory != nullptr);
  return tiers_[tier].memory->address(tensor);
}

std::vector<std::byte> HostMemory::content(TensorId tensor, Bytes begin, Bytes bytes, TierId tier) {
  std::vector<std::byte> result(bytes);
  if (on_accelerator(tier)) {
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

ChunkMemoryStatistics HostMemory::statistics(TierId tier) const {
  TENCACHE_CHECK(tier < spec_.tiers.size() && tiers_[tier].memory != nullptr);
  return tiers_[tier].memory->statistics();
}

std::byte* HostMemory::memory_of(const CopyCommand& copy, Place place, bool staging) const {
  if (staging) return staging_->address(place.offset, copy.bytes);
  TENCACHE_CHECK(place.tier < spec_.tiers.size());
  const TierMemory* memory = tiers_[place.tier].memory.get();
  if (memory == nullptr) return nullptr;  // a file
  TENCACHE_CHECK(memory->mapped(copy.tensor, copy.begin));
  return memory->address(copy.tensor) + copy.begin;
}

std::vector<HostPiece> HostMemory::pieces_of(const CopyCommand& copy, Place place, bool staging) const {
  if (staging) return {{memory_of(copy, place, true), copy.bytes}};
  return tiers_[place.tier].pages->pieces(copy.tensor, copy.begin, copy.bytes);
}

void HostMemory::add_accesses(TensorId tensor, Bytes begin, Bytes bytes, TierId at, bool write,
                              std::vector<MemoryAccess>& accesses) const {
  const TierStore& tier = tiers_[at];
  if (tier.memory == nullptr || !tier.has(tensor) || !tier.memory->mapped(tensor, begin)) return;
  if (tier.pages == nullptr) {
    accesses.push_back({tier.memory->address(tensor) + begin, bytes, write});
    return;
  }
  // Files are read and written in whole pages.
  for (const HostPiece& piece : tier.pages->pieces(tensor, begin, round_up(bytes, page_bytes))) {
    accesses.push_back({piece.address, piece.bytes, write});
  }
}

std::vector<MemoryAccess> HostMemory::accesses_of(const CopyCommand& copy) const {
  std::vector<MemoryAccess> accesses;
  for (const bool write : {false, true}) {
    const Place& place = write ? copy.to : copy.from;
    if (write ? copy.to_staging : copy.from_staging) {
      accesses.push_back({memory_of(copy, place, true), round_up(copy.bytes, page_bytes), write});
    } else {
      add_accesses(copy.tensor, copy.begin, copy.bytes, place.tier, write, accesses);
    }
  }
  return accesses;
}

CopyWork HostMemory::resolve(const CopyCommand& copy) {
  CopyWork work;
  work.bytes = copy.bytes;
  work.from = memory_of(copy, copy.from, copy.from_staging);
  work.to = memory_of(copy, copy.to, copy.to_staging);
  if (!copy.from_staging && tiers_[copy.from.tier].raw_access)
    tiers_[copy.from.tier].pages->close_for_writing(copy.tensor);
  if (!copy.to_staging && tiers_[copy.to.tier].raw_access) {
    work.to = tiers_[copy.to.tier].pages->copy_address(copy.tensor, copy.begin);
    work.hidden = tiers_[copy.to.tier].pages->hidden_at(copy.tensor, copy.begin);
  }
  const bool from_accelerator = !copy.from_staging && on_accelerator(copy.from.tier);
  const bool to_accelerator = !copy.to_staging && on_accelerator(copy.to.tier);
  const bool packed = (from_accelerator && arena(copy.from.tier)) || (to_accelerator && arena(copy.to.tier));
  if (packed) {
    const std::byte* device = from_accelerator ? work.from : work.to;
    work.whole_pages = reinterpret_cast<std::uintptr_t>(device) % page_bytes == 0 && work.bytes % page_bytes == 0;
  }
  work.on_accelerator = from_accelerator || to_accelerator;
  if (work.from != nullptr && work.to != nullptr) {
    if (from_accelerator) {
      work.kind = CopyWork::Kind::download;
      work.pieces = pieces_of(copy, copy.to, copy.to_staging);
    } else if (to_accelerator) {
      work.kind = CopyWork::Kind::upload;
      work.pieces = pieces_of(copy, copy.from, copy.from_staging);
    }
    return work;
  }
  work.kind = work.from == nullptr ? CopyWork::Kind::file_read : CopyWork::Kind::file_write;
  SwapFiles& files = *tiers_[work.from == nullptr ? copy.from.tier : copy.to.tier].files;
  if (work.to == nullptr && !files.has(copy.tensor, copy.begin)) {
    take_slot(files, copy.tensor, copy.begin, copy.bytes);
  }
  work.blocks = files.blocks(copy.tensor, copy.begin, copy.bytes);
  return work;
}

void HostMemory::take_slot(SwapFiles& files, TensorId tensor, Bytes begin, Bytes bytes) {
  try {
    files.take(tensor, begin, bytes);
  } catch (const Error&) {
    if (faults_ && faults_->plan().has(FaultKind::disk_full)) faults_->count(FaultKind::disk_full);
    throw;
  }
}

std::string HostMemory::describe_tiers() const {
  std::string text;
  for (TierId i = 0; i < spec_.tiers.size(); ++i) {
    const Tier& tier = spec_.tiers[i];
    const char* what = tier.kind == TierKind::nvme ? " of files" : " of memory";
    text += tier.name + ": " + format_bytes(tier.capacity) + what;
    if (on_accelerator(i)) text += " of " + accelerator_->describe() + (arena(i) ? ", mapped once" : "");
    if (tiers_[i].pages != nullptr && accelerator_ != nullptr) {
      const std::string& refusal = tiers_[i].pages->pin_refusal();
      text += refusal.empty() ? ", page-locked" : ", not page-locked, so that copies are slower: " + refusal;
    }
    for (const std::string& directory : tier.directories) text += " " + directory;
    if (tiers_[i].files != nullptr && tiers_[i].files->checksums()) text += ", with checksums";
    text += "\n";
  }
  return text;
}

}  // namespace tencache
