#!/usr/bin/env python3
"""What torch.save writes, to read.

Usage: make_torch_saved.py FOLDER     (needs torch; the files here are of torch 2.13)
"""
import argparse
import collections
import sys

import torch


def state_dict():
    shared = torch.arange(6, dtype=torch.float32) / 4
    state = collections.OrderedDict()
    state["a.weight"] = torch.nn.Parameter(shared.view(2, 3))
    state["a.part"] = shared[2:5]  # a view of the same storage
    state["b.half"] = torch.tensor([0.5, -2.0], dtype=torch.float16)
    state["b.bfloat"] = torch.tensor([0.5, -2.0], dtype=torch.bfloat16)
    state["b.steps"] = torch.tensor(5)
    state["b.mask"] = torch.tensor([True, False, True])
    state["c.turned"] = torch.arange(6, dtype=torch.float64).view(2, 3).t()  # [3, 2], not row-major
    state["c.none"] = torch.empty(0, 4)
    state["_extra_state"] = {"version": 1}
    state._metadata = collections.OrderedDict({"": {"version": 1}})
    return state


if __name__ == "__main__":
    folder = sys.argv[1]
    torch.save(state_dict(), f"{folder}/state_dict.pt")
    torch.save(dict(state_dict()), f"{folder}/protocol_4.pt", pickle_protocol=4)
    torch.save({"epoch": 3, "rate": 1e-3, "step": 1 << 40, "names": ["a", None], "hyper_parameters": argparse.Namespace(lr=0.1),
                "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
                "state_dict": state_dict()}, f"{folder}/checkpoint.pt")
    torch.save(torch.nn.Linear(2, 2), f"{folder}/module.pt")
