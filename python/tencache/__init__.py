"""TenCache from Python: traces as NumPy arrays, simulations, policies written in Python.

    import tencache

    trace = tencache.generate(model="opt-6.7b", batch=16, seq=75, gpu="l40s")
    for row in tencache.compare(trace, "10cache-l40s"):
        print(row["policy"], row["iteration_seconds"])

Results are dicts with the fields that the `tencache` command prints with --json. docs/python.md has more.
"""

import importlib

# Imported when they are asked for: a program that is run live sets its environment before NumPy and PyTorch see it.
_NAMES = {
    "_core": (
        "ATTENTION_KERNELS", "DETAIL_DTYPE", "DEVICES", "DURATION_SOURCES", "EVENT_KINDS", "KERNEL_DTYPE",
        "KERNELS", "NONE", "OP_DTYPE", "PHASES", "ROLES", "SPAN_KINDS", "STALL_CAUSES", "STREAMS", "TENSOR_DTYPE",
        "Error", "Timeline", "Trace"),
    "_policy": ("Policy",),
    "_live": ("live",),
    "_checkpoint": ("checkpoint",),
    "_embedding_bag": ("EmbeddingBag",),
    "_experts": ("chose_experts", "mark_experts"),
    "_snapshot": ("import_snapshot",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name):  # of all others, the functions of _commands.py
    if name == "__all__":
        return [*_HOMES, *_module("_commands").__all__, "__version__"]
    if name == "__version__":
        return _module("_core").version
    home = _HOMES.get(name, "_commands")
    if name.startswith("_") or home == "_commands" and name not in _module(home).__all__:
        raise AttributeError(f"module 'tencache' has no attribute '{name}'")
    value = getattr(_module(home), name)
    globals()[name] = value
    return value


def _module(home):
    _check_numpy()
    return importlib.import_module("." + home, __name__)


def __dir__():
    return sorted([*globals(), *__getattr__("__all__")])


def _check_numpy():  # of which the compiled part says nothing where it is missing
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        import sys

        raise ImportError(f"tencache needs NumPy, which is not installed for this Python ({sys.executable}): "
                          "pip install numpy") from error
