#!/usr/bin/env python3
"""What is asked of a GPU, in three parts of less than ten minutes each.

    bench/gpu_day.sh pack DIR [PAGING_LIBRARY [CORE]]  after a build: what the parts need, at most 45 MiB
    bench/gpu_day.sh a|b|c OUT [--programs DIR]        a part; DIR: what was packed (default: this build)

What depends on the other machine's Python: PAGING_LIBRARY is tests/torch_versions.py's for its PyTorch, which otherwise
compiles its own; CORE is the package's _core*.so for its Python (default: this build's). docs/cuda.md says how to get
both.

  a  the card; what calls of its driver take; calibration; tests of the backend, also under compute-sanitizer; replays
     with predictions
  b  a training program under foresight and lru with all, 60 and 50 % of its memory, the host running ahead: against
     plain PyTorch, timed five times in between, against its prediction, and bit by bit. Once chunk by chunk, too
  c  a profile of a step; streams, graphs, Triton and the like (tests/live/python_gpu_test.py); loading, and generating
     text with half of the weights elsewhere

OUT/answers-a.json has each step with its figures (status: passed, failed, stopped, left out, not reached) and is
written after every step, so what was found is there wherever a part ends; OUT/machine.yaml is the calibration,
OUT/logs-a.tar.gz what the steps said. A part ends at its own deadline. A step that fails or is left out, for its `why`,
ends nothing.
`tencache calibrate --import OUT/answers-a.json -o FILE` makes a machine file.

  --seconds N   the part's time (a: 480, b and c: 540)
  --device D    of PyTorch programs: cuda (default), cpu
  --small       sizes for trying the script

Exit code 0: every step passed or was left out; 1: one was not; 2: bad usage.
"""
import argparse
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.abspath(os.environ.get("TENCACHE_BUILD", os.path.join(ROOT, "build", "release")))
SECONDS = {"a": 480, "b": 540, "c": 540}
PLAIN_RUNS = 5
RUN_AHEAD = ["--gpu-allocator", "movable", "--run-ahead", "256"]  # the default, by name
EXACT = ["--gpu-allocator", "exact"]
WARM_UP = 3  # steps: one warms up, one is recorded, in the next the policy knows the schedule


class Programs:
    """What runs, from a build or packed, and what it needs around it."""

    def __init__(self, packed):
        self.packed = packed and os.path.abspath(packed)
        self.environment = dict(os.environ)
        if packed:
            self.tencache, self.cases, self.probe = (os.path.join(self.packed, "bin", name)
                                                     for name in ("tencache", "cuda_gpu_test", "gpu_probe"))
            self.bench, self.traces = self.packed, os.path.join(self.packed, "traces")
            self.uses = os.path.join(self.packed, "python_gpu_test.py")
            python = os.path.join(self.packed, "python")
            self.environment["TENCACHE_CONFIGS"] = os.path.join(self.packed, "configs")
            self.prepend("LD_LIBRARY_PATH", os.path.join(self.packed, "lib"))
            paging = os.path.join(self.packed, "lib", "paging-cuda.so")
            if os.path.exists(paging):
                self.environment.setdefault("TENCACHE_PAGING_LIBRARY", paging)
        else:
            self.tencache, self.cases, self.probe = (os.path.join(BUILD, *name) for name in (
                ("cli", "tencache"), ("tests", "cuda_gpu_test"), ("bench", "gpu_probe")))
            self.bench, self.traces = os.path.join(ROOT, "bench"), os.path.join(ROOT, "traces", "samples")
            self.uses = os.path.join(ROOT, "tests", "live", "python_gpu_test.py")
            python = os.path.join(BUILD, "python")
        self.prepend("PYTHONPATH", python)

    def prepend(self, name, path):
        self.environment[name] = os.pathsep.join(filter(None, [path, self.environment.get(name)]))


class Day:
    """A part: its steps, one after the other, up to the deadline."""

    def __init__(self, part, out, seconds, programs):
        self.programs, self.begin = programs, time.monotonic()
        self.end = self.begin + seconds
        self.scratch = tempfile.mkdtemp(prefix="gpu-day-", dir=os.environ.get("TMPDIR", "/var/tmp"))
        self.logs = os.path.join(self.scratch, "logs")
        os.makedirs(self.logs)
        os.makedirs(out, exist_ok=True)
        self.out, self.part = out, part
        self.answers = {"part": part, "date": time.strftime("%Y-%m-%d"), "card": self.card(), "seconds": seconds,
                        "steps": {}}
        self.write()

    def card(self):
        """Figures of two kinds of card are not to be compared."""
        fields = ("name", "driver_version", "memory.total", "pcie.link.gen.max", "pcie.link.width.max")
        try:
            line = subprocess.run(["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader"], text=True,
                                  stdout=subprocess.PIPE, timeout=30).stdout.splitlines()[0]
        except (OSError, IndexError, subprocess.TimeoutExpired):
            return None
        return dict(zip(fields, (value.strip() for value in line.split(","))))

    def write(self):
        """Whole or not at all."""
        path = os.path.join(self.out, f"answers-{self.part}.json")
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump(self.answers, file, indent=1)
        os.replace(path + ".part", path)

    def note(self, name, status, **more):
        self.answers["steps"][name] = {"status": status, **more}
        self.write()
        print(f"{name:<28} {status}" + (f": {more['why']}" if "why" in more else ""), flush=True)

    def leave_out(self, name, why):
        self.note(name, "left out", why=why)

    def step(self, name, limit, command, figures=lambda said: {}):
        """What the command printed, None if it did not pass. `figures` of it go to the answers; one that it cannot find
        is a step that failed."""
        left = self.end - time.monotonic()
        if left < min(limit, 10):
            self.note(name, "not reached")
            return None
        start, log = time.monotonic(), os.path.join(self.logs, name + ".txt")
        with open(log, "w", encoding="utf-8") as errors:
            process = subprocess.Popen(command, cwd=self.scratch, env=self.programs.environment, text=True,
                                       stdout=subprocess.PIPE, stderr=errors, start_new_session=True)
            try:
                said, _ = process.communicate(timeout=min(limit, left))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                said, _ = process.communicate()
                process.returncode = None
        with open(log, "a", encoding="utf-8") as file:
            file.write(said)
        took = {"seconds": round(time.monotonic() - start, 2)}
        if process.returncode != 0:
            status = "stopped" if process.returncode is None else "failed"
            with open(log, encoding="utf-8", errors="replace") as file:
                lines = [line.strip() for line in file if line.strip()]
            self.note(name, status, why=(lines or ["no message"])[-1][:300], exit=process.returncode, **took)
            return None
        try:
            found = figures(said)
        except (KeyError, IndexError, ValueError, StopIteration, AttributeError, OSError) as error:
            self.note(name, "failed", why=f"its output has no figures: {error!r}", **took)
            return None
        self.note(name, "passed", **took, **found)
        return said

    def finish(self):
        self.answers["took_seconds"] = round(time.monotonic() - self.begin, 1)
        self.write()
        print(f"part {self.part} took {self.answers['took_seconds']} s of {self.answers['seconds']:g}")
        with tarfile.open(os.path.join(self.out, f"logs-{self.part}.tar.gz"), "w:gz") as tar:
            tar.add(self.logs, arcname=f"logs-{self.part}")
        shutil.rmtree(self.scratch, ignore_errors=True)
        return 0 if all(step["status"] in ("passed", "left out") for step in self.answers["steps"].values()) else 1


def json_line(said, key):
    """The last line of a program that is an object with this key."""
    rows = [json.loads(line) for line in said.splitlines() if line.startswith("{\"")]
    return [row for row in rows if key in row][-1]


def median_ms(seconds):
    return round(1e3 * statistics.median(seconds[WARM_UP:] or seconds), 4)


# ---- Part a


def calibrate(day, small, device="cuda"):
    machine = os.path.join(day.out, "machine.yaml")

    def figures(said):
        with open(machine, encoding="utf-8") as file:
            return {"calibration": json.loads(said), "machine": file.read()}
    quick = ["--quick"] if small else []
    day.step("calibrate", 150, [day.programs.tencache, "calibrate", "--device", device, *quick, "--json", "-o", machine,
                                "--directory", day.scratch], figures)
    return machine if os.path.exists(machine) else "p5.4xlarge"


def cases(day, small):
    def figures(said):
        passed, skipped = said.count("[       OK ]"), re.findall(r"\[  SKIPPED \] (\S+)", said)
        if passed == 0:
            raise ValueError("no case ran")
        return {"passed": passed, "skipped": sorted(set(skipped))}
    day.step("cases", 60, [day.programs.cases], figures)
    if shutil.which("compute-sanitizer") is None:
        return day.leave_out("memcheck", "compute-sanitizer is not here")
    day.step("memcheck", 120, ["compute-sanitizer", "--error-exitcode", "9", day.programs.cases,
                               "--gtest_filter=-*Duration*:*Cancel*"], figures)


def replays(day, machine, small):
    trace = os.path.join(day.programs.traces, "gpt-small.trace.jsonl.zst")
    runs = [("foresight", "800MiB", EXACT), ("foresight", "120MiB", RUN_AHEAD)]
    if not small:
        runs += [(policy, "800MiB", EXACT) for policy in ("10cache", "zero-infinity", "on-demand")]
        runs += [(policy, "120MiB", RUN_AHEAD) for policy in ("10cache", "lru")]
    for policy, memory, words in runs:
        def figures(said):
            answer = json.loads(said)
            return {"iteration_seconds": answer["iteration_seconds"], "times_predicted": times_predicted(answer),
                    "verification": answer["verification"], "allocator": answer["allocators"]["gpu"]}
        day.step(f"replay {policy} {'exact' if words == EXACT else 'ahead'}", 40, [
            day.programs.tencache, "run", "replay", trace, "-m", machine, "-p", policy, "--device", "cuda",
            "--gpu-memory", memory, "--cpu-memory", "512MiB", "--no-rescale", "--directory", day.scratch, "--predict",
            "--iterations", "3", "--json", *words], figures)


def times_predicted(answer):
    """None where the prediction did not fit."""
    seconds = answer["prediction"]["iteration_seconds"]
    return round(answer["iteration_seconds"] / seconds, 4) if seconds else None


def part_a(day, options):
    quick = ["--quick"] if options.small else []
    day.step("probe", 60, [day.programs.probe, "--json", *quick], lambda said: {"probe": json.loads(said)})
    machine = calibrate(day, options.small)
    cases(day, options.small)
    replays(day, machine, options.small)


# ---- Part b


def pytorch(day, device):
    """Whether there is a PyTorch for the device; says why not."""
    need = "import tencache, torch"
    if device == "cuda":
        need += "; assert torch.version.cuda, 'this PyTorch has no CUDA'"
    done = subprocess.run([sys.executable, "-c", need], env=day.programs.environment, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    if done.returncode != 0:
        day.leave_out("pytorch", (done.stdout.strip().splitlines() or ["it cannot be imported"])[-1])
    return done.returncode == 0


def training(options):
    size = ["--width", "96", "--layers", "2", "--context", "32", "--batch", "2", "--steps", "5"] if options.small else [
        "--width", "768", "--layers", "12", "--context", "512", "--batch", "8", "--steps", "10"]
    return ["--program", "gpt", *size, "--device", options.device]


def run_python(day, options, machine, policy, memory, *words):
    """On a GPU as fast as it goes, unless the words say otherwise."""
    if options.device == "cuda" and "--gpu-allocator" not in words:
        words = [*RUN_AHEAD, *words]
    return [sys.executable, "-m", "tencache", "run", "python", "--device", options.device, "-m", machine, "-p", policy,
            "--no-pace", "--gpu-memory", memory, "--directory", day.scratch, *words, "--"]


def machine_of(day, options):
    """Of part a, if it ran."""
    machine = os.path.join(day.out, "machine.yaml")
    return machine if os.path.exists(machine) else calibrate(
        day, options.small, "cuda" if options.device == "cuda" else "host")


def part_b(day, options):
    if not pytorch(day, options.device):
        return
    # What is compiled at first use takes most of a minute: no part of what is timed.
    day.step("paging library", 150, [sys.executable, "-c", "from tencache._paging import Paging; "
                                     f"Paging.load({options.device!r}, print)"])
    machine = machine_of(day, options)
    program = [os.path.join(day.programs.bench, "live_programs.py"), *training(options)]
    plain, numbers = [], itertools.count(1)

    def run_plain():
        def figures(said):
            row = json_line(said, "seconds")
            plain.append(row)
            return {"median_ms": median_ms(row["seconds"]), "sha256": row["sha256"], "loss": row["loss"]}
        day.step(f"plain {next(numbers)}", 45, [sys.executable, *program], figures)

    def run_live(name, policy, memory, *words):
        prediction, result = (os.path.join(day.scratch, file) for file in ("prediction.json", "result.json"))

        def figures(said):
            row = json_line(said, "seconds")
            with open(prediction, encoding="utf-8") as file:
                predicted = json.load(file)
            with open(result, encoding="utf-8") as file:
                live = json.load(file)
            found = {"median_ms": median_ms(row["seconds"]), "loss": row["loss"],
                     "predicted_ms": round(1e3 * predicted["iteration_seconds"], 4) if predicted["fits"] else None,
                     "stall_seconds": live["stall_seconds"], "allocator": live["allocators"]["gpu"],
                     "same_bits": bool(plain) and all(row[key] == plain[0][key] for key in ("sha256", "loss"))}
            if plain and not found["same_bits"]:
                day.answers.setdefault("other bits", []).append(name)
            return found
        files = ["--prediction", prediction, "--json", result]
        day.step(name, 75, [*run_python(day, options, machine, policy, memory, *files, *words), *program], figures)

    run_plain()
    for policy in ("foresight", "lru"):
        for memory in ("200%", "60%", "50%"):  # of the peak in pages: the first is everything
            run_live(f"{policy} {memory}", policy, memory)
            if len(plain) < PLAIN_RUNS:
                run_plain()
    if options.device == "cuda":
        run_live("exact 60%", "foresight", "60%", *EXACT)
    steps, medians = day.answers["steps"], [median_ms(row["seconds"]) for row in plain]
    if len(medians) < 2:
        return
    usual = statistics.median(medians)
    for name, step in steps.items():
        if "predicted_ms" in step:
            step["times_plain"] = round(step["median_ms"] / usual, 4)
            if step["predicted_ms"]:
                step["times_predicted"] = round(step["median_ms"] / step["predicted_ms"], 4)
    day.note("plain of all", "passed", runs=len(medians), median_ms=usual, spread=(max(medians) - min(medians)) / usual)
    if day.answers.get("other bits"):
        day.note("bits", "failed", why="losses or parameters differ from plain PyTorch's: " +
                 ", ".join(day.answers["other bits"]))
    else:
        day.note("bits", "passed")


# ---- Part c


def generation(day, options, machine):
    need = subprocess.run([sys.executable, "-c", "import transformers"], env=day.programs.environment,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if need.returncode != 0:
        return day.leave_out("generation", "transformers is not here")
    program = os.path.join(day.programs.bench, "generation_programs.py")
    device = ["--device", options.device]
    sizes = {"tiny": ["--layers", "2", "--hidden", "64", "--feed-forward", "128", "--heads", "4", "--kv-heads", "2"]} \
        if options.small else {"1.1b": [], "3.8b": ["--layers", "16", "--hidden", "4096", "--feed-forward", "14336",
                                                    "--kv-heads", "8"]}
    for size, words in sizes.items():
        weights = os.path.join(day.scratch, size)
        if day.step(f"weights {size}", 60, [sys.executable, program, "make", weights, *words, "--rivals",
                                            *device]) is None:
            continue

        def figures(said):
            row = json_line(said, "seconds")
            return {"median_ms": median_ms(row["seconds"]), "sha256": row["sha256"],
                    "first_token_seconds": row["first_token"]}  # the weights are loaded by then
        tokens, memory = [], "70%" if options.small else "50%"  # an op of a small model needs half of it
        for name, before in (("plain", [sys.executable]),
                             ("foresight", run_python(day, options, machine, "foresight", memory)),
                             ("belady", run_python(day, options, machine, "belady", memory))):
            if day.step(f"{name} {size}", 90, [*before, program, "generate", "torch", weights, *device],
                        figures) is not None:
                tokens.append(day.answers["steps"][f"{name} {size}"]["sha256"])
        if len(tokens) > 1:
            same = len(set(tokens)) == 1
            day.note(f"tokens {size}", "passed" if same else "failed", **({} if same else {"why": "they differ"}))
        shutil.rmtree(weights, ignore_errors=True)


def profile(day, options):
    """A step of plain PyTorch as Kineto sees it, beside the durations that we record."""
    code = ("import sys, torch; from torch.profiler import profile, ProfilerActivity as A; "
            "d = sys.argv[1]; m = torch.nn.Sequential(*[torch.nn.Linear(512, 512, device=d) for _ in range(8)]); "
            "x = torch.ones(64, 512, device=d); m(x).sum().backward()\n"
            "with profile(activities=[A.CPU] + ([A.CUDA] if d == 'cuda' else [])) as p: m(x).sum().backward()\n"
            "p.export_chrome_trace(sys.argv[2])")
    path = os.path.join(day.logs, "profile.json")
    day.step("profile", 45, [sys.executable, "-c", code, options.device, path],
             lambda said: {"bytes": os.path.getsize(path)})


def part_c(day, options):
    if not pytorch(day, options.device):
        return
    profile(day, options)
    day.step("uses", 240, [sys.executable, day.programs.uses, "--device", options.device],
             lambda said: json_line(said, "ran"))
    generation(day, options, machine_of(day, options))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=SECONDS)
    parser.add_argument("out")
    parser.add_argument("--programs")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    programs = Programs(options.programs)
    for program in (programs.tencache, programs.cases, programs.probe):
        if not os.path.exists(program):
            parser.error(f"{program} is not there: build it, or name what was packed (--programs)")
    seconds = SECONDS[options.part] if options.seconds is None else options.seconds
    day = Day(options.part, os.path.abspath(options.out), seconds, programs)
    try:
        {"a": part_a, "b": part_b, "c": part_c}[options.part](day, options)
    finally:
        code = day.finish()
    return code


if __name__ == "__main__":
    sys.exit(main())
