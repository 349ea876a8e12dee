#include "executor/rows/live_rows.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "core/check.h"
#include "core/error.h"

namespace tencache {
namespace {

// Where rows lie: those of the store one after the other, each as wide as the widest.
class RowPlaces {
 public:
  RowPlaces(const RowIds& ids, const std::vector<Row>& rows)
      : ids_(ids), index_of_(ids.rows(), no_slot), stride_(ids.widest_row()), bytes_(rows.size() * stride_) {
    for (std::size_t i = 0; i < rows.size(); ++i) index_of_[rows[i]] = static_cast<std::uint32_t>(i);
  }
  Bytes all_bytes() const { return std::max<Bytes>(bytes_, 1); }
  // Offset and bytes.
  std::pair<Bytes, Bytes> of(Row row) const {
    TENCACHE_CHECK(index_of_[row] != no_slot);
    return {index_of_[row] * stride_, ids_.bytes_of(row)};
  }

 private:
  const RowIds& ids_;
  std::vector<std::uint32_t> index_of_;
  Bytes stride_, bytes_;
};

class MemoryStore final : public RowStore {
 public:
  MemoryStore(const RowIds& ids, const std::vector<Row>& rows) : places_(ids, rows) {
    void* const memory = ::mmap(nullptr, places_.all_bytes(), PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      throw Error(fmt::format("no memory for tables of {}: {}; keep them in a file instead (--directory)",
                              format_bytes(places_.all_bytes()), std::strerror(errno)));
    }
    memory_ = static_cast<std::byte*>(memory);
  }
  ~MemoryStore() override { ::munmap(memory_, places_.all_bytes()); }
  MemoryStore(const MemoryStore&) = delete;
  MemoryStore& operator=(const MemoryStore&) = delete;

  void read(Row row, std::byte* into) const override {
    const auto [offset, bytes] = places_.of(row);
    std::memcpy(into, memory_ + offset, bytes);
  }
  void write(Row row, const std::byte* from) override {
    const auto [offset, bytes] = places_.of(row);
    std::memcpy(memory_ + offset, from, bytes);
  }

 private:
  RowPlaces places_;
  std::byte* memory_ = nullptr;
};

class FileStore final : public RowStore {
 public:
  FileStore(const RowIds& ids, const std::vector<Row>& rows, const std::string& folder)
      : places_(ids, rows), folder_(folder), descriptor_(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)) {
    const bool made = descriptor_ >= 0 && ::ftruncate(descriptor_, static_cast<off_t>(places_.all_bytes())) == 0;
    if (made) return;
    const int error_number = errno;
    if (descriptor_ >= 0) ::close(descriptor_);
    fail("no file for the tables", error_number);
  }
  ~FileStore() override { ::close(descriptor_); }
  FileStore(const FileStore&) = delete;
  FileStore& operator=(const FileStore&) = delete;

  void read(Row row, std::byte* into) const override {
    auto [offset, bytes] = places_.of(row);
    while (bytes > 0) {
      const ssize_t count = ::pread(descriptor_, into, bytes, static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) fail("a row cannot be read", count < 0 ? errno : EIO);
      into += count, offset += static_cast<Bytes>(count), bytes -= static_cast<Bytes>(count);
    }
  }
  void write(Row row, const std::byte* from) override {
    auto [offset, bytes] = places_.of(row);
    while (bytes > 0) {
      const ssize_t count = ::pwrite(descriptor_, from, bytes, static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) fail("a row cannot be written", count < 0 ? errno : EIO);
      from += count, offset += static_cast<Bytes>(count), bytes -= static_cast<Bytes>(count);
    }
  }

 private:
  [[noreturn]] void fail(const char* what, int error_number) const {
    throw Error(folder_, 0,
                fmt::format("{} ({}): {}; name a folder with room on a local disk", what,
                            format_bytes(places_.all_bytes()), std::strerror(error_number)));
  }

  RowPlaces places_;
  std::string folder_;
  int descriptor_;
};

}  // namespace

RowThreads::RowThreads(unsigned count) : count_(std::max(count, 1u)) {
  for (unsigned index = 1; index < count_; ++index) threads_.emplace_back([this, index] { serve(index); });
}

RowThreads::~RowThreads() {
  {
    const MutexLock lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void RowThreads::for_parts(std::size_t size, const std::function<void(std::size_t, std::size_t)>& work) {
  size_ = size;
  work_ = &work;
  {
    const MutexLock lock(mutex_);
    ++round_;
    left_ = count_;
    failure_ = nullptr;
  }
  changed_.notify_all();
  run_part(0);
  MutexLock lock(mutex_);
  while (left_ > 0) changed_.wait(lock);
  if (failure_) std::rethrow_exception(failure_);
}

void RowThreads::run_part(unsigned index) {
  std::exception_ptr failure;
  try {
    const std::size_t begin = size_ * index / count_, end = size_ * (index + 1) / count_;
    if (begin < end) (*work_)(begin, end);
  } catch (...) {
    failure = std::current_exception();
  }
  const MutexLock lock(mutex_);
  if (failure && !failure_) failure_ = failure;
  if (--left_ == 0) changed_.notify_all();
}

void RowThreads::serve(unsigned index) {
  for (std::uint64_t seen = 0;;) {
    {
      MutexLock lock(mutex_);
      while (!over_ && round_ == seen) changed_.wait(lock);
      if (over_) return;
      seen = round_;
    }
    run_part(index);
  }
}

std::unique_ptr<RowStore> make_memory_store(const RowIds& ids, const std::vector<Row>& rows) {
  return std::make_unique<MemoryStore>(ids, rows);
}
std::unique_ptr<RowStore> make_file_store(const RowIds& ids, const std::vector<Row>& rows, const std::string& folder) {
  return std::make_unique<FileStore>(ids, rows, folder);
}

LiveRows::LiveRows(const RowIds& ids, const RowPolicy& policy, const RowCacheOptions& options, RowStore& store,
                   RowThreads& threads, Clock clock)
    : ids_(ids), store_(store), threads_(threads), clock_(std::move(clock)), stride_(ids.widest_row()) {
  if (policy.kind == RowPolicyKind::belady) {
    throw Error("belady is a bound, no system that could run: take another row policy");
  }
  cache_ = make_row_cache(policy, ids, options);
  try {
    arena_.resize(std::size_t{cache_->slots()} * stride_);
  } catch (const std::bad_alloc&) {
    throw Error(fmt::format("no memory for {} slots of {} bytes: lower --slots", cache_->slots(), stride_));
  }
  move_in(cache_->warm());
  stage_ns_ = {};
}

template <typename Work>
void LiveRows::timed(RowStage stage, Work work) {
  const Nanoseconds start = clock_ ? clock_() : 0;
  work();
  if (clock_) stage_ns_[static_cast<std::size_t>(stage)] += clock_() - start;
}

void LiveRows::move_out(const std::vector<RowMove>& moves) {
  if (moves.empty()) return;
  near_.resize(moves.size() * stride_);
  far_.resize(near_.size());
  timed(RowStage::link_out, [&] {
    threads_.for_parts(moves.size(), [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) std::memcpy(&near_[i * stride_], slot_address(moves[i].slot), stride_);
      std::memcpy(&far_[begin * stride_], &near_[begin * stride_], (end - begin) * stride_);
    });
  });
  timed(RowStage::scatter, [&] {
    threads_.for_parts(moves.size(), [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) store_.write(moves[i].row, &far_[i * stride_]);
    });
  });
}

void LiveRows::move_in(const std::vector<RowMove>& moves) {
  if (moves.empty()) return;
  near_.resize(moves.size() * stride_);
  far_.resize(near_.size());
  timed(RowStage::gather, [&] {
    threads_.for_parts(moves.size(), [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) store_.read(moves[i].row, &far_[i * stride_]);
    });
  });
  timed(RowStage::link_in, [&] {
    threads_.for_parts(moves.size(), [&](std::size_t begin, std::size_t end) {
      std::memcpy(&near_[begin * stride_], &far_[begin * stride_], (end - begin) * stride_);
      for (std::size_t i = begin; i < end; ++i) std::memcpy(slot_address(moves[i].slot), &near_[i * stride_], stride_);
    });
  });
}

void LiveRows::begin(std::size_t batch) {
  timed(RowStage::fixed, [&] { cache_->plan(batch, plan_); });
  std::ranges::sort(plan_.direct);
  move_out(plan_.out);
  move_in(plan_.in);
  direct_.resize(plan_.direct.size() * stride_);
  timed(RowStage::direct, [&] {
    threads_.for_parts(plan_.direct.size(), [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) store_.read(plan_.direct[i], &direct_[i * stride_]);
    });
  });
}

std::byte* LiveRows::address(Row row) {
  if (const std::uint32_t slot = cache_->slot_of(row); slot != no_slot) return slot_address(slot);
  const auto found = std::ranges::lower_bound(plan_.direct, row);
  TENCACHE_CHECK(found != plan_.direct.end() && *found == row);
  return &direct_[static_cast<std::size_t>(found - plan_.direct.begin()) * stride_];
}

void LiveRows::end() {
  timed(RowStage::direct, [&] {
    threads_.for_parts(plan_.direct.size(), [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) store_.write(plan_.direct[i], &direct_[i * stride_]);
    });
  });
}

void LiveRows::flush() {
  for (Row row = 0; row < ids_.rows(); ++row) {
    if (const std::uint32_t slot = cache_->slot_of(row); slot != no_slot) store_.write(row, slot_address(slot));
  }
}

}  // namespace tencache
