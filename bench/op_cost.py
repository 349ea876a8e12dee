#!/usr/bin/env python3
"""What paging adds to one small PyTorch op on the host, in processor time.

    PYTHONPATH=build/release/python bench/op_cost.py [--json]

Five loops, each in a process of its own (the time of all of its threads counts), measured in turns (ABBA). While one
measures, the others wait:

    plain     PyTorch alone
    fallback  a boxed fallback that does nothing: the least that an interception costs
    paged     under a policy, everything that the op uses is there, and the schedule is known
    fitting   the same where the whole step fits into memory, so that the run sleeps: ops are those of plain PyTorch,
              allocations and frees are the run's
    moving    each op needs a tensor that the op before it drove out
    arena     the same in movable memory of a GPU: the executor's code in all of its threads, on the model GPU, without
              what the driver's calls and the copies take

The ops are `a.add_(b)` and `torch.add(a, b)`, which allocates a tensor and frees it, on 64 x 64 floats; where tensors
move, `add_(1)` on two tensors of 96 x 96 floats in turn. --json prints microseconds: {plain_us, added_us,
allocation_us, moving_us, fitting_us, instructions_ratio, ...}.

    plain_us            {in_place, allocating}: an op in plain PyTorch
    added_us            paged - fallback, of the op in place
    allocation_us       what the allocation and its free add to that: (paged - fallback) of `add` less that of `add_`
    fitting_us           {in_place, allocating}: fitting - plain
    moving_us           moving - fallback, of the ops on two tensors in turn
    arena_us            arena, moving - all resident; null where model_gpu is not built
    instructions_ratio  paged / plain of the op in place; null where the kernel counts none

Each is {median, low, high}: of the differences within rounds, with a 95 % bootstrap interval. Exit code 1: a limit
(--limits) lies below an interval's upper end.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from commands import Instructions, interval  # noqa: E402

OPS = 2000
WAYS = ("plain", "fallback", "paged", "fitting", "moving")
LIMITS = {"added_us": 1.5, "allocation_us": 1.0, "arena_us": 15.0}
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL_GPU = os.path.join(os.environ.get("TENCACHE_BUILD", os.path.join(ROOT, "build", "release")), "tests", "model_gpu")
ARENA_OPS, ARENA_TENSOR, ARENA_MEMORY = 400, 3 << 19, 2 << 20  # of which one of two tensors has room
MACHINE = """\
name: ample
tiers:
  - {name: gpu, kind: gpu, capacity: 96KiB, granularity: 4KiB}
  - {name: cpu, kind: cpu, capacity: 1MiB, granularity: 4KiB}
links:
  - {name: h2d, from: cpu, to: gpu, bandwidth: 100GB/s, latency: 1us}
  - {name: d2h, from: gpu, to: cpu, bandwidth: 100GB/s, latency: 1us}
initial_tier: gpu
"""


# ---- A process that measures


class Loops:
    """The loops on tensors of this process that are measured. `step`: of the live run."""

    def __init__(self, torch, step, names):
        self.torch, self.step, self.names = torch, step, names
        self.a, self.b = torch.ones(64, 64), torch.ones(64, 64)
        self.others = [torch.ones(96, 96), torch.ones(96, 96)]

    def before(self):
        """What the step does besides."""
        for other in self.others:
            other.add_(1)

    def in_place(self):
        a, b = self.a, self.b
        for _ in range(OPS):
            a.add_(b)

    def allocating(self):
        a, b, add = self.a, self.b, self.torch.add
        for _ in range(OPS):
            add(a, b)


    def in_turn(self):
        first, second = self.others
        for _ in range(OPS // 2):
            first.add_(1)
            second.add_(1)


def measure(loops, counter):
    import time
    figures = {}
    with loops.torch.no_grad():
        loops.step()
        loops.before()
        for name in loops.names:
            instructions, start = counter.read(), time.process_time_ns()
            getattr(loops, name)()
            figures[name] = (time.process_time_ns() - start) / OPS / 1e3
            if instructions is not None:
                figures[name + "_instructions"] = (counter.read() - instructions) / OPS
    return figures


def answer(loops):
    counter = Instructions(of_children=False)
    for _ in range(5):  # warms up, is recorded, is followed
        measure(loops, counter)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(measure(loops, counter)), flush=True)


def work(way, policy):
    import torch
    torch.set_num_threads(1)
    if way == "plain":
        return answer(Loops(torch, lambda: None, ("in_place", "allocating")))
    import tencache
    if way == "fallback":
        from tencache._paging import Paging
        Paging.load("cpu", lambda text: None).guard(True)  # without a runtime it does nothing
        return answer(Loops(torch, lambda: None, ("in_place", "allocating", "in_turn")))
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as machine:
        machine.write(MACHINE)
        machine.flush()
        memory = {"fitting": "1MiB", "moving": "64KiB"}.get(way, "96KiB")  # the larger two have 36 KiB, others 16
        names = ("in_turn",) if way == "moving" else ("in_place", "allocating")
        with tencache.live(policy, machine=machine.name, gpu_memory=memory, pace=False, quiet=True) as run:
            run.step()  # from here on what is allocated is the run's
            answer(Loops(torch, run.step, names))
            report = run.report()
    # Else the figures are of a run that follows no schedule, or of one where what was to move did not.
    if report["deviations"] or (way == "moving" and report["evictions"] < report["ops"]):
        sys.exit(f"op_cost: {way}: {report['first_deviation'] or 'nothing moved'}")


# ---- The process that asks them


class Worker:
    """A script, which answers each line with a measurement. It says when it is ready."""

    def __init__(self, way, words):
        self.way = way
        self.process = subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        if self.process.stdout.readline().strip() != "ready":
            sys.exit(f"{os.path.basename(words[0])}: the process for '{way}' ended before it measured")

    def measure(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        if self.process.wait() != 0:
            sys.exit(1)


def rounds_of(workers, count):
    """Figures by way, each a list with one entry a round; each round in the other order than the one before."""
    taken = {worker.way: [] for worker in workers}
    for number in range(count):
        for worker in workers if number % 2 == 0 else workers[::-1]:
            taken[worker.way].append(worker.measure())
    for worker in workers:
        worker.end()
    return taken


def summary(values):
    median, low, high = interval(values)
    return {"median": round(median, 3), "low": round(low, 3), "high": round(high, 3)}


def figures_of(taken):
    def of(way, loop="in_place"):
        return [one[loop] for one in taken[way]]

    def less(these, those):
        return [one - other for one, other in zip(these, those)]
    both = ("in_place", "allocating")
    added = {loop: less(of("paged", loop), of("fallback", loop)) for loop in both}
    counted = "in_place_instructions" in taken["plain"][0]
    ratios = counted and [paged["in_place_instructions"] / plain["in_place_instructions"]
                          for paged, plain in zip(taken["paged"], taken["plain"])]
    return {
        "plain_us": {loop: summary(of("plain", loop)) for loop in both},
        "fallback_us": {loop: summary(less(of("fallback", loop), of("plain", loop))) for loop in both},
        "added_us": summary(added["in_place"]),
        "allocation_us": summary(less(added["allocating"], added["in_place"])),
        "fitting_us": {loop: summary(less(of("fitting", loop), of("plain", loop))) for loop in both},
        "moving_us": summary(less(of("moving", "in_turn"), of("fallback", "in_turn"))),
        "instructions_ratio": summary(ratios) if counted else None,
    }


# ---- On the model GPU


def arena_trace(path):
    header = {"kind": "header", "format_version": 1, "model": "two tensors in turn", "tensor_count": 2,
              "op_count": ARENA_OPS}
    tensors = [{"kind": "tensor", "id": number, "name": f"w{number}", "bytes": ARENA_TENSOR, "role": "parameter",
                "persistent": True} for number in range(2)]
    ops = [{"kind": "op", "id": number, "name": "add_", "phase": "forward", "device": "gpu",
            "duration_ns": 1000, "duration_source": "modelled",
            "reads": [number % 2], "writes": [number % 2]} for number in range(ARENA_OPS)]
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in [header, *tensors, *ops])


def arena_us(policy, rounds):
    """Per round, microseconds of processor time that an op takes more when its tensor has to come."""
    if not os.path.exists(MODEL_GPU):
        return None
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "two.trace.jsonl")
        arena_trace(trace)

        def of(memory):
            words = [MODEL_GPU, trace, "--figures", os.path.join(ROOT, "bench", "model_gpu_h200.yaml"),
                     "--policy", policy, "--memory", str(memory), "--gpu-allocator", "movable", "--run-ahead", "256",
                     "--host", "measured", "--steps", "9"]
            result = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)
            if memory != "all" and result["steady"]["copies"] < ARENA_OPS:
                sys.exit("op_cost: arena: nothing moved")
            return result["steady"]["runtime_cpu_ns"] / ARENA_OPS / 1e3
        return summary([of(ARENA_MEMORY) - of("all") for _ in range(rounds)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--rounds", type=int, default=41, help="slices of each loop (default: %(default)s)")
    parser.add_argument("--policy", default="foresight")
    parser.add_argument("--limits", action="store_true", help=f"exit with 1 above {LIMITS}")
    parser.add_argument("--worker", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options.worker, options.policy)
    figures = figures_of(rounds_of(
        [Worker(way, [os.path.abspath(__file__), "--worker", way, "--policy", options.policy]) for way in WAYS],
        options.rounds))
    figures["arena_us"] = arena_us(options.policy, options.rounds)
    if options.json:
        print(json.dumps(figures))
    else:
        for name, figure in figures.items():
            print(f"{name:20} {json.dumps(figure)}")
    above = [name for name, limit in LIMITS.items() if figures[name] is not None and figures[name]["high"] > limit]
    return 1 if options.limits and above else 0


if __name__ == "__main__":
    sys.exit(main())
