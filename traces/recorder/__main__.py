"""python -m tencache_recorder [-o TRACE] [--step N] [--stop] SCRIPT [ARGUMENTS…]: records a script as it is."""

import argparse
import os
import runpy
import sys

from . import RecorderError, record


def _arguments(words):
    parser = argparse.ArgumentParser(
        prog="python -m tencache_recorder",
        description="Runs a PyTorch training script and records one of its steps as a TenCache trace.",
        epilog="Example: python -m tencache_recorder -o run.trace.jsonl --step 3 --stop train.py --epochs 1")
    parser.add_argument("-o", "--output", default="run.trace.jsonl", metavar="TRACE",
                        help=".trace.jsonl or .trace.jsonl.zst (default: %(default)s)")
    parser.add_argument("--step", type=int, default=2, help="the step to record, counted from 0 (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1,
                        help="how many in a row; ops get the median of their durations (default: %(default)s)")
    parser.add_argument("--optimizer-steps", type=int, default=1, metavar="N",
                        help="calls of an optimizer's step that make a training step (default: %(default)s)")
    parser.add_argument("--stop", action="store_true", help="end the script once the step is recorded")
    parser.add_argument("--profiler", action="store_true",
                        help="record with PyTorch's profiler instead of the observer")
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name, as of python -m")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="of the script")
    return parser.parse_args(words)


def main(words=None):
    options = _arguments(words)
    sys.argv = [options.script] + options.arguments
    try:
        with record(options.output, step=options.step, steps=options.steps, optimizer_steps=options.optimizer_steps,
                    stop=options.stop, library=not options.profiler):
            if options.module:
                runpy.run_module(options.script, run_name="__main__", alter_sys=True)
            else:
                sys.path.insert(0, os.path.dirname(os.path.abspath(options.script)))
                runpy.run_path(options.script, run_name="__main__")
    except RecorderError as error:
        sys.exit(f"tencache_recorder: {error}")


if __name__ == "__main__":
    main()
