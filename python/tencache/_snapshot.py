"""Memory snapshots of PyTorch (torch.cuda.memory._dump_snapshot) as allocation events for `tencache fragment`.

A snapshot is a pickle, which could run any code as it is read: here it may hold nothing but Python's plain objects.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import sys
import tempfile
from typing import IO, Any, Dict, List, Optional, Sequence, Tuple

from . import _core

_USED = ("active_allocated", "active_pending_free", "active_awaiting_free")


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"holds an object of {module}.{name}, which no snapshot has")


def _read(path: str) -> Dict[str, Any]:
    try:
        with open(path, "rb") as file:
            snapshot = _Plain(file).load()
    except OSError as error:
        raise _core.Error(f"{path}: {error.strerror}") from None
    except Exception as error:  # of a damaged pickle any
        raise _core.Error(f"{path}: is no memory snapshot: {error}; write one with "
                          "torch.cuda.memory._dump_snapshot(FILE)") from None
    if isinstance(snapshot, dict) and {"segments", "device_traces"} <= set(snapshot):
        return snapshot
    raise _core.Error(f"{path}: has no 'segments' and 'device_traces': no snapshot that is known here (PyTorch 1.13 to "
                      "2.15); write one with torch.cuda.memory._record_memory_history() before the program's steps and "
                      "torch.cuda.memory._dump_snapshot(FILE) after them")


def _used_blocks(segments: Sequence[Dict[str, Any]], device: int) -> Dict[int, Tuple[int, int]]:
    """By address: bytes that were asked for, and the stream."""
    used = {}
    for segment in segments:
        if segment.get("device", 0) != device:
            continue
        address = segment["address"]
        for block in segment["blocks"]:
            address = block.get("address", address)
            if block["state"] in _USED:
                used[address] = block.get("requested_size", block["size"]) or block["size"], segment.get("stream", 0)
            address += block["size"]
    return used


class _Events:
    def __init__(self) -> None:
        self.before: List[Dict[str, int]] = []
        self.lines: List[Dict[str, int]] = []
        self._alive: Dict[int, int] = {}
        self._streams: Dict[int, int] = {}
        self._blocks = 0

    def _new(self, address: int, size: int, stream: int) -> Dict[str, int]:
        self._alive[address] = self._blocks
        self._blocks += 1
        return {"alloc": self._blocks - 1, "bytes": size,
                "stream": self._streams.setdefault(stream, len(self._streams))}

    def allocate(self, address: int, size: int, stream: int) -> None:
        if size > 0:
            self.lines.append(self._new(address, size, stream))

    def was_there(self, address: int, size: int, stream: int) -> None:
        self.before.append(self._new(address, size, stream))

    def release(self, address: int, size: int, stream: int) -> None:
        if size > 0 and address not in self._alive:
            self.was_there(address, size, stream)
        if address in self._alive:
            self.lines.append({"free": self._alive.pop(address)})

    def alive(self, address: int) -> bool:
        return address in self._alive


def _device(snapshot: Dict[str, Any], path: str, wanted: Optional[int]) -> int:
    traces = snapshot["device_traces"]
    known = [device for device, trace in enumerate(traces) if trace]
    if not known:
        raise _core.Error(f"{path}: has no history of allocations: call torch.cuda.memory._record_memory_history() "
                          "before the steps in question")
    if wanted is None:
        return max(known, key=lambda device: len(traces[device]))
    if wanted not in known:
        raise _core.Error(f"{path}: has no history of GPU {wanted}; it has that of {', '.join(map(str, known))}")
    return wanted


# Of PyTorch's TraceEntry, those that allocate and free nothing.
_OTHER_ACTIONS = frozenset(("free_requested", "snapshot", "oom", "annotate", "user_defined"))


def _convert(snapshot: Dict[str, Any], device: int) -> Tuple[_Events, Dict[str, int]]:
    events, reserved, change, most = _Events(), 0, 0, 0
    for entry in snapshot["device_traces"][device]:
        action, size = entry["action"], entry.get("size", 0)
        place = entry.get("addr", 0), size, entry.get("stream", 0)
        if action == "alloc":
            events.allocate(*place)
        elif action == "free_completed":
            events.release(*place)
        elif action in ("segment_alloc", "segment_map"):
            change += size
            most = max(most, change)
        elif action in ("segment_free", "segment_unmap"):
            change -= size
        elif action not in _OTHER_ACTIONS:
            raise ValueError(f"action {action!r}")
    for address, (size, stream) in sorted(_used_blocks(snapshot["segments"], device).items()):
        if not events.alive(address):
            events.was_there(address, size, stream)
    reserved = sum(segment["total_size"] for segment in snapshot["segments"] if segment.get("device", 0) == device)
    return events, {"reserved_bytes": reserved - change + most}


def _write(file: IO[str], events: _Events, recorded: Dict[str, int]) -> None:
    for line in ({"recorded": recorded}, *events.before, *events.lines):
        file.write(json.dumps(line, separators=(",", ":")) + "\n")


def import_snapshot(path: Any, output: Any, gpu: Optional[int] = None) -> Dict[str, int]:
    """Writes the allocations of a memory snapshot as events for `fragment`, and returns how many there are.

    Args:
        path: what torch.cuda.memory._dump_snapshot(path) wrote.
        output: NAME.alloc.jsonl. It appears whole or not at all.
        gpu: of several the index (default: that with the longest history).
    """
    path, output = os.fspath(path), os.fspath(output)
    snapshot = _read(path)
    try:
        events, recorded = _convert(snapshot, _device(snapshot, path, gpu))
    except _core.Error:  # a ValueError too, and said already
        raise
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise _core.Error(f"{path}: is a snapshot of a form that is not known here ({type(error).__name__}: {error}); "
                          "PyTorch 1.13 to 2.15 write what is") from None
    folder = os.path.dirname(os.path.abspath(output))
    try:
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".tencache-", delete=False, encoding="ascii") as file:
            _write(file, events, recorded)
        os.chmod(file.name, 0o644)
        os.replace(file.name, output)
    except OSError as error:
        raise _core.Error(f"{output}: cannot be written: {error.strerror}") from None
    return {"blocks": len(events.before) + sum("alloc" in line for line in events.lines),
            "there_before": len(events.before), "events": len(events.lines)}


def main(words: Optional[List[str]] = None) -> None:
    parser = argparse.ArgumentParser(
        prog="tencache import snapshot",
        description="Allocations of a memory snapshot of PyTorch, for `tencache fragment`.",
        epilog="Example, in the program:\n  torch.cuda.memory._record_memory_history()\n  …  # some steps\n"
               "  torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")\nthen:\n"
               "  tencache import snapshot snapshot.pickle -o steps.alloc.jsonl\n  tencache fragment steps.alloc.jsonl",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snapshot", metavar="SNAPSHOT")
    parser.add_argument("--output", "-o", required=True, metavar="FILE", help="NAME.alloc.jsonl")
    parser.add_argument("--gpu", type=int, metavar="INDEX", help="of several (default: that with the longest history)")
    given = parser.parse_args(words)
    try:
        counts = import_snapshot(given.snapshot, given.output, given.gpu)
    except _core.Error as error:
        sys.exit(f"tencache: {error}")
    print(f"{given.output}: {counts['blocks']} allocations, {counts['there_before']} of them from before the history")
