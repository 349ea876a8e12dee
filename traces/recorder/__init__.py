"""Records one training step of a PyTorch program as a TenCache trace.

    import tencache_recorder

    with tencache_recorder.record("run.trace.jsonl", step=2):
        for batch in loader:                  # the training loop as it is
            loss = model(batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

The trace has every op of the step with the tensors that it reads and writes, the time it took and the module it belongs
to, and every tensor with its size and role. `tencache replay`, `compare`, `fit` and the others read it.

How: a small C++ library (observer.cpp), built once for your PyTorch with the compiler of your computer and kept in
~/.cache/tencache_recorder, watches the calls of PyTorch's dispatcher; the program itself is not changed and goes on
afterwards without it. Where it cannot be built or loaded, PyTorch's profiler records instead, which is slower and
knows less; `tencache import pytorch` makes a trace of its files. Either way the recorder says on stderr what it did.

A step ends with the step of an optimizer; `optimizer_steps=n` where a training step has several, `optimizer_steps=0`
where you call `recording.step()` yourself. Works with PyTorch 1.13 and newer, on the CPU, on CUDA (2.4 and newer) and
on the meta device.
"""

import sys

from ._errors import Recorded, RecorderError
from ._recording import Recording

__all__ = ["record", "Recording", "Recorded", "RecorderError"]
__version__ = "0.1.0"


def record(path, *, step=2, steps=1, optimizer_steps=1, model=None, name=None, batch=None, sequence_length=None,
           stop=False, library=True, timed=True, quiet=False):
    """Returns a context manager that records into the file `path` (.trace.jsonl, or .trace.jsonl.zst where Python can
    compress with zstd).

    step             the step to record, counted from 0 as the `with` begins. The first steps differ from the later
                     ones (memory is allocated, the optimizer's state is made): take 2 or later
    steps            how many to record in a row; each op gets the median of its durations. All must be alike
    optimizer_steps  calls of an optimizer's step that make a training step; 0: you call step() of what this returns
    model            the module that is trained; default: found among the live objects
    name, batch, sequence_length
                     for the trace's header; default: the model's class or name, and the sizes of what it is given
    stop             leave the `with` block once the step is recorded: by Recorded, raised in the next forward and
                     caught as the block ends
    library          False: record with PyTorch's profiler, as where the library cannot be built
    timed            False: ops have no durations, as those of tensors without content have none (meta, fake);
                     `tencache import trace --gpu` models them
    quiet            say nothing on stderr

    Of what `with` returns: `done`, `path` and `duration_seconds` of the recorded step. If the block ends before the
    step is recorded, RecorderError says so. With several ranks (RANK is set) each writes a file of its own, `path` with
    .rankN before its suffix.
    """
    def say(text):
        if not quiet:
            print("tencache_recorder: " + text, file=sys.stderr)

    return Recording(path, step=step, steps=steps, optimizer_steps=optimizer_steps, model=model, name=name, batch=batch,
                     sequence_length=sequence_length, stop=stop, library=library, timed=timed, say=say)
