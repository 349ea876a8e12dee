"""Text generation with a mixture of experts that does not fit, live under policies: predicted against measured.

    python3 bench/live_experts.py --directory /mnt/nvme

Makes a Mixtral with random weights (bench/generation_programs.py), and lets Hugging Face's `generate` make the same
tokens greedily in PyTorch alone and under each policy, with tensors in --share of the weights' bytes over files. Each
run is predicted first, by a recording of its own (`tencache run python --predict`). Prints seconds per token, from the
fourth on, and how far the prediction was from the mean of the steps from the third on. bench/live_process.py says which
turns count; the exit code is 1 if tokens differ from PyTorch's. Needs transformers; says so where it is missing, and
ends with 77.
"""

import argparse
import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import generation_programs
from live_process import HERE, MIB, Turns, calibrate, must_run, run, same_bits, skip

POLICIES = ["foresight", "expert-lru", "moe-infinity", "lru"]
# 8 layers of 8 experts of 11 MB in fp32.
SIZES = {"layers": 8, "hidden": 512, "feed_forward": 1792, "heads": 8, "kv_heads": 8, "vocabulary": 4096}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default="/var/tmp", help="for weights and TenCache's files")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--share", type=float, default=0.5, help="of the weights' bytes")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="any number (default: all)")
    parser.add_argument("--experts", type=int, default=8, help="of each layer")
    parser.add_argument("--machine", help="a calibrated machine (default: calibrate now)")
    generation_programs.add_sizes(parser)
    generation_programs.add_lengths(parser)
    parser.set_defaults(**SIZES, dtype="float32", new_tokens=40, threads=1)
    given = parser.parse_args()
    given.policy = given.policy or POLICIES
    if importlib.util.find_spec("transformers") is None:
        skip(f"{sys.executable} has no transformers")
    with tempfile.TemporaryDirectory(prefix="tencache-experts-", dir=given.directory) as folder:
        measure(given, pathlib.Path(folder))


def measure(given, folder):
    program = str(HERE / "generation_programs.py")
    sizes = [word for name in [*generation_programs.SIZES, "dtype", "experts"]
             for word in ("--" + name.replace("_", "-"), str(getattr(given, name)))]
    subprocess.run([sys.executable, program, "make", str(folder), *sizes, "--rivals"], check=True)
    weights = sum(file.stat().st_size for file in (folder / generation_programs.CHECKPOINT).glob("*.safetensors"))
    memory = int(given.share * weights)
    machine = given.machine or str(folder / "machine.yaml")
    if not given.machine:
        calibrate(machine, given.directory)
    script = [program, "generate", "torch", str(folder), "--prompt", str(given.prompt), "--new-tokens",
              str(given.new_tokens), "--threads", str(given.threads)]

    def paged(policy):
        answer = folder / "answer.json"
        result = run([sys.executable, "-m", "tencache", "run", "python", "-p", policy, "--gpu-memory", f"{memory}B",
                      "--machine", machine, "--no-pace", "--directory", given.directory, "--predict", "--json",
                      str(answer), "--", *script])
        if "failed" in result:
            return result
        figures = json.loads(answer.read_text())
        live = figures["live"]
        mean = figures["training"]["mean_step_seconds"]
        return {**result, "mean": mean, "predicted": mean * (1 + figures["prediction"]["error"]),
                "read": sum(size for name, size in live["link_bytes"].items() if "read" in name or name == "h2d"),
                "known": live["ops_on_schedule"] / max(1, live["ops"])}
    turns = Turns(lambda: must_run([sys.executable, *script]))
    for _ in range(given.turns):
        turns.take({policy: lambda policy=policy: paged(policy) for policy in given.policy})
    print(f"{turns.discarded()} of {len(turns.rows)} turns discarded" +
          ("" if turns.good() else ": none counts, and what follows is of all of them"))
    table(turns.good() or turns.rows, given, weights, memory)
    same = same_bits(turns.rows)
    print("tokens are PyTorch's" if same else "TOKENS DIFFER FROM PYTORCH'S")
    sys.exit(0 if same else 1)


def table(rows, given, weights, memory):
    print(f"{weights / 1e6:.0f} MB of weights, {memory / MIB:.0f} MiB for tensors")
    print(f"{'policy':>14} {'predicted s':>11} {'measured s':>10} {'error':>7} {'median s':>9} {'x plain':>8} "
          f"{'MB/token':>9}")
    plain = statistics.median(row["plain"]["median"] for row in rows)
    print(f"{'torch':>14} {'':>11} {'':>10} {'':>7} {plain:9.3f}")
    for policy in given.policy:
        runs = [row[policy] for row in rows if "mean" in row[policy]]
        if not runs:
            print(f"{policy:>14} failed: {rows[0][policy]['said'][:80]}")
            continue
        predicted, mean, median, read = (statistics.median(one[key] for one in runs)
                                         for key in ("predicted", "mean", "median", "read"))
        print(f"{policy:>14} {predicted:11.3f} {mean:10.3f} {mean / predicted - 1:7.1%} {median:9.3f} "
              f"{median / plain:8.2f} {read / given.new_tokens / 1e6:9.0f}")


if __name__ == "__main__":
    main()
