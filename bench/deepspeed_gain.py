#!/usr/bin/env python3
"""A gain that `tencache tune` predicts for DeepSpeed, beside the one that is measured.

A small GPT is trained with ZeRO stage 3, parameters and optimizer offloaded to CPU memory, on DeepSpeed's CPU accelerator
(DS_ACCELERATOR=cpu): two ranks of one thread each, fp32. There the "GPU's" memory is ordinary memory too, and a parameter
that one rank has alone is fetched without a copy: with two it is gathered from both, which stands for the copy to a GPU.

1. Plain PyTorch is measured, on both ranks at once: its forward and backward pass, gathering and scattering, DeepSpeed's
   CPU Adam. From that come a trace (each leaf module an op, of the time its share of the matrix products) and a machine.
2. DeepSpeed is measured under its defaults, for the one figure that is fitted: host time of its hooks a module call.
3. `tencache tune --from-deepspeed frugal.json --deepspeed tuned.json`, from a configuration that keeps nothing on the GPU.
   The prediction is written and hashed before the next step.
4. DeepSpeed is measured under the defaults, the frugal and the tuned configuration, interleaved.

reduce_bucket_size is 2e6 throughout, a sixteenth of the model: what 5e8 costs a CPU is not modelled. A run's time is its
fastest step after three.

    bench/deepspeed_gain.py build/release/cli/tencache --python /path/to/venv/bin/python

With --nvme FOLDER the frugal configuration keeps the optimizer's states in that folder (DeepSpeed's async_io, for which its
Python needs libaio's headers), in sub-groups of 4e6 that are read, updated and written one after the other; the tuned one
is the best with the states there. The folder's file system is measured by direct reads and writes of 64 MiB.

Skips, with exit code 0, where that Python lacks torch or deepspeed. Nothing else may run meanwhile.
"""
import argparse
import hashlib
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time

RANKS, LAYERS, HIDDEN, VOCABULARY, TOKENS = 2, 8, 512, 8192, 128
BUCKET = 2_000_000
FRUGAL = {"stage3_prefetch_bucket_size": 0, "stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0,
          "stage3_param_persistence_threshold": 0}


def on_nvme(folder):
    """What a frugal configuration with the states on NVMe has beside `configuration()`."""
    return {"sub_group_size": 4_000_000,
            "offload_optimizer": {"device": "nvme", "nvme_path": folder, "buffer_count": 4, "pin_memory": False,
                                  "pipeline_read": False, "pipeline_write": False}}


def configuration(**keys):
    offload = {"device": "cpu"}
    return {"train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": 3, "reduce_bucket_size": BUCKET, "offload_param": offload,
                                  "offload_optimizer": offload, **keys}}


# ---- In the other Python: prints one JSON object in a line that begins with RESULT.

def build_model(torch):
    functional = torch.nn.functional

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = torch.nn.LayerNorm(HIDDEN), torch.nn.LayerNorm(HIDDEN)
            self.qkv, self.out = torch.nn.Linear(HIDDEN, 3 * HIDDEN), torch.nn.Linear(HIDDEN, HIDDEN)
            self.up, self.down = torch.nn.Linear(HIDDEN, 4 * HIDDEN), torch.nn.Linear(4 * HIDDEN, HIDDEN)

        def forward(self, x):
            batch, tokens, _ = x.shape
            q, k, v = (part.view(batch, tokens, -1, 64).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, HIDDEN))
            return x + self.down(functional.gelu(self.up(self.norm2(x))))

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = torch.nn.Embedding(VOCABULARY, HIDDEN)
            self.positions = torch.nn.Embedding(TOKENS, HIDDEN)
            self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm = torch.nn.LayerNorm(HIDDEN)
            self.head = torch.nn.Linear(HIDDEN, VOCABULARY, bias=False)

        def forward(self, ids):
            x = self.tokens(ids) + self.positions(torch.arange(TOKENS))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Model()


def worker(what, steps):
    import deepspeed
    import torch
    torch.manual_seed(0)
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    times = []

    def train(forward, backward, step):
        ids = torch.randint(0, VOCABULARY, (1, TOKENS + 1))
        for _ in range(steps):
            moments = [time.perf_counter()]
            logits = forward(ids[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
            for part in (lambda: None, lambda: backward(loss), step):
                part()
                moments.append(time.perf_counter())
            times.append([b - a for a, b in zip(moments, moments[1:])])
        return loss.item()

    result = {}
    if what == "plain":
        model = build_model(torch)
        optimizer = deepspeed.ops.adam.DeepSpeedCPUAdam(model.parameters(), lr=1e-4)

        def step():
            optimizer.step()
            optimizer.zero_grad()

        result["loss"] = train(model, lambda loss: loss.backward(), step)
        result["modules"] = [[name, [[n, p.numel()] for n, p in module.named_parameters()], type(module).__name__]
                             for name, module in model.named_modules() if not list(module.children())]
        for name, elements in [("small", 2 ** 10), ("large", 2 ** 22)]:
            whole, part = torch.zeros(elements), torch.zeros(elements // RANKS)
            for way, call in [("gather", lambda: torch.distributed.all_gather_into_tensor(whole, part)),
                              ("scatter", lambda: torch.distributed.reduce_scatter_tensor(part, whole))]:
                seconds = []
                for _ in range(20):
                    begin = time.perf_counter()
                    call()
                    seconds.append(time.perf_counter() - begin)
                result[f"{way}_{name}"] = statistics.median(seconds)
    else:
        with open(what) as file:
            config = json.load(file)
        with deepspeed.zero.Init(config_dict_or_path=config):
            model = build_model(torch)
        optimizer = deepspeed.ops.adam.DeepSpeedCPUAdam(model.parameters(), lr=1e-4)
        engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
        result["loss"] = train(engine, engine.backward, engine.step)
    warm = times[3:]
    result["phases"] = min(warm, key=sum)
    result["step"] = sum(result["phases"])
    result["versions"] = f"torch {torch.__version__}, deepspeed {deepspeed.__version__}"
    if torch.distributed.get_rank() == 0:
        print("RESULT" + json.dumps(result))


# ---- Here.

def measure(python, what, steps):
    """What the first rank says."""
    words = [python, os.path.abspath(__file__), "--worker", what, "--steps", str(steps)]
    common = {**os.environ, "DS_ACCELERATOR": "cpu", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531",
              "WORLD_SIZE": str(RANKS), "LOCAL_SIZE": str(RANKS), "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(RANKS)]
    answers = [rank.communicate() for rank in ranks]
    lines = [line for line in answers[0][0].splitlines() if line.startswith("RESULT")]
    if any(rank.returncode != 0 for rank in ranks) or not lines:
        sys.exit(f"deepspeed_gain: the run of {what} failed:\n{answers[0][1][-2000:]}")
    return json.loads(lines[0].removeprefix("RESULT"))


def write_trace(plain, path):
    """Of each leaf module one op a pass. An embedding's time is a hundredth of a product's of its size. The step begins
    when the backward pass is over."""
    tensors, ops, updates = [], [], []

    def tensor(name, size, role, persistent):
        tensors.append({"kind": "tensor", "id": len(tensors), "name": name, "bytes": 4 * size, "role": role,
                        "persistent": persistent})
        return len(tensors) - 1

    def op(name, phase, module, seconds, reads, writes, **more):
        ops.append({"kind": "op", "id": len(ops), "name": name, "phase": phase, "device": "gpu", "module": module,
                    "duration_ns": round(seconds * 1e9), "duration_source": "modelled", **more, "reads": reads,
                    "writes": writes})

    modules = [m for m in plain["modules"] if m[1]]
    work = [sum(size for _, size in parameters) * (0.01 if kind == "Embedding" else 1)
            for _, parameters, kind in modules]
    forward, backward, step = plain["phases"]
    parameters = [[tensor(f"{name}.{part}", size, "parameter", True) for part, size in own] for name, own, _ in modules]
    activations = [tensor(f"{name}.output", TOKENS * HIDDEN, "activation", False) for name, _, _ in modules]
    total = sum(size for _, own, _ in modules for _, size in own)
    for i, (name, _, _) in enumerate(modules):
        op("forward", "forward", name, forward * work[i] / sum(work), activations[max(0, i - 1):i] + parameters[i],
           [activations[i]])
    for i, (name, own, _) in reversed(list(enumerate(modules))):
        gradients = [tensor(f"{name}.{part}.gradient", size, "gradient", False) for part, size in own]
        op("backward", "backward", name, backward * work[i] / sum(work), [activations[i]] + parameters[i], gradients)
        for (part, size), parameter, gradient in zip(own, parameters[i], gradients):
            states = [tensor(f"{name}.{part}.{state}", size, role, True) for state, role in
                      [("master", "master_parameter"), ("m", "optimizer_state"), ("v", "optimizer_state")]]
            updates.append((f"update {name}.{part}", step * size / total, parameter, gradient, states))
    over = tensor("backward pass is over", 1, "activation", False)
    ops[-1]["writes"].append(over)
    for i, (name, seconds, parameter, gradient, states) in enumerate(updates):
        op(name, "optimizer", "optimizer", seconds, [gradient] + states + ([over] if i == 0 else []),
           states + [parameter], group=0, placeable=True)
    with open(path, "w") as file:
        header = {"kind": "header", "format_version": 1, "model": "small GPT", "batch": 1, "sequence_length": TOKENS,
                  "precision": "fp32", "recorded_by": "bench/deepspeed_gain.py"}
        for line in [header, *tensors, *ops]:
            file.write(json.dumps(line) + "\n")
    return total


def storage_seconds(folder):
    """Of a direct write and a direct read of 64 MiB, the medians of five."""
    size, seconds = 64 << 20, ([], [])
    buffer = mmap.mmap(-1, size)
    buffer.write(os.urandom(1 << 20) * 64)
    path = os.path.join(folder, "deepspeed_gain.bin")
    file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_DIRECT)
    try:
        for _ in range(5):
            for times, call in zip(seconds, [lambda: os.pwrite(file, buffer, 0), lambda: os.preadv(file, [buffer], 0)]):
                begin = time.perf_counter()
                call()
                times.append(time.perf_counter() - begin)
    finally:
        os.close(file)
        os.unlink(path)
    return [statistics.median(times) for times in seconds]


def write_machine(plain, parameters, per_module_seconds, path, nvme=None):
    """Each rank updates its part of the parameters. `nvme`: storage_seconds()."""
    links = ""
    for name, ends, way in [("h2d", "from: cpu, to: gpu", "gather"), ("d2h", "from: gpu, to: cpu", "scatter")]:
        latency, seconds = plain[f"{way}_small"], plain[f"{way}_large"]
        links += (f"  - {{name: {name}, {ends}, bandwidth: {2 ** 24 / max(1e-6, seconds - latency):.0f}B/s, "
                  f"latency: {1e9 * latency:.0f}ns}}\n")
    tier = ""
    if nvme:
        tier = "  - {name: nvme, kind: nvme, capacity: 16GiB, granularity: 4KiB}\n"
        for name, ends, seconds in [("nvme_write", "from: cpu, to: nvme", nvme[0]),
                                    ("nvme_read", "from: nvme, to: cpu", nvme[1])]:
            links += f"  - {{name: {name}, {ends}, bandwidth: {2 ** 26 / seconds:.0f}B/s, latency: 100us}}\n"
        links += "staging: {tier: cpu, count: 16, bytes: 16MiB}\n"
    with open(path, "w") as file:
        file.write(f"""\
name: deepspeed-on-a-cpu
tiers:
  - {{name: gpu, kind: gpu, capacity: 4GiB, granularity: 4KiB}}
  - {{name: cpu, kind: cpu, capacity: 8GiB, granularity: 4KiB}}
{tier}links:
{links}initial_tier: cpu
host: {{per_module: {max(0, per_module_seconds) * 1e9:.0f}ns}}
cpu: {{adam_parameters_per_second: {RANKS * parameters / plain["phases"][2]:.0f}}}
""")


def tencache(arguments, *words):
    done = subprocess.run([arguments.tencache, *words, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"deepspeed_gain: {' '.join(words)}: {done.stderr}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tencache", nargs="?", default="build/release/cli/tencache")
    parser.add_argument("--python", default=sys.executable, help="that has torch and deepspeed")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--nvme", metavar="FOLDER", help="optimizer states in files of this folder")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments.worker, arguments.steps)
    probe = subprocess.run([arguments.python, "-c", "import torch, deepspeed"], capture_output=True, text=True,
                           env={**os.environ, "DS_ACCELERATOR": "cpu"})
    if probe.returncode != 0:
        print(f"deepspeed_gain: skipped: {arguments.python} has no deepspeed with torch "
              f"({probe.stderr.strip().splitlines()[-1]})")
        return
    with tempfile.TemporaryDirectory() as folder:
        file = {name: os.path.join(folder, name) for name in
                ["defaults.json", "frugal.json", "tuned.json", "step.trace.jsonl", "machine.yaml"]}
        frugal = configuration(**(on_nvme(arguments.nvme) if arguments.nvme else FRUGAL))
        for name, config in [("defaults.json", configuration()), ("frugal.json", frugal)]:
            with open(file[name], "w") as output:
                json.dump(config, output)
        plain = measure(arguments.python, "plain", arguments.steps)
        parameters = write_trace(plain, file["step.trace.jsonl"])
        write_machine(plain, parameters, 0, file["machine.yaml"])
        replay = ["replay", file["step.trace.jsonl"], "-m", file["machine.yaml"], "-p", "zero-infinity", "--set",
                  f"reduce_bucket={BUCKET}"]
        without_hooks = tencache(arguments, *replay)["iteration_seconds"]
        fitted = measure(arguments.python, file["defaults.json"], arguments.steps)["step"]
        calls = 2 * sum(1 for module in plain["modules"] if module[1]) - 1  # the last and its backward pass are one
        per_module = (fitted - without_hooks) / calls
        storage = storage_seconds(arguments.nvme) if arguments.nvme else None
        write_machine(plain, parameters, per_module, file["machine.yaml"], storage)
        fixed = ["--set", f"reduce_bucket={BUCKET}"] + (["--set", "offload_optimizer=nvme"] if arguments.nvme else [])
        tuned = tencache(arguments, "tune", *replay[1:4], *fixed, "--from-deepspeed", file["frugal.json"],
                         "--deepspeed", file["tuned.json"])
        predicted = {"defaults": tencache(arguments, *replay)["iteration_seconds"],
                     "frugal": tuned["start"]["iteration_seconds"][0], "tuned": tuned["best"]["iteration_seconds"][0]}
        if arguments.nvme:
            print(f"storage: writes {64 / 1024 / storage[0]:.2f} GiB/s, reads {64 / 1024 / storage[1]:.2f} GiB/s")
        text = json.dumps(predicted)
        print(f"{plain['versions']}; {parameters / 1e6:.1f} million parameters; plain PyTorch "
              f"{1e3 * plain['step']:.0f} ms a step; gathering 16 MiB takes {1e3 * plain['gather_large']:.1f} ms")
        print(f"fitted on the defaults: {1e6 * per_module:.0f} us a module call")
        print(f"tuned: {json.dumps(tuned['best']['settings'])}")
        print(f"predicted before it is measured: {text}\nsha256 {hashlib.sha256(text.encode()).hexdigest()}")
        measured = {name: [] for name in predicted}
        for _ in range(arguments.turns):
            for name in predicted:
                measured[name].append(measure(arguments.python, file[name + ".json"], arguments.steps)["step"])
        print(f"\n{'':10} {'predicted':>10} {'measured, median (least to most)':>36} {'error':>8}")
        for name, seconds in predicted.items():
            runs = measured[name]
            middle = statistics.median(runs)
            # What equals the defaults' prediction was fitted.
            error = "fitted" if seconds == predicted["defaults"] else f"{100 * (seconds / middle - 1):+.1f} %"
            print(f"{name:10} {1e3 * seconds:7.0f} ms {1e3 * middle:14.0f} ms ({1e3 * min(runs):.0f} to "
                  f"{1e3 * max(runs):.0f}) {error:>18}")
        for name in ["frugal", "defaults"]:
            pairs = [a / b for a, b in zip(measured[name], measured["tuned"])]
            print(f"gain over {name}: predicted {predicted[name] / predicted['tuned']:.3f}, measured "
                  f"{statistics.median(pairs):.3f} ({min(pairs):.3f} to {max(pairs):.3f})")


if __name__ == "__main__":
    main()
