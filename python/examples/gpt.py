#!/usr/bin/env python3
"""Trains a small GPT on bytes: plain PyTorch that knows nothing of TenCache.

    python3 python/examples/gpt.py --steps 20
    tencache run python --gpu-memory 60% --predict -- python/examples/gpt.py --steps 20

Both print the same losses and the same hash of the weights. The text is generated, always the same, unless --text names
another. A checkpoint holds all that the next step depends on: a run that resumes ends with the bits of one that never
stopped. With --precision bf16 weights, activations and gradients are in bf16, masters and moments in fp32.
"""

import argparse
import hashlib
import json
import os
import pathlib
import random
import statistics
import sys
import time

# One core computes, the others copy: predictions assume that. Set these variables for more.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # on a GPU: the same bits each time

import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional

# layers, width, heads, context, vocabulary, batch, whether the head uses the embedding's weights
SIZES = {"tiny": (2, 64, 4, 32, 256, 4, False),           # 0.1 million parameters: a step takes milliseconds
         "small": (7, 256, 8, 128, 256, 8, False),        # 5.7 million: half a second on one core
         "medium": (7, 512, 8, 32, 256, 2, False),        # 22 million, most of its memory is weights and states
         "gpt2-bytes": (12, 768, 12, 256, 256, 1, True),  # GPT-2 small's shape on bytes: 86 million
         "gpt2": (12, 768, 12, 256, 50257, 1, True)}      # with its vocabulary, little of which occurs: 124 million
SHAPE = ("layers", "width", "heads", "context", "vocabulary", "batch")
TEXT_BYTES = 200_000


# ---- Data ------------------------------------------------------------------------------------------------------------


def generated_text():
    """Sentences of made-up words, some far more frequent than others: the same bytes on every computer."""
    chance = random.Random(1)

    def one_of(choices):  # random() alone gives the same numbers in all versions of Python
        return choices[int(chance.random() ** 2 * len(choices))]

    words = ["".join(one_of("etaoinshrdlu") + one_of("aeiou") for _ in range(1 + i % 3)) for i in range(400)]
    text = ""
    while len(text) < TEXT_BYTES:
        text += " ".join(one_of(words) for _ in range(3 + int(chance.random() * 9))).capitalize() + ".\n"
    return text.encode()


def read_text(path):
    """Of a folder, its *.md and *.txt files."""
    path = pathlib.Path(path)
    files = sorted(file for file in path.iterdir() if file.suffix in (".md", ".txt")) if path.is_dir() else [path]
    return b"".join(file.read_bytes() for file in files)


class Data:
    """The batch of a step depends on the seed and on the step's number alone."""

    def __init__(self, text, options):
        if len(text) <= options.context:
            sys.exit(f"gpt.py: the text has {len(text)} bytes, --context {options.context} needs more than that")
        self.sha256 = hashlib.sha256(text).hexdigest()
        self._bytes, self._options = torch.frombuffer(bytearray(text), dtype=torch.uint8), options

    def batch(self, step):
        """Tokens and targets, batch × context each."""
        chance = random.Random(self._options.seed * 1_000_003 + step)
        last = len(self._bytes) - self._options.context
        starts = [int(chance.random() * last) for _ in range(self._options.batch)]
        rows = torch.stack([self._bytes[start:start + self._options.context + 1] for start in starts])
        rows = rows.to(self._options.device).long()
        return rows[:, :-1], rows[:, 1:]


# ---- Model -----------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, options):
        super().__init__()
        width = options.width
        self.heads = options.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(options.dropout)

    def attention(self, hidden, mask):
        batch, length, width = hidden.shape
        parts = self.query_key_value(hidden).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        scores = (query * (width // self.heads) ** -0.5) @ key.transpose(-2, -1)
        weights = self.dropout(scores.masked_fill(mask, float("-inf")).softmax(-1))
        return self.projection((weights @ value).transpose(1, 2).reshape(batch, length, width))

    def forward(self, hidden, mask):
        hidden = hidden + self.dropout(self.attention(self.norm1(hidden), mask))
        return hidden + self.dropout(self.contract(functional.gelu(self.expand(self.norm2(hidden)))))


class Gpt(nn.Module):
    def __init__(self, options):
        super().__init__()
        width, context = options.width, options.context
        self.tokens, self.positions = nn.Embedding(options.vocabulary, width), nn.Embedding(context, width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)
        self.dropout = nn.Dropout(options.dropout)
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, options.vocabulary, bias=False)
        if options.tied_head:
            self.head.weight = self.tokens.weight
        self.register_buffer("mask", torch.ones(context, context, dtype=torch.bool).triu(1), persistent=False)
        self.register_buffer("places", torch.arange(context), persistent=False)
        self.recompute = options.recompute

    def forward(self, tokens, targets):
        """The mean cross-entropy, in fp32."""
        hidden = self.dropout(self.tokens(tokens) + self.positions(self.places))
        for block in self.blocks:
            # Of a block that is recomputed only the input is kept; backward draws its random numbers again.
            hidden = (torch.utils.checkpoint.checkpoint(block, hidden, self.mask, use_reentrant=False)
                      if self.recompute else block(hidden, self.mask))
        logits = self.head(self.norm(hidden))
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


# ---- Training --------------------------------------------------------------------------------------------------------


class Training:
    def __init__(self, options):
        torch.manual_seed(options.seed)
        self.options = options
        self.data = Data(read_text(options.text) if options.text else generated_text(), options)
        self.model = Gpt(options).to(options.device)
        self.weights = list(self.model.parameters())
        self.masters = self.weights  # what the optimizer updates
        if options.precision == "bf16":
            self.masters = [nn.Parameter(weight.detach().clone()) for weight in self.weights]
            for weight in self.weights:
                weight.data = weight.data.bfloat16()
        self.optimizer = torch.optim.AdamW(self.masters, lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
        self.steps = 0

    def step(self):
        """The loss before the update."""
        loss = self.model(*self.data.batch(self.steps))
        loss.backward()
        if self.masters is not self.weights:
            for master, weight in zip(self.masters, self.weights):
                master.grad, weight.grad = weight.grad.float(), None
        if self.options.clip:
            nn.utils.clip_grad_norm_(self.masters, self.options.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.masters is not self.weights:
            with torch.no_grad():
                for master, weight in zip(self.masters, self.weights):
                    weight.copy_(master)
        self.steps += 1
        return loss.item()

    def program(self):
        """What a checkpoint must agree in with the program that reads it."""
        names = SHAPE + ("dropout", "tied_head", "precision", "seed", "learning_rate", "clip")
        return {**{name: getattr(self.options, name) for name in names}, "text": self.data.sha256}

    def save(self, path):
        """A new file until it is whole, then it takes the place of the one before."""
        random_states = [torch.get_rng_state()]
        if self.options.device == "cuda":
            random_states.append(torch.cuda.get_rng_state())
        state = {"program": self.program(), "steps": self.steps, "random": random_states,
                 "masters": self.masters, "optimizer": self.optimizer.state_dict()}
        try:
            torch.save(state, path + ".new")
            os.replace(path + ".new", path)
        except BaseException:
            pathlib.Path(path + ".new").unlink(missing_ok=True)
            raise

    def resume(self, path):
        state = torch.load(path, map_location="cpu")
        for name, value in self.program().items():
            if state["program"][name] != value:
                sys.exit(f"gpt.py: {path} is of another program: its {name} is {state['program'][name]}, not {value}")
        with torch.no_grad():
            for weight, master, saved in zip(self.weights, self.masters, state["masters"]):
                master.copy_(saved)
                weight.copy_(master)
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]
        torch.set_rng_state(state["random"][0])
        if self.options.device == "cuda":
            torch.cuda.set_rng_state(state["random"][1])

    def weights_sha256(self):
        content = hashlib.sha256()
        for weight in self.weights:
            whole = weight.detach().cpu()
            content.update((whole.view(torch.int16) if whole.dtype == torch.bfloat16 else whole).numpy())
        return content.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--size", choices=SIZES, default="small", help="the model's shape (default: small, 5.7 million parameters)")
    for position, name in enumerate(SHAPE):
        values = ", ".join(str(size[position]) for size in SIZES.values())
        add(f"--{name}", type=int, metavar="N", help=f"another {name} than that of the size ({values})")
    add("--tied-head", action=argparse.BooleanOptionalAction, help="the head uses the embedding's weights")
    add("--dropout", type=float, default=0.1, metavar="P", help="default: %(default)s")
    add("--precision", choices=["fp32", "bf16"], default="fp32", help="default: %(default)s")
    add("--recompute", action="store_true", help="keep the input of a block only: same bits in less memory")
    add("--text", metavar="FILE", help="a file, or a folder whose *.md and *.txt are read (default: a generated text)")
    add("--steps", type=int, default=20, metavar="N", help="from the beginning, with --resume too (default: 20)")
    add("--seed", type=int, default=1, metavar="N", help="of weights, dropout and batches (default: %(default)s)")
    add("--learning-rate", type=float, default=1e-3, metavar="X", help="of AdamW (default: %(default)s)")
    add("--clip", type=float, default=1.0, metavar="X", help="largest norm of the gradients; 0: any (default: 1)")
    add("--device", choices=["cpu", "cuda"], default="cpu", help="default: %(default)s")
    add("--checkpoint", metavar="FILE", help="write the state of the training to this file after the last step")
    add("--checkpoint-every", type=int, default=0, metavar="N", help="… and after every N steps")
    add("--resume", metavar="FILE", help="continue from a checkpoint")
    add("--json", metavar="FILE", help="write losses, seconds and the weights' hash to this file")
    options = parser.parse_args()
    *shape, tied_head = SIZES[options.size]
    for name, value in zip(SHAPE, shape):
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.tied_head is None:
        options.tied_head = tied_head
    if options.width % options.heads:
        parser.error(f"--width {options.width} is not a multiple of --heads {options.heads}")
    if options.checkpoint_every and not options.checkpoint:
        parser.error("--checkpoint-every needs --checkpoint")

    if options.device == "cuda":
        torch.use_deterministic_algorithms(True)
    training = Training(options)
    if options.resume:
        training.resume(options.resume)
        if training.steps >= options.steps:
            sys.exit(f"gpt.py: {options.resume} has {training.steps} steps: give --steps more than that")
    losses, seconds = [], []
    while training.steps < options.steps:
        start = time.perf_counter()
        losses.append(training.step())
        seconds.append(time.perf_counter() - start)
        print(f"step {training.steps:>3}  loss {losses[-1]:.6f}  {1e3 * seconds[-1]:.1f} ms", flush=True)
        due = options.checkpoint_every and training.steps % options.checkpoint_every == 0
        if options.checkpoint and (due or training.steps == options.steps):
            training.save(options.checkpoint)
    result = {"parameters": sum(weight.numel() for weight in training.weights), "losses": losses,
              "step_seconds": seconds, "median_step_seconds": statistics.median(seconds[2:] or seconds),
              "weights_sha256": training.weights_sha256()}
    print(f"{result['parameters']} parameters, weights {result['weights_sha256']}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
