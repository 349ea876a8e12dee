#!/usr/bin/env python3
"""Steps of programs through the real executor on the model GPU: a CUDA driver made of rules, with a clock.

    bench/model_gpu.py [PROGRAM…] [--policy P]… [--memory 60%] [--gpu-allocator exact|movable] [--run-ahead OPS]
                       [--host fixed:US|measured] [--quick] [--json]
    bench/model_gpu.py --anchor [--json]
    bench/model_gpu.py --load [--gpu-allocator A] [--run-ahead OPS] [--json]

Programs (default: all of them): gpt2 and llama-1b, generated training steps in bf16; resnet-v100, a step of a network
with convolutions that was recorded on a V100, of which ../shared/traces has the recording; decode, a small model that
generates text, where launches bind. Each runs with memory for everything (resident) and with less, under each policy
(default: foresight, lru and on-demand; --quick: foresight). --memory is a share of the program's peak in pages of 2
MiB, such as 60%, or a size in bytes; default 60%, for resnet-v100 90%: all of its parameters are one tensor in the
recording, which leaves too little for a collective.

--gpu-allocator movable, the default: memory mapped once, in which tensors lie in one piece and are moved
(docs/cuda.md); exact, which --anchor has, maps each chunk. Both get the same bytes. --run-ahead, for movable memory:
how many ops the program may be ahead of the device (default: 256); 0: each op is waited for.

--host is what this program's code costs an op: fixed (default: op_us in the figures), fixed:US in microseconds, or
measured, its processor time on this computer, which differs from run to run. On top come the host's time of the
recording and what calls of the driver take.

--json prints {resident, steps, gpu_allocator, run_ahead, host_mode}: per program recorded_ns, plain_ns (PyTorch alone
on the model GPU), resident_ns, ratio (resident / recorded), busy, the share of the step in which kernels run, and
padding, of what is alive at the peak; per step step_ns, predicted_ns (a simulation on a machine of the same figures, in
which ops run where the program runs them), copy_hidden, the share of the copies' time in which kernels run, and in
`time` where the time of the program's thread goes. A policy that the program does not fit under has no times.

--anchor runs the two programs that ran on an H200 (docs/cuda.md) as recorded in bench/anchor, and compares. The figures
of bench/model_gpu_h200.yaml were committed before its first run. Exit code 1: off by more than 25 %.

--load copies a model of 7.5 GB from pageable memory, in memory for all of it and in 4 GB: load_ns, link_ns (its bytes
at the link's rate), ratio, stored_bytes (that go straight to CPU memory) and evictions.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.environ.get("TENCACHE_BUILD", os.path.join(ROOT, "build", "release"))
FIGURES = os.path.join(ROOT, "bench", "model_gpu_h200.yaml")
SHARED = os.path.join(os.path.dirname(ROOT), "shared", "traces", "pytorch")
POLICIES = ("foresight", "lru", "on-demand")
PROGRAMS = {  # how `tencache` makes the trace, and the memory of a step
    "gpt2": ("generate --model gpt2 --batch 8 --seq 1024 --gpu h200", "60%"),
    "llama-1b": ("generate --model llama-3.2-1b --batch 4 --seq 2048 --gpu h200", "60%"),
    "resnet-v100": (f"import kineto {SHARED}/hta_v100_profile_memory.json.gz", "90%"),
    "decode": ("generate --model gpt2 --new-tokens 8 --prompt 64 --block 4x1 --gpu h200", "60%"),
}
# docs/cuda.md: program, share of memory, milliseconds of PyTorch alone and under foresight on an H200.
ANCHOR = (("gpt-86m", "60%", 41.6, 331), ("gpt-92m", "59%", 81.1, 597))
TOLERANCE = 0.25
LOADED_MODEL = """{name: llama-16-layers, family: llama, layers: 16, hidden: 4096, heads: 32, key_value_heads: 32,
intermediate: 12288, vocabulary: 32000, max_sequence: 4096, tied_embeddings: false, source: bench/model_gpu.py}
"""
WHERE = (("host_ns", "host: recorded, and this program's code"), ("kernels_ns", "waits for the device: kernels"),
         ("launch_and_wake_ns", "waits for the device: launch latency, noticing the end"),
         ("maps_ns", "maps, unmaps, creates, releases"), ("waits_for_maps_of_others_ns", "waits: another thread does"),
         ("waits_for_copies_ns", "waits: copies"), ("waits_for_threads_ns", "waits: threads wake up"),
         ("rest_ns", "rest"))


def fail(message):
    sys.exit(f"model_gpu.py: {message}")


def say(*words):
    print(*words, file=sys.stderr, flush=True)


def run(*command):
    """Its output; ends with its first error line. Its exit code 1 (an answer of no) is the caller's affair."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1):
        lines = done.stderr.strip().splitlines()
        fail(lines[-1] if lines else f"{command[0]} ended with {done.returncode}")
    return done.stdout


class ModelGpu:
    def __init__(self, folder, host, allocator, run_ahead):
        self.host, self.allocator, self.run_ahead = host, allocator, run_ahead
        self.program = os.path.join(BUILD, "tests", "model_gpu")
        self.tencache = os.path.join(BUILD, "cli", "tencache")
        for path in (self.program, self.tencache):
            if not os.path.isfile(path):
                fail(f"{path} is not built: ninja -C {BUILD} {os.path.basename(path)}")
        self.folder = folder

    def trace(self, name):
        path = os.path.join(self.folder, f"{name}.trace.jsonl.zst")
        run(self.tencache, *PROGRAMS[name][0].split(), "-o", path)
        return path

    def step(self, trace, policy, memory, locked=0):
        played = json.loads(run(self.program, "--figures", FIGURES, trace, "--policy", policy, "--memory", str(memory),
                                "--host", self.host, "--locked", str(locked), "--gpu-allocator", self.allocator,
                                "--run-ahead", self.run_ahead))
        self.host = played["host"]  # in full
        return played

    def predicted(self, trace, policy, memory):
        """Nanoseconds a step, and the bytes of CPU memory; (None, 0): the simulation does not fit."""
        result = json.loads(run(self.program, "--figures", FIGURES, trace, "--policy", policy, "--memory", memory,
                                "--gpu-allocator", self.allocator, "--run-ahead", self.run_ahead, "--predict"))
        return (result["predicted_ns"], result["cpu_memory_bytes"]) if result["fits"] else (None, 0)

    def paged(self, name, trace, policy, memory):
        predicted_ns, locked = self.predicted(trace, policy, str(memory))
        if predicted_ns is None:
            return {"program": name, "policy": policy, "memory": memory, "step_ns": None, "predicted_ns": None,
                    "copy_hidden": None}
        played = self.step(trace, policy, memory, locked)
        steady = played["steady"]
        return {"program": name, "policy": policy, "memory": memory, "memory_bytes": played["memory_bytes"],
                "peak_bytes": played["peak_bytes"], "step_ns": played["step_ns"],
                "first_step_ns": played["steps_ns"][0], "locked_bytes": locked, "predicted_ns": predicted_ns,
                "copy_hidden": steady["copy_hidden"], "busy": steady["busy"],
                "time": {key: steady[key] for key, _ in WHERE},
                **{key: steady[key] for key in ("copies", "copied_bytes", "moves", "moved_bytes", "calls")},
                "evictions": played["evictions"], "deviations": played["deviations"]}


def measure(gpu, options):
    result = {"resident": [], "steps": []}
    for name in options.programs:
        if name == "resnet-v100" and not os.path.isdir(SHARED):
            say(f"{name}: left out, {SHARED} is not here")
            continue
        say(f"{name}: trace, all resident")
        trace = gpu.trace(name)
        played = gpu.step(trace, options.policies[0], "all")
        result["resident"].append({"program": name, "recorded_ns": played["recorded_ns"],
                                   "plain_ns": played["plain_ns"], "resident_ns": played["step_ns"],
                                   "ratio": played["step_ns"] / played["recorded_ns"],
                                   "busy": played["steady"]["busy"],
                                   "padding": played["peak_bytes"] / played["peak_without_padding_bytes"] - 1})
        for policy in options.policies:
            memory = options.memory or PROGRAMS[name][1]
            say(f"{name}: {policy}, {memory}")
            result["steps"].append(gpu.paged(name, trace, policy, memory))
    return {**result, "gpu_allocator": gpu.allocator, "run_ahead": int(gpu.run_ahead), "host_mode": gpu.host}


def load(gpu):
    description = os.path.join(gpu.folder, "model.yaml")
    with open(description, "w", encoding="utf-8") as file:
        file.write(LOADED_MODEL)
    trace = os.path.join(gpu.folder, "model.trace.jsonl.zst")
    run(gpu.tencache, "generate", "--model", description, "--new-tokens", "4", "--prompt", "16", "--block", "1x1",
        "--gpu", "h200", "-o", trace)
    rows = []
    for memory in ("all", str(4 * 10**9)):
        played = run(gpu.program, "--figures", FIGURES, trace, "--policy", "foresight", "--memory", memory, "--load",
                     "--locked", str(4 * 10**9), "--host", gpu.host, "--gpu-allocator", gpu.allocator, "--run-ahead",
                     gpu.run_ahead)
        rows.append({"memory": memory, **json.loads(played)})
    return {"load": rows, "gpu_allocator": gpu.allocator, "run_ahead": int(gpu.run_ahead)}


def anchor(gpu):
    rows = []
    for name, memory, alone, measured in ANCHOR:
        say(f"{name}: foresight, {memory}")
        trace = os.path.join(ROOT, "bench", "anchor", f"{name}.trace.jsonl.zst")
        row = gpu.paged(name, trace, "foresight", memory)
        rows.append({**row, "alone_ms_on_h200": alone, "ms_on_h200": measured, "ms": row["step_ns"] / 1e6,
                     "error": row["step_ns"] / 1e6 / measured - 1})
    return {"anchor": rows, "host_mode": gpu.host, "within": all(abs(row["error"]) <= TOLERANCE for row in rows)}


def percent(share):
    return "–" if share is None else f"{100 * share:.0f} %"


def ms(ns):
    return "–" if ns is None else f"{ns / 1e6:.1f}"


def print_tables(result):
    print(f"Model GPU ({os.path.relpath(FIGURES, ROOT)}), allocator {result['gpu_allocator']}, host "
          f"{result['host_mode']}, milliseconds a step\n")
    print(f"{'all resident':<14}{'recorded':>10}{'alone':>10}{'resident':>10}{'ratio':>8}{'busy':>7}{'padding':>9}")
    for row in result["resident"]:
        print(f"{row['program']:<14}{ms(row['recorded_ns']):>10}{ms(row['plain_ns']):>10}{ms(row['resident_ns']):>10}"
              f"{row['ratio']:>8.2f}{percent(row['busy']):>7}{100 * row['padding']:>7.1f} %")
    print(f"\n{'paged':<14}{'policy':<12}{'memory':>8}{'step':>10}{'predicted':>11}{'copies hidden':>15}")
    for row in result["steps"]:
        print(f"{row['program']:<14}{row['policy']:<12}{row['memory']:>8}{ms(row['step_ns']):>10}"
              f"{ms(row['predicted_ns']):>11}{percent(row['copy_hidden']):>15}")


def print_load(result):
    print(f"Model GPU, allocator {result['gpu_allocator']}, the program {result['run_ahead']} ops ahead, milliseconds\n")
    print(f"{'memory':<12}{'load':>8}{'link':>8}{'ratio':>8}{'to CPU memory, GB':>20}{'evictions':>11}")
    for row in result["load"]:
        print(f"{row['memory']:<12}{ms(row['load_ns']):>8}{ms(row['link_ns']):>8}{row['ratio']:>8.2f}"
              f"{row['stored_bytes'] / 1e9:>20.2f}{row['evictions']:>11}")


def print_anchor(result):
    rows = result["anchor"]
    print(f"The executor, mapping chunk by chunk, on the model GPU, host {result['host_mode']}, and on an H200 "
          "(docs/cuda.md), ms a step\n")
    print(f"{'':<58}" + "".join(f"{row['program']:>10}" for row in rows))
    for words, value in (("PyTorch alone, H200", lambda row: f"{row['alone_ms_on_h200']:.1f}"),
                         ("foresight, H200", lambda row: f"{row['ms_on_h200']:.0f}"),
                         ("foresight, model GPU", lambda row: f"{row['ms']:.1f}"),
                         ("  error", lambda row: f"{100 * row['error']:+.1f} %"),
                         ("  predicted by the simulator", lambda row: ms(row["predicted_ns"])),
                         *((f"  {words}", lambda row, key=key: ms(row["time"][key])) for key, words in WHERE),
                         ("copies", lambda row: row["copies"]),
                         ("  GB", lambda row: f"{row['copied_bytes'] / 1e9:.2f}"),
                         *((call, lambda row, call=call: row["calls"].get(call, 0)) for call in
                           ("cuMemMap", "cuMemUnmap", "cuMemCreate", "cuMemRelease"))):
        print(f"{words:<58}" + "".join(f"{value(row):>10}" for row in rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM")
    parser.add_argument("--policy", action="append", dest="policies", metavar="P")
    parser.add_argument("--memory", metavar="M")
    parser.add_argument("--gpu-allocator", choices=("exact", "movable"))
    parser.add_argument("--run-ahead", metavar="OPS")
    parser.add_argument("--host", default="fixed")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--anchor", action="store_true")
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for name in options.programs:
        if name not in PROGRAMS:
            fail(f"unknown program '{name}'; there are {', '.join(PROGRAMS)}")
    if options.memory and not re.fullmatch(r"(\d+(\.\d+)?%|\d+)", options.memory):
        fail(f"--memory {options.memory} is no size; give a share of the peak such as 60%, or bytes")
    options.programs = options.programs or list(PROGRAMS)
    options.policies = options.policies or (POLICIES[:1] if options.quick else POLICIES)
    with tempfile.TemporaryDirectory() as folder:
        allocator = options.gpu_allocator or ("exact" if options.anchor else "movable")
        gpu = ModelGpu(folder, options.host, allocator, options.run_ahead or ("256" if allocator == "movable" else "0"))
        result = anchor(gpu) if options.anchor else load(gpu) if options.load else measure(gpu, options)
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        (print_anchor if options.anchor else print_load if options.load else print_tables)(result)
    return 0 if result.get("within", True) else 1


if __name__ == "__main__":
    sys.exit(main())
