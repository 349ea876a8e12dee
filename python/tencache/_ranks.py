"""The processes of one program under torchrun: each has a live run of its own."""

from __future__ import annotations

import os
import socket
from typing import Any, Dict, List

_stores: List[Any] = []  # rank 0's serves the others as long as it lives


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def count() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def count_here() -> int:
    """On this computer: they share its memory and disks."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def are_joined() -> bool:
    """Whether this process may be in a collective."""
    import torch.distributed as distributed
    return count() > 1 or (distributed.is_available() and distributed.is_initialized())


def own_file(path: str) -> str:
    """Rank 0 has the file itself, "result.json", others "result.rank1.json"."""
    folder, name = os.path.split(path)
    stem, dot, ending = name.partition(".")
    return os.path.join(folder, f"{stem}.rank{rank()}{dot}{ending}") if path and rank() > 0 else path


def say_first(text: str) -> str:
    """The rank before it, where there are several."""
    return f"rank {rank()}: {text}" if count() > 1 else text


def environment_of_rehearsal() -> Dict[str, str]:
    """Of processes that run the program's ranks before these do: they meet elsewhere."""
    environment = dict(os.environ)
    if count() == 1:
        return environment
    from torch.distributed import rendezvous
    store = next(iter(rendezvous("env://")))[0]
    _stores.append(store)
    key = "tencache/rehearsal" + os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    if rank() == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            store.set(key, str(free.getsockname()[1]))
    environment.update(MASTER_PORT=store.get(key).decode(), TORCHELASTIC_USE_AGENT_STORE="False")
    return environment


def leave_together() -> None:
    """Before this process ends in the middle of the program: waits until all others have got as far."""
    import datetime
    import torch.distributed as distributed
    if count() == 1 or not distributed.is_available() or not distributed.is_initialized():
        return
    store = distributed.distributed_c10d._get_default_store()
    try:
        store.set(f"tencache/left{rank()}", "1")
        store.wait([f"tencache/left{other}" for other in range(count())], datetime.timedelta(seconds=60))
    except RuntimeError:  # the one that serves it has left
        pass
