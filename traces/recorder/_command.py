"""The `tencache` command, which models the durations of GPUs and reads other tools' recordings."""

import importlib.util
import pathlib
import shutil
import sys


def find_command():
    """The words that start it; None where it is not installed. The package of this Python has it even where the folder
    of its scripts is not on the PATH."""
    path = shutil.which("tencache")
    if path is not None:
        return [path]
    package = importlib.util.find_spec("tencache")  # a build folder has it too, without the command
    if package is None or package.origin is None or not (pathlib.Path(package.origin).parent / "bin/tencache").exists():
        return None
    return [sys.executable, "-m", "tencache"]
