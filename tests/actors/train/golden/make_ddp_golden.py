#!/usr/bin/env python3
"""Losses of PyTorch's DistributedDataParallel (gloo, 2 ranks) for the ConvNet of examples/mnist, to compare with.

Usage: make_ddp_golden.py > ddp_losses.txt     (needs torch and numpy; takes a few seconds)

Weights and images are formulas, the same as in ddp_golden_test.cpp, so that nothing but losses is stored: one line
a step, "loss_of_rank_0 loss_of_rank_1".
"""
import os
import socket
import sys

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

STEPS, BATCH, LEARNING_RATE, MOMENTUM = 200, 10, 0.01, 0.9


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 5, padding=2), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1, self.layer2, self.fc = block(1, 16), block(16, 32), nn.Linear(7 * 7 * 32, 10)

    def forward(self, images):
        return self.fc(self.layer2(self.layer1(images)).flatten(1))


def set_weights(net):
    """Each weight of the p-th parameter with a fan-in: sin of a phase, scaled like a uniform initialisation."""
    with torch.no_grad():
        for p, (name, parameter) in enumerate(net.named_parameters()):
            if ".1." in name:  # BatchNorm stays 1 and 0
                continue
            fan_in = parameter[0].numel()
            i = np.arange(parameter.numel(), dtype=np.float64)
            values = np.sin(12.9898 * i + 78.233 * (p + 1)) / np.sqrt(fan_in)
            parameter.copy_(torch.from_numpy(values.astype(np.float32)).reshape(parameter.shape))


def image_batch(step, leaf, size):
    """The formula of image_batch in train_jobs.cpp."""
    i = np.arange(size).reshape(-1, 1, 1)
    y = np.arange(28).reshape(1, -1, 1)
    x = np.arange(28).reshape(1, 1, -1)
    label = (step * 7 + leaf * 3 + i) % 10
    noise = (x * 31 + y * 17 + step * 13 + leaf * 5 + i * 11) % 23
    pixels = np.sin(0.11 * (label + 1) * x + 0.23 * y) + noise / 23.0 - 0.5
    return torch.from_numpy(pixels.astype(np.float32)).unsqueeze(1), torch.from_numpy(label.reshape(-1).astype(np.int64))


def train(rank, port, losses):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    net = ConvNet()
    set_weights(net)
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    for step in range(STEPS):
        images, labels = image_batch(step, rank, BATCH)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses[rank, step] = loss.item()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free_port = probe.getsockname()[1]
    shared = torch.zeros(2, STEPS, dtype=torch.float64).share_memory_()
    mp.spawn(train, args=(free_port, shared), nprocs=2)
    print(f"made with torch {torch.__version__}", file=sys.stderr)
    for first, second in shared.t().tolist():
        print(f"{first:.9f} {second:.9f}")
