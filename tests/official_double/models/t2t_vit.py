"""Plays the official checkout in the tests of `checking`: T2T-ViT in PyTorch, our own and as short as can be.

Written from the equations of the paper (arXiv 2101.11986, section 3) and the rules of the official network that
tools/t2t.py names; parameter names and signatures of the factories are the official ones, which the comparison needs.
It only has to compute the right outputs in eval mode: no dropout, no initialisation.
"""

import torch
from timm.models.registry import register_model
from torch import nn

EPSILON = 1e-5
TOKEN_WIDTH = 64


class Performer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=EPSILON)
        self.kqv = nn.Linear(width, 3 * TOKEN_WIDTH)
        self.w = nn.Parameter(torch.zeros(TOKEN_WIDTH // 2, TOKEN_WIDTH), requires_grad=False)
        self.proj = nn.Linear(TOKEN_WIDTH, TOKEN_WIDTH)
        self.norm2 = nn.LayerNorm(TOKEN_WIDTH, eps=EPSILON)
        self.mlp = nn.Sequential(nn.Linear(TOKEN_WIDTH, TOKEN_WIDTH), nn.GELU(), nn.Linear(TOKEN_WIDTH, TOKEN_WIDTH))

    def phi(self, x):
        return torch.exp(x @ self.w.T - x.square().sum(-1, keepdim=True) / 2) / self.w.shape[0] ** 0.5

    def forward(self, x):
        k, q, v = self.kqv(self.norm1(x)).chunk(3, dim=-1)
        k, q = self.phi(k), self.phi(q)
        y = v + self.proj(q @ (k.mT @ v) / (q @ k.sum(dim=1).unsqueeze(-1) + 1e-8))
        return y + self.mlp(self.norm2(y))


class Attention(nn.Module):
    """Softmax attention; adds the values to its result where it changes the width."""

    def __init__(self, width, out_width, heads, scale):
        super().__init__()
        self.heads, self.scale, self.adds_values = heads, scale, width != out_width
        self.qkv = nn.Linear(width, 3 * out_width, bias=False)
        self.proj = nn.Linear(out_width, out_width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        y = self.proj((torch.softmax(self.scale * q @ k.mT, dim=-1) @ v).transpose(1, 2).flatten(2))
        return y + v.squeeze(1) if self.adds_values else y


class Mlp(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.fc2(nn.functional.gelu(self.fc1(x)))


class Encoder(nn.Module):
    """A block of the backbone, or the token transformer where out_width is another."""

    def __init__(self, width, out_width, heads, scale, hidden):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=EPSILON)
        self.attn = Attention(width, out_width, heads, scale)
        self.norm2 = nn.LayerNorm(out_width, eps=EPSILON)
        self.mlp = Mlp(out_width, hidden)

    def forward(self, x):
        y = self.attn(self.norm1(x))
        x = y if self.attn.adds_values else x + y
        return x + self.mlp(self.norm2(x))


class TokensToToken(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        if tokens == "performer":
            self.attention1, self.attention2 = Performer(3 * 49), Performer(TOKEN_WIDTH * 9)
        else:
            self.attention1, self.attention2 = (
                Encoder(n, TOKEN_WIDTH, 1, n**-0.5, TOKEN_WIDTH) for n in (3 * 49, TOKEN_WIDTH * 9)
            )
        self.project = nn.Linear(TOKEN_WIDTH * 9, width)

    def forward(self, x):
        side = x.shape[-1] // 4
        x = self.attention1(nn.functional.unfold(x, 7, stride=4, padding=2).mT)
        x = nn.functional.unfold(x.mT.unflatten(-1, (side, side)), 3, stride=2, padding=1).mT
        x = self.attention2(x).mT.unflatten(-1, (side // 2, side // 2))
        return self.project(nn.functional.unfold(x, 3, stride=2, padding=1).mT)


class Network(nn.Module):
    def __init__(self, tokens, width, depth, heads, ratio, img_size=224, num_classes=1000, qk_scale=None):
        super().__init__()
        self.tokens_to_token = TokensToToken(tokens, width)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, (img_size // 16) ** 2 + 1, width), requires_grad=False)
        scale = qk_scale or (width // heads) ** -0.5
        self.blocks = nn.ModuleList(Encoder(width, width, heads, scale, ratio * width) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x):
        x = self.tokens_to_token(x)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


@register_model
def t2t_vit_7(**options):
    return Network("performer", 256, 7, 4, 2, **options)


@register_model
def t2t_vit_t_14(**options):
    return Network("transformer", 384, 14, 6, 3, **options)
