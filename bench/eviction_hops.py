#!/usr/bin/env python3
"""Counts how often one fixed eviction, from the GPU through a buffer in CPU memory to the SSD, calls into another file.

Few hops mean that a reader who follows a chunk through the engine stays where he is. Builds core/ and a small driver
with -finstrument-functions in a temporary folder, runs the driver, and finds the file of each function that it entered
with addr2line (g++ and binutils). A header and the source file of the same name are one file; machine and policy are
the driver's own. Counted are calls of functions that a source file defines, made from another file; with those of
inline functions in headers, accessors for the most part, as a second figure.

    bench/eviction_hops.py                    # this tree
    bench/eviction_hops.py --tree ../before   # another one
    bench/eviction_hops.py --list             # each hop, with the functions
"""
import argparse
import collections
import concurrent.futures
import glob
import os
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Tensors a and b fill the GPU each. Op 0 writes a; op 1 reads b, so a is written to the SSD. Recorded is from the end
# of op 0 until the policy hears that a has arrived.
DRIVER = r"""
#if __has_include("core/engine/engine.h")
#include "core/engine/engine.h"
#else
#include "core/engine.h"
#endif

#include <cstdio>
#include <deque>

static bool recording = false;
static std::FILE* record = nullptr;
#define BARE __attribute__((no_instrument_function))
extern "C" {
BARE void __cyg_profile_func_enter(void* function, void*) {
  if (recording) std::fprintf(record, "> %p\n", function);
}
BARE void __cyg_profile_func_exit(void* function, void*) {
  if (recording) std::fprintf(record, "< %p\n", function);
}
}

namespace tencache {

struct OneByOne : Machine {
  BARE Fence add(Tag tag, Nanoseconds duration) {
    time += duration;
    due.push_back({.fence = ++last, .tag = tag, .start_ns = time - duration, .end_ns = time});
    return last;
  }
  BARE Fence submit(const CopyCommand& copy, Tag tag) override { return add(tag, static_cast<Nanoseconds>(copy.bytes)); }
  BARE Fence execute(const OpCommand& op, Tag tag) override { return add(tag, op.duration_ns); }
  BARE void cancel(Fence) override {}
  BARE bool wait(Completion& completion) override {
    if (due.empty()) return false;
    completion = due.front();
    due.pop_front();
    return true;
  }
  BARE Nanoseconds now() const override { return time; }
  std::deque<Completion> due;
  Fence last = 0;
  Nanoseconds time = 0;
};

struct Coldest : Policy {
  BARE void on(const Event& event, const View&, Actions&) override {
    if (event.kind == EventKind::op_done && event.op == 0 && !arrived) recording = true;
    if (event.kind == EventKind::transfer_done && event.tensor == 0 && event.to == 2) recording = false, arrived = true;
  }
  BARE void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (view.memory.evictable(0, request.tier)) victims.push_back(0);
  }
  bool arrived = false;
};

BARE int run(const char* path) {
  MachineSpec machine;
  machine.name = "box";
  machine.tiers = {{"gpu", TierKind::gpu, 100, 1, {}}, {"cpu", TierKind::cpu, 1, 1, {}}, {"nvme", TierKind::nvme, 1000, 1, {}}};
  const BytesPerSecond rate = 1'000'000'000;
  machine.links = {{"h2d", 1, 0, rate, 0, {}}, {"d2h", 0, 1, rate, 0, {}}, {"read", 2, 1, rate, 0, {}}, {"write", 1, 2, rate, 0, {}}};
  machine.staging = {1, 4, 100};
  machine.initial_tier = 2;
  Program program;
  const TensorId a = program.trace.add_tensor("a", 100, Role::parameter, true);
  const TensorId b = program.trace.add_tensor("b", 100, Role::parameter, true);
  Op op;
  op.duration_ns = 10;
  program.trace.add_op(op, std::vector<TensorId>{a}, std::vector<TensorId>{a});
  program.trace.add_op(op, std::vector<TensorId>{b}, std::vector<TensorId>{});
  OneByOne port;
  Coldest policy;
  record = std::fopen(path, "w");
  Engine engine(machine, port, policy, &program);
  const RunResult result = engine.run({.max_iterations = 2, .until_steady = false});
  std::fclose(record);
  return result.fits && policy.arrived ? 0 : 1;
}

}  // namespace tencache

BARE int main(int, char** arguments) { return tencache::run(arguments[1]); }
"""


def build(tree, folder):
    """The driver, linked with the tree's core/, instrumented."""
    driver = os.path.join(folder, "driver.cpp")
    with open(driver, "w", encoding="utf-8") as file:
        file.write(DRIVER)
    sources = [driver] + glob.glob(os.path.join(tree, "core", "*.cpp")) + glob.glob(
        os.path.join(tree, "core", "engine", "*.cpp"))
    flags = ["-std=c++20", "-g", "-O0", "-fno-pie", "-I", tree, "-finstrument-functions",
             "-finstrument-functions-exclude-file-list=/usr/,driver.cpp"]

    def compile_one(number):
        made = os.path.join(folder, f"{number}.o")
        subprocess.run(["g++", *flags, "-c", sources[number], "-o", made], check=True)
        return made
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, range(len(sources))))
    program = os.path.join(folder, "driver")
    subprocess.run(["g++", "-no-pie", *objects, "-o", program, "-lpthread"], check=True)
    return program


def functions_at(program, addresses, tree):
    """address -> (function, file within the tree)"""
    known = sorted(addresses)
    output = subprocess.run(["addr2line", "-C", "-f", "-e", program, *known], check=True, capture_output=True,
                            text=True).stdout.splitlines()
    return {address: (output[2 * i].split("(")[0],
                      os.path.relpath(output[2 * i + 1].rsplit(":", 1)[0], tree))
            for i, address in enumerate(known)}


def hops(events, functions, with_headers):
    """(calling function, its file, called function, its file) for each call into another file."""
    found, stack = [], []
    for kind, address in events:
        name, path = functions[address]
        if path.endswith(".h") and not with_headers:
            continue
        file = os.path.splitext(path)[0]
        if kind == ">":
            if stack and stack[-1][1] != file:
                found.append((*stack[-1], name, file))
            stack.append((name, file))
        elif stack and stack[-1] == (name, file):
            stack.pop()
        else:
            stack.clear()  # the end of a function that was entered before the recording began
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", default=ROOT, help="a checkout of TenCache (default: this one)")
    parser.add_argument("--list", action="store_true", help="print each hop")
    options = parser.parse_args()
    tree = os.path.abspath(options.tree)
    with tempfile.TemporaryDirectory() as folder:
        program = build(tree, folder)
        record = os.path.join(folder, "record")
        subprocess.run([program, record], check=True)
        with open(record, encoding="utf-8") as file:
            events = [tuple(line.split()) for line in file]
        functions = functions_at(program, {address for _, address in events}, tree)
    between_sources = hops(events, functions, False)
    if options.list:
        for caller, caller_file, name, file in between_sources:
            print(f"{caller_file}:{caller} -> {file}:{name}")
    by_file = collections.Counter(file for _, _, _, file in between_sources)
    for file, count in sorted(by_file.items(), key=lambda item: (-item[1], item[0])):
        print(f"{count:5}  into {file}")
    print(f"{len(between_sources)} hops into {len(by_file)} files; with inline functions of headers "
          f"{len(hops(events, functions, True))}")


if __name__ == "__main__":
    main()
