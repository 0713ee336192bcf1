"""Fast attention on CUDA equals rows of scores, in output and gradients, eager and compiled; none draws a map, each is taken where it should be."""

import pytest
import torch

from sinklab.model import attending, flexible, fused, independent, rows
from sinklab.model.compiled import compiled
from sinklab.model.decoder import build
from sinklab.model.design import Design
from sinklab.model.masks import Apart, Prefix, Window
from sinklab.model.norms import QKNorm
from sinklab.model.positions import Alibi, BucketIndex, T5Relative
from sinklab.model.slots import ElementGate, FixedValue, HeadGate, KeyBias, KeyValueBias, OffByOne, SinkLogit, ValueBias
from sinklab.model.weights import EluPlusOne, Exponential, Linear, PowerSum, RowSum, Sigmoid, Softmax

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]

SIZES = {"vocabulary": 64, "width": 192, "depth": 2, "heads": 2, "head_size": 96, "hidden": 64}
CASES = {
    "softmax": (fused, {}),
    "alpha": (fused, {"weights": Softmax(alpha=0.5)}),
    "registers": (fused, {"registers": 3}),
    "K bias": (fused, {"slots": (KeyBias(),)}),
    "KV bias, shared": (fused, {"slots": (KeyValueBias(shared=True),)}),
    "fixed value": (fused, {"slots": (FixedValue(times=5),)}),
    "sink logit": (fused, {"slots": (SinkLogit(),)}),
    "three virtual keys": (fused, {"slots": (OffByOne(), KeyValueBias(), SinkLogit())}),
    "gates and a value": (fused, {"slots": (HeadGate(), ElementGate(), ValueBias())}),
    "QK-norm": (fused, {"head_norm": QKNorm()}),
    "sigmoid": (independent, {"weights": Sigmoid()}),
    "sigmoid, normalised": (independent, {"weights": Sigmoid(normaliser=RowSum())}),
    "sigmoid, p = 3": (independent, {"weights": Sigmoid(normaliser=PowerSum(p=3))}),
    "elu+1, window": (independent, {"weights": EluPlusOne(), "mask": Window(size=70)}),
    "sigmoid and KV bias": (independent, {"weights": Sigmoid(), "slots": (KeyValueBias(),)}),
    "exponential": (flexible, {"weights": Exponential()}),
    "window": (flexible, {"mask": Window(size=70)}),
    "window and K bias": (flexible, {"mask": Window(size=70), "slots": (KeyBias(),)}),
    "prefix": (flexible, {"mask": Prefix(length=5)}),
    "documents and registers": (flexible, {"documents": Apart(), "registers": 2}),
    "ALiBi": (flexible, {"positions": Alibi()}),
    "bucket index": (flexible, {"positions": BucketIndex()}),
    "sigmoid, prefix": (flexible, {"weights": Sigmoid(), "mask": Prefix(length=5)}),
    "elu+1, ALiBi, KV bias": (flexible, {"weights": EluPlusOne(normaliser=RowSum()), "positions": Alibi(), "slots": (KeyValueBias(),)}),
}


@pytest.mark.parametrize("whole", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", CASES)
def test_equals_rows_of_scores(name, whole, monkeypatch):
    path, changed = CASES[name]
    decoder = build(Design(**SIZES | changed)).cuda()
    tokens = torch.randint(1, 64, (3, 300), device="cuda")
    tokens[:, 110] = 0
    taken = []
    monkeypatch.setattr(path, "attend", _noting(path.attend, taken))
    run = compiled(lambda: decoder(tokens)) if whole else lambda: decoder(tokens)
    with torch.autocast("cuda", torch.bfloat16):
        found = _outcome(run, decoder)
    assert taken, "another path was taken"
    monkeypatch.setattr(attending, "PATHS", ())
    wanted = _outcome(lambda: decoder(tokens), decoder)
    for key, value in wanted.items():
        assert (found[key] - value).norm() <= 0.05 * value.norm(), key


@pytest.mark.parametrize(
    "name", ["softmax", "KV bias, shared", "sigmoid, normalised", "window", "ALiBi", "documents and registers", "sigmoid, prefix"]
)
def test_no_map_is_drawn(name):
    """At 8,192 places one map of two heads is 512 MiB in float32."""
    decoder = build(Design(**SIZES | CASES[name][1] | {"depth": 1})).cuda()
    tokens = torch.randint(1, 64, (1, 8192), device="cuda")
    run = compiled(lambda: decoder(tokens))
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", torch.bfloat16):
            run().square().mean().backward()
    assert torch.cuda.max_memory_allocated() - before < 200 << 20


@pytest.mark.parametrize("changed", [{"weights": Linear()}, {"weights": Softmax(p=2)}, {"positions": T5Relative()}], ids=str)
def test_what_no_kernel_does_goes_by_rows(changed):
    """In chunks that are computed again: the signed ones, powers of softmax, learnt tables."""
    decoder = build(Design(**SIZES | changed | {"depth": 1})).cuda()
    tokens = torch.randint(1, 64, (1, 8192), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.autocast("cuda", torch.bfloat16):
        out = decoder(tokens)
    out.square().mean().backward()
    assert torch.cuda.max_memory_allocated() - before < 6 * rows.AT_ONCE  # the whole map and its gradient, and what they are made of, would take more


def _noting(function, taken):
    def noted(call):
        taken.append(call.layer)
        return function(call)

    return noted


def _outcome(run, decoder):
    decoder.zero_grad()
    out = run()
    generator = torch.Generator("cuda").manual_seed(0)
    (out.float() * torch.randn(out.shape, generator=generator, device="cuda")).mean().backward()
    grads = {name: p.grad.float().clone() for name, p in decoder.named_parameters() if p.grad is not None}
    return {"output": out.detach().float()} | grads
