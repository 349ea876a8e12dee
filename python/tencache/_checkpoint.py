"""A plan of `tencache tune --plan`, applied to a model: `tencache.checkpoint`."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from typing import Any, Dict, List, NamedTuple, Union

import torch
import torch.utils.checkpoint
from tencache_recorder import _program as objects

from ._core import Error

_KEYS = ("format_version", "model", "model_sha256", "policy", "machine", "predicted", "micro_batches", "layers")
_LEVELS = ("keep", "block")


class Plan(NamedTuple):
    file: str
    text: str
    model: str
    model_sha256: str
    levels: Dict[str, List[str]]  # by layer, of each micro-batch

    def error(self, at: str, what: str) -> Error:
        """At the first line of the file that has this text."""
        before = self.text[:max(0, self.text.find(at))]
        return Error(f"{self.file}:{before.count(chr(10)) + 1}: {what}")


def read_plan(file: Union[str, "os.PathLike[str]"]) -> Plan:
    """Raises Error where it is no plan."""
    name = os.fspath(file)
    try:
        with open(name, encoding="utf-8") as opened:
            text = opened.read()
        document = json.loads(text)
    except OSError as error:
        raise Error(f"{name}: {error.strerror}; `tencache tune --plan {name}` writes a plan") from None
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise Error(f"{name}:{line}: not JSON ({getattr(error, 'msg', error)}); `tencache tune --plan` writes a plan"
                    ) from None
    plan = Plan(name, text, "", "", {})
    if not isinstance(document, dict) or "layers" not in document:
        raise plan.error("", "not a plan: it has no 'layers'; `tencache tune --plan` writes one")
    for key in document:
        if key not in _KEYS:
            raise plan.error(json.dumps(key), f"unknown key '{key}'; the keys are {', '.join(_KEYS)}")
    if document.get("format_version") != 1:
        raise plan.error('"format_version"', f"format version {document.get('format_version')} is not known; this "
                         "TenCache reads version 1")
    count = document.get("micro_batches")
    if not isinstance(count, int) or count < 1:
        raise plan.error('"micro_batches"', "'micro_batches' is a count, 1 or more")
    if not isinstance(document.get("model_sha256"), str):
        raise plan.error('"model_sha256"', "'model_sha256' is missing: it says which model the plan is of")
    return plan._replace(model=str(document.get("model", "")), model_sha256=document["model_sha256"],
                         levels=_read_layers(plan, document["layers"], count))


def _read_layers(plan: Plan, layers: Any, count: int) -> Dict[str, List[str]]:
    levels: Dict[str, List[str]] = {}
    for layer in layers if isinstance(layers, list) else [layers]:
        if not isinstance(layer, dict) or sorted(layer) != ["level", "micro_batch", "module"]:
            raise plan.error('"layers"', f"{json.dumps(layer)} is no layer; one has module, micro_batch and level")
        module, number, level = layer["module"], layer["micro_batch"], layer["level"]
        at = f'"module": {json.dumps(module)}'
        at = at if at in plan.text else at.replace(": ", ":")
        if level not in _LEVELS:
            raise plan.error(at, f"'{module}' has level '{level}'; it is one of {', '.join(_LEVELS)}")
        if not isinstance(module, str) or not isinstance(number, int) or not 0 <= number < count:
            raise plan.error(at, f"'{module}' has micro_batch {json.dumps(number)}; there are {count}, from 0")
        of = levels.setdefault(module, [""] * count)
        if of[number]:
            raise plan.error(at, f"'{module}' stands twice for micro-batch {number}; leave one out")
        of[number] = level
    for module, of in levels.items():
        if "" in of:
            raise plan.error(json.dumps(module), f"'{module}' has no level for micro-batch {of.index('')}")
    return levels


def model_sha256(model: torch.nn.Module, layers: Any) -> str:
    """As studies/recompute_plan.h has it of a trace: names and relative sizes of the layers' parameters."""
    sizes = {name: size for role, name, size, _ in objects.find_roles([model], []).of.values()
             if role == "parameter" and any(name.startswith(layer + ".") for layer in layers)}
    unit = functools.reduce(math.gcd, sizes.values(), 0)
    lines = sorted(layers) + [f"{name} {sizes[name] // unit}" for name in sorted(sizes)]
    return hashlib.sha256("".join(line + "\n" for line in lines).encode()).hexdigest()


class _Recomputed:
    """In place of a layer's forward."""

    def __init__(self, module: torch.nn.Module, levels: List[str]) -> None:
        self._module, self._levels = module, levels
        self._own = vars(module).get("forward")  # of another library that replaced it
        self._calls = 0                          # that record gradients

    def _plain(self, *args: Any, **kwargs: Any) -> Any:
        return self._own(*args, **kwargs) if self._own else type(self._module).forward(self._module, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._plain(*args, **kwargs)
        level = self._levels[self._calls % len(self._levels)]
        self._calls += 1
        if level == "keep":
            return self._plain(*args, **kwargs)
        return torch.utils.checkpoint.checkpoint(self._plain, *args, use_reentrant=False, preserve_rng_state=True,
                                                 **kwargs)


def checkpoint(model: torch.nn.Module, plan: Union[str, "os.PathLike[str]"]) -> None:
    """Wraps exactly the layers that a plan of `tencache tune --plan` recomputes, with PyTorch's own checkpointing
    (torch.utils.checkpoint without re-entrance, random numbers restored): the same results in less memory.

    Before the first step. Raises Error, and changes nothing, where the plan is of another model, is damaged, or where
    the model recomputes already.
    """
    found = read_plan(plan)
    root = objects.unwrap(model)
    modules = dict(root.named_modules())
    for module in modules.values():
        other = vars(module).get("_tencache_plan")
        if other is not None:
            raise Error(f"{found.file}: the model has a plan already, {other}: apply one of the two")
    for layer in found.levels:
        if layer not in modules:
            raise found.error(json.dumps(layer), f"the model ({type(root).__name__}) has no module '{layer}': the plan "
                              f"is of another one ({found.model}); make one of this model with `tencache tune --plan`")
    if model_sha256(root, found.levels) != found.model_sha256:
        raise found.error('"model_sha256"', f"the plan is of another model ({found.model}): parameters of the layers "
                          "have other names or sizes here; make one of this model with `tencache tune --plan`")
    if any(getattr(module, "gradient_checkpointing", False) for module in modules.values()):  # of transformers
        raise Error(f"{found.file}: the model recomputes all of its layers already: call "
                    "gradient_checkpointing_disable(), or leave the plan out")
    if getattr(getattr(root, "config", None), "use_cache", False):
        raise Error(f"{found.file}: with config.use_cache each layer adds to a cache, twice where it is recomputed: "
                    "set model.config.use_cache = False, which training does not need")
    root._tencache_plan = found.file  # type: ignore[assignment]
    for layer, levels in found.levels.items():
        if "block" in levels:
            modules[layer].forward = _Recomputed(modules[layer], levels)  # type: ignore[method-assign]
