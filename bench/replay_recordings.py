#!/usr/bin/env python3
"""Replays every recording, scaled down, under every policy for real, and asks that no tensor comes back corrupted.

    bench/replay_recordings.py RECORDINGS [--tencache build/release/cli/tencache] [--policies a,b] [--iterations 3]
                               [--cpu-memory 32MiB] [--machine g10-a100-small] [--scale-bytes 1/1024] [--scale-time 1/128]

RECORDINGS is a folder with a folder of ops.csv and tensors.csv (.gz) a recording, as G10's. A policy that does not fit
on the machine, because it leaves on the GPU what others move (zero-offload leaves activations), gets a GPU that holds
the recording's peak and half as much again; the table says which. Exit code 1 if anything is corrupted or fails.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time


def run(words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def policies_of(tencache):
    return [line for line in run([tencache, "policies"])[1].splitlines() if line and not line.startswith(" ")]


def replay(arguments, trace, policy, gpu_memory):
    words = [arguments.tencache, "run", "replay", trace, "-m", arguments.machine, "-p", policy, "--json",
             "--iterations", arguments.iterations, "--scale-bytes", arguments.scale_bytes,
             "--scale-time", arguments.scale_time, "--cpu-memory", arguments.cpu_memory]
    if gpu_memory:
        words += ["--gpu-memory", gpu_memory]
    return run(words)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=pathlib.Path)
    parser.add_argument("--tencache", default="build/release/cli/tencache")
    parser.add_argument("--policies", default="all")
    parser.add_argument("--machine", default="g10-a100-small")
    parser.add_argument("--cpu-memory", default="32MiB")
    parser.add_argument("--scale-bytes", default="1/1024")
    parser.add_argument("--scale-time", default="1/128")
    parser.add_argument("--iterations", type=int, default=3)
    arguments = parser.parse_args()
    policies = policies_of(arguments.tencache) if arguments.policies == "all" else arguments.policies.split(",")
    start = time.monotonic()
    runs = bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for recording in sorted(path for path in arguments.recordings.iterdir() if path.is_dir()):
            trace = pathlib.Path(folder) / f"{recording.name}.trace.jsonl.zst"
            code, _, err = run([arguments.tencache, "import", "csv", recording, "--size-column", "bytes4k", "-o", trace])
            if code != 0:
                sys.exit(f"{recording}: {err}")
            peak = json.loads(run([arguments.tencache, "info", trace, "--json"])[1])["peak_demand"]["bytes"]
            above, _, below = arguments.scale_bytes.partition("/")
            enough = int(1.5 * peak * float(above) / float(below or 1))
            for policy in policies:
                begin = time.monotonic()
                gpu_memory = None
                code, out, err = replay(arguments, trace, policy, gpu_memory)
                if code == 1 and not json.loads(out)["fits"]:
                    gpu_memory = enough
                    code, out, err = replay(arguments, trace, policy, gpu_memory)
                runs += 1
                line = f"{recording.name:18} {policy:22} "
                if code == 2:
                    line += err.strip().splitlines()[-1]
                else:
                    result = json.loads(out)
                    checked = result["verification"]
                    line += f"{checked['tensors']} tensors verified, {checked['corrupted']} corrupted"
                    line += f", {result['iteration_seconds']:.3f} s an iteration" if result["fits"] else ", DOES NOT FIT"
                    line += f" (GPU of {gpu_memory >> 20} MiB)" if gpu_memory else ""
                    if result["fits"]:
                        line += f", {sum(result['traffic_bytes'].values()) / 2**20:.0f} MiB moved in each"
                bad += code != 0
                print(f"{line}, {time.monotonic() - begin:.1f} s", flush=True)
    print(f"{runs} runs in {time.monotonic() - start:.0f} s, {bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
