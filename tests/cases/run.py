#!/usr/bin/env python3
"""Questions as people ask them, with the right answers: each folder beside this file is a case.

A case's case.json is a list of {"command": "fit --model …", "expect": [{"path": …, "value": …, "tolerance": …}]}. The
command is tencache's, run in the case's folder. A path is

  exit              the exit code
  stdout, stderr    text: `value` is a regular expression that is found in it, or with "absent": true is not
  a.b[0].c          of the JSON that --json prints; [name=x] is the list's element whose `name` is x

`tolerance` is relative (0.1: within 10 %); without it the value is equal. `"missing": true` in place of a value: the
path leads nowhere.

  tests/cases/run.py [--json] [--tencache PROGRAM] [CASE…]

prints what is wrong, or with --json [{case, command, exit, expect, got, ok}] of every expectation; exit code 1: one is
not met.
"""
import argparse
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
TEXTS = ("exit", "stdout", "stderr")


def at(document, path):
    """What the path leads to; raises LookupError where it leads nowhere."""
    for name, index in re.findall(r"([^.\[\]]+)|\[([^\]]*)\]", path):
        if name:
            if not isinstance(document, dict):
                raise LookupError(path)
            document = document[name]
        elif "=" in index:
            key, value = index.split("=", 1)
            document = next((each for each in document if str(each.get(key)) == value), LookupError)
            if document is LookupError:
                raise LookupError(path)
        else:
            document = document[int(index)]
    return document


def is_met(expect, got):
    if isinstance(got, LookupError):
        return bool(expect.get("missing"))
    if expect.get("missing"):
        return False
    value = expect["value"]
    if expect["path"] in ("stdout", "stderr"):
        return bool(re.search(value, got)) != bool(expect.get("absent"))
    numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in (value, got))
    if numbers and "tolerance" in expect:
        return abs(got - value) <= expect["tolerance"] * abs(value)
    return type(got) is type(value) and got == value if not numbers else got == value


def run(case, tencache, question):
    command = question["command"]
    words = [tencache, *shlex.split(command)]
    if any(expect["path"].split("[")[0].split(".")[0] not in TEXTS for expect in question["expect"]):
        words.append("--json")
    done = subprocess.run(words, cwd=case, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    answer = {"exit": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
    try:
        document = json.loads(done.stdout)
    except ValueError:
        document = {}
    for expect in question["expect"]:
        try:
            got = answer[expect["path"]] if expect["path"] in TEXTS else at(document, expect["path"])
        except (LookupError, TypeError, AttributeError) as error:
            got = error if isinstance(error, LookupError) else LookupError(expect["path"])
        yield {"case": case.name, "command": "tencache " + command, "exit": done.returncode, "expect": expect,
               "got": None if isinstance(got, LookupError) else got, "ok": is_met(expect, got)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="every expectation, met or not")
    built = HERE.parents[1] / "build/release/cli/tencache"
    parser.add_argument("--tencache", default=os.environ.get("TENCACHE", built))
    parser.add_argument("cases", nargs="*", metavar="CASE", help="folders' names (default: all)")
    asked = parser.parse_args()
    tencache = str(pathlib.Path(asked.tencache).resolve())
    folders = sorted(file.parent for file in HERE.glob("*/case.json"))
    unknown = set(asked.cases) - {folder.name for folder in folders}
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(f.name for f in folders)}")
    rows = [row for folder in folders if not asked.cases or folder.name in asked.cases
            for question in json.loads((folder / "case.json").read_text()) for row in run(folder, tencache, question)]
    wrong = [row for row in rows if not row["ok"]]
    if asked.json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
    else:
        for row in wrong:
            got = row["got"] if not isinstance(row["got"], str) else row["got"][-2000:]
            print(f"{row['case']}: {row['command']}\n  exit {row['exit']}; expected {row['expect']}, got {got}")
        cases = len({row["case"] for row in rows})
        print(f"{len(rows) - len(wrong)} of {len(rows)} expectations met, in {cases} cases")
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
