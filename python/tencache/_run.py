"""`tencache run python`: a PyTorch script, as it is, with its tensors paged."""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
from typing import Any, List, Optional, Sequence

from ._core import Error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tencache run python", formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="tencache run python [OPTIONS] -- SCRIPT [ARGUMENTS…]",
        description="Run a PyTorch script as it is, with its tensors paged by a policy.",
        epilog="The script is not changed: results are those of PyTorch alone, bit for bit.\n\nExamples:\n"
               "  tencache run python --gpu-memory 8GiB -- train.py --epochs 1\n"
               "  tencache run python -p lru --gpu-memory 2GiB --cpu-memory 4GiB --directory /mnt/nvme -- train.py")
    parser.add_argument("--policy", "-p", default="foresight", metavar="NAME",
                        help="a name of `tencache policies` (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an option of the policy")
    parser.add_argument("--machine", "-m", default="small-host", metavar="FILE",
                        help="a name of `tencache machines`, or a YAML file (default: %(default)s)")
    parser.add_argument("--gpu-memory", default="", metavar="SIZE",
                        help="memory that tensors may use at a time, such as 8GiB (default: the machine's)")
    parser.add_argument("--cpu-memory", default="", metavar="SIZE", help="CPU memory beside it")
    parser.add_argument("--limit", action="append", default=[], metavar="LINK=BANDWIDTH",
                        help="another bandwidth of a link, such as nvme_read=2GB/s")
    parser.add_argument("--directory", action="append", default=[], metavar="FOLDER",
                        help="for the files of NVMe tiers (default: the machine's, else /var/tmp)")
    parser.add_argument("--no-pace", action="store_true",
                        help="copies go as fast as this computer can, instead of as fast as the machine's links")
    parser.add_argument("--record", metavar="TRACE", help="write the second step as a trace (.trace.jsonl)")
    parser.add_argument("--json", metavar="FILE", help="write the figures at the end to this file")
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


def _mib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def _say(figures: dict) -> None:
    seconds = sorted(figures["step_seconds"][2:])
    lines = [f"{len(figures['step_seconds'])} steps" +
             (f", {seconds[len(seconds) // 2]:.3f} s each (median from the third on)" if seconds else "")]
    lines.append(f"{_mib(figures['peak_bytes'])} alive at once in {_mib(figures['gpu_memory_bytes'])}; the largest op, "
                 f"{figures['largest_op']}, needs {_mib(figures['largest_op_bytes'])}: the least that will do")
    moved = ", ".join(f"{name} {_mib(size)}" for name, size in figures["link_bytes"].items() if size)
    lines.append(f"moved: {moved or 'nothing'}")
    if figures["unadopted_bytes"]:
        lines.append(f"left alone, as others may share their memory: {_mib(figures['unadopted_bytes'])}")
    if figures["faults"]:
        lines.append(f"{figures['faults']} times code outside of ops touched a tensor that was not there")
    if figures["deviations"]:
        lines.append(f"{figures['deviations']} times the program left its recorded order; first: "
                     f"{figures['first_deviation']}")
    for line in lines:
        print("tencache: " + line, file=sys.stderr)


def main(words: Optional[List[str]] = None) -> None:
    options = _parser().parse_args(words)
    try:
        from ._live import live
    except ImportError as error:
        if error.name not in ("torch", "numpy"):
            raise
        sys.exit(f"tencache: run python needs PyTorch in this Python ({sys.executable}): {error}")
    try:
        run = live(options.policy, machine=options.machine, gpu_memory=options.gpu_memory,
                   cpu_memory=options.cpu_memory, limits=options.limit, directories=options.directory,
                   settings=_settings(options.set), pace=not options.no_pace)
    except Error as error:
        sys.exit(f"tencache: {error}")
    sys.argv = [options.script] + options.arguments
    sys.path[0] = os.path.dirname(os.path.abspath(options.script))
    run.start()
    try:
        runpy.run_path(options.script, run_name="__main__")
    finally:
        run.finish()
        if options.record:
            _record(run, options.record)
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(run.report(), file, indent=2)
                file.write("\n")
        _say(run.report())


def _record(run: Any, path: str) -> None:
    trace = run.recorded()
    if trace is None:
        print(f"tencache: {path} is not written: the second step was not over", file=sys.stderr)
    else:
        trace._save(path)
