// A live runtime as C: what code that is compiled with a user's PyTorch calls. PyTorch's packages differ in the ABI of
// C++'s strings, so nothing but C types crosses, and no exception.
//
// Functions that can fail return a status; the calling thread's `message` says what failed, until its next call.
// Threads, blocking and meaning are those of the LiveRuntime function of the same name (live_runtime.h).
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { tencache_live_abi = 12 };  // goes up with every change
enum { tencache_no_tensor = 0xffffffffu };

enum tencache_status { tencache_ok = 0, tencache_out_of_memory = 1, tencache_failed = 2 };

struct tencache_use {
  uint32_t tensor;
  uint8_t read, written;
  void* address;  // of begin_op alone: where it lies while the op runs
};

struct tencache_storage {
  uint32_t tensor;
  void* address;
};

// A task of the optimizer's step (live_task.h): the policy says where and in which order it runs. Without CPU memory it
// runs on the GPU's lane.
struct tencache_task {
  const char* name;
  size_t name_bytes;
  int32_t group;
  const struct tencache_use* uses;
  size_t count;
  // On a lane's thread, with one address for each of `uses`, in order; what they point to is there. Returns NULL, or
  // why it failed (valid until `forget`).
  const char* (*body)(void* context, void* const* addresses);
  void (*forget)(void* context);  // once, on any thread: nobody needs the context any more
  void* context;
};

// Valid as long as the runtime.
struct tencache_live {
  uint32_t abi;             // tencache_live_abi
  uint32_t on_accelerator;  // 1: the GPU tier is an accelerator's memory
  uint32_t cuda_tensors;    // 1: what is paged are PyTorch's CUDA tensors, and not those on the CPU
  // 1: a tensor may lie elsewhere in each op that uses it, unless it is exposed, pinned, lent or kept; 0: never. On an
  // accelerator others may lie at its old address then: see `take_left`.
  uint32_t moves;
  uint64_t group_bytes;  // what one op on lists of tensors takes at most at a time (a share of the GPU tier)
  uint64_t task_bytes;   // what one task may use at most, wherever it runs
  void* runtime;

  // The number of an op's name, for `begin_op`: the same for the same name, as long as the runtime.
  uint32_t (*name_id)(void* runtime, const char* text, size_t bytes);
  // Where tensors move it gives each use its address, also if it fails; on an accelerator NULL then.
  int (*begin_op)(void* runtime, uint32_t name, struct tencache_use* uses, size_t count, uint64_t part_bytes);
  int (*end_op)(void* runtime, int linger);
  // Outside of ops, where tensors move on an accelerator: kept until `unkeep`.
  int (*allocate)(void* runtime, uint64_t bytes, int inside_op, struct tencache_storage* storage);
  // store_in_file: takes the descriptor over, which is open for reading. tencache_no_tensor: there is no room.
  int (*store_in_file)(void* runtime, uint64_t bytes, int descriptor, const char* path, uint64_t offset,
                       struct tencache_storage* storage);
  void (*release)(void* runtime, uint32_t tensor);
  int (*keep)(void* runtime, const uint32_t* tensors, size_t count);
  int (*unkeep)(void* runtime, const uint32_t* tensors, size_t count);
  int (*announce_write)(void* runtime, const uint32_t* tensors, size_t count);
  int (*mark)(void* runtime, uint32_t tensor, int role, const char* name, size_t name_bytes);
  int (*pin)(void* runtime, const uint32_t* tensors, size_t count, int written);
  // Whatever fails in it fails the runtime, too: its next call says so.
  int (*unpin)(void* runtime, const uint32_t* tensors, size_t count, int written);
  int (*lend)(void* runtime, const struct tencache_use* uses, size_t count, int comes_back);
  void (*take_back)(void* runtime, const struct tencache_use* uses, size_t count, int comes_back);
  // Where it lies in the GPU tier. Constant while it is pinned, lent, kept or exposed, or the calling thread's op uses
  // it. Any thread may call.
  void* (*address)(void* runtime, uint32_t tensor);
  // Where tensors move on an accelerator: those that have left the place where they lay since the last call, at most
  // `room`, and whose storages have to be told. `address` is theirs if it is constant, else one that nobody may access.
  // Called after begin_op, and before the op's body, as often as it returns `room`.
  size_t (*take_left)(void* runtime, struct tencache_storage* left, size_t room);
  // An address that nobody may access, on an accelerator where tensors move; NULL elsewhere.
  void* (*guard)(void* runtime);
  // On an accelerator the tensor is brought in, and stays where it then is as long as it lives.
  int (*expose)(void* runtime, uint32_t tensor);
  int (*expose_all)(void* runtime);
  // Not with an accelerator. Takes the contexts, whatever it returns.
  int (*run_tasks)(void* runtime, const struct tencache_task* tasks, size_t count);
  // `listener(context)` is called when the runtime ends, before anything else.
  void (*set_close_listener)(void* runtime, void (*listener)(void* context), void* context);
  // `listener(context, asleep)`: ops are not announced from now on, only allocated and released is (live_sleep.h); or
  // they are again. Called inside other calls, of any thread. Nobody sleeps without one.
  void (*set_sleep_listener)(void* runtime, void (*listener)(void* context, int asleep), void* context);
  int (*stay_awake)(void* runtime);
  // With an accelerator; `stream`: the driver's handle.
  int (*upload)(void* runtime, void* device, const void* from, uint64_t bytes, void* stream);
  // tencache_no_tensor: it is to be allocated, and uploaded to.
  int (*store)(void* runtime, uint64_t bytes, const void* from, struct tencache_storage* storage);
  const char* (*message)(void);
};

#ifdef __cplusplus
}
#endif
