#!/usr/bin/env python3
"""What PyTorch makes of tower.hpp's net when ranks reduce as Horovod's DistributedOptimizer does, to compare with.

Usage: make_horovod_golden.py > horovod_golden.txt     (needs torch and numpy; takes some seconds)

PyTorch has no Adasum. So nets and optimizers are PyTorch's, a copy a rank in one process, and what ranks do with each other
is here after Horovod's source (horovod/torch/optimizer.py, and FusedPairwiseReduceWithComm in
horovod/common/ops/adasum/adasum.h). A line a case: its name and the mean loss of each step.
"""
import math
import sys

import torch
from torch import nn

from make_fsdp_golden import STEPS, Tower, batch, fill, make_optimizer

SMALLEST = math.sqrt(sys.float_info.min)  # DBL_MIN


def adasum(a, b):
    """Of two ranks' changes of one parameter; products in double, as there."""
    x, y = a.double().flatten(), b.double().flatten()
    ab, aa, bb = (x @ y).item(), (x @ x).item(), (y @ y).item()
    of_a = 1 - ab / aa * 0.5 if aa >= SMALLEST else 1.0
    of_b = 1 - ab / bb * 0.5 if bb >= SMALLEST else 1.0
    return (of_a * a.double() + of_b * b.double()).float()


def over_ranks(values):
    while len(values) > 1:
        values = [adasum(a, b) for a, b in zip(values[::2], values[1::2])]
    return values[0]


def step_by_adasum(nets, optimizers):
    """Each rank steps by itself; all take Adasum of the changes (_DistributedAdasumOptimizer)."""
    start = [p.detach().clone() for p in nets[0].parameters()]
    for optimizer in optimizers:
        optimizer.step()
    with torch.no_grad():
        for was, *ranks in zip(start, *(net.parameters() for net in nets)):
            now = was + over_ranks([p - was for p in ranks])
            for p in ranks:
                p.copy_(now)


def step_by_average(nets, optimizers):
    for ranks in zip(*(net.parameters() for net in nets)):
        mean = sum(p.grad for p in ranks) / len(ranks)
        for p in ranks:
            p.grad.copy_(mean)
    for optimizer in optimizers:
        optimizer.step()


def train(ranks, passes, make, reduce):
    nets = [Tower() for _ in range(ranks)]
    for net in nets:
        fill(net)
    optimizers = [make(net) for net in nets]
    losses = []
    for step in range(STEPS):
        told = 0.0
        for rank, (net, optimizer) in enumerate(zip(nets, optimizers)):
            optimizer.zero_grad()
            for number in range(passes):
                x, y = (of_all.chunk(ranks)[rank] for of_all in batch(step * passes + number))
                loss = nn.functional.cross_entropy(net(x), y)
                loss.backward()
                told += loss.item() / ranks / passes
        reduce(nets, optimizers)
        losses.append(told)
    return losses


def sgd(net):
    """Of make_fsdp_golden.py's rate a rounding error grows to 1e-3 in 100 such steps, which are larger."""
    return torch.optim.SGD(net.parameters(), lr=0.005, momentum=0.5)


CASES = {
    "adasum": (2, 1, sgd, step_by_adasum),
    "adasum_of_small_changes": (4, 1, lambda net: torch.optim.SGD(net.parameters(), lr=1e-3), step_by_adasum),
    "adasum_of_2_passes": (4, 2, lambda net: make_optimizer("adamw", net), step_by_adasum),
    "average_of_3_passes": (2, 3, sgd, step_by_average),
}

if __name__ == "__main__":
    print(f"made with torch {torch.__version__}", file=sys.stderr)
    torch.set_num_threads(1)
    for name, case in CASES.items():
        print(name, *(f"{loss:.8g}" for loss in train(*case)))
