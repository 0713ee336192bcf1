"""From a finished ledger to arrays: sequences begin at their first real token, sums become means, and what is not there is NaN."""

from collections import defaultdict

import numpy as np
import torch
from torch import Tensor

from sinklab.probe.ledger import Ledger
from sinklab.probe.probes import OWN
from sinklab.probe.result import HIDDEN

Numbers = dict[str, np.ndarray]  # name -> float32 (sequences, layers, heads, n)


def settle(ledger: Ledger, depth: int, layers: int) -> Numbers:
    """Arrays by name; heads that a layer does not have, layers that do not attend and places without a token are NaN."""
    first = ledger.first_real("cpu")
    found: dict[str, dict[int, Tensor]] = defaultdict(dict)
    for (layer, name), sums in ledger.sums.items():
        if name == "count":
            found["queries"][layer] = _from_first(sums.float(), first, ledger.length)
        else:
            counts = ledger.sums[layer, "count"]
            means = sums / torch.where(counts > 0, counts, torch.nan)
            found["alpha" if name == "sum" else name][layer] = _from_first(means, first, ledger.length)
    for (layer, name), values in ledger.queries.items():
        found[name][layer] = (values / ledger.asked[:, None].to(values.device))[..., None]
    for (layer, name), runs in ledger.places.items():
        found[name][layer] = _from_first(torch.cat(runs, -1), first, ledger.length)
    for (layer, name), rows in ledger.windows.items():
        found[name][layer] = rows.sum(2) / ledger.asked.clamp_max(rows.shape[2])[:, None, None].to(rows.device)
    for (layer, name), values in ledger.facts.items():
        found[name][layer] = _shifted(name, values.float(), first)
    numbers = {name: _stack(by_layer, layers + 1 if name in HIDDEN else depth) for name, by_layer in found.items()}
    if "own" in numbers and ledger.starts is None:
        numbers["own"] = numbers["own"][..., :OWN]
    return numbers


def tokens(ledger: Ledger) -> np.ndarray:
    """int64 (sequences, places), from the first real token on; -1 where there is none."""
    if ledger.input_ids is None:
        return np.full((ledger.batch, ledger.length), -1)
    ids = ledger.input_ids
    if ledger.real is not None:
        ids = ids.masked_fill(~ledger.real.to(ids.device)[:, : ids.shape[1]], -1)
    width = ids.shape[1]
    places = torch.arange(width, device=ids.device) + ledger.first_real(ids.device)[:, None]
    return torch.where(places < width, ids.gather(1, places.clamp_max(width - 1)), -1).cpu().numpy()


def first_places(ledger: Ledger) -> np.ndarray:
    """(sequences,): how many places of padding stand before the first token."""
    return ledger.first_real("cpu").numpy()


def starts(ledger: Ledger) -> np.ndarray | None:
    """Boolean (sequences, places), from the first real token on: where packed documents begin; None where nothing is packed."""
    if ledger.starts is None:
        return None
    return _from_first(ledger.starts[:, None], ledger.first_real("cpu"), ledger.length)[:, 0].nan_to_num().bool().cpu().numpy()


def _from_first(values: Tensor, first: Tensor, length: int) -> Tensor:
    """(B, H, places) -> (B, H, length): moved to the left so that place 0 is the first real token."""
    values = torch.nn.functional.pad(values.float(), (0, length - values.shape[-1]), value=torch.nan)
    if not first.any():
        return values
    places = torch.arange(length) + first[:, None]
    moved = values.gather(-1, places.clamp_max(length - 1).to(values.device)[:, None].expand(-1, values.shape[1], -1))
    return moved.masked_fill((places >= length).to(values.device)[:, None], torch.nan)


def _shifted(name: str, values: Tensor, first: Tensor) -> Tensor:
    """Facts as (B, 1, n). Massive activations are quadruples (value, position, dimension, ratio): their places become positions from 1."""
    if name == "massive":
        values = values.clone()
        values[..., 1] += 1 - first.to(values.device)[:, None]
    return values.flatten(1)[:, None]


def _stack(by_layer: dict[int, Tensor], layers: int) -> np.ndarray:
    some = list(by_layer.values())
    heads, width = max(x.shape[1] for x in some), max(x.shape[2] for x in some)
    stacked = np.full((some[0].shape[0], layers, heads, width), np.nan, np.float32)
    for layer, values in by_layer.items():
        stacked[:, layer, : values.shape[1], : values.shape[2]] = values.cpu().numpy()
    return stacked
