#!/usr/bin/env python3
"""What whole commands of the README and the cookbook cost: processor seconds, instructions, peak memory.

    bench/commands.py [--json] [--only NAME]…                     a table of this version
    bench/commands.py --against COMMIT [--pairs N] [--json]       beside that of a commit, in pairs

With --against, the commit is built in build/commands/COMMIT, a worktree that stays for the next time (`git worktree
remove` ends it). Both versions run each command in alternating pairs (ABBA); the ratio is the median of the pairs'
ratios, this version's figure over the commit's, with a 95 % bootstrap interval. Exit code 1: a command takes more than
5 % more processor time or peak memory beyond its interval, or fails. Commands that one of the two does not know, and
those whose recordings are not here (../shared/traces), are listed and not judged.

Processor seconds are those of user and system, of all threads. A measurement repeats short commands until they have
taken about a third of a second. Instructions are of user code, where the kernel counts them. Peaks below the memory of
this script (about 10 MB) are not seen.
"""
import argparse
import ctypes
import json
import os
import platform
import random
import shlex
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SHARED = os.path.join(os.path.dirname(ROOT), "shared", "traces")
SAMPLES = os.path.join(ROOT, "traces", "samples")
WORSE = 1.05
BAD_USAGE = 2  # the exit code of a command that this version does not know
SECONDS_A_MEASUREMENT, MOST_REPETITIONS = 0.3, 10
MOST_SECONDS_A_COMMAND = 300
subprocess._USE_VFORK = False  # a child of vfork counts all memory of this script as its own peak, one of fork a half

LLAMA = "--seq 2048 --recompute block"
# What several commands read, made before by the same version. {samples} and {shared} are folders of traces.
INPUTS = {
    "bert.trace.jsonl.zst": "import csv {shared}/g10/BERT_Base-256 -o bert.trace.jsonl.zst --hardware a100-40g",
    "llama.trace.jsonl.zst": f"generate --model llama-3-8b --batch 16 --micro-batches 4 {LLAMA} --gpu l40s"
                             " -o llama.trace.jsonl.zst",
    "mixtral.trace.jsonl.zst": "generate --model mixtral-8x7b --batch 1 --seq 1024 --recompute block --gpu h100"
                               " -o mixtral.trace.jsonl.zst",
    "kv70.trace.jsonl.zst": "generate --model llama-2-70b --prompt 512 --new-tokens 32 --block 96x1 --precision fp16"
                            " --gpu rtx-a6000 --weights int4-g64 --placeable attention -o kv70.trace.jsonl.zst",
    "xl.trace.jsonl.zst": "generate --model gpt2-xl --batch 8 --seq 1024 --gpu a100-80g --stack compiled"
                          " -o xl.trace.jsonl.zst",
    "timeline.json": "replay {samples}/gpt2-small.trace.jsonl.zst -m demo-small-gpu --gpu-memory 1300MiB -p lru"
                     " --timeline timeline.json",
}
COMMANDS = {
    "replay-bert-g10": "replay bert.trace.jsonl.zst -m g10-a100 -p g10",
    "replay-llama-foresight": "replay llama.trace.jsonl.zst -m 10cache-l40s -p foresight",
    "replay-mixtral-10cache": "replay mixtral.trace.jsonl.zst -m p5.4xlarge -p 10cache",
    "replay-tokens": "replay kv70.trace.jsonl.zst -m zero-inference-a6000 -p zero-inference --set cache=cpu",
    "compare-llama": f"compare --model llama-3-8b --batch 4 {LLAMA} -m NV36ads_A10_v5"
                     " -p foresight,stronghold,zero-infinity,10cache,lru,zero-offload",
    "compare-recorded": "compare {samples}/gpt2-small.trace.jsonl.zst -m demo-small-gpu --gpu-memory 1300MiB",
    "compare-mixtral": "compare mixtral.trace.jsonl.zst -m p5.4xlarge -p 10cache,zero-infinity,g10,teraio",
    "fit-llama": "fit --model llama-3-8b --batch 1 --seq 2048 -m g5.xlarge -p zero-infinity",
    "fit-qwen": f"fit --model qwen2.5-32b --batch 1 {LLAMA} -m NC40ads_H100_v5 --cpu-memory 744GB -p zero-infinity",
    "bound-llama": "bound llama.trace.jsonl.zst -m 10cache-l40s",
    "sensitivity-llama": "sensitivity llama.trace.jsonl.zst -m 10cache-l40s --cpu-memory 64GiB"
                         " --over nvme=0.5GB/s..32GB/s:7 -p mlp-offload,10cache",
    "tune-llama": "tune llama.trace.jsonl.zst -m 10cache-l40s --cpu-memory 64GiB -p zero-infinity"
                  " --set offload_optimizer=nvme --budget 12",
    "sweep-recompute": "sweep offload-or-recompute",
    "import-bert": "import csv {shared}/g10/BERT_Base-256 -o imported.trace.jsonl.zst --hardware a100-40g",
    "import-kineto": "import kineto {shared}/pytorch/hta_v100_profile_memory.json.gz -o imported.trace.jsonl.zst",
    "validate-ssdtrain": "validate ssdtrain",
    "fragment-gpt2": "fragment xl.trace.jsonl.zst --iterations 2 --limit 44GiB -a default -a expandable -a exact",
    "gui-screenshot": "gui timeline.json --screenshot picture.png",
}


def say(text):
    print(text, file=sys.stderr, flush=True)


class Unknown(Exception):
    """A version does not know a command, or its input is not here."""


class Instructions:
    """Counts those of this process's children, in user code, where the kernel lets one; or those of this process, and
    of threads that it starts from then on."""

    def __init__(self, of_children=True):
        self.descriptor, self.why_not = -1, ""
        number = {"x86_64": 298, "aarch64": 241}.get(platform.machine())
        if number is None:
            self.why_not = f"not known how on {platform.machine()}"
            return
        # perf_event_attr, version 0: hardware, instructions; disabled, inherit, exclude_kernel, exclude_hv, enable_on_exec.
        flags = (1 << 0 | 1 << 12 if of_children else 0) | 1 << 1 | 1 << 5 | 1 << 6
        attributes = struct.pack("=IIQQQQQIIQ", 0, 64, 1, 0, 0, 0, flags, 0, 0, 0)
        libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor = libc.syscall(number, ctypes.create_string_buffer(attributes, 64), 0, -1, -1, 8)  # close on exec
        if self.descriptor < 0:
            self.why_not = os.strerror(ctypes.get_errno())

    def read(self):
        return struct.unpack("=Q", os.read(self.descriptor, 8))[0] if self.descriptor >= 0 else None


class Figures:
    """Of one command: what it took each time, of processor time in s, of memory in bytes, of instructions."""

    def __init__(self, cpu_s, peak_bytes, instructions):
        self.cpu_s, self.peak_bytes, self.instructions = cpu_s, peak_bytes, instructions


class Version:
    """A build of `tencache`, with a folder of its own in which its commands run."""

    def __init__(self, name, source, folder, counter):
        self.name, self.counter = name, counter
        self.program = os.path.join(source, "build", "release", "cli", "tencache")
        if not os.access(self.program, os.X_OK):
            sys.exit(f"commands: {self.program} is not built")
        self.folder = os.path.join(folder, name)
        os.makedirs(self.folder)
        self.environment = {**os.environ, "HOME": self.folder, "XDG_CACHE_HOME": self.folder}

    def run(self, words):
        """Once. Raises Unknown where the program says that the command is wrong."""
        before = self.counter.read()
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen([self.program, *words], cwd=self.folder, env=self.environment,
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
            limit = threading.Timer(MOST_SECONDS_A_COMMAND, process.kill)
            limit.start()
            _, status, usage = os.wait4(process.pid, 0)
            limit.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip().split("\n")[-1]
        if process.returncode == BAD_USAGE:
            raise Unknown(said)
        if process.returncode not in (0, 1):  # 1: the answer is no
            raise RuntimeError(f"{shlex.join(words)}: exit code {process.returncode}: {said}")
        after = self.counter.read()
        return Figures(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024,
                       None if before is None else after - before)

    def measure(self, words, repetitions):
        several = [self.run(words) for _ in range(repetitions)]
        counts = [figures.instructions for figures in several]
        return Figures(statistics.mean(figures.cpu_s for figures in several),
                       max(figures.peak_bytes for figures in several),
                       None if None in counts else round(statistics.mean(counts)))

    def prepare(self, words):
        """Makes what the command reads. Raises Unknown where an input is not here."""
        for word in words:
            if word.startswith(SHARED) and not os.path.exists(word):
                raise Unknown(f"{word} is not here")
            if word in INPUTS and not os.path.exists(os.path.join(self.folder, word)):
                making = words_of(INPUTS[word])
                if word not in words_that_write(words):
                    self.prepare([other for other in making if other != word])
                    self.run(making)


def words_that_write(words):
    """Names of files behind options that write."""
    return [words[index + 1] for index, word in enumerate(words[:-1]) if word in ("-o", "--timeline", "--screenshot")]


def words_of(line):
    return shlex.split(line.format(samples=shlex.quote(SAMPLES), shared=shlex.quote(SHARED)))


def build(commit):
    """The folder of the commit's sources, with its programs built."""
    found = subprocess.run(["git", "rev-parse", "--verify", "--quiet", commit + "^{commit}"], cwd=ROOT, text=True,
                           stdout=subprocess.PIPE)
    if found.returncode != 0:
        sys.exit(f"commands: there is no commit '{commit}' here")
    commit = found.stdout.strip()
    folder = os.path.join(ROOT, "build", "commands", commit)
    if not os.path.exists(folder):
        subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", folder, commit], cwd=ROOT, check=True)
    say(f"building {commit[:10]} in {folder} …")
    log = os.path.join(folder, "commands.log")
    with open(log, "w", encoding="utf-8") as file:
        for step in (["cmake", "--preset", "release"], ["cmake", "--build", "build/release", "--target", "tencache"]):
            if subprocess.run(step, cwd=folder, stdout=file, stderr=file).returncode != 0:
                sys.exit(f"commands: {commit} does not build, see {log}")
        # The dashboard, where this computer can build it.
        subprocess.run(["cmake", "--build", "build/release", "--target", "tencache-gui"], cwd=folder, stdout=file,
                       stderr=file)
    return folder


def interval(ratios):
    """Median, and 2.5th and 97.5th percentile of the medians of 2,000 samples drawn with a fixed seed."""
    source = random.Random(20261128)
    medians = sorted(statistics.median(source.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.median(ratios), medians[49], medians[1949]


def pairs_of(versions, words, pairs, repetitions):
    """Figures by version, each pair in the other order than the one before."""
    taken = {version: [] for version in versions}
    for pair in range(pairs):
        for version in versions if pair % 2 == 0 else versions[::-1]:
            taken[version].append(version.measure(words, repetitions))
    return [taken[version] for version in versions]


def measured(name, versions, pairs):
    """The row of a command. `note` says why it has no figures."""
    words, row, knowing = words_of(COMMANDS[name]), {"command": name}, []
    row["words"] = "tencache " + COMMANDS[name]
    for version in versions:
        try:
            version.prepare(words)
            first = version.run(words)  # files are in memory then
            knowing.append(version)
        except Unknown as reason:
            row["note"] = f"{version.name}: {reason}"
        except RuntimeError as failure:
            row["note"], row["failed"] = f"{version.name}: {failure}", version is versions[0]
    if not knowing:
        return row
    repetitions = max(1, min(MOST_REPETITIONS, round(SECONDS_A_MEASUREMENT / max(first.cpu_s, 1e-3))))
    taken = pairs_of(knowing, words, pairs, repetitions)
    if versions[0] in knowing:
        row["cpu_s"] = statistics.median(figures.cpu_s for figures in taken[0])
        row["peak_bytes"] = statistics.median(figures.peak_bytes for figures in taken[0])
        if taken[0][0].instructions is not None:
            row["instructions"] = statistics.median(figures.instructions for figures in taken[0])
    if len(knowing) == 2:
        now, before = taken
        row["ratio"], row["low"], row["high"] = interval([a.cpu_s / b.cpu_s for a, b in zip(now, before)])
        row["peak_ratio"], row["peak_low"], row["peak_high"] = interval(
            [a.peak_bytes / b.peak_bytes for a, b in zip(now, before)])
        row["worse"] = row["low"] > WORSE or row["peak_low"] > WORSE
    return row


def line_of(row):
    if "cpu_s" not in row:
        return f"{row['command']:24} {row['note']}"
    line = f"{row['command']:24} {row['cpu_s']:8.3f} s {row['peak_bytes'] / 1e6:8.1f} MB"
    line += f" {row['instructions'] / 1e9:8.3f} G" if "instructions" in row else ""
    if "ratio" in row:
        line += f"   {row['ratio']:6.3f} [{row['low']:.3f}, {row['high']:.3f}]"
        line += f"   {row['peak_ratio']:6.3f} [{row['peak_low']:.3f}, {row['peak_high']:.3f}]"
        line += "  worse" if row["worse"] else ""
    return line + (f"   {row['note']}" if "note" in row else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", help="measure that commit as well, in pairs")
    parser.add_argument("--pairs", type=int, default=7, help="measurements of each command (default: %(default)s)")
    parser.add_argument("--only", metavar="NAME", action="append", choices=sorted(COMMANDS),
                        help="this command, any number of times: " + ", ".join(COMMANDS))
    parser.add_argument("--json", action="store_true", help="print an array of rows")
    options = parser.parse_args()
    if options.pairs < 1:
        parser.error("--pairs must be at least 1")
    counter = Instructions()
    if counter.why_not:
        say(f"instructions are left out: the kernel does not count them here ({counter.why_not})")
    folder = tempfile.mkdtemp()
    try:
        versions = [Version("this version", ROOT, folder, counter)]
        if options.against:
            versions.append(Version(options.against, build(options.against), folder, counter))
        rows = []
        for name in options.only or COMMANDS:
            rows.append(measured(name, versions, options.pairs))
            say(line_of(rows[-1]))
    finally:
        shutil.rmtree(folder)
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        columns = f"{'command':24} {'processor':>10} {'peak':>11}" + (f" {'instr.':>10}" if not counter.why_not else "")
        print(columns + ("   processor time, × before [95 %]   peak, × before" if options.against else ""))
        print("\n".join(line_of(row) for row in rows))
    return 1 if any(row.get("worse") or row.get("failed") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
