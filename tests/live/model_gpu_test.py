"""The model GPU: times that can be worked out, the same bytes twice, and what holds for every program."""
import json
import os
import re
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("TENCACHE_BUILD", os.path.join(ROOT, "build", "release"))
MIB = 1 << 20
LAYERS = 12
CALLS = ("cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemCreate", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync")


def figures(**changes):
    values = {"device": {"memory_gb": 20, "copy_gb_per_s": 50, "hbm_gb_per_s": 4000, "copy_latency_us": 4,
                         "kernel_latency_us": 6},
              "host": {"spin_us": 4, "wake_us": 30, "issue_us": 9, "op_us": 1, "page_lock_s_per_gb": 0.1,
                         "memcpy_gb_per_s": 10},
              "calls_us": dict.fromkeys(CALLS, 10)}
    for name, value in changes.items():
        for part in values.values():
            if name in part:
                part[name] = value
    return {part: {name: {"value": value, "source": "this test"} for name, value in names.items()}
            for part, names in values.items()}


def trace():
    """Forward and backward through layers with a weight of 8 MiB and an activation of 16 each."""
    tensors, ops = [], []

    def tensor(name, mib, role, persistent):
        tensors.append({"kind": "tensor", "id": len(tensors), "name": name, "bytes": mib * MIB, "role": role,
                        "persistent": persistent})
        return len(tensors) - 1

    def op(name, phase, reads, writes):
        ops.append({"kind": "op", "id": len(ops), "name": name, "phase": phase, "device": "gpu", "duration_ns": 200_000,
                    "duration_source": "measured", "reads": reads, "writes": writes})
    weights = [tensor(f"weight.{i}", 8, "parameter", True) for i in range(LAYERS)]
    values = [tensor("input", 16, "input", True)]
    for weight in weights:
        values.append(tensor("activation", 16, "activation", False))
        op("multiply", "forward", [values[-2], weight], [values[-1]])
    for place in reversed(range(LAYERS)):
        gradient = tensor("gradient", 8, "gradient", False)
        op("multiply_backward", "backward", [values[place], values[place + 1], weights[place]], [gradient])
        op("update", "optimizer", [gradient, weights[place]], [weights[place]])
    header = {"kind": "header", "format_version": 1, "tensor_count": len(tensors), "op_count": len(ops)}
    return "".join(json.dumps(line) + "\n" for line in [header] + tensors + ops), len(ops)


class ModelGpu(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.trace = os.path.join(self.folder, "step.trace.jsonl")
        with open(self.trace, "w", encoding="utf-8") as file:
            text, self.ops = trace()
            file.write(text)

    def text(self, *arguments, **changes):
        path = os.path.join(self.folder, "figures.yaml")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(figures(**changes), file)  # which is YAML
        return subprocess.run([os.path.join(BUILD, "tests", "model_gpu"), "--figures", path, *arguments],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def play(self, *arguments, **changes):
        done = self.text(self.trace, *arguments, **changes)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_all_resident_takes_what_its_parts_take(self):
        played = self.play("--memory", "all", "--policy", "lru")
        # Each op: the host issues it, this program's code, the kernel begins, runs, and its end is noticed.
        expected_ns = self.ops * (9_000 + 1_000 + 6_000 + 200_000 + 4_000)
        self.assertAlmostEqual(played["step_ns"] / expected_ns, 1, delta=0.001)
        # Alone, ops are queued ahead of the device.
        self.assertAlmostEqual(played["plain_ns"], self.ops * 200_000 + 9_000 + 6_000 + 4_000, delta=100)
        self.assertEqual(played["recorded_ns"], self.ops * 200_000)
        self.assertEqual(played["steady"]["copies"], 0)
        self.assertEqual(played["steady"]["maps_ns"], 0)
        self.assertAlmostEqual(played["steady"]["busy"], self.ops * 200_000 / expected_ns, delta=0.001)

    def test_with_less_memory(self):
        resident_ns = self.play("--memory", "all")["step_ns"]
        for policy in ("foresight", "lru"):
            with self.subTest(policy):
                played = self.play("--memory", "60%", "--policy", policy)
                steady = played["steady"]
                self.assertGreater(played["step_ns"], resident_ns)
                self.assertEqual(played["deviations"], 0)
                self.assertGreater(played["evictions"], 0)
                self.assertGreater(steady["copied_bytes"], 0)
                # A direction's copies are never faster than the link.
                self.assertGreaterEqual(2 * steady["copies_ns"] * 50, steady["copied_bytes"])
                self.assertTrue(0 <= steady["copy_hidden"] <= 1)
                self.assertTrue(0 < steady["busy"] <= 1)
                calls = steady["calls"]
                self.assertEqual(calls["cuMemMap"], calls["cuMemSetAccess"])
                self.assertGreater(calls["cuMemUnmap"], 0)
                parts = [value for name, value in steady.items() if name.endswith("_ns") and name not in
                         ("step_ns", "copies_ns", "runtime_cpu_ns")]
                self.assertEqual(sum(parts), played["step_ns"])
                self.assertTrue(all(part >= 0 for part in parts), steady)
                slower = self.play("--memory", "60%", "--policy", policy, cuMemMap=200)
                self.assertGreater(slower["step_ns"], played["step_ns"])

    def test_memory_that_is_mapped_once(self):
        movable = ("--gpu-allocator", "movable")
        exact, resident = self.play("--memory", "all"), self.play("--memory", "all", *movable)
        self.assertAlmostEqual(resident["step_ns"] / exact["step_ns"], 1, delta=1e-4)
        self.assertEqual(resident["peak_bytes"], resident["peak_without_padding_bytes"])
        for policy in ("foresight", "lru"):
            with self.subTest(policy):
                played = self.play("--memory", "60%", "--policy", policy, *movable)
                self.assertEqual(played["deviations"], 0)
                self.assertGreater(played["evictions"], 0)
                calls = played["steady"]["calls"]
                self.assertEqual([calls.get(call, 0) for call in ("cuMemMap", "cuMemUnmap", "cuMemCreate")], [0, 0, 0])
                self.assertEqual(calls.get("cuMemcpyDtoDAsync", 0), played["steady"]["moves"])
                exact = self.play("--memory", "60%", "--policy", policy)
                self.assertLess(played["step_ns"], exact["step_ns"])

    def test_loading(self):
        movable = ("--gpu-allocator", "movable", "--load")
        whole = self.play("--memory", "all", *movable)
        self.assertEqual(whole["bytes"], (8 * LAYERS + 16) * MIB)
        self.assertEqual(whole["link_ns"], round(whole["bytes"] / 50))
        self.assertEqual((whole["stored_bytes"], whole["evictions"]), (0, 0))
        self.assertGreater(whole["ratio"], 1)
        less = self.play("--memory", str(64 * MIB), "--locked", str(64 * MIB), *movable)
        self.assertEqual(less["evictions"], 0)
        self.assertEqual(less["stored_bytes"], 56 * MIB, "all but the seven weights that fit")
        self.assertLess(less["load_ns"], whole["load_ns"])
        slower = self.play("--memory", "all", *movable, memcpy_gb_per_s=1)
        self.assertGreater(slower["load_ns"], whole["load_ns"])

    def test_the_same_bytes_twice(self):
        arguments = (self.trace, "--memory", "60%", "--policy", "foresight")
        first, second = self.text(*arguments), self.text(*arguments)
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertEqual(first.stdout, second.stdout)

    def test_measured_time_of_the_host(self):
        none = self.play("--memory", "all", "--host", "fixed:0")
        measured = self.play("--memory", "all", "--host", "measured")
        self.assertGreater(measured["step_ns"], none["step_ns"])
        self.assertGreaterEqual(self.play("--memory", "60%", "--host", "measured")["steady"]["rest_ns"], 0)

    def test_errors_are_one_line(self):
        for arguments, changes, words in (
                ((self.trace, "--memory", "60x"), {}, "--memory 60x is no size"),
                ((self.trace, "--memory", "5%"), {}, "out of memory"),
                ((self.trace, "--host", "often"), {}, "--host often"),
                ((self.trace, "--policy", "none"), {}, "no policy is named 'none'"),
                (("missing.trace.jsonl",), {}, "missing.trace.jsonl"),
                ((self.trace,), {"wake_us": -1}, "host.wake_us"), ((), {}, "usage")):
            with self.subTest(words):
                done = self.text(*arguments, **changes)
                self.assertEqual(done.returncode, 2)
                self.assertIn(words, done.stderr)
                self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)

    def test_the_script(self):
        script = [os.path.join(ROOT, "bench", "model_gpu.py")]
        environment = {**os.environ, "TENCACHE_BUILD": BUILD}
        done = subprocess.run(script + ["decode", "--quick", "--json"], env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertTrue(result["host_mode"].startswith("fixed:"))
        (resident,), (step,) = result["resident"], result["steps"]
        self.assertGreaterEqual(resident["ratio"], 1)
        self.assertTrue(0 < resident["busy"] < 0.5, "launches bind")
        self.assertAlmostEqual(step["step_ns"] / step["predicted_ns"], 1, delta=0.01)
        table = subprocess.run(script + ["decode", "--quick"], env=environment, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True).stdout
        self.assertIn("Model GPU", table)
        self.assertIsNone(re.search(r"(?<![Mm]odel )GPU", table))
        wrong = subprocess.run(script + ["gpt5"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)
        self.assertEqual((wrong.returncode, wrong.stderr.count("\n")), (1, 1))


if __name__ == "__main__":
    unittest.main()
