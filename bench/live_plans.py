"""What recomputing some layers gives: predicted by `tencache tune --plan`, measured on programs that run.

    python3 bench/live_plans.py                        # five programs, one turn each
    python3 bench/live_plans.py --program gpt --turns 2

Each program of bench/live_programs.py gets 35 % of its memory, over files on a disk that is slowed down to --disk, so
that moving takes about as long as computing. It is recorded as it is; from that recording `tune --plan` predicts a step
with nothing recomputed, with every layer recomputed, and with the plan. Then all three run under `run python`, one
after the other and back again (a turn), as does plain PyTorch, whose bits they must have. A figure is the median of a
variant's steps from the fourth on, over all turns; gains are against nothing recomputed.

Ends with 0 if the three are in the predicted order wherever predictions are more than 10 % apart, the gain of the plan
is within 10 points of the predicted one, and all bits are plain PyTorch's.
"""

import argparse
import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from live_process import HERE, WARM_UP, calibrate, must_run, same_bits, skip

PROGRAMS = ["gpt", "gpt2", "llama", "bert", "vit"]
VARIANTS = {"keep": "nothing", "block": "every layer", "plan": "the plan"}
FAR = 0.10  # apart: the order counts


def script(program, steps):
    return [str(HERE / "live_programs.py"), "--program", program, "--steps", str(steps)]


def tencache(*words):
    """What a command prints with --json; its remarks."""
    call = ("import json, sys; from tencache import _core; output, remarks = _core.run(sys.argv[1:], {}); "
            "print(json.dumps([output, remarks]))")
    done = subprocess.run([sys.executable, "-c", call, *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def live(given, *words):
    return [sys.executable, "-m", "tencache", "run", "python", "--machine", given.machine, "--directory",
            given.directory, *map(str, words)]


def plans(program, given, folder):
    """The three predictions, the memory, and the plan's file for each variant but `keep`."""
    trace = folder / f"{program}.trace.jsonl"
    recording = live(given, "-p", "lru", "--no-pace", "--gpu-memory", "8GiB", "--recording", trace, "--")
    subprocess.run([*recording, *script(program, 20)], capture_output=True, check=True)
    peak = json.loads(tencache("info", trace, "--json")[0])["peak_demand"]["bytes"]
    memory = f"{int(peak * given.share)}B"
    files = {"plan": folder / f"{program}.plan.json", "block": folder / f"{program}.block.json"}
    tencache("tune", trace, "-m", given.machine, *limits(given), "--gpu-memory", memory, "-p", given.policy, "--budget",
             1, "--plan", files["plan"], "--json")
    plan = json.loads(files["plan"].read_text())
    files["block"].write_text(json.dumps(
        {**plan, "layers": [{**layer, "level": "block"} for layer in plan["layers"]]}))
    recomputed = sum(layer["level"] == "block" for layer in plan["layers"])
    print(f"{program}: {recomputed} of {len(plan['layers'])} layers in the plan; {given.share:.0%} of "
          f"{peak / 2**20:.0f} MiB", flush=True)
    return plan["predicted"], memory, files


def limits(given):
    return [word for link in ("nvme_read", "nvme_write") for word in ("--limit", f"{link}={given.disk}")]


def measure(program, given, folder):
    predicted, memory, files = plans(program, given, folder)
    runs = {name: [] for name in ("plain", *VARIANTS)}

    def take(name):
        if name == "plain":
            runs[name].append(must_run([sys.executable, *script(program, given.steps)]))
            return
        plan = ["--plan", files[name]] if name in files else []
        runs[name].append(must_run(live(given, "--pace", *limits(given), "--gpu-memory", memory, "-p", given.policy,
                                        *plan, "--", *script(program, given.steps))))
    for _ in range(given.turns):
        for name in (*runs, *reversed(runs)):
            take(name)
    steps = {name: [second for run in of for second in run["seconds"][WARM_UP:]] for name, of in runs.items()}
    alike = [{str(number): run for number, run in enumerate(run for of in runs.values() for run in of)}]
    same = same_bits(alike) and len({run["loss"] for of in runs.values() for run in of}) == 1
    return {"program": program, "predicted": predicted, "memory": memory, "steps": steps, "same": same}


def judge(row):
    misses = []
    program, predicted = row["program"], {name: row["predicted"][name].get("seconds") for name in VARIANTS}
    measured = {name: statistics.median(row["steps"][name]) for name in row["steps"]}
    for name, words in VARIANTS.items():
        low, _, high = statistics.quantiles(row["steps"][name], n=4)
        print(f"| {program} | {words} | {predicted[name]:.3f} | {measured[name]:.3f} | {low:.3f} to {high:.3f} |")
    names = list(VARIANTS)
    for one, other in ((a, b) for number, a in enumerate(names) for b in names[number + 1:]):
        apart = predicted[other] / predicted[one]
        if max(apart, 1 / apart) <= 1 + FAR:
            print(f"| | {VARIANTS[one]} and {VARIANTS[other]} | a tie | {measured[other] / measured[one]:.3f} × | |")
        elif (apart > 1) != (measured[other] > measured[one]):
            misses.append(f"{program}: {VARIANTS[other]} and {VARIANTS[one]} are not in the predicted order")
    gains = [1 - of["plan"] / of["keep"] for of in (predicted, measured)]
    print(f"| | gain of the plan | {gains[0]:.1%} | {gains[1]:.1%} | plain {measured['plain']:.3f} |", flush=True)
    if abs(gains[0] - gains[1]) > 0.10:
        misses.append(f"{program}: the plan's gain is {gains[1]:.1%}, predicted {gains[0]:.1%}")
    if not row["same"]:
        misses.append(f"{program}: bits differ from plain PyTorch's")
    return misses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", action="append", help="of bench/live_programs.py, any number (default: five)")
    parser.add_argument("--policy", default="foresight")
    parser.add_argument("--share", type=float, default=0.35, help="of the program's memory")
    parser.add_argument("--disk", default="200MB/s", help="how fast files are read, and written")
    parser.add_argument("--directory", default="/var/tmp", help="for files")
    parser.add_argument("--machine", help="a calibrated machine (default: calibrate now)")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--json", help="write every step's figures to this file")
    given = parser.parse_args()
    for module in ("torch", "transformers"):
        if importlib.util.find_spec(module) is None:
            skip(f"{sys.executable} has no {module}")
    rows, misses = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if not given.machine:
            given.machine = str(folder / "machine.yaml")
            calibrate(given.machine, given.directory)
        print("| program | recomputed | predicted, s | measured, s | middle half |\n|---|---|---|---|---|")
        for program in given.program or PROGRAMS:
            rows.append(measure(program, given, folder))
            misses += judge(rows[-1])
    if given.json:
        pathlib.Path(given.json).write_text(json.dumps(rows, indent=1))
    print("\n" + ("\n".join("missed: " + miss for miss in misses) or "all of it met"))
    sys.exit(1 if misses else 0)


if __name__ == "__main__":
    main()
