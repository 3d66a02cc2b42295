"""The networks, from torch alone and with random weights.

They are the same on every machine. timm's and Transformers' modules are not used: which operations they run depends on
their version, and Transformers reads masks on the host, which no CUDA graph can contain.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.gpu.cases import BUCKETS, VOCABULARY, Case

SEED = 20
RESNET_BLOCKS = (3, 4, 6, 3)


class Bottleneck(nn.Module):
    """Residual block of ResNet-50: 1 x 1, 3 x 3 and 1 x 1 convolutions."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.layers = nn.Sequential(
            *convolution(channels, width, 1),
            nn.ReLU(inplace=True),
            *convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *convolution(width, out, 1),
        )
        same = channels == out and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*convolution(channels, out, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        return functional.relu(self.layers(x) + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    """ResNet of bottlenecks; blocks of 3, 4, 6 and 3 with width 64 are ResNet-50."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        stem = [*convolution(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        channels, blocks = width, []
        for stage, count in enumerate(RESNET_BLOCKS[:depth]):
            for block in range(count):
                blocks.append(Bottleneck(channels, width << stage, 2 if stage and not block else 1))
                channels = 4 * (width << stage)
        self.layers = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [n, classes] of pictures [n, 3, height, width] of bytes."""
        logits: Tensor = self.layers(pixels(x, self))
        return logits.float()


class Detector(nn.Module):
    """Convolutions down to an eighth, and a head at three scales: one row of 84 values for each place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(step(3, width), step(width, 2 * width), step(2 * width, 4 * width))
        self.scales = nn.ModuleList([nn.Identity(), step(4 * width, 8 * width), step(8 * width, 16 * width)])
        self.heads = nn.ModuleList([nn.Conv2d(width << shift, 84, 1) for shift in (2, 3, 4)])

    def forward(self, x: Tensor) -> Tensor:
        """Return boxes and scores [n, places, 84] of pictures [n, 3, height, width] of bytes."""
        found, now = [], self.stem(pixels(x, self))
        for scale, head in zip(self.scales, self.heads, strict=True):
            now = scale(now)
            found.append(head(now).flatten(2))
        return torch.cat(found, dim=2).transpose(1, 2).contiguous().float()


class Layer(nn.Module):
    """Transformer layer of BERT, with the normalization after each part."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.attended, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dense = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return the layer's output [n, tokens, width]."""
        rows, tokens, width = x.shape
        split = self.attended(x).view(rows, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(split[0], split[1], split[2], attn_mask=bias)
        x = self.first(x + self.out(found.transpose(1, 2).reshape(rows, tokens, width)))
        normalized: Tensor = self.last(x + self.dense(x))
        return normalized


class Encoder(nn.Module):
    """BERT's encoder, mean-pooled over real tokens."""

    def __init__(self, layers: int, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(BUCKETS[-1], width)
        self.normalized = nn.LayerNorm(width)
        self.layers = nn.ModuleList([Layer(width, heads, hidden) for _ in range(layers)])

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return embeddings [n, width] of tokens [n, tokens] and their mask, which is 0 at padding."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        # Numbers that the warm-up makes up may be outside the vocabulary.
        x = self.normalized(self.tokens(input_ids.clamp(0, VOCABULARY - 1)) + self.places(places))
        bias, weights = None, None
        if attention_mask is not None:
            weights = attention_mask.to(x.dtype)
            # Finite, so that a row of padding alone gives no NaN.
            bias = ((1 - weights) * torch.finfo(x.dtype).min)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, bias)
        if weights is None:
            return torch.mean(x.float(), dim=1)
        total = weights.float().sum(dim=1, keepdim=True).clamp(min=1)
        summed: Tensor = (x.float() * weights.float()[:, :, None]).sum(dim=1)
        return summed / total


class Mlp(nn.Module):
    """Perceptron of three layers."""

    def __init__(self, width: int, hidden: int, out: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, out)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, out] of [n, width]."""
        found: Tensor = self.layers(x)
        return found


NETWORKS: Mapping[str, type[nn.Module]] = {"resnet": ResNet, "detector": Detector, "encoder": Encoder, "mlp": Mlp}


def build(case: Case, device: torch.device) -> nn.Module:
    """Return a case's network on the device: FP16 on CUDA, else FP32. The perceptron is always FP32."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        network = NETWORKS[case.kind](**case.sizes).eval().requires_grad_(requires_grad=False)
    half = device.type == "cuda" and case.kind != "mlp"
    network = network.to(device, torch.float16 if half else torch.float32)
    if case.datatype == "UINT8":
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def convolution(channels: int, out: int, kernel: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    """Return a convolution without bias, and its normalization."""
    return nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(out)


def step(channels: int, out: int) -> nn.Module:
    """Return two convolutions, of which the first halves height and width."""
    first, last = convolution(channels, out, 3, 2), convolution(out, out, 3)
    return nn.Sequential(*first, nn.SiLU(inplace=True), *last, nn.SiLU(inplace=True))


def pixels(x: Tensor, network: nn.Module) -> Tensor:
    """Return pictures of bytes as numbers from 0 to 1, in the network's type and memory format."""
    return x.to(next(network.parameters()).dtype, memory_format=torch.channels_last) / 255
