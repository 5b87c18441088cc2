"""The two networks in torch, for the programs that are written in it."""

import task
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]


def network(c: task.Config):
    """The network with the task's initial weights; images are (channels, height, width)."""
    first, second, hidden = task.WIDTHS
    if c.model == "mlp":
        layers = [
            nn.Flatten(),
            nn.Linear(task.SIDE**2, task.HIDDEN),
            nn.ReLU(),
            nn.Linear(task.HIDDEN, task.CLASSES),
        ]
    else:
        layers = [
            *(nn.Conv2d(1, first, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(first, second, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
            nn.Flatten(),
            nn.Linear((task.SIDE // 4) ** 2 * second, hidden),
            nn.ReLU(),
            nn.Linear(hidden, task.CLASSES),
        ]
    made = nn.Sequential(*layers)
    trained = [layer for layer in made if hasattr(layer, "weight")]
    for layer, (w, b) in zip(trained, task.start(c), strict=True):
        weight = torch.from_numpy(w)
        if isinstance(layer, nn.Conv2d):
            weight = weight.reshape(3, 3, layer.in_channels, -1).permute(3, 2, 0, 1)
        else:
            weight = weight.T
        layer.weight.data.copy_(weight)
        layer.bias.data.copy_(torch.from_numpy(b))
    return made


def tensors(c: task.Config):
    """Images (clients, rows, 1, 28, 28) and labels."""
    images, labels = task.data(c)
    return torch.from_numpy(images).permute(0, 1, 4, 2, 3).contiguous(), torch.from_numpy(
        labels
    ).long()
