"""Optimizers whose updates run as tasks: the policy says where, and those on the CPU's lane go on beside the program.

PyTorch's `Optimizer.step` stays as it is (its hooks, its states, closures, parameters without a gradient). What is taken
over is the function that it calls in the end with lists of tensors. In each step PyTorch's own function updates a sample
of a few elements, its ops are taken down, and run as tasks on the parameters (executor/torch/program/update.h). An
update is trusted after it gave the bits of PyTorch's own function on random tensors.
"""

from __future__ import annotations

import functools
import importlib
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch

from ._paging import Paging, Update

# The functions, how many lists of tensors they take, and whether the last one is the numbers of steps.
_FUNCTIONS = {"adamw": (6, True), "adam": (6, True), "sgd": (3, False)}
_ROOTED = (3, 4)  # of these lists Adam takes square roots

_SAMPLE = 8  # elements
_COMPARED = (1, 7, 4099, 70003)  # elements: less than a vector, tails, more than one block and one thread have


class Updates:
    """`tasks`: how many there were so far. `left`: what was not taken over, in words."""

    def __init__(self, paging: Paging, say: Callable[[str], None]) -> None:
        self._paging, self._say = paging, say
        self._optimizer: Any = None
        self._numbers: Dict[int, int] = {}  # of parameters, by their id
        self._foreign: Dict[int, "weakref.ref[Any]"] = {}  # tensors that stay out of the run's memory, by their id
        self._verdicts: Dict[Tuple[Any, ...], bool] = {}  # whether the bits are equal, of what was compared
        self.tasks = 0
        self.left: List[str] = []
        self._said: Set[Tuple[str, str]] = set()

    def watch(self, replace: Callable[[Any, str, Any], None]) -> None:
        for name in _FUNCTIONS:
            module = importlib.import_module("torch.optim." + name)
            replace(module, name, self._make(name, getattr(module, name)))

    def stepping(self, optimizer: Any) -> Any:
        """The optimizer whose step begins, None where it ends. Returns the one before."""
        before, self._optimizer = self._optimizer, optimizer
        return before

    def _make(self, name: str, plain: Any) -> Any:
        @functools.wraps(plain)
        def function(*lists: Any, **options: Any) -> Any:
            if self._optimizer is None or not self._paging.between_ops():
                return plain(*lists, **options)
            if not self._take_over(plain, _FUNCTIONS[name], lists, options):
                return plain(*lists, **options)
        return function

    def _take_over(self, plain: Any, takes: Tuple[int, bool], lists: Sequence[Any], options: Dict[str, Any]) -> bool:
        """Whether the updates were handed over; those of parameters that cannot be tasks are done then."""
        count, counts_steps = takes
        if len(lists) != count or not lists[0]:
            return False
        steps = lists[-1] if counts_steps else []
        columns = [column for column in (lists[:-1] if counts_steps else lists) if any(t is not None for t in column)]
        if any(len(column) != len(lists[0]) for column in columns):
            return False
        why = _why_not(options)
        if why:
            return self._leave(options, why)
        rows = [list(row) for row in zip(*columns)]
        left = self._rows_left(rows)
        updates: Dict[float, Tuple[Update, List[int]]] = {}  # by the number of steps before
        for row in range(len(rows)):
            if row in left:
                continue
            before = steps[row].item() if counts_steps else 0.0
            if before not in updates:
                update, why = self._update(plain, lists, row, options, counts_steps, before)
                if update is None:
                    return self._leave(options, why)
                updates[before] = update, []
            updates[before][1].append(row)
        for why in sorted(set(left.values())):
            self._leave(options, why, list(left.values()).count(why), len(rows))
        if not updates:
            return False
        if left:
            _plainly(plain, lists, list(left), options)
        if counts_steps:
            torch._foreach_add_([step for row, step in enumerate(steps) if row not in left], 1)
        for update, mine in updates.values():
            numbers = [self._numbers.setdefault(id(lists[0][row]), len(self._numbers)) for row in mine]
            self.tasks += update.run_as_tasks(type(self._optimizer).__name__.lower(), numbers,
                                              [tensor for row in mine for tensor in rows[row]])
        return True

    def _rows_left(self, rows: List[List[Any]]) -> Dict[int, str]:
        """Those that cannot be tasks, and why; empty where a state is made in this step."""
        if not any(tensor is None for row in rows for tensor in row):
            if not self._paging.why_no_tasks([tensor for row in rows for tensor in row], len(rows[0])):
                return {}
        left = {}
        for number, row in enumerate(rows):
            if any(tensor is None for tensor in row):
                left[number] = ""
                continue
            # Those that were loaded, say, may be none of the run's yet.
            new = [tensor for tensor in row if not self._is_foreign(tensor) and not self._paging.paged(tensor)]
            self._paging.adopt(new)
            self._foreign.update((id(tensor), weakref.ref(tensor)) for tensor in new if not self._paging.paged(tensor))
            why = self._paging.why_no_tasks(row, len(row))
            if why:
                left[number] = why
        return left

    def _is_foreign(self, tensor: Any) -> bool:
        known = self._foreign.get(id(tensor))
        return known is not None and known() is tensor  # else the id is used again

    def _leave(self, options: Dict[str, Any], why: str, count: int = 1, of: int = 1) -> bool:
        if not why:
            return False
        flags = ", ".join(f"{key}=True" for key, value in options.items() if value is True and key in _FLAGS)
        name = f"{type(self._optimizer).__name__}({flags})"
        if (name, why) not in self._said:
            self._said.add((name, why))
            some = "" if count == of else f"{count} of {of} parameters "
            self.left.append(f"{name}: {some}not taken over: {why}; PyTorch's own step runs")
            self._say(self.left[-1])
        return False

    # ---- What is run -------------------------------------------------------------------------------------------------

    def _update(self, plain: Any, lists: Sequence[Any], row: int, options: Dict[str, Any], counts_steps: bool,
                before: float) -> Tuple[Optional[Update], str]:
        """That of the row's parameter, after so many steps; or why there is none, empty where that is no news."""
        lists = [column[row:row + 1] for column in lists]
        step = lists[-1][0] if counts_steps else None
        with self._paging.unguarded():
            sample = _Tensors(lists, step, before, lambda _: torch.ones(_SAMPLE))
        try:
            update = self._paging.take_down(lambda: plain(*sample.lists, **options), sample.tensors, sample.step)
        except Exception as error:  # PyTorch's own step says what it has to say
            return None, str(error) if sample.same() else ""
        if not sample.same():
            return None, ""  # a state is made in this step
        with self._paging.unguarded():
            if step is not None and sample.step.item() != before + 1:
                return None, "it counts steps otherwise"
            constant = tuple(sorted((key, repr(value)) for key, value in options.items() if key != "lr"))
            key = (plain, constant, update.signature())
            if key not in self._verdicts:
                self._verdicts[key] = all(_equal(plain, lists, options, step, before, update, elements)
                                          for elements in _COMPARED)
        return (update, "") if self._verdicts[key] else (None, "on random tensors its bits are not those of PyTorch's own")


class _Tensors:
    """One parameter's, in lists such as these."""

    def __init__(self, lists: Sequence[Any], step: Any, before: float, make: Callable[[int], Any]) -> None:
        self.step = None if step is None else torch.full(step.shape, before, dtype=step.dtype)
        self.lists: List[List[Any]] = []
        for position, column in enumerate(lists):
            if step is not None and position == len(lists) - 1:
                self.lists.append([self.step])
            elif not column:
                self.lists.append([])
            else:
                self.lists.append([None if column[0] is None else make(position)])
        self.tensors = [column[0] for column in self.lists if column and column[0] is not None
                        and column[0] is not self.step]
        self._before = [list(column) for column in self.lists]

    def same(self) -> bool:
        """Whether the lists have what they had."""
        return all(len(now) == len(before) and all(a is b for a, b in zip(now, before))
                   for now, before in zip(self.lists, self._before))


def _plainly(plain: Any, lists: Sequence[Any], rows: List[int], options: Dict[str, Any]) -> None:
    """PyTorch's own function, for some of the parameters."""
    some = [[column[row] for row in rows] if column else [] for column in lists]
    plain(*some, **options)
    for column, now in zip(lists, some):
        for row, tensor in zip(rows, now):  # states that it has made
            column[row] = tensor


_FLAGS = ("amsgrad", "nesterov", "maximize", "foreach", "fused", "capturable", "differentiable")
_REFUSED = {"grad_scale": "its step scales gradients", "found_inf": "its step scales gradients",
            "differentiable": "autograd records its step", "capturable": "it is made for CUDA graphs",
            "has_complex": "parameters are complex", "has_sparse_grad": "gradients are sparse"}


def _why_not(options: Dict[str, Any]) -> str:
    if torch.is_grad_enabled():
        return _REFUSED["differentiable"]
    for key, value in options.items():
        if key in _REFUSED and value is not None and value is not False:
            return _REFUSED[key]
        if isinstance(value, torch.Tensor):
            return f"{key} is a tensor"
    return ""


def _equal(plain: Any, lists: Sequence[Any], options: Dict[str, Any], step: Any, before: float, update: Update,
           elements: int) -> bool:
    generator = torch.Generator().manual_seed(elements)

    def make(position: int) -> Any:
        tensor = torch.randn(elements, generator=generator)
        if step is not None and position in _ROOTED:
            tensor = tensor.square()
        tensor[::5] = 0
        tensor[1::7] *= 1e-39  # below the smallest normal number
        return tensor
    theirs = _Tensors(lists, step, before, make)
    ours = [tensor.clone() for tensor in theirs.tensors]
    plain(*theirs.lists, **options)
    update.run(ours)
    return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(ours, theirs.tensors))
