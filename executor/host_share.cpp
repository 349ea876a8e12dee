#include "executor/host_share.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "core/state_hash.h"

namespace tencache {
namespace {

constexpr const char* folder = "/dev/shm";
constexpr std::uint64_t format = 0x7465'6e63'7368'0001;  // "tencsh", and its version
constexpr Bytes largest_step = 256 * MiB;
constexpr Bytes least_step = MiB;
constexpr off_t door_byte = 0, first_rank_byte = 1;

std::string prefix() { return fmt::format("tencache-{}-", ::geteuid()); }

std::string name_of(const std::string& run) {
  StateHash hash;
  for (const char c : run) hash.mix(static_cast<unsigned char>(c));
  return fmt::format("/{}{:016x}", prefix(), hash.value());
}

std::uint64_t hash_of_links(const MachineSpec& host) {
  StateHash hash;
  for (std::size_t rank = 0; rank < host.rank_count(); ++rank) {
    const MachineSpec& of = host.of_rank(rank);
    for (const Link& link : of.links) {
      hash.mix(link.bandwidth);
      for (const std::uint8_t used : link.uses) hash.mix(used);
    }
    for (const Resource& resource : of.resources) {
      hash.mix(resource.bandwidth);
      hash.mix(resource.shared);
    }
  }
  return hash.value();
}

// Flows are the links of all ranks, one rank after the other; what they share are the resources that ranks do.
Bandwidth bandwidth_of(const MachineSpec& host) {
  std::map<std::uint32_t, std::uint32_t> known;  // by number among ranks
  std::vector<BytesPerSecond> capacities, caps;
  std::vector<std::vector<std::uint32_t>> uses;
  for (std::size_t rank = 0; rank < host.rank_count(); ++rank) {
    const MachineSpec& of = host.of_rank(rank);
    for (const Link& link : of.links) {
      caps.push_back(link.bandwidth);
      std::vector<std::uint32_t>& shared = uses.emplace_back();
      for (const std::uint8_t used : link.uses) {
        const Resource& resource = of.resources[used];
        if (resource.shared == none) continue;
        const auto [entry, added] = known.try_emplace(resource.shared, static_cast<std::uint32_t>(known.size()));
        if (added) capacities.push_back(resource.bandwidth);
        shared.push_back(entry->second);
      }
    }
  }
  return {std::move(capacities), std::move(uses), std::move(caps)};
}

struct flock lock_of(short kind, off_t first, off_t count = 1) {
  struct flock lock {};
  lock.l_type = kind;
  lock.l_whence = SEEK_SET;
  lock.l_start = first;
  lock.l_len = count;
  return lock;
}

// The process that holds one of these bytes, other than this one; 0: nobody does.
int holder_of(int file, off_t first, off_t count = 1) {
  struct flock lock = lock_of(F_WRLCK, first, count);
  if (::fcntl(file, F_GETLK, &lock) != 0) throw Error(fmt::format("{}: locks: {}", folder, std::strerror(errno)));
  return lock.l_type == F_UNLCK ? 0 : lock.l_pid != 0 ? lock.l_pid : -1;
}

// Files of this process, whose own locks it does not see, and would let go of by closing them.
std::set<std::string>& files_of_this_process() {
  static auto* const names = new std::set<std::string>;  // a run may end after statics
  return *names;
}

// What runs that were killed have left.
void remove_left_behind() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(prefix()) || files_of_this_process().contains("/" + name)) continue;
    const FileDescriptor file(::shm_open(("/" + name).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0));
    struct flock door = lock_of(F_WRLCK, door_byte);
    if (!file.open() || ::fcntl(file.get(), F_SETLK, &door) != 0) continue;
    if (holder_of(file.get(), first_rank_byte, most_ranks_of_a_host) == 0) ::shm_unlink(("/" + name).c_str());
  }
}

}  // namespace

MachineSpec part_of_host(const MachineSpec& host, std::size_t rank) {
  MachineSpec part = host.of_rank(rank);
  part.other_ranks.clear();
  for (Resource& resource : part.resources) {
    if (resource.shared == none) continue;
    BytesPerSecond sharers = 0;
    for (std::size_t other = 0; other < host.rank_count(); ++other) {
      sharers += std::ranges::count(host.of_rank(other).resources, resource.shared, &Resource::shared);
    }
    resource.bandwidth = std::max<BytesPerSecond>(1, resource.bandwidth / sharers);
    resource.shared = none;
  }
  for (Link& link : part.links) {
    for (const std::uint8_t used : link.uses) {
      for (BytesPerSecond* rate : {&link.bandwidth, &link.sustained_bandwidth, &link.pageable_bandwidth}) {
        *rate = std::min(*rate, part.resources[used].bandwidth);
      }
    }
  }
  return part;
}

std::string HostShare::file_of(const std::string& run) { return folder + name_of(run); }

// ---- The file -------------------------------------------------------------------------------------------------------

// A cache line each.
struct alignas(64) HostShare::Entry {
  std::atomic<State> state;
  std::atomic<std::uint32_t> links;  // over which it copies
  std::atomic<std::uint32_t> is_short;
  std::atomic<Bytes> memory;
};

struct HostShare::Segment {
  std::atomic<std::uint64_t> format;
  std::uint64_t ranks;
  Bytes part;
  std::uint64_t links_hash;
  std::array<Entry, most_ranks_of_a_host> entries;
};

// While it lives no other process is here.
class HostShare::Door {
 public:
  explicit Door(int file) : file_(file) {
    struct flock lock = lock_of(F_WRLCK, door_byte);
    while (::fcntl(file_, F_SETLKW, &lock) != 0) {
      if (errno != EINTR) throw Error(fmt::format("{}: locks: {}", folder, std::strerror(errno)));
    }
  }
  ~Door() {
    struct flock lock = lock_of(F_UNLCK, door_byte);
    ::fcntl(file_, F_SETLK, &lock);
  }
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

 private:
  int file_;
};

HostShare::HostShare(const std::string& run, std::size_t rank, const MachineSpec& host, Bytes cpu_memory)
    : name_(name_of(run)),
      rank_(rank),
      ranks_(host.rank_count()),
      links_(host.links.size()),
      part_(cpu_memory),
      step_(std::clamp(cpu_memory / 8, least_step, largest_step)),
      process_(::getpid()),
      bandwidth_(bandwidth_of(host)),
      masks_(ranks_, 0) {
  TENCACHE_CHECK(rank < ranks() && ranks() <= most_ranks_of_a_host && links_ <= max_links);
  for (std::size_t of = 0; of < ranks(); ++of) {
    for (const Link& link : host.of_rank(of).links) caps_.push_back(link.bandwidth);
  }
  for (const Link& link : host.links) link_names_.push_back(link.name);
  TENCACHE_CHECK(!files_of_this_process().contains(name_));
  remove_left_behind();
  open(run, hash_of_links(host));
}

void HostShare::open(const std::string& run, std::uint64_t links_hash) {
  const std::string path = folder + name_;
  for (;;) {
    file_ = FileDescriptor(::shm_open(name_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    struct stat status {};
    if (!file_.open() || ::fstat(file_.get(), &status) != 0) {
      throw Error(
          fmt::format("{}: {}; ranks share CPU memory and disks through it: remove it, or give another name "
                      "with --ranks-share (none: each rank keeps to its part)",
                      path, std::strerror(errno)));
    }
    if (status.st_uid != ::geteuid()) {
      throw Error(fmt::format("{} is another user's; give another name with --ranks-share", path));
    }
    const Door door(file_.get());
    TENCACHE_CHECK(::fstat(file_.get(), &status) == 0);
    if (status.st_nlink == 0) continue;  // it has just lost its name
    const bool fresh = holder_of(file_.get(), first_rank_byte, most_ranks_of_a_host) == 0;
    if (fresh && (::ftruncate(file_.get(), 0) != 0 || ::ftruncate(file_.get(), sizeof(Segment)) != 0)) {
      throw Error(fmt::format("{}: {}", path, std::strerror(errno)));
    }
    TENCACHE_CHECK(::fstat(file_.get(), &status) == 0);
    if (!fresh && status.st_size != sizeof(Segment)) {
      throw Error(
          fmt::format("{}: another version of TenCache runs ranks of '{}'; give all ranks the same one", path, run));
    }
    void* const memory = ::mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
    if (memory == MAP_FAILED) throw Error(fmt::format("{}: {}", path, std::strerror(errno)));
    segment_ = static_cast<Segment*>(memory);
    try {
      join(run, fresh, links_hash);
    } catch (...) {
      ::munmap(memory, sizeof(Segment));
      throw;
    }
    return;
  }
}

void HostShare::join(const std::string& run, bool fresh, std::uint64_t links_hash) {
  if (fresh) {
    segment_->ranks = ranks();
    segment_->part = part_;
    segment_->links_hash = links_hash;
    segment_->format = format;
  }
  if (segment_->format != format) {
    throw Error(fmt::format("{}{}: another version of TenCache runs ranks of '{}'; give all ranks the same one", folder,
                            name_, run));
  }
  const std::string who = fmt::format("rank {} of '{}'", rank_, run);
  if (segment_->ranks != ranks()) {
    throw Error(fmt::format("{} is one of {} on this host, other ranks are of {}; set LOCAL_WORLD_SIZE alike", who,
                            ranks(), segment_->ranks));
  }
  if (segment_->part != part_) {
    throw Error(
        fmt::format("{} has {} of CPU memory, other ranks have {}; give all of them the same --cpu-memory and "
                    "--machine",
                    who, format_bytes(part_), format_bytes(segment_->part)));
  }
  if (segment_->links_hash != links_hash) {
    throw Error(who + " has other links than other ranks; give all of them the same --machine and --limit");
  }
  const off_t own_byte = first_rank_byte + static_cast<off_t>(rank_);
  if (const int holder = holder_of(file_.get(), own_byte); holder != 0) {
    throw Error(
        fmt::format("{} runs already, as process {}; end it, or give another name with --ranks-share", who, holder));
  }
  Entry& own = segment_->entries[rank_];
  own.state = State::left;  // what an earlier process of the rank held is nobody's
  own.links = own.is_short = 0;
  most_held_ = std::min(part_, left());
  own.memory = most_held_;
  struct flock life = lock_of(F_WRLCK, own_byte);
  TENCACHE_CHECK(::fcntl(file_.get(), F_SETLK, &life) == 0);
  own.state = State::joined;
  files_of_this_process().insert(name_);
  const auto here = std::span(segment_->entries).first(ranks());
  if (std::ranges::none_of(here, [](const Entry& rank) { return rank.state == State::absent; })) {
    ::shm_unlink(name_.c_str());
  }
}

HostShare::~HostShare() {
  if (::getpid() == process_) {  // not a child's copy
    const Door door(file_.get());
    Entry& own = segment_->entries[rank_];
    own.state = State::left;
    own.links = own.is_short = 0;
    struct stat status {};
    const bool named = ::fstat(file_.get(), &status) == 0 && status.st_nlink != 0;
    if (named && holder_of(file_.get(), first_rank_byte, most_ranks_of_a_host) == 0) ::shm_unlink(name_.c_str());
  }
  files_of_this_process().erase(name_);
  ::munmap(segment_, sizeof(Segment));
}

bool HostShare::lives(std::size_t rank) const {
  return rank == rank_ || holder_of(file_.get(), first_rank_byte + static_cast<off_t>(rank)) != 0;
}

// ---- CPU memory -----------------------------------------------------------------------------------------------------

// Of the pool; at the door, or as a guess. Who has not come yet is going to hold its part. `buries`: the dead hold
// nothing.
Bytes HostShare::left(bool buries) const {
  Bytes held = 0;
  for (std::size_t rank = 0; rank < ranks(); ++rank) {
    const Entry& of = segment_->entries[rank];
    if (of.state == State::absent) held += part_;
    if (of.state == State::joined && (!buries || lives(rank))) held += of.memory;
  }
  TENCACHE_CHECK(held <= pool() || !buries);
  return pool() - std::min(held, pool());
}

Bytes HostShare::held() const { return segment_->entries[rank_].memory; }

bool HostShare::take_more() {
  Entry& own = segment_->entries[rank_];
  constexpr std::uint32_t often = 64;
  if (refused_ % often != 0 && left(false) == 0) return ++refused_, false;
  const Door door(file_.get());
  const Bytes more = std::min(step_, left());
  refused_ = more == 0 ? refused_ + 1 : 0;
  own.is_short = more == 0 ? 1 : 0;
  own.memory += more;
  most_held_ = std::max<Bytes>(most_held_, own.memory);
  return more != 0;
}

void HostShare::has_enough() {
  Entry& own = segment_->entries[rank_];
  if (own.is_short != 0) own.is_short = 0;
  refused_ = 0;
}

void HostShare::give_back_to(Bytes bytes) {
  const Door door(file_.get());
  Entry& own = segment_->entries[rank_];
  TENCACHE_CHECK(bytes <= own.memory);
  own.memory = bytes;
}

bool HostShare::wanted() const {
  for (std::size_t rank = 0; rank < ranks(); ++rank) {
    if (rank != rank_ && segment_->entries[rank].is_short != 0 && lives(rank)) return true;
  }
  return false;
}

// ---- Copies ---------------------------------------------------------------------------------------------------------

std::vector<std::string> HostShare::shared_links() const {
  std::vector<std::string> names;
  for (LinkId link = 0; link < links_; ++link) {
    if (shares(link)) names.push_back(link_names_[link]);
  }
  return names;
}

void HostShare::begin(LinkId link) { segment_->entries[rank_].links |= 1u << link; }

void HostShare::end(LinkId link) { segment_->entries[rank_].links &= ~(1u << link); }

BytesPerSecond HostShare::rate(LinkId link) {
  const MutexLock lock(mutex_);
  for (std::size_t rank = 0; rank < ranks(); ++rank) {
    std::uint32_t now = segment_->entries[rank].links;
    if (now != 0 && !lives(rank)) now = 0;
    for (std::uint32_t changed = now ^ std::exchange(masks_[rank], now); changed != 0; changed &= changed - 1) {
      const auto of = static_cast<LinkId>(std::countr_zero(changed));
      const std::uint32_t one = flow(rank, of);
      if (bandwidth_.alone(one)) continue;
      if ((now >> of & 1) != 0) {
        bandwidth_.set(one, caps_[one]);
      } else {
        bandwidth_.stop(one);
      }
    }
  }
  while (bandwidth_.pending()) bandwidth_.share();
  const std::uint32_t own = flow(rank_, link);
  TENCACHE_CHECK((masks_[rank_] >> link & 1) != 0);
  return bandwidth_.alone(own) ? caps_[own] : bandwidth_.rate(own);
}

}  // namespace tencache
