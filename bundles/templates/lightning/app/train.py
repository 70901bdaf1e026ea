"""Fit a line to noisy points with Lightning on all ranks; put your own module and data here."""

import gc
import json
import os

import lightning
import torch
import torch.distributed as dist

# Late imports of this would keep the process group, whose threads may abort the process at its end.
import torch.distributed.nn
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from torch.utils.data import DataLoader, TensorDataset


class Line(lightning.LightningModule):
    """A line through the points."""

    def __init__(self):
        super().__init__()
        self.layer, self.losses = torch.nn.Linear(1, 1), []

    def training_step(self, batch):
        points, values = batch
        loss = torch.nn.functional.mse_loss(self.layer(points), values)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


def main():
    """Train, compare the weights of all ranks, and write the losses to the file that DEPLOYER_RESULT names."""
    lightning.seed_everything(0)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # the threads of this rank
    ranks, on_node = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    points = torch.rand(1024, 1) * 2 - 1
    data = TensorDataset(points, 3 * points + 1 + 0.01 * torch.randn(1024, 1))
    # `run` has started the ranks, with the variables of torchrun. Each gets its share of the data.
    cluster = {"strategy": "ddp", "plugins": [TorchElasticEnvironment()], "num_nodes": ranks // on_node}
    trainer = lightning.Trainer(
        max_epochs=8, accelerator="cpu", devices=on_node, logger=False, enable_progress_bar=False,
        enable_model_summary=False, **(cluster if ranks > 1 else {}),
    )  # fmt: skip
    model = Line()
    trainer.fit(model, DataLoader(data, batch_size=32, shuffle=True))
    weights = [[value.tolist() for value in model.parameters()]] * ranks
    if ranks > 1:
        dist.all_gather_object(weights, weights[0])
    if trainer.is_global_zero:
        equal, losses = all(each == weights[0] for each in weights), model.losses
        print(f"{ranks} ranks: loss {losses[0]:.3f}, then {losses[-1]:.5f}; equal weights: {equal}", flush=True)
        if os.environ.get("DEPLOYER_RESULT"):
            with open(os.environ["DEPLOYER_RESULT"], "w", encoding="utf-8") as stream:
                json.dump({"losses": losses, "weights_equal": equal, "world_size": ranks}, stream)
    del trainer, model
    gc.collect()  # they keep the process group, whose threads may hang at the end
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
