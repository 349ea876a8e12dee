#!/usr/bin/env python3
"""How long planning takes, in pairs with an earlier program: the same commands, one after the other, several times.

Processor time of whole commands; what planning alone takes is that of `replay` less that of a run of as many iterations
without a plan (`plan_events` 0): a run whose state recurs later would count as planning. Medians of the ratios, and the
least and the greatest."""
import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile


def cpu_seconds(words):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(words, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(words)}: {done.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tencache", default="build/release/cli/tencache", help="the program (default: %(default)s)")
    parser.add_argument("--before", help="an earlier one, in pairs with it")
    parser.add_argument("--pairs", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--fit", action="store_true", help="`fit`, too, which took minutes before")
    arguments = parser.parse_args()
    here = os.path.dirname(os.path.abspath(__file__))
    with tempfile.TemporaryDirectory() as folder:
        llama = os.path.join(folder, "llama-3-8b.trace.jsonl.zst")
        many = os.path.join(folder, "many-ops.trace.jsonl.zst")
        generation, machine = os.path.join(folder, "opt-30b.trace.jsonl"), os.path.join(folder, "t4.yaml")
        generate = [arguments.tencache, "generate", "--model", "llama-3-8b", "--seq", "1024", "--gpu", "a10g"]
        subprocess.run([*generate, "--batch", "4", "-o", llama], check=True, capture_output=True)
        subprocess.run([*generate, "--batch", "96", "--micro-batches", "96", "-o", many], check=True, capture_output=True)
        subprocess.run([sys.executable, os.path.join(here, "generation_trace.py"), "-o", generation, "--machine", machine],
                       check=True, capture_output=True)
        replay = lambda trace, machine, *more: ["replay", trace, "-m", machine, "-p", "foresight", *more]
        two = ("--iterations", "2")
        unplanned = (*two, "--set", "plan_events=0")
        cases = [("Llama-3-8B on g5.xlarge, planning", replay(llama, "g5.xlarge", *two),
                  replay(llama, "g5.xlarge", *unplanned)),
                 ("Llama-3-8B on g5.xlarge, whole command", replay(llama, "g5.xlarge"), None)]
        if arguments.fit:
            cases.append(("Llama-3-8B on g5.xlarge, fit", ["fit", llama, "-m", "g5.xlarge", "-p", "foresight"], None))
        programs = [arguments.tencache] + ([arguments.before] if arguments.before else [])
        for name, words, less in cases:
            times = []
            for _ in range(arguments.pairs):
                times.append([cpu_seconds([program, *words]) - (cpu_seconds([program, *less]) if less else 0)
                              for program in programs])
            line = f"{name}: {statistics.median(row[0] for row in times):.3f} s"
            if arguments.before:
                ratios = sorted(row[1] / max(row[0], 1e-3) for row in times)
                line += (f", before {statistics.median(row[1] for row in times):.3f} s: {statistics.median(ratios):.1f} "
                         f"times as fast [{ratios[0]:.1f}, {ratios[-1]:.1f}]")
            print(line, flush=True)
        for name, words, less in [("10^5 ops, planning", replay(many, "g5.xlarge", *two),
                                   replay(many, "g5.xlarge", *unplanned)),
                                  ("generation of 23,000 ops, planning", replay(generation, machine, *two),
                                   replay(generation, machine, *unplanned))]:
            taken = [cpu_seconds([arguments.tencache, *words]) - cpu_seconds([arguments.tencache, *less])
                     for _ in range(min(3, arguments.pairs))]
            print(f"{name}: {statistics.median(taken):.3f} s", flush=True)


main()
