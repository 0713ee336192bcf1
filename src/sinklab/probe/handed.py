"""What a transformers model hands to its attention function, as one call: each argument is honoured, or the model is refused."""

from typing import Any

from torch import Tensor, nn

from sinklab.errors import NotMeasurable
from sinklab.probe.call import Call
from sinklab.probe.visible import Visible

# Arguments that reach an attention function and do not change what it computes.
_HARMLESS = {
    "position_ids", "use_cache", "output_attentions", "output_hidden_states", "output_router_logits", "return_dict", "past_key_values",
    "cache_position", "is_causal", "sliding_window", "token_type_ids", "logits_to_keep", "labels", "layer_idx", "num_items_in_batch",
}  # fmt: skip


def handed(layer: int, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, visible: Visible, rest: dict[str, Any]) -> Call:
    """Each argument that is not None is honoured or refused, unknown ones too."""
    scale, softcap = rest.pop("scaling", None), rest.pop("softcap", None)
    sink, sinks, bias = rest.pop("s_aux", None), rest.pop("sinks", None), rest.pop("position_bias", None)
    unknown = sorted(name for name, value in rest.items() if value is not None and name not in _HARMLESS)
    if unknown:
        raise NotMeasurable(f"{type(module).__name__} hands `{unknown[0]}` to its attention, which is not understood here.")
    keys = visible.keys
    return Call(
        layer, q, k[:, :, :keys], v[:, :, :keys], visible, q.shape[-1] ** -0.5 if scale is None else float(scale), softcap,
        None if bias is None else bias[..., :keys], _sink_logits(sink if sinks is None else sinks),
    )  # fmt: skip


def _sink_logits(sink: Tensor | None) -> Tensor | None:
    """(H,) or (B, H, Tq, 1) -> (B or 1, H, Tq or 1)."""
    if sink is None:
        return None
    return sink.view(1, -1, 1) if sink.dim() == 1 else sink.squeeze(-1)
