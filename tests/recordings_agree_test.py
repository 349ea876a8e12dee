"""One model recorded in four ways is one trace: by the recorder's observer, by PyTorch's execution trace and Kineto
through `import pytorch`, under fake tensors (--meta), and as `tencache generate` describes it.

A GPT-2 of three layers without dropout, in fp32. Needs Hugging Face's transformers and PyTorch 2.1; skipped where they
are absent. TENCACHE and TENCACHE_RECORDER are as for recorder_test.py.
"""

import collections
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import warnings

warnings.simplefilter("ignore")
sys.path.insert(0, os.environ["TENCACHE_RECORDER"])
TENCACHE = os.environ["TENCACHE"]

try:
    import torch
    import transformers
    import tencache_recorder
    MISSING = None if hasattr(torch.nn.functional, "scaled_dot_product_attention") else "PyTorch is too old"
except ImportError as error:
    MISSING = str(error)

CONFIG = {"model_type": "gpt2", "n_layer": 3, "n_embd": 128, "n_head": 4, "n_positions": 256, "vocab_size": 2000,
          "activation_function": "gelu", "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0,
          "eos_token_id": 0}
BATCH, LENGTH = 4, 128
PARAMETERS = 4 * (2000 * 128 + 256 * 128 + 3 * (12 * 128 * 128 + 13 * 128) + 2 * 128)


class Recorded:
    def __init__(self, path):
        info = subprocess.run([TENCACHE, "info", "--json", path], check=True, capture_output=True, text=True)
        self.sizes = json.loads(info.stdout)["tensors"]
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        self.tensors = [line for line in lines if line["kind"] == "tensor"]
        self.ops = [line for line in lines if line["kind"] == "op"]

    def bytes_of(self, role):
        return self.sizes["by_role"][role]["bytes"]

    def peak(self):
        """Of tensors that are not persistent, from their first to their last use."""
        uses = {}
        for number, op in enumerate(self.ops):
            for i in op["reads"] + op["writes"]:
                if not self.tensors[i]["persistent"]:
                    uses[i] = (uses.get(i, (number,))[0], number)
        changes = [0] * (len(self.ops) + 1)
        for i, (first, last) in uses.items():
            changes[first] += self.tensors[i]["bytes"]
            changes[last + 1] -= self.tensors[i]["bytes"]
        return max(itertools.accumulate(changes))

    def order(self, phases):
        """The parameters that each op uses, in the order of the ops. What follows on itself counts once, and parameters
        are numbered as they come: an execution trace has no names."""
        numbers, order = {}, []
        for op in (op for op in self.ops if op["phase"] in phases):
            used = [i for i in dict.fromkeys(op["reads"] + op["writes"]) if self.tensors[i]["role"] == "parameter"]
            used.sort(key=lambda i: (-self.tensors[i]["bytes"], numbers.get(i, len(numbers))))
            step = [(numbers.setdefault(i, len(numbers)), self.tensors[i]["bytes"]) for i in used]
            if step and (not order or order[-1] != step):
                order.append(step)
        return order


@unittest.skipIf(MISSING, MISSING)
class FourWays(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        torch.set_num_threads(1)
        path = os.environ["PATH"]
        os.environ["PATH"] = os.path.dirname(os.path.abspath(TENCACHE)) + os.pathsep + path
        try:
            cls.ways = {"recorder": cls.train(library=True), "profiler": cls.train(library=False), "meta": cls.meta(),
                        "generator": cls.generate()}
        finally:
            os.environ["PATH"] = path

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder.name, name)

    @classmethod
    def config(cls):
        folder = cls.path("gpt2")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(CONFIG, file)
        return folder

    @classmethod
    def train(cls, library):
        config = transformers.AutoConfig.from_pretrained(cls.config())
        model = transformers.AutoModelForCausalLM.from_config(config)
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        tokens = torch.zeros((BATCH, LENGTH), dtype=torch.long)
        path = cls.path(f"{library}.trace.jsonl")
        with tencache_recorder.record(path, step=2, model=model, library=library, quiet=True):
            for _ in range(4):
                model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        return Recorded(path)

    @classmethod
    def meta(cls, *options, precision="fp32"):
        path = cls.path(f"meta-{precision}{''.join(options)}.trace.jsonl")
        subprocess.run([sys.executable, "-m", "tencache_recorder", "--meta", cls.config(), "--batch", str(BATCH),
                        "--sequence-length", str(LENGTH), "--precision", precision, *options, "--gpu", "l40s", "-o", path],
                       check=True, capture_output=True,
                       env=dict(os.environ, PYTHONPATH=os.environ["TENCACHE_RECORDER"],
                                PATH=os.path.dirname(os.path.abspath(TENCACHE)) + os.pathsep + os.environ["PATH"]))
        return Recorded(path)

    @classmethod
    def generate(cls, precision="fp32"):
        path = cls.path(f"generated-{precision}.trace.jsonl")
        subprocess.run([TENCACHE, "generate", "--model", os.path.join(cls.config(), "config.json"), "--batch", str(BATCH),
                        "--seq", str(LENGTH), "--precision", precision, "--gpu", "l40s", "--dropout", "none", "--clip",
                        "off", "-o", path], check=True, capture_output=True)
        return Recorded(path)

    def test_parameters_gradients_and_states_are_the_same_bytes(self):
        for name, way in self.ways.items():
            self.assertEqual(way.bytes_of("parameter"), PARAMETERS, name)
            self.assertEqual(way.sizes["gradients_of_step"]["bytes"], PARAMETERS, name)
            self.assertEqual(way.bytes_of("optimizer_state"), 2 * PARAMETERS, name)

    def test_activations_are_within_five_percent(self):
        of_recorder = self.ways["recorder"].bytes_of("activation")
        for name, way in self.ways.items():
            self.assertAlmostEqual(way.bytes_of("activation") / of_recorder, 1, delta=0.05, msg=name)

    def test_products_and_attention_have_the_same_shapes(self):
        def shapes(way):
            return collections.Counter((op["kernel"], *op["shape"]) for op in way.ops if op.get("shape"))

        def products(way):  # GPT-2 has its weights the other way round than Linear, and so their gradients
            return collections.Counter((batch, *sorted((m, n)), k) for batch, m, n, k in (
                op["shape"] for op in way.ops if op.get("kernel") == "matmul"))
        of_recorder = shapes(self.ways["recorder"])
        self.assertEqual(sum(count for key, count in of_recorder.items() if key[0] == "matmul"), 3 * (4 * 3 + 1))
        for name, way in self.ways.items():
            if name == "profiler" and shapes(way) == {}:
                continue  # a recording without shapes
            self.assertEqual({key[0] for key in shapes(way)}, {key[0] for key in of_recorder}, name)
            self.assertEqual(products(way), products(self.ways["recorder"]), name)

    def test_meta_and_generator_agree_in_gpu_time_and_peak(self):
        def milliseconds(way):
            return sum(op["duration_ns"] for op in way.ops if op["phase"] != "optimizer") / 1e6
        meta = self.ways["meta"]
        self.assertAlmostEqual(milliseconds(self.ways["generator"]) / milliseconds(meta), 1, delta=0.05)
        peaks = [way.peak() for way in (self.ways["generator"], meta)]
        self.assertAlmostEqual(peaks[0] / peaks[1], 1, delta=0.03)

    def test_sixteen_bit_parameters_have_masters_unless_they_are_left_out(self):
        for way in (self.meta(precision="bf16"), self.generate(precision="bf16")):
            self.assertEqual(way.bytes_of("parameter"), PARAMETERS // 2)
            self.assertEqual(way.bytes_of("master_parameter"), PARAMETERS)
            self.assertEqual(way.bytes_of("optimizer_state"), 2 * PARAMETERS)
        plain = self.meta("--master", "off", precision="bf16")
        self.assertEqual(plain.sizes["by_role"].get("master_parameter"), None)
        self.assertEqual(plain.bytes_of("optimizer_state"), PARAMETERS)

    def test_parameters_are_used_in_the_same_order(self):
        for phases in (["forward", "loss"], ["backward"], ["optimizer"]):
            order = self.ways["recorder"].order(phases)
            self.assertTrue(order)
            for name, way in self.ways.items():
                self.assertEqual(way.order(phases), order, (name, phases))


if __name__ == "__main__":
    unittest.main()
