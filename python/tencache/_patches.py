"""What a live run puts in place of PyTorch's own functions, so that it hears what the program does."""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import sys
import threading
from typing import Any, Callable, List

import torch
from tencache_recorder import _experts

from . import _core
from ._after_import import after_import

DEEPSPEED = "tencache: DeepSpeed moves parameters itself; run the model without its engine"

# Of a model, how much is broadcast at a time: what is broadcast is there twice. The same on all ranks.
_BROADCAST_BYTES = 16 << 20
# Collectives that are no ops in PyTorch before 2.0.
_BEFORE_2_0 = ("_allgather_base", "_reduce_scatter_base", "allgather_coalesced", "allreduce_coalesced", "alltoall_base",
               "monitored_barrier", "recv_anysource")
# Of tensors on the CPU a storage has all that it takes to read them; on a GPU it has ops, and addresses.
_GIVE_ADDRESSES = {"cpu": ("numpy", "data_ptr", "untyped_storage", "storage", "_typed_storage", "__dlpack__"),
                   "cuda": ("data_ptr", "__dlpack__")}
# Modules that compare addresses of tensors on a GPU, and do nothing else with them (but of copies on the CPU).
_COMPARE_ADDRESSES = ("torch.nn.modules.rnn", "torch.serialization", "safetensors.torch",
                      "huggingface_hub.serialization._torch", "transformers.pytorch_utils", "transformers.modeling_utils",
                      "transformers.trainer", "transformers.integrations.moe", "accelerate.accelerator",
                      "accelerate.big_modeling", "accelerate.hooks", "accelerate.utils.modeling",
                      "accelerate.utils.other", "peft.tuners.tuners_utils", "diffusers.hooks.text_kv_cache")
_IPC = ("tencache: tensors that are paged lie in memory that other processes cannot open, and move there: hand over a "
        "copy on the CPU")

_BACKWARD, _OPTIMIZER = (_core.PHASES.index(name) for name in ("backward", "optimizer"))

_is_tracing = torch._C._is_tracing
_is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", _is_tracing)


class Patches:
    """Those of one run (a Live). `exposed_at`: how often each line of the program asked for the address of a paged
    tensor."""

    def __init__(self, live: Any) -> None:
        self._live, self._paging, self._updates = live, live.paging, live.updates
        self._undo: List[Callable[[], None]] = []
        self._ignoring = False
        self._watches_routers = False
        self.exposed_at: "collections.Counter[str]" = collections.Counter()

    def put(self) -> None:
        self._replace(torch.nn.Module, "__call__", self._call_of(torch.nn.Module.__call__))
        self._wrap(torch.nn.Parameter, "__new__", self._new_parameter)
        self._wrap(torch.optim.Optimizer, "__init__", self._new_optimizer)
        for name in ("backward", "grad"):
            self._wrap(torch.autograd, name, self._backward)
        on_gpu = self._live.options.device == "cuda"
        for name in _GIVE_ADDRESSES[self._live.options.device]:
            if hasattr(torch.Tensor, name):
                gives = self._give_data_ptr if on_gpu and name == "data_ptr" else self._give_address
                self._wrap(torch.Tensor, name, gives)
        if on_gpu:
            self._wrap(torch.UntypedStorage, "data_ptr", self._give_data_ptr_of_storage)
            self._wrap(torch.UntypedStorage, "_share_cuda_", self._share)
        self._wrap(torch.utils.dlpack, "to_dlpack", self._give_address)
        self._wrap(torch, "to_dlpack", self._give_address)
        self._wrap(torch, "save", self._save)
        _experts.chosen.append(self._chose)
        self._undo.append(lambda: _experts.chosen.remove(self._chose))
        if hasattr(threading.Thread, "_bootstrap_inner"):
            self._wrap(threading.Thread, "_bootstrap_inner", self._run_thread)
        if self._live.options.optimizer_tasks:
            self._updates.watch(self._replace)
        if hasattr(torch, "compile"):
            self._wrap(torch, "compile", self._compile)
        if torch.distributed.is_available():
            self._wrap(torch.distributed, "init_process_group", self._join)
            self._wrap(torch.nn.parallel.DistributedDataParallel, "__init__", self._new_parallel)
            self._wrap(torch.distributed, "_broadcast_coalesced", self._broadcast)
            for name in _BEFORE_2_0 if not hasattr(torch, "compile") else ():
                self._wrap(torch.distributed.ProcessGroup, name, self._collective)
        if "deepspeed" in sys.modules:
            self._refuse_deepspeed()
        else:
            self._undo.append(after_import("deepspeed", self._refuse_deepspeed))

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()

    @contextlib.contextmanager
    def ignored(self) -> Any:
        """In this block tensors are walked by the run itself."""
        self._ignoring = True
        try:
            yield
        finally:
            self._ignoring = False

    def watch_optimizer(self, kind: type) -> None:
        """Its `step`."""
        plain = kind.step  # type: ignore[attr-defined]
        if getattr(plain, "_tencache_watches", None) is not self:
            self._wrap(kind, "step", self._step)
            kind.step._tencache_watches = self  # type: ignore[attr-defined]

    def watch_routers(self) -> None:
        """Not in programs without experts: TorchScript knows no functions in Python."""
        if not self._watches_routers:
            self._watches_routers = True
            self._wrap(torch, "topk", self._topk)
            self._wrap(torch.Tensor, "topk", self._topk)

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        own, plain = name in owner.__dict__, owner.__dict__.get(name)  # else inherited
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, plain) if own else delattr(owner, name))

    def _wrap(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        """`function` gets what it replaces first."""
        plain = getattr(owner, name)

        @functools.wraps(plain)  # and PyTorch's own mark that it has hooked the function
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(plain, *args, **kwargs)
        self._replace(owner, name, staticmethod(wrapper) if name == "__new__" else wrapper)

    # ---- The replacements --------------------------------------------------------------------------------------------

    def _call_of(self, plain: Any) -> Any:
        """In place of PyTorch's hooks for all modules, which cost each call more than this does."""
        live, known_modules, open_modules = self._live, self._live.models.known, self._live.models.open
        on_cpu = live.options.device == "cpu"

        def computes_nothing(args: Any) -> bool:
            """Of an expert that no token has chosen."""
            given = args[0] if on_cpu and args else None
            return isinstance(given, torch.Tensor) and given.numel() == 0 and not torch.is_grad_enabled()

        @functools.wraps(plain)
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            known = known_modules.get(id(module))
            if live.asleep and known is not None and not known.is_root:
                return plain(module, *args, **kwargs)
            if known is None or known.is_root or not live.stepping or _is_tracing() or _is_compiling():
                if not live.attached or _is_tracing() or _is_compiling():  # what is traced would be in the graph
                    return plain(module, *args, **kwargs)
                known = live.on_forward(module, args, kwargs)
                if not live.stepping:
                    return plain(module, *args, **kwargs)
            if known.is_expert and computes_nothing(args):
                with live.paging.unguarded():  # its weights need not be there
                    return plain(module, *args, **kwargs)
            open_modules.append(id(module))
            live.run.module_begin(known.name)
            try:
                return plain(module, *args, **kwargs)
            finally:
                open_modules.pop()
                live.run.module_end()
        return __call__

    def _new_parameter(self, plain: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
        self._live.on_first_parameter()
        parameter = plain(cls, *args, **kwargs)
        self._live.models.adopt([parameter])
        return parameter

    def _new_optimizer(self, plain: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        plain(optimizer, *args, **kwargs)
        self._live.models.meet_optimizer(optimizer)

    def _backward(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        if self._live.phase != _BACKWARD:  # else one within another: a part that is computed again
            self._live.on_backward()
        with self._live.in_phase(_BACKWARD):
            return plain(*args, **kwargs)

    def _step(self, plain: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        self._live.on_optimizer()
        before = self._updates.stepping(optimizer if self._live.stepping else None)
        try:
            with self._live.in_phase(_OPTIMIZER):
                return plain(optimizer, *args, **kwargs)
        finally:
            self._updates.stepping(before)
            self._live.on_updated()

    def _give_address(self, plain: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._ignoring and self._live.attached and isinstance(tensor, torch.Tensor):
            if self._paging.expose(tensor):
                self.exposed_at[_line_outside(sys._getframe(1))] += 1
        return plain(tensor, *args, **kwargs)

    def _give_data_ptr(self, plain: Any, tensor: Any) -> Any:
        if not _compares(sys._getframe(2)) or not isinstance(tensor, torch.Tensor):
            return self._give_address(plain, tensor)
        identity = self._paging.identity(_storage_of(tensor)) if self._live.attached else 0
        return identity + tensor.storage_offset() * tensor.element_size() if identity else plain(tensor)

    def _give_data_ptr_of_storage(self, plain: Any, storage: Any) -> Any:
        if self._ignoring or not self._live.attached:
            return plain(storage)
        if _compares(sys._getframe(2)):
            return self._paging.identity(storage) or plain(storage)
        if self._paging.expose_storage(storage):
            self.exposed_at[_line_outside(sys._getframe(1))] += 1
        return plain(storage)

    def _run_thread(self, plain: Any, thread: Any) -> None:
        """Its ops are announced: nobody serves what they miss."""
        if self._live.attached and self._paging.serves_no_faults():
            self._paging.guard(True)
        plain(thread)

    def _share(self, plain: Any, storage: Any, *args: Any, **kwargs: Any) -> Any:
        if self._live.attached and self._paging.identity(storage):
            raise RuntimeError(_IPC)
        return plain(storage, *args, **kwargs)

    def _save(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        with self._live.aside():
            return plain(*args, **kwargs)

    def _topk(self, plain: Any, scores: Any, *args: Any, **kwargs: Any) -> Any:
        """Routers choose the experts with the largest scores."""
        best = plain(scores, *args, **kwargs)
        block = self._live.open_block()
        if block is not None and _experts.is_choice(scores, len(block.experts)):
            with self._paging.unguarded():
                self._live.chose(block, sorted(set(_flatten(best[1].tolist()))))
        return best

    def _chose(self, module: Any, numbers: List[int]) -> None:
        block = self._live.models.known.get(id(module))
        if block is not None and self._live.open_block() is block:
            self._live.chose(block, numbers)

    def _join(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        self._live.stay_awake()  # collectives go on beside the program
        return plain(*args, **kwargs)

    def _compile(self, plain: Any, model: Any = None, *args: Any, **kwargs: Any) -> Any:
        self._live.options.say("torch.compile is left out: compiled code uses memory without ops")
        return model if model is not None else lambda function: function

    def _refuse_deepspeed(self) -> None:
        def initialize(*args: Any, **kwargs: Any) -> Any:
            raise RuntimeError(DEEPSPEED)
        self._replace(sys.modules["deepspeed"], "initialize", initialize)

    def _new_parallel(self, plain: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        if not self._live.attached:
            return plain(model, *args, **kwargs)
        self._paging.page_all(True)  # the buckets of gradients
        try:
            plain(model, *args, **kwargs)
        finally:
            self._paging.page_all(self._live.stepping)

    def _broadcast(self, plain: Any, group: Any, tensors: Any, buffer_bytes: int, *args: Any, **kwargs: Any) -> Any:
        return plain(group, tensors, min(buffer_bytes, _BROADCAST_BYTES), *args, **kwargs)

    def _collective(self, plain: Any, group: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._live.attached:
            return plain(group, *args, **kwargs)
        tensors = [value for value in _flatten(args) if isinstance(value, torch.Tensor)]
        if plain.__name__ == "recv_anysource" and any(self._paging.paged(tensor) for tensor in tensors):
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


def _storage_of(tensor: Any) -> Any:
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage().untyped()


def _compares(frame: Any) -> bool:
    """The code there only compares addresses. What is between it and PyTorch's own function is PyTorch's own."""
    while frame is not None and frame.f_globals.get("__name__") == "torch.storage":  # of typed storages
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") in _COMPARE_ADDRESSES


def _flatten(values: Any) -> List[Any]:
    return [one for value in values for one in (_flatten(value) if isinstance(value, (list, tuple)) else [value])]


_OURS = tuple(os.path.join(os.path.dirname(os.path.abspath(file)), "") for file in (__file__, torch.__file__))


def _line_outside(frame: Any) -> str:
    """FILE:LINE of the first caller that is neither PyTorch nor this package."""
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
