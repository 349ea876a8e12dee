"""PyTorch programs under tencache.live: the same bits as without it, under every policy and in little memory.

Runs with the PyTorch of the interpreter that runs it, all in one process.

    python_programs_test.py                                      some programs, of each kind one
    python_programs_test.py --slow                               all of them in every share, some under every policy
    python_programs_test.py --all                                all of them in every share and under every policy
    python_programs_test.py PROGRAM POLICY SHARE [SHARE…]        one: plainly, then in those shares of its peak;
                                                                 "least": what the report says is the least
"""

import gc
import json
import os
import sys
import unittest
import warnings

warnings.simplefilter("ignore")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import torch  # noqa: E402

import tencache  # noqa: E402
from python_programs import PROGRAMS  # noqa: E402

SHARES = ["1", "0.7", "0.5", "0.35", "least"]
POLICIES = ("on-demand", "lru", "10cache", "zero-infinity")  # beside foresight
STEPS = 6
IN_FILES = ("mapped", "pretrained")  # weights that are read from the files that they were loaded from
# Lists of tensors, evaluation and checkpoints midway, recomputation, generation, convolutions, forks, files.
SOME = ("gpt_foreach", "gpt_everything", "gpt_checkpointing", "generation", "resnet", "workers", "mapped")


def settings_of(policy):
    """It moves what no rule of its own moves, where it can be told to."""
    known = {each["name"]: each["options"] for each in tencache.policies()}
    return {option["name"]: "evict" for option in known[policy] if "evict" in option.get("choices", ())}


def run(program, policy, shares):
    """Returns a row for each share."""
    def results():
        torch.manual_seed(1)
        gc.collect()
        return PROGRAMS[program](STEPS)

    plain = results()
    options = {"pace": False, "quiet": True, "settings": settings_of(policy)}
    with tencache.live("on-demand", gpu_memory="4GiB", sleep=False, pace=False, quiet=True) as demand:
        assert results() == plain, "without a limit"
    need = demand.report()
    with tencache.live(policy, gpu_memory="4GiB", **options):
        assert results() == plain, "asleep"
    assert program not in IN_FILES or need["bytes_left_in_files"] > 0, need
    assert need["unadopted_bytes"] <= 0.01 * need["peak_bytes"], need
    rows = []
    for share in shares:
        if share == "least":
            size = need["largest_op_bytes"]
        else:
            size = max(int(float(share) * need["peak_bytes"]), need["largest_op_bytes"])
        with tencache.live(policy, gpu_memory=f"{size}B", cpu_memory="1GiB", **options) as live:
            assert results() == plain, f"{policy} in {share} of {need['peak_bytes']} bytes"
        report = live.report()
        rows.append({"program": program, "policy": policy, "share": share, "bytes": size,
                     **{name: report[name] for name in ("evictions", "deviations", "faults", "first_deviation")}})
    assert results() == plain, "afterwards"
    return rows


class Programs(unittest.TestCase):
    maxDiff = None


def add_case(program, policy, shares):
    def case(self):
        rows = run(program, policy, shares)
        if "0.35" in shares:
            self.assertGreater(sum(row["evictions"] for row in rows), 0, "nothing was ever moved")
    setattr(Programs, f"test_{program}_{policy.replace('-', '_')}", case)


def libraries():
    try:
        from python_libraries import PROGRAMS as programs
    except ImportError as error:
        print(f"Programs of Hugging Face's libraries are left out: {error}", file=sys.stderr)
        return {}
    return programs


def add_cases(everything):
    for name in PROGRAMS:
        add_case(name, "foresight", SHARES)
    for policy in POLICIES:
        for name in PROGRAMS if everything else ("gpt_everything", "resnet"):
            add_case(name, policy, ["0.5"])
    of_libraries = libraries()
    PROGRAMS.update(of_libraries)
    for name in of_libraries:
        add_case(name, "foresight", SHARES if everything else ["0.5", "least"])
        for policy in POLICIES if everything else ():
            add_case(name, policy, ["0.5"])


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 3:
        if sys.argv[1] not in PROGRAMS:
            PROGRAMS.update(libraries())
        for row in run(sys.argv[1], sys.argv[2], sys.argv[3:]):
            print(json.dumps(row))
        sys.exit()
    more = {"--slow", "--all"} & set(sys.argv)
    if more:
        add_cases("--all" in more)
        sys.argv = [word for word in sys.argv if word not in more]
    else:
        for name in SOME:
            add_case(name, "foresight", ["0.35", "least"])
        for policy in POLICIES:
            add_case("gpt_everything", policy, ["0.5"])
    unittest.main()
