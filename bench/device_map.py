#!/usr/bin/env python3
"""Compares the device maps of `tencache tune -p accelerate --accelerate F` with Accelerate's own, tensor by tensor.

    bench/device_map.py build/release/cli/tencache

Needs PyTorch, Transformers and Accelerate. Models have no weights (the meta device), so that nothing is downloaded.
For each model and each pair of sizes for `max_memory` (shares of the model's bytes for the GPU and the CPU), it prints
how many tensors are placed alike, and those that are not. Exit code 1 if any differs.
"""

import argparse
import json
import logging
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from accelerate import infer_auto_device_map, init_empty_weights
from accelerate.utils import check_device_map

logging.getLogger("accelerate.utils.modeling").setLevel(logging.ERROR)  # no GPU is needed here

OPT = dict(vocab_size=50272, max_position_embeddings=2048)
LLAMA = dict(vocab_size=128256, num_key_value_heads=8, num_attention_heads=32)
MODELS = {
    "opt-1.3b": transformers.OPTConfig(hidden_size=2048, num_hidden_layers=24, ffn_dim=8192, num_attention_heads=32,
                                       word_embed_proj_dim=2048, **OPT),
    "opt-30b": transformers.OPTConfig(hidden_size=7168, num_hidden_layers=48, ffn_dim=28672, num_attention_heads=56,
                                      word_embed_proj_dim=7168, **OPT),
    "llama-2-70b": transformers.LlamaConfig(vocab_size=32000, hidden_size=8192, intermediate_size=28672,
                                            num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8),
    "llama-3-8b": transformers.LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, **LLAMA),
    "llama-3.2-1b": transformers.LlamaConfig(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
                                             head_dim=64, tie_word_embeddings=True, **LLAMA),
    "bloom-7b1": transformers.BloomConfig(vocab_size=250880, hidden_size=4096, n_layer=30, n_head=32),
    "gpt2-xl": transformers.GPT2Config(n_embd=1600, n_layer=48, n_head=25),
}
SHARES = [(0.9, 0.4), (0.5, 0.3), (0.25, 0.5), (0.3, 2.0), (0.11, 0.12)]


def device_of(name, device_map):
    while name not in device_map:
        name = name.rpartition(".")[0]
    return device_map[name]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tencache", type=pathlib.Path)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    arguments = parser.parse_args()
    differ = 0
    for name in arguments.models:
        with init_empty_weights():
            model = transformers.AutoModelForCausalLM.from_config(MODELS[name], dtype=torch.float16)
        model.tie_weights()
        bytes_ = sum(2 * parameter.numel() for parameter in model.parameters())
        for on_gpu, on_cpu in SHARES:
            memory = {0: int(bytes_ * on_gpu), "cpu": int(bytes_ * on_cpu)}
            theirs = infer_auto_device_map(model, max_memory=memory, no_split_module_classes=model._no_split_modules)
            with tempfile.TemporaryDirectory() as folder:
                file = pathlib.Path(folder, "map.json")
                subprocess.run(
                    [arguments.tencache, "tune", "--model", name, "--new-tokens", "2", "--prompt", "8", "--precision",
                     "fp16", "--block", "1x1", "--order", "row", "--kv-page", "16", "-m", "flexgen-t4", "--gpu-memory",
                     "400GiB", "--cpu-memory", "800GiB", "-p", "accelerate", "--over", f"gpu_weights={memory[0]}",
                     "--set", f"cpu_weights={memory['cpu']}", "--accelerate", file],
                    check=True, stdout=subprocess.DEVNULL)
                ours = json.loads(file.read_text())
            check_device_map(model, ours)  # raises where a tensor has no device
            names = list(model.state_dict())
            other = [n for n in names if device_of(n, ours) != device_of(n, theirs)]
            differ += len(other)
            where = {device: sum(device_of(n, theirs) == device for n in names) for device in (0, "cpu", "disk")}
            print(f"{name:13} GPU {memory[0] / 2**30:7.3f} GiB, CPU {memory['cpu'] / 2**30:7.3f} GiB: "
                  f"{len(names) - len(other)} of {len(names)} tensors alike ({where[0]} on the GPU, {where['cpu']} on "
                  f"the CPU, {where['disk']} on disk)" + "".join(
                      f"\n  {n}: {device_of(n, ours)}, Accelerate {device_of(n, theirs)}" for n in other[:6]), flush=True)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
