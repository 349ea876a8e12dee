"""Includes go down the list of layers and never up. docs/architecture.md describes the layers.
"""
import collections
import os
import re
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAYERS = ["core", "core/engine", "policies", "traces", "configs", "sim", "executor", "executor/torch", "studies",
          "answers", "cli", "gui", "python"]


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
        self.assertEqual(set(upward_includes()), set(), "includes that go up the list of layers")


if __name__ == "__main__":
    unittest.main()
