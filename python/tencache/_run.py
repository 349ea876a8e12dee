"""A script that runs live (_launch.py), from its import of PyTorch to its end: what the command's options leave open, the
prediction, and the report."""

from __future__ import annotations

import argparse
import atexit
import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
from typing import Callable, List, Optional, Sequence, Tuple

from tencache_recorder import Recorded

from . import _computer, _core, _ranks
from ._commands import info
from ._core import Error
from ._live import Live, NoRoom, Options
from ._paging import Paging

_RECORDED_STEPS, _WARM_UP_STEPS = 5, 2  # of a recording
_STEPS_OF_EXPERTS = 16  # of one whose gates choose experts
_STEPS_FILE = ".steps"  # beside the trace: a byte for each step of a recording that is over
_KNOWN_SHARE = 0.9   # of ops; where fewer come as the policy expects, the report begins with that


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
    print("tencache: " + _ranks.say_first(text), file=sys.stderr)


# ---- Before the run --------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Recording:
    trace: _core.Trace
    peak_bytes: int
    largest_op: str = ""
    largest_op_bytes: int = 0


def _output_of(child: "subprocess.Popen[str]", text: str, steps_file: str) -> str:
    """All that it prints; meanwhile says which step it is at."""
    given: Optional[str] = text
    while True:
        try:
            return child.communicate(given, timeout=1)[0]
        except subprocess.TimeoutExpired:
            given = None
        if os.path.exists(steps_file):
            total = _WARM_UP_STEPS + _RECORDED_STEPS
            _core.doing(f"step {min(os.path.getsize(steps_file) + 1, total)} of {total}")


def _record(options: Options, script: List[str], text: str, share: bool) -> Recording:
    """A few steps in a process of their own, in the memory that the run will have, or that this computer has free.
    `text`: of a script that comes from standard input. `share`: how much memory the run will have is not known yet."""
    with tempfile.TemporaryDirectory(prefix="tencache-") as folder:
        trace = os.path.join(folder, "step.trace.jsonl")
        words = [sys.executable, "-m", "tencache", "run", "python", "-p", "lru", "--no-pace", "--recording", trace,
                 "--device", options.device, "--machine", options.machine]
        for directory in options.directories:
            words += ["--directory", directory]
        if options.gpu_allocator:
            words += ["--gpu-allocator", options.gpu_allocator]
        if options.run_ahead:
            words += ["--run-ahead", options.run_ahead]
        if options.optimizer_tasks:
            words.append("--optimizer-tasks")
        if options.plan:
            words += ["--plan", options.plan]
        if share:
            words.append("--one-by-one")
        if options.memory:
            words += ["--memory", options.memory] + (["--reserve", options.reserve] if options.reserve else [])
        elif options.gpu_memory and not options.gpu_memory.endswith("%"):
            words += ["--gpu-memory", options.gpu_memory]
        else:  # never without a limit
            words += ["--gpu-memory", f"{int(0.7 * _computer.free_bytes(options.device) / _ranks.count_here())}B"]
        _say(f"recording {_RECORDED_STEPS} steps of {script[0]}, after two that warm up")
        with options.patience(f"recording {script[0]}"), \
                subprocess.Popen(words + ["--", *script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, errors="replace",
                                 env=_ranks.environment_of_rehearsal()) as child:
            try:
                output = _output_of(child, text, trace + _STEPS_FILE)
            except BaseException:
                child.kill()
                raise
        if not os.path.exists(trace):
            sys.stderr.write("".join(line + "\n" for line in output.splitlines()[-30:]))
            raise Error(f"recording {script[0]} failed (exit code {child.returncode}; its last lines are above)")
        with open(trace + ".json", encoding="utf-8") as file:
            figures = json.load(file)
        return Recording(_core.Trace._load(trace), figures["peak_bytes"], figures["largest_op"],
                         figures["largest_op_bytes"])


def _recorder(run: Live, path: str) -> Tuple[List[_core.Trace], Callable[[], None]]:
    """Recorded traces, and what is called after each step: it writes the median of some, and leaves the script. The
    script's own blocks are left on the way, so that its temporary files go."""
    traces: List[_core.Trace] = []
    steps = os.open(path + _STEPS_FILE, os.O_CREAT | os.O_WRONLY, 0o600)

    def on_boundary() -> None:
        os.write(steps, b".")
        if run.steps > _WARM_UP_STEPS:
            traces.append(run.recorded_ops())
        if len(traces) < (_STEPS_OF_EXPERTS if run.chooses_experts() else _RECORDED_STEPS):
            return
        if os.path.exists(path):  # the script has caught what should leave it
            os._exit(0)
        traces[-1] = run.recorded_step() or traces[-1]
        _write_recording(run, traces, path)
        _ranks.leave_together()
        raise Recorded()
    return traces, on_boundary


def _seconds(step: _core.Trace) -> float:
    return float(step.ops["duration_ns"].sum() + step.ops["gap_before_ns"].sum()) / 1e9


def _write_recording(run: Live, traces: List[_core.Trace], path: str) -> None:
    trace = traces[-1]
    if run.chooses_experts():  # no two steps are alike
        median = sorted(traces, key=_seconds)[len(traces) // 2]
        median.header = trace.header
        trace = run.with_choices(median)
    else:
        try:
            median = _core.median_trace(traces)
            median.header, median.choices = trace.header, trace.choices
            trace = median
        except Error as error:
            _say(f"the last step stands for all: {error}")
    figures = run.report()
    with open(path + ".json", "w", encoding="utf-8") as file:
        json.dump(figures, file)
    trace._save(path)


def _share(options: Options, recording: Recording) -> str:
    try:
        percent = float(options.gpu_memory[:-1])
    except ValueError:
        percent = 0.0
    if not 0 < percent <= 1000:
        raise Error(f"--gpu-memory: '{options.gpu_memory}' is no size and no percentage of the program's peak, such as "
                    "8GiB or 50%")
    size = int(recording.peak_bytes * percent / 100)
    text = (f"--gpu-memory: {options.gpu_memory} of {_size(recording.peak_bytes)} alive at once is {_size(size)}" +
            (f"; the largest op, {recording.largest_op}, needs {_size(recording.largest_op_bytes)}"
             if recording.largest_op else ""))
    if size < recording.largest_op_bytes:
        raise Error(f"{text}: give {math.ceil(100 * recording.largest_op_bytes / recording.peak_bytes)}% or more")
    _say(text)
    return f"{size}B"


def _peak(trace: _core.Trace) -> int:
    return int(info(trace)["peak_demand"]["bytes"])


def _prepare(arguments: argparse.Namespace, options: Options) -> Live:
    """Settles what the options leave open, and predicts if that is asked for."""
    script = [arguments.script] + arguments.arguments
    text = getattr(arguments, "text", "")
    predicting = arguments.predict or bool(arguments.prediction)
    share = options.gpu_memory.endswith("%")
    if predicting and options.faults:
        raise Error("--faults excludes --predict: no prediction is of a run that is disturbed on purpose")
    checked = dataclasses.replace(options, gpu_memory="" if share else options.gpu_memory).check()
    recording = None
    if predicting or share:
        if arguments.trace:
            trace = _core.Trace._load(arguments.trace)
            recording = Recording(trace, _peak(trace))
        else:
            Paging.load(checked.device, checked.say, checked.patience)  # the recording's output is not shown
            recording = _record(checked, script, text, share)
    if share:
        checked = dataclasses.replace(checked, gpu_memory=_share(options, recording))
    if not predicting:
        return Live(checked)
    # With a budget for the whole process, what is taken at the first parameter is a guess: what is taken now.
    setting = checked.setting(_computer.resident_bytes())
    with checked.patience("predicting"):
        predicted = _core.LivePrediction(setting, recording.trace, arguments.prediction or "")
    _say(f"predicted: {predicted.seconds:.3f} s a step" if predicted.fits else
         f"predicted not to fit: {predicted.misfit}")
    return Live(checked, predicted)


# ---- The run ---------------------------------------------------------------------------------------------------------


def _process_line(figures: dict, options: Options) -> str:
    budget = _core.parse_bytes(options.memory) if options.memory else 0
    after, before = figures["process_bytes"], figures["process_bytes_before"]
    line = f"the process used {_size(max(after, before))} at most"
    if budget and after > budget:
        line += f", {_size(after - budget)} more than --memory: keep more with --reserve"
    elif budget and before > budget:
        line += (f", {_size(before - budget)} more than --memory, before its first parameter (what it imports), and "
                 f"{_size(after)} since")
    return line


def _report(run: Live, options: Options) -> None:
    figures = run.report()
    if not figures:
        _say("nothing was paged: the script made no parameter")
        return
    if not figures["started"]:
        _say("nothing was paged but parameters: the script called no model, and made no backward pass")
        _say(_process_line(figures, options))
        return
    known = figures["ops_on_schedule"] / figures["ops"] if figures["ops"] else 1
    if known < _KNOWN_SHARE:
        _say(f"the policy was blind for {100 * (1 - known):.0f} % of the ops, since the steps differ: what they need "
             f"was fetched when they asked for it (first in {figures['first_deviation'] or 'an evaluation'})")
    text = run.answer_text()
    if text:
        sys.stderr.write(text if text.endswith("\n") else text + "\n")
    lines = [f"{_size(figures['peak_bytes'])} alive at once in {_size(figures['gpu_memory_bytes'])}; the largest op, "
             f"{figures['largest_op']}, needs {_size(figures['largest_op_bytes'])}: " +
             ("of those that were watched; --no-sleep watches all" if figures["steps_asleep"] else
              "the least --gpu-memory that will do")]
    lines.append(_process_line(figures, options))
    if figures["bytes_left_in_files"]:
        lines.append(f"{_size(figures['bytes_left_in_files'])} were read from the files that they were loaded from")
    if figures["unadopted_bytes"]:
        lines.append(f"left alone, as others may share their memory: {_size(figures['unadopted_bytes'])}")
    if figures["split_ops"]:
        lines.append(f"{figures['split_ops']} ops on lists of tensors ran in groups")
    if figures["update_tasks"]:
        lines.append(f"{figures['update_tasks']} updates of optimizers ran as tasks")
    if figures["faults"]:
        lines.append(f"{figures['faults']} times code outside of ops touched a tensor that was not there")
    for place, count in list(figures["exposed_at"].items())[:5]:
        lines.append(f"  {place} asked for the addresses of tensors, {count} times")
    for line in lines:
        _say(line)


class Session:
    """The live run of a script that has just imported PyTorch. Ends the process with a message where it cannot be."""

    def __init__(self, arguments: argparse.Namespace, new_program: bool) -> None:
        """`new_program`: as Live.start()."""
        for name in ("json", "record", "prediction"):
            setattr(arguments, name, _ranks.own_file(getattr(arguments, name)))
        self._arguments = arguments
        self._options = Options(
            policy=arguments.policy, device=arguments.device, machine=arguments.machine, memory=arguments.memory, reserve=arguments.reserve,
            gpu_memory=arguments.gpu_memory, cpu_memory=arguments.cpu_memory, limits=arguments.limit,
            directories=arguments.directory, pace=arguments.pace, timeline=arguments.timeline,
            optimizer_tasks=arguments.optimizer_tasks, faults=arguments.faults, sleep=arguments.sleep,
            gpu_allocator=arguments.gpu_allocator, run_ahead=arguments.run_ahead,
            plan=arguments.plan, ranks_share=arguments.ranks_share, program=arguments.script,
            progress=not arguments.json)
        try:
            self._options.settings = _settings(arguments.set)
            self._run = _prepare(arguments, self._options)
        except Error as error:
            sys.exit("tencache: " + _ranks.say_first(str(error)))
        self._traces: List[_core.Trace] = []
        self._refused = False
        if arguments.recording:
            self._run.record_all = True
            self._run.list_elements(arguments.one_by_one)
            self._traces, self._run.on_boundary = _recorder(self._run, arguments.recording)
        self._run.start(new_program)

    def failed(self, error: BaseException) -> None:
        """What the script ended with. Ends the process where that was ours to say."""
        if isinstance(error, NoRoom):
            self._refused = True
            sys.exit("tencache: " + _ranks.say_first(str(error)))
        if isinstance(error, Recorded):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)  # threads of the script may wait for something that it would have done at its end

    def end(self) -> None:
        """The script is over, however it ended."""
        if self._refused:
            return
        arguments, run = self._arguments, self._run
        run.finish()
        trace = run.recorded()
        if arguments.recording and (self._traces or trace is not None):
            _write_recording(run, self._traces or [trace], arguments.recording)
        if arguments.record and trace is not None:
            trace._save(arguments.record)
        elif arguments.record:
            _say(f"{arguments.record} is not written: the second step was not over")
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump(run.answer() or {"live": run.report()}, file, indent=2)
                file.write("\n")
        if not arguments.recording and _ranks.rank() == 0:
            _report(run, self._options)
