"""The day of the GPU, from packing to a machine file, on the driver of rules in place of NVIDIA's (rules/libcuda.cpp).
PyTorch programs run on the host's memory."""
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("TENCACHE_BUILD", os.path.join(ROOT, "build", "release"))
DAY = os.path.join(ROOT, "bench", "gpu_day.sh")


class GpuDay(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        path = os.path.join(cls.folder, "bin")
        os.mkdir(path)
        with open(os.path.join(path, "nvidia-smi"), "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\necho 'Rules, 0, 4096 MiB, 0, 0'\n")
        os.chmod(file.name, 0o755)
        os.symlink(sys.executable, os.path.join(path, "python3"))
        cls.environment = {**os.environ, "TENCACHE_BUILD": BUILD, "PATH": path + os.pathsep + os.environ["PATH"],
                           "LD_LIBRARY_PATH": os.path.join(BUILD, "tests", "rules_gpu"), "TMPDIR": cls.folder}
        cls.packed = os.path.join(cls.folder, "packed")
        cls.said = subprocess.run([DAY, "pack", cls.packed], env=cls.environment, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT)

    def part(self, part, *words, expected=0, **environment):
        out = os.path.join(self.folder, f"{self._testMethodName}")
        done = subprocess.run([DAY, part, out, *words], env={**self.environment, **environment}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, expected, done.stdout)
        with open(os.path.join(out, f"answers-{part}.json"), encoding="utf-8") as file:
            answers = json.load(file)
        self.assertGreaterEqual(answers["took_seconds"], 0)  # of 0 s it may take 0.0
        print(done.stdout.splitlines()[-1])
        with tarfile.open(os.path.join(out, f"logs-{part}.tar.gz")) as tar:
            self.assertTrue(tar.getnames())
        self.assertLessEqual(len(os.listdir(out)), 8)
        return out, answers, answers["steps"]

    def test_what_is_packed_can_be_carried(self):
        self.assertEqual(self.said.returncode, 0, self.said.stdout)
        self.assertRegex(self.said.stdout, r"packed into .*: \d+ MiB")
        print(self.said.stdout.strip())

    def test_part_a_of_what_was_packed_becomes_a_machine_file(self):
        out, answers, steps = self.part("a", "--small", "--programs", self.packed)
        self.assertEqual(answers["card"]["name"], "Rules")
        statuses = {name: step["status"] for name, step in steps.items()}
        self.assertEqual(statuses, {"probe": "passed", "calibrate": "passed", "cases": "passed", "memcheck": "left out",
                                    "replay foresight exact": "passed", "replay foresight ahead": "passed"})
        calls = {row["call"] for row in steps["probe"]["probe"]["calls"]}
        self.assertTrue({"cuMemMap", "cuMemcpyHtoDAsync", "cuMemHostRegister"} <= calls, calls)
        self.assertGreater(steps["cases"]["passed"], 5)
        for name in ("replay foresight exact", "replay foresight ahead"):
            self.assertGreater(steps[name]["times_predicted"], 0)
            self.assertEqual(steps[name]["verification"]["corrupted"], 0)
        self.assertGreater(steps["replay foresight ahead"]["allocator"]["moved_bytes"], 0)
        self.assertGreater(steps["calibrate"]["calibration"]["gpu_memory_bytes_per_second"]["value"], 0)

        tencache, machine = os.path.join(BUILD, "cli", "tencache"), os.path.join(out, "imported.yaml")
        command = [tencache, "calibrate", "--import", os.path.join(out, "answers-a.json"), "-o", machine]
        done = subprocess.run(command + ["--name", "rules", "--json"], text=True, stdout=subprocess.PIPE)
        self.assertEqual(done.returncode, 0)
        answer = json.loads(done.stdout)
        self.assertEqual(answer["card"], "Rules")
        parts = ("cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemcpyHtoDAsync", "cuEventRecord")
        alone = [row for row in steps["probe"]["probe"]["calls"] if row["call"] in parts and not row["beside_kernel"]]
        smallest = {row["call"]: row["median_us"] for row in sorted(alone, key=lambda row: -row["bytes"])}
        self.assertAlmostEqual(answer["host_per_transfer_ns"], 1e3 * sum(smallest.values()), delta=2)
        with open(machine, encoding="utf-8") as file:
            text = file.read()
        self.assertIn("rules", text)
        self.assertIn("per_transfer", text)
        predicted = subprocess.run([tencache, "replay", os.path.join(ROOT, "traces/samples/lstm.trace.jsonl.zst"), "-m",
                                    machine, "-p", "lru", "--no-rescale", "--json"], text=True, stdout=subprocess.PIPE)
        self.assertIn(predicted.returncode, (0, 1))
        self.assertEqual(json.loads(predicted.stdout)["machine"], "rules")

    def test_part_b_compares_times_and_bits(self):
        steps = self.part("b", "--small", "--device", "cpu")[2]
        live = [f"{policy} {memory}" for policy in ("foresight", "lru") for memory in ("200%", "60%", "50%")]
        for name in live:
            self.assertTrue(steps[name]["same_bits"], name)
            self.assertGreater(steps[name]["times_plain"], 0)
        order = [name for name in steps if name.startswith("plain ") and name != "plain of all"]
        self.assertEqual(len(order), 5)
        names = list(steps)
        self.assertLess(names.index(order[1]), names.index(live[1]), "plain runs lie in between")
        self.assertEqual(steps["plain of all"]["runs"], 5)
        self.assertEqual(steps["bits"]["status"], "passed")

    def test_part_c_goes_on_without_what_is_left_out(self):
        steps = self.part("c", "--small", "--device", "cpu")[2]
        self.assertEqual(steps["profile"]["status"], "passed")
        self.assertGreaterEqual(steps["uses"]["ran"], 3)
        self.assertTrue(any(name.startswith("generation") or name.startswith("tokens") for name in steps), steps)

    def test_a_part_ends_at_its_deadline_with_what_it_has(self):
        steps = self.part("a", "--small", "--seconds", "0", expected=1)[2]
        self.assertEqual({step["status"] for name, step in steps.items() if name != "memcheck"}, {"not reached"})

    def test_what_fails_says_why_and_ends_nothing(self):
        steps = self.part("a", "--small", expected=1, LD_LIBRARY_PATH="")[2]
        self.assertEqual(steps["probe"]["status"], "failed")
        self.assertIn("CUDA driver", steps["probe"]["why"])
        self.assertEqual(list(steps)[-1], "replay foresight ahead")

    def test_only_answers_are_imported(self):
        for text, words in (("{", "is no file of answers"), ('{"steps": {}}', "has no calibration")):
            path = os.path.join(self.folder, "answers.json")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            done = subprocess.run([os.path.join(BUILD, "cli", "tencache"), "calibrate", "--import", path, "-o",
                                   os.path.join(self.folder, "none.yaml")], text=True, stderr=subprocess.PIPE)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
