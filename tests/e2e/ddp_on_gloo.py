# An ordinary DDP script of PyTorch's: nothing in it knows of a launcher but by the environment. Rank 0 prints a hash of the
# parameters that it ends with.
import hashlib
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    assert rank == int(os.environ["RANK"]) and dist.get_world_size() == int(os.environ["WORLD_SIZE"])
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(512, 20, generator=generator)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    torch.manual_seed(7)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch, target in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(batch), target)
            loss.backward()
            optimizer.step()
    if rank == 0:
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        print("loss %.6f parameters %s" % (loss.item(), digest.hexdigest()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
