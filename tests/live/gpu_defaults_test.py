"""How a GPU is run unless asked otherwise: one range of memory in which tensors move, and 256 ops ahead. On the driver
of rules in place of NVIDIA's (rules/libcuda.cpp)."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("TENCACHE_BUILD", os.path.join(ROOT, "build", "release"))
TRACE = os.path.join(ROOT, "traces", "samples", "lstm.trace.jsonl.zst")
RATE = "20GB/s"


def machine(folder, name="box.yaml", **gpu):
    tiers = {"gpu": {"kind": "gpu", "capacity": "1GiB", "granularity": "2MiB", **gpu},
             "cpu": {"kind": "cpu", "capacity": "1GiB"}, "nvme": {"kind": "nvme", "capacity": "1GiB"}}
    links = {"h2d": ("cpu", "gpu"), "d2h": ("gpu", "cpu"), "nvme_read": ("nvme", "cpu"), "nvme_write": ("cpu", "nvme")}
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"name": "box", "initial_tier": "cpu", "staging": {"tier": "cpu", "count": 4, "bytes": "4MiB"},
                   "tiers": [{"name": name, **keys} for name, keys in tiers.items()],
                   "links": [{"name": name, "from": ends[0], "to": ends[1], "bandwidth": RATE, "latency": "5us"}
                             for name, ends in links.items()]}, file)  # which is YAML
    return path


class GpuDefaults(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.machine = machine(self.folder, bandwidth="3TB/s")
        self.environment = {**os.environ, "LD_LIBRARY_PATH": os.path.join(BUILD, "tests", "rules_gpu")}

    def run_replay(self, *words, policy="lru", device="cuda", code=0):
        return self.command(os.path.join(BUILD, "cli", "tencache"), "run", "replay", TRACE, "-m", self.machine, "-p",
                            policy, "--device", device, "--no-rescale", "--directory", self.folder, "--scale-time", "0",
                            "--scale-bytes", "1/64", "--verify", "stamps", "--iterations", "2", "--predict",
                            "--json", *words, code=code)

    def command(self, *words, code=0):
        done = subprocess.run(words, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def runs(self, allocator, ahead, *words, remark="", **more):
        """Measured and predicted; asked, or settled so: in the manifest."""
        with self.subTest(words, **more):
            done = self.run_replay(*words, **more)
            result = json.loads(done.stdout)
            self.assertEqual(result["verification"]["corrupted"], 0)
            run = result["manifest"]["run"]
            self.assertEqual((run.get("gpu_allocator"), run.get("run_ahead")), (allocator, ahead))
            queued = [line for line in result["host"].splitlines() if "h2d" in line]
            self.assertEqual(len(queued), 1, result["host"])
            self.assertEqual("not paced" in queued[0], ahead not in (None, "0"), queued)
            with open(os.path.join(self.folder, "p.json"), encoding="utf-8") as file:
                predicted = json.load(file)["manifest"]["run"]
            self.assertEqual(predicted, run)
            self.assertIn(remark, done.stderr)
            self.assertEqual("chunk by chunk" in done.stderr, bool(remark), done.stderr)
            return result

    def test_replays(self):
        files = ("--prediction", os.path.join(self.folder, "p.json"))
        self.assertEqual(self.runs("movable", "256", *files)["allocators"]["gpu"]["kind"], "movable")
        self.runs("movable", "8", "--run-ahead", "8", *files)
        self.runs("movable", "0", "--run-ahead", "0", *files)
        self.runs("exact", None, "--gpu-allocator", "exact", *files)
        self.runs("movable", "0", "--limit", "h2d=10GB/s", *files)
        self.runs(None, None, *files, device="host")

    def test_what_cannot_be_moved_is_mapped_by_chunks(self):
        files = ("--prediction", os.path.join(self.folder, "p.json"))
        self.runs(None, None, *files, policy="ideal", remark="the policy ideal has no limit")
        self.runs(None, None, *files, policy="flashneuron", remark="the policy flashneuron lays out")
        self.machine = machine(self.folder)
        self.runs(None, None, *files, remark="machine box lacks the bandwidth of the GPU's memory")

    def test_asked_for_where_it_cannot_be(self):
        for words, why in ((("--gpu-allocator", "exact"), "(--gpu-allocator exact)"),
                           (("-p", "ideal"), "the policy ideal has no limit")):
            policy = words[1] if words[0] == "-p" else "lru"
            done = self.run_replay("--run-ahead", "8", *(words if policy == "lru" else ()), policy=policy, code=2)
            self.assertIn("--run-ahead 8: ", done.stderr)
            self.assertIn(why, done.stderr)

    def test_calibration(self):
        for card, gpu in (("NVIDIA H200", 'gpu: "h200"\n'), ("NVIDIA A100-SXM4-80GB", 'gpu: "a100-80g"\n'),
                          ("Other", "")):
            with self.subTest(card):
                self.environment["TENCACHE_RULES_CARD"] = card
                path = os.path.join(self.folder, "calibrated.yaml")
                done = self.command(os.path.join(BUILD, "cli", "tencache"), "calibrate", "--device", "cuda", "--quick",
                                    "--no-files", "--json", "-o", path)
                with open(path, encoding="utf-8") as file:
                    yaml = file.read()
                self.assertIn("allocator: movable", yaml)
                self.assertIn("ops: 256", yaml)
                self.assertIn(gpu, yaml)
                unknown = [why for why in json.loads(done.stdout)["not_measured"] if "which GPU" in why]
                self.assertEqual((len(unknown), "\ngpu:" in yaml), (0, True) if gpu else (1, False))

    def test_programs(self):
        code = ("import json, sys; from tencache import _core; asked = json.loads(sys.argv[1]); "
                "print(_core.LiveSetting(program='p', gpu_memory='', cpu_memory='', limits=asked.pop('limits', []), "
                "directories=[], settings={}, ranks=[0, 1, 0, 1], share='', **asked).machine)")
        calibrated = machine(self.folder, "calibrated.yaml", bandwidth="3TB/s", allocator="movable")
        for asked, allocator, ahead in (({}, True, 256), ({"machine": calibrated}, True, 256),
                                        ({"machine": calibrated, "device": "cpu"}, False, 0),
                                        ({"run_ahead": "0"}, True, 0), ({"gpu_allocator": "exact"}, False, 0),
                                        ({"faults": "seed=7"}, True, 0), ({"policy": "ideal"}, False, 0),
                                        ({"device": "cpu"}, False, 0)):
            with self.subTest(asked):
                words = {"device": "cuda", "machine": self.machine, "policy": "lru", "faults": "", **asked}
                yaml = self.command(sys.executable, "-c", code, json.dumps(words)).stdout
                self.assertEqual("movable" in yaml, allocator, yaml)
                self.assertEqual(f"ops: {ahead}" in yaml, ahead != 0, yaml)
                self.assertEqual("run_ahead" in yaml, ahead != 0, yaml)


if __name__ == "__main__":
    unittest.main()
