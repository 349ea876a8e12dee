#!/usr/bin/env python3
"""A GPT of 22 million parameters (python/examples/gpt.py) under several policies and memories against plain PyTorch:
losses, final weights, optimizer states and random numbers must be the same bits.

    PYTHONPATH=build/release/python bench/bit_identity.py

Each run is 15 steps that end in a checkpoint; five more steps, resumed without paging, show that the states are the
same. GPU memory: half of what is alive at once, and a quarter or 1.1 times the largest op. CPU memory: more than
enough, and so little that most of what is not on the GPU lies in files. Links are not slowed down. Takes several
minutes; exits 1 if anything differs."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EXAMPLE = os.path.join(ROOT, "python", "examples", "gpt.py")
POLICIES = {"on-demand": {}, "zero-infinity": {"overflow": "evict"}, "10cache": {}, "teraio": {}, "foresight": {}}
PLENTY, LITTLE = "2GiB", "48MiB"
RESUMED = 5
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
"""


class Runs:
    def __init__(self, arguments, folder):
        self.folder, self.steps = folder, arguments.steps
        self.example = [EXAMPLE, *arguments.example]
        self.paging = ["-m", "tencache", "run", "python", "-m", self.path("machine.yaml"), "--no-pace", "--directory",
                       arguments.directory, "--json", self.path("answer.json")]
        with open(self.path("machine.yaml"), "w", encoding="utf-8") as file:
            file.write(MACHINE)

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return json.load(file)

    def call(self, *words):
        """What the example says at its end, or None and why there is none."""
        done = subprocess.run([sys.executable, *words, "--json", self.path("result.json")], capture_output=True,
                              text=True)
        if done.returncode != 0:
            return None, (done.stderr.strip().splitlines() or ["nothing said"])[-1]
        return self.read("result.json"), ""

    def train(self, *paging):
        """Losses and weights, then and after a few steps more that were resumed without paging."""
        file = self.path("checkpoint")
        whole, why = self.call(*paging, *self.example, "--steps", str(self.steps), "--checkpoint", file)
        if whole is None:
            return None, why
        rest, why = self.call(*self.example, "--steps", str(self.steps + RESUMED), "--resume", file)
        if rest is None:
            return None, why
        return [run[key] for run in (whole, rest) for key in ("losses", "weights_sha256")], ""

    def paged(self, *words):
        return self.train(*self.paging, *words, "--")


def mib(count):
    return f"{count / 2**20:.0f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--directory", default="/var/tmp", help="where files stand in for SSDs")
    parser.add_argument("example", nargs="*", default=["--size", "medium"], help="options of the example, after --")
    arguments = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(arguments, folder)
        plain, why = runs.train()
        demand, why = runs.paged("-p", "on-demand") if plain else (None, why)
        if demand is None:
            sys.exit(f"bit_identity: {why}")
        live = runs.read("answer.json")["live"]
        peak, largest = live["peak_bytes"], live["largest_op_bytes"]
        print(f"{arguments.steps} steps, loss {plain[0][0]:.4f} to {plain[0][-1]:.4f}; {mib(peak)} MiB at once, "
              f"{mib(largest)} MiB in the largest op")
        print("| policy | GPU MiB | CPU | evictions a step | GPU / CPU / file MiB at most | result |")
        print("|---|---|---|---|---|---|", flush=True)
        for gpu in (peak // 2, max(peak // 4, largest * 11 // 10)):
            for cpu in (PLENTY, LITTLE):
                for policy in arguments.policies.split(","):
                    settings = [word for key, value in POLICIES.get(policy, {}).items()
                                for word in ("--set", f"{key}={value}")]
                    result, why = runs.paged("-p", policy, *settings, "--gpu-memory", f"{gpu}B", "--cpu-memory", cpu)
                    evictions = most = ""
                    if result is None:
                        verdict = f"FAILED: {why}"
                    else:
                        answer = runs.read("answer.json")
                        verdict = "same bits" if result == plain else "DIFFERS"
                        if answer["live"]["deviations"]:
                            verdict += f", left the schedule {answer['live']['deviations']} times"
                        evictions = f"{answer['training']['evictions_per_step']:.0f}"
                        most = " / ".join(mib(answer["peak_bytes"][tier]) for tier in ("gpu", "cpu", "nvme"))
                    failed += not verdict.startswith("same bits")
                    print(f"| {policy} | {mib(gpu)} | {cpu[:-3]} {cpu[-3:]} | {evictions} | {most} | {verdict} |",
                          flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
