"""The recorder for PyTorch programs (traces/recorder), on small programs whose traces can be told beforehand.

Runs with the PyTorch of the interpreter that runs it. TENCACHE is the command, TENCACHE_RECORDER the folder that holds
the package `tencache_recorder`.
"""

import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest
import warnings

warnings.simplefilter("ignore")
sys.path.insert(0, os.environ["TENCACHE_RECORDER"])
import torch  # noqa: E402
import tencache_recorder  # noqa: E402

torch.set_num_threads(1)
TENCACHE = os.environ["TENCACHE"]


def version_at_least(major, minor):
    parts = torch.__version__.split(".")
    return (int(parts[0]), int(parts[1])) >= (major, minor)


class Trace:
    """A trace file, which the command itself has found valid."""

    def __init__(self, path):
        result = subprocess.run([TENCACHE, "info", "--json", path], capture_output=True, text=True)
        if result.returncode != 0:
            raise AssertionError(result.stderr)
        self.info = json.loads(result.stdout)
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        self.header = lines[0]
        self.tensors = [line for line in lines if line["kind"] == "tensor"]
        self.ops = [line for line in lines if line["kind"] == "op"]

    def named(self, name):
        return next(tensor for tensor in self.tensors if tensor["name"] == name)

    def bytes_of(self, role):
        return sum(tensor["bytes"] for tensor in self.tensors if tensor["role"] == role)

    def gradient_bytes(self):
        """Of the parameters."""
        return self.info["tensors"]["gradients_of_step"]["bytes"]

    def in_phase(self, phase):
        return [op for op in self.ops if op["phase"] == phase]

    def uses(self, tensor):
        return [op for op in self.ops if tensor["id"] in op["reads"] + op["writes"]]


class Program:
    """Two layers and AdamW: 64 × 32 and 32 × 10, with biases."""

    def __init__(self, optimizer=torch.optim.AdamW, device="cpu", **options):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.GELU(), torch.nn.Linear(32, 10))
        if device != "cpu":
            self.model.to(device)
        self.optimizer = optimizer(self.model.parameters(), lr=1e-3, **options)
        self.device = device

    def forward_and_backward(self, rows=16):
        x = torch.randn(rows, 64, device=self.device)
        y = torch.zeros(rows, dtype=torch.long, device=self.device)
        loss = torch.nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        return loss

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.forward_and_backward()
        self.optimizer.step()

PARAMETER_BYTES = 4 * (64 * 32 + 32 + 32 * 10 + 10)


class RecorderTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "run.trace.jsonl")
        self.addCleanup(self.folder.cleanup)

    def record(self, program, run, **options):
        with tencache_recorder.record(self.path, model=program.model, quiet=True, **options) as recording:
            run(recording)
        self.assertTrue(recording.done)
        return recording, Trace(self.path)

    def record_steps(self, program, count=4, **options):
        return self.record(program, lambda _: [program.step() for _ in range(count)], **options)

    def test_a_step_has_the_models_parameters_gradients_and_states(self):
        program = Program()
        recording, trace = self.record_steps(program)
        self.assertEqual(trace.bytes_of("parameter"), PARAMETER_BYTES)
        self.assertEqual(trace.gradient_bytes(), PARAMETER_BYTES)
        self.assertEqual(trace.bytes_of("optimizer_state"), 2 * PARAMETER_BYTES)
        self.assertEqual({t["name"] for t in trace.tensors if t["role"] == "parameter"},
                         {name for name, _ in program.model.named_parameters()})
        for tensor in trace.tensors:
            self.assertEqual(tensor["persistent"], tensor["role"] in ("parameter", "optimizer_state"), tensor)
        self.assertEqual(trace.header["batch"], 16)
        self.assertEqual(trace.header["precision"], "fp32")
        self.assertEqual(trace.header["made_by"], "recorded")
        self.assertIn(torch.__version__, trace.header["recorded_by"])

    def test_times_add_up_to_the_step(self):
        recording, trace = self.record_steps(Program())
        total_ns = sum(op["duration_ns"] + op["gap_before_ns"] for op in trace.ops)
        self.assertAlmostEqual(total_ns / 1e9, recording.duration_seconds, delta=1e-6)
        replay = subprocess.run([TENCACHE, "replay", self.path, "-m", "10cache-l40s", "--assume-gpu", "l40s", "-p",
                                 "ideal", "--json"], capture_output=True, text=True)
        self.assertEqual(replay.returncode, 0, replay.stderr)
        ideal_seconds = json.loads(replay.stdout)["iteration_seconds"]
        self.assertAlmostEqual(ideal_seconds / recording.duration_seconds, 1, delta=0.01)

    def test_ops_have_phases_modules_operands_and_flops(self):
        _, trace = self.record_steps(Program())
        forward = [op for op in trace.in_phase("forward") if op["name"] == "aten::addmm"]
        self.assertEqual([op["module"] for op in forward], ["0", "2"])
        self.assertEqual([op["flops"] for op in forward], [2 * 16 * 64 * 32, 2 * 16 * 32 * 10])
        for op, layer in zip(forward, ("0", "2")):
            self.assertIn(trace.named(layer + ".weight")["id"], op["reads"])
        self.assertEqual(forward[0]["bytes"], 4 * (16 * 64 + 64 * 32 + 32 + 16 * 32))
        self.assertIn(forward[0]["writes"][0], [op for op in trace.ops if op["name"] == "aten::gelu"][0]["reads"])
        self.assertTrue(trace.in_phase("loss"))
        backward = [op for op in trace.in_phase("backward") if op["name"] == "aten::mm"]
        self.assertEqual([op["module"] for op in backward], ["2", "2", "0"])
        sums = [op for op in trace.in_phase("backward") if op["name"].startswith("aten::sum")]  # gradients of biases
        self.assertEqual([op["module"] for op in sums], ["2", "0"])
        self.assertIn(trace.named("0.weight.grad")["id"], backward[2]["writes"])
        order = [op["phase"] for op in trace.ops]
        self.assertEqual(order, sorted(order, key=["forward", "loss", "backward", "optimizer"].index))
        for name in ("0.weight", "0.weight.grad", "0.weight.exp_avg", "0.weight.exp_avg_sq"):
            self.assertIn("optimizer", [op["phase"] for op in trace.uses(trace.named(name))], name)

    def test_pytorchs_profiler_records_the_same_step(self):
        path = os.environ["PATH"]
        os.environ["PATH"] = os.path.dirname(os.path.abspath(TENCACHE)) + os.pathsep + path
        self.addCleanup(os.environ.__setitem__, "PATH", path)
        options = {} if not version_at_least(2, 0) else {"foreach": False}
        _, observed = self.record_steps(Program(**options))
        _, profiled = self.record_steps(Program(**options), library=False)
        for role in ("parameter", "optimizer_state"):
            self.assertEqual(profiled.bytes_of(role), observed.bytes_of(role), role)
        # What the program makes for the model is there when a step that begins with a forward begins.
        made = [sum(trace.bytes_of(role) for role in ("activation", "input")) for trace in (observed, profiled)]
        self.assertEqual(made[0], made[1])
        self.assertEqual(profiled.gradient_bytes(), PARAMETER_BYTES)
        flops = [[op["flops"] for op in trace.ops if op["flops"]] for trace in (observed, profiled)]
        self.assertEqual(flops[0], flops[1])

    def test_memory_that_is_used_again_is_another_tensor(self):
        program = Program()

        def run(_):
            for _ in range(4):
                program.optimizer.zero_grad(set_to_none=True)
                x = torch.randn(16, 64)
                for _ in range(20):  # each result is freed before the next but one is made
                    x = x * 0.5
                torch.nn.functional.cross_entropy(program.model(x), torch.zeros(16, dtype=torch.long)).backward()
                program.optimizer.step()
        _, trace = self.record(program, run)
        results = [tensor for tensor in trace.tensors if tensor["name"].startswith("aten::mul.Tensor")]
        self.assertEqual(len(results), 20)
        for tensor in results:
            self.assertLessEqual(len(trace.uses(tensor)), 3, tensor)

    def test_the_program_computes_what_it_computes_without_recorder(self):
        plain, recorded = Program(), Program()
        torch.manual_seed(1)
        for _ in range(5):
            plain.step()
        torch.manual_seed(1)
        self.record_steps(recorded, 5)
        for one, other in zip(plain.model.parameters(), recorded.model.parameters()):
            self.assertTrue(torch.equal(one, other))

    def test_steps_with_accumulation_have_all_micro_batches(self):
        program = Program()

        def run(_):
            for _ in range(4):
                program.optimizer.zero_grad(set_to_none=True)
                for _ in range(3):
                    program.forward_and_backward()
                program.optimizer.step()
        _, trace = self.record(program, run)
        self.assertEqual(trace.header["batch"], 48)
        self.assertEqual(len([op for op in trace.in_phase("forward") if op["name"] == "aten::addmm"]), 6)
        gradient = trace.named("0.weight.grad")
        self.assertEqual([op["phase"] for op in trace.uses(gradient)].count("backward"), 3)

    def test_gradients_that_are_zeroed_in_place_persist(self):
        program = Program()

        def run(_):
            for _ in range(4):
                program.optimizer.zero_grad(set_to_none=False)
                program.forward_and_backward()
                program.optimizer.step()
        _, trace = self.record(program, run)
        self.assertTrue(trace.named("0.weight.grad")["persistent"])
        self.assertEqual(trace.gradient_bytes(), PARAMETER_BYTES)

    def test_several_optimizers_and_steps_by_hand(self):
        program = Program()
        second = torch.optim.SGD([torch.nn.Parameter(torch.zeros(8))], lr=1)

        def both(_):
            for _ in range(4):
                program.step()
                second.step()
        _, trace = self.record(program, both, optimizer_steps=2)
        self.assertEqual(trace.header["batch"], 16)

        def by_hand(recording):
            for _ in range(4):
                program.step()
                program.step()
                recording.step()
        _, trace = self.record(program, by_hand, optimizer_steps=0)
        self.assertEqual(trace.header["batch"], 32)

    def test_gates_and_their_experts_are_marked(self):
        """A block of four experts in Mixtral's shape, of which a token chooses two, others are called with no rows; and
        one like it whose router says nothing of its choice."""
        nn = torch.nn

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.gate = nn.Linear(16, 4, bias=False)
                self.experts = nn.ModuleList([nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
                                              for _ in range(4)])

            def choose(self, x):
                return torch.topk(self.gate(x), 2, dim=-1)[1]

            def forward(self, x):
                chosen, out = self.choose(x), torch.zeros_like(x)
                for number, expert in enumerate(self.experts):
                    rows = torch.where(chosen == number)[0]
                    out.index_add_(0, rows, expert(x[rows]))
                return out

        class Silent(Block):
            def choose(self, x):
                return self.gate(x).argsort(-1)[:, 2:]

        model = nn.Sequential(Block(), Silent())
        program = Program()
        program.model = model
        token = torch.randn(1, 16)
        with torch.no_grad():
            expected = sorted(torch.topk(model[0].gate(token), 2)[1][0].tolist())

        def by_hand(recording):
            for _ in range(3):
                with torch.no_grad():
                    model(token)
                recording.step()
        _, trace = self.record(program, by_hand, optimizer_steps=0)
        experts = [tensor for tensor in trace.tensors if tensor["role"] == "expert"]
        self.assertEqual(sorted(tensor["name"] for tensor in experts),
                         sorted(name for name, _ in model.named_parameters() if name.startswith("0.experts.")))
        decided = [op for op in trace.ops if "revealed_by" in op]
        self.assertEqual(sorted({op["module"] for op in decided}), [f"0.experts.{number}" for number in expected])
        gates = {op["revealed_by"] for op in decided}
        self.assertEqual(len(gates), 1)
        gate = trace.ops[gates.pop()]
        self.assertEqual((gate["name"], gate["module"]), ("aten::topk", "0"))
        read = {trace.tensors[tensor]["name"] for op in decided for tensor in op["reads"]}
        self.assertEqual({name.split(".")[2] for name in read if name.startswith("0.experts.")},
                         set(map(str, expected)))
        silent = {tensor["role"] for tensor in trace.tensors if tensor["name"].startswith("1.experts.")}
        self.assertEqual(silent, {"parameter"})
        for policy in ("expert-lru", "moe-infinity"):
            result = subprocess.run([TENCACHE, "replay", self.path, "-p", policy, "-m", "NC40ads_H100_v5",
                                     "--assume-gpu", "h100-nvl"],
                                    capture_output=True, text=True)
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_experts_that_are_trained_are_parameters(self):
        program = Program()
        program.model = torch.nn.Sequential(torch.nn.Linear(64, 10))
        program.model.gate = torch.nn.Linear(10, 2)
        program.model.experts = torch.nn.ModuleList([torch.nn.Linear(10, 10) for _ in range(2)])
        program.model.forward = lambda x: sum(
            expert(program.model[0](x)) for expert in program.model.experts)
        program.optimizer = torch.optim.SGD(program.model.parameters(), lr=0.1)
        _, trace = self.record_steps(program)
        self.assertEqual(trace.bytes_of("expert"), 0)
        self.assertEqual(trace.named("experts.1.weight")["role"], "parameter")

    def test_several_optimizers_are_said(self):
        program = Program()
        second = torch.optim.SGD([torch.nn.Parameter(torch.zeros(8))], lr=1)

        def remarks(**options):
            said = io.StringIO()
            with contextlib.redirect_stderr(said), tencache_recorder.record(self.path, model=program.model, **options):
                for _ in range(4):
                    program.step()
                    second.step()
            return said.getvalue()
        self.assertRegex(remarks(), "has [0-9]+ optimizers: what is recorded ends with the first one's step")
        self.assertNotIn("optimizers", remarks(optimizer_steps=2))

    def test_several_steps_give_medians(self):
        recording, trace = self.record_steps(Program(), 8, steps=5)
        busy_ns, idle_ns = (sum(op[key] for op in trace.ops) for key in ("duration_ns", "gap_before_ns"))
        self.assertGreater(min(busy_ns, idle_ns), 0)
        self.assertLess((busy_ns + idle_ns) / 1e9, 2 * recording.duration_seconds)
        self.assertEqual(trace.header["batch"], 16)

    def test_steps_that_differ_are_no_one_trace(self):
        program = Program()

        def run(_):
            for number in range(6):
                program.optimizer.zero_grad(set_to_none=True)
                for _ in range(1 + number % 2):
                    program.forward_and_backward()
                program.optimizer.step()
        with self.assertRaisesRegex(tencache_recorder.RecorderError, "other ops than the last"):
            self.record(program, run, steps=2)
        self.assertFalse(os.path.exists(self.path))

    def test_checkpointing_computes_again_in_the_backward_pass(self):
        from torch.utils.checkpoint import checkpoint
        for reentrant in (True, False):
            program = Program()
            first, activation, second = program.model

            def run(_):
                for _ in range(4):
                    program.optimizer.zero_grad(set_to_none=True)
                    x = torch.randn(16, 64, requires_grad=True)
                    hidden = checkpoint(lambda x: activation(first(x)), x, use_reentrant=reentrant)
                    second(hidden).sum().backward()
                    program.optimizer.step()
            _, trace = self.record(program, run)
            again = [op for op in trace.in_phase("backward") if op["name"] == "aten::addmm"]
            self.assertEqual([op["module"] for op in again], ["0"], f"reentrant: {reentrant}")
            roles = {op["name"]: trace.tensors[op["writes"][0]]["role"] for op in trace.in_phase("backward")
                     if op["writes"]}
            self.assertEqual((roles["aten::addmm"], roles["aten::gelu_backward"]), ("activation", "gradient"))
            # By their names it is told that these are the results of the forward pass.
            named = {phase: [trace.tensors[op["writes"][0]]["name"] for op in trace.in_phase(phase)
                             if op["name"] in ("aten::addmm", "aten::gelu") and op["module"] in ("0", "1")]
                     for phase in ("forward", "backward")}
            self.assertEqual(len(named["forward"]), 2)
            self.assertEqual(named["backward"], named["forward"], f"reentrant: {reentrant}")
            gradients = [trace.tensors[op["writes"][0]]["name"] for op in trace.in_phase("backward")
                         if op["name"] == "aten::gelu_backward"]
            self.assertNotIn(gradients[0], named["forward"])

    def test_autocast_has_its_precision_and_casts(self):
        program = Program()

        def run(_):
            for _ in range(4):
                program.optimizer.zero_grad(set_to_none=True)
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    out = program.model(torch.randn(16, 64))
                torch.nn.functional.cross_entropy(out.float(), torch.zeros(16, dtype=torch.long)).backward()
                program.optimizer.step()
        _, trace = self.record(program, run)
        self.assertEqual(trace.header["precision"], "bf16")
        casts = [tensor for tensor in trace.tensors if tensor["name"].startswith("aten::_to_copy")]
        self.assertIn(2 * 64 * 32, [tensor["bytes"] for tensor in casts])
        self.assertEqual(trace.bytes_of("parameter"), PARAMETER_BYTES)

    def test_ops_have_the_kernels_that_they_launch(self):
        _, trace = self.record_steps(Program())
        self.assertEqual(trace.header["format_version"], 3)
        products = [(op["phase"], op["shape"]) for op in trace.ops if op.get("kernel") == "matmul"]
        self.assertEqual(products, [("forward", [1, 16, 32, 64]), ("forward", [1, 16, 10, 32]),
                                    ("backward", [1, 16, 32, 10]), ("backward", [1, 10, 32, 16]),
                                    ("backward", [1, 32, 64, 16])])
        kinds = {op["name"]: op.get("kernel") for op in trace.ops}
        self.assertEqual(kinds["aten::gelu"], "elementwise")
        self.assertEqual(kinds["aten::_log_softmax"], "norm")
        self.assertEqual(kinds["aten::sum.dim_IntList"], "reduction")

    def test_kernels_of_a_transformers_parts(self):
        class Parts(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.table, self.norm = torch.nn.Embedding(50, 24), torch.nn.LayerNorm(24)
                self.join = torch.nn.Linear(24, 24, bias=False)

            def forward(self, ids):
                x = self.norm(self.table(ids))                     # [3, 5, 24]
                heads = x.view(3, 5, 4, 6).transpose(1, 2)         # [3, 4, 5, 6]
                scores = (heads @ heads.transpose(2, 3)).softmax(-1)
                return self.join((scores @ heads).transpose(1, 2).reshape(3, 5, 24)).bfloat16()

        program = Program()
        program.model = Parts()
        program.optimizer = torch.optim.SGD(program.model.parameters(), lr=0.1)

        def step():
            program.optimizer.zero_grad(set_to_none=True)
            torch.cat([program.model(torch.zeros(3, 5, dtype=torch.long))] * 2).sum().backward()
            program.optimizer.step()
        _, trace = self.record(program, lambda _: [step() for _ in range(4)])
        forward = {op["name"].split(".")[0]: op for op in trace.in_phase("forward")}
        self.assertEqual(forward["aten::embedding"]["kernel"], "gather")
        self.assertLess(forward["aten::embedding"]["bytes"], 50 * 24 * 4)  # rows, not the table
        self.assertEqual(forward["aten::native_layer_norm"]["kernel"], "norm")
        self.assertEqual(forward["aten::_softmax"]["kernel"], "norm")
        self.assertEqual([op["shape"] for op in trace.in_phase("forward") if op["name"] == "aten::bmm"],
                         [[12, 5, 5, 6], [12, 5, 6, 5]])
        self.assertEqual(forward["aten::clone"]["kernel"], "copy")  # of the transposed heads
        self.assertEqual(forward["aten::cat"]["kernel"], "copy")
        self.assertEqual(forward["aten::_to_copy"]["kernel"], "elementwise")
        backward = {op["name"].split(".")[0]: op for op in trace.in_phase("backward")}
        self.assertEqual(backward["aten::native_layer_norm_backward"]["launches"], 3)
        self.assertIn(backward["aten::embedding_dense_backward"]["kernel"], ("gather", "elementwise"))

    def test_fused_attention_and_unaligned_products(self):
        if not version_at_least(2, 1):
            self.skipTest("this PyTorch has no fused attention")
        program = Program()
        program.model = torch.nn.Linear(64, 10).bfloat16()
        program.optimizer = torch.optim.SGD(program.model.parameters(), lr=0.1)

        def step():
            program.optimizer.zero_grad(set_to_none=True)
            x = program.model(torch.ones(2 * 16, 64, dtype=torch.bfloat16)).mean()
            q = torch.ones(2, 4, 16, 8) * x
            torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
            program.optimizer.step()
        _, trace = self.record(program, lambda _: [step() for _ in range(4)])
        fused = [op for op in trace.ops if op.get("kernel", "").startswith("attention")]
        for op in fused:
            self.assertEqual((op["shape"], op["causal"], op["attention_kernel"]), ([2, 4, 4, 16, 16, 8], True, "flash2"))
        self.assertEqual([op["kernel"] for op in fused], ["attention", "attention_backward"])
        product = next(op for op in trace.ops if op["name"] == "aten::addmm")
        self.assertTrue(product["unaligned"])  # ten columns of two bytes

    def test_a_model_on_the_meta_device(self):
        if not version_at_least(2, 0):
            self.skipTest("PyTorch before 2.0 cannot train on the meta device")
        recording, trace = self.record_steps(Program(device="meta"))
        self.assertEqual(trace.bytes_of("parameter"), PARAMETER_BYTES)
        self.assertEqual(trace.bytes_of("optimizer_state"), 2 * PARAMETER_BYTES)
        self.assertEqual([op["flops"] for op in trace.in_phase("forward") if op["name"] == "aten::addmm"],
                         [2 * 16 * 64 * 32, 2 * 16 * 32 * 10])

    def test_fake_tensors_give_sizes_and_order_without_times(self):
        try:
            from torch._subclasses.fake_tensor import FakeTensorMode
        except ImportError:
            FakeTensorMode = None
        if FakeTensorMode is None or not version_at_least(2, 0):
            self.skipTest("this PyTorch has no fake tensors that can be trained")
        with FakeTensorMode(allow_non_fake_inputs=True):
            _, fake = self.record_steps(Program(foreach=False), timed=False)
        _, real = self.record_steps(Program(foreach=False))
        for role in ("parameter", "gradient", "optimizer_state"):
            self.assertEqual(fake.bytes_of(role), real.bytes_of(role), role)
        self.assertAlmostEqual(fake.bytes_of("activation") / real.bytes_of("activation"), 1, delta=0.05)
        names = [[op["name"] for op in trace.ops if op["phase"] != "optimizer"] for trace in (fake, real)]
        self.assertEqual(names[0], names[1])
        self.assertEqual(sum(op["duration_ns"] + op["gap_before_ns"] for op in fake.ops), 0)
        on_gpu = os.path.join(self.folder.name, "gpu.trace.jsonl")
        with FakeTensorMode(allow_non_fake_inputs=True):
            self.record_steps(Program(foreach=False), timed=False)
        subprocess.run([TENCACHE, "import", "trace", self.path, "--gpu", "l40s", "-o", on_gpu], check=True,
                       capture_output=True)
        modelled = Trace(on_gpu)
        self.assertEqual(modelled.header["hardware"], "modelled: l40s")
        self.assertEqual({op["duration_source"] for op in modelled.ops}, {"modelled"})
        self.assertGreater(min(op["duration_ns"] for op in modelled.ops), 0)

    def test_compiled_programs_are_recorded_without_the_compiler(self):
        if not hasattr(torch, "compiler") or not hasattr(torch.compiler, "set_stance"):
            self.skipTest("this PyTorch cannot set its compiler aside")
        program = Program()
        program.model = torch.compile(program.model, backend="aot_eager")
        _, trace = self.record_steps(program)
        self.assertEqual(trace.bytes_of("parameter"), PARAMETER_BYTES)
        self.assertEqual([op["module"] for op in trace.in_phase("forward") if op["name"] == "aten::addmm"], ["0", "2"])

    def test_what_no_op_touches_takes_memory(self):
        program = Program()
        program.model.add_module("unused", torch.nn.Linear(100, 100))
        program.forward = program.model.forward

        def run(_):
            for _ in range(4):
                program.optimizer.zero_grad(set_to_none=True)
                program.model[2](program.model[1](program.model[0](torch.randn(16, 64)))).sum().backward()
                program.optimizer.step()
        _, trace = self.record(program, run)
        self.assertEqual(trace.named("unused.weight")["bytes"], 40000)
        self.assertEqual(trace.uses(trace.named("unused.weight")), [])

    def test_what_one_step_leaves_to_the_next_is_one_tensor(self):
        program = Program()

        def run(_):
            ahead = torch.randn(16, 64)
            for _ in range(5):
                loss = torch.nn.functional.cross_entropy(program.model(ahead), torch.zeros(16, dtype=torch.long))
                ahead = torch.randn(16, 64)
                loss.backward()
                program.optimizer.step()
                norm = sum(float(p.grad.norm()) for p in program.model.parameters())  # reads them after the step
                program.optimizer.zero_grad(set_to_none=True)
            self.assertGreater(norm, 0)
        _, trace = self.record(program, run)
        self.assertEqual(trace.gradient_bytes(), PARAMETER_BYTES)
        self.assertTrue(trace.named("0.weight.grad")["persistent"])
        self.assertEqual([tensor["bytes"] for tensor in trace.tensors if tensor["role"] == "input" and
                          tensor["bytes"] == 4 * 16 * 64], [4 * 16 * 64])

    def test_keyword_arguments_and_evaluation_do_not_mislead(self):
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding, self.head = torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50)

            def forward(self, input_ids=None, labels=None):
                scores = self.head(self.embedding(input_ids))
                return torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())

        program = Program()
        program.model = Model()
        program.optimizer = torch.optim.AdamW(program.model.parameters())
        ids = torch.zeros((4, 8), dtype=torch.long)

        def run(_):
            for _ in range(4):
                with torch.no_grad():
                    program.model(input_ids=ids, labels=ids)
                program.model(input_ids=ids, labels=ids).backward()
                program.optimizer.step()
                program.optimizer.zero_grad(set_to_none=True)
        _, trace = self.record(program, run)
        if version_at_least(2, 0):  # before, hooks do not get keyword arguments
            self.assertEqual((trace.header["batch"], trace.header["sequence_length"]), (4, 8))
        losses = [op["phase"] for op in trace.ops if op["name"] == "aten::nll_loss_forward"]
        self.assertEqual(losses, ["forward", "loss"])
        self.assertEqual({op["phase"] for op in trace.ops if op["module"] == "head" and op["phase"] != "backward"},
                         {"forward"})

    def test_an_optimizers_closure_is_not_the_optimizer(self):
        program = Program(torch.optim.SGD)

        def run(_):
            for _ in range(4):
                def closure():
                    program.optimizer.zero_grad(set_to_none=True)
                    return program.forward_and_backward()
                program.optimizer.step(closure)
        _, trace = self.record(program, run)
        phases = [op["phase"] for op in trace.ops if op["name"] == "aten::addmm"]
        self.assertEqual(phases, ["forward", "forward"])
        self.assertTrue(trace.in_phase("backward") and trace.in_phase("optimizer"))

    def test_what_an_op_keeps_for_the_backward_pass_is_an_activation(self):
        program = Program()
        program.model = torch.nn.LSTM(16, 32, batch_first=True)
        program.optimizer = torch.optim.SGD(program.model.parameters(), lr=0.1)

        def run(_):
            for _ in range(4):
                program.model(torch.randn(4, 8, 16))[0].sum().backward()
                program.optimizer.step()
                program.optimizer.zero_grad(set_to_none=True)
        _, trace = self.record(program, run)
        parameters = sum(4 * p.numel() for p in program.model.parameters())
        persistent = sum(tensor["bytes"] for tensor in trace.tensors if tensor["persistent"])
        self.assertLess(persistent, parameters + 4096)

    def test_other_threads_and_children_do_no_harm(self):
        program = Program()
        stop = threading.Event()

        def compute():
            x = torch.ones(64, 64)
            while not stop.is_set():
                x = x @ torch.ones(64, 64) * 1e-3
        thread = threading.Thread(target=compute)
        thread.start()
        try:
            for _ in range(5):
                self.record_steps(program)
        finally:
            stop.set()
            thread.join()

        def run(_):
            for number in range(4):
                program.step()
                if number == 1:  # within the recorded step
                    child = os.fork()
                    if child == 0:
                        for _ in range(100):
                            torch.ones(8) + 1
                        os._exit(0)
                    self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.record(program, run)

    def test_one_recording_at_a_time(self):
        program = Program()

        def run(_):
            with self.assertRaisesRegex(tencache_recorder.RecorderError, "another recording is under way"):
                with tencache_recorder.record(self.path, model=program.model, quiet=True):
                    pass
            for _ in range(4):
                program.step()
        self.record(program, run)

    def test_a_step_that_a_scaler_skips_is_not_recorded(self):
        program = Program(torch.optim.SGD)
        try:
            scaler = torch.amp.GradScaler("cpu")
        except (AttributeError, TypeError):
            self.skipTest("this PyTorch has no GradScaler for the CPU")

        def run(recording):
            for number in range(6):
                program.optimizer.zero_grad(set_to_none=True)
                loss = torch.nn.functional.cross_entropy(program.model(torch.randn(16, 64)),
                                                         torch.zeros(16, dtype=torch.long))
                scaler.scale(loss * float("inf") if number == 2 else loss).backward()
                scaler.step(program.optimizer)
                scaler.update()
        _, trace = self.record(program, run)
        self.assertEqual(trace.header["batch"], 16)
        self.assertEqual(len([op for op in trace.in_phase("forward") if op["name"] == "aten::addmm"]), 2)

    def test_a_sharded_model_is_recorded_with_a_warning(self):
        class FSDPModule(torch.nn.Sequential):
            pass
        program = Program()
        program.model = FSDPModule(*program.model)
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            with tencache_recorder.record(self.path, model=program.model):
                for _ in range(4):
                    program.step()
        self.assertIn("sharded by FSDP", errors.getvalue())

    def test_hugging_faces_trainer(self):
        try:
            import accelerate  # noqa: F401
            import transformers
        except ImportError as error:
            self.skipTest(str(error))
        config = transformers.GPT2Config(n_layer=2, n_embd=64, n_head=2, n_positions=64, vocab_size=500, bos_token_id=0,
                                         eos_token_id=0)
        model = transformers.GPT2LMHeadModel(config)
        data = [{key: torch.randint(500, (32,)) for key in ("input_ids", "labels")} for _ in range(64)]
        arguments = transformers.TrainingArguments(
            self.folder.name, per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=5, use_cpu=True,
            report_to=[], save_strategy="no", disable_tqdm=True)
        with tencache_recorder.record(self.path, quiet=True), contextlib.redirect_stdout(io.StringIO()):
            transformers.Trainer(model=model, args=arguments, train_dataset=data).train()
        trace = Trace(self.path)
        parameters = sum(4 * parameter.numel() for parameter in model.parameters())
        self.assertEqual((trace.header["batch"], trace.header["sequence_length"]), (8, 32))
        self.assertEqual(trace.bytes_of("parameter"), parameters)
        self.assertEqual(trace.gradient_bytes(), parameters)
        self.assertEqual(trace.bytes_of("optimizer_state"), 2 * parameters)

    def test_meta_records_the_class_that_the_configuration_names(self):
        if importlib.util.find_spec("transformers") is None or not version_at_least(2, 0):
            self.skipTest("needs PyTorch 2.0 and Hugging Face's transformers")
        script = textwrap.dedent("""
            import json, sys, transformers as t
            from tencache_recorder.__main__ import main
            widths = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2)
            image = dict(widths, image_size=64, patch_size=16)
            pair = dict(text_config=dict(widths, vocab_size=500, bos_token_id=0, eos_token_id=1), vision_config=image)
            for config in [
                    t.T5Config(vocab_size=500, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=2,
                               decoder_start_token_id=0, architectures=["T5ForConditionalGeneration"]),
                    t.WhisperConfig(vocab_size=500, d_model=64, encoder_layers=2, decoder_layers=2, num_mel_bins=16,
                                    encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=128,
                                    decoder_ffn_dim=128, max_source_positions=50, pad_token_id=0, bos_token_id=0,
                                    eos_token_id=1, decoder_start_token_id=1, begin_suppress_tokens=None,
                                    architectures=["WhisperForConditionalGeneration"]),
                    t.CLIPConfig(**pair, architectures=["CLIPModel"]),
                    t.ViTConfig(**image, architectures=["ViTForImageClassification"]),
                    t.BertConfig(vocab_size=500, **widths, architectures=["BertModel"]),
                    t.CLIPVisionConfig(**image, architectures=["CLIPVisionModel"])]:
                config.save_pretrained(sys.argv[1])
                try:
                    main(["--meta", sys.argv[1], "--sequence-length", "16", "-o", sys.argv[2]])
                except SystemExit as error:
                    print(config.architectures[0], "refused", error)
                    continue
                with open(sys.argv[2]) as file:
                    recorded = sum(json.loads(line).get("role") == "parameter" for line in file)
                try:
                    made = getattr(t, config.architectures[0])(config)
                    print(config.architectures[0], recorded - len(list(made.parameters())))
                except Exception as error:
                    print(error)
        """)
        done = subprocess.run([sys.executable, "-c", script, self.folder.name, self.path], capture_output=True,
                              text=True,
                              env=dict(os.environ, PYTHONPATH=os.environ["TENCACHE_RECORDER"], HF_HUB_OFFLINE="1"))
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        lines = done.stdout.splitlines()
        self.assertEqual(lines[:4], ["T5ForConditionalGeneration 0", "WhisperForConditionalGeneration 0", "CLIPModel 0",
                                     "ViTForImageClassification 0"], done.stderr[-3000:])
        self.assertIn("BertModel computes no loss: recorded as BertLMHeadModel", done.stderr)
        self.assertIn("CLIPVisionModel refused tencache_recorder: a model of kind 'clip_vision_model'", lines[-1])

    # ---- Errors ------------------------------------------------------------------------------------------------------

    def test_a_training_that_ends_too_soon_says_so(self):
        program = Program()
        with self.assertRaisesRegex(tencache_recorder.RecorderError, "ended in step 2, before step 2"):
            self.record_steps(program, 2)
        with self.assertRaisesRegex(tencache_recorder.RecorderError, "no optimizer's step was seen"):
            self.record(program, lambda _: program.forward_and_backward())

    def test_an_error_of_the_program_is_the_programs(self):
        program = Program()

        def run(_):
            for number in range(4):
                program.step()
                if number == 2:
                    raise KeyError("mine")
        with self.assertRaises(KeyError):
            self.record(program, run, step=5)
        program.step()  # nothing of the recorder is left behind

    def test_bad_arguments(self):
        for path in ("run.json", os.path.join(self.folder.name, "no/run.trace.jsonl")):
            with self.assertRaises(tencache_recorder.RecorderError):
                tencache_recorder.record(path)
        with self.assertRaises(tencache_recorder.RecorderError):
            tencache_recorder.record(self.path, step=-1)

    def test_without_a_compiler_the_profiler_records(self):
        script = os.path.join(self.folder.name, "train.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent("""
                import torch
                model = torch.nn.Linear(8, 4)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for _ in range(6):
                    optimizer.zero_grad()
                    model(torch.randn(2, 8)).sum().backward()
                    optimizer.step()
            """))
        environment = dict(os.environ, CXX="no-such-compiler", PYTHONPATH=os.environ["TENCACHE_RECORDER"],
                           TENCACHE_RECORDER_CACHE=os.path.join(self.folder.name, "cache"), PATH="/nowhere")
        result = subprocess.run([sys.executable, "-m", "tencache_recorder", "-o", self.path, script],
                                capture_output=True, text=True, env=environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("no C++ compiler 'no-such-compiler'", result.stderr)
        self.assertIn("tencache import pytorch", result.stderr)
        for suffix in (".et.json", ".kineto.json"):
            with open(self.path.replace(".trace.jsonl", suffix), encoding="utf-8") as file:
                json.load(file)

    def test_the_command_records_a_script_and_stops_it(self):
        script = os.path.join(self.folder.name, "train.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent("""
                import sys, torch
                model = torch.nn.Linear(8, 4)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for step in range(int(sys.argv[1])):
                    optimizer.zero_grad()
                    model(torch.randn(2, 8)).sum().backward()
                    optimizer.step()
                print("trained", step + 1)
            """))
        environment = dict(os.environ, PYTHONPATH=os.environ["TENCACHE_RECORDER"])
        command = [sys.executable, "-m", "tencache_recorder", "-o", self.path]
        whole = subprocess.run(command + [script, "6"], capture_output=True, text=True, env=environment)
        self.assertEqual((whole.returncode, whole.stdout), (0, "trained 6\n"), whole.stderr)
        self.assertEqual(Trace(self.path).bytes_of("parameter"), 4 * (8 * 4 + 4))
        stopped = subprocess.run(command + ["--stop", script, "1000000000"], capture_output=True, text=True,
                                 env=environment, timeout=100)
        self.assertEqual((stopped.returncode, stopped.stdout), (0, ""), stopped.stderr)
        meta = subprocess.run(command + ["--meta", os.path.join(self.folder.name, "no-such-model")],
                              capture_output=True, text=True, env=dict(environment, HF_HUB_OFFLINE="1"))
        self.assertEqual(meta.returncode, 1)
        self.assertRegex(meta.stderr, "pip install transformers|no-such-model")
        neither = subprocess.run(command, capture_output=True, text=True, env=environment)
        self.assertEqual(neither.returncode, 2)
        self.assertIn("give the SCRIPT to record, or --meta CONFIG", neither.stderr)
        short = subprocess.run(command + [script, "1"], capture_output=True, text=True, env=environment)
        self.assertEqual(short.returncode, 1)
        self.assertIn("the training ended in step 1", short.stderr)

    def test_ranks_write_files_of_their_own(self):
        script = os.path.join(self.folder.name, "train.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent("""
                import torch, torch.distributed as distributed
                distributed.init_process_group("gloo")
                model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 32))
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for step in range(6):
                    optimizer.zero_grad()
                    model(torch.randn(2, 64)).sum().backward()
                    optimizer.step()
            """))
        processes = []
        for rank in range(2):
            # By number and interface: a computer need not know its own name.
            environment = dict(os.environ, PYTHONPATH=os.environ["TENCACHE_RECORDER"], RANK=str(rank), WORLD_SIZE="2",
                               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000),
                               GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1",
                               USE_LIBUV="0")  # Debian's PyTorch is built without
            command = [sys.executable, "-W", "ignore", "-m", "tencache_recorder", "-o", self.path, script]
            processes.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment))
        for rank, process in enumerate(processes):
            _, errors = process.communicate(timeout=100)
            self.assertEqual(process.returncode, 0, errors)
            trace = Trace(self.path.replace(".trace", f".rank{rank}.trace"))
            self.assertEqual(trace.bytes_of("parameter"), 4 * (64 * 32 + 32))
            self.assertEqual([op["module"] for op in trace.in_phase("forward") if op["name"] == "aten::addmm"], [""])


if __name__ == "__main__":
    unittest.main()
