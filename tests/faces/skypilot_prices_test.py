"""packaging/skypilot_prices.py: every trap of SkyPilot's catalogues, in files made here, against our own machines.

    TENCACHE=build/release/cli/tencache python3 tests/faces/skypilot_prices_test.py
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TENCACHE = os.environ.get("TENCACHE", os.path.join(ROOT, "build/release/cli/tencache"))
USUAL = ("InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,"
         "SpotPrice\n")


class Catalogue(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def run_script(self, csv, *options):
        with open(self.path("vms.csv"), "w", encoding="utf-8") as file:
            file.write(csv)
        script = os.path.join(ROOT, "packaging", "skypilot_prices.py")
        return subprocess.run([sys.executable, script, self.path("vms.csv"), "-o", self.path("p.yaml"), "--tencache",
                               TENCACHE, *options], capture_output=True, text=True)

    def read(self, rows, cloud="aws", region="all", header=USUAL):
        """({machine: (on demand, spot)} as `tencache prices` reads them, what was said)."""
        done = self.run_script(header + rows, "--cloud", cloud, "--region", region, "--retrieved", "2026-08-01")
        self.assertIn(done.returncode, (0, 1), done.stderr)
        if done.returncode == 1:
            return {}, done.stdout
        text = subprocess.run([TENCACHE, "prices", "--prices", self.path("p.yaml")], capture_output=True, text=True,
                              check=True).stdout
        found = {}
        for name, spot, price in re.findall(r"^(\S+?)(, spot)? +([0-9.]+) +2026-08-01 +published", text, re.MULTILINE):
            on_demand, cheaper = found.get(name, (None, None))
            found[name] = (on_demand, float(price)) if spot else (float(price), cheaper)
        return found, done.stdout

    def test_the_lowest_price_of_a_region(self):
        rows = ("g5.xlarge,4,16,A10G,1.0,A10G,us-east-1,a,1.006,0.45\n"
                "g5.xlarge,4,16,A10G,1.0,A10G,us-east-1,b,1.006,0.40\n"
                "g5.xlarge,4,16,A10G,1.0,A10G,eu-west-1,a,1.123,0.10\nm5.large,2,8,,,,us-east-1,a,0.096,0.03\n")
        self.assertEqual(self.read(rows, region="us-east-1"), ({"g5.xlarge": (1.006, 0.4)}, unittest.mock.ANY))
        done = self.run_script(USUAL + rows, "--cloud", "aws", "--region", "mars")
        self.assertIn("its regions are eu-west-1, us-east-1", done.stderr)

    def test_columns_are_found_by_name(self):
        found, _ = self.read("0.4,x86_64,1.006,g5.xlarge\r\n", header="\ufeffSpotPrice,Arch,Price,InstanceType\r\n")
        self.assertEqual(found, {"g5.xlarge": (1.006, 0.4)})
        done = self.run_script("InstanceType,Cost\ng5.xlarge,1\n", "--cloud", "aws")
        self.assertIn("no SkyPilot catalogue", done.stderr)
        self.assertIn("give --cloud", self.run_script(USUAL).stderr)
        self.assertEqual(self.run_script(USUAL, "--cloud", "aws", "--retrieved", "2026-02-30").returncode, 2)

    def test_python_dicts(self):
        info = "\"{'Gpus': [{'Name': 'A100', 'Count': %s, 'MemoryInfo': {'SizeInMiB': 40960}}], 'Note': None}\""
        found, _ = self.read(f"p4d.24xlarge,96,1152,,,{info % '8.0'},r,a,21.96,9\n")
        self.assertEqual(found, {"p4d.24xlarge": (21.96, 9)})
        _, said = self.read(f"p4d.24xlarge,96,1152,,,{info % '4.0'},r,a,21,9\n")
        self.assertIn("listed with 4 GPUs, ours has 8", said)

    def test_googles_gpus_are_added_once(self):
        gpus = ",,,A100,1.0,A100,r,a,2.934,1.0\n,,,A100,16.0,A100,r,b,48,\n"
        hosts = "a2-highgpu-8g,96,680,,,,r,a,5.91582,2.0\na3-highgpu-1g,26,234,,,,r,a,1.18,\n"
        found, said = self.read(hosts + gpus, "gcp")
        self.assertEqual({name: tuple(round(price, 9) for price in prices) for name, prices in found.items()},
                         {"a2-highgpu-8g": (29.38782, 10.0)})
        self.assertIn("a3-highgpu-1g rejected: it leaves its GPUs out", said)
        # By hand: an A100 costs 2.934, so 3.67 is the price of host and GPU.
        for row in ("a2-highgpu-1g,12,85,,,,r,a,3.67,1.4\n", "a2-highgpu-1g,12,85,A100,1,A100,r,a,3.67,1.4\n"):
            self.assertEqual(self.read(row + gpus, "gcp")[0], {"a2-highgpu-1g": (3.67, 1.4)})
        _, said = self.read("a2-highgpu-1g,12,85,A100,1,A100,r,a,0.7,\n" + gpus, "gcp")
        self.assertIn("costs less than they do", said)

    def test_a10_and_a10g(self):
        found, said = self.read("g5.xlarge,4,16,A10,1,A10,r,a,1.006,\ng5.12xlarge,48,192,A10G,4,A10G,r,a,5.672,\n")
        self.assertEqual(found, {"g5.12xlarge": (5.672, None)})
        self.assertIn("the GPU A10, ours has a10g", said)
        self.assertEqual(self.read("Standard_NV36ads_A10_v5,36,440,A10,1,,r,,3.2,\n", "azure")[0],
                         {"NV36ads_A10_v5": (3.2, None)})

    def test_placeholders(self):
        found, said = self.read("p3.2xlarge,8,61,V100,1,V100,r,a,,0.9\ng4dn.xlarge,4,16,T4,1,T4,r,a,700.0,0.2\n"
                                "g6.xlarge,4,16,L4,1,L4,r,a,0.8048,700.0\ng5.xlarge,4,16,A10G,1,A10G,r,a,nan,\n"
                                "g5.12xlarge,48,192,A10G,4,A10G,r,a,10001,\n")
        self.assertEqual(found, {"g6.xlarge": (0.8048, None)})
        self.assertEqual(said.count("is none"), 4)

    def test_azures_h100s(self):
        found, said = self.read("Standard_ND96isr_H100_v5,96,1900,H100,12.0,H100,r,1,98.32,98.32\n", "azure")
        self.assertEqual(found, {"ND96isr_H100_v5": (98.32, None)})
        self.assertIn("12 GPUs, which are 8", said)
        self.assertIn("spot price is that on demand", said)

    def test_memory(self):
        info = "\"{'Gpus': [{'Name': '%s', 'MemoryInfo': {'SizeInMiB': %s}}]}\""
        rows = (f"p5en.48xlarge,192,2048,H200,8.0,{info % ('H200', 81920)},r,a,63.296,20\n"
                f"p4de.24xlarge,96,1152,A100-80GB,8.0,{info % ('A100-80GB', 40960)},r,a,27.4,\n"
                "g5.xlarge,4,64,A10G,1,A10G,r,a,1.006,\ng6.xlarge,4,16,L4\n")
        found, said = self.read(rows)
        self.assertEqual(found, {"p5en.48xlarge": (63.296, 20)})
        for text in ("80 GB of GPU memory, which are 140 GiB", "40960 MiB of memory a GPU",
                     "64 GiB of memory, ours has 13", "cut short"):
            self.assertIn(text, said)


if __name__ == "__main__":
    unittest.main()
