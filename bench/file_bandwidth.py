#!/usr/bin/env python3
"""The lanes' file bandwidth against fio's, with the same block size and depth: interleaved pairs, median ratio.

    bench/file_bandwidth.py [--bench build/release/bench/lane_bench] [--directory /var/tmp] [--pairs 7] [--seconds 1]

fio does what a lane does: O_DIRECT through io_uring, sequential over a written file of 512 MiB. Exit code 1 if a median
is below 0.9.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

CASES = [(128, 1), (128, 4), (128, 16), (1024, 1), (1024, 4), (1024, 16)]


def lane(arguments, direction, block, depth):
    words = [arguments.bench, f"--benchmark_filter=^file_{direction}/{block}/{depth}/real_time$",
             f"--benchmark_min_time={arguments.seconds}", "--benchmark_format=json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True,
                          env={**os.environ, "TENCACHE_BENCH_DIRECTORY": arguments.directory})
    result = json.loads(done.stdout)["benchmarks"][0]
    if result.get("label"):
        sys.exit(f"the lane fell back: {result['label']}")
    return result["bytes_per_second"]


def fio(arguments, direction, block, depth, file):
    words = ["fio", "--name=fio", f"--filename={file}", "--size=512m", "--ioengine=io_uring", "--direct=1",
             f"--rw={direction}", f"--bs={block}k", f"--iodepth={depth}", "--overwrite=1", "--time_based",
             f"--runtime={arguments.seconds}", "--output-format=json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["jobs"][0][direction]["bw_bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="build/release/bench/lane_bench")
    parser.add_argument("--directory", default="/var/tmp")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=1)
    arguments = parser.parse_args()
    file = os.path.join(arguments.directory, f"tencache-fio-{os.getpid()}")
    worst = float("inf")
    try:
        fio(arguments, "write", 1024, 4, file)
        print("block KiB  depth  direction   lane GB/s   fio GB/s   median ratio (of each pair)")
        for direction in ("read", "write"):
            for block, depth in CASES:
                pairs = []
                for pair in range(arguments.pairs):
                    runs = [lambda: lane(arguments, direction, block, depth),
                            lambda: fio(arguments, direction, block, depth, file)]
                    if pair % 2 == 0:
                        ours, theirs = runs[0](), runs[1]()
                    else:
                        theirs, ours = runs[1](), runs[0]()
                    pairs.append((ours, theirs))
                ratios = [ours / theirs for ours, theirs in pairs]
                median = statistics.median(ratios)
                worst = min(worst, median)
                print(f"{block:9}  {depth:5}  {direction:9}  {statistics.median(p[0] for p in pairs) / 1e9:9.2f}  "
                      f"{statistics.median(p[1] for p in pairs) / 1e9:9.2f}   {median:.3f} "
                      f"({', '.join(f'{ratio:.2f}' for ratio in sorted(ratios))})", flush=True)
    finally:
        if os.path.exists(file):
            os.remove(file)
    return 0 if worst >= 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
