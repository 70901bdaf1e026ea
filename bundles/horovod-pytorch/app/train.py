"""Train a small CNN in PyTorch, data-parallel over all MPI ranks by Horovod.

The images are made here: each class is a pattern of 16 x 16 points, each image one of them, shifted, dimmed and under
noise. Each rank makes a share of its own; the held-out images are the same for every rank and every world size.
Rank 0 writes what came out as JSON to the file that DEPLOYER_RESULT names.
"""

import argparse
import json
import os
import time

import horovod.torch as hvd
import torch
from torch import nn

SEED = 20151
CLASSES = 10
SIDE = 16
HELD_OUT = 1000


def make_images(count: int, seed: int):
    """Return ``count`` images, float32 [n, 1, 16, 16], and their classes, int64 [n]; the patterns never change."""
    patterns = torch.rand(CLASSES, SIDE, SIDE, generator=torch.Generator().manual_seed(SEED)).gt(0.6).float()
    chance = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=chance)
    shifts = torch.randint(-1, 2, (count, 2), generator=chance).tolist()
    images = torch.stack(
        [torch.roll(patterns[label], shift, (0, 1)) for label, shift in zip(labels.tolist(), shifts, strict=True)]
    )
    dimmed = images * (0.5 + 0.5 * torch.rand(count, 1, 1, generator=chance))
    return (dimmed + 0.5 * torch.randn(count, SIDE, SIDE, generator=chance)).unsqueeze(1), labels


def build_model() -> nn.Module:
    """Return the untrained CNN."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (SIDE // 4) ** 2, 64),
        nn.ReLU(),
        nn.Linear(64, CLASSES),
    )


def accuracy(model: nn.Module, images, labels) -> float:
    """Return the share of images whose class the model finds, averaged over the ranks."""
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float().mean()
    return float(hvd.allreduce(right, name="accuracy"))


def main() -> None:
    """Train, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--images", type=int, default=4000, help="training images of all ranks together")
    parser.add_argument("--batch-size", type=int, default=32, help="images a rank and step")
    parser.add_argument("--learning-rate", type=float, default=0.001, help="of one rank; scaled by the ranks")
    options = parser.parse_args()

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    hvd.init()
    torch.manual_seed(SEED + hvd.rank())
    # Equal shares: a rank with a step more than the others would wait for ever in its last allreduce.
    images, labels = make_images(options.images // hvd.size(), SEED + 1 + hvd.rank())
    val_images, val_labels = make_images(HELD_OUT, SEED)

    model = build_model()
    learning_rate = options.learning_rate * hvd.size()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), learning_rate), named_parameters=model.named_parameters()
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    epochs = []
    for epoch in range(options.epochs):
        began, total, steps = time.monotonic(), 0.0, 0
        for chosen in torch.randperm(len(images)).split(options.batch_size):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()
            total, steps = total + loss.item(), steps + 1
        row = {
            "epoch": epoch + 1,
            "seconds": round(time.monotonic() - began, 3),
            "loss": round(float(hvd.allreduce(torch.tensor(total / steps), name="loss")), 5),
            "val_accuracy": round(accuracy(model, val_images, val_labels), 5),
        }
        epochs.append(row)
        if hvd.rank() == 0:
            print(
                f"epoch {row['epoch']}: {row['seconds']:.2f} s, loss {row['loss']:.4f}, "
                f"val_accuracy {row['val_accuracy']:.4f}",
                flush=True,
            )
    if hvd.rank() == 0 and os.environ.get("DEPLOYER_RESULT"):
        payload = {
            "val_accuracy": epochs[-1]["val_accuracy"],
            "epochs": epochs,
            "world_size": hvd.size(),
            "learning_rate": learning_rate,
            "parameters": sum(item.numel() for item in model.parameters()),
            "torch": torch.__version__,
        }
        with open(os.environ["DEPLOYER_RESULT"], "w", encoding="utf-8") as stream:
            json.dump(payload, stream)


if __name__ == "__main__":
    main()
