"""Functions that ask what the commands of `tencache` ask, and return the answers that they print with --json."""

from __future__ import annotations

import atexit
import copyreg
import json
import logging
import os
import pathlib
import shutil
import tempfile
import threading
import weakref
from typing import Any, Iterable, Mapping, Optional, Sequence, Union

from . import _core
from ._policy import Policy, name_of

__all__ = [
    "bound", "command", "compare", "endurance", "explain", "fit", "fragment", "generate", "gpus", "import_trace",
    "info", "kv_cache", "kv_cache_generate", "load", "machines", "models", "policies", "replay", "report", "rows",
    "rows_generate", "samples", "save", "sensitivity", "simulate", "sweep", "tune", "why"]

Path = Union[str, "os.PathLike[str]"]
TraceLike = Union[_core.Trace, Path]
Machine = Union[Path, Mapping[str, Any]]
Size = Union[int, str]
PolicyLike = Union[str, "type[Policy]"]

_shipped = pathlib.Path(__file__).parent / "share" / "tencache"  # in a wheel; else what ships is in the source tree
if (_shipped / "configs").is_dir():
    _core.set_installed_configs(str(_shipped / "configs"))

_log = logging.getLogger("tencache")
_lock = threading.Lock()
_folder: Optional[str] = None
_files = 0


class _TemporaryFile:
    """A file that goes with the last reference to it: a call in another thread may still read it."""

    def __init__(self, suffix: str) -> None:
        global _folder, _files
        with _lock:
            if _folder is None:
                _folder = tempfile.mkdtemp(prefix="tencache-")
                atexit.register(shutil.rmtree, _folder, True)
            _files += 1
            self._name = os.path.join(_folder, f"{_files}{suffix}")
        weakref.finalize(self, _remove, self._name, os.getpid())

    def __fspath__(self) -> str:
        return self._name


def _remove(name: str, owner: int) -> None:
    if os.getpid() == owner:  # and not in a process that was forked off
        pathlib.Path(name).unlink(missing_ok=True)


def _identity(path: Path) -> tuple:
    found = os.stat(path)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _from_arrays(*arrays: Any) -> _core.Trace:
    return _core.Trace.from_arrays(*arrays)


copyreg.pickle(
    _core.Trace,
    lambda trace: (
        _from_arrays,
        (
            trace.header,
            trace.names,
            trace.tensors,
            trace.ops,
            trace.reads,
            trace.writes,
            trace.kernels,
            trace.details,
        ),
    ),
)


def load(path: Path) -> _core.Trace:
    """Reads a trace file (.trace.jsonl, .trace.jsonl.zst). Raises Error."""
    name = os.path.abspath(os.fspath(path))
    before = _identity(name) if os.path.isfile(name) else None
    trace = _core.Trace._load(os.fspath(path))
    if before is not None:
        trace._file = (name, before, trace._revision)
    return trace


def save(trace: _core.Trace, path: Path) -> None:
    """Writes the file atomically, compressed if its name ends in .zst. Raises Error where the trace cannot be run."""
    trace._save(os.fspath(path))


def _named(traces: Iterable[Any]) -> tuple[list[str], dict[str, _core.Trace]]:
    """Words for traces, and the Trace objects that words stand for.

    A trace that was read from a file is called by it, unless one of the two has changed since.
    """
    words: list[str] = []
    objects: dict[str, _core.Trace] = {}
    for one in traces:
        if isinstance(one, _core.Trace):
            file, identity, revision = getattr(one, "_file", ("", None, -1))
            if revision == one._revision and os.path.isfile(file) and _identity(file) == identity:
                words.append(file)
                continue
            words.append("trace in memory" + (f" {len(objects) + 1}" if objects else ""))
            objects[words[-1]] = one
        else:
            words.append(_text(one))
    return words, objects


# By content, and kept: the manifest of a result names the machine's file, which `tencache reproduce` reads.
_machine_files: dict[str, _TemporaryFile] = {}


def _machine_of(machine: Machine) -> Path:
    """The machine's name or file: one made for it, one only of each content, if it is a dict."""
    if not isinstance(machine, Mapping):
        return os.fspath(machine)
    content = json.dumps(machine)  # which is YAML too
    if content not in _machine_files:
        made = _TemporaryFile(".yaml")
        with open(made, "w", encoding="utf-8") as file:
            file.write(content)
        _machine_files.setdefault(content, made)
    return _machine_files[content]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _settings(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Options by the names that commands have for them, and as text."""
    settings: list[tuple[str, str]] = []
    for key, value in options.items():
        if value is None or value is False:
            continue
        if key == "machine":
            value = _machine_of(value)
        elif key in ("gpu_memory", "cpu_memory") and isinstance(value, int):
            value = f"{value}B"  # where a number is small it needs a unit
        if isinstance(value, Mapping):
            texts = [f"{inner}={_text(one)}" for inner, one in value.items()]
        elif isinstance(value, (list, tuple)):
            texts = [_text(one) for one in value]
        else:
            texts = [_text(value)]
        settings += [(key.replace("_", "-"), text) for text in texts]
    return settings


def _watch_signals() -> None:
    if threading.current_thread() is threading.main_thread():
        _core.watch_signals()


def _say(remarks: str) -> None:
    for remark in remarks.splitlines():
        _log.info("%s", remark)


def _ask_with_timelines(
    question: str, traces: Iterable[Any], options: Mapping[str, Any], keep_timelines: bool
) -> tuple[Any, list[_core.Timeline]]:
    words, objects = _named(traces)
    _watch_signals()
    settings = [("", word) for word in words] + _settings(options)
    answer, remarks, timelines = _core.ask(question, settings, objects, keep_timelines)
    _say(remarks)
    return answer, timelines


def _ask(question: str, traces: Iterable[Any] = (), **options: Any) -> Any:
    return _ask_with_timelines(question, traces, options, False)[0]


def command(name: str, *arguments: Any, **options: Any) -> Any:
    """Any command of `tencache` that takes --json: command("info", trace), command("diff", "a.json", "b.json").

    What is no question of a study (diff, reproduce, validate, …) runs as the command line runs it; all else here has no
    command line. Arguments are what stands behind the command's name; traces may be Trace objects. Options are
    keywords: gpu_memory stands for --gpu-memory, True for a flag, a list for an option given several times, a dict for
    KEY=VALUE ones (such as set={"window": 4}). Remarks go to the logger "tencache". Raises Error; "the answer is no" is
    a result.
    """
    if name in _core.questions:
        return _ask(name, arguments, **options)
    words, traces = _named(arguments)
    named = [f"--{key}" if value == "true" else f"--{key}={value}" for key, value in _settings(options)]
    _watch_signals()
    output, remarks = _core.run([*name.split(), *words, *named, "--json"], traces)
    _say(remarks)
    return json.loads(output)


def simulate(
    trace: TraceLike,
    machine: Machine,
    policy: PolicyLike,
    options: Mapping[str, Any] = {},
    *,
    gpu_memory: Optional[Size] = None,
    cpu_memory: Optional[Size] = None,
    limit: Mapping[str, str] = {},
    iterations: Optional[int] = None,
    **others: Any,
) -> tuple[dict, list[_core.Timeline]]:
    """`replay` with its timelines, one a rank."""
    asked = {"policy": name_of(policy), "machine": machine, "set": options, "gpu_memory": gpu_memory} | {
        "cpu_memory": cpu_memory, "limit": limit, "iterations": iterations} | others
    return _ask_with_timelines("replay", [trace], asked, True)


def replay(
    trace: TraceLike,
    machine: Machine,
    policy: PolicyLike,
    options: Mapping[str, Any] = {},
    *,
    gpu_memory: Optional[Size] = None,
    cpu_memory: Optional[Size] = None,
    limit: Mapping[str, str] = {},
    iterations: Optional[int] = None,
    samples: Optional[int] = None,
    seed: Optional[int] = None,
    **others: Any,
) -> dict:
    """Simulates a trace on a machine under one policy. What does not fit is a result: `fits` is False.

    Args:
        trace: a Trace, or a file.
        machine: a name of `machines()`, a YAML file, or its content as a dict.
        policy: a name of `policies()`, or a subclass of Policy.
        options: of the policy.
        gpu_memory, cpu_memory: what tensors may use: bytes, or such as "24GiB".
        limit: link to bandwidth, such as {"h2d": "12GB/s"}.
        iterations: run exactly so many; else until the state at an iteration's end recurs.
        samples, seed: intervals from so many draws of the machine's figures.
        others: further options of `tencache replay`, such as assume_gpu="a100-40g", timeline="t.json".
    """
    options = {"set": options, "gpu_memory": gpu_memory, "cpu_memory": cpu_memory, "limit": limit} | {
        "iterations": iterations, "samples": samples, "seed": seed} | others
    return _ask("replay", [trace], policy=name_of(policy), machine=machine, **options)


def compare(
    trace: TraceLike,
    machine: Machine,
    policies: Union[str, Iterable[PolicyLike]] = "all",
    *,
    gpu_memory: Optional[Size] = None,
    cpu_memory: Optional[Size] = None,
    limit: Mapping[str, str] = {},
    iterations: Optional[int] = None,
    samples: Optional[int] = None,
    seed: Optional[int] = None,
    **others: Any,
) -> list[dict]:
    """Simulates a trace under several policies: a row for the lower bound, one for `ideal`, then the best first.

    `policies` is "all" or a list of names and subclasses of Policy; the other arguments are as of `replay`.
    """
    if not isinstance(policies, str):
        listed = list(policies)
        names = [name_of(policy) for policy in listed]
        for one, name in zip(listed, names):
            if any(name == other and one is not another for another, other in zip(listed, names)):
                raise _core.Error(f"two policies are named '{name}'; set the class attribute `name` of one")
        policies = ",".join(names)
    options = {"gpu_memory": gpu_memory, "cpu_memory": cpu_memory, "limit": limit} | {
        "iterations": iterations, "samples": samples, "seed": seed} | others
    return _ask("compare", [trace], machine=machine, policies=policies, **options)


def bound(trace: TraceLike, machine: Machine, **options: Any) -> dict:
    """A time that no policy can beat, and which resource sets it."""
    return _ask("bound", [trace], machine=machine, **options)


def fit(trace: Optional[TraceLike] = None, machine: Machine = "", **options: Any) -> dict:
    """Does it fit, what overflows first, and the least memory that would do; of a trace, or with model=…, batch=…."""
    return _ask("fit", [] if trace is None else [trace], machine=machine, **options)


def why(log: Path, **options: Any) -> dict:
    """Why memory ran out, and what to do: of a log file, or of the message itself (docs/why.md)."""
    return _ask("why", [log], **options)


def fragment(*allocations: TraceLike, **options: Any) -> dict:
    """What allocators reserve for the same allocations, and which setting helps.

    Args:
        allocations: traces, which take turns as iterations, or one recording with allocations (docs/fragment.md).
    """
    return _ask("fragment", list(allocations), **options)


def rows(ids: Path, **options: Any) -> dict:
    """Caches of embedding rows on a file of ids (docs/rows.md): policy=["uvm-lru"], slots=["1%", "5%"], ahead=2, …."""
    return _ask("rows", [ids], **options)


def rows_generate(output: Path, **options: Any) -> dict:
    """A file of ids: rows="4000000,20000", batches=100, histogram="dlrm-2021" or zipf=1.05, seed=1, …."""
    return _ask("rows generate", output=output, **options)


def kv_cache(trace: Path, **options: Any) -> dict:
    """Caches of KV blocks on a trace of requests (docs/kv-cache.md): policy=["vllm"], gpu_cache=["20GiB"], …."""
    return _ask("kv-cache", [trace], **options)


def kv_cache_generate(output: Path, **options: Any) -> dict:
    """A trace of documents that are asked about in rounds: documents=32, tokens=20010, rounds=2, seed=1, …."""
    return _ask("kv-cache generate", output=output, **options)


def explain(trace: TraceLike, machine: Machine, policy: PolicyLike, **options: Any) -> dict:
    """What the time is lost to, each second beside a simulation without its cause."""
    return _ask("explain", [trace], machine=machine, policy=name_of(policy), **options)


def endurance(trace: TraceLike, machine: Machine, policy: PolicyLike, **options: Any) -> dict:
    """What is written to each SSD, and the years until it has had its rated terabytes."""
    return _ask("endurance", [trace], machine=machine, policy=name_of(policy), **options)


def sensitivity(trace: TraceLike, machine: Machine, over: Union[str, Sequence[str]], **options: Any) -> Any:
    """Time against figures of the machine: over="nvme=1GB/s..20GB/s"."""
    return _ask("sensitivity", [trace], machine=machine, over=over, **options)


def tune(trace: Optional[TraceLike], machine: Machine, policy: PolicyLike, **options: Any) -> dict:
    """The best options of a policy within a budget of simulations; of a trace, or None with model=…, new_tokens=…."""
    return _ask("tune", [] if trace is None else [trace], machine=machine, policy=name_of(policy), **options)


def sweep(file: Path, **options: Any) -> dict:
    """Workloads × machines × policies × options with cost, as a sweep's file says, on all cores (threads=n).

    Ctrl-C ends it; with output="results.sqlite" it goes on from there when it is called again.
    """
    return _ask("sweep", [os.fspath(file)], **options)


def report(files: Sequence[Path], output: Path, title: Optional[str] = None) -> None:
    """A page to send: results, timelines and sweeps (files of the commands) as one HTML file."""
    _say(_core.report([os.fspath(file) for file in files], os.fspath(output), title or ""))


def info(trace: TraceLike) -> dict:
    """What is in a trace: ops, tensors by role, bytes, peak demand, compute time, provenance."""
    return _ask("info", [trace])


def samples() -> dict[str, str]:
    """Small recordings that ship: name to file."""
    places = (_shipped / "samples", pathlib.Path(_core.source_folder) / "traces" / "samples")
    folder = next((place for place in places if place.is_dir()), None)
    suffix = ".trace.jsonl.zst"
    files = sorted(folder.glob("*" + suffix)) if folder else []
    return {file.name[: -len(suffix)]: str(file) for file in files}


def policies() -> list[dict]:
    """All policies with their options, units, defaults and sources."""
    return _ask("policies")


def gpus() -> list[dict]:
    """All GPUs whose figures are known."""
    return _ask("gpus")


def machines() -> list[dict]:
    """All machines that ship."""
    return _ask("machines")


def models() -> list[dict]:
    """All models that ship."""
    return _ask("models")


def generate(
    model: Path, batch: Optional[int] = None, seq: Union[int, str, Sequence[int], None] = None, **options: Any
) -> _core.Trace:
    """A training step's trace from a model's description and modelled kernel times; a generation's with new_tokens.

    Args:
        model: a name of `models()`, or a YAML or Hugging Face config.json file.
        batch: sequences an iteration; of a text generation none, but prompt=512, block="8x1".
        seq: tokens a sequence, or a list of one length for each micro-batch.
        options: those of `tencache generate`, such as gpu="a100-80g", precision="bf16", recompute="block".
    """
    if seq is not None and not isinstance(seq, (int, str)):
        seq = ",".join(str(length) for length in seq)
    settings = {"model": os.fspath(model), "batch": batch, "seq": seq, **options}
    return _core.generate([(k.replace("_", "-"), _text(v)) for k, v in settings.items() if v is not None])


def import_trace(format: str, *files: Path, **options: Any) -> _core.Trace:
    """A trace from recordings of other tools: format "csv" or another of `tencache import`. Notes go to the logger."""
    if "output" in options:
        raise _core.Error("import_trace has no output: it returns the trace, which save() writes")
    _watch_signals()
    settings = [("", os.fspath(file)) for file in files] + _settings(options)
    trace, remarks = _core.import_trace(format, settings)
    _say(remarks)
    return trace
