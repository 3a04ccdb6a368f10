#!/usr/bin/env python3
"""The main job, whole: `mnist` with 2 trainers against the same training in PyTorch, in turns in one run.

    bench/training/bench_training.py [--mnist build/release/bin/mnist] [--epochs 2] [--rounds 3] [--json FILE]

The peer is DistributedDataParallel over gloo with a DataLoader, 2 processes with one thread each: the same ConvNet, SGD
and batch, the same samples an epoch, the test set after each in pieces of 250. It runs once as it is, and once with glibc
told to keep freed memory, as our trainers do by themselves. Run it with a Python whose torch is of the release that
`mnist` was built with. Both are timed from the start of their first process to the end of the last: imports, start of the
cluster, loaders and driver included.
"""
import argparse
import gzip
import json
import os
import pathlib
import resource
import socket
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
TRAIN_SAMPLES = 60_000
KEPT = "PyTorch DDP, memory kept"
# What keep_freed_memory() sets (actors/ddp/freed_memory.cpp).
KEEP_FREED_MEMORY = ":".join(("glibc.malloc.trim_threshold=2147483647", "glibc.malloc.mmap_threshold=33554432",
                              "glibc.malloc.top_pad=67108864"))


def read_idx(folder, stem):
    import numpy
    plain = folder / stem
    raw = plain.read_bytes() if plain.exists() else gzip.decompress((folder / (stem + ".gz")).read_bytes())
    dimensions = raw[3]
    shape = [int.from_bytes(raw[4 + 4 * i:8 + 4 * i], "big") for i in range(dimensions)]
    return numpy.frombuffer(raw, numpy.uint8, offset=4 + 4 * dimensions).reshape(shape).copy()


def find_mnist(named):
    candidates = [named] if named else [os.environ.get("TROUPE_DATA_DIR", "") + "/mnist", ROOT / "../shared/data/mnist"]
    for folder in map(pathlib.Path, candidates):
        if any((folder / ("train-images-idx3-ubyte" + end)).exists() for end in ("", ".gz")):
            return folder.resolve()
    sys.exit("bench_training: no MNIST was found: name its folder with --data")


def train_peer(rank, port, folder, epochs, workers):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader, Dataset
    from torch.utils.data.distributed import DistributedSampler

    class Mnist(Dataset):
        def __init__(self, split):
            stem = "train" if split == "train" else "t10k"
            self.images = torch.from_numpy(read_idx(folder, stem + "-images-idx3-ubyte"))
            self.labels = torch.from_numpy(read_idx(folder, stem + "-labels-idx1-ubyte")).long()

        def __len__(self):
            return len(self.labels)

        def __getitem__(self, index):
            return self.images[index].unsqueeze(0).float().div_(255).sub_(0.1307).div_(0.3081), self.labels[index]

    def block(inputs, outputs):
        return nn.Sequential(nn.Conv2d(inputs, outputs, 5, padding=2), nn.BatchNorm2d(outputs), nn.ReLU(),
                             nn.MaxPool2d(2))

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.manual_seed(7)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    train, test = Mnist("train"), Mnist("test")
    sampler = DistributedSampler(train, seed=7)
    batches = DataLoader(train, batch_size=50, sampler=sampler, num_workers=workers, persistent_workers=workers > 0)
    half = range(rank * 5000, rank * 5000 + 5000)
    tests = DataLoader(torch.utils.data.Subset(test, half), batch_size=250, num_workers=workers)
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(block(1, 16), block(16, 32), nn.Flatten(), nn.Linear(7 * 7 * 32, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(epochs):
        model.train()
        sampler.set_epoch(epoch)
        for images, labels in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        model.eval()
        correct = torch.zeros(1)
        with torch.no_grad():
            for images, labels in tests:
                correct += (model.module(images).argmax(1) == labels).sum()
        dist.all_reduce(correct)
    if rank == 0:
        print(f"torch {torch.__version__}, test/accuracy {correct.item() / len(test):.4f}", flush=True)
    dist.destroy_process_group()


def peer(options):
    """Both ranks; the other one is started as torchrun would, with this file."""
    if options.rank == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            options.port = probe.getsockname()[1]
        other = subprocess.Popen([sys.executable, str(HERE), "--rank", "1", "--port", str(options.port), "--epochs",
                                  str(options.epochs), "--data", str(options.data), "--workers", str(options.workers)])
    train_peer(options.rank, options.port, pathlib.Path(options.data), options.epochs, options.workers)
    if options.rank == 0 and other.wait() != 0:
        sys.exit("bench_training: rank 1 of the peer failed")


def timed(command, tunables):
    """Seconds from start to end, CPU seconds and minor page faults of all its processes, and its lines."""
    environment = dict(os.environ)
    if tunables:
        environment["GLIBC_TUNABLES"] = tunables
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"bench_training: {command[0]} failed:\n{done.stdout}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu, after.ru_minflt - before.ru_minflt, done.stdout.strip().splitlines()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", default=str(ROOT / "build/release/bin/mnist"), help="the program to measure")
    parser.add_argument("--data", default="", help="folder with the MNIST files, plain or .gz")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, in turns; the median counts")
    parser.add_argument("--workers", type=int, default=1, help="DataLoader's worker processes a rank")
    parser.add_argument("--json", default="", help="write the result to this file")
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.data = find_mnist(options.data)
    if options.rank >= 0:
        return peer(options)
    if not os.access(options.mnist, os.X_OK):
        sys.exit(f"bench_training: no program '{options.mnist}': build it with ./check, or name it with --mnist")

    shared = ["--data", str(options.data), "--epochs", str(options.epochs)]
    pytorch = [sys.executable, str(HERE), "--rank", "0", *shared, "--workers", str(options.workers)]
    programs = {
        "troupe": ([options.mnist, *shared, "--trainers", "2", "--logical-ranks", "2", "--micro-batch", "50"], ""),
        "PyTorch DDP": (pytorch, ""),
        KEPT: (pytorch, KEEP_FREED_MEMORY),
    }
    rates = {name: [] for name in programs}
    for turn in range(options.rounds):
        for name, command in programs.items():
            seconds, cpu, faults, lines = timed(*command)
            rates[name].append(options.epochs * TRAIN_SAMPLES / seconds)
            said = next((line for line in lines if "accuracy" in line and line.startswith("torch")), "")
            print(f"round {turn + 1}  {name:24} {rates[name][-1]:8,.0f} samples/s  ({seconds:.1f} s, {cpu:.1f} s of CPU, "
                  f"{faults:,} page faults) {said}", flush=True)
    ours, theirs, kept = (statistics.median(rates[name]) for name in programs)
    print(f"median: {ours:,.0f} against {theirs:,.0f} samples/s, start to end: {ours / theirs:.2f} times PyTorch DDP, "
          f"{ours / kept:.2f} times where it keeps freed memory, too")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"bench": "training", "case": f"mnist, 2 trainers, {options.epochs} epochs, whole", "ours": ours,
                       "peer": theirs, "peer_name": "PyTorch DDP + DataLoader", "ratio": ours / theirs,
                       "unit": "samples/s"}, file)
            file.write("\n")


if __name__ == "__main__":
    main()
