#!/usr/bin/env python3
"""foresight against pressurefit in the published cells of configs/validation/dataflow.yaml, whose traces leave the
choice what to recompute.

Each cell is a line of the output file; what is there already is not run again. With --cells only so many, spread over
all. With --report the table of docs/recompute-grid.md. Simulated figures do not depend on this computer; the seconds of
planning are processor time of `replay`, less that of a replay without planning. Needs PyYAML."""
import argparse
import json
import os
import resource
import statistics
import subprocess

import yaml

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def replayed(tencache, trace, machine, policy, *words):
    """The result, none if it does not fit, and the processor's seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([tencache, "replay", trace, "-m", machine, "-p", policy, "--json", *words],
                          capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if not done.stdout.startswith("{"):
        raise SystemExit(f"{trace}, {machine}, {policy}: {done.stderr.strip()}")
    result = json.loads(done.stdout)
    return (result if result["fits"] else None), seconds


def cells_of(path):
    """Name, options of `tencache generate`, machine, published seconds."""
    with open(path, encoding="utf-8") as file:
        described = yaml.safe_load(file)
    machines = {machine["name"]: machine for machine in described["machines"]}
    machine_of = {system["name"]: machines[system["machine"]] for system in described["systems"]}
    options = {workload["name"]: workload["generate"] for workload in described["workloads"]}
    for experiment in described["experiments"]:
        for row in experiment["rows"]:
            yield experiment["workload"], options[experiment["workload"]], machine_of[row["of"]], row["published"]


def measured(arguments, name, options, machine, published):
    trace = os.path.join(arguments.work, name.replace(" ", "-") + ".trace.jsonl.zst")
    if not os.path.exists(trace):
        words = [word for key, value in options.items() for word in ("--" + key, str(value))]
        subprocess.run([arguments.tencache, "generate", *words, "-o", trace], check=True, capture_output=True)
    described = os.path.join(arguments.work, machine["name"] + ".yaml")
    with open(described, "w", encoding="utf-8") as file:
        json.dump(machine, file)
    theirs, _ = replayed(arguments.tencache, trace, described, "pressurefit")
    ours, seconds = replayed(arguments.tencache, trace, described, "foresight")
    _, without = replayed(arguments.tencache, trace, described, "foresight", "--set", "plan_events=0")
    return {"trace": name, "machine": machine["name"], "published": published,
            "pressurefit": theirs and theirs["iteration_seconds"], "foresight": ours and ours["iteration_seconds"],
            "bound_choice": (ours or theirs)["bound_choice_seconds"], "planning": seconds - without}


def report(rows):
    text = ["| trace | GPU memory | measured | pressurefit | foresight | ÷ pressurefit | bound_choice ÷ pressurefit |",
            "|---|---|---|---|---|---|---|"]
    ratios, with_room = [], []
    for row in rows:
        theirs, ours = row["pressurefit"], row["foresight"]
        of_bound = row["bound_choice"] / theirs
        ratios.append(ours / theirs if ours else float("inf"))
        if of_bound <= 0.95:
            with_room.append(ratios[-1])
        text.append(f"| {row['trace']} | {row['machine'].removeprefix('h100-').replace('gib', ' GiB')} | "
                    f"{row['published']:.3f} | {theirs:.3f} | {f'{ours:.3f}' if ours else '–'} | {ratios[-1]:.3f} | "
                    f"{of_bound:.3f} |")
    text += ["", f"{len(rows)} cells: foresight ÷ pressurefit median {statistics.median(ratios):.3f}, worst "
             f"{max(ratios):.3f}.", f"In the {len(with_room)} with bound_choice ≤ 0.95 × pressurefit: median "
             f"{statistics.median(with_room):.3f}." if with_room else "In none is bound_choice ≤ 0.95 × pressurefit."]
    planning = [row["planning"] for row in rows]
    text.append(f"Planning: median {statistics.median(planning):.1f} s, at most {max(planning):.1f} s.")
    return "\n".join(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", help="JSON lines")
    parser.add_argument("--tencache", default=os.path.join(ROOT, "build", "release", "cli", "tencache"))
    parser.add_argument("--work", default="/tmp/recompute-cells", help="folder for traces")
    parser.add_argument("--cells", type=int, help="only so many")
    parser.add_argument("--report", action="store_true")
    arguments = parser.parse_args()
    os.makedirs(arguments.work, exist_ok=True)
    rows = []
    if os.path.exists(arguments.output):
        with open(arguments.output, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
    known = {(row["trace"], row["machine"]) for row in rows}
    cells = list(cells_of(os.path.join(ROOT, "configs", "validation", "dataflow.yaml")))
    if arguments.cells:
        cells = [cells[i * len(cells) // arguments.cells] for i in range(arguments.cells)]
    for name, options, machine, published in cells:
        if arguments.report or (name, machine["name"]) in known:
            continue
        rows.append(measured(arguments, name, options, machine, published))
        with open(arguments.output, "a", encoding="utf-8") as file:
            file.write(json.dumps(rows[-1]) + "\n")
    if arguments.report:
        print(report(rows))


if __name__ == "__main__":
    main()
