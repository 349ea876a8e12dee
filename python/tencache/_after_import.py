"""What is to happen once a module was imported. Imports nothing but the standard library's own machinery for it."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from typing import Any, Callable


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then

    def forget(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self._name:
            return None
        self.forget()
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            plain = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                plain(module)
                self._then()
            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def after_import(name: str, then: Callable[[], None]) -> Callable[[], None]:
    """Calls `then` once, when the module was imported; not if what this returns was called before."""
    finder = _Finder(name, then)
    sys.meta_path.insert(0, finder)
    return finder.forget
