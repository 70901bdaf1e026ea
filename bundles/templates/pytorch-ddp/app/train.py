"""Fit a line to noisy points on all ranks, to see that PyTorch trains together; put your own training here.

It reads MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE, which every launcher of PyTorch sets.
"""

import gc
import json
import os

import torch
import torch.distributed as dist

# DistributedDataParallel imports this late, and the defaults of its functions then keep the process group, whose
# threads outlive Python and may abort the process at its end. Imported before there is a group, it keeps none.
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train, print the loss, and write it to the file that DEPLOYER_RESULT names."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # the threads of this rank
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # each rank has points of its own
    points = torch.rand(512, 1) * 2 - 1
    values = 3 * points + 1 + 0.01 * torch.randn(512, 1)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))  # all ranks start with the weights of rank 0
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    loss = torch.zeros(())
    for _ in range(200):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(points), values)
        loss.backward()  # averages the gradients over the ranks
        optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    if rank == 0:
        found = {"loss": total.item() / ranks, "world_size": ranks, "pytorch": torch.__version__}
        print(f"PyTorch {torch.__version__} on {ranks} ranks: loss {found['loss']:.5f}", flush=True)
        if os.environ.get("DEPLOYER_RESULT"):
            with open(os.environ["DEPLOYER_RESULT"], "w", encoding="utf-8") as stream:
                json.dump(found, stream)
    del model, optimizer, loss
    gc.collect()  # the model keeps the process group too
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
