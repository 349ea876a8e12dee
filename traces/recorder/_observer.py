"""Builds observer.cpp for the PyTorch of this process, once, and loads it.

Its sources are C++ of the repository's tree; an installed package has a copy of them, in folders as there."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile

import torch

_PACKAGE = os.path.dirname(os.path.realpath(__file__))
_COPY = os.path.join(_PACKAGE, "cpp")
_ROOT = _COPY if os.path.isdir(_COPY) else os.path.dirname(os.path.dirname(_PACKAGE))
_FOLDER = os.path.join("executor", "torch", "recorder")
_SOURCES = [os.path.join(_ROOT, _FOLDER, name + ".cpp")
            for name in ("observer", "observed_step", "op_schema", "op_lists")]
_HEADERS = ([os.path.join(_ROOT, _FOLDER, name + ".h")
             for name in ("observed_step", "op_schema", "op_lists", "op_work")] +
            [os.path.join(_ROOT, "traces", "import", "pytorch", name + ".h") for name in ("op_flops", "op_kernel")])


class CannotLoad(Exception):
    """Why there is no library."""


def _cache_folder():
    return os.environ.get("TENCACHE_RECORDER_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tencache_recorder")


def _build_command(output):
    compiler = os.environ.get("CXX") or "c++"
    if shutil.which(compiler) is None:
        raise CannotLoad(f"there is no C++ compiler '{compiler}' (install g++, or set CXX)")
    root = os.path.dirname(os.path.abspath(torch.__file__))
    include, libraries = os.path.join(root, "include"), os.path.join(root, "lib")
    command = [compiler, "-std=c++20", "-O2", "-DNDEBUG", "-w", "-shared", "-fPIC",
               f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}", "-I" + _ROOT]
    if os.path.isdir(include):  # else PyTorch is the system's, and its headers are where the compiler looks
        command += ["-isystem" + include, "-isystem" + os.path.join(include, "torch/csrc/api/include")]
    command += _SOURCES + ["-o", output]
    if os.path.isdir(libraries):
        command += ["-L" + libraries, "-Wl,-rpath," + libraries]
    return command + ["-ltorch_cpu", "-lc10"]


def _library_path():
    content = hashlib.sha256()
    for path in _SOURCES + _HEADERS + [__file__]:
        with open(path, "rb") as source:
            content.update(source.read())
    content.update(repr((torch.__version__, torch.__file__, os.environ.get("CXX"))).encode())
    return os.path.join(_cache_folder(), f"observer-{torch.__version__}-{content.hexdigest()[:16]}.so")


def _build(path, say):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor, scratch = tempfile.mkstemp(suffix=".so", dir=os.path.dirname(path))
    os.close(descriptor)
    try:
        command = _build_command(scratch)
        say(f"building the observer for PyTorch {torch.__version__} (once, about a quarter of a minute) …")
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            lines = [line for line in result.stderr.splitlines() if "error" in line] or result.stderr.splitlines()
            raise CannotLoad("the compiler refused it: " + (lines[0] if lines else "no message"))
        os.replace(scratch, path)  # whole or not at all, whoever else builds it
    finally:
        if os.path.exists(scratch):
            os.unlink(scratch)


def load(say):
    """The library, with its functions declared. CannotLoad says why not."""
    try:
        path = _library_path()
        if not os.path.exists(path):
            _build(path, say)
        library = ctypes.CDLL(path)
    except OSError as error:
        raise CannotLoad(str(error)) from error
    library.Listener = ctypes.CFUNCTYPE(None, ctypes.c_int)
    library.tencache_start.argtypes = [ctypes.c_int, library.Listener]
    library.tencache_begin_step.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int]
    library.tencache_enter_module.argtypes = [ctypes.c_int]
    for name in ("tencache_take", "tencache_failure"):
        getattr(library, name).restype = ctypes.c_char_p
    for name in ("tencache_stop", "tencache_enter_module", "tencache_leave_module"):
        getattr(library, name).restype = None
    return library
