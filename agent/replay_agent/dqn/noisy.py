"""Noisy dense layers, with which a network explores by itself (Fortunato et al., 2018, arXiv:1706.10295)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class NoisyLinear(nn.Module):
    """A dense layer with factorized Gaussian noise, section 3 (b) of the paper.

    In training mode, each call draws new noise from torch's global generator. In evaluation mode there is none.
    """

    def __init__(self, inputs: int, outputs: int, sigma: float) -> None:
        """Set the weights as in section 3.2 of the paper; ``sigma`` is its sigma_0, the initial scale of the noise."""
        super().__init__()
        bound = inputs**-0.5
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma * bound))

    def forward(self, features: Tensor) -> Tensor:
        """Return float32[..., outputs] for float32[..., inputs]."""
        if not self.training:
            return functional.linear(features, self.weight, self.bias)
        outputs, inputs = self.weight.shape
        of_inputs, of_outputs = _noise(inputs, features), _noise(outputs, features)
        weight = self.weight + self.weight_sigma * torch.outer(of_outputs, of_inputs)
        return functional.linear(features, weight, self.bias + self.bias_sigma * of_outputs)


def _noise(size: int, like: Tensor) -> Tensor:
    """Draw f(x) = sign(x) sqrt(|x|) of standard normal numbers, float32[size], equation 10 of the paper."""
    drawn = torch.randn(size, device=like.device)
    return drawn.sign() * drawn.abs().sqrt()
