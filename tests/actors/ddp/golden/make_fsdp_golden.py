#!/usr/bin/env python3
"""What PyTorch makes of fsdp_test.cpp's tower in one process, with the whole batch, to compare with.

Usage: make_fsdp_golden.py > fsdp_golden.txt     (needs torch and numpy; takes some seconds)

Weights and batches are formulas, the same as in fsdp_test.cpp. A line an optimizer: its name and the losses.
"""
import sys

import numpy as np
import torch
from torch import nn

STEPS, BATCH, WIDTH = 100, 12, 24


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.inlet = nn.Linear(8, WIDTH)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH + 3), nn.Tanh(), nn.Linear(WIDTH + 3, WIDTH))
            for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 5, bias=False)

    def forward(self, x):
        h = self.inlet(x)
        for layer in self.layers:
            h = h + layer(h)
        return self.head(self.norm(h))


def fill(net):
    with torch.no_grad():
        for position, parameter in enumerate(net.parameters(), 1):
            if parameter.dim() == 1:
                parameter.fill_(1 if parameter is net.norm.weight or any(parameter is l[0].weight for l in net.layers) else 0)
                continue
            i = np.arange(parameter.numel(), dtype=np.float64)
            values = np.sin(12.9898 * i + 78.233 * position) / 4
            parameter.copy_(torch.from_numpy(values.astype(np.float32)).reshape(parameter.shape))


def batch(step):
    i = np.arange(BATCH * 8, dtype=np.float64)
    y = (np.arange(BATCH) * 3 + step) % 5
    x = np.sin(0.37 * i + 1.7 * step).astype(np.float32)
    return torch.from_numpy(x).reshape(BATCH, 8), torch.from_numpy(y.astype(np.int64))


def make_optimizer(name, net):
    if name == "sgd":
        return torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=0.01)
    return torch.optim.AdamW(net.parameters(), lr=0.001, weight_decay=0.05)


def main():
    print(f"made with torch {torch.__version__}", file=sys.stderr)
    torch.set_num_threads(1)
    for name in ("sgd", "adamw"):
        net = Tower()
        fill(net)
        optimizer = make_optimizer(name, net)
        losses = []
        for step in range(STEPS):
            x, y = batch(step)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(name, *(f"{loss:.8g}" for loss in losses))


if __name__ == "__main__":
    main()
