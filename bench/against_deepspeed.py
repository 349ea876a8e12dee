"""A PyTorch program in little memory over NVMe: DeepSpeed beside `tencache run python`.

    sudo python3 bench/against_deepspeed.py --directory /mnt/nvme

A GPT of 86 million parameters (12 layers of width 768, 512 tokens, context 256, batch 1), fp32, AdamW, one thread.
DeepSpeed runs ZeRO stage 3 with parameters and optimizer offloaded to NVMe, in one process, on its CPU accelerator. It
runs twice: with its fastest and with its smallest buffers. Both are found before the turns: all of CONFIGURATIONS are
measured, for a few steps each; --fastest and --smallest name them instead. TenCache pages the plain program to files in
the same directory, with no CPU memory between, four times: at most in the memory that either DeepSpeed took in the
search, and at most in a quarter of that.

Whole processes, in turns (bench/live_process.py says which turns count). Memory is the process's at most, less what it
had after its imports, before the model. As root a cgroup is asked, too, and the larger figure counts: it knows of memory
that is mapped nowhere. Losses of DeepSpeed must be within 1 % of plain PyTorch's, TenCache's bits the same.

Ends with 0 if TenCache is at least 1.25 x as fast as DeepSpeed in its memory and takes at most 1.10 x the time of plain
PyTorch there, and is still faster than DeepSpeed in a quarter of its memory. Ends with 77 where this Python lacks
DeepSpeed or libaio's headers are missing. The first run builds parts of DeepSpeed, for minutes.

glibc keeps much of what DeepSpeed frees. --return-pages runs it with MALLOC_MMAP_THRESHOLD_=1000000, so that it does
not: its least memory halves, and its steps become slower.
"""

import argparse
import copy
import importlib.util
import json
import os
import pathlib
import socket
import sys
import tempfile

from live_process import HERE, MIB, Cgroup, Turns, must_run, require, run, same_bits, skip, why_no_cgroup

GPT = {"width": 768, "layers": 12, "vocabulary": 512, "context": 256, "batch": 1}
SHARED = pathlib.Path("/dev/shm")
LARGEST = 4 * 768 * 768  # parameters of one tensor

# What differs from DeepSpeed's defaults. Its buffers for parameters hold at least the largest tensor, those of the
# optimizer the largest sub-group; pipelining needs more of them. By default all parameters are one sub-group, and they
# stay in CPU memory, too (max_in_cpu).
GROUPS = {"sub_group_size": 20_000_000, "reduce_bucket_size": 10_000_000,
          "offload_param": {"buffer_size": 10_000_000, "buffer_count": 16}}
FRUGAL = {"sub_group_size": 2_000_000, "reduce_bucket_size": LARGEST, "stage3_prefetch_bucket_size": 0,
          "stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0, "stage3_param_persistence_threshold": 0,
          "offload_param": {"buffer_size": LARGEST, "buffer_count": 4, "max_in_cpu": 0, "pin_memory": False},
          "offload_optimizer": {"buffer_count": 4, "pin_memory": False}}


def merged(one, other):
    result = copy.deepcopy(one)
    for key, value in other.items():
        result[key] = merged(result.get(key, {}), value) if isinstance(value, dict) else value
    return result


CONFIGURATIONS = {
    "defaults": {},
    "unpinned": {"offload_param": {"pin_memory": False}, "offload_optimizer": {"pin_memory": False}},
    "fast_init": {"offload_optimizer": {"fast_init": True}},
    "no overlap": {"overlap_comm": False, "contiguous_gradients": False},
    "torch's AdamW": {"optimizer": "torch"},
    "groups": GROUPS,
    "pipelined groups": merged(GROUPS, {"offload_optimizer": {"buffer_count": 16, "pipeline_read": True,
                                                              "pipeline_write": True}}),
    "frugal": FRUGAL,
    "frugal, 16 buffers": merged(FRUGAL, {"offload_param": {"buffer_count": 16}}),
    "frugal, 1 buffer": merged(FRUGAL, {"offload_param": {"buffer_count": 1}}),
    "frugal, no bucket": merged(FRUGAL, {"contiguous_gradients": False, "overlap_comm": False,
                                         "offload_param": {"buffer_count": 1}}),
    "frugal, torch's AdamW": merged(FRUGAL, {"optimizer": "torch", "offload_param": {"buffer_count": 1}}),
    "frugal, small groups": merged(FRUGAL, {"sub_group_size": 1, "offload_param": {"buffer_count": 1}}),
}


# ---- DeepSpeed's process


def worker(name, steps, directory):
    import deepspeed
    import live_programs
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(0)
    program = live_programs.gpt(**GPT)
    before = live_programs.memory_before()
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        zero = merged({"stage": 3, "offload_param": {"device": "nvme", "nvme_path": folder},
                       "offload_optimizer": {"device": "nvme", "nvme_path": folder}}, CONFIGURATIONS[name])
        optimizer = zero.pop("optimizer", "deepspeed")
        configuration = {"train_micro_batch_size_per_gpu": GPT["batch"], "zero_optimization": zero,
                         "aio": {"block_size": 1 << 20, "queue_depth": 16}, "steps_per_print": sys.maxsize,
                         "zero_force_ds_cpu_optimizer": optimizer == "deepspeed"}
        deepspeed.init_distributed(dist_backend="gloo")
        with deepspeed.zero.Init(config_dict_or_path=configuration):
            model = program.make()
        kind = deepspeed.ops.adam.DeepSpeedCPUAdam if optimizer == "deepspeed" else torch.optim.AdamW
        engine = deepspeed.initialize(model=model, optimizer=kind(model.parameters(), lr=1e-4, weight_decay=0.01),
                                      config=configuration)[0]
        figures = live_programs.train(steps, lambda: program.loss(engine), engine.backward, engine.step)
    print()  # DeepSpeed may have left a line unfinished
    live_programs.report(figures, before)


def environment(return_pages):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    one = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
           "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_SIZE": "1"}
    return {**one, "MALLOC_MMAP_THRESHOLD_": "1000000"} if return_pages else one


# ---- Here


def why_no_deepspeed():
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("deepspeed") is None:
        return f"{sys.executable} has no torch or no deepspeed"
    os.environ["DS_ACCELERATOR"] = "cpu"
    from deepspeed.ops.op_builder import AsyncIOBuilder
    return "" if AsyncIOBuilder().is_compatible(verbose=False) else "DeepSpeed's async_io needs libaio's headers"


def search(measure, steps):
    """Every configuration's figures, of those that run."""
    found = {}
    for name in CONFIGURATIONS:
        result = measure(name, steps)
        if "failed" not in result:
            found[name] = result
        print(f"  {name}: " + (f"{result['median']:.2f} s, {result['memory'] // MIB} MiB" if "median" in result else
                               f"does not run: {result['said']}"), flush=True)
    return found


def say(turns, rows):
    print("\n| | s a step | x plain | x as fast as DeepSpeed | MiB |\n|---|---|---|---|---|")
    for name, rival in rows.items():
        ran = [row[name] for row in turns.good() if "median" in row[name]]
        if not ran:
            print(f"| {name} | failed: {turns.good()[-1][name]['said']} | | | |")
            continue
        faster = f"{turns.ratio(rival, name):.2f}" if rival else ""
        print(f"| {name} | {sorted(one['median'] for one in ran)[len(ran) // 2]:.2f} | {turns.ratio(name, 'plain'):.2f} "
              f"| {faster} | {max(one['memory'] for one in ran) // MIB} |")


def judge(turns, rows, memory):
    """`memory`: by name, what a run of TenCache may use."""
    misses = []
    for name, rival in rows.items():
        if name not in memory:
            continue
        speed, time = turns.ratio(rival, name), turns.ratio(name, "plain")
        if speed is None:
            misses.append(f"{name} does not run")
            continue
        used = max(row[name]["memory"] for row in turns.good() if "median" in row[name])
        quarter = "quarter" in name
        if used > memory[name]:
            misses.append(f"{name}: {used // MIB} MiB, more than {memory[name] // MIB}")
        if speed <= 1 or not quarter and speed < 1.25:
            misses.append(f"{name}: {speed:.2f} x as fast, less than {'1' if quarter else '1.25'}")
        if not quarter and time > 1.10:
            misses.append(f"{name}: {time:.2f} x plain, more than 1.10")
    for row in turns.rows:
        for name, one in row.items():
            if name.startswith("deepspeed") and "loss" in one and abs(one["loss"] / row["plain"]["loss"] - 1) > 0.01:
                misses.append(f"{name} ends with a loss of {one['loss']:.4f}, plain with {row['plain']['loss']:.4f}")
    if not same_bits(turns.rows):
        misses.append("TenCache's bits differ")
    return misses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default="/var/tmp", help="for the files of both")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--search-steps", type=int, default=6)
    parser.add_argument("--policy", default="foresight")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an option of the policy")
    parser.add_argument("--fastest", choices=CONFIGURATIONS)
    parser.add_argument("--smallest", choices=CONFIGURATIONS)
    parser.add_argument("--return-pages", action="store_true")
    parser.add_argument("--json", help="write every run's figures to this file")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        return worker(given.worker, given.steps, given.directory)
    if reason := why_no_deepspeed():
        skip(reason)
    cgroup = None if why_no_cgroup() else Cgroup()
    try:
        compare(given, cgroup)
    finally:
        if cgroup:
            cgroup.remove()


def compare(given, cgroup):
    program = [str(HERE / "live_programs.py"), "--program", "gpt", "--steps", str(given.steps)]
    program += [word for name, value in GPT.items() for word in ("--" + name, str(value))]

    def deepspeed(name, steps):
        words = [sys.executable, __file__, "--worker", name, "--steps", str(steps), "--directory", given.directory]
        before = set(SHARED.glob("deepspeed_*"))
        result = run(words, cgroup, environment(given.return_pages))
        for left in set(SHARED.glob("deepspeed_*")) - before:  # the cgroup would count it as the next one's
            left.unlink()
        return result

    def tencache(memory):
        words = ["-m", "tencache", "run", "python", "-p", given.policy, "--memory", f"{memory}B", "--directory",
                 given.directory, *(word for one in given.set for word in ("--set", one)), "--", *program]
        return run([sys.executable, *words], cgroup)

    deepspeed("defaults", 4)  # builds its parts, once
    plain = must_run([sys.executable, *program], cgroup=cgroup)
    paged = tencache(4 * plain["bytes_at_most"])
    if "failed" in paged:
        sys.exit(f"tencache fails by itself: {paged['said']}")
    print(f"plain: {plain['median']:.2f} s, {plain['memory'] // MIB} MiB after imports. DeepSpeed:", flush=True)
    named = [name for name in (given.fastest, given.smallest) if name]
    found = search(deepspeed, given.search_steps) if len(named) < 2 else {
        name: result for name in named if "failed" not in (result := deepspeed(name, given.search_steps))}
    if len(found) < len(set(named)) or not found:
        sys.exit("DeepSpeed does not run")
    chosen = {"fastest": given.fastest or min(found, key=lambda name: found[name]["median"]),
              "smallest": given.smallest or min(found, key=lambda name: found[name]["memory"])}
    rivals, rows, memory = {}, {"plain": None}, {}
    for kind, name in chosen.items():
        print(f"{kind}: {name}, {found[name]['memory'] // MIB} MiB")
        rivals[f"deepspeed, {kind}"] = lambda name=name: deepspeed(name, given.steps)
        rows[f"deepspeed, {kind}"] = None
        for part, share in (("its memory", 1), ("a quarter", 4)):
            row = f"tencache, {part} of the {kind}" if share > 1 else f"tencache, memory of the {kind}"
            memory[row] = found[name]["memory"] // share
            rivals[row] = lambda size=paged["bytes_before"] + memory[row]: tencache(size)
            rows[row] = f"deepspeed, {kind}"
    turns = Turns(lambda: must_run([sys.executable, *program], cgroup=cgroup))
    for _ in range(given.turns):
        turns.take(rivals)
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump({"chosen": chosen, "search": found, "memory": memory, "turns": turns.rows}, file, indent=1)
    require(turns)
    say(turns, rows)
    misses = judge(turns, rows, memory)
    print("\n" + ("\n".join("missed: " + miss for miss in misses) or "all of it met"))
    sys.exit(1 if misses else 0)


if __name__ == "__main__":
    main()
