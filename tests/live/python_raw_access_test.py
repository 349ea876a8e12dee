"""Code outside PyTorch's ops that touches paged tensors: each kind in a run of its own, with the tensor evicted."""

import copy
import ctypes
import faulthandler
import gc
import io
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

ELEMENTS = 1 << 16


class Case:
    """A paged tensor that counts up, beside others that together take all of the memory."""

    def __init__(self, run):
        import numpy
        import torch
        torch.set_num_threads(1)
        self.torch, self.run = torch, run
        self.tensor = torch.nn.Parameter(torch.arange(ELEMENTS, dtype=torch.float32).reshape(256, 256))
        self.others = [torch.nn.Parameter(torch.zeros(ELEMENTS)) for _ in range(6)]
        self.expected = numpy.arange(ELEMENTS, dtype=numpy.float32).reshape(256, 256)
        self.evict()

    def evict(self):
        with self.torch.no_grad():
            for other in self.others * 2:
                other.add_(0)

    def clean(self):
        """Brings it in, so that it has a valid copy below, too."""
        self.evict()
        self.tensor.detach().sum().item()

    def same(self, array):
        assert (array == self.expected).all()


def numpy(case):
    view = case.tensor.detach().numpy()
    case.same(view)
    case.evict()
    case.same(view)


def numpy_write(case):
    view = case.tensor.detach().numpy()
    view[5, 5] = -1
    case.evict()
    assert case.tensor[5, 5].item() == -1
    view[6, 6] = -2
    case.evict()
    assert view[6, 6] == -2 and case.tensor[6, 6].item() == -2


def write_to_a_clean_tensor(case):
    case.clean()
    view = case.tensor.detach().numpy()
    view[7, 7] = -7
    case.evict()
    assert case.tensor[7, 7].item() == -7
    case.clean()
    view[8, 8] = -8
    case.evict()
    assert case.tensor[8, 8].item() == -8


def write_by_address(case):
    address = case.tensor.data_ptr()
    case.clean()
    ctypes.memset(address + 4, 0, 4)
    case.evict()
    assert case.tensor[0, 1].item() == 0
    assert ctypes.string_at(address, 4 * ELEMENTS)[8:] == case.expected.tobytes()[8:]


def tolist(case):
    assert case.tensor.tolist() == case.expected.tolist()


def array(case):
    import numpy as np
    case.same(np.asarray(case.tensor.detach()))


def pickled(case):
    case.same(pickle.loads(pickle.dumps(case.tensor)).detach().numpy())


def saved(case):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tensors.pt")
        case.torch.save({"tensor": case.tensor}, path)
        case.evict()
        case.same(case.torch.load(path)["tensor"].detach().numpy())


def saved_to_memory(case):
    buffer = io.BytesIO()
    case.torch.save(case.tensor, buffer)
    buffer.seek(0)
    case.same(case.torch.load(buffer).detach().numpy())


def saved_in_the_legacy_format(case):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tensors.pt")
        case.torch.save({"tensor": case.tensor}, path, _use_new_zipfile_serialization=False)
        case.evict()
        case.same(case.torch.load(path)["tensor"].detach().numpy())


def _temporary_file(case, write):
    """What is in a file after `write(file, view of the evicted tensor)`."""
    view = case.tensor.detach().numpy()
    case.evict()
    with tempfile.TemporaryFile(buffering=0) as file:
        write(file, view)
        file.seek(0)
        return file.read()


def system_calls_that_write(case):
    """The kernel is given the address of a tensor that is not there."""
    expected = case.expected.tobytes()
    for write in (lambda file, view: view.tofile(file), lambda file, view: file.write(view),
                  lambda file, view: os.pwrite(file.fileno(), view, 0),
                  lambda file, view: os.writev(file.fileno(), [b"", view])):
        assert _temporary_file(case, write) == expected


def system_calls_that_read(case):
    import numpy as np
    view = case.tensor.detach().numpy()
    with tempfile.TemporaryFile(buffering=0) as file:
        (case.expected + 1).tofile(file)
        for read in (lambda: file.readinto(view), lambda: os.readv(file.fileno(), [view])):
            view[:] = 0
            case.clean()
            file.seek(0)
            assert read() == view.nbytes
            case.evict()
            assert (case.tensor.detach().numpy() == case.expected + 1).all()
    assert isinstance(view, np.ndarray)


def system_calls_that_stop_in_the_middle(case):
    """The kernel does what comes before the tensor, and no more."""
    view = case.tensor.detach().numpy()
    assert _temporary_file(case, lambda file, view: os.writev(file.fileno(), [b"head", view, b"tail"])) == \
        b"head" + case.expected.tobytes() + b"tail"
    head, tail = bytearray(4), bytearray(4)
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(b"head" + (case.expected + 1).tobytes() + b"tail")
        file.seek(0)
        case.evict()
        assert os.readv(file.fileno(), [head, view, tail]) == view.nbytes + 8
    assert (head, tail) == (b"head", b"tail") and (view == case.expected + 1).all()
    reading, writing = os.pipe()  # which has no more yet: nobody waits for it
    os.write(writing, b"head")
    case.evict()
    assert os.readv(reading, [head, view]) == 4
    os.close(reading)
    os.close(writing)


def sockets(case):
    view = case.tensor.detach().numpy()
    ours, theirs = socket.socketpair()
    got = bytearray()
    thread = threading.Thread(target=lambda: [got.extend(part) for part in iter(lambda: theirs.recv(1 << 16), b"")])
    thread.start()
    case.evict()
    ours.sendall(view)
    ours.close()
    thread.join()
    theirs.close()
    assert bytes(got) == case.expected.tobytes()


def libraries_that_are_loaded_later(case):
    """Their calls are served as well."""
    source = """#include <unistd.h>
    long put(int file, const void* from, unsigned long bytes) { return write(file, from, bytes); }"""
    address = case.tensor.data_ptr()
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "put.so")
        subprocess.run(["cc", "-x", "c", "-shared", "-fPIC", "-o", library, "-"], input=source, text=True, check=True)
        put = ctypes.CDLL(library).put
        put.argtypes, put.restype = [ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong], ctypes.c_long
        case.tensor.data_ptr()  # the library gets it
        written = _temporary_file(case, lambda file, view: put(file.fileno(), address, view.nbytes))
        assert written == case.expected.tobytes()


def a_handler_that_is_installed_later(case):
    """Python's, of SIGSEGV: accesses go on being served, and what is nobody's is still reported."""
    view = case.tensor.detach().numpy()
    with tempfile.TemporaryFile() as report:
        faulthandler.enable(report)
        case.evict()
        case.same(view)
        child = os.fork()
        if child == 0:
            ctypes.string_at(8)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        faulthandler.disable()
        report.seek(0)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSEGV, status
        assert b"Segmentation fault" in report.read()
    case.evict()
    case.same(view)


def in_a_thread(case):
    sums = []
    thread = threading.Thread(target=lambda: sums.append((case.tensor.detach() * 0 + 1).sum().item()))
    thread.start()
    thread.join()
    assert sums == [ELEMENTS]


def vmap(case):
    mapped = getattr(case.torch, "vmap", None)
    if mapped is None:
        from functorch import vmap as mapped
    assert (mapped(lambda row: row * 2)(case.tensor.detach()).numpy() == case.expected * 2).all()


def function_in_numpy(case):
    torch = case.torch

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return torch.from_numpy(x.detach().numpy() * 2)

        @staticmethod
        def backward(ctx, gradient):
            return torch.from_numpy(gradient.numpy() * 2)

    Twice.apply(case.tensor).sum().backward()
    assert (case.tensor.grad.numpy() == 2).all()


def dlpack(case):
    other = case.torch.utils.dlpack.from_dlpack(case.torch.utils.dlpack.to_dlpack(case.tensor.detach()))
    case.evict()
    case.same(other.numpy())


def deep_copy(case):
    case.same(copy.deepcopy(case.tensor).detach().numpy())


def item_and_print(case):
    assert case.tensor[3, 3].item() == case.expected[3, 3]
    assert "255" in repr(case.tensor[0])


def custom_op_in_numpy(case):
    library = case.torch.library.Library("tencache_test", "DEF")
    library.define("put_(Tensor(a!) x) -> ()")
    library.impl("put_", lambda x: x.numpy().__setitem__((4, 4), -4), "CPU")
    case.clean()
    case.torch.ops.tencache_test.put_(case.tensor.detach())
    case.evict()
    assert case.tensor[4, 4].item() == -4


EXTENSION = """
#include <torch/csrc/autograd/python_variable.h>
static PyObject* put(PyObject*, PyObject* tensor) {
  static_cast<float*>(THPVariable_Unpack(tensor).mutable_data_ptr())[0] = -3;
  Py_RETURN_NONE;
}
static PyMethodDef methods[] = {{"put", put, METH_O, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "extension", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_extension() { return PyModule_Create(&module); }
"""


def extension_without_an_op(case):
    import sysconfig
    root = os.path.dirname(case.torch.__file__)
    include, libraries = os.path.join(root, "include"), os.path.join(root, "lib")
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "extension.cpp")
        with open(source, "w", encoding="utf-8") as file:
            file.write(EXTENSION if hasattr(case.torch, "compile") else EXTENSION.replace("mutable_data_ptr", "data_ptr"))
        command = ["c++", "-std=c++20", "-w", "-shared", "-fPIC", "-DNDEBUG", "-o", os.path.join(folder, "extension.so"),
                   f"-D_GLIBCXX_USE_CXX11_ABI={int(case.torch._C._GLIBCXX_USE_CXX11_ABI)}",
                   "-I" + sysconfig.get_paths()["include"], source]
        command += ["-I" + include, "-I" + os.path.join(include, "torch", "csrc", "api", "include")]
        command += ["-L" + libraries, "-Wl,-rpath," + libraries, "-ltorch_python", "-ltorch_cpu", "-lc10"]
        subprocess.run(command, check=True)
        sys.path.insert(0, folder)
        import extension
    case.run.step()  # looks for such modules
    case.clean()
    extension.put(case.tensor.detach())
    case.evict()
    assert case.tensor[0, 0].item() == -3


def out_of_memory(case):
    error = getattr(case.torch, "OutOfMemoryError", None) or case.torch.cuda.OutOfMemoryError
    try:
        case.torch.cat(case.others)
        raise AssertionError("it fits")
    except error as failure:
        assert "aten::cat" in str(failure) and "are missing" in str(failure) and "needs at least" in str(failure), \
            str(failure)
    case.same(case.tensor.detach().numpy())


def _child(work):
    """How a forked child ends, and what it says."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 2)
        try:
            work()
        except RuntimeError as error:
            os.write(2, str(error).encode())
            os._exit(5)
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as said:
        text = said.read()
    return os.WEXITSTATUS(os.waitpid(child, 0)[1]), text


def child_reads(case):
    view = case.tensor.detach().numpy()
    status, text = _child(lambda: view[0, 0] + 1)
    assert status == 1 and "was forked" in text, (status, text)


def child_calls_an_op(case):
    status, text = _child(lambda: case.tensor.detach().sum())
    assert status == 5 and "forked" in text, (status, text)


def child_has_its_own(case):
    status, text = _child(lambda: os._exit(0 if (case.torch.ones(1000) + 1).sum().item() == 2000 else 9))
    assert status == 0, (status, text)


CASES = (
    extension_without_an_op, numpy, numpy_write, write_to_a_clean_tensor, write_by_address, tolist, array, pickled,
    saved, saved_to_memory, saved_in_the_legacy_format, system_calls_that_write, system_calls_that_read,
    system_calls_that_stop_in_the_middle, sockets,
    libraries_that_are_loaded_later, a_handler_that_is_installed_later, in_a_thread, vmap, function_in_numpy, dlpack,
    deep_copy, item_and_print, custom_op_in_numpy, out_of_memory, child_reads, child_calls_an_op, child_has_its_own)


class RawAccess(unittest.TestCase):
    pass


def _add(case):
    def test(self):
        import tencache
        with tencache.live("on-demand", gpu_memory="1280KiB", pace=False, quiet=True) as run:
            case(Case(run))
        gc.collect()
    setattr(RawAccess, f"test_{case.__name__}", test)


for one in CASES:
    _add(one)

if __name__ == "__main__":
    unittest.main()
