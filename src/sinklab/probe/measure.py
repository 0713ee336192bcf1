"""Measure a model on given tokens: batches of forwards, watched, and nothing computed that nobody asked for."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from sinklab.errors import NotMeasurable, SinklabError
from sinklab.probe.attach import unwrap
from sinklab.probe.loss import text_loss
from sinklab.probe.probes import DEFAULT, Alpha, Probe
from sinklab.probe.products import fastest_float32
from sinklab.probe.result import Result, joined
from sinklab.probe.watch import Watch

POSITIONS = ("max_position_embeddings", "max_seq_len", "max_target_positions")  # what configs call the most tokens of a text
BATCH_TOKENS = {"cpu": 4096, "cuda": 65536}  # in one forward, where nobody says how many sequences


def measure(
    model: nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    probes: Sequence[Probe] = DEFAULT,
    positions: Sequence[int] = (),
    loss: bool = False,
    batch_size: int | None = None,
) -> Result:
    """Attention sinks of a transformers causal LM on (N, T) tokens, at every position, or at the named ones only, which is cheaper.

    `position_ids` say where packed documents begin. `loss` asks for the mean cross-entropy of each sequence too.
    """
    return joined(list(batches(model, input_ids, attention_mask, position_ids, probes=probes, positions=positions, loss=loss, batch_size=batch_size)))


def batches(
    model: nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    probes: Sequence[Probe] = DEFAULT,
    positions: Sequence[int] = (),
    loss: bool = False,
    batch_size: int | None = None,
    done: Callable[[int], None] = lambda _: None,
) -> Iterator[Result]:
    """The same, a result per batch of sequences as soon as it is there; `done` hears how many sequences each had."""
    input_ids, attention_mask, position_ids = _checked(model, input_ids, attention_mask, position_ids)
    chosen = tuple(Alpha(tuple(positions)) if isinstance(p, Alpha) and positions else p for p in probes)
    if positions and position_ids is not None:
        raise NotMeasurable("Named positions and packed documents do not go together; leave `positions` out.")
    device = model_device(model)
    size = batch_size or automatic_batch_size(model, input_ids.shape[1])
    start = 0
    with evaluating(model), fastest_float32(model), Watch(model, chosen) as watch:
        if position_ids is None and attention_mask is not None:
            position_ids = _counted(watch.places.base, attention_mask)
        while start < len(input_ids):
            rows = slice(start, start + size)
            mask, places = (None if x is None else x[rows].to(device) for x in (attention_mask, position_ids))
            try:
                found = _batch(model, watch, input_ids[rows].to(device), mask, places, loss)
            except torch.OutOfMemoryError:
                if size == 1 or batch_size is not None:
                    raise
                size = max(1, size // 2)
                torch.cuda.empty_cache()
                continue
            done(len(found.tokens))
            yield found
            start += size


def _counted(base: nn.Module, mask: Tensor) -> Tensor | None:
    """Positions from the first real token on, as `generate` counts them, for models that would count padding; None where they are not asked for."""
    skips = any(hasattr(module, "create_position_ids_from_input_ids") for module in base.modules())  # RoBERTa's kin skip padding themselves
    if skips or "position_ids" not in inspect.signature(base.forward).parameters:
        return None
    return (mask.long().cumsum(-1) - 1).clamp_min(0)


def automatic_batch_size(model: nn.Module, length: int) -> int:
    """As many sequences as keep the machine busy; halved by itself where they do not fit."""
    return max(1, BATCH_TOKENS.get(model_device(model).type, 4096) // length)


def check_length(config: PreTrainedConfig, length: int) -> None:
    """A length for which the model has positions."""
    text = config.get_text_config(decoder=True)
    limits = [limit for name in POSITIONS if isinstance(limit := getattr(text, name, None), int) and limit > 0]
    if limits and length > limits[0]:
        raise SinklabError(f"{length} tokens are more than the {limits[0]} positions that the model has.")


def model_device(model: nn.Module) -> torch.device:
    """Where its tokens go: the embedding's device, which a spread model may have elsewhere than its last layer."""
    embedding = unwrap(model).get_input_embeddings()
    hook = getattr(embedding, "_hf_hook", None)
    execution = getattr(hook, "execution_device", None)
    if execution is not None:
        return torch.device(execution if not isinstance(execution, int) else f"cuda:{execution}")
    return next((p.device for p in embedding.parameters()), torch.device("cpu"))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout and gradients; each module goes back to the mode that it was in."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def _batch(model: nn.Module, watch: Watch, tokens: Tensor, mask: Tensor | None, positions: Tensor | None, loss: bool) -> Result:
    given = {"input_ids": tokens, "attention_mask": mask, "position_ids": positions}
    given = {name: x for name, x in given.items() if x is not None}
    output = watch.places.base(**given, use_cache=False)
    starts = watch.ledger.starts
    result = watch.pop()
    if not loss:
        return result
    with watch.paused():
        return replace(result, loss=text_loss(model, watch.places.base, output, tokens, mask, starts, watch.places.given).numpy())


def _checked(model: nn.Module, input_ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
    input_ids = torch.as_tensor(input_ids)
    if input_ids.dim() != 2 or input_ids.shape[1] == 0 or len(input_ids) == 0:
        raise SinklabError(f"input_ids must be (sequences, tokens) with at least one of each, not {tuple(input_ids.shape)}.")
    rows = unwrap(model).get_input_embeddings().weight.shape[0]
    if int(input_ids.max()) >= rows or int(input_ids.min()) < 0:
        raise SinklabError(f"Token {int(input_ids.max())} is not in the model's vocabulary of {rows}.")
    check_length(unwrap(model).config, input_ids.shape[1])
    mask = _checked_mask(input_ids, mask)
    if positions is not None:
        positions = torch.as_tensor(positions).expand_as(input_ids)
        if mask is not None and bool((torch.diff(positions, dim=-1) != 1)[mask[:, 1:].bool() & mask[:, :-1].bool()].any()):
            raise NotMeasurable("transformers finds packed documents by their positions only where no attention_mask is given; leave it out.")
    return input_ids, mask, positions


def _checked_mask(input_ids: Tensor, mask: Tensor | None) -> Tensor | None:
    if mask is None:
        return None
    mask = torch.as_tensor(mask)
    if mask.shape != input_ids.shape:
        raise SinklabError(f"attention_mask is {tuple(mask.shape)} and input_ids are {tuple(input_ids.shape)}.")
    if not bool(mask.bool().any(-1).all()):
        raise SinklabError("attention_mask leaves a sequence without a single token.")
    return None if bool(mask.bool().all()) else mask
