"""How float32 matrices are multiplied on a CPU: which of PyTorch's libraries does it, without a bit less of precision."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

ROUNDING = 2e-6  # of a product of 512 terms, relative to the sum of their magnitudes; bfloat16 factors give 1e-3


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """What float32 products are made of: "ieee" is float32 whatever the user allows elsewhere, "bf16" lets oneDNN round the factors and not the sums.

    Factors that are bfloat16 numbers already are not changed by that, and PyTorch has no other way on a CPU to multiply these into float32.
    """
    setting: Any = torch.backends.mkldnn  # its parts are made at run time, and there is one setting for the whole process
    setting = setting.matmul
    before = setting.fp32_precision
    setting.fp32_precision = precision
    try:
        yield
    finally:
        setting.fp32_precision = "none"  # inherit what is set for all operations, and say it again only where that is something else
        if setting.fp32_precision != before:
            setting.fp32_precision = before


@contextmanager
def fastest_float32(model: nn.Module) -> Iterator[None]:
    """While a float32 model runs on a CPU: by oneDNN where that is exact. PyTorch takes MKL otherwise, which on AMD's chips has half of its speed."""
    weights = next(model.parameters(), None)
    ours = weights is not None and weights.device.type == "cpu" and weights.dtype == torch.float32
    setting: Any = torch.backends.mkldnn
    if not ours or setting.matmul.fp32_precision not in ("none", "ieee") or not onednn_is_exact():
        yield
        return
    with float32_products("bf16"):
        yield


@cache
def onednn_is_exact() -> bool:
    """Whether permission to round factors is not used here: only chips with units for bfloat16 matrices (AMX) use it. Also tried out."""
    has_units: Callable[[], bool] = getattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    if not torch.backends.mkldnn.is_available() or has_units():
        return False
    with float32_products("bf16"):
        return multiplies_exactly(torch.nn.functional.linear)


def multiplies_exactly(linear: Callable[[Tensor, Tensor], Tensor]) -> bool:
    """Products as near to those of float64 as float32 has them, for few rows and for many."""
    generator = torch.Generator().manual_seed(0)
    for rows in (1, 16, 512):
        x, w = torch.randn(rows, 512, generator=generator), torch.randn(256, 512, generator=generator)
        apart = (linear(x, w).double() - x.double() @ w.double().T).abs()
        if bool((apart > ROUNDING * (x.double().abs() @ w.double().abs().T)).any()):
            return False
    return True
