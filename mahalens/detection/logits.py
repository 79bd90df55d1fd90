"""Detectors that read the logits of a classifier; without logits they fit one to the features."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mahalens.detection.base import Detector
from mahalens.detection.known import Known, Rows, Wanted, is_number, root
from mahalens.errors import InputError
from mahalens.geometry._checks import count_of

PROBE_ROWS = 10_000
"""Samples that a linear probe is fitted to, at most."""


class _Logits(Detector):
    """Base of the detectors on logits [N, L].

    Logits come from the last linear layer of the model, from the caller (``logits=``), or, where
    there are only features and labels, from a linear probe: logistic regression on standardised
    features with the penalty ‖W‖² / 2n, fitted to at most 10,000 samples.
    """

    needs_labels: bool = False
    weight: Tensor
    bias: Tensor

    @property
    def wanted(self) -> Wanted:
        """A sample of the rows."""
        return Wanted(sample=True)

    def settle(self, known: Known) -> None:
        """Take the linear layer of the model, or fit one."""
        rows = known.some
        if rows.logits is None and known.linear is None and not known.labelled:
            raise InputError(
                f"{type(self).__name__} needs logits or labels; give logits=, y, a model whose "
                "last layer is linear, or use Marginal or Neighbours"
            )
        count = len(known.classes)
        if rows.logits is not None:
            count = rows.logits.shape[1]
        elif known.linear is not None:  # a model whose output has more axes than [N, L]
            count = len(known.linear[0])
        if count < 2:
            raise InputError(
                f"{type(self).__name__} compares classes, and there is {count}; use Marginal or "
                "Neighbours"
            )
        if rows.logits is None or known.linear is not None:
            weight, bias = known.linear or fit_probe(rows, count)
            self.remember(weight=weight.to(known.dtype).mT, bias=bias.to(known.dtype))
        if rows.logits is not None or known.linear is not None:  # logit l is that of label l
            self.remember(classes=torch.arange(count, device=known.device))

    def logits_of(self, z: Tensor, logits: Tensor | None) -> Tensor:
        """Return the logits of features, by the linear layer if there is one."""
        if "weight" in self._buffers:
            return z.to(self.weight.dtype) @ self.weight + self.bias
        if logits is None:
            raise InputError("this detector was fitted with logits; give logits= here too")
        if logits.shape[1] != len(self.classes):
            raise InputError(
                f"logits have {logits.shape[1]} columns, but the detector was fitted to "
                f"{len(self.classes)}; give logits of the same layer"
            )
        return logits

    def forward(self, z: Tensor, logits: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the score and the place of the largest logit."""
        logits = self.logits_of(z, logits)
        return self.from_logits(logits), logits.argmax(1)

    def from_logits(self, logits: Tensor) -> Tensor:
        """Return the score [N] of logits [N, L]."""
        raise NotImplementedError


class Energy(_Logits):
    """Free energy of the logits: ``score = −T log Σ_l exp(logit_l / T)``.

    Liu et al. 2020, *Energy-based Out-of-distribution Detection*. Logits come from the model, from
    the caller, or from a linear probe.

    >>> z = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    >>> Energy().fit_features(z, logits=3 * z).score_features(z[:1], logits=torch.zeros(1, 2))
    tensor([-0.6931])
    """

    method: ClassVar[str] = "energy"

    def __init__(self, *, temperature: float = 1.0) -> None:
        if not (is_number(temperature) and temperature > 0):
            raise InputError(f"temperature is {temperature!r}; give a positive number")
        super().__init__(temperature=float(temperature))

    def from_logits(self, logits: Tensor) -> Tensor:
        """Return the score [N] of logits [N, L]."""
        temperature: float = self.options["temperature"]
        return -temperature * (logits / temperature).logsumexp(1)


def _odds_against(logits: Tensor) -> Tensor:
    """Return ``(1 − p) / p`` [N] of the largest probability p, to full precision near p = 1."""
    largest, places = logits.max(1, keepdim=True)
    return (logits - largest).exp().scatter(1, places, 0.0).sum(1)


class MaxSoftmax(_Logits):
    """Largest probability of the softmax: ``score = −log max_l p_l``.

    The logarithm orders samples as 1 − max p does. It is computed as log(1 + Σ exp(logit_l − m)),
    with the largest logit m and the sum over the others, which keeps the digits where p is near 1.
    Hendrycks and Gimpel 2017, *A Baseline for Detecting Misclassified and Out-of-Distribution
    Examples*. Logits as in :class:`Energy`.

    >>> z = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    >>> MaxSoftmax().fit_features(z, logits=3 * z).score_features(z[:1], logits=torch.zeros(1, 2))
    tensor([0.6931])
    """

    method: ClassVar[str] = "max-softmax"

    def from_logits(self, logits: Tensor) -> Tensor:
        """Return the score [N] of logits [N, L]."""
        return _odds_against(logits).log1p()


class MaxLogit(_Logits):
    """Largest logit: ``score = −max_l logit_l``.

    Hendrycks et al. 2022, *Scaling Out-of-Distribution Detection for Real-World Settings*. Logits
    as in :class:`Energy`.

    >>> z = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    >>> MaxLogit().fit_features(z, logits=3 * z).score_features(z[:1], logits=torch.ones(1, 2))
    tensor([-1.])
    """

    method: ClassVar[str] = "max-logit"

    def from_logits(self, logits: Tensor) -> Tensor:
        """Return the score [N] of logits [N, L]."""
        return -logits.amax(1)


class GEN(_Logits):
    """Generalised entropy of the largest probabilities p₁ ≥ p₂ ≥ ... of the softmax.

    ::

        score = Σ_{i ≤ top} p_i^γ (1 − p_i)^γ

    Liu et al. 2023, *GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection*: γ =
    0.1, top = 100 (all, if there are fewer). 1 − p₁ is the sum of the other probabilities, which
    keeps the digits where p₁ is near 1. Logits as in :class:`Energy`.

    >>> z = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    >>> detector = GEN(gamma=0.5).fit_features(z, logits=3 * z)
    >>> detector.score_features(z[:1], logits=torch.zeros(1, 2))
    tensor([1.])
    """

    method: ClassVar[str] = "gen"

    def __init__(self, *, gamma: float = 0.1, top: int = 100) -> None:
        if not (is_number(gamma) and 0 < gamma <= 1):
            raise InputError(f"gamma is {gamma!r}; give a number above 0, at most 1")
        super().__init__(gamma=float(gamma), top=count_of("top", top))

    def from_logits(self, logits: Tensor) -> Tensor:
        """Return the score [N] of logits [N, L]."""
        tiny = torch.finfo(logits.dtype).tiny
        shares = logits.softmax(1)
        shares = shares.topk(min(self.options["top"], shares.shape[1]), 1).values
        odds = _odds_against(logits)[:, None]
        rests = torch.cat([odds / (1 + odds), 1 - shares[:, 1:]], 1)
        terms = shares.clamp(min=tiny) * rests.clamp(min=tiny)
        return terms.pow(self.options["gamma"]).sum(1)


class ViM(_Logits):
    """Energy of the logits with one more logit: the part of the features outside a subspace.

    With the R principal axes P of the features about the origin o::

        score(z) = α ‖(I − P Pᵀ)(z − o)‖ − log Σ_l exp(logit_l)

    o is where the linear layer gives 0 (−W⁺ b, by the pseudoinverse), or the mean of the features
    if there is no layer. α makes the extra logit as large, on average over known samples, as the
    largest logit, so that this average has to be above 0: the extra logit would otherwise fall with
    the distance from the subspace, and rank samples backwards. Logarithms of probabilities, which
    are never above 0, are refused; the logits themselves are what the method is defined for. α
    comes from at most 10,000 samples.
    Wang et al. 2022, *ViM: Out-Of-Distribution with Virtual-logit Matching*.

    Args:
        rank: R; by default 1,000 from 2,048 features on, 512 from 768 on, half of them below.

    >>> z = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
    >>> y = torch.arange(400) % 2
    >>> z[y == 1, :2] += 10
    >>> detector = ViM(rank=2).fit_features(z, y)
    >>> detector.reject_features([[10.0, 10.0, 0.0, 0.0], [10.0, 10.0, 20.0, 20.0]])
    tensor([False,  True])
    """

    method: ClassVar[str] = "vim"
    origin: Tensor
    axes: Tensor
    alpha: Tensor

    def __init__(self, *, rank: int | None = None) -> None:
        super().__init__(rank=None if rank is None else count_of("rank", rank))

    @property
    def wanted(self) -> Wanted:
        """Moments of the features, and a sample."""
        return Wanted((0.0,), sample=True)

    def settle(self, known: Known) -> None:
        """Set the principal axes and the size of the extra logit."""
        super().settle(known)
        moments, dim = known.moments[0.0], known.width
        usual = 1_000 if dim >= 2_048 else 512 if dim >= 768 else dim // 2
        rank = max(1, min(self.options["rank"] or usual, dim - 1))
        origin = moments.mean
        if "weight" in self._buffers:
            weight, bias = self.weight.double(), self.bias.double()
            # Rows of a softmax's weights may add up to 0, which leaves no inverse in float32.
            origin = -torch.linalg.pinv(weight.mT, rtol=1e-5) @ bias
        away = moments.mean - origin
        squares = moments.covariance + moments.between + away[:, None] * away
        axes = torch.linalg.eigh(squares).eigenvectors[:, dim - rank :]
        one = torch.ones((), dtype=known.dtype, device=known.device)
        self.remember(origin=origin.to(known.dtype), axes=axes.to(known.dtype), alpha=one)
        rows = known.some.drawn(PROBE_ROWS)
        residuals, logits = self._residual(rows.z), self.logits_of(rows.z, rows.logits)
        largest = logits.amax(1).mean()
        if not float(largest) > 0:
            raise InputError(
                f"the largest logit is {float(largest):.3g} on average over known samples, but ViM "
                "needs an average above 0; give logits, not logarithms of probabilities, or use "
                "Energy or Mahalanobis"
            )
        self.alpha.copy_(largest / residuals.mean().clamp(min=1e-30))

    def _residual(self, z: Tensor) -> Tensor:
        z = z.to(self.origin.dtype) - self.origin
        return root((z.square().sum(1) - (z @ self.axes).square().sum(1)).clamp(min=0))

    def forward(self, z: Tensor, logits: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the score and the place of the largest logit."""
        logits = self.logits_of(z, logits)
        return self.alpha * self._residual(z) - logits.logsumexp(1), logits.argmax(1)


@torch.inference_mode(False)
def fit_probe(rows: Rows, classes: int, steps: int = 100) -> tuple[Tensor, Tensor]:
    """Return weight [C, D] and bias [C] of a logistic regression on standardised features."""
    order = rows.draw.argsort()[:PROBE_ROWS]
    z, y = rows.z[order], rows.y[order].to(rows.z.device)
    spread, mean = torch.std_mean(z, 0, correction=0)
    scale = 1 / torch.where(spread > 1e-6 * spread.max(), spread, torch.inf)
    z = (z - mean) * scale
    weight = z.new_zeros(classes, z.shape[1]).requires_grad_()
    bias = z.new_zeros(classes).requires_grad_()
    solver = torch.optim.LBFGS(
        [weight, bias], max_iter=steps, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )

    def loss() -> Any:
        solver.zero_grad()
        value = nn.functional.cross_entropy(nn.functional.linear(z, weight, bias), y)
        value = value + weight.square().sum() / (2 * len(z))
        value.backward()
        return value

    with torch.enable_grad():
        solver.step(loss)
    slopes = weight.detach() * scale
    return slopes, bias.detach() - slopes @ mean
