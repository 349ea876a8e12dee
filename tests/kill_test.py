#!/usr/bin/env python3
"""Kills programs at random moments (SIGKILL) and looks at what is left.

    tests/kill_test.py [--kills 8] [--seed 1] [--program build/release/cli/tencache]

Of each kind of work (training with checkpoints, generating, importing, calibrating, a sweep, a timeline, a report) a
run that is left alone says what is right. Then it is killed at moments drawn with the seed, --kills times:
- what lies under the name of the output is what lay there before or the whole new content, never a part;
- no other file is left in the folder, nor in the folder of the swap files; but where the output replaces a file, the
  whole new content may lie under a second name (killed between being named and being renamed);
- going on (training from the last checkpoint, the sweep from its rows) ends with the very bits of the run that was left
  alone; all else gives them when it is run again. (The example that trains leaves a checkpoint that is not whole beside
  the last one.)
Prints the seed first and the number of kills survived last. Run by ctest with few kills; with many by hand.
"""
import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EXAMPLE = os.path.join(ROOT, "python", "examples", "gpt.py")

SWEEP = """\
name: kill
workloads: [{generate: {model: gpt2, batch: [1, 2, 4], seq: 64}}]
machines: [{name: g5.xlarge, gpu_memory: [2GiB, 3GiB, 4GiB, 6GiB]}]
policies: [on-demand, lru, belady, 10cache]
"""


class Failure(Exception):
    pass


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


class Work:
    """A command with an output; `same`: run again, it gives the same bytes."""

    def __init__(self, name, words, output, same=True, whole=None):
        self.name, self.words, self.output, self.same, self.whole = name, words, output, same, whole


class Killer:
    def __init__(self, program, folder, seed):
        self.program, self.folder, self.random, self.kills = program, folder, random.Random(seed), 0
        self.swap = os.path.join(folder, "swap")
        os.mkdir(self.swap)

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, words):
        return subprocess.Popen([self.program, *words], cwd=self.folder, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, start_new_session=True)

    def run(self, words):
        begin = time.monotonic()
        process = self.start(words)
        error = process.communicate()[1].decode()
        if process.returncode != 0:
            raise Failure(f"{' '.join(words)}: exit code {process.returncode}: {error}")
        return time.monotonic() - begin

    def kill(self, words, within):
        """Starts, kills with all that it started at a moment of `within` seconds. Whether it was still running."""
        process = self.start(words)
        time.sleep(self.random.random() * within)
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()
        if process.returncode == -signal.SIGKILL:
            self.kills += 1
            return True
        return False

    def expect_only(self, names, when):
        found = set(os.listdir(self.folder)) - {"swap"}
        if not found <= names:
            raise Failure(f"{when}: left behind: {sorted(found - names)}")
        if os.listdir(self.swap):
            raise Failure(f"{when}: left among the swap files: {os.listdir(self.swap)}")

    def second_names(self, output):
        return [name for name in os.listdir(self.folder) if name.startswith(output + ".tmp-")]

    def take_second_name(self, work, right):
        """Removes the whole new content where it lies under a temporary name; a part of it stays, to be found."""
        for name in self.second_names(work.output):
            if not work.same or digest(self.path(name)) == right:
                if work.whole:
                    self.run([word if word != work.output else name for word in work.whole])
                os.remove(self.path(name))

    def try_work(self, work, kills):
        names = set(os.listdir(self.folder)) - {"swap"} | {work.output}
        output = self.path(work.output)
        seconds = self.run(work.words)
        right = digest(output)
        for turn in range(kills):
            before = None
            if turn % 2 == 0:
                os.remove(output)  # killed before there ever was one
            else:
                with open(output, "w", encoding="utf-8") as file:
                    file.write("what was there before")
                before = digest(output)
            self.kill(work.words, 1.2 * seconds)
            if before is not None:
                self.take_second_name(work, right)
            self.expect_only(names, f"{work.name}, kill {turn}")
            now = digest(output) if os.path.exists(output) else None
            if now != before and (work.same and now != right):
                raise Failure(f"{work.name}, kill {turn}: {output} is neither as before nor whole")
            if now != before and work.whole:
                self.run(work.whole)
            if not os.path.exists(output):
                open(output, "w").close()
        self.run(work.words)
        if work.same and digest(output) != right:
            raise Failure(f"{work.name}: another output after the kills")
        os.remove(output)

    def try_training(self, kills):
        if subprocess.run([sys.executable, "-c", "import torch, tencache"], stderr=subprocess.DEVNULL).returncode != 0:
            print("training: skipped, Python has no torch or no tencache")
            return
        program, self.program = self.program, sys.executable
        try:
            self.train_and_kill(kills)
        finally:
            self.program = program

    def train_and_kill(self, kills):
        base = ["-m", "tencache", "run", "python", "-m", "small-host", "-p", "on-demand", "--gpu-memory", "2MiB",
                "--cpu-memory", "1MiB", "--directory", self.swap, "--", EXAMPLE, "--size", "tiny", "--steps", "30",
                "--checkpoint-every", "1"]
        killed = self.path("killed.checkpoint")
        seconds = self.run([*base, "--checkpoint", "alone.checkpoint", "--json", "alone.json"])
        names = {"alone.json", "alone.checkpoint", "killed.checkpoint", "killed.checkpoint.new"}
        words = [*base, "--checkpoint", "killed.checkpoint"]
        for turn in range(kills):
            resume = ["--resume", "killed.checkpoint"] if os.path.exists(killed) else []
            if not self.kill([*words, *resume], seconds) and os.path.exists(killed):
                os.remove(killed)  # it came to its end: from the beginning
            self.expect_only(names, f"training, kill {turn}")
        words = [word if word != "30" else "31" for word in base]  # one step more than any checkpoint has
        results = {}
        for name in ("alone", "killed"):
            resume = ["--resume", f"{name}.checkpoint"] if os.path.exists(self.path(f"{name}.checkpoint")) else []
            self.run([*words, "--checkpoint", f"{name}.checkpoint", "--json", f"{name}.json", *resume])
            with open(self.path(f"{name}.json"), encoding="utf-8") as file:
                results[name] = json.load(file)["weights_sha256"]
        if results["alone"] != results["killed"]:
            raise Failure("training: other weights after the kills")
        for name in names | {"killed.json"}:
            if os.path.exists(self.path(name)):
                os.remove(self.path(name))

    def try_sweep(self, kills):
        with open(self.path("sweep.yaml"), "w", encoding="utf-8") as file:
            file.write(SWEEP)
        seconds = self.run(["sweep", "sweep.yaml", "-o", "alone.sqlite", "--csv", "alone.csv"])
        for turn in range(kills):
            self.kill(["sweep", "sweep.yaml", "-o", "killed.sqlite", "--csv", "killed.csv"], 1.2 * seconds)
            for name in self.second_names("killed.csv"):
                os.replace(self.path(name), self.path("killed.csv"))
        self.run(["sweep", "sweep.yaml", "-o", "killed.sqlite", "--csv", "killed.csv"])
        if digest(self.path("alone.csv")) != digest(self.path("killed.csv")):
            raise Failure("sweep: other rows after the kills")
        for name in ("sweep.yaml", "alone.sqlite", "alone.csv", "killed.sqlite", "killed.csv"):
            os.remove(self.path(name))
        self.expect_only(set(), "sweep")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=8, help="of each kind of work (default 8)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program", default=os.environ.get("TENCACHE", os.path.join(ROOT, "build/release/cli/tencache")))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    sample = os.path.join(ROOT, "traces", "samples", "gpt-small.trace.jsonl.zst")
    with tempfile.TemporaryDirectory(dir=os.environ.get("TENCACHE_KILL_DIRECTORY")) as folder:
        killer = Killer(os.path.abspath(options.program), folder, options.seed)
        works = [
            Work("generate", ["generate", "--model", "opt-1.3b", "--batch", "8", "--seq", "512", "--gpu", "l40s",
                              "-o", "g.trace.jsonl.zst"], "g.trace.jsonl.zst"),
            Work("import", ["import", "trace", sample, "--strip-names", "-o", "i.trace.jsonl"], "i.trace.jsonl"),
            Work("timeline", ["replay", sample, "-m", "g5.xlarge", "--no-rescale", "-p", "10cache", "--gpu-memory", "80MiB",
                              "--timeline", "t.json"], "t.json"),
            Work("report", ["report", sample, "-o", "r.html"], "r.html"),
            Work("calibrate", ["calibrate", "--quick", "-o", "m.yaml"], "m.yaml", same=False,
                 whole=["compare", sample, "-m", "m.yaml", "--policies", "lru"]),
        ]
        try:
            for work in works:
                before = killer.kills
                killer.try_work(work, options.kills)
                print(f"{work.name}: {killer.kills - before} kills survived", flush=True)
            for name, kind in (("sweep", killer.try_sweep), ("training", killer.try_training)):
                before = killer.kills
                kind(options.kills)
                print(f"{name}: {killer.kills - before} kills survived", flush=True)
        except Failure as failure:
            print(f"seed {options.seed}: {failure}", file=sys.stderr)
            return 1
    print(f"{killer.kills} kills survived")
    return 0 if killer.kills else 1


if __name__ == "__main__":
    sys.exit(main())
