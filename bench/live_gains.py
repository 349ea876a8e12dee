#!/usr/bin/env python3
"""Are predicted gains real? Five of the grid's pairs on real memory of this computer, foresight against the next best.

Machines are the shipped ones with all bytes divided by 1024: a capped memory stands in for the GPU's, copies between
memories and files are real and as fast as the links allow, and ops take the durations of the trace. For each policy
what was predicted and what was measured; the order must be the same. A measurement takes minutes."""
import argparse
import json
import os
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tencache", default="build/release/cli/tencache", help="the program (default: %(default)s)")
    parser.add_argument("--work", default="build/live-gains", help="where traces and machines are kept")
    parser.add_argument("--iterations", type=int, default=6, help="(default: %(default)s)")
    parser.add_argument("--adam", type=float, default=1.5e9, help="parameters a second of the CPU, before it is smaller")
    arguments = parser.parse_args()
    os.makedirs(arguments.work, exist_ok=True)
    run = lambda *words: subprocess.run([arguments.tencache, *words], capture_output=True, text=True)
    machines = {machine["name"]: machine for machine in json.loads(run("machines", "--json").stdout)}
    agree = 0
    for number, (model, name, fraction, cpu_bytes, other, settings) in enumerate(CASES):
        trace = os.path.join(arguments.work, f"{number}.trace.jsonl.zst")
        run("generate", *model.split(), "-o", trace)
        peak = json.loads(run("info", trace, "--json").stdout)["peak_demand"]["bytes"]
        path = os.path.join(arguments.work, f"{number}.yaml")
        with open(path, "w") as file:
            file.write(machine_of(machines[name], arguments.adam, int(peak * fraction), cpu_bytes))
        print(f"{model.split()[1]} on {name} / {SMALLER}, GPU memory {fraction} of the peak", flush=True)
        times = {}
        for policy, chosen in (("foresight", {"chunk": "16KiB"}), (other, settings)):
            words = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
            prediction = os.path.join(arguments.work, f"{number}.prediction.json")
            done = run("run", "replay", trace, "-m", path, "-p", policy, "--no-rescale", "--iterations",
                       str(arguments.iterations), "--scale-bytes", f"1/{SMALLER}", "--verify", "stamps", "--device", "host",
                       "--prediction", prediction, "--json", *words)
            if not done.stdout.startswith("{"):
                sys.exit(f"{policy}: {done.stderr}")
            with open(prediction) as file:
                predicted = json.load(file)["iteration_seconds"]
            measured = json.loads(done.stdout)["iteration_seconds"]
            times[policy] = predicted, measured
            print(f"  {policy}: predicted {predicted:.3f} s, measured {measured:.3f} s "
                  f"({measured / predicted - 1:+.1%})", flush=True)
        same = (times["foresight"][0] < times[other][0]) == (times["foresight"][1] < times[other][1])
        agree += same
        print(f"  gain predicted {times[other][0] / times['foresight'][0]:.2f}, measured "
              f"{times[other][1] / times['foresight'][1]:.2f}: {'as predicted' if same else 'NOT as predicted'}", flush=True)
    print(f"{agree} of {len(CASES)} in the predicted order")
    sys.exit(agree != len(CASES))


main()
