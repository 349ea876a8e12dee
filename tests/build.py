#!/usr/bin/env python3
"""Configures and builds targets of a preset, as ./dev does: quiet when all is well, with as many compilers as fit.

    tests/build.py PRESET [TARGET…]       without targets it only configures
"""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def heading(text):
    print("\n\033[1m== %s\033[0m" % text if sys.stdout.isatty() else "\n== " + text, flush=True)


def job_count():
    """As many as there are cores, but no more than memory carries: a LibTorch file takes up to 2 GiB."""
    kilobytes = 8 << 20
    if os.path.exists("/proc/meminfo"):
        with open("/proc/meminfo", encoding="utf-8") as file:
            match = re.search(r"^MemAvailable: *(\d+)", file.read(), re.MULTILINE)
            kilobytes = int(match.group(1)) if match else kilobytes
    return max(1, min(len(os.sched_getaffinity(0)), kilobytes >> 21))


def environment():
    # A compiler cache that cannot write fails the build instead of stepping aside.
    if not os.environ.get("CCACHE_DIR") and not os.access(os.environ.get("HOME", "/nonexistent"), os.W_OK):
        return {**os.environ, "CCACHE_DISABLE": "1"}
    return None


def configure(preset):
    folder = os.path.join(ROOT, "build", preset)
    os.makedirs(folder, exist_ok=True)
    done = subprocess.run(["cmake", "--preset", preset], cwd=ROOT, env=environment(), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with open(os.path.join(folder, "configure.log"), "w", encoding="utf-8") as file:
        file.write(done.stdout)
    if done.returncode != 0:
        print(done.stdout, end="", file=sys.stderr, flush=True)
        return False
    print("".join(line + "\n" for line in done.stdout.splitlines() if "left out" in line), end="", flush=True)
    return True


def build(preset, targets, prefix=()):
    """`prefix`: a command that starts the build, such as setarch."""
    heading("Building preset '%s'" % preset)
    command = [*prefix, "cmake", "--build", "build/" + preset, "--parallel", str(job_count()), "--target", *targets]
    return configure(preset) and subprocess.run(command, cwd=ROOT, env=environment()).returncode == 0


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    sys.exit(0 if (build(sys.argv[1], sys.argv[2:]) if sys.argv[2:] else configure(sys.argv[1])) else 1)
