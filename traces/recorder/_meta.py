"""Records a model without its memory: under fake tensors ops have shapes and order, but no content and no time."""

import inspect
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


def _computes_loss(kind):
    parameters = inspect.signature(kind.forward).parameters
    return "labels" in parameters or "return_loss" in parameters


def _class_for(transformers, config, say):
    """What the configuration says that it is of, if that can be trained; else what its kind of model is trained as."""
    names = getattr(config, "architectures", None) or []
    for name in names:
        kind = getattr(transformers, name, None)
        if kind is not None and _computes_loss(kind):
            return kind
    for kind in ("AutoModelForSeq2SeqLM" if getattr(config, "is_encoder_decoder", False) else "AutoModelForCausalLM",
                 "AutoModelForMaskedLM"):
        mapping = getattr(transformers, kind)._model_mapping
        if type(config) in mapping:
            found = mapping[type(config)]
            if names:
                say(f"{names[0]} computes no loss: recorded as {found.__name__}")
            return found
    raise RecorderError(f"a model of kind '{config.model_type}' ({', '.join(names) or 'no architectures'}) computes no "
                        "loss that is known here: name a class that does in architectures, or record a script of your "
                        "own")


def _inputs_for(model, batch, sequence_length):
    """What a step of it is given, by the arguments of its forward, and in words what that is."""
    config, wanted = model.config, inspect.signature(model.forward).parameters
    of_text = getattr(config, "text_config", None) or config
    of_images = getattr(config, "vision_config", None) or config
    inputs, words = {}, []
    if "input_ids" in wanted:
        length = sequence_length
        if of_text is not config:  # of pairs of texts and images the text is as long as the model knows
            length = min(sequence_length, getattr(of_text, "max_position_embeddings", sequence_length))
        inputs["input_ids"] = torch.zeros((batch, length), dtype=torch.long)
        words.append(f"{length} tokens")
    if "pixel_values" in wanted:
        size = getattr(of_images, "image_size", None)
        if size is None:
            raise RecorderError(f"{type(model).__name__}: its configuration has no image_size; record a script of your "
                                "own")
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        inputs["pixel_values"] = torch.zeros((batch, getattr(of_images, "num_channels", 3), height, width),
                                             dtype=model.dtype)
        words.append(f"an image of {height} × {width}")
    if "input_features" in wanted:
        frames = 2 * config.max_source_positions
        inputs["input_features"] = torch.zeros((batch, config.num_mel_bins, frames), dtype=model.dtype)
        words.append(f"{frames} frames of sound")
    if not inputs:
        raise RecorderError(f"{type(model).__name__}: what its forward is given is not known here (it takes "
                            f"{', '.join(list(wanted)[:4])}, …); record a script of your own")
    if "labels" in wanted:
        predicts_tokens = "input_ids" in wanted or "decoder_input_ids" in wanted
        length = min(sequence_length, getattr(config, "max_target_positions", sequence_length))
        if predicts_tokens and "input_ids" not in wanted:
            words.append(f"{length} tokens to be said")
        one_each = not predicts_tokens or type(model).__name__.endswith("ForSequenceClassification")
        inputs["labels"] = torch.zeros((batch,) if one_each else (batch, length), dtype=torch.long)
    else:
        inputs["return_loss"] = True
    if "use_cache" in wanted:
        inputs["use_cache"] = False
    return inputs, ", ".join(words)


def _without_masks(transformers):
    """Whether rows hold several sequences cannot be seen in tokens without content. They hold one each, so that attention
    is causal without a mask, as it is in a run."""
    masks = getattr(transformers, "masking_utils", None)
    if hasattr(masks, "find_packed_sequence_indices"):
        masks.find_packed_sequence_indices = lambda *_, **__: None


def _without_initial_values(transformers):
    """Tensors without content have none, and some are drawn until they are within bounds."""
    if hasattr(transformers.PreTrainedModel, "initialize_weights"):
        transformers.PreTrainedModel.initialize_weights = lambda model: None


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
    _without_initial_values(transformers)
    _dropout_as_on_a_gpu()
    with FakeTensorMode(allow_non_fake_inputs=True):
        plain = torch.get_default_dtype()
        torch.set_default_dtype(_TYPES[precision])
        try:
            model = _class_for(transformers, loaded, say)._from_config(loaded)
        finally:
            torch.set_default_dtype(plain)
        model.train()
        if checkpointing:
            _enable_checkpointing(model)
        if master and precision != "fp32":
            optimizer = _MasterAdamW(model.parameters())
        else:
            optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        inputs, words = _inputs_for(model, batch, sequence_length)
        say(f"{type(model).__name__}, {batch} × {words}")
        with record(recorded, step=1, model=model, name=os.path.basename(config), quiet=True, timed=False):
            for _ in range(2):
                model(**inputs).loss.backward()
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
