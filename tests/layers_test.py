"""Includes go where the map in CONTRIBUTING.md allows: each folder's "May use" names what it may include.

    May use: `a`, `b`.              these, and files of its own
    May use: the standard library.  nothing else of ours
    May use: all above.             all folders above it in the map; "all above, not `a`": but that one
    …; `sub/` also `c`.             a folder in it may use the same, the folder around it, and these
"""
import os
import re
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def allowed():
    """folder -> those that it may include, in the order of the map."""
    with open(os.path.join(ROOT, "CONTRIBUTING.md"), encoding="utf-8") as file:
        lines = re.search(r"^## Map\n(.*?)^## ", file.read(), re.MULTILINE | re.DOTALL).group(1)
    found = {}
    for entry in re.split(r"^- ", lines, flags=re.MULTILINE)[1:]:
        entry = " ".join(entry.split("\n\n")[0].split())
        uses = re.search(r"May use: (.*?)\.$", entry)
        if not uses:
            continue
        folder = re.match(r"`([a-z/]+)/`", entry).group(1)
        own, *others = uses.group(1).split("; ")
        if own.startswith("all above"):
            found[folder] = set(found) - set(re.findall(r"`([a-z/]+)`", own))
        elif own == "the standard library":
            found[folder] = set()
        else:
            found[folder] = set(re.findall(r"`([a-z/]+)`", own))
        for other in others:
            sub, more = re.fullmatch(r"`([a-z]+)/` also (.*)", other).groups()
            found[f"{folder}/{sub}"] = found[folder] | {folder} | set(re.findall(r"`([a-z/]+)`", more))
    return found


def layer_of(path, layers):
    folder = os.path.dirname(path)
    while folder and folder not in layers:
        folder = os.path.dirname(folder)
    return folder or None


def includes_of(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return re.findall(r'^#include "([^"]+)"', file.read(), re.MULTILINE)


def all_includes_of(path):
    """Of the file, of what it includes, and so on: {file: who includes it}."""
    found, left = {}, [path]
    while left:
        at = left.pop()
        for included in includes_of(at):
            if included not in found and os.path.isfile(os.path.join(ROOT, included)):
                found[included] = at
                left.append(included)
    return found


def sources(layers):
    for top in {layer.split("/")[0] for layer in layers}:
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            for name in names:
                if name.endswith((".h", ".cpp", ".cu", ".cuh")):
                    yield os.path.relpath(os.path.join(folder, name), ROOT)


class Layers(unittest.TestCase):
    def test_the_map_names_all(self):
        layers = allowed()
        self.assertEqual(set().union(*layers.values()) - set(layers), set(), "folders that are used and not in the map")
        with_sources = {entry.name for entry in os.scandir(ROOT) if entry.is_dir() and
                        any(name.endswith(".h") for _, _, names in os.walk(entry.path) for name in names)}
        product = {name for name in with_sources if not name.startswith((".", "build"))} - {"tests", "bench", "docs"}
        self.assertEqual(product, {layer.split("/")[0] for layer in layers})

    def test_includes_are_allowed(self):
        layers, wrong = allowed(), []
        for path in sources(layers):
            own = layer_of(path, layers)
            for included in includes_of(path):
                layer = layer_of(included, layers)
                if layer not in layers[own] | {own, None}:
                    wrong.append(f"{path} includes {included}")
        self.assertEqual(wrong, [], "includes that the map in CONTRIBUTING.md does not allow")

    def test_the_model_gpu_and_the_simulator_share_nothing(self):
        """Each judges the other's links, queues and times. Policies plan with sim/rehearse.h, on both."""
        rules = os.path.join("tests", "live", "rules")
        model = [os.path.join(rules, name) for name in sorted(os.listdir(os.path.join(ROOT, rules)))]
        model += [os.path.join("tests", "live", name) for name in os.listdir(os.path.join(ROOT, "tests", "live"))
                  if name.startswith(("trace_player.", "model_gpu."))]
        self.assertGreater(len(model), 30)
        # Of what both could share: units, checks, errors, random numbers, and the executor, which is what is judged.
        common = ("core/units.h", "core/check.h", "core/error.h", "tests/property/random_case.h", "executor/",
                  rules + "/")
        wrong = []
        for path in model:
            if path.startswith(rules):
                wrong += [f"{path} includes {included}" for included in includes_of(path)
                          if not included.startswith(common)]
            wrong += [f"{by} includes {included}" for included, by in all_includes_of(path).items()
                      if included.startswith("sim/") and included != "sim/rehearse.h"]
        simulator = [os.path.join("sim", name) for name in os.listdir(os.path.join(ROOT, "sim"))
                     if name.endswith((".h", ".cpp"))]
        wrong += [f"{by} includes {included}" for path in simulator for included, by in all_includes_of(path).items()
                  if included.startswith("tests/")]
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    unittest.main()
