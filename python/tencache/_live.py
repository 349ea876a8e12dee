"""A PyTorch program with its tensors paged by a policy: `tencache.live`."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import gc
import importlib
import json
import os
import sys
import time
import weakref
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from tencache_recorder import _program as objects

from . import _commands  # noqa: F401  which says where the configurations are that ship with the package
from . import _computer, _core, _ranks
from ._after_import import after_import
from ._core import Error
from ._extensions import Extensions
from ._paging import Paging
from ._updates import Updates

_FORWARD, _BACKWARD, _OPTIMIZER = (_core.PHASES.index(name) for name in ("forward", "backward", "optimizer"))
DEVICES = ("cpu", "cuda")
_MARKED_STEPS = 3  # after them the runtime knows what tensors are from the recorded step

# Of a budget for the whole process, what is kept for all that is no tensor and comes after the first parameter.
# Code of PyTorch that was let go of comes back, up to 110 MiB.
_RESERVE_SHARE, _LEAST_RESERVE = 0.1, 128 << 20

# Of a model, how much is broadcast at a time: what is broadcast is there twice. The same on all ranks.
_BROADCAST_BYTES = 16 << 20
# A thread of gloo has the tensors of a collective a moment longer than its Work lasts.
_THREADS_LET_GO_SECONDS = 1.0
# Collectives that are no ops in PyTorch before 2.0.
_BEFORE_2_0 = ("_allgather_base", "_reduce_scatter_base", "allgather_coalesced", "allreduce_coalesced", "alltoall_base",
               "monitored_barrier", "recv_anysource")

_is_tracing = torch._C._is_tracing
_is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", _is_tracing)

_DEEPSPEED = "tencache: DeepSpeed moves parameters itself; run the model without its engine"


@dataclasses.dataclass
class Options:
    """What a live run is: the parameters of tencache.live()."""

    policy: str = "foresight"
    device: str = "cpu"
    machine: str = ""
    memory: str = ""
    reserve: str = ""
    gpu_memory: str = ""
    cpu_memory: str = ""
    limits: Sequence[str] = ()
    directories: Sequence[str] = ()
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    pace: Optional[bool] = None
    timeline: str = ""
    optimizer_tasks: bool = False
    faults: str = ""
    program: str = "a PyTorch program"
    quiet: bool = False

    def say(self, text: str) -> None:
        if not self.quiet and _ranks.rank() == 0:
            print("tencache: " + text, file=sys.stderr)

    def check(self) -> "Options":
        """With a machine. Raises Error where the options contradict each other."""
        if self.device not in DEVICES:
            raise Error(f"device: '{self.device}' is none of {', '.join(DEVICES)}")
        if self.device == "cuda" and torch.version.cuda is None:
            raise Error(f"PyTorch {torch.__version__} is built without CUDA: install one that has it, or leave device out")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise Error(f"PyTorch {torch.__version__} finds no GPU: see nvidia-smi (its driver must be for CUDA "
                        f"{torch.version.cuda} or a later one), or leave device out")
        if self.memory and self.device != "cpu":
            raise Error("memory is what the whole process may use of ordinary memory: with a GPU give gpu_memory, and "
                        "cpu_memory")
        if self.memory and (self.gpu_memory or self.cpu_memory):
            raise Error("memory is what the whole process may use: it goes with neither gpu_memory nor cpu_memory")
        if self.reserve and not self.memory:
            raise Error("reserve is a part of memory, which is not given")
        if self.gpu_memory.endswith("%"):
            raise Error(f"gpu_memory: '{self.gpu_memory}' is a share of the program's peak, which is not known here; "
                        "`tencache run python` finds it out")
        pace = bool(self.machine) if self.pace is None else self.pace
        machine = self.machine or _computer.machine_file(self.device, not self.memory, self.directories, self.say)
        return dataclasses.replace(self, machine=machine, pace=pace)

    def setting(self, taken: int = 0) -> "_core.LiveSetting":
        """`taken`: bytes of the process that are no tensors'."""
        ranks = _ranks.count_here()
        gpu_memory = self.gpu_memory
        if self.memory:
            budget = _core.parse_bytes(self.memory) // ranks
            reserve = _core.parse_bytes(self.reserve) if self.reserve else max(int(_RESERVE_SHARE * budget),
                                                                               _LEAST_RESERVE)
            room = budget - taken - reserve
            if room <= 0:
                raise Error(f"memory: {budget >> 20} MiB for the whole process leave nothing to tensors: it has "
                            f"{taken >> 20} MiB before its first tensor, and {reserve >> 20} MiB are kept for what else comes")
            gpu_memory = f"{room}B"
            self.say(f"{budget >> 20} MiB for the process: {taken >> 20} MiB are taken, {reserve >> 20} MiB kept for "
                     f"what else comes, {room >> 20} MiB for tensors")
        return _core.LiveSetting(program=self.program, device=self.device, machine=self.machine,
                                 gpu_memory=gpu_memory, cpu_memory=self.cpu_memory, limits=list(self.limits),
                                 directories=list(self.directories), policy=self.policy, ranks=ranks,
                                 settings={name: str(value) for name, value in self.settings.items()},
                                 faults=self.faults)


class NoRoom(MemoryError):
    """A budget for the whole process that leaves nothing to tensors: known at the first parameter."""


class _Known(NamedTuple):
    """A module that was seen, and lives."""

    name: str
    is_root: bool  # a model, and no part of another
    dies: "weakref.ref[torch.nn.Module]"  # and forgets it


class Live:
    """See tencache.live(). `steps`: how many are over."""

    def __init__(self, options: Options, predicted: Optional["_core.LivePrediction"] = None) -> None:
        """`options`: checked."""
        self._options, self._predicted = options, predicted
        self._paging = Paging.load(options.device, options.say)
        self._updates = Updates(self._paging, options.say)
        self._extensions = Extensions()
        self._began = False
        self._taken = self._most_before = 0
        if not options.memory:
            self._run = self._make_run()
        self.record_all = False  # every step from the second on
        self.on_boundary: Callable[[], None] = lambda: None  # after each step
        self._batch: Tuple[int, int] = (0, 0)
        self._lines: "collections.Counter[str]" = collections.Counter()
        self._answer: Tuple[str, str] = ("{}", "")
        self.steps = 0
        self.step_seconds: List[float] = []
        self._own_steps = False       # the program calls step()
        self._training = False        # a forward pass with gradients was seen, or a backward pass
        self._without_models = False  # a backward pass, and no forward pass with gradients of a model
        self._started = False
        self._optimizer_stepped = False
        self._aside = False
        self._phase = _FORWARD
        self._known: Dict[int, _Known] = {}  # by the module's id
        self._models: "List[weakref.ref[Any]]" = []
        self._optimizers: "List[weakref.ref[Any]]" = []
        self._leaves: "List[weakref.ref[Any]]" = []  # parameters of no model
        self._mapped = False  # some lie in mapped files, and are not adopted yet
        self._described: Dict[str, str] = {}
        self._open: List[int] = []  # modules whose forward runs
        self._undo: List[Any] = []
        self._looking = False  # this class walks the tensors itself
        self._looked = False   # around, since the call of the module that runs
        self._step_began = 0.0
        self._figures: Optional[dict] = None
        self._trace: Optional[_core.Trace] = None
        self._closed = False

    # ---- The with block ----------------------------------------------------------------------------------------------

    def start(self, new_program: bool = False) -> None:
        """What `with` begins with, for a run that goes on to the end of the process: see finish(). `new_program`: it
        has no model yet."""
        self._watch()
        if not new_program:
            self._look_around()
        if not self._options.memory or self._models:
            self._begin()

    def _make_run(self) -> "_core.LiveRun":
        return _core.LiveRun(self._options.setting(self._taken), pace=self._options.pace, fence=self._paging.fence,
                             timeline=_ranks.own_file(self._options.timeline), predicted=self._predicted)

    def _begin(self) -> None:
        """With a budget for the whole process at the first parameter: what was imported until then is known."""
        self._began = True  # what is imported here may make parameters
        if self._options.memory:
            if hasattr(torch, "compile"):
                importlib.import_module("torch._dynamo")  # as the first optimizer will: 80 MB
            _computer.let_go_of_code()
            self._taken = _computer.resident_bytes()
            self._most_before = _computer.forget_most_resident_bytes()
            try:
                self._run = self._make_run()
            except Error as error:
                self._began = False
                raise NoRoom(str(error)) from None
        self._paging.attach(self._run.abi)
        self._paging.guard(True)
        self._adopt(self._live_models(), self._live_optimizers())

    def list_elements(self, on: bool) -> None:
        """Ops on lists run element by element, as they do in the least memory."""
        self._paging.split_all_lists(on)

    def finish(self) -> None:
        """The last step is over. Tensors stay where they are, and are served, as long as the process."""
        if not self._began or self._figures is not None:
            return
        if self._started:
            self._end_step()
            self._run.set_aside(True)  # what a last step lacks, at its end, is no deviation
            self._run.end()
        self._figures = self._measure()
        if self._started:
            self._answer = self._run.answer(json.dumps(self._figures), sum(self.step_seconds))

    def __enter__(self) -> "Live":
        self.start()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        if not self._began:
            return False
        self._paging.page_all(False)
        if error is None:
            self.finish()
        self._figures = self._measure()
        self._trace = self._run.recorded()
        if self._options.device != "cpu":  # tensors stay where they are, and are served, as long as the process
            return False
        self._give_back()
        self._paging.guard(False)
        left = self._run.close()
        until = time.monotonic() + _THREADS_LET_GO_SECONDS
        while left and torch.distributed.is_available() and torch.distributed.is_initialized() \
                and time.monotonic() < until:
            time.sleep(0.001)
            left = self._run.close()
        if left:
            self._options.say(f"tensors that only PyTorch's own objects hold keep {left} bytes of the run's memory: the "
                              "next run begins when they are gone")
        self._closed = left == 0
        return False

    def _watch(self) -> None:
        self._replace(torch.nn.Module, "__call__", self._make_call(torch.nn.Module.__call__))
        self._replace(torch.nn.Parameter, "__new__", self._make_parameter(torch.nn.Parameter.__new__), static=True)
        for name in ("backward", "grad"):
            self._replace(torch.autograd, name, self._make_backward(getattr(torch.autograd, name)))
        self._replace(torch.optim.Optimizer, "__init__", self._make_optimizer(torch.optim.Optimizer.__init__))
        for name in ("numpy", "data_ptr", "untyped_storage", "storage", "_typed_storage", "__dlpack__"):
            if hasattr(torch.Tensor, name):
                self._replace(torch.Tensor, name, self._make_exposing(getattr(torch.Tensor, name)))
        self._replace(torch, "save", self._make_save(torch.save))
        self._replace(torch.utils.dlpack, "to_dlpack", self._make_exposing(torch.utils.dlpack.to_dlpack))
        self._replace(torch, "to_dlpack", self._make_exposing(torch.to_dlpack))
        if self._options.optimizer_tasks:
            self._updates.watch(self._replace)
        if hasattr(torch, "compile"):
            self._replace(torch, "compile", self._make_compile(torch.compile))
        if torch.distributed.is_available():
            self._watch_ranks()
        if "deepspeed" in sys.modules:
            self._refuse_deepspeed()
        else:
            self._undo.append(after_import("deepspeed", self._refuse_deepspeed))

    def _refuse_deepspeed(self) -> None:
        def initialize(*args: Any, **kwargs: Any) -> Any:
            raise RuntimeError(_DEEPSPEED)
        self._replace(sys.modules["deepspeed"], "initialize", initialize)

    def _watch_ranks(self) -> None:
        parallel, group = torch.nn.parallel.DistributedDataParallel, torch.distributed.ProcessGroup
        self._replace(parallel, "__init__", self._make_parallel(parallel.__init__))
        self._replace(torch.distributed, "_broadcast_coalesced",
                      self._make_broadcast(torch.distributed._broadcast_coalesced))
        for name in _BEFORE_2_0 if not hasattr(torch, "compile") else ():
            self._replace(group, name, self._make_collective(name, getattr(group, name)))

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
            if not self._looking and self._began and isinstance(tensor, torch.Tensor):
                if self._paging.expose(tensor):
                    self._lines[_line_outside(sys._getframe(1))] += 1
            return plain(tensor, *args, **kwargs)
        return exposing

    # ---- What the program does ---------------------------------------------------------------------------------------

    def _make_compile(self, plain: Any) -> Any:
        @functools.wraps(plain)
        def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
            self._options.say("torch.compile is left out: compiled code uses memory without ops")
            return model if model is not None else lambda function: function
        return compile

    def _make_parallel(self, plain: Any) -> Any:
        @functools.wraps(plain)
        def __init__(model: Any, *args: Any, **kwargs: Any) -> None:
            if self._began:
                self._paging.page_all(True)  # the buckets of gradients
            try:
                plain(model, *args, **kwargs)
            finally:
                if self._began:
                    self._paging.page_all(self._started)
        return __init__

    def _make_broadcast(self, plain: Any) -> Any:
        @functools.wraps(plain)
        def broadcast(group: Any, tensors: Any, buffer_bytes: int, *args: Any, **kwargs: Any) -> Any:
            return plain(group, tensors, min(buffer_bytes, _BROADCAST_BYTES), *args, **kwargs)
        return broadcast

    def _make_collective(self, name: str, plain: Any) -> Any:
        @functools.wraps(plain)
        def collective(group: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._began:
                return plain(group, *args, **kwargs)
            tensors = [value for value in _flatten(args) if isinstance(value, torch.Tensor)]
            if name == "recv_anysource" and any(self._paging.paged(tensor) for tensor in tensors):
                raise RuntimeError("tencache: receiving from any rank needs PyTorch 2.0: name the rank")
            pinned = self._paging.pin(tensors, written=True)
            guarded = self._paging.guard(False)  # nor may its own tensors move
            try:
                work = plain(group, *args, **kwargs)
                if work is not None:
                    work.wait()
                return work
            finally:
                self._paging.guard(guarded)
                self._paging.unpin(pinned)
        return collective

    def _make_parameter(self, plain: Any) -> Any:
        def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._began:
                self._begin()
            parameter = plain(cls, *args, **kwargs)
            if self._paging.adopt([parameter]):
                self._mapped = True
            return parameter
        return __new__

    def _make_backward(self, plain: Any) -> Any:
        @functools.wraps(plain)
        def backward(*args: Any, **kwargs: Any) -> Any:
            before = self._phase
            if before != _BACKWARD:  # else one within another: a part that is computed again
                self._before_backward()
            if not self._began:
                return plain(*args, **kwargs)
            self._set_phase(_BACKWARD)
            try:
                return plain(*args, **kwargs)
            finally:
                self._set_phase(before)
        return backward

    def _set_phase(self, phase: int) -> None:
        self._phase = phase
        self._run.set_phase(phase)

    def _before_backward(self) -> None:
        """Programs that train without models: a step ends where an optimizer's does, or else with the backward pass."""
        if self._own_steps:
            return
        if not self._training:
            if not self._began:
                self._begin()
            self._training = self._without_models = True
            self._start()
        elif self._without_models and (self._optimizer_stepped or not self._live_optimizers()):
            self._boundary()

    def _make_optimizer(self, plain: Any) -> Any:
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            plain(optimizer, *args, **kwargs)
            self._meet_optimizer(optimizer)
        return __init__

    def _meet_optimizer(self, optimizer: Any) -> None:
        self._optimizers = _living(self._optimizers) + [weakref.ref(optimizer)]
        self._watch_optimizer(type(optimizer))

    def _watch_optimizer(self, kind: type) -> None:
        plain = kind.__dict__.get("step") or kind.step
        if getattr(plain, "_tencache_watches", None) is self:
            return

        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._before_optimizer()
            before = self._updates.stepping(optimizer if self._started else None)
            try:
                return plain(optimizer, *args, **kwargs)
            finally:
                self._updates.stepping(before)
                self._after_optimizer()
        step.__dict__.update(getattr(plain, "__dict__", {}))  # PyTorch's own mark that it has hooked the function
        step._tencache_watches = self  # type: ignore[attr-defined]
        had = "step" in kind.__dict__
        kind.step = step  # type: ignore[attr-defined]
        self._undo.append(lambda: setattr(kind, "step", plain) if had else delattr(kind, "step"))

    def _before_optimizer(self) -> None:
        if not self._began:
            return
        self._set_phase(_OPTIMIZER)
        if self._started and self.steps < _MARKED_STEPS:
            self._mark()

    def _after_optimizer(self) -> None:
        if not self._began:
            return
        self._set_phase(_FORWARD)
        self._optimizer_stepped = True
        if self._started and self.steps == 0:
            self._mark()  # the states that it has made

    def _make_call(self, plain: Any) -> Any:
        """In place of PyTorch's hooks for all modules, which cost each call more than this does."""
        known_modules, open_modules = self._known, self._open

        @functools.wraps(plain)
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            known = known_modules.get(id(module))
            if known is None or known.is_root or not self._started or _is_tracing() or _is_compiling():
                if not self._began or _is_tracing() or _is_compiling():  # what is traced would be in the graph
                    return plain(module, *args, **kwargs)
                known = self._before_forward(module, args, kwargs)
                if not self._started:
                    return plain(module, *args, **kwargs)
            open_modules.append(id(module))
            self._run.module_begin(known.name)
            try:
                return plain(module, *args, **kwargs)
            finally:
                open_modules.pop()
                self._run.module_end()
        return __call__

    def _before_forward(self, module: Any, args: Any, kwargs: Any) -> _Known:
        known = self._known.get(id(module)) or self._meet(module)
        if known.is_root and id(module) not in self._open:  # else from within its own forward
            if self._batch == (0, 0):
                self._batch = objects.batch_of(args, kwargs)
            self._root_forward()
        self._looked = False
        return known

    def _root_forward(self) -> None:
        trains = torch.is_grad_enabled()
        if trains and (not self._training or self._without_models):
            self._training, self._without_models = True, False
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
        if not self._looked:
            self._look_around()
        models, optimizers = self._live_models(), self._live_optimizers()
        self._refuse_others(models)
        device = objects.device_of(models)
        if device in DEVICES and device != self._options.device:
            self._options.say(f"the model is on {device}: only its tensors on {self._options.device} are paged "
                              f"(--device {device} pages the others)")
        self._protect_from_extensions()
        self._paging.page_all(True)
        self._adopt(models, optimizers)
        self._mark()
        if self._started:  # until now it was no training
            self._run.record_next()
        self._started = True
        self._run.iteration_boundary()
        self._step_began = time.perf_counter()

    def _refuse_others(self, models: List[Any]) -> None:
        if objects.is_sharded(models):
            raise RuntimeError("tencache: FSDP (FullyShardedDataParallel, fully_shard) moves parameters itself; run the "
                               "model without it")
        for model in models:
            for module in model.modules():
                if type(module).__name__ == "OptimizedModule":
                    raise RuntimeError("tencache: the model was compiled before the run began, and compiled code uses "
                                       "memory without ops; leave torch.compile out")
                if type(module).__name__ == "DeepSpeedEngine":
                    raise RuntimeError(_DEEPSPEED)

    def _protect_from_extensions(self) -> None:
        """C++ extensions may write to tensors without an op, which would be lost where a copy below is valid."""
        for name in self._extensions.new():
            self._options.say(f"{name} may use tensors without an op: all tensors are protected from writes that nobody "
                              "announces, which takes time")
            self._paging.expose_all()

    def _boundary(self) -> None:
        self._protect_from_extensions()
        if self._mapped:
            self._adopt(self._live_models(), [])
        if self.record_all and self.steps >= 1:
            self._run.record_next()
        self._run.iteration_boundary()
        self._end_step()
        self.on_boundary()

    def _end_step(self) -> None:
        now = time.perf_counter()
        self.step_seconds.append(now - self._step_began)
        self._step_began = now
        self._optimizer_stepped = False
        self.steps += 1

    # ---- What tensors are --------------------------------------------------------------------------------------------

    def _look_around(self) -> None:
        """Finds the models and optimizers that are there: a walk over every object of the process. What comes later is
        met where it is called, or made."""
        models, optimizers = objects.find_program()
        self._looked = True
        self._models = [weakref.ref(model) for model in models]
        self._known.clear()
        names = objects.module_names(models)
        for model in models:
            for module in model.modules():
                name = names.get(id(module), type(module).__name__)
                self._know(module, name, module is model and _has_tensors(model))
        known = {id(optimizer) for optimizer in self._live_optimizers()}
        for optimizer in optimizers:
            if id(optimizer) not in known:
                self._meet_optimizer(optimizer)
        if models:
            self._described = {"model": type(models[0]).__name__, "precision": objects.precision_of(models)}

    def _know(self, module: Any, name: str, is_root: bool) -> _Known:
        key = id(module)
        known = self._known[key] = _Known(name, is_root, weakref.ref(module, lambda _: self._known.pop(key, None)))
        return known

    def _meet(self, module: Any) -> _Known:
        """A module that was made since: a part, or without parameters (a loss, an activation), or a model."""
        if self._open or not _has_tensors(module):
            return self._know(module, type(module).__name__, False)
        if not self._started:
            self._look_around()
            known = self._known.get(id(module))
            if known is not None:
                return known
        model = objects.unwrap(module)
        known = self._known.get(id(model))
        if known is None:
            self._models = _living(self._models) + [weakref.ref(model)]
            for name, part in model.named_modules(prefix=type(model).__name__):
                self._know(part, name, part is model)
            if self._mapped:
                self._adopt([model], [])
        return self._known[id(model)] if model is module else self._know(module, type(module).__name__, False)

    def _live_models(self) -> List[Any]:
        return [model for model in (reference() for reference in self._models) if model is not None]

    def _live_optimizers(self) -> List[Any]:
        return [one for one in (reference() for reference in self._optimizers) if one is not None]

    def _adopt(self, models: List[Any], optimizers: List[Any]) -> None:
        tensors: List[torch.Tensor] = []
        for model in models:
            tensors += model.parameters()
            tensors += model.buffers()
            tensors += [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        for optimizer in optimizers:
            for state in optimizer.state.values():
                tensors += [value for value in state.values() if isinstance(value, torch.Tensor) and value.numel() > 1]
        if self._without_models or not models:
            leaves = [tensor for tensor in objects.live(torch.Tensor) if tensor.is_leaf and tensor.requires_grad]
            self._leaves = [weakref.ref(tensor) for tensor in leaves]
            tensors += leaves
        self._mapped = False
        if self._paging.adopt(tensors) and self._paging.adopt_mapped(tensors, objects.live(torch.Tensor)):
            self._options.say("weights in a mapped file are left where they are: other tensors use the file, too, or "
                              "it is still open")

    @contextlib.contextmanager
    def _look(self) -> Any:
        self._looking = True
        try:
            yield
        finally:
            self._looking = False

    def _mark(self) -> None:
        with self._look():
            roles = objects.find_roles(self._live_models(), self._live_optimizers(), keep_tensors=True)
        for address, (role, name, _, _) in roles.of.items():
            self._paging.mark(roles.tensors[address], _core.ROLES.index(role), name)
        for number, leaf in enumerate(reference() for reference in self._leaves):
            if leaf is not None:
                self._paging.mark(leaf, _core.ROLES.index("parameter"), f"parameter.{number}")

    def _give_back(self) -> None:
        found: List[torch.Tensor] = []
        for candidate in gc.get_objects():
            if not issubclass(type(candidate), torch.Tensor):
                continue
            try:
                gradient = candidate.grad if candidate.is_leaf else None
            except RuntimeError:  # another thread lets go of it at this moment: it is undefined already
                continue
            found.append(candidate)
            if gradient is not None:
                found.append(gradient)
        self._paging.give_back(found)

    # ---- Results -----------------------------------------------------------------------------------------------------

    def _measure(self) -> dict:
        if not self._began:
            return {}
        figures = json.loads(self._run.figures())
        figures["process_bytes"] = _computer.most_resident_bytes()
        figures["process_bytes_before"] = self._most_before
        figures["taken_bytes"] = self._taken
        figures["started"] = self._started
        figures["exposed_at"] = dict(self._lines.most_common(20))
        figures["split_ops"] = self._paging.split_ops()
        figures["update_tasks"] = self._updates.tasks
        figures["optimizers_left"] = list(self._updates.left)
        figures["adopted_bytes"] = self._paging.adopted_bytes
        figures["bytes_left_in_files"] = self._paging.file_bytes
        figures["unadopted_bytes"] = self._paging.left_bytes
        figures["step_seconds"] = list(self.step_seconds)
        return figures

    def report(self) -> dict:
        """The figures so far, or of the whole run once it is over."""
        return self._figures if self._figures is not None else self._measure()

    def answer(self) -> dict:
        """Once it is over: the run as schemas/live.schema.json says, {} without a step."""
        return json.loads(self._answer[0])

    def answer_text(self) -> str:
        return self._answer[1]

    def recorded_ops(self) -> Optional[_core.Trace]:
        """The last recorded step, without saying what it is of: that takes longer than a short step, and what is done
        between two steps counts as a gap of the next."""
        return self._run.recorded()

    def recorded(self) -> Optional[_core.Trace]:
        """The second step as a trace; None until it is over."""
        if self._closed or not self._began:
            return self._trace
        trace = self.recorded_ops()
        if trace is not None:
            trace.header = {
                "model": "", "precision": "", **self._described,
                "batch": self._batch[0], "sequence_length": self._batch[1],
                "hardware": objects.hardware_name(self._options.device), "made_by": "recorded",
                "recorded_by": "tencache run python",
            }
        return trace


def _living(references: "List[weakref.ref[Any]]") -> "List[weakref.ref[Any]]":
    return [reference for reference in references if reference() is not None]


def _has_tensors(module: Any) -> bool:
    return next(module.parameters(), None) is not None or next(module.buffers(), None) is not None


def _flatten(values: Any) -> List[Any]:
    return [one for value in values for one in (_flatten(value) if isinstance(value, (list, tuple)) else [value])]


_OURS = (os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.abspath(torch.__file__)))


def _line_outside(frame: Any) -> str:
    """FILE:LINE of the first caller that is neither PyTorch nor this package."""
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def live(policy: str = "foresight", *, device: str = "cpu", machine: str = "", memory: str = "", gpu_memory: str = "",
         cpu_memory: str = "", reserve: str = "", limits: Sequence[str] = (), directories: Sequence[str] = (),
         settings: Optional[Mapping[str, Any]] = None, pace: Optional[bool] = None, timeline: str = "",
         optimizer_tasks: bool = False, faults: str = "", quiet: bool = False) -> Live:
    """Pages the tensors of what is trained in the `with` block: parameters, gradients, optimizer states, activations.

    memory      of the whole process, such as "8GiB": tensors get what the interpreter and its libraries leave, with
                files below it
    reserve     of memory, what is kept for what comes after the first parameter (default: a tenth)
    gpu_memory  what tensors may use at a time, in place of memory (default: the machine's)
    cpu_memory  of CPU memory beside it
    device      whose tensors are paged: "cpu", or "cuda" (then they stay paged after the block)
    machine     a name of machines(), or a YAML file (default: this computer, measured once)
    directories of the files of NVMe tiers
    pace        copies take the time that the machine's links say; False: as fast as this computer can (default: only
                with a machine that is named)
    timeline    a file for the timeline (.json, for https://ui.perfetto.dev); `tencache gui` follows it
    optimizer_tasks
                the updates of Adam, AdamW and SGD run as tasks, which the policy may place on the CPU's lane, beside the
                program; same bits, or left to PyTorch with a remark
    faults      makes copies and files fail by this plan (docs/reliability.md), such as "seed=7" or "copy_error=0.01"

    Under torchrun each rank has a run of its own, with its share of memory, of CPU memory that is not given, and of
    disks. Rank 0 reports; the timeline of another is named like timeline.rank1.json.
    """
    return Live(Options(policy, device, str(machine), str(memory), str(reserve), str(gpu_memory), str(cpu_memory), limits,
                        directories, settings or {}, pace, timeline, optimizer_tasks, faults, quiet=quiet).check())
