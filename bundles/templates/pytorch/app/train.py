"""Fit a line to noisy points, to see that PyTorch trains; put your own training here."""

import json
import os

import torch


def main() -> None:
    """Train, print the loss, and write it to the file that DEPLOYER_RESULT names."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # the threads of this rank
    torch.manual_seed(0)
    points = torch.rand(512, 1) * 2 - 1
    values = 3 * points + 1 + 0.01 * torch.randn(512, 1)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    loss = torch.zeros(())
    for _ in range(200):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(points), values)
        loss.backward()
        optimizer.step()
    print(f"PyTorch {torch.__version__}: loss {loss.item():.5f}", flush=True)
    if os.environ.get("DEPLOYER_RESULT"):
        with open(os.environ["DEPLOYER_RESULT"], "w", encoding="utf-8") as stream:
            json.dump({"loss": loss.item(), "pytorch": torch.__version__}, stream)


if __name__ == "__main__":
    main()
