#!/usr/bin/env python3
"""A GPT of 22 million parameters under several policies and memories against plain LibTorch: losses, final weights,
optimizer states and random numbers must be the same bits.

Each run is 30 steps that end in a checkpoint; checkpoints say nothing of policy or machine, so equal states are equal
files. GPU memory: half of what is alive at once, and a quarter or 1.1 times the largest op. CPU memory: more than
enough, and so little that most of what is not on the GPU lies in files. Links are not slowed down. Takes several
minutes; exits 1 if anything differs."""
import argparse
import filecmp
import json
import os
import subprocess
import sys
import tempfile

POLICIES = {"on-demand": {}, "zero-infinity": {"overflow": "evict"}, "10cache": {}, "teraio": {}, "foresight": {}}
PLENTY, LITTLE = "2GiB", "48MiB"
MACHINE = """\
name: bit-identity
tiers:
  - {name: gpu, kind: gpu, capacity: 2GiB, granularity: 4KiB}
  - {name: cpu, kind: cpu, capacity: 2GiB, granularity: 4KiB}
  - {name: nvme, kind: nvme, capacity: 2GiB, granularity: 4KiB}
links:
  - {name: h2d, from: cpu, to: gpu, bandwidth: 100GB/s, latency: 1us}
  - {name: d2h, from: gpu, to: cpu, bandwidth: 100GB/s, latency: 1us}
  - {name: nvme_read, from: nvme, to: cpu, bandwidth: 100GB/s, latency: 1us}
  - {name: nvme_write, from: cpu, to: nvme, bandwidth: 100GB/s, latency: 1us}
staging: {tier: cpu, count: 4, bytes: 4MiB}
initial_tier: gpu
cpu: {adam_parameters_per_second: 1e8}
"""


def train(arguments, *words):
    """The result of a run, or None and what it said."""
    done = subprocess.run([arguments.tencache, "run", "train", arguments.config, "--json", *words],
                          capture_output=True, text=True)
    if done.returncode != 0:
        return None, done.stderr.strip().splitlines()[-1:]
    return json.loads(done.stdout), ""


def text_of(state):
    """The training text's hash in a checkpoint."""
    with open(state, "rb") as file:
        return json.loads(file.readline())["program"]["text_sha256"]


def mib(count):
    return f"{count / 2**20:.0f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser.add_argument("--tencache", default=os.path.join(root, "build/release/cli/tencache"))
    parser.add_argument("--config", default=os.path.join(root, "configs/training/gpt-20m.yaml"))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--directory", default="/var/tmp", help="where files stand in for SSDs")
    arguments = parser.parse_args()
    steps = ["--steps", str(arguments.steps)]
    with tempfile.TemporaryDirectory() as folder:
        machine, plain_state = os.path.join(folder, "machine.yaml"), os.path.join(folder, "plain.checkpoint")
        with open(machine, "w") as file:
            file.write(MACHINE)
        plain, why = train(arguments, "--plain", "--checkpoint", plain_state, *steps)
        demand, why = (None, why) if plain is None else train(
            arguments, "-m", machine, "-p", "on-demand", "--steps", "3")
        if demand is None:
            sys.exit(f"bit_identity: {why}")
        losses, memory = plain["training"]["losses"], demand["memory"]
        peak, largest = memory["peak_live_bytes"], memory["largest_op_bytes"]
        print(f"{plain['training']['parameters']} parameters, {arguments.steps} steps, loss {losses[0]:.4f} to "
              f"{losses[-1]:.4f}; {mib(peak)} MiB at once, {mib(largest)} MiB in the largest op")
        print("| policy | GPU MiB | CPU | evictions a step | GPU / CPU / file MiB at most | result |")
        print("|---|---|---|---|---|---|", flush=True)
        failed = 0
        for gpu in (peak // 2, max(peak // 4, largest * 11 // 10)):
            for cpu in (PLENTY, LITTLE):
                for policy in arguments.policies.split(","):
                    state = os.path.join(folder, "paged.checkpoint")
                    settings = [word for key, value in POLICIES.get(policy, {}).items()
                                for word in ("--set", f"{key}={value}")]
                    result, why = train(arguments, "-m", machine, "-p", policy, *settings, "--gpu-memory", str(gpu),
                                        "--cpu-memory", cpu, "--directory", arguments.directory,
                                        "--checkpoint", state, *steps)
                    if result is None:
                        verdict, evictions, most = f"FAILED: {why}", "", ""
                    else:
                        if text_of(state) != text_of(plain_state):
                            sys.exit("bit_identity: the training text was changed meanwhile; start again")
                        same_losses = result["training"]["losses"] == losses
                        same_state = filecmp.cmp(state, plain_state, shallow=False)
                        verdict = ("same bits" if same_losses and same_state else
                                   f"DIFFERS: losses {'same' if same_losses else 'differ'}, "
                                   f"state {'same' if same_state else 'differs'}")
                        deviations = result["memory"]["schedule_deviations"]
                        if deviations:
                            verdict += f", left the schedule {deviations} times"
                        evictions = f"{result['memory']['evictions_per_step']:.0f}"
                        most = " / ".join(mib(result["peak_bytes"][tier]) for tier in ("gpu", "cpu", "nvme"))
                    failed += not verdict.startswith("same bits")
                    print(f"| {policy} | {mib(gpu)} | {cpu[:-3]} {cpu[-3:]} | {evictions} | {most} | {verdict} |",
                          flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
