#!/usr/bin/env python3
"""Python's programs with the driver of rules as their GPU, and late kernels: python_programs.py under tencache.live().

    python_rules_test.py [--seeds A..B] [--json]    0..11 without it: each program once

PYTHONPATH has the package with the module of tests/live/python_rules.cpp. Each seed draws a program, a policy and how
much memory it gets, and a device against the code, and is a process of its own. What a judge finds ends it; results are
compared with the program's own, bit by bit. Left out: what reads files in place, which no program on a GPU does.
"""
import argparse
import json
import os
import random
import re
import resource
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
COUNTS = re.compile(r"rules: (\d+) late kernels, (\d+) waited for, (\d+) by order alone, (\d+) copies")


def names():
    """Programs and policies. Each process of a seed imports PyTorch, this one need not go on with it."""
    code = ("import json, tencache, python_programs; "
            "print(json.dumps([list(python_programs.PROGRAMS), [each['name'] for each in tencache.policies()]]))")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")]))
    programs, policies = json.loads(subprocess.run([sys.executable, "-c", code], env=environment, text=True, check=True,
                                                   stdout=subprocess.PIPE).stdout)
    return [name for name in programs if name != "mapped"], policies


def play(seed, programs, policies):
    draw = random.Random(seed)
    program, policy = programs[seed % len(programs)], draw.choice(policies)
    shares = ["2"] if policy == "ideal" else [draw.choice(["0.8", "0.65", "0.5"]), "2"]
    for share in shares:  # what code that is no op has the address of stays: a program may not fit its share
        row = run(seed, program, policy, share)
        if row["found"] is None or "nothing else can leave" not in row["found"]:
            break
    return row


def run(seed, program, policy, share):
    code = ("import sys, torch; import python_programs_test as test; torch.set_num_threads(1); "
            "sys.exit(test.run(*sys.argv[1:3], sys.argv[3:]) == [])")
    environment = dict(os.environ, TENCACHE_RULES_SEED=str(seed), PYTHONPATH=os.pathsep.join(
        [sys.path[0], os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run([sys.executable, "-c", code, program, policy, share], env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    counts = COUNTS.search(done.stdout)
    row = {"seed": seed, "program": program, "policy": policy, "share": share, "found": None}
    if done.returncode != 0 or counts is None:
        row["found"] = done.stdout[-3000:] + f"\nexit status {done.returncode}"
    else:
        row.update(zip(("late", "waited", "ordered", "copies"), map(int, counts.groups())))
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0..11", metavar="A..B")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(".."))
    programs, policies = names()
    rows, began = [], time.monotonic()
    for seed in range(first, last + 1):
        rows.append(play(seed, programs, policies))
        if rows[-1]["found"]:
            break
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    if options.json:
        print(json.dumps({"seconds": time.monotonic() - began, "cpu_seconds": usage.ru_utime + usage.ru_stime,
                          "seeds": rows}, indent=1))
    elif rows[-1]["found"]:
        print("seed {seed}: {program} under {policy}, share {share}: {found}".format(**rows[-1]))
    else:
        print(f"{len(rows)} seeds: nothing found; {sum(row['late'] for row in rows)} late kernels, "
              f"{sum(row['copies'] for row in rows)} copies")
    return 1 if rows[-1]["found"] else 0


if __name__ == "__main__":
    sys.exit(main())
