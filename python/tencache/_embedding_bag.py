"""torch.nn.EmbeddingBag with its rows in CPU memory or a file: `tencache.EmbeddingBag`."""

from __future__ import annotations

import os
import tempfile
from typing import Any, List, Optional, Union

import torch
from torch import nn

from . import _core
from ._core import Error


class EmbeddingBag(nn.Module):
    """As torch.nn.EmbeddingBag(…, sparse=True), but only `slots` rows lie on `device`.

    A row policy of `tencache rows` says before each forward pass which rows leave the arena for those that are missing.
    Rows that get no slot lie behind it for the batch. Results and weights are those of a table without a cache, as long
    as each forward pass that trains is followed by the optimizer's step before the next one.

    Args:
        slots: rows that the arena has, as a number or a share such as "1%".
        policy: cached-embedding, uvm-lru or uvm-lfu.
        direct_rows: rows without a slot that a batch may have (uvm-…).
        directory: of a file that holds the table, mapped into memory and gone with the module; None: CPU memory.
        device: of the arena.
        weight: the table's content, which is copied; None: normally distributed, as torch.nn.EmbeddingBag.

    Of an optimizer with states of a row each (torch.optim.SparseAdam, Adagrad, SGD with momentum), call attach() once
    it is made: the states of rows move with them.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        mode: str = "mean",
        *,
        slots: Union[int, str] = "1%",
        policy: str = "uvm-lru",
        direct_rows: int = 65_536,
        directory: Optional[str] = None,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
        weight: Optional[torch.Tensor] = None,
        include_last_offset: bool = False,
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.mode = num_embeddings, embedding_dim, mode
        self.include_last_offset = include_last_offset
        dtype = dtype or (torch.get_default_dtype() if weight is None else weight.dtype)
        if weight is not None and weight.shape != (num_embeddings, embedding_dim):
            raise Error(f"weight has the shape {tuple(weight.shape)}: it must be ({num_embeddings}, {embedding_dim})")
        self._directory = directory
        self._table = self._make_table((num_embeddings, embedding_dim), dtype)
        if weight is None:
            self._table.normal_()
        else:
            self._table.copy_(weight.detach())
        row_bytes = embedding_dim * self._table.element_size()
        self._rows = _core.PlannedRows(policy, num_embeddings, row_bytes, _slots_of(slots, num_embeddings))
        self._direct_rows = min(direct_rows, num_embeddings) if policy.startswith("uvm") else 0
        self._direct = torch.empty(0, dtype=torch.int64)  # rows of the last batch that lie behind the slots
        size = self._rows.slots + self._direct_rows
        self.arena = nn.Parameter(torch.zeros(size, embedding_dim, dtype=dtype, device=device))
        self._states: List[List[Any]] = []  # an optimizer, the name of its state, and the table of it in CPU memory
        self._optimizers: List[torch.optim.Optimizer] = []

    def _make_table(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        if self._directory is None:
            return torch.empty(shape, dtype=dtype)
        handle, path = tempfile.mkstemp(dir=self._directory, suffix=".rows")
        os.close(handle)
        try:
            count = int(torch.Size(shape).numel())
            return torch.from_file(path, shared=True, size=count, dtype=dtype).view(shape)
        finally:
            os.unlink(path)

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """States of the arena's rows move with the rows from now on."""
        if not any(parameter is self.arena for group in optimizer.param_groups for parameter in group["params"]):
            raise Error("the optimizer has no parameter of this EmbeddingBag: give it module.parameters()")
        self._optimizers.append(optimizer)
        self._find_states()

    def _find_states(self) -> None:
        for optimizer in self._optimizers:
            known = {name for one, name, _ in self._states if one is optimizer}
            for name, state in optimizer.state.get(self.arena, {}).items():
                if name in known or not torch.is_tensor(state) or state.shape[:1] != self.arena.shape[:1]:
                    continue
                # Rows that no step has changed yet have what the optimizer begins with, or 0.
                table = self._make_table((self.num_embeddings, *state.shape[1:]), state.dtype)
                begun = bool((state != state.flatten()[0]).any())
                table.fill_(0 if begun else state.flatten()[0].item())
                self._states.append([optimizer, name, table])

    def _pairs(self) -> Any:
        yield self._table, self.arena.data
        for optimizer, name, table in self._states:
            yield table, optimizer.state[self.arena][name]

    def _leave(self, rows: torch.Tensor, slots: torch.Tensor) -> None:
        if len(rows):
            for table, arena in self._pairs():
                table[rows] = arena[slots.to(arena.device)].to(table.device)

    def _enter(self, rows: torch.Tensor, slots: torch.Tensor) -> None:
        if len(rows):
            for table, arena in self._pairs():
                arena[slots.to(arena.device)] = table[rows].to(arena.device)

    def _behind(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.arange(self._rows.slots, self._rows.slots + len(rows))

    @torch.no_grad()
    def _prepare(self, ids: torch.Tensor) -> torch.Tensor:
        self._find_states()
        self._leave(self._direct, self._behind(self._direct))
        self._direct = self._direct[:0]
        planned = self._rows.plan(ids.reshape(-1).to("cpu", torch.int64).numpy())
        places, out_rows, out_slots, in_rows, in_slots, direct = (torch.from_numpy(one) for one in planned)
        self._leave(out_rows, out_slots)
        self._enter(in_rows, in_slots)
        if len(direct) > self._direct_rows:
            raise Error(f"{len(direct)} rows of the batch get no slot, more than direct_rows={self._direct_rows}: raise "
                        "it, or slots")
        self._enter(direct, self._behind(direct))
        self._direct = direct
        return places.view(ids.shape).to(self.arena.device)

    def forward(
        self,
        input: torch.Tensor,
        offsets: Optional[torch.Tensor] = None,
        per_sample_weights: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        return nn.functional.embedding_bag(
            self._prepare(input), self.arena, offsets, mode=self.mode, sparse=True,
            per_sample_weights=per_sample_weights, include_last_offset=self.include_last_offset)

    @torch.no_grad()
    def flush(self) -> None:
        """Brings the table, and those of the optimizers' states, up to date."""
        self._leave(self._direct, self._behind(self._direct))
        rows, slots = (torch.from_numpy(one) for one in self._rows.held())
        self._leave(rows, slots)

    @property
    def weight(self) -> torch.Tensor:
        """All rows, in CPU memory, as they are now. Changes of it are not seen by rows of the arena."""
        self.flush()
        return self._table

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[prefix + "weight"] = self.weight.clone()

    @torch.no_grad()
    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, strict: bool, missing: Any,
                              unexpected: Any, errors: Any) -> None:
        key = prefix + "weight"
        if key not in state:
            missing.append(key)
        elif state[key].shape != self._table.shape:
            errors.append(f"{key} has the shape {tuple(state[key].shape)}, not {tuple(self._table.shape)}")
        else:
            self._table.copy_(state[key])
            self._enter(*(torch.from_numpy(one) for one in self._rows.held()))
            self._enter(self._direct, self._behind(self._direct))

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode}, slots={self._rows.slots}"


def _slots_of(slots: Union[int, str], rows: int) -> int:
    if isinstance(slots, str) and slots.endswith("%"):
        try:
            share = float(slots[:-1]) / 100
        except ValueError:
            share = 0.0
        if 0 < share <= 1:
            return max(1, int(rows * share))
    elif not isinstance(slots, str) and slots >= 1:
        return int(slots)
    raise Error(f"slots={slots!r} is no share such as '1%' and no number of rows from 1")
