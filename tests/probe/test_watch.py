"""Watching changes nothing, sees everything, leaves nothing behind, and refuses in a sentence what it cannot follow."""

import gc
import re
import threading
import weakref
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface, StaticCache

import sinklab
from four_models import MODELS, agree, generated, tokens
from sinklab.errors import NotMeasurable
from sinklab.probe.ledger import Ledger
from sinklab.probe.probes import ALL, Alpha, Own
from sinklab.probe.seen import Seen
from small import small_llama


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


@pytest.mark.parametrize("cache", [None, "static"])
def test_prompt_and_decoding_equal_one_forward(model, cache):
    ids = tokens()
    settings = {} if cache is None else {"cache_implementation": cache, "disable_compile": True}
    with sinklab.watch(model, probes=list(ALL.values())) as rows:
        text = generated(model, ids, **settings)
    assert torch.equal(text, generated(model, ids))
    agree(rows.result(), sinklab.measure(model, text[:, :-1], probes=list(ALL.values())))


def test_prompt_in_pieces_equals_one_forward(model):
    ids = tokens(length=23)
    with torch.no_grad(), sinklab.watch(model) as rows:
        cache = model(ids[:, :9]).past_key_values
        cache = model(ids[:, 9:11], past_key_values=cache).past_key_values
        model(ids[:, 11:], past_key_values=cache)
    agree(rows.result(), sinklab.measure(model, ids))


def test_a_padded_prompt_that_goes_on_equals_the_unpadded(model):
    ids = tokens()
    mask = torch.ones_like(ids)
    mask[0, :6] = 0
    with sinklab.watch(model) as rows:
        text = model.generate(ids, attention_mask=mask, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    alone = sinklab.measure(model, text[:1, 6:-1])
    torch.testing.assert_close(rows.result().alpha[:1, ..., : alone.alpha.shape[-1]], alone.alpha, atol=1e-5, rtol=0)
    assert rows.result().alpha[0, ..., alone.alpha.shape[-1] :].isnan().all()


def test_static_cache_given_by_the_caller(model):
    ids = tokens()
    with torch.no_grad(), sinklab.watch(model) as rows:
        cache = StaticCache(model.config, max_cache_len=64)
        model(ids, past_key_values=cache)
        model(ids[:, :1], past_key_values=cache)
    agree(rows.result(), sinklab.measure(model, torch.cat([ids, ids[:, :1]], 1)))


def test_beams_are_refused_in_one_sentence(model):
    with pytest.raises(NotMeasurable, match="Beams"), sinklab.watch(model):
        generated(model, tokens(), num_beams=3)
    assert generated(model, tokens(), num_beams=3) is not None  # and the model works on


def test_watching_begins_before_the_prompt(model):
    ids = tokens()
    with torch.no_grad():
        cache = model(ids).past_key_values
        with pytest.raises(NotMeasurable, match="start watching before"), sinklab.watch(model):
            model(ids[:, :1], past_key_values=cache)


def test_training_with_gradients_is_unchanged(model):
    model.train()
    ids = tokens()
    plain = gradients(model, ids)
    with sinklab.watch(model) as rows:
        watched = gradients(model, ids)
    for name, gradient in plain.items():
        torch.testing.assert_close(watched[name], gradient, atol=1e-5 * max(1.0, float(gradient.abs().max())), rtol=1e-4, msg=name)
    assert model.training
    agree(rows.result(), sinklab.measure(model, ids))


def test_gradient_checkpointing_reports_each_layer_once():
    for make in MODELS.values():
        for reentrant in (False, True):
            model, ids = make(), tokens()
            plain = gradients(model, ids)
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
            model.train()
            with sinklab.watch(model, probes=list(ALL.values())) as rows:
                checkpointed = gradients(model, ids)
            agree(rows.result(), sinklab.measure(model, ids, probes=list(ALL.values())))
            for name, gradient in plain.items():
                torch.testing.assert_close(checkpointed[name], gradient, atol=1e-4 * max(1.0, float(gradient.abs().max())), rtol=1e-3, msg=name)


def gradients(model, ids):
    model.zero_grad()
    model(ids, labels=ids, use_cache=False).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_dropout_draws_as_it_would_have():
    model = small_llama(attention_dropout=0.3).train()
    ids = tokens()
    torch.manual_seed(1)
    plain = model(ids).logits
    with sinklab.watch(model) as rows:
        torch.manual_seed(1)
        watched = model(ids).logits
    torch.testing.assert_close(watched, plain)
    torch.testing.assert_close(rows.result().alpha[:, 0], sinklab.measure(model, ids).alpha[:, 0], atol=1e-5, rtol=0)


@pytest.mark.slow
def test_compiled_models(model):
    ids = tokens()
    expected = sinklab.measure(model, ids)
    compiled = torch.compile(model)
    with torch.no_grad():
        plain = compiled(ids).logits
        with sinklab.watch(compiled) as rows:
            watched = compiled(ids).logits
        agree(rows.result(), expected)
        torch.testing.assert_close(watched, plain, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(compiled(ids).logits, plain, atol=1e-5, rtol=1e-5)
        agree(sinklab.measure(compiled, ids), expected)


def traces(model):
    yield tuple(AttentionInterface._global_mapping), tuple(AttentionMaskInterface._global_mapping)
    for module in model.modules():
        yield (
            len(module._forward_hooks),
            len(module._forward_pre_hooks),
            tuple(vars(module)),
            getattr(getattr(module, "config", None), "_attn_implementation", None),
        )


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_the_model_is_left_as_it_was(model, error):
    before, ids = list(traces(model)), tokens()
    with torch.no_grad():
        expected = model(ids).logits
        with pytest.raises(error) if error else nullcontext(), sinklab.watch(model, probes=list(ALL.values())):
            model(ids)
            if error:
                raise error
        assert list(traces(model)) == before
        assert torch.equal(model(ids).logits, expected)


def test_a_failing_probe_leaves_the_model_as_it_was(model):
    class Broken:
        name = "broken"

        def see(self, seen, ledger):
            raise ZeroDivisionError

    before = list(traces(model))
    with pytest.raises(ZeroDivisionError):
        sinklab.measure(model, tokens(), probes=[Broken()])
    assert list(traces(model)) == before


def test_two_models_and_two_watches_do_not_meet():
    a, b, ids = small_llama(0), small_llama(1), tokens()
    alone = [sinklab.measure(m, ids) for m in (a, b)]
    with torch.no_grad(), sinklab.watch(a) as first, sinklab.watch(b) as second:
        a(ids), b(ids)
    agree(first.result(), alone[0])
    agree(second.result(), alone[1])


def test_several_texts_one_after_another(model):
    texts = [tokens(1, 12), tokens(3, 17, seed=1)]
    with torch.no_grad(), sinklab.watch(model) as rows:
        for ids in texts:
            model(ids)
    for result, ids in zip(rows.results(), texts, strict=True):
        agree(result, sinklab.measure(model, ids))


def test_named_positions_equal_all_positions(model):
    ids = tokens()
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    everywhere = sinklab.measure(model, ids, mask)
    named = sinklab.measure(model, ids, mask, positions=[1, 2, 9])
    wanted = torch.tensor([0, 1, 8])
    torch.testing.assert_close(named.alpha[..., wanted], everywhere.alpha[..., wanted], atol=1e-6, rtol=1e-5, equal_nan=True)
    assert named.alpha[..., 3].isnan().all()
    with torch.no_grad(), sinklab.watch(model, [Alpha((1, 21))]) as rows:
        text = generated(model, ids)
    whole = sinklab.measure(model, text[:, :-1])
    torch.testing.assert_close(rows.result().alpha[..., [0, 20]], whole.alpha[..., [0, 20]], atol=1e-6, rtol=1e-5)


def test_nothing_of_a_watch_keeps_the_model_alive():
    model = small_llama()
    sinklab.measure(model, tokens())
    there = weakref.ref(model)
    del model
    gc.collect()
    assert there() is None


def test_the_probe_of_the_documentation_works(model):
    """docs/add-a-part.md, run as it stands."""
    code = re.findall(r"```python\n(@dataclass.*?class Diagonal.*?)```", Path("docs/add-a-part.md").read_text(), re.DOTALL)[0]
    names = {"dataclass": dataclass, "ClassVar": ClassVar, "Seen": Seen, "Ledger": Ledger}
    exec(code, names)
    ids = tokens()
    result = sinklab.measure(model, ids, probes=[Alpha(), Own(), names["Diagonal"]()])
    torch.testing.assert_close(torch.from_numpy(result.numbers["diagonal"])[..., 0], torch.from_numpy(result.numbers["own"]).mean(-1))
    with sinklab.watch(model, [Alpha(), Own(), names["Diagonal"]()]) as rows:
        text = generated(model, ids)
    agree(rows.result(), sinklab.measure(model, text[:, :-1], probes=[Alpha(), Own(), names["Diagonal"]()]))


def test_one_watch_at_a_time():
    model, before = small_llama(), list(traces(small_llama()))
    with sinklab.watch(model), pytest.raises(NotMeasurable, match="watched already"), sinklab.watch(model):
        pass
    failed = []

    def measure():
        try:
            sinklab.measure(model, tokens())
        except NotMeasurable:
            failed.append(1)

    threads = [threading.Thread(target=measure) for _ in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(failed) < 6
    assert list(traces(model)) == before
    agree(sinklab.measure(model, tokens()), sinklab.measure(small_llama(), tokens()))


def test_a_backward_after_the_watch_is_refused():
    model = small_llama().train()
    model.activation_checkpointing_enable({"use_reentrant": False})
    with sinklab.watch(model):
        loss = model(tokens(), labels=tokens(), use_cache=False).loss
    with pytest.raises(NotMeasurable, match="end the watch after the backward"):
        loss.backward()


def test_packing_that_the_model_ignores_is_none():
    """transformers looks for packed documents only where there is no cache."""
    model, ids = small_llama(), tokens()
    positions = torch.cat([torch.arange(8), torch.arange(12)])[None].expand(2, -1)
    with torch.no_grad():
        with sinklab.watch(model) as rows:
            model(ids, position_ids=positions, use_cache=True)
        assert rows.result().starts is None
        with sinklab.watch(model) as rows:
            model(ids, position_ids=positions, use_cache=False)
        assert rows.result().starts.sum() == 4


def test_masks_that_add_numbers_and_maps_that_are_asked_for_are_refused():
    model, ids = small_llama(), tokens()
    bias = torch.zeros(2, 1, 20, 20).masked_fill(torch.ones(20, 20).triu(1).bool(), torch.finfo(torch.float32).min)
    with torch.no_grad(), sinklab.watch(model) as rows:
        model(ids, attention_mask=bias)
    agree(rows.result(), sinklab.measure(model, ids))
    with pytest.raises(NotMeasurable, match="adds numbers"), sinklab.watch(model):
        model(ids, attention_mask=bias - torch.rand(2, 1, 20, 20))
    model.set_attn_implementation("eager")
    with pytest.raises(NotMeasurable, match="output_attentions"), sinklab.watch(model):
        model(ids, output_attentions=True)


def test_a_forward_that_failed_gives_no_result(model):
    handle = model.model.layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with torch.no_grad(), sinklab.watch(model) as rows:
        with pytest.raises(ZeroDivisionError):
            model(tokens())
        handle.remove()
        assert rows.results() == []
        with pytest.raises(NotMeasurable, match="did not come to its end"):
            rows.result()
        model(tokens())
        assert len(rows.results()) == 1


def test_places_that_come_and_go_are_not_taken_for_one_another(model):
    """A probe may make its places anew each time; a tensor that is gone leaves its id to the next one."""

    class Each:
        name = "each"

        def see(self, seen, ledger):
            everywhere = torch.arange(seen.visible.keys).expand(seen.visible.batch, -1)
            for place in range(seen.visible.keys):
                sums = seen.selected(everywhere[:, place : place + 1])
                torch.testing.assert_close(sums[..., 0], seen.columns()[0][..., place], atol=1e-5, rtol=1e-4)
            ledger.add_queries(seen.layer, "each", sums[..., 0])

    sinklab.measure(model, tokens(), probes=[Each()])
