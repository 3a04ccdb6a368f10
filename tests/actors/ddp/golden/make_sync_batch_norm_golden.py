#!/usr/bin/env python3
"""What PyTorch's BatchNorm makes of the batches of all ranks, one behind the other, to hold SyncBatchNorm to.

Usage: make_sync_batch_norm_golden.py > sync_batch_norm_golden.txt     (needs torch and numpy; takes some seconds)

torch.nn.SyncBatchNorm would have ranks to compare with, but takes tensors of a GPU alone; what it promises is this. Weights
and batches are formulas, the same as in normed_net.hpp. A line a kind of BatchNorm: its name, the losses of 100 steps, and
one in evaluation mode, which the running statistics make.
"""
import sys

import numpy as np
import torch
from torch import nn

STEPS, BATCH, CHANNELS, CLASSES = 100, 10, 4, 3
SPACE = {"flat": (), "1d": (5,), "2d": (4, 3), "3d": (3, 2, 2)}  # of [samples, 2, ...]


class NormedNet(nn.Module):
    def __init__(self, kind):
        super().__init__()
        inlet = {"1d": nn.Conv1d, "2d": nn.Conv2d, "3d": nn.Conv3d}.get(kind)
        norm = {"2d": nn.BatchNorm2d, "3d": nn.BatchNorm3d}.get(kind, nn.BatchNorm1d)
        self.inlet = inlet(2, CHANNELS, 3, padding=1) if inlet else nn.Linear(2, CHANNELS)
        self.norm = norm(CHANNELS)
        self.head = nn.Linear(CHANNELS, CLASSES)

    def forward(self, x):
        hidden = torch.tanh(self.norm(self.inlet(x)))
        return self.head(hidden.reshape(*hidden.shape[:2], -1).mean(2))


def fill(net):
    with torch.no_grad():
        for position, (name, parameter) in enumerate(net.named_parameters(), 1):
            if name.startswith("norm"):  # stays 1 and 0
                continue
            i = np.arange(parameter.numel(), dtype=np.float64)
            values = np.sin(12.9898 * i + 78.233 * position) / 2
            parameter.copy_(torch.from_numpy(values.astype(np.float32)).reshape(parameter.shape))


def batch(kind, step):
    """Each sample has a mean and a spread of its own, so that parts of the batch have other statistics than all of it."""
    shape = (BATCH, 2, *SPACE[kind])
    i = np.arange(np.prod(shape), dtype=np.float64)
    sample = np.repeat(np.arange(BATCH, dtype=np.float64), np.prod(shape[1:]))
    x = np.sin(0.37 * i + 1.7 * step) * (1 + sample / 3) + sample / 2
    y = (np.arange(BATCH) // 2 + step % 2) % CLASSES
    return torch.from_numpy(x.astype(np.float32)).reshape(shape), torch.from_numpy(y.astype(np.int64))


def train(kind):
    net = NormedNet(kind)
    fill(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(STEPS):
        x, y = batch(kind, step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    net.eval()
    x, y = batch(kind, 5000)
    with torch.no_grad():
        return [*losses, nn.functional.cross_entropy(net(x), y).item()]


if __name__ == "__main__":
    print(f"made with torch {torch.__version__}", file=sys.stderr)
    torch.set_num_threads(1)
    for name in SPACE:
        print(name, *(f"{loss:.8g}" for loss in train(name)))
