"""Which modules of a program are experts, and which chooses among them.

A *block* has experts, of which each token uses a few: those that its router chooses. In Mixtral, Qwen-MoE, DeepSeek,
OLMoE and others it has a child `gate` or `router`, and a ModuleList `experts`; mark() says so of another one.
"""

import torch

_ROUTERS = ("gate", "router", "gating")
_MARK = "_tencache_experts"

chosen = []  # functions of a block and the numbers of the experts that it has just chosen, in ascending order


def mark(block, experts):
    """The block, a module, chooses among these modules, which are parts of it."""
    experts = list(experts)
    names = {id(part): name for name, part in block.named_modules()}
    for expert in experts:
        name = names.get(id(expert), "")
        if not name.rpartition(".")[2].isdigit():
            raise ValueError(f"an expert ({name or type(expert).__name__}) is not in a ModuleList of the block "
                             f"({type(block).__name__}): traces tell experts apart by their numbers there")
    setattr(block, _MARK, [names[id(expert)] for expert in experts])


def names_of(block):
    """Of its experts, in order, after its own name and a dot: "experts.3"; empty: it is no block."""
    marked = getattr(block, _MARK, None)
    if marked is not None:
        return marked
    children = dict(block.named_children())
    experts = children.get("experts")
    if experts is None or children.keys().isdisjoint(_ROUTERS):
        return []
    parts = [name for name, part in experts.named_children() if next(part.parameters(), None) is not None]
    return [f"experts.{name}" for name in parts] if len(parts) > 1 and all(map(str.isdigit, parts)) else []


def blocks_of(models, names):
    """{name of an expert: name of its block}. `names`: of modules, by their ids."""
    found = {}
    for model in models:
        for module in model.modules():
            block = names.get(id(module), "")
            for expert in names_of(module):
                found[f"{block}.{expert}" if block else expert] = block
    return found


def is_choice(scores, experts):
    """Whether the largest of these, by their last dimension, may be a choice among so many experts."""
    return not torch.is_grad_enabled() and scores.dim() > 0 and scores.shape[-1] == experts


def within(module, experts):
    """The one of the experts (a set of names) that the module is, or is a part of; or None."""
    while module and module not in experts:
        module = module.rpartition(".")[0]
    return module or None
