#!/usr/bin/env python3
"""Makes the traces of `bench/model_gpu.py --anchor` from recordings on a CPU: the two programs of docs/cuda.md's table.

    PYTHONPATH=build/release/python python3 -m tencache run python -p on-demand --no-pace -m MACHINE \\
        --optimizer-tasks --record gpt-86m.trace.jsonl -- python/examples/gpt.py --size gpt2-bytes --steps 3
    PYTHONPATH=build/release/python python3 -m tencache run python -p on-demand --no-pace -m MACHINE \\
        --record gpt-92m.trace.jsonl -- bench/live_programs.py --program gpt --width 768 --layers 12 --context 512 \\
        --batch 8 --steps 3
    bench/anchor/make.py gpt-86m.trace.jsonl gpt-92m.trace.jsonl

The first is the model of the LibTorch trainer that ran on the H200; the second ran itself, with AdamW(foreach=True) and
zero_grad(set_to_none=True), which PyTorch 2.11 chooses on a GPU and 1.13, which recorded, does not. MACHINE has 4 GiB
of GPU memory for the second, so that lists are divided as they were there. What else a GPU does otherwise is changed
here:

- tensors of a few bytes that kernels of the CPU make of numbers are dropped; a GPU's get numbers as arguments
- counters of steps are tensors of the CPU: what adds to them and reads them is dropped
- `_foreach_add` of AdamW's epsilon works in place since PyTorch 2.0
- the trainer's optimizer had 5 million parameters a sub-group: a norm of each, one op that clips, an update of each

Durations are a roofline's (50 TFLOP/s in fp32, 4.3 TB/s, at least 2 us), scaled so that their sum is the step that
PyTorch alone took on the H200. Gaps are 0: the host's time is the model GPU's (issue_us).
"""
import json
import math
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
FLOPS, BYTES_A_SECOND, LEAST_NS = 50e12, 4.3e12, 2000
STEP_NS = {"gpt-86m": 41_600_000, "gpt-92m": 81_100_000}  # docs/cuda.md
HEADS_AND_BATCH = {"gpt-86m": 12, "gpt-92m": 6 * 8}
SUB_GROUP = 5_000_000


def read(path):
    with open(path, encoding="utf-8") as file:
        header, *lines = [json.loads(line) for line in file]
    return (header, {line["id"]: line for line in lines if line["kind"] == "tensor"},
            [line for line in lines if line["kind"] == "op"])


def drop_numbers(tensors, ops):
    numbers = {number for number, tensor in tensors.items() if tensor["role"] == "workspace" and tensor["bytes"] <= 8}
    counters = set()
    for op in ops:
        if op["name"] == "aten::_foreach_add_.Scalar" and all(tensors[read]["bytes"] <= 8 for read in op["reads"]):
            counters |= set(op["reads"])
    kept = []
    for op in ops:
        uses = set(op["reads"]) | set(op["writes"])
        if uses and uses <= numbers | counters:
            continue
        if op["phase"] == "optimizer" and op["name"] == "aten::_local_scalar_dense":
            continue
        for side in ("reads", "writes"):
            op[side] = [tensor for tensor in op[side] if tensor not in numbers | counters]
        kept.append(op)
    return kept


def add_in_place(tensors, ops):
    same = {}
    for op in ops:
        for side in ("reads", "writes"):
            op[side] = [same.get(tensor, tensor) for tensor in op[side]]
        if op["name"] == "aten::_foreach_add.Scalar":
            assert len(op["reads"]) == len(op["writes"])
            same.update(zip(op["writes"], op["reads"]))
            op["writes"] = list(op["reads"])
    return ops


def trainers_optimizer(tensors, ops):
    """In place of norms and updates of each parameter, which begin with the first norm behind the backward pass."""
    first = next(place for place, op in enumerate(ops) if op["name"].startswith("aten::norm"))
    updates = {}
    for op in ops:
        if op["name"].startswith("adamw."):
            roles = {}
            for read in op["reads"]:
                roles.setdefault(tensors[read]["role"], []).append(read)
            states = roles["optimizer_state"]
            for place, parameter in enumerate(roles["parameter"]):
                updates[parameter] = (roles["gradient"][place], states[2 * place:2 * place + 2])
    groups, elements = [], SUB_GROUP
    for parameter in sorted(updates):
        if elements >= SUB_GROUP:
            groups.append([])
            elements = 0
        groups[-1].append(parameter)
        elements += tensors[parameter]["bytes"] // 4
    more = []
    partials = []
    for _ in range(len(groups) + 1):
        partials.append(max(tensors) + 1)
        tensors[partials[-1]] = {"kind": "tensor", "name": "norm", "bytes": 4096, "role": "workspace",
                                 "persistent": False}

    def add(name, reads, writes):
        more.append({**ops[-1], "name": name, "phase": "optimizer", "module": "", "reads": reads, "writes": writes})
    for number, group in enumerate(groups):
        add(f"grad_norm.{number}", [updates[parameter][0] for parameter in group], [partials[number]])
    add("clip", partials[:-1], [partials[-1]])
    for number, group in enumerate(groups):
        states = [state for parameter in group for state in updates[parameter][1]]
        add(f"adamw.{number}", group + states + [updates[parameter][0] for parameter in group] + [partials[-1]],
            group + states)
    last = max(place for place, op in enumerate(ops) if op["name"].startswith("adamw."))
    return ops[:first] + more + ops[last + 1:]  # the next batch


def roofline_ns(tensors, op, batch):
    sizes = {side: [tensors[tensor]["bytes"] for tensor in op[side]] for side in ("reads", "writes")}
    name = op["name"]
    if name.startswith("aten::empty"):
        return 0
    seconds = (sum(sizes["reads"]) + sum(sizes["writes"])) / BYTES_A_SECOND
    if name in ("aten::mm", "aten::addmm", "aten::bmm") and len(sizes["reads"]) > 1:
        one, other = sorted(sizes["reads"])[-2:]
        elements = [size / 4 for size in (one, other, sum(sizes["writes"]))]
        flops = 2 * math.sqrt(math.prod(elements) / (batch if name == "aten::bmm" else 1))
        seconds = max(seconds, flops / FLOPS)
    return max(LEAST_NS, seconds * 1e9)


def write(name, header, tensors, ops):
    used = sorted({tensor for op in ops for tensor in op["reads"] + op["writes"]})
    new = {tensor: number for number, tensor in enumerate(used)}
    durations = [roofline_ns(tensors, op, HEADS_AND_BATCH[name]) for op in ops]
    scale = STEP_NS[name] / sum(durations)
    header.update(hardware="h200", tensor_count=len(used), op_count=len(ops),
                  recorded_by="bench/anchor/make.py, from tencache run python")
    lines = [header]
    lines += [{"kind": "tensor", "id": new[tensor], **{key: tensors[tensor][key] for key in
                                                      ("name", "bytes", "role", "persistent")}} for tensor in used]
    for number, (op, ns) in enumerate(zip(ops, durations)):
        lines.append({"kind": "op", "id": number, "name": op["name"], "phase": op["phase"], "device": "gpu",
                      "module": op["module"], "duration_ns": round(ns * scale), "duration_source": "modelled",
                      "reads": [new[tensor] for tensor in op["reads"]],
                      "writes": [new[tensor] for tensor in op["writes"]]})
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    path = os.path.join(HERE, f"{name}.trace.jsonl.zst")
    subprocess.run(["zstd", "-19", "-q", "-f", "-o", path], input=text.encode(), check=True)
    print(f"{path}: {len(ops)} ops, durations x {scale:.2f}, {os.path.getsize(path)} bytes")


def main():
    trainer, program = sys.argv[1:]
    header, tensors, ops = read(trainer)
    write("gpt-86m", header, tensors, trainers_optimizer(tensors, drop_numbers(tensors, ops)))
    header, tensors, ops = read(program)
    write("gpt-92m", header, tensors, add_in_place(tensors, drop_numbers(tensors, ops)))


if __name__ == "__main__":
    main()
