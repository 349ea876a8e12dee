"""Timelines for other programs: Chrome trace JSON as Perfetto reads it, and CSV. Both hold the same run."""

import collections
import csv
import json
import os
import subprocess
import tempfile
import unittest

import numpy as np

import tencache

SOURCE = os.environ["TENCACHE_SOURCE_DIR"]
PROGRAM = os.environ["TENCACHE_PROGRAM"]
SAMPLE = os.path.join(SOURCE, "traces", "samples", "gpt2-small.trace.jsonl.zst")
TIGHT = {"gpu_memory": "1000MiB", "cpu_memory": "1GiB", "no_rescale": True}


class ExportsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.files = {kind: os.path.join(cls.folder.name, "t." + kind) for kind in ("json", "csv")}
        for path in cls.files.values():
            cls.result, (cls.timeline,) = tencache.simulate(SAMPLE, "g10-a100", "g10", timeline=path, **TIGHT)
        cls.spans = cls.timeline.spans
        cls.program = cls.timeline.program

    def kind(self, name):
        return self.spans[self.spans["kind"] == tencache.SPAN_KINDS.index(name)]

    def test_chrome_events_are_what_perfetto_takes(self):
        with open(self.files["json"], encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        threads = collections.defaultdict(list)
        for event in events:
            if event["ph"] == "X":
                threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        self.assertEqual(sum(map(len, threads.values())), len(self.spans))
        for slices in threads.values():  # Perfetto drops a slice that overlaps another of its thread in part
            slices.sort(key=lambda one: (one[0], -one[1]))
            open_ends = []
            for begin, end in slices:
                while open_ends and open_ends[-1] <= begin + 1e-6:
                    open_ends.pop()
                self.assertTrue(not open_ends or end <= open_ends[-1] + 1e-6, (begin, end))
                open_ends.append(end)
        flows = collections.defaultdict(dict)
        for event in events:
            if event["ph"] in "sf":
                self.assertNotIn(event["ph"], flows[event["id"]])
                flows[event["id"]][event["ph"]] = event
        self.assertTrue(flows)
        for flow in flows.values():
            self.assertEqual(set(flow), {"s", "f"})
            self.assertLessEqual(flow["s"]["ts"], flow["f"]["ts"] + 1e-6)
            self.assertEqual(flow["f"]["bp"], "e")
            for one in flow.values():  # each end lies in a slice, or it is dropped
                around = threads[one["pid"], one["tid"]]
                self.assertTrue(any(begin <= one["ts"] + 1e-6 and one["ts"] <= end + 1e-6 for begin, end in around))
        counters = collections.defaultdict(list)
        for event in events:
            if event["ph"] == "C":
                counters[event["name"]].append(event)
        for of_tier in counters.values():
            times = [event["ts"] for event in of_tier]
            self.assertEqual(times, sorted(times))

    def test_csv_holds_a_line_a_span(self):
        with open(self.files["csv"], encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(len(rows), len(self.spans))
        np.testing.assert_array_equal([int(row["start_ns"]) for row in rows], self.spans["start_ns"])
        np.testing.assert_array_equal([int(row["end_ns"]) for row in rows], self.spans["end_ns"])
        names, tensors = self.program.op_names, self.program.tensor_names
        for row, span in zip(rows, self.spans):
            self.assertEqual(row["kind"], tencache.SPAN_KINDS[span["kind"]])
            self.assertEqual(row["op"], names[span["op"]] if span["op"] != tencache.NONE else "")
            self.assertEqual(row["tensor"], tensors[span["tensor"]] if span["tensor"] != tencache.NONE else "")
            self.assertEqual(row["bytes"], str(span["bytes"]) if row["kind"] == "transfer" else "")
            self.assertEqual(row["lane"], self.timeline.lanes[span["lane"]])
            self.assertEqual(row["cause"], tencache.STALL_CAUSES[span["cause"]] if row["kind"] == "stall" else "")

    def test_the_same_run_gives_the_same_bytes(self):
        for kind, path in self.files.items():
            again = os.path.join(self.folder.name, "again." + kind)
            tencache.simulate(SAMPLE, "g10-a100", "g10", timeline=again, **TIGHT)
            with open(path, "rb") as one, open(again, "rb") as other:
                self.assertEqual(one.read(), other.read(), kind)

    def test_what_cannot_be_written_is_an_error(self):
        answer = subprocess.run([PROGRAM, "replay", SAMPLE, "-m", "g10-a100", "-p", "lru", "--no-rescale", "--timeline",
                                 os.path.join(self.folder.name, "no", "t.csv")], capture_output=True, text=True)
        self.assertEqual(answer.returncode, 2)
        self.assertIn("--timeline", answer.stderr)


if __name__ == "__main__":
    unittest.main()
