"""Our decoder as a transformers model on a CUDA device: saved there, loaded there, generated from with fast paths and a cache."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from sinklab.hub import SinklabForCausalLM
from sinklab.model.decoder import build
from sinklab.model.design import Design
from sinklab.model.masks import Prefix
from sinklab.model.positions import Alibi
from sinklab.model.slots import KeyValueBias, SinkLogit

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]
SMALL = {"vocabulary": 60, "width": 32, "depth": 2, "heads": 2, "head_size": 16, "hidden": 48}
DESIGNS = {
    "plain": {},
    "sinks": {"slots": (KeyValueBias(), SinkLogit()), "registers": 2},
    "registers and ALiBi": {"registers": 3, "positions": Alibi()},
    "prefix": {"mask": Prefix(length=4)},
    "sigmoid": {"weights": {"kind": "Sigmoid"}},
    "documents": {"documents": {"kind": "Apart"}},
}


@pytest.mark.parametrize("changes", DESIGNS.values(), ids=DESIGNS)
def test_a_cache_and_padding_change_nothing(changes, tmp_path):
    SinklabForCausalLM.wrap(build(Design(**SMALL, **changes), seed=1)).save_pretrained(tmp_path)
    on_cpu = AutoModelForCausalLM.from_pretrained(tmp_path)
    on_gpu = AutoModelForCausalLM.from_pretrained(tmp_path, device_map="auto")
    assert on_gpu.device.type == "cuda"
    prompt = torch.randint(1, 60, (2, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(prompt)
    mask[0, :5] = 0
    found = [
        of.generate(prompt.to(of.device), attention_mask=mask.to(of.device), use_cache=use, **GREEDY)
        for of in (on_cpu, on_gpu)
        for use in (True, False)
    ]
    assert all(torch.equal(other.sequences.cpu(), found[0].sequences) for other in found[1:])
    for other in found[1:]:
        torch.testing.assert_close(torch.stack(other.logits).cpu(), torch.stack(found[0].logits), atol=2e-3, rtol=2e-3)


GREEDY = {"max_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}


@pytest.mark.parametrize("name", ["documents", "prefix"])
def test_text_that_grows_without_a_cache(name):
    """A fast path is met with a new length at every token."""
    of = SinklabForCausalLM.wrap(build(Design(**SMALL, **DESIGNS[name]), seed=1)).eval()
    prompt = torch.randint(0, 60, (2, 12), generator=torch.Generator().manual_seed(0))
    wanted = of.generate(prompt, use_cache=False, **GREEDY | {"max_new_tokens": 24}).sequences
    assert torch.equal(of.cuda().generate(prompt.cuda(), use_cache=False, **GREEDY | {"max_new_tokens": 24}).sequences.cpu(), wanted)


@pytest.mark.parametrize("changes", DESIGNS.values(), ids=DESIGNS)
def test_bfloat16(changes, tmp_path):
    SinklabForCausalLM.wrap(build(Design(**SMALL, **changes), seed=1)).save_pretrained(tmp_path)
    narrow = AutoModelForCausalLM.from_pretrained(tmp_path, device_map="cuda", dtype=torch.bfloat16)
    tokens = torch.randint(1, 60, (2, 24), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = AutoModelForCausalLM.from_pretrained(tmp_path)(tokens).logits
        found = narrow(tokens.cuda()).logits.float().cpu()
    assert (found - wanted).abs().max() < 0.05 * wanted.abs().max()
