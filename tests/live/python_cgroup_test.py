"""A model that is larger than all memory that its process may use: built or loaded, trained and saved in a memory cgroup
that is smaller than the parameters alone, interpreter included, with the bits of a run without a limit."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench"))
from live_process import MIB, Cgroup, why_no_cgroup  # noqa: E402

PROGRAM = """
import hashlib, os, sys
import torch
from torch import nn

def before():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))

build, target, layers = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(0)
print("before", before())
model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(layers)])
if build != "build":
    model.load_state_dict(torch.load(build, mmap=True), assign=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for step in range(3):
    x = torch.randn(8, 2048)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
torch.save(model.state_dict(), target)
content = hashlib.sha256()
for tensor in list(model.parameters()) + [state["momentum_buffer"] for state in optimizer.state.values()]:
    content.update(tensor.detach().numpy())
print(content.hexdigest())
"""
LAYER = 4 * (2048 * 2048 + 2048)


class Larger(unittest.TestCase):
    def setUp(self):
        if reason := why_no_cgroup():
            self.skipTest(reason)
        folder = tempfile.TemporaryDirectory(dir="/var/tmp")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.program = self.folder / "program.py"
        self.program.write_text(PROGRAM, encoding="utf-8")

    def call(self, *words, cgroup=None):
        done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True,
                              preexec_fn=cgroup.enter if cgroup else None)
        self.assertEqual(done.returncode, 0, done.stdout[-1000:] + done.stderr[-3000:])
        return done.stdout.splitlines()

    def compare(self, build_from):
        """`build_from`: called with the number of layers, says what the program is to load."""
        taken = int(self.call(self.program, "build", self.folder / "none.pt", 1)[0].split()[1])
        limit = taken + 128 * MIB
        layers = limit // LAYER + 2
        source = build_from(layers)
        plain = self.call(self.program, source, self.folder / "plain.pt", layers)[1:]
        # Measures the disk and builds what is needed, outside.
        self.call("-m", "tencache", "run", "python", "--memory", "16GiB", "--", self.program, "build",
                  self.folder / "none.pt", 1)
        cgroup = Cgroup(limit)
        try:
            paged = self.call("-m", "tencache", "run", "python", "--memory", f"{limit}B", "--", self.program, source,
                              self.folder / "paged.pt", layers, cgroup=cgroup)[1:]
        finally:
            cgroup.remove()
        self.assertGreater(layers * LAYER, limit)
        self.assertEqual(paged, plain)
        self.assertEqual((self.folder / "paged.pt").stat().st_size, (self.folder / "plain.pt").stat().st_size)

    def test_built(self):
        self.compare(lambda layers: "build")

    def test_loaded(self):
        import torch
        if int(torch.__version__.split(".")[0]) < 2:
            self.skipTest(f"PyTorch {torch.__version__} cannot map what it loads")

        def saved(layers):
            file = self.folder / "loaded.pt"
            self.call(self.program, "build", file, layers)
            return file
        self.compare(saved)


if __name__ == "__main__":
    unittest.main()
