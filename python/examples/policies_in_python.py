"""A morning's experiment: how far from the best is plain LRU, and what do four ops of looking ahead bring?

Runs in a few seconds: python3 policies_in_python.py
"""

import numpy as np

import tencache

# 1. A training step, from the model's description. Traces are arrays.
trace = tencache.generate(model="gpt2", batch=8, seq=512, gpu="a10g", precision="bf16")
tensors, ops = trace.tensors, trace.ops
print(trace)
for code, role in enumerate(tencache.ROLES):
    bytes_of_role = tensors["bytes"][tensors["role"] == code].sum()
    if bytes_of_role:
        print(f"  {role:16} {bytes_of_role / 2**20:8.0f} MiB")
print(f"  {ops['duration_ns'].sum() / 1e6:.1f} ms of kernels, {ops['gap_before_ns'].sum() / 1e6:.1f} ms between them")


# 2. Two policies. The engine moves the tensors; a policy only says which.
class Lru(tencache.Policy):
    """What was used least recently leaves."""

    name = "my-lru"

    def layout(self, machine, program):
        return {"chunk_bytes": 0}  # whole tensors

    def make_room(self, request, view):
        victims, freed = [], 0
        for chunk in view.memory.by_age(request.tier):
            if freed >= request.bytes:
                break
            victims.append(chunk)
            freed += view.memory.footprint(chunk, request.tier)
        return victims


class LookAhead(Lru):
    """Fetches what the next ops use; what is needed last leaves."""

    name = "look-ahead"
    options = {"ahead": 4}
    events = {"op_issued"}

    def on(self, event, view, actions):
        if event.op is None:
            return
        for op in range(event.op + 1, event.op + 1 + self.options["ahead"]):
            for tensor in view.uses(op % len(ops)):
                if not view.memory.resident(tensor):
                    actions.fetch(tensor)

    def make_room(self, request, view):
        def distance(chunk):
            ops_until = view.distance_to_next_use(view.memory.tensor_of(chunk))
            return len(ops) if ops_until is None else ops_until

        chunks = [chunk for chunk in view.memory.by_age(request.tier)]
        if request.prefetch:
            chunks = [chunk for chunk in chunks if distance(chunk) > self.options["ahead"]]
        return sorted(chunks, key=distance, reverse=True)


# 3. Beside the ones that ship, with half of the memory that the step needs.
memory = tencache.info(trace)["peak_demand"]["bytes"] // 2
rows = tencache.compare(trace, "g5.xlarge", ["lru", Lru, LookAhead, "belady", "foresight"], gpu_memory=memory)
print(f"\nOn g5.xlarge with {memory / 2**20:.0f} MiB of GPU memory:")
for row in rows:
    if row["fits"]:
        print(f"  {row['policy']:12} {1e3 * row['iteration_seconds']:7.1f} ms")

# 4. Where the time went: the timeline is arrays too.
result, (timeline,) = tencache.simulate(trace, "g5.xlarge", LookAhead, {"ahead": 8}, gpu_memory=memory)
spans = timeline.spans
stalls = spans[spans["kind"] == tencache.SPAN_KINDS.index("stall")]
print(f"\n{timeline.name}: {len(spans)} spans; the GPU waited")
for cause in np.unique(stalls["cause"]):
    waited = stalls[stalls["cause"] == cause]
    seconds = (waited["end_ns"] - waited["start_ns"]).sum() / 1e9
    print(f"  {seconds:8.3f} s for {tencache.STALL_CAUSES[cause]}")
held = timeline.occupancy[timeline.occupancy["tier"] == 0]["used"].max()
print(f"and its memory held {held / 2**20:.0f} MiB at most")
