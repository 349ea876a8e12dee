#include "executor/torch/lent_tensors.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "executor/torch/recorder/op_schema.h"

#if __has_include(<torch/csrc/distributed/c10d/Work.hpp>)
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace tencache::paging {
namespace {

using WorkPointer = c10::intrusive_ptr<c10d::Work>;

class Loans {
 public:
  using Number = std::uint64_t;

  // `comes_back`: somebody calls `end` when the Work is over.
  Number begin(Loan loan, const WorkPointer& work, bool comes_back) {
    const std::lock_guard lock(mutex_);
    if (!comes_back) ++silent_;
    open_.emplace(++last_, Open{std::move(loan), c10::weak_intrusive_ptr<c10d::Work>(work), comes_back});
    return last_;
  }

  void end(Number number) {
    Open ended;  // its storages go when the mutex is free
    const std::lock_guard lock(mutex_);
    if (const auto found = open_.find(number); found != open_.end()) ended = take(found);
  }

  void end_finished() {
    if (silent_ == 0) return;
    std::vector<Open> ended;
    const std::lock_guard lock(mutex_);
    for (auto at = open_.begin(); at != open_.end();) {
      const auto loan = at++;
      if (!loan->second.comes_back && is_over(loan->second)) ended.push_back(take(loan));
    }
  }

  void await() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return open_.size() == silent_; });
  }

  bool has(const void* address) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, loan] : open_) {
      for (const c10::Storage& storage : loan.loan.storages) {
        if (base_address(storage) == address) return true;
      }
    }
    return false;
  }

  void forget(const tencache_live& live) {
    const std::lock_guard lock(mutex_);
    for (auto& [number, loan] : open_) {
      if (loan.loan.live == &live) loan.loan.live = nullptr;
    }
  }

 private:
  struct Open {
    Loan loan;
    c10::weak_intrusive_ptr<c10d::Work> work{WorkPointer()};
    bool comes_back = false;
  };

  // A Work that nobody has any more does nothing any more.
  static bool is_over(const Open& loan) {
    const WorkPointer work = loan.work.lock();
    return !work.defined() || work->isCompleted();
  }

  Open take(std::map<Number, Open>::iterator at) {
    Open ended = std::move(at->second);
    open_.erase(at);
    if (!ended.comes_back) --silent_;
    if (const tencache_live* const live = ended.loan.live) {
      live->take_back(live->runtime, ended.loan.uses.data(), ended.loan.uses.size(), ended.comes_back ? 1 : 0);
    }
    ended_.notify_all();
    return ended;
  }

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::map<Number, Open> open_;
  std::atomic<std::size_t> silent_ = 0;  // of them
  Number last_ = 0;
};

// Threads of others use it to the end of the process: never destroyed.
Loans& loans() {
  static Loans* const instance = new Loans;
  return *instance;
}

WorkPointer work_of(at::ArrayRef<c10::IValue> results) {
  for (const c10::IValue& value : results) {
    if (!value.isObject() || !value.type()->str().ends_with("c10d.Work")) continue;
    return c10::static_intrusive_pointer_cast<c10d::Work>(value.toObject()->getSlot(0).toCapsule());
  }
  return {};
}

// Null for a Work that tells nobody when it is over.
c10::intrusive_ptr<c10::ivalue::Future> future_of(c10d::Work& work) {
  try {
    return work.getFuture();
  } catch (const c10::Error&) {
    return {};
  }
}

}  // namespace

void lend(Loan loan, at::ArrayRef<c10::IValue> results, void (*check)(const tencache_live&, int status)) {
  const WorkPointer work = work_of(results);
  if (!work.defined()) return;
  const c10::intrusive_ptr<c10::ivalue::Future> future = future_of(*work);
  const tencache_live& live = *loan.live;
  check(live, live.lend(live.runtime, loan.uses.data(), loan.uses.size(), future.defined() ? 1 : 0));
  const Loans::Number number = loans().begin(std::move(loan), work, future.defined());
  if (future.defined()) future->addCallback([number](c10::ivalue::Future&) { loans().end(number); });
}

bool is_lent(const void* address) { return loans().has(address); }
void take_back_finished() { loans().end_finished(); }
void await_lent() {
  loans().end_finished();
  loans().await();
}
void forget_loans(const tencache_live& live) { loans().forget(live); }

}  // namespace tencache::paging

#else

namespace tencache::paging {

void lend(Loan, at::ArrayRef<c10::IValue>, void (*)(const tencache_live&, int)) {}
bool is_lent(const void*) { return false; }
void take_back_finished() {}
void await_lent() {}
void forget_loans(const tencache_live&) {}

}  // namespace tencache::paging

#endif
