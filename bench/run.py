#!/usr/bin/env python3
"""Runs the benchmarks of a build one after another (`./dev bench` builds them first); the figures also go to
build/bench/*.json.

    bench/run.py [GOOGLE BENCHMARK OPTIONS…]
"""
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAMS = os.path.join(ROOT, "build", "release", "bench")
FIGURES = os.path.join(ROOT, "build", "bench")


def main():
    if sys.argv[1:] in (["--help"], ["-h"]):
        print(__doc__)
        return
    names = sorted(os.listdir(PROGRAMS)) if os.path.isdir(PROGRAMS) else []
    programs = [name for name in names
                if os.path.isfile(os.path.join(PROGRAMS, name)) and os.access(os.path.join(PROGRAMS, name), os.X_OK)]
    if not programs:
        sys.exit(f"bench: there are no benchmarks in {PROGRAMS}")
    os.makedirs(FIGURES, exist_ok=True)
    for name in programs:
        print(f"\n== {name}", flush=True)
        subprocess.run([os.path.join(PROGRAMS, name), f"--benchmark_out={os.path.join(FIGURES, name)}.json",
                        "--benchmark_out_format=json", *sys.argv[1:]], check=True)


if __name__ == "__main__":
    main()
