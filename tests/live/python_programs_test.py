"""PyTorch programs under tencache.live: the same bits as without it, under every policy and in little memory.

Runs with the PyTorch of the interpreter that runs it, each program in a process of its own.

    python_programs_test.py                                      the tests
    python_programs_test.py --all                                every program in every share and under every policy
    python_programs_test.py PROGRAM POLICY SHARE [SHARE…]        one process: a program plainly, then in those shares of
                                                                 its peak; "least": what the report says is the least
"""

import json
import os
import subprocess
import sys
import unittest

SHARES = ["1", "0.7", "0.5", "0.35", "least"]
POLICIES = ("on-demand", "lru", "10cache", "zero-infinity")  # beside foresight
STEPS = 6
IN_FILES = ("mapped", "pretrained")  # weights that are read from the files that they were loaded from


def run(program, policy, shares):
    import warnings
    warnings.simplefilter("ignore")
    import torch
    import tencache
    from python_programs import PROGRAMS
    programs = dict(PROGRAMS)
    if program not in programs:
        import python_libraries
        programs = python_libraries.PROGRAMS
    torch.set_num_threads(1)

    def results():
        torch.manual_seed(1)
        return programs[program](STEPS)

    plain = results()
    options = {"pace": False, "quiet": True}
    if policy == "zero-infinity":
        options["settings"] = {"overflow": "evict"}  # it moves what no rule of its own moves
    with tencache.live("on-demand", gpu_memory="4GiB", pace=False, quiet=True) as demand:
        assert results() == plain, "without a limit"
    need = demand.report()
    assert program not in IN_FILES or need["bytes_left_in_files"] > 0, need
    assert need["unadopted_bytes"] <= 0.01 * need["peak_bytes"], need
    for share in shares:
        if share == "least":
            size = need["largest_op_bytes"]
        else:
            size = max(int(float(share) * need["peak_bytes"]), need["largest_op_bytes"])
        with tencache.live(policy, gpu_memory=f"{size}B", cpu_memory="1GiB", **options) as live:
            assert results() == plain, f"{policy} in {share} of {need['peak_bytes']} bytes"
        report = live.report()
        print(json.dumps({"program": program, "policy": policy, "share": share, "bytes": size,
                          **{name: report[name] for name in ("evictions", "deviations", "faults", "first_deviation")}}))
    assert results() == plain, "afterwards"


def add_case(program, policy, shares):
    def case(self):
        process = subprocess.run([sys.executable, __file__, program, policy, *shares], capture_output=True, text=True)
        self.assertEqual(process.returncode, 0, process.stdout[-2000:] + process.stderr[-4000:])
        rows = [json.loads(line) for line in process.stdout.splitlines() if line.startswith('{"program"')]
        self.assertEqual(len(rows), len(shares))
        if "0.35" in shares:
            self.assertGreater(sum(row["evictions"] for row in rows), 0, "nothing was ever moved")
    setattr(Programs, f"test_{program}_{policy.replace('-', '_')}", case)


class Programs(unittest.TestCase):
    maxDiff = None


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    if len(sys.argv) > 3:
        run(sys.argv[1], sys.argv[2], sys.argv[3:])
    else:
        from python_programs import PROGRAMS
        everything = "--all" in sys.argv
        if everything:
            sys.argv.remove("--all")
        for name in PROGRAMS:
            add_case(name, "foresight", SHARES)
        for chosen in POLICIES:
            for name in PROGRAMS if everything else ("gpt_everything", "resnet"):
                add_case(name, chosen, ["0.5"])
        try:
            from python_libraries import PROGRAMS as LIBRARIES
        except ImportError as error:
            print(f"Programs of Hugging Face's libraries are left out: {error}", file=sys.stderr)
            LIBRARIES = {}
        for name in LIBRARIES:
            add_case(name, "foresight", SHARES if everything else ["0.5", "least"])
            for chosen in POLICIES if everything else ():
                add_case(name, chosen, ["0.5"])
        unittest.main()
