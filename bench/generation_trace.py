#!/usr/bin/env python3
"""Writes a trace of text generation with offloaded weights, made by hand: OPT-30B on FlexGen's T4 host.

A block of requests, from prompt to last token, is one iteration (zig-zag order: all micro-batches of a layer before the
next layer, all layers before the next token). Decode attention runs on the CPU, as under FlexGen's `--cpu`. Durations
are by the rates that FlexGen's cost model was fitted with on that host (FMInference/FlexLLMGen,
experimental/cost_model.py). With the defaults 23,000 ops. The machine is written beside the trace."""
import argparse
import json

HIDDEN, FEED_FORWARD, LAYERS, VOCABULARY = 7168, 28672, 48, 50272
# Floating-point operations a second: products in prefill and decode, attention in prefill and on the CPU.
PRODUCTS_PREFILL, PRODUCTS_DECODE, ATTENTION_PREFILL, ATTENTION_CPU = 21.24e12, 4.3e12, 9.97e12, 0.0123e12
TWO_BYTES = 2

MACHINE = """# FlexGen's host (arXiv 2303.06865, table 1), with the link that its cost model was fitted to.
name: flexgen-t4
description: "T4 with 16 GB, 208 GB of CPU memory, 1.5 TB of SSD"
gpu: t4
tiers:
  - {name: gpu, kind: gpu, capacity: 15GiB, granularity: 4KiB}
  - {name: cpu, kind: cpu, capacity: 208GB, granularity: 4KiB}
  - {name: nvme, kind: nvme, capacity: 1.5TB, granularity: 4KiB}
links:
  - {name: h2d, from: cpu, to: gpu, bandwidth: 12.89GiB/s}
  - {name: d2h, from: gpu, to: cpu, bandwidth: 12.89GiB/s}
  - {name: nvme_read, from: nvme, to: cpu, bandwidth: 2GB/s}
  - {name: nvme_write, from: cpu, to: nvme, bandwidth: 1GB/s}
staging: {tier: cpu, count: 16, bytes: 16MiB}
initial_tier: cpu
issue_ahead: 1
copies_in_flight: 1
"""


class Trace:
    def __init__(self):
        self.tensors, self.ops = [], []

    def tensor(self, name, bytes_, role, persistent=False):
        self.tensors.append({"kind": "tensor", "id": len(self.tensors), "name": name, "bytes": bytes_, "role": role,
                             "persistent": persistent})
        return len(self.tensors) - 1

    def op(self, name, module, step, seconds, reads, writes, device="gpu"):
        self.ops.append({"kind": "op", "id": len(self.ops), "name": name, "phase": "decode" if step else "prefill",
                         "device": device, "module": module, "duration_ns": max(1, round(seconds * 1e9)),
                         "duration_source": "modelled", "step": step, "reads": reads, "writes": writes})


def generation(prompt, tokens, batch, batches):
    trace = Trace()
    square, wide = HIDDEN * HIDDEN * TWO_BYTES, HIDDEN * FEED_FORWARD * TWO_BYTES
    embedding = trace.tensor("embedding", VOCABULARY * HIDDEN * TWO_BYTES, "parameter", True)
    weights = [{name: trace.tensor(f"layers.{layer}.{name}", bytes_, "parameter", True)
                for name, bytes_ in (("qkv", 3 * square), ("out", square), ("fc1", wide), ("fc2", wide))}
               for layer in range(LAYERS)]
    ids = [trace.tensor(f"ids.{k}", batch * prompt * 8, "input", True) for k in range(batches)]
    caches = [[[] for _ in range(batches)] for _ in range(LAYERS)]
    for step in range(tokens):
        width = 1 if step else prompt
        rate = PRODUCTS_DECODE if step else PRODUCTS_PREFILL
        product = lambda n, m: 2 * batch * width * n * m / rate
        rows = lambda name, columns: trace.tensor(f"{name}", batch * width * columns * TWO_BYTES, "activation")
        hidden = []
        for k in range(batches):
            hidden.append(rows(f"{step}.embedded.{k}", HIDDEN))
            trace.op("embed", "embedding", step, 20e-6, [embedding, ids[k]], [hidden[k]])
        for layer in range(LAYERS):
            weight = weights[layer]
            attention, feed_forward = f"{step}.layers.{layer}.attention", f"{step}.layers.{layer}.mlp"
            for k in range(batches):
                query = rows(f"{attention}.q.{k}", HIDDEN)
                cache = trace.tensor(f"{attention}.kv.{k}", 2 * batch * width * HIDDEN * TWO_BYTES, "kv_cache")
                caches[layer][k].append(cache)
                trace.op("qkv", attention, step, product(HIDDEN, 3 * HIDDEN), [hidden[k], weight["qkv"]], [query, cache])
                context = rows(f"{attention}.context.{k}", HIDDEN)
                length = prompt + step
                flops = 4 * batch * width * length * HIDDEN
                trace.op("attention", attention, step, flops / (ATTENTION_CPU if step else ATTENTION_PREFILL),
                         [query, *caches[layer][k]], [context], "cpu" if step else "gpu")
                attended = rows(f"{attention}.hidden.{k}", HIDDEN)
                trace.op("out", attention, step, product(HIDDEN, HIDDEN), [context, hidden[k], weight["out"]], [attended])
                hidden[k] = attended
            for k in range(batches):
                middle = rows(f"{feed_forward}.middle.{k}", FEED_FORWARD)
                trace.op("fc1", feed_forward, step, product(HIDDEN, FEED_FORWARD), [hidden[k], weight["fc1"]], [middle])
                after = rows(f"{feed_forward}.hidden.{k}", HIDDEN)
                trace.op("fc2", feed_forward, step, product(HIDDEN, FEED_FORWARD), [middle, hidden[k], weight["fc2"]],
                         [after])
                hidden[k] = after
        for k in range(batches):
            logits = trace.tensor(f"{step}.logits.{k}", batch * VOCABULARY * TWO_BYTES, "activation")
            trace.op("logits", "head", step, 2 * batch * HIDDEN * VOCABULARY / rate, [hidden[k], embedding], [logits])
    return trace


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=32, help="tokens to generate (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=48, help="sequences of a micro-batch (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=3, help="micro-batches of a block (default: %(default)s)")
    parser.add_argument("-o", "--output", required=True, help="the trace (.trace.jsonl)")
    parser.add_argument("--machine", help="write the machine to this file, too")
    arguments = parser.parse_args()
    trace = generation(arguments.prompt, arguments.tokens, arguments.batch, arguments.batches)
    header = {"kind": "header", "format_version": 2, "model": "opt-30b", "batch": arguments.batch * arguments.batches,
              "sequence_length": arguments.tokens, "precision": "fp16", "hardware": "t4", "recorded_by": "by hand",
              "tensor_count": len(trace.tensors), "op_count": len(trace.ops)}
    with open(arguments.output, "w") as file:
        for line in [header, *trace.tensors, *trace.ops]:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
    if arguments.machine:
        with open(arguments.machine, "w") as file:
            file.write(MACHINE)
    print(f"{len(trace.tensors)} tensors, {len(trace.ops)} ops, "
          f"{sum(len(op['reads']) + len(op['writes']) for op in trace.ops)} accesses")


main()
