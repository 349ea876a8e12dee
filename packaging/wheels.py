#!/usr/bin/env python3
"""A wheel for each Python, in one folder: packaging/wheels.py -o dist [PYTHON …]

Without names, every python3.9 to python3.14 on the PATH that starts. All of them share one build folder, so that what
does not see Python is compiled once. Needs pip and a network (for scikit-build-core and pybind11), CMake and a C++20
compiler. What installs the wheels needs none of that.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
NAMES = [f"python3.{minor}" for minor in range(9, 15)]


def version_of(python):
    """(3, 11), or None where it does not start."""
    path = shutil.which(python)
    if path is None:
        return None
    done = subprocess.run([path, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True)
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else None


def make(python, output, build):
    """The wheel's path."""
    before = set(output.glob("*.whl"))
    start = time.monotonic()
    done = subprocess.run([python, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--wheel-dir", str(output),
                           "--config-settings", f"build-dir={build}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    if done.returncode != 0:
        sys.exit("\n".join(done.stdout.splitlines()[-40:]) + f"\nwheels: {python} makes no wheel; see above")
    made = set(output.glob("*.whl")) - before
    wheel = made.pop() if made else max(output.glob("*.whl"), key=lambda path: path.stat().st_mtime)
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {time.monotonic() - start:.0f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", nargs="*", help="programs (default: all that are found)")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("dist"))
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "wheels", help="the folder that they share")
    given = parser.parse_args()
    found = {}
    for python in given.python or NAMES:
        version = version_of(python)
        if version is None and given.python:
            sys.exit(f"wheels: {python} does not start")
        if version is not None:
            found.setdefault(version, python)
    if not found:
        sys.exit(f"wheels: none of {', '.join(NAMES)} is on the PATH")
    given.output.mkdir(parents=True, exist_ok=True)
    for python in found.values():
        make(python, given.output.resolve(), given.build.resolve())


if __name__ == "__main__":
    main()
