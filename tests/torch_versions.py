#!/usr/bin/env python3
"""Compiles and links what is built with a user's PyTorch for CUDA against wheels of PyPI: executor/torch/build.txt's
files, with the command that `run python --device cuda` and the recorder use.

    tests/torch_versions.py CACHE [VERSION…]

Versions (default: 2.2.0, the oldest that is supported, and the newest on PyPI) are downloaded with pip into the folder
CACHE with CUDA's headers and runtime that they ask for, and as much is unpacked as the compiler and the linker read: 2
to 4 GB a version. What is there is not downloaded again. Neither PyTorch nor a GPU is needed, only a C++ compiler.

Prints a line a version: ok, or the first error of the compiler or the linker. Exit code 0: all are ok; 1: one is not; 2:
bad usage, or it cannot be downloaded.

A link proves that each function and table of PyTorch and CUDA that we use is in that version's libraries, with the
signature of its headers (-z defs). Whether the library loads and computes is not tried: that takes the CUDA libraries
below PyTorch, and a GPU. Not part of CI: a version is some 1.5 GB to download. PyTorch 1.13 (Debian's, on CPUs) is
compiled by every build.
"""
import importlib.util
import os
import re
import subprocess
import sys
import types
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OLDEST = "2.2.0"
PYTHON = "3.11"  # there are wheels for it of all of these versions; headers and libraries are the same for all
LIBRARIES = ("libc10.so", "libc10_cuda.so", "libtorch_cpu.so", "libtorch_cuda.so", "libtorch_python.so")
CUDA_PARTS = ("cublas", "cudart", "cusolver", "cusparse", "crt")  # whose headers PyTorch's include, and its runtime
PARTS_BEFORE_13 = ("nvidia-cuda-runtime-cu12", "nvidia-cublas-cu12", "nvidia-cusolver-cu12", "nvidia-cusparse-cu12")


def fail(message):
    print(f"torch_versions.py: {message}", file=sys.stderr)
    sys.exit(2)


def download(folder, requirements, *options):
    """Wheels of them, in the folder: all files there."""
    os.makedirs(folder, exist_ok=True)
    if not os.path.exists(os.path.join(folder, "whole")):
        done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
                               "--no-cache-dir", "--only-binary=:all:", f"--python-version={PYTHON}", *options,
                               "--dest", folder, *requirements], stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            fail(f"pip download {' '.join(requirements)}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        open(os.path.join(folder, "whole"), "w", encoding="ascii").close()
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".whl")]


def unpack(wheel, site, wanted):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if re.match(wanted, name) and not os.path.exists(os.path.join(site, name)):
                archive.extract(name, site)


def cuda_requirements(torch_wheel):
    """Of the wheel's own, those that are read here."""
    with zipfile.ZipFile(torch_wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    wanted = []
    for requirement in re.findall(r"^Requires-Dist: ([^;\n]*)", text, re.MULTILINE):
        name, version = re.match(r"([\w.-]+)[^=]*(?:==([\w.]+))?", requirement).groups()
        if name == "cuda-toolkit":
            wanted.append(f"cuda-toolkit[{','.join(CUDA_PARTS)}]=={version}")
        elif name in PARTS_BEFORE_13:
            wanted.append(f"{name}=={version}")
            if name == PARTS_BEFORE_13[0]:  # crt/, which the runtime's headers include, is in the compiler's package
                wanted.append(f"nvidia-cuda-nvcc-cu12=={version}")
    return wanted


def site_of(cache, version):
    """A folder as site-packages, with what the compiler reads of PyTorch and CUDA."""
    name = version or "newest"
    wheel, = download(os.path.join(cache, name, "torch"), [f"torch=={version}" if version else "torch"], "--no-deps")
    site = os.path.join(cache, name, "site")
    libraries = "|".join(map(re.escape, LIBRARIES))
    unpack(wheel, site, rf"torch/(include/|version\.py$|share/cmake/Torch/TorchConfig\.cmake$|lib/({libraries})$)")
    for part in download(os.path.join(cache, name, "cuda"), cuda_requirements(wheel)):
        unpack(part, site, r"nvidia/[\w-]+/(include/|lib/libcudart\.so)")
    return site


def torch_of(site):
    """What the build asks `torch` for, which need not be loadable."""
    version = {"__name__": "torch.version"}
    with open(os.path.join(site, "torch/version.py"), encoding="utf-8") as file:
        exec(compile(file.read(), file.name, "exec"), version)  # assignments only
    with open(os.path.join(site, "torch/share/cmake/Torch/TorchConfig.cmake"), encoding="utf-8") as file:
        old_abi = "-D_GLIBCXX_USE_CXX11_ABI=0" in file.read()
    torch = types.ModuleType("torch")
    torch.__file__ = os.path.join(site, "torch/__init__.py")
    torch.__version__ = str(version["__version__"])
    torch.version = types.SimpleNamespace(cuda=version["cuda"])
    torch._C = types.SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=not old_abi)
    return torch


def build(site):
    """Why it does not build; None if it does. What it was."""
    sys.modules["torch"] = torch = torch_of(site)
    path = os.path.join(ROOT, "traces/recorder/_library.py")
    spec = importlib.util.spec_from_file_location("_library", path)
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    name = f"PyTorch {torch.__version__} with CUDA {torch.version.cuda}"
    for what, purposes, cuda in (("paging-cuda", ["paging", "program", "cuda"], True),
                                 ("observer", ["observer"], False)):
        try:
            library.Library(what, purposes, root=ROOT, cuda=cuda).build(
                os.path.join(os.path.dirname(site), f"{what}.so"), lambda *_: None, what, "a minute")
        except library.CannotLoad as error:
            return name, f"{what}: {error}"
    return name, None


def main(arguments):
    if not arguments or arguments[0].startswith("-"):
        print(__doc__.strip())
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    bad = False
    for version in arguments[1:] or [OLDEST, ""]:
        name, error = build(site_of(os.path.abspath(arguments[0]), version))
        print(f"{name}: {error or 'ok'}", flush=True)
        bad |= error is not None
    return int(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
