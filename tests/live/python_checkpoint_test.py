"""Recomputation of a real program: which blocks a recording offers, a plan of `tune --plan`, and `tencache.checkpoint`,
under which a program has the bits that it has without. All in one process."""

import gc
import json
import os
import pickle
import tempfile
import unittest
import warnings

warnings.simplefilter("ignore")
import torch  # noqa: E402
from torch import nn  # noqa: E402

import tencache  # noqa: E402
from tencache._live import Live, Options  # noqa: E402
from tencache_recorder import _choices  # noqa: E402

torch.set_num_threads(1)

# Moving takes as long as computing does: what is recomputed need not be moved.
MACHINE = {
    "name": "small", "initial_tier": "nvme",
    "tiers": [{"name": "gpu", "kind": "gpu", "capacity": "64MiB", "granularity": "4KiB"},
              {"name": "nvme", "kind": "nvme", "capacity": "4GiB", "granularity": "4KiB"}],
    "links": [{"name": name, "from": one, "to": other, "bandwidth": "20MB/s"}
              for name, one, other in (("nvme_read", "nvme", "gpu"), ("nvme_write", "gpu", "nvme"))]}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(0.2)

    def forward(self, x):
        return x + self.drop(self.down(torch.tanh(self.up(x))))


class Model(nn.Module):
    def __init__(self, width=32, count=4):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(count))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train(plan=None, steps=4, micro_batches=2, model=None):
    torch.manual_seed(1)
    model = model or Model()
    if plan is not None:
        tencache.checkpoint(model, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(steps):
        for _ in range(micro_batches):
            loss = model(torch.randn(64, 32)).square().mean()
            loss.backward()
            losses.append(loss.item())
        with torch.no_grad():  # an evaluation counts no micro-batch
            model(torch.randn(8, 32))
        optimizer.step()
        optimizer.zero_grad()
    return losses, [parameter.detach().numpy().tobytes() for parameter in model.parameters()]


class WithPlan(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.plain = train()
        with tencache.live(gpu_memory="64MiB", pace=False, quiet=True) as run:
            train()
        gc.collect()
        cls.trace = run.recorded()
        cls.plan = cls.path("plan.json")
        tencache.tune(cls.trace, MACHINE, "lru", gpu_memory="200KiB", budget=1, plan=cls.plan)
        with open(cls.plan, encoding="utf-8") as file:
            cls.text = file.read()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder.name, name)

    def written(self, text):
        path = self.path("other.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_a_recording_has_a_choice_for_each_block_and_micro_batch(self):
        self.assertEqual([(one["module"], one["micro_batch"]) for one in self.trace.choices],
                         [(f"blocks.{block}", batch) for batch in (0, 1) for block in (3, 2, 1, 0)])
        names = [self.trace.op_names[op] for op in self.trace.choices[0]["block"]]
        self.assertEqual(names.count("aten::tanh"), 1)
        self.assertEqual(names.count("aten::addmm"), 2)
        self.assertEqual(names[-1] != "aten::add.Tensor", _choices.STOPS_EARLY)  # nobody reads what it makes

    def test_a_plan_is_the_same_bytes_again_and_recomputes_something(self):
        again = self.path("again.json")
        tencache.tune(self.trace, MACHINE, "lru", gpu_memory="200KiB", budget=1, plan=again)
        with open(again, encoding="utf-8") as file:
            self.assertEqual(file.read(), self.text)
        document = json.loads(self.text)
        self.assertEqual(document["micro_batches"], 2)
        self.assertEqual([(layer["module"], layer["micro_batch"]) for layer in document["layers"]],
                         [(f"blocks.{block}", batch) for batch in (0, 1) for block in range(4)])
        predicted = {name: run["seconds"] for name, run in document["predicted"].items()}
        self.assertLess(predicted["plan"], predicted["keep"])
        self.assertIn("block", [layer["level"] for layer in document["layers"]])

    def test_losses_and_weights_have_the_same_bits(self):
        every = self.written(self.text.replace('"keep"}', '"block"}'))
        other = json.loads(self.text)
        for number, layer in enumerate(other["layers"]):
            layer["level"] = "block" if number % 3 == 0 else "keep"
        for plan in (self.plan, every):
            self.assertEqual(train(plan), self.plain)
        self.assertEqual(train(self.written(json.dumps(other))), self.plain)

    def test_a_micro_batch_has_its_own_level(self):
        other = json.loads(self.text)
        for layer in other["layers"]:
            layer["level"] = "block" if (layer["module"], layer["micro_batch"]) == ("blocks.2", 1) else "keep"
        model = Model()
        tencache.checkpoint(model, self.written(json.dumps(other)))
        calls = []
        plain = Block.forward
        self.addCleanup(setattr, Block, "forward", plain)
        Block.forward = lambda block, x: (calls.append(model.blocks[2] is block), plain(block, x))[1]
        for expected in (1, 2, 1, 2):  # how often the third block runs
            calls.clear()
            model(torch.randn(4, 32)).sum().backward()
            self.assertEqual((len(calls), sum(calls)), (3 + expected, expected))

    def test_a_model_with_a_plan_can_be_pickled(self):
        model = Model()
        tencache.checkpoint(model, self.plan)
        copy = pickle.loads(pickle.dumps(model))
        self.assertEqual(sorted(copy.state_dict()), sorted(Model().state_dict()))
        copy(torch.randn(4, 32)).sum().backward()

    def test_a_live_run_applies_the_plan(self):
        ops = {}
        for plan in ("", self.plan):
            run = Live(Options(gpu_memory="64MiB", pace=False, quiet=True, plan=plan).check())
            with run:
                self.assertEqual(train(), self.plain)
            gc.collect()
            ops[plan] = run.recorded().op_names.count("aten::tanh")
        levels = [layer["level"] for layer in json.loads(self.text)["layers"]]
        self.assertEqual(ops[self.plan] - ops[""], levels.count("block"))

    def test_what_is_recomputed_already_is_no_choice(self):
        with tencache.live(gpu_memory="64MiB", pace=False, quiet=True) as run:
            train(self.written(self.text.replace('"keep"}', '"block"}')))
        gc.collect()
        trace = run.recorded()
        self.assertEqual(trace.choices, [])
        with self.assertRaisesRegex(tencache.Error, "no plan of recomputation: no choice: blocks.0 and 3 more"):
            tencache.tune(trace, MACHINE, "lru", plan=self.path("none.json"))
        self.assertFalse(os.path.exists(self.path("none.json")))

    def refused(self, message, text, model=None):
        model = model or Model()
        with self.assertRaisesRegex(tencache.Error, message):
            tencache.checkpoint(model, self.written(text))
        for module in model.modules():  # nothing is half applied
            self.assertNotIn("forward", vars(module))
            self.assertNotIn("_tencache_plan", vars(module))

    def test_mistakes_are_said_with_their_place(self):
        line = 1 + self.text[:self.text.index('"blocks.3"')].count("\n")
        self.refused(f"other.json:{line}: the model .Model. has no module 'blocks.3': the plan is of another one",
                     self.text, Model(count=3))
        self.refused("other.json:4: the plan is of another model .Model.: parameters of the layers have other names or",
                     self.text, Model(width=16))
        self.refused("other.json:1: not JSON .Expecting value", "")
        self.refused("other.json:3: not JSON", self.text.replace('"model":', '"model"'))
        self.refused("other.json:1: not a plan: it has no 'layers'", "[1]")
        self.refused("other.json:2: format version 2 is not known", self.text.replace('version": 1', 'version": 2'))
        self.refused("other.json:3: unknown key 'modle'; the keys are", self.text.replace('"model"', '"modle"'))
        self.refused("'blocks.0' has level 'block!'; it is one of keep, block",
                     self.text.replace('block"}', 'block!"}').replace('keep"}', 'block!"}'))
        self.refused("'blocks.0' has micro_batch 7; there are 2",
                     self.text.replace('"micro_batch":0', '"micro_batch":7', 1))
        self.refused("'blocks.0' stands twice for micro-batch 1",
                     self.text.replace('"micro_batch":0', '"micro_batch":1', 1))
        with self.assertRaisesRegex(tencache.Error, "nowhere.json: No such file .*; `tencache tune --plan"):
            tencache.checkpoint(Model(), "nowhere.json")

    def test_two_plans_on_one_model(self):
        model = Model()
        tencache.checkpoint(model, self.plan)
        forwards = [vars(module).get("forward") for module in model.modules()]
        with self.assertRaisesRegex(tencache.Error, "the model has a plan already, .*plan.json: apply one of the two"):
            tencache.checkpoint(model, self.plan)
        self.assertEqual([vars(module).get("forward") for module in model.modules()], forwards)

    def test_a_model_that_recomputes_or_caches_already(self):
        model = Model()
        model.blocks[1].gradient_checkpointing = True
        self.refused("the model recomputes all of its layers already", self.text, model)
        model.blocks[1].gradient_checkpointing = False
        model.config = type("Config", (), {"use_cache": True})()
        self.refused("set model.config.use_cache = False", self.text, model)


class Choices(unittest.TestCase):
    """By hand: w is a parameter, x what the block gets, a and b what it makes, g gradients."""
    TENSORS = [(name, name in "ws") for name in "wxabgys"]
    W, X, A, B, G, Y, S = range(7)

    def of(self, *ops, early=False):
        return _choices.find_choices(ops, self.TENSORS, early)

    def block(self, extra=(), second=("relu", "forward", "net.0", [2], [3])):
        return (("embed", "forward", "", [0], [1]), ("mm", "forward", "net.0.fc", [0, 1], [2]), second, *extra,
                ("loss", "loss", "", [3], [4]), ("relu_backward", "backward", "", [2, 4], [4]),
                ("mm_backward", "backward", "", [1, 4], [4]))

    def test_a_block_runs_again_before_the_first_op_that_reads_what_only_it_uses(self):
        choices, refused = self.of(*self.block())
        self.assertEqual(choices, [{"kind": "choice", "module": "net.0", "micro_batch": 0, "before": 4,
                                    "block": [1, 2]}])
        self.assertEqual(refused, {})

    def test_ends_with_what_the_backward_pass_reads(self):
        self.assertEqual(self.of(*self.block(), early=True)[0][0]["block"], [1])

    def test_refusals(self):
        for reason, ops in (
                ("changes 's', which outlives the step (norm)", self.block(second=("norm", "forward", "net.0", [2],
                                                                                  [3, self.S]))),
                ("changes 'x' in place, which was made before it (add_)", self.block(second=(
                    "add_", "forward", "net.0", [2, self.X], [3, self.X]))),
                ("made 'a', which is changed in place after it", self.block(extra=[("mul_", "forward", "", [], [2])])),
                ("reads 'x', which is changed before its backward pass", self.block(
                    extra=[("mul_", "forward", "", [], [1])])),
                ("keeps nothing for its backward pass that only it uses", self.block()[:-2]),
                ("is called more than once before a backward pass", self.block(
                    extra=[("id", "forward", "", [3], [5]), ("mm", "forward", "net.0.fc", [0, 5], [6 - 1])]))):
            self.assertEqual(self.of(*ops), ([], {"net.0": reason}))

    def test_why_a_step_has_none(self):
        self.assertEqual(_choices.why_none({}), "no module of the step is a child of a ModuleList or Sequential")
        self.assertEqual(_choices.why_none({"a.0": "is x", "a.1": "is x", "b.0": "is y"}),
                         "a.0 and 1 more is x; b.0 is y")


if __name__ == "__main__":
    unittest.main()
