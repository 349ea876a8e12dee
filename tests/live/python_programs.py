"""Small PyTorch programs, as users write them: each trains and returns all that it ends with, as bytes.

A program knows nothing of TenCache. `steps` is how many it trains.
"""

import contextlib
import io
import os
import tempfile

import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional


def content(*things):
    """The bytes of tensors, of modules' states and of optimizers' states, in order; numbers as text."""
    parts = []
    for thing in things:
        if isinstance(thing, nn.Module):
            parts += content(*thing.state_dict().values())
        elif isinstance(thing, torch.optim.Optimizer):
            for state in thing.state_dict()["state"].values():
                parts += content(*[value for value in state.values() if value is not None])
        elif isinstance(thing, torch.Tensor):
            parts.append(thing.detach().clone().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
                         if thing.dim() > 0 else repr(thing.item()).encode())
        else:
            parts.append(repr(thing).encode())
    return parts


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.attention(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        mixed = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.down(functional.gelu(self.up(self.norm2(x)))))


class Gpt(nn.Module):
    def __init__(self, width=64, layers=3, vocabulary=97, checkpoint=False):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.checkpoint = checkpoint

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=True) if self.checkpoint else block(x)
        return self.head(self.norm(x))


def _language(model, optimizer, steps, *, accumulate=1, clip=True, schedule=None, autocast=False):
    losses = []
    for _ in range(steps):
        for _ in range(accumulate):
            ids = torch.randint(0, 97, (4, 33))
            with torch.autocast("cpu", dtype=torch.bfloat16) if autocast else contextlib.nullcontext():
                logits = model(ids[:, :-1])
                loss = functional.cross_entropy(logits.reshape(-1, 97), ids[:, 1:].reshape(-1))
            (loss / accumulate).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if schedule is not None:
            schedule.step()
        losses.append(loss.item())
    return losses


def mlp(steps):
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        loss = functional.cross_entropy(model(torch.randn(32, 64)), torch.randint(0, 10, (32,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return content(losses, model, optimizer)


def gpt(steps):
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return content(_language(model, optimizer, steps), model, optimizer)


def gpt_foreach(steps):
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    return content(_language(model, optimizer, steps), model, optimizer)


def gpt_everything(steps):
    """Accumulation, a schedule, evaluation, a checkpoint that is loaded again, midway."""
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = _language(model, optimizer, steps // 2, accumulate=2, schedule=schedule)
    model.eval()
    with torch.no_grad():
        losses.append(model(torch.randint(0, 97, (2, 16))).sum().item())
    model.train()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "checkpoint.pt")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    losses += _language(model, optimizer, steps - steps // 2, accumulate=2, schedule=schedule)
    return content(losses, model, optimizer)


def gpt_autocast(steps):
    model = Gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    return content(_language(model, optimizer, steps, autocast=True), model, optimizer)


def gpt_checkpointing(steps):
    model = Gpt(checkpoint=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return content(_language(model, optimizer, steps), model, optimizer)


def generation(steps):
    model = Gpt().eval()
    ids = torch.randint(0, 97, (2, 4))
    with torch.no_grad():
        for _ in range(4 * steps):
            chosen = model(ids)[:, -1].softmax(-1).multinomial(1)
            ids = torch.cat([ids, chosen], 1)
    return content(ids, model)


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels),
                                  nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1, bias=False),
                                  nn.BatchNorm2d(channels))

    def forward(self, x):
        return functional.relu(x + self.body(x))


def resnet(steps):
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), Residual(16), nn.MaxPool2d(2), Residual(16),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    for _ in range(steps):
        loss = functional.cross_entropy(model(torch.randn(8, 3, 16, 16)), torch.randint(0, 10, (8,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return content(losses, model, optimizer)


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(97, 48), nn.Linear(64, 97)
        self.lstm = nn.LSTM(48, 64, 2, batch_first=True)

    def forward(self, ids):
        return self.head(self.lstm(self.tokens(ids))[0])


def lstm(steps):
    model = Lstm()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    return content(_language(model, optimizer, steps), model, optimizer)


class Samples(torch.utils.data.Dataset):
    def __init__(self):
        self.inputs = torch.arange(64 * 16, dtype=torch.float32).reshape(64, 16) / 1024

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return self.inputs[index] * 2, index % 10


def workers(steps):
    """A data set in forked workers."""
    samples = Samples()
    model = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    while len(losses) < steps:
        for inputs, labels in torch.utils.data.DataLoader(samples, batch_size=16, num_workers=2):
            loss = functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return content(losses, model, optimizer)


def adversaries(steps):
    """Two optimizers, whose steps alternate."""
    maker = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 16))
    judge = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    of_maker = torch.optim.Adam(maker.parameters(), lr=1e-3)
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        made = maker(torch.randn(16, 8))
        loss = functional.softplus(judge(made.detach())).mean()
        loss = loss + functional.softplus(-judge(torch.randn(16, 16))).mean()
        of_judge.zero_grad()
        loss.backward()
        of_judge.step()
        fooled = functional.softplus(-judge(made)).mean()
        of_maker.zero_grad()
        fooled.backward()
        of_maker.step()
        losses += [loss.item(), fooled.item()]
    return content(losses, maker, judge, of_maker, of_judge)


def copies(steps):
    """What lives in memory files and buffers: deep copies, pickles, a moving average of the weights."""
    import copy
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 8))
    average = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        functional.mse_loss(model(torch.randn(8, 32)), torch.randn(8, 8)).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), model.parameters()):
                mean.lerp_(weight, 0.1)
        buffer = io.BytesIO()
        torch.save(average.state_dict(), buffer)
        buffer.seek(0)
        average.load_state_dict(torch.load(buffer))
    return content(model, average, optimizer)


def mapped(steps):
    """Weights in private mappings of files, as loaders of checkpoints leave them: frozen ones, trained ones, and one that
    is written to before."""
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    contents, losses = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number, parameter in enumerate(model.parameters()):
            path = os.path.join(folder, str(number))
            before = parameter.detach().numpy().tobytes()
            with open(path, "wb") as file:
                file.write(before)
            contents.append((path, before))
            values = torch.from_file(path, shared=False, size=parameter.numel()).view(parameter.shape)
            if number == 2:
                values.mul_(0.5)
            parameter.data = values
        model[0].requires_grad_(False)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        for _ in range(steps):
            loss = functional.cross_entropy(model(torch.randn(32, 64)), torch.randint(0, 10, (32,)))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        for path, before in contents:
            with open(path, "rb") as file:
                assert file.read() == before, "a file of the program was written to"
        return content(losses, model, optimizer)


PROGRAMS = {program.__name__: program for program in (
    mlp, gpt, gpt_foreach, gpt_everything, gpt_autocast, gpt_checkpointing, generation, resnet, lstm, workers,
    adversaries, copies, mapped)}
