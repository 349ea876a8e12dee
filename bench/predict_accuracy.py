#!/usr/bin/env python3
"""Holds predictions of live training against what was measured, policy by policy.

The calibration is made by a process of its own, or given. Then follow turns, as many as asked: the program is recorded
by a process of its own, every policy's prediction from that recording is written and hashed, and the measured runs
follow. A run predicts once more for itself and must come to the same time. Prints a table and exits with 1 where a
policy misses the limits (--median, --worst) or two policies come in the other order. Policies whose medians are less
than 2 % apart, predicted or measured, are a tie.

    bench/predict_accuracy.py build/release/cli/tencache configs/training/gpt-small.yaml --limit h2d=2GB/s --limit d2h=2GB/s

Each turn has a recording of its own, as some computers run faster in one minute than in the next, which no prediction
knows; --trace uses one for all. One core computes, one moves: on a computer with other work the figures mean little.
Each row says how much of the processors' time others took meanwhile; --priority nice or realtime (as root) keeps them
away for the most part.
"""
import argparse
import hashlib
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

POLICIES = ["on-demand", "zero-infinity:overflow=evict", "10cache", "teraio:cpu_memory=1GiB", "foresight"]


def processor_seconds():
    """Of all processors, seconds not idle since the computer started."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, open("/proc/stat").readline().split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def raise_priority(kind):
    if kind == "nice":
        try:
            pathlib.Path("/proc/self/autogroup").write_text("-20")
        except OSError:
            pass  # the kernel has none
        os.nice(-20)
    elif kind == "realtime":
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))


def run(words, priority):
    """The command's stdout, and which part of the processors' time others took while it ran."""
    before, mine = processor_seconds(), os.times()
    start = mine.elapsed
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          start_new_session=True, preexec_fn=lambda: raise_priority(priority))
    mine_now = os.times()
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}\nexit code {done.returncode}: {done.stderr}")
    own = (mine_now.children_user + mine_now.children_system) - (mine.children_user + mine.children_system)
    room = max(mine_now.elapsed - start, 0.01) * os.cpu_count()
    return done.stdout, max(0.0, processor_seconds() - before - own) / room


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tencache", help="the program")
    parser.add_argument("config", help="what to train")
    parser.add_argument("--policy", action="append", help="NAME[:KEY=VALUE…], any number (default: five)")
    parser.add_argument("--limit", action="append", default=[], help="LINK=BANDWIDTH, as of tencache run")
    parser.add_argument("--gpu-memory", default="70%")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--machine", help="a calibrated machine (default: calibrate now)")
    parser.add_argument("--trace", help="a recording of the program, for all turns (default: record in each)")
    parser.add_argument("--median", type=float, default=0.10, help="largest error in the median")
    parser.add_argument("--worst", type=float, default=0.20, help="largest error of any run")
    parser.add_argument("--priority", choices=["usual", "nice", "realtime"], default="usual")
    parser.add_argument("--json", help="write every figure to this file, the predictions into FILE.predictions before anything is measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return measure(options, pathlib.Path(folder))


def measure(options, folder):
    machine = options.machine
    if not machine:
        machine = str(folder / "machine.yaml")
        _, others = run([options.tencache, "calibrate", "-o", machine], options.priority)
        print(f"calibrated; others took {others:.0%} of the processors", flush=True)
    predictions = pathlib.Path(options.json + ".predictions") if options.json else folder / "predictions"
    predictions.mkdir(parents=True, exist_ok=True)
    rows = [{"policy": spec, "predicted": [], "sha256": [], "measured": [], "others": [], "comparisons": []}
            for spec in options.policy or POLICIES]
    drifts = []
    for number in range(1, options.runs + 1):
        trace = options.trace
        if not trace:
            trace = str(folder / "step.trace.jsonl.zst")
            _, others = run([options.tencache, "record", options.config, "-o", trace, "--steps", "16"], options.priority)
            print(f"turn {number} recorded; others took {others:.0%} of the processors", flush=True)
        drifts.append(turn(options, number, machine, trace, predictions, rows))
    return report(options, rows, drifts)


def turn(options, number, machine, trace, predictions, rows):
    """Predicts with every policy, then measures with each; how much longer than recorded a plain step took."""
    gpu_memory = options.gpu_memory
    if gpu_memory.endswith("%"):
        peak = json.loads(run([options.tencache, "info", trace, "--json"], "usual")[0])["peak_demand"]["bytes"]
        gpu_memory = str(int(peak * float(gpu_memory[:-1]) / 100) // 4096 * 4096)
    chosen = ["-m", machine, "--gpu-memory", gpu_memory]
    chosen += [word for limit in options.limit for word in ("--limit", limit)]
    for row in rows:
        name, *settings = row["policy"].replace(":", ",").split(",")
        row["words"] = [*chosen, "-p", name, *(word for setting in settings for word in ("--set", setting))]
        predicted = json.loads(run([options.tencache, "replay", trace, *row["words"], "--json"], "usual")[0])
        predicted.pop("timing")
        if not predicted["fits"]:
            sys.exit(f"{row['policy']}: predicted not to fit: {predicted['reason']}")
        written = predictions / f"{number}-{name}.json"
        written.write_text(json.dumps(predicted, indent=1))
        row["sha256"].append(hashlib.sha256(written.read_bytes()).hexdigest())
        row["predicted"].append(predicted["iteration_seconds"])
        print(f"turn {number} predicted {name}: {1e3 * row['predicted'][-1]:.1f} ms, sha256 {row['sha256'][-1]}", flush=True)

    # What the computer does by itself.
    text, _ = run([options.tencache, "run", "train", options.config, "--plain", "--steps", str(options.steps), "--json"],
                  options.priority)
    plain = json.loads(text)["training"]["median_step_seconds"]
    drift = plain / predicted["ideal_seconds"] - 1
    print(f"turn {number} plain: {1e3 * plain:.1f} ms ({drift:+.1%} of the recorded step)", flush=True)
    for row in rows:
        text, others = run([options.tencache, "run", "train", options.config, *row["words"], "--trace", trace,
                            "--predict", "--steps", str(options.steps), "--json"], options.priority)
        prediction = json.loads(text)["prediction"]
        if prediction["iteration_seconds"] != row["predicted"][-1]:
            sys.exit(f"{row['policy']}: the run predicted {prediction['iteration_seconds']}, not {row['predicted'][-1]}")
        row["measured"].append(prediction["measured_seconds"])
        row["comparisons"].append(prediction["comparison"])
        row["others"].append(others)
        print(f"turn {number} {row['policy']}: {1e3 * prediction['measured_seconds']:.1f} ms "
              f"({prediction['error']:+.1%}), others {others:.0%}", flush=True)
    return drift


def report(options, rows, drifts):
    failures = []
    print("\n| policy | predicted, median | measured, median (least to most) | error, median | worst | others |\n|---|---|---|---|---|---|")
    for row in rows:
        errors = [predicted / measured - 1 for predicted, measured in zip(row["predicted"], row["measured"])]
        row["median_error"] = statistics.median(errors)
        row["worst_error"] = max(errors, key=abs)
        row["median_predicted"] = statistics.median(row["predicted"])
        row["median"] = statistics.median(row["measured"])
        print(f"| `{row['policy']}` | {1e3 * row['median_predicted']:.0f} ms | {1e3 * row['median']:.0f} ms "
              f"({1e3 * min(row['measured']):.0f} to {1e3 * max(row['measured']):.0f}) | {row['median_error']:+.1%} "
              f"| {row['worst_error']:+.1%} | {statistics.median(row['others']):.0%} |")
        if abs(row["median_error"]) > options.median or abs(row["worst_error"]) > options.worst:
            failures.append(f"{row['policy']} misses the limits")
    print(f"\nplain steps took {statistics.median(drifts):+.1%} ({min(drifts):+.1%} to {max(drifts):+.1%}) of the recorded "
          "step: so much is the computer's doing, or the recording's")
    order = {key: [row["policy"].split(":")[0] for row in sorted(rows, key=lambda row: row[key])]
             for key in ("median_predicted", "median")}
    print(f"\norder predicted: {', '.join(order['median_predicted'])}\norder measured:  {', '.join(order['median'])}")
    for one, other in itertools.combinations(rows, 2):
        predicted = one["median_predicted"] / other["median_predicted"] - 1
        measured = one["median"] / other["median"] - 1
        if predicted * measured >= 0:
            continue
        names = f"{one['policy'].split(':')[0]} and {other['policy'].split(':')[0]}"
        if min(abs(predicted), abs(measured)) < 0.02:
            print(f"{names} are a tie: {predicted:+.1%} predicted, {measured:+.1%} measured")
        else:
            failures.append(f"{names} come in the other order: {predicted:+.1%} predicted, {measured:+.1%} measured")
    for better in rows:
        for worse in rows:
            names = better["policy"].split(":")[0], worse["policy"].split(":")[0]
            if names[0] in ("10cache", "foresight") and names[1] in ("on-demand", "zero-infinity"):
                print(f"{names[0]} against {names[1]}: predicted {worse['median_predicted'] / better['median_predicted']:.2f} "
                      f"times as fast, measured {worse['median'] / better['median']:.2f}")
    for failure in failures:
        print(f"FAILED: {failure}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"load": os.getloadavg(), "plain_drift": drifts, "rows": rows}, indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
