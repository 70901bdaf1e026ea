"""Train a small CNN on handwritten digits, data-parallel over all ranks by PyTorch's DistributedDataParallel.

Each rank trains on its own shard of the 1,437 training images. Gradients are averaged by NCCL on GPUs, by gloo on CPUs;
the learning rate is scaled by the number of ranks. The other 360 images are held out, the same for every rank and every
world size. Rank 0 writes what came out as JSON to the file that DEPLOYER_RESULT names.

It needs what every launcher of PyTorch sets: MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE and, on GPUs, LOCAL_RANK.
"""

import argparse
import gc
import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist

# DistributedDataParallel imports this late, and the defaults of its functions then keep the process group, whose
# threads outlive Python and may abort the process at its end (seen). Imported before there is a group, it keeps none.
import torch.distributed.nn
from torch import nn
from torch.nn.parallel import DistributedDataParallel

DATA = "/opt/digits/digits.npz"
SEED = 20151
HELD_OUT = 360  # 20 %
CLASSES = 10


def take_device() -> torch.device:
    """Return the GPU of this rank, or the CPU with the threads that the job gave this rank."""
    if torch.cuda.is_available():
        # A rank that sees one GPU alone takes that one, whatever its number on the node is.
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    return torch.device("cpu")


def load_digits(device):
    """Return train images, train labels, held-out images, held-out labels; images are float32 [n, 1, 8, 8] in 0..1."""
    with np.load(DATA) as data:
        images, labels = data["images"].astype("float32")[:, np.newaxis] / 16.0, data["labels"].astype("int64")
    order = np.random.default_rng(SEED).permutation(len(images))
    images, labels = torch.from_numpy(images[order]).to(device), torch.from_numpy(labels[order]).to(device)
    return images[HELD_OUT:], labels[HELD_OUT:], images[:HELD_OUT], labels[:HELD_OUT]


def build_model() -> nn.Module:
    """Return the untrained CNN."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(128, CLASSES),
    )


def mean_of_ranks(value: float, device) -> float:
    """Return the mean of a number over all ranks."""
    total = torch.tensor([value], dtype=torch.float32, device=device)
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def weights_are_equal(model: nn.Module) -> bool:
    """Return whether all ranks ended with the same weights, bit by bit."""
    own = torch.cat([item.detach().flatten() for item in model.parameters()])
    everyone = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, own)
    return all(torch.equal(own, other) for other in everyone)


def main() -> None:
    """Join the other ranks, train, and leave them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--learning-rate", type=float, default=0.001, help="of one rank; scaled by the ranks")
    options = parser.parse_args()

    device = take_device()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    train(options, device)
    gc.collect()  # the model keeps the process group too
    dist.destroy_process_group()


def train(options, device) -> None:
    """Train, and write the result."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED + rank)

    train_images, train_labels, val_images, val_labels = load_digits(device)
    # Equal shards: a rank with one step more than the others would wait for ever in its last allreduce.
    share = len(train_images) // ranks
    mine = slice(rank * share, (rank + 1) * share)
    images, labels = train_images[mine], train_labels[mine]

    model = DistributedDataParallel(build_model().to(device))  # rank 0's weights are sent to all
    learning_rate = options.learning_rate * ranks
    optimizer = torch.optim.Adam(model.parameters(), learning_rate)

    epochs = []
    for epoch in range(options.epochs):
        began, total, steps = time.monotonic(), 0.0, 0
        model.train()
        for chosen in torch.randperm(len(images), device=device).split(options.batch_size):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()
            total, steps = total + loss.item(), steps + 1
        model.eval()
        with torch.no_grad():
            right = model.module(val_images).argmax(1) == val_labels
        row = {
            "epoch": epoch + 1,
            "seconds": round(time.monotonic() - began, 3),
            "loss": round(mean_of_ranks(total / steps, device), 5),
            "val_accuracy": round(right.float().mean().item(), 5),
        }
        epochs.append(row)
        if rank == 0:
            print(
                f"epoch {row['epoch']}: {row['seconds']:.2f} s, loss {row['loss']:.4f}, "
                f"val_accuracy {row['val_accuracy']:.4f}",
                flush=True,
            )
    equal = weights_are_equal(model)
    if rank == 0 and os.environ.get("DEPLOYER_RESULT"):
        payload = {
            "val_accuracy": epochs[-1]["val_accuracy"],
            "epochs": epochs,
            "world_size": ranks,
            "weights_equal": equal,
            "learning_rate": learning_rate,
            "parameters": sum(item.numel() for item in model.parameters()),
            "backend": dist.get_backend(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }
        with open(os.environ["DEPLOYER_RESULT"], "w", encoding="utf-8") as stream:
            json.dump(payload, stream)


if __name__ == "__main__":
    main()
