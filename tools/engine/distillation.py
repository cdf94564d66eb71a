"""Knowledge distillation: a trained network, the teacher, shows another one what it makes of the training images."""

import hashlib

import numpy as np
import paddle
import paddle.nn.functional as F
from errors import UserError

from engine.loss import soft_cross_entropy

_DIGEST = "teacher/sha256"


class Taught:
    """What the loss compares logits with: the targets of the labels and the teacher's logits float32 [B, C]."""

    def __init__(self, labels, teacher):
        self.labels, self.teacher = labels, teacher

    def __len__(self):
        return len(self.labels)


class Distillation:
    """The loss of a training with a teacher: (1 - alpha) x the labels' loss + alpha x the teacher's term.

    hard (Touvron et al. 2021, "Training data-efficient image transformers", equation 3, where alpha is 1/2): the term
    is the cross entropy with the class that the teacher holds most likely, without smoothing.
    soft (Hinton et al. 2015, "Distilling the knowledge in a neural network"; equation 2 of Touvron et al.): T^2 x
    KL(softmax(teacher / T) || softmax(logits / T)) with the temperature T; T^2 keeps the size of its gradient.

    T2T-ViT has no distillation token, so both terms act on the logits of the class token. The paper's distilled rows
    (T2T-ViT-7 73.1, T2T-ViT-12 77.4) do not tell their teacher or any of this.

    The teacher sees the images of the step as they are, mixed, erased and normalised, in evaluation mode, in float32
    and without gradients, so it draws no random numbers.

    Args:
        teacher: paddle.nn.Layer, images [B, 3, S, S] -> logits [B, C] of the same classes; set to evaluation mode here.
        labels: engine.loss.LabelLoss.
        kind: "hard" or "soft". alpha: in [0, 1]. temperature: T > 0, of "soft".
        source: names the teacher in messages.
        own, theirs: (mean, std), each of three numbers, of the images given and of those the teacher was trained on;
            where they differ, its images are normalised anew.
    """

    def __init__(self, teacher, labels, *, kind, alpha, temperature, source, own=None, theirs=None):
        teacher.eval()
        self.teacher, self.labels, self.source = teacher, labels, source
        self.kind, self.alpha, self.temperature = kind, alpha, temperature
        self.affine = None if own == theirs else _renormalisation(own, theirs)
        self._digest = _digest(teacher)

    def targets(self, batch):
        """Taught for a data.batches.Batch."""
        return Taught(self.labels.targets(batch), self._ask(batch.images))

    def _ask(self, images):
        with paddle.no_grad():
            if self.affine:
                images = images * self.affine[0] + self.affine[1]
            return self.teacher(images).astype("float32")

    def __call__(self, logits, taught):
        """Mean over the batch, float32 []; logits [B, C] of any float type. Computed in float32 also in auto_cast."""
        term = self._hard if self.kind == "hard" else self._soft
        return (1 - self.alpha) * self.labels(logits, taught.labels) + self.alpha * term(logits, taught.teacher)

    def _hard(self, logits, teacher):
        return soft_cross_entropy(logits, F.one_hot(teacher.argmax(axis=1), teacher.shape[1]))

    def _soft(self, logits, teacher):
        with paddle.amp.auto_cast(enable=False):
            teacher = teacher / self.temperature
            teacher = teacher - teacher.max(axis=1, keepdim=True)
            log_shares = teacher - teacher.exp().sum(axis=1, keepdim=True).log()
            shares = log_shares.exp()
            cross = soft_cross_entropy(logits.astype("float32") / self.temperature, shares)
            return self.temperature**2 * (cross + (shares * log_shares).sum(axis=1).mean())

    def describe(self):
        """One line for the log."""
        if self.kind == "hard":
            term = "cross entropy with its most likely class"
        else:
            term = f"{self.temperature:g}^2 x KL divergence at temperature {self.temperature:g}"
        renormalised = "; images are normalised anew for it" if self.affine else ""
        return f"{self.kind} distillation: {1 - self.alpha:g} x labels + {self.alpha:g} x {term}{renormalised}"

    # A checkpoint holds whose lessons the run had, so that it does not go on with another teacher unnoticed. Processes
    # compare what checkpoints hold before they train, so all of them have the same teacher, too.

    def arrays(self):
        """What a checkpoint must hold: the digest of the teacher's tensors, uint8 [32]."""
        return {_DIGEST: np.frombuffer(self._digest, np.uint8).copy()}

    def restore(self, arrays):
        """Raise UserError where `arrays()`, found among others, are another teacher's; a run may have had none."""
        if _DIGEST in arrays and arrays[_DIGEST].tobytes() != self._digest:
            raise UserError(
                f"train.teacher={self.source}: the run was taught by other weights so far; give it these again, or "
                "choose another output"
            )


def _renormalisation(own, theirs):
    """Factor and addend float32 [1, 3, 1, 1]: from (p - mean) / std with `own` to that with `theirs`."""
    (mean, std), (other_mean, other_std) = (np.array(pair, np.float64) for pair in (own, theirs))
    pair = std / other_std, (mean - other_mean) / other_std
    return [paddle.to_tensor(values.reshape([1, 3, 1, 1]).astype("float32")) for values in pair]


def _digest(network):
    digest = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    return digest.digest()
