"""Fit a line to noisy points with Lightning on all ranks; put your own module and data here."""

import hashlib
import json
import os

import lightning
import torch
import torch.distributed as dist

# Late imports of this would keep the process group, whose threads may abort the process at its end.
import torch.distributed.nn
from lightning.pytorch.plugins.environments import LightningEnvironment
from torch.utils.data import DataLoader, TensorDataset

NUMBERS = {name: int(os.environ.get(name, default)) for name, default in
           (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1), ("NODE_RANK", 0))}  # fmt: skip


class StartedRanks(LightningEnvironment):
    """The ranks that `run` has started, with every batch system and launcher: Lightning starts none."""

    creates_processes_externally = True

    def world_size(self):
        return NUMBERS["WORLD_SIZE"]

    def global_rank(self):
        return NUMBERS["RANK"]

    def local_rank(self):
        return NUMBERS["LOCAL_RANK"]

    def node_rank(self):
        return NUMBERS["NODE_RANK"]

    def set_world_size(self, size):
        """Keep the number of ranks that `run` has started."""

    def set_global_rank(self, rank):
        """Keep the number that `run` has given to this rank."""


class Line(lightning.LightningModule):
    """A line through the points."""

    def __init__(self):
        super().__init__()
        self.layer, self.losses = torch.nn.Linear(1, 1), []

    def training_step(self, batch):
        points, values = batch
        loss = torch.nn.functional.mse_loss(self.layer(points), values)
        self.losses.append(loss.item())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


def main():
    """Train, compare the weights of all ranks, and write the losses to the file that DEPLOYER_RESULT names."""
    lightning.seed_everything(0)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # the threads of this rank
    points = torch.rand(1024, 1) * 2 - 1
    values = 3 * points + 1 + 0.01 * torch.randn(1024, 1)
    model, alone = Line(), NUMBERS["WORLD_SIZE"] == 1
    trainer = lightning.Trainer(
        max_epochs=8,
        accelerator="cpu",
        devices=NUMBERS["LOCAL_WORLD_SIZE"],
        plugins=[] if alone else [StartedRanks()],
        num_nodes=NUMBERS["WORLD_SIZE"] // NUMBERS["LOCAL_WORLD_SIZE"],
        strategy="auto" if alone else "ddp",
        logger=lightning.pytorch.loggers.CSVLogger("."),
        log_every_n_steps=8,
        enable_progress_bar=False,
        enable_model_summary=False,
    )  # Lightning gives each rank its own share of the data
    trainer.fit(model, DataLoader(TensorDataset(points, values), batch_size=32, shuffle=True))
    weights = b"".join(value.detach().numpy().tobytes() for value in model.parameters())
    digests = [hashlib.sha256(weights).hexdigest()]
    if not alone:
        digests *= NUMBERS["WORLD_SIZE"]
        dist.all_gather_object(digests, digests[0])
    if trainer.is_global_zero:
        equal, losses = len(set(digests)) == 1, model.losses
        print(f"{len(digests)} ranks: loss {losses[0]:.3f}, then {losses[-1]:.5f}; equal weights: {equal}", flush=True)
        if os.environ.get("DEPLOYER_RESULT"):
            with open(os.environ["DEPLOYER_RESULT"], "w", encoding="utf-8") as stream:
                json.dump({"losses": losses, "weights_equal": equal, "world_size": len(digests)}, stream)
    if not alone:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
