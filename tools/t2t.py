"""T2T-ViT (Tokens-to-Token Vision Transformer, arXiv 2101.11986) in one file that needs only Paddle and NumPy.

An image [B, 3, S, S] becomes N = (S/16)^2 tokens through two soft splits with attention and one last split (the T2T
module, section 3.1 of the paper), then passes a deep-narrow transformer (3.2). The class token gives the logits.

Letters used for shapes: B images, C channels, H W height and width, S image size, N tokens of the backbone,
T tokens inside the T2T module, D embed_dim, h heads, d channels of a head, M random features.

Parameter names are those of the official PyTorch release (`tokens_to_token.attention1.kqv.weight`, `head.weight`);
Linear weights have Paddle's layout [in, out]. Where the paper is silent, the official network decides: LayerNorm
epsilon 1e-5, token attention scaled by the *input* width, the values as residual of the token attention, feature
matrix `w` and the sinusoid `pos_embed` frozen, dropout 0.1 always on inside the performer while training.
"""

import math
from functools import partial

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn
from paddle.autograd import PyLayer

TOKENS_TYPES = ("performer", "transformer", "convolution", "patch")
# The three soft splits of every published model: kernel k, overlap s of neighbouring windows, padding p, in pixels or
# tokens. The stride is k - s.
SPLITS = ((7, 3, 2), (3, 1, 1), (3, 1, 1))


# ---------------------------------------------------------------------------------------------------------------------
# CPU forms. On a CPU, bias addition, broadcasts, reductions, dropout masks and the gradients of Linear and LayerNorm
# cost more than the network's own arithmetic, since Paddle runs them on one core without vector instructions. The forms
# below compute the same from plain matrix products (gain: log/speed_floors.log). A GPU, export and static graphs take
# Paddle's operators, as does everything with CPU_FORMS = False.
# ---------------------------------------------------------------------------------------------------------------------

CPU_FORMS = True


def _on_cpu(x):
    return CPU_FORMS and paddle.in_dynamic_mode() and x.place.is_cpu_place() and x.dtype == paddle.float32


def _packed_transposes(function, x):
    """function(x) with transposes that copy at once.

    Paddle makes them views, which the next operator copies element by element: 8 ms for the heads of one block
    instead of 0.2. The flag holds for the process, so it is put back.
    """
    flag = "FLAGS_use_stride_kernel"
    before = paddle.get_flags(flag)
    paddle.set_flags({flag: False})
    try:
        return function(x)
    finally:
        paddle.set_flags(before)


def _affine(x, weight, bias):
    """x [R, in] @ weight [in, out] + bias; the product adds the bias in passing."""
    return paddle.matmul(x, weight) if bias is None else paddle.addmm(bias.unsqueeze(0), x, weight)


def _column_sums(x):
    # A product with a row of ones: a reduction over rows takes 60 times as long.
    return paddle.matmul(paddle.ones([1, x.shape[0]], x.dtype), x).squeeze(0)


def _row_means(x):
    return paddle.matmul(x, paddle.full([x.shape[1], 1], 1.0 / x.shape[1], x.dtype))


class _RowLinear(PyLayer):
    """_affine with one 2-D product per gradient."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        ctx.needs = [not t.stop_gradient for t in (x, weight, bias) if t is not None]
        return _affine(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensor()
        gradients = (
            lambda: paddle.matmul(grad, weight, transpose_y=True),
            lambda: paddle.matmul(x, grad, transpose_x=True),
            lambda: _column_sums(grad),
        )
        return tuple(gradient() if need else None for gradient, need in zip(gradients, ctx.needs))


class _RowNorm(PyLayer):
    """LayerNorm over the columns of x [R, C], sums of its gradient as products; weight and bias may be None."""

    @staticmethod
    def forward(ctx, x, epsilon, weight, bias):
        ctx.save_for_backward(x, weight)
        ctx.epsilon, ctx.needs = epsilon, [not t.stop_gradient for t in (x, weight, bias) if t is not None]
        return F.layer_norm(x, x.shape[-1:], weight, bias, epsilon)

    @staticmethod
    def backward(ctx, grad):
        """grad [R, C] -> gradients of x, weight and bias, None for those that need none."""
        x, weight = ctx.saved_tensor()
        normed = F.layer_norm(x, x.shape[-1:], epsilon=ctx.epsilon)
        grad_normed = grad * normed

        def grad_x():
            # With r = 1 / sqrt(var + epsilon), mean(x * normed) is 1/r - epsilon r; this solves it for r.
            spread = _row_means(x * normed)
            r = 2 / (spread + (spread * spread + 4 * ctx.epsilon).sqrt())
            # Means over the row of grad * weight and grad * weight * normed, as products with weight / C.
            weighting = paddle.full([x.shape[1], 1], 1.0) if weight is None else weight.unsqueeze(1)
            mean, projection = (paddle.matmul(t, weighting / x.shape[1]) for t in (grad, grad_normed))
            weighted = grad - mean if weight is None else (grad * weight).subtract_(mean)
            return weighted.subtract_(normed * projection).multiply_(r)

        gradients = (grad_x, lambda: _column_sums(grad_normed), lambda: _column_sums(grad))
        return tuple(gradient() if need else None for gradient, need in zip(gradients, ctx.needs))


def _linear(x, weight, bias=None):
    """x [..., in] -> [..., out]."""
    if not _on_cpu(x):
        return F.linear(x, weight, bias)
    rows = x.reshape([-1, x.shape[-1]])
    y = _RowLinear.apply(rows, weight, bias) if paddle.is_grad_enabled() else _affine(rows, weight, bias)
    return y.reshape(list(x.shape[:-1]) + [weight.shape[1]])


def _channel_sum(x, width):
    """Sum over channels, [B, T, C] -> [B, T, 1]; as CPU form [B, T, width], so that nothing after it broadcasts."""
    if not _on_cpu(x):
        return x.sum(axis=-1, keepdim=True)
    return _linear(x, paddle.ones([x.shape[-1], width], x.dtype))


def _token_sum(x, width):
    """Sum over tokens, [B, T, C] -> [B, C, 1]; as CPU form [B, C, width]."""
    if not _on_cpu(x):
        return x.sum(axis=1).unsqueeze(2)
    return paddle.matmul(x, paddle.ones([x.shape[0], x.shape[1], width], x.dtype), transpose_x=True)


class Linear(nn.Linear):
    """nn.Linear with the official initialisation: weights N(0, 0.02), bias 0 (timm cuts at +-2, i.e. never)."""

    def __init__(self, in_features, out_features, bias=True):
        super().__init__(
            in_features,
            out_features,
            weight_attr=paddle.ParamAttr(initializer=nn.initializer.Normal(0.0, 0.02)),
            bias_attr=paddle.ParamAttr(initializer=nn.initializer.Constant(0.0)) if bias else False,
        )

    def forward(self, x):
        return _linear(x, self.weight, self.bias)

    def parts(self, x, count, norm=None):
        """The output for x, or for norm(x), split into `count` equal parts: [..., in] -> count x [..., out/count].

        Splitting the weight instead of the output avoids the gradient of a slice, which writes a full-size tensor
        of zeros for each part.
        """
        weight, bias = self.weight, self.bias
        if norm is not None and _on_cpu(x) and paddle.is_grad_enabled():
            # norm's own weight and bias move into the product, so their gradients need no pass over all rows.
            x = norm.normalise(x)
            weight = norm.weight.unsqueeze(1) * self.weight
            bias = paddle.matmul(norm.bias, self.weight) + (0 if self.bias is None else self.bias)
        elif norm is not None:
            x = norm(x)
        weights = paddle.split(weight, count, axis=1)
        biases = [None] * count if bias is None else paddle.split(bias, count)
        return [_linear(x, *pair) for pair in zip(weights, biases)]


class LayerNorm(nn.LayerNorm):
    """nn.LayerNorm over the last axis; epsilon 1e-5 is the official (PyTorch default) value."""

    def __init__(self, dim, epsilon=1e-5):
        super().__init__(dim, epsilon=epsilon)

    def forward(self, x):
        if not (_on_cpu(x) and paddle.is_grad_enabled()):
            return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self._epsilon)
        return self._rows(x, self.weight, self.bias)

    def normalise(self, x):
        """x without mean and with unit variance, before weight and bias; a CPU form."""
        return self._rows(x, None, None)

    def _rows(self, x, weight, bias):
        return _RowNorm.apply(x.reshape([-1, x.shape[-1]]), self._epsilon, weight, bias).reshape(x.shape)


class Dropout(nn.Dropout):
    """nn.Dropout; on a CPU NumPy draws the mask from a seed of Paddle's generator, in a fifth of the time."""

    def forward(self, x):
        if not self.training or self.p == 0:
            return x
        if not _on_cpu(x):
            return F.dropout(x, self.p)
        rng = np.random.Generator(np.random.SFC64(paddle.randint(0, 2**31 - 1, [1]).item()))
        dropped = round(self.p * 65536)
        kept = rng.integers(0, 65536, size=x.shape, dtype=np.uint16) >= dropped
        mask = np.multiply(kept, np.float32(65536 / (65536 - dropped)), dtype=np.float32)
        return x * paddle.to_tensor(mask, place=x.place)


class DropPath(nn.Layer):
    """Stochastic depth: while training, the branch of a whole sample is dropped with probability `drop_prob`.

    Kept samples are scaled by 1 / (1 - drop_prob). x [B, ...] -> [B, ...].
    """

    def __init__(self, drop_prob=0.0):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x):
        if not self.training or self.drop_prob == 0.0:
            return x
        keep = 1.0 - self.drop_prob
        mask = (paddle.rand([x.shape[0]] + [1] * (x.ndim - 1)) < keep).astype(x.dtype)
        return x * (mask / keep)


class Mlp(nn.Layer):
    """fc1, exact GELU, fc2: x [B, N, D] -> [B, N, D]."""

    def __init__(self, dim, hidden_dim, drop_rate=0.0):
        super().__init__()
        self.fc1 = Linear(dim, hidden_dim)
        self.fc2 = Linear(hidden_dim, dim)
        self.drop = Dropout(drop_rate)

    def forward(self, x):
        return self.drop(self.fc2(self.drop(F.gelu(self.fc1(x)))))


def _attend(q, k, v, scale, attn_drop):
    """softmax(q kᵀ · scale) v for q, k, v [B, h, N, d]."""
    attn = F.softmax(paddle.matmul(q * scale, k, transpose_y=True), axis=-1)
    return paddle.matmul(attn_drop(attn), v)


class Attention(nn.Layer):
    """Multi-head self-attention of the backbone, x [B, N, D] -> [B, N, D].

    Args:
        dim: D, a multiple of num_heads.
        qk_scale: factor of q kᵀ; None means d^-0.5 with d = D / num_heads. Every published accuracy uses None; the
            official factories change it to D^-0.5 when called with pretrained=True, which spoils released weights.

    A variant overrides `project_in` or `project_out`.
    """

    def __init__(self, dim, num_heads, qk_scale=None, attn_drop_rate=0.0, drop_rate=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.scale = qk_scale or (dim // num_heads) ** -0.5
        self.build_projections(dim)
        self.attn_drop = Dropout(attn_drop_rate)
        self.proj_drop = Dropout(drop_rate)

    def build_projections(self, dim):
        """Add the layers of `project_in` and `project_out`."""
        self.qkv = Linear(dim, 3 * dim, bias=False)
        self.proj = Linear(dim, dim)

    def project_in(self, x):
        """x [B, N, D] -> q, k, v, each [B, N, D]."""
        return self.qkv.parts(x, 3)

    def project_out(self, y):
        """The heads' joined output [B, N, D] -> [B, N, D]."""
        return self.proj(y)

    def forward(self, x):
        _, N, D = x.shape
        q, k, v = (
            part.reshape([-1, N, self.num_heads, D // self.num_heads]).transpose([0, 2, 1, 3])
            for part in self.project_in(x)
        )
        y = _attend(q, k, v, self.scale, self.attn_drop).transpose([0, 2, 1, 3]).reshape([-1, N, D])
        return self.proj_drop(self.project_out(y))


class Block(nn.Layer):
    """Pre-norm transformer block of the backbone, x [B, N, D] -> [B, N, D] (paper, equation 4).

    attention, mlp, norm: classes of its layers, called as Attention, Mlp and LayerNorm are here.
    """

    def __init__(
        self,
        dim,
        num_heads,
        mlp_ratio,
        qk_scale=None,
        drop_rate=0.0,
        attn_drop_rate=0.0,
        drop_path=0.0,
        attention=Attention,
        mlp=Mlp,
        norm=LayerNorm,
    ):
        super().__init__()
        self.norm1 = norm(dim)
        self.attn = attention(dim, num_heads, qk_scale, attn_drop_rate, drop_rate)
        self.drop_path = DropPath(drop_path)
        self.norm2 = norm(dim)
        self.mlp = mlp(dim, int(dim * mlp_ratio), drop_rate)

    def forward(self, x):
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class TokenPerformer(nn.Layer):
    """Token attention with Performer features, x [B, T, dim] -> [B, T, token_dim], linear in T.

    k, q, v come from one projection in that order; the feature map is φ(x) = exp(w x - |x|²/2) / sqrt(M); the residual
    is v, since dim and token_dim differ. The exponential and the division run in float32 under mixed precision: fp16
    loses the 1e-8 and overflows.
    """

    def __init__(self, dim, token_dim, kernel_ratio=0.5, drop_rate=0.1):
        super().__init__()
        self.kqv = Linear(dim, 3 * token_dim)
        self.dp = Dropout(drop_rate)
        self.proj = Linear(token_dim, token_dim)
        self.norm1 = LayerNorm(dim)
        self.norm2 = LayerNorm(token_dim)
        self.epsilon = 1e-8
        self.mlp = nn.Sequential(
            Linear(token_dim, token_dim), nn.GELU(), Linear(token_dim, token_dim), Dropout(drop_rate)
        )
        self.m = int(token_dim * kernel_ratio)
        # Orthogonal rows of length sqrt(M), so w wᵀ = M I; never trained, but part of the weights.
        self.w = self.create_parameter(
            [self.m, token_dim],
            attr=paddle.ParamAttr(initializer=nn.initializer.Orthogonal(math.sqrt(self.m)), trainable=False),
        )

    def feature_map(self, x):
        """φ: x [B, T, token_dim] float32 -> [B, T, M] float32."""
        half_norm = 0.5 * _channel_sum(x * x, self.m)
        return paddle.exp(_linear(x, self.w.t()) - half_norm) / math.sqrt(self.m)

    def linear_attention(self, k, q, v):
        """φ(q) (Σ_T φ(k) vᵀ) / (φ(q) · Σ_T φ(k) + 1e-8), each [B, T, token_dim] of any float type -> float32."""
        with paddle.amp.auto_cast(enable=False):
            k, q, v = (part.astype("float32") for part in (k, q, v))
            kp, qp = self.feature_map(k), self.feature_map(q)
            y = paddle.matmul(qp, paddle.matmul(kp, v, transpose_x=True))
            return y / (paddle.matmul(qp, _token_sum(kp, v.shape[-1])) + self.epsilon)

    def forward(self, x):
        k, q, v = self.kqv.parts(x, 3, norm=self.norm1)
        x = v + self.dp(self.proj(self.linear_attention(k, q, v)))
        return x + self.mlp(self.norm2(x))


class TokenTransformer(nn.Layer):
    """Token attention with one full-width head, x [B, T, dim] -> [B, T, token_dim], quadratic in T.

    The scale comes from the input width, dim^-0.5 (147 and 576), not token_dim^-0.5; the residual is v.
    """

    def __init__(self, dim, token_dim):
        super().__init__()
        self.norm1 = LayerNorm(dim)
        self.attn = _TokenAttention(dim, token_dim)
        self.norm2 = LayerNorm(token_dim)
        self.mlp = Mlp(token_dim, token_dim)

    def forward(self, x):
        x = self.attn(x, self.norm1)
        return x + self.mlp(self.norm2(x))


class _TokenAttention(nn.Layer):
    """Attention of TokenTransformer on norm(x)."""

    def __init__(self, dim, token_dim):
        super().__init__()
        self.scale = dim**-0.5
        self.qkv = Linear(dim, 3 * token_dim, bias=False)
        self.proj = Linear(token_dim, token_dim)

    def forward(self, x, norm):
        q, k, v = self.qkv.parts(x, 3, norm)
        attn = F.softmax(paddle.matmul(q * self.scale, k, transpose_y=True), axis=-1)
        return v + self.proj(paddle.matmul(attn, v))


def soft_split(x, kernel_size, stride, padding):
    """Overlapping patches as tokens, [B, C, H, W] -> [B, T, C·k·k] (paper, equations 2 and 3)."""
    return F.unfold(x, kernel_size, strides=stride, paddings=padding).transpose([0, 2, 1])


def token_length(height, width, kernel, overlap, padding):
    """Number of tokens that a soft split makes of height x width, and their rows and columns (paper, equation 3).

    l_o = floor((height + 2p - k) / (k - s) + 1) x floor((width + 2p - k) / (k - s) + 1)

    Raises ValueError for what is no split: a kernel below 1, an overlap below 0 or not below the kernel, a padding
    below 0 or not below the kernel (windows of nothing but padding), a window larger than the padded image.
    """
    text = f"kernel={kernel}, overlap={overlap}, padding={padding}"
    if not (0 <= overlap < kernel and 0 <= padding < kernel):
        raise ValueError(f"{text}: overlap and padding must be at least 0 and below the kernel")
    if min(height, width) + 2 * padding < kernel:
        raise ValueError(f"{text}: the window is larger than {height}x{width} with its padding; take a smaller kernel")
    rows, columns = ((side + 2 * padding - kernel) // (kernel - overlap) + 1 for side in (height, width))
    return rows * columns, rows, columns


def grid_sides(img_size, splits=SPLITS):
    """Sides of the square token grids after each of the soft splits, such as [56, 28, 14] for 224 pixels.

    splits: (kernel, overlap, padding) of each. Raises ValueError as token_length does, naming the split.
    """
    sides = []
    for number, split in enumerate(splits, 1):
        try:
            sides.append(token_length(*[sides[-1] if sides else img_size] * 2, *split)[1])
        except ValueError as error:
            raise ValueError(f"soft split {number} of img_size={img_size}: {error}") from error
    return sides


def _restructure(x, side):
    """Tokens, row by row, back to an image: [B, side * side, C] -> [B, C, side, side] (paper, equation 1)."""
    return x.transpose([0, 2, 1]).reshape([-1, x.shape[2], side, side])


class T2TModule(nn.Layer):
    """Images [B, in_chans, S, S] -> tokens [B, N, embed_dim], N = (S/16)^2 (paper, section 3.1).

    tokens_type: "performer" and "transformer" re-structure twice between three soft splits (7/4, 3/2, 3/2);
    "convolution" is the ablation T2T_c with three convolutions of the same kernels, strides and nothing between them;
    "patch" is the ablation without T2T: one hard 16x16 split and a linear projection, as in ViT.
    splits: kernel, overlap and padding of the three; with others than SPLITS, N is the square of grid_sides' last.
    """

    def __init__(self, img_size, tokens_type, in_chans, embed_dim, token_dim, splits=SPLITS):
        super().__init__()
        self.tokens_type = tokens_type
        # Kernel, stride and padding of each.
        self.splits = [(kernel, kernel - overlap, padding) for kernel, overlap, padding in splits]
        self.sides = [img_size // 16] if tokens_type == "patch" else grid_sides(img_size, splits)
        self.num_patches = self.sides[-1] ** 2
        # Pixels from one token of each grid to the next: 4, 8, 16.
        first, second, third = (stride for _, stride, _ in self.splits)
        self.strides = [16] if tokens_type == "patch" else [first, first * second, first * second * third]
        areas = [kernel**2 for kernel, _, _ in splits]
        if tokens_type == "convolution":
            self.soft_split0 = _convolution(in_chans, token_dim, *self.splits[0])
            self.soft_split1 = _convolution(token_dim, token_dim, *self.splits[1])
            self.project = _convolution(token_dim, embed_dim, *self.splits[2])
        elif tokens_type == "patch":
            self.project = Linear(in_chans * 16 * 16, embed_dim)
        else:
            attention = TokenPerformer if tokens_type == "performer" else TokenTransformer
            self.attention1 = attention(in_chans * areas[0], token_dim)
            self.attention2 = attention(token_dim * areas[1], token_dim)
            self.project = Linear(token_dim * areas[2], embed_dim)

    def forward(self, x):
        return self.stages(x)[1]

    def stages(self, x):
        """(maps between the splits, tokens): a tuple of [B, token_dim, S/4, S/4] and [.., S/8, S/8], and [B, N, D].

        "patch" has one split and therefore no maps, (). Other splits have other sides, see grid_sides.
        """
        if self.tokens_type == "convolution":
            x4 = self.soft_split0(x)
            x8 = self.soft_split1(x4)
            return (x4, x8), self.project(x8).flatten(2).transpose([0, 2, 1])
        if self.tokens_type == "patch":
            return (), self.project(soft_split(x, 16, 16, 0))
        first, second, third = self.splits
        x4 = _restructure(self.attention1(soft_split(x, *first)), self.sides[0])
        x8 = _restructure(self.attention2(soft_split(x4, *second)), self.sides[1])
        return (x4, x8), self.project(soft_split(x8, *third))


def _convolution(in_chans, out_chans, kernel_size, stride, padding):
    # The official initialisation leaves convolutions at PyTorch's default, U(-b, b) with b = fan_in^-0.5.
    bound = (in_chans * kernel_size**2) ** -0.5
    uniform = paddle.ParamAttr(initializer=nn.initializer.Uniform(-bound, bound))
    return nn.Conv2D(in_chans, out_chans, kernel_size, stride, padding, weight_attr=uniform, bias_attr=uniform)


def sinusoid_table(length, dim):
    """Fixed position table [1, length, dim] float32: sine (even j) and cosine (odd j) of pos / 10000^(2⌊j/2⌋/dim)."""
    column = np.arange(dim)
    angle = np.arange(length)[:, None] / np.power(10000.0, 2 * (column // 2) / dim)
    table = np.where(column % 2 == 0, np.sin(angle), np.cos(angle))
    return table[None].astype("float32")


def fixed_positions(length, dim):
    """ParamAttr of the position table that is never trained."""
    return paddle.ParamAttr(initializer=nn.initializer.Assign(sinusoid_table(length, dim)), trainable=False)


def drop_path_rates(drop_path_rate, depth):
    """Linear rule: Python floats 0 ... drop_path_rate for blocks 0 ... depth - 1."""
    return [drop_path_rate * i / max(depth - 1, 1) for i in range(depth)]


def uniform_blocks(
    dim, depth, num_heads, mlp_ratio, qk_scale, drop_rate, attn_drop_rate, drop_path_rate, block=Block
):
    """`depth` layers of `block` ([B, N, dim] -> [B, N, dim]) and the channels after the last one."""
    layers = [
        block(dim, num_heads, mlp_ratio, qk_scale, drop_rate, attn_drop_rate, rate)
        for rate in drop_path_rates(drop_path_rate, depth)
    ]
    return layers, dim


class T2TViT(nn.Layer):
    """T2T-ViT: images [B, in_chans, S, S] float32 -> logits [B, num_classes].

    Args:
        img_size: S, any positive multiple of 16 (64, 224, 384 ...). The network takes exactly this size.
        tokens_type: one of TOKENS_TYPES, see T2TModule.
        in_chans: channels of the image.
        num_classes: width of the head; 0 leaves the head out and returns the normalised class token [B, embed_dim].
        embed_dim, depth, num_heads, mlp_ratio: the backbone; embed_dim must be a multiple of num_heads.
        qk_scale: see Attention; None for every published accuracy.
        drop_rate, attn_drop_rate, drop_path_rate: in [0, 1); drop path grows linearly from 0 in the first block to
            drop_path_rate in the last. The performer's own dropout of 0.1 does not depend on them.
        token_dim: channels inside the T2T module, 64 in every published model.
        splits: ((kernel, overlap, padding), ...) of the three soft splits, see T2TModule; any but SPLITS is a network
            of its own, and img_size may then be any that grid_sides takes.
        positions, blocks, norm: what models/ puts in place of the fixed position table (called with length and width,
            gives a ParamAttr), of the uniform blocks (see uniform_blocks) and of the last LayerNorm.

    Raises:
        ValueError: a size that is not a multiple of 16, an unknown tokens_type, a rate out of range, heads that do
            not divide embed_dim, splits that the image size does not allow; in `forward`, images of another size than
            img_size.
    """

    def __init__(
        self,
        img_size=224,
        tokens_type="performer",
        in_chans=3,
        num_classes=1000,
        embed_dim=384,
        depth=14,
        num_heads=6,
        mlp_ratio=3.0,
        qk_scale=None,
        drop_rate=0.0,
        attn_drop_rate=0.0,
        drop_path_rate=0.0,
        token_dim=64,
        splits=SPLITS,
        positions=fixed_positions,
        blocks=uniform_blocks,
        norm=LayerNorm,
    ):
        super().__init__()
        splits = tuple(map(tuple, splits))
        _check_arguments(img_size, tokens_type, embed_dim, num_heads, splits)
        _check_rates(drop_rate=drop_rate, attn_drop_rate=attn_drop_rate, drop_path_rate=drop_path_rate)
        self.img_size, self.num_classes, self.embed_dim = img_size, num_classes, embed_dim
        self.tokens_to_token = T2TModule(img_size, tokens_type, in_chans, embed_dim, token_dim, splits)
        num_tokens = self.tokens_to_token.num_patches + 1
        self.cls_token = self.create_parameter(
            [1, 1, embed_dim], attr=paddle.ParamAttr(initializer=nn.initializer.Normal(0.0, 0.02))
        )
        self.pos_embed = self.create_parameter([1, num_tokens, embed_dim], attr=positions(num_tokens, embed_dim))
        self.pos_drop = Dropout(drop_rate)
        layers, self.num_features = blocks(
            embed_dim, depth, num_heads, mlp_ratio, qk_scale, drop_rate, attn_drop_rate, drop_path_rate
        )
        self.blocks = nn.LayerList(layers)
        self.norm = norm(self.num_features)
        self.head = Linear(self.num_features, num_classes) if num_classes > 0 else nn.Identity()

    def forward_features(self, x, maps=False):
        """Images [B, in_chans, S, S] -> normalised class token [B, num_features].

        With maps=True feature maps for heads of detection and segmentation instead, as a dict with the strides 4, 8
        and 16 as keys: the restructured tokens of the T2T module, {4: [B, token_dim, S/4, S/4], 8: [B, token_dim, S/8,
        S/8]} (not for tokens_type "patch", which has no such stages), and the backbone's last tokens, normalised and
        without the class token, {16: [B, num_features, S/16, S/16]}. Other splits have other strides and sides; of two
        grids of one stride the later is kept.
        """
        if not _on_cpu(x):
            return self._features(x, maps)
        return _packed_transposes(partial(self._features, maps=maps), x)

    def _features(self, x, maps):
        if paddle.in_dynamic_mode() and list(x.shape[2:]) != [self.img_size, self.img_size]:
            raise ValueError(
                f"images are {x.shape[2]}x{x.shape[3]}, but the network was built for "
                f"{self.img_size}x{self.img_size}; build it with img_size={x.shape[2]} or resize the images"
            )
        if maps:
            stages, x = self.tokens_to_token.stages(x)
        else:
            x = self.tokens_to_token(x)
        cls = self.cls_token.expand([x.shape[0], -1, -1])
        x = self.pos_drop(paddle.concat([cls, x], axis=1) + self.pos_embed)
        for block in self.blocks:
            x = block(x)
        if not maps:
            return self.norm(x[:, 0])
        module = self.tokens_to_token
        return dict(zip(module.strides, [*stages, _restructure(self.norm(x[:, 1:]), module.sides[-1])]))

    def forward(self, x):
        return self.head(self.forward_features(x))


def _check_arguments(img_size, tokens_type, embed_dim, num_heads, splits):
    whole = isinstance(img_size, int) and img_size > 0
    if not whole or splits == SPLITS and img_size % 16:
        raise ValueError(
            f"img_size={img_size}: T2T-ViT takes square images of a multiple of 16 pixels: 16, 32, 64, 224, 384 ..."
        )
    if tokens_type not in TOKENS_TYPES:
        raise ValueError(f"tokens_type={tokens_type!r}: must be one of {', '.join(TOKENS_TYPES)}")
    if splits != SPLITS and tokens_type == "patch":
        raise ValueError(f"splits={splits}: this network has no soft splits; leave them out")
    if len(splits) != 3 or any(len(split) != 3 for split in splits):
        raise ValueError(f"splits={splits}: must be three times kernel, overlap and padding")
    if embed_dim % num_heads:
        raise ValueError(f"embed_dim={embed_dim}: must be a multiple of num_heads={num_heads}")


def _check_rates(**rates):
    for name, rate in rates.items():
        if not 0 <= rate < 1:
            raise ValueError(f"{name}={rate}: must be at least 0 and below 1")


# The published models; models/registry.py holds their sizes, accuracies and sources. Arguments of T2TViT pass through:
# t2t_vit_7(img_size=64, num_classes=10, drop_path_rate=0.1).

t2t_vit_7 = partial(T2TViT, embed_dim=256, depth=7, num_heads=4, mlp_ratio=2.0)
t2t_vit_10 = partial(T2TViT, embed_dim=256, depth=10, num_heads=4, mlp_ratio=2.0)
t2t_vit_12 = partial(T2TViT, embed_dim=256, depth=12, num_heads=4, mlp_ratio=2.0)
t2t_vit_14 = partial(T2TViT, embed_dim=384, depth=14, num_heads=6, mlp_ratio=3.0)
t2t_vit_19 = partial(T2TViT, embed_dim=448, depth=19, num_heads=7, mlp_ratio=3.0)
t2t_vit_24 = partial(T2TViT, embed_dim=512, depth=24, num_heads=8, mlp_ratio=3.0)
t2t_vit_t_14 = partial(t2t_vit_14, tokens_type="transformer")
t2t_vit_t_19 = partial(t2t_vit_19, tokens_type="transformer")
t2t_vit_t_24 = partial(t2t_vit_24, tokens_type="transformer")
# 32 heads of 12 channels instead of 6 of 64 (Table 6).
t2t_vit_14_resnext = partial(t2t_vit_14, num_heads=32)
# Shallow and wide at equal size, against deep and narrow (Tables 6 and 7).
t2t_vit_14_wide = partial(T2TViT, embed_dim=768, depth=4, num_heads=12, mlp_ratio=3.0)
# Three convolutions as T2T module, and no T2T module at all (Table 7).
t2t_vit_c_14 = partial(t2t_vit_14, tokens_type="convolution")
t2t_vit_14_wo_t2t = partial(t2t_vit_14, tokens_type="patch")
