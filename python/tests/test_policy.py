"""Policies written in Python: the same engine, the same results."""

import os
import threading
import traceback
import unittest

import tencache

SAMPLE = os.path.join(os.environ["TENCACHE_SOURCE_DIR"], "traces", "samples", "gpt2-small.trace.jsonl.zst")
TIGHT = {"gpu_memory": "1300MiB", "no_rescale": True}


class Lru(tencache.Policy):
    """The least recently used tensor leaves."""

    name = "python-lru"

    def layout(self, machine, program):
        return {"chunk_bytes": 0}

    def make_room(self, request, view):
        memory, freed = view.memory, 0
        chunk = memory.coldest(request.tier)
        while chunk is not None and freed < request.bytes:
            if memory.evictable(chunk, request.tier):
                freed += memory.footprint(chunk, request.tier)
                yield chunk
            chunk = memory.warmer(chunk, request.tier)


class Window(Lru):
    """Has an option."""

    name = "python-window"
    options = {"window": 3}
    events = ("op_issued",)

    def on(self, event, view, actions):
        assert event.kind == "op_issued" and self.options["window"] in (3, 7)


class Broken(tencache.Policy):
    name = "broken"

    def on(self, event, view, actions):
        if event.kind == "op_ready" and event.op == 20:
            raise RuntimeError("told to fail at op 20")


def figures(result):
    return {key: value for key, value in result.items() if key not in ("policy", "manifest", "timing")}


class PolicyTest(unittest.TestCase):
    maxDiff = None

    def test_lru_in_python_is_lru(self):
        shipped = tencache.replay(SAMPLE, "g10-a100", "lru", **TIGHT)
        ours = tencache.replay(SAMPLE, "g10-a100", Lru, **TIGHT)
        self.assertTrue(shipped["fits"])
        self.assertGreater(shipped["stall_seconds"]["h2d"], 0)
        self.assertEqual(figures(ours), figures(shipped))
        self.assertEqual(ours["policy"], "python-lru")

    def test_compare_ranks_it_beside_the_others(self):
        rows = tencache.compare(SAMPLE, "g10-a100", ["lru", Lru, "g10"], samples=4, **TIGHT)
        by_name = {row["policy"]: row for row in rows}
        self.assertEqual(by_name["lru"]["iteration_seconds"], by_name["python-lru"]["iteration_seconds"])
        self.assertEqual(by_name["lru"]["interval_seconds"], by_name["python-lru"]["interval_seconds"])

    def test_options_are_declared_and_stand_in_the_manifest(self):
        result = tencache.replay(SAMPLE, "g10-a100", Window, {"window": 7}, **TIGHT)
        self.assertEqual(result["manifest"]["options"]["window"], "7")
        self.assertEqual(tencache.replay(SAMPLE, "g10-a100", Window, **TIGHT)["manifest"]["options"]["window"], "3")
        with self.assertRaisesRegex(tencache.Error, "valid|window"):
            tencache.replay(SAMPLE, "g10-a100", Window, {"windows": 7}, **TIGHT)
        listed = {policy["name"]: policy for policy in tencache.policies()}
        self.assertEqual(listed["python-window"]["options"][0]["name"], "window")

    def test_an_exception_is_pythons_with_its_traceback(self):
        for run in (lambda: tencache.replay(SAMPLE, "g10-a100", Broken, **TIGHT),
                    lambda: tencache.compare(SAMPLE, "g10-a100", [Lru, Broken], samples=2, **TIGHT)):
            try:
                run()
                self.fail("did not raise")
            except RuntimeError as error:  # assertRaises would drop the traceback
                self.assertEqual(str(error), "told to fail at op 20")
                frames = traceback.extract_tb(error.__traceback__)
            self.assertEqual(frames[-1].name, "on")
            self.assertIn("op 20", frames[-1].line)
        # And the next run is none the worse for it.
        self.assertTrue(tencache.replay(SAMPLE, "g10-a100", Lru, **TIGHT)["fits"])

    def test_handles_end_with_the_call(self):
        kept = []

        class Keeper(tencache.Policy):
            def on(self, event, view, actions):
                if not kept:
                    kept.extend([event, view, actions, view.memory])

        tencache.replay(SAMPLE, "g10-a100", Keeper, **TIGHT)
        event, view, actions, memory = kept
        for use in (lambda: event.kind, lambda: view.now_ns, lambda: actions.fetch(0), lambda: memory.free(0)):
            with self.assertRaisesRegex(tencache.Error, "valid during the policy's call only"):
                use()

    def test_ids_that_do_not_exist_are_index_errors(self):
        for what in (lambda view, actions: actions.fetch(10**6), lambda view, actions: view.memory.free(9),
                     lambda view, actions: view.memory.evictable(10**8), lambda view, actions: view.uses(10**8),
                     lambda view, actions: actions.evict(0, destination=7)):

            class Wrong(tencache.Policy):
                def on(self, event, view, actions):
                    what(view, actions)

            with self.assertRaises(IndexError):
                tencache.replay(SAMPLE, "g10-a100", Wrong, **TIGHT)

    def test_layout_and_requirements_are_checked(self):
        class BadLayout(tencache.Policy):
            def layout(self, machine, program):
                return {"chunks": 1}

        class BadRequirements(tencache.Policy):
            def requirements(self):
                return {"governed": ["weights"]}

        with self.assertRaisesRegex(tencache.Error, "unknown key 'chunks'; valid are chunk_bytes"):
            tencache.replay(SAMPLE, "g10-a100", BadLayout, **TIGHT)
        with self.assertRaisesRegex(tencache.Error, "governed: unknown 'weights'"):
            tencache.replay(SAMPLE, "g10-a100", BadRequirements, **TIGHT)

    def test_a_class_that_cannot_be_made_is_not_registered(self):
        class BadOption(tencache.Policy):
            options = {"b": [1]}

        class NegativeOption(tencache.Policy):
            options = {"b": -1}

        class BadInit(tencache.Policy):
            def __init__(self):
                raise KeyError("told to fail")

        for bad, error, message in (
            (BadOption, tencache.Error, r"the default of 'b' must be .*, not \[1\]"),
            (NegativeOption, tencache.Error, "the default of 'b' must be .*, not -1"),
            (BadInit, KeyError, "told to fail"),
        ):
            for _ in range(2):
                with self.assertRaisesRegex(error, message):
                    tencache.replay(SAMPLE, "g10-a100", bad, **TIGHT)
            self.assertNotIn("bad", "".join(policy["name"] for policy in tencache.policies()))
        self.assertIn("lru", [row["policy"] for row in tencache.compare(SAMPLE, "g10-a100", ["lru"], **TIGHT)])

    def test_wrong_answers_name_class_and_method(self):
        def raises(message, **methods):
            bad = type("Bad", (tencache.Policy,), {name: lambda *_, value=value: value for name, value in methods.items()})
            with self.assertRaisesRegex(tencache.Error, message):
                tencache.replay(SAMPLE, "g10-a100", bad, **TIGHT)

        raises("Bad.make_room must return chunk numbers, not 'x'", make_room=["x"])
        raises("Bad.make_room must return chunk numbers, not 1000000000000", make_room=[10**12])
        raises("Bad.make_room must return chunk numbers, not None", make_room=None)
        raises("Bad.layout: chunk_bytes must be a number of bytes from 0, not -5", layout={"chunk_bytes": -5})
        raises("Bad.layout: promote must be a bool, not 'yes'", layout={"promote": "yes"})
        raises("Bad.layout: unknown key 'chunks'", layout={"chunks": 1})
        raises(r"Bad.layout must return a dict or None, not \[\]", layout=[])
        raises("Bad.requirements must return a dict or None, not 1", requirements=1)
        raises("Bad.notes must return sentences, not 1", notes=[1])

    def test_what_it_sees(self):
        seen = {}

        class Looker(tencache.Policy):
            events = {"profile_ready", "op_issued"}

            def requirements(self):
                return {"governed": ["parameter"]}

            def layout(self, machine, program):
                seen["ops"], seen["machine"] = len(program.ops), machine["name"]

            def on(self, event, view, actions):
                if event.kind == "op_issued" and view.iteration == 1 and event.op == 5:
                    seen["uses"] = [use[0] for use in event.uses]
                    seen["view"] = view.uses(5).tolist()
                    seen["next"] = [view.distance_to_next_use(t) for t in view.ops_of(0)[:0]]
                    seen["chunks"] = [list(view.memory.chunks(t)) for t in seen["uses"]]
                    seen["now"] = view.now_ns

        result = tencache.replay(SAMPLE, "g10-a100", Looker, **TIGHT)
        self.assertEqual(seen["machine"], "g10-a100")
        self.assertEqual(seen["uses"], seen["view"])
        self.assertGreater(seen["now"], 0)
        self.assertTrue(all(seen["chunks"]))
        self.assertGreaterEqual(seen["ops"], tencache.info(SAMPLE)["ops"]["count"])
        self.assertTrue(result["fits"])

    def test_names(self):
        class TwoWords(tencache.Policy):
            pass

        class G10(tencache.Policy):
            pass

        self.assertEqual(tencache.replay(SAMPLE, "g10-a100", TwoWords, **TIGHT)["policy"], "two-words")
        with self.assertRaisesRegex(tencache.Error, "a policy 'g10', which there is already"):
            tencache.replay(SAMPLE, "g10-a100", G10, **TIGHT)
        with self.assertRaisesRegex(tencache.Error, "a name or a subclass"):
            tencache.replay(SAMPLE, "g10-a100", 7, **TIGHT)

        first = type("Same", (tencache.Policy,), {})
        second = type("Same", (tencache.Policy,), {})
        with self.assertRaisesRegex(tencache.Error, "two policies are named 'same'"):
            tencache.compare(SAMPLE, "g10-a100", [first, second], **TIGHT)
        for one in (first, second):  # as a notebook's cell run twice
            self.assertEqual(tencache.replay(SAMPLE, "g10-a100", one, **TIGHT)["policy"], "same")

    def test_threads_share_pythons_lock(self):
        expected = figures(tencache.replay(SAMPLE, "g10-a100", "lru", **TIGHT))
        results = []
        work = [threading.Thread(target=lambda policy=policy: results.append(
            tencache.replay(SAMPLE, "g10-a100", policy, **TIGHT))) for policy in (Lru, "lru", Lru, "lru")]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
        for result in results:
            self.assertEqual(figures(result), expected)
        self.assertEqual(len(results), 4)


if __name__ == "__main__":
    unittest.main()
