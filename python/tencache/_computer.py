"""This computer: its machine file, measured at first use, and the memory of this process."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
from typing import Callable, ContextManager, List, Sequence

from tencache_recorder._library import alone

from ._core import Error, available_memory

_DO_NOT_NEED = 4  # MADV_DONTNEED


def machine_file(device: str, cpu_tier: bool, directories: Sequence[str], say: Callable[[str], None],
                 patience: Callable[[str], ContextManager[None]]) -> str:
    """Measured once, in a few seconds, and kept. `device`: "cpu", where ordinary memory stands in for a GPU's, or "cuda".
    `cpu_tier`: whether CPU memory lies between the capped memory and the files."""
    folders = [os.path.realpath(folder) for folder in directories or ["/var/tmp"]]
    what = repr((platform.node(), device, cpu_tier, folders))
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "tencache"
    path = cache / f"this-computer-{hashlib.sha256(what.encode()).hexdigest()[:12]}.yaml"
    if not path.exists():
        with alone(str(cache)):
            if not path.exists():
                say("measuring this computer's memory and disk, once (some seconds)")
                with patience("measuring this computer"):
                    _measure(path, device, cpu_tier, folders)
                say(f"kept in {path}; a longer look: `tencache calibrate`, and --machine FILE")
    return str(path)


def _measure(path: pathlib.Path, device: str, cpu_tier: bool, directories: List[str]) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = os.path.join(folder, "machine.yaml")
        words = ["calibrate", "--quick", "-o", made]
        words += ["--device", "host" if device == "cpu" else device] if cpu_tier else ["--no-cpu-tier"]
        for directory in directories:
            words += ["--directory", directory]
        call = "import sys; from tencache import _commands, _core; _core.run(sys.argv[1:], {})"
        package = str(pathlib.Path(__file__).parent.parent)
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([package, os.environ.get("PYTHONPATH", "")]))
        done = subprocess.run([sys.executable, "-c", call, *words], stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, env=environment)
        if done.returncode != 0:
            lines: List[str] = done.stderr.strip().splitlines()
            raise Error(f"this computer cannot be measured: {lines[-1] if lines else 'no reason given'}; give a "
                        "machine file")
        os.replace(made, path)


def _status(name: str) -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    return 0


def let_go_of_code() -> None:
    """Pages of libraries, most of which were needed to load them only: those that are needed again are mapped again."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    library = ""
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as file:
        for line in file:
            words = line.split()
            if "-" in words[0]:
                named = len(words) > 5 and (words[5].endswith(".so") or ".so." in words[5])
                library = words[0] if named and "w" not in words[1] else ""
            elif words[0] == "Anonymous:" and words[1] == "0" and library:  # nothing of it was relocated
                begin, end = (int(address, 16) for address in library.split("-"))
                madvise(begin, end - begin, _DO_NOT_NEED)


def resident_bytes() -> int:
    """Memory of this process now."""
    return _status("VmRSS")


def most_resident_bytes() -> int:
    """At most, so far."""
    return _status("VmHWM")


def forget_most_resident_bytes() -> int:
    """What it was; it begins with what is resident now."""
    most = most_resident_bytes()
    with contextlib.suppress(OSError):  # where the kernel refuses, it stays what it was
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    return most


def free_bytes(device: str) -> int:
    """Of the memory that tensors on this device use."""
    if device == "cpu":
        return available_memory()
    import torch
    return torch.cuda.mem_get_info()[0]
