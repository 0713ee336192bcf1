"""What is special about how a model attends, from its config, its parameters and its own maps."""

from torch import Tensor
from transformers import PreTrainedModel

from families.special import BIASED, KEYS_BY_CONTENT

NAMES = ("grouped heads", "window", "chunk", "learned sink", "score cap", "bias", "latent attention", "hybrid", "keys by content")


def features(model: PreTrainedModel, maps: dict[int, Tensor]) -> set[str]:
    """Some of NAMES."""
    config = model.config.get_text_config(decoder=True)
    kinds = str(getattr(config, "layer_types", "")) + str(getattr(config, "attention_types", ""))
    by_content = model.config.model_type in KEYS_BY_CONTENT
    cut = any(not (a[0, 0, -1] > 0).all() for a in maps.values())
    found = {
        "grouped heads": _grouped(model, config),
        "window": cut and "chunk" not in kinds and (not by_content or "sliding" in kinds),
        "chunk": "chunked" in kinds,
        "learned sink": any("sink" in name for name, _ in model.named_parameters()),
        "score cap": getattr(config, "attn_logit_softcapping", None) is not None,
        "bias": model.config.model_type in BIASED,
        "latent attention": hasattr(config, "kv_lora_rank"),
        "hybrid": len(maps) < getattr(config, "num_hidden_layers", 0),
        "keys by content": by_content,
    }
    assert set(found) == set(NAMES)
    return {name for name, is_there in found.items() if is_there}


def _grouped(model: PreTrainedModel, config: object) -> bool:
    """Fewer key heads than heads, where keys are not expanded out of a latent for every head."""
    heads = getattr(config, "num_attention_heads", None)
    names = ("num_key_value_heads", "num_kv_heads", "kv_n_heads")
    groups = [getattr(config, name, None) for name in names]
    return not hasattr(config, "kv_lora_rank") and any(isinstance(n, int) and isinstance(heads, int) and n < heads for n in groups)
