"""The processes of one program under torchrun: each has a live run of its own."""

from __future__ import annotations

import os
import socket
from typing import Any, Dict, List

from ._core import Error

_THIS_COMPUTER = ("localhost", "127.0.0.1", "::1")

_stores: List[Any] = []  # rank 0's serves the others as long as it lives
_live_runs = 0           # of this process so far


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def count() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def count_here() -> int:
    """On this computer: they share its memory and disks."""
    given = os.environ.get("LOCAL_WORLD_SIZE")
    if given is None and os.environ.get("MASTER_ADDR", "") in _THIS_COMPUTER:
        return count()
    if given is None and int(os.environ.get("LOCAL_RANK", "0")) > 0:
        raise Error("LOCAL_RANK is set and LOCAL_WORLD_SIZE is not: set it to how many ranks run on this computer, "
                    "which share its memory")
    return int(given or "1")


def rank_here() -> int:
    """Among those."""
    return int(os.environ.get("LOCAL_RANK", rank() % count_here()))


def run_name() -> str:
    """Of the program that all ranks run; empty where the environment does not say it."""
    words = [os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
                                                   "TORCHELASTIC_RESTART_COUNT")]
    return ":".join(words) if words[1] else ""


def share_name(given: str) -> str:
    """Under which the next live run of this process meets that of others here; empty: it does not. `given`: a name in
    place of the run's, or none."""
    global _live_runs
    _live_runs += 1
    run = "" if given == "none" or count_here() == 1 else given or run_name()
    return f"{run}#{_live_runs}" if run else ""


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
