"""`tencache run python` as users call it: shares of a peak, predictions, a budget for the whole process, refusals."""

import contextlib
import hashlib
import json
import os
import pty
import subprocess
import sys
import tempfile
import unittest

MACHINE = """
name: box
tiers:
  - {name: gpu, kind: gpu, capacity: 1GiB, granularity: 4KiB}
  - {name: nvme, kind: nvme, capacity: 1GiB, granularity: 4KiB}
links:
  - {name: read, from: nvme, to: gpu, bandwidth: 1GB/s, latency: 100us}
  - {name: write, from: gpu, to: nvme, bandwidth: 1GB/s, latency: 100us}
initial_tier: nvme
"""

PROGRAM = """
import hashlib, sys, torch
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(12)])
optimizer = torch.optim.AdamW(net.parameters())
for step in range(int(sys.argv[1])):
    net(torch.randn(16, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest())
"""


class Runs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.program = self.file("program.py", PROGRAM)
        self.machine = self.file("box.yaml", MACHINE)

    def path(self, name):
        return os.path.join(self.folder, name)

    def file(self, name, content):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(content)
        return self.path(name)

    def call(self, *words, code=0, text=""):
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, input=text,
                              env=dict(os.environ, TMPDIR=self.folder))
        self.assertEqual(done.returncode, code, done.stdout[-1000:] + done.stderr[-3000:])
        return done

    def on_a_terminal(self, *words):
        """What a run shows there, each line that is written over as one of its own."""
        shown, terminal = pty.openpty()
        command = [sys.executable, "-m", "tencache", "run", "python", "--machine", self.machine, "--no-pace", *words]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=terminal) as running:
            os.close(terminal)
            text = b""
            with contextlib.suppress(OSError):  # which is how a terminal ends
                while part := os.read(shown, 65536):
                    text += part
            os.close(shown)
        self.assertEqual(running.returncode, 0, text[-3000:])
        return text.decode().replace("\r\033[K", "\n").splitlines()

    def run_python(self, *words, code=0, text=""):
        return self.call("-m", "tencache", "run", "python", "--machine", self.machine, "--no-pace", *words, code=code,
                         text=text)

    def plain(self):
        return self.call(self.program, "8").stdout

    def test_a_script_sets_its_environment_before_numpy_and_pytorch_are_loaded(self):
        program = self.file("environment.py", """
import os, sys
assert not {"numpy", "torch"} & set(sys.modules), "loaded before the script"
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
import torch
print(torch.get_num_threads(), float(torch.nn.Linear(2, 2)(torch.ones(2)).sum()) != 0)
""")
        self.assertEqual(self.run_python("--", program).stdout, "1 True\n")

    def test_without_a_gpu_its_tensors_are_not_paged(self):
        import torch
        if torch.cuda.is_available():
            self.skipTest("there is a GPU")
        reason = "finds no GPU" if torch.version.cuda else "is built without CUDA"
        self.assertIn(reason, self.run_python("--device", "cuda", "--", self.program, "3", code=1).stderr)

    def test_the_part_for_gpus_is_built_with_pytorchs_cuda(self):
        import torch
        from tencache._paging import Paging
        if torch.version.cuda is None:
            self.skipTest(f"PyTorch {torch.__version__} is built without CUDA")
        self.assertNotEqual(Paging.load("cuda", lambda text: None).fence, 0)

    def test_a_script_without_pytorch(self):
        self.assertIn("did not import torch", self.run_python("--", self.file("plain.py", "print(1)")).stderr)

    def test_modules_commands_and_standard_input_run_as_under_python(self):
        package = self.path("package")
        os.mkdir(package)
        self.file("package/__main__.py", "import sys; print(__name__, sys.argv[1:])")
        command = "import sys; print(__name__, sys.argv)"
        for words, text, expected in [(["-c", command, "-x"], "", "__main__ ['-c', '-x']"),
                                      (["-", "a"], command, "__main__ ['-', 'a']"),
                                      (["-m", "package", "--", "b"], "", "__main__ ['--', 'b']")]:
            done = subprocess.run([sys.executable, "-m", "tencache", "run", "python", "--", *words], input=text,
                                  capture_output=True, text=True, cwd=self.folder)
            self.assertEqual((done.returncode, done.stdout), (0, expected + "\n"), done.stderr)
        self.assertIn("give a module", self.run_python("--", "-m", code=1).stderr)

    def test_a_rehearsal_leaves_no_temporary_folder_and_the_script_comes_from_standard_input(self):
        script = ("import atexit, tempfile\natexit.register(print, 'left')\nwith tempfile.TemporaryDirectory():\n" +
                  "".join("    " + line + "\n" for line in PROGRAM.strip().splitlines()))
        before = set(os.listdir(self.folder))
        done = self.run_python("--gpu-memory", "60%", "--", "-", "9", text=script)
        self.assertEqual(done.stdout, self.call(self.program, "9").stdout + "left\n")
        self.assertIn("recording 5 steps", done.stderr)
        self.assertEqual(set(os.listdir(self.folder)), before)

    def test_a_share_that_is_too_small_is_an_error_before_the_script_runs(self):
        done = self.run_python("--gpu-memory", "5%", "--", self.program, "9", code=1)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr.splitlines()[-1], r"the largest op, aten::\w+, needs .*: give \d+% or more")

    def test_a_share_is_of_the_recorded_peak_and_the_prediction_is_compared(self):
        prediction, answer, timeline = self.path("p.json"), self.path("r.json"), self.path("t.json")
        done = self.run_python("--gpu-memory", "60%", "--prediction", prediction, "--json", answer, "--timeline",
                               timeline, "--", self.program, "8")
        self.assertEqual(done.stdout, self.plain())
        with open(answer, encoding="utf-8") as file:
            result = json.load(file)
        with open(prediction, "rb") as file:
            self.assertEqual(result["prediction"]["sha256"], hashlib.sha256(file.read()).hexdigest())
        live = result["live"]
        self.assertAlmostEqual(live["gpu_memory_bytes"] / live["peak_bytes"], 0.6, delta=0.02)
        self.assertEqual(len(live["step_seconds"]), 8)
        self.assertGreater(live["evictions"], 0)
        self.assertIsNotNone(result["prediction"]["comparison"])
        self.assertIn("predicted against measured", done.stderr)
        self.assertEqual(result["prediction"]["result"]["busy_seconds"].get("cpu_lane", 0), 0,
                         "PyTorch runs the updates where it runs all else")
        with open(timeline, encoding="utf-8") as file:
            content = file.read()
        self.assertIn("predicted: foresight", content)
        self.assertIn("measured: foresight", content)

    # Its steps take 0.6 s at least, and what takes two seconds shows how far it is each second.
    def test_a_recording_shows_on_a_terminal_how_far_it_is(self):
        slow = self.file("slow.py", PROGRAM.replace("    optimizer.zero", "    time.sleep(0.6)\n    optimizer.zero")
                         .replace("sys,", "sys, time,"))
        words = ["--gpu-memory", "80%", "--", slow, "7"]
        lines = self.on_a_terminal(*words)
        steps = [int(line.split("step ")[1].split(" of 7, ")[0]) for line in lines
                 if line.startswith(f"tencache: recording {slow}: step ")]
        self.assertGreater(len(steps), 1, lines)
        self.assertEqual(steps, sorted(steps))
        self.assertLessEqual(set(steps), set(range(1, 8)))
        lines = self.on_a_terminal("--json", self.path("answer.json"), *words)
        self.assertFalse([line for line in lines if ": step " in line], lines)

    def test_a_prediction_from_a_recording_that_is_there(self):
        trace = self.path("step.trace.jsonl")
        self.run_python("--record", trace, "--", self.program, "4")
        with open(trace, encoding="utf-8") as file:
            self.assertEqual(json.loads(file.readline())["made_by"], "recorded")
        answer = self.path("r.json")
        done = self.run_python("--gpu-memory", "60%", "--predict", "--trace", trace, "--json", answer, "--",
                               self.program, "8")
        with open(answer, encoding="utf-8") as file:  # so that the runs among results judge predictions of recordings
            self.assertEqual(json.load(file)["manifest"]["run"]["made_by"], "recorded")
        self.assertEqual(done.stdout, self.plain())
        self.assertNotIn("recording", done.stderr)

    def test_a_decoder_generates_with_its_weights_in_the_file_they_were_loaded_from(self):
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/examples/generate.py")
        weights, answer = self.path("weights"), self.path("answer.json")
        plain = self.call(program, "24", weights).stdout
        self.assertEqual(len(plain.split()), 24)
        with open(weights, "rb") as file:
            content = file.read()
        for share in ("50%", "25%"):
            done = self.run_python("--predict", "--gpu-memory", share, "--json", answer, "--", program, "24", weights)
            self.assertEqual(done.stdout, plain)
            self.assertIn("predicted against measured", done.stderr)
            with open(answer, encoding="utf-8") as file:
                live = json.load(file)["live"]
            self.assertGreater(live["bytes_left_in_files"], 0.99 * len(content))  # all but biases and norms
            # In the third step only, the first that finds earlier keys and values in tensors of their own.
            self.assertLessEqual(live["deviations"], 12, live["first_deviation"])
        with open(weights, "rb") as file:
            self.assertEqual(file.read(), content, "the program's file was written to")

    def test_memory_is_of_the_whole_process(self):
        answer = self.path("r.json")
        done = self.run_python("--memory", "1GiB", "--json", answer, "--", self.program, "8")
        self.assertEqual(done.stdout, self.plain())
        with open(answer, encoding="utf-8") as file:
            live = json.load(file)["live"]
        self.assertLessEqual(live["process_bytes"], 1 << 30)
        self.assertLess(live["gpu_memory_bytes"] + live["taken_bytes"], 1 << 30)

    def test_memory_that_leaves_nothing_to_tensors_is_an_error(self):
        done = self.run_python("--memory", "64MiB", "--", self.program, "8", code=1)
        self.assertIn("leave nothing to tensors", done.stderr.splitlines()[-1])
        self.assertNotIn("Traceback", done.stderr)

    def test_memory_that_was_used_before_the_first_parameter_is_no_matter_of_the_reserve(self):
        program = self.file("imports.py", "import torch\nused = bytearray(900 << 20)\ndel used\n" + PROGRAM)
        done = self.run_python("--memory", "700MiB", "--", program, "4")
        self.assertIn("more than --memory, before its first parameter", done.stderr)
        self.assertNotIn("--reserve", done.stderr)

    def growing(self):
        return self.file("growing.py", """
import torch
net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(8):
    x = torch.randn(4, 64)
    for layer in net:
        x = layer(x)
        for _ in range(4 * step):
            x = x.sin()
    x.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""")

    def test_the_report_begins_with_a_policy_that_is_blind(self):
        said = self.run_python("--no-sleep", "--gpu-memory", "8MiB", "--", self.growing()).stderr.splitlines()
        self.assertRegex(said[0], r"the policy was blind for \d+ % of the ops, .* \(first in step 3: op ")
        self.assertNotIn("blind", self.run_python("--no-sleep", "--gpu-memory", "8MiB", "--", self.program, "4").stderr)

    @unittest.skipIf("TENCACHE_MOVES" in os.environ, "no run sleeps whose storages are moved before every op")
    def test_the_report_says_how_much_was_not_watched(self):
        asleep = self.run_python("--gpu-memory", "8MiB", "--", self.growing()).stderr
        self.assertNotIn("blind", asleep)
        self.assertRegex(asleep, r"asleep +6 of 8 steps")
        self.assertIn("--no-sleep watches all", asleep)

    def test_what_is_wrong_is_one_line(self):
        for words, expected in [(["-p", "best"], "best"), (["--gpu-memory", "x%"], "x%"),
                                (["--memory", "1GiB", "--gpu-memory", "1GiB"], "whole process"),
                                (["--set", "window"], "NAME=VALUE"), (["--directory", "/nowhere"], "/nowhere")]:
            done = self.run_python(*words, "--", self.program, "2", code=1)
            self.assertIn(expected, done.stderr.splitlines()[-1])
            self.assertNotIn("Traceback", done.stderr)
        self.assertIn("no such file", self.run_python("--", self.path("none.py"), code=1).stderr)

    def test_compiled_code_runs_as_ops(self):
        program = self.file("compiled.py", """
import torch
if not hasattr(torch, "compile"):
    print("cannot")
    raise SystemExit
net = torch.compile(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    net(torch.randn(4, 64)).sum().backward()
    optimizer.step()
print(type(net).__name__)
""")
        done = self.run_python("--", program)
        self.assertIn(done.stdout, ("cannot\n", "Linear\n"))

    def test_programs_that_move_parameters_themselves_are_refused(self):
        program = self.file("sharded.py", """
import torch
class FullyShardedDataParallel(torch.nn.Linear):
    pass
net = FullyShardedDataParallel(8, 8)
net(torch.randn(4, 8)).sum().backward()
""")
        self.assertIn("fully_shard) moves parameters itself", self.run_python("--", program, code=1).stderr)


if __name__ == "__main__":
    unittest.main()
