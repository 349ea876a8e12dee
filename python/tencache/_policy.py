"""The base class of policies written in Python."""

from __future__ import annotations

import re
from typing import Any, Iterable, Mapping, Optional

from . import _core


class Policy:
    """A policy: give a subclass of this to `replay` or `compare` in place of a name.

    Every method has a default, so a subclass says only what it does differently. The engine executes: no policy can
    lose data, overfill a tier or stall for ever. Each run makes an object of its own. `view`, `event`, `actions` and
    `request` are valid during the call only.

    Class attributes:
        name: as in results; the class's name in lower case with dashes if it is not set.
        summary: one line.
        options: name to default (a bool, an int of 0 or more, or a float). In an object, `self.options` holds the
            values of the run. They stand in the result's manifest.
        events: the kinds of event (EVENT_KINDS) that `on` hears; None is all. Fewer are faster.
    """

    name: Optional[str] = None
    summary: str = "written in Python"
    options: Mapping[str, Any] = {}
    events: Optional[Iterable[str]] = None

    def requirements(self) -> Optional[dict]:
        """{"governed": roles that are counted in the hit rate, "module_hooks": bool}; None is the default of each."""
        return None

    def layout(self, machine: dict, program: "Optional[_core.Trace]") -> Optional[dict]:
        """Asked once, before the run. Keys, all optional:

        chunk_bytes (16 MiB; 0: whole tensors), exclusive_copies, promote, use_touches, free_dead ("now",
        "when_victim", "never"), blocking_step, fallback_eviction, initial (role to the tier where its persistent
        tensors start). core/policy.h says what each means.
        """
        return None

    def on(self, event: "_core.Event", view: "_core.View", actions: "_core.Actions") -> None:
        """Hears an event and appends actions, such as actions.fetch(tensor)."""

    def make_room(self, request: "_core.RoomRequest", view: "_core.View") -> Iterable[int]:
        """Chunks to evict from request.tier, in order; the default names the least recently used."""
        raise NotImplementedError  # never called: the engine's own is faster

    def fingerprint(self) -> int:
        """Identifies the object's inner state, so that a steady state can be recognised; 0: it has none."""
        return 0

    def notes(self) -> Iterable[str]:
        """What a reader of the result should know, a sentence each."""
        return ()


_registered: dict[str, type] = {}


def name_of(policy: Any) -> str:
    """The name of a policy as the commands take it; a subclass of Policy is made known under its name first."""
    if isinstance(policy, str):
        return policy
    if not (isinstance(policy, type) and issubclass(policy, Policy)):
        raise _core.Error(f"a policy is a name or a subclass of tencache.Policy, not {policy!r}")
    name = policy.name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", policy.__name__).lower().replace("_", "-").strip("-")
    if _registered.get(name) is not policy:
        _core.register_policy(name, policy.summary, policy)
        _registered[name] = policy
    return name
