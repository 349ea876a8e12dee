"""Caches of KV blocks, as docs/kv-cache.md has them."""
import os
import tempfile
import unittest

import tencache


class KvCache(unittest.TestCase):
    def test_documents_in_rounds(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "documents.jsonl")
            made = tencache.kv_cache_generate(path, documents=6, tokens=2048, rounds=3, order="same")
            self.assertEqual((made["requests"], made["different_blocks"]), (18, 24))
            answer = tencache.kv_cache(path, policy=["lru", "belady"], gpu_cache=["50%", "100%"])
            self.assertEqual([(run["policy"], run["oracle"]) for run in answer["runs"]],
                             [("lru", False), ("lru", False), ("belady", True), ("belady", True)])
            self.assertEqual(answer["runs"][0]["hit_rate"], 0)
            self.assertAlmostEqual(answer["runs"][1]["hit_rate"], 2 / 3)
            self.assertGreater(answer["runs"][2]["hit_rate"], 0)
            with self.assertRaisesRegex(tencache.Error, "is less than one block"):
                tencache.kv_cache(path, gpu_cache=["1MiB"])


if __name__ == "__main__":
    unittest.main()
