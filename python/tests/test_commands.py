"""The functions give what the commands print."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import numpy as np

import tencache

SOURCE = os.environ["TENCACHE_SOURCE_DIR"]
PROGRAM = os.environ["TENCACHE_PROGRAM"]
SAMPLE = os.path.join(SOURCE, "traces", "samples", "gpt2-small.trace.jsonl.zst")
MEMORY = "1300MiB"


def printed(*words):
    """What the program prints with --json."""
    answer = subprocess.run([PROGRAM, *words, "--json"], capture_output=True, text=True)
    if answer.returncode not in (0, 1):
        raise AssertionError(answer.stderr)
    return json.loads(answer.stdout)


def without_clock(result):
    """Without the tool's own run time."""
    if isinstance(result, list):
        return [without_clock(one) for one in result]
    return {key: value for key, value in result.items() if key != "timing"}


class CommandsTest(unittest.TestCase):
    maxDiff = None

    def test_replay_is_the_commands_json(self):
        ours = tencache.replay(SAMPLE, "g10-a100", "lru", {"window": 4}, gpu_memory=MEMORY, assume_gpu="a100-40g")
        theirs = printed("replay", SAMPLE, "--machine", "g10-a100", "--policy", "lru", "--set", "window=4",
                         "--gpu-memory", MEMORY, "--assume-gpu", "a100-40g")
        self.assertEqual(without_clock(ours), without_clock(theirs))
        self.assertEqual(list(ours), list(theirs))

    def test_compare_is_the_commands_json(self):
        names = ["10cache", "on-demand", "g10"]
        ours = tencache.compare(SAMPLE, "g10-a100", names, gpu_memory=MEMORY, samples=3, no_rescale=True)
        theirs = printed("compare", SAMPLE, "--machine", "g10-a100", "--policies", ",".join(names), "--gpu-memory",
                         MEMORY, "--samples", "3", "--no-rescale")
        self.assertEqual(without_clock(ours), without_clock(theirs))
        self.assertEqual(len(ours), 5)

    def test_a_loaded_trace_gives_the_files_result_and_a_changed_one_its_own(self):
        trace = tencache.load(SAMPLE)
        from_file = tencache.replay(SAMPLE, "g10-a100", "ideal", no_rescale=True)
        from_trace = tencache.replay(trace, "g10-a100", "ideal", no_rescale=True)
        self.assertEqual(from_trace["manifest"]["hashes"]["trace"], from_file["manifest"]["hashes"]["trace"])
        self.assertEqual(from_trace["iteration_seconds"], from_file["iteration_seconds"])
        ops = trace.ops
        ops["duration_ns"] *= 2
        ops["gap_before_ns"] *= 2
        trace.ops = ops
        changed = tencache.replay(trace, "g10-a100", "ideal", no_rescale=True)
        self.assertAlmostEqual(changed["iteration_seconds"], 2 * from_file["iteration_seconds"], places=6)
        self.assertNotEqual(changed["manifest"]["hashes"]["trace"], from_file["manifest"]["hashes"]["trace"])
        self.assertEqual(changed["manifest"]["hashes"]["trace"],
                         tencache.replay(trace, "g10-a100", "ideal", no_rescale=True)["manifest"]["hashes"]["trace"])

    def test_a_file_that_changed_under_a_loaded_trace_is_not_used(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "t.trace.jsonl")
            trace = tencache.generate(model="gpt2", batch=1, seq=64, gpu="a10g")
            tencache.save(trace, path)
            loaded = tencache.load(path)
            tencache.save(tencache.generate(model="gpt2", batch=1, seq=128, gpu="a10g"), path)
            self.assertEqual(tencache.info(loaded)["ops"]["count"], len(trace.ops))

    def test_traces_stay_in_memory(self):
        trace = tencache.generate(model="gpt2", batch=1, seq=16, gpu="a10g")
        machine = {"name": "own", "base": "g5.xlarge"}
        result = tencache.replay(trace, machine, "ideal")
        self.assertEqual(result["trace"], "trace in memory")
        folder = os.path.dirname(result["manifest"]["run"]["machine"])
        before = os.listdir(folder)
        self.assertEqual(without_clock(tencache.replay(trace, dict(machine), "ideal")), without_clock(result))
        self.assertEqual(os.listdir(folder), before)
        self.assertTrue(os.path.exists(result["manifest"]["run"]["machine"]), "for `reproduce`")
        with tempfile.TemporaryDirectory() as own:
            path = os.path.join(own, "t.trace.jsonl")
            tencache.save(trace, path)
            for of_file, of_trace in ((tencache.info(path), tencache.info(trace)),
                                      (tencache.replay(path, machine, "ideal"), result)):
                for one in (of_file, of_trace):
                    del one["trace"]
                    one.pop("manifest", None)
                self.assertEqual(without_clock(of_file), without_clock(of_trace))
            tuned = tencache.command("tune", trace, path, machine=machine, policy="zero-offload", budget=2)
            self.assertEqual(tuned["manifest"]["run"]["traces"], ["trace in memory", path])
            self.assertEqual(*tuned["manifest"]["hashes"]["traces"])

    def test_threads_share_a_trace(self):
        trace = tencache.generate(model="gpt2", batch=1, seq=16, gpu="a10g")
        together = threading.Barrier(4)

        def work(index):
            together.wait()
            results[index] = without_clock(tencache.info(trace))

        results = [None] * 4
        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(results, 4 * [tencache.info(trace)])

    def test_lists_bound_fit_info_and_explain(self):
        self.assertEqual(tencache.policies(), printed("policies"))
        self.assertEqual(tencache.machines(), printed("machines"))
        self.assertEqual(tencache.models(), printed("models"))
        self.assertEqual(tencache.info(SAMPLE), printed("info", SAMPLE))
        options = {"no_rescale": True, "gpu_memory": MEMORY}
        words = ["--no-rescale", "--gpu-memory", MEMORY]
        self.assertEqual(without_clock(tencache.bound(SAMPLE, "g10-a100", **options)),
                         without_clock(printed("bound", SAMPLE, "--machine", "g10-a100", *words)))
        self.assertEqual(without_clock(tencache.fit(SAMPLE, "g10-a100", **options)),
                         without_clock(printed("fit", SAMPLE, "--machine", "g10-a100", *words)))
        self.assertEqual(without_clock(tencache.explain(SAMPLE, "g10-a100", "lru", **options)),
                         without_clock(printed("explain", SAMPLE, "--machine", "g10-a100", "--policy", "lru", *words)))

    def test_endurance_sensitivity_and_tune_are_the_commands_json(self):
        options = {"no_rescale": True, "gpu_memory": MEMORY}
        words = ["--machine", "g5.xlarge", "--no-rescale", "--gpu-memory", MEMORY]
        for ours, theirs in (
                (tencache.endurance(SAMPLE, "g5.xlarge", "foresight", dwpd=0.5, **options),
                 printed("endurance", SAMPLE, *words, "--policy", "foresight", "--dwpd", "0.5")),
                (tencache.sensitivity(SAMPLE, "g5.xlarge", "h2d=4GB/s..8GB/s:2", policies="lru", **options),
                 printed("sensitivity", SAMPLE, *words, "--over", "h2d=4GB/s..8GB/s:2", "--policies", "lru")),
                (tencache.tune(SAMPLE, "g5.xlarge", "10cache", budget=3, limit={"h2d": "9GB/s"}, **options),
                 printed("tune", SAMPLE, *words, "--policy", "10cache", "--budget", "3", "--limit", "h2d=9GB/s"))):
            self.assertEqual(json.dumps(without_clock(ours)), json.dumps(without_clock(theirs)))

    def test_options_are_held_to_what_the_commands_hold_them(self):
        for options, message in (
                ({"iterations": 0}, "--iterations: Value 0 not in range 1 to 1000000"),
                ({"seed": 3}, "--seed requires --samples"),
                ({"samples": 3, "faults": "seed=7"}, "--faults excludes --samples"),
                ({"assume_gpu": ["a10g", "l4"]}, "--assume-gpu is given twice"),
                ({"no_rescale": "maybe"}, "neither true nor false"),
                ({"limit": ["h2d"]}, "LINK=BANDWIDTH")):
            with self.assertRaisesRegex(tencache.Error, message):
                tencache.replay(SAMPLE, "g10-a100", "lru", **options)
        with self.assertRaisesRegex(tencache.Error, "--machine is required"):
            tencache.command("bound", SAMPLE)
        with self.assertRaisesRegex(tencache.Error, "given twice"):
            tencache.command("bound", SAMPLE, SAMPLE, machine="g10-a100")

    def test_no_function_needs_a_command_line(self):
        self.assertNotIn("diff", tencache._core.questions)
        commands = set(tencache.__all__) - {"command", "generate", "import_trace", "load", "report", "samples", "save",
                                            "live", "checkpoint", "simulate", "import_snapshot", "mark_experts",
                                            "chose_experts"}
        named = {name for name in commands if name.islower() and not name.startswith("_")}
        self.assertLessEqual(named, {name.translate({32: "_", 45: "_"}) for name in tencache._core.questions})

    def test_what_does_not_fit_is_a_result(self):
        result = tencache.replay(SAMPLE, "g10-a100", "lru", gpu_memory=1 << 19, no_rescale=True)
        self.assertFalse(result["fits"])
        self.assertIsInstance(result["reason"], str)

    def test_errors_are_the_commands_words(self):
        with self.assertRaises(tencache.Error) as caught:
            tencache.replay(SAMPLE, "g10-a100", "no-such-policy", no_rescale=True)
        answer = subprocess.run([PROGRAM, "replay", SAMPLE, "--machine", "g10-a100", "--policy", "no-such-policy",
                                 "--no-rescale"], capture_output=True, text=True)
        self.assertEqual("tencache: " + str(caught.exception), answer.stderr.strip())
        with self.assertRaisesRegex(tencache.Error, "unknown option .--colour"):
            tencache.replay(SAMPLE, "g10-a100", "lru", colour="red")
        with self.assertRaisesRegex(tencache.Error, "machine"):
            tencache.replay(SAMPLE, "no-such-machine", "lru")

    def test_a_machine_as_a_dict(self):
        machine = {"base": "g10-a100", "name": "slow", "links": {"h2d": {"bandwidth": "1GB/s"}}}
        slow = tencache.replay(SAMPLE, machine, "on-demand", gpu_memory=MEMORY, no_rescale=True)
        fast = tencache.replay(SAMPLE, "g10-a100", "on-demand", gpu_memory=MEMORY, no_rescale=True)
        self.assertEqual(slow["machine"], "slow")
        self.assertGreater(slow["iteration_seconds"], 1.2 * fast["iteration_seconds"])

    def test_generate_is_the_commands_trace(self):
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = os.path.join(folder, "a.trace.jsonl"), os.path.join(folder, "b.trace.jsonl")
            tencache.save(tencache.generate("gpt2", 2, 128, gpu="l4", recompute="block"), ours)
            printed("generate", "--model", "gpt2", "--batch", "2", "--seq", "128", "--gpu", "l4", "--recompute", "block",
                    "-o", theirs)
            with open(ours, "rb") as a, open(theirs, "rb") as b:
                self.assertEqual(a.read(), b.read())
        with self.assertRaisesRegex(tencache.Error, "recompute"):
            tencache.generate("gpt2", 2, 128, recompute="sometimes")

    def test_import_is_the_commands_trace(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "empty.csv"), "w", encoding="utf-8") as file:
                file.write("")
            with self.assertRaisesRegex(tencache.Error, "empty.csv|csv"):
                tencache.import_trace("csv", os.path.join(folder, "empty.csv"), os.path.join(folder, "empty.csv"))
            ours, theirs = os.path.join(folder, "a.trace.jsonl"), os.path.join(folder, "b.trace.jsonl")
            tencache.save(tencache.import_trace("trace", SAMPLE, gpu="l40s", strip_names=True), ours)
            printed("import", "trace", SAMPLE, "--gpu", "l40s", "--strip-names", "-o", theirs)
            with open(ours, "rb") as a, open(theirs, "rb") as b:
                self.assertEqual(a.read(), b.read())
        with self.assertRaisesRegex(tencache.Error, "valid are csv"):
            tencache.import_trace("xml", SAMPLE)

    def test_timeline_agrees_with_the_result(self):
        result, (timeline,) = tencache.simulate(SAMPLE, "g10-a100", "g10", gpu_memory=MEMORY, no_rescale=True)
        self.assertEqual(without_clock(result), without_clock(
            tencache.replay(SAMPLE, "g10-a100", "g10", gpu_memory=MEMORY, no_rescale=True)))
        occupancy = timeline.occupancy
        for index, tier in enumerate(timeline.tiers):
            of_tier = occupancy[occupancy["tier"] == index]
            used = int(of_tier["used"].max()) if len(of_tier) else 0
            self.assertEqual(used, result["peak_bytes"][tier["name"]])
            self.assertLessEqual(used, tier["capacity"])
            self.assertTrue(np.all(np.diff(of_tier["time_ns"]) >= 0))
        spans = timeline.spans
        self.assertEqual(timeline.lanes[:2], ["GPU", "CPU"])
        ops = spans[spans["kind"] == tencache.SPAN_KINDS.index("op")]
        program = timeline.program
        last = ops["iteration"].max()
        self.assertEqual(np.count_nonzero(ops["iteration"] == last - 1), len(program.ops))
        moved = spans[spans["kind"] == tencache.SPAN_KINDS.index("transfer")]
        self.assertTrue(np.all(moved["lane"] >= 2) and np.all(moved["tensor"] < len(program.tensors)))

    def test_the_chrome_timeline_has_the_same_spans(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "t.json")
            _, (timeline,) = tencache.simulate(SAMPLE, "g10-a100", "lru", gpu_memory=MEMORY, no_rescale=True,
                                               timeline=path)
            with open(path, encoding="utf-8") as file:
                events = json.load(file)["traceEvents"]
            self.assertEqual(len(timeline.spans), sum(event["ph"] == "X" for event in events))

    def test_nothing_is_printed(self):
        script = f"import tencache; tencache.compare({SAMPLE!r}, 'g10-a100', ['lru'], no_rescale=True)"
        answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        self.assertEqual((answer.returncode, answer.stdout, answer.stderr), (0, "", ""))

    def test_threads_give_the_same_results(self):
        results = {}

        def work(name):
            results[name] = tencache.replay(SAMPLE, "g10-a100", name, gpu_memory=MEMORY, no_rescale=True)

        names = ["lru", "fifo", "belady", "10cache", "g10", "on-demand"]
        threads = [threading.Thread(target=work, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name in names:
            alone = tencache.replay(SAMPLE, "g10-a100", name, gpu_memory=MEMORY, no_rescale=True)
            self.assertEqual(without_clock(results[name]), without_clock(alone))

    def test_a_sweep_from_a_file(self):
        rows = tencache.sweep("small", threads=2)["rows"]
        self.assertEqual(len(rows), len(printed("sweep", "small")["rows"]))

    def test_control_c_ends_a_sweep(self):
        script = ("from tencache import sweep\nprint('begun', flush=True)\n"
                  "try:\n    sweep('ten-thousand')\nexcept KeyboardInterrupt:\n    print('interrupted')\n")
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as sweep:
            self.assertEqual(sweep.stdout.readline(), "begun\n")
            time.sleep(1.5)
            before = time.monotonic()
            sweep.send_signal(signal.SIGINT)
            self.assertEqual(sweep.stdout.read(), "interrupted\n")
            self.assertLess(time.monotonic() - before, 20)
            self.assertEqual(sweep.wait(), 0)

    def test_the_example_runs(self):
        sys.path.insert(0, os.path.join(SOURCE, "python", "examples"))
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            import policies_in_python as example
        times = {row["policy"]: row["iteration_seconds"] for row in example.rows}
        self.assertEqual(times["my-lru"], times["lru"])
        self.assertLess(times["look-ahead"], times["my-lru"])
        self.assertIn("GPU memory", text.getvalue())


if __name__ == "__main__":
    unittest.main()
