"""Plays the official module of T2T-ViT-14-SE; see t2t_vit.py beside it."""

from timm.models.registry import register_model
from torch import nn

from .t2t_vit import Network


class Gate(nn.Module):
    """Weighs the channels of a projection's output by their means over all tokens."""

    def __init__(self, width):
        super().__init__()
        first, second = nn.Linear(width, width // 16, bias=False), nn.Linear(width // 16, width, bias=False)
        self.fc = nn.Sequential(first, nn.ReLU(), second, nn.Sigmoid())

    def forward(self, x):
        return x * self.fc(x.mean(dim=1, keepdim=True))


@register_model
def t2t_vit_14_se(**options):
    network = Network("performer", 384, 14, 6, 3, **options)
    for block in network.blocks:
        gate = Gate(384)
        block.attn.se_layer = gate
        block.attn.register_forward_hook(lambda module, inputs, output, gate=gate: gate(output))
    return network
