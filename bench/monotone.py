#!/usr/bin/env python3
"""Whether a better machine ever makes foresight's plan slower: along each axis of `tencache sensitivity` the time is
taken at rising values, for pairs of bench/policy_grid.py's grid, and steps up of more than 1 % are listed.

Along memory the rows of the grid itself are compared (--rows). Each axis of a pair is a line of --steps; what is there
already is not run again. Simulated figures: they do not depend on this computer."""
import argparse
import json
import os
import subprocess
import sys

AXES = {  # values from worst to best
    "nvme": "1.5GB/s,3GB/s,6GB/s,12GB/s,24GB/s",
    "h2d": "6GB/s,12GB/s,24GB/s,48GB/s,96GB/s",
    "gpu_speed": "0.5,0.7,1,1.4,2",
}
TOLERANCE = 0.01


def steps_up(times):
    """The rises above the tolerance, as ratios, from each value to the next; None: it does not fit there."""
    known = [time for time in times if time is not None]
    return [later / earlier for earlier, later in zip(known, known[1:]) if later > (1 + TOLERANCE) * earlier]


def measure(tencache, trace, machine, gpu_bytes, axis):
    """Times at the axis's values, or None if the machine has no such axis."""
    done = subprocess.run([tencache, "sensitivity", trace, "-m", machine, "-p", "foresight", "--gpu-memory",
                           str(gpu_bytes), "--no-rescale", "--json", "--over", f"{axis}={AXES[axis]}"],
                          capture_output=True, text=True)
    if f"has no parameter '{axis}'" in done.stderr:
        return None
    if not done.stdout:
        sys.exit(done.stderr)
    line = next(line for line in json.loads(done.stdout)["lines"] if line["policy"] == "foresight")
    return [point["iteration_seconds"] for point in line["points"]]


def report(title, series):
    counted = sum(max(0, sum(time is not None for time in times) - 1) for _, times in series)
    rises = [(name, ratio) for name, times in series for ratio in steps_up(times)]
    print(f"{title}: {len(series)} pairs, {counted} steps, {len(rises)} up by more than {TOLERANCE:.0%}")
    for name, ratio in sorted(rises, key=lambda rise: -rise[1]):
        print(f"  {ratio:.3f}  {name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tencache", default="build/release/cli/tencache", help="the program (default: %(default)s)")
    parser.add_argument("--rows", default="build/grid/rows.jsonl", help="of policy_grid.py (default: %(default)s)")
    parser.add_argument("--work", default="build/grid", help="where its traces are (default: %(default)s)")
    parser.add_argument("--steps", default="build/grid/steps.jsonl",
                        help="a line an axis of a pair (default: %(default)s)")
    parser.add_argument("--traces", default="opt-6.7b,llama-3-8b,gpt2-xl,BERT_Base-256,ResNet152-1280",
                        help="names, separated by commas (default: %(default)s)")
    parser.add_argument("--fraction", type=float, default=0.5, help="of the peak demand (default: %(default)s)")
    arguments = parser.parse_args()
    with open(arguments.rows) as file:
        rows = [json.loads(line) for line in file]
    known = []
    if os.path.exists(arguments.steps):
        with open(arguments.steps) as file:
            known = [json.loads(line) for line in file]
    done = {(step["trace"], step["machine"], step["axis"]) for step in known}
    pairs = [row for row in rows if row["ours"] and row["fraction"] == arguments.fraction
             and row["trace"] in arguments.traces.split(",")]
    with open(arguments.steps, "a") as file:
        for count, (axis, row) in enumerate((axis, row) for axis in AXES for row in pairs):
            if sys.stderr.isatty():
                print(f"\r{count + 1} of {len(AXES) * len(pairs)}\033[K", end="", file=sys.stderr)
            if (row["trace"], row["machine"], axis) in done:
                continue
            trace = os.path.join(arguments.work, row["trace"].replace(", ", "-") + ".trace.jsonl.zst")
            known.append({"trace": row["trace"], "machine": row["machine"], "axis": axis,
                          "seconds": measure(arguments.tencache, trace, row["machine"], row["gpu_bytes"], axis)})
            file.write(json.dumps(known[-1]) + "\n")
            file.flush()
    for axis in AXES:
        report(axis, [(f"{step['trace']} on {step['machine']}", step["seconds"]) for step in known
                      if step["axis"] == axis and step["seconds"]])
    memory = {}
    for row in rows:
        memory.setdefault(f"{row['trace']} on {row['machine']}", {})[row["fraction"]] = row["ours"]
    report("memory", [(name, [times[fraction] for fraction in sorted(times)]) for name, times in memory.items()])


main()
