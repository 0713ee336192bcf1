"""Tiny random causal LMs of every type that transformers maps: the fixtures of the coverage test."""

import dataclasses
import inspect
import re
import zlib
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from families.special import ALIGNED, DECODERS, GAIN, LAYER_LISTS, LAYERS, OVERRIDES, REFUSED, SIZES, TOKENS


def causal_types() -> list[str]:
    """Every model type that transformers maps to a causal LM."""
    return list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny(model_type: str, seed: int = 0) -> PreTrainedModel:
    """A tiny random causal LM of a type, its weights redrawn so that attention scores spread widely."""
    if model_type in REFUSED:
        raise ValueError(f"{model_type} {REFUSED[model_type]}")
    model = built(model_type, seed)
    redraw(model, seed, GAIN.get(model_type, 2.2), ALIGNED.get(model_type))
    return model.eval()


def built(model_type: str, seed: int = 0) -> PreTrainedModel:
    """A tiny model of any type, refused ones too, as transformers initialises it."""
    config = tiny_config(model_type)
    settings = {"attn_implementation": "eager", "dtype": torch.float32}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if model_type in DECODERS:  # the mapped class takes the decoder's config, the mapping only knows the whole model's
            return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]._from_config(getattr(config, DECODERS[model_type]), **settings)
        return AutoModelForCausalLM.from_config(config, **settings)


def tiny_config(model_type: str) -> PreTrainedConfig:
    """The default config of a type with every known size shrunk."""
    config_class = CONFIG_MAPPING[model_type]
    return config_class(**shrunk(config_class, OVERRIDES.get(model_type, {})))


def shrunk(config_class: type[PreTrainedConfig], overrides: dict[str, Any]) -> dict[str, Any]:
    """Small values for the known fields of a config class and, recursively, of its sub configs."""
    names = [field.name for field in dataclasses.fields(config_class)]
    values: dict[str, Any] = {name: SIZES[name] for name in names if name in SIZES}
    if "kv_lora_rank" in names:
        values["num_key_value_heads"] = values.get("num_attention_heads")
    special = [name for name in names if re.search(r"_token_(id|index)$", name)]
    values |= {name: TOKENS.get(name, 110 + i) for i, name in enumerate(special)}
    for name in LAYER_LISTS & set(names) - set(overrides):
        values |= {name: kinds} if (kinds := layer_kinds(config_class, name)) else {}
    for name, sub_class in sub_config_classes(config_class, overrides).items():
        values[name] = shrunk(sub_class, OVERRIDES.get(sub_class.model_type, {}) | overrides.get(name, {})) | {"model_type": sub_class.model_type}
    return values | {name: value for name, value in overrides.items() if name not in config_class.sub_configs}


def layer_kinds(config_class: type[PreTrainedConfig], name: str) -> list[Any]:
    """The kinds of layers that the default config lists, in turn."""
    kinds = list(dict.fromkeys(getattr(config_class(), name, None) or []))
    return [kinds[i % len(kinds)] for i in range(LAYERS)] if kinds else []


def sub_config_classes(config_class: type[PreTrainedConfig], overrides: dict[str, Any]) -> dict[str, type[PreTrainedConfig]]:
    """The config class of each sub config that exists by default."""
    found = dict(config_class.sub_configs)
    for name, spec in config_class.sub_configs_defaults.items():
        if not isinstance(spec, type) and not issubclass(spec.config_class, PreTrainedConfig):
            found[name] = CONFIG_MAPPING[overrides.get(name, {}).get("model_type", spec.model_type)]
    return found


NORM_OF_QK = re.compile(r"(q|k|query|key|kv)_?(layer)?_?(norm|layernorm|ln)", re.IGNORECASE)
QK = re.compile(
    r"(^|[._])(q|k|query|key|qkv|c_attn|wq|wk|Wqkv|in_proj|query_key_value|kv|q_[ab]|kv_[ab]|qk|kv_b_proj|query_key)([._]|$)"
    r"|attn\.c_attn|q_proj|k_proj",
    re.IGNORECASE,
)
RECURRENCE = re.compile(r"A_log|dt_bias|\.D$|dt_proj")


@torch.no_grad()
def redraw(model: PreTrainedModel, seed: int, gain: float, aligned: int | None) -> None:
    """Draws every weight from (seed, its name): matrices by their fan-in, those of queries and keys wider by `gain`."""
    modules = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        owner, leaf = name.rpartition(".")[::2]
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) ^ seed)
        noise = torch.randn(parameter.shape, generator=generator)
        if (
            aligned and QK.search(name) and noise.ndim == 2 and _normed(modules[owner.rpartition(".")[0]])
        ):  # the slowest rotation outweighs the rest: all heads look along one line
            noise.view(-1, aligned, noise.shape[-1])[:, -1] *= 12
        parameter.copy_(redrawn(modules[owner], name, leaf, parameter, noise, gain))


def _normed(attention: nn.Module) -> bool:
    return hasattr(attention, "qk_norm") or hasattr(attention, "q_norm")


def redrawn(module: nn.Module, name: str, leaf: str, old: Tensor, noise: Tensor, gain: float) -> Tensor:
    """The new value of one parameter."""
    kind = type(module).__name__
    if leaf == "temp":
        return gain * (1 + 0.1 * noise)
    if "norm" in kind.lower():
        return old + 0.1 * noise if not NORM_OF_QK.search(name) or leaf == "bias" else old + 0.1 * noise + 0.85 * gain - 1
    if RECURRENCE.search(name) or "Sinusoidal" in kind:
        return old
    if isinstance(module, nn.Embedding):
        return 0.7 * noise
    if old.ndim < 2:
        return (0.1 if "bias" in leaf else 1.0) * noise
    fan = old[0].numel() if "Conv" in kind and kind != "Conv1D" else (old.shape[0] if kind == "Conv1D" else old.shape[-1])
    return (gain if QK.search(name) else 1.0) * fan**-0.5 * noise


def forward_inputs(model: PreTrainedModel, batch: int = 2, length: int = 24, left_pad: int = 0, seed: int = 0) -> dict[str, Tensor]:
    """Random text without special tokens; the first row padded on the left when asked, with positions that skip the padding."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(10, 100, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    ids[0, :left_pad], mask[0, :left_pad] = 0, 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if left_pad and "position_ids" in inspect.signature(model.forward).parameters and not _counts_positions(model):
        inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp_min(0)
    return inputs


def _counts_positions(model: nn.Module) -> bool:
    """RoBERTa's kin begin at the padding id's own row and skip padding themselves."""
    return any(hasattr(module, "create_position_ids_from_input_ids") for module in model.modules())
