"""Networks in plain torch, as their papers and reference implementations define them.

Each follows the module structure of the widely used implementation that its docstring names, so
that the exported graphs resemble those of users; the weights are random.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (its usual name)

# --- convolutional networks for classification ---------------------------------------------------


def conv_bn(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    activation: nn.Module | None = None,
) -> nn.Sequential:
    """Return a convolution that keeps the size (but for its stride), normalised and activated."""
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    if activation is not None:
        layers.append(activation)
    return nn.Sequential(*layers)


class Bottleneck(nn.Module):
    """The block of ResNet-50: 1×1, 3×3 (which holds the stride), 1×1, and a shortcut."""

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * planes
        self.conv1 = conv_bn(inputs, planes, 1)
        self.conv2 = conv_bn(planes, planes, 3, stride)
        self.conv3 = conv_bn(planes, outputs, 1)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = conv_bn(inputs, outputs, 1, stride) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.conv1(x))
        out = self.relu(self.conv2(out))
        out = self.conv3(out)
        out += identity
        return self.relu(out)


class ResNet50(nn.Module):
    """ResNet-50 v1.5 (He et al. 2015; torchvision's variant)."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = conv_bn(3, 64, 7, 2, activation=nn.ReLU(inplace=True))
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        blocks: list[nn.Module] = []
        channels = 64
        for planes, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for number in range(count):
                blocks.append(Bottleneck(channels, planes, stride if number == 0 else 1))
                channels = 4 * planes
        self.blocks = nn.Sequential(*blocks)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.maxpool(self.stem(x)))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class InvertedResidual(nn.Module):
    """The block of MobileNetV2: expand, filter each channel, project."""

    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        layers: list[nn.Module] = []
        if expand != 1:
            layers.append(conv_bn(inputs, hidden, 1, activation=nn.ReLU6(inplace=True)))
        layers.append(
            conv_bn(hidden, hidden, 3, stride, groups=hidden, activation=nn.ReLU6(inplace=True))
        )
        layers.append(conv_bn(hidden, outputs, 1))
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNetV2(nn.Module):
    """MobileNetV2 (Sandler et al. 2018; torchvision's variant)."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv_bn(3, 32, 3, 2, activation=nn.ReLU6(inplace=True))]
        channels = 32
        for expand, outputs, count, stride in (
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        ):
            for number in range(count):
                first = stride if number == 0 else 1
                layers.append(InvertedResidual(channels, outputs, first, expand))
                channels = outputs
        layers.append(conv_bn(channels, 1280, 1, activation=nn.ReLU6(inplace=True)))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(torch.flatten(x, 1))


class Fire(nn.Module):
    """The module of SqueezeNet: squeeze to few channels, expand by 1×1 and 3×3, concatenate."""

    def __init__(self, inputs: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeeze, 1)
        self.expand1x1 = nn.Conv2d(squeeze, expand, 1)
        self.expand3x3 = nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.expand1x1(x)), F.relu(self.expand3x3(x))], 1)


class SqueezeNet11(nn.Module):
    """SqueezeNet 1.1 (Iandola et al. 2016; torchvision's variant)."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()

        def pool() -> nn.Module:
            return nn.MaxPool2d(3, 2, ceil_mode=True)

        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 3, 2),
            nn.ReLU(inplace=True),
            pool(),
            Fire(64, 16, 64),
            Fire(128, 16, 64),
            pool(),
            Fire(128, 32, 128),
            Fire(256, 32, 128),
            pool(),
            Fire(256, 48, 192),
            Fire(384, 48, 192),
            Fire(384, 64, 256),
            Fire(512, 64, 256),
        )
        self.classifier = nn.Sequential(
            nn.Dropout(0.5),
            nn.Conv2d(512, classes, 1),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d((1, 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.classifier(self.features(x)), 1)


# --- dense prediction ----------------------------------------------------------------------------


class UNet(nn.Module):
    """U-Net (Ronneberger et al. 2015), padded and normalised, with transposed convolutions."""

    def __init__(self, classes: int = 2, width: int = 32, depth: int = 4) -> None:
        super().__init__()

        def double(inputs: int, outputs: int) -> nn.Sequential:
            return nn.Sequential(
                conv_bn(inputs, outputs, 3, activation=nn.ReLU(inplace=True)),
                conv_bn(outputs, outputs, 3, activation=nn.ReLU(inplace=True)),
            )

        widths = [width << level for level in range(depth + 1)]
        self.first = double(3, width)
        self.down = nn.ModuleList(double(wide // 2, wide) for wide in widths[1:])
        widths.reverse()
        self.up = nn.ModuleList(nn.ConvTranspose2d(w, w // 2, 2, 2) for w in widths[:-1])
        self.merge = nn.ModuleList(double(wide, wide // 2) for wide in widths[:-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        skips = []
        for block in self.down:
            skips.append(x)
            x = block(F.max_pool2d(x, 2))
        for up, merge in zip(self.up, self.merge, strict=True):
            x = up(x)
            skip = skips.pop()
            # An odd size lost a row or column on the way down.
            missing = [skip.shape[2] - x.shape[2], skip.shape[3] - x.shape[3]]
            x = F.pad(x, [0, missing[1], 0, missing[0]])
            x = merge(torch.cat([skip, x], 1))
        return self.head(x)


class ESPCN(nn.Module):
    """ESPCN (Shi et al. 2016): three convolutions and a sub-pixel shuffle."""

    def __init__(self, factor: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 64, 5, padding=2)
        self.conv2 = nn.Conv2d(64, 32, 3, padding=1)
        self.conv3 = nn.Conv2d(32, factor * factor, 3, padding=1)
        self.shuffle = nn.PixelShuffle(factor)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.conv2(torch.tanh(self.conv1(x))))
        return torch.sigmoid(self.shuffle(self.conv3(x)))


class C3Bottleneck(nn.Module):
    """Two convolutions, with a shortcut where asked for."""

    def __init__(self, channels: int, shortcut: bool) -> None:
        super().__init__()
        self.cv1 = conv_bn(channels, channels, 1, activation=nn.SiLU())
        self.cv2 = conv_bn(channels, channels, 3, activation=nn.SiLU())
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        return x + self.cv2(self.cv1(x)) if self.shortcut else self.cv2(self.cv1(x))


class C3(nn.Module):
    """A cross-stage partial block with three convolutions."""

    def __init__(self, inputs: int, outputs: int, count: int, shortcut: bool = True) -> None:
        super().__init__()
        hidden = outputs // 2
        self.cv1 = conv_bn(inputs, hidden, 1, activation=nn.SiLU())
        self.cv2 = conv_bn(inputs, hidden, 1, activation=nn.SiLU())
        self.cv3 = conv_bn(2 * hidden, outputs, 1, activation=nn.SiLU())
        self.m = nn.Sequential(*(C3Bottleneck(hidden, shortcut) for _ in range(count)))

    def forward(self, x: Tensor) -> Tensor:
        return self.cv3(torch.cat((self.m(self.cv1(x)), self.cv2(x)), 1))


class SPPF(nn.Module):
    """Spatial pyramid pooling by one 5×5 pool, applied three times."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.cv1 = conv_bn(inputs, inputs // 2, 1, activation=nn.SiLU())
        self.cv2 = conv_bn(2 * inputs, outputs, 1, activation=nn.SiLU())
        self.m = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cv1(x)
        y1 = self.m(x)
        y2 = self.m(y1)
        return self.cv2(torch.cat((x, y1, y2, self.m(y2)), 1))


class Detect(nn.Module):
    """The head of YOLOv5: boxes in pixels, objectness and class scores of three grids."""

    ANCHORS = (
        ((10, 13), (16, 30), (33, 23)),
        ((30, 61), (62, 45), (59, 119)),
        ((116, 90), (156, 198), (373, 326)),
    )
    STRIDES = (8.0, 16.0, 32.0)

    def __init__(self, classes: int, channels: tuple[int, int, int]) -> None:
        super().__init__()
        self.no = classes + 5
        self.m = nn.ModuleList(nn.Conv2d(count, 3 * self.no, 1) for count in channels)
        self.register_buffer("anchors", torch.tensor(self.ANCHORS, dtype=torch.float32))

    def forward(self, xs: list[Tensor]) -> Tensor:
        found = []
        for level, (x, conv) in enumerate(zip(xs, self.m, strict=True)):
            y = conv(x)
            batch, _, height, width = y.shape
            y = y.view(batch, 3, self.no, height, width).permute(0, 1, 3, 4, 2).contiguous()
            rows = torch.arange(height, dtype=torch.float32, device=y.device)
            columns = torch.arange(width, dtype=torch.float32, device=y.device)
            down, across = torch.meshgrid(rows, columns, indexing="ij")
            grid = torch.stack((across, down), 2).expand(1, 3, height, width, 2) - 0.5
            anchors = self.anchors[level].view(1, 3, 1, 1, 2)
            xy, wh, conf = y.sigmoid().split((2, 2, self.no - 4), 4)
            xy = (xy * 2 + grid) * self.STRIDES[level]
            wh = (wh * 2) ** 2 * anchors
            found.append(torch.cat((xy, wh, conf), 4).view(batch, -1, self.no))
        return torch.cat(found, 1)


class YOLOv5s(nn.Module):
    """YOLOv5s 6.0 (Ultralytics): CSP backbone, path aggregation, decoded predictions."""

    def __init__(self, classes: int = 80) -> None:
        super().__init__()

        def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
            return conv_bn(inputs, outputs, kernel, stride, activation=nn.SiLU())

        self.stem = nn.Sequential(
            nn.Conv2d(3, 32, 6, 2, 2, bias=False), nn.BatchNorm2d(32), nn.SiLU()
        )
        self.p3 = nn.Sequential(
            conv(32, 64, 3, 2), C3(64, 64, 1), conv(64, 128, 3, 2), C3(128, 128, 2)
        )
        self.p4 = nn.Sequential(conv(128, 256, 3, 2), C3(256, 256, 3))
        self.p5 = nn.Sequential(conv(256, 512, 3, 2), C3(512, 512, 1), SPPF(512, 512))
        self.top5 = conv(512, 256, 1)
        self.up4 = C3(512, 256, 1, shortcut=False)
        self.top4 = conv(256, 128, 1)
        self.up3 = C3(256, 128, 1, shortcut=False)
        self.down3 = conv(128, 128, 3, 2)
        self.out4 = C3(256, 256, 1, shortcut=False)
        self.down4 = conv(256, 256, 3, 2)
        self.out5 = C3(512, 512, 1, shortcut=False)
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")
        self.detect = Detect(classes, (128, 256, 512))

    def forward(self, x: Tensor) -> Tensor:
        p3 = self.p3(self.stem(x))
        p4 = self.p4(p3)
        top5 = self.top5(self.p5(p4))
        top4 = self.top4(self.up4(torch.cat((self.upsample(top5), p4), 1)))
        out3 = self.up3(torch.cat((self.upsample(top4), p3), 1))
        out4 = self.out4(torch.cat((self.down3(out3), top4), 1))
        out5 = self.out5(torch.cat((self.down4(out4), top5), 1))
        return self.detect([out3, out4, out5])


# --- transformers --------------------------------------------------------------------------------


class VitAttention(nn.Module):
    """Self-attention with one matrix for queries, keys and values (timm's form)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(batch, length, width))


class PackedAttention(nn.Module):
    """torch's own nn.MultiheadAttention (torchvision's form)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class VitBlock(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width: int, attention: nn.Module) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = attention
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.0), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Vision transformer with 16×16 patches on 224×224 pixels (Dosovitskiy et al. 2020).

    tiny: width 192, 3 heads; B/16: width 768, 12 heads.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        attention: type[VitAttention | PackedAttention],
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, 16)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 197, width))
        self.blocks = nn.Sequential(*(VitBlock(width, attention(width, heads)) for _ in range(12)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


class BertLayer(nn.Module):
    """A post-norm transformer layer; `fused` uses torch's attention, else it is spelled out."""

    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.dense = nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(width, eps=1e-12)
        self.intermediate = nn.Linear(width, 4 * width)
        self.output = nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-12)

    def split(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        if self.fused:
            context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
            context = torch.matmul(F.softmax(scores + mask, dim=-1), v)
        context = context.transpose(1, 2).contiguous().view(x.shape)
        x = self.norm1(self.dense(context) + x)
        return self.norm2(self.output(F.gelu(self.intermediate(x))) + x)


class Bert(nn.Module):
    """BERT (Devlin et al. 2018; Hugging Face's BertModel with its pooler); base by default."""

    def __init__(
        self, layers: int = 12, width: int = 768, heads: int = 12, fused: bool = False
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(30522, width)
        self.positions = nn.Embedding(512, width)
        self.types = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(BertLayer(width, heads, fused) for _ in range(layers))
        self.pooler = nn.Linear(width, width)
        self.register_buffer("position_ids", torch.arange(512).expand(1, -1))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        position_ids = self.position_ids[:, : input_ids.shape[1]]
        x = self.words(input_ids) + self.types(token_type_ids) + self.positions(position_ids)
        x = self.norm(x)
        mask = attention_mask[:, None, None, :].to(x.dtype)
        mask = (1.0 - mask) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, mask)
        return x, torch.tanh(self.pooler(x[:, 0]))


class Conv1D(nn.Module):
    """A linear layer with the transposed weight of GPT-2's checkpoints."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        size = (*x.size()[:-1], self.weight.shape[1])
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(size)


class GptBlock(nn.Module):
    """A pre-norm layer with causal attention; `fused` uses torch's attention."""

    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.ln_1 = nn.LayerNorm(width, eps=1e-5)
        self.c_attn = Conv1D(3 * width, width)
        self.c_proj = Conv1D(width, width)
        self.ln_2 = nn.LayerNorm(width, eps=1e-5)
        self.c_fc = Conv1D(4 * width, width)
        self.mlp_proj = Conv1D(width, 4 * width)
        causal = torch.tril(torch.ones((1024, 1024), dtype=torch.bool)).view(1, 1, 1024, 1024)
        self.register_buffer("causal", causal, persistent=False)

    def attend(self, x: Tensor) -> Tensor:
        width = x.shape[2]
        q, k, v = (
            part.view(*part.shape[:2], self.heads, width // self.heads).transpose(1, 2)
            for part in self.c_attn(x).split(width, dim=2)
        )
        if self.fused:
            context = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = torch.matmul(q, k.transpose(-1, -2)) / (q.size(-1) ** 0.5)
            length = x.shape[1]
            lowest = torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype)
            scores = torch.where(self.causal[:, :, :length, :length], scores, lowest)
            context = torch.matmul(F.softmax(scores, dim=-1), v)
        return self.c_proj(context.transpose(1, 2).contiguous().view(x.shape))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.ln_1(x))
        hidden = self.c_fc(self.ln_2(x))
        inner = math.sqrt(2.0 / math.pi) * (hidden + 0.044715 * torch.pow(hidden, 3.0))
        return x + self.mlp_proj(0.5 * hidden * (1.0 + torch.tanh(inner)))


class GPT2(nn.Module):
    """GPT-2 with its language head (Radford et al. 2019; Hugging Face's form); small by default."""

    def __init__(
        self, layers: int = 12, width: int = 768, heads: int = 12, fused: bool = True
    ) -> None:
        super().__init__()
        self.wte = nn.Embedding(50257, width)
        self.wpe = nn.Embedding(1024, width)
        self.h = nn.ModuleList(GptBlock(width, heads, fused) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width, eps=1e-5)
        self.lm_head = nn.Linear(width, 50257, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).unsqueeze(0)
        x = self.wte(input_ids) + self.wpe(position_ids)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))
