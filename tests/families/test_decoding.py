"""A prompt and its decoding give the rows of one forward over the final text, for every type that generates."""

import pytest
import torch

import sinklab
from families.special import REFUSED
from families.tiny import causal_types, forward_inputs, tiny

# Types whose own logits, unwatched, are others while decoding than in one forward: positions counted differently by `generate` (RoBERTa's kin,
# moshi), a token put behind the text (xlm), keys chosen by what the cache holds (doge), states of Mamba layers rounded differently.
DIFFERS = {
    "camembert", "data2vec-text", "doge", "moshi", "nemotron_h", "roberta", "roberta-prelayernorm", "xlm", "xlm-roberta", "xlm-roberta-xl", "xmod",
    "zamba2",
}  # fmt: skip
NO_GENERATE = {"blt"}  # transformers builds its cache from a config field that the type does not have


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [t for t in causal_types() if t not in {*REFUSED, *NO_GENERATE}])
def test_decoding_adds_up(name):
    model = tiny(name)
    ids = forward_inputs(model, 2, 16, 0)["input_ids"]
    settings = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    with sinklab.watch(model) as rows:
        text = model.generate(ids, **settings)
    decoded = rows.result().alpha
    whole = sinklab.measure(model, text[:, : decoded.shape[-1]]).alpha
    if name in DIFFERS:
        own = model.generate(ids, **settings, return_dict_in_generate=True, output_logits=True)
        with torch.no_grad():
            forward = model(own.sequences).logits[:, ids.shape[1] - 1 : -1]
        assert (forward - torch.stack(own.logits, 1)).abs().max() > 1e-3
        return
    torch.testing.assert_close(decoded, whole, atol=1e-4, rtol=0, equal_nan=True)
