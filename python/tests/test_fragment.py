"""Fragmentation, and memory snapshots of PyTorch."""

import json
import os
import pathlib
import pickle
import tempfile
import unittest

import tencache

SAMPLE = tencache.samples()["gpt-small"]


def snapshot(**changes):
    """Two segments of GPU 0, and what happened there since 64 and 96 were allocated."""
    def entry(action, addr, size, stream=0):
        return {"action": action, "addr": addr, "size": size, "stream": stream, "frames": []}

    made = {
        "segments": [
            {"device": 0, "address": 64, "total_size": 4096, "stream": 0, "segment_type": "small",
             "blocks": [{"size": 512, "requested_size": 500, "state": "active_allocated"},
                        {"size": 1024, "requested_size": 1000, "state": "active_allocated"},
                        {"size": 2560, "state": "inactive"}]},
            {"device": 1, "address": 9000, "total_size": 512, "stream": 0,
             "blocks": [{"size": 512, "state": "active_allocated"}]}],
        "device_traces": [
            [entry("segment_alloc", 8192, 2048, 7),
             entry("alloc", 8192, 700, 7),
             entry("free_requested", 4000, 300),
             entry("free_completed", 4000, 300),
             entry("alloc", 576, 1000),
             entry("free_requested", 8192, 700, 7),
             entry("free_completed", 8192, 700, 7),
             entry("segment_free", 8192, 2048, 7)],
            []],
    }
    made.update(changes)
    return made


class Fragment(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.folder = pathlib.Path(self._folder.name)

    def write(self, content):
        path = self.folder / "snapshot.pickle"
        with open(path, "wb") as file:
            file.write(content if isinstance(content, bytes) else pickle.dumps(content))
        return path

    def test_a_trace_in_memory_and_its_file_are_one(self):
        of_file, of_trace = tencache.fragment(SAMPLE), tencache.fragment(tencache.load(SAMPLE))
        self.assertEqual(of_file, of_trace)
        self.assertEqual([row["allocator"] for row in of_file["allocators"]],
                         ["default", "expandable", "max_split_size_mb:512", "gmlake", "stweaver", "planned", "exact"])
        for row in of_file["allocators"]:
            self.assertGreaterEqual(row["reserved_bytes"], row["requested_bytes"])
        changed = tencache.generate(model="gpt2", batch=1, seq=16, gpu="a10g")
        self.assertEqual(tencache.fragment(changed, allocator=["exact"])["allocations"], "trace in memory")

    def test_a_report_has_the_picture_of_addresses(self):
        answer = self.folder / "fragment.json"
        answer.write_text(json.dumps(tencache.fragment(SAMPLE)))
        tencache.report([answer], self.folder / "page.html")
        page = (self.folder / "page.html").read_text()
        self.assertIn("Addresses over time, under default", page)
        self.assertRegex(page, r'<path class="busy" d="M[0-9. hvz-]+M')
        self.assertEqual(page.count('<path class="mark"'), 3)

    def test_a_message_is_explained(self):
        answer = tencache.why("CUDA out of memory. Tried to allocate 1.00 GiB (GPU 0; 8.00 GiB total capacity; 5.00 "
                              "GiB already allocated; 0 bytes free; 7.50 GiB reserved in total by PyTorch)")
        self.assertEqual(answer["kind"], "fragmentation")
        self.assertEqual(answer["failures"][0]["unallocated_bytes"], 5 << 29)
        with self.assertRaisesRegex(tencache.Error, "name a file with allocations"):
            tencache.fragment()

    def test_a_snapshot_becomes_events(self):
        output = self.folder / "steps.alloc.jsonl"
        counts = tencache.import_snapshot(self.write(snapshot()), output)
        lines = [json.loads(line) for line in output.read_text().splitlines()]
        self.assertEqual(lines, [
            {"recorded": {"reserved_bytes": 6144}},
            {"alloc": 1, "bytes": 300, "stream": 1},  # freed in the history, so it was there
            {"alloc": 3, "bytes": 500, "stream": 1},  # still there, and not allocated in the history
            {"alloc": 0, "bytes": 700, "stream": 0},
            {"free": 1},
            {"alloc": 2, "bytes": 1000, "stream": 1},
            {"free": 0}])
        self.assertEqual(counts, {"blocks": 4, "there_before": 2, "events": 4})
        answer = tencache.fragment(str(output), allocator=["exact"])
        self.assertEqual(answer["allocators"][0]["requested_bytes"], 500 + 700 + 1000)
        self.assertEqual(answer["recorded_reserved_bytes"], 6144)

    def test_what_is_no_snapshot_is_refused_and_nothing_is_written(self):
        class Other:
            def __reduce__(self):
                return os.system, ("true",)

        output = self.folder / "steps.alloc.jsonl"
        cases = [
            (b"hello", "is no memory snapshot"),
            (pickle.dumps(snapshot())[:-50], "is no memory snapshot"),
            (pickle.dumps([1, 2]), "no 'segments' and 'device_traces'"),
            (pickle.dumps(Other()), "posix.system, which no snapshot has"),
            (snapshot(device_traces=[[], []]), "snapshot.pickle: has no history of allocations"),
            (snapshot(device_traces=[[{"event": "alloc"}]]), "of a form that is not known here"),
            (snapshot(device_traces=[[{"action": "stitch", "addr": 1}]]), "not known here .*action 'stitch'"),
            (snapshot(segments=[{"device": 0}]), "of a form that is not known here"),
        ]
        for content, message in cases:
            with self.assertRaisesRegex(tencache.Error, message):
                tencache.import_snapshot(self.write(content), output)
            self.assertEqual(os.listdir(self.folder), ["snapshot.pickle"])
        with self.assertRaisesRegex(tencache.Error, "no history of GPU 1; it has that of 0"):
            tencache.import_snapshot(self.write(snapshot()), output, gpu=1)
        with self.assertRaisesRegex(tencache.Error, "No such file"):
            tencache.import_snapshot(self.folder / "none", output)
        with self.assertRaisesRegex(tencache.Error, "cannot be written"):
            tencache.import_snapshot(self.write(snapshot()), self.folder / "none" / "x.alloc.jsonl")


if __name__ == "__main__":
    unittest.main()
