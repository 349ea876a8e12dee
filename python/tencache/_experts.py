"""Mixtures of experts that live runs and recordings do not find by themselves."""

from __future__ import annotations

from typing import Any, Iterable

from tencache_recorder import _experts

__all__ = ["chose_experts", "mark_experts"]


def mark_experts(block: Any, experts: Iterable[Any]) -> None:
    """The module `block` chooses among `experts`: modules of one of its ModuleLists, in the order of the numbers by
    which it chooses. To be said before the first step. A block with a child `gate` or `router` and a ModuleList
    `experts` is found without it. Raises ValueError if an expert is not in a ModuleList of the block.

    The choice is a call of `topk` in the block, over as many scores as there are experts; if it is made in another way,
    call chose_experts().
    """
    _experts.mark(block, experts)


def chose_experts(block: Any, experts: Iterable[int]) -> None:
    """To be called in the forward pass of `block` right after the op that chooses: these experts, by number, are about
    to run. Does nothing outside of a live run."""
    numbers = sorted({int(number) for number in experts})
    for hears in list(_experts.chosen):
        hears(block, numbers)
