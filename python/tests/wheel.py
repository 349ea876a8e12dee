"""Builds the wheel, installs it into a fresh environment, uses it outside the source tree. Its own ctest (python_wheel):
skipped where pip, venv or scikit-build-core are missing, as nothing is fetched from the network."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77
SOURCE = os.environ["TENCACHE_SOURCE_DIR"]

USE = """
import json, pathlib, tencache, importlib.util
assert pathlib.Path(tencache.__file__).is_relative_to({root!r}), tencache.__file__
sample = tencache.samples()["gpt-small"]
assert pathlib.Path(sample).is_relative_to({root!r}), sample
rows = tencache.compare(tencache.load(sample), "g10-a100", ["lru", "g10"], no_rescale=True)
for package, others in (("tencache", {{"observer"}}), ("tencache_recorder", {{"paging", "program", "cuda", "no_cuda"}})):
    cpp = pathlib.Path(importlib.util.find_spec(package).origin).parent / "cpp"  # what PyTorch compiles
    lines = (cpp / "executor/torch/build.txt").read_text().splitlines()
    files = [line.split()[1] for line in lines if line[:1].isalpha() and line.split()[0] not in others]
    assert files and all((cpp / file).is_file() for file in files), cpp
assert len(tencache.generate("gpt2", batch=1, seq=128, gpu="a100-40g").ops) > 0  # kernels, GPUs and stacks are there
print(json.dumps([rows[1]["iteration_seconds"], sample, len(tencache.machines())]))
"""


def run(*words, **options):
    answer = subprocess.run(words, capture_output=True, text=True, **options)
    if answer.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{answer.stdout}\n{answer.stderr}")
    return answer.stdout


def main():
    for module in ("pip", "venv", "ensurepip", "scikit_build_core", "pybind11"):
        if subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True).returncode != 0:
            print(f"skipped: {sys.executable} has no {module}")
            return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        # The flags of the other builds, so that a compiler cache has most of it.
        run(sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", folder, "-C",
            "cmake.define.TENCACHE_WERROR=ON", SOURCE)
        wheel, = pathlib.Path(folder).glob("tencache-*.whl")
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
        root = os.path.join(folder, "environment")
        run(sys.executable, "-m", "venv", "--system-site-packages", root)  # for NumPy
        python = os.path.join(root, "bin", "python")
        run(python, "-m", "pip", "install", "--no-index", "--no-deps", str(wheel), cwd=folder)
        away = {"cwd": folder, "env": {"PATH": "/usr/bin:/bin", "HOME": folder}}
        seconds, sample, machines = json.loads(run(python, "-c", USE.format(root=root), **away))
        command = os.path.join(root, "bin", "tencache")
        assert "compare" in run(command, "--help", **away)
        rows = json.loads(run(command, "compare", sample, "-m", "g10-a100", "--policies", "lru,g10", "--no-rescale", "--json",
                              **away))
        assert rows[1]["iteration_seconds"] == seconds
        assert machines == len(json.loads(run(command, "machines", "--json", **away)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
