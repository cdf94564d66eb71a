"""Attention followed by squeeze-and-excitation: T2T-ViT-14-SE and ViT-SE (paper, section 3.2 and Table 6)."""

from paddle import nn
from t2t import Attention, Linear

REDUCTION = 16


class SqueezeExcitation(nn.Layer):
    """Weigh the channels by a gate in (0, 1) that follows from their means: x [B, N, D] -> [B, N, D].

    gate = sigmoid(W2 relu(W1 mean)), without biases, of width D / 16; the mean is over all N tokens, the class token
    among them (official network).
    """

    def __init__(self, dim):
        super().__init__()
        hidden = dim // REDUCTION
        self.fc = nn.Sequential(
            Linear(dim, hidden, bias=False), nn.ReLU(), Linear(hidden, dim, bias=False), nn.Sigmoid()
        )

    def forward(self, x):
        return x * self.fc(x.mean(axis=1)).unsqueeze(1)


class SEAttention(Attention):
    """t2t.Attention whose projected output [B, N, D] is weighed by its SqueezeExcitation."""

    def build_projections(self, dim):
        super().build_projections(dim)
        self.se_layer = SqueezeExcitation(dim)

    def project_out(self, y):
        return self.se_layer(super().project_out(y))
