// A cache of embedding rows on real memory: the rows live in a store (CPU memory, or a file on an SSD), an arena of as
// many slots as the cache has stands for the GPU's, and threads move between them what a policy plans.
//
// Rows that leave are gathered from the arena into one buffer, copied, and scattered into the store; rows that enter
// take the same way back. Rows that the policy leaves out are read for the batch and written back after it. One thread
// calls; nothing here reads a clock: whoever wants times passes one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/thread_annotations.h"
#include "sim/rows/row_cache.h"
#include "sim/rows/row_times.h"

namespace tencache {

// Runs parts of a loop side by side; with one thread, on the caller's.
class RowThreads {
 public:
  explicit RowThreads(unsigned count);
  ~RowThreads();
  RowThreads(const RowThreads&) = delete;
  RowThreads& operator=(const RowThreads&) = delete;

  // work(begin, end) on disjoint parts of [0, size); returns when all are done. What the first one throws is thrown.
  void for_parts(std::size_t size, const std::function<void(std::size_t, std::size_t)>& work);

 private:
  void serve(unsigned index);
  void run_part(unsigned index);

  unsigned count_;
  Mutex mutex_;
  Condition changed_;
  std::uint64_t round_ TENCACHE_GUARDED_BY(mutex_) = 0;
  unsigned left_ TENCACHE_GUARDED_BY(mutex_) = 0;
  bool over_ TENCACHE_GUARDED_BY(mutex_) = false;
  std::exception_ptr failure_ TENCACHE_GUARDED_BY(mutex_);
  std::size_t size_ = 0;
  const std::function<void(std::size_t, std::size_t)>* work_ = nullptr;
  std::vector<std::thread> threads_;
};

// Rows of all tables. Different rows may be read and written by several threads at once.
class RowStore {
 public:
  virtual ~RowStore() = default;
  virtual void read(Row row, std::byte* into) const = 0;
  virtual void write(Row row, const std::byte* from) = 0;
};
// Of these rows alone, such as those that the ids use: a file with holes between them would be slow to write, and
// slower to delete. Zeros at first. Throws Error where the memory, or the folder's disk, does not suffice; the file has
// no name, and is gone with the store.
std::unique_ptr<RowStore> make_memory_store(const RowIds& ids, const std::vector<Row>& rows);
std::unique_ptr<RowStore> make_file_store(const RowIds& ids, const std::vector<Row>& rows, const std::string& folder);

class LiveRows {
 public:
  using Clock = std::function<Nanoseconds()>;

  // `ids`, `store` and `threads` outlive it. Throws Error for belady, which is a bound, and for an arena that does not
  // fit into memory.
  LiveRows(const RowIds& ids, const RowPolicy& policy, const RowCacheOptions& options, RowStore& store,
           RowThreads& threads, Clock clock = {});

  // Batches in order, each once: plans, moves, and then every row of the batch has an address until end().
  void begin(std::size_t batch);
  std::byte* address(Row row);  // of a row of the batch that has begun
  void end();
  // Writes all that lies in the arena to the store. Once, last.
  void flush();

  const RowPlan& plan() const { return plan_; }
  std::uint32_t slots() const { return cache_->slots(); }
  // So far, by the clock; without one 0. `direct`: reading and writing rows that have no slot.
  const RowStageTimes& stage_ns() const { return stage_ns_; }

 private:
  template <typename Work>
  void timed(RowStage stage, Work work);
  std::byte* slot_address(std::uint32_t slot) { return arena_.data() + std::size_t{slot} * stride_; }
  void move_out(const std::vector<RowMove>& moves);
  void move_in(const std::vector<RowMove>& moves);

  const RowIds& ids_;
  RowStore& store_;
  RowThreads& threads_;
  Clock clock_;
  std::unique_ptr<RowCache> cache_;
  std::size_t stride_;
  std::vector<std::byte> arena_, near_, far_, direct_;  // near_, far_: buffers on the arena's side and the store's
  RowPlan plan_;
  RowStageTimes stage_ns_{};
};

}  // namespace tencache
