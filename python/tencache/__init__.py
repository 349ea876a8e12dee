"""TenCache from Python: traces as NumPy arrays, simulations, policies written in Python.

    import tencache

    trace = tencache.generate(model="opt-6.7b", batch=16, seq=75, gpu="l40s")
    for row in tencache.compare(trace, "10cache-l40s"):
        print(row["policy"], row["iteration_seconds"])

Results are dicts with the fields that the `tencache` command prints with --json. docs/python.md has more.
"""

try:
    import numpy  # noqa: F401  of which the compiled part says nothing where it is missing
except ImportError as error:
    import sys

    raise ImportError(f"tencache needs NumPy, which this Python ({sys.executable}) has not: "
                      "pip install numpy") from error

from ._core import (
    ATTENTION_KERNELS,
    DETAIL_DTYPE,
    DEVICES,
    DURATION_SOURCES,
    EVENT_KINDS,
    KERNEL_DTYPE,
    KERNELS,
    NONE,
    OP_DTYPE,
    PHASES,
    ROLES,
    SPAN_KINDS,
    STALL_CAUSES,
    TENSOR_DTYPE,
    Error,
    Timeline,
    Trace,
)
from ._core import version as __version__
from ._commands import (
    bound,
    command,
    compare,
    endurance,
    explain,
    fit,
    generate,
    import_trace,
    info,
    load,
    machines,
    models,
    policies,
    replay,
    report,
    samples,
    save,
    sensitivity,
    simulate,
    sweep,
    tune,
)
from ._policy import Policy


def live(*args, **kwargs):
    """Pages the tensors of the PyTorch program in the `with` block: `help(tencache._live.live)` has the parameters."""
    from ._live import live as paged  # imports torch

    return paged(*args, **kwargs)


__all__ = [
    "ATTENTION_KERNELS",
    "DETAIL_DTYPE",
    "DEVICES",
    "DURATION_SOURCES",
    "EVENT_KINDS",
    "KERNELS",
    "KERNEL_DTYPE",
    "NONE",
    "OP_DTYPE",
    "PHASES",
    "ROLES",
    "SPAN_KINDS",
    "STALL_CAUSES",
    "TENSOR_DTYPE",
    "Error",
    "Policy",
    "Timeline",
    "Trace",
    "bound",
    "command",
    "compare",
    "endurance",
    "explain",
    "fit",
    "generate",
    "import_trace",
    "info",
    "live",
    "load",
    "machines",
    "models",
    "policies",
    "replay",
    "report",
    "samples",
    "save",
    "sensitivity",
    "simulate",
    "sweep",
    "tune",
    "__version__",
]
