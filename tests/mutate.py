#!/usr/bin/env python3
"""Mutation testing of core/: breaks one line at a time and looks whether a test notices.

    tests/mutate.py [--count 100] [--seed 1] [--build build/mutate] [--json F] [--again F] [--list]

Copies the tree, builds `core_mutation_test` (every test that drives core/, in one program), then for each of `count`
lines drawn with the seed: applies one operator to the line, compiles, runs the program until its first failure. A
mutant is caught when a test fails, crashes or takes four times as long as the whole run did; lines that do not compile
are drawn again. What survives is printed with the change, to be looked at: it needs a test, or means the same. --again
tries those that survived in an earlier run's --json once more.

Operators: a comparison turned or moved by one, + and - and the logical connectives exchanged, a condition negated, a
literal 0 or 1 exchanged, true and false exchanged, a statement without a value left out, std::min and std::max
exchanged. Comments, declarations of interfaces, checks of invariants and messages are left alone.
"""
import argparse
import filecmp
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

EXCHANGES = [
    (r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > "), (r" == ", " != "), (r" != ", " == "),
    (r" \+ ", " - "), (r" - ", " + "), (r" \+= ", " -= "), (r" -= ", " += "), (r" && ", " || "), (r" \|\| ", " && "),
    (r"\btrue\b", "false"), (r"\bfalse\b", "true"), (r"std::min\b", "std::max"), (r"std::max\b", "std::min"),
    (r"(?<=[ (])0(?=[,;) ])", "1"), (r"(?<=[ (])1(?=[,;) ])", "0"), (r"\bif \((?!.*\bconst\b)", "if (!("),
    (r"^(\s+)(?!return|break|continue|delete|throw|const|auto|using|static|case|default)[a-z_.>\[\]()-]+\([^=]*\);$", ""),
]
LEFT_ALONE = re.compile(r"^\s*(//|#|namespace|using |template|static_assert|case |default:|throw |\}$|$)"
                        r"|TENCACHE_CHECK|std::to_string|Error\(|\"|operator|for \(const|reserve\(")


def copy_tree(into):
    """Copies what git knows of, and only what differs: a mutant that an interrupted run left there is newer than its
    original, and would stay in the build if times were copied too."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            check=True, stdout=subprocess.PIPE).stdout
    wanted = {name for name in listed.decode().split("\0") if name and os.path.isfile(os.path.join(ROOT, name))}
    for folder, _, names in os.walk(into):
        for name in names:
            if os.path.relpath(os.path.join(folder, name), into) not in wanted:
                os.remove(os.path.join(folder, name))
    for name in wanted:
        original, copy = os.path.join(ROOT, name), os.path.join(into, name)
        if not os.path.isfile(copy) or not filecmp.cmp(original, copy, shallow=False):
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copy(original, copy)


def mutants_of(path):
    """Every (line number, original, changed) of a file."""
    result = []
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    for number, line in enumerate(lines):
        if LEFT_ALONE.search(line):
            continue
        code = line.split(" // ")[0]
        for pattern, into in EXCHANGES:
            for match in re.finditer(pattern, code):
                if pattern.startswith(r"\bif"):
                    end = closing_parenthesis(code, match.end() - 1)
                    if end is None:
                        continue
                    changed = code[:match.start()] + into + code[match.end():end] + "))" + code[end + 1:]
                elif into == "":
                    changed = ""
                else:
                    changed = code[:match.start()] + into + code[match.end():]
                result.append((number, line, changed))
    return result


def closing_parenthesis(code, opening):
    depth = 0
    for index in range(opening, len(code)):
        depth += {"(": 1, ")": -1}.get(code[index], 0)
        if depth == 0:
            return index
    return None


def run(command, limit=None):
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit).returncode
    except subprocess.TimeoutExpired:
        return "timeout"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="mutants to try (default 100)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "mutate"), help="folder of the copy and its build")
    parser.add_argument("--files", nargs="*", help="source files (default: those of core/ and core/engine/)")
    parser.add_argument("--json", help="also write the results to this file")
    parser.add_argument("--again", metavar="F", help="only what survived in this file of an earlier --json")
    parser.add_argument("--list", action="store_true", help="only say how many mutants there are")
    options = parser.parse_args()

    files = options.files or sorted(os.path.join(folder, name) for folder in ("core", "core/engine")
                                    for name in os.listdir(os.path.join(ROOT, folder)) if name.endswith(".cpp"))
    everything = [(file, *mutant) for file in files for mutant in mutants_of(os.path.join(ROOT, file))]
    print(f"{len(everything)} mutants in {len(files)} files; seed {options.seed}")
    if options.list:
        return 0
    random.Random(options.seed).shuffle(everything)
    if options.again:
        with open(options.again, encoding="utf-8") as handle:
            wanted = {(m["file"], m["original"], m["mutant"]) for m in json.load(handle)["mutants"] if not m["caught"]}
        everything = [m for m in everything if (m[0], m[2].strip(), m[3].strip()) in wanted]

    source, build = os.path.join(options.build, "source"), os.path.join(options.build, "build")
    copy_tree(source)
    compile_all = ["cmake", "--build", build, "--target", "core_mutation_test"]
    subprocess.run(["cmake", "-G", "Ninja", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=None",
                    "-DCMAKE_CXX_FLAGS=-O1 -D_GLIBCXX_ASSERTIONS",
                    "-DTENCACHE_TORCH=OFF", "-DTENCACHE_CUDA=OFF", "-DTENCACHE_GUI=OFF", "-DTENCACHE_PYTHON=OFF",
                    "-DTENCACHE_BENCH=OFF", "-DTENCACHE_WERROR=OFF"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(compile_all, check=True, stdout=subprocess.DEVNULL)
    tests = [os.path.join(build, "tests", "core_mutation_test"), "--gtest_brief=1", "--gtest_fail_fast"]
    begin = time.monotonic()
    if run(tests) != 0:
        sys.exit("mutate: the tests fail without a mutant: " + " ".join(tests))
    whole_run = time.monotonic() - begin

    results = []
    for file, number, line, changed in everything:
        if len(results) == options.count:
            break
        path = os.path.join(source, file)
        with open(path, encoding="utf-8") as handle:
            original = handle.read()
        lines = original.split("\n")
        lines[number] = changed
        with open(path, "w", encoding="utf-8") as handle:
            handle.write("\n".join(lines))
        compiled = run(compile_all) == 0
        status = run(tests, 4 * whole_run + 10) if compiled else None
        with open(path, "w", encoding="utf-8") as handle:
            handle.write(original)
        if not compiled:
            continue
        caught = status != 0
        results.append({"file": file, "line": number + 1, "original": line.strip(), "mutant": changed.strip(),
                        "caught": caught, "status": status})
        print(f"{len(results):4}/{options.count} {'caught  ' if caught else 'SURVIVED'} {file}:{number + 1}: "
              f"{line.strip()}  ->  {changed.strip() or '(left out)'}", flush=True)
    caught = sum(result["caught"] for result in results)
    if not results:
        sys.exit("mutate: no mutant compiled")
    print(f"{caught} of {len(results)} caught ({100 * caught / len(results):.1f} %)")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as handle:
            json.dump({"seed": options.seed, "caught": caught, "tried": len(results), "mutants": results}, handle, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
