#!/usr/bin/env python3
"""What live runs are held against, one row each: bench/live_overhead.py, against_swap.py, against_deepspeed.py and
live_predictions.py run one after the other, and one table of what they found.

    sudo PYTHONPATH=build/release/python python3 bench/live_table.py --directory /mnt/nvme [--rows swap,half]

    overhead     live / plain with all memory there, in processor time: the worst of the programs
    half         GPT with half of its memory over NVMe, in times of plain PyTorch
    swap         how many times as fast as the kernel's swap in the same memory cgroup
    deepspeed    how many times as fast as DeepSpeed over NVMe, in the memory that its fastest configuration takes
    quarter      the same in a quarter of that memory
    predictions  of five programs under five policies: the error's size, the median and the worst; raw, and with the
                 drift of plain PyTorch's steps during the run taken out, which counts

A figure is the median of the pairs' ratios with a 95 % bootstrap interval. Every pair counts, whatever plain PyTorch
did meanwhile: what varies widens the interval. Verdict: `met` or `missed` where the whole interval lies on one side of
the line, else `open`. A row that cannot be measured here says why. --from FOLDER reads what was found before (--keep
FOLDER) and measures only what is not there. Rows of one script are measured together.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from commands import interval

HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = ["gpt", "mlp", "resnet", "lstm", "llama"]
# Of a row: the script that measures it, the line, and whether figures shall be above it.
ROWS = {
    "overhead": ("live_overhead", 1.02, False),
    "half": ("half", 1.35, False),
    "swap": ("against_swap", 1.0, True),
    "deepspeed": ("against_deepspeed", 1.25, True),
    "quarter": ("against_deepspeed", 1.0, True),
    "predictions": ("live_predictions", 0.05, False),
}


def commands(given, turns):
    """By script: its words, but for the file that takes its figures."""
    disk = ["--directory", given.directory]
    return {
        "live_overhead": ["live_overhead.py", "--rounds", str(2 * turns + 1)],
        "half": ["live_predictions.py", "--program", "gpt", "--turns", str(turns), *disk],
        "against_swap": ["against_swap.py", "--turns", str(turns), *disk],
        "against_deepspeed": ["against_deepspeed.py", "--turns", str(turns), *disk],
        "live_predictions": ["live_predictions.py", "--five", "--turns", str(turns), *disk,
                             *(word for program in PROGRAMS for word in ("--program", program))],
    }


def measure(name, words, python, kept):
    """What the script found, with the load before and after; why not."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "figures.json")
        printed = name == "live_overhead"
        start = time.monotonic()
        done = subprocess.run([python, str(HERE / words[0]), *words[1:], "--json", *([] if printed else [path])],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        sys.stderr.write("" if printed else done.stdout)
        said = [line for line in done.stdout.splitlines() if line.strip()] or ["no message"]
        if not printed and os.path.exists(path):
            found = json.loads(pathlib.Path(path).read_text())
        else:
            found = next((json.loads(line) for line in said if printed and line.startswith("[{")), None)
    if found is None:
        return {"why": said[-1][:200]}
    result = {"found": found, "load": [round(load, 1), round(os.getloadavg()[0], 1)],
              "seconds": round(time.monotonic() - start), "date": time.strftime("%Y-%m-%d")}
    if kept:
        os.makedirs(kept, exist_ok=True)
        pathlib.Path(kept, name + ".json").write_text(json.dumps(result))
    return result


# ---- Figures: lists of ratios, one a pair


def ratios(rows, one, other):
    whole = [row for row in rows if "median" in row[one] and "median" in row[other]]
    return [row[one]["median"] / row[other]["median"] for row in whole]


def figure(values):
    median, low, high = interval(values)
    return {"median": round(median, 4), "low": round(low, 4), "high": round(high, 4), "pairs": len(values)}


def of_overhead(found):
    worst = max(found, key=lambda one: one["cpu_ratio"]["high"])
    return {"figure": worst["cpu_ratio"], "of": worst["program"],
            "programs": {one["program"]: [one["cpu_ratio"], one["instructions_ratio"]] for one in found}}


def of_deepspeed(found, part):
    rows = found["turns"]
    row = next(name for name in found["memory"] if name.startswith(f"tencache, {part}") and name.endswith("fastest"))
    return {"figure": figure(ratios(rows, "deepspeed, fastest", row)), "of": found["chosen"]["fastest"],
            "bytes": found["memory"][row]}


def of_predictions(found):
    """Drift: plain PyTorch was measured before and after the turn, and a run has its share of what changed."""
    cells = {}
    for program, rows in found.items():
        for row in rows:
            runs = [name for name in row if name != "plain"]
            before, after = row["plain"]["medians"]
            drift = (after / before) ** (1 / len(runs))
            for name in runs:
                if "error" in row[name]:
                    raw = row[name]["error"]
                    cells.setdefault(f"{program}, {name.split(':')[0]}", []).append((raw, (1 + raw) / drift - 1))
    medians = {cell: [statistics.median(errors) for errors in zip(*runs)] for cell, runs in cells.items()}
    sizes = {kind: [abs(one[at]) for one in medians.values()] for at, kind in enumerate(("raw", "without drift"))}
    worst = max(medians, key=lambda cell: abs(medians[cell][1]))
    return {"figure": figure(sizes["without drift"]), "of": f"{len(medians)} of programs and policies",
            "runs": sum(map(len, cells.values())), "worst": {"of": worst, "error": round(medians[worst][1], 4)},
            "raw": {**figure(sizes["raw"]), "worst": round(max(sizes["raw"]), 4)},
            "errors": {cell: [round(one, 4) for one in errors] for cell, errors in medians.items()}}


READ = {
    "overhead": of_overhead,
    "half": lambda found: {"figure": figure(ratios(found["gpt"], "foresight", "plain")), "of": "gpt"},
    "swap": lambda found: {"figure": figure(ratios(found, "swap", "tencache")), "of": "gpt"},
    "deepspeed": lambda found: of_deepspeed(found, "memory"),
    "quarter": lambda found: of_deepspeed(found, "a quarter"),
    "predictions": of_predictions,
}


def row_of(name, result):
    script, line, above = ROWS[name]
    row = {"row": name, "line": line, "script": script}
    if "why" in result:
        return {**row, "why": result["why"]}
    try:
        row.update(READ[name](result["found"]))
    except (KeyError, StopIteration, ValueError, statistics.StatisticsError) as error:
        return {**row, "why": f"no pair ran whole: {error!r}"}
    low, high = row["figure"]["low"], row["figure"]["high"]
    met, missed = (low >= line, high < line) if above else (high <= line, low > line)
    return {**row, "verdict": "met" if met else "missed" if missed else "open",
            **{key: result[key] for key in ("load", "seconds", "date")}}


def say(rows):
    print("| | median | 95 % interval | pairs | line | verdict | load before, after |\n|---|---|---|---|---|---|---|")
    for row in rows:
        if "why" in row:
            print(f"| {row['row']} | | | | {row['line']} | not measured: {row['why']} | |")
            continue
        of = row["figure"]
        print(f"| {row['row']} ({row['of']}) | {of['median']:.3f} | {of['low']:.3f} to {of['high']:.3f} | "
              f"{of.get('pairs', row.get('pairs', ''))} | {row['line']} | {row['verdict']} | "
              f"{row['load'][0]}, {row['load'][1]} |")
        if "worst" in row:
            print(f"| worst ({row['worst']['of']}) | {row['worst']['error']:+.3f} | | | | | |")
            print(f"| raw | {row['raw']['median']:.3f} | {row['raw']['low']:.3f} to {row['raw']['high']:.3f}; worst "
                  f"{row['raw']['worst']:.3f} | | | | |")


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return {"processor": names[0] if names else "unknown", "cores": os.cpu_count(), "kernel": os.uname().release}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS), help="(default: %(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="pairs of each, at most (default: %(default)s)")
    parser.add_argument("--directory", default="/var/tmp", help="for files (default: %(default)s)")
    parser.add_argument("--python", default=sys.executable, help="that runs the scripts")
    parser.add_argument("--deepspeed-python", help="that has DeepSpeed (default: as --python)")
    parser.add_argument("--keep", metavar="FOLDER", help="what the scripts found")
    parser.add_argument("--from", dest="before", metavar="FOLDER", help="what they found before")
    parser.add_argument("--json", action="store_true", help="print one object")
    given = parser.parse_args()
    names = given.rows.split(",")
    if unknown := [name for name in names if name not in ROWS]:
        parser.error(f"'{unknown[0]}' is none of {', '.join(ROWS)}")
    results, rows = {}, []
    for name in names:
        script = ROWS[name][0]
        if script not in results:
            before = given.before and os.path.join(given.before, script + ".json")
            if before and os.path.exists(before):
                results[script] = json.loads(pathlib.Path(before).read_text())
            else:
                python = script == "against_deepspeed" and given.deepspeed_python or given.python
                results[script] = measure(script, commands(given, given.turns)[script], python, given.keep)
        rows.append(row_of(name, results[script]))
    if given.json:
        print(json.dumps({"machine": machine(), "rows": rows}))
    else:
        print("{processor}, {cores} cores, Linux {kernel}".format(**machine()) + "\n")
        say(rows)
    return 1 if any(row.get("verdict") == "missed" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
