"""Makes a trace (docs/trace-format.md) of what the observer has seen, and writes it."""

import collections
import json
import os
import statistics
import tempfile

from . import _choices, _experts
from ._errors import RecorderError

# Numbers that became tensors, an optimizer's count of steps: nothing worth moving, unless it has a name.
_SCALAR_BYTES = 8
_LOSS_OPS = ("_loss", "cross_entropy", "_log_softmax", "kl_div")


def _tensor_roles(step):
    """Role, name and persistence of each tensor of the step, and the tensor that stands for it. In a cycle what the
    step before has left to this one is what this one leaves to the next: they are one tensor, which is there when the
    step begins."""
    tensors = step["tensors"]
    made_by = {}
    for op in step["ops"]:
        for index in op["writes"]:
            made_by.setdefault(index, op)
    stands_for = list(range(len(tensors)))
    left_by_name, left_by_bytes = {}, {}
    for index, tensor in enumerate(tensors):
        known = step["roles_before"].of if tensor["old"] and not tensor["alive"] else step["roles"].of
        tensor["role"], tensor["name"] = known.get(tensor["storage"], ("activation", ""))[:2]
        if tensor["old"] and not tensor["name"]:
            tensor["role"] = "input"
        elif tensor["role"] == "activation" and index in made_by:
            op = made_by[index]
            if op["phase"] == "backward" and not op["graph"]:  # else an activation that is computed again
                tensor["role"] = "gradient"
            elif op["phase"] == "optimizer" and not tensor["alive"]:
                tensor["role"] = "workspace"
        kept = tensor["old"] or tensor["role"] in ("parameter", "optimizer_state", "master_parameter")
        tensor["persistent"] = tensor["alive"] and kept
        if tensor["alive"] and not tensor["old"]:
            if tensor["name"]:
                left_by_name[tensor["name"]] = index
            else:
                left_by_bytes.setdefault(tensor["bytes"], []).append(index)
    for index, tensor in enumerate(tensors):
        if not tensor["old"] or tensor["alive"]:
            continue
        tensor["persistent"] = True
        if tensor["name"]:
            partner = left_by_name.pop(tensor["name"], None)
        else:
            partner = next(iter(left_by_bytes.get(tensor["bytes"], [])), None)
            if partner is not None:
                left_by_bytes[tensor["bytes"]].pop(0)
        if partner is not None:
            stands_for[partner] = index
            tensor["bytes"] = max(tensor["bytes"], tensors[partner]["bytes"])
    return stands_for


def _add_up_in_place(ops, tensors, stands_for):
    """Autograd adds gradients up in place where nobody else has the first one, but not those of fake tensors."""
    last_use = {}
    for number, op in enumerate(ops):
        for index in op["reads"] + op["writes"]:
            last_use[index] = number
    for number, op in enumerate(ops):
        if not op["sum"] or len(op["reads"]) != 2 or len(op["writes"]) != 1:
            continue
        first, result = op["reads"][0], op["writes"][0]
        mine = not tensors[first]["old"] and not tensors[first]["alive"] and not tensors[first]["name"]
        if mine and last_use[first] == number and tensors[first]["bytes"] == tensors[result]["bytes"]:
            stands_for[result] = stands_for[first]


def _phases(ops, root):
    """Forward, loss, backward, optimizer. The loss is what follows the last op of a module in a forward pass, from the
    first op of a loss on; what comes after the last op of the backward pass belongs to the update. `root`: the number
    of the whole model, which computes the loss itself at times."""
    last_backward = max((i for i, op in enumerate(ops) if op["phase"] == "backward"), default=len(ops))
    after_modules = True  # seen from the end of the forward pass
    for index in range(len(ops) - 1, -1, -1):
        op = ops[index]
        if op["phase"] != "forward":
            after_modules = True
            continue
        after_modules = after_modules and op["module"] in (-1, root)
        if index > last_backward:
            op["phase"] = "optimizer"
        elif after_modules:
            op["phase"] = "after"
    in_loss = False
    for op in ops:
        in_loss = op["phase"] == "after" and (in_loss or any(part in op["name"] for part in _LOSS_OPS))
        if op["phase"] == "after":
            op["phase"] = "loss" if in_loss else "forward"


def _times(ops, duration_ns):
    """Durations, and the idle time before each op; all of them together are the step."""
    end = 0
    for op in sorted(ops, key=lambda op: op["start_ns"]):
        op["gap_before_ns"] = max(0, op["start_ns"] - end)
        op["duration_ns"] = max(0, op["end_ns"] - max(op["start_ns"], end))
        end = max(end, op["end_ns"])
    if ops:
        ops[0]["gap_before_ns"] += max(0, duration_ns - end)


def _shape(op):
    return op["name"], op["phase"], op["bytes"], len(op["reads"]), len(op["writes"])


def _medians(steps):
    """The last step with the median of each duration and gap, scaled so that their sum is the median step's."""
    last = steps[-1]
    shape = [_shape(op) for op in last["ops"]]
    for number, other in enumerate(steps):
        shapes = [_shape(op) for op in other["ops"]]
        if shapes != shape:
            at = next((i for i, pair in enumerate(zip(shapes, shape)) if pair[0] != pair[1]),
                      min(len(shapes), len(shape)))
            raise RecorderError(f"step {number} of the {len(steps)} that were recorded has other ops than the last, or "
                                f"ops of other sizes, from op {at} on: only steps that are alike can be recorded as "
                                "one trace (steps=1 records a single one)")
    for figure in ("duration_ns", "gap_before_ns"):
        target = statistics.median(sum(op[figure] for op in step["ops"]) for step in steps)
        values = [statistics.median(step["ops"][i][figure] for step in steps) for i in range(len(shape))]
        scale = target / sum(values) if sum(values) > 0 else 1
        for op, value in zip(last["ops"], values):
            op[figure] = round(value * scale)
    return last


def _numbers_in_names(ops):
    """The number that the results of each op are named by: its own. What is computed again has that of the forward
    pass: by the same names the program tells what is recomputed."""
    made, numbers = collections.defaultdict(collections.deque), []
    for number, op in enumerate(ops):
        before = made[op["name"], op["module"]]
        if op["phase"] in ("forward", "loss"):
            before.append(number)
        again = op["phase"] == "backward" and op["graph"] and before
        numbers.append(before.popleft() if again else number)
    return numbers


def _without_idle_experts(ops, modules, experts):
    """Some programs call experts that no token has chosen with no rows: ops there compute nothing."""
    return [op for op in ops if op["writes"] or op["module"] < 0 or
            _experts.within(modules[op["module"]], experts) is None]


def _reveal(ops, tensors, experts):
    """Says which ops a gate decides: those of experts (`experts`: the block of each). It is the last op of the block
    before them that looks for the largest scores. Experts that no gate chooses are parameters."""
    gates, gated = {}, set()
    for op in ops:
        module = op["module"]
        expert = _experts.within(module, experts)
        if expert is not None:
            gate = gates.get(experts[expert])
            if gate is not None:
                gated.add(experts[expert])
                op["module"], op["revealed_by"] = expert, gate["id"]
        elif op["name"].endswith("topk"):
            block = _experts.within(module, set(experts.values()))
            if block is not None:
                gates[block] = op
    for block in gated:
        gates[block]["module"] = block
    for tensor in tensors:
        if tensor["role"] == "expert":
            expert = _experts.within(tensor["name"], experts)
            if expert is None or experts[expert] not in gated:
                tensor["role"] = "parameter"


def make_trace(steps, modules, header, timed, experts):
    """The lines of the trace, as objects. `steps`: what the observer gave, alike, each with its "roles" and those
    before it; `modules`: names by number; `timed`: durations mean something; `experts`: the block of each."""
    for step in steps:
        step["ops"] = _without_idle_experts(step["ops"], modules, experts)
        named = step["roles"].of.keys() | step["roles_before"].of.keys()
        scalars = {i for i, tensor in enumerate(step["tensors"])
                   if tensor["bytes"] <= _SCALAR_BYTES and tensor["storage"] not in named}
        for op in step["ops"]:
            for key in ("reads", "writes"):
                op[key] = [tensor for tensor in op[key] if tensor not in scalars]
        uses = collections.Counter(tensor for op in step["ops"] for tensor in {*op["reads"], *op["writes"]})
        # Without these an op's time is a gap. Memory that nobody fills is a handle of PyTorch's own profiler.
        step["ops"] = [op for op in step["ops"] if op["reads"] or any(
            uses[tensor] > 1 or not op["uninitialised"] for tensor in op["writes"])]
        _times(step["ops"], step["duration_ns"])
        _phases(step["ops"], step["root"])
    step = _medians(steps) if len(steps) > 1 else steps[0]
    for op in step["ops"]:
        if not timed:
            op["duration_ns"] = op["gap_before_ns"] = 0
    roles = step["roles"]
    stands_for = _tensor_roles(step)
    if not timed:
        _add_up_in_place(step["ops"], step["tensors"], stands_for)
    used = sorted({stands_for[t] for op in step["ops"] for t in op["reads"] + op["writes"]})
    trained = {stands_for[t] for op in step["ops"] if op["phase"] != "optimizer" for t in op["reads"]}
    for index in used:  # a parameter of no module, unless it is only updated
        if step["tensors"][index]["role"] == "master_parameter" and index in trained:
            step["tensors"][index]["role"] = "parameter"
    lines, ids = [], {}

    def add_tensor(name, size, role, persistent):
        lines.append({"kind": "tensor", "id": len(lines), "name": name, "bytes": size, "role": role,
                      "persistent": persistent})
        return len(lines) - 1

    born = {}
    for number, op in zip(_numbers_in_names(step["ops"]), step["ops"]):
        for order, tensor in enumerate(op["writes"]):
            born.setdefault(stands_for[tensor], f"{op['name']}.{number}:{order}")
    for index in used:
        tensor = step["tensors"][index]
        name = tensor["name"] or born.get(index) or f"tensor.{index}"
        ids[index] = add_tensor(name, tensor["bytes"], tensor["role"], tensor["persistent"])
    idle = {tensor["storage"] for index, tensor in enumerate(step["tensors"])  # of calls without rows
            if tensor["role"] == "expert" and index not in ids}
    seen = {tensor["storage"] for tensor in step["tensors"]} - idle
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
                    "flops": op["flops"], "bytes": op["bytes"], **op["kernel"],
                    "reads": reads, "writes": writes})
    _reveal(ops, lines, experts)
    choices, refused = _choices.find_choices(
        [(op["name"], op["phase"], op["module"], op["reads"], op["writes"]) for op in ops],
        [(line["name"], line["persistent"]) for line in lines])
    counts = {"tensor_count": len(lines), "op_count": len(ops)}
    if choices:
        head = {"kind": "header", "format_version": 6, **header, **counts, "choice_count": len(choices)}
    else:
        head = {"kind": "header", "format_version": 3, **header, "made_with": {"no-choice": _choices.why_none(refused)},
                **counts}
    return [head] + lines + ops + choices


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
    there = {line["id"] for line in lines if line["kind"] == "tensor" and line["persistent"]}
    for op in (line for line in lines if line["kind"] == "op"):
        for tensor in op["reads"]:
            if tensor not in there:
                raise RecorderError(f"op {op['id']} ({op['name']}) reads a tensor that nothing has written: this "
                                    "program uses memory in a way that the recorder does not understand")
        there.update(op["writes"])
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
