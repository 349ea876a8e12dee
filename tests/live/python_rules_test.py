#!/usr/bin/env python3
"""Python's programs with the driver of rules as their GPU, and late kernels: python_programs.py under tencache.live().

    python_rules_test.py [--seeds A..B] [--json] [--arena 0|1] [--ahead 0|1]    0..11 without it: each program once

--arena: the GPU tier is one arena in which tensors move, or not; without it every other seed has one. --ahead: there
the host runs ahead of the device, or not; without it in every other of these.

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


def play(seed, programs, policies, arena, ahead):
    draw = random.Random(seed)
    program, policy = programs[seed % len(programs)], draw.choice(policies)
    shares = ["2"] if policy == "ideal" else [draw.choice(["0.8", "0.65", "0.5"]), "2"]
    arena = seed % 2 if arena is None else arena
    ahead = seed // 2 % 2 if ahead is None else ahead
    # What code that is no op has the address of stays: a program may not fit its share. On an arena that is less by a
    # 128th, and what an op still needs has to lie in one piece beside what it has got.
    too_little = ("nothing else can leave", "it needs at least") if arena else ("nothing else can leave",)
    for share in shares:
        row = run(seed, program, policy, share, arena, ahead if arena else 0)
        if row["found"] is None or not any(words in row["found"] for words in too_little):
            break
    return row


def run(seed, program, policy, share, arena, ahead):
    code = ("import sys, torch; import python_programs_test as test; torch.set_num_threads(1); "
            "sys.exit(test.run(*sys.argv[1:3], sys.argv[3:]) == [])")
    environment = dict(os.environ, TENCACHE_RULES_SEED=str(seed), TENCACHE_RULES_ARENA=str(arena),
                       TENCACHE_RULES_AHEAD=str(ahead),
                       PYTHONPATH=os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run([sys.executable, "-c", code, program, policy, share], env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    counts = COUNTS.search(done.stdout)
    row = {"seed": seed, "program": program, "policy": policy, "share": share, "arena": arena, "ahead": ahead,
           "found": None}
    if done.returncode != 0 or counts is None:
        row["found"] = done.stdout[-3000:] + f"\nexit status {done.returncode}"
    else:
        row.update(zip(("late", "waited", "ordered", "copies"), map(int, counts.groups())))
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0..11", metavar="A..B")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--arena", type=int, choices=(0, 1))
    parser.add_argument("--ahead", type=int, choices=(0, 1))
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(".."))
    programs, policies = names()
    rows, began = [], time.monotonic()
    for seed in range(first, last + 1):
        rows.append(play(seed, programs, policies, options.arena, options.ahead))
        if rows[-1]["found"]:
            break
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    if options.json:
        print(json.dumps({"seconds": time.monotonic() - began, "cpu_seconds": usage.ru_utime + usage.ru_stime,
                          "seeds": rows}, indent=1))
    elif rows[-1]["found"]:
        print("seed {seed}: {program} under {policy}, share {share}, arena {arena}, ahead {ahead}: {found}".format(**rows[-1]))
    else:
        print(f"{len(rows)} seeds: nothing found; {sum(row['late'] for row in rows)} late kernels, "
              f"{sum(row['copies'] for row in rows)} copies")
    return 1 if rows[-1]["found"] else 0


if __name__ == "__main__":
    sys.exit(main())
