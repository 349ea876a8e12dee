"""The `tencache` command, which models the durations of GPUs and reads other tools' recordings."""

import importlib.util
import shutil
import sys


def find_command():
    """The words that start it; None where it is not installed. The package of this Python has it even where the folder
    of its scripts is not on the PATH."""
    path = shutil.which("tencache")
    if path is not None:
        return [path]
    package = importlib.util.find_spec("tencache")
    return [sys.executable, "-m", "tencache"] if package is not None else None
