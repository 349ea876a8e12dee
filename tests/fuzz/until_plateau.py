#!/usr/bin/env python3
"""Fuzzes each reader, and the engine with its policies, until hardly any new code is reached.

    tests/fuzz/until_plateau.py [READER…] [--build build/fuzz] [--jobs N] [--least 60] [--most 1800] [--json F]

Needs the fuzzers (cmake --preset fuzz && cmake --build --preset fuzz). Each runs, from what earlier runs found
(BUILD/found/READER) and the corpus, until fewer than one in a hundred of the edges that it covers (libFuzzer's `cov:`)
are new since half of its time, and at least --least seconds; or for --most seconds, which is no plateau and said so.
Prints a line of a Markdown table for each. A finding is left as BUILD/found/READER/crash-… (timeout-…, oom-…) and
makes the exit code 1. A run that begins with what earlier ones found is sooner at such a plateau.
"""
import argparse
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CORPUS = os.path.join(ROOT, "tests", "fuzz", "corpus")
STATUS = re.compile(r"^#(\d+)\s.*\bcov: (\d+)")


def fuzz(reader, options):
    found = os.path.join(options.build, "found", reader)
    os.makedirs(found, exist_ok=True)
    command = [os.path.join(options.build, "tests", "fuzz_" + reader), found]
    if reader != "engine":
        command.append(os.path.join(CORPUS, reader))
    command += ["-timeout=10", "-rss_limit_mb=2048", f"-artifact_prefix={found}/", "-print_final_stats=1"]
    result = {"reader": reader, "executed": 0, "edges": 0, "new_in_second_half": 0, "plateau": False, "finding": ""}
    with open(os.path.join(options.build, "found", reader + ".log"), "w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                   errors="replace")
        begin = time.monotonic()
        grown = [(begin, 0)]  # when, to how many edges

        def new_since(moment):
            return result["edges"] - next(edges for when, edges in reversed(grown) if when <= moment)

        def watch():  # libFuzzer is silent for long where little happens
            while process.poll() is None:
                now = time.monotonic()
                result["new_in_second_half"] = new_since((begin + now) / 2)
                result["plateau"] = (now - begin >= options.least and result["edges"] > 0
                                     and result["new_in_second_half"] < result["edges"] / 100)
                if result["plateau"] or now - begin >= options.most:
                    process.send_signal(signal.SIGINT)
                    return
                time.sleep(1)

        watcher = threading.Thread(target=watch)
        watcher.start()
        for line in process.stderr:
            log.write(line)
            if match := STATUS.match(line):
                result["executed"] = int(match.group(1))
                if int(match.group(2)) > result["edges"]:
                    grown.append((time.monotonic(), int(match.group(2))))
                    result["edges"] = grown[-1][1]
            elif match := re.match(r"stat::number_of_executed_units:\s*(\d+)", line):
                result["executed"] = int(match.group(1))
            elif match := re.search(r"Test unit written to (\S+)", line):
                result["finding"] = match.group(1)
        process.wait()
        watcher.join()
    result["seconds"] = round(time.monotonic() - begin, 1)
    if not result["finding"] and process.returncode not in (0, 72, -signal.SIGINT):  # 72: libFuzzer's, interrupted
        result["finding"] = f"exit code {process.returncode}, see {reader}.log"
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readers", nargs="*", metavar="READER", help="default: all, and `engine`")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "fuzz"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="fuzzers at once")
    parser.add_argument("--least", type=float, default=60, help="seconds, at least (60)")
    parser.add_argument("--most", type=float, default=1800, help="seconds, at most (1800)")
    parser.add_argument("--json", help="also write the results to this file")
    options = parser.parse_args()
    known = [*sorted(os.listdir(CORPUS)), "engine"]
    for reader in options.readers:
        if reader not in known:
            parser.error(f"no reader '{reader}'; there are {', '.join(known)}")
    readers = options.readers or known
    for reader in readers:
        fuzzer = os.path.join(options.build, "tests", "fuzz_" + reader)
        if not os.access(fuzzer, os.X_OK):
            parser.error(f"{fuzzer} is not there; cmake --preset fuzz && cmake --build --preset fuzz")

    results = []
    print("| reader | inputs | edges | of them new in the second half | seconds | |\n|---|---|---|---|---|---|", flush=True)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(fuzz, reader, options) for reader in readers]):
            r = done.result()
            results.append(r)
            verdict = r["finding"] or ("plateau" if r["plateau"] else "still growing")
            print(f"| `{r['reader']}` | {r['executed']:,} | {r['edges']:,} | {r['new_in_second_half']} | "
                  f"{r['seconds']:.0f} | {verdict} |", flush=True)
    minutes = sum(r["seconds"] for r in results) / 60
    findings = sum(bool(r["finding"]) for r in results)
    print(f"{sum(r['executed'] for r in results):,} inputs in {minutes:.0f} minutes of a fuzzer; {findings} findings")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(sorted(results, key=lambda r: r["reader"]), file, indent=1)
            file.write("\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
