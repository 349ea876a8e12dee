#!/usr/bin/env python3
"""Takes away each place where the executor makes order on a GPU, and looks whether the driver of rules notices.

    tests/live/mutants.py [--seeds 1000] [--program build/release/tests/driver_seeds …] [--only FILE:LINE…] [--json]

Each place is tried on the programs that reach it, up to the first that notices: driver_seeds, then live_seeds, where
the build has that; one that none notices, on more of the seeds (a new policy changes what each of them draws). The
places are marked in executor/ with TENCACHE_ORDER_SITE and TENCACHE_ORDER_PAIR (executor/order_site.h): waits,
records of events, guards and changes of tables are left out, neighbours change places. A mutant is caught by the judge
that finds a seed wrong, by a crash (a broken invariant), a deadlock, or when a run takes ten times as long as it did
unchanged. --json prints [{site, kind, caught_by, seed}]. One that is not caught and means the same says so where it
stands, in a comment that begins with "Equivalent:"; its `caught_by` is "equivalent". Exits with 1 if another one is not
caught, or more than 5 % are equivalent.
"""
import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MOST_EQUIVALENT = 0.05
MORE_SEEDS = 10  # times as many, where the first notice nothing


def argued(site):
    """Whether the three lines above the place say why it makes no difference."""
    name, line = site["site"].split(":")
    for folder in ("executor", "executor/cuda", "executor/live"):
        path = os.path.join(ROOT, folder, name)
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                return "// Equivalent:" in "".join(file.readlines()[max(0, int(line) - 4):int(line)])
    return False


def play(program, seeds, limit_s, change=None):
    """(result, judge, seed) of a run over a range of seeds: the judge is None if nothing was found."""
    command = [program, "--seeds", f"{seeds[0]}..{seeds[-1]}", "--json"]
    if change is not None:
        command += ["--change", str(change)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return None, "time limit", None
    if done.returncode in (0, 1):
        result = json.loads(done.stdout)
        failure = result["failure"]
        return result, failure and failure["judge"], failure and failure["seed"]
    seed = re.search(r"under way has seed (\d+)", done.stderr)
    judge = "deadlock" if "deadlock" in done.stderr else "crash"
    return None, judge, int(seed.group(1)) if seed else None


def built():
    tests = os.path.join(ROOT, "build", "release", "tests")
    programs = [os.path.join(tests, name) for name in ("driver_seeds", "live_seeds")]
    return [program for program in programs if os.path.exists(program)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000, help="of each mutant (default 1000)")
    parser.add_argument("--program", nargs="*", default=built(), help="that judge seeds")
    parser.add_argument("--only", nargs="*", metavar="FILE:LINE", help="these places")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    results, caught = {}, set()
    few, more = range(options.seeds), range(options.seeds, MORE_SEEDS * options.seeds)
    for seeds, program in itertools.product((few, more), options.program):
        if seeds is more and all(result["caught_by"] is not None for result in results.values()):
            break
        start = time.monotonic()
        unchanged, judge, seed = play(program, seeds, 3600)
        limit_s = 10 * (time.monotonic() - start) + 30
        if judge is not None:
            print(f"mutants: {program}: the unchanged code fails: seed {seed}, {judge}", file=sys.stderr)
            return 1
        last = program == options.program[-1]
        for number, site in enumerate(unchanged["sites"]):
            if site["site"] in caught or (seeds is more and argued(site)):
                continue
            if site["visits"] == 0 and (not last or site["site"] in results):
                continue
            if options.only is not None and site["site"] not in options.only:
                continue
            _, judge, seed = play(program, seeds, limit_s, number)
            if judge is not None:
                caught.add(site["site"])
            if judge is None and argued(site):
                judge = "equivalent"
            change = "swapped" if site["pair"] else "off"
            result = {"site": site["site"], "kind": f"{site['kind']} {change}", "caught_by": judge, "seed": seed}
            results[site["site"]] = result
            if not options.json:
                found = f"{judge}, seed {seed}" if seed is not None else judge or "NOT CAUGHT"
                print(f"{result['site']:28} {result['kind']:22} {found}", flush=True)
    results = list(results.values())
    if options.json:
        print(json.dumps(results, indent=1))
    equivalent = sum(result["caught_by"] == "equivalent" for result in results)
    missed = sum(result["caught_by"] is None for result in results)
    if not options.json:
        print(f"{len(results)} mutants: {len(results) - missed - equivalent} caught, {equivalent} equivalent, "
              f"{missed} not caught")
    return 1 if missed or equivalent > MOST_EQUIVALENT * len(results) else 0


if __name__ == "__main__":
    sys.exit(main())
