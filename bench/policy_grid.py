#!/usr/bin/env python3
"""foresight against every other policy at its best options, on a grid of traces, machines and GPU memories.

Each pair is a line of the output file; what is there already is not run again, so that an interrupted grid goes on.
With --others the other policies' figures come from the rows of an earlier grid, and only foresight is measured.
With --generation the traces are blocks of requests for text, not training steps; with --experts of models whose experts
are chosen as they run, computed on the GPU; with --placeable the CPU may compute all of these. With --policies only
these are the others. With --random pairs are drawn at random, of batches, machines and memories beyond the grid's: the
seed decides. With --best the best schedule that a long search finds is added to rows that are far from the lower bound;
it takes minutes each. With --report a summary as Markdown (docs/foresight-grid.md). Simulated figures: they do not
depend on this computer."""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys

MODELS = [  # name of the row, options of `tencache generate`
    ("opt-6.7b", "--model opt-6.7b --batch 8 --seq 1024 --gpu a100-40g --sub-group 100000000"),
    ("opt-13b", "--model opt-13b --batch 8 --seq 1024 --gpu a100-40g --sub-group 100000000"),
    ("opt-66b", "--model opt-66b --batch 4 --seq 1024 --gpu h100 --sub-group 200000000"),
    ("bloom-7b1", "--model bloom-7b1 --batch 8 --seq 1024 --gpu a100-40g --sub-group 100000000"),
    ("falcon-7b", "--model falcon-7b --batch 8 --seq 1024 --gpu a100-40g --sub-group 100000000"),
    ("llama-3-8b", "--model llama-3-8b --batch 8 --seq 1024 --gpu a100-40g --sub-group 100000000"),
    ("llama-3-70b", "--model llama-3-70b --batch 4 --seq 1024 --gpu h100 --sub-group 200000000"),
    ("granite-8b", "--model granite-8b-code-base --batch 8 --seq 1024 --gpu a100-40g --sub-group 100000000"),
    ("gpt2-xl", "--model gpt2-xl --batch 16 --seq 1024 --gpu a100-40g --sub-group 50000000"),
    ("gpt2-xl, recomputed",
     "--model gpt2-xl --batch 16 --seq 1024 --gpu a100-40g --recompute block --sub-group 50000000"),
]
RECORDINGS = ["BERT_Base-256", "VIT-1280", "Inceptionv3-1536", "ResNet152-1280", "SENet154-1024"]
MACHINES = ["g10-a100", "teraio-h100", "10cache-l40s", "p5.4xlarge", "p4d.24xlarge", "gpu_1x_gh200", "mlp-offload",
            "ssdtrain-a100"]
FRACTIONS = [0.5, 0.9, 0.3, 0.7]  # of the trace's peak demand
# With --generation: blocks of requests for text in place of training steps.
GENERATIONS = [
    ("opt-30b 24x2", "--model opt-30b --prompt 512 --new-tokens 8 --block 24x2 --order zigzag --gpu t4 --precision fp16"),
    ("opt-30b 8x2, attention on the CPU", "--model opt-30b --prompt 512 --new-tokens 8 --block 8x2 --order zigzag "
     "--attention-on cpu --gpu t4 --precision fp16"),
    ("opt-66b 8x1", "--model opt-66b --prompt 256 --new-tokens 8 --block 8x1 --gpu a100-80g --precision fp16"),
    ("llama-2-13b 16x4", "--model llama-2-13b --prompt 1024 --new-tokens 8 --block 16x4 --order zigzag --gpu a10g"),
    ("llama-2-13b 4x1, row", "--model llama-2-13b --prompt 128 --new-tokens 16 --block 4x1 --gpu a10g"),
    ("llama-2-70b 16x2", "--model llama-2-70b --prompt 512 --new-tokens 8 --block 16x2 --order zigzag --gpu a100-80g"),
    ("llama-3-8b 64x1", "--model llama-3-8b --prompt 2048 --new-tokens 16 --block 64x1 --gpu a10g"),
    ("llama-3-70b 1x1", "--model llama-3-70b --prompt 512 --new-tokens 8 --block 1x1 --gpu a100-80g"),
    ("bloom-176b 4x1", "--model bloom-176b --prompt 128 --new-tokens 4 --block 4x1 --gpu a100-80g"),
]
GENERATION_MACHINES = ["flexgen-t4", "g6e.xlarge", "NC24ads_A100_v4", "gpu_1x_gh200"]
GENERATION_FRACTIONS = [0.3, 0.7]
# With --experts: the same of models with experts.
MIXTURES = [
    ("mixtral-8x7b 1x1", "--model mixtral-8x7b --prompt 128 --new-tokens 12 --block 1x1 --gpu a10g"),
    ("mixtral-8x7b 4x1", "--model mixtral-8x7b --prompt 128 --new-tokens 12 --block 4x1 --gpu a10g"),
    ("mixtral-8x7b 16x2", "--model mixtral-8x7b --prompt 128 --new-tokens 8 --block 16x2 --order zigzag --gpu a10g"),
    ("mixtral-8x7b 1x1, repeating", "--model mixtral-8x7b --prompt 128 --new-tokens 12 --block 1x1 --gpu a10g "
     "--routing-repeat 0.5"),
    ("qwen3-30b-a3b 1x1", "--model qwen3-30b-a3b --prompt 128 --new-tokens 12 --block 1x1 --gpu a10g"),
    ("qwen3-30b-a3b 1x1, steep", "--model qwen3-30b-a3b --prompt 128 --new-tokens 12 --block 1x1 --gpu a10g "
     "--routing-popularity 0.8"),
    ("qwen3-30b-a3b 8x1", "--model qwen3-30b-a3b --prompt 64 --new-tokens 8 --block 8x1 --gpu a10g"),
    ("gpt-oss-120b 1x1", "--model gpt-oss-120b --prompt 128 --new-tokens 12 --block 1x1 --gpu a10g"),
    ("deepseek-v2-lite 1x1", "--model deepseek-v2-lite --prompt 128 --new-tokens 12 --block 1x1 --gpu a10g"),
]
MIXTURE_MACHINES = ["NV36ads_A10_v5", "10cache-l40s"]
# With --placeable: links carry 0.14, 0.38 and 1.2 times what the CPU reads from memory.
PLACEABLE_MACHINES = ["NV36ads_A10_v5", "a3-highgpu-1g", "gpu_1x_gh200"]
EVICT = {"overflow": "evict"}
# Options beside the defaults that are tried; the best of a policy counts.
TUNED = {
    "belady": [{"prefetch": "ordered", "chunk": "16MiB"}, {"prefetch": "ordered"}],
    "deepum": [{"lookahead": "32"}],
    "g10": [{"limit": "0.95"}],
    "lru": [{"window": "32", "chunk": "16MiB"}],
    "stronghold": [{"optimizer": "recorded"}],
    "teraio": [{"copies": "inclusive", "chunk": "16MiB", "cpu_memory": "100TB"}],
    "zero-infinity": [EVICT], "zero-offload": [EVICT], "ssdtrain": [EVICT], "mlp-offload": [EVICT],
    "deep-optimizer-states": [EVICT],
    # Of generations.
    "accelerate": [{"map": "offload"}], "zero-inference": [EVICT, {"weights": "nvme"}],
    "flexgen": [{"barrier": "none", "cpu_attention": "overlapped"},
                {"barrier": "none", "cpu_attention": "overlapped", "placement": "exact", "solve": "lp"},
                {"barrier": "none", "cpu_attention": "overlapped", "cache_gpu": "100", "cache_cpu": "0", "hidden_gpu": "100",
                 "hidden_cpu": "0"}],
    "moe-infinity": [{"prefetch": "true"}], "fiddler": [{"objective": "max"}],
    "ktransformers": [{"gpu_experts": share, "placement": "dynamic"} for share in ("0.25", "0.65")],
}
OURS, REFERENCES = "foresight", ("ideal", "bound")
FAR = 0.85  # of the bound: below it the report says why
NEAR = 0.97  # of the best schedule found: then it is the bound that is loose
# The best schedule found: planning with a hundred times its budget, which then changes several decisions at once.
LONG_SEARCH = {"search": "wide", "plan_events": "8000000"}
# What a run is busy with.
CLASSES = {
    "storage": "Storage is busy at least 80 % of the time, or delays the GPU longest",
    "updates": "The GPU waits for updates on the CPU at least 5 % of the time",
    "links": "A link between GPU and CPU is busy at least 80 % of the time",
    "waits": "No link is busy 80 % of the time",
}


def run(tencache, *words):
    return subprocess.run([tencache, *words], capture_output=True, text=True)


def simulate(tencache, trace, machine, gpu_bytes, policy, settings, timeout=600):
    """The result, or why there is none."""
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    try:
        done = subprocess.run([tencache, "replay", trace, "-m", machine, "-p", policy, "--gpu-memory", str(gpu_bytes),
                               "--no-rescale", "--json", *words], capture_output=True, text=True,
                              timeout=timeout)
    except subprocess.TimeoutExpired:
        return None, f"no result in {timeout // 60} minutes"
    if not done.stdout.startswith("{"):
        return None, done.stderr.strip()
    result = json.loads(done.stdout)
    return (result, "") if result["fits"] else (None, result.get("reason") or "does not fit")


def written_to_storage(result):
    return sum(bytes_ for link, bytes_ in result["traffic_bytes"].items() if link.endswith("write"))


def read_rows(path):
    return [json.loads(line) for line in open(path)] if path and os.path.exists(path) else []


def random_pairs(arguments):
    """Models with their options, and pairs of them with a machine and a share of the peak."""
    draw = random.Random(int(arguments.seed, 16))
    listed = json.loads(run(arguments.tencache, "machines", "--json").stdout)
    machines = sorted(machine["name"] for machine in listed if "cpu" in json.dumps(machine))
    models, pairs = {}, []
    for _ in range(arguments.random):
        name, options = draw.choice(MODELS)
        words = options.split()
        at = words.index("--batch") + 1
        words[at] = str(max(1, int(int(words[at]) * draw.choice([0.5, 1, 2]))))
        models[f"{name}, batch {words[at]}"] = " ".join(words)
        pairs.append((f"{name}, batch {words[at]}", draw.choice(machines), round(draw.uniform(0.25, 0.95), 3)))
    return list(models.items()), pairs


def make_traces(arguments, models):
    traces = {}
    os.makedirs(arguments.work, exist_ok=True)
    for name, options in models:
        path = os.path.join(arguments.work, name.replace(", ", "-").replace(" ", "-") + ".trace.jsonl.zst")
        if not os.path.exists(path):
            run(arguments.tencache, "generate", *options.split(), "-o", path)
        traces[name] = path
    for name in RECORDINGS if arguments.recordings else []:
        path = os.path.join(arguments.work, name + ".trace.jsonl.zst")
        if not os.path.exists(path):
            run(arguments.tencache, "import", "csv", os.path.join(arguments.recordings, name), "-o", path)
        traces[name] = path
    return traces


def measure(arguments, name, trace, machine, fraction, policies, known):
    peak = json.loads(run(arguments.tencache, "info", trace, "--json").stdout)["peak_demand"]["bytes"]
    gpu_bytes = int(peak * fraction)
    row = {"trace": name, "machine": machine, "fraction": fraction, "gpu_bytes": gpu_bytes, "ours": None, "best": None}
    result, row["reason"] = simulate(arguments.tencache, trace, machine, gpu_bytes, OURS, {})
    if result:
        links = {link: share for link, share in result["mean_utilization"].items() if link in result["traffic_bytes"]}
        row.update(ours=result["iteration_seconds"], bound=result["bound_seconds"], term=result["bound_term"],
                   written=written_to_storage(result), steady=result["steady"], busy=links,
                   stalls=result["stall_seconds"], phases=result["phase_seconds"])
    if known:
        row.update({key: known[key] for key in ("best", "policy", "settings", "best_written") if key in known})
        return row
    for policy in policies:
        for settings in [{}] + TUNED.get(policy, []):
            result, _ = simulate(arguments.tencache, trace, machine, gpu_bytes, policy, settings)
            if result and (row["best"] is None or result["iteration_seconds"] < row["best"]):
                row.update(best=result["iteration_seconds"], policy=policy, settings=settings,
                           best_written=written_to_storage(result))
    return row


def why(row):
    """The class of CLASSES of a row that is far from the bound."""
    busy = lambda words: max((share for link, share in row["busy"].items() if link.endswith(words)), default=0)
    stored = sum(seconds for cause, seconds in row["stalls"].items() if cause.endswith(("_read", "_write")))
    if busy(("_read", "_write")) >= 0.8 or stored > 0.5 * sum(row["stalls"].values()):
        return "storage"
    if row["stalls"]["cpu_optimizer"] >= 0.05 * row["ours"]:
        return "updates"
    return "links" if busy(("h2d", "d2h")) >= 0.8 else "waits"


def is_far(row):
    return row["ours"] is not None and row["bound"] < FAR * row["ours"]


def far_from_bound(rows):
    """Rows far from the bound, by class: bound, best schedule found, foresight."""
    far = [row for row in rows if is_far(row)]
    searched = [row for row in far if row.get("found")]
    loose = [row for row in searched if row["found"] >= NEAR * row["ours"]]
    text = ["", f"## Below {FAR} of the bound", f"{len(far)} pairs. Times are seconds an iteration, waits per cent of it."]
    if searched:
        text[-1] += (f"\nA search with a hundred times the budget was made for {len(searched)} of them.\nIn {len(loose)} it "
                     f"finds nothing that is more than {100 * (1 - NEAR):.0f} % faster, in {len(searched) - len(loose)} it does.")
    for name, heading in CLASSES.items():
        of = sorted((row for row in far if why(row) == name), key=lambda row: row["bound"] / row["ours"])
        if not of:
            continue
        columns = ["trace", "machine", "GPU memory ÷ peak", "bound", *(["best found"] if searched else []), "foresight",
                   "efficiency", "binding term", "waits"]
        text += ["", f"### {heading} ({len(of)} pairs)", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        for row in of:
            waits = {cause: seconds / row["ours"] for cause, seconds in row["stalls"].items()}
            found = [f"{row['found']:.4g}" if row.get("found") else "–"] if searched else []
            cells = [row["trace"], row["machine"], f"{row['fraction']}", f"{row['bound']:.4g}", *found,
                     f"{row['ours']:.4g}", f"{row['bound'] / row['ours']:.3f}", row["term"],
                     ", ".join(f"{cause} {100 * part:.0f}" for cause, part in waits.items() if part >= 0.05)]
            text.append(f"| {' | '.join(cells)} |")
    return text


def search_long(arguments, rows, traces):
    """Adds the best schedule found to rows that are far from the bound, and writes all rows again."""
    todo = [row for row in rows if is_far(row) and "found" not in row]
    for count, row in enumerate(todo):
        if sys.stderr.isatty():
            print(f"\r{count + 1} of {len(todo)} long searches\033[K", end="", file=sys.stderr)
        result, _ = simulate(arguments.tencache, traces[row["trace"]], row["machine"], row["gpu_bytes"], OURS, LONG_SEARCH,
                             timeout=3600)
        row["found"] = min(result["iteration_seconds"], row["ours"]) if result else None
        with open(arguments.rows, "w") as file:
            file.writelines(json.dumps(each) + "\n" for each in rows)


def summary(rows):
    ran = [row for row in rows if row["ours"]]
    rivals = [row for row in ran if row["best"]]
    ratio = lambda row: row["ours"] / row["best"]
    efficiency = lambda row: row["bound"] / row["ours"]
    lost = sorted((row for row in rivals if ratio(row) > 1.01), key=ratio, reverse=True)
    lost += [row for row in rows if row["best"] and not row["ours"]]
    more = [row for row in rivals if row["written"] > 1.1 * row["best_written"] + 1e6]
    text = [f"{len(rows)} pairs of trace, machine and GPU memory; in {len(rows) - len(ran)} foresight does not fit, in "
            f"{sum(1 for row in rows if not row['ours'] and not row['best'])} nothing does.", "",
            "- First, or within 1 % of the fastest other policy at the best of its tried options: "
            f"{len(rivals) - sum(1 for row in lost if row['ours'])} of {len(rivals)}.",
            f"- Median of its time ÷ the best other's: {statistics.median(map(ratio, rivals)):.3f}.",
            f"- Efficiency (bound ÷ time): median {statistics.median(map(efficiency, ran)):.3f}; below 0.85 in "
            f"{sum(1 for row in ran if efficiency(row) < 0.85)}, below 0.5 in "
            f"{sum(1 for row in ran if efficiency(row) < 0.5)}.",
            f"- Pairs where it writes more than 1.1 times as much to storage as the fastest other: {len(more)}.", ""]
    text += ["| trace | pairs | first or tied | time ÷ best other, median | worst | efficiency, median | least |",
             "|---|---|---|---|---|---|---|"]
    for name in dict.fromkeys(row["trace"] for row in rows):
        of = [row for row in ran if row["trace"] == name]
        compared = [row for row in of if row["best"]]
        if not compared:
            continue
        text.append(f"| {name} | {len(of)} | {sum(1 for row in compared if ratio(row) <= 1.01)} | "
                    f"{statistics.median(map(ratio, compared)):.3f} | {max(map(ratio, compared)):.3f} | "
                    f"{statistics.median(map(efficiency, of)):.3f} | {min(map(efficiency, of)):.3f} |")
    text += ["", "The same by machine:", "", "| machine | pairs | first or tied | time ÷ best other, median | efficiency, "
             "median |", "|---|---|---|---|---|"]
    for name in dict.fromkeys(row["machine"] for row in rows):
        of = [row for row in rivals if row["machine"] == name]
        if of:
            text.append(f"| {name} | {len(of)} | {sum(1 for row in of if ratio(row) <= 1.01)} | "
                        f"{statistics.median(map(ratio, of)):.3f} | {statistics.median(map(efficiency, of)):.3f} |")
    if not lost:
        text += ["", "No pair is lost."]
    else:
        text += ["", "Lost:", "", "| trace | machine | GPU memory ÷ peak | foresight | best other | |", "|---|---|---|---|---|---|"]
        for row in lost:
            ours = f"{row['ours']:.4g} s" if row["ours"] else "does not fit"
            text.append(f"| {row['trace']} | {row['machine']} | {row['fraction']} | {ours} | {row['best']:.4g} s | "
                        f"{row['policy']} {' '.join(f'{k}={v}' for k, v in row['settings'].items())} |")
    if more:
        text += ["", "Pairs where it writes more than 1.1 times as much to storage as the fastest other:", "",
                 "| trace | machine | GPU memory ÷ peak | foresight | fastest other | time ÷ its |", "|---|---|---|---|---|---|"]
        for row in more:
            text.append(f"| {row['trace']} | {row['machine']} | {row['fraction']} | {row['written'] / 1e9:.1f} GB | "
                        f"{row['best_written'] / 1e9:.1f} GB, {row['policy']} | {ratio(row):.3f} |")
    return "\n".join(text + far_from_bound(rows)) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tencache", default="build/release/cli/tencache", help="the program (default: %(default)s)")
    parser.add_argument("--recordings", help="folder of G10's recordings; without it only generated traces")
    parser.add_argument("--work", default="build/grid", help="where traces are kept (default: %(default)s)")
    parser.add_argument("--rows", default="build/grid/rows.jsonl", help="a line a pair (default: %(default)s)")
    parser.add_argument("--others", help="rows of an earlier grid, whose figures of the other policies stand")
    parser.add_argument("--only", default="", help="only traces whose name contains this")
    parser.add_argument("--machines", default="", help="only these, with commas between them")
    parser.add_argument("--shard", default="0/1", help="i/n: only this part of the pairs, beside other parts")
    parser.add_argument("--generation", action="store_true", help="blocks of requests for text, not training steps")
    parser.add_argument("--experts", action="store_true", help="the same of models with experts")
    parser.add_argument("--placeable", action="store_true", help="those of --experts, all of which may run on the CPU")
    parser.add_argument("--policies", help="the others, with commas between them (default: all that are no reference)")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="so many pairs drawn at random, not the grid")
    parser.add_argument("--seed", default="0", help="of --random, hexadecimal")
    parser.add_argument("--best", action="store_true", help="add the best schedule found to rows far from the bound")
    parser.add_argument("--report", help="write the summary of all rows to this file")
    arguments = parser.parse_args()
    listed = [policy["name"] for policy in json.loads(run(arguments.tencache, "policies", "--json").stdout)]
    policies = [name for name in (arguments.policies.split(",") if arguments.policies else listed)
                if name != OURS and name not in REFERENCES]
    if set(policies) - set(listed):
        parser.error(f"--policies: no policy is called {', '.join(sorted(set(policies) - set(listed)))}")
    grid = (MODELS, MACHINES, FRACTIONS)
    if arguments.generation:
        grid = (GENERATIONS, GENERATION_MACHINES, GENERATION_FRACTIONS)
    if arguments.experts:
        grid = (MIXTURES, MIXTURE_MACHINES, GENERATION_FRACTIONS)
    if arguments.placeable:
        grid = ([(name + ", placeable", options + " --placeable all") for name, options in MIXTURES],
                PLACEABLE_MACHINES, GENERATION_FRACTIONS)
    models, drawn = random_pairs(arguments) if arguments.random else (grid[0], None)
    traces = make_traces(arguments, models)
    rows = read_rows(arguments.rows)
    pair = lambda row: (row["trace"], row["machine"], row["fraction"])
    done = set(map(pair, rows))
    known = {pair(row): row for row in read_rows(arguments.others)}
    # By memory first: what is interrupted has seen all traces and machines.
    wanted = drawn or [(name, machine, fraction) for fraction in grid[2] for name in traces for machine in grid[1]]
    part, parts = (int(number) for number in arguments.shard.split("/"))
    todo = [(name, machine, fraction) for name, machine, fraction in wanted[part::parts]
            if arguments.only in name and (name, machine, fraction) not in done
            and (not arguments.machines or machine in arguments.machines.split(","))]
    with open(arguments.rows, "a") as file:
        for count, (name, machine, fraction) in enumerate(todo):
            if sys.stderr.isatty():
                print(f"\r{count + 1} of {len(todo)}: {name} on {machine} at {fraction}\033[K", end="", file=sys.stderr)
            rows.append(measure(arguments, name, traces[name], machine, fraction, policies,
                                known.get((name, machine, fraction))))
            file.write(json.dumps(rows[-1]) + "\n")
            file.flush()
    if arguments.best:
        search_long(arguments, rows, traces)
    text = summary(rows)
    if arguments.report:
        with open(arguments.report, "w") as file:
            file.write("# How does foresight compare with the other policies?\n\nWritten by `bench/policy_grid.py`; its head "
                       "describes the comparison. All figures are simulated.\n\n" + text)
    print(text)


if __name__ == "__main__":
    main()
