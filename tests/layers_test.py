"""Includes go down the list of layers and never up. docs/architecture.md describes the layers.

EXCEPTIONS are includes that still go up. The list only shrinks: an exception that is no longer needed fails, too.
"""
import collections
import os
import re
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAYERS = ["core", "core/engine", "policies", "traces", "configs", "sim", "executor", "executor/torch", "studies",
          "answers", "cli", "gui", "python"]
EXCEPTIONS = {
    ("cli/main.cpp", "gui/report/report_command.h"),
}


def layer_of(path):
    folder = os.path.dirname(path)
    while folder:
        if folder in LAYERS:
            return folder
        folder = os.path.dirname(folder)
    return None


def sources():
    for top in {layer.split("/")[0] for layer in LAYERS}:
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            for name in names:
                if name.endswith((".h", ".cpp", ".cu", ".cuh")):
                    yield os.path.relpath(os.path.join(folder, name), ROOT)


def upward_includes():
    """(from, to) -> how many, of files."""
    found = collections.Counter()
    for path in sources():
        own = LAYERS.index(layer_of(path))
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            for included in re.findall(r'^#include "([^"]+)"', file.read(), re.MULTILINE):
                layer = layer_of(included)
                if layer is not None and LAYERS.index(layer) > own:
                    found[path, included] += 1
    return found


class Layers(unittest.TestCase):
    def test_includes_go_down(self):
        found = set(upward_includes())
        self.assertEqual(found - EXCEPTIONS, set(), "includes that go up the list of layers")
        self.assertEqual(EXCEPTIONS - found, set(), "exceptions that are no longer needed; take them off the list")


if __name__ == "__main__":
    unittest.main()
