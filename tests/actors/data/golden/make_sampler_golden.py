#!/usr/bin/env python3
"""Writes sampler_golden.txt: what PyTorch's torch.randperm and DistributedSampler give.

Needs torch. Usage: make_sampler_golden.py > sampler_golden.txt

Lines:  randperm N SEED : positions...
        sampler N R RANK SEED EPOCH SHUFFLE DROP_LAST : positions...
        hash N RANDPERM_SEED : sha256 of the decimal positions joined by commas (for lists too long to commit)
"""
import hashlib

import torch
from torch.utils.data.distributed import DistributedSampler


def randperm(n, seed):
    generator = torch.Generator()
    generator.manual_seed(seed)
    return torch.randperm(n, generator=generator).tolist()


def line(*head, values):
    print(*head, ":", *values)


print("# torch", torch.__version__.split("+")[0])
for n, seed in [(0, 0), (1, 0), (2, 1), (11, 0), (32, 7), (100, 123456789), (10, 2**32 - 1), (10, 2**32 + 5)]:
    line("randperm", n, seed, values=randperm(n, seed))
for n, seed in [(60000, 0), (60000, 7), (70001, 3)]:
    text = ",".join(map(str, randperm(n, seed)))
    line("hash", n, seed, values=[hashlib.sha256(text.encode()).hexdigest()])
for n, ranks, seed, epoch in [(11, 4, 0, 0), (11, 4, 0, 1), (12, 4, 5, 3), (3, 8, 0, 0), (1, 3, 2, 2), (29, 5, 7, 9)]:
    for shuffle in (True, False):
        for drop_last in (False, True):
            for rank in range(ranks):
                sampler = DistributedSampler(
                    range(n), num_replicas=ranks, rank=rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
                sampler.set_epoch(epoch)
                line("sampler", n, ranks, rank, seed, epoch, int(shuffle), int(drop_last), values=list(sampler))
