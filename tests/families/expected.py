"""What alpha and the virtual mass must be, from the model's own maps; and where a ledger says something else."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from families.eager import weights
from families.special import KEYS_BY_CONTENT
from sinklab.probe.ledger import Ledger

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Expected:
    """One layer. Alpha is NaN where nobody may see a key."""

    alpha: Tensor  # (B, H, T)
    counts: Tensor  # (B, H, T): how many real queries may see each key
    virtual: Tensor  # (B, H): mean over real queries


def expected(model: PreTrainedModel, inputs: dict[str, Tensor]) -> dict[int, Expected]:
    """By layer, for the layers that attend."""
    maps, virtual = weights(model, inputs)
    real = inputs["attention_mask"].bool()
    return {layer: _expected(a, virtual[layer], real, _by_content(model, layer)) for layer, a in maps.items()}


def _expected(a: Tensor, virtual: Tensor, real: Tensor, by_content: bool) -> Expected:
    a = a * real[:, None, :, None]
    seen = a > 0
    if by_content:  # a key that lost could have been seen
        causal = torch.ones(a.shape[-2:], dtype=torch.bool).tril()
        seen = (causal & real[:, None, :, None] & real[:, None, None, :]).expand_as(a)
    counts = seen.sum(2)
    alpha = a.sum(2) / torch.where(counts > 0, counts, torch.nan)
    return Expected(alpha, counts, (virtual * real[:, None]).sum(-1) / real.sum(-1)[:, None])


def _by_content(model: PreTrainedModel, layer: int) -> bool:
    kinds = getattr(model.config.get_text_config(decoder=True), "layer_types", None)
    return model.config.model_type in KEYS_BY_CONTENT and "sliding" not in (kinds[layer] if kinds else "")


def far_off(ledger: Ledger, wanted: dict[int, Expected]) -> list[str]:
    """A line for each number of a layer that is not the expected one."""
    layers = {layer for layer, name in ledger.sums if name == "sum"}
    wrong = [] if layers == wanted.keys() else [f"layers {sorted(layers)} rather than {sorted(wanted)}"]
    for layer in sorted(layers & wanted.keys()):
        sums, counts, mass = ledger.sums[layer, "sum"], ledger.sums[layer, "count"], ledger.queries[layer, "virtual"]
        want = wanted[layer]
        asked = want.counts.new_tensor(sums.shape[2]) if ledger.real is None else ledger.real.sum(-1)[:, None]
        found = {"counts": counts, "alpha": sums / torch.where(counts > 0, counts, torch.nan), "virtual": mass / asked}
        for name, value in found.items():
            wrong += _line(layer, name, value.float(), getattr(want, name).float())
    return wrong


def _line(layer: int, name: str, found: Tensor, want: Tensor) -> list[str]:
    try:
        found = found.expand_as(want)
    except RuntimeError:
        return [f"layer {layer}: {name} is {tuple(found.shape)} rather than {tuple(want.shape)}"]
    same = torch.isclose(found, want, atol=TOLERANCE, rtol=0, equal_nan=True)
    if bool(same.all()):
        return []
    return [f"layer {layer}: {name} is off by {(found - want)[~same].abs().max():.2g}"]
