"""A PyTorch program in too little memory: the kernel's swap beside `tencache run python`.

    sudo python3 bench/against_swap.py --directory /mnt/nvme

Whole processes, in turns (bench/live_process.py says which turns count): the program without a limit; in a memory cgroup
with a swap file; and in the same cgroup, with the same swap file, under TenCache, whose tensors get --share of what is
alive at once. The limit is that share and --beside, for code and what else the interpreter needs in each step. The cgroup
counts all memory of a process and its page cache, libraries included: before each run the computer's page cache is
dropped, as a cgroup counts only what it has read itself. Swap file and TenCache's files lie on the same disk.
Needs root, swap, and a memory cgroup (version 1 or 2): says why not where one is missing, and ends with 77. Everything
that it makes it removes.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from live_process import HERE, MIB, Cgroup, Turns, calibrate, must_run, require, run, same_bits, skip, why_no_cgroup


class Swap:
    def __init__(self, directory, size):
        self.file = os.path.join(directory, "tencache-against-swap")
        with open(self.file, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        os.chmod(self.file, 0o600)
        subprocess.run(["mkswap", self.file], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def on(self):
        if subprocess.run(["swapon", self.file], stderr=subprocess.DEVNULL).returncode != 0:
            self.remove()
            skip("swap files are not allowed here")

    def off(self):
        subprocess.run(["swapoff", self.file], stderr=subprocess.DEVNULL)

    def remove(self):
        self.off()
        os.unlink(self.file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default="/var/tmp", help="for the swap file and TenCache's files")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--policy", default="foresight")
    parser.add_argument("--share", type=float, default=0.5, help="of what is alive at once, for tensors")
    parser.add_argument("--beside", type=int, default=192, help="MiB of the limit beside tensors")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--json", help="write every run's figures to this file")
    given = parser.parse_args()
    if reason := why_no_cgroup():
        skip(reason)
    program = [str(HERE / "live_programs.py"), "--program", "gpt", "--steps", str(given.steps)]
    machine = tempfile.NamedTemporaryFile(suffix=".yaml")
    calibrate(machine.name, given.directory, given.python)
    free = must_run([given.python, *program])

    def paged(memory, *more):
        return [given.python, "-m", "tencache", "run", "python", "-p", given.policy, "--gpu-memory", memory,
                "--machine", machine.name, "--no-pace", "--directory", given.directory, *more, "--", *program]

    with tempfile.NamedTemporaryFile(suffix=".json") as answer:  # builds its part and measures the disk, once, too
        run(paged("90%", "--json", answer.name))
        alive = json.load(answer)["live"]["peak_bytes"]
    tensors = int(given.share * alive)
    limit = tensors + given.beside * MIB
    print(f"{alive // MIB} MiB of tensors alive at once, {free['bytes_at_most'] // MIB} MiB of the process at most: "
          f"{tensors // MIB} MiB for tensors, {limit // MIB} MiB for the process", flush=True)
    turns = Turns(lambda: must_run([given.python, *program]))
    cgroup = Cgroup(limit)
    swap = Swap(given.directory, 2 * free["bytes_at_most"])

    def inside(words):
        os.sync()
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
            file.write("3")
        return run(words, cgroup)

    try:
        swap.on()
        for _ in range(given.turns):
            turns.take({"swap": lambda: inside([given.python, *program]), "tencache": lambda: inside(paged(f"{tensors}B"))})
    finally:
        swap.remove()
        cgroup.remove()
    if given.json:
        pathlib.Path(given.json).write_text(json.dumps(turns.rows, indent=1))
    require(turns)
    for name in ("swap", "tencache"):
        print(f"{name}: {turns.ratio(name, 'plain') or float('nan'):.2f} x plain")
    print(f"tencache is {turns.ratio('swap', 'tencache') or float('nan'):.2f} x as fast as swap")
    same = same_bits(turns.rows)
    print("the same bits" if same else "DIFFERENT BITS")
    sys.exit(0 if same and turns.ratio("swap", "tencache") else 1)


if __name__ == "__main__":
    main()
