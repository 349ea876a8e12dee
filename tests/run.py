#!/usr/bin/env python3
"""Builds and runs the tests of presets, and counts them. `./dev test` installs what is missing, then calls this.

    tests/run.py [--preset release] [--sanitizers] [--slow] [-- CTEST ARGUMENTS…]

Tests with the label `slow` are left out unless --slow asks for them.

Rung by rung, from the small to the whole (CONTRIBUTING.md has the ladder); what is above the first rung that fails is
not run, since its failures would only repeat the first one's. The last line is "N passed, N failed, N skipped". A
preset that does not build, and a ctest that fails without a failed test, count as one failure. Tests above a rung that
failed count as skipped, and so do sanitizers that do not start on this system, as one test.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

from build import ROOT, build, environment, heading

# Labels of ctest, which tests/CMakeLists.txt makes of folders; None: tests without one.
RUNGS = ["exact", "closed_form", "golden", "property", "differential", "fuzz", "live", "faces", "frozen", None]
SANITIZERS = [("asan", "address", "tencache_tests"), ("tsan", "thread", "tencache_tests_tsan")]


def complain(text):
    print("dev: " + text, file=sys.stderr, flush=True)


def outcome(case):
    """Of a test case as ctest writes JUnit. A test that could not be started is a failure, which ctest's own "skipped"
    count hides."""
    status = case.get("status")
    if status == "notrun":
        reason = case.find("skipped")
        return "skipped" if reason is not None and reason.get("message", "").startswith("SKIP_") else "failed"
    return {"run": "passed", "disabled": "skipped"}.get(status, "failed")


class Run:
    def __init__(self, ctest_arguments, slow):
        self.ctest_arguments, self.slow = ctest_arguments, slow
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}
        self.prefix = []

    def preset(self, name, targets):
        if not build(name, targets, self.prefix):
            complain(f"preset '{name}' does not build; counted as one failure")
            self.counts["failed"] += 1
            return
        ran, failed_before = 0, self.counts["failed"]
        for index, rung in enumerate(RUNGS):
            ran += self.rung(name, rung)
            if self.counts["failed"] > failed_before:
                left = sum(self.count(name, other) for other in RUNGS[index + 1:])
                if left > 0:
                    complain(f"{left} tests above this rung were not run; counted as skipped")
                    self.counts["skipped"] += left
                return
        if ran == 0 and not self.ctest_arguments:
            complain(f"preset '{name}' has no tests; counted as one failure")
            self.counts["failed"] += 1

    def ctest(self, name, rung):
        """The command for a rung: tests with its label, or with none of them."""
        # One pattern for all that is left out: of several, a test would have to match each.
        left_out = [*([] if rung else filter(None, RUNGS)), *([] if self.slow else ["slow"])]
        labels = [*(["-L", f"^{rung}$"] if rung else []), *(["-LE", f"^({'|'.join(left_out)})$"] if left_out else [])]
        return [*self.prefix, "ctest", "--preset", name, "--no-tests=ignore", *labels, *self.ctest_arguments]

    def count(self, name, rung):
        """How many tests a rung has."""
        shown = subprocess.run([*self.ctest(name, rung), "--show-only=json-v1"], cwd=ROOT, env=environment(), text=True,
                               stdout=subprocess.PIPE)
        return len(json.loads(shown.stdout)["tests"]) if shown.returncode == 0 else 0

    def rung(self, name, rung):
        """Runs one; returns how many tests it has."""
        tests = self.count(name, rung)
        if tests == 0:
            return 0
        heading(f"Testing preset '{name}': {rung or 'others'}")
        results, failed_before = os.path.join(ROOT, "build", name, f"tests-{rung}.xml"), self.counts["failed"]
        if os.path.exists(results):
            os.remove(results)
        # One more than there are cores: many wait for files, or for a pace.
        beside = len(os.sched_getaffinity(0)) + 1
        command = [*self.ctest(name, rung), "--parallel", str(beside), "--output-junit", results]
        status = subprocess.run(command, cwd=ROOT, env=environment()).returncode
        if os.path.exists(results):
            for case in xml.etree.ElementTree.parse(results).getroot().iter("testcase"):
                self.counts[outcome(case)] += 1
        # ctest may fail without a failed test: a broken test file.
        if status != 0 and self.counts["failed"] == failed_before:
            complain(f"ctest stopped with status {status}; counted as one failure")
            self.counts["failed"] += 1
        return tests

    def sanitizers(self):
        # Sanitizers of GCC 12 do not start under kernels that randomise addresses with more bits than they expect.
        if subprocess.run(["setarch", "-R", "true"], stderr=subprocess.DEVNULL).returncode == 0:
            self.prefix = ["setarch", "-R"]
        for name, sanitizer, target in SANITIZERS:
            if self.starts(sanitizer):
                self.preset(name, [target])
            else:
                complain(f"programs built with -fsanitize={sanitizer} do not start on this system; "
                         "counted as one skipped test")
                self.counts["skipped"] += 1

    def starts(self, sanitizer):
        """Does a program built with it run here at all?"""
        with tempfile.TemporaryDirectory() as folder:
            source, program = os.path.join(folder, "probe.cpp"), os.path.join(folder, "probe")
            with open(source, "w", encoding="utf-8") as file:
                file.write("int main() {}\n")
            compiler = [os.environ.get("CXX", "c++"), "-fsanitize=" + sanitizer, "-o", program, source]
            return all(subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
                       for command in (compiler, [*self.prefix, program]))


def main():
    arguments, ctest_arguments = sys.argv[1:], []
    if "--" in arguments:
        ctest_arguments = arguments[arguments.index("--") + 1:]
        arguments = arguments[:arguments.index("--")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="release")
    parser.add_argument("--sanitizers", action="store_true")
    parser.add_argument("--slow", action="store_true")
    options = parser.parse_args(arguments)

    run = Run(ctest_arguments, options.slow)
    run.preset(options.preset, ["tencache_tests"] + (["tencache_programs"] if options.preset == "release" else []))
    if options.sanitizers:
        run.sanitizers()
    print("\n" + ", ".join(f"{count} {name}" for name, count in run.counts.items()), flush=True)
    return 0 if run.counts["failed"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
