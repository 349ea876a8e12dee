"""Records a model without its memory: under fake tensors ops have shapes and order, but no content and no time."""

import os
import subprocess

import torch
from torch.optim.adamw import adamw

from . import record
from ._command import find_command
from ._errors import RecorderError

_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def _load(config):
    try:
        import transformers
    except ImportError:
        raise RecorderError("--meta makes the model with Hugging Face's transformers: pip install transformers") \
            from None
    try:
        loaded = transformers.AutoConfig.from_pretrained(config)
    except (OSError, ValueError) as error:
        raise RecorderError(f"{config}: {error}") from error
    # With dropout inside attention a CPU has no fused kernel for it, as a GPU has.
    for key in ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob"):
        if hasattr(loaded, key):
            setattr(loaded, key, 0.0)
    return transformers, loaded


def _class_for(transformers, config):
    """What the configuration says that it is of: BERT predicts masked tokens, most others the next one."""
    masked = any(name.endswith("ForMaskedLM") for name in getattr(config, "architectures", None) or [])
    return transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM


def _without_masks(transformers):
    """Whether rows hold several sequences cannot be seen in tokens without content. They hold one each, so that attention
    is causal without a mask, as it is in a run."""
    masks = getattr(transformers, "masking_utils", None)
    if hasattr(masks, "find_packed_sequence_indices"):
        masks.find_packed_sequence_indices = lambda *_, **__: None


def _dropout_as_on_a_gpu():
    """One kernel with a mask of a byte an element; a CPU's is composed, its mask as wide as the numbers."""
    plain = torch.nn.functional.dropout

    def dropout(input, p=0.5, training=True, inplace=False):
        if not training or inplace or not 0 < p < 1:
            return plain(input, p, training, inplace)
        return torch.native_dropout(input, p, True)[0]
    torch.nn.functional.dropout = dropout


class _MasterAdamW(torch.optim.Optimizer):
    """AdamW as DeepSpeed and Megatron-LM run it on 16-bit parameters: states and a copy of each parameter in fp32."""

    def __init__(self, parameters):
        self._masters = [(parameter, parameter.detach().float()) for parameter in parameters]
        super().__init__([master for _, master in self._masters], {})
        for _, master in self._masters:
            self.state[master] = {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(master),
                                  "exp_avg_sq": torch.zeros_like(master)}

    @torch.no_grad()
    def step(self, closure=None):
        for parameter, master in self._masters:
            if parameter.grad is None:
                continue
            state = self.state[master]
            master.mul_(1 - 1e-3 * 1e-2)  # first, so that an update begins with one of its own states
            adamw([master], [parameter.grad.float()], [state["exp_avg"]], [state["exp_avg_sq"]], [], [state["step"]],
                  foreach=False, amsgrad=False, maximize=False, beta1=0.9, beta2=0.999, lr=1e-3, weight_decay=0,
                  eps=1e-8)
            parameter.copy_(master)


def _enable_checkpointing(model):
    # Renamed in transformers 5.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def record_meta(config, output, *, gpu, batch, sequence_length, precision, master, checkpointing, say):
    """Writes a trace of one step of AdamW; with `gpu` durations modelled for it, which needs the `tencache` command."""
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError:
        raise RecorderError("--meta needs PyTorch 2.0 or newer") from None
    command = find_command()
    if gpu is not None and command is None:
        raise RecorderError("durations modelled for a GPU need the `tencache` command: install it, or leave --gpu out "
                            "and run `tencache import trace` on the result where it is installed")
    config = os.path.normpath(config)
    if os.path.basename(config) == "config.json":
        config = os.path.dirname(os.path.abspath(config))
    # Imports of a trace do not write over what they read.
    recorded = output if gpu is None else _untimed_name(output)
    transformers, loaded = _load(config)
    _without_masks(transformers)
    _dropout_as_on_a_gpu()
    with FakeTensorMode(allow_non_fake_inputs=True):
        plain = torch.get_default_dtype()
        torch.set_default_dtype(_TYPES[precision])
        try:
            model = _class_for(transformers, loaded).from_config(loaded)
        finally:
            torch.set_default_dtype(plain)
        model.train()
        if checkpointing:
            _enable_checkpointing(model)
        if master and precision != "fp32":
            optimizer = _MasterAdamW(model.parameters())
        else:
            optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        options = {} if type(model).__name__.endswith("ForMaskedLM") else {"use_cache": False}
        tokens = torch.zeros((batch, sequence_length), dtype=torch.long)
        with record(recorded, step=1, model=model, name=os.path.basename(config), quiet=True, timed=False):
            for _ in range(2):
                model(input_ids=tokens, labels=tokens, **options).loss.backward()
                optimizer.step()
                model.zero_grad()
    if gpu is None:
        say(f"{output}: no times; give it those of a GPU with: tencache import trace {output} --gpu GPU -o TIMED")
        return
    try:
        result = subprocess.run([*command, "import", "trace", recorded, "--gpu", gpu, "-o", output],
                                capture_output=True, text=True)
    finally:
        os.unlink(recorded)
    if result.returncode != 0:
        raise RecorderError(result.stderr.strip())
    say(result.stdout.strip() + f"; durations modelled for the {gpu}")


def _untimed_name(output):
    """Of the recording before it has times: beside the output, not compressed, since Python cannot everywhere."""
    folder, name = os.path.split(output)
    return os.path.join(folder, ".untimed." + name.removesuffix(".zst"))
