"""Programs of several ranks over gloo under tencache.live: the same bits as without it, in little memory, too.

    python_ranks_test.py                the tests
    python_ranks_test.py PROGRAM        one rank of two (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are set)
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import unittest

RANKS = 2
COMMAND = ["-m", "tencache", "run", "python"]
STEPS = 5
SHARES = ["1", "0.5", "least"]
# Bytes that collectives keep in memory beside the ops that run meanwhile.
UNDER_WAY = {"collectives": 4 * 40960}


def _network(torch):
    nn = torch.nn
    return nn.Sequential(*[nn.Sequential(nn.Linear(128, 128), nn.ReLU()) for _ in range(6)], nn.BatchNorm1d(128),
                         nn.Linear(128, 10))


def _train(torch, model, optimizer, accumulate=1):
    """Losses, and their means over all ranks."""
    distributed, losses = torch.distributed, []
    for _ in range(STEPS):
        for part in range(accumulate):
            last = part + 1 == accumulate
            with contextlib.nullcontext() if last or not hasattr(model, "no_sync") else model.no_sync():
                loss = torch.nn.functional.cross_entropy(model(torch.randn(32, 128)), torch.randint(0, 10, (32,)))
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        distributed.all_reduce(mean)
        losses.append((loss.item(), mean.item()))
    everybodys = [None] * RANKS
    distributed.all_gather_object(everybodys, losses)
    distributed.barrier()
    return everybodys


def _parallel(torch, **options):
    return torch.nn.parallel.DistributedDataParallel(_network(torch), bucket_cap_mb=0.1, **options)


def data_parallel(torch):
    from python_programs import content
    model = _parallel(torch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return content(_train(torch, model, optimizer), model, optimizer)


def gradients_in_buckets(torch):
    from python_programs import content
    model = _parallel(torch, gradient_as_bucket_view=True, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return content(_train(torch, model, optimizer, accumulate=2), model, optimizer)


def sharded_optimizer(torch):
    from python_programs import content
    from torch.distributed.optim import ZeroRedundancyOptimizer
    model = _parallel(torch)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3)
    return content(_train(torch, model, optimizer), model, optimizer.optim)


def collectives(torch):
    """Under way while ops need the memory; rank 1 comes late."""
    from python_programs import content
    distributed, rank = torch.distributed, torch.distributed.get_rank()
    weights = torch.nn.Linear(64, 64)
    weights(torch.ones(2, 64)).sum().backward()  # a run begins
    mine = [torch.randn(100, 100) for _ in range(4)]
    theirs = [torch.empty(100, 100) for _ in range(4)]
    seen = []
    for turn in range(4):
        if rank == 1:
            time.sleep(0.02)
        works = [distributed.all_reduce(tensor, async_op=True) for tensor in mine[:2]]
        works += [distributed.irecv(theirs[3], 1 - rank), distributed.isend(mine[3], 1 - rank)]
        others = [torch.randn(100, 100) + turn for _ in range(6)]
        for _ in range(3):
            for other in others:
                other.mul_(1.5)
        for work in works:
            work.wait()
        gathered = [torch.empty(100, 100) for _ in range(RANKS)]
        distributed.all_gather(gathered, mine[2])
        distributed.broadcast(mine[2], turn % RANKS)
        distributed.all_to_all_single(theirs[0].view(-1), mine[0].view(-1))
        distributed.reduce(theirs[1].copy_(mine[1]), 0)
        seen += [tensor.sum().item() for tensor in others + gathered]
        for tensor in mine:
            tensor.mul_(0.3)
    distributed.monitored_barrier()
    return content(seen, *mine, theirs[0], theirs[3])


PROGRAMS = {program.__name__: program for program in (
    data_parallel, gradients_in_buckets, sharded_optimizer, collectives)}


def _compare(torch, program):
    import tencache
    options = {"pace": False, "quiet": True}

    def results():
        torch.manual_seed(1 + torch.distributed.get_rank())
        return program(torch)

    plain = results()
    with tencache.live("on-demand", gpu_memory="1GiB", **options) as demand:
        assert results() == plain, "without a limit"
    need = demand.report()
    assert need["unadopted_bytes"] <= 0.01 * need["peak_bytes"], need
    for share in SHARES:
        size = need["largest_op_bytes"] + UNDER_WAY.get(program.__name__, 0)
        if share != "least":
            size = max(int(float(share) * need["peak_bytes"]), size)
        with tencache.live("foresight", gpu_memory=f"{size}B", cpu_memory="256MiB", **options) as live:
            assert results() == plain, f"in {share} of {need['peak_bytes']} bytes"
        print(json.dumps({"share": share, "bytes": size, "evictions": live.report()["evictions"]}))
    assert results() == plain, "afterwards"


# ---- What a run knows of tensors that are under way ------------------------------------------------------------------


def _live(size):
    import tencache
    return tencache.live("on-demand", gpu_memory=size, cpu_memory="64MiB", pace=False, quiet=True)


def memory_comes_back(torch):
    """An op for which there is no memory waits for a collective that has it."""
    distributed, rank = torch.distributed, torch.distributed.get_rank()
    with _live("1MiB"):
        tensor = torch.nn.Parameter(torch.full((160 * 1024,), float(1 + rank))).detach()
        other = torch.nn.Parameter(torch.ones(160 * 1024)).detach()
        if rank == 1:
            time.sleep(0.3)
        work = distributed.all_reduce(tensor, async_op=True)
        other.add_(1)  # the two together are too large
        work.wait()
        assert (tensor == 3).all() and (other == 2).all()


def written_while_its_address_is_known(torch):
    """What gloo's threads write is neither lost nor refused by the system."""
    distributed, rank = torch.distributed, torch.distributed.get_rank()
    with _live("1MiB"):
        tensor = torch.nn.Parameter(torch.full((64 * 1024,), float(1 + rank))).detach()
        others = [torch.nn.Parameter(torch.ones(64 * 1024)).detach() for _ in range(4)]
        view = tensor.numpy()
        for turn in range(1, 5):
            for other in others:
                other.add_(1)
            tensor.sum().item()  # in, with a valid copy below
            if rank == 1:
                time.sleep(0.1)
            work = distributed.all_reduce(tensor, async_op=True)
            tensor.data_ptr()
            for other in others[:2]:
                other.add_(1)
            work.wait()
            for other in others:
                other.add_(1)
            assert view[0] == view[-1] == 3 * 2 ** (turn - 1), (turn, view)


def given_back_when_it_is_over(torch):
    distributed, rank = torch.distributed, torch.distributed.get_rank()
    with _live("4MiB"):
        tensor = torch.nn.Parameter(torch.full((64 * 1024,), float(1 + rank))).detach()
        if rank == 1:
            time.sleep(0.3)
        work = distributed.all_reduce(tensor, async_op=True)
    work.wait()
    assert (tensor == 3).all()


def out_of_memory_beside_a_receive(torch):
    """A receive that may never come is nothing to wait for."""
    distributed, rank = torch.distributed, torch.distributed.get_rank()
    error = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
    with _live("1MiB"):
        tensor = torch.nn.Parameter(torch.zeros(160 * 1024)).detach()
        other = torch.nn.Parameter(torch.ones(160 * 1024)).detach()
        work = distributed.irecv(tensor, 1 - rank)
        try:
            other.add_(1)
            raise AssertionError("it fits")
        except error as failure:
            assert "are missing" in str(failure), failure
        del work  # and nobody receives any more
        other.add_(1)
        assert (other == 2).all() and (tensor == 0).all()


CASES = {case.__name__: case for case in (memory_comes_back, written_while_its_address_is_known,
                                          given_back_when_it_is_over, out_of_memory_beside_a_receive)}


# ---- The tests -------------------------------------------------------------------------------------------------------


def run_rank(name):
    import warnings
    warnings.simplefilter("ignore")
    import torch
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    CASES[name](torch) if name in CASES else _compare(torch, PROGRAMS[name])
    torch.distributed.barrier()
    print("done")


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start_rank(rank, port, words, **more):
    """`more`: of the environment; None takes a variable out."""
    environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS),
                       LOCAL_WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                       OMP_NUM_THREADS="1", **{name: value for name, value in more.items() if value})
    for name in [name for name, value in more.items() if value is None]:
        del environment[name]
    return subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env=environment)


def end_of(process):
    """(exit code, output, errors)"""
    try:
        output, errors = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
    return process.returncode, output, errors


def run_ranks(words, port=None, **more):
    """The end of each rank."""
    port = port or free_port()
    return [end_of(process) for process in [start_rank(rank, port, words, **more) for rank in range(RANKS)]]


SCRIPT = """
import hashlib, sys, torch
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(rank)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(8)]))
optimizer = torch.optim.AdamW(net.parameters())
for step in range(int(sys.argv[1])):
    net(torch.randn(16, 128)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(rank, hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest())
torch.distributed.destroy_process_group()
"""


def file_of(port):
    """Where the ranks of start_rank's program meet: executor/host_share.cpp."""
    value = 1469598103934665603
    for byte in f"127.0.0.1:{port}::#1".encode():
        value = (value ^ byte) * 1099511628211 % 2**64
        value ^= value >> 29
    return f"/dev/shm/tencache-{os.geteuid()}-{value:016x}"


WAITS = "import sys, torch; print('joined', flush=True); sys.stdin.read()"

# What a rank has alive at once is about 3 MiB: half of it in GPU and CPU memory.
MACHINE = """
name: two-ranks
initial_tier: cpu
tiers:
  - {name: gpu, kind: gpu, capacity: 1152KiB, granularity: 4KiB}
  - {name: cpu, kind: cpu, capacity: 2MiB, granularity: 4KiB}
  - {name: nvme, kind: nvme, capacity: 64MiB, granularity: 4KiB, directories: ["FOLDER"]}
links:
  - {name: h2d, from: cpu, to: gpu, bandwidth: 4GB/s}
  - {name: d2h, from: gpu, to: cpu, bandwidth: 4GB/s}
  - {name: nvme_read, from: nvme, to: cpu, bandwidth: 40MB/s}
  - {name: nvme_write, from: cpu, to: nvme, bandwidth: 40MB/s}
staging: {tier: cpu, count: 8, bytes: 128KiB}
"""


class Ranks(unittest.TestCase):
    def ends(self, words, codes=(0, 0), **more):
        ends = run_ranks(words, **more)
        self.assertEqual(tuple(end[0] for end in ends), codes,
                         "\n".join(text[-3000:] for end in ends for text in end[1:]))
        return ends

    def script(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "train.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(SCRIPT)
        return folder.name, path

    def test_the_command_predicts_and_reports_for_each_rank(self):
        folder, script = self.script()
        plain = [end[1] for end in self.ends([script, "8"])]
        answer = os.path.join(folder, "r.json")
        ends = self.ends(["-m", "tencache", "run", "python", "--gpu-memory", "60%", "--predict", "--json", answer, "--",
                          script, "8"])
        self.assertEqual([end[1] for end in ends], plain)
        self.assertIn("predicted against measured", ends[0][2])
        self.assertNotIn("the process used", ends[1][2], "rank 0 reports")
        for name in ("r.json", "r.rank1.json"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                result = json.load(file)
            self.assertIsNotNone(result["prediction"]["comparison"])
            self.assertGreater(result["live"]["evictions"], 0)

    def test_ranks_share_memory_and_what_is_built_and_measured(self):
        folder, script = self.script()
        answer = os.path.join(folder, "r.json")
        ends = self.ends(["-m", "tencache", "run", "python", "--memory", "2GiB", "--json", answer, "--", script, "3"],
                         XDG_CACHE_HOME=folder)
        self.assertLessEqual(sum(end[2].count("measuring this computer") for end in ends), 1)
        for name in ("r.json", "r.rank1.json"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                live = json.load(file)["live"]
            self.assertLess(live["gpu_memory_bytes"] + live["taken_bytes"], 1 << 30)

    def shared(self, folder, script, *options, **more):
        """The results of two ranks whose tensors need more than GPU and CPU memory; their bits are those of PyTorch."""
        plain = [end[1] for end in self.ends([script, "6"])]
        port = free_port()
        machine, answer = os.path.join(folder, "machine.yaml"), os.path.join(folder, "r.json")
        with open(machine, "w", encoding="utf-8") as file:
            file.write(MACHINE.replace("FOLDER", folder))
        ends = self.ends([*COMMAND, "--machine", machine, "--predict", "--json", answer, *options, "--", script, "6"],
                         port=port, **more)
        self.assertFalse(os.path.exists(file_of(port)))
        self.assertEqual([end[1] for end in ends], plain)
        results = []
        for name in ("r.json", "r.rank1.json"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                results.append(json.load(file))
        return results

    def test_ranks_share_cpu_memory_and_the_disk(self):
        folder, script = self.script()
        results = self.shared(folder, script, LOCAL_WORLD_SIZE=None)
        for rank, result in enumerate(results):
            ranks = result["live"]["ranks"]
            self.assertEqual((ranks["rank"], ranks["world_size"], ranks["rank_of_host"], ranks["ranks_of_host"]),
                             (rank, 2, rank, 2))
            self.assertEqual((ranks["cpu_memory_bytes"], ranks["host_cpu_memory_bytes"]), (1 << 20, 2 << 20))
            self.assertEqual((ranks["shared_links"], ranks["paced"]), (["nvme_read", "nvme_write"], True))
            self.assertLessEqual(result["peak_bytes"]["cpu"], ranks["most_cpu_memory_bytes"])
            self.assertGreater(result["live"]["link_bytes"]["nvme_read"], 0)
            # 40 MB/s for both: the prediction counts with a half, and a rank alone would have been as fast as that.
            read = result["prediction"]["result"]["traffic_bytes"]["nvme_read"]
            self.assertGreaterEqual(result["prediction"]["iteration_seconds"], read / 20e6)
        self.assertLessEqual(sum(result["peak_bytes"]["cpu"] for result in results), 2 << 20)

    def test_ranks_may_keep_to_their_parts(self):
        folder, script = self.script()
        for result in self.shared(folder, script, "--ranks-share", "none"):
            ranks = result["live"]["ranks"]
            self.assertEqual((ranks["cpu_memory_bytes"], ranks["most_cpu_memory_bytes"]), (1 << 20, 1 << 20))
            self.assertEqual(ranks["shared_links"], [])

    def joined(self, port, *options):
        """Rank 0, which has joined its run and waits for its standard input to end."""
        process = start_rank(0, port, [*COMMAND, "--gpu-memory", "64MiB", *options, "--", "-c", WAITS])

        def end():
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                pipe.close()
        self.addCleanup(end)
        self.assertEqual(process.stdout.readline(), "joined\n")
        return process

    def test_ranks_that_share_must_agree(self):
        port = free_port()
        self.joined(port, "--cpu-memory", "8MiB")
        code, _, errors = end_of(start_rank(1, port, [*COMMAND, "--gpu-memory", "64MiB", "--cpu-memory", "16MiB", "--",
                                                      "-c", WAITS]))
        self.assertEqual(code, 1)
        self.assertIn("has 16.00 MiB of CPU memory, other ranks have 8.00 MiB; give all of them the same --cpu-memory",
                      errors.splitlines()[-1])

    def test_what_a_killed_rank_leaves_the_next_run_removes(self):
        port = free_port()
        process = self.joined(port)
        self.assertTrue(os.path.exists(file_of(port)))
        process.kill()
        process.wait()
        self.assertEqual(end_of(self.joined(free_port()))[0], 0)
        self.assertFalse(os.path.exists(file_of(port)))

    def test_a_rank_that_fails_says_which(self):
        _, script = self.script()
        ends = self.ends(["-m", "tencache", "run", "python", "-p", "best", "--", script, "3"], codes=(1, 1))
        self.assertTrue(ends[1][2].splitlines()[-1].startswith("tencache: rank 1: "), ends[1][2])


def _add(name):
    def case(self):
        for _, output, _ in self.ends([__file__, name]):
            self.assertEqual(output.splitlines()[-1], "done")
            rows = [json.loads(line) for line in output.splitlines() if line.startswith('{"share"')]
            if name in PROGRAMS:
                self.assertEqual([row["share"] for row in rows], SHARES)
                self.assertGreater(rows[-1]["evictions"], 0)
    setattr(Ranks, f"test_{name}", case)


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    if len(sys.argv) > 1 and sys.argv[1] in {**PROGRAMS, **CASES}:
        run_rank(sys.argv[1])
    else:
        import torch
        if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
            print("PyTorch has no gloo here", file=sys.stderr)
            sys.exit(77)
        for one in {**PROGRAMS, **CASES}:
            _add(one)
        unittest.main()
