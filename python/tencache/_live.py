"""A PyTorch program with its tensors paged by a policy: `tencache.live`."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import time
from typing import Any, Iterable, List, Mapping, Optional, Sequence

import torch
from tencache_recorder import _program as objects

from . import _core
from ._paging import Paging

_FORWARD, _BACKWARD, _OPTIMIZER = (_core.PHASES.index(name) for name in ("forward", "backward", "optimizer"))
_MARKED_STEPS = 3  # after them the runtime knows what tensors are from the recorded step


class Live:
    """See tencache.live(). `steps`: how many are over."""

    def __init__(self, run: _core.LiveRun, paging: Paging, quiet: bool) -> None:
        self._run, self._paging, self._quiet = run, paging, quiet
        self.steps = 0
        self.step_seconds: List[float] = []
        self._own_steps = False     # the program calls step()
        self._training = False      # a forward pass with gradients was seen
        self._started = False
        self._optimizer_stepped = False
        self._aside = False
        self._names: dict[int, str] = {}
        self._roots: set[int] = set()
        self._open: List[int] = []  # modules whose forward runs
        self._undo: List[Any] = []
        self._looking = False  # this class walks the tensors itself
        self._step_began = 0.0
        self._figures: Optional[dict] = None
        self._trace: Optional[_core.Trace] = None
        self._closed = False

    # ---- The with block ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """What `with` begins with, for a run that goes on to the end of the process: see finish()."""
        self._paging.attach(self._run.abi)
        self._paging.guard(True)
        self._watch()
        self._adopt_models()

    def finish(self) -> None:
        """The last step is over. Tensors stay where they are, and are served, as long as the process."""
        if self._figures is None and self._started:
            self._boundary()
        self._figures = self._measure()

    def __enter__(self) -> "Live":
        self.start()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        self._paging.page_all(False)
        if error is None:
            self.finish()
        self._figures = self._measure()
        self._trace = self._run.recorded()
        self._give_back()
        self._paging.guard(False)
        left = self._run.close()
        if left and not self._quiet:
            print(f"tencache: tensors that only PyTorch's own objects hold keep {left} bytes of the run's memory: the "
                  "next run begins when they are gone", file=sys.stderr)
        self._closed = left == 0
        return False

    def _watch(self) -> None:
        hooks = torch.nn.modules.module
        self._undo.append(hooks.register_module_forward_pre_hook(self._before_forward).remove)
        self._undo.append(hooks.register_module_forward_hook(self._after_forward).remove)
        self._replace(torch.nn.Parameter, "__new__", self._make_parameter(torch.nn.Parameter.__new__), static=True)
        self._replace(torch.autograd, "backward", self._make_backward(torch.autograd.backward))
        self._replace(torch.optim.Optimizer, "__init__", self._make_optimizer(torch.optim.Optimizer.__init__))
        for optimizer in objects.find_optimizers():
            self._watch_optimizer(type(optimizer))
        for name in ("numpy", "data_ptr", "untyped_storage", "storage", "_typed_storage", "__dlpack__"):
            if hasattr(torch.Tensor, name):
                self._replace(torch.Tensor, name, self._make_exposing(getattr(torch.Tensor, name)))
        self._replace(torch, "save", self._make_save(torch.save))
        self._replace(torch.utils.dlpack, "to_dlpack", self._make_exposing(torch.utils.dlpack.to_dlpack))
        self._replace(torch, "to_dlpack", self._make_exposing(torch.to_dlpack))

    def _replace(self, owner: Any, name: str, value: Any, static: bool = False) -> None:
        own, plain = name in owner.__dict__, owner.__dict__.get(name)  # else inherited
        setattr(owner, name, staticmethod(value) if static else value)
        self._undo.append(lambda: setattr(owner, name, plain) if own else delattr(owner, name))

    def _make_save(self, plain: Any) -> Any:
        @functools.wraps(plain)
        def save(*args: Any, **kwargs: Any) -> Any:
            with self.aside():
                return plain(*args, **kwargs)
        return save

    @contextlib.contextmanager
    def aside(self) -> Any:
        """What runs in this block belongs to no step: a checkpoint, say."""
        before, self._aside = self._aside, True
        self._run.set_aside(True)
        try:
            yield
        finally:
            self._aside = before
            self._run.set_aside(before)

    def _make_exposing(self, plain: Any) -> Any:
        @functools.wraps(plain)
        def exposing(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._looking and isinstance(tensor, torch.Tensor):
                self._paging.expose(tensor)
            return plain(tensor, *args, **kwargs)
        return exposing

    # ---- What the program does ---------------------------------------------------------------------------------------

    def _make_parameter(self, plain: Any) -> Any:
        def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:
            parameter = plain(cls, *args, **kwargs)
            self._paging.adopt([parameter])
            return parameter
        return __new__

    def _make_backward(self, plain: Any) -> Any:
        def backward(*args: Any, **kwargs: Any) -> Any:
            self._run.set_phase(_BACKWARD)
            try:
                return plain(*args, **kwargs)
            finally:
                self._run.set_phase(_FORWARD)
        return backward

    def _make_optimizer(self, plain: Any) -> Any:
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            plain(optimizer, *args, **kwargs)
            self._watch_optimizer(type(optimizer))
        return __init__

    def _watch_optimizer(self, kind: type) -> None:
        plain = kind.__dict__.get("step") or kind.step
        if getattr(plain, "_tencache_watches", None) is self:
            return

        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._before_optimizer()
            try:
                return plain(optimizer, *args, **kwargs)
            finally:
                self._after_optimizer()
        step.__dict__.update(getattr(plain, "__dict__", {}))  # PyTorch's own mark that it has hooked the function
        step._tencache_watches = self  # type: ignore[attr-defined]
        had = "step" in kind.__dict__
        kind.step = step  # type: ignore[attr-defined]
        self._undo.append(lambda: setattr(kind, "step", plain) if had else delattr(kind, "step"))

    def _before_optimizer(self) -> None:
        self._run.set_phase(_OPTIMIZER)
        if self._started and self.steps < _MARKED_STEPS:
            self._mark()

    def _after_optimizer(self) -> None:
        self._run.set_phase(_FORWARD)
        self._optimizer_stepped = True
        if self._started and self.steps == 0:
            self._mark()  # the states that it has made

    def _before_forward(self, module: Any, _: Any) -> None:
        if id(module) not in self._names:
            self._find_models()
        if id(module) in self._roots and not self._inside(module):
            self._root_forward()
        if self._started:
            self._open.append(id(module))
            self._run.module_begin(self._names.get(id(module), type(module).__name__))

    def _inside(self, module: Any) -> bool:
        """Is this a call from within its own forward?"""
        return id(module) in self._open

    def _after_forward(self, module: Any, _: Any, __: Any) -> None:
        if self._open and self._open[-1] == id(module):
            self._open.pop()
            self._run.module_end()

    def _root_forward(self) -> None:
        while self._open:  # left by an exception
            self._open.pop()
            self._run.module_end()
        trains = torch.is_grad_enabled()
        if trains and not self._training:
            self._training = True
            self._start()
        elif not trains and not self._training and not self._own_steps:
            self._start() if not self._started else self._boundary()  # generation: a forward pass is a step
        elif trains and self._optimizer_stepped and not self._own_steps:
            self._boundary()
        if self._training and self._aside == trains:
            self._aside = not trains
            self._run.set_aside(self._aside)

    # ---- Steps -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """A step of the program is over; for loops that no optimizer's step ends."""
        self._own_steps = True
        if not self._started:
            self._start()
        else:
            self._boundary()

    def _start(self) -> None:
        self._paging.page_all(True)
        self._adopt_models()
        self._mark()
        if self._started:  # until now it was no training
            self._run.record_next()
        self._started = True
        self._run.iteration_boundary()
        self._step_began = time.perf_counter()

    def _boundary(self) -> None:
        self._run.iteration_boundary()
        now = time.perf_counter()
        self.step_seconds.append(now - self._step_began)
        self._step_began = now
        self._optimizer_stepped = False
        self.steps += 1

    # ---- What tensors are --------------------------------------------------------------------------------------------

    def _find_models(self) -> None:
        models = objects.find_models()
        self._roots = {id(model) for model in models}
        self._names = objects.module_names(models)
        for model in models:
            for module in model.modules():
                self._names.setdefault(id(module), type(module).__name__)

    def _adopt_models(self) -> None:
        tensors: List[torch.Tensor] = []
        for model in objects.find_models():
            tensors += model.parameters()
            tensors += model.buffers()
            tensors += [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        for optimizer in objects.find_optimizers():
            for state in optimizer.state.values():
                tensors += [value for value in state.values() if isinstance(value, torch.Tensor) and value.numel() > 1]
        self._paging.adopt(tensors)

    @contextlib.contextmanager
    def _look(self) -> Any:
        self._looking = True
        try:
            yield
        finally:
            self._looking = False

    def _mark(self) -> None:
        with self._look():
            roles = objects.find_roles(objects.find_models(), objects.find_optimizers(), keep_tensors=True)
        for address, (role, name, _, _) in roles.of.items():
            self._paging.mark(roles.tensors[address], _core.ROLES.index(role), name)

    def _give_back(self) -> None:
        found: List[torch.Tensor] = []
        for candidate in gc.get_objects():
            if issubclass(type(candidate), torch.Tensor):
                found.append(candidate)
                if candidate.is_leaf and candidate.grad is not None:
                    found.append(candidate.grad)
        self._paging.give_back(found)

    # ---- Results -----------------------------------------------------------------------------------------------------

    def _measure(self) -> dict:
        figures = self._run.figures()
        figures["adopted_bytes"] = self._paging.adopted_bytes
        figures["unadopted_bytes"] = self._paging.left_bytes
        figures["step_seconds"] = list(self.step_seconds)
        return figures

    def report(self) -> dict:
        """The figures so far, or of the whole run once it is over."""
        return self._figures if self._figures is not None else self._measure()

    def recorded(self) -> Optional[_core.Trace]:
        """The second step as a trace; None until it is over."""
        return self._run.recorded() if not self._closed else self._trace


def live(policy: str = "foresight", *, machine: str = "small-host", gpu_memory: str = "", cpu_memory: str = "",
         limits: Sequence[str] = (), directories: Sequence[str] = (), settings: Optional[Mapping[str, Any]] = None,
         pace: bool = True, quiet: bool = False) -> Live:
    """Pages the tensors of what is trained in the `with` block: parameters, gradients, optimizer states, activations.

    gpu_memory  what tensors may use at a time, such as "8GiB" (default: the machine's)
    cpu_memory  of CPU memory beside it
    directories of the files of NVMe tiers
    pace        copies take the time that the machine's links say; False: as fast as this computer can
    """
    def say(text: str) -> None:
        if not quiet:
            print("tencache: " + text, file=sys.stderr)

    paging = Paging.load(say)
    run = _core.LiveRun(machine=machine, gpu_memory=str(gpu_memory), cpu_memory=str(cpu_memory), limits=list(limits),
                        directories=list(directories), policy=policy,
                        settings={name: str(value) for name, value in (settings or {}).items()}, pace=pace)
    return Live(run, paging, quiet)
