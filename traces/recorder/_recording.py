"""The context manager: counts steps, observes the one that is wanted, writes it."""

import ctypes
import json
import os
import subprocess

import torch

from . import _experts, _program, _trace
from ._command import find_command
from ._errors import Recorded, RecorderError
from ._observer import CannotLoad, load

_DEVICES = {"cpu": 0, "cuda": 1, "meta": 14}  # as c10::DeviceType


def _ranked(path):
    rank = os.environ.get("RANK")
    if rank is None:
        return path
    folder, name = os.path.split(path)
    stem, dot, suffix = name.partition(".")
    return os.path.join(folder, f"{stem}.rank{rank}{dot}{suffix}")


class Recording:
    """See record(). `done`: the step is recorded; `path`: the trace, and `duration_seconds` of the step. Both are None
    before, and where the profiler has recorded and there is no `tencache` command to make a trace of its files."""

    def __init__(self, path, *, step, steps, optimizer_steps, model, name, batch, sequence_length, stop, library,
                 timed, say):
        if step < 0 or steps < 1 or optimizer_steps < 0:
            raise RecorderError("step and optimizer_steps are 0 or more, steps is 1 or more")
        self._target = _ranked(os.fspath(path))
        _trace.check_path(self._target)
        self._first, self._count, self._per_step = step, steps, optimizer_steps
        self._model, self._name, self._batch, self._sequence_length = model, name, batch, sequence_length
        self._stop, self._use_library, self._timed, self._say = stop, library, timed, say
        self._step = 0             # that runs
        self._optimizer_calls = 0  # of this step
        self._taken = []           # what was observed, a document for each step
        self._error = None
        self._backend = self._leave_hook = None
        self._shape = [0, 0]
        self._told_of_shards = self._told_of_optimizers = False
        self.done = False
        self.path = self.duration_seconds = None

    # ---- The with block ----------------------------------------------------------------------------------------------

    def __enter__(self):
        self._backend = self._choose_backend()
        self._backend.start()
        self._watch_scalers()
        if self._first == 0:
            self._guarded(self._begin)
        return self

    def __exit__(self, kind, error, traceback):
        if error is None:
            self._backend.finish()
        self._backend.stop()
        self._unwatch_scalers()
        if self._leave_hook is not None:
            self._leave_hook.remove()
        if self._error is not None and (error is None or kind is Recorded):
            raise RecorderError(str(self._error)) from self._error
        if kind is Recorded:
            return True
        if not self.done and kind in (None, SystemExit):
            hint = ("" if self._step > 0 or self._per_step == 0 else
                    "; no optimizer's step was seen: call step() of the recording at the end of each step, with "
                    "optimizer_steps=0")
            raise RecorderError(f"the training ended in step {self._step}, before step {self._first} (counted from 0) "
                                f"was over: train longer, or take an earlier step{hint}")
        return False

    def step(self):
        """Ends a training step, where optimizer_steps=0."""
        if self._per_step != 0:
            raise RecorderError("steps end with the optimizer's; to end them yourself say "
                               "record(…, optimizer_steps=0)")
        self._next()

    def _watch_scalers(self):
        scaler = getattr(getattr(torch, "amp", None), "GradScaler", None) or torch.cuda.amp.GradScaler
        plain = scaler.__dict__.get("_maybe_opt_step")
        self._unwatch_scalers = lambda: None
        if plain is None:
            return

        def watched(*args, **kwargs):
            before = self._optimizer_calls, self._step
            result = plain(*args, **kwargs)
            if before == (self._optimizer_calls, self._step) and isinstance(self._backend, Library):
                self.optimizer_step_skipped()
            return result
        scaler._maybe_opt_step = watched
        self._unwatch_scalers = lambda: setattr(scaler, "_maybe_opt_step", plain)

    # ---- Steps -------------------------------------------------------------------------------------------------------

    def optimizer_stepped(self):
        """The backend says that an optimizer's step has ended."""
        self._optimizer_calls += 1
        if self._per_step != 0 and self._optimizer_calls == self._per_step:
            self._next()

    def optimizer_step_skipped(self):
        """A GradScaler found infinite gradients: what was observed is no whole step."""
        if self._per_step == 0 or self.done or self._error is not None:
            return
        if self._per_step > 1:
            self._error = RecorderError("a GradScaler skipped the step of one of several optimizers: where the training "
                                        "step ends is not known; use optimizer_steps=0 and recording.step()")
            self._backend.stop()
        elif self._first <= self._step < self._first + self._count:
            self._say(f"a GradScaler skipped the optimizer in step {self._step}: the next one is recorded in its place")
            self._guarded(self._begin_again)

    def _begin_again(self):
        self._backend.end()
        self._backend.take()
        self._shape = list(self._shape_before)
        self._begin()

    def _next(self):
        self._guarded(self._boundary)
        self._optimizer_calls = 0
        self._step += 1

    def _guarded(self, action):
        if self._error is None and not self.done:
            try:
                action()
            except Exception as error:  # it may be a callback of PyTorch's, which would swallow it
                self._error = error
                self._backend.stop()
            if self._stop and (self.done or self._error is not None):
                self._leave()

    def _leave(self):
        """At the next forward: an exception would not pass through PyTorch's callbacks."""
        def leave(*_):
            raise Recorded()
        self._leave_hook = torch.nn.modules.module.register_module_forward_pre_hook(leave)

    def _boundary(self):
        if self._first <= self._step < self._first + self._count:
            self._taken.append(self._end())
        if self._step == self._first + self._count - 1:
            self._finish()
        elif self._step >= self._first - 1:
            self._begin()

    def _begin(self):
        models, optimizers = self._find()
        self._shape_before = list(self._shape)
        if _program.is_sharded(models) and not self._told_of_shards:
            self._told_of_shards = True
            self._say("the model is sharded by FSDP, which frees parameters and fills them again in the same storage: in "
                      "the trace they take memory all the time")
        if self._per_step == 1 and len(_program.trained_sets(optimizers)) > 1 and not self._told_of_optimizers:
            self._told_of_optimizers = True
            self._say(f"the program has {len(_program.trained_sets(optimizers))} optimizers: what is recorded ends "
                      "with the first one's step; to record a step of all of them, give their number (--optimizer-steps)")
        self._roles_before = _program.find_roles(models, optimizers)
        self._backend.begin(models, self._roles_before)

    def _end(self):
        self._backend.end()
        roles = _program.find_roles(*self._find())
        return dict(self._backend.take(), roles=roles, roles_before=self._roles_before)

    def _finish(self):
        self._backend.stop()
        self.path = self._backend.write(self._taken, self._target, self._header())
        self.done = True

    def _find(self):
        models, optimizers = _program.find_program()
        return models if self._model is None else [_program.unwrap(self._model)], optimizers

    def _models(self):
        return self._find()[0] if self._model is None else [_program.unwrap(self._model)]

    def saw_batch(self, batch, sequence_length):
        """The model's forward has begun, with so much."""
        self._shape[0] += batch
        self._shape[1] = max(self._shape[1], sequence_length)

    def _header(self):
        models = self._models()
        name = self._name
        if name is None and models:
            name = getattr(getattr(models[0], "config", None), "_name_or_path", None) or type(models[0]).__name__
        device = _program.device_of(models)
        return {"model": name or "", "batch": self._batch if self._batch is not None else self._shape[0] // self._count,
                "sequence_length": self._sequence_length if self._sequence_length is not None else self._shape[1],
                "precision": self._precision or _program.precision_of(models),
                "hardware": _program.hardware_name(device) if self._timed else "",
                "made_by": "recorded", "recorded_by": f"tencache_recorder, PyTorch {torch.__version__}",
                "device": device}

    _precision = ""

    def saw_precision(self, precision):
        self._precision = precision

    def _choose_backend(self):
        if self._use_library:
            try:
                return Library(self, load(self._say), _program.device_of(self._models()), self._say)
            except CannotLoad as error:
                self._say(f"the observer cannot be loaded: {error}; PyTorch's profiler records instead")
        return Profiler(self, self._say)


class Library:
    """Observes with observer.cpp."""

    _under_way = False  # one a process

    def __init__(self, recording, library, device, say):
        if device not in _DEVICES:
            raise RecorderError(f"the model is on '{device}'; the recorder knows cpu, cuda and meta")
        self._recording, self._library, self._say = recording, library, say
        self._listener = library.Listener(lambda ended: recording.optimizer_stepped() if ended else None)
        self._type = _DEVICES[device]
        self._hooks = []
        self._names = []
        self._experts = {}
        self._stance = None
        self._root = -1
        self._started = False

    def _check(self, status):
        if status != 0:
            raise RecorderError(self._library.tencache_failure().decode(errors="replace"))

    def start(self):
        if Library._under_way:
            raise RecorderError("another recording is under way in this process")
        self._check(self._library.tencache_start(self._type, self._listener))
        Library._under_way = self._started = True

    def begin(self, models, roles):
        names = _program.module_names(models)
        self._experts = _experts.blocks_of(models, names)
        numbers = {}
        for identity, name in names.items():
            numbers[identity] = len(self._names)
            self._names.append(name)
        root = models[0] if models else None
        self._root = numbers.get(id(root), -1)
        enter, leave = self._library.tencache_enter_module, self._library.tencache_leave_module
        recording = self._recording

        def given(module, args, kwargs=None):
            if torch.is_grad_enabled():
                recording.saw_batch(*_program.batch_of(args, kwargs or {}))
                recording.saw_precision(_program.precision_of(models))

        def before(module, args):
            enter(numbers.get(id(module), -1))

        def after(module, *_):
            leave()

        hooks = torch.nn.modules.module
        if root is not None:
            try:
                self._hooks.append(root.register_forward_pre_hook(given, with_kwargs=True))
            except TypeError:  # PyTorch before 2.0
                self._hooks.append(root.register_forward_pre_hook(given))
        self._hooks.append(hooks.register_module_forward_pre_hook(before))
        try:
            self._hooks.append(hooks.register_module_forward_hook(after, always_call=True))
        except TypeError:
            self._hooks.append(hooks.register_module_forward_hook(after))
        if hasattr(torch, "compiler") and hasattr(torch.compiler, "set_stance"):  # compiled code has no ops to see
            self._stance = torch.compiler.set_stance("force_eager")
        known = (ctypes.c_void_p * len(roles.of))(*roles.of)
        self._check(self._library.tencache_begin_step(known, len(known)))

    def end(self):
        self._check(self._library.tencache_end_step())
        self._remove_hooks()

    def _remove_hooks(self):
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._stance is not None:
            self._stance.__exit__(None, None, None)  # as it was
            self._stance = None

    def take(self):
        text = self._library.tencache_take()
        if text is None:
            raise RecorderError(self._library.tencache_failure().decode(errors="replace"))
        return dict(json.loads(text), root=self._root)

    def finish(self):
        pass

    def stop(self):
        self._remove_hooks()
        if self._started:
            self._library.tencache_stop()
            Library._under_way = self._started = False

    def write(self, steps, path, header):
        compiled = [region for step in steps for region in step["compiled_regions"]]
        duration_ns = sorted(step["duration_ns"] for step in steps)[len(steps) // 2]
        timed = self._recording._timed and header["device"] != "meta"
        lines = _trace.make_trace(steps, self._names, header, timed, self._experts)
        ops = [line for line in lines if line["kind"] == "op"]
        if not ops:
            raise RecorderError("the step had no ops on the model's device")
        _trace.write_trace(lines, path)
        self._recording.duration_seconds = duration_ns / 1e9
        self._say(f"{path}: {len(ops)} ops, {lines[0]['tensor_count']} tensors, a step of {duration_ns / 1e6:.1f} ms")
        if compiled:
            share = sum(region["duration_ns"] for region in compiled) / len(steps) / max(1, duration_ns)
            self._say(f"{len(compiled)} compiled regions took {100 * share:.0f} % of the step; their ops are not in "
                      "the trace: record without torch.compile")
        return path


class Profiler:
    """Records with PyTorch's execution trace and Kineto; `tencache import pytorch` makes a trace of the files. Their
    step begins and ends with a forward: within an optimizer's step the files would lack that step."""

    def __init__(self, recording, say):
        if recording._count != 1:
            raise RecorderError("with PyTorch's profiler only one step can be recorded: leave steps out")
        self._recording, self._say = recording, say
        self._hook = self._restore = self._profile = self._observer = None
        self._forward_hook = self._files = None
        self._steps = 0

    def start(self):
        try:
            from torch.optim.optimizer import register_optimizer_step_post_hook
            self._hook = register_optimizer_step_post_hook(lambda *_: self._stepped())
        except ImportError:  # PyTorch before 2.0 calls this at the end of each step
            optimizer = torch.optim.Optimizer
            plain = optimizer._optimizer_step_code
            optimizer._optimizer_step_code = lambda _: self._stepped()
            self._restore = lambda: setattr(optimizer, "_optimizer_step_code", plain)
        self._forward_hook = torch.nn.modules.module.register_module_forward_pre_hook(lambda *_: self.finish())

    def _stepped(self):
        self._steps += 1

    def finish(self):
        """Tells of the optimizer's steps since the last forward."""
        while self._steps > 0:
            self._steps -= 1
            self._recording.optimizer_stepped()

    def begin(self, models, roles):
        del models, roles
        if self._profile is not None:
            return
        stem = self._recording._target
        for suffix in (".zst", ".jsonl", ".trace"):
            stem = stem[:-len(suffix)] if stem.endswith(suffix) else stem
        self._files = (stem + ".et.json", stem + ".kineto.json")
        from torch.profiler import profiler
        kind = getattr(profiler, "ExecutionTraceObserver", None) or profiler.ExecutionGraphObserver
        self._observer = kind()
        self._observer.register_callback(self._files[0])
        self._profile = torch.profiler.profile(record_shapes=True)
        self._profile.__enter__()
        self._observer.start()

    def end(self):
        self._observer.stop()
        self._observer.unregister_callback()
        self._profile.__exit__(None, None, None)

    def take(self):
        return {}

    def stop(self):
        for hook in (self._hook, self._forward_hook):
            if hook is not None:
                hook.remove()
        self._forward_hook = None
        if self._restore is not None:
            self._restore()
        self._hook = self._restore = None

    def write(self, steps, path, header):
        self._profile.export_chrome_trace(self._files[1])
        command = ["import", "pytorch", *self._files, "-o", path, "--model", header["model"]]
        for option, key in (("--batch", "batch"), ("--sequence-length", "sequence_length")):
            if header[key]:
                command += [option, str(header[key])]
        tencache = find_command()
        if tencache is None:
            self._say("recorded " + " and ".join(self._files) + "; make the trace with: tencache " + " ".join(command))
            return None
        result = subprocess.run(tencache + command, capture_output=True, text=True)
        if result.returncode != 0:
            raise RecorderError("of " + " and ".join(self._files) + " no trace could be made: " + result.stderr.strip())
        for line in result.stderr.splitlines():
            self._say(line)
        self._say(f"{path}: made of " + " and ".join(self._files))
        return path
