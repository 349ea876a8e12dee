#include "tests/live/rules/late_kernels.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/check.h"

namespace tencache::rules {
namespace {

std::uint64_t hash_of(std::span<const std::byte> memory) {
  return std::hash<std::string_view>{}({reinterpret_cast<const char*>(memory.data()), memory.size()});
}

}  // namespace

LateKernels::LateKernels() {
  TENCACHE_CHECK(active_ == nullptr);
  active_ = this;
}

LateKernels::~LateKernels() { active_ = nullptr; }

tencache_live LateKernels::interpose(const tencache_live& live) {
  live_ = live;
  memory_.clear();
  names_.clear();
  tencache_live ours = live;
  ours.begin_op = begin_op;
  ours.end_op = end_op;
  ours.allocate = allocate;
  ours.release = release;
  ours.keep = keep;
  ours.unkeep = unkeep;
  ours.expose = expose;
  ours.name_id = name_id;
  return ours;
}

// ---- What the program calls -----------------------------------------------------------------------------------------

std::uint32_t LateKernels::name_id(void* runtime, const char* text, std::size_t bytes) {
  LateKernels& self = *active_;
  const std::uint32_t id = self.live_.name_id(runtime, text, bytes);
  const std::lock_guard lock(self.mutex_);
  self.names_[id] = self.texts_.emplace_back(text, bytes).c_str();
  return id;
}

int LateKernels::begin_op(void* runtime, std::uint32_t name, tencache_use* uses, std::size_t count,
                          std::uint64_t part_bytes) {
  LateKernels& self = *active_;
  const int status = self.live_.begin_op(runtime, name, uses, count, part_bytes);
  if (status != tencache_ok) return status;
  const std::lock_guard lock(self.mutex_);
  self.begin(self.names_.at(name), {uses, count});
  return status;
}

int LateKernels::end_op(void* runtime, int linger) {
  LateKernels& self = *active_;
  {
    const std::lock_guard lock(self.mutex_);
    Op op = std::exchange(self.op_, {});
    if (linger != 0) {
      self.judge_order(op.name, std::move(op.pieces));
    } else {
      self.publish_late(op.name, std::move(op.pieces));
    }
  }
  return self.live_.end_op(runtime, linger);
}

int LateKernels::allocate(void* runtime, std::uint64_t bytes, int inside_op, tencache_storage* storage) {
  LateKernels& self = *active_;
  const int status = self.live_.allocate(runtime, bytes, inside_op, storage);
  if (status != tencache_ok) return status;
  const std::lock_guard lock(self.mutex_);
  Piece made{storage->tensor, static_cast<std::byte*>(storage->address), bytes, true, false, 0, {}};
  made.kept = inside_op == 0 && self.live_.moves != 0;
  self.memory_[storage->tensor] = made;
  self.count_kept();
  if (inside_op != 0) {
    prepare({&made, 1});
    self.op_.pieces.push_back(std::move(made));
  } else {
    self.judge_order("code that is no op", {made});
  }
  return status;
}

void LateKernels::release(void* runtime, std::uint32_t tensor) {
  LateKernels& self = *active_;
  {
    const std::lock_guard lock(self.mutex_);
    std::vector<Piece>& pieces = self.op_.pieces;
    const auto used = std::ranges::find(pieces, tensor, &Piece::tensor);
    if (used != pieces.end()) {
      std::vector<Piece> freed = {std::move(*used)};
      pieces.erase(used);
      self.judge_order(self.op_.name, std::move(freed));
    }
    self.memory_.erase(tensor);
  }
  self.live_.release(runtime, tensor);
}

int LateKernels::keep(void* runtime, const std::uint32_t* tensors, std::size_t count) {
  LateKernels& self = *active_;
  {
    const std::lock_guard lock(self.mutex_);
    for (const std::uint32_t tensor : std::span(tensors, count)) self.memory_.at(tensor).kept = true;
    self.count_kept();
  }
  return self.live_.keep(runtime, tensors, count);
}

void LateKernels::count_kept() {
  Bytes kept = 0;
  for (const auto& [tensor, piece] : memory_) {
    if (piece.kept) kept += round_up(piece.bytes, RulesState::active->options.granularity);
  }
  most_kept_bytes_ = std::max(most_kept_bytes_, kept);
}

int LateKernels::unkeep(void* runtime, const std::uint32_t* tensors, std::size_t count) {
  LateKernels& self = *active_;
  {
    const std::lock_guard lock(self.mutex_);
    for (const std::uint32_t tensor : std::span(tensors, count)) self.memory_.at(tensor).kept = false;
  }
  return self.live_.unkeep(runtime, tensors, count);
}

int LateKernels::expose(void* runtime, std::uint32_t tensor) {
  LateKernels& self = *active_;
  const int status = self.live_.expose(runtime, tensor);
  if (status != tencache_ok) return status;
  const std::lock_guard lock(self.mutex_);
  Piece& exposed = self.memory_.at(tensor);
  if (self.live_.moves != 0) exposed.address = static_cast<std::byte*>(self.live_.address(runtime, tensor));
  exposed.kept = true;
  self.count_kept();
  return status;
}

void LateKernels::launch(const char* name, std::byte* address, Bytes bytes, const std::function<void()>& body) {
  const std::lock_guard lock(mutex_);
  std::vector<Piece> pieces = {{tencache_no_tensor, address, bytes, true, false, 0, {}}};
  prepare(pieces);
  body();
  publish_late(name, std::move(pieces));
}

// ---- What the device does -------------------------------------------------------------------------------------------

void LateKernels::begin(const char* name, std::span<const tencache_use> uses) {
  op_ = {name, {}};
  for (const tencache_use& use : uses) {
    Piece& piece_of_program = memory_.at(use.tensor);
    if (live_.moves != 0) piece_of_program.address = static_cast<std::byte*>(use.address);
    Piece piece = piece_of_program;
    piece.written = use.written != 0;
    if (piece.written || use.read != 0) op_.pieces.push_back(std::move(piece));
  }
  prepare(op_.pieces);
}

// What the kernel depends on is over, and its inputs are known.
void LateKernels::prepare(std::span<Piece> pieces) {
  Call call("a kernel's launch", Call::Needs::nothing);
  RulesState& at = call.state();
  const Line line = at.streams.at(nullptr);
  for (const Moment& moment : at.queue.waits(line)) at.queue.force(moment);
  for (Piece& piece : pieces) {
    DeviceJob job;
    if (!touch(call, job, {piece})) return;  // broken, or reported when it is launched
    for (const Access& access : job.accesses) {
      for (const Moment& moment : at.queue.conflicts(line, access)) at.queue.force(moment);
    }
    if (!piece.written) piece.hash = hash_of(piece.memory());
  }
}

bool LateKernels::touch(Call& call, DeviceJob& job, const std::vector<Piece>& pieces) {
  return std::ranges::all_of(pieces, [&](const Piece& piece) {
    return call.touch_device(job, reinterpret_cast<CUdeviceptr>(piece.address), piece.bytes, piece.written);
  });
}

void LateKernels::publish_late(const char* name, std::vector<Piece> pieces) {
  if (pieces.empty()) return;
  RulesState::active->host.own() = the_context;  // PyTorch makes it current wherever it launches
  Call call(name);
  RulesState& at = call.state();
  if (call.failed() != CUDA_SUCCESS) return;
  DeviceJob job;
  if (!touch(call, job, pieces)) {
    call.breaks("all that an op touches is mapped and accessible", CUDA_ERROR_ILLEGAL_ADDRESS);
    return;
  }
  const bool for_host = std::ranges::none_of(pieces, &Piece::written);
  for (Piece& piece : pieces) {
    if (!piece.written) continue;
    piece.content.assign(piece.memory().begin(), piece.memory().end());
    poison(piece.memory());
  }
  (for_host ? counts_.waited : counts_.late)++;
  at.counts.kernels++;
  job.run = [name, launched = CallStack::here(), pieces = std::move(pieces)] { publish(name, launched, pieces); };
  call.submit(nullptr, std::move(job));
  if (!for_host) return;
  const Line line = at.streams.at(nullptr);
  at.queue.force(at.queue.last(line));
  at.host.clock().learn(at.queue.known_after(line));
}

void LateKernels::judge_order(const char* name, std::vector<Piece> pieces) {
  if (pieces.empty()) return;
  RulesState::active->host.own() = the_context;
  Call call(name);
  if (call.failed() != CUDA_SUCCESS) return;
  DeviceJob job;
  if (!touch(call, job, pieces)) {
    call.breaks("all that an op touches is mapped and accessible", CUDA_ERROR_ILLEGAL_ADDRESS);
    return;
  }
  counts_.ordered++;
  job.run = [] {};
  call.submit(nullptr, std::move(job));
}

void LateKernels::publish(const char* name, const CallStack& launched, const std::vector<Piece>& pieces) {
  std::string& violation = RulesState::active->violation;
  const auto report = [&](const char* what) {
    if (violation.empty()) violation = std::string("late kernel ") + name + ": " + what + "\n" + launched.describe();
  };
  for (const Piece& piece : pieces) {
    if (!piece.written) {
      if (hash_of(piece.memory()) != piece.hash) report("an input has changed before the kernel was over");
      continue;
    }
    if (!is_poison(piece.memory())) report("an output was written before the kernel was over");
    std::memcpy(piece.address, piece.content.data(), piece.bytes);
  }
}

}  // namespace tencache::rules
