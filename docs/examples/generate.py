"""A small decoder with a cache of keys and values, in plain PyTorch: it generates tokens greedily and prints them.

    tencache run python --predict --gpu-memory 50% --timeline generate.json -- docs/examples/generate.py

With a second argument the weights are read from that file, where they stay; it is written if it does not exist.
"""

import os
import sys
import time

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, LAYERS, VOCABULARY, CONTEXT = 256, 4, 6, 512, 256


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, cache):
        """Also returns the cache, which is longer by x: keys and values of all tokens so far."""
        batch, length, _ = x.shape
        q, k, v = self.attention(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        later = torch.ones(length, k.shape[2], dtype=torch.bool).triu(1 + k.shape[2] - length)
        mixed = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm2(x)))), (k, v)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids, caches, first):
        x = self.tokens(ids) + self.places(torch.arange(first, first + ids.shape[1]))
        for i, block in enumerate(self.blocks):
            x, caches[i] = block(x, caches[i])
        return self.head(self.norm(x))


def leave_in_file(model, path):
    """The weights lie one behind the other in the file, after a header. The model has private mappings of them, as with
    safetensors."""
    offset = 1000
    if not os.path.exists(path):
        with open(path, "wb") as file:
            file.write(bytes(offset))
            for parameter in model.parameters():
                file.write(parameter.detach().numpy().tobytes())
    mapped = torch.UntypedStorage.from_file(path, False, os.path.getsize(path))  # not shared: a private mapping
    for parameter in model.parameters():
        end = offset + 4 * parameter.numel()
        values = torch.empty(0, dtype=torch.uint8).set_(mapped[offset:end]).view(torch.float32)
        parameter.data = values.view(parameter.shape)
        offset = end


def generate(model, ids, new_tokens):
    """The first step of the model reads the prompt, each one after it a token."""
    caches, made, read = [None] * LAYERS, [], 0
    with torch.no_grad():
        for _ in range(new_tokens):
            chosen = model(ids, caches, read)[:, -1].argmax(-1, keepdim=True)
            read += ids.shape[1]
            ids = chosen
            made.append(ids.item())
    return made


def main(new_tokens=32, weights=None):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Decoder().eval()
    if weights:
        leave_in_file(model, weights)
    start = time.perf_counter()
    made = generate(model, torch.arange(8)[None], int(new_tokens))
    print(f"{len(made) / (time.perf_counter() - start):.1f} tokens a second", file=sys.stderr)
    print(*made)


if __name__ == "__main__":
    main(*sys.argv[1:])
