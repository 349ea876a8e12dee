# What the package has, for those who read types; __init__.py imports it when it is asked for.
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
    STREAMS,
    TENSOR_DTYPE,
    Error,
    Timeline,
    Trace,
)
from ._core import version as __version__
from ._commands import *
from ._policy import Policy
from ._live import live
from ._checkpoint import checkpoint
from ._embedding_bag import EmbeddingBag
from ._experts import chose_experts, mark_experts
from ._snapshot import import_snapshot

__all__: list[str]
