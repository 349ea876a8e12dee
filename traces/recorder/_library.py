"""C++ of the repository's tree that is built for the PyTorch of this process, once, and loaded. An installed package has
a copy of the sources, in folders as there."""

import contextlib
import ctypes
import fcntl
import glob
import hashlib
import os
import shutil
import subprocess
import tempfile

import torch


class CannotLoad(Exception):
    """Why there is no library."""


def source_root(module):
    """Where the tree of sources is for a package that has this file."""
    package = os.path.dirname(os.path.realpath(module))
    copy = os.path.join(package, "cpp")
    return copy if os.path.isdir(copy) else os.path.dirname(os.path.dirname(package))


def _cache_folder():
    return os.environ.get("TENCACHE_RECORDER_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tencache_recorder")


@contextlib.contextmanager
def alone(folder):
    """One process at a time makes what the folder keeps; where the file system has no locks, several may."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "lock"), "w", encoding="ascii") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _cuda_places():
    """Of the CUDA that PyTorch was built with: folders of headers, and of libraries. Its packages of PyPI have both, a
    toolkit that is installed as well."""
    site = os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__)))
    major = torch.version.cuda.split(".")[0]
    roots = [os.path.join(site, "nvidia", "cu" + major)]
    roots += sorted(glob.glob(os.path.join(site, "nvidia", "*")))  # before CUDA 13 a folder a part
    roots += [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    includes = [os.path.join(root, "include") for root in roots if root]
    if not any(os.path.isfile(os.path.join(include, "cuda_runtime_api.h")) for include in includes):
        raise CannotLoad(f"CUDA's headers (cuda_runtime_api.h) are in none of {', '.join(includes)}: install the CUDA "
                         f"toolkit {torch.version.cuda}, or set CUDA_HOME")
    runtimes = [path for root in roots if root for path in glob.glob(os.path.join(root, "lib*", "libcudart.so*"))]
    if not runtimes:
        raise CannotLoad(f"CUDA's runtime (libcudart.so) is in none of {', '.join(filter(None, roots))}: install the CUDA "
                         f"toolkit {torch.version.cuda}, or set CUDA_HOME")
    return [include for include in includes if os.path.isdir(include)], runtimes[0]


def _files(root, purposes):
    """Those of the list that CMake reads, too."""
    with open(os.path.join(root, "executor/torch/build.txt"), encoding="utf-8") as lines:
        listed = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    return [os.path.join(root, path) for purpose, path in listed if purpose in purposes]


class Library:
    """A shared library of the files that executor/torch/build.txt lists for these purposes. `cuda`: it uses PyTorch's
    CUDA."""

    def __init__(self, name, purposes, *, root, cuda=False):
        self._name, self._root, self._cuda = name, root, cuda
        self._files = _files(root, purposes)
        self._sources = [path for path in self._files if path.endswith(".cpp")]

    def _build_command(self, source, output):
        compiler = os.environ.get("CXX") or "c++"
        if shutil.which(compiler) is None:
            raise CannotLoad(f"there is no C++ compiler '{compiler}' (install g++, or set CXX)")
        root = os.path.dirname(os.path.abspath(torch.__file__))
        include, libraries = os.path.join(root, "include"), os.path.join(root, "lib")
        command = [compiler, "-std=c++20", "-O2", "-DNDEBUG", "-w", "-shared", "-fPIC", "-fvisibility=hidden",
                   "-Wl,-Bsymbolic,-z,defs", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
                   "-I" + self._root]
        if os.path.isdir(include):  # else PyTorch is the system's, and its headers are where the compiler looks
            command += ["-isystem" + include, "-isystem" + os.path.join(include, "torch/csrc/api/include")]
        includes, runtime = _cuda_places() if self._cuda else ([], "")
        command += ["-isystem" + folder for folder in includes] + [source, "-o", output]
        if os.path.isdir(libraries):
            command += ["-L" + libraries, "-Wl,-rpath," + libraries]
        if self._cuda:
            # Before 2.5 the allocator that programs may replace is in PyTorch's library for Python.
            command += ["-ltorch_cuda", "-ltorch_python", "-lc10_cuda", runtime,
                        "-Wl,-rpath," + os.path.dirname(runtime)]
        return command + ["-ltorch_cpu", "-lc10"]

    def _path(self):
        content = hashlib.sha256()
        for path in self._files + [__file__]:
            with open(path, "rb") as source:
                content.update(source.read())
        content.update(repr((torch.__version__, torch.__file__, os.environ.get("CXX"))).encode())
        return os.path.join(_cache_folder(), f"{self._name}-{torch.__version__}-{content.hexdigest()[:16]}.so")

    def build(self, path, say, what, duration):
        """Into that file. CannotLoad says why not."""
        descriptor, scratch = tempfile.mkstemp(suffix=".so", dir=os.path.dirname(path))
        os.close(descriptor)
        all_of_it = scratch + ".cpp"  # in one file: PyTorch's headers, which take most of the time, are read once
        try:
            with open(all_of_it, "w", encoding="utf-8") as file:
                file.writelines(f'#include "{source}"\n' for source in self._sources)
            command = self._build_command(all_of_it, scratch)
            say(f"building {what} for PyTorch {torch.__version__} (once, about {duration}) …")
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode != 0:
                lines = [line for line in result.stderr.splitlines() if "error" in line or "undefined" in line]
                lines = lines or result.stderr.splitlines()
                raise CannotLoad("the compiler refused it: " + (lines[0] if lines else "no message"))
            os.replace(scratch, path)  # whole or not at all, whoever else builds it
        finally:
            for left in (scratch, all_of_it):
                if os.path.exists(left):
                    os.unlink(left)

    def load(self, say, what, duration):
        """The library. CannotLoad says why not."""
        try:
            path = self._path()
            if not os.path.exists(path):
                with alone(_cache_folder()):
                    if not os.path.exists(path):
                        self.build(path, say, what, duration)
            return ctypes.CDLL(path)
        except OSError as error:
            raise CannotLoad(str(error)) from error
