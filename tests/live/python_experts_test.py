"""A model with experts, generating under policies: the same tokens as without, whatever the gates choose, and nobody is
shown what they will choose."""

import gc
import unittest
import warnings

warnings.simplefilter("ignore")
import torch  # noqa: E402
from torch import nn  # noqa: E402

import tencache  # noqa: E402

torch.set_num_threads(1)
WIDTH, HIDDEN, EXPERTS, LAYERS, TOKENS = 64, 256, 8, 3, 128
EXPERT_BYTES = 4 * 3 * WIDTH * HIDDEN


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.w2 = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.activation = nn.SiLU()

    def forward(self, x):
        return self.w2(self.activation(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """Mixtral's shape. Some programs call all experts, most of them with no rows (`calls_all`)."""

    def __init__(self, calls_all):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList([Expert() for _ in range(EXPERTS)])
        self.calls_all = calls_all

    def choose(self, x):
        return torch.topk(self.gate(x).softmax(-1), 2)

    def parts(self):
        return self.experts

    def forward(self, x):
        weights, chosen = self.choose(x)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.parts()):
            rows, place = torch.where(chosen == number)
            if self.calls_all or len(rows):
                out.index_add_(0, rows, expert(x[rows]) * weights[rows, place, None])
        return out


class OtherNames(Block):
    """Found by no name, and chosen without topk."""

    def __init__(self, calls_all):
        super().__init__(calls_all)
        self.mixture = nn.Module()
        self.mixture.parts = self.experts
        del self.experts
        tencache.mark_experts(self, self.mixture.parts)

    def parts(self):
        return self.mixture.parts

    def choose(self, x):
        scores = self.gate(x).softmax(-1)
        chosen = scores.argsort(-1, descending=True)[:, :2]
        tencache.chose_experts(self, chosen.flatten().tolist())
        return scores.gather(-1, chosen), chosen


class Model(nn.Module):
    def __init__(self, block, calls_all):
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList([block(calls_all) for _ in range(LAYERS)])
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)

    def forward(self, ids):
        x = self.tokens(ids)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def generate(block=Block, calls_all=False, steps=16, batch=1):
    """Each step's scores, as bytes, and the experts that each gate chose; the first reads a prompt. A token depends on
    how many there are, so they do not repeat."""
    torch.manual_seed(0)
    model = Model(block, calls_all).eval()
    made, chosen = [], []
    for layer in model.layers:
        layer.gate.register_forward_hook(
            lambda module, given, scores: chosen.append(tuple(scores.topk(2).indices.flatten().sort()[0].tolist())))
    with torch.no_grad():
        ids = torch.arange(5)
        for step in range(steps):
            scores = model(ids)
            made.append(scores.numpy().tobytes())
            ids = (scores[-1].argmax() * 7 + step + torch.arange(batch)) % TOKENS
    return made, chosen


STEP_BYTES = LAYERS * EXPERTS * EXPERT_BYTES


class Experts(unittest.TestCase):
    def live(self, policy, memory=STEP_BYTES // 2, steps=16, batch=1, **given):
        plain, chosen = generate(steps=steps, batch=batch, **given)
        with tencache.live(policy, pace=False, quiet=True, sleep=False, gpu_memory=f"{memory}B") as run:
            made, _ = generate(steps=steps, batch=batch, **given)
        gc.collect()
        self.assertEqual(made, plain)
        self.trace, self.report = run.recorded(), run.report()
        return [chosen[i:i + LAYERS] for i in range(0, len(chosen), LAYERS)]

    def experts_of(self, trace):
        """By gate, the numbers of the experts that its ops read."""
        chosen, names, reads = {}, trace.tensor_names, trace.reads
        gates = trace.details["revealed_by"][trace.ops["detail"]]
        for op, gate in enumerate(gates.tolist()):
            if gate == tencache.NONE:
                continue
            for tensor in reads[1][reads[0][op]:reads[0][op + 1]].tolist():
                if ".experts." in names[tensor] or ".parts." in names[tensor]:
                    chosen.setdefault(gate, set()).add(int(names[tensor].split(".")[-3]))
        return [tuple(sorted(chosen[gate])) for gate in sorted(chosen)]

    def test_tokens_are_the_same_under_policies(self):
        for calls_all in (False, True):
            for policy in ("expert-lru", "moe-infinity", "lru", "foresight", "fiddler", "ktransformers"):
                with self.subTest(policy=policy, calls_all=calls_all):
                    self.live(policy, calls_all=calls_all)
                    self.assertGreater(self.report["evictions"], 0)
                    self.assertLessEqual(self.report["deviations"], 1, self.report["first_deviation"])

    def test_several_tokens_at_once_may_choose_any_number_of_experts(self):
        for policy in ("expert-lru", "moe-infinity", "foresight"):
            for calls_all in (False, True):
                with self.subTest(policy=policy, calls_all=calls_all):
                    self.live(policy, calls_all=calls_all, batch=3)

    def test_the_recording_has_gates_and_what_each_step_chose(self):
        for given in ({}, {"calls_all": True}, {"block": OtherNames}):
            with self.subTest(**given):
                chosen = self.live("lru", memory=4 * STEP_BYTES, **given)
                roles = self.trace.tensors["role"].tolist()
                self.assertEqual(roles.count(tencache.ROLES.index("expert")), LAYERS * EXPERTS * 3)
                steps = chosen[1:]  # from the recorded one on
                self.assertGreater(len(set(map(tuple, steps))), 4, "these steps choose the same")
                self.assertEqual(self.experts_of(self.trace), [one for step in steps for one in step])

    def test_experts_that_are_not_chosen_stay_out(self):
        """Where only the rest of the model and a few experts fit."""
        self.live("expert-lru", memory=STEP_BYTES // 4, calls_all=True)
        into_gpu = self.report["link_bytes"]["h2d"]
        steps = len(self.report["step_seconds"])
        self.assertGreater(into_gpu, 0)
        self.assertLess(into_gpu, (steps + EXPERTS) * LAYERS * 2.5 * EXPERT_BYTES)

    def test_experts_must_have_numbers(self):
        block = nn.Module()
        block.first, block.second = Expert(), Expert()
        with self.assertRaisesRegex(ValueError, "first.*not in a ModuleList"):
            tencache.mark_experts(block, [block.first, block.second])

    def test_a_recording_is_replayed_sealed(self):
        """The policy sees that ops read an expert, not which, until the gate is done."""
        experts_of = self.experts_of
        chosen = self.live("lru", memory=4 * STEP_BYTES)[1:]
        revealed, seen = [], []

        class Looks(tencache.Policy):
            events = ["profile_ready", "revealed"]

            def layout(self, machine, program):
                return {"chunk_bytes": 0}

            def on(self, event, view, actions):
                if event.kind == "profile_ready":
                    seen.append(experts_of(view.program))
                elif view.iteration == 0:
                    names = self.names
                    revealed.append(tuple(sorted({int(names[tensor].split(".")[-3]) for tensor, *_ in event.uses})))
        Looks.names = self.trace.tensor_names
        half = f"{STEP_BYTES // 2}B"
        tencache.replay(self.trace, "NC40ads_H100_v5", Looks, gpu_memory=half, assume_gpu="h100-nvl")
        self.assertEqual(seen, [[]])
        self.assertEqual(revealed, [one for step in chosen for one in step])
        for policy in ("expert-lru", "moe-infinity", "fiddler", "foresight"):
            replayed = tencache.replay(self.trace, "NC40ads_H100_v5", policy, gpu_memory=half, assume_gpu="h100-nvl")
            self.assertTrue(replayed["fits"], policy)


if __name__ == "__main__":
    unittest.main()
