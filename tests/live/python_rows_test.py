"""tencache.EmbeddingBag trains as torch.nn.EmbeddingBag does, to the last bit.

Where an optimizer sums the gradients of a row first (coalesce), PyTorch's order of three or more depends on the row's
number, so that such batches have each row once.
"""

import tempfile
import unittest

try:
    import torch
except ImportError:
    raise SystemExit(77)

import tencache

ROWS, WIDTH = 400, 6


def batches(seed, once, count=12):
    draw = torch.Generator().manual_seed(seed)
    for index in range(count):
        top = ROWS if index % 2 else 60
        ids = torch.randperm(top, generator=draw)[:40] if once else torch.randint(top, (40,), generator=draw)
        yield ids.view(8, 5), torch.randn(8, WIDTH, generator=draw)


class EmbeddingBagTest(unittest.TestCase):
    def train(self, make_optimizer, mode="sum", flat=False, once=False, **options):
        torch.manual_seed(1)
        plain = torch.nn.EmbeddingBag(ROWS, WIDTH, mode=mode, sparse=True)
        cached = tencache.EmbeddingBag(ROWS, WIDTH, mode, weight=plain.weight, **options)
        steps = [make_optimizer(plain.parameters()), make_optimizer(cached.parameters())]
        cached.attach(steps[1])
        for ids, target in batches(3, once):
            given = (ids.reshape(-1), torch.arange(0, ids.numel(), 5)) if flat else (ids,)
            outputs = []
            for module, step in zip((plain, cached), steps):
                step.zero_grad()
                output = module(*given)
                (output - target).square().sum().backward()
                step.step()
                outputs.append(output.detach())
            self.assertTrue(torch.equal(*outputs))
        self.assertTrue(torch.equal(plain.weight.detach(), cached.weight))
        return plain, cached

    def test_sgd_under_each_policy(self):
        for policy in ("cached-embedding", "uvm-lru", "uvm-lfu"):
            with self.subTest(policy):
                _, cached = self.train(lambda all: torch.optim.SGD(all, 0.1), policy=policy, slots=64)
                self.assertLess(cached._rows.slots, ROWS)

    def test_states_of_optimizers_move_with_their_rows(self):
        for name, make in {"Adagrad": lambda all: torch.optim.Adagrad(all, 0.1, initial_accumulator_value=0.5),
                           "SparseAdam": lambda all: torch.optim.SparseAdam(list(all), 0.1)}.items():
            with self.subTest(name):
                self.train(make, once=True, policy="cached-embedding", slots="15%")
                self.train(make, once=True, policy="uvm-lru", slots=32)

    def test_a_table_in_a_file_with_offsets(self):
        with tempfile.TemporaryDirectory() as folder:
            self.train(lambda all: torch.optim.SGD(all, 0.1), mode="mean", flat=True, slots=64, directory=folder)

    def test_weights_are_saved_and_loaded_whole(self):
        plain, cached = self.train(lambda all: torch.optim.SGD(all, 0.1), slots=64)
        state = cached.state_dict()
        self.assertEqual(list(state), ["weight"])
        plain.load_state_dict(state)
        other = tencache.EmbeddingBag(ROWS, WIDTH, "sum", slots=64)
        ids = next(batches(5, False))[0]
        other(ids)  # some of its rows lie in the arena
        other.load_state_dict(plain.state_dict())
        self.assertTrue(torch.equal(other(ids), plain(ids)))

    def test_mistakes_are_named(self):
        with self.assertRaisesRegex(tencache.Error, "needs ids before they are looked up"):
            tencache.EmbeddingBag(ROWS, WIDTH, policy="scratchpipe")
        with self.assertRaisesRegex(tencache.Error, "no share"):
            tencache.EmbeddingBag(ROWS, WIDTH, slots="x%")
        bag = tencache.EmbeddingBag(ROWS, WIDTH, policy="cached-embedding", slots=4)
        with self.assertRaisesRegex(tencache.Error, "need 5 different rows at once, more than 4 slots"):
            bag(torch.arange(5).view(1, 5))
        with self.assertRaisesRegex(tencache.Error, "id 400 is beyond the table's 400 rows"):
            bag(torch.tensor([[400]]))
        with self.assertRaisesRegex(tencache.Error, "direct_rows=2"):
            tencache.EmbeddingBag(ROWS, WIDTH, slots=32, direct_rows=2)(torch.arange(ROWS).view(1, -1))
        with self.assertRaisesRegex(tencache.Error, "no parameter of this"):
            bag.attach(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1))


if __name__ == "__main__":
    unittest.main()
