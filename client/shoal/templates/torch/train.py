"""Train a small network and export it as model.pt2, which `shoal serve` loads.

The network classifies points as inside or outside a circle. Change this script, and run it again: `python train.py`.
"""

from pathlib import Path

import torch
from torch import nn

FILE = Path(__file__).with_name("model.pt2")


class Circle(nn.Module):
    """Two layers; the arguments and results of forward are the model's inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1), nn.Sigmoid())

    def forward(self, point: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the probability that each point is inside."""
        return {"inside": self.layers(point)}


torch.manual_seed(0)
points = torch.rand(2048, 2) * 2 - 1
inside = (points.norm(dim=1, keepdim=True) < 0.7).float()
model = Circle()
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
for _ in range(300):
    loss = nn.functional.binary_cross_entropy(model(points)["inside"], inside)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# A free batch size: without it, the program takes exactly as many rows as the example has.
rows = torch.export.Dim("rows", min=1, max=4096)
program = torch.export.export(model.eval(), (points[:2],), dynamic_shapes={"point": {0: rows}})
torch.export.save(program, FILE)
