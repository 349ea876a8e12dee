"""Random programs of ops, views, writes in place, numpy's reads and writes, frees, exceptions and forks: under a policy
in little memory each computes what it computes in plain PyTorch, to the bit.

    python_random_test.py                              200 programs
    python_random_test.py --programs 10000 --seed 7    others; what fails is said with its seed
"""

import argparse
import os
import random
import sys

import torch

import tencache

BATCH = 100  # programs a run
SIDE = 96    # tensors are SIDE x SIDE floats at most: 36 KiB


class Program:
    """A walk over a pool of tensors; `log` is all that it has seen of them."""

    def __init__(self, seed, forks):
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.pool, self.arrays, self.log, self.forks = [], [], [], forks

    def run(self):
        for _ in range(3):
            self.make()
        actions = [self.make, self.compute, self.compute, self.in_place, self.in_place, self.view, self.numpy_read,
                   self.numpy_write, self.numpy_keep, self.numpy_kept_write, self.free, self.fail, self.copy,
                   self.lists, self.gradient, self.look]
        for _ in range(self.random.randint(20, 60)):
            self.random.choice(actions)()
        if self.forks and self.random.random() < 0.05:
            self.fork()
        for tensor in self.pool:
            self.log.append(tensor.detach().contiguous().clone().numpy().tobytes())
        return self.log

    def any(self):
        return self.random.choice(self.pool)

    def add(self, tensor):
        self.pool.append(tensor.detach())
        if len(self.pool) > 12:
            self.pool.pop(self.random.randrange(len(self.pool)))

    def make(self):
        shape = (self.random.choice([1, 8, SIDE]), SIDE)
        kind = self.random.choice(["randn", "zeros", "empty", "arange"])
        if kind == "randn":
            self.add(torch.randn(shape, generator=self.generator))
        elif kind == "zeros":
            self.add(torch.zeros(shape))
        elif kind == "empty":
            self.add(torch.empty(shape).fill_(self.random.random()))
        else:
            self.add(torch.arange(shape[0] * SIDE, dtype=torch.float32).view(shape) / 7)

    def compute(self):
        one, other = self.any(), self.any()
        op = self.random.choice(["add", "mul", "matmul", "softmax", "cat", "where", "sum"])
        if op == "add":
            self.add(one + other[:1, :1])
        elif op == "mul":
            self.add(one * 0.5)
        elif op == "matmul" and one.dim() == 2 and other.dim() == 2 and one.shape[1] == other.shape[1]:
            self.add((one @ other.t()).tanh())
        elif op == "softmax":
            self.add(one.softmax(-1))
        elif op == "cat" and one.shape[1:] == other.shape[1:] and one.shape[0] + other.shape[0] <= 2 * SIDE:
            self.add(torch.cat([one, other])[-SIDE:])
        elif op == "where":
            self.add(torch.where(one > 0, one, -one))
        else:
            self.add(one.sum(-1, keepdim=True).expand(one.shape).contiguous())

    def in_place(self):
        one = self.any()
        op = self.random.choice(["add_", "mul_", "zero_", "copy_", "slice", "clamp_"])
        if op == "add_":
            one.add_(self.random.random())
        elif op == "mul_":
            one.mul_(0.75)
        elif op == "zero_":
            one[0].zero_()
        elif op == "copy_":
            one.copy_(self.any()[:1, :1].clone())
        elif op == "slice":
            one[:, ::2] += 1
        else:
            one.clamp_(-3, 3)

    def view(self):
        one = self.any()
        views = [lambda: one[::2], lambda: one[:, 1:], lambda: one[-1:]]
        self.add(self.random.choice(views)() if one.shape[1] > 2 else one)

    def numpy_read(self):
        self.log.append(self.any().numpy().copy().tobytes())

    def numpy_write(self):
        array = self.any().numpy()
        array[self.random.randrange(array.shape[0]), self.random.randrange(array.shape[1])] = self.random.random()

    def numpy_keep(self):
        self.arrays = self.arrays[-3:] + [self.any().numpy()]

    def numpy_kept_write(self):
        if self.arrays:
            array = self.random.choice(self.arrays)
            array[0, :] = self.random.random()
            self.log.append(array.tobytes())

    def free(self):
        if len(self.pool) > 3:
            self.pool.pop(self.random.randrange(len(self.pool)))

    def fail(self):
        try:
            self.any() @ torch.zeros(SIDE + 1, 2)
        except RuntimeError:
            self.log.append(b"refused")

    def copy(self):
        self.add(self.any().clone())

    def lists(self):
        tensors = [tensor for tensor in self.pool if tensor.is_contiguous()]
        if tensors:
            self.pool += torch._foreach_mul(tensors[:4], 0.9)
            self.pool = self.pool[-12:]

    def gradient(self):
        leaf = self.any().clone().requires_grad_()
        (leaf * leaf.sigmoid()).sum().backward()
        self.add(leaf.grad)

    def look(self):
        self.log.append(repr((self.any()[0, 0].item(), self.any()[-1].tolist()[:2])).encode())

    def fork(self):
        """A child has its own tensors, and none of its parent's."""
        child = os.fork()
        if child == 0:
            os._exit(0 if sum(range(10)) == 45 else 1)
        self.log.append(repr(os.waitpid(child, 0)[1]).encode())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the first program")
    given = parser.parse_args()
    torch.set_num_threads(1)
    evictions = faults = 0
    for begin in range(given.seed, given.seed + given.programs, BATCH):
        seeds = range(begin, min(begin + BATCH, given.seed + given.programs))
        plain = [Program(seed, True).run() for seed in seeds]
        policy = ("on-demand", "lru", "foresight")[begin // BATCH % 3]
        with tencache.live(policy, gpu_memory="320KiB", cpu_memory="64MiB", quiet=True) as run:
            run.step()
            for seed, expected in zip(seeds, plain):
                assert Program(seed, True).run() == expected, f"program {seed} under {policy} computes something else"
        evictions += run.report()["evictions"]
        faults += run.report()["faults"]
    assert evictions > given.programs and faults > given.programs / 10, (evictions, faults)
    print(f"{given.programs} programs, {evictions} evictions, {faults} accesses outside of ops served")


if __name__ == "__main__":
    main()
