#!/usr/bin/env python3
"""What paging costs a training program that fits: python/examples/gpt.py under a policy with more memory than it needs
against plain PyTorch, in interleaved pairs. Prints the medians of the pairs' ratios.

    PYTHONPATH=build/release/python bench/live_overhead.py

"step": the median step's wall time; on a busy computer the spread of it hides the answer. "CPU": user and system time
of the steps, all threads of the process, the difference between a long and a short run; it counts what the runtime's
other threads do although that runs beside the program on another core, and waiting for a core not at all.
Exits 1 if the ratio of CPU times is above the limit."""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile

EXAMPLE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python", "examples", "gpt.py")
MACHINE = """\
name: ample
tiers:
  - {name: gpu, kind: gpu, capacity: 2GiB, granularity: 4KiB}
  - {name: cpu, kind: cpu, capacity: 64MiB, granularity: 4KiB}
links:
  - {name: h2d, from: cpu, to: gpu, bandwidth: 100GB/s, latency: 1us}
  - {name: d2h, from: gpu, to: cpu, bandwidth: 100GB/s, latency: 1us}
initial_tier: gpu
"""


def run(paging, steps, example):
    """Seconds of CPU time, and of the median step."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.NamedTemporaryFile("r", suffix=".json") as result:
        words = [*paging, EXAMPLE, "--steps", str(steps), "--json", result.name, *example]
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode != 0:
            sys.exit(f"live_overhead: {done.stderr.strip()}")
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return cpu, json.load(result)["median_step_seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="on-demand")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="of the long runs; the short ones have 4")
    parser.add_argument("--limit", type=float, default=1.05)
    parser.add_argument("example", nargs="*", help="options of the example, after --")
    arguments = parser.parse_args()
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as machine:
        machine.write(MACHINE)
        machine.flush()
        paging = ["-m", "tencache", "run", "python", "-m", machine.name, "-p", arguments.policy, "--"]
        ways = {"plain": [], "paged": paging}
        cpu_ratios, step_ratios = [], []
        for _ in range(arguments.pairs):
            cpu, step = {}, {}
            for way, words in ways.items():
                short, _ = run(words, 4, arguments.example)
                long_run, step[way] = run(words, arguments.steps, arguments.example)
                cpu[way] = (long_run - short) / (arguments.steps - 4)
            cpu_ratios.append(cpu["paged"] / cpu["plain"])
            step_ratios.append(step["paged"] / step["plain"])
            print(f"CPU {cpu['plain'] * 1e3:.0f} ms plain, {cpu['paged'] * 1e3:.0f} ms paged a step: "
                  f"{cpu_ratios[-1]:.3f}; step {step['plain'] * 1e3:.0f} ms and {step['paged'] * 1e3:.0f} ms: "
                  f"{step_ratios[-1]:.3f}", flush=True)
    ratio = statistics.median(cpu_ratios)
    print(f"median of {arguments.pairs} pairs: CPU {ratio:.3f}, step {statistics.median(step_ratios):.3f}")
    sys.exit(1 if ratio > arguments.limit else 0)


if __name__ == "__main__":
    main()
