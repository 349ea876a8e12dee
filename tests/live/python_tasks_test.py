"""Optimizers of PyTorch whose updates run as tasks: the same bits as PyTorch's own step, or left to it by name.

Runs with the PyTorch of the interpreter that runs it, each case in a process of its own.

    python_tasks_test.py                   the tests
    python_tasks_test.py CASE [ARGUMENT]   one process
"""

import importlib
import inspect
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest

STEPS = 7

# Options of the optimizers; those that this PyTorch does not know, or not on the CPU, are left out.
VARIANTS = {
    "adamw": ("AdamW", {}),
    "adamw_foreach": ("AdamW", {"foreach": True}),
    "adamw_fused": ("AdamW", {"fused": True}),
    "adamw_amsgrad": ("AdamW", {"amsgrad": True, "weight_decay": 0.1}),
    "adamw_maximize": ("AdamW", {"maximize": True, "betas": (0.8, 0.95), "eps": 1e-5}),
    "adam": ("Adam", {}),
    "adam_decay": ("Adam", {"weight_decay": 0.03}),
    "adam_foreach": ("Adam", {"weight_decay": 0.03, "foreach": True, "amsgrad": True}),
    "adam_fused": ("Adam", {"weight_decay": 0.03, "fused": True}),
    "sgd": ("SGD", {"lr": 0.05}),
    "sgd_decay": ("SGD", {"lr": 0.05, "weight_decay": 1e-2, "maximize": True}),
    "sgd_momentum": ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.3, "weight_decay": 1e-3}),
    "sgd_nesterov": ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "sgd_foreach": ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "foreach": True}),
    "sgd_fused": ("SGD", {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3, "fused": True}),
}

MACHINE = """
name: box
tiers:
  - {name: gpu, kind: gpu, capacity: 1GiB, granularity: 4KiB}
  - {name: cpu, kind: cpu, capacity: 1GiB, granularity: 4KiB}
links:
  - {name: h2d, from: cpu, to: gpu, bandwidth: 10GB/s, latency: 10us}
  - {name: d2h, from: gpu, to: cpu, bandwidth: 10GB/s, latency: 10us}
cpu: {adam_parameters_per_second: 1e9}
initial_tier: cpu
"""


def program(make_optimizer, steps=STEPS, freeze=True, watch=None, step=None):
    """Trains; all that it ends with as bytes. A parameter has no gradient in some steps, the rate changes."""
    import torch
    from python_programs import content
    torch.manual_seed(3)
    # More elements than a block has, tails, few.
    net = torch.nn.Sequential(torch.nn.Linear(61, 701), torch.nn.Tanh(), torch.nn.Linear(701, 83), torch.nn.ReLU(),
                              torch.nn.Linear(83, 1))
    optimizer = make_optimizer(net)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    losses = []
    for number in range(steps):
        net[2].requires_grad_(not (freeze and number in (0, 3)))
        loss = net(torch.randn(9, 61)).square().mean()
        loss.backward()
        step(optimizer) if step is not None else optimizer.step()
        schedule.step()
        if watch is not None:
            watch(net, optimizer)
        for parameter in net.parameters():  # as zero_grad does in PyTorch 1 and in PyTorch 2
            if parameter.grad is not None and number % 2:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()
        losses.append(loss.item())
    return content(losses, net, optimizer)


def make(variant):
    import torch
    kind, options = VARIANTS[variant]
    kind = getattr(torch.optim, kind)
    if not set(options) <= set(inspect.signature(kind).parameters):
        return None
    try:
        kind([torch.nn.Parameter(torch.ones(2))], **{"lr": 1e-2, **options})
    except RuntimeError:  # fused, for CUDA only
        return None

    def make_optimizer(net):
        rest = [p for name, p in net.named_parameters() if "bias" in name]
        weights = [p for name, p in net.named_parameters() if "bias" not in name]
        return kind([{"params": weights}, {"params": rest, "weight_decay": 0.0}], **{"lr": 1e-2, **options})
    return make_optimizer


def live(policy="on-demand", share=None, **options):
    """`share`: of the memory that the program has at once, no less than its largest op."""
    import tencache
    settings = {"updates": "cpu"} if policy == "foresight" else {}
    size = "4GiB" if share is None else f"{max(int(share * live.need['peak_bytes']), live.need['largest_op_bytes'])}B"
    return tencache.live(policy, gpu_memory=size, cpu_memory="1GiB", pace=False, quiet=True, settings=settings,
                         optimizer_tasks=True, **options)


def check_tasks(run, policy, count=STEPS - 2):
    report = run.report()
    assert report["optimizers_left"] == [], report["optimizers_left"]
    assert report["update_tasks"] >= count, report["update_tasks"]
    on_cpu = run.answer()["busy_seconds"].get("cpu_lane", 0) > 0
    assert on_cpu == (policy in ("foresight", "10cache")), (policy, run.answer()["busy_seconds"])


# ---- Cases ----------------------------------------------------------------------------------------------------------


def variants(threads):
    """Each alone, without a limit and in little memory; with states of several ages, as parameters are frozen."""
    import torch
    torch.set_num_threads(int(threads))
    tried = 0
    for variant in VARIANTS:
        make_optimizer = make(variant)
        if make_optimizer is None:
            continue
        tried += 1
        freeze = variant != "sgd_fused"  # whose buffers begin together
        plain = program(make_optimizer, freeze=freeze)
        with live() as run:
            assert program(make_optimizer, freeze=freeze) == plain, variant
        check_tasks(run, "on-demand")
        live.need = run.report()
        for policy in ("foresight", "10cache"):
            with live(policy, 0.5) as run:
                assert program(make_optimizer, freeze=freeze) == plain, f"{variant} under {policy}"
            check_tasks(run, policy)
            assert run.report()["evictions"] > 0
    assert tried >= 9, tried


def state_dict(_):
    """Saved, loaded by another optimizer midway, and PyTorch's own step before and after."""
    import torch
    from python_programs import content

    def train(run):
        torch.manual_seed(1)
        net = torch.nn.Sequential(torch.nn.Linear(40, 300), torch.nn.Tanh(), torch.nn.Linear(300, 40))
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)

        def steps(count):
            for _ in range(count):
                optimizer.zero_grad()
                net(torch.randn(5, 40)).square().mean().backward()
                optimizer.step()
        steps(2)
        if run:
            run.start()
        steps(4)
        buffer = io.BytesIO()
        torch.save([net.state_dict(), optimizer.state_dict()], buffer)
        keys = sorted({key for state in optimizer.state.values() for key in state})
        steps(1)
        buffer.seek(0)
        saved = torch.load(buffer)
        net = torch.nn.Sequential(torch.nn.Linear(40, 300), torch.nn.Tanh(), torch.nn.Linear(300, 40))
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        net.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        steps(4)
        if run:
            run.__exit__(None, None, None)
        steps(2)
        return content(keys, net, optimizer)

    plain = train(None)
    for policy in ("on-demand", "foresight", "10cache"):
        run = live(policy)
        assert train(run) == plain, policy
        check_tasks(run, policy, 7)


def address_used_again(_):
    """Parameters lie where tensors lay whose addresses were known outside: they are paged all the same."""
    import torch

    def make():
        return torch.nn.Parameter(torch.ones(300, 40))

    def known_outside():
        tensors = [torch.ones(300, 40) for _ in range(4)]
        for tensor in tensors:
            tensor.data_ptr()  # known twice
        return {tensor.numpy().ctypes.data for tensor in tensors}

    with live() as run:
        known = set().union(*(known_outside() for _ in range(50)))
        assert known & known_outside()
        parameters = [make() for _ in range(4)]
        optimizer = torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)
        for _ in range(4):
            optimizer.zero_grad()
            sum((torch.randn(300, 40) * parameter).square().mean() for parameter in parameters).backward()
            optimizer.step()
            run.step()
    check_tasks(run, "on-demand", 2)


def seen_at_once(_):
    """Addresses that are known, hooks, closures: what the step did is there when it returns."""
    import torch
    views = {}

    def watch(net, _):
        for parameter in net.parameters():
            view = views.setdefault(parameter, parameter.detach().numpy())
            assert (view == parameter.detach().clone().numpy()).all()

    def step(optimizer):
        seen = []
        if hasattr(optimizer, "register_step_post_hook"):
            hook = optimizer.register_step_post_hook(
                lambda it, *_: seen.append(it.param_groups[0]["params"][0].sum().item()))
            assert optimizer.step(lambda: torch.tensor(7.0)) == 7
            hook.remove()
            assert seen == [optimizer.param_groups[0]["params"][0].sum().item()]
        else:
            assert optimizer.step(lambda: torch.tensor(7.0)) == 7

    make_optimizer = make("adamw")
    plain = program(make_optimizer, step=step)
    with live("foresight") as run:
        assert program(make_optimizer, step=step, watch=watch) == plain
        views.clear()
    check_tasks(run, "foresight")
    # A saved tensor that the step has changed is refused by autograd.
    with live() as run:
        net = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loss = net(torch.randn(2, 8, requires_grad=True)).sum()
        loss.backward(retain_graph=True)
        optimizer.step()
        assert run.report()["update_tasks"] > 0
        try:
            loss.backward()
            raise AssertionError("an outdated tensor was used")
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)


def scaled(_):
    """A GradScaler, where this PyTorch has one for the CPU: steps are left out, by it or inside of a fused step."""
    import torch
    if not hasattr(torch.amp, "GradScaler"):
        return

    def scaling():
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)

        def step(optimizer):
            gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            for gradient in gradients:
                gradient.mul_(scaler.scale(torch.tensor(1.0)).item())
            if scaler.get_scale() == 2.0**11:
                gradients[0].view(-1)[0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
        return step

    for variant in ("adamw", "adamw_fused"):
        plain = program(make(variant), step=scaling())
        with live("foresight") as run:
            assert program(make(variant), step=scaling()) == plain
        left = run.report()["optimizers_left"]
        if variant == "adamw":
            check_tasks(run, "foresight", 3)
        else:
            assert len(left) == 1 and "its step scales gradients" in left[0], left


def left_alone(make_optimizer, why, some=False):
    """`why`: all that is said, but for its end. `some`: other parameters' updates are tasks."""
    plain = program(make_optimizer, freeze=False)
    with live("foresight") as run:
        assert program(make_optimizer, freeze=False) == plain, why
    left = run.report()["optimizers_left"]
    assert left == ([why + "; PyTorch's own step runs"] if why else []), (left, why)
    assert (run.report()["update_tasks"] > 0) == some, why


def refusals(_):
    import torch

    def converted(net):
        net[4].to(torch.float64)
        net[4].register_forward_pre_hook(lambda _, inputs: (inputs[0].double(),))
        return torch.optim.AdamW(net.parameters(), lr=1e-2, amsgrad=True)
    left_alone(converted, "AdamW(amsgrad=True): 2 of 6 parameters not taken over: a parameter, gradient or state is "
                          "Double, not Float", some=True)

    def transposed(net):
        net[0].weight.data = net[0].weight.data.t().contiguous().t()
        return torch.optim.SGD(net.parameters(), lr=1e-2)
    left_alone(transposed, "SGD(): 1 of 6 parameters not taken over: a parameter, gradient or state is not contiguous",
               some=True)

    def shared(net):
        for parameter in net.parameters():
            parameter.data.share_memory_()
        return torch.optim.SGD(net.parameters(), lr=1e-2)
    left_alone(shared, "SGD(): not taken over: a parameter, gradient or state is not paged")

    left_alone(lambda net: torch.optim.RMSprop(net.parameters(), lr=1e-3), "")
    if int(torch.__version__.split(".")[0]) >= 2:
        left_alone(lambda net: torch.optim.AdamW(net.parameters(), lr=torch.tensor(1e-2)),
                   "AdamW(): not taken over: lr is a tensor")

    # Memory that has room for each op, but not for a parameter with all of its states.
    import tencache
    make_optimizer = make("adamw")
    plain = program(make_optimizer)
    with tencache.live("foresight", gpu_memory="4GiB", pace=False, sleep=False, quiet=True) as run:
        program(make_optimizer)
    size = run.report()["largest_op_bytes"]
    with tencache.live("foresight", gpu_memory=f"{size}B", cpu_memory="1GiB", pace=False, quiet=True,
                       optimizer_tasks=True) as run:
        assert program(make_optimizer) == plain
    left = run.report()["optimizers_left"]
    assert len(left) == 1 and "may be there at once" in left[0], left


def wrong_updates(_):
    """Functions in place of PyTorch's whose updates are no tasks: by values, by other tensors, by all elements."""
    import torch
    module = importlib.import_module("torch.optim.sgd")
    own = module.sgd
    other = torch.ones(1)

    def by_values(params, gradients, *_, lr, **__):
        for parameter, gradient in zip(params, gradients):
            parameter.add_(gradient, alpha=-lr * (2 if gradient.abs().max().item() > 1e-3 else 1))

    def by_other_tensors(params, gradients, *_, lr, **__):
        for parameter, gradient in zip(params, gradients):
            parameter.add_(gradient * other, alpha=-lr)

    def by_norm(params, gradients, *_, lr, **__):
        for parameter, gradient in zip(params, gradients):
            parameter.add_(gradient / (gradient.norm() + 1e-6), alpha=-lr)

    def by_views(params, gradients, *_, lr, **__):
        for parameter, gradient in zip(params, gradients):
            parameter.view(-1).add_(gradient.view(-1), alpha=-lr)

    for function, why in [(by_values, "aten::_local_scalar_dense looks at values"),
                          (by_other_tensors, "aten::mul.Tensor uses a tensor that is neither the parameter's nor the "
                                             "gradient's"),
                          (by_norm, "on random tensors its bits are not those of PyTorch's own"),
                          (by_views, "it runs no op on the parameter")]:
        module.sgd = function
        left_alone(make("sgd"), "SGD(): not taken over: " + why)
    module.sgd = own


def predicted(_):
    """A script whose updates are recorded as tasks, predicted and measured where the policy places them."""
    script = """
import hashlib, sys, torch
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
optimizer = torch.optim.AdamW(net.parameters())
for step in range(8):
    net(torch.randn(16, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest())
"""
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: os.path.join(folder, name) for name in ("script.py", "box.yaml", "answer.json")}
        for name, text in (("script.py", script), ("box.yaml", MACHINE)):
            with open(paths[name], "w", encoding="utf-8") as file:
                file.write(text)
        plain = subprocess.run([sys.executable, paths["script.py"]], capture_output=True, text=True, check=True).stdout
        for policy in ("10cache", "on-demand"):
            done = subprocess.run([sys.executable, "-m", "tencache", "run", "python", "-p", policy, "--machine",
                                   paths["box.yaml"], "--no-pace", "--gpu-memory", "60%", "--predict",
                                   "--optimizer-tasks", "--json", paths["answer.json"], "--", paths["script.py"]],
                                  capture_output=True, text=True)
            assert done.returncode == 0, done.stderr[-2000:]
            assert done.stdout == plain, policy
            assert "updates of optimizers ran as tasks" in done.stderr, done.stderr
            with open(paths["answer.json"], encoding="utf-8") as file:
                answer = json.load(file)
            for result in (answer, answer["prediction"]["result"]):
                on_cpu = result["busy_seconds"].get("cpu_lane", 0) > 0
                assert on_cpu == (policy == "10cache"), (policy, result["busy_seconds"])


CASES = {case.__name__: case for case in (state_dict, address_used_again, seen_at_once, scaled, refusals, wrong_updates, predicted)}


class Tasks(unittest.TestCase):
    maxDiff = None

    def call(self, case, argument=""):
        process = subprocess.run([sys.executable, __file__, case, argument], capture_output=True, text=True)
        self.assertEqual(process.returncode, 0, process.stdout[-2000:] + process.stderr[-4000:])

    def test_variants(self):
        self.call("variants", "1")

    def test_variants_with_two_threads(self):
        self.call("variants", "2")


for name in CASES:
    setattr(Tasks, "test_" + name, lambda self, name=name: self.call(name))

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    if len(sys.argv) > 2:
        {**CASES, "variants": variants}[sys.argv[1]](sys.argv[2])
    else:
        unittest.main()
