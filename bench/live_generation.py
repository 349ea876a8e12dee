"""Text generation in less memory than the weights take: TenCache beside Accelerate's disk_offload and llama.cpp.

    sudo python3 bench/live_generation.py --directory /mnt/nvme

Makes a Llama with random weights (bench/generation_programs.py), and lets each program generate the same tokens on the
same number of threads: PyTorch without a limit (Hugging Face's `generate`), the same program under TenCache,
Accelerate's disk_offload of it, and llama.cpp with mmap. The last three run as whole processes in a memory cgroup, page
cache counted. It may have --shares of the weights' bytes, and beside them what the interpreter with PyTorch takes
before it has a model (--beside; also for llama.cpp, which takes less). The computer's page cache is dropped before each
of them, as a cgroup counts only what it has read itself. The disk is read past the page cache before and after each
turn.

Prints tokens per second after the first four tokens, and the private memory and all memory of the cgroup at most. The
goal is the larger of PyTorch's time per token and the time in which the disk reads the weights that --shares leaves
out. bench/live_process.py says which turns count; the exit code is 1 if none does. Needs root, a memory cgroup (version
1 or 2), transformers, and what --rivals need; says why not where one is missing, and ends with 77. What it makes it
removes, unless --keep.
"""

import argparse
import importlib.util
import mmap
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import generation_programs
from live_process import HERE, MIB, Cgroup, Turns, calibrate, must_run, run, skip, why_no_cgroup

PACKAGES = {"accelerate": ("accelerate", "accelerate"), "llama-cpp": ("llama_cpp", "llama-cpp-python gguf")}
READERS, BLOCK = 4, 1 << 20


def check_packages(rivals):
    wanted = [("transformers", "torch transformers"), ("tencache", "tencache")] + [PACKAGES[name] for name in rivals]
    missing = [packages for module, packages in wanted if importlib.util.find_spec(module) is None]
    if missing:
        skip(f"packages are missing: pip install {' '.join(missing)} (or leave programs out with --rivals)")


def reading_seconds(path):
    """Of sequential reads of all of it, past the page cache, as many at once as TenCache has in flight."""
    blocks = os.path.getsize(path) // BLOCK

    def read(first):
        descriptor, buffer = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, BLOCK)
        for block in range(first, blocks, READERS):
            os.preadv(descriptor, [buffer], block * BLOCK)
        os.close(descriptor)
    threads = [threading.Thread(target=read, args=(first,)) for first in range(READERS)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - start


class Runner:
    """Programs as whole processes in a cgroup."""

    def __init__(self, timeout):
        self.timeout = timeout

    def free(self, words):
        return self._run(words, None)

    def limited(self, words, limit):
        os.sync()
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3", encoding="ascii")
        return self._run(words, limit)

    def _run(self, words, limit):
        cgroup = Cgroup(limit)
        try:
            return run(words, cgroup, timeout=self.timeout)
        finally:
            cgroup.remove()


def table(rows, shares, weights, beside):
    """A row a program: medians over these turns."""
    def median(name, key="median"):
        values = [row[name][key] for row in rows if key in row[name]]
        return statistics.median(values) if values else None

    def line(memory, name, row, goal=None):
        if median(row) is None:
            print(f"{memory:>16} {name:>10} failed: {rows[0][row]['said'][:80]}")
            return
        failed = sum("failed" in turn[row] for turn in rows)
        against = "" if goal is None else f"{median(row) / goal:.2f}"
        print(f"{memory:>16} {name:>10} {median(row):8.3f} {1 / median(row):9.2f} {against:>7} "
              f"{median(row, 'private_bytes') / MIB:11.0f} {median(row, 'cgroup_bytes') / MIB:10.0f} "
              f"{median(row, 'first_token'):11.1f}{f'; failed in {failed} turns' if failed else ''}")
    disk = statistics.mean((median("disk"), median("disk again")))
    print(f"{weights / 1e9:.3f} GB of weights; the disk reads {weights / disk / 1e9:.2f} GB/s")
    print(f"{'memory':>16} {'program':>10} {'s/token':>8} {'tokens/s':>9} {'x goal':>7} {'private MiB':>11} "
          f"{'cgroup MiB':>10} {'first token':>11}")
    line("all", "torch", "plain")
    for share in shares:
        goal = max(median("plain"), (1 - share) * disk)
        for row in [name for name in rows[0] if name.endswith(f"@{share}")]:
            line(f"{share:.0%} + {beside // MIB} MiB", row.split("@")[0], row, goal)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default="/var/tmp", help="for weights and TenCache's files")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 0.25], help="of the weights' bytes")
    parser.add_argument("--beside", type=int, help="MiB beside them (default: the plain program's before its model)")
    parser.add_argument("--rivals", nargs="*", choices=PACKAGES, default=list(PACKAGES))
    parser.add_argument("--policy", default="foresight")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--keep", metavar="FOLDER", help="for the weights, which are made unless they are there")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for a run")
    generation_programs.add_sizes(parser)
    generation_programs.add_lengths(parser)
    given = parser.parse_args()
    if reason := why_no_cgroup():
        skip(reason)
    check_packages(given.rivals)
    program = str(HERE / "generation_programs.py")
    temporary = None if given.keep else tempfile.mkdtemp(prefix="tencache-generation-", dir=given.directory)
    folder = pathlib.Path(given.keep or temporary)
    machine = tempfile.NamedTemporaryFile(suffix=".yaml")
    try:
        if not (folder / generation_programs.CHECKPOINT).exists():
            sizes = [word for name in [*generation_programs.SIZES, "dtype"]
                     for word in ("--" + name.replace("_", "-"), str(getattr(given, name)))]
            subprocess.run([given.python, program, "make", str(folder), *sizes, "--rivals", *given.rivals], check=True)
        measure(given, program, folder, machine.name)
    finally:
        if temporary:
            shutil.rmtree(temporary)


def measure(given, program, folder, machine):
    checkpoint = next((folder / generation_programs.CHECKPOINT).glob("*.safetensors"))
    weights = os.path.getsize(checkpoint)
    calibrate(machine, given.directory, given.python)

    def words(name):
        return [program, "generate", name, str(folder), "--prompt", str(given.prompt), "--new-tokens",
                str(given.new_tokens), "--threads", str(given.threads)]

    runner = Runner(given.timeout)

    def plain():
        result = runner.free([given.python, *words("torch")])
        return result if "failed" not in result else sys.exit("PyTorch fails without a limit: " + result["said"])
    first = plain()
    beside = first["bytes_before"] if given.beside is None else given.beside * MIB
    print(f"{weights / 1e9:.3f} GB of weights; {beside // MIB} MiB beside them", flush=True)

    def paged(limit):
        return [given.python, "-m", "tencache", "run", "python", "-p", given.policy, "--memory", f"{limit}B",
                "--machine", machine, "--no-pace", "--directory", given.directory, "--", *words("torch")]
    must_run(paged(2 * weights + 2 * beside))  # builds its part, outside

    def reading():
        return {"median": reading_seconds(checkpoint)}
    turns = Turns(plain)
    for _ in range(given.turns):
        rivals = {"disk": reading}
        for share in given.shares:
            limit = int(share * weights) + beside
            rivals[f"tencache@{share}"] = lambda limit=limit: runner.limited(paged(limit), limit)
            for name in given.rivals:
                call = [given.python, *words(name)]
                rivals[f"{name}@{share}"] = lambda call=call, limit=limit: runner.limited(call, limit)
        turns.take({**rivals, "disk again": reading})
    print(f"{turns.discarded()} of {len(turns.rows)} turns discarded" +
          ("" if turns.good() else ": none counts, and what follows is of all of them"))
    table(turns.good() or turns.rows, given.shares, weights, beside)
    ours = [one for row in turns.rows for name, one in row.items() if name.startswith("tencache@")]
    same = all(one.get("sha256") == first["sha256"] for one in ours)
    print("TenCache's tokens are PyTorch's" if same else "TENCACHE'S TOKENS DIFFER FROM PYTORCH'S")
    sys.exit(0 if same and turns.good() else 1)


if __name__ == "__main__":
    main()
