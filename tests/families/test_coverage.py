"""Every model type that transformers maps to a causal LM is measured as its own map says, or refused in one sentence. No third outcome."""

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, BigBirdConfig, PreTrainedModel

import sinklab
from families.eager import eager_maps
from families.expected import TOLERANCE, expected, far_off
from families.features import features
from families.mutants import measuring, of_calls, of_maps
from families.special import KERNEL_TELLS, REFUSED, TILED, UNBUILT
from families.tiny import built, causal_types, forward_inputs, tiny
from sinklab.errors import NotMeasurable
from sinklab.probe.ledger import Ledger
from sinklab.probe.probes import ALL
from sinklab.probe.watch import Watch

MEASURED = [name for name in causal_types() if name not in REFUSED]
LENGTH, PADDING = 24, 3

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns about configs as small as these


@pytest.mark.parametrize("model_type", MEASURED)
def test_watched_equals_the_eager_map(model_type):
    model = tiny(model_type)
    for left_pad in [0] if model_type in KERNEL_TELLS else [0, PADDING]:
        inputs = forward_inputs(model, length=LENGTH, left_pad=left_pad)
        with torch.no_grad():
            plain = model(**inputs, use_cache=False).logits
        ledger, watched = watch(model, inputs)
        wrong = far_off(ledger, expected(model, inputs))
        assert not wrong, "; ".join(wrong)
        assert largest_difference(inputs, plain, watched) < TOLERANCE


@pytest.mark.parametrize("model_type", MEASURED)
def test_every_probe_and_the_loss(model_type):
    """What the command measures, and all the rest; the loss is that of the model's own logits."""
    model = tiny(model_type)
    inputs = forward_inputs(model, length=LENGTH)
    result = sinklab.measure(model, inputs["input_ids"], probes=list(ALL.values()), loss=True)
    with torch.no_grad():
        logits = model(**inputs, use_cache=False).logits
    each = torch.nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), inputs["input_ids"][:, 1:].flatten(), reduction="none")
    torch.testing.assert_close(torch.from_numpy(result.loss), each.view(len(logits), -1).mean(-1), atol=1e-3, rtol=1e-4)
    sinklab.doctor(model)


@pytest.mark.parametrize("model_type", MEASURED)
def test_every_mutant_of_the_probe_is_noticed(model_type):
    model = tiny(model_type)
    inputs = forward_inputs(model, length=LENGTH, left_pad=0 if model_type in KERNEL_TELLS else PADDING)
    special, want = features(model, eager_maps(model, forward_inputs(model, length=LENGTH))), expected(model, inputs)
    if model_type in TILED:
        special -= {"grouped heads"}
    draws = Watch(model).places.draws
    for name, change in (of_maps(special) if draws else of_calls(special)).items():
        with measuring(**{"change_map" if draws else "change_call": change}) as changed:
            ledger, _ = watch(model, inputs)
        assert changed, f"{name}: there was nothing to change"
        assert far_off(ledger, want), f"{name}: nobody noticed"


@pytest.mark.parametrize("model_type", sorted(REFUSED.keys() - UNBUILT.keys()))
def test_what_cannot_be_measured_is_refused_in_one_sentence(model_type):
    model = built(model_type).eval()
    with pytest.raises(NotMeasurable) as refusal, Watch(model), torch.no_grad():
        model(input_ids=torch.arange(10, 10 + LENGTH).expand(2, -1))
    sentence = str(refusal.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert len(sentence.split()) >= 5


def watch(model: PreTrainedModel, inputs: dict[str, Tensor]) -> tuple[Ledger, Tensor]:
    """What was written down, and the logits of the watched forward."""
    with torch.no_grad(), Watch(model) as watching:
        logits = model(**inputs, use_cache=False).logits
    return watching.ledger, logits


def largest_difference(inputs: dict[str, Tensor], plain: Tensor, watched: Tensor) -> float:
    """Between logits of real tokens."""
    return float((plain - watched)[inputs["attention_mask"].bool()].abs().max())


def test_an_encoder_is_refused():
    config = tiny("bert").config
    config.is_decoder = False
    encoder = AutoModelForCausalLM.from_config(config)
    with pytest.raises(NotMeasurable, match="causal"):
        watch(encoder, forward_inputs(encoder))


def test_block_sparse_attention_is_refused():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 64}
    config = BigBirdConfig(**sizes, vocab_size=128, is_decoder=True, block_size=4, num_random_blocks=1, attention_type="block_sparse")
    model = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(NotMeasurable, match="BigBird"):
        watch(model, forward_inputs(model, length=64))
