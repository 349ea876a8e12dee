#!/usr/bin/env python3
"""Does a pass grow faster than n log n? Runs commands at three sizes and compares how often each line ran.

    tests/work_growth.py [--only PART] [--json F]

Builds `tencache` with GCC's counters (preset `growth`), generates traces of three sizes, each four times the last, and
replays them under every policy, asks every study, reads them and writes them. A line is reported if the largest run
executes it more often than ops times log(ops), by a margin, lets expect from both smaller ones. What moves memory in
bulk (`memmove` and its like) has no lines: its bytes are counted by the line that calls it. Commands run on one core,
so the same source gives the same counts. `BOUNDED` lists what may grow faster, and why, `KNOWN` what should not and is
not mended: by function.

Exit code 1: something grows too fast, or a policy runs on none of the traces. Takes ten to thirty minutes.
"""
import argparse
import collections
import copy
import dataclasses
import functools
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

from build import ROOT, build

BUILD = os.path.join(ROOT, "build", "growth")
PROGRAM = os.path.join(BUILD, "cli", "tencache")
MARGIN = 1.25  # n^1.5 would be 1.3 times what n log n allows from one size to the next

# (part of a subject's name, parts of file and function, of which one is enough, why). What is bounded:
BOUNDED = [
    ("", "bits/stl_iterator.h", "an operator: the lines that call it are counted themselves"),
    ("", "bits/predefined_ops.h", "an operator: the lines that call it are counted themselves"),
    ("", "bits/stl_heap.h", "std::sort turns to a heap where it would be quadratic: n log n a call, which is counted"),
    ("", "_M_lower_bound _M_upper_bound",
     "a search in a tree: log n a call, and the lines that call it are counted themselves"),
    ("", "bits/charconv.h", "the digits of a number"),
    ("", "TransferTable::take_staging", "as many staging buffers as the machine has, which small models do not fill"),
    ("", "policies/foresight/flights", "at most 256 copies on their way, which small models do not reach"),
    ("", "policies/foresight/horizon.cpp", "the same copies"),
    ("foresight", "bits/ranges_algo.h", "the same copies, looked through"),
    ("", "studies/bound.cpp", "some weights are tried, where links take longer than computing"),
]
# What is not: functions, and why.
KNOWN = [
    ("fragment", "split_and_fuse top_during find_taken Ranges::top",
     "STWeaver's algorithm: each block is tried in every band, the lowest first"),
    ("movable", "find_hole make_hole cheapest_run windows( end_before HolesBeside clear( first_fit",
     "the cheapest hole of any size, around what must stay at that moment: each piece is looked at"),
    ("teraio", "TeraioPlanner TeraioWays Candidates CyclicSums BandwidthPlan MemoryProfile",
     "TERAIO's algorithm: each choice lowers others, which are looked at again until one stays on top"),
    ("pressurefit", "PressureReducer PressureSpan pressurefit.cpp",
     "dataflow's algorithm: cut by cut the worst border is sought, and all that is there looked at"),
    ("flashneuron", "FlashNeuron::prefetch", "what it asked for and has no room yet is looked at at each op"),
    ("foresight", "fetch_from next_lacking IndexSet source_of chunk_count UseCursor Schedule::uses",
     "whenever something has left, what is missing beyond it, most of it on its way, is looked at again"),
    ("foresight", "read_ahead", "what leaves takes the cursor back: the way to what storage has is walked again"),
    ("foresight plan_events=0, choices", "bits/stl_algobase.h",
     "lists that are filled while levels are tried: few of them, and not looked into"),
    ("replay foresight, storage", "room_for_fetch make_room HostCache::reserve",
     "only under the largest trace's plan prefetches seek room in vain"),
]

# Counts bytes by call site. A table of fixed size, since the allocator may not be called from here.
MEMORY_COUNTER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

enum { sites = 1 << 16 };
static struct { void* site; unsigned long long bytes; } table[sites];

static void count(void* site, size_t bytes) {
  for (size_t i = ((size_t)site * 0x9E3779B97F4A7C15u) >> 48;; i = (i + 1) % sites) {
    void* before = NULL;
    if (table[i].site == site || __atomic_compare_exchange_n(&table[i].site, &before, site, 0, __ATOMIC_RELAXED,
                                                             __ATOMIC_RELAXED) || before == site) {
      __atomic_fetch_add(&table[i].bytes, bytes, __ATOMIC_RELAXED);
      return;
    }
  }
}

#define COUNTED(result, name, bytes, parameters, ...)                          \
  result name parameters {                                                     \
    static result (*next) parameters;                                          \
    if (!next) next = (result(*) parameters)dlsym(RTLD_NEXT, #name);           \
    result answer = next(__VA_ARGS__);                                         \
    count(__builtin_return_address(0), bytes);                                 \
    return answer;                                                             \
  }
COUNTED(void*, memcpy, n, (void* a, const void* b, size_t n), a, b, n)
COUNTED(void*, memmove, n, (void* a, const void* b, size_t n), a, b, n)
COUNTED(void*, memset, n, (void* a, int b, size_t n), a, b, n)
COUNTED(void*, memchr, answer ? (size_t)((char*)answer - (char*)a) : n, (const void* a, int b, size_t n), a, b, n)
COUNTED(int, memcmp, n, (const void* a, const void* b, size_t n), a, b, n)

__attribute__((destructor)) static void write_table(void) {
  FILE* file = fopen(getenv("WORK_GROWTH_BYTES"), "w");
  for (size_t i = 0; file && i < sites; ++i) {
    Dl_info in;
    if (table[i].site && dladdr(table[i].site, &in))
      fprintf(file, "%s %llx %s %llu\n", in.dli_fname, (unsigned long long)((char*)table[i].site - (char*)in.dli_fbase),
              in.dli_sname ? in.dli_sname : "-", table[i].bytes);
  }
  if (file) fclose(file);
}
"""

MIXTURE = """
name: mixture
family: qwen3_moe
layers: {layers}
hidden: 256
heads: 4
key_value_heads: 2
head_dimension: 64
intermediate: 128
experts: 8
experts_per_token: 2
vocabulary: 1024
max_sequence: 1024
"""
DENSE = """
name: dense
family: gpt2
layers: {layers}
hidden: 256
heads: 4
vocabulary: 128
max_sequence: 1024
"""
# Keys and values have products of their own, and as many heads as queries: inputs are smaller than both.
SEPARATE = DENSE.replace("gpt2", "opt")


@dataclasses.dataclass
class Workload:
    """What is generated: `size` stands for the number that grows. Memory is scaled with what the trace needs."""
    name: str
    sizes: tuple
    model: str
    options: str
    gpu: float  # bytes of the GPU: share of what persists ...
    gpu_activations: float = 0  # ... and of the activations
    cpu: float = 8  # bytes of the CPU: share of what persists
    policies: tuple = ()  # that it is made for; none: all


PERSISTENT = ("parameter", "optimizer_state", "master_parameter", "expert", "kv_cache")
TRAINING = "--batch 1 --seq 128 --recompute block --gpu l40s"
WORKLOADS = [
    Workload("layers", (4, 16, 64), MIXTURE, TRAINING, gpu=0.4),
    Workload("storage", (4, 16, 64), MIXTURE, TRAINING, gpu=0.4, cpu=0.8),
    Workload("micro-batches", (2, 8, 32), MIXTURE.replace("{layers}", "8"),
             "--batch {size} --micro-batches {size} --seq 128 --recompute block --gpu l40s", gpu=0.85),
    Workload("activations", (12, 48, 192), DENSE, "--batch 8 --seq 256 --gpu l40s", gpu=1.4, gpu_activations=0.21),
    Workload("text", (4, 16, 64), MIXTURE, "--new-tokens 8 --prompt 32 --placeable all --kv-page whole --gpu l40s",
             gpu=0.6),
    Workload("tokens", (8, 32, 128), MIXTURE.replace("{layers}", "4"),
             "--new-tokens {size} --prompt 32 --placeable all --kv-page whole --gpu l40s", gpu=0.6),
    Workload("choices", (4, 16, 64), DENSE, "--batch 8 --micro-batches 2 --seq 256 --recompute choose --gpu l40s",
             gpu=0.6, policies=("pressurefit", "foresight")),
    Workload("chunks", (4, 16, 64), DENSE, "--batch 1 --seq 1024 --context-chunk 256 --gpu l40s", gpu=0.6,
             policies=("oomb",)),
    Workload("pieces", (4, 16, 64), SEPARATE,
             "--block 8x1 --new-tokens 4 --prompt 64 --recompute choose --kv-page 16 --gpu l40s", gpu=1.5,
             policies=("kvpr",)),
]

# How a policy is run, if not by default.
SETTINGS = {
    "foresight": ["", "--set plan_events=0"],  # without rehearsals, whose number has a budget
    "kvpr": ["", "--set weights=cpu"],
    "patrickstar": ["--set chunk_size=256KiB"],  # 64 MiB hold all of so small a model
    "vllm-prefetch": ["--set group_size=1"],  # of four layers three do not fit
    "vllm-uva": ["--set cpu_offload=1GiB", "--set cpu_offload=1GiB --set copied=true"],
}

# Questions about the traces of a workload: {trace}, {memory} (machine and its memory), {size}.
STUDIES = [
    ("info", "layers", "info {trace}"),
    ("fit", "layers", "fit {trace} {memory} -p zero-infinity"),
    ("fit foresight", "layers", "fit {trace} {memory} -p foresight --iterations 2"),
    ("bound", "layers", "bound {trace} {memory}"),
    ("bound storage", "storage", "bound {trace} {memory}"),
    ("explain", "layers", "explain {trace} {memory} -p zero-infinity --policies lru --iterations 2 --json"),
    ("compare", "layers", "compare {trace} {memory} -p lru,zero-offload --iterations 2 --samples 2 --json"),
    ("sensitivity", "layers", "sensitivity {trace} {memory} -p lru --over h2d=4GB/s..16GB/s:3 --iterations 2 --json"),
    ("endurance", "storage", "endurance {trace} {memory} -p zero-infinity --iterations 2 --json"),
    ("tune", "layers", "tune {trace} {memory} -p 10cache --budget 6 --threads 1 --iterations 2 --json"),
    ("fragment", "layers", "fragment {trace} --json"),
    ("fragment planned", "layers", "fragment {trace} -a planned -a stweaver -a gmlake --no-advice --json"),
    ("files", "layers", "replay {trace} {memory} -p lru --iterations 2 --timeline t.json --decisions d.jsonl --json"),
    ("movable", "layers", "replay {trace} {memory} -p lru --iterations 2 --gpu-allocator movable"),
    ("caching", "layers", "replay {trace} {memory} -p zero-infinity --iterations 2 --gpu-allocator caching"),
    ("run ahead, foresight", "layers", "replay {trace} {memory} -p foresight --iterations 2 --run-ahead 256"),
    ("faults", "layers", "replay {trace} {memory} -p lru --iterations 2 --faults seed=7"),
    ("steady", "layers", "replay {trace} {memory} -p lru"),
    ("import trace", "layers", "import trace {trace} --gpu l40s -o o.jsonl.zst"),
    ("import csv", "recordings", "import csv {size} -o o.jsonl"),
    ("import kineto", "recordings", "import kineto {size}/kineto.json -o o.jsonl"),
    ("import pytorch", "recordings", "import pytorch {size}/pytorch.json --gpu l40s -o o.jsonl"),
    ("rows generate", "rows", "rows generate --rows {size}00 --samples {size}0 --batches 40 -o {size}.ids"),
    ("rows", "rows", "rows {size}.ids --slots 10%"),
]
ROWS = (20, 80, 320)  # hundreds of rows, tens of samples
SAMPLES = os.path.join(ROOT, "tests", "fuzz", "corpus")
RECORDINGS = (32, 128, 512)  # times that a recorded step of one layer is repeated


def csv_recording(folder, layers):
    """A chain of layers forward and back, as `import csv` reads it. Returns how many ops."""
    with open(os.path.join(folder, "ops.csv"), "w", encoding="utf-8") as file:
        print("id,phase,op,time_ms,inputs,outputs,workspace_bytes", file=file)
        for i in range(layers):
            print(f"{i},forward,matmul,1,{i} {layers + 1 + i},{i + 1},0", file=file)
        for i in range(layers):
            print(f"{layers + i},backward,matmul,1,{layers - 1 - i} {2 * layers - i},{2 * layers + 1 + i},0", file=file)
    with open(os.path.join(folder, "tensors.csv"), "w", encoding="utf-8") as file:
        print("id,role,raw_bytes,bytes4k,birth,persistent,name", file=file)
        print("0,input,100,4096,-2,1,x", file=file)
        for i in range(layers):
            print(f"{i + 1},activation,100,4096,{i},0,h", file=file)
        for i in range(layers):
            print(f"{layers + 1 + i},parameter,100,4096,-2,1,w{i}", file=file)
        for i in range(layers):
            print(f"{2 * layers + 1 + i},gradient,100,4096,{layers + i},0,g", file=file)
    return 2 * layers


def repeat_kineto(recording, times):
    """The events of its step, so many times one after the other."""
    events = recording["traceEvents"]
    step = next(event for event in events if event["name"].startswith("ProfilerStep"))
    inside = [event for event in events
              if event["ph"] != "M" and event is not step and 0 <= event["ts"] - step["ts"] < step["dur"]]
    outside = [event for event in events if event not in inside]
    events[:] = outside
    for turn in range(times):
        for event in copy.deepcopy(inside):
            event["ts"] += turn * step["dur"]
            for numbers, key in [(event, "id"), *((event.get("args", {}), key) for key in
                                 ("External id", "Record function id", "Sequence number", "Ev Idx"))]:
                if key in numbers:
                    numbers[key] += turn * 1000
            events.append(event)
    step["dur"] *= times


def repeat_pytorch(recording, times):
    """The nodes of its step, so many times one after the other, with tensors of their own."""
    def later(value, kind, by):
        if kind.startswith("Tensor("):
            return [value[0] + by, value[1] + by, *value[2:]]
        if kind.startswith("GenericList[") and isinstance(value, list):
            return [later(each, of, by) for each, of in zip(value, kind[len("GenericList["):-1].split(","))]
        return value

    outside = [node for node in recording["nodes"] if node["name"].startswith(("[pytorch", "ProfilerStep"))]
    parents = [node["id"] for node in outside]
    inside = [node for node in recording["nodes"] if node not in outside]
    period = 1 + max(node["id"] for node in inside)
    recording["nodes"] = outside
    for by in range(0, times * period, period):
        for node in copy.deepcopy(inside):
            node["id"] += by
            node["ctrl_deps"] += by if node["ctrl_deps"] not in parents else 0
            for side in (node["inputs"], node["outputs"]):
                side["values"] = [later(value, kind, by) for value, kind in zip(side["values"], side["types"])]
            for number in node["attrs"]:
                if number["name"] == "rf_id" or number["name"] == "seq_id" and number["value"] >= 0:
                    number["value"] += by
            outside.append(node)


class Unanswered(Exception):
    """A command that refuses, or does not fit."""


@dataclasses.dataclass
class Case:
    """A trace of one size."""
    size: int
    work: int  # ops, or what else a pass is measured against
    trace: str = ""
    model: str = ""
    memory: str = ""


@dataclasses.dataclass(frozen=True)
class Growth:
    subject: str
    place: str  # file:line
    function: str
    counts: tuple
    sizes: tuple

    def is_in(self, entries):
        where = f"{self.place} {demangled(self.function)}"
        return any(subject in self.subject and any(part in where for part in parts.split())
                   for subject, parts, _ in entries)

    def is_callee(self):
        """A library's, or of a function that is inlined wherever it is called: gcov names none."""
        return self.place.startswith("/") or not self.function


def too_fast(counts, cases, least=4):
    """More than n log n lets expect from each of the smaller sizes, of what runs at least so often an op. The logarithm
    is that of what grows, such as layers: it rises faster than that of the ops."""
    if counts[-1] < least * cases[-1].work:
        return False
    n_log_n = [case.work * math.log(case.size) for case in cases]
    return all(counts[-1] * before > MARGIN * count * n_log_n[-1] for count, before in zip(counts[:-1], n_log_n))


def shown(path):
    return os.path.relpath(path, ROOT) if path.startswith(ROOT + "/") else path


class Counter:
    """Runs commands with counters of their own, in a folder that is the working directory of all."""

    def __init__(self, folder):
        self.folder, self.library = folder, os.path.join(folder, "memory_counter.so")
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-fno-builtin", "-fno-tree-loop-distribute-patterns",
                        "-x", "c", "-", "-o", self.library, "-ldl"], input=MEMORY_COUNTER, text=True, check=True)
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # one core: no thread overwrites another's counts

    def run(self, command, counts, accepted=(0,)):
        """Counts go to that folder. Returns what was printed."""
        counts = os.path.join(self.folder, counts)
        os.makedirs(counts)
        done = subprocess.run([PROGRAM, *command.split()], cwd=self.folder, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env={
                                  **os.environ, "GCOV_PREFIX": counts, "GCOV_PREFIX_STRIP": str(BUILD.count("/")),
                                  "LD_PRELOAD": self.library, "WORK_GROWTH_BYTES": os.path.join(counts, "bytes")})
        if done.returncode not in accepted:
            said = re.findall("^ *(does not fit.*|tencache: .*)", done.stdout + done.stderr, re.MULTILINE)
            raise Unanswered("; ".join(said) or f"exit code {done.returncode}")
        return done.stdout


def counted_files(folder):
    return sorted(os.path.relpath(os.path.join(path, name), folder)
                  for path, _, names in os.walk(folder) for name in names if name.endswith(".gcda"))


def raw_counts(folder):
    """What each object file counted, as it is stored: of a function with fixed places, fixed numbers."""
    files = counted_files(folder)
    dump = subprocess.run(["gcov-dump", "-l", *files], cwd=folder, text=True, stdout=subprocess.PIPE, check=True).stdout
    result = collections.defaultdict(dict)
    key, place = None, 0
    for line in dump.splitlines():
        name, _, rest = line.partition(":")
        rest = rest.lstrip()
        if rest.startswith("01000000:"):
            key = rest[rest.index("ident="):]
        elif rest.startswith("01a1"):
            place = 0
        elif match := re.match(r"\d+: ([\d ]+)$", rest):
            for number in match[1].split():
                result[name][key, place] = int(number)
                place += 1
    return result


def line_counts(folder, objects):
    """{(file, line, function): count} of these object files. Lines of libraries are a file's own in each object."""
    for name in objects:
        notes = os.path.join(folder, name[:-len("gcda")] + "gcno")
        if not os.path.lexists(notes):
            os.symlink(os.path.join(BUILD, name[:-len("gcda")] + "gcno"), notes)
    result = collections.Counter()
    for name in objects:
        done = subprocess.run(["gcov", "--json-format", "--stdout", name], cwd=folder, text=True, check=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for text in done.stdout.splitlines():
            for file in json.loads(text)["files"]:
                path = os.path.normpath(os.path.join(BUILD, file["file"]))
                where = "" if path.startswith(ROOT) else " in " + os.path.splitext(name)[0]
                for line in file["lines"]:
                    if line["count"]:
                        result[path, line["line_number"], line.get("function_name", "") + where] += line["count"]
    return result


def growing_lines(folders, cases):
    raw = [raw_counts(folder) for folder in folders]
    suspects = [name for name in raw[-1]
                if any(too_fast([of.get(name, {}).get(key, 0) for of in raw[:-1]] + [count], cases)
                       for key, count in raw[-1][name].items())]
    lines = [line_counts(folder, [name for name in suspects if os.path.exists(os.path.join(folder, name))])
             for folder in folders]
    for key, count in lines[-1].items():
        counts = tuple([of[key] for of in lines[:-1]] + [count])
        if too_fast(counts, cases):
            yield f"{shown(key[0])}:{key[1]}", key[2], counts


def growing_bytes(folders, cases):
    """Of bytes that are moved, compared or set, by the line that asks for it."""
    tables = []
    for folder in folders:
        with open(os.path.join(folder, "bytes"), encoding="utf-8") as file:
            tables.append({(name, site, symbol): int(count) for name, site, symbol, count in map(str.split, file)})
    for key, count in tables[-1].items():
        counts = tuple([of.get(key, 0) for of in tables[:-1]] + [count])
        if not too_fast(counts, cases, least=32):
            continue
        name, site, symbol = key
        place, function = os.path.basename(name), symbol
        if name == PROGRAM:
            found = subprocess.run(["addr2line", "-fie", PROGRAM, hex(int(site, 16) - 1)], text=True, check=True,
                                   stdout=subprocess.PIPE).stdout.split("\n")
            ours = [(where, what) for what, where in zip(found[::2], found[1::2]) if where.startswith(ROOT)]
            where, function = ours[0] if ours else (found[1], found[0])
            place = shown(where.split(" ")[0])
        yield place, function + " (bytes)", counts


class Growths:
    """Subjects measured so far, and what was found."""

    def __init__(self, folder, only):
        self.folder, self.only = folder, only
        self.counter = Counter(folder)
        self.found, self.subjects = [], 0

    def wants(self, subject):
        return not self.only or self.only in subject

    def measure(self, subject, cases, command_of, accepted=(0,)):
        """Runs the command at all sizes. Throws Unanswered."""
        start = time.monotonic()
        folders = [os.path.join(self.folder, f"{subject}.{case.size}") for case in cases]
        try:
            for case, folder in zip(cases, folders):
                self.counter.run(command_of(case), folder, accepted)
            sizes = tuple(case.work for case in cases)
            for found in growing_lines(folders, cases), growing_bytes(folders, cases):
                self.found += [Growth(subject, *each, sizes) for each in found]
        finally:
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
        self.subjects += 1
        print(f"{time.monotonic() - start:6.1f} s  {subject}: {command_of(cases[-1])}", file=sys.stderr, flush=True)

    def traces(self, workload):
        """The traces of a workload, on a machine with memory in proportion."""
        def generate(case):
            return f"generate --model ./{case.model} {workload.options.format(size=case.size)} -o {case.trace} --json"

        names = [f"{workload.name}-{size}" for size in workload.sizes]
        cases = [Case(size, 0, name + ".jsonl", name + ".yaml") for size, name in zip(workload.sizes, names)]
        for case in cases:
            with open(os.path.join(self.folder, case.model), "w", encoding="utf-8") as file:
                file.write(workload.model.format(layers=case.size))
            made = json.loads(self.counter.run(generate(case), case.trace + ".counts"))
            size_of = collections.Counter({role: of["bytes"] for role, of in made["tensors"]["by_role"].items()})
            persistent = sum(size_of[role] for role in PERSISTENT)
            gpu = workload.gpu * persistent + workload.gpu_activations * size_of["activation"]
            case.work = made["ops"]
            case.memory = (f"-m g6e.xlarge --no-rescale --gpu-memory {gpu / 2**20:.1f}MiB "
                           f"--cpu-memory {workload.cpu * persistent / 2**20:.1f}MiB")
        if self.wants(f"generate {workload.name}"):
            self.measure(f"generate {workload.name}", cases, generate)
        return cases

    def recordings(self):
        cases = [Case(size, 0) for size in RECORDINGS]
        for case in cases:
            folder = os.path.join(self.folder, str(case.size))
            os.mkdir(folder)
            case.work = csv_recording(folder, 16 * case.size)
            for name, repeat in ("kineto", repeat_kineto), ("pytorch", repeat_pytorch):
                with open(os.path.join(SAMPLES, name, "seed_linear"), encoding="utf-8") as file:
                    recording = json.load(file)
                repeat(recording, case.size)
                with open(os.path.join(folder, name + ".json"), "w", encoding="utf-8") as file:
                    json.dump(recording, file)
        return cases

    def run(self):
        """Measures all that is asked for. Returns what was not covered: {name: why}."""
        policies = [policy["name"] for policy in json.loads(self.counter.run("policies --json", "policies"))]
        subjects = [(name, name, workload, command, (0, 1)) for name, workload, command in STUDIES]
        subjects += [(policy, f"replay {policy} {setting[6:]}, {workload.name}".replace(" ,", ","), workload.name,
                      f"replay {{trace}} {{memory}} -p {policy} --iterations 2 {setting}", (0,))
                     for policy in policies for setting in SETTINGS.get(policy, [""]) for workload in WORKLOADS
                     if policy in (workload.policies or policies)]
        subjects = [each for each in subjects if self.wants(each[1])]
        needed = {each[2] for each in subjects}
        cases_of = {workload.name: self.traces(workload) for workload in WORKLOADS
                    if workload.name in needed or self.wants(f"generate {workload.name}")}
        cases_of["rows"] = [Case(size, size * 1000) for size in ROWS]
        cases_of["recordings"] = self.recordings() if "recordings" in needed else []
        covered, refused = set(), collections.defaultdict(list)
        for name, subject, workload, command, accepted in subjects:
            try:
                self.measure(subject, cases_of[workload], lambda case: command.format(**vars(case)), accepted)
                covered.add(name)
            except Unanswered as reason:
                refused[name].append(f"{workload}: {reason}")
        return {name: why for name, why in refused.items() if name not in covered}


def table(found):
    """A function a row, its steepest line first."""
    rows = collections.defaultdict(list)
    for each in found:
        rows[each.place.rpartition(":")[0], each.function].append(each)
    for (file, function), growths in sorted(rows.items()):
        worst = max(growths, key=lambda each: each.counts[-1])
        lines = sorted({int(each.place.rpartition(":")[2]) for each in growths})
        subjects = sorted({each.subject for each in growths})
        print(f"{file}:{','.join(map(str, lines))}  {demangled(function)[:160]}")
        print(f"    {' '.join(f'{count:,}' for count in worst.counts)} of {' '.join(f'{n:,}' for n in worst.sizes)}"
              f"  {'; '.join(subjects[:3])}{f' and {len(subjects) - 3} more' if len(subjects) > 3 else ''}")


def sort_out(found):
    """What is new, what is known. Callees' lines are known where all else that grows of the program is."""
    found = [each for each in found if not each.is_in(BOUNDED)]
    known = [each for each in found if each.is_in(KNOWN)]
    explained = {each.subject for each in known} - {each.subject for each in found
                                                    if each not in known and not each.is_callee()}
    known += [each for each in found if each.is_callee() and each.subject in explained and each not in known]
    return [each for each in found if each not in known], known


@functools.cache
def demangled(name):
    return subprocess.run(["c++filt"], input=name, text=True, check=True, stdout=subprocess.PIPE).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="PART", help="only subjects whose name has this part, such as foresight")
    parser.add_argument("--json", metavar="F", help="also write what grows to this file: subject, line, counts, sizes")
    options = parser.parse_args()
    if not build("growth", ["tencache"]):
        return 2
    with tempfile.TemporaryDirectory() as folder:
        growths = Growths(folder, options.only)
        refused = growths.run()
    if growths.subjects == 0:
        sys.exit(f"work_growth: no subject has '{options.only}' in its name, or all refuse: {refused}")
    found, known = sort_out(growths.found)
    table(found)
    for subject, place, why in KNOWN:
        if any(each.is_in([(subject, place, why)]) for each in known):
            print(f"known: {subject or 'all'}, {place}: {why}")
    for name, reasons in refused.items():
        print(f"not covered: {name}\n    " + "\n    ".join(reasons))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump([{"subject": each.subject, "line": each.place, "function": demangled(each.function),
                        "counts": each.counts, "sizes": each.sizes} for each in found], file, indent=1)
    print(f"{growths.subjects} subjects: {len(found)} lines grow faster than n log n, {len(known)} are known to; "
          f"{len(refused)} subjects not covered")
    return 1 if found or refused else 0


if __name__ == "__main__":
    sys.exit(main())
