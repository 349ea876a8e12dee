#!/usr/bin/env python3
"""What it is worth to foresight to choose what to recompute: its step with choices beside the better of nothing and
everything recomputed, on the pairs of bench/policy_grid.py whose traces have choices (those of models).

GPU memory is a share of what the step needs with nothing recomputed. Each pair is a line of the output file; what is
there already is not run again. With --stride N every N-th pair: with N prime to 2 and 3 all models, machines and shares
come about equally often. With --report the tables of docs/recompute-grid.md. Simulated figures: they do not depend on
this computer."""
import argparse
import json
import os
import statistics

from policy_grid import FRACTIONS, MACHINES, MODELS, OURS, make_traces, read_rows, run, simulate

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KINDS = {"none": "none", "all": "block", "choice": "choose"}  # --recompute of each
SAME = 0.01  # closer than that is a tie


def all_pairs():
    models = [name for name, options in MODELS if "--recompute" not in options]
    return [(name, machine, fraction) for name in models for machine in MACHINES for fraction in FRACTIONS]


def measure(arguments, traces, name, machine, fraction):
    peak = json.loads(run(arguments.tencache, "info", traces[name, "none"], "--json").stdout)["peak_demand"]["bytes"]
    gpu_bytes = int(peak * fraction)
    row = {"trace": name, "machine": machine, "fraction": fraction, "gpu_bytes": gpu_bytes}
    for kind in KINDS:
        result, reason = simulate(arguments.tencache, traces[name, kind], machine, gpu_bytes, OURS, {})
        row[kind] = result and result["iteration_seconds"]
        if not result:
            row[f"{kind}_reason"] = reason
        elif kind == "choice":
            row["bound_choice"] = result["bound_choice_seconds"]
            levels = [layer["level"] for layer in result["recompute"]]
            row["levels"] = {level: levels.count(level) for level in sorted(set(levels))}
    return row


def worth(row):
    """How many times as long the better end takes as the choice; none: one of both does not fit."""
    ends = [row[kind] for kind in ("none", "all") if row[kind]]
    return min(ends) / row["choice"] if ends and row["choice"] else None


def over(rows, end):
    return f"{100 * statistics.median(row[end] / row['choice'] - 1 for row in rows if row[end]):.1f}"


def table_of(rows, key, title):
    lines = [f"| {title} | pairs | nothing is better | gain, median | most | > 1 % | choice ÷ bound, median |",
             "|---|---|---|---|---|---|---|"]
    groups = list(dict.fromkeys(row[key] for row in rows))
    for group in groups:
        members = [row for row in rows if row[key] == group and worth(row)]
        if not members:
            continue
        gains = [worth(row) - 1 for row in members]
        nothing = sum(1 for row in members if row["none"] and (not row["all"] or row["none"] < row["all"]))
        bounds = [row["choice"] / row["bound_choice"] for row in members]
        lines.append(f"| {group} | {len(members)} | {nothing} | {100 * statistics.median(gains):.1f} % | "
                     f"{100 * max(gains):.1f} % | {sum(1 for gain in gains if gain > SAME)} | "
                     f"{statistics.median(bounds):.3f} |")
    return lines


def report(rows, of):
    fitting = [row for row in rows if worth(row)]
    gains = [worth(row) - 1 for row in fitting]
    misfits = len(rows) - len(fitting)
    text = [f"{len(rows)} of {of} pairs, evenly spread; in {misfits} the choice or both ends do not fit.", "",
            f"- Gain over the better end: median {100 * statistics.median(gains):.1f} %, mean "
            f"{100 * statistics.mean(gains):.1f} %, most {100 * max(gains):.1f} %.",
            f"- Over nothing recomputed alone: median {over(fitting, 'none')} %; over all alone: median "
            f"{over(fitting, 'all')} %, of the pairs where it fits.",
            f"- Above 1 % in {sum(1 for gain in gains if gain > SAME)}, within 1 % in "
            f"{sum(1 for gain in gains if abs(gain) <= SAME)}, slower by more than 1 % in "
            f"{sum(1 for gain in gains if gain < -SAME)}.",
            f"- Neither end fits, the choice does: "
            f"{sum(1 for row in rows if row['choice'] and not row['none'] and not row['all'])}.", ""]
    for row in rows:
        row["share"] = f"{row['fraction']:.1f}"
    for key, title in (("trace", "model"), ("machine", "machine"), ("share", "share of the memory")):
        text += table_of(rows, key, title) + [""]
    worst = min(fitting, key=worth)
    best = max(fitting, key=worth)
    for name, row in (("Most", best), ("Least", worst)):
        ends = ", ".join(f"{kind} {row[kind]:.3f} s" if row[kind] else f"{kind} does not fit"
                         for kind in ("none", "all"))
        levels = ", ".join(f"{count} {level}" for level, count in row["levels"].items())
        text.append(f"{name}: {row['trace']} on {row['machine']} with {row['share']} of its memory:\n{ends}, chosen "
                    f"{row['choice']:.3f} s ({levels}).")
    return "\n".join(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", help="JSON lines")
    parser.add_argument("--tencache", default=os.path.join(ROOT, "build", "release", "cli", "tencache"))
    parser.add_argument("--work", default="/tmp/recompute-worth", help="folder for traces")
    parser.add_argument("--stride", type=int, default=1, help="every so many pairs (default: all)")
    parser.add_argument("--report", action="store_true")
    arguments = parser.parse_args()
    arguments.recordings = None
    rows = read_rows(arguments.output)
    pairs = all_pairs()
    if arguments.report:
        print(report(rows, len(pairs)))
        return
    known = {(row["trace"], row["machine"], row["fraction"]) for row in rows}
    wanted = [pair for pair in pairs[::arguments.stride] if pair not in known]
    traces = {}
    for kind, recompute in KINDS.items():
        made = make_traces(arguments, [(f"{name} {kind}", f"{options} --recompute {recompute}")
                                       for name, options in MODELS if any(name == pair[0] for pair in wanted)])
        traces.update({(key.removesuffix(f" {kind}"), kind): path for key, path in made.items()})
    for pair in wanted:
        row = measure(arguments, traces, *pair)
        with open(arguments.output, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
