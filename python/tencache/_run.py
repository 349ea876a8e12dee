"""`tencache run python`: a PyTorch script, as it is, with its tensors paged; and the prediction of that run."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import runpy
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Callable, List, Optional, Sequence, Tuple

from . import _core
from ._core import Error

if TYPE_CHECKING:
    from ._live import Live, Options

_RECORDED_STEPS = 5  # of a recording, after two that warm up


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tencache run python", formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="tencache run python [OPTIONS] -- SCRIPT [ARGUMENTS…]",
        description="Run a PyTorch script as it is, with its tensors paged by a policy.",
        epilog="The script is not changed: results are those of PyTorch alone, bit for bit.\n\n"
               "With --predict, or a --gpu-memory that is a share, a few steps of the script run first, in a process\n"
               "of their own whose output is not shown: what the script writes to files in them is written twice.\n\n"
               "Examples:\n"
               "  tencache run python --memory 8GiB -- train.py --epochs 1\n"
               "  tencache run python --predict --gpu-memory 50% -- train.py\n"
               "  tencache run python -p lru --gpu-memory 2GiB --cpu-memory 4GiB --directory /mnt/nvme -- train.py")
    parser.add_argument("--policy", "-p", default="foresight", metavar="NAME",
                        help="a name of `tencache policies` (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an option of the policy")
    parser.add_argument("--memory", default="", metavar="SIZE",
                        help="of the whole process, such as 8GiB: tensors get what the interpreter and its libraries "
                             "leave, with files below it")
    parser.add_argument("--reserve", default="", metavar="SIZE",
                        help="of --memory, what is kept for what is no tensor and comes after the first one (default: "
                             "a tenth)")
    parser.add_argument("--gpu-memory", default="", metavar="SIZE",
                        help="memory that tensors may use at a time, such as 8GiB, or 50%% of the program's peak "
                             "(default: the machine's)")
    parser.add_argument("--cpu-memory", default="", metavar="SIZE", help="CPU memory beside it")
    parser.add_argument("--machine", "-m", default="", metavar="FILE",
                        help="a name of `tencache machines`, or a YAML file (default: this computer, measured once)")
    parser.add_argument("--limit", action="append", default=[], metavar="LINK=BANDWIDTH",
                        help="another bandwidth of a link, such as nvme_read=2GB/s")
    parser.add_argument("--directory", action="append", default=[], metavar="FOLDER",
                        help="for the files of NVMe tiers (default: the machine's, else /var/tmp)")
    parser.add_argument("--pace", action=argparse.BooleanOptionalAction, default=None,
                        help="copies go as fast as the machine's links (default with --machine), or as this "
                             "computer can")
    parser.add_argument("--predict", action="store_true",
                        help="simulate the run first, and compare at the end")
    parser.add_argument("--prediction", default="", metavar="FILE", help="the prediction's file; implies --predict")
    parser.add_argument("--trace", default="", metavar="TRACE",
                        help="a recording of the script (of --record, or another) to predict from, in place of a "
                             "new one")
    parser.add_argument("--timeline", default="", metavar="FILE",
                        help="write the timeline, the predicted one above it (.json, for https://ui.perfetto.dev); "
                             "`tencache gui FILE` follows it while the script runs")
    parser.add_argument("--record", default="", metavar="TRACE", help="write the second step as a trace (.trace.jsonl)")
    parser.add_argument("--json", default="", metavar="FILE", help="write the figures at the end to this file")
    parser.add_argument("--recording", default="", help=argparse.SUPPRESS)  # of our own: record, and end there
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="of the script")
    return parser


def _settings(pairs: Sequence[str]) -> dict:
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise Error(f"--set {pair}: write NAME=VALUE")
        settings[name] = value
    return settings


def _size(size: float) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def _say(text: str) -> None:
    print("tencache: " + text, file=sys.stderr)


# ---- Before the run --------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Recording:
    trace: _core.Trace
    peak_bytes: int
    largest_op: str = ""
    largest_op_bytes: int = 0


def _record(options: "Options", script: List[str]) -> Recording:
    """A few steps in a process of their own, in the memory that the run will have, or that this computer has free."""
    with tempfile.TemporaryDirectory(prefix="tencache-") as folder:
        trace = os.path.join(folder, "step.trace.jsonl")
        words = [sys.executable, "-m", "tencache", "run", "python", "-p", "lru", "--no-pace", "--recording", trace,
                 "--machine", options.machine]
        for directory in options.directories:
            words += ["--directory", directory]
        if options.memory:
            words += ["--memory", options.memory] + (["--reserve", options.reserve] if options.reserve else [])
        elif options.gpu_memory and not options.gpu_memory.endswith("%"):
            words += ["--gpu-memory", options.gpu_memory]
        else:  # never without a limit
            words += ["--gpu-memory", f"{int(0.7 * _core.available_memory())}B"]
        _say(f"recording {_RECORDED_STEPS} steps of {script[0]}, after two that warm up")
        done = subprocess.run(words + ["--", *script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace")
        if not os.path.exists(trace):
            sys.stderr.write("".join(line + "\n" for line in done.stdout.splitlines()[-30:]))
            raise Error(f"recording {script[0]} failed (exit code {done.returncode}; its last lines are above)")
        with open(trace + ".json", encoding="utf-8") as file:
            figures = json.load(file)
        return Recording(_core.Trace._load(trace), figures["peak_bytes"], figures["largest_op"],
                         figures["largest_op_bytes"])


def _recorder(run: "Live", path: str) -> Tuple[List[_core.Trace], Callable[[], None]]:
    """Recorded traces, and what is called after each step: it writes the median of some, and ends the process."""
    traces: List[_core.Trace] = []

    def on_boundary() -> None:
        if run.steps > 2:
            traces.append(run.recorded())
        if len(traces) == _RECORDED_STEPS:
            _write_recording(run, traces, path)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)  # nothing that the script does at its end
    return traces, on_boundary


def _write_recording(run: "Live", traces: List[_core.Trace], path: str) -> None:
    trace = traces[-1]
    try:
        trace, header = _core.median_trace(traces), trace.header
        trace.header = header
    except Error as error:
        _say(f"the last step stands for all: {error}")
    figures = run.report()
    with open(path + ".json", "w", encoding="utf-8") as file:
        json.dump(figures, file)
    trace._save(path)


def _share(options: "Options", recording: Recording) -> str:
    try:
        percent = float(options.gpu_memory[:-1])
    except ValueError:
        percent = 0.0
    if not 0 < percent <= 1000:
        raise Error(f"--gpu-memory: '{options.gpu_memory}' is no size and no percentage of the program's peak, such as "
                    "8GiB or 50%")
    size = int(recording.peak_bytes * percent / 100)
    _say(f"--gpu-memory: {options.gpu_memory} of {_size(recording.peak_bytes)} alive at once is {_size(size)}" +
         (f"; the largest op, {recording.largest_op}, needs {_size(recording.largest_op_bytes)}"
          if recording.largest_op else ""))
    return f"{size}B"


def _peak(trace: _core.Trace) -> int:
    from ._commands import info
    return int(info(trace)["peak_demand"]["bytes"])


def _prepare(arguments: argparse.Namespace, options: "Options") -> "Live":
    """Settles what the options leave open, and predicts if that is asked for."""
    from . import _computer
    from ._live import Live
    script = [arguments.script] + arguments.arguments
    predicting = arguments.predict or bool(arguments.prediction)
    share = options.gpu_memory.endswith("%")
    checked = dataclasses.replace(options, gpu_memory="" if share else options.gpu_memory).check()
    recording = None
    if predicting or share:
        if arguments.trace:
            trace = _core.Trace._load(arguments.trace)
            recording = Recording(trace, _peak(trace))
        else:
            recording = _record(checked, script)
    if share:
        checked = dataclasses.replace(checked, gpu_memory=_share(options, recording))
    if not predicting:
        return Live(checked)
    # With a budget for the whole process, what is taken at the first parameter is a guess: what is taken now.
    setting = checked.setting(_computer.resident_bytes())
    with tempfile.TemporaryDirectory(prefix="tencache-") as folder:
        file = arguments.prediction or os.path.join(folder, "prediction.json")
        predicted = _core.LivePrediction(setting, recording.trace, file)
    _say(f"predicted: {predicted.seconds:.3f} s a step" if predicted.fits else
         f"predicted not to fit: {predicted.misfit}")
    return Live(checked, predicted)


# ---- The run ---------------------------------------------------------------------------------------------------------


def _report(run: "Live", options: "Options") -> None:
    figures = run.report()
    if not figures:
        _say("nothing was paged: the script made no parameter")
        return
    text = run.answer_text()
    if text:
        sys.stderr.write(text if text.endswith("\n") else text + "\n")
    lines = [f"{_size(figures['peak_bytes'])} alive at once in {_size(figures['gpu_memory_bytes'])}; the largest op, "
             f"{figures['largest_op']}, needs {_size(figures['largest_op_bytes'])}: the least --gpu-memory "
             "that will do"]
    lines.append(f"the process used {_size(figures['process_bytes'])} at most")
    if options.memory and figures["process_bytes"] > _core.parse_bytes(options.memory):
        over = figures["process_bytes"] - _core.parse_bytes(options.memory)
        lines[-1] += f", {_size(over)} more than --memory: keep more with --reserve"
    if figures["bytes_left_in_files"]:
        lines.append(f"{_size(figures['bytes_left_in_files'])} were read from the files that they were loaded from")
    if figures["unadopted_bytes"]:
        lines.append(f"left alone, as others may share their memory: {_size(figures['unadopted_bytes'])}")
    if figures["split_ops"]:
        lines.append(f"{figures['split_ops']} ops on lists of tensors ran in groups")
    if figures["faults"]:
        lines.append(f"{figures['faults']} times code outside of ops touched a tensor that was not there")
    for place, count in list(figures["exposed_at"].items())[:5]:
        lines.append(f"  {place} asked for the addresses of tensors, {count} times")
    for line in lines:
        _say(line)


def _execute(run: "Live", arguments: argparse.Namespace) -> None:
    sys.argv = [arguments.script] + arguments.arguments
    sys.path[0] = os.path.dirname(os.path.abspath(arguments.script))
    run.start()
    runpy.run_path(arguments.script, run_name="__main__")


def main(words: Optional[List[str]] = None) -> None:
    arguments = _parser().parse_args(words)
    try:
        from ._live import Live, Options
    except ImportError as error:
        if error.name not in ("torch", "numpy"):
            raise
        sys.exit(f"tencache: run python needs PyTorch in this Python ({sys.executable}): {error}")
    try:
        options = Options(policy=arguments.policy, machine=arguments.machine, memory=arguments.memory,
                          reserve=arguments.reserve, gpu_memory=arguments.gpu_memory, cpu_memory=arguments.cpu_memory,
                          limits=arguments.limit, directories=arguments.directory, settings=_settings(arguments.set),
                          pace=arguments.pace, timeline=arguments.timeline, program=arguments.script)
        if not os.path.isfile(arguments.script):
            raise Error(f"{arguments.script}: no such file")
        run = _prepare(arguments, options)
    except Error as error:
        sys.exit(f"tencache: {error}")
    traces: List[_core.Trace] = []
    if arguments.recording:
        run.record_all = True
        traces, run.on_boundary = _recorder(run, arguments.recording)
    try:
        _execute(run, arguments)
    finally:
        run.finish()
        trace = run.recorded()
        if arguments.recording and (traces or trace is not None):
            _write_recording(run, traces or [trace], arguments.recording)
        if arguments.record and trace is not None:
            trace._save(arguments.record)
        elif arguments.record:
            _say(f"{arguments.record} is not written: the second step was not over")
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump({**run.answer(), "live": run.report()}, file, indent=2)
                file.write("\n")
        if not arguments.recording:
            _report(run, options)
