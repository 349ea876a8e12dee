#!/usr/bin/env python3
"""Which lines the tests ran, by folder. `./dev coverage` builds, runs the tests and then this.

    tests/coverage.py [--build build/coverage] [--worst 15] [--json F]
    tests/coverage.py --clear             before the tests run: forgets what earlier runs counted

Reads what a build with `--coverage` counted, through gcovr. The last lines are the files with the most lines that no
test ran. Exit code 1: a folder is below its limit.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIMITS = {"core": 95, "policies": 95, "sim": 95, "traces": 95, "executor": 85, "configs": None, "studies": None,
          "answers": None, "cli": None, "gui": None}


def files_below(folder, ending):
    for path, _, names in os.walk(folder):
        yield from (os.path.join(path, name) for name in names if name.endswith(ending))


def clear(build):
    for counts in files_below(build, ".gcda"):
        os.remove(counts)


def forget_what_is_gone(build):
    """Notes of sources that are gone since an earlier build: gcovr stops at functions that stand elsewhere now."""
    subprocess.run(["ninja", "-C", build, "-t", "cleandead"], check=True, stdout=subprocess.DEVNULL)
    for notes in files_below(build, ".gcno"):
        if not os.path.exists(notes[:-len(".gcno")] + ".o"):
            os.remove(notes)


def measured(build):
    with tempfile.TemporaryDirectory() as folder:
        summary = os.path.join(folder, "summary.json")
        # Lines that the compiler made nothing of are not counted; a check of an invariant that holds is.
        subprocess.run(["gcovr", "--root", ROOT, "--object-directory", build, "--json-summary", summary,
                        "--exclude-unreachable-branches", "--gcov-ignore-parse-errors",
                        *[f"--filter={os.path.join(ROOT, folder)}/" for folder in LIMITS], build],
                       check=True, stdout=subprocess.DEVNULL)
        with open(summary, encoding="utf-8") as file:
            return [(each["filename"], each["line_covered"], each["line_total"]) for each in json.load(file)["files"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "coverage"))
    parser.add_argument("--worst", type=int, default=15, help="how many files to list (default 15)")
    parser.add_argument("--json", help="also write the figures of all files to this file")
    parser.add_argument("--clear", action="store_true")
    options = parser.parse_args()
    if options.clear:
        clear(options.build)
        return 0
    forget_what_is_gone(options.build)
    files = measured(options.build)
    below = []
    print(f"{'folder':10} {'lines':>7} {'run':>7} {'':>7}  limit")
    for folder, limit in LIMITS.items():
        lines = [(covered, total) for name, covered, total in files if name.startswith(folder + "/")]
        covered, total = (sum(column) for column in zip(*lines)) if lines else (0, 0)
        percent = 100 * covered / total if total else 0.0
        print(f"{folder:10} {total:7} {covered:7} {percent:6.1f}%  {f'{limit}%' if limit else ''}")
        if limit and percent < limit:
            below.append(folder)
    print("\nnot run  of lines  file")
    for name, covered, total in sorted(files, key=lambda file: file[1] - file[2])[:options.worst]:
        print(f"{total - covered:7}  {total:8}  {name}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump([{"file": name, "run": covered, "lines": total} for name, covered, total in files], file, indent=1)
    if below:
        print(f"\nBelow the limit: {', '.join(below)}", file=sys.stderr)
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
