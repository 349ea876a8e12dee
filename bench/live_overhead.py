#!/usr/bin/env python3
"""What a live run costs a training program whose tensors all fit, against plain PyTorch, in processor time.

    PYTHONPATH=build/release/python bench/live_overhead.py [--json] [PROGRAM...]

Each program (of live_programs.py, with one thread; "tiny" is a GPT of 0.2 million parameters, whose ops are short) runs
plainly and live in two processes, in turns (ABBA) of some steps. While one measures, the other waits. The steps before
the first turn warm up, are recorded, and begin the sleep; --no-sleep measures a run that watches each op. llama is
Hugging Face's.

Prints live / plain of the processor time of all threads of the process, of instructions (null where the kernel counts
none), and of wall time, each {median, low, high}: of the ratios within rounds, with a 95 % bootstrap interval. Exit
code 1: the limit lies below the upper end of an interval of processor time or instructions.
"""
import argparse
import json
import os
import sys
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from commands import Instructions  # noqa: E402
from op_cost import Worker, rounds_of, summary  # noqa: E402

PROGRAMS = ("tiny", "gpt", "llama", "resnet")
WARM_UP = 5
MACHINE = """\
name: ample
tiers:
  - {name: gpu, kind: gpu, capacity: 3GiB, granularity: 4KiB}
  - {name: cpu, kind: cpu, capacity: 64MiB, granularity: 4KiB}
links:
  - {name: h2d, from: cpu, to: gpu, bandwidth: 100GB/s, latency: 1us}
  - {name: d2h, from: gpu, to: cpu, bandwidth: 100GB/s, latency: 1us}
initial_tier: gpu
"""


# ---- A process that measures


def answer(name, steps):
    import torch
    from live_programs import PROGRAMS as programs, gpt
    torch.set_num_threads(1)
    torch.manual_seed(0)
    program = gpt(width=96, layers=3, vocabulary=256, context=32, batch=4) if name == "tiny" else programs[name]()
    model = program.make()
    optimizer = program.optimizer(model.parameters())

    def run(count):
        for _ in range(count):
            program.loss(model).backward()
            optimizer.step()
            optimizer.zero_grad()

    counter = Instructions(of_children=False)
    run(WARM_UP)
    print("ready", flush=True)
    for _ in sys.stdin:
        instructions, start, cpu = counter.read(), time.perf_counter(), time.process_time_ns()
        run(steps)
        figures = {"cpu": (time.process_time_ns() - cpu) / steps / 1e9, "wall": (time.perf_counter() - start) / steps}
        if instructions is not None:
            figures["instructions"] = (counter.read() - instructions) / steps
        print(json.dumps(figures), flush=True)


def work(options):
    if options.worker == "plain":
        return answer(options.programs[0], options.steps)
    import tencache
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as machine:
        machine.write(MACHINE)
        machine.flush()
        with tencache.live(options.policy, machine=machine.name, pace=False, sleep=options.sleep, quiet=True) as run:
            answer(options.programs[0], options.steps)
        report = run.report()
    if options.sleep != (report["steps_asleep"] >= len(report["step_seconds"]) - WARM_UP):
        sys.exit(f"live_overhead: {options.programs[0]}: {report['steps_asleep']} of {len(report['step_seconds'])} "
                 "steps were asleep")
    return 0


# ---- The process that asks them


def figures_of(name, options):
    words = [os.path.abspath(__file__), "--steps", str(options.steps), "--policy", options.policy, name]
    words += [] if options.sleep else ["--no-sleep"]
    taken = rounds_of([Worker(way, [*words, "--worker", way]) for way in ("plain", "live")], options.rounds)

    def ratio(kind):
        if kind not in taken["plain"][0]:
            return None
        return summary([live[kind] / plain[kind] for live, plain in zip(taken["live"], taken["plain"])])
    plain_ms = summary([1e3 * one["cpu"] for one in taken["plain"]])
    return {"program": name, "plain_ms": plain_ms, "cpu_ratio": ratio("cpu"),
            "instructions_ratio": ratio("instructions"), "wall_ratio": ratio("wall")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", default=PROGRAMS, metavar="PROGRAM",
                        help=f"of {', '.join(PROGRAMS)} (default: all)")
    parser.add_argument("--json", action="store_true", help="print one list")
    parser.add_argument("--rounds", type=int, default=11, help="turns of each side (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=2,
                        help="of a turn (default: %(default)s; of tiny 20 times as many)")
    parser.add_argument("--policy", default="foresight")
    parser.add_argument("--limit", type=float, default=1.02, help="(default: %(default)s)")
    parser.add_argument("--sleep", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--worker", choices=["plain", "live"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options)
    answers = []
    for name in options.programs:
        if name not in PROGRAMS:
            parser.error(f"'{name}' is none of {', '.join(PROGRAMS)}")
        answers.append(figures_of(name, argparse.Namespace(
            **{**vars(options), "steps": options.steps * (20 if name == "tiny" else 1)})))
        if not options.json:
            print("  ".join(f"{key} {json.dumps(value)}" for key, value in answers[-1].items()), flush=True)
    if options.json:
        print(json.dumps(answers))
    upper = [one[kind]["high"] for one in answers for kind in ("cpu_ratio", "instructions_ratio") if one[kind]]
    return 1 if max(upper) > options.limit else 0


if __name__ == "__main__":
    sys.exit(main())
