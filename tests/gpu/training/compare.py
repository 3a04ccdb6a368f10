#!/usr/bin/env python3
"""Trains nets of the examples with one and two trainers and with one killed, and by DistributedDataParallel and
FullyShardedDataParallel by hand on one and two ranks. Prints a table: how fast, against the same loop in plain LibTorch, how busy the GPU was, and the hash of each
result.

    tests/gpu/training/compare.py [--programs build/gpu-training/bin] [--on-cpu] [--epochs N]

Two trainers, or ranks, share one GPU; where there are two, they also train with one each. Every run of a net must end with
the same hash, by hand with that of the plain loop. Exit code: 0; 77: there is no GPU; 1: a program failed; 3: hashes differ. --on-cpu does the same on the CPU, to test
this script. Needs no module of Python but its own.
"""
import argparse
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
NO_GPU, FAILED, DIFFERENT = 77, 1, 3
NO_DATA = "left out: its files are not here"
RUN_SECONDS = 300  # the most that one program may take
NVIDIA_SMI = ["nvidia-smi", "--query-gpu=index,utilization.gpu,memory.used", "--format=csv,noheader,nounits"]


class GpuWatch:
    """Asks nvidia-smi (which asks NVML) ten times a second how busy the GPUs are, while a run lasts."""

    def __init__(self):
        self.samples = []  # (time, index, per cent of the time that a kernel ran, MiB)

    def __enter__(self):
        self.asking = subprocess.Popen([*NVIDIA_SMI, "-lms", "100"], stdout=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        return self

    def __exit__(self, *_):
        self.asking.terminate()
        self.asking.wait()
        self.reader.join()

    def read(self):
        for line in self.asking.stdout:
            fields = line.strip().split(", ")
            if len(fields) == 3 and all(field.isdigit() for field in fields):
                self.samples.append((time.time(), *map(int, fields)))

    def busiest(self, begin, end):
        """Of the GPU that was busiest between two times: mean per cent, largest MiB. None: no sample."""
        by_gpu = {}
        for moment, gpu, busy, mib in self.samples:
            if begin <= moment <= end:
                by_gpu.setdefault(gpu, []).append((busy, mib))
        means = [(sum(b for b, _ in of) / len(of), max(m for _, m in of)) for of in by_gpu.values()]
        return max(means, default=None)


class NoWatch(GpuWatch):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@dataclasses.dataclass
class Row:
    net: str
    what: str
    by_hand: bool = False  # of a net that is trained by DistributedDataParallel by hand, and the plain loop for it
    rate: float = 0  # samples a second; 0: not measured
    hash: str = ""
    gpu: tuple = None
    error: str = ""


def run(net, what, command, watch, by_hand=False):
    """One row of the table. What the program printed is shown where it failed."""
    print(f"==> {net}, {what}: {' '.join(map(str, command))}", flush=True)
    row = Row(net, what, by_hand)
    with watch() as seen:
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=RUN_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            row.error = f"{error}"
            print(row.error)
            return row
    rate = re.search(r"^samples_per_s ([0-9.]+)$", done.stdout, re.M)
    measured = re.search(r"^measured from ([0-9.]+) to ([0-9.]+)$", done.stdout, re.M)
    found = re.search(r"^state sha256 ([0-9a-f]{64})$", done.stdout, re.M)
    row.hash = found.group(1) if found else ""
    if done.returncode == 77:
        row.error = NO_DATA
        print(done.stdout)
    elif done.returncode != 0:
        row.error = f"exit code {done.returncode}"
        print(done.stdout)
    elif rate and measured:
        row.rate = float(rate.group(1))
        row.gpu = seen.busiest(*map(float, measured.groups()))
    return row


def print_table(rows):
    """Returns the exit code."""
    plain = {(row.net, row.by_hand): row.rate for row in rows if row.what.startswith("plain")}
    expected, code = {}, 0
    print(f"\n{'net':8} {'run':40} {'samples/s':>10} {'of plain':>8} {'GPU busy':>8} {'GPU MiB':>8}  {'hash':12} verdict")
    for row in rows:
        verdict = "same"
        if row.error == NO_DATA:
            verdict = row.error
        elif row.error:
            verdict, code = f"FAILED: {row.error}", FAILED
        elif row.what.startswith("plain") and not row.by_hand:
            verdict = ""  # its hash is of the parameters, and a job's of all that a step changes
        elif not row.hash:
            verdict, code = "FAILED: it printed no hash", FAILED
        elif row.hash != expected.setdefault((row.net, row.by_hand), row.hash):
            verdict, code = "DIFFERENT", code or DIFFERENT
        rate = f"{row.rate:,.0f}" if row.rate else "-"
        peer = plain.get((row.net, row.by_hand))
        share = f"{row.rate / peer:.2f}" if row.rate and peer else "-"
        busy, mib = (f"{row.gpu[0]:.0f} %", str(row.gpu[1])) if row.gpu else ("-", "-")
        print(f"{row.net:8} {row.what:40} {rate:>10} {share:>8} {busy:>8} {mib:>8}  {row.hash[:12]:12} {verdict}")
    return code


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=str(ROOT / "build/gpu-training/bin"), help="folder of mnist and gpu_training")
    parser.add_argument("--on-cpu", action="store_true", help="train on the CPU, a tenth as long")
    parser.add_argument("--epochs", type=int, default=0, help="passes over the data [default: 3 of MNIST, 12 of CIFAR-10]")
    options = parser.parse_args()
    programs = pathlib.Path(options.programs).resolve()
    training, mnist = programs / "gpu_training", programs / "mnist"
    for program in (training, mnist):
        if not os.access(program, os.X_OK):
            print(f"compare.py: no program {program}: tests/gpu/run builds it", file=sys.stderr)
            return FAILED
    gpus = 0
    if not options.on_cpu:
        try:
            gpus = len(subprocess.check_output(NVIDIA_SMI, stderr=subprocess.DEVNULL).splitlines())
        except (OSError, subprocess.CalledProcessError):
            print("gpu: skipped: nvidia-smi finds no GPU")
            return NO_GPU

    one, half = ("0", "0") if options.on_cpu else ("1", "0.5")  # GPUs of a trainer
    epochs = {"mnist": 1, "cifar10": 1} if options.on_cpu else {"mnist": 3, "cifar10": 12}
    nets = {"mnist": ["--batch", "25", "--samples", "6000" if options.on_cpu else "0"], "cifar10": ["--batch", "50"]}
    watch = NoWatch if options.on_cpu else GpuWatch
    rows = []
    for net, size in nets.items():
        size += ["--epochs", str(options.epochs or epochs[net])]
        ours = [training, net, *size]
        rows.append(run(net, "plain LibTorch", [*ours, "--plain", "--gpus", one], watch))
        if rows[-1].error == NO_DATA:
            continue
        rows.append(run(net, "1 trainer", [*ours, "--gpus", one], watch))
        rows.append(run(net, "2 trainers", [*ours, "--trainers", "2", "--gpus", half], watch))
        if gpus >= 2:  # then gradients go over NCCL
            rows.append(run(net, "2 trainers, a GPU each", [*ours, "--trainers", "2", "--gpus", "1"], watch))
        rows.append(run(net, "2 trainers, one killed", [*ours, "--trainers", "2", "--gpus", half, "--kill-at", "25"], watch))
        # Two micro-batches of twice the size: their sum is the same, however many ranks they are dealt to.
        by_hand = [training, net, "--logical-ranks", "2", "--batch", str(2 * int(size[1])), *size[2:]]
        rows.append(run(net, "plain LibTorch, 2 micro-batches", [*by_hand, "--plain", "--gpus", one], watch, True))
        for ranks, held, what in ((1, one, "1 rank"), (2, half, "2 ranks")) + (((2, one, "2 ranks, a GPU each"),) if gpus >= 2 else ()):
            for name, flags in (("DDP", []), ("FSDP", ["--sharded"])):
                rows.append(run(net, f"{name} by hand, {what}", [*by_hand, "--by-hand", str(ranks), *flags, "--gpus", held], watch, True))
        if net == "mnist":
            example = [mnist, "--micro-batch", *size[1:], "--trainers", "2", "--trainer-gpus"]
            rows.append(run(net, "examples/mnist, 2 trainers", [*example, half], watch))
            by_size = ["--shard-min-num-params", "1000"]
            by_name = ["--shard-min-num-params", "0", "--shard-units", "layer2,fc", "--shard-prefetch"]
            shards = {"sharded": ["parameters", *by_size], "by name, prefetch": ["parameters", *by_name],
                      "gradients": ["gradients", *by_size], "optimizer": ["optimizer"]}
            for held, each in ((half, ""),) + (((one, ", a GPU each"),) if gpus >= 2 else ()):  # then over NCCL
                for what, flags in shards.items():
                    rows.append(run(net, f"examples/mnist, {what}{each}", [*example, held, "--shard", *flags], watch))
            # As many trainers as leaves: with one of these it is another net.
            synced = [training, net, *size, "--sync-batch-norm", "--logical-ranks", "2", "--trainers", "2"]
            for held, each in ((half, ""),) + (((one, ", a GPU each"),) if gpus >= 2 else ()):
                rows.append(run("synced", f"SyncBatchNorm{each}", [*synced, "--gpus", held], watch))
            rows.append(run("synced", "SyncBatchNorm, one killed", [*synced, "--gpus", half, "--kill-at", "25"], watch))
    return print_table(rows)


if __name__ == "__main__":
    sys.exit(main())
