"""python -m tencache_recorder [-o TRACE] [--step N] [--stop] SCRIPT [ARGUMENTS…]: records a script as it is."""

import argparse
import os
import runpy
import sys

from . import RecorderError, record


def _arguments(words):
    parser = argparse.ArgumentParser(
        prog="python -m tencache_recorder",
        description="Runs a PyTorch training script and records one of its steps as a TenCache trace.",
        epilog="Example: python -m tencache_recorder -o run.trace.jsonl --step 3 --stop train.py --epochs 1")
    parser.add_argument("-o", "--output", default="run.trace.jsonl", metavar="TRACE",
                        help=".trace.jsonl or .trace.jsonl.zst (default: %(default)s)")
    parser.add_argument("--step", type=int, default=2, help="the step to record, counted from 0 (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1,
                        help="how many in a row; ops get the median of their durations (default: %(default)s)")
    parser.add_argument("--optimizer-steps", type=int, default=1, metavar="N",
                        help="calls of an optimizer's step that make a training step (default: %(default)s)")
    parser.add_argument("--stop", action="store_true", help="end the script once the step is recorded")
    parser.add_argument("--profiler", action="store_true",
                        help="record with PyTorch's profiler instead of the observer")
    meta = parser.add_argument_group("a model without its memory", "Instead of SCRIPT: one step of AdamW on a "
                                     "model of Hugging Face, of the class that its architectures name, under fake "
                                     "tensors. "
                                     "Sizes and order are exact.")
    meta.add_argument("--meta", metavar="CONFIG", help="a config.json, its folder, or a name on the Hugging Face hub")
    meta.add_argument("--gpu", help="model durations for this GPU, such as l40s (asks the tencache command)")
    meta.add_argument("--batch", type=int, default=1, help="sequences (default: %(default)s)")
    meta.add_argument("--sequence-length", type=int, default=1024,
                      help="tokens each; images and sound are as large as the model takes them (default: %(default)s)")
    meta.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="bf16",
                      help="of parameters and gradients (default: %(default)s)")
    meta.add_argument("--master", choices=["fp32", "off"], default="fp32",
                      help="fp32: beside 16-bit parameters the optimizer keeps its states and a copy of the parameters "
                           "in fp32, as DeepSpeed does; off: states in --precision, no copies, as PyTorch's AdamW on a "
                           "16-bit model (default: %(default)s)")
    meta.add_argument("--checkpointing", action="store_true", help="compute activations again in the backward pass")
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name, as of python -m")
    parser.add_argument("script", metavar="SCRIPT", nargs="?")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="of the script")
    options = parser.parse_args(words)
    if (options.script is None) == (options.meta is None):
        parser.error("give the SCRIPT to record, or --meta CONFIG")
    return options


def main(words=None):
    options = _arguments(words)
    try:
        if options.meta is not None:
            from ._meta import record_meta
            record_meta(options.meta, options.output, gpu=options.gpu, batch=options.batch,
                        sequence_length=options.sequence_length, precision=options.precision,
                        master=options.master != "off", checkpointing=options.checkpointing,
                        say=lambda text: print("tencache_recorder: " + text, file=sys.stderr))
            return
        sys.argv = [options.script] + options.arguments
        with record(options.output, step=options.step, steps=options.steps, optimizer_steps=options.optimizer_steps,
                    stop=options.stop, library=not options.profiler):
            if options.module:
                runpy.run_module(options.script, run_name="__main__", alter_sys=True)
            else:
                sys.path.insert(0, os.path.dirname(os.path.abspath(options.script)))
                runpy.run_path(options.script, run_name="__main__")
    except RecorderError as error:
        sys.exit(f"tencache_recorder: {error}")


if __name__ == "__main__":
    main()
