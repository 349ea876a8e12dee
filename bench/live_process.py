"""Whole processes, measured in turns: what the benchmarks of live runs share.

A turn is a run of plain PyTorch, one run of each rival, and plain PyTorch once more. It counts unless plain PyTorch's
step varies by more than 3 % within it: the interquartile range of the steps of both plain runs together, the first
three steps of each left out, over their median.
"""

import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
MIB = 1 << 20
WARM_UP = 3  # steps: one warms up, one is recorded, in the next the policy knows the schedule for the first time
MOST_VARIATION = 0.03


def skip(reason):
    print("skipped: " + reason)
    sys.exit(77)


def why_no_cgroup():
    """Empty where a Cgroup can be made."""
    if os.geteuid() != 0:
        return "only root may make cgroups"
    if Cgroup.FIRST.exists():
        return ""
    if not (Cgroup.SECOND / "cgroup.controllers").exists():
        return "there is no memory cgroup"
    if "memory" not in (Cgroup.SECOND / "cgroup.subtree_control").read_text():
        return "the memory controller of cgroups is not handed on (cgroup.subtree_control)"
    return ""


class Cgroup:
    """A memory cgroup of either version, with a limit or without."""

    FIRST, SECOND = pathlib.Path("/sys/fs/cgroup/memory"), pathlib.Path("/sys/fs/cgroup")

    def __init__(self, limit=None):
        self.first = self.FIRST.exists()
        self.folder = (self.FIRST if self.first else self.SECOND) / f"tencache-bench-{os.getpid()}"
        self.folder.mkdir()
        if limit is not None:
            (self.folder / ("memory.limit_in_bytes" if self.first else "memory.max")).write_text(str(limit))

    def enter(self):
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def private_bytes(self):
        """Of all its processes, what no file backs; memory that is mapped nowhere (of a memfd) included."""
        lines = dict(line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
        return int(lines["rss" if self.first else "anon"]) + int(lines["shmem"])

    def most_bytes(self):
        """Of all its memory, page cache included, so far."""
        return int((self.folder / ("memory.max_usage_in_bytes" if self.first else "memory.peak")).read_text())

    def remove(self):
        self.folder.rmdir()


def run(words, cgroup=None, environment=None, timeout=3600):
    """What the program's line of JSON says, with its median step and its memory: the process's at most, less what it had
    before the model. Where the cgroup saw more private memory than that, it is the cgroup's. Else {"failed", "said"}."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, **(environment or {})}, preexec_fn=cgroup.enter if cgroup else None)
    most, end = 0, time.monotonic() + timeout
    while True:
        try:
            out, errors = process.communicate(timeout=0.1 if cgroup else timeout)
            break
        except subprocess.TimeoutExpired:
            if time.monotonic() > end:
                process.kill()
                process.communicate()
                return {"failed": "time", "said": f"it ran longer than {timeout} s"}
            most = max(most, cgroup.private_bytes())
    lines = [line for line in out.splitlines() if line.startswith('{"seconds"')]
    if process.returncode != 0 or not lines:
        said = "killed, as it lacked memory" if process.returncode == -signal.SIGKILL else "nothing"
        return {"failed": process.returncode, "said": (errors.strip().splitlines() or [said])[-1]}
    result = json.loads(lines[0])
    result["median"] = statistics.median(result["seconds"][WARM_UP:])
    if cgroup:
        result.update(private_bytes=most, cgroup_bytes=cgroup.most_bytes())
    result["memory"] = max(result["bytes_at_most"] - result["bytes_before"], most - result["private_before"])
    return result


def memory(*names):
    """Of the calling process, in bytes: the sum of lines of /proc/self/status."""
    with open("/proc/self/status", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file)
    return sum(int(lines[name].split()[0]) * 1024 for name in names)


def memory_before():
    """Of a program before it makes its model."""
    return {"bytes_before": memory("VmRSS"), "private_before": memory("RssAnon", "RssShmem")}


def report(figures, before):
    """The line that `run` reads."""
    print(json.dumps({**figures, **before, "bytes_at_most": memory("VmHWM")}))


def calibrate(path, directory, python=sys.executable):
    """Writes a machine without CPU memory between tensors and files."""
    call = "import sys; from tencache import _core; _core.run(sys.argv[1:], {})"
    words = ["calibrate", "--no-cpu-tier", "-o", str(path), "--directory", directory]
    done = subprocess.run([python, "-c", call, *words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit("calibration fails: " + done.stderr.strip())


def must_run(words, **more):
    result = run(words, **more)
    if "failed" in result:
        sys.exit(f"{' '.join(map(str, words))} fails by itself: {result['said']}")
    return result


def both(first, last):
    """Two runs of the same program as one."""
    seconds = first["seconds"][WARM_UP:] + last["seconds"][WARM_UP:]
    low, _, high = statistics.quantiles(seconds, n=4)
    median = statistics.median(seconds)
    return {**first, "median": median, "medians": [first["median"], last["median"]], "variation": (high - low) / median,
            "memory": max(first["memory"], last["memory"])}


class Turns:
    def __init__(self, plain):
        """`plain`: runs plain PyTorch."""
        self.plain, self.rows = plain, []

    def take(self, rivals, label=""):
        """`rivals`: by name, what runs one."""
        first = self.plain()
        row = {name: rival() for name, rival in rivals.items()}
        row["plain"] = both(first, self.plain())
        self.rows.append(row)
        words = [f"{name} {one['median']:.3f} s" if "median" in one else f"{name} failed: {one['said']}"
                 for name, one in row.items()]
        print(f"{label or len(self.rows)}: {', '.join(words)}; plain varied by {row['plain']['variation']:.1%}"
              f"{'' if counts(row) else ': discarded'}", flush=True)
        return row

    def good(self):
        return [row for row in self.rows if counts(row)]

    def discarded(self):
        return len(self.rows) - len(self.good())

    def ratio(self, one, other):
        """The median over the turns that count; None where one of the two never ran."""
        ratios = [row[one]["median"] / row[other]["median"] for row in self.good()
                  if "median" in row[one] and "median" in row[other]]
        return statistics.median(ratios) if ratios else None


def counts(row):
    return row["plain"]["variation"] <= MOST_VARIATION


def require(turns, share=1.0):
    """Says how many turns do not count; ends the program where none does, or where more than `share` do not."""
    print(f"{turns.discarded()} of {len(turns.rows)} turns discarded")
    if not turns.good() or turns.discarded() > share * len(turns.rows):
        sys.exit("too few turns count")


def same_bits(rows):
    return all(len({one["sha256"] for one in row.values() if "sha256" in one}) == 1 for row in rows)
