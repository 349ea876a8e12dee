#!/usr/bin/env python3
"""What programs do with PyTorch on a GPU, under tencache.live() in memory that is mapped once, the host running ahead:
followed, pinned or refused, as docs/cuda.md's table says. Results are compared with plain PyTorch's, bit by bit.

    python_gpu_test.py [--device cpu]    by hand, or as a step of bench/gpu_day.sh c; exit code 77: PyTorch has no GPU.
                                         cpu tries the cases that need none

PYTHONPATH has the package. A case whose library is missing is skipped, with the reason.
"""
import hashlib
import importlib.util
import json
import os
import sys
import tempfile
import unittest

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch  # noqa: E402
import tencache  # noqa: E402

DEVICE = "cpu" if sys.argv[1:] == ["--device", "cpu"] else "cuda"
WIDTH = 1024 if DEVICE == "cuda" else 256
MEMORY = "176MiB" if DEVICE == "cuda" else "8MiB"  # less than a step's, with cuBLAS's workspaces
try:
    import triton
    import triton.language as tl

    @triton.jit
    def add_kernel(x, y, out, count, block: tl.constexpr):
        at = tl.program_id(0) * block + tl.arange(0, block)
        mask = at < count
        tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)
except ImportError:
    triton = None


def needs_gpu(case):
    return unittest.skipIf(DEVICE == "cpu", "needs a GPU")(case)


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.ReLU(),
                               torch.nn.Linear(4 * WIDTH, WIDTH)).to(DEVICE)


def digest(tensors):
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def train(forward=None, wrap=lambda net: net, scaler=None):
    net = network()
    model, optimizer = wrap(net), torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(4):
        torch.manual_seed(step)
        x = torch.randn(64, WIDTH, device=DEVICE)
        loss = (forward or (lambda model, x: model(x)))(model, x).float().square().mean()
        (scaler.scale(loss) if scaler else loss).backward()
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()
    return digest(net.parameters())


def live():
    return tencache.live("on-demand", device=DEVICE, gpu_memory=MEMORY, pace=False, sleep=False, quiet=True)


class Gpu(unittest.TestCase):
    def same(self, program):
        """The report of the run that was like plain PyTorch's."""
        plain = program()
        with live() as run:
            self.assertEqual(program(), plain)
            return run.report()

    def refused(self, program, words):
        with live():
            with self.assertRaisesRegex(RuntimeError, words):
                program()

    def test_training_with_lists_of_tensors(self):
        self.same(train)

    def test_mixed_precision(self):
        def forward(model, x):
            with torch.autocast(DEVICE, dtype=torch.bfloat16 if DEVICE == "cpu" else torch.float16):
                return model(x)
        self.same(lambda: train(forward, scaler=torch.cuda.amp.GradScaler() if DEVICE == "cuda" else None))

    def test_checkpointing(self):
        from torch.utils.checkpoint import checkpoint
        self.same(lambda: train(lambda model, x: checkpoint(model, x, use_reentrant=False)))

    @unittest.skipUnless(hasattr(torch, "compile"), "no torch.compile")
    def test_compiled_code_runs_as_ops(self):
        plain = train()
        with live():
            self.assertEqual(train(wrap=torch.compile), plain)

    @needs_gpu
    def test_several_streams(self):
        def program():
            side, here = torch.cuda.Stream(), torch.cuda.current_stream()
            torch.manual_seed(0)
            results = []
            for _ in range(12):
                x = torch.randn(4 << 20, device=DEVICE)
                side.wait_stream(here)
                with torch.cuda.stream(side):
                    y = (x * 2).relu()
                x.record_stream(side)
                del x
                here.wait_stream(side)
                results.append(y + 1)
                y.record_stream(here)
            return digest(results)
        self.same(program)

    @needs_gpu
    @unittest.skipIf(triton is None, "no Triton")
    def test_kernels_of_triton_pin(self):
        def program():
            torch.manual_seed(0)
            x, y = (torch.randn(1 << 20, device=DEVICE) for _ in range(2))
            out = torch.empty_like(x)
            for _ in range(4):
                add_kernel[(1024,)](x, y, out, x.numel(), 1024)
                x = out * 0.5
            return digest([out, x])
        self.assertGreaterEqual(self.same(program)["exposed_tensors"], 3)

    @needs_gpu
    @unittest.skipIf(importlib.util.find_spec("flash_attn") is None, "no flash-attn")
    def test_flash_attention(self):
        from flash_attn import flash_attn_func

        def program():
            torch.manual_seed(0)
            q, k, v = (torch.randn(2, 512, 8, 64, device=DEVICE, dtype=torch.float16) for _ in range(3))
            return digest([flash_attn_func(q, k, v, causal=True)])
        self.same(program)

    @needs_gpu
    @unittest.skipIf(importlib.util.find_spec("bitsandbytes") is None, "no bitsandbytes")
    def test_bitsandbytes_pins(self):
        from bitsandbytes.functional import dequantize_4bit, quantize_4bit

        def program():
            torch.manual_seed(0)
            packed, state = quantize_4bit(torch.randn(1 << 20, device=DEVICE, dtype=torch.float16))
            return digest([packed, dequantize_4bit(packed, state)])
        self.same(program)

    @needs_gpu
    @unittest.skipUnless(torch.distributed.is_available() and torch.distributed.is_nccl_available(), "no NCCL")
    def test_ddp_over_nccl(self):
        with tempfile.TemporaryDirectory() as folder:
            torch.distributed.init_process_group("nccl", f"file://{folder}/store", rank=0, world_size=1)
            try:
                self.same(lambda: train(wrap=torch.nn.parallel.DistributedDataParallel))
            finally:
                torch.distributed.destroy_process_group()

    @needs_gpu
    def test_graphs_are_refused(self):
        def program():
            x = torch.zeros(1 << 20, device=DEVICE)
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                x += 1
        self.refused(program, "graph")

    @needs_gpu
    def test_other_processes_are_refused(self):
        self.refused(lambda: torch.zeros(1 << 20, device=DEVICE).untyped_storage()._share_cuda_(), "other processes")


if __name__ == "__main__":
    if DEVICE == "cuda" and not torch.cuda.is_available():
        print("PyTorch has no GPU here")
        sys.exit(77)
    result = unittest.main(argv=sys.argv[:1], exit=False).result
    print(json.dumps({"ran": result.testsRun - len(result.skipped), "skipped": [why for _, why in result.skipped]}))
    sys.exit(not result.wasSuccessful())
