"""PyTorch programs of realistic size, as any user would write them: what live runs are measured with.

    python3 bench/live_programs.py --program gpt --steps 12

Prints one line of JSON: the seconds of each step, the last loss, a hash of the parameters after the last step, and the
memory of the process before the model was made (libraries imported) and at most. `private_before` is the part of it
that no file backs. One thread. llama, gpt2, bert and vit are Hugging Face's, with random weights. With --device cuda
all tensors are made on the GPU, and ops that have a deterministic kernel use it.
"""

import argparse
import functools
import hashlib
import os
import time
from typing import Callable, NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from live_process import memory_before, report  # noqa: E402

if hasattr(torch, "compile"):
    import torch._dynamo  # noqa: E402, F401  # the first optimizer would: 80 MB that are no tensors


class Program(NamedTuple):
    make: Callable[[], nn.Module]
    loss: Callable[[nn.Module], torch.Tensor]  # of a random batch, a new one with each call
    optimizer: Callable


adamw = functools.partial(torch.optim.AdamW, lr=1e-4)


# ---- The programs


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.attention(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        mixed = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, width, layers, vocabulary, context):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, 6) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def next_token_loss(model, batch, context, vocabulary):
    ids = torch.randint(0, vocabulary, (batch, context + 1))
    return functional.cross_entropy(model(ids[:, :-1]).reshape(-1, vocabulary), ids[:, 1:].reshape(-1))


def gpt(width=384, layers=6, vocabulary=4096, context=256, batch=4):
    return Program(lambda: Gpt(width, layers, vocabulary, context),
                   lambda model: next_token_loss(model, batch, context, vocabulary), adamw)


def classes_loss(model, images, batch):
    return functional.cross_entropy(model(images), torch.randint(0, 10, (batch,)))


def mlp():
    """19 million parameters."""
    def make():
        layers = [layer for _ in range(8) for layer in (nn.Linear(1536, 1536), nn.ReLU())]
        return nn.Sequential(*layers, nn.Linear(1536, 10))
    return Program(make, lambda model: classes_loss(model, torch.randn(384, 1536), 384), adamw)


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels),
                                  nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1, bias=False),
                                  nn.BatchNorm2d(channels))

    def forward(self, x):
        return functional.relu(x + self.body(x))


def resnet():
    """Most of its memory is activations."""
    def make():
        layers = [nn.Conv2d(3, 64, 3, padding=1)]
        for channels in (64, 128, 256):
            if channels > 64:
                layers.append(nn.Conv2d(channels // 2, channels, 3, stride=2, padding=1))
            layers += [Residual(channels), Residual(channels)]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))
    return Program(make, lambda model: classes_loss(model, torch.randn(8, 3, 64, 64), 8),
                   functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9))


class Lstm(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.tokens, self.head = nn.Embedding(vocabulary, 512), nn.Linear(768, vocabulary)
        self.lstm = nn.LSTM(512, 768, 2, batch_first=True)

    def forward(self, ids):
        return self.head(self.lstm(self.tokens(ids))[0])


def lstm():
    """14 million parameters."""
    return Program(lambda: Lstm(4096), lambda model: next_token_loss(model, 16, 32, 4096),
                   functools.partial(torch.optim.RMSprop, lr=1e-3))


LAYERS = {"num_hidden_layers": 6, "num_attention_heads": 6, "hidden_size": 384}


def language(configuration, model, **sizes):
    import transformers
    settings = getattr(transformers, configuration)(vocab_size=4096, use_cache=False, **sizes)

    def loss(model):
        ids = torch.randint(0, 4096, (4, 256))
        return model(input_ids=ids, labels=ids).loss
    return Program(lambda kind=getattr(transformers, model): kind(settings), loss, adamw)


def llama():
    return language("LlamaConfig", "LlamaForCausalLM", intermediate_size=1024, num_key_value_heads=2, **LAYERS)


def gpt2():
    return language("GPT2Config", "GPT2LMHeadModel", n_embd=384, n_layer=6, n_head=6, n_positions=256)


def bert():
    return language("BertConfig", "BertForMaskedLM", intermediate_size=1536, **LAYERS)


def vit():
    import transformers
    settings = transformers.ViTConfig(intermediate_size=1536, image_size=128, patch_size=8, num_labels=10, **LAYERS)

    def loss(model):
        return model(pixel_values=torch.randn(4, 3, 128, 128), labels=torch.randint(0, 10, (4,))).loss
    return Program(lambda kind=transformers.ViTForImageClassification: kind(settings), loss, adamw)


PROGRAMS = {program.__name__: program for program in (gpt, mlp, resnet, lstm, llama, gpt2, bert, vit)}


# ---- A run


def train(steps, loss, backward, update):
    """The seconds of each step, and the last loss."""
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        found = loss()
        backward(found)
        update()
        found.item()  # waits for a GPU
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds, "loss": found.item()}


def hash_of(model):
    content = hashlib.sha256()
    for parameter in model.parameters():
        content.update(parameter.detach().cpu().numpy().tobytes())
    return content.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", choices=PROGRAMS, default="gpt")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    for size in ("width", "layers", "vocabulary", "context", "batch"):
        parser.add_argument("--" + size, type=int, help="of gpt")
    given = parser.parse_args()
    sizes = {name: value for name, value in vars(given).items()
             if name not in ("program", "steps", "device") and value is not None}
    torch.set_num_threads(1)
    if given.device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_default_device("cuda")
    torch.manual_seed(0)
    program = PROGRAMS[given.program](**sizes)
    before = memory_before()
    model = program.make()
    optimizer = program.optimizer(model.parameters())

    def update():
        optimizer.step()
        optimizer.zero_grad()
    figures = train(given.steps, lambda: program.loss(model), lambda loss: loss.backward(), update)
    report({**figures, "sha256": hash_of(model)}, before)


if __name__ == "__main__":
    main()
