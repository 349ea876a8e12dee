"""Traces as arrays: what goes in comes out, and nothing broken gets in."""

import os
import pickle
import tempfile
import unittest

import numpy as np

import tencache

SAMPLE = os.path.join(os.environ["TENCACHE_SOURCE_DIR"], "traces", "samples", "gpt-small.trace.jsonl.zst")


def step():
    """w is read forward and backward, updated in place; a is made and read; g is made and read."""
    trace = tencache.Trace(model="by hand", batch=2, sequence_length=8, precision="fp32")
    w = trace.add_tensor("w", 4096, "parameter", persistent=True)
    a = trace.add_tensor("a", 1024, "activation")
    g = trace.add_tensor("g", 4096, "gradient")
    trace.add_op("matmul", reads=[w], writes=[a], duration_ns=1000, phase="forward", module="layer")
    trace.add_op("grad", reads=[w, a], writes=[g], duration_ns=2000, phase="backward", module="layer", flops=7)
    trace.add_op("step", reads=[w, g], writes=[w], duration_ns=500, phase="optimizer", gap_before_ns=10)
    return trace


def arrays_of(trace):
    return (
        trace.header,
        trace.names,
        trace.tensors,
        trace.ops,
        trace.reads,
        trace.writes,
        trace.kernels,
        trace.details,
    )


def generation():
    """An expert that a router reveals, with all that format version 2 has."""
    trace = tencache.Trace(model="by hand", stack="vllm 0.9")
    kv = trace.add_tensor("kv", 2048, "kv_cache", persistent=True)
    expert = trace.add_tensor("e", 4096, "expert", persistent=True, stored_bytes=1152, profiled_uses=7)
    shape = [1, 8, 2, 16, 16, 64]
    trace.add_op("attention", reads=[kv], writes=[], duration_ns=1, phase="prefill", kernel="attention", shape=shape,
                 causal=True, attention_kernel="flash2")
    trace.add_op("router", reads=[kv], writes=[], duration_ns=2, phase="decode", launches=3, step=1)
    trace.add_op("expert", reads=[expert], writes=[], duration_ns=3, phase="decode", kernel="matmul", fp8=True,
                 shape=[1, 1, 64, 128], step=1, revealed_by=1, cpu_duration_ns=90)
    return trace


class TraceTest(unittest.TestCase):
    def assert_same(self, one, other):
        for a, b in zip(arrays_of(one), arrays_of(other)):
            if isinstance(a, tuple):
                for left, right in zip(a, b):
                    np.testing.assert_array_equal(left, right)
            elif isinstance(a, np.ndarray):
                np.testing.assert_array_equal(a, b)
            else:
                self.assertEqual(a, b)

    def test_arrays_are_what_was_added(self):
        trace = step()
        self.assertEqual(trace.tensor_names, ["w", "a", "g"])
        self.assertEqual(trace.op_names, ["matmul", "grad", "step"])
        self.assertEqual(trace.op_modules, ["layer", "layer", ""])
        self.assertEqual(trace.header["batch"], 2)
        self.assertEqual(trace.tensors["bytes"].tolist(), [4096, 1024, 4096])
        self.assertEqual([tencache.ROLES[r] for r in trace.tensors["role"]], ["parameter", "activation", "gradient"])
        self.assertEqual(trace.tensors["persistent"].tolist(), [True, False, False])
        self.assertEqual(trace.ops["duration_ns"].tolist(), [1000, 2000, 500])
        self.assertEqual([tencache.PHASES[p] for p in trace.ops["phase"]], ["forward", "backward", "optimizer"])
        self.assertEqual(trace.ops["flops"].tolist(), [0, 7, 0])
        self.assertEqual([a.tolist() for a in trace.reads], [[0, 1, 3, 5], [0, 0, 1, 0, 2]])
        self.assertEqual([a.tolist() for a in trace.writes], [[0, 1, 2, 3], [1, 2, 0]])
        trace.validate()

    def test_kernels_and_details_are_what_was_added(self):
        trace = generation()
        self.assertEqual(trace.header["stack"], "vllm 0.9")
        self.assertEqual(trace.tensors["stored_bytes"].tolist(), [0, 1152])
        self.assertEqual(trace.tensors["profiled_uses"].tolist(), [0, 7])
        kernels = trace.kernels[trace.ops["kernel"]]
        self.assertEqual([tencache.KERNELS[k] for k in kernels["kind"]], ["attention", "unknown", "matmul"])
        self.assertEqual(kernels["shape"].tolist(), [[1, 8, 2, 16, 16, 64], [0] * 6, [1, 1, 64, 128, 0, 0]])
        self.assertEqual(kernels["causal"].tolist(), [True, False, False])
        self.assertEqual([tencache.ATTENTION_KERNELS[k] for k in kernels["attention"]], ["flash2", "", ""])
        self.assertEqual(kernels["launches"].tolist(), [1, 3, 1])
        self.assertEqual(kernels["fp8"].tolist(), [False, False, True])
        details = trace.details[trace.ops["detail"]]
        self.assertEqual(details["step"].tolist(), [0, 1, 1])
        self.assertEqual(details["revealed_by"].tolist(), [tencache.NONE, tencache.NONE, 1])
        self.assertEqual(details["cpu_duration_ns"].tolist(), [0, 0, 90])
        trace.validate()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "t.trace.jsonl")
            tencache.save(trace, path)
            self.assert_same(trace, tencache.load(path))
            self.assertEqual(tencache.info(trace)["steps"], 2)
        self.assert_same(trace, tencache.Trace.from_arrays(*arrays_of(trace)))
        self.assert_same(trace, pickle.loads(pickle.dumps(trace)))
        ops = trace.ops
        ops["kernel"][1] = 0
        trace.ops = ops
        self.assertEqual(trace.kernels[trace.ops["kernel"]]["launches"].tolist(), [1, 1, 1])

    def test_broken_kernels_and_details_are_errors(self):
        trace = generation()

        def add(**more):
            trace.add_op("x", reads=[], writes=[], duration_ns=1, phase="decode", **more)

        with self.assertRaisesRegex(tencache.Error, "kernel: unknown 'gemm'; valid are matmul, attention, "):
            add(kernel="gemm")
        with self.assertRaisesRegex(tencache.Error, "attention_kernel: unknown 'flash9'; valid are flash1, "):
            add(kernel="attention", attention_kernel="flash9", shape=[1] * 6)
        with self.assertRaisesRegex(tencache.Error, "shape: has 3 numbers; a kernel of kind 'matmul' takes 4"):
            add(kernel="matmul", shape=[1, 2, 3])
        with self.assertRaisesRegex(tencache.Error, "revealed_by 3 does not exist"):
            add(revealed_by=3)
        self.assertEqual(len(trace.ops), 3)
        for field in ("kernel", "detail"):
            ops = trace.ops
            ops[field][2] = 9
            with self.assertRaisesRegex(tencache.Error, f"row 2: {field} 9 does not exist"):
                trace.ops = ops
        arrays = list(arrays_of(trace))
        with self.assertRaisesRegex(tencache.Error, "row 0: kernel 1 does not exist"):
            tencache.Trace.from_arrays(*arrays[:6])
        with self.assertRaisesRegex(tencache.Error, "kernels: row 0 is for ops without a kernel"):
            tencache.Trace.from_arrays(*arrays[:6], kernels=arrays[6][1:])
        with self.assertRaisesRegex(tencache.Error, "details: row 0 is for ops without a detail"):
            tencache.Trace.from_arrays(*arrays[:7], details=arrays[7][1:])
        self.assert_same(trace, generation())

    def test_a_saved_trace_loads_as_the_same_arrays(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("t.trace.jsonl", "t.trace.jsonl.zst"):
                path = os.path.join(folder, name)
                tencache.save(step(), path)
                self.assert_same(step(), tencache.load(path))

    def test_a_recording_is_made_again_from_its_arrays(self):
        trace = tencache.load(SAMPLE)
        self.assert_same(trace, tencache.Trace.from_arrays(*arrays_of(trace)))
        self.assert_same(trace, pickle.loads(pickle.dumps(trace)))

    def test_assigned_arrays_change_the_trace_and_copies_do_not(self):
        trace = step()
        ops = trace.ops
        ops["duration_ns"] *= 3
        self.assertEqual(trace.ops["duration_ns"].tolist(), [1000, 2000, 500])
        trace.ops = ops
        self.assertEqual(trace.ops["duration_ns"].tolist(), [3000, 6000, 1500])
        self.assertEqual(trace.reads[1].tolist(), [0, 0, 1, 0, 2])
        tensors = trace.tensors
        tensors["bytes"][1] = 2048
        tensors["name"][1] = trace.name_id("renamed")
        trace.tensors = tensors
        self.assertEqual(trace.tensor_names, ["w", "renamed", "g"])
        trace.header = {"model": "other"}
        self.assertEqual(trace.header["batch"], 0)
        self.assertEqual((trace.header["made_by"], trace.header["made_with"]), ("", {}))
        trace.header = {**trace.header, "made_by": "generated", "made_with": {"model": "gpt2"}}
        self.assertEqual((trace.header["made_by"], trace.header["made_with"]), ("generated", {"model": "gpt2"}))

    def test_what_is_broken_is_an_error_and_changes_nothing(self):
        trace = step()
        for field, value, words in (("phase", 9, "phase 9"), ("name", 99, "name 99"), ("device", 2, "device 2")):
            ops = trace.ops
            ops[field][1] = value
            with self.assertRaisesRegex(tencache.Error, "row 1: " + words):
                trace.ops = ops
        with self.assertRaisesRegex(tencache.Error, "role 9"):
            tensors = trace.tensors
            tensors["role"][0] = 9
            trace.tensors = tensors
        with self.assertRaisesRegex(tencache.Error, "ops: the trace has 3, these are 2"):
            trace.ops = trace.ops[:2]
        with self.assertRaisesRegex(tencache.Error, "role: unknown 'weight'; valid are parameter, "):
            trace.add_tensor("x", 1, "weight")
        with self.assertRaisesRegex(tencache.Error, "tensor 3 does not exist"):
            trace.add_op("x", reads=[3], writes=[], duration_ns=1, phase="forward")
        with self.assertRaisesRegex(tencache.Error, "unknown key 'colour'"):
            trace.header = {"colour": "red"}
        with self.assertRaisesRegex(tencache.Error, "made_by: unknown 'guessed'; valid are generated, recorded, imp"):
            trace.header = {"made_by": "guessed"}
        self.assert_same(trace, step())
        trace.validate()

    def test_broken_lists_of_accesses_are_errors(self):
        header, names, tensors, ops, (offsets, ids), writes, _, _ = arrays_of(step())
        wrong = [(offsets[:-1], ids), (offsets + 1, ids), (offsets[::-1], ids), (offsets, ids[:-1])]
        for reads in wrong:
            with self.assertRaisesRegex(tencache.Error, "reads: write"):
                tencache.Trace.from_arrays(header, names, tensors, ops, reads, writes)
        with self.assertRaisesRegex(tencache.Error, "tensor 3 does not exist"):
            tencache.Trace.from_arrays(header, names, tensors, ops, (offsets, ids + 1), writes)
        with self.assertRaisesRegex(tencache.Error, "names: 'w'"):
            tencache.Trace.from_arrays(header, names + ["w"], tensors, ops, (offsets, ids), writes)

    def test_a_trace_that_cannot_run_is_not_saved(self):
        trace = step()
        tensors = trace.tensors
        tensors["bytes"][0] = 0
        trace.tensors = tensors
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "t.trace.jsonl")
            with self.assertRaisesRegex(tencache.Error, "0 bytes|bytes"):
                tencache.save(trace, path)
            self.assertFalse(os.path.exists(path))

    def test_a_missing_file_is_named(self):
        with self.assertRaisesRegex(tencache.Error, "no/such.trace.jsonl"):
            tencache.load("no/such.trace.jsonl")
        self.assertTrue(issubclass(tencache.Error, ValueError))

    def test_long_arrays_are_linear(self):
        trace = tencache.generate(model="gpt2", batch=1, seq=64, gpu="a10g")
        big = tencache.Trace(model="many")
        tensor = big.add_tensor("t", 1 << 20, "parameter", persistent=True)
        for _ in range(20000):
            big.add_op("op", reads=[tensor], writes=[], duration_ns=5, phase="forward")
        self.assertEqual(len(big.ops), 20000)
        self.assertEqual(int(big.ops["duration_ns"].sum()), 100000)
        self.assertGreater(len(trace.ops), 100)


if __name__ == "__main__":
    unittest.main()
