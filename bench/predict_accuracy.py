#!/usr/bin/env python3
"""Holds predictions of live training against what was measured, policy by policy, on python/examples/gpt.py.

    PYTHONPATH=build/release/python bench/predict_accuracy.py --limit h2d=500MB/s --limit d2h=500MB/s --steps 12
    … -- --size medium --precision bf16        what follows the -- goes to the example

The calibration is made by a process of its own, or given. Then follow turns: plain PyTorch is timed, a process of its
own records the program, and each policy is predicted from that recording (the prediction is written and hashed before
its run), measured, and followed by plain PyTorch once more. Two errors of a turn: raw, predicted ÷ measured - 1, and
with the drift of the computer taken out, where the prediction is multiplied by plain PyTorch's step beside the run
(before and after it) ÷ that beside the recording. The second counts, because some computers run faster in one minute
than in the next, which no prediction knows.

Prints a table and exits with 1 where a policy misses the limits (--median, --worst), two policies come in the other
order, or bits differ from plain PyTorch's. Policies whose medians are less than 2 % apart, predicted or measured, are a
tie. One core computes, one moves: on a computer with other work the figures mean little. --resume FILE adds turns to
those that an earlier call wrote with --json, so a measurement can be made in pieces.
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

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLE = str(ROOT / "python" / "examples" / "gpt.py")
POLICIES = ["on-demand", "zero-infinity:overflow=evict", "10cache", "teraio:cpu_memory=1GiB", "foresight"]
PLAIN_STEPS = 7  # of the runs between


def processor_seconds():
    """Of all processors, seconds not idle since the computer started."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, open("/proc/stat").readline().split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def run(words):
    """Which part of the processors' time others took while the command ran."""
    before, mine = processor_seconds(), os.times()
    done = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    now = os.times()
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}\nexit code {done.returncode}: {done.stderr}")
    own = (now.children_user + now.children_system) - (mine.children_user + mine.children_system)
    room = max(now.elapsed - mine.elapsed, 0.01) * os.cpu_count()
    return max(0.0, processor_seconds() - before - own) / room


def read(path):
    return json.loads(path.read_text())


def chosen(spec, machine, options):
    name, *settings = spec.replace(":", ",").split(",")
    words = ["-m", "tencache", "run", "python", "-m", machine, "-p", name, "--gpu-memory", options.gpu_memory]
    words += [word for limit in options.limit for word in ("--limit", limit)]
    words += ["--optimizer-tasks"] if options.optimizer_tasks else []
    return words + [word for setting in settings for word in ("--set", setting)]


def plain(options, folder, steps):
    run([EXAMPLE, "--steps", str(steps), "--json", str(folder / "plain.json"), *options.example])
    return read(folder / "plain.json")


def turn(options, number, machine, folder):
    """Figures by policy."""
    whole = plain(options, folder, options.steps)
    then = before = whole["median_step_seconds"]
    trace = folder / "step.trace.jsonl"
    tasks = ["--optimizer-tasks"] if options.optimizer_tasks else []
    run(["-m", "tencache", "run", "python", "-m", machine, "-p", "lru", "--no-pace", "--gpu-memory",
         options.record_memory, *tasks, "--recording", str(trace), "--", EXAMPLE, "--steps", "20", *options.example])
    print(f"turn {number}: plain {1e3 * then:.1f} ms; recorded", flush=True)
    rows = {}
    for spec in options.policy:
        prediction, answer, trained = folder / "prediction.json", folder / "answer.json", folder / "trained.json"
        others = run([*chosen(spec, machine, options), "--trace", str(trace), "--prediction", str(prediction), "--json",
                      str(answer), "--", EXAMPLE, "--steps", str(options.steps), "--json", str(trained),
                      *options.example])
        result = read(answer)["prediction"]
        if result["error"] is None:
            sys.exit(f"{spec}: predicted not to fit")
        after = plain(options, folder, PLAIN_STEPS)["median_step_seconds"]
        drift, before = (before + after) / 2 / then, after
        predicted, measured = result["iteration_seconds"], result["measured_seconds"]
        same = all(read(trained)[key] == whole[key] for key in ("losses", "weights_sha256"))
        rows[spec] = {"predicted": predicted, "measured": measured, "raw": predicted / measured - 1, "drift": drift,
                      "error": predicted * drift / measured - 1, "others": others, "same_bits": same,
                      "sha256": hashlib.sha256(prediction.read_bytes()).hexdigest(), "comparison": result["comparison"]}
        print(f"  {spec}: predicted {1e3 * predicted:.1f} ms, measured {1e3 * measured:.1f} ms: "
              f"{rows[spec]['raw']:+.1%} raw, {rows[spec]['error']:+.1%} without the drift of plain steps "
              f"({drift - 1:+.1%}); others {others:.0%}{'' if same else '; BITS DIFFER'}", flush=True)
    return rows


def report(turns, options):
    failures = []
    print("\n| policy | predicted, median | measured, median (least to most) | error, median | worst | raw, median "
          "| worst |\n|---|---|---|---|---|---|---|")
    medians = {}
    for spec in turns[0]:
        rows = [one[spec] for one in turns]
        of = {key: [row[key] for row in rows] for key in ("predicted", "measured", "error", "raw")}
        middle = {key: statistics.median(values) for key, values in of.items()}
        worst = {key: max(of[key], key=abs) for key in ("error", "raw")}
        medians[spec] = middle
        print(f"| `{spec}` | {1e3 * middle['predicted']:.0f} ms | {1e3 * middle['measured']:.0f} ms "
              f"({1e3 * min(of['measured']):.0f} to {1e3 * max(of['measured']):.0f}) | {middle['error']:+.1%} | "
              f"{worst['error']:+.1%} | {middle['raw']:+.1%} | {worst['raw']:+.1%} |")
        if abs(middle["error"]) > options.median or abs(worst["error"]) > options.worst:
            failures.append(f"{spec} misses the limits")
        if not all(row["same_bits"] for row in rows):
            failures.append(f"{spec}: bits differ from plain PyTorch's")
    for key in ("predicted", "measured"):
        order = sorted(medians, key=lambda spec: medians[spec][key])
        print(f"\norder {key}: {', '.join(spec.split(':')[0] for spec in order)}", end="")
    print()
    for one, other in itertools.combinations(medians, 2):
        apart = [medians[one][key] / medians[other][key] - 1 for key in ("predicted", "measured")]
        if apart[0] * apart[1] >= 0:
            continue
        words = f"{one.split(':')[0]} and {other.split(':')[0]}"
        words += f": {apart[0]:+.1%} predicted, {apart[1]:+.1%} measured"
        if min(map(abs, apart)) < 0.02:
            print(f"a tie: {words}")
        else:
            failures.append(f"the other order: {words}")
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", action="append", help="NAME[:KEY=VALUE,…], any number (default: five)")
    parser.add_argument("--limit", action="append", default=[], help="LINK=BANDWIDTH, as of tencache run")
    parser.add_argument("--gpu-memory", default="70%")
    parser.add_argument("--record-memory", default="4GiB", help="of the recording, which needs no more than there is")
    parser.add_argument("--optimizer-tasks", action="store_true", help="as of tencache run python")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--machine", help="a calibrated machine (default: calibrate now)")
    parser.add_argument("--median", type=float, default=0.10, help="largest error in the median")
    parser.add_argument("--worst", type=float, default=0.20, help="largest error of any turn")
    parser.add_argument("--json", type=pathlib.Path, help="write every figure to this file after each turn")
    parser.add_argument("--resume", type=pathlib.Path, help="a file of --json: its turns come first")
    parser.add_argument("example", nargs="*", help="options of the example, after --")
    options = parser.parse_args()
    options.policy = options.policy or POLICIES
    turns = read(options.resume)["turns"] if options.resume else []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        machine = options.machine
        if not machine:
            machine = str(folder / "machine.yaml")
            call = "import sys; from tencache import _core; _core.run(sys.argv[1:], {})"
            others = run(["-c", call, "calibrate", "-o", machine])
            print(f"calibrated; others took {others:.0%} of the processors", flush=True)
        for _ in range(options.turns):
            turns.append(turn(options, len(turns) + 1, machine, folder))
            if options.json:
                options.json.write_text(json.dumps({"load": os.getloadavg(), "turns": turns}, indent=1))
    return report(turns, options)


if __name__ == "__main__":
    sys.exit(main())
