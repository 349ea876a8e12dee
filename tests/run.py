#!/usr/bin/env python3
"""Builds and runs the tests of presets, and counts them. `./dev test` installs what is missing, then calls this.

    tests/run.py [--preset release] [--sanitizers] [-- CTEST ARGUMENTS…]

The last line is "N passed, N failed, N skipped". A preset that does not build, and a ctest that fails without a failed
test, count as one failure. Sanitizers that do not start on this system count as one skipped test.
"""
import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

from build import ROOT, build, environment, heading

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
    def __init__(self, ctest_arguments):
        self.ctest_arguments = ctest_arguments
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}
        self.prefix = []

    def preset(self, name, targets):
        if not build(name, targets, self.prefix):
            complain(f"preset '{name}' does not build; counted as one failure")
            self.counts["failed"] += 1
            return
        heading(f"Testing preset '{name}'")
        results, failed_before = os.path.join(ROOT, "build", name, "tests.xml"), self.counts["failed"]
        if os.path.exists(results):
            os.remove(results)
        command = [*self.prefix, "ctest", "--preset", name, "--parallel", str(len(os.sched_getaffinity(0))),
                   "--output-junit", results, *self.ctest_arguments]
        status = subprocess.run(command, cwd=ROOT, env=environment()).returncode
        if os.path.exists(results):
            for case in xml.etree.ElementTree.parse(results).getroot().iter("testcase"):
                self.counts[outcome(case)] += 1
        # ctest may fail without a failed test: none found, a broken test file.
        if status != 0 and self.counts["failed"] == failed_before:
            complain(f"ctest stopped with status {status}; counted as one failure")
            self.counts["failed"] += 1

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
        # A selection may leave nothing to do under one of the presets.
        ctest_arguments = ["--no-tests=ignore", *arguments[arguments.index("--") + 1:]]
        arguments = arguments[:arguments.index("--")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="release")
    parser.add_argument("--sanitizers", action="store_true")
    options = parser.parse_args(arguments)

    run = Run(ctest_arguments)
    run.preset(options.preset, ["tencache_tests"] + (["tencache_programs"] if options.preset == "release" else []))
    if options.sanitizers:
        run.sanitizers()
    print("\n" + ", ".join(f"{count} {name}" for name, count in run.counts.items()), flush=True)
    return 0 if run.counts["failed"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
