"""Holds the sources to what they say of their locks (core/thread_annotations.h): Clang checks the .cpp files that use
the annotations themselves or through their own header. Without clang++ the test is skipped."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SKIPPED = 77
# What the build alone can compile: with LibTorch, MPI or Python.
LEFT_OUT = re.compile(r"#include [<\"](torch|ATen|c10|mpi\.h|pybind11|imgui)")


def annotated():
    tracked = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.cpp", "*.h"], cwd=ROOT,
                             capture_output=True, text=True, check=False).stdout.split()
    if not tracked:  # a copy without git
        tracked = [os.path.relpath(os.path.join(folder, name), ROOT)
                   for part in ("core", "sim", "executor", "cli", "gui") for folder, _, names in os.walk(os.path.join(ROOT, part))
                   for name in names if name.endswith((".cpp", ".h"))]
    text = {}
    for name in tracked:
        if os.path.exists(os.path.join(ROOT, name)):
            with open(os.path.join(ROOT, name), encoding="utf-8") as file:
                text[name] = file.read()
    uses = {name for name in text if '"core/thread_annotations.h"' in text[name]}
    return sorted(name for name in text if name.endswith(".cpp") and not LEFT_OUT.search(text[name])
                  and (name in uses or name[:-4] + ".h" in uses))


def main():
    clang = next((found for found in map(shutil.which, ("clang++", "clang++-14", "clang++-19")) if found), None)
    if clang is None:
        print("skipped: no clang++ here, which alone checks the annotations")
        return SKIPPED

    generated = tempfile.TemporaryDirectory()  # stands in for what the build makes
    with open(os.path.join(generated.name, "replay_kernels_ptx.inc"), "w", encoding="utf-8") as file:
        file.write("const unsigned char replay_kernels_ptx[] = {0};\n")

    def check(names):
        return subprocess.run([clang, "-std=c++20", "-fsyntax-only", "-Wthread-safety", "-Werror=thread-safety", "-I.",
                               "-I" + generated.name, "-x", "c++", "-"], cwd=ROOT, capture_output=True, text=True,
                              check=False, input="".join(f'#include "{name}"\n' for name in names))

    names = annotated()
    if len(names) < 5:
        print("hardly any source uses core/thread_annotations.h: the search is broken")
        return 1
    status = 0
    folders = {}  # together, as the build joins them: so their headers are read once
    for name in names:
        folders.setdefault(os.path.dirname(name), []).append(name)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for answer in pool.map(check, folders.values()):
            if answer.returncode:
                status = 1
                print(answer.stderr)
    print(f"{len(names)} files checked")
    return status


if __name__ == "__main__":
    sys.exit(main())
