"""Trials of ASHA on MNIST in Ray Tune, for bench_tune --asha N --ray PYTHON: ray_asha.py FOLDER TRIALS.JSON

TRIALS.JSON has what bench_tune ran: "configs", "samples", "evaluated", "epochs", "batch". Prints one JSON object:
"seconds" of Tuner.fit(), and "epochs", those that its trials trained. The data are read once, into Ray's object store;
trials of one thread run two at a time. Tensors are made without NumPy's bridge, so that a torch older than NumPy will do:
PYTHONPATH=FOLDER, with links to torch and torchgen of Debian's python3-torch in it, gives the peer the LibTorch that
bench_tune was built with.
"""
import gzip
import json
import os
import pathlib
import sys
import tempfile
import time

import numpy
import ray
import torch
from ray import tune
from torch import nn


def read_idx(folder, stem):
    plain = folder / stem
    raw = plain.read_bytes() if plain.exists() else gzip.decompress((folder / (stem + ".gz")).read_bytes())
    dimensions = raw[3]
    shape = [int.from_bytes(raw[4 + 4 * i:8 + 4 * i], "big") for i in range(dimensions)]
    return numpy.frombuffer(raw, numpy.uint8, offset=4 + 4 * dimensions).reshape(shape)


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 5, padding=2), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))


def train(config, images, labels, test_images, test_labels, of):
    torch.set_num_threads(1)
    torch.manual_seed(7)
    here = of["configs"][config["trial"]]
    net = nn.Sequential(block(1, 16), block(16, 32), nn.Flatten(), nn.Linear(7 * 7 * 32, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=here["lr"], momentum=here["momentum"])

    def tensor(array):
        return torch.frombuffer(array, dtype=torch.uint8).view(array.shape)

    images, test_images = tensor(images), tensor(test_images)
    labels, test_labels = tensor(labels).long(), tensor(test_labels).long()

    def batch(pixels, which):
        return pixels[which].unsqueeze(1).float().div_(255).sub_(0.1307).div_(0.3081)

    for epoch in range(of["epochs"]):
        net.train()
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for begin in range(0, len(order), of["batch"]):
            which = order[begin:begin + of["batch"]]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(batch(images, which)), labels[which])
            loss.backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            right = 0
            for begin in range(0, len(test_labels), 250):
                which = torch.arange(begin, min(begin + 250, len(test_labels)))
                right += int((net(batch(test_images, which)).argmax(1) == test_labels[which]).sum())
        tune.report({"accuracy": right / len(test_labels)})


def main():
    folder = pathlib.Path(sys.argv[1])
    of = json.loads(pathlib.Path(sys.argv[2]).read_text())
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        os.environ.pop(name, None)
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=400 << 20)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as results:
        begin = time.monotonic()
        data = {"images": read_idx(folder, "train-images-idx3-ubyte")[:of["samples"]],
                "labels": read_idx(folder, "train-labels-idx1-ubyte")[:of["samples"]],
                "test_images": read_idx(folder, "t10k-images-idx3-ubyte")[:of["evaluated"]],
                "test_labels": read_idx(folder, "t10k-labels-idx1-ubyte")[:of["evaluated"]]}
        asha = tune.schedulers.ASHAScheduler(max_t=of["epochs"], grace_period=1, reduction_factor=3)
        tuner = tune.Tuner(
            tune.with_resources(tune.with_parameters(train, of=of, **data), {"cpu": 1}),
            param_space={"trial": tune.grid_search(list(range(len(of["configs"]))))},
            tune_config=tune.TuneConfig(metric="accuracy", mode="max", scheduler=asha, max_concurrent_trials=2,
                                        reuse_actors=True),
            run_config=tune.RunConfig(storage_path=results, name="asha", verbose=0))
        done = tuner.fit()
        seconds = time.monotonic() - begin
    best = done.get_best_result().metrics["accuracy"]
    print(json.dumps({"seconds": seconds, "epochs": sum(one.metrics["training_iteration"] for one in done),
                      "best": best, "torch": torch.__version__}))


main()
