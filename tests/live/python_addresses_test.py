"""Addresses of tensors that move, which code outside PyTorch has: the cases of python_raw_access_test.py that a GPU
has, too, on an arena of the driver of rules (tests/live/python_rules.cpp, in PYTHONPATH), and what is done on a GPU
only.
"""

import ctypes
import dataclasses
import operator
import os
import sys
import unittest

os.environ["TENCACHE_RULES_ARENA"] = "1"
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import python_raw_access_test as raw_access  # noqa: E402

# What faults are served for, system calls of what is not there, and children are left out; what is read without an op
# (`tolist`) is copied to the CPU by an op on a GPU.
CASES = ("numpy", "numpy_write", "write_to_a_clean_tensor", "write_by_address", "array", "pickled", "saved",
         "saved_to_memory", "saved_in_the_legacy_format", "sockets", "in_a_thread", "vmap", "function_in_numpy",
         "dlpack", "deep_copy", "item_and_print", "custom_op_in_numpy", "out_of_memory")


def asks(module, code):
    """What a module of that name does."""
    return eval(f"lambda tensors: {code}", {"__name__": module})


class OnAGpu:
    """In this block PyTorch's functions are replaced as for tensors on a GPU."""

    def __init__(self, run):
        self.run, self.options = run, run.options

    def __enter__(self):
        self.run._patches.undo()
        self.run.options = dataclasses.replace(self.options, device="cuda")
        self.run._patches.put()

    def __exit__(self, *_):
        self.run._patches.undo()
        self.run.options = self.options
        self.run._patches.put()


def exposed(case):
    return case.run.report()["exposed_tensors"]


def comparisons_pin_nothing(case):
    tensors = [other.detach() for other in case.others]
    with OnAGpu(case.run):
        for module, code in (("torch.nn.modules.rnn", "[tensor.data_ptr() for tensor in tensors]"),
                             ("safetensors.torch", "[tensor.data_ptr() for tensor in tensors]"),
                             ("torch.serialization", "[tensor.storage().data_ptr() for tensor in tensors]")):
            known = asks(module, code)(tensors)
            assert len(set(known)) == len(tensors)
            case.evict()
            assert asks(module, code)(tensors) == known, "the same wherever they are"
        view = tensors[2].view(256, 256)[3:]
        ask = asks("safetensors.torch", "[tensor.data_ptr() for tensor in tensors]")
        assert ask([view])[0] == ask([tensors[2]])[0] + 3 * 1024
    assert exposed(case) == 0


def addresses_pin(case):
    tensor = case.others[1]
    with OnAGpu(case.run):
        address = tensor.data_ptr()
        case.evict()
        assert tensor.data_ptr() == address and exposed(case) == 1
        ctypes.memset(address, 0, 4)
        other = case.others[2].detach().storage()
        place = (other.untyped() if hasattr(other, "untyped") else other).data_ptr()
        case.evict()
        assert case.others[2].data_ptr() == place and exposed(case) == 2


def libraries_pin(case):
    """As they ask: bitsandbytes for ctypes, Triton's launcher from C."""
    asking = (asks("bitsandbytes.functional", "[tensor.data_ptr() for tensor in tensors]"),
              lambda tensors: list(map(operator.methodcaller("data_ptr"), tensors)))
    with OnAGpu(case.run):
        for count, ask in enumerate(asking, 1):
            tensors = [case.others[count].detach()]
            address, = ask(tensors)
            case.evict()
            assert ask(tensors) == [address] and exposed(case) == count
            ctypes.memset(address, 0, 4)


def storages_are_told_apart(case):
    with OnAGpu(case.run):
        tensors = [case.tensor.detach(), *(other.detach().double() for other in case.others[:2])]
        case.evict()
        code = "[tensor.storage().data_ptr() for tensor in tensors]"
        assert len(set(asks("torch.serialization", code)(tensors))) == 3, "types are told apart by address"
    del tensors
    assert exposed(case) == 0


def other_processes(case):
    storage = case.tensor.detach().storage()
    storage = storage.untyped() if hasattr(storage, "untyped") else storage
    with OnAGpu(case.run):
        try:
            storage._share_cuda_()
            raise AssertionError("it was shared")
        except RuntimeError as error:
            assert "other processes" in str(error), error


class Addresses(unittest.TestCase):
    pass


def add(case, memory="1280KiB", order="b"):
    def test(self):
        import tencache
        with tencache.live("on-demand", gpu_memory=memory, pace=False, quiet=True) as run:
            case(raw_access.Case(run))
    setattr(Addresses, f"test_{order}_{case.__name__}", test)


for name in CASES:
    add(getattr(raw_access, name))
add(raw_access.extension_without_an_op, "4MiB", order="z")  # from then on all tensors of the process stay
# Before the others: memory whose address is known outside is never taken for paged, even after it was freed.
for one in (comparisons_pin_nothing, addresses_pin, libraries_pin, storages_are_told_apart, other_processes):
    add(one, order="a")

if __name__ == "__main__":
    unittest.main()
