#include "executor/live/live_abi.h"

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/error.h"
#include "executor/live/fault_handler.h"
#include "executor/live/live_runtime.h"

namespace tencache {
namespace {

thread_local std::exception_ptr failure;
thread_local std::string failure_message;

LiveRuntime& of(void* runtime) { return *static_cast<LiveRuntime*>(runtime); }

int failed(int status, const char* message) {
  failure = std::current_exception();
  failure_message = message;
  return status;
}

template <typename Work>
int guarded(const Work& work) {
  try {
    work();
    return tencache_ok;
  } catch (const OutOfMemory& error) {
    return failed(tencache_out_of_memory, error.what());
  } catch (const std::exception& error) {
    return failed(tencache_failed, error.what());
  } catch (...) {
    return failed(tencache_failed, "an unknown failure");
  }
}

class Uses {
 public:
  Uses(const tencache_use* uses, size_t count) {
    if (count > few_.size()) many_.resize(count);
    uses_ = {count > few_.size() ? many_.data() : few_.data(), count};
    std::ranges::transform(std::span(uses, count), uses_.begin(), [](const tencache_use& use) {
      return Use{use.tensor, use.read != 0, use.written != 0};
    });
  }
  operator std::span<const Use>() const { return uses_; }

 private:
  std::array<Use, 8> few_;
  std::vector<Use> many_;
  std::span<Use> uses_;
};

uint32_t name_id(void* runtime, const char* text, size_t bytes) { return of(runtime).name_id({text, bytes}); }

int begin_op(void* runtime, uint32_t name, tencache_use* uses, size_t count, uint64_t part_bytes) {
  const int status = guarded([&] { of(runtime).begin_op(NameId{name}, Uses(uses, count), part_bytes); });
  const tencache_live& live = of(runtime).abi();
  if (live.moves != 0) {
    const bool lies = status == tencache_ok || live.on_accelerator == 0;
    for (tencache_use& use : std::span(uses, count)) {
      use.address = lies ? of(runtime).address(use.tensor) : nullptr;
    }
  }
  return status;
}

int end_op(void* runtime, int linger) {
  return guarded([&] { of(runtime).end_op(linger != 0); });
}

int allocate(void* runtime, uint64_t bytes, int inside_op, tencache_storage* storage) {
  return guarded([&] {
    const tencache_live& live = of(runtime).abi();
    const bool kept = inside_op == 0 && live.moves != 0 && live.on_accelerator != 0;
    const LiveRuntime::Storage made = of(runtime).allocate(bytes, inside_op != 0, kept);
    *storage = {made.tensor, made.address};
  });
}

int store_in_file(void* runtime, uint64_t bytes, int descriptor, const char* path, uint64_t offset,
                  tencache_storage* storage) {
  FileDescriptor file(descriptor);
  return guarded([&] {
    const LiveRuntime::Storage made = of(runtime).store_in_file(bytes, SourceFile(path, std::move(file), offset));
    *storage = {made.tensor, made.address};
  });
}

void release(void* runtime, uint32_t tensor) { of(runtime).release(tensor); }

int keep(void* runtime, const uint32_t* tensors, size_t count) {
  return guarded([&] { of(runtime).keep({tensors, count}); });
}

int unkeep(void* runtime, const uint32_t* tensors, size_t count) {
  return guarded([&] { of(runtime).unkeep({tensors, count}); });
}

int announce_write(void* runtime, const uint32_t* tensors, size_t count) {
  return guarded([&] { of(runtime).announce_write({tensors, count}); });
}

int mark(void* runtime, uint32_t tensor, int role, const char* name, size_t name_bytes) {
  return guarded([&] {
    TENCACHE_CHECK(role >= 0 && role < static_cast<int>(role_count));
    of(runtime).mark(tensor, static_cast<Role>(role), {name, name_bytes});
  });
}

int pin(void* runtime, const uint32_t* tensors, size_t count, int written) {
  return guarded([&] { of(runtime).pin({tensors, count}, written != 0); });
}

int unpin(void* runtime, const uint32_t* tensors, size_t count, int written) {
  return guarded([&] {
    try {
      of(runtime).unpin({tensors, count}, written != 0);
    } catch (...) {  // what was given up with it is lost
      of(runtime).fail(std::current_exception());
      throw;
    }
  });
}

int lend(void* runtime, const tencache_use* uses, size_t count, int comes_back) {
  return guarded([&] { of(runtime).lend(Uses(uses, count), comes_back != 0); });
}

void take_back(void* runtime, const tencache_use* uses, size_t count, int comes_back) {
  of(runtime).take_back(Uses(uses, count), comes_back != 0);
}

void* address(void* runtime, uint32_t tensor) { return of(runtime).address(tensor); }

size_t take_left(void* runtime, tencache_storage* left, size_t room) {
  const std::vector<LiveRuntime::Storage> taken = of(runtime).take_left(room);
  std::ranges::transform(taken, left, [](const LiveRuntime::Storage& one) {
    return tencache_storage{one.tensor, one.address};
  });
  return taken.size();
}

void* guard(void* runtime) { return of(runtime).guard(); }

int expose(void* runtime, uint32_t tensor) {
  return guarded([&] {
    keep_serving_faults();
    of(runtime).expose(tensor);
  });
}

int expose_all(void* runtime) {
  return guarded([&] {
    keep_serving_faults();
    of(runtime).expose_all();
  });
}

LiveTask task_of(const tencache_task& task, const MachineSpec& spec) {
  LiveTask made;
  made.name.assign(task.name, task.name_bytes);
  made.group = task.group;
  made.placeable = spec.tier_of(Device::cpu) != no_tier;
  made.reorderable = true;
  for (const tencache_use& use : std::span(task.uses, task.count)) {
    made.uses.push_back({use.tensor, use.read != 0, use.written != 0});
  }
  const std::shared_ptr<void> context(task.context, task.forget);
  made.body = [context, body = task.body, name = made.name](std::span<std::byte* const> addresses) {
    const std::vector<void*> plain(addresses.begin(), addresses.end());
    if (const char* why = body(context.get(), plain.data()); why != nullptr) throw Error(name + ": " + why);
  };
  return made;
}

int run_tasks(void* runtime, const tencache_task* tasks, size_t count) {
  return guarded([&] {
    std::vector<LiveTask> made;
    for (const tencache_task& task : std::span(tasks, count)) made.push_back(task_of(task, of(runtime).spec()));
    of(runtime).run_tasks(std::move(made));
  });
}

void set_close_listener(void* runtime, void (*listener)(void* context), void* context) {
  of(runtime).set_close_listener([listener, context] { listener(context); });
}

void set_sleep_listener(void* runtime, void (*listener)(void* context, int asleep), void* context) {
  of(runtime).set_sleep_listener([listener, context](bool asleep) { listener(context, asleep ? 1 : 0); });
}

int stay_awake(void* runtime) {
  return guarded([&] { of(runtime).stay_awake(); });
}

int upload(void* runtime, void* device, const void* from, uint64_t bytes, void* stream) {
  return guarded(
      [&] { of(runtime).upload(static_cast<std::byte*>(device), static_cast<const std::byte*>(from), bytes, stream); });
}

int store(void* runtime, uint64_t bytes, const void* from, tencache_storage* storage) {
  return guarded([&] {
    const LiveRuntime::Storage made = of(runtime).store(bytes, static_cast<const std::byte*>(from));
    *storage = {made.tensor, made.address};
  });
}

const char* message() { return failure_message.c_str(); }

// Of the GPU tier: one op on lists of tensors needs all of its group at once.
constexpr Bytes groups_in_memory = 8;

// The smallest memory that a task may run in.
Bytes task_bytes(const MachineSpec& spec) {
  const TierId cpu = spec.tier_of(Device::cpu);
  const Bytes gpu_bytes = spec.tiers.front().capacity;
  return cpu == no_tier ? gpu_bytes : std::min(gpu_bytes, spec.tiers[cpu].capacity);
}

}  // namespace

tencache_live live_abi(LiveRuntime& runtime, const MachineSpec& spec, bool on_accelerator, bool moves) {
  return {.abi = tencache_live_abi,
          .on_accelerator = on_accelerator ? 1u : 0u,
          .cuda_tensors = on_accelerator ? 1u : 0u,
          .moves = moves ? 1u : 0u,
          .group_bytes = spec.tiers.front().capacity / groups_in_memory,
          .task_bytes = task_bytes(spec),
          .runtime = &runtime,
          .name_id = name_id,
          .begin_op = begin_op,
          .end_op = end_op,
          .allocate = allocate,
          .store_in_file = store_in_file,
          .release = release,
          .keep = keep,
          .unkeep = unkeep,
          .announce_write = announce_write,
          .mark = mark,
          .pin = pin,
          .unpin = unpin,
          .lend = lend,
          .take_back = take_back,
          .address = address,
          .take_left = take_left,
          .guard = guard,
          .expose = expose,
          .expose_all = expose_all,
          .run_tasks = run_tasks,
          .set_close_listener = set_close_listener,
          .set_sleep_listener = set_sleep_listener,
          .stay_awake = stay_awake,
          .upload = upload,
          .store = store,
          .message = message};
}

void rethrow_live_failure() {
  TENCACHE_CHECK(failure != nullptr);
  std::rethrow_exception(std::exchange(failure, nullptr));
}

}  // namespace tencache
