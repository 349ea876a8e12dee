"""Modules of the process that are compiled against PyTorch, beside PyTorch's own and ours."""

from __future__ import annotations

import mmap
import os
import sys
from typing import List, Set

import torch

_SITE = os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__)))
_KNOWN = (os.path.join(_SITE, "torch", ""), os.path.join(_SITE, "functorch", ""),
          os.path.join(os.path.dirname(os.path.abspath(__file__)), ""))
_LIBRARIES = (b"libtorch", b"libc10.so")


def _links_pytorch(path: str) -> bool:
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return any(content.find(name) >= 0 for name in _LIBRARIES)
    except (OSError, ValueError):  # nobody can say
        return True


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
            if not os.path.abspath(path).startswith(_KNOWN) and _links_pytorch(path):
                found.append(name)
        return found
