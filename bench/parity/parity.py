#!/usr/bin/env python3
"""The same training in troupe and in PyTorch DDP, step by step: how far do the losses part?

    bench/parity/parity.py [--program build/release/bin/bench_parity] [--steps 200] [--json FILE]

Five programs train in troupe with two trainers and are recorded: initial weights, batches, losses. PyTorch's
DistributedDataParallel (two processes, gloo) then takes the same weights and batches. Run it with a Python whose torch is
of the release that bench_parity was built with. Exits with 1 when a loss differs by more than 1e-4.
"""
import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
PROGRAMS = ["mnist", "cifar", "adamw", "accumulate", "lstm"]
LIMIT = 1e-4


def make(name):
    """Model, optimizer, scheduler and loss of a program."""
    import torch
    from torch import nn

    class ConvNet(nn.Module):
        def __init__(self, channels, kernel, features, *after):
            super().__init__()
            def block(inputs, outputs):
                return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2), nn.BatchNorm2d(outputs),
                                     *after)
            self.layer1 = block(channels, 16)
            self.layer2 = block(16, 32)
            self.fc = nn.Linear(features, 10)

        def forward(self, images):
            return self.fc(self.layer2(self.layer1(images)).flatten(1))

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden = nn.Linear(784, 128)
            self.output = nn.Linear(128, 10)

        def forward(self, images):
            return self.output(torch.relu(self.hidden(images.flatten(1))))

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(50, 32)
            self.lstm = nn.LSTM(32, 64, batch_first=True)
            self.output = nn.Linear(64, 50)

        def forward(self, tokens):
            return self.output(self.lstm(self.embedding(tokens))[0])

    optim = torch.optim
    if name == "mnist":
        model = ConvNet(1, 5, 32 * 7 * 7, nn.ReLU(), nn.MaxPool2d(2))
        return model, optim.SGD(model.parameters(), lr=0.02, momentum=0.9), None
    if name == "cifar":
        model = ConvNet(3, 3, 32 * 8 * 8, nn.GELU(), nn.AvgPool2d(2))
        return model, optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4), None
    if name == "adamw":
        model = Mlp()
        optimizer = optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
        factor = lambda step: min((step + 1) / 20, 0.99**step)
        return model, optimizer, optim.lr_scheduler.LambdaLR(optimizer, factor)
    if name == "accumulate":
        model = Mlp()
        return model, optim.SGD(model.parameters(), lr=0.05, momentum=0.9), None
    model = Reader()
    return model, optim.Adam(model.parameters(), lr=3e-3), None


def train(name, rank, port, folder, steps):
    import contextlib
    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    module, optimizer, scheduler = make(name)
    module.load_state_dict(dict(torch.load(folder / "initial.pt")))
    model = torch.nn.parallel.DistributedDataParallel(module)
    leaves = [2 * rank, 2 * rank + 1] if name == "accumulate" else [rank]
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        told = torch.zeros(2, dtype=torch.float64)  # summed loss, weight
        for leaf in leaves:
            batch = torch.load(folder / f"{step}-{leaf}.pt")
            inputs, targets = batch["input"], batch["target"]
            with model.no_sync() if leaf != leaves[-1] else contextlib.nullcontext():
                out = model(inputs)
                if name == "lstm":
                    words = (targets != -100).sum().double()
                    loss = cross_entropy(out.flatten(0, 1), targets.flatten(), reduction="sum")
                    told += torch.stack([loss.detach().double(), words])
                    dist.all_reduce(words)
                    (loss * 2 / words).backward()
                else:
                    loss = cross_entropy(out, targets)
                    told += torch.tensor([loss.item(), 1.0], dtype=torch.float64)
                    (loss / len(leaves)).backward()
        if name == "adamw":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if scheduler:
            scheduler.step()
        dist.all_reduce(told)
        losses.append((told[0] / told[1]).item())
    if rank == 0:
        (folder / "torch.txt").write_text("\n".join(map(repr, losses)))
    dist.destroy_process_group()


def data_folder(named, name, file):
    candidates = [named] if named else [os.environ.get("TROUPE_DATA_DIR", "") + "/" + name, ROOT / "../shared/data" / name]
    for folder in map(pathlib.Path, candidates):
        if any((folder / (file + end)).exists() for end in ("", ".gz")):
            return str(folder.resolve())
    sys.exit(f"parity: no {name} was found: name its folder with --{name}")


def compare(name, folder, options):
    """Largest difference of the losses, and the step where it is."""
    command = [options.program, name, str(folder), "--mnist", options.mnist, "--cifar", options.cifar10,
               "--steps", str(options.steps)]
    if subprocess.run(command).returncode != 0:
        sys.exit(f"parity: {' '.join(command)} failed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [subprocess.Popen([sys.executable, str(HERE), "--rank", str(rank), "--port", str(port), "--only", name,
                               "--folder", str(folder), "--steps", str(options.steps)]) for rank in range(2)]
    if any([rank.wait() for rank in ranks]):
        sys.exit(f"parity: PyTorch failed in {name}")
    ours, theirs = ([float(line) for line in (folder / file).read_text().split()] for file in ("losses.txt", "torch.txt"))
    apart = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    worst = max(range(len(apart)), key=apart.__getitem__)
    print(f"{name:11} {len(ours)} steps, loss {ours[0]:.4f} to {ours[-1]:.4f}, largest difference {apart[worst]:.1e} "
          f"at step {worst + 1}", flush=True)
    return {"bench": "parity", "case": name, "ours": ours[-1], "peer": theirs[-1], "peer_name": "PyTorch DDP",
            "difference": apart[worst], "unit": "loss"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/bench_parity"))
    parser.add_argument("--only", choices=PROGRAMS, help="one program (default: all five)")
    parser.add_argument("--mnist", default="", help="folder with the MNIST files")
    parser.add_argument("--cifar10", default="", help="folder with the CIFAR-10 files")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", default="", help="write the results to this file, one object a line")
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank >= 0:
        return train(options.only, options.rank, options.port, pathlib.Path(options.folder), options.steps)
    if not os.access(options.program, os.X_OK):
        sys.exit(f"parity: no program '{options.program}': build it with ./check, or name it with --program")
    options.mnist = data_folder(options.mnist, "mnist", "train-images-idx3-ubyte")
    options.cifar10 = data_folder(options.cifar10, "cifar10", "data_batch_1.bin")
    results = []
    for name in [options.only] if options.only else PROGRAMS:
        with tempfile.TemporaryDirectory(prefix="troupe-parity-") as folder:
            results.append(compare(name, pathlib.Path(folder), options))
    if options.json:
        pathlib.Path(options.json).write_text("".join(json.dumps(result) + "\n" for result in results))
    sys.exit(any(result["difference"] > LIMIT for result in results))


if __name__ == "__main__":
    main()
