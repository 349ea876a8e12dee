"""Arrays lie in memory as their types say, with another major version of NumPy than the build's, too:

    python3 -m pip install --target FOLDER 'numpy>=2' && TENCACHE_OTHER_NUMPY=FOLDER ctest --preset release -R python_test
"""

import os
import subprocess
import sys
import unittest

import numpy as np

import tencache

OTHER = os.environ.get("TENCACHE_OTHER_NUMPY")
TESTS = os.path.dirname(os.path.abspath(__file__))


class NumpyTest(unittest.TestCase):
    # pybind11 before 2.12 gets the size of a structured type wrong under NumPy 2, and so the distance of rows.
    def test_rows_lie_one_behind_the_other(self):
        trace = tencache.generate(model="gpt2", batch=1, seq=64, gpu="l40s")
        _, (timeline,) = tencache.simulate(trace, "10cache-l40s", "lru")
        arrays = [trace.tensors, trace.ops, trace.kernels, trace.details, *trace.reads, *trace.writes, *trace.frees,
                  timeline.spans, timeline.occupancy]
        for array in filter(len, arrays):
            self.assertEqual(array.strides, (array.itemsize,), array.dtype)
        self.assertEqual(sum(trace.tensors["persistent"]), len(trace.persistent_tensors))
        self.assertEqual([trace.names[name] for name in trace.ops["name"]], trace.op_names)

    @unittest.skipUnless(OTHER, "TENCACHE_OTHER_NUMPY, a folder with another NumPy, is not set")
    def test_another_version(self):
        environment = {name: value for name, value in os.environ.items() if name != "TENCACHE_OTHER_NUMPY"}
        environment["PYTHONPATH"] = os.pathsep.join([OTHER, environment["PYTHONPATH"]])

        def run(*words):
            done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout

        major = run("-c", "import numpy; print(numpy.__version__)").split(".")[0]
        self.assertNotEqual(major, np.__version__.split(".")[0], f"{OTHER} has no other major version of NumPy")
        run("-m", "unittest", "discover", "-s", TESTS)
