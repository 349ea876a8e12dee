"""Which blocks of a recorded step could be computed again instead of kept: the trace's choices of recomputation.

A block is a child of a ModuleList or Sequential, the outermost one that an op is in: its name ends in a number, as
"model.layers.3". torch.utils.checkpoint runs it again before its backward pass, with the random numbers of the forward
pass. So it may use random numbers, but must change nothing that outlives it.
"""

import collections
import re

import torch.utils.checkpoint

# What is recomputed ends with the last tensor that the backward pass reads; before PyTorch 2.1 with the block.
STOPS_EARLY = hasattr(torch.utils.checkpoint, "set_checkpoint_early_stop")

_BLOCK = re.compile(r"(?:.*?\.)?\d+(?=\.|$)")


class _Refused(Exception):
    pass


def find_choices(ops, tensors, stops_early=STOPS_EARLY):
    """(choices, why not): the trace's lines of kind choice, in order, and by block why it has none. `ops`: (name,
    phase, module, reads, writes) of each; `tensors`: (name, persistent) of each."""
    step = _Step(ops, tensors)
    calls, refused = _calls(ops)
    choices = []
    for block, micro_batch, first, end in calls:
        try:
            before, again = step.choice(first, end, stops_early)
        except _Refused as error:
            refused.setdefault(block, str(error))
        else:
            choices.append({"kind": "choice", "module": block, "micro_batch": micro_batch, "before": before,
                            "block": again})
    # A block is offered in all micro-batches or in none.
    choices = sorted((one for one in choices if one["module"] not in refused), key=lambda one: one["before"])
    for one, other in zip(choices, choices[1:]):
        if one["before"] == other["before"]:
            refused.setdefault(other["module"], f"its backward pass begins with that of {one['module']}")
    return [one for one in choices if one["module"] not in refused], refused


def why_none(refused):
    """A sentence about what find_choices() refused."""
    if not refused:
        return "no module of the step is a child of a ModuleList or Sequential"
    blocks = collections.defaultdict(list)
    for block, reason in refused.items():
        blocks[reason].append(block)
    return "; ".join(f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''} {reason}"
                     for reason, names in blocks.items())


def _calls(ops):
    """(block, micro-batch, first op, end) of each call of a block in a forward pass. A micro-batch begins with the
    first forward op after a backward pass."""
    calls, refused, seen = [], {}, set()
    micro_batch, backward, open_block = 0, False, None
    for number, (_, phase, module, _, _) in enumerate(ops):
        forward = phase in ("forward", "loss")
        if forward and backward:
            micro_batch += 1
        if phase in ("forward", "loss", "backward"):
            backward = not forward
        match = _BLOCK.match(module) if forward else None
        block = match.group() if match else None
        if block is None or block != open_block:
            if block is not None:
                calls.append([block, micro_batch, number, number])
                if (block, micro_batch) in seen:
                    refused[block] = "is called more than once before a backward pass"
                seen.add((block, micro_batch))
            open_block = block
        if block is not None:
            calls[-1][3] = number + 1
    return [call for call in calls if call[0] not in refused], refused


class _Step:
    def __init__(self, ops, tensors):
        self._ops, self._tensors = ops, tensors
        self._readers, self._writers = collections.defaultdict(list), collections.defaultdict(list)
        for number, (_, _, _, reads, writes) in enumerate(ops):
            for tensor in reads:
                self._readers[tensor].append(number)
            for tensor in writes:
                self._writers[tensor].append(number)

    def choice(self, first, end, stops_early):
        """(first op of the backward pass, ops that run again) of a call. Raises _Refused."""
        made = set()
        for number in range(first, end):
            for tensor in self._ops[number][4]:
                name, persistent = self._tensors[tensor]
                if persistent:
                    raise _Refused(f"changes '{name}', which outlives the step ({self._ops[number][0]})")
                if self._writers[tensor][0] < first:
                    raise _Refused(f"changes '{name}' in place, which was made before it ({self._ops[number][0]})")
                made.add(tensor)
        before = min((self._first_backward(tensor) for tensor in made if not self._leaves(tensor, end)),
                     default=len(self._ops))
        if before == len(self._ops):
            raise _Refused("keeps nothing for its backward pass that only it uses")
        self._check_unchanged(first, end, before, made)
        again = list(range(first, end))
        while stops_early and not any(self._readers[tensor] and self._readers[tensor][-1] >= before
                                      for tensor in self._ops[again[-1]][4]):
            again.pop()
        return before, again

    def _first_backward(self, tensor):
        return next((op for op in self._readers[tensor] if self._ops[op][1] == "backward"), len(self._ops))

    def _leaves(self, tensor, end):
        """Something in a forward pass reads it after the block."""
        return any(op >= end and self._ops[op][1] in ("forward", "loss") for op in self._readers[tensor])

    def _check_unchanged(self, first, end, before, made):
        for tensor in made:
            if any(end <= op < before for op in self._writers[tensor]):
                raise _Refused(f"made '{self._tensors[tensor][0]}', which is changed in place after it")
        for number in range(first, end):
            for tensor in self._ops[number][3]:
                if tensor not in made and any(first <= op < before for op in self._writers[tensor]):
                    raise _Refused(f"reads '{self._tensors[tensor][0]}', which is changed before its backward pass")
