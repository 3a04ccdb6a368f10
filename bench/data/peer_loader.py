"""What bench_data does, by PyTorch's DataLoader in one process: prints samples a second.

    peer_loader.py mnist|cifar10-crop-flip FOLDER

Transforms are torchvision's (crop and flip of a PIL image, ToTensor, Normalize) where it is installed, and the same on
tensors where it is not, which is faster.
"""
import gzip
import pathlib
import sys
import time

import numpy
import torch
from torch.utils.data import DataLoader, Dataset

MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
STD = torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)
name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
try:
    from torchvision import transforms
    augment = transforms.Compose([transforms.ToPILImage(), transforms.RandomCrop(32, padding=4),
                                  transforms.RandomHorizontalFlip(), transforms.ToTensor(),
                                  transforms.Normalize(MEAN.flatten().tolist(), STD.flatten().tolist())])
except (ImportError, RuntimeError):  # RuntimeError: it is of another torch
    augment = None


def read(stem):
    plain = folder / stem
    raw = plain.read_bytes() if plain.exists() else gzip.decompress((folder / (stem + ".gz")).read_bytes())
    return numpy.frombuffer(raw, numpy.uint8)


class Mnist(Dataset):
    def __init__(self):
        self.images = torch.from_numpy(read("train-images-idx3-ubyte")[16:].reshape(-1, 1, 28, 28).copy())
        self.labels = torch.from_numpy(read("train-labels-idx1-ubyte")[8:].copy()).long()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index].float().div_(255).sub_(0.1307).div_(0.3081), self.labels[index]


class Cifar(Dataset):
    def __init__(self):
        records = read("data_batch_1.bin").reshape(-1, 3073)
        self.images = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy())
        self.labels = torch.from_numpy(records[:, 0].copy()).long()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if augment:
            return augment(image), self.labels[index]
        top, left = torch.randint(0, 9, (2,)).tolist()
        image = torch.nn.functional.pad(image, (4, 4, 4, 4))[:, top:top + 32, left:left + 32]
        if torch.rand(()) < 0.5:
            image = image.flip(2)
        return image.float().div_(255).sub_(MEAN).div_(STD), self.labels[index]


torch.set_num_threads(1)
loader = DataLoader(Mnist() if name == "mnist" else Cifar(), batch_size=64, shuffle=True)
rates = []
for _ in range(3):
    start, samples = time.perf_counter(), 0
    for images, _ in loader:
        samples += len(images)
        if time.perf_counter() - start > 3:
            break
    rates.append(samples / (time.perf_counter() - start))
print(sorted(rates)[1])
