#!/usr/bin/env python3
"""The peer of bench_ddp: PyTorch's wrappers over gloo, 2 processes with one thread each.

Prints "ready <torch version>"; then, for each line "<case> <mode> <steps>" on standard input, trains that many steps of
that case and prints the milliseconds a step takes. Ends with standard input. Modes: "ddp" is DistributedDataParallel under
SGD with momentum, the others are under AdamW: "adam" in the same, "zero1" its ZeroRedundancyOptimizer, "fsdp"
FullyShardedDataParallel and "fully_shard" FSDP2, each linear layer a unit.
"""
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 5, padding=2), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))


def mlp(*widths):
    layers = []
    for inputs, outputs in zip(widths, widths[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


CASES = {
    "mlp": (lambda: mlp(784, 128, 10), (32, 784)),
    "convnet": (lambda: nn.Sequential(block(1, 16), block(16, 32), nn.Flatten(), nn.Linear(7 * 7 * 32, 10)), (25, 1, 28, 28)),
    "wide": (lambda: mlp(784, 2048, 2048, 10), (32, 784)),
    "tower": (lambda: mlp(*[1024] * 9, 10), (32, 1024)),
}
MODES = ["ddp", "adam", "zero1", "fsdp", "fully_shard"]


def wrap(net, mode):
    if mode == "fsdp":
        return FullyShardedDataParallel(net, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=torch.device("cpu"))
    if mode != "fully_shard":
        return nn.parallel.DistributedDataParallel(net)
    mesh = init_device_mesh("cpu", (2,))
    for module in net:
        if isinstance(module, nn.Linear):
            fully_shard(module, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def make_case(name, mode):
    torch.manual_seed(1)
    make, shape = CASES[name]
    model = wrap(make(), mode)
    if mode == "ddp":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    elif mode == "zero1":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=0.001)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    batches = [(torch.randn(shape), torch.randint(10, (shape[0],))) for _ in range(8)]
    return model, optimizer, batches


def train(case, steps):
    model, optimizer, batches = case
    for step in range(steps):
        images, labels = batches[step % len(batches)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def serve(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    cases = {}
    names = list(CASES)
    commands = open(0) if rank == 0 else None
    if rank == 0:
        print("ready", torch.__version__, flush=True)
    while True:
        command = torch.tensor([-1, 0, 0])
        if rank == 0:
            words = commands.readline().split()
            if words:
                command = torch.tensor([names.index(words[0]), MODES.index(words[1]), int(words[2])])
        dist.broadcast(command, 0)
        index, mode, steps = command.tolist()
        if index < 0:
            break
        if (index, mode) not in cases:
            cases[index, mode] = make_case(names[index], MODES[mode])
            train(cases[index, mode], 10)
        dist.barrier()
        start = time.perf_counter()
        train(cases[index, mode], steps)
        spent_ms = (time.perf_counter() - start) * 1e3
        if rank == 0:
            print(f"{spent_ms / steps:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free_port = probe.getsockname()[1]
    # Rank 0 stays in this process, which has standard input.
    other = mp.get_context("spawn").Process(target=serve, args=(1, free_port), daemon=True)
    other.start()
    serve(0, free_port)
    other.join()
