#!/usr/bin/env python3
"""What whole tensors in one range of GPU memory cost against chunks that lie anywhere.

The pairs are those of bench/policy_grid.py: traces, machines and GPU memories. Under each policy of --policies a
pair is simulated in chunks (`--gpu-allocator exact`, pages from anywhere), the same with whole tensors, and with
`--gpu-allocator movable` (whole tensors in one range, others are moved to make holes). Each pair under a policy is
a line of the output file; what is there already is not run again, and where only a part of a line is missing, that
part is run (--parts: only these are). Pairs are run by policy, then by memory, the trace with the fewest ops first.
With --every N only each N-th pair is run, with --seconds no line begins later; the tables say for how many pairs they
are. --report FILE puts them between two marks of a Markdown file, whose other text is written by hand. Simulated
figures: they do not depend on this computer, but a run that takes longer than --timeout is left out and counted.
Places hardly ever recur, so a movable run has no steady state: it takes --iterations, of which the second half counts
(docs/engine.md, "Steady state")."""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import textwrap
import time

import policy_grid

POLICIES = {  # moved in chunks by default, or by these options
    "foresight": {},
    "g10": {},
    "deepum": {},
    "lru": {"window": "32", "chunk": "16MiB"},
    "belady": {"prefetch": "ordered", "chunk": "16MiB"},
    "zero-offload": {"overflow": "evict"},
}
WHOLE = {"chunk": "1TB"}
PARTS = {"chunks": ("exact",), "whole": ("exact", True), "movable": ("movable",)}  # arguments of replay()
LARGE = 1 / 8  # of the GPU's memory: a tensor above it may not be worth moving as a whole
LOSS = 1.05
MARKS = "<!-- tables: written by bench/movable_grid.py -->", "<!-- end of the tables -->"


def largest_tensor(path):
    text = subprocess.run(["zstd", "-dc", path], capture_output=True, text=True, check=True).stdout
    return max(line["bytes"] for line in map(json.loads, text.splitlines()) if line["kind"] == "tensor")


def replay(arguments, row, allocator, whole=False):
    settings = POLICIES[row["policy"]] | (WHOLE if whole else {})
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [arguments.tencache, "replay", row["file"], "-m", row["machine"], "-p", row["policy"], "--gpu-memory",
               str(row["gpu_bytes"]), "--gpu-allocator", allocator, "--no-rescale", "--json", *words]
    if allocator == "movable":
        command += ["--iterations", str(arguments.iterations)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=arguments.timeout)
    except subprocess.TimeoutExpired:
        return {"reason": "timeout"}
    if not done.stdout.startswith("{"):
        return {"reason": done.stderr.strip()}
    result = json.loads(done.stdout)
    if not result["fits"]:
        return {"reason": result.get("reason") or "does not fit"}
    figures = {"seconds": result["iteration_seconds"], "steady": result["steady"]}
    gpu = next(iter(result["allocators"].values()))
    figures.update({key: gpu[key] for key in ("holes", "moved_bytes", "moving_seconds", "placeless") if key in gpu})
    return figures


def ratio(row, to="chunks"):
    return row["movable"]["seconds"] / row[to]["seconds"]


def line(*cells):
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def heading(*cells):
    return [line(*cells), "|---" * len(cells) + "|"]


def table(rows):
    text = heading("policy", "pairs", "only in chunks", "only movable", "time ÷ in chunks, median", "worst",
                   "more than 5 % slower", "time ÷ whole tensors', median", "worst", "moved GB per iteration, median",
                   "most", "moving ÷ time, median", "most")
    for policy in POLICIES:
        of = [row for row in rows if row["policy"] == policy]
        both = list(filter(ran_twice, of))
        if not both:
            continue
        alone = [sum(1 for row in of if "seconds" in row[a] and "seconds" not in row[b])
                 for a, b in (("chunks", "movable"), ("movable", "chunks"))]
        moved = [row["movable"]["moved_bytes"] / 1e9 for row in both]
        moving = [row["movable"]["moving_seconds"] / row["movable"]["seconds"] for row in both]
        ratios = [ratio(row) for row in both]
        to_whole = [ratio(row, "whole") for row in both if "seconds" in row.get("whole", {})] or [float("nan")]
        text.append(line(policy, len(both), *alone, f"{statistics.median(ratios):.3f}", f"{max(ratios):.3f}",
                         sum(1 for value in ratios if value > LOSS), f"{statistics.median(to_whole):.3f}",
                         f"{max(to_whole):.3f}", f"{statistics.median(moved):.1f}", f"{max(moved):.1f}",
                         f"{statistics.median(moving):.4f}", f"{max(moving):.4f}"))
    return text


def report(rows, pairs):
    pairs_seen = len(set(map(pair_of, rows)))
    text = [f"{pairs_seen} of {pairs} pairs of trace, machine and GPU memory, under some policies fewer.", "",
            *table(rows), ""]
    both = list(filter(ran_twice, rows))
    lost = sorted((row for row in both if ratio(row) > LOSS), key=ratio, reverse=True)
    share = lambda row: row["largest_tensor"] / row["gpu_bytes"]
    for name, of in (("a tensor above an eighth of the GPU's memory", [row for row in both if share(row) > LARGE]),
                     ("no such tensor", [row for row in both if share(row) <= LARGE])):
        slower = sum(1 for row in of if ratio(row) > LOSS)
        text.append(f"- With {name}: {len(of)} results, {slower} more than 5 % slower"
                    + (f"; median {statistics.median(map(ratio, of)):.3f}." if of else "."))
    reasons = {}
    for row in rows:
        if "seconds" in row["chunks"] and "seconds" not in row["movable"]:
            reason = re.sub(r"'[^']*'|\d[\d.]*( [KMGT]iB)?", "…", row["movable"]["reason"].split("\n")[0])
            reasons[reason] = reasons.get(reason, 0) + 1
    for reason, count in sorted(reasons.items(), key=lambda entry: -entry[1]):
        text.append(textwrap.fill(f"- Only in chunks, {count}: {reason}", 120, subsequent_indent="  "))
    if lost:
        text += ["", "More than 5 % slower:", "",
                 *heading("policy", "trace", "machine", "GPU memory ÷ peak", "time ÷ in chunks",
                          "time ÷ whole tensors'", "largest tensor ÷ GPU memory", "moved GB", "placeless")]
        for row in lost:
            to_whole = f"{ratio(row, 'whole'):.3f}" if "seconds" in row.get("whole", {}) else "–"
            text.append(line(row["policy"], row["trace"], row["machine"], row["fraction"], f"{ratio(row):.3f}",
                             to_whole, f"{share(row):.3f}", f"{row['movable']['moved_bytes'] / 1e9:.1f}",
                             f"{row['movable']['placeless']:.4g}"))
    return "\n".join(text) + "\n"


def put_between_marks(path, tables):
    with open(path) as file:
        head, begin, rest = file.read().partition(MARKS[0])
    tail = rest.partition(MARKS[1])
    if not tail[1]:
        sys.exit(f"{path} lacks the lines '{MARKS[0]}' and '{MARKS[1]}', between which the tables go")
    with open(path, "w") as file:
        file.write("".join([head, begin, "\n", tables, *tail[1:]]))


def ran_twice(row):
    return "seconds" in row["chunks"] and "seconds" in row["movable"]


def pair_of(row):
    return row["trace"], row["machine"], row["fraction"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tencache", default="build/release/cli/tencache", help="the program (default: %(default)s)")
    parser.add_argument("--recordings", help="folder of G10's recordings; without it only generated traces")
    parser.add_argument("--work", default="build/grid", help="where traces are kept (default: %(default)s)")
    parser.add_argument("--rows", default="build/grid/movable.jsonl", help="a line a result (default: %(default)s)")
    parser.add_argument("--policies", default=",".join(POLICIES), help="of these (default: all of them)")
    parser.add_argument("--parts", default=",".join(PARTS), help="of these (default: all of them)")
    parser.add_argument("--only", default="", help="only traces whose name contains this")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each N-th pair")
    parser.add_argument("--iterations", type=int, default=8, help="of a movable run (default: %(default)s)")
    parser.add_argument("--timeout", type=int, default=600, help="seconds of a simulation (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no line begins (default: none)")
    parser.add_argument("--report", help="write the report to this file")
    arguments = parser.parse_args()
    traces = policy_grid.make_traces(arguments, policy_grid.MODELS)
    demands = {name: json.loads(policy_grid.run(arguments.tencache, "info", path, "--json").stdout)
               for name, path in traces.items()}
    largest = {name: largest_tensor(path) for name, path in traces.items()}
    known, parts = {}, set(arguments.parts.split(","))
    for row in policy_grid.read_rows(arguments.rows):
        known.setdefault((row["policy"], *pair_of(row)), {}).update(row)
    by_ops = sorted(traces, key=lambda name: demands[name]["ops"]["count"])
    pairs = [(name, machine, fraction) for fraction in policy_grid.FRACTIONS for name in by_ops
             for machine in policy_grid.MACHINES]
    os.makedirs(os.path.dirname(arguments.rows) or ".", exist_ok=True)
    until = time.monotonic() + arguments.seconds
    for policy in arguments.policies.split(","):
        for name, machine, fraction in pairs[::arguments.every]:
            row = known.setdefault((policy, name, machine, fraction), {})
            if arguments.only not in name or parts <= row.keys() or time.monotonic() > until:
                continue
            row.update({"policy": policy, "trace": name, "machine": machine, "fraction": fraction,
                        "file": traces[name], "gpu_bytes": int(demands[name]["peak_demand"]["bytes"] * fraction),
                        "largest_tensor": largest[name]})
            for part in parts - row.keys():
                row[part] = replay(arguments, row, *PARTS[part])
            with open(arguments.rows, "a") as file:
                file.write(json.dumps(row) + "\n")
    text = report([row for row in known.values() if {"chunks", "movable"} <= row.keys()], len(pairs))
    if arguments.report:
        put_between_marks(arguments.report, text)
    print(text)


main()
