"""`python/examples/gpt.py` under `tencache run python`: in 16 bits, recomputed, resumed and with faults it has the losses and
weights of PyTorch alone."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EXAMPLE = [os.path.join(ROOT, "python", "examples", "gpt.py"), "--size", "tiny"]
MACHINE = """
name: box
tiers:
  - {name: gpu, kind: gpu, capacity: 1MiB, granularity: 4KiB}
  - {name: cpu, kind: cpu, capacity: 1536KiB, granularity: 4KiB}
  - {name: nvme, kind: nvme, capacity: 256MiB, granularity: 4KiB, checksums: true}
links:
  - {name: h2d, from: cpu, to: gpu, bandwidth: 10GB/s, latency: 10us}
  - {name: d2h, from: gpu, to: cpu, bandwidth: 10GB/s, latency: 10us}
  - {name: nvme_read, from: nvme, to: cpu, bandwidth: 1GB/s, latency: 100us}
  - {name: nvme_write, from: cpu, to: nvme, bandwidth: 1GB/s, latency: 100us}
staging: {tier: cpu, count: 4, bytes: 256KiB}
initial_tier: cpu
"""


class Example(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(self.path("box.yaml"), "w", encoding="utf-8") as file:
            file.write(MACHINE)

    def path(self, name):
        return os.path.join(self.folder, name)

    def call(self, words, code=0):
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stdout[-1000:] + done.stderr[-3000:])
        return done

    def result(self, *words):
        self.call([*words, "--json", self.path("result.json")])
        with open(self.path("result.json"), encoding="utf-8") as file:
            result = json.load(file)
        return result["losses"], result["weights_sha256"]

    def plain(self, *words):
        return self.result(*EXAMPLE, *words)

    def paged_words(self, *options):
        return ["-m", "tencache", "run", "python", "--machine", self.path("box.yaml"), "--no-pace", "--json",
                self.path("live.json"), *options, "--", *EXAMPLE]

    def paged(self, options, *words):
        """Losses and weights, and what the run says of itself."""
        result = self.result(*self.paged_words(*options), *words)
        with open(self.path("live.json"), encoding="utf-8") as file:
            return result, json.load(file)

    def test_bits_in_each_way_to_train(self):
        for words in ([], ["--precision", "bf16", "--recompute"], ["--tied-head", "--text", os.path.join(ROOT, "docs")]):
            with self.subTest(words):
                steps = ["--steps", "5", *words]
                plain, (paged, answer) = self.plain(*steps), self.paged(["-p", "foresight"], *steps)
                self.assertEqual(paged, plain)
                self.assertLess(plain[0][-1], plain[0][0])
                self.assertGreater(answer["live"]["evictions"], 0)
                self.assertEqual(answer["live"]["deviations"], 0, answer["live"]["first_deviation"])

    def test_recomputing_changes_no_bit_and_needs_less_memory(self):
        shape = ["--steps", "3", "--layers", "4", "--context", "64"]
        kept, recomputed = (self.paged(["-p", "lru", "--gpu-memory", "64MiB"], *shape, *words)
                            for words in ([], ["--recompute"]))
        self.assertEqual(recomputed[0], kept[0])
        self.assertLess(recomputed[1]["live"]["peak_bytes"], 0.8 * kept[1]["live"]["peak_bytes"])

    def test_a_resumed_run_is_the_uninterrupted_one(self):
        whole = self.plain("--steps", "8", "--precision", "bf16")
        file = self.path("checkpoint")
        saving = ["--checkpoint", file, "--checkpoint-every", "2", "--precision", "bf16"]
        (losses, _), answer = self.paged(["-p", "10cache"], "--steps", "5", *saving)
        self.assertEqual(losses, whole[0][:5])
        # What is made for a checkpoint before torch.save (the state of the random numbers) belongs to its step.
        self.assertLessEqual(answer["live"]["deviations"], 3, answer["live"]["first_deviation"])
        resuming = ["--steps", "8", "--precision", "bf16", "--resume", file]
        for rest in (self.plain(*resuming), self.paged(["-p", "lru"], *resuming)[0]):
            self.assertEqual(rest, (whole[0][5:], whole[1]))
        other = self.call([*EXAMPLE, "--steps", "9", "--resume", file], code=1)
        self.assertIn("its precision is bf16, not fp32", other.stderr)

    def test_faults_that_do_not_last_change_no_bit(self):
        plan = "seed=3,copy_error=0.02,delay=0.05:100us,slow_link=0.1:3x,no_memory=0.01,short_read=0.1"
        paged, answer = self.paged(["-p", "10cache", "--faults", plan], "--steps", "4")
        self.assertEqual(paged, self.plain("--steps", "4"))
        injected = answer["faults"]["injected"]
        for kind in ("copy_error", "delay", "slow_link", "short_read"):
            self.assertGreater(injected[kind], 0, injected)

    def test_a_fault_for_good_is_one_error_and_leaves_the_last_checkpoint(self):
        whole = self.plain("--steps", "8")
        _, answer = self.paged(["-p", "on-demand", "--faults", "delay=1:1ns"], "--steps", "8")
        copies = answer["faults"]["injected"]["delay"]
        file = self.path("checkpoint")
        words = ["--steps", "8", "--checkpoint", file, "--checkpoint-every", "1"]
        failed = self.call([*self.paged_words("-p", "on-demand", "--faults", f"device_gone=@{copies // 2}:cpu"), *words],
                           code=1)
        self.assertIn("faults: seed=1,device_gone=@", failed.stderr)
        self.assertIn("3 times in a row", failed.stderr)
        self.assertIn("(injected)", failed.stderr)
        losses, weights = self.plain("--steps", "8", "--resume", file)
        self.assertLess(len(losses), 8)
        self.assertEqual((losses, weights), (whole[0][-len(losses):], whole[1]))

    def test_a_disturbed_run_is_not_predicted(self):
        done = self.call(self.paged_words("--predict", "--faults", "seed=7"), code=1)
        self.assertIn("--faults excludes --predict", done.stderr.splitlines()[-1])
        done = self.call(self.paged_words("--faults", "bit_rot=1"), code=1)
        self.assertIn("copy_error", done.stderr.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
