"""Caches of embedding rows, on a file that Python writes."""

import json
import os
import pathlib
import struct
import tempfile
import unittest

import tencache


def write_ids(path, tables, batches):
    """As docs/rows.md does it, without NumPy."""
    with open(path, "wb") as file:
        file.write(json.dumps({"row_ids": 1, "batches": len(batches), "tables": tables}).encode() + b"\n")
        for batch in batches:
            for ids in batch:
                file.write(struct.pack(f"<{1 + len(ids)}I", len(ids), *ids))


class Rows(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.folder = pathlib.Path(self._folder.name)

    def test_a_file_of_python(self):
        path = self.folder / "mine.ids"
        write_ids(path, [{"name": "a", "rows": 10, "row_bytes": 8}, {"name": "b", "rows": 5, "row_bytes": 8}],
                  [[[1, 1, 2], [0]], [[2], [4]], [[1], [0]]])
        answer = tencache.rows(path, policy=["belady", "scratchpipe"], slots=["4"])
        self.assertEqual([run["policy"] for run in answer["runs"]], ["belady", "scratchpipe"])
        self.assertEqual((answer["lookups"], answer["different_rows"]), (8, 7))
        self.assertEqual((answer["hits"], answer["misses"]), (3, 4))
        with self.assertRaisesRegex(tencache.Error, "need 4 different rows at once, more than 3 slots"):
            tencache.rows(path, policy=["scratchpipe"], slots=["3"])

    def test_a_generated_file(self):
        path = self.folder / "zipf.ids"
        made = tencache.rows_generate(path, rows="100,20", batches=3, samples=8, seed=4)
        self.assertEqual(made["rows"], 120)
        self.assertEqual(tencache.rows(path, policy=["uvm-lru"])["batches"], 3)
        self.assertGreater(os.path.getsize(path), 3 * 2 * 9 * 4)


if __name__ == "__main__":
    unittest.main()
