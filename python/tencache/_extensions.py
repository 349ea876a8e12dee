"""Modules of the process that are compiled against PyTorch, beside PyTorch's own and ours."""

from __future__ import annotations

import os
import struct
import sys
from typing import BinaryIO, List, Set, Tuple

import torch

_SITE = os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__)))
_KNOWN = (os.path.join(_SITE, "torch", ""), os.path.join(_SITE, "functorch", ""),
          os.path.join(os.path.dirname(os.path.abspath(__file__)), ""))
_NAMES = (b"libtorch", b"libc10", b"N3c10", b"N2at")  # of libraries, and of what they export

_LOAD, _DYNAMIC, _STRINGS, _STRINGS_SIZE = 1, 2, 5, 10


def _dynamic_strings(file: BinaryIO) -> bytes:
    """What an ELF file of 64 bits asks of others, by name: its libraries and symbols."""
    def read(offset: int, form: str) -> Tuple[int, ...]:
        file.seek(offset)
        return struct.unpack(form, file.read(struct.calcsize(form)))

    headers, = read(0x20, "<Q")
    size, count = read(0x36, "<HH")
    segments = [read(headers + index * size, "<IIQQQQ") for index in range(count)]
    entries = {}
    for kind, _, offset, _, _, length in segments:
        if kind == _DYNAMIC:
            words = read(offset, f"<{length // 8}Q")
            entries = dict(zip(words[::2], words[1::2]))
    for kind, _, offset, address, _, length in segments:
        if kind == _LOAD and address <= entries.get(_STRINGS, -1) < address + length:
            file.seek(offset + entries[_STRINGS] - address)
            return file.read(entries[_STRINGS_SIZE])
    return b""


def _uses_pytorch(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            strings = _dynamic_strings(file)
    except (OSError, struct.error):  # nobody can say
        return True
    return any(name in strings for name in _NAMES)


class Extensions:
    def __init__(self) -> None:
        self._seen: Set[str] = set()
        self._modules = 0

    def new(self) -> List[str]:
        """The names of those that were imported since the last call."""
        if len(sys.modules) == self._modules:
            return []
        self._modules = len(sys.modules)
        found = []
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None)
            if not isinstance(path, str) or not path.endswith(".so") or path in self._seen:
                continue
            self._seen.add(path)
            if not os.path.abspath(path).startswith(_KNOWN) and _uses_pytorch(path):
                found.append(name)
        return found
