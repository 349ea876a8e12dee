#!/usr/bin/env python3
"""What the recorder adds to a training step on the CPU: python3 bench/recorder_overhead.py [--pairs N]

Trains a small transformer (a step of a few hundred milliseconds) and sets each recorded step beside the plain ones around
it, in one process. Prints medians, and their ratio with its quartiles.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "traces"))
import torch
import recorder as tencache_recorder


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.attention = torch.nn.MultiheadAttention(width, 8, batch_first=True)
        self.mlp = torch.nn.Sequential(torch.nn.LayerNorm(width), torch.nn.Linear(width, 4 * width), torch.nn.GELU(),
                                       torch.nn.Linear(4 * width, width))

    def forward(self, x):
        normed = self.norm(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.mlp(x)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20, help="recorded steps, each between plain ones")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    model = torch.nn.Sequential(*[Block(options.width) for _ in range(options.layers)])
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(4, 128, options.width)

    def step():
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimizer.step()
        return time.perf_counter() - start

    for _ in range(3):
        step()
    plain, recorded, ratios, around = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.pairs):
            path = os.path.join(folder, f"{number}.trace.jsonl")
            with tencache_recorder.record(path, step=1, model=model, quiet=True) as recording:
                times = [step() for _ in range(2)]
            before, after = step(), step()
            beside = statistics.median([before, after])
            plain += [before, after]
            recorded.append(recording.duration_seconds)
            ratios.append(recording.duration_seconds / beside)
            around.append(sum(times) - recording.duration_seconds - beside)
    low, _, high = statistics.quantiles(ratios, n=4)
    print(f"plain     {1e3 * statistics.median(plain):8.1f} ms a step (PyTorch {torch.__version__})")
    print(f"recorded  {1e3 * statistics.median(recorded):8.1f} ms, {statistics.median(ratios):.3f} of a plain one "
          f"({low:.3f} to {high:.3f})")
    print(f"once      {1e3 * statistics.median(around):8.1f} ms to find the roles and write the trace")


if __name__ == "__main__":
    main()
