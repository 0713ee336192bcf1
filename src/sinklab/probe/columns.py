"""Column sums of the attention map, exactly and without the map: sum_i A[i, k] = sum_i exp(s_ik - lse_i).

Where scores are products and each key is seen by one unbroken run of queries a fast kernel does it; the chunked reference does everything else, and
is what the fast ones must equal.
"""

import torch
from torch import Tensor

from sinklab.probe import cpu, kernel, selected
from sinklab.probe.call import Call


def column_sums(call: Call, lse: Tensor) -> tuple[Tensor, str]:
    """float32 (B, H, Tk), and the name of the way that was taken."""
    with torch.no_grad():
        if call.visible.unbroken and call.by_capped_products:
            for fast in (kernel, cpu):
                if fast.refusal(call.q, call.k, call.softcap) is None:
                    sums = fast.column_sums(call.q, call.k, lse, call.visible.first, call.visible.last, call.scale, call.softcap)
                    return sums, fast.NAME
        return reference(call, lse), "chunks"


def reference(call: Call, lse: Tensor) -> Tensor:
    """The readable one: weights of a run of queries, summed over queries."""
    sums = torch.zeros(*call.q.shape[:2], call.visible.keys, device=call.q.device)
    for start, stop, keys in call.chunks():
        sums[:, :, keys] += call.weights(lse, start, stop, keys).sum(-2)
    return sums


def selected_sums(call: Call, lse: Tensor, places: Tensor) -> Tensor:
    """float32 (B, H, P): the same sums for a few keys, places (B, P) within the call, in O(Tq * P)."""
    if not call.by_capped_products or not call.visible.unbroken:
        return column_sums(call, lse)[0].gather(-1, places[:, None].expand(-1, call.heads, -1))
    with torch.no_grad():
        first, last, where, _ = call.visible.once(("selected", id(places)), lambda: _bounds(call, places))
        keys = call.k.expand(len(places), -1, -1, -1).gather(2, where.expand(-1, call.k.shape[1], -1, call.k.shape[-1]))
        return selected.column_sums(call.q, keys, lse, first, last, call.scale, call.softcap)


def _bounds(call: Call, places: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What is the same for all layers, with `places` itself: its id stands for it, and must not become another's."""
    first, last = (bound.expand(len(places), -1).gather(1, places) for bound in (call.visible.first, call.visible.last))
    return first, last, places[:, None, :, None], places
