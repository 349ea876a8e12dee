#!/usr/bin/env python3
"""Checks the format of all sources, and runs clang-tidy on all of them but those of LibTorch.

    tests/lint.py [--changed] [--jobs N]      what `./dev lint` runs, in build/lint, which is configured before
    tests/lint.py --format                    formats the sources instead (`./dev format`)

clang-tidy reads the joined files of the build, so it reads their headers once for a dozen sources.
"""
import argparse
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys

from build import job_count

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()


def sources(changed=False):
    found = git("ls-files", "--cached", "--others", "--exclude-standard", "--", "*.h", "*.cpp")
    if changed:
        differing = set(git("diff", "--name-only", "HEAD") + git("ls-files", "--others", "--exclude-standard"))
        found = [path for path in found if path in differing]
    return sorted(path for path in set(found) if os.path.isfile(os.path.join(ROOT, path)))


def text_of(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def tool(name):
    """Version 14 where it is there, since another one formats differently."""
    found = shutil.which(name + "-14") or shutil.which(name)
    if not found:
        sys.exit(f"lint: {name} is not installed")
    return found


def torch_sources(paths):
    """Those that include LibTorch, directly or through our headers: clang 14 cannot parse it as C++20."""
    included = {path: re.findall(r'^#include [<"]([^>"]+)', text_of(path), re.MULTILINE) for path in paths}
    found, before = set(), None
    while found != before:
        before = found
        found = {path for path, names in included.items()
                 if any(name.startswith(("torch/", "ATen/", "c10/")) or name in before for name in names)}
    return found


def units(wanted, left_out):
    """What clang-tidy reads to see each wanted file once: joined files first, since what they hold need not be read
    alone; none that holds a file to leave out."""
    with open(os.path.join(ROOT, "build", "lint", "compile_commands.json"), encoding="utf-8") as file:
        known = sorted({entry["file"] for entry in json.load(file)}, key=lambda path: ("/Unity/" not in path, path))
    chosen, seen = [], set()
    for unit in known:
        held = re.findall(r'^#include "(.*)"', text_of(unit), re.MULTILINE) if "/Unity/" in unit else [unit]
        held = {os.path.relpath(path, ROOT) for path in held}
        fresh = held & wanted - seen
        if fresh and not held & left_out:
            chosen.append(unit)
            seen |= fresh
    # What is not built here, or joined with LibTorch's.
    return chosen + sorted(path for path in wanted - seen - left_out if path.endswith(".cpp"))


def tidy(unit):
    return subprocess.run([tool("clang-tidy"), "-p", "build/lint", "--quiet", unit], cwd=ROOT).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changed", action="store_true", help="only sources that differ from the last commit")
    parser.add_argument("--jobs", type=int, default=job_count())
    parser.add_argument("--format", action="store_true", help="format the sources in place")
    options = parser.parse_args()
    paths = sources(options.changed)
    if not paths:
        print("Nothing to check.")
        return 0
    if options.format:
        return subprocess.run([tool("clang-format"), "-i", *paths], cwd=ROOT).returncode
    print("\n== clang-format", flush=True)
    good = subprocess.run([tool("clang-format"), "--dry-run", "--Werror", *paths], cwd=ROOT).returncode == 0
    print("\n== clang-tidy", flush=True)
    # Nor what the build completes, with code for the GPU or a fuzzer's name.
    completed = {path for path in paths if re.search(r'_ptx\.inc"|TENCACHE_FUZZ_READER', text_of(path))}
    left_out = torch_sources(sources()) | completed
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        good = all(list(pool.map(tidy, units(set(paths), left_out)))) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
