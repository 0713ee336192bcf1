"""Many variants in one process are all compiled, whole, and equal to what is not compiled; what cannot be compiled is an error, not a slow path."""

import pytest
import torch
from examples import designs

from sinklab.config import override
from sinklab.model import rows
from sinklab.model.compiled import compiled
from sinklab.model.decoder import build
from sinklab.model.design import Design
from sinklab.model.weights import Sigmoid

SOME = dict(sorted(designs().items())[::9])


def test_more_variants_than_torch_would_compile():
    """Its limit is 8 for one piece of code; after it, it says so in a warning and goes on uncompiled."""
    assert len(SOME) > torch._dynamo.config.recompile_limit
    torch._dynamo.reset()
    for name, design in SOME.items():
        decoder, text = build(override(design, "depth", "1")), torch.randint(1, design.vocabulary, (2, 9))
        run = compiled(lambda decoder=decoder, text=text: decoder(text), backend="aot_eager")
        assert torch.allclose(run(), decoder(text), atol=1e-5), name
    assert not torch._dynamo.utils.counters["graph_break"]


def test_without_it_torch_gives_up():
    """The trap, as it is: when this fails, `compiled` may have become needless."""
    torch._dynamo.reset()
    runs = [torch.compile(_named("a" * length), backend="eager", fullgraph=True) for length in range(torch._dynamo.config.recompile_limit + 1)]
    for run in runs[:-1]:
        run(torch.ones(3))
    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        runs[-1](torch.ones(3))


def test_a_break_is_an_error():
    def breaks(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + 1

    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(breaks, backend="eager")(torch.ones(2))


@pytest.mark.parametrize("changed", [{}, {"weights": Sigmoid()}], ids=str)
def test_bfloat16_under_the_real_compiler(changed):
    """Loss and gradients of the path that trains on a CPU, near those of float32 rows."""
    design = Design(vocabulary=31, width=32, depth=1, heads=2, head_size=16, hidden=48, **changed)
    decoder, text = build(design), torch.randint(0, 31, (3, 40))

    def loss() -> torch.Tensor:
        logits = decoder.logits(decoder(text))
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), text[:, 1:].flatten())

    outcomes = []
    for run, low in ((compiled(loss), True), (loss, False)):
        decoder.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            value = run()
        value.backward()
        outcomes.append((value.item(), torch.cat([p.grad.flatten() for p in decoder.parameters()])))
    (one, grads), (other, wanted) = outcomes
    assert abs(one - other) <= 5e-3 * other
    assert (grads - wanted).norm() <= 0.03 * wanted.norm()


def test_a_long_text_keeps_no_map():
    """Above AT_ONCE bytes of scores chunks are computed again: what is kept for the backward pass grows with the text, not with its square."""
    kept = []
    for length in (256, 512):
        design = Design(vocabulary=31, width=16, depth=1, heads=4, head_size=4, hidden=8)
        decoder, text, sizes = build(design), torch.randint(0, 31, (1, length)), {}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rows, "AT_ONCE", 4 * 4 * 16 * length)  # sixteen rows
            with torch.autograd.graph.saved_tensors_hooks(lambda x, sizes=sizes: _noted(x, sizes), lambda x: x):
                decoder(text)
        kept.append((max(sizes.values()), sum(sizes.values())))
    assert kept[1][0] < 512 * 512
    assert kept[1][1] < 2.2 * kept[0][1]


def _named(name: str):
    return lambda x: x * len(name)


def _noted(x: torch.Tensor, sizes: dict[int, int]) -> torch.Tensor:
    sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
    return x
