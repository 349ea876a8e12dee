"""A PyTorch program with its tensors paged by a policy: `tencache.live`."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import importlib
import json
import sys
import time
from typing import Any, Callable, ContextManager, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from tencache_recorder import _choices, _program as objects

from . import _commands  # noqa: F401  which says where the configurations are that ship with the package
from . import _computer, _core, _ranks
from ._checkpoint import checkpoint, read_plan
from ._core import Error
from ._extensions import Extensions
from ._models import Known, Models
from ._paging import Paging
from ._patches import DEEPSPEED, Patches
from ._updates import Updates

DEVICES = ("cpu", "cuda")
_MOST_CHOICES = 32  # steps whose choices of experts a recording has
_MARKED_STEPS = 3  # after them the runtime knows what tensors are from the recorded step

# Of a budget for the whole process, what is kept for all that is no tensor and comes after the first parameter.
# Code of PyTorch that was let go of comes back, up to 110 MiB.
_RESERVE_SHARE, _LEAST_RESERVE = 0.1, 128 << 20

# A thread of gloo has the tensors of a collective a moment longer than its Work lasts.
_THREADS_LET_GO_SECONDS = 1.0

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
    sleep: bool = True
    gpu_allocator: str = ""
    run_ahead: str = ""
    plan: str = ""
    ranks_share: str = ""
    program: str = "a PyTorch program"
    quiet: bool = False
    progress: bool = True  # a line on a terminal while something takes long, unless `quiet`

    def say(self, text: str) -> None:
        if not self.quiet and _ranks.rank() == 0:
            print("tencache: " + text, file=sys.stderr)

    def patience(self, what: str) -> ContextManager[None]:
        """Shows it, and how far that is, on a terminal once it has taken two seconds."""
        if self.quiet or not self.progress or _ranks.rank() != 0:
            return contextlib.nullcontext()
        return _core.PatienceLine("tencache: " + what)

    def check(self) -> "Options":
        """With a machine. Raises Error where the options contradict each other."""
        if self.device not in DEVICES:
            raise Error(f"device: '{self.device}' is none of {', '.join(DEVICES)}")
        if self.device == "cuda" and torch.version.cuda is None:
            raise Error(f"PyTorch {torch.__version__} is built without CUDA: install one that has it, or leave device "
                        "out")
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
        if self.plan:
            read_plan(self.plan)
        pace = bool(self.machine) if self.pace is None else self.pace
        machine = self.machine or _computer.machine_file(self.device, not self.memory, self.directories, self.say,
                                                         self.patience)
        # Copies that are queued on a GPU's streams are not paced; a recording is of ops that are waited for as well.
        run_ahead = self.run_ahead or ("0" if self.device == "cuda" and (self.pace or self.limits) else "")
        return dataclasses.replace(self, machine=machine, pace=pace, run_ahead=run_ahead)

    def setting(self, taken: int = 0, share: str = "") -> "_core.LiveSetting":
        """`taken`: bytes of the process that are no tensors'. `share`: under which name the run meets other ranks'."""
        ranks = _ranks.count_here()
        gpu_memory = self.gpu_memory
        if self.memory:
            budget = _core.parse_bytes(self.memory) // ranks
            reserve = _core.parse_bytes(self.reserve) if self.reserve else max(int(_RESERVE_SHARE * budget),
                                                                               _LEAST_RESERVE)
            room = budget - taken - reserve
            if room <= 0:
                raise Error(f"memory: {budget >> 20} MiB for the whole process leave nothing to tensors: it has "
                            f"{taken >> 20} MiB before its first tensor, and {reserve >> 20} MiB are kept for what "
                            "else comes")
            gpu_memory = f"{room}B"
            self.say(f"{budget >> 20} MiB for the process: {taken >> 20} MiB are taken, {reserve >> 20} MiB kept for "
                     f"what else comes, {room >> 20} MiB for tensors")
        return _core.LiveSetting(program=self.program, device=self.device, machine=self.machine,
                                 gpu_memory=gpu_memory, cpu_memory=self.cpu_memory, limits=list(self.limits),
                                 directories=list(self.directories), policy=self.policy, share=share,
                                 ranks=[_ranks.rank(), _ranks.count(), _ranks.rank_here(), ranks],
                                 settings={name: str(value) for name, value in self.settings.items()},
                                 faults=self.faults, gpu_allocator=self.gpu_allocator, run_ahead=self.run_ahead)


class NoRoom(MemoryError):
    """A budget for the whole process that leaves nothing to tensors: known at the first parameter."""


class State(enum.IntEnum):
    """Of a run, in order. A step is over, and the next one begins, where its state says."""

    WAITING = 0     # for start(), or with a budget for the whole process for the first parameter: nothing is paged
    ATTACHED = 1    # tensors are paged; no step has begun
    GENERATING = 2  # before each forward pass of a model, none of which has gradients
    LOOSE = 3       # no model trains: before the backward pass that follows an optimizer's step, or where there are no
    #                 optimizers before each
    TRAINING = 4    # before the forward pass with gradients that follows an optimizer's step
    MANUAL = 5      # where the program calls step()
    OVER = 6        # tensors stay where they are, and are served, as long as the process or until they are given back


class Event(enum.Enum):
    PARAMETER = "the first parameter is about to be made"
    FORWARD = "a model's forward pass begins, without gradients"
    TRAINING_FORWARD = "a model's forward pass begins, with gradients"
    BACKWARD = "a backward pass begins"
    UPDATE = "an optimizer's step is over"
    STEP = "the program says that a step is over"
    END = "the program is over, or its `with` block"


class Live:
    """See tencache.live(). `steps`: how many are over."""

    def __init__(self, options: Options, predicted: Optional["_core.LivePrediction"] = None) -> None:
        """`options`: checked."""
        self.options, self._predicted = options, predicted
        self._plan = options.plan  # until it is applied
        self.paging = Paging.load(options.device, options.say, options.patience)
        self.updates = Updates(self.paging, options.say)
        self._patches: Patches
        self.models = Models(self.paging, options.say, options.patience,
                             lambda kind: self._patches.watch_optimizer(kind))
        self._patches = Patches(self)
        self._extensions = Extensions()
        self._taken = self._most_before = 0
        if not options.memory:
            self.run = self._make_run()
        self.record_all = False  # every step from the second on
        self.on_boundary: Callable[[], None] = lambda: None  # after each step
        self.state = State.WAITING
        self._trains = False   # a pass with gradients was seen: a forward pass without them is no step, but set aside
        self._updated = False  # by an optimizer, since the step began
        self._aside = False    # what runs belongs to no step
        self.phase = 0         # as the runtime has it
        self.asleep = False    # since the step began: the runtime needs to hear of no module
        self._chosen: List[Tuple[str, List[str]]] = []  # blocks and experts, gate by gate of the step that runs
        self._choices: "collections.deque[List[List[str]]]" = collections.deque(maxlen=_MOST_CHOICES)
        self.steps = 0
        self.step_seconds: List[float] = []
        self._step_began = 0.0
        self._figures: Optional[dict] = None
        self._answer: Tuple[str, str] = ("{}", "")
        self._trace: Optional[_core.Trace] = None

    # ---- The with block ----------------------------------------------------------------------------------------------

    def start(self, new_program: bool = False) -> None:
        """What `with` begins with, for a run that goes on to the end of the process: see finish(). `new_program`: it
        has no model yet."""
        self._patches.put()
        if not new_program:
            self.models.look_around()
        if not self.options.memory or self.models.models():
            self._on(Event.PARAMETER)

    def list_elements(self, on: bool) -> None:
        """Ops on lists run element by element, as they do in the least memory."""
        self.paging.split_all_lists(on)

    def finish(self, whole: bool = True) -> None:
        """The last step is over, and `whole`. Tensors stay where they are, and are served, as long as the process."""
        if not self.attached or self.state is State.OVER:
            return
        answers = self.stepping and whole
        if answers:
            self._end_step()
            self.run.set_aside(True)  # what a last step lacks, at its end, is no deviation
            self.run.end()
        self._figures, self._trace = self._measure(), self.recorded()
        if answers:
            self._answer = self.run.answer(json.dumps(self._figures), sum(self.step_seconds))
        self._on(Event.END)

    def __enter__(self) -> "Live":
        self.start()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        self._patches.undo()
        if not self.attached:
            return False
        self.paging.page_all(False)
        try:
            self.finish(whole=error is None)
        finally:
            if self.options.device == "cpu":  # else tensors stay where they are, and are served, as long as the process
                self._give_back()
        return False

    def _give_back(self) -> None:
        self.models.give_back()
        self.paging.guard(False)
        left = self.run.close()
        until = time.monotonic() + _THREADS_LET_GO_SECONDS
        while left and torch.distributed.is_available() and torch.distributed.is_initialized() \
                and time.monotonic() < until:
            time.sleep(0.001)
            left = self.run.close()
        if left:
            self.options.say(f"tensors that only PyTorch's own objects hold keep {left} bytes of the run's memory: the "
                             "next run begins when they are gone")

    # ---- What the program does, as _patches.py hears it --------------------------------------------------------------

    @property
    def attached(self) -> bool:
        return self.state > State.WAITING

    @property
    def stepping(self) -> bool:
        return State.ATTACHED < self.state < State.OVER

    def on_first_parameter(self) -> None:
        if not self.attached:
            self._on(Event.PARAMETER)

    def on_forward(self, module: Any, arguments: Any, named: Any) -> Known:
        """Of a module that is a model, or not known, or before the first step."""
        return self.models.called(module, arguments, named, self.state is State.ATTACHED, self._on_model)

    def _on_model(self) -> None:
        trains = torch.is_grad_enabled()
        self._on(Event.TRAINING_FORWARD if trains else Event.FORWARD)
        if self._trains and self.stepping and self._aside == trains:
            self._set_aside(not trains)

    def on_backward(self) -> None:
        self._on(Event.BACKWARD)

    def on_optimizer(self) -> None:
        """Its step begins."""
        if self.stepping and self.steps < _MARKED_STEPS:
            self._mark()

    def on_updated(self) -> None:
        self._on(Event.UPDATE)
        if self.stepping and self.steps == 0:
            self._mark()  # the states that it has made

    @contextlib.contextmanager
    def in_phase(self, phase: int) -> Any:
        before = self.phase
        self._set_phase(phase)
        try:
            yield
        finally:
            self._set_phase(before)

    def _set_phase(self, phase: int) -> None:
        if self.attached:
            self.phase = phase
            self.run.set_phase(phase)

    @contextlib.contextmanager
    def aside(self) -> Any:
        """What runs in this block belongs to no step: a checkpoint, say."""
        before = self._aside
        self._set_aside(True)
        try:
            yield
        finally:
            self._set_aside(before)

    def _set_aside(self, on: bool) -> None:
        self._aside = on
        if self.attached:
            self.run.set_aside(on)

    # ---- Experts -----------------------------------------------------------------------------------------------------

    def open_block(self) -> Optional[Known]:
        """The innermost module that runs and chooses among experts, where the runtime follows the program."""
        return self.models.open_block() if self.stepping and not self.asleep else None

    def chose(self, block: Known, numbers: List[int]) -> None:
        """The op before chose these experts, which will run in this order."""
        names = [block.experts[number] for number in numbers]
        self.run.chose(block.name, names)
        if self._chosen and self._chosen[-1][0] == block.name:
            self._chosen.pop()  # the last choice counts
        self._chosen.append((block.name, names))

    # ---- Steps -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """A step of the program is over; for loops that no optimizer's step ends."""
        self._on(Event.STEP)

    def _on(self, event: Event) -> None:
        """All that changes the state."""
        if self.state is State.WAITING and event in (Event.PARAMETER, Event.BACKWARD, Event.STEP):
            self._attach()
        state = self.state
        if state in (State.WAITING, State.OVER):
            return
        if event is Event.END:
            self.state = State.OVER
        elif event is Event.UPDATE:
            self._updated = True
        elif event is Event.STEP:  # whatever ended steps before
            self._begin_step(State.MANUAL)
        elif state is State.MANUAL:
            self._trains |= event is Event.TRAINING_FORWARD
        elif event is Event.TRAINING_FORWARD:
            if state is not State.TRAINING or self._updated:
                self._begin_step(State.TRAINING)
        elif event is Event.FORWARD:
            if state in (State.ATTACHED, State.GENERATING):
                self._begin_step(State.GENERATING)
        elif event is Event.BACKWARD:
            if state in (State.ATTACHED, State.GENERATING) or (
                    state is State.LOOSE and (self._updated or not self.models.optimizers())):
                self._begin_step(State.LOOSE)

    def _attach(self) -> None:
        """With a budget for the whole process at the first parameter: what was imported until then is known."""
        self.state = State.ATTACHED  # what is imported here may make parameters
        if self.options.memory:
            if hasattr(torch, "compile"):
                importlib.import_module("torch._dynamo")  # as the first optimizer will: 80 MB
            _computer.let_go_of_code()
            self._taken = _computer.resident_bytes()
            self._most_before = _computer.forget_most_resident_bytes()
            try:
                self.run = self._make_run()
            except Error as error:
                self.state = State.WAITING
                raise NoRoom(str(error)) from None
        self.paging.attach(self.run.abi)
        self.paging.guard(True)
        self.models.adopt_all(leaves=False)

    def _make_run(self) -> "_core.LiveRun":
        sleep = self.options.sleep and not self.options.optimizer_tasks and not _ranks.are_joined()
        setting = self.options.setting(self._taken, _ranks.share_name(self.options.ranks_share))
        with self.options.patience("preparing memory"):
            return _core.LiveRun(setting, pace=self.options.pace, sleep=sleep, fence=self.paging.fence,
                                 timeline=_ranks.own_file(self.options.timeline), predicted=self._predicted,
                                 stream=self.paging.stream)

    def stay_awake(self) -> None:
        """From now on: threads that the runtime cannot wait for unseen will use tensors."""
        self.options.sleep = False
        if hasattr(self, "run"):
            self.run.stay_awake()

    def _begin_step(self, state: State) -> None:
        if self.state is State.ATTACHED or state not in (self.state, State.MANUAL):
            self._begin_first_step(state)
        else:
            self._protect_from_extensions()
            self.models.adopt_mapped(self.models.models(), leaves=state is State.LOOSE)
            if self.record_all and self.steps >= 1:
                self.run.record_next()
            self.asleep = self.run.iteration_boundary()
            self.state = state
            self._end_step()
            self.on_boundary()

    def _begin_first_step(self, state: State) -> None:
        """Of this kind: what ran before is none of them."""
        self.models.look_around(again=False)
        models = self.models.models()
        _refuse(models)
        if self.models.have_experts():
            self._patches.watch_routers()
        if self._plan and models:
            checkpoint(models[0], self._plan)
            self._plan = ""
        device = objects.device_of(models)
        if device in DEVICES and device != self.options.device:
            self.options.say(f"the model is on {device}: only its tensors on {self.options.device} are paged "
                             f"(--device {device} pages the others)")
        self._protect_from_extensions()
        self.paging.page_all(True)
        self.models.adopt_all(leaves=state is State.LOOSE)
        self._mark()
        if self.stepping:
            self.run.record_next()
        self.state, self._updated = state, False
        self._trains |= state in (State.LOOSE, State.TRAINING)
        self.asleep = self.run.iteration_boundary()
        self._step_began = time.perf_counter()

    def _end_step(self) -> None:
        now = time.perf_counter()
        self.step_seconds.append(now - self._step_began)
        self._step_began = now
        if self._chosen and self.steps >= 1:  # from the recorded step on
            self._choices.append([names for _, names in self._chosen])
        self._chosen = []
        self._updated = False
        self.steps += 1

    def _protect_from_extensions(self) -> None:
        """C++ extensions may write to tensors without an op, which would be lost where a copy below is valid."""
        for name in self._extensions.new():
            remark = ("all tensors stay in the GPU's memory from now on" if self.paging.serves_no_faults() else
                      "all tensors are protected from writes that nobody announces, which takes time")
            self.options.say(f"{name} may use tensors without an op: {remark}")
            self.paging.expose_all()

    def _mark(self) -> None:
        with self._patches.ignored():
            self.models.mark()

    # ---- Results -----------------------------------------------------------------------------------------------------

    def _measure(self) -> dict:
        if not self.attached:
            return {}
        figures = json.loads(self.run.figures())
        figures["process_bytes"] = _computer.most_resident_bytes()
        figures["process_bytes_before"] = self._most_before
        figures["taken_bytes"] = self._taken
        figures["started"] = self.stepping
        figures["exposed_at"] = dict(self._patches.exposed_at.most_common(20))
        figures["split_ops"] = self.paging.split_ops()
        figures["update_tasks"] = self.updates.tasks
        figures["optimizers_left"] = list(self.updates.left)
        figures["adopted_bytes"] = self.paging.adopted_bytes
        figures["bytes_left_in_files"] = self.paging.file_bytes
        figures["unadopted_bytes"] = self.paging.left_bytes
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
        return self.run.recorded()

    def recorded(self) -> Optional[_core.Trace]:
        """The second step as a trace; None until it is over."""
        if self.state in (State.WAITING, State.OVER):
            return self._trace
        trace = self.recorded_step()
        return None if trace is None else self.with_choices(trace)

    def chooses_experts(self) -> bool:
        """In steps that were recorded."""
        return bool(self._choices)

    def with_choices(self, step: _core.Trace) -> _core.Trace:
        """If its gates choose experts, the step once for each choice so far."""
        return _core.repeat_step(step, list(self._choices)) if self._choices else step

    def recorded_step(self) -> Optional[_core.Trace]:
        """The same, alone."""
        trace = self.recorded_ops()
        if trace is not None:
            batch, length = self.models.batch
            trace.header = {
                "model": "", "precision": "", **self.models.described, "batch": batch, "sequence_length": length,
                "hardware": objects.hardware_name(self.options.device), "made_by": "recorded",
                "recorded_by": "tencache run python",
            }
            _add_choices(trace)
        return trace


def _add_choices(trace: _core.Trace) -> None:
    """Which blocks could be computed again; why none could where none could."""
    def each(accesses: Any) -> Iterator[List[int]]:
        offsets, ids = (array.tolist() for array in accesses)
        return (ids[begin:end] for begin, end in zip(offsets, offsets[1:]))
    ops = list(zip(trace.op_names, trace.op_phases, trace.op_modules, each(trace.reads), each(trace.writes)))
    persistent = set(trace.persistent_tensors)
    tensors = [(name, number in persistent) for number, name in enumerate(trace.tensor_names)]
    trace.choices, refused = _choices.find_choices(ops, tensors)
    if not trace.choices:
        trace.header = {**trace.header, "made_with": {"no-choice": _choices.why_none(refused)}}


def _refuse(models: List[Any]) -> None:
    if objects.is_sharded(models):
        raise RuntimeError("tencache: FSDP (FullyShardedDataParallel, fully_shard) moves parameters itself; run the "
                           "model without it")
    for model in models:
        for module in model.modules():
            if type(module).__name__ == "OptimizedModule":
                raise RuntimeError("tencache: the model was compiled before the run began, and compiled code uses "
                                   "memory without ops; leave torch.compile out")
            if type(module).__name__ == "DeepSpeedEngine":
                raise RuntimeError(DEEPSPEED)


def live(policy: str = "foresight", *, device: str = "cpu", machine: str = "", memory: str = "", gpu_memory: str = "",
         cpu_memory: str = "", reserve: str = "", limits: Sequence[str] = (), directories: Sequence[str] = (),
         settings: Optional[Mapping[str, Any]] = None, pace: Optional[bool] = None, timeline: str = "",
         optimizer_tasks: bool = False, faults: str = "", sleep: bool = True, gpu_allocator: str = "",
         run_ahead: Optional[int] = None, ranks_share: str = "", quiet: bool = False) -> Live:
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
                with a machine that is named, and not where the program is ahead of a GPU)
    timeline    a file for the timeline (.json, for https://ui.perfetto.dev); `tencache gui` follows it
    optimizer_tasks
                the updates of Adam, AdamW and SGD run as tasks, which the policy may place on the CPU's lane, beside
                the program; same bits, or left to PyTorch with a remark
    faults      makes copies and files fail by this plan (docs/reliability.md), such as "seed=7" or "copy_error=0.01"
    sleep       once the schedule is known, ops run unwatched as long as all tensors fit (default); False: each op is
                watched, and counts in the report
    gpu_allocator
                "movable", the default: a GPU's memory is mapped once, and tensors are moved in it; "exact": it is
                mapped chunk by chunk
    run_ahead   with a GPU and movable memory, how many ops the program may be ahead of the GPU; 0: each op is waited
                for (default: the machine's, else 256; 0 with limits, faults and pace=True)

    ranks_share the name under which ranks on one computer share its CPU memory and its links (default: from the
                variables that torchrun sets; "none": each keeps to its part)

    Under torchrun each rank has a run of its own, with its part of memory, of CPU memory that is not given, and of
    disks. What a rank does not need of its CPU memory others may have, and paced links share what the machine says.
    Rank 0 reports; the timeline of another is named like timeline.rank1.json.
    """
    return Live(Options(policy, device, str(machine), str(memory), str(reserve), str(gpu_memory), str(cpu_memory),
                        limits, directories, settings or {}, pace, timeline, optimizer_tasks, faults,
                        sleep, gpu_allocator, "" if run_ahead is None else str(run_ahead), ranks_share=ranks_share,
                        quiet=quiet).check())
