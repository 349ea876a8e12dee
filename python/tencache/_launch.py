"""`tencache run python`: a PyTorch script, as it is, with its tensors paged.

Imports neither NumPy nor PyTorch: they read the environment when they are loaded (OPENBLAS_NUM_THREADS, say), and a
script may set it before. The live run begins when the script has imported PyTorch.
"""

from __future__ import annotations

import argparse
import builtins
import os
import runpy
import sys
import types
from typing import TYPE_CHECKING, Callable, List, Optional

from ._after_import import after_import

if TYPE_CHECKING:
    from ._run import Session


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tencache run python", formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="tencache run python [OPTIONS] -- SCRIPT [ARGUMENTS…]",
        description="Run a PyTorch script as it is, with its tensors paged by a policy.",
        epilog="The script is not changed: results are those of PyTorch alone, bit for bit.\n\n"
               "With --predict, or a --gpu-memory that is a share, a few steps of the script run first, in a process\n"
               "of their own whose output is not shown: what the script writes to files in them is written twice.\n\n"
               "Under torchrun (`torchrun --nproc-per-node 2 -m tencache run python … -- train.py`) each rank has a run\n"
               "of its own, and its part of memory and disks. CPU memory that one does not need others may have, and\n"
               "paced copies share links as the machine says. Rank 0 reports; files of other ranks are named like\n"
               "result.rank1.json.\n\n"
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
    parser.add_argument("--gpu-allocator", default="", choices=["exact", "movable"],
                        help="how a GPU's memory is laid out: mapped chunk by chunk (exact), or once, with tensors "
                             "that are moved (movable, the default)")
    parser.add_argument("--run-ahead", default="", metavar="OPS",
                        help="on a GPU with movable memory: ops that the script may be ahead of it; 0: each is "
                             "waited for (default: the machine's, else 256; 0 with --limit, --pace and --faults)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"],
                        help="whose tensors are paged (default: %(default)s)")
    parser.add_argument("--machine", "-m", default="", metavar="FILE",
                        help="a name of `tencache machines`, or a YAML file (default: this computer, measured once)")
    parser.add_argument("--limit", action="append", default=[], metavar="LINK=BANDWIDTH",
                        help="another bandwidth of a link, such as nvme_read=2GB/s")
    parser.add_argument("--directory", action="append", default=[], metavar="FOLDER",
                        help="for the files of NVMe tiers (default: the machine's, else /var/tmp)")
    parser.add_argument("--pace", action=argparse.BooleanOptionalAction, default=None,
                        help="copies go as fast as the machine's links (default with --machine, but not where the "
                             "script is ahead of a GPU), or as this computer can")
    parser.add_argument("--predict", action="store_true",
                        help="simulate the run first, and compare at the end")
    parser.add_argument("--prediction", default="", metavar="FILE", help="the prediction's file; implies --predict")
    parser.add_argument("--trace", default="", metavar="TRACE",
                        help="a recording of the script (of --record, or another) to predict from, in place of a "
                             "new one")
    parser.add_argument("--plan", default="", metavar="FILE",
                        help="recompute what this plan of `tencache tune --plan` says, as tencache.checkpoint() would")
    parser.add_argument("--timeline", default="", metavar="FILE",
                        help="write the timeline, the predicted one above it (.json, for https://ui.perfetto.dev); "
                             "`tencache gui FILE` follows it while the script runs")
    parser.add_argument("--optimizer-tasks", action="store_true",
                        help="run the updates of Adam, AdamW and SGD as tasks, which the policy may place on the CPU's "
                             "lane, beside the script; same bits, or left to PyTorch with a remark")
    parser.add_argument("--sleep", action=argparse.BooleanOptionalAction, default=True,
                        help="once the schedule is known, let ops run unwatched as long as all tensors fit (default); "
                             "--no-sleep watches each op, so that it counts in the report")
    parser.add_argument("--ranks-share", default="", metavar="NAME",
                        help="the name under which ranks on one computer share CPU memory, disks and links (default: "
                             "from the variables that torchrun sets; none: each keeps to its part)")
    parser.add_argument("--faults", default="", metavar="PLAN",
                        help="make things go wrong by this plan, such as seed=7 (a mixture drawn from the seed) or "
                             "seed=7,copy_error=0.01,delay=0.05:2ms (docs/reliability.md)")
    parser.add_argument("--record", default="", metavar="TRACE", help="write the second step as a trace (.trace.jsonl)")
    parser.add_argument("--json", default="", metavar="FILE", help="write the figures at the end to this file")
    # Of our own: record, and end there; ops on lists element by element.
    parser.add_argument("--recording", default="", help=argparse.SUPPRESS)
    parser.add_argument("--one-by-one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("script", metavar="SCRIPT",
                        help="a file; as for python3 also -m MODULE, -c COMMAND, or - for standard input")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="of the script")
    return parser


def _run_text(text: str, name: str) -> None:
    main_module = types.ModuleType("__main__")
    main_module.__builtins__ = builtins  # type: ignore[attr-defined]
    sys.modules["__main__"] = main_module
    exec(compile(text, name, "exec"), main_module.__dict__)


def _script(arguments: argparse.Namespace) -> Callable[[], None]:
    """What runs it; sys.argv and sys.path are as python3 would have them."""
    script, rest = arguments.script, arguments.arguments
    if script in ("-m", "-c") and not rest:
        sys.exit(f"tencache: {script}: give {'a module' if script == '-m' else 'a command'} after it")
    if script == "-m":
        sys.argv, sys.path[0] = rest[:], os.getcwd()
        return lambda: runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    if script == "-c":
        sys.argv, sys.path[0] = ["-c"] + rest[1:], ""
        return lambda: _run_text(rest[0], "<string>")
    if script == "-":
        sys.argv, sys.path[0] = ["-"] + rest, ""
        arguments.text = sys.stdin.read()
        return lambda: _run_text(arguments.text, "<stdin>")
    if not os.path.isfile(script):
        sys.exit(f"tencache: {script}: no such file")
    sys.argv, sys.path[0] = [script] + rest, os.path.dirname(os.path.abspath(script))
    return lambda: runpy.run_path(script, run_name="__main__")


def main(words: Optional[List[str]] = None) -> None:
    arguments = _parser().parse_args(words)
    run_script = _script(arguments)
    session: Optional[Session] = None

    def begin() -> None:
        nonlocal session
        from ._run import Session
        session = Session(arguments, new_program)

    new_program = "torch" not in sys.modules
    if new_program:
        after_import("torch", begin)
    else:
        begin()
    try:
        run_script()
    except BaseException as error:
        if session is not None:
            session.failed(error)
        raise
    finally:
        if session is not None:
            session.end()
    if session is None:
        print("tencache: nothing was paged: the script did not import torch", file=sys.stderr)
