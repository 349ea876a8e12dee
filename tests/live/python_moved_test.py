#!/usr/bin/env python3
"""Suites of live Python programs with every storage moved before every op: the same bits.

    python_moved_test.py [SUITE [WORD...]]    with words of the suite's own; without a suite those of QUICK

PYTHONPATH has the package with the module of tests/live/python_moved.cpp. No run sleeps there, so tests of sleep are
left out. DDP reads the order of its buckets through an address that it has taken before an op: among ranks, small
tensors stay where they are.
"""
import os
import subprocess
import sys
import tempfile

QUICK = (["python_programs"], ["python_raw_access"])
WORDS = {"python_live": ["Live", "States", "MappedFiles"]}
MOVES_FROM = {"python_ranks": "1024"}


def main():
    suites = [sys.argv[1:]] if len(sys.argv) > 1 else QUICK
    failed = False
    for suite, *words in suites:
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{suite}_test.py")
        with tempfile.NamedTemporaryFile("r") as moves:
            status = subprocess.run([sys.executable, script, *(words or WORDS.get(suite, []))],
                                    env=dict(os.environ, TENCACHE_MOVES=moves.name,
                                             TENCACHE_MOVES_FROM=MOVES_FROM.get(suite, "0"))).returncode
            moved = sum(map(int, moves.read().split()))
        print(f"{suite}: status {status}, {moved} storages moved", flush=True)
        failed |= status != 0 or moved == 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
