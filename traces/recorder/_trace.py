"""Makes a trace (docs/trace-format.md) of what the observer has seen, and writes it."""

import json
import os
import statistics
import tempfile

from ._errors import RecorderError

# Numbers that became tensors, an optimizer's count of steps: below this nothing is worth moving, unless it has a name.
_SCALAR_BYTES = 64
_LOSS_OPS = ("_loss", "cross_entropy", "_log_softmax", "kl_div")


def _tensor_roles(step, roles):
    """Role, name and persistence of each tensor of the step, and the tensor that stands for it."""
    tensors = step["tensors"]
    stands_for = list(range(len(tensors)))
    outlived = {}  # made in this step and still there: in a cycle, what the step before has left to this one
    for index, tensor in enumerate(tensors):
        tensor["role"], tensor["name"] = roles.of.get(tensor["storage"], ("activation", ""))[:2]
        if tensor["old"] and not tensor["name"]:
            tensor["role"] = "input"
        kept = tensor["role"] in ("parameter", "optimizer_state", "master_parameter") or tensor["old"]
        tensor["persistent"] = tensor["alive"] and kept
        if tensor["alive"] and not kept:
            outlived.setdefault(tensor["bytes"], []).append(index)
    for index, tensor in enumerate(tensors):
        if not tensor["old"] or tensor["alive"]:
            continue
        partners = outlived.get(tensor["bytes"])
        if partners:
            stands_for[partners.pop(0)] = index
        else:
            tensor["persistent"] = True  # it is there when the step begins
    return stands_for


def _phases(ops):
    """Forward, loss, backward, optimizer. From the loss on all is loss until the backward pass begins; what comes after
    the last op of the backward pass belongs to the update."""
    last_backward = max((i for i, op in enumerate(ops) if op["phase"] == "backward"), default=len(ops))
    in_loss = False
    for index, op in enumerate(ops):
        if op["phase"] == "forward" and index > last_backward:
            op["phase"] = "optimizer"
        in_loss = op["phase"] == "forward" and (in_loss or any(part in op["name"] for part in _LOSS_OPS))
        if in_loss:
            op["phase"] = "loss"


def _times(ops, duration_ns):
    """Durations, and the idle time before each op; all of them together are the step."""
    end = 0
    for op in sorted(ops, key=lambda op: op["start_ns"]):
        op["gap_before_ns"] = max(0, op["start_ns"] - end)
        op["duration_ns"] = max(0, op["end_ns"] - max(op["start_ns"], end))
        end = max(end, op["end_ns"])
    if ops:
        ops[0]["gap_before_ns"] += max(0, duration_ns - end)


def _medians(steps):
    """The last step with the median of each duration and gap, scaled so that their sum is the median step's."""
    last = steps[-1]
    shape = [(op["name"], op["phase"], len(op["reads"]), len(op["writes"])) for op in last["ops"]]
    for number, other in enumerate(steps):
        if [(op["name"], op["phase"], len(op["reads"]), len(op["writes"])) for op in other["ops"]] != shape:
            raise RecorderError(f"step {number} of the {len(steps)} that were recorded has other ops than the last: "
                                "only steps that are alike can be recorded as one trace (steps=1 records a single one)")
    for figure in ("duration_ns", "gap_before_ns"):
        target = statistics.median(sum(op[figure] for op in step["ops"]) for step in steps)
        values = [statistics.median(step["ops"][i][figure] for step in steps) for i in range(len(shape))]
        scale = target / sum(values) if sum(values) > 0 else 1
        for op, value in zip(last["ops"], values):
            op[figure] = round(value * scale)
    return last


def make_trace(steps, modules, header, timed):
    """The lines of the trace, as objects. `steps`: what the observer gave, alike, each with its "roles"; `modules`:
    names by number; `timed`: durations mean something."""
    for step in steps:
        scalars = {i for i, tensor in enumerate(step["tensors"])
                   if tensor["bytes"] <= _SCALAR_BYTES and tensor["storage"] not in step["roles"].of}
        for op in step["ops"]:
            for key in ("reads", "writes"):
                op[key] = [tensor for tensor in op[key] if tensor not in scalars]
        step["ops"] = [op for op in step["ops"] if op["reads"] or op["writes"]]  # else its time is a gap
        _times(step["ops"], step["duration_ns"])
        _phases(step["ops"])
    step = _medians(steps) if len(steps) > 1 else steps[0]
    for op in step["ops"]:
        if not timed:
            op["duration_ns"] = op["gap_before_ns"] = 0
    roles = step["roles"]
    stands_for = _tensor_roles(step, roles)
    used = sorted({stands_for[t] for op in step["ops"] for t in op["reads"] + op["writes"]})
    for index, role in ((i, t) for i, t in enumerate(stands_for) if t != i):  # who came last knows its name best
        if not step["tensors"][role]["name"] and step["tensors"][index]["name"]:
            step["tensors"][role].update({k: step["tensors"][index][k] for k in ("name", "role")})
    lines, ids = [], {}

    def add_tensor(name, size, role, persistent):
        lines.append({"kind": "tensor", "id": len(lines), "name": name, "bytes": size, "role": role,
                      "persistent": persistent})
        return len(lines) - 1

    born = {}
    for number, op in enumerate(step["ops"]):
        for order, tensor in enumerate(op["writes"]):
            born.setdefault(stands_for[tensor], f"{op['name']}.{number}:{order}")
    for index in used:
        tensor = step["tensors"][index]
        name = tensor["name"] or born.get(index) or f"tensor.{index}"
        ids[index] = add_tensor(name, tensor["bytes"], tensor["role"], tensor["persistent"])
    seen = {tensor["storage"] for tensor in step["tensors"]}
    device = header.pop("device")
    for address, (role, name, size, kind) in roles.of.items():  # takes memory, though this step did not touch it
        if address not in seen and kind == device and role != "gradient":
            add_tensor(name, size, role, True)
    ops = []
    for number, op in enumerate(step["ops"]):
        reads, writes = ([*dict.fromkeys(ids[stands_for[t]] for t in op[key])] for key in ("reads", "writes"))
        if op["temporary_bytes"] > _SCALAR_BYTES:
            writes.append(add_tensor(f"{op['name']}.{number}:workspace", op["temporary_bytes"], "workspace", False))
        ops.append({"kind": "op", "id": number, "name": op["name"], "phase": op["phase"], "device": "gpu",
                    "module": modules[op["module"]] if op["module"] >= 0 else "", "duration_ns": op["duration_ns"],
                    "duration_source": "measured" if timed else "modelled", "gap_before_ns": op["gap_before_ns"],
                    "flops": op["flops"], "bytes": op["bytes"],
                    "reads": reads, "writes": writes})
    head = {"kind": "header", "format_version": 1, **header, "tensor_count": len(lines), "op_count": len(ops)}
    return [head] + lines + ops


def _compress(data):
    try:
        from compression import zstd  # Python 3.14
        return zstd.compress(data)
    except ImportError:
        pass
    try:
        import zstandard
        return zstandard.ZstdCompressor().compress(data)
    except ImportError:
        raise RecorderError("this Python has no zstd: name the file .trace.jsonl, or pip install zstandard") from None


def check_path(path):
    """Errors that would otherwise come after the training."""
    if not path.endswith((".jsonl", ".jsonl.zst")):
        raise RecorderError(f"{path}: name the trace .trace.jsonl or .trace.jsonl.zst")
    if path.endswith(".zst"):
        _compress(b"")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.access(folder, os.W_OK):
        raise RecorderError(f"{folder}: no such folder, or not writable")


def write_trace(lines, path):
    """The whole file or none."""
    data = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines).encode()
    descriptor, scratch = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(path)))
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_compress(data) if path.endswith(".zst") else data)
        os.chmod(scratch, 0o666 & ~_umask())
        os.replace(scratch, path)
    except BaseException:
        os.unlink(scratch)
        raise


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
