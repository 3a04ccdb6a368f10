#!/usr/bin/env python3
"""What PyTorch's DistributedDataParallel (gloo, 2 ranks) makes of a small net, to compare with.

Usage: make_ddp_golden.py > ddp_golden.txt     (needs torch 2.x and numpy; takes half a minute)

Weights and batches are formulas, the same as in parity_test.cpp. A line a case and rank: "case rank : loss ...", and a
line "case scale : scale ..." of the loss scaler.
"""
import contextlib
import os
import socket
import sys

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook as power

STEPS, BATCH, LEARNING_RATE, MOMENTUM = 100, 6, 0.02, 0.5
CASES = ("ddp", "allreduce", "fp16", "bf16", "power_sgd", "power_sgd_2", "no_sync", "unused", "join", "join_current",
         "scaler", "autocast")


class Net(nn.Module):
    def __init__(self, with_norm):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.spare = nn.Linear(12, 16)
        self.norm = nn.BatchNorm1d(16) if with_norm else nn.Identity()

    def forward(self, x, with_spare):
        hidden = torch.tanh(self.norm(self.a(x)))
        if with_spare:
            hidden = hidden + 0.1 * torch.tanh(self.spare(x))
        return self.c(torch.tanh(self.b(hidden)))


def fill(net):
    with torch.no_grad():
        position = 0
        for name, parameter in net.named_parameters():
            position += 1
            if name.startswith("norm"):  # stays 1 and 0
                continue
            i = np.arange(parameter.numel(), dtype=np.float64)
            values = np.sin(12.9898 * i + 78.233 * position) / 4
            parameter.copy_(torch.from_numpy(values.astype(np.float32)).reshape(parameter.shape))


def batch(step, rank):
    i = np.arange(BATCH * 12, dtype=np.float64)
    x = np.sin(0.37 * i + 1.7 * step + 0.9 * rank)
    y = (np.arange(BATCH) * 3 + step + rank) % 4
    return torch.from_numpy(x.astype(np.float32)).reshape(BATCH, 12), torch.from_numpy(y.astype(np.int64))


def compress_to_bf16(group, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return default_hooks._compress_hook(torch.bfloat16, group, bucket)


def steps_of(case, rank):
    return 60 if case.startswith("join") and rank == 1 else STEPS


def uses_spare(case, step, rank):
    """Nobody in a third of the steps, rank 1 alone in another, both in the last."""
    if case != "unused":
        return True
    return step % 3 == 2 or (step % 3 == 1 and rank == 1)


def train(rank, case, losses, scales):
    net = Net(with_norm=case == "ddp")
    fill(net)
    model = nn.parallel.DistributedDataParallel(net, find_unused_parameters=case == "unused")
    if case == "allreduce":
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    if case == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if case == "bf16":
        model.register_comm_hook(None, compress_to_bf16)  # by another name: PyTorch takes its own for NCCL alone
    if case.startswith("power_sgd"):
        state = power.PowerSGDState(None, matrix_approximation_rank=2 if case.endswith("2") else 1,
                                    start_powerSGD_iter=2, min_compression_rate=1.5 if case.endswith("2") else 2)
        model.register_comm_hook(state, power.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    scaler = torch.amp.GradScaler("cpu", growth_interval=5, enabled=case == "scaler")

    def loss_of(step):
        x, y = batch(step, rank)
        with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
            output = model(x, uses_spare(case, step % STEPS, rank))
        return nn.functional.cross_entropy(output.float(), y)

    joining = model.join(divide_by_initial_world_size=case == "join") if case.startswith("join") else contextlib.nullcontext()
    with joining:
        for step in range(steps_of(case, rank)):
            optimizer.zero_grad()
            if case == "no_sync":
                with model.no_sync():
                    loss_of(step + 1000).backward()
            loss = loss_of(step)
            if case == "scaler" and step % 17 == 10 and rank == 1:
                loss = loss * float("inf")
            losses[rank, step] = loss.item()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if case == "scaler":
                scales[step] = scaler.get_scale()
    # What all have in the end.
    x, y = batch(5000, 0)
    model.eval()
    with torch.no_grad():
        losses[rank, STEPS] = nn.functional.cross_entropy(net(x, True), y).item()


def serve(rank, port, losses, scales):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    for i, case in enumerate(CASES):
        train(rank, case, losses[i], scales)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free_port = probe.getsockname()[1]
    all_losses = torch.zeros(len(CASES), 2, STEPS + 1, dtype=torch.float64).share_memory_()
    all_scales = torch.zeros(STEPS, dtype=torch.float64).share_memory_()
    mp.spawn(serve, args=(free_port, all_losses, all_scales), nprocs=2)
    print(f"made with torch {torch.__version__}", file=sys.stderr)
    for i, case in enumerate(CASES):
        for rank in range(2):
            kept = [*all_losses[i, rank, :steps_of(case, rank)].tolist(), all_losses[i, rank, STEPS].item()]
            print(case, rank, ":", *(f"{loss:.8g}" for loss in kept))
    print("scaler", "scale", ":", *(f"{scale:.12g}" for scale in all_scales.tolist()))
