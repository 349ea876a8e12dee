"""The observer (executor/torch/recorder/observer.cpp) for the PyTorch of this process: built once, and loaded."""

import ctypes

from ._library import CannotLoad, Library, source_root

__all__ = ["CannotLoad", "load"]


def load(say):
    """The library, with its functions declared. CannotLoad says why not."""
    observer = Library("observer", ["observer"], root=source_root(__file__))
    library = observer.load(say, "the observer", "a quarter of a minute")
    library.Listener = ctypes.CFUNCTYPE(None, ctypes.c_int)
    library.tencache_start.argtypes = [ctypes.c_int, library.Listener]
    library.tencache_begin_step.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int]
    library.tencache_enter_module.argtypes = [ctypes.c_int]
    for name in ("tencache_take", "tencache_failure"):
        getattr(library, name).restype = ctypes.c_char_p
    for name in ("tencache_stop", "tencache_enter_module", "tencache_leave_module"):
        getattr(library, name).restype = None
    return library
