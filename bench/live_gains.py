#!/usr/bin/env python3
"""Are predicted gains real? Five of the grid's pairs on real memory of this computer, foresight against the next best.

Machines are the shipped ones with all bytes divided by 1024: a capped memory stands in for the GPU's, copies between
memories and files are real and as fast as the links allow, and ops take the durations of the trace. For each policy
what was predicted and what was measured; the order must be the same. In a turn foresight and the other policy run one
after the other; a case's figures are medians over its turns, with the least and the most. A turn of all cases takes
seven minutes, in which nothing else should use the computer."""
import argparse
import json
import os
import statistics
import subprocess
import sys

CASES = [  # model, machine, GPU memory ÷ peak, CPU memory (none: the machine's), the next best policy and its options
    ("--model gpt2-xl --batch 16 --seq 1024 --gpu a100-40g --sub-group 50000000", "10cache-l40s", 0.5, None, "belady",
     {"prefetch": "ordered"}),
    ("--model opt-6.7b --batch 8 --seq 1024 --gpu a100-40g --sub-group 100000000", "g10-a100", 0.5, None,
     "deep-optimizer-states", {}),
    ("--model llama-3-8b --batch 8 --seq 1024 --gpu a100-40g --sub-group 100000000", "p5.4xlarge", 0.5, None, "belady",
     {"prefetch": "ordered", "chunk": "16KiB"}),
    ("--model bloom-7b1 --batch 8 --seq 1024 --gpu a100-40g --sub-group 100000000", "ssdtrain-a100", 0.3, None,
     "stronghold", {}),
    # CPU memory is short, so files are used.
    ("--model gpt2-xl --batch 16 --seq 1024 --gpu a100-40g --sub-group 50000000", "teraio-h100", 0.3, 12 << 30, "belady",
     {"prefetch": "ordered"}),
]
SMALLER = 1024


def machine_of(described, rate, gpu_bytes, cpu_bytes):
    """The machine as YAML, smaller."""
    lines = [f"name: small-{described['name']}", "tiers:"]
    for tier in described["tiers"]:
        capacity = {"gpu": gpu_bytes, "cpu": cpu_bytes}.get(tier["kind"]) or tier.get("capacity_bytes") or 1 << 42
        lines.append(f"  - {{name: {tier['name']}, kind: {tier['kind']}, granularity: 4KiB, "
                     f"capacity: {max(1, min(capacity // SMALLER, 1 << 33) // 4096 * 4)}KiB}}")
    lines.append("links:")
    for link in described["links"]:
        lines.append(f"  - {{name: {link['name']}, from: {link['from']}, to: {link['to']}, latency: 50us, "
                     f"bandwidth: {link['bandwidth_bytes_per_second'] // SMALLER // 1000}kB/s}}")
    if not any(link["from"] == "nvme" and link["to"] == "gpu" for link in described["links"]):
        lines.append("staging: {tier: cpu, count: 16, bytes: 16KiB}")
    return "\n".join(lines + ["initial_tier: cpu", f"cpu: {{adam_parameters_per_second: {rate / SMALLER:.0f}}}",
                              "issue_ahead: 1", "copies_in_flight: 1", ""])


def tencache(arguments, *words):
    """What the program prints; exits if it fails."""
    done = subprocess.run([arguments.tencache, *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr}")
    return done.stdout


def replay(arguments, trace, machine, policy, settings):
    """Seconds of an iteration as predicted and as measured."""
    prediction = os.path.join(arguments.work, "prediction.json")
    chosen = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    measured = json.loads(tencache(
        arguments, "run", "replay", trace, "-m", machine, "-p", policy, "--no-rescale", "--iterations",
        str(arguments.iterations), "--scale-bytes", f"1/{SMALLER}", "--verify", "stamps", "--device", "host",
        "--prediction", prediction, "--json", *chosen))
    with open(prediction) as file:
        return json.load(file)["iteration_seconds"], measured["iteration_seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tencache", default="build/release/cli/tencache", help="the program (default: %(default)s)")
    parser.add_argument("--work", default="build/live-gains", help="where traces and machines are kept")
    parser.add_argument("--iterations", type=int, default=6, help="(default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--adam", type=float, default=1.5e9,
                        help="parameters a second of the CPU, before it is smaller (default: %(default)s)")
    arguments = parser.parse_args()
    os.makedirs(arguments.work, exist_ok=True)
    machines = {machine["name"]: machine for machine in json.loads(tencache(arguments, "machines", "--json"))}
    agree = 0
    for number, (model, name, fraction, cpu_bytes, other, settings) in enumerate(CASES):
        trace = os.path.join(arguments.work, f"{number}.trace.jsonl.zst")
        tencache(arguments, "generate", *model.split(), "-o", trace)
        peak = json.loads(tencache(arguments, "info", trace, "--json"))["peak_demand"]["bytes"]
        path = os.path.join(arguments.work, f"{number}.yaml")
        with open(path, "w") as file:
            file.write(machine_of(machines[name], arguments.adam, int(peak * fraction), cpu_bytes))
        print(f"{model.split()[1]} on {name} / {SMALLER}, GPU memory {fraction} of the peak", flush=True)
        turns = []  # of foresight and of the other: (predicted, measured) seconds
        for turn in range(1, arguments.turns + 1):
            turns.append([replay(arguments, trace, path, policy, chosen)
                          for policy, chosen in (("foresight", {"chunk": "16KiB"}), (other, settings))])
            (_, ours), (_, theirs) = turns[-1]
            print(f"  turn {turn}: foresight {ours:.3f} s, {other} {theirs:.3f} s", flush=True)
        for policy, runs in zip(("foresight", other), zip(*turns)):
            seconds = [measured for _, measured in runs]
            print(f"  {policy}: predicted {runs[0][0]:.3f} s, measured {statistics.median(seconds):.3f} s "
                  f"[{min(seconds):.3f}, {max(seconds):.3f}] ({statistics.median(seconds) / runs[0][0] - 1:+.1%})")
        predicted = turns[0][1][0] / turns[0][0][0]
        gains = [theirs[1] / ours[1] for ours, theirs in turns]
        gain = statistics.median(gains)
        same = (predicted > 1) == (gain > 1)
        agree += same
        print(f"  gain predicted {predicted:.2f}, measured {gain:.2f} [{min(gains):.2f}, {max(gains):.2f}]: "
              f"{'as predicted' if same else 'NOT as predicted'}", flush=True)
    print(f"{agree} of {len(CASES)} in the predicted order")
    sys.exit(agree != len(CASES))


main()
