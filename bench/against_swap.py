"""A PyTorch program in too little memory: the kernel's swap beside `tencache run python`.

    sudo python3 bench/against_swap.py --directory /mnt/nvme

Three whole processes, in turns: the program without a limit; in a memory cgroup that has half of the room that its
tensors need, with a swap file; and in the same cgroup under TenCache, with swap off. The cgroup counts all memory of a
process and its page cache; swap file and TenCache's files lie on the same disk. A turn counts if the program without a
limit takes within 3 % of its median of all turns. Needs root, swap, and a memory cgroup (version 1 or 2): says why not
where one is missing, and ends with 77. Everything that it makes it removes.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
MIB = 1 << 20


def skip(reason):
    print("skipped: " + reason)
    sys.exit(77)


class Cgroup:
    """A memory cgroup of either version."""

    def __init__(self, limit):
        one, two = pathlib.Path("/sys/fs/cgroup/memory"), pathlib.Path("/sys/fs/cgroup")
        self.first = (one / "memory.limit_in_bytes").exists()
        if not self.first and not (two / "cgroup.controllers").exists():
            skip("there is no memory cgroup")
        if not self.first and "memory" not in (two / "cgroup.subtree_control").read_text():
            skip("the memory controller of cgroups is not handed on (cgroup.subtree_control)")
        self.folder = (one if self.first else two) / "tencache-against-swap"
        self.folder.mkdir(exist_ok=True)
        (self.folder / ("memory.limit_in_bytes" if self.first else "memory.max")).write_text(str(limit))

    def enter(self):
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self):
        self.folder.rmdir()


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


def run(words, cgroup=None):
    done = subprocess.run(words, capture_output=True, text=True, preexec_fn=cgroup.enter if cgroup else None)
    if done.returncode != 0:
        return {"failed": done.returncode, "said": (done.stderr.strip().splitlines() or ["nothing"])[-1]}
    result = json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"seconds"')))
    result["median"] = statistics.median(result["seconds"][3:])
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default="/var/tmp", help="for the swap file and TenCache's files")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--policy", default="foresight")
    parser.add_argument("--share", type=float, default=0.5, help="of the room that tensors need")
    parser.add_argument("--python", default=sys.executable)
    given = parser.parse_args()
    if os.geteuid() != 0:
        skip("only root may make cgroups and swap files")
    program = [str(HERE / "live_gpt.py"), "--steps", str(given.steps)]
    free = run([given.python, *program])
    if "failed" in free:
        sys.exit("the program fails by itself: " + free["said"])
    room = free["bytes_at_most"] - free["bytes_before"]
    limit = free["bytes_before"] + int(given.share * room)
    print(f"{free['bytes_before'] // MIB} MiB before the model, {room // MIB} MiB for its tensors: the limit is "
          f"{limit // MIB} MiB", flush=True)
    paged = [given.python, "-m", "tencache", "run", "python", "-p", given.policy, "--memory", f"{limit}B",
             "--directory", given.directory, "--", *program]
    run(paged)  # builds its part and measures the disk, once
    swap, cgroup, turns = Swap(given.directory, 2 * free["bytes_at_most"]), Cgroup(limit), []
    try:
        for turn in range(given.turns):
            row = {"plain": run([given.python, *program])}
            swap.on()
            row["swap"] = run([given.python, *program], cgroup)
            swap.off()
            row["tencache"] = run(paged, cgroup)
            turns.append(row)
            print(turn + 1, ", ".join(f"{name} {one['median']:.3f} s" if "median" in one else
                                      f"{name} failed: {one['said']}" for name, one in row.items()), flush=True)
    finally:
        swap.remove()
        cgroup.remove()
    usual = statistics.median(row["plain"]["median"] for row in turns)
    good = [row for row in turns if abs(row["plain"]["median"] / usual - 1) <= 0.03 and
            all("median" in one for one in row.values())]
    print(f"{len(turns) - len(good)} of {len(turns)} turns discarded")
    if not good:
        sys.exit("no turn counts")
    same = {one["sha256"] for row in good for one in row.values()}
    for name in ("swap", "tencache"):
        print(f"{name}: {statistics.median(row[name]['median'] / row['plain']['median'] for row in good):.2f} x plain")
    print(f"tencache is {statistics.median(row['swap']['median'] / row['tencache']['median'] for row in good):.2f} x "
          f"as fast as swap; {'the same bits' if len(same) == 1 else 'DIFFERENT BITS'}")
    sys.exit(0 if len(same) == 1 else 1)


if __name__ == "__main__":
    main()
