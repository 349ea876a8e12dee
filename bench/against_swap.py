"""A PyTorch program in too little memory: the kernel's swap beside `tencache run python`.

    sudo python3 bench/against_swap.py --directory /mnt/nvme

Whole processes, in turns (bench/live_process.py says which turns count): the program without a limit; in a memory cgroup
that has half of the memory that its tensors need, with a swap file; and in the same cgroup under TenCache, with swap
off. The cgroup counts all memory of a process and its page cache; swap file and TenCache's files lie on the same disk.
Needs root, swap, and a memory cgroup (version 1 or 2): says why not where one is missing, and ends with 77. Everything
that it makes it removes.
"""

import argparse
import os
import subprocess
import sys

from live_process import HERE, MIB, Cgroup, Turns, must_run, require, run, same_bits, skip, why_no_cgroup


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
    parser.add_argument("--share", type=float, default=0.5, help="of the memory that tensors need")
    parser.add_argument("--python", default=sys.executable)
    given = parser.parse_args()
    if reason := why_no_cgroup():
        skip(reason)
    program = [str(HERE / "live_programs.py"), "--program", "gpt", "--steps", str(given.steps)]
    free = must_run([given.python, *program])
    limit = free["bytes_before"] + int(given.share * free["memory"])
    print(f"{free['bytes_before'] // MIB} MiB before the model, {free['memory'] // MIB} MiB for its tensors: the limit "
          f"is {limit // MIB} MiB", flush=True)
    paged = [given.python, "-m", "tencache", "run", "python", "-p", given.policy, "--memory", f"{limit}B",
             "--directory", given.directory, "--", *program]
    run(paged)  # builds its part and measures the disk, once
    turns = Turns(lambda: must_run([given.python, *program]))
    cgroup = Cgroup(limit)
    swap = Swap(given.directory, 2 * free["bytes_at_most"])

    def swapped():
        swap.on()
        result = run([given.python, *program], cgroup)
        swap.off()
        return result
    try:
        for _ in range(given.turns):
            turns.take({"swap": swapped, "tencache": lambda: run(paged, cgroup)})
    finally:
        swap.remove()
        cgroup.remove()
    require(turns)
    for name in ("swap", "tencache"):
        print(f"{name}: {turns.ratio(name, 'plain') or float('nan'):.2f} x plain")
    print(f"tencache is {turns.ratio('swap', 'tencache') or float('nan'):.2f} x as fast as swap")
    same = same_bits(turns.rows)
    print("the same bits" if same else "DIFFERENT BITS")
    sys.exit(0 if same and turns.ratio("swap", "tencache") else 1)


if __name__ == "__main__":
    main()
