#!/usr/bin/env python3
"""A price table for `--prices` out of your copy of SkyPilot's catalogue of a cloud, ~/.sky/catalogs/v7/aws/vms.csv.

    packaging/skypilot_prices.py VMS.CSV -o PRICES.YAML [--cloud C] [--region R] [--retrieved DATE] [--tencache PROGRAM]

Machines are those that `tencache machines` describes; of several zones the lowest price counts. A row that contradicts
a machine's description is rejected, a known slip is corrected, and each is printed:

  - TotalGpuMemoryInMiB is that of one GPU; H200, B200 and GH200 are listed with 80 GB
  - an empty price, or 700.0, stands for not known
  - Google's hosts leave the price of their GPUs out, which has rows of its own; it is added, unless the row names its
    GPUs or costs at least what they do alone
  - Azure lists ND96is(r)_H100_v5 with 12 GPUs, which are 8; its spot price of H100 machines is the price on demand
"""
import argparse
import ast
import csv
import datetime
import json
import math
import os
import re
import subprocess
import sys

NOT_KNOWN, HIGHEST = 700.0, 10_000  # USD an hour of a machine; dearer ones are slips
REGIONS = {"aws": "us-east-1", "azure": "eastus", "gcp": "us-central1"}
# The catalogue gives the plain name to the GPU of the smaller memory, and does not tell the kinds of H100 apart.
SAME_GPUS = {("v100", "v10016"), ("a100", "a10040"), ("h100", "h100nvl"), ("h10080", "h100"), ("h100sxm", "h100")}


def number(text):
    try:
        return float(text) if math.isfinite(float(text)) else None
    except (TypeError, ValueError):
        return None


def price_of(text):
    price = number(text)
    return price if price and 0 < price <= HIGHEST and price != NOT_KNOWN else None


def plain(gpu):
    """A100-80GB, a100-80g -> a10080. The G of the A10G is no unit: the A10 is another GPU."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"-([0-9]+)gb?$", r"-\1", gpu.lower()))


def same_gpu(listed, ours):
    return plain(listed) == plain(ours) or (plain(listed), plain(ours)) in SAME_GPUS


def gpu_info(text):
    """(name, count, MiB of one) of GpuInfo: a Python dict, or a bare name."""
    if not text.startswith("{"):
        return text, None, None
    try:
        info = ast.literal_eval(text)
        gpu = (info.get("Gpus") or [{}])[0]
        mib = gpu.get("MemoryInfo", {}).get("SizeInMiB") or info.get("TotalGpuMemoryInMiB")
        return gpu.get("Name", ""), gpu.get("Count"), mib
    except (ValueError, SyntaxError, AttributeError, TypeError):
        return "", None, None


class Importer:
    def __init__(self, cloud, machines):
        self.cloud, self.machines = cloud, {machine["name"]: machine for machine in machines}
        self.prices, self.gpus, self.notes = {}, {"Price": {}, "SpotPrice": {}}, []

    def note(self, line, machine, rejected, text):
        self.notes.append(f"line {line}, {machine} {'rejected' if rejected else 'corrected'}: {text}")

    def contradiction(self, line, row, machine):
        """Why the row is not believed; None: it is. Notes known slips."""
        name, count, mib = gpu_info(row.get("GpuInfo") or "")
        name, count = row.get("AcceleratorName") or name, number(row.get("AcceleratorCount")) or count
        capacity = {tier["kind"]: tier["capacity_bytes"] for tier in reversed(machine["tiers"])}
        if name and not same_gpu(name, machine["gpu"]):
            return f"it is listed with the GPU {name}, ours has {machine['gpu']}"
        if count and count != machine["ranks"]:
            if (count, machine["ranks"]) != (12, 8) or "H100_v5" not in machine["name"]:
                return f"it is listed with {count:g} GPUs, ours has {machine['ranks']}"
            self.note(line, machine["name"], False, "listed with 12 GPUs, which are 8")
        memory, host = number(row.get("MemoryGiB")), capacity.get("cpu", 0) * machine["ranks"] / 2**30
        if memory and host and abs(memory - host) > 0.1 * max(memory, host) + 4:  # ours is less what the system keeps
            return f"it is listed with {memory:g} GiB of memory, ours has {host:.0f}"
        ours = capacity["gpu"] / 2**20
        if mib and plain(machine["gpu"]) in ("h200", "b200", "gh200") and abs(mib - 81920) < 2500:
            self.note(line, machine["name"], False, f"listed with 80 GB of GPU memory, which are {ours / 1024:.0f} GiB")
        elif mib and abs(mib - ours) > 0.15 * max(mib, ours):  # ours is less a context, and datasheets count in GB
            return f"it is listed with {mib:g} MiB of memory a GPU, ours has {ours:.0f}"
        return None

    def with_gpus(self, line, row, machine, price, spot):
        """Prices of host and GPUs together; None, having said so, where what the GPUs cost is not to be had."""
        of_gpus = {column: next((each * machine["ranks"] for gpu, each in sorted(prices.items())
                                 if same_gpu(gpu, machine["gpu"])), None) for column, prices in self.gpus.items()}
        alone, named, name = of_gpus["Price"], bool(row.get("AcceleratorName") or row.get("GpuInfo")), machine["name"]
        if named and alone and price < alone:
            return self.note(line, name, True, f"it names its GPUs, but costs less than they do alone ({alone:g})")
        if named or (alone and price >= alone):
            self.note(line, name, False, "the price has its GPUs in it: nothing is added")
            return price, spot
        if not alone:
            return self.note(line, name, True, f"it leaves its GPUs out, and no row prices {machine['gpu']}")
        self.note(line, name, False, "the price of its GPUs, from a row of their own, is added to the host's")
        return price + alone, spot + of_gpus["SpotPrice"] if spot and of_gpus["SpotPrice"] else None

    def read(self, line, row):
        machine = self.machines.get((row.get("InstanceType") or "").removeprefix("Standard_"))
        if machine is None:
            return
        if None in row.values():
            return self.note(line, machine["name"], True, "the row is cut short")
        wrong = self.contradiction(line, row, machine)
        if wrong:
            return self.note(line, machine["name"], True, wrong)
        price, spot = price_of(row["Price"]), price_of(row.get("SpotPrice"))
        if not price:
            return self.note(line, machine["name"], True, f"price '{row['Price']}' is none")
        if self.cloud == "gcp":
            both = self.with_gpus(line, row, machine, price, spot)
            if both is None:
                return
            price, spot = both
        if spot and spot >= price:
            self.note(line, machine["name"], False, "the spot price is that on demand, or above: left out")
            spot = None
        kept = self.prices.setdefault(machine["name"], {})
        kept["on_demand"] = min(price, kept.get("on_demand", price))
        if spot:
            kept["spot"] = min(spot, kept.get("spot", spot))

    def run(self, rows):
        for _, row in rows:  # what GPUs cost beside their hosts
            count = number(row.get("AcceleratorCount"))
            for column, prices in self.gpus.items():
                price = price_of(row.get(column))
                if not row.get("InstanceType") and row.get("AcceleratorName") and count and price:
                    gpu = plain(row["AcceleratorName"])
                    prices[gpu] = min(price / count, prices.get(gpu, math.inf))
        for line, row in rows:
            self.read(line, row)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", metavar="VMS.CSV")
    parser.add_argument("-o", "--output", required=True, metavar="PRICES.YAML")
    parser.add_argument("--cloud", choices=["aws", "azure", "gcp", "lambda"], help="(default: the folder's name)")
    parser.add_argument("--region", help="its rows only (default: that of the shipped table; 'all': all)")
    parser.add_argument("--retrieved", help="date of the prices, YYYY-MM-DD (default: the file's)",
                        type=lambda text: datetime.date.fromisoformat(text).isoformat())
    parser.add_argument("--tencache", default="tencache", help="the program (default: %(default)s)")
    options = parser.parse_args()
    cloud = options.cloud or os.path.basename(os.path.dirname(os.path.abspath(options.file)))
    if cloud not in ("aws", "azure", "gcp", "lambda"):
        parser.error(f"which cloud {options.file} is of does not show in its folder's name; give --cloud")
    region = options.region or REGIONS.get(cloud, "all")
    date = options.retrieved or datetime.date.fromtimestamp(os.path.getmtime(options.file)).isoformat()
    with open(options.file, encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        rows = [(reader.line_num, row) for row in reader]
    if not {"InstanceType", "Price"} <= set(reader.fieldnames or []):
        sys.exit(f"{options.file}: has no columns InstanceType and Price; this is no SkyPilot catalogue of machines")
    here = [(line, row) for line, row in rows if region == "all" or row.get("Region") in (region, "", None)]
    if rows and not here:
        sys.exit(f"{options.file}: no row is of region '{region}'; its regions are "
                 + ", ".join(sorted({row.get("Region") or "" for _, row in rows})))
    listed = subprocess.run([options.tencache, "machines", "--json"], check=True, stdout=subprocess.PIPE).stdout
    importer = Importer(cloud, json.loads(listed))
    importer.run(here)
    print("\n".join(importer.notes))
    print(f"{options.output}: prices of {len(importer.prices)} machines in {cloud} {region} as of {date}, "
          f"from {len(here)} rows")
    if not importer.prices:
        return 1
    table = {"cloud": cloud, "region": "any" if region == "all" else region, "retrieved": date,
             "source": "SkyPilot catalogue " + options.file, "confidence": "published", "prices": importer.prices}
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(json.dumps(table, indent=1) + "\n")  # JSON is YAML
    return 0


if __name__ == "__main__":
    sys.exit(main())
