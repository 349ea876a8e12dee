#!/usr/bin/env python3
"""Trains for an hour beside fresh runs of the same program, and looks for what grows.

    PYTHONPATH=build/release/python tests/endurance.py [--minutes 60] [--json result.json]

A small GPT (python/examples/gpt.py) is trained on this computer with a GPU tier too small for it, so that its tensors
come and go in every step, some of them to swap files with checksums. Every minute the long run is stopped, a fresh run
of the same program is started, and from then on they take turns of a second (SIGSTOP, SIGCONT) until the minute is
over: whatever else the computer does slows both. Seen from outside, once a minute while the long run stands still: its
anonymous resident memory, open descriptors, threads and bytes of swap files; and the medians of both runs' step times
in that minute.

The verdict, one line each, after a third of the minutes but at most the first five:
- memory: the median of the last five minutes is no more than --most-growth above that of the first five;
- descriptors, threads: the same number in every minute;
- swap files: they grew no more; the folder holds no name;
- step time: the slope of long / fresh over the minutes (Theil-Sen) with the 95 % interval of Kendall's permutation
  test. `drifts` if the interval leaves out 0 and the slope is more than --most-drift an hour, `steady` if the whole
  interval is within it, else `undecided`: the computer was too busy, or the minutes too few, to say.
Exit code 0: all good or undecided; 1: something grows, drifts or failed. --self-test tries the verdicts on made-up runs.
"""
import argparse
import collections
import json
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MIB = 1 << 20

EXAMPLE = [os.path.join(ROOT, "python", "examples", "gpt.py"), "--layers", "2", "--width", "128", "--heads", "4",
           "--context", "64", "--batch", "2", "--steps", "100000000"]
MACHINE = """\
name: endurance
tiers:
  - {name: gpu, kind: gpu, capacity: 3MiB, granularity: 4KiB}
  - {name: cpu, kind: cpu, capacity: 3MiB, granularity: 4KiB}
  - {name: nvme, kind: nvme, capacity: 64MiB, granularity: 4KiB, checksums: true, directories: [%s]}
links:
  - {name: h2d, from: cpu, to: gpu, bandwidth: 1GB/s, latency: 50us}
  - {name: d2h, from: gpu, to: cpu, bandwidth: 1GB/s, latency: 50us}
  - {name: nvme_read, from: nvme, to: cpu, bandwidth: 500MB/s, latency: 200us}
  - {name: nvme_write, from: cpu, to: nvme, bandwidth: 500MB/s, latency: 200us}
staging: {tier: cpu, count: 4, bytes: 1MiB}
initial_tier: cpu
cpu: {adam_parameters_per_second: 1e8}
"""
WARM_UP_STEPS = 12  # a run's first steps record the program and go without a schedule
STEP = re.compile(r"step +\d+ ")


class Failure(Exception):
    pass


# ---- A run, from outside ---------------------------------------------------------------------------------------------


class Run:
    """A training run. Its steps are timed by when their lines arrive, only within a turn."""

    def __init__(self, command, swap):
        self.swap, self.turn, self.last, self.steps = swap, False, None, 0
        self.times = collections.deque()  # seconds of steps since `take`
        self.lock = threading.Lock()
        environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.errors, text=True,
                                        start_new_session=True, env=environment)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            now = time.monotonic()
            if not STEP.match(line):
                continue
            with self.lock:
                self.steps += 1
                if self.turn and self.last is not None and self.steps > WARM_UP_STEPS:
                    self.times.append(now - self.last)
                self.last = now if self.turn else None

    def wait_until_warm(self, seconds=300):
        end = time.monotonic() + seconds
        while self.steps <= WARM_UP_STEPS:
            self.check()
            if time.monotonic() > end:
                raise Failure(f"no {WARM_UP_STEPS} steps in {seconds} s")
            time.sleep(0.05)

    def check(self):
        if self.process.poll() is not None:
            self.errors.seek(0)
            raise Failure(f"a run ended with code {self.process.returncode}: {self.errors.read().decode().strip()}")

    def go_on(self, seconds):
        """One turn. The first step after a pause, which was under way in it, is not counted."""
        os.killpg(self.process.pid, signal.SIGCONT)
        with self.lock:
            self.turn, self.last = True, None
        time.sleep(seconds)
        with self.lock:
            self.turn, self.last = False, None
        self.pause()
        self.check()

    def pause(self):
        os.killpg(self.process.pid, signal.SIGSTOP)

    def take(self):
        with self.lock:
            times, self.times = list(self.times), collections.deque()
        return times

    def end(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.reader.join()
        self.errors.close()

    def processes(self):
        """The program and what it started."""
        pids = [self.process.pid]
        for pid in pids:
            with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
                pids += [int(child) for child in file.read().split()]
        return pids

    def look(self):
        seen = {"resident_bytes": 0, "anonymous_bytes": 0, "descriptors": 0, "threads": 0}
        files = {}
        for pid in self.processes():
            with open(f"/proc/{pid}/status", encoding="utf-8") as file:
                status = dict(line.split(":", 1) for line in file)
            seen["resident_bytes"] += int(status["VmRSS"].split()[0]) * 1024
            seen["anonymous_bytes"] += int(status["RssAnon"].split()[0]) * 1024
            seen["threads"] += int(status["Threads"])
            for name in os.listdir(f"/proc/{pid}/fd"):
                seen["descriptors"] += 1
                descriptor = f"/proc/{pid}/fd/{name}"
                if os.readlink(descriptor).startswith(self.swap):  # a file without a name, which yet has a place
                    status_of_file = os.stat(descriptor)
                    files[status_of_file.st_ino] = status_of_file.st_blocks * 512
        seen["swap_bytes"] = sum(files.values())
        seen["swap_names"] = len(os.listdir(self.swap))
        return seen


def train(options):
    with tempfile.TemporaryDirectory(prefix="endurance-", dir=options.directory) as folder:
        swap = os.path.join(folder, "swap")
        os.mkdir(swap)
        machine = os.path.join(folder, "machine.yaml")
        with open(machine, "w", encoding="utf-8") as file:
            file.write(MACHINE % swap)
        command = [sys.executable, "-m", "tencache", "run", "python", "-m", machine, "-p", options.policy, "--",
                   *EXAMPLE]
        begin = time.monotonic()
        minutes = []
        long_run = Run(command, swap)
        try:
            long_run.wait_until_warm()
            while len(minutes) < options.minutes:
                end = begin + 60 * (len(minutes) + 1)
                minutes.append(train_a_minute(command, swap, long_run, end, options.turn))
                print(minute_text(len(minutes), minutes[-1]), flush=True)
            steps = long_run.steps
        finally:
            long_run.end()
        if os.listdir(swap):
            raise Failure(f"left among the swap files: {os.listdir(swap)}")
        return minutes, steps


def train_a_minute(command, swap, long_run, end, turn):
    long_run.pause()
    seen = long_run.look()
    fresh = Run(command, swap)
    try:
        fresh.wait_until_warm()
        fresh.pause()
        while time.monotonic() + 2 * turn < end:
            long_run.go_on(turn)
            fresh.go_on(turn)
        times = {"long": long_run.take(), "fresh": fresh.take()}
    finally:
        fresh.end()
    for name, seconds in times.items():
        if len(seconds) < 10:
            raise Failure(f"only {len(seconds)} steps of the {name} run in a minute; is the computer that slow?")
        seen[name + "_steps"] = len(seconds)
        seen[name + "_seconds"] = statistics.median(seconds)
    return seen


def minute_text(number, minute):
    return (f"minute {number:>3}  long {1e3 * minute['long_seconds']:.1f} ms, fresh {1e3 * minute['fresh_seconds']:.1f} ms, "
            f"ratio {minute['long_seconds'] / minute['fresh_seconds']:.4f}  anonymous {minute['anonymous_bytes'] / MIB:.2f} MiB  "
            f"descriptors {minute['descriptors']}  threads {minute['threads']}  swap {minute['swap_bytes'] / MIB:.1f} MiB")


# ---- The verdict -----------------------------------------------------------------------------------------------------


def theil_sen(values, z=1.96):
    """Slope per step and its interval: of all pairs' slopes those that Kendall's permutation test does not refuse."""
    n = len(values)
    slopes = sorted((values[j] - values[i]) / (j - i) for i in range(n) for j in range(i + 1, n))
    spread = z * (n * (n - 1) * (2 * n + 5) / 18) ** 0.5
    low, high = math.floor((len(slopes) - spread) / 2), math.ceil((len(slopes) + spread) / 2)
    return (statistics.median(slopes), slopes[low] if low >= 0 else -float("inf"),
            slopes[high] if high < len(slopes) else float("inf"))


def judge(minutes, options):
    skipped = min(5, len(minutes) // 3)
    settled = minutes[skipped:]
    column = {key: [minute[key] for minute in settled] for key in settled[0]}
    few = min(5, len(settled) // 2)
    growth = (statistics.median(column["anonymous_bytes"][-few:]) - statistics.median(column["anonymous_bytes"][:few]))
    ratios = [long / fresh for long, fresh in zip(column["long_seconds"], column["fresh_seconds"])]
    slope, low, high = (60 * value for value in theil_sen(ratios))
    most = options.most_drift
    if (low > 0 or high < 0) and abs(slope) > most:
        drift = "drifts"
    else:
        drift = "steady" if -most <= low and high <= most else "undecided"

    def constant(key):
        return "good" if len(set(column[key])) == 1 else "changes"

    verdicts = {"memory": "good" if growth <= options.most_growth else "grows",
                "descriptors": constant("descriptors"),
                "threads": constant("threads"),
                "swap files": "good" if column["swap_bytes"][-1] <= column["swap_bytes"][0] and
                              not any(column["swap_names"]) else "grows",
                "step time": drift}
    return {"verdicts": verdicts,
            "minutes_left_out": skipped,
            "growth_bytes": growth,
            "ratio_median": statistics.median(ratios),
            "ratio_slope_per_hour": slope,
            "ratio_slope_interval": [value if abs(value) < float("inf") else None for value in (low, high)],
            "most_growth_bytes": options.most_growth,
            "most_drift_per_hour": most}


def failed(judgement):
    return any(verdict not in ("good", "steady", "undecided") for verdict in judgement["verdicts"].values())


def judgement_text(judgement, minutes):
    low, high = ("?" if value is None else f"{100 * value:+.2f}" for value in judgement["ratio_slope_interval"])
    last = minutes[-1]
    details = {"memory": f"{judgement['growth_bytes'] / MIB:+.2f} MiB",
               "descriptors": last["descriptors"],
               "threads": last["threads"],
               "swap files": f"{last['swap_bytes'] / MIB:.1f} MiB",
               "step time": f"long / fresh {judgement['ratio_median']:.4f}, "
                            f"{100 * judgement['ratio_slope_per_hour']:+.2f} % an hour ({low} to {high})"}
    return "\n".join(f"{name + ':':<12} {verdict:<10} {details[name]}"
                     for name, verdict in judgement["verdicts"].items())


def self_test(options):
    """Made-up hours: what is put into one is found, and nothing else."""
    chance = random.Random(1)

    def hour(**changes):
        minutes = []
        for i in range(60):
            busy = 1 + 0.5 * chance.random() + i / 60  # other programs, which slow both
            minute = {"anonymous_bytes": 90 * MIB + 4096 * chance.randrange(50), "resident_bytes": 200 * MIB,
                      "descriptors": 20, "threads": 7, "swap_bytes": 64 * MIB, "swap_names": 0,
                      "long_seconds": 0.1 * busy * chance.gauss(1, 0.005), "fresh_seconds": 0.1 * busy * chance.gauss(1, 0.005)}
            for key, change in changes.items():
                minute[key] = change(minute[key], i)
            minutes.append(minute)
        return minutes

    expected = [
        ({}, None),
        ({"anonymous_bytes": lambda value, i: value + i * 65536}, "memory"),  # 64 KiB a minute
        ({"anonymous_bytes": lambda value, i: value + (8 * MIB if i < 4 else 0)}, None),  # more at first, then less
        ({"descriptors": lambda value, i: value + (i > 30)}, "descriptors"),
        ({"threads": lambda value, i: value + i // 20}, "threads"),
        ({"swap_bytes": lambda value, i: value + i * 4096}, "swap files"),
        ({"swap_names": lambda value, i: int(i == 40)}, "swap files"),
        ({"long_seconds": lambda value, i: value * (1 + 0.05 * i / 60)}, "step time"),
        ({"long_seconds": lambda value, i: value * 1.05}, None),  # slower all the time is no drift
    ]
    wrong = 0
    for changes, name in expected:
        judgement = judge(hour(**changes), options)
        found = [key for key, verdict in judgement["verdicts"].items() if verdict not in ("good", "steady")]
        if found != ([name] if name else []) or failed(judgement) != bool(name):
            print(f"{list(changes) or 'nothing'} changed, found: {found}: {judgement}", file=sys.stderr)
            wrong += 1
    print(f"{len(expected) - wrong} of {len(expected)} made-up hours judged right")
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--policy", default="10cache")
    parser.add_argument("--turn", type=float, default=1, help="seconds that each of the two runs goes on (default 1)")
    parser.add_argument("--most-growth", type=int, default=2 * MIB, help="bytes that memory may grow (default 2 MiB)")
    parser.add_argument("--most-drift", type=float, default=0.02,
                        help="of long / fresh in an hour, that matters (default 0.02)")
    parser.add_argument("--directory", help="where the swap files lie (default: where temporary files lie)")
    parser.add_argument("--json", metavar="FILE", help="all minutes and the verdict")
    parser.add_argument("--self-test", action="store_true", help="judge made-up runs; trains nothing")
    options = parser.parse_args()
    if options.self_test:
        return self_test(options)
    if options.minutes < 3:
        parser.error("--minutes: 3 at least, for a slope")
    try:
        minutes, steps = train(options)
    except Failure as failure:
        print(failure, file=sys.stderr)
        return 1
    judgement = judge(minutes, options)
    print(f"{steps} steps in {len(minutes)} minutes, about half of the time\n{judgement_text(judgement, minutes)}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"steps": steps, "policy": options.policy, **judgement, "minutes": minutes}, file, indent=1)
    return 1 if failed(judgement) else 0


if __name__ == "__main__":
    sys.exit(main())
