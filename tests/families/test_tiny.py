"""The tiny models are what the coverage test needs: sharp and causal, cut by their windows; and what is refused deserves it."""

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedModel

from families.eager import eager_maps, sink_logits, virtual_mass, weights
from families.special import KEYS_BY_CONTENT, PADDING_TELLS, REFUSED, SINK_ON_OUTPUT, UNBUILT
from families.tiny import built, causal_types, forward_inputs, tiny

LENGTH, PADDING = 24, 3
MEASURED = [name for name in causal_types() if name not in REFUSED]
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns about configs as small as these


def test_every_type_is_built_or_refused():
    assert len(causal_types()) == 189
    assert len(MEASURED) >= 165
    assert not set(REFUSED) - set(causal_types())
    assert all(reason.endswith(".") and len(reason.split()) >= 4 for reason in REFUSED.values())
    with pytest.raises(ValueError, match="state-space"):
        tiny("mamba")


@pytest.mark.parametrize("model_type", MEASURED)
def test_a_tiny_model_attends_as_the_coverage_test_needs(model_type):
    model = tiny(model_type)
    maps = eager_maps(model, forward_inputs(model, length=LENGTH))
    assert maps
    for layer, a in maps.items():
        assert a.dtype == torch.float32
        assert_rows_are_shares(model_type, model, layer, a)
        assert not a.triu(1).any(), f"layer {layer} is not causal"
        assert 2 <= spread(a) < 9, f"layer {layer}: the scores' standard deviation is {spread(a):.2f}"
    assert_windows_cut(model_type, model, maps)
    assert_heads_are_grouped(model)
    assert_padding_changes_nothing(model_type, model)


def assert_rows_are_shares(model_type: str, model: PreTrainedModel, layer: int, a: Tensor) -> None:
    """A row sums to one, or to one less what a learned sink gets."""
    rows = a.sum(-1)
    assert (rows < 1 + 1e-5).all()
    has_sink = any("sink" in name and f".{layer}." in name for name, _ in model.named_parameters())
    if has_sink and model_type not in SINK_ON_OUTPUT:
        assert (rows < 0.99).any(), f"layer {layer}: nobody looks at the sink"
    else:
        torch.testing.assert_close(rows, torch.ones_like(rows), atol=1e-5, rtol=0)


def assert_windows_cut(model_type: str, model: PreTrainedModel, maps: dict[int, Tensor]) -> None:
    """A config that names a window or a chunk has a layer in which some earlier key gets nothing from anybody."""
    config = model.config.get_text_config(decoder=True)
    kinds = str(getattr(config, "layer_types", "")) + str(getattr(config, "layers_block_type", ""))
    limits = [x for x in ("sliding", "chunked", "local") if x in kinds]
    cut = [layer for layer, a in maps.items() if not (a[0, 0, -1] > 0).all()]
    assert bool(cut) >= bool(limits), f"{limits} and no layer whose last query misses a key"
    if model_type in KEYS_BY_CONTENT:
        assert cut, "no query misses a key"
    elif limits and "full_attention" in kinds:
        assert len(cut) < len(maps), "no layer sees the whole text"


def assert_heads_are_grouped(model: PreTrainedModel) -> None:
    """Where the config knows groups there are fewer key heads than heads; latent attention expands its keys for every head."""
    config = model.config.get_text_config(decoder=True)
    groups, heads = getattr(config, "num_key_value_heads", None), getattr(config, "num_attention_heads", None)
    if (
        isinstance(groups, int)
        and isinstance(heads, int)
        and not hasattr(config, "kv_lora_rank")
        and "num_key_value_heads" not in config.attribute_map
    ):
        assert groups < heads


def assert_padding_changes_nothing(model_type: str, model: PreTrainedModel) -> None:
    """The padded row's maps are those of the same text without padding, and the other row's are untouched."""
    padded, plain = forward_inputs(model, length=LENGTH, left_pad=PADDING), forward_inputs(model, length=LENGTH)
    alone = {name: x[:1, PADDING:] for name, x in plain.items()}
    with_padding, without, before = eager_maps(model, padded), eager_maps(model, alone), eager_maps(model, plain)
    same = True
    for layer, a in with_padding.items():
        torch.testing.assert_close(a[1], before[layer][1], atol=1e-3, rtol=0)
        same &= bool(((a[0, :, PADDING:, PADDING:] - without[layer][0]).abs() < 1e-3).all())
    assert same != (model_type in PADDING_TELLS)


def spread(a: Tensor) -> float:
    """The scores' standard deviation among the keys that a query sees: softmax inverted row by row, where at least four keys are seen."""
    seen = a > 0
    many = seen.sum(-1)
    logs = torch.where(seen, a.clamp_min(1e-45).log(), 0)
    centred = torch.where(seen, logs - (logs.sum(-1) / many.clamp_min(1))[..., None], 0)
    variance = centred.square().sum(-1) / (many - 1).clamp_min(1)
    return float(variance[many >= 4].mean().sqrt())


@pytest.mark.parametrize("model_type", ["gpt_oss", "flint", "granite_swa", "mimo_v2_flash", "inkling2_text"])
def test_maps_and_sinks_are_brought_onto_one_footing(model_type):
    model = tiny(model_type)
    inputs = forward_inputs(model, length=LENGTH)
    maps, virtual = weights(model, inputs)
    assert maps.keys() == virtual.keys() == virtual_mass(model, inputs).keys()
    assert any((mass > 0.1).any() for mass in virtual.values())
    for layer, a in maps.items():
        torch.testing.assert_close(a.sum(-1) + virtual[layer], torch.ones_like(virtual[layer]), atol=1e-5, rtol=0)


def test_learned_sinks_are_read_where_they_are_parameters():
    assert sink_logits(tiny("gpt_oss"), 0).shape == (4,)
    assert sink_logits(tiny("mimo_v2_flash"), 0) is None  # only its sliding layers have them
    assert sink_logits(tiny("llama"), 0) is None


@pytest.mark.parametrize("model_type", ["falcon_mamba", "mamba", "mamba2", "rwkv", "xlstm"])
def test_refused_for_no_softmax(model_type):
    model = built(model_type)
    with _Softmaxes() as seen, torch.no_grad():
        model(input_ids=torch.arange(10, 18)[None], use_cache=False)
    assert not seen.found
    with _Softmaxes() as seen, torch.no_grad():
        tiny("llama")(input_ids=torch.arange(10, 18)[None])
    assert seen.found


@pytest.mark.parametrize("model_type", ["cpmant", "xlnet"])
def test_refused_for_looking_ahead(model_type):
    model = built(model_type).eval()
    ids = torch.arange(10, 10 + LENGTH)[None]
    changed = ids.clone()
    changed[0, -1] += 50
    with torch.no_grad():
        assert not torch.allclose(model(input_ids=ids).logits[0, 0], model(input_ids=changed).logits[0, 0], atol=1e-5)


@pytest.mark.parametrize("model_type", ["gemma4_assistant", "gemma4_unified_assistant"])
def test_refused_for_keys_of_another_model(model_type):
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[model_type]]
    assert "shared_kv_states" in inspect.signature(model_class.forward).parameters
    assert "create_bidirectional_mask" in inspect.unwrap(model_class.create_attention_masks).__code__.co_names


def test_refused_for_keys_that_are_no_tokens():
    assert any(a.shape[-1] > LENGTH for a in eager_maps(built("deepseek_v4").eval(), forward_inputs(tiny("llama"), length=LENGTH)).values())


def test_refused_for_layers_that_run_several_times():
    model = built("hrm_text").eval()
    layers = {module for module in model.modules() if type(module).__name__ == "HrmTextAttention"}
    assert len(eager_maps(model, forward_inputs(model, length=LENGTH))) > len(layers) > 0


@pytest.mark.parametrize("model_type", ["musicgen", "musicgen_melody"])
def test_refused_for_several_streams_of_tokens(model_type):
    model = built(model_type).eval()
    with torch.no_grad():
        out = model(input_ids=torch.arange(10, 18).expand(2, -1), output_attentions=True)
    assert out.attentions[0].shape[0] == 1


@pytest.mark.parametrize(("model_type", "words"), UNBUILT.items())
def test_refused_because_transformers_cannot_build_it(model_type, words):
    with pytest.raises((ImportError, ValueError), match=words):
        built(model_type)


def test_refused_for_hashed_buckets_and_second_streams():
    assert any(type(module).__name__ == "LSHSelfAttention" for module in built("reformer").modules())
    with torch.no_grad():
        out = built("prophetnet").eval()(input_ids=torch.arange(10, 18)[None], output_attentions=True)
    assert out.ngram_attentions[0].shape[-1] == 16


class _Softmaxes(TorchFunctionMode):
    """Notes every softmax over more than two dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "softmax" in getattr(func, "__name__", ""):
            self.found.append(func)
        return func(*args, **(kwargs or {}))
