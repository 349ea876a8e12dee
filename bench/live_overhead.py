#!/usr/bin/env python3
"""What paging costs a training program that fits: `run train` under a policy with more memory than it needs against
`--plain`, LibTorch alone, in interleaved pairs. Prints the medians of the pairs' ratios.

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


def run(tencache, config, steps, words):
    """Seconds of CPU time, and of the median step."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([tencache, "run", "train", config, "--steps", str(steps), "--json", *words],
                          capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"live_overhead: {done.stderr.strip()}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, json.loads(done.stdout)["training"]["median_step_seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser.add_argument("--tencache", default=os.path.join(root, "build/release/cli/tencache"))
    parser.add_argument("--config", default=os.path.join(root, "configs/training/gpt-small.yaml"))
    parser.add_argument("--policy", default="on-demand")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="of the long runs; the short ones have 4")
    parser.add_argument("--limit", type=float, default=1.05)
    arguments = parser.parse_args()
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as machine:
        machine.write(MACHINE)
        machine.flush()
        ways = {"plain": ["--plain"], "paged": ["-m", machine.name, "-p", arguments.policy]}
        cpu_ratios, step_ratios = [], []
        for _ in range(arguments.pairs):
            cpu, step = {}, {}
            for way, words in ways.items():
                short, _ = run(arguments.tencache, arguments.config, 4, words)
                long_run, step[way] = run(arguments.tencache, arguments.config, arguments.steps, words)
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
