"""What can be learnt from a program's live objects: its model, what each storage is, what it was given."""

import gc

import torch

from . import _experts

# Modules that only wrap another, and the name that they give it.
_WRAPPERS = {"DataParallel": "module", "DistributedDataParallel": "module", "OptimizedModule": "_orig_mod"}


def storage_address(tensor):
    """Where the C++ object of the tensor's storage is; None for a tensor without one."""
    try:
        storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage().untyped()
        return storage._cdata
    except (RuntimeError, ValueError, NotImplementedError, AttributeError):  # sparse, lazy and other tensors
        return None


def storage_bytes(tensor):
    storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage().untyped()
    return storage.nbytes()


def unwrap(module):
    while type(module).__name__ in _WRAPPERS:
        module = getattr(module, _WRAPPERS[type(module).__name__])
    return module


def live(*kinds):
    """The live objects of these types."""
    # By type(): isinstance would ask proxies for the class of what they stand for.
    return [candidate for candidate in gc.get_objects() if issubclass(type(candidate), kinds)]


def _elements(module, of=None):
    """Of all parameters that are there and, with `of`, among those."""
    total = 0
    for parameter in module.parameters():
        if of is None or id(parameter) in of:
            try:
                total += parameter.numel()
            except (RuntimeError, ValueError):  # lazy modules make theirs in the first forward
                pass
    return total


def find_program():
    """(models, optimizers): the modules that are no part of others, those first whose parameters an optimizer updates,
    and the optimizers. Looks at every object of the process: a matter of some tenths of a second."""
    gc.collect()  # models that nobody has any more
    found = live(torch.nn.Module, torch.optim.Optimizer)
    modules = []
    for module in found:
        if isinstance(module, torch.nn.Module):
            try:
                modules.append((module, list(module.children())))
            except AttributeError:  # made, but not initialised
                pass
    optimizers = [optimizer for optimizer in found
                  if isinstance(optimizer, torch.optim.Optimizer) and getattr(optimizer, "param_groups", None)]
    children = {id(child) for _, below in modules for child in below}
    roots = {id(unwrap(module)): unwrap(module) for module, _ in modules if id(module) not in children}
    trained = {id(parameter) for optimizer in optimizers for group in optimizer.param_groups
               for parameter in group["params"]}
    models = sorted(roots.values(), key=lambda root: (-_elements(root, trained), -_elements(root)))
    return models, optimizers


def is_sharded(models):
    names = {kind.__name__ for model in models for module in model.modules() for kind in type(module).__mro__}
    return not names.isdisjoint({"FullyShardedDataParallel", "FSDPModule"})


def trained_sets(optimizers):
    """The sets of parameters that are updated together: a wrapper's and that of the optimizer in it are one."""
    return {frozenset(id(parameter) for group in optimizer.param_groups for parameter in group["params"])
            for optimizer in optimizers}


def module_names(models):
    """The name of each module, by its id: as PyTorch has it within the first model, with the class before it in
    others. Names that PyTorch's own wrappers put before are left out."""
    names = {}
    for position, model in enumerate(models):
        prefix = "" if position == 0 else type(model).__name__
        for name, module in model.named_modules():
            parts = [part for part in name.split(".") if part not in ("_orig_mod", "_checkpoint_wrapped_module",
                                                                     "_fsdp_wrapped_module")]
            names.setdefault(id(module), ".".join([part for part in [prefix] + parts if part]))
    return names


class Roles:
    """What each storage is: address -> (role, name, bytes). The first that claims a storage has it."""

    def __init__(self, keep_tensors):
        self.of = {}
        self.tensors = {} if keep_tensors else None  # address -> the tensor that claimed it

    def claim(self, tensor, role, name):
        if not isinstance(tensor, torch.Tensor):
            return
        tensor = getattr(tensor, "_local_tensor", tensor)  # of a sharded tensor, what this rank has
        address = storage_address(tensor)
        if address is not None and storage_bytes(tensor) > 0:
            self.of.setdefault(address, (role, name, storage_bytes(tensor), tensor.device.type))
            if self.tensors is not None:
                self.tensors.setdefault(address, tensor)


def find_roles(models, optimizers, keep_tensors=False):
    """Parameters by walking the models, masters and states by walking the optimizers, gradients by either."""
    roles = Roles(keep_tensors)
    name_of = {}
    experts = _experts.blocks_of(models, module_names(models))
    trained = {id(parameter) for optimizer in optimizers for group in optimizer.param_groups
               for parameter in group["params"]}
    for position, model in enumerate(models):
        prefix = "" if position == 0 else type(model).__name__ + "."
        for name, parameter in model.named_parameters():
            for wrapper in ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."):
                name = name.replace(wrapper, "")
            name = prefix + name
            name_of.setdefault(id(parameter), name)
            # An optimizer updates all experts, whichever are chosen.
            chosen = experts and id(parameter) not in trained and _experts.within(name.rpartition(".")[0], experts)
            roles.claim(parameter, "expert" if chosen else "parameter", name)
        for name, buffer in model.named_buffers():
            if buffer.numel() == 1:
                continue  # how many batches there were
            roles.claim(buffer, "input", prefix + name)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in name_of:
                    name_of[id(parameter)] = f"master.{len(name_of)}"
                    roles.claim(parameter, "master_parameter", name_of[id(parameter)])
                for key, value in optimizer.state.get(parameter, {}).items():
                    if isinstance(value, torch.Tensor) and value.numel() == 1:
                        continue  # how many steps there were
                    roles.claim(value, "optimizer_state", f"{name_of[id(parameter)]}.{key}")
                roles.claim(parameter.grad, "gradient", name_of[id(parameter)] + ".grad")
    for model in models:
        for parameter in model.parameters():
            roles.claim(parameter.grad, "gradient", name_of[id(parameter)] + ".grad")
    return roles


def device_of(models):
    """The type of the device that holds most of the parameters."""
    bytes_on = {}
    for model in models:
        for parameter in model.parameters():
            kind = parameter.device.type
            bytes_on[kind] = bytes_on.get(kind, 0) + parameter.numel() * parameter.element_size()
    return max(bytes_on, key=bytes_on.get) if bytes_on else ("cuda" if torch.cuda.is_available() else "cpu")


_PRECISIONS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}


def precision_of(models):
    """That of autocast where it is on, else of most parameters."""
    if hasattr(torch, "get_autocast_dtype"):
        kind = device_of(models)
        if kind != "meta" and torch.is_autocast_enabled(kind):
            return _PRECISIONS.get(torch.get_autocast_dtype(kind), "")
    elif torch.is_autocast_enabled():
        return _PRECISIONS.get(torch.get_autocast_gpu_dtype(), "")
    elif torch.is_autocast_cpu_enabled():
        return _PRECISIONS.get(torch.get_autocast_cpu_dtype(), "")
    elements = {}
    for model in models:
        for parameter in model.parameters():
            elements[parameter.dtype] = elements.get(parameter.dtype, 0) + parameter.numel()
    return _PRECISIONS.get(max(elements, key=elements.get), "") if elements else ""


def hardware_name(kind):
    if kind == "cuda":
        return torch.cuda.get_device_name()
    if kind == "cpu":
        try:
            with open("/proc/cpuinfo", encoding="utf-8") as info:
                for line in info:
                    if line.startswith("model name"):
                        return line.split(":", 1)[1].strip()
        except OSError:
            pass
    return ""


def batch_of(args, kwargs):
    """(batch, sequence length) of what a model's forward gets: two dimensions of token ids, else the first dimension of
    the first tensor."""
    tensors = [value for value in list(kwargs.values()) + list(args) if isinstance(value, torch.Tensor)]
    for tensor in ([kwargs["input_ids"]] if isinstance(kwargs.get("input_ids"), torch.Tensor) else tensors):
        if tensor.dim() == 2 and not tensor.is_floating_point():
            return tensor.shape[0], tensor.shape[1]
    return (tensors[0].shape[0], 0) if tensors and tensors[0].dim() > 0 else (0, 0)
