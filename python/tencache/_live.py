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
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

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


class Live:
    """See tencache.live(). `steps`: how many are over."""

    def __init__(self, options: Options, predicted: Optional["_core.LivePrediction"] = None) -> None:
        """`options`: checked."""
        self._options, self._predicted = options, predicted
        self._paging = Paging.load(options.device, options.say)
        self._updates = Updates(self._paging, options.say)
        self._extensions = Extensions()
        self._began = False
        self._taken = 0
        if not options.memory:
            self._run = self._make_run()
        self.record_all = False  # every step from the second on
        self.on_boundary: Callable[[], None] = lambda: None  # after each step
        self._batch: Tuple[int, int] = (0, 0)
        self._lines: "collections.Counter[str]" = collections.Counter()
        self._answer: Tuple[str, str] = ("{}", "")
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
        self._watch()
        if not self._options.memory or objects.find_models():
            self._begin()

    def _make_run(self) -> "_core.LiveRun":
        return _core.LiveRun(self._options.setting(self._taken), pace=self._options.pace, fence=self._paging.fence,
                             timeline=_ranks.own_file(self._options.timeline), predicted=self._predicted)

    def _begin(self) -> None:
        """With a budget for the whole process at the first parameter: what was imported until then is known."""
        self._began = True
        if self._options.memory:
            if hasattr(torch, "compile"):
                importlib.import_module("torch._dynamo")  # as the first optimizer will: 80 MB
            _computer.let_go_of_code()
            self._taken = _computer.resident_bytes()
            try:
                self._run = self._make_run()
            except Error as error:
                raise MemoryError(str(error)) from error
        self._paging.attach(self._run.abi)
        self._paging.guard(True)
        self._adopt_models()

    def finish(self) -> None:
        """The last step is over. Tensors stay where they are, and are served, as long as the process."""
        if not self._began or self._figures is not None:
            return
        if self._started:
            self._end_step()
            self._run.end()
            self._answer = self._run.answer(self.step_seconds, sum(self.step_seconds))
        self._figures = self._measure()

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
        self._run.set_phase(_OPTIMIZER)
        if self._started and self.steps < _MARKED_STEPS:
            self._mark()

    def _after_optimizer(self) -> None:
        self._run.set_phase(_FORWARD)
        self._optimizer_stepped = True
        if self._started and self.steps == 0:
            self._mark()  # the states that it has made

    def _before_forward(self, module: Any, args: Any) -> None:
        if not self._began or torch.jit.is_tracing():  # what is traced would be in the graph
            return
        if id(module) not in self._names:
            self._find_models()
            self._names.setdefault(id(module), type(module).__name__)  # a wrapper around a model
        if self._batch == (0, 0) and id(module) in self._roots:
            self._batch = objects.batch_of(args, {})
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
        self._refuse_others()
        device = objects.device_of(objects.find_models())
        if device in DEVICES and device != self._options.device:
            self._options.say(f"the model is on {device}: only its tensors on {self._options.device} are paged "
                              f"(--device {device} pages the others)")
        self._protect_from_extensions()
        self._paging.page_all(True)
        self._adopt_models()
        self._mark()
        if self._started:  # until now it was no training
            self._run.record_next()
        self._started = True
        self._run.iteration_boundary()
        self._step_began = time.perf_counter()

    def _refuse_others(self) -> None:
        models = objects.find_models()
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
        figures = self._run.figures()
        figures["process_bytes"] = _computer.most_resident_bytes()
        figures["taken_bytes"] = self._taken
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
        """Once it is over: the run as --json of `run python` has it, {} without a step."""
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
            models = objects.find_models()
            trace.header = {
                "model": type(models[0]).__name__ if models else "",
                "batch": self._batch[0], "sequence_length": self._batch[1],
                "precision": objects.precision_of(models), "hardware": objects.hardware_name(self._options.device),
                "recorded_by": "tencache run python",
            }
        return trace


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
