"""The models and optimizers of a program, and what of their tensors a live run pages."""

from __future__ import annotations

import gc
import weakref
from typing import Any, Callable, ContextManager, Dict, List, NamedTuple, Optional, Tuple

import torch
from tencache_recorder import _experts, _program as objects

from . import _core
from ._paging import Paging


_PART = 8  # tensors that are taken over between two words on how far that is


class Known(NamedTuple):
    """A module that was seen, and lives."""

    name: str
    is_root: bool  # a model, and no part of another
    dies: "weakref.ref[torch.nn.Module]"  # and forgets it
    experts: List[str]  # among which it chooses: their names after its own and a dot
    is_expert: bool


class Models:
    """By weak references. `known`: modules, by their id. `open`: the ids of those whose forward runs. `batch`: of what
    the first model was given (samples, tokens of each). `described`: for a trace's header."""

    def __init__(self, paging: Paging, say: Callable[[str], None], patience: Callable[[str], ContextManager[None]],
                 watch: Callable[[type], None]) -> None:
        """`watch`: what is to happen with each class of an optimizer."""
        self._paging, self._say, self._patience, self._watch = paging, say, patience, watch
        self.known: Dict[int, Known] = {}
        self.open: List[int] = []
        self.batch: Tuple[int, int] = (0, 0)
        self.described: Dict[str, str] = {}
        self._models: "List[weakref.ref[Any]]" = []
        self._optimizers: "List[weakref.ref[Any]]" = []
        self._leaves: "List[weakref.ref[Any]]" = []  # parameters of no model
        self._mapped = False  # some lie in mapped files, and are not adopted yet
        self._looked = False  # around, since the call of the module that runs

    # ---- Models and optimizers ---------------------------------------------------------------------------------------

    def models(self) -> List[Any]:
        return _living(self._models)

    def optimizers(self) -> List[Any]:
        return _living(self._optimizers)

    def look_around(self, again: bool = True) -> None:
        """Finds the models and optimizers that are there: a walk over every object of the process. What comes later is
        met where it is called, or made. `again`: even if this was done for the call of the module that runs."""
        if self._looked and not again:
            return
        models, optimizers = objects.find_program()
        self._looked = True
        self._models = [weakref.ref(model) for model in models]
        self.known.clear()
        names = objects.module_names(models)
        for model in models:
            experts = _experts.blocks_of([model], names)
            for module in model.modules():
                name = names.get(id(module), type(module).__name__)
                self._know(module, name, module is model and _has_tensors(model), name in experts)
        met = {id(optimizer) for optimizer in self.optimizers()}
        for optimizer in optimizers:
            if id(optimizer) not in met:
                self.meet_optimizer(optimizer)
        if models:
            self.described = {"model": type(models[0]).__name__, "precision": objects.precision_of(models)}

    def meet_optimizer(self, optimizer: Any) -> None:
        self._optimizers = [weakref.ref(one) for one in self.optimizers() + [optimizer]]
        self._watch(type(optimizer))

    def called(self, module: Any, arguments: Any, named: Any, waiting: bool, on_model: Callable[[], None]) -> Known:
        """A module's forward pass begins. `waiting`: for the first step. `on_model`: called where it is a model's, and
        not from within its own."""
        known = self.known.get(id(module)) or self._meet_module(module, waiting)
        if known.is_root and id(module) not in self.open:
            if self.batch == (0, 0):
                self.batch = objects.batch_of(arguments, named)
            on_model()
        self._looked = False
        return known

    def _know(self, module: Any, name: str, is_root: bool, is_expert: bool = False) -> Known:
        key = id(module)
        known = self.known[key] = Known(name, is_root, weakref.ref(module, lambda _: self.known.pop(key, None)),
                                        _experts.names_of(module), is_expert)
        return known

    def have_experts(self) -> bool:
        return any(known.experts for known in self.known.values())

    def open_block(self) -> Optional[Known]:
        """The innermost module that runs and chooses among experts."""
        for identity in reversed(self.open):
            known = self.known.get(identity)
            if known is not None and known.experts:
                return known
        return None

    def _meet_module(self, module: Any, waiting: bool) -> Known:
        """One that was made since: a part, or without parameters (a loss, an activation), or a model."""
        if self.open or not _has_tensors(module):
            return self._know(module, type(module).__name__, False)
        if waiting:
            self.look_around()
            known = self.known.get(id(module))
            if known is not None:
                return known
        model = objects.unwrap(module)
        if id(model) not in self.known:
            self._models = [weakref.ref(one) for one in self.models() + [model]]
            names = {id(part): name for name, part in model.named_modules(prefix=type(model).__name__)}
            experts = _experts.blocks_of([model], names)
            for part in model.modules():
                name = names[id(part)]
                self._know(part, name, part is model, name in experts)
            self.adopt_mapped([model])
        return self.known[id(model)] if model is module else self._know(module, type(module).__name__, False)

    # ---- Their tensors -----------------------------------------------------------------------------------------------

    def adopt(self, tensors: List[Any]) -> None:
        """Those in mapped files wait for the next call of one of the functions below."""
        if self._paging.adopt(tensors):
            self._mapped = True

    def adopt_all(self, leaves: bool) -> None:
        """`leaves`: with parameters of no model."""
        tensors: List[torch.Tensor] = []
        for optimizer in self.optimizers():
            for state in optimizer.state.values():
                tensors += [value for value in state.values() if isinstance(value, torch.Tensor) and value.numel() > 1]
        self._adopt(self.models(), tensors, leaves)

    def adopt_mapped(self, models: List[Any], leaves: bool = False) -> None:
        if self._mapped:
            self._adopt(models, [], leaves)

    def _adopt(self, models: List[Any], others: List[torch.Tensor], leaves: bool) -> None:
        tensors: List[torch.Tensor] = []
        for model in models:
            tensors += model.parameters()
            tensors += model.buffers()
            tensors += [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        tensors += others
        if leaves or not models:
            found = [tensor for tensor in objects.live(torch.Tensor) if tensor.is_leaf and tensor.requires_grad]
            self._leaves = [weakref.ref(tensor) for tensor in found]
            tensors += found
        self._mapped = False
        with self._patience("taking over the program's tensors"):
            left = self._adopt_by_parts(tensors)
        if left:
            self._say("weights in a mapped file are left where they are: other tensors use the file, too, or it is "
                      "still open")

    def _adopt_by_parts(self, tensors: List[torch.Tensor]) -> int:
        """Returns how many bytes were left alone, as others may use them."""
        mapped = 0
        for begin in range(0, len(tensors), _PART):
            _core.doing(f"{begin} of {len(tensors)}")
            mapped += self._paging.adopt(tensors[begin:begin + _PART])
        return self._paging.adopt_mapped(tensors, objects.live(torch.Tensor)) if mapped else 0

    def mark(self) -> None:
        """Says what they are."""
        roles = objects.find_roles(self.models(), self.optimizers(), keep_tensors=True)
        for address, (role, name, _, _) in roles.of.items():
            self._paging.mark(roles.tensors[address], _core.ROLES.index(role), name)
        for number, leaf in enumerate(reference() for reference in self._leaves):
            if leaf is not None:
                self._paging.mark(leaf, _core.ROLES.index("parameter"), f"parameter.{number}")

    def give_back(self) -> None:
        """All tensors of the process, not only those of models."""
        found: List[torch.Tensor] = []
        for candidate in gc.get_objects():
            if not issubclass(type(candidate), torch.Tensor):
                continue
            try:
                gradient = candidate.grad if candidate.is_leaf else None
            except RuntimeError:  # another thread lets go of it at this moment: it is undefined already
                continue
            found.append(candidate)
            if gradient is not None:
                found.append(gradient)
        self._paging.give_back(found)


def _living(references: "List[weakref.ref[Any]]") -> List[Any]:
    return [one for one in (reference() for reference in references) if one is not None]


def _has_tensors(module: Any) -> bool:
    return next(module.parameters(), None) is not None or next(module.buffers(), None) is not None
