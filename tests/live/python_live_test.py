"""What `tencache.live` does for programs of kinds that were not foreseen: modules made in the loop, phases that differ,
training without models, weights in files that others use as well, too little memory. All in one process; each program
has the bits of PyTorch alone."""

import gc
import io
import itertools
import os
import tempfile
import unittest
import unittest.mock
import warnings

warnings.simplefilter("ignore")
import numpy  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

import tencache  # noqa: E402
from tencache_recorder import _program as objects  # noqa: E402

torch.set_num_threads(1)
OutOfMemoryError = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError


def layers(count, width=128):
    return nn.Sequential(*[layer for _ in range(count) for layer in (nn.Linear(width, width), nn.GELU())])


def train(model, steps, loss, **options):
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    for step in range(steps):
        loss(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().clone().numpy().tobytes() for parameter in model.parameters()]


class Program(unittest.TestCase):
    def both(self, program, policy="foresight", **options):
        """The report of a run that computed what PyTorch alone computes."""
        torch.manual_seed(1)
        plain = program()
        torch.manual_seed(1)
        with tencache.live(policy, pace=False, quiet=True, **options) as run:
            self.assertEqual(program(), plain)
        gc.collect()
        self.trace = run.recorded()
        return run.report()

    def on_schedule(self, report):
        """But for what comes after the last step."""
        self.assertLessEqual(report["deviations"], 1)
        self.assertIn(f"step {len(report['step_seconds'])}", report["first_deviation"] or "step 8")


class Live(Program):
    def test_modules_that_are_made_in_the_loop_are_not_looked_for(self):
        """A loss, an activation within the model, and a copy of the model, in each step."""
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(128, 128)

            def forward(self, x):
                return nn.GELU()(self.layer(x))

        def loss(model, step):
            import copy
            x = torch.randn(8, 128)
            return nn.MSELoss()(model(x), copy.deepcopy(model)(x).detach() + 1)

        walks = unittest.mock.patch.object(objects, "find_program", wraps=objects.find_program)
        with walks as walk:
            report = self.both(lambda: train(Model(), 8, loss), gpu_memory="16MiB")
            self.assertLessEqual(walk.call_count, 2)
        self.on_schedule(report)

    def test_a_second_phase_becomes_the_schedule(self):
        """Augmentation in the first six of 20 steps."""
        def loss(model, step):
            x = torch.randn(8, 128)
            x = x * 1.0 + 0.1 if step < 6 else x
            return (model(x) - x).square().mean()
        report = self.both(lambda: train(layers(4), 20, loss, foreach=False), gpu_memory="1MiB")
        self.assertLessEqual(report["deviations"], 4, report["first_deviation"])
        self.assertGreater(report["ops_on_schedule"] / report["ops"], 0.9)

    def test_training_without_a_model(self):
        def program(optimizer):
            weights = [torch.randn(128, 128, requires_grad=True) for _ in range(8)]
            update = torch.optim.SGD(weights, lr=0.1) if optimizer else None
            for _ in range(8):
                h = torch.randn(16, 128)
                for weight in weights:
                    h = torch.tanh(h @ weight)
                if update is not None:
                    h.sum().backward()
                    update.step()
                    update.zero_grad()
                    continue
                gradients = torch.autograd.grad(h.sum(), weights)
                with torch.no_grad():
                    for weight, gradient in zip(weights, gradients):
                        weight.sub_(gradient, alpha=0.1)
            return [weight.detach().clone().numpy().tobytes() for weight in weights]
        for optimizer in (True, False):
            with self.subTest(optimizer=optimizer):
                report = self.both(lambda: program(optimizer), gpu_memory="320KiB")
                self.assertGreaterEqual(report["adopted_bytes"], 8 * 128 * 128 * 4)
                self.assertGreater(report["evictions"], 0)
                self.assertEqual(len(report["step_seconds"]), 8)
                self.assertGreater(report["ops_on_schedule"] / report["ops"], 0.9)

    def test_checkpointing_that_runs_a_backward_pass_within_another_keeps_the_schedule(self):
        from torch.utils.checkpoint import checkpoint

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = nn.ModuleList(layers(2) for _ in range(4))

            def forward(self, x):
                for block in self.blocks:
                    x = checkpoint(block, x, use_reentrant=True)
                return nn.Identity()(x)

        def loss(model, step):
            return nn.MSELoss()(model(torch.randn(8, 128).requires_grad_()), torch.zeros(8, 128))
        report = self.both(lambda: train(Model(), 8, loss), gpu_memory="1MiB")
        self.on_schedule(report)

    def test_the_largest_op_on_lists_is_its_largest_element(self):
        model_bytes = sum(parameter.nbytes if hasattr(parameter, "nbytes") else 4 * parameter.numel()
                          for parameter in layers(8).parameters())

        def program():
            return train(layers(8), 6, lambda model, step: model(torch.randn(4, 128)).square().mean(), foreach=True)
        report = self.both(program, policy="on-demand", gpu_memory="64MiB")
        self.assertLess(report["largest_op_bytes"], model_bytes / 2, report["largest_op"])
        least = self.both(program, gpu_memory=f"{report['largest_op_bytes']}B")
        self.assertGreater(least["split_ops"], 0)

    def test_an_op_that_did_not_fit_is_not_the_least_that_will_do(self):
        with tencache.live("lru", gpu_memory="1MiB", pace=False, quiet=True) as run:
            model = layers(2)
            for rows in (16384, 8192, 16):
                try:
                    model(torch.randn(rows, 128)).sum().backward()
                except OutOfMemoryError as error:
                    self.assertIn("it needs at least", str(error))
                    del error
            gc.collect()
            self.assertEqual(rows, 16)
        self.assertLess(run.report()["largest_op_bytes"], 1 << 20)


class Sleep(Program):
    """Of programs that fit, once the schedule is known."""

    def test_all_but_the_first_steps_are_asleep_unless_somebody_has_to_see_them(self):
        def program():
            return train(layers(4), 8, lambda model, step: model(torch.randn(8, 128)).square().mean())
        report = self.both(program, gpu_memory="16MiB")
        self.assertEqual((report["steps_asleep"], report["ops"], report["deviations"]), (6, 0, 0))
        self.assertEqual(len(report["step_seconds"]), 8)
        peak = report["peak_bytes"]
        report = self.both(program, gpu_memory="16MiB", sleep=False)
        self.assertEqual(report["steps_asleep"], 0)
        self.assertGreater(report["ops_on_schedule"], 100)
        with tempfile.TemporaryDirectory() as folder:
            report = self.both(program, gpu_memory="16MiB", timeline=os.path.join(folder, "timeline.json"))
        self.assertEqual(report["steps_asleep"], 0)
        report = self.both(program, gpu_memory=f"{peak // 2}B")
        self.assertEqual(report["steps_asleep"], 0)
        self.assertGreater(report["evictions"], 0)

    def test_steps_that_grow_wake_it(self):
        """Lists of tensors included: awake, such ops run in groups."""
        for foreach in (False, True):
            def program():
                return train(layers(4), 14, lambda model, step: model(torch.randn(8 + 48 * step, 128)).square().mean(),
                             foreach=foreach)
            peak = self.both(program, gpu_memory="64MiB", sleep=False)["peak_bytes"]
            for share in (0.6, 0.8, 0.95):
                with self.subTest(foreach=foreach, share=share):
                    report = self.both(program, gpu_memory=f"{int(share * peak)}B")
                    self.assertGreater(report["evictions"], 0)
                    self.assertGreater(report["steps_asleep"] + (share < 0.8), 0)

    def test_code_outside_of_ops_while_asleep_and_after(self):
        """Views of numpy read and write; a checkpoint; an evaluation; a copy of the model; a worker process."""
        def program():
            model, seen = layers(3), []
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            known = model[2].bias.detach().numpy()
            for step in range(12):
                loss = model(torch.randn(1024 if step == 9 else 8, 128)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                known[step] += 1
                seen.append((loss.tolist(), known.tobytes()))
                if step == 5:
                    file = io.BytesIO()
                    torch.save(model.state_dict(), file)
                    file.seek(0)
                    seen.append([value.numpy().tobytes() for value in torch.load(file).values()])
                    with torch.no_grad():
                        seen.append(model(torch.ones(4, 128)).numpy().tobytes())
                    loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, num_workers=1)
                    seen.append([batch.tolist() for batch in loader])
                if step == 7:
                    import copy
                    model[4].load_state_dict(copy.deepcopy(model[0]).state_dict())
            return seen + [parameter.detach().clone().numpy().tobytes() for parameter in model.parameters()]
        for memory, least in (("16MiB", 9), ("1600KiB", 6)):
            with self.subTest(memory=memory):
                report = self.both(program, gpu_memory=memory)
                self.assertGreaterEqual(report["steps_asleep"], least)
                self.assertEqual(report["evictions"] > 0, memory != "16MiB")

    def test_a_process_group_keeps_it_awake(self):
        def program():
            model = layers(2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(10):
                if step == 5:
                    with tempfile.TemporaryDirectory() as folder:
                        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0,
                                                             world_size=1)
                model(torch.ones(4, 128)).sum().backward()
                for parameter in model.parameters() if step >= 5 else ():
                    torch.distributed.all_reduce(parameter.grad)
                optimizer.step()
                optimizer.zero_grad()
            torch.distributed.destroy_process_group()
            return [parameter.detach().clone().numpy().tobytes() for parameter in model.parameters()]
        if not torch.distributed.is_available():
            self.skipTest("this PyTorch has no torch.distributed")
        report = self.both(program, gpu_memory="16MiB")
        self.assertEqual(report["steps_asleep"], 3)  # until the group was made


def storage_of(tensor):
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage().untyped()


class States(unittest.TestCase):
    def test_a_checkpoint_before_the_first_parameter(self):
        """With a budget for the whole process nothing is paged until then."""
        run = tencache.live("lru", memory="8GiB", pace=False, quiet=True)
        run.start(new_program=True)
        try:
            torch.save([torch.ones(3)], io.BytesIO())
        finally:
            run.__exit__(None, None, None)
        self.assertEqual(run.report(), {})

    def test_an_optimizer_that_steps_within_the_backward_pass(self):
        """What follows its step is still the backward pass; and the recorded step says what it is of."""
        model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32))
        weights = nn.Parameter(torch.ones(32))
        weights.grad, given = torch.ones(32), torch.ones(4, 32)
        optimizer, other = (torch.optim.SGD(of, lr=1e-3) for of in (model.parameters(), [weights]))
        model[1].register_forward_hook(lambda _, __, result: result.register_hook(lambda _: other.step()) and None)
        with tencache.live("lru", gpu_memory="1MiB", pace=False, quiet=True) as run:
            for _ in range(3):
                loss = model(given).sum()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
        trace = run.recorded()
        phases = [phase for phase, _ in itertools.groupby(tencache.PHASES[phase] for phase in trace.ops["phase"])]
        self.assertEqual(phases, ["forward", "backward", "optimizer", "backward", "optimizer"])
        self.assertEqual(trace.header["model"], "Sequential")


class MappedFiles(unittest.TestCase):
    """Of 256 KiB, of which tensors are made as readers of safetensors make them: from parts of a mapped storage."""

    BYTES = 1 << 18

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "weights")
        self.content = numpy.random.default_rng(0).standard_normal(self.BYTES // 4, dtype=numpy.float32)
        self.content.tofile(self.path)
        self.after = ((self.content - 0.5) - 0.5) - 0.5  # of what three steps make

    def open(self):
        return storage_of(torch.from_file(self.path, shared=False, size=self.BYTES, dtype=torch.uint8))

    @staticmethod
    def part(storage, begin, end):
        return torch.empty(0, dtype=torch.uint8).set_(storage[begin:end]).view(torch.float32)

    def trained(self, tensors):
        """Trains tensors of a file as weights, under a run; returns its report."""
        model = nn.Module()
        model.weights = nn.ParameterList()
        model.forward = lambda: sum(weight.sum() for weight in model.weights)
        with tencache.live("lru", gpu_memory="4MiB", pace=False, quiet=True) as run:
            for tensor in tensors:
                model.weights.append(nn.Parameter(tensor))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            for _ in range(3):
                model().backward()
                optimizer.step()
                optimizer.zero_grad()
            self.seen = [weight.detach().clone() for weight in model.weights]
            report = run.report()
            self.check()
        return report

    def check(self):
        pass

    def test_parts_that_nobody_else_uses_are_left_in_the_file(self):
        storage = self.open()
        halves = [self.part(storage, 0, self.BYTES // 2), self.part(storage, self.BYTES // 2, self.BYTES)]
        del storage
        report = self.trained(halves)
        self.assertEqual(report["bytes_left_in_files"], self.BYTES)
        self.assertTrue((torch.cat(self.seen).numpy() == self.after).all())

    def test_parts_that_overlap_go_on_sharing_their_bytes(self):
        storage = self.open()
        whole, rows = self.part(storage, 0, self.BYTES), self.part(storage, 4096, 8192)
        del storage
        self.check = lambda: self.assertTrue(torch.equal(rows, self.seen[0][1024:2048]))
        report = self.trained([whole])
        self.assertEqual((report["bytes_left_in_files"], report["unadopted_bytes"] > 0), (0, True))
        self.assertTrue((rows.numpy() == self.after[1024:2048]).all())

    def test_a_file_that_is_still_open_can_be_read_again(self):
        storage = self.open()
        self.check = lambda: self.assertTrue(torch.equal(self.part(storage, 0, self.BYTES), self.seen[0]))
        report = self.trained([self.part(storage, 0, self.BYTES)])
        self.assertEqual(report["bytes_left_in_files"], 0)

    def test_a_mapping_of_numpys_stays_numpys(self):
        array = numpy.memmap(self.path, dtype=numpy.float32, mode="c")
        self.check = lambda: self.assertTrue((array == self.seen[0].numpy()).all())
        self.trained([torch.from_numpy(array)])
        self.assertTrue((array == self.after).all())


if __name__ == "__main__":
    unittest.main()
