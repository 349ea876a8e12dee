"""Text generation with a Llama of random weights, by several programs: what live generation is measured with.

    python3 bench/generation_programs.py make FOLDER             weights: safetensors, GGUF, Accelerate's folder
    python3 bench/generation_programs.py make FOLDER --experts 8 --rivals    a Mixtral in place of the Llama
    python3 bench/generation_programs.py generate torch FOLDER   or accelerate, llama-cpp

`generate` makes --new-tokens greedily, after --prompt tokens, on --threads threads, and prints one line of JSON: the
seconds of each token after the first, a hash of the tokens, and the process's memory (bench/live_process.py). The
weights' sizes are TinyLlama-1.1B's unless options say otherwise. `torch` is Hugging Face's `generate`, and nothing in
it knows of TenCache. With --device cuda the weights go to the GPU; Accelerate places there as many layers as
--gpu-memory holds, and the others in ordinary memory.
"""

import argparse
import hashlib
import os
import pathlib
import sys
import time

from live_process import memory_before, report

SIZES = {"layers": 22, "hidden": 2048, "feed_forward": 5632, "heads": 32, "kv_heads": 4, "vocabulary": 32000}
CHECKPOINT, GGUF, OFFLOADED = "checkpoint", "model.gguf", "offloaded"


def prompt(given):
    return list(range(1, 1 + given.prompt))


# ---- Weights


def make(given):
    import torch
    import transformers
    folder = pathlib.Path(given.folder)
    if given.device != "cpu":
        torch.set_default_device(given.device)
    torch.manual_seed(0)
    torch.set_default_dtype(getattr(torch, given.dtype))
    sizes = {"hidden_size": given.hidden, "intermediate_size": given.feed_forward, "num_hidden_layers": given.layers,
             "num_attention_heads": given.heads, "num_key_value_heads": given.kv_heads, "vocab_size": given.vocabulary,
             "max_position_embeddings": 4096, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": None,
             "pad_token_id": 0}
    if given.experts:
        # With larger random weights tokens repeat less.
        model = transformers.MixtralForCausalLM(transformers.MixtralConfig(
            **sizes, num_local_experts=given.experts, num_experts_per_tok=2, initializer_range=0.1))
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    model.save_pretrained(folder / CHECKPOINT, max_shard_size="1000GB")
    if "accelerate" in given.rivals:
        import accelerate
        accelerate.utils.offload_state_dict(str(folder / OFFLOADED), model.state_dict())
    if "llama-cpp" in given.rivals:
        write_gguf(folder / GGUF, model, given)


def write_gguf(path, model, given):
    """As llama.cpp reads a Llama; queries and keys in the order of its rotation (pairs side by side)."""
    import gguf
    import torch
    kinds = gguf.GGMLQuantizationType
    kind = {"bfloat16": kinds.BF16, "float16": kinds.F16, "float32": kinds.F32}[given.dtype]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(given.hidden)
    writer.add_block_count(given.layers)
    writer.add_feed_forward_length(given.feed_forward)
    writer.add_head_count(given.heads)
    writer.add_head_count_kv(given.kv_heads)
    writer.add_rope_dimension_count(given.hidden // given.heads)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_vocab_size(given.vocabulary)
    writer.add_tokenizer_model("none")  # the program speaks in ids
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, given.layers)
    for name, tensor in model.state_dict().items():
        stem, _, suffix = name.rpartition(".")
        for part, heads in (("q_proj", given.heads), ("k_proj", given.kv_heads)):
            if stem.endswith(part):
                rows = tensor.shape[0] // heads // 2
                tensor = tensor.view(heads, 2, rows, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
        new = f"{names.get_name(stem)}.{suffix}"
        if tensor.dim() == 1 or given.dtype == "float32":  # norms are always float32 there
            writer.add_tensor(new, tensor.float().numpy())
        else:
            bits = tensor.contiguous().view(torch.uint8 if given.dtype == "bfloat16" else tensor.dtype)
            writer.add_tensor(new, bits.numpy(), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# ---- Generation


def torch_tokens(given, times, load):
    """Hugging Face's `generate`."""
    import torch
    import transformers

    class Clock(transformers.generation.streamers.BaseStreamer):
        def put(self, value):
            times.append(time.perf_counter())

        def end(self):
            pass
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(given.threads)
    transformers.AutoModelForCausalLM, transformers.LlamaForCausalLM, transformers.MixtralForCausalLM  # imported now
    before = memory_before()
    model = load(given).eval()
    ids = torch.tensor([prompt(given)] * given.batch, device=given.device)
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=given.new_tokens,
                             min_new_tokens=given.new_tokens, do_sample=False, streamer=Clock())
    del times[0]  # the prompt
    return out[:, given.prompt:].flatten().tolist(), before


def load_torch(given):
    import transformers
    folder = pathlib.Path(given.folder)
    dtype = "dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype"
    return transformers.AutoModelForCausalLM.from_pretrained(folder / CHECKPOINT, **{dtype: "auto"}).to(given.device)


def load_accelerate(given):
    import accelerate
    import transformers
    import torch
    folder = pathlib.Path(given.folder)
    if given.device == "cuda":
        limits = {0: given.gpu_memory, "cpu": "1000GB"}
        return transformers.LlamaForCausalLM.from_pretrained(folder / CHECKPOINT, dtype="auto", device_map="auto",
                                                             max_memory=limits)
    configuration = transformers.AutoConfig.from_pretrained(folder / CHECKPOINT)
    torch.set_default_dtype(configuration.dtype)
    with accelerate.init_empty_weights(include_buffers=False):
        model = transformers.LlamaForCausalLM(configuration)
    torch.set_default_dtype(torch.float32)
    return accelerate.disk_offload(model, str(folder / OFFLOADED), execution_device="cpu")


def llama_cpp_tokens(given, times):
    import llama_cpp
    before = memory_before()
    model = llama_cpp.Llama(str(pathlib.Path(given.folder) / GGUF), n_ctx=given.prompt + given.new_tokens + 1,
                            n_threads=given.threads, n_threads_batch=given.threads, use_mmap=True, verbose=False)
    tokens = []
    for token in model.generate(prompt(given), temp=0.0, repeat_penalty=1.0):
        times.append(time.perf_counter())
        tokens.append(token)
        if len(tokens) == given.new_tokens:
            return tokens, before


PROGRAMS = {"torch": lambda given, times: torch_tokens(given, times, load_torch),
            "accelerate": lambda given, times: torch_tokens(given, times, load_accelerate),
            "llama-cpp": llama_cpp_tokens}


def generate(given):
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(given.threads)
    times = []
    start = time.perf_counter()
    tokens, before = PROGRAMS[given.program](given, times)
    seconds = [after - first for first, after in zip(times, times[1:])]
    report({"seconds": seconds, "first_token": times[0] - start, "total": times[-1] - start,
            "sha256": hashlib.sha256(repr(tokens).encode()).hexdigest(), "tokens": tokens[:8]}, before)


def add_sizes(parser):
    for name, size in SIZES.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=size)
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")


def add_lengths(parser):
    parser.add_argument("--prompt", type=int, default=16, help="tokens")
    parser.add_argument("--new-tokens", type=int, default=24)
    parser.add_argument("--threads", type=int, default=2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    making = commands.add_parser("make")
    making.set_defaults(call=make)
    making.add_argument("folder")
    making.add_argument("--experts", type=int, default=0, help="of each layer; a token uses two (default: none)")
    making.add_argument("--rivals", nargs="*", default=["accelerate", "llama-cpp"])
    making.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="that draws the weights")
    add_sizes(making)
    generating = commands.add_parser("generate")
    generating.set_defaults(call=generate)
    generating.add_argument("program", choices=PROGRAMS)
    generating.add_argument("folder")
    generating.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    generating.add_argument("--gpu-memory", help="of Accelerate with --device cuda: 8GiB")
    generating.add_argument("--batch", type=int, default=1)
    add_lengths(generating)
    given = parser.parse_args()
    given.call(given)


if __name__ == "__main__":
    sys.exit(main())
