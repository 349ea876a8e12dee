"""`tencache report`: the page says what the files say, holds whatever they hold, and loads nothing."""

import json
import os
import re
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import tencache

SOURCE = os.environ["TENCACHE_SOURCE_DIR"]
PROGRAM = os.environ["TENCACHE_PROGRAM"]
SAMPLE = os.path.join(SOURCE, "traces", "samples", "gpt2-small.trace.jsonl.zst")
WORDS = ["--machine", "g10-a100", "--gpu-memory", "1300MiB", "--no-rescale"]
HTML = "{http://www.w3.org/1999/xhtml}"

def run(*words):
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True)


def words_of(element):
    return "".join(element.itertext())


def rows_of(page, table):
    """The cells of each row of the tables of that name."""
    return [list(row) for one in page.iter(HTML + "table") if one.get("data-table") == table
            for row in one.find(HTML + "tbody")]


def figures_of(row):
    """The unrounded numbers of a row, by column; what is no number is left out."""
    return {column: float(cell.get("data-value")) for column, cell in enumerate(row) if cell.get("data-value")}


class ReportTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        answer = run("compare", SAMPLE, *WORDS, "--policies", "lru,g10,10cache,on-demand", "--samples", "3", "--json")
        cls.rows = json.loads(answer.stdout)
        cls.results = cls.file("r.json", answer.stdout)
        cls.timeline = os.path.join(cls.folder.name, "t.json")
        cls.replayed = json.loads(run("replay", SAMPLE, *WORDS, "--policy", "g10", "--timeline", cls.timeline,
                                      "--json").stdout)

    @classmethod
    def file(cls, name, text):
        path = os.path.join(cls.folder.name, name)
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        return path

    def page(self, *files, name="page.html", more=()):
        path = os.path.join(self.folder.name, name)
        answer = run("report", *files, "-o", path, *more)
        self.assertEqual((answer.returncode, answer.stdout), (0, ""), answer.stderr)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        return text, ElementTree.fromstring(text)

    def check_alone(self, text):
        """Nothing is loaded, nothing runs."""
        self.assertNotRegex(text, r"<script|<link|<iframe|<object|<img|@import|url\(|\son[a-z]+=|javascript:")
        self.assertNotRegex(text, r"\s(src|href|xlink:href)\s*=")
        addresses = set(re.findall(r"https?://[^\"'<> ]+", text))
        self.assertLessEqual(addresses, {"http://www.w3.org/1999/xhtml", "http://www.w3.org/2000/svg"})

    def test_the_table_has_the_rows_of_compare(self):
        text, page = self.page(self.results)
        self.check_alone(text)
        rows = rows_of(page, "results")
        self.assertEqual([words_of(row[0]) for row in rows], [row["policy"] for row in self.rows])
        for shown, row in zip(rows, self.rows):
            self.assertEqual(figures_of(shown)[1], row["iteration_seconds"])
            cells = [words_of(cell) for cell in shown]
            self.assertIn(f"{row['slowdown']:.3f}", cells)
            if row["policy"] not in ("bound", "ideal"):
                self.assertIn(f"{100 * row['gpu_hit_rate']['accesses']:.1f} %", cells)
        table = run("compare", SAMPLE, *WORDS, "--policies", "lru,g10,10cache,on-demand", "--samples", "3").stdout
        for row in rows:
            self.assertIn(words_of(row[1]), table)  # the iteration, in the same digits
            if words_of(row[0]) not in ("bound", "ideal"):
                self.assertIn(words_of(row[2]).removeprefix("= "), table)  # its interval

    def test_bars_add_up_to_the_iteration(self):
        _, page = self.page(self.results)
        bars = {group.get("data-bar"): group for group in page.iter(HTML + "g") if group.get("data-bar")}
        self.assertEqual(set(bars), {row["policy"] for row in self.rows} - {"bound"})
        for row in self.rows[1:]:
            parts = {}
            for rectangle in bars[row["policy"]].iter(HTML + "rect"):
                parts[rectangle.get("class")] = float(rectangle.get("data-value"))
            self.assertAlmostEqual(sum(parts.values()), row["iteration_seconds"], places=9)
            self.assertEqual(parts["busy"], row["compute_seconds"])
            for index, cause in enumerate(row["stall_seconds"]):
                self.assertEqual(parts.get(f"c{index}", 0), row["stall_seconds"][cause])
        bound = [text for text in page.iter(HTML + "text") if words_of(text).startswith("bound ")]
        self.assertEqual(float(bound[0].get("data-value")), self.rows[0]["iteration_seconds"])

    def test_timeline_and_memory_are_those_of_the_file(self):
        text, page = self.page(self.timeline)
        self.check_alone(text)
        with open(self.timeline, encoding="utf-8") as file:
            spans = sum(event["ph"] == "X" for event in json.load(file)["traceEvents"])
        titles = [title for title in page.iter(HTML + "text") if title.get("data-spans")]
        self.assertEqual([int(title.get("data-spans")) for title in titles], [spans])
        self.assertAlmostEqual(int(titles[0].get("data-iteration-ns")) / 1e9, self.replayed["iteration_seconds"],
                               delta=0.05 * self.replayed["iteration_seconds"])
        peaks = {one.get("data-tier"): one for one in page.iter(HTML + "text") if one.get("data-tier")}
        for tier, bytes_held in self.replayed["peak_bytes"].items():
            if bytes_held:
                self.assertEqual(int(peaks[tier].get("data-peak")), bytes_held)
        self.assertEqual(int(peaks["gpu"].get("data-capacity")), 1300 << 20)
        self.assertTrue(any(path.get("class") == "limit" for path in page.iter(HTML + "path")))
        for path in page.iter(HTML + "path"):  # nothing outside its picture
            for x in re.findall(r"M(-?[0-9.]+)", path.get("d", "")):
                self.assertTrue(0 <= float(x) <= 1060, path.get("d")[:40])

    def test_predicted_and_measured_stand_above_one_another(self):
        with open(self.timeline, encoding="utf-8") as file:
            document = json.load(file)
        events = document["traceEvents"]
        measured = json.loads(json.dumps(events).replace("predicted: g10", "measured: g10"))
        processes = {event["pid"] for event in events}
        for event in measured:
            event["pid"] += max(processes)
            if "id" in event:
                event["id"] = str(event["id"]) + "0"
        document["traceEvents"] = measured + events
        both = self.file("both.json", json.dumps(document))
        _, page = self.page(both)
        titles = [words_of(title) for title in page.iter(HTML + "text") if title.get("data-spans")]
        self.assertEqual([title.split(":")[0] for title in titles], ["predicted", "measured"])

    def test_what_does_not_fit_says_why(self):
        rows = [dict(row) for row in self.rows]
        misfit = json.loads(run("replay", SAMPLE, "--machine", "g10-a100", "--gpu-memory", "1MiB", "--no-rescale",
                                "--policy", "lru", "--json").stdout)
        _, page = self.page(self.file("m.json", json.dumps(rows + [misfit])))
        self.assertIn("does not fit: " + misfit["reason"], words_of(page))

    def test_hostile_names_stay_text(self):
        hostile = "</style></title><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;\x01\ufffe\u202e"
        rows = json.loads(json.dumps(self.rows))
        for row in rows[1:]:
            row["policy"], row["machine"], row["trace"] = hostile, hostile + "m", hostile + "t"
            row["manifest"]["run"]["recorded_by"] = hostile
            row["notes"] = [hostile]
        rows[-1]["fits"], rows[-1]["reason"] = False, hostile
        with open(self.timeline, encoding="utf-8") as file:
            timeline = file.read()
        name = json.dumps(hostile)[1:-1]
        changed = re.sub(r'"name":"aten::[^"]*"', lambda _: f'"name":"{name}"', timeline)
        self.assertNotEqual(changed, timeline)
        text, page = self.page(self.file("h.json", json.dumps(rows)), self.file("ht.json", changed),
                               more=["--title", hostile.replace("\x01", "")])
        self.assertIsNone(re.search(r"<(script|img)", text))
        self.assertIn("<script>alert(1)</script>", words_of(page))

        class Tags(HTMLParser):
            seen = set()

            def handle_starttag(self, tag, attributes):
                self.seen.add(tag)
                assert not any(name.startswith("on") for name, _ in attributes), attributes

        parser = Tags()
        parser.feed(text)
        self.assertFalse(Tags.seen & {"script", "img"})

    def test_the_same_files_give_the_same_bytes(self):
        first, _ = self.page(self.results, self.timeline, name="a.html")
        second, _ = self.page(self.results, self.timeline, name="b.html")
        self.assertEqual(first, second)

    def test_traces_sweeps_and_sensitivity(self):
        sweep = self.file("s.json", run("sweep", "small", "--json").stdout)
        sensitivity = self.file("v.json", run("sensitivity", SAMPLE, *WORDS, "--over", "pcie=4GB/s..32GB/s",
                                              "--policies", "lru,g10", "--json").stdout)
        text, page = self.page(sweep, sensitivity, SAMPLE)
        self.check_alone(text)
        with open(sweep, encoding="utf-8") as file:
            rows = json.load(file)["rows"]
        on_front = {(row["iteration_seconds"]) for row in rows if row["on_front"]}
        shown = {min(figures_of(row).items())[1] for row in rows_of(page, "front")}  # the first figure is the time
        self.assertTrue(shown)
        self.assertEqual(shown, on_front)
        info = json.loads(run("info", SAMPLE, "--json").stdout)
        bytes_shown = [int(row.get("data-bytes")) for row in page.iter(HTML + "tr") if row.get("data-bytes")]
        self.assertEqual(bytes_shown, [one["bytes"] for one in info["tensors"]["by_role"].values() if one["count"]])
        self.assertIn("Time against pcie", words_of(page))

    def test_a_hundred_thousand_spans_stay_small(self):
        trace = tencache.Trace(model="many ops", batch=1)
        tensors = [trace.add_tensor(f"layer{i}.weight", 1 << 20, "parameter", True) for i in range(300)]
        for i in range(50000):
            trace.add_op(f"op{i} of a name that is rather long", reads=[tensors[(i * 7) % 300]], writes=[],
                         duration_ns=1000 + i % 977, phase="forward" if i < 25000 else "backward", gap_before_ns=100)
        path = os.path.join(self.folder.name, "many.json")
        _, (timeline,) = tencache.simulate(trace, "g10-a100", "lru", gpu_memory="100MiB", no_rescale=True,
                                           timeline=path, iterations=2)
        self.assertGreater(len(timeline.spans), 100000)
        text, _ = self.page(path)
        self.assertLess(len(text.encode()), 2 << 20)

    def test_bad_files_are_one_error_and_no_page(self):
        with open(self.timeline, encoding="utf-8") as file:
            half = file.read()[:20000]
        broken = {
            "empty.json": "", "half.json": json.dumps(self.rows)[:500], "half-timeline.json": half,
            "foreign.json": '{"hello": [1, 2, 3]}', "numbers.json": "[1, 2, 3]", "none.json": "[]", "text.txt": "hello",
        }
        page = os.path.join(self.folder.name, "none.html")
        for name, text in broken.items():
            answer = run("report", self.file(name, text), "-o", page)
            self.assertEqual((answer.returncode, answer.stdout), (2, ""), name)
            self.assertRegex(answer.stderr, r"\Atencache: [^\n]+\n\Z", name)
            self.assertFalse(os.path.exists(page), name)
        answer = run("report", "no-such.json", "-o", page)
        self.assertEqual(answer.returncode, 2)
        self.assertIn("no-such.json", answer.stderr)
        self.assertEqual(run("report", self.results, "-o", self.results).returncode, 2)
        self.assertEqual(run("report", self.results).returncode, 2)


if __name__ == "__main__":
    unittest.main()
