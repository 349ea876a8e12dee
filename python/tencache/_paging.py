"""The library that sees PyTorch's headers (executor/torch/program), built at first use, and its functions."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Any, Callable, ContextManager, Iterable, Iterator, List, Optional

import torch
from tencache_recorder._library import CannotLoad, Library, source_root

from ._core import Error

_STATUS_OUT_OF_MEMORY = 1

# From 2.5 on torch.OutOfMemoryError.
OutOfMemoryError = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError


class _AdoptedBytes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("adopted", "in_files", "left", "mapped")]


class Paging:
    """The library's functions, and what it has moved so far."""

    _loaded: Optional["Paging"] = None

    @classmethod
    def load(cls, device: str, say: Callable[[str], None],
             patience: Callable[[str], ContextManager[None]] = contextlib.nullcontext) -> "Paging":
        """Builds it where it is not there yet. Raises Error that says what is missing."""
        if cls._loaded is None:
            with patience("loading what pages tensors"):
                cls._loaded = cls(device, cls._library_for(device, say))
        if cls._loaded.device != device:
            raise Error(f"this process has paged tensors on the {cls._loaded.device} before; those on {device} need another")
        return cls._loaded

    @staticmethod
    def _library_for(device: str, say: Callable[[str], None]) -> ctypes.CDLL:
        cuda = device == "cuda"
        built = os.environ.get("TENCACHE_PAGING_LIBRARY")
        if built:
            try:
                return ctypes.CDLL(built)
            except OSError as error:
                raise Error(f"TENCACHE_PAGING_LIBRARY: {error}; it has to be built for PyTorch {torch.__version__}, such "
                            "as tests/torch_versions.py does") from error
        sources = Library("paging-cuda" if cuda else "paging", ["paging", "program", "cuda" if cuda else "no_cuda"],
                          root=source_root(__file__), cuda=cuda)
        try:
            return sources.load(say, "the part of tencache that pages tensors", "half a minute")
        except CannotLoad as error:
            raise Error(f"live runs need a part that is built with the C++ compiler of this computer for PyTorch "
                        f"{torch.__version__}: {error}") from error

    def __init__(self, device: str, library: ctypes.CDLL) -> None:
        self.device, self._library = device, library
        pointers, size = ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t
        ids, sums = ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(_AdoptedBytes)
        library.tencache_program_message.restype = ctypes.c_char_p
        library.tencache_program_split_ops.restype = ctypes.c_uint64
        library.tencache_program_synchronize.restype = ctypes.c_char_p
        library.tencache_program_attach.argtypes = [ctypes.c_void_p]
        library.tencache_program_guard.argtypes = library.tencache_program_page_all.argtypes = [ctypes.c_int]
        library.tencache_program_split_all_lists.argtypes = [ctypes.c_int]
        library.tencache_program_know_parts.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        library.tencache_program_adopt.argtypes = [pointers, size, sums]
        library.tencache_program_adopt_mapped.argtypes = [pointers, size, pointers, size, sums]
        library.tencache_program_give_back.argtypes = [pointers, size]
        library.tencache_program_paged.argtypes = [ctypes.c_void_p]
        library.tencache_program_expose.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
        library.tencache_program_expose_storage.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
        library.tencache_program_identity.argtypes = [ctypes.c_void_p]
        library.tencache_program_identity.restype = ctypes.c_uint64
        library.tencache_program_mark.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
        library.tencache_program_pin.argtypes = [pointers, size, ctypes.c_int, ids, ctypes.POINTER(size)]
        library.tencache_program_unpin.argtypes = [ids, size, ctypes.c_int]
        library.tencache_program_update_begin.argtypes = [pointers, size, ctypes.c_void_p, pointers]
        library.tencache_program_update_end.argtypes = [ctypes.c_void_p]
        library.tencache_program_update_signature.argtypes = [ctypes.c_void_p]
        library.tencache_program_update_signature.restype = ctypes.c_char_p
        library.tencache_program_update_forget.argtypes = [ctypes.c_void_p]
        library.tencache_program_update_run.argtypes = [ctypes.c_void_p, pointers]
        library.tencache_program_why_no_tasks.argtypes = [pointers, size, size]
        library.tencache_program_why_no_tasks.restype = ctypes.c_char_p
        library.tencache_program_update_tasks.argtypes = [ctypes.c_void_p, ctypes.c_char_p,
                                                          ctypes.POINTER(ctypes.c_int32), pointers, size,
                                                          ctypes.POINTER(size)]
        self.adopted_bytes = self.file_bytes = self.left_bytes = 0  # of the run that is attached
        whole = torch.UntypedStorage(16)
        part = torch.empty(0, dtype=torch.uint8).set_(whole[8:16])
        library.tencache_program_know_parts(part._cdata, whole._cdata)

    def _check(self, status: int) -> None:
        if status == 0:
            return
        message = self._library.tencache_program_message().decode(errors="replace")
        raise OutOfMemoryError(message) if status == _STATUS_OUT_OF_MEMORY else RuntimeError(message)

    @staticmethod
    def _addresses(tensors: Iterable[Any]) -> Any:
        addresses = [tensor._cdata for tensor in tensors]
        return (ctypes.c_void_p * len(addresses))(*addresses), len(addresses)

    @property
    def fence(self) -> int:
        """The address of what waits for the GPU; 0: there is none."""
        function = self._library.tencache_program_synchronize
        return ctypes.cast(function, ctypes.c_void_p).value or 0 if self.device == "cuda" else 0

    @property
    def stream(self) -> int:
        """The address of what returns the calling thread's stream there; 0: there is none."""
        function = self._library.tencache_program_stream
        return ctypes.cast(function, ctypes.c_void_p).value or 0 if self.device == "cuda" else 0

    def attach(self, abi: int) -> None:
        self.adopted_bytes = self.file_bytes = self.left_bytes = 0
        self._check(self._library.tencache_program_attach(abi))

    def guard(self, on: bool) -> bool:
        """Of the calling thread. Returns what it was."""
        return bool(self._library.tencache_program_guard(on))

    def page_all(self, on: bool) -> None:
        """Off: only what is allocated beside paged tensors is paged."""
        self._library.tencache_program_page_all(on)

    def adopt(self, tensors: List[Any]) -> int:
        """Returns how many bytes of them lie in files that PyTorch has mapped, and wait for `adopt_mapped`."""
        sums = _AdoptedBytes()
        return self._add_up(self._library.tencache_program_adopt(*self._addresses(tensors), ctypes.byref(sums)), sums)

    def adopt_mapped(self, tensors: List[Any], everything: List[Any]) -> int:
        """`everything`: all tensors of the program. Returns how many bytes were left alone, as others may use them."""
        sums = _AdoptedBytes()
        status = self._library.tencache_program_adopt_mapped(*self._addresses(tensors), *self._addresses(everything),
                                                             ctypes.byref(sums))
        self._add_up(status, sums)
        return sums.left

    def _add_up(self, status: int, sums: _AdoptedBytes) -> int:
        self.adopted_bytes += sums.adopted
        self.file_bytes += sums.in_files
        self.left_bytes += sums.left
        self._check(status)
        return sums.mapped

    def give_back(self, tensors: List[Any]) -> None:
        self._check(self._library.tencache_program_give_back(*self._addresses(tensors)))

    def paged(self, tensor: Any) -> bool:
        return bool(self._library.tencache_program_paged(tensor._cdata))

    def expose(self, tensor: Any) -> bool:
        """Its address gets known outside PyTorch. False: it is not paged."""
        paged = ctypes.c_int(0)
        self._check(self._library.tencache_program_expose(tensor._cdata, ctypes.byref(paged)))
        return bool(paged.value)

    def serves_no_faults(self) -> bool:
        """Whether code that no op announces fails where a tensor is not there."""
        return bool(self._library.tencache_program_serves_no_faults())

    def expose_storage(self, storage: Any) -> bool:
        """The same of a torch.UntypedStorage."""
        paged = ctypes.c_int(0)
        self._check(self._library.tencache_program_expose_storage(storage._cdata, ctypes.byref(paged)))
        return bool(paged.value)

    def identity(self, storage: Any) -> int:
        """In place of the address of a torch.UntypedStorage, for who only compares addresses: its own as long as it
        lives, and far from those of others. 0: it is not paged."""
        return int(self._library.tencache_program_identity(storage._cdata))

    def expose_all(self) -> None:
        """As if the addresses of all tensors were known outside, those of tensors to come as well."""
        self._check(self._library.tencache_program_expose_all())

    def split_ops(self) -> int:
        """Ops on lists of tensors that ran in groups, so far."""
        return int(self._library.tencache_program_split_ops())

    def split_all_lists(self, on: bool) -> None:
        """Ops on lists run element by element, so that the largest op is as large as it has to be."""
        self._library.tencache_program_split_all_lists(on)

    def pin(self, tensors: List[Any], written: bool = False) -> Any:
        """Brings all of them in and keeps them there, for system calls that are given their addresses, until `unpin` of
        what this returns."""
        array, count = self._addresses(tensors)
        ids, pinned = (ctypes.c_uint32 * max(count, 1))(), ctypes.c_size_t(0)
        self._check(self._library.tencache_program_pin(array, count, written, ids, ctypes.byref(pinned)))
        return ids, pinned.value, written

    def unpin(self, pinned: Any) -> None:
        self._check(self._library.tencache_program_unpin(*pinned))

    def mark(self, tensor: Any, role: int, name: str) -> None:
        self._check(self._library.tencache_program_mark(tensor._cdata, role, name.encode()))

    # ---- Updates of optimizers (executor/torch/program/update.h) ----------------------------------------------------

    @contextlib.contextmanager
    def unguarded(self) -> Iterator[None]:
        """What the calling thread allocates in this block is PyTorch's own memory, and its ops are nobody's."""
        self.guard(False)
        try:
            yield
        finally:
            self.guard(True)

    def between_ops(self) -> bool:
        """Whether ops of the calling thread, here and now, are the runtime's."""
        return bool(self._library.tencache_program_between_ops())

    def take_down(self, work: Callable[[], Any], sample: List[Any], step: Any) -> "Update":
        """What `work` does with these tensors, to be done with others. Raises RuntimeError where it cannot be."""
        handle = ctypes.c_void_p()
        array, count = self._addresses(sample)
        self._check(self._library.tencache_program_update_begin(array, count, None if step is None else step._cdata,
                                                                ctypes.byref(handle)))
        update = Update(self, handle)
        try:
            work()
        finally:
            status = self._library.tencache_program_update_end(handle)
        self._check(status)
        return update

    def why_no_tasks(self, tensors: List[Any], tensor_count: int) -> str:
        """Of all parameters one after the other, `tensor_count` each; empty: their updates can be tasks."""
        array, count = self._addresses(tensors)
        why = self._library.tencache_program_why_no_tasks(array, tensor_count, count // tensor_count)
        return why.decode(errors="replace") if why else ""


class Update:
    """What an optimizer does with a parameter in one step."""

    def __init__(self, paging: Paging, handle: ctypes.c_void_p) -> None:
        self._paging, self._library, self._handle = paging, paging._library, handle

    def __del__(self) -> None:
        self._library.tencache_program_update_forget(self._handle)

    def signature(self) -> str:
        return self._library.tencache_program_update_signature(self._handle).decode()

    def run(self, tensors: List[Any]) -> None:
        """Of tensors that are not paged."""
        array, _ = self._paging._addresses(tensors)
        self._paging._check(self._library.tencache_program_update_run(self._handle, array))

    def run_as_tasks(self, name: str, numbers: List[int], tensors: List[Any]) -> int:
        """Of all parameters one after the other; `numbers`: of each. Returns how many tasks they became."""
        array, _ = self._paging._addresses(tensors)
        tasks = ctypes.c_size_t(0)
        self._paging._check(self._library.tencache_program_update_tasks(
            self._handle, name.encode(), (ctypes.c_int32 * len(numbers))(*numbers), array, len(numbers),
            ctypes.byref(tasks)))
        return tasks.value
