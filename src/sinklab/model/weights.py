"""The room of attention weights: score -> weight, and the normaliser of a row.

Scores are s_ij = scale * phi(q_i).phi(k_j) + bias, -inf where i does not see j; a weight is n_ij / Z_i. Members whose numerators are positive also
say their logarithm, which kernels start from: weight = exp(log n(s_ij) - log Z_i).
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat
from torch import Tensor

from sinklab.config import Part


class Normaliser(Part, ABC):
    """What the numerators of a row are divided by: a function of sum_j n_ij^power."""

    sums_to_one: ClassVar[bool] = False  # positive numerators over it do
    competes: ClassVar[bool] = True  # a key that is added takes weight from the others

    @property
    @abstractmethod
    def power(self) -> float:
        """Of the numerators in the sum."""

    @abstractmethod
    def z(self, sums: Tensor) -> Tensor:
        """The divisor."""

    def of(self, n: Tensor) -> Tensor:
        """Numerators (..., keys) -> (..., 1)."""
        return self.z((n if self.power == 1 else n.pow(self.power)).sum(-1, keepdim=True))


class Unnormalised(Normaliser):
    """Z_i = 1: the weights of a row do not compete."""

    competes: ClassVar[bool] = False
    power: ClassVar[float] = 1.0

    def z(self, sums: Tensor) -> Tensor:
        """One."""
        return torch.ones_like(sums)


class RowSum(Normaliser):
    """Z_i = sum_j n_ij + 1e-8."""

    power: ClassVar[float] = 1.0
    sums_to_one: ClassVar[bool] = True

    def z(self, sums: Tensor) -> Tensor:
        """So that a row sums to one."""
        return sums + 1e-8


class PowerSum(Normaliser):
    """Z_i = (sum_j n_ij^p)^(1/p) (p-normalised attention: 2410.10781, figure 29)."""

    p: PositiveFloat

    @property
    def power(self) -> float:
        """p."""
        return self.p

    def z(self, sums: Tensor) -> Tensor:
        """The p-norm of the row."""
        return sums.clamp_min(1e-30).pow(1 / self.p)


class AtLeastOne(Normaliser):
    """Z_i = max(|sum_j n_ij|, 1), for signed numerators (2410.10781, table 6)."""

    power: ClassVar[float] = 1.0

    def z(self, sums: Tensor) -> Tensor:
        """So that a sum near zero does not blow up the row."""
        return sums.abs().clamp_min(1)


class Weights(Part, ABC):
    """What attention makes of its scores."""

    floor: ClassVar[float] = 1e-8  # added to the sum that sinks are measured against, as the paper's code does
    shortfall: ClassVar[bool] = False  # rows of what sinks are measured by may sum to less than one

    @property
    @abstractmethod
    def proxy(self) -> bool:
        """Rows of weights do not sum to one, and sinks are measured by |w_ij| / sum_j |w_ij| in their stead (2410.10781, section 7.3)."""

    @property
    @abstractmethod
    def competes(self) -> bool:
        """A key that is added takes weight from the others."""

    @abstractmethod
    def parts(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of scores over all keys -> numerators, zero where a key is not seen, and what each row is divided by (..., 1)."""

    def weigh(self, scores: Tensor) -> Tensor:
        """The weights."""
        n, z = self.parts(scores)
        return n / z

    @abstractmethod
    def logs(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """What sinks are measured by: log |n_ij|, and the log of what that score adds to its row's normaliser."""


class Positive(Weights, ABC):
    """Numerators above zero, which have a logarithm."""

    @abstractmethod
    def log(self, scores: Tensor) -> Tensor:
        """log n(s), for any finite s."""

    @property
    @abstractmethod
    def power(self) -> float:
        """Of the numerators in the sum that makes Z."""

    @abstractmethod
    def log_z(self, log_sum: Tensor) -> Tensor:
        """log Z of rows whose numerators' powers have these sums."""

    def logs(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Both are the numerator's."""
        n = self.log(scores)
        return n, n


class Divided(Weights, ABC):
    """Numerators over a normaliser of choice."""

    normaliser: Normaliser = Unnormalised()

    @property
    def proxy(self) -> bool:
        """Unless divided by their sum."""
        return not self.normaliser.sums_to_one

    @property
    def competes(self) -> bool:
        """As the normaliser has it."""
        return self.normaliser.competes


class Softmax(Positive):
    """alpha * softmax(p * s)^(1/p); alpha = p = 1 is softmax (alpha: 2410.10781, table 14; p: its figure 29)."""

    competes: ClassVar[bool] = True
    floor: ClassVar[float] = 0.0
    alpha: PositiveFloat = 1.0
    p: PositiveFloat = 1.0

    @property
    def proxy(self) -> bool:
        """Where p is not 1; alpha only scales what sums to one."""
        return self.p != 1

    def parts(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Divided by a constant that is the sum itself: what is left to divide by is 1, with its gradient, and a backward pass over rows is saved."""
        raised = scores if self.p == 1 else self.p * scores
        top = raised.amax(-1, keepdim=True).detach()
        lse = ((raised - top).exp().sum(-1, keepdim=True).log() + top) / self.p
        constant = lse.detach()
        z = (lse - constant).exp()
        return (scores - constant).exp(), z if self.alpha == 1 else z / self.alpha

    def log(self, scores: Tensor) -> Tensor:
        """The score."""
        return scores

    @property
    def power(self) -> float:
        """p."""
        return self.p

    def log_z(self, log_sum: Tensor) -> Tensor:
        """Of the p-norm, over alpha."""
        return log_sum / self.p - math.log(self.alpha)


class Exponential(Positive):
    """exp(s): softmax without its normaliser."""

    competes: ClassVar[bool] = False
    power: ClassVar[float] = 1.0
    proxy: ClassVar[bool] = True

    def parts(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Overflows where a score passes 88."""
        return scores.exp(), torch.ones_like(scores[..., :1])

    def log(self, scores: Tensor) -> Tensor:
        """The score."""
        return scores

    def log_z(self, log_sum: Tensor) -> Tensor:
        """Of one."""
        return torch.zeros_like(log_sum)


class Normalised(Positive, Divided, ABC):
    """Numerators above zero that are bounded, or grow slowly: the fast kernel adds them up without a maximum."""

    kernel: ClassVar[str]  # the name under which `summing` knows the function

    @property
    def power(self) -> float:
        """The normaliser's."""
        return self.normaliser.power

    def log_z(self, log_sum: Tensor) -> Tensor:
        """Of the normaliser."""
        return self.normaliser.z(log_sum.exp()).log()


class Sigmoid(Normalised):
    """sigmoid(s) / Z."""

    kernel: ClassVar[str] = "sigmoid"

    def parts(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """No bias and no 1/n: as the paper has it."""
        n = torch.sigmoid(scores)
        return n, self.normaliser.of(n)

    def log(self, scores: Tensor) -> Tensor:
        """-softplus(-s)."""
        return F.logsigmoid(scores)


class EluPlusOne(Normalised):
    """(elu(s) + 1) / Z."""

    kernel: ClassVar[str] = "elu+1"

    def parts(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """exp(s) below zero, s + 1 above: without the cancellation of elu(s) + 1 far below zero."""
        n = torch.where(scores > 0, scores + 1, scores.clamp_max(0).exp())
        return n, self.normaliser.of(n)

    def log(self, scores: Tensor) -> Tensor:
        """The score below zero."""
        return torch.where(scores > 0, torch.log1p(scores.clamp_min(0)), scores)


class Linear(Divided):
    """s / Z: the kernels of linear attention, signed unless the features are positive."""

    def parts(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The score itself."""
        n = scores.masked_fill(scores == -torch.inf, 0)
        return n, self.normaliser.of(n)

    def logs(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Of its magnitude."""
        size = scores.abs().log()
        return size, size


class Softpick(Weights):
    """relu(exp(s) - 1) / sum_j |exp(s) - 1| (2504.20966): rows sum to one or less, and to zero where no score is above zero."""

    competes: ClassVar[bool] = True
    proxy: ClassVar[bool] = False
    shortfall: ClassVar[bool] = True

    def parts(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """With the larger of the row's maximum and zero taken out, which the quotient does not notice."""
        top = scores.amax(-1, keepdim=True).clamp_min(0).detach()
        over = (torch.exp(scores - top) - torch.exp(-top)) * (scores != -torch.inf)
        return over.relu(), over.abs().sum(-1, keepdim=True) + 1e-8

    def logs(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """log |exp(s) - 1|, which is -inf for the numerator where s is below zero."""
        size = torch.where(scores > 0, scores, 0) + torch.log(-torch.expm1(-scores.abs()))
        return torch.where(scores > 0, size, -torch.inf), size
