"""The loss of a text in pieces: the model's own head on a few positions at a time, so that (T, vocabulary) logits never exist."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sinklab.errors import NotMeasurable
from sinklab.probe.attach import unwrap

PIECE_NUMBERS = 1 << 24  # logits that exist at once: 64 MiB of float32


def text_loss(
    model: nn.Module, base: nn.Module, output: Any, tokens: Tensor, mask: Tensor | None, starts: Tensor | None = None, given: int = 1
) -> Tensor:
    """float32 (B,): mean cross-entropy in nats of each real token that follows a real token of its document, but for the first that are given."""
    inner = unwrap(model)
    hidden = getattr(output, "last_hidden_state", None)
    if hidden is None:
        raise NotMeasurable(f"{type(inner).__name__} gives no hidden states, so its loss cannot be had in pieces; measure it without the loss.")
    real = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.bool()
    counted = real[:, 1:] & real[:, :-1] & (real.cumsum(-1) > given)[:, 1:]
    if starts is not None:
        counted &= ~starts[:, 1:]
    total = torch.zeros(len(tokens), device=hidden.device)
    step = max(1, PIECE_NUMBERS // (len(tokens) * inner.config.get_text_config(decoder=True).vocab_size))
    for start in range(0, tokens.shape[1] - 1, step):
        stop = min(start + step, tokens.shape[1] - 1)
        with _answering(base, output, hidden[:, start:stop]):
            logits = inner(input_ids=tokens[:, start:stop], use_cache=False).logits
        targets = tokens[:, start + 1 : stop + 1].to(logits.device)
        losses = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
        total += (losses * counted[:, start:stop].to(logits.device)).sum(-1).to(total.device)
    return (total / counted.sum(-1).to(total.device)).float().cpu()  # NaN for a single token


@contextmanager
def _answering(base: nn.Module, output: Any, hidden: Tensor) -> Iterator[None]:
    """The base answers with hidden states that it has given before; what stands between them and the logits is the model's own."""
    answer = type(output)(last_hidden_state=hidden)
    before = vars(base).get("forward")
    base.forward = lambda *_, **__: answer
    try:
        yield
    finally:
        if before is None:
            del base.forward
        else:
            base.forward = before
