#!/usr/bin/env python3
"""The peer of bench_ddp: PyTorch DistributedDataParallel over gloo, 2 processes with one thread each.

Prints "ready <torch version>"; then, for each line "<case> <steps>" on standard input, trains that many steps of
that case and prints the milliseconds a step takes. Ends with standard input.
"""
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


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
}


def make_case(name):
    torch.manual_seed(1)
    make, shape = CASES[name]
    model = nn.parallel.DistributedDataParallel(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
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
        command = torch.tensor([-1, 0])
        if rank == 0:
            words = commands.readline().split()
            if words:
                command = torch.tensor([names.index(words[0]), int(words[1])])
        dist.broadcast(command, 0)
        index, steps = command.tolist()
        if index < 0:
            break
        if index not in cases:
            cases[index] = make_case(names[index])
            train(cases[index], 10)
        dist.barrier()
        start = time.perf_counter()
        train(cases[index], steps)
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
