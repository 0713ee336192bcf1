"""Our decoder as a transformers model: every design is saved, loaded and generated from; every argument is honoured or refused."""

import copy
import json
import pickle
import subprocess
import sys

import contract
import pytest
import torch
from examples import BASE, designs
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StaticCache,
    Trainer,
    TrainingArguments,
)

import sinklab.hub
from loading import complaint
from sinklab.errors import SinklabError
from sinklab.hub import SinklabConfig, SinklabForCausalLM, SinklabModel
from sinklab.model.decoder import build
from sinklab.model.design import Design
from sinklab.model.hub_config import cached
from sinklab.model.masks import Apart, Prefix, Window
from sinklab.model.positions import Learned, T5Relative
from sinklab.model.slots import KeyValueBias, SinkLogit

DESIGNS = designs()
CACHED = [name for name, design in DESIGNS.items() if cached(design)]
every = pytest.mark.parametrize("name", DESIGNS)
LONG, SHORT = 7, 4


def model(design: Design, dtype: torch.dtype = torch.float64, **settings: object) -> SinklabForCausalLM:
    """With weights that leave no two heads alike."""
    return SinklabForCausalLM.wrap(contract.decoder(design, dtype), **settings).eval()


def made(**changes: object) -> SinklabForCausalLM:
    return model(Design(**(BASE | changes)))


def text(design: Design, length: int = LONG) -> torch.Tensor:
    return contract.tokens(design, length)


def logits(of: SinklabForCausalLM, tokens: torch.Tensor, **given: object) -> torch.Tensor:
    with torch.no_grad():
        return of(tokens, **given).logits


def close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float = 3e-6) -> None:
    contract.close(found, wanted, tolerance)


def generated(of: SinklabForCausalLM, tokens: torch.Tensor, many: int = 5, **given: object) -> tuple[torch.Tensor, torch.Tensor]:
    """New tokens, and the logits from which they were chosen."""
    found = of.generate(tokens, max_new_tokens=many, do_sample=False, return_dict_in_generate=True, output_logits=True, **given)
    return found.sequences[:, tokens.shape[1] :], torch.stack(found.logits, 1)


@pytest.fixture
def folder(tmp_path):
    made(slots=(KeyValueBias(), SinkLogit())).float().save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


# Saved and loaded


@every
def test_every_design_is_saved_and_loaded_bit_for_bit(name, tmp_path):
    design = DESIGNS[name]
    drawn = AutoModelForCausalLM.from_config(SinklabConfig.of(design, seed=3))
    same_weights(drawn.model.decoder, build(design, seed=3))
    saved = model(design, torch.float32)
    saved.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.parsed() == design
    assert not loaded.training
    same_weights(loaded, saved)
    assert torch.equal(logits(loaded, text(design)), logits(saved, text(design)))


@every
def test_every_design_is_loaded_in_bfloat16(name, tmp_path):
    saved = SinklabForCausalLM.wrap(build(DESIGNS[name], seed=1)).eval()
    saved.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {p.dtype for p in loaded.parameters()} == {torch.bfloat16}
    found = logits(loaded, text(DESIGNS[name]))
    assert found.dtype == torch.bfloat16
    close(found.float(), logits(saved, text(DESIGNS[name])), 0.06)


def same_weights(one, other):
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    assert all(a == b and torch.equal(p, q) and p.dtype == q.dtype for (a, p), (b, q) in pairs)


def test_first_weights_are_the_same_numbers_in_any_dtype():
    config = SinklabConfig.of(Design(**BASE), seed=5)
    first = build(config.parsed(), seed=5)
    for dtype in (torch.float64, torch.bfloat16):
        same_weights(AutoModelForCausalLM.from_config(config, dtype=dtype).model.decoder, copy.deepcopy(first).to(dtype))
    assert torch.get_default_dtype() == torch.float32


def test_without_its_head_and_in_shards(folder, tmp_path):
    whole = AutoModelForCausalLM.from_pretrained(folder)
    base = AutoModel.from_pretrained(folder)
    assert type(base) is SinklabModel
    same_weights(base, whole.model)
    base.save_pretrained(tmp_path / "base")
    same_weights(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), whole)
    whole.save_pretrained(tmp_path / "shards", max_shard_size="3KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    same_weights(AutoModelForCausalLM.from_pretrained(tmp_path / "shards"), whole)


def test_by_name(folder):
    """Where nobody has registered anything, and torch is not imported before it is needed."""
    code = f"import sys, sinklab; assert 'torch' not in sys.modules; print(sinklab.load_model({str(folder)!r}, device='cpu'))"
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert "SinklabForCausalLM(" in found.stdout
    assert "('no tokenizer',)" in found.stdout


def test_config_says_what_other_tools_ask(folder):
    said = json.loads((folder / "config.json").read_text())
    assert (said["model_type"], said["sinklab_version"], said["architectures"]) == ("sinklab", 1, ["SinklabForCausalLM"])
    assert (said["vocab_size"], said["hidden_size"], said["num_hidden_layers"], said["num_attention_heads"], said["head_dim"]) == (30, 16, 2, 2, 8)
    assert [slot["kind"] for slot in said["design"]["slots"]] == ["KeyValueBias", "SinkLogit"]
    config = SinklabConfig.of(Design(**BASE | {"positions": Learned(length=20), "registers": 3}))
    assert config.max_position_embeddings == 17
    assert SinklabConfig(design={"weights": "Sigmoid"}).parsed() == Design(weights={"kind": "Sigmoid"})


def test_a_decoder_is_wrapped_and_not_copied():
    decoder = build(Design(**BASE))
    wrapped = SinklabForCausalLM.wrap(decoder, training={"steps": 3})
    assert wrapped.model.decoder is decoder
    assert wrapped.training
    assert not SinklabForCausalLM.wrap(decoder.eval()).training
    assert wrapped.get_decoder() is wrapped.model is wrapped.model.get_decoder()
    before = copy.deepcopy(decoder.state_dict())
    assert all(torch.equal(p, before[name]) for name, p in decoder.state_dict().items())
    assert torch.equal(logits(wrapped, text(decoder.design)), contract.logits(decoder, text(decoder.design)))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copied", "pickled"])
def test_a_copy_has_its_own_weights(again):
    first = made()
    second = again(first)
    same_weights(first, second)
    with torch.no_grad():
        second.get_input_embeddings().weight.zero_()
    assert logits(second, text(first.model.decoder.design)).abs().max() == 0
    assert logits(first, text(first.model.decoder.design)).abs().max() > 0


def test_model_card(tmp_path):
    design = Design(**BASE | {"slots": (KeyValueBias(),), "mask": Window(size=3)})
    saved = SinklabForCausalLM.wrap(build(design), training={"experiment": "window/3", "tokens": 10**6})
    saved.save_pretrained(tmp_path / "a-window")
    card = ModelCard.load(tmp_path / "a-window" / "README.md")
    assert card.data.library_name == "sinklab"
    assert {"sinklab", "KeyValueBias", "Window"} <= set(card.data.tags)
    assert "Causal" not in card.data.tags
    for said in (
        "# a-window",
        f"{sum(p.numel() for p in saved.parameters()):,} parameters",
        "- `mask`: `Window(size=3)`",
        "i - size \\< j \\<= i",
        '"window/3"',
    ):
        assert said in card.text
    lines = card.text.split("```python\n")[1].split("```")[0].splitlines()
    assert len(lines) == 3
    here: dict[str, object] = {}
    exec("\n".join(lines).replace("a-window", str(tmp_path / "a-window")), here)
    same_weights(here["model"], saved)
    assert sorted(path.name for path in (tmp_path / "a-window").iterdir()) == [
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
    ]


def test_what_is_pushed_has_this_card(folder, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (folder / "README.md").write_text("transformers' own")
    with pytest.raises(Exception, match=r"(?i)offline"):
        made()._upload_modified_files(folder, "someone/something", {})
    assert "# someone/something" in (folder / "README.md").read_text()


# Bad folders


def changed(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))
    return folder


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"sinklab_version": 2}, "has the version 2, and this sinklab reads version 1; it is newer: update sinklab."),
        ({"sinklab_version": 0}, "has the version 0, and this sinklab reads version 1; it is older."),
        ({"vocab_size": 31}, "`vocab_size` is 31, and by the design it is 30."),
        ({"tie_word_embeddings": True}, "`tie_word_embeddings` is True, and by the design it is False."),
        ({"design": {"weigths": "Softmax"}}, "Design has no setting `weigths`. Did you mean `weights`?"),
        ({"design": {"weights": "Softmx"}}, "Did you mean `Softmax`?"),
        ({"design": {"heads": 2.5}}, "heads: "),
        ({"design": {"head_size": 7, "positions": "Rope"}}, "Rope turns pairs of dimensions, and heads of 7 have one left over."),
        ({"design": {"slots": ["OffByOne", "OffByOne"]}}, "Two slots are OffByOne"),
        ({"design": []}, "is wrong: Validation error for field 'design'"),
        ({"design": {"documents": "Apart"}, "use_cache": True, "vocab_size": None}, "`use_cache` is true, and documents"),
    ],
)  # fmt: skip
def test_bad_configs(folder, values, reason):
    sentence = complaint(changed(folder, **values))
    assert reason in sentence
    assert str(folder) in sentence


def tampered(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


FIRST = "model.decoder.blocks.0.attention.slots.KeyValueBias.key"
SLOT = "model.decoder.blocks.1.attention.slots.SinkLogit.score"
STRANGE = "model.decoder.extra"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda found: found.pop(SLOT), f"lacks 1 of the tensors of its design: `{SLOT}`."),
        (lambda found: [found.pop(name) for name in list(found) if "slots" in name], f"lacks 6 of the tensors of its design: `{FIRST}` and others."),
        (lambda found: found.update({STRANGE: torch.ones(2)}), f"holds 1 tensors that its design has no place for: `{STRANGE}`."),
        (lambda found: found.update({SLOT: torch.ones(3)}), f"holds `{SLOT}` in the shape (3,), and by its design it is (2,)."),
    ],
    ids=["one too few", "a part too few", "one too many", "another shape"],
)  # fmt: skip
def test_folders_that_are_not_of_their_design(folder, change, reason):
    sentence = complaint(tampered(folder, change))
    assert sentence == f"`{folder}` {reason}"
    with pytest.raises(SinklabError) as caught:
        AutoModelForCausalLM.from_pretrained(folder)
    assert str(caught.value) == sentence
    with pytest.raises(SinklabError, match="`ignore_mismatched_sizes` is refused"):
        AutoModelForCausalLM.from_pretrained(folder, ignore_mismatched_sizes=True)


def test_devices(folder):
    whole = AutoModelForCausalLM.from_pretrained(folder)
    for place in ("cpu", {"": "cpu"}, "auto"):
        same_weights(AutoModelForCausalLM.from_pretrained(folder, device_map=place).cpu(), whole)
    parts = {"model.decoder.blocks.0": "cpu", "model.decoder.blocks.1": "disk", "model.decoder": "cpu"}
    with pytest.raises(SinklabError, match=r"is not spread over cpu, disk: a decoder lies on one device\."):
        AutoModelForCausalLM.from_pretrained(folder, device_map=parts, offload_folder=str(folder / "offload"))


# Generated from


@pytest.mark.parametrize("name", CACHED)
def test_a_cache_changes_nothing(name):
    """Generated from a prompt that covers a prefix or does not; and forward in pieces."""
    design = DESIGNS[name]
    short = max(SHORT, min(design.mask.given, LONG))
    of, prompt = model(design), text(design, short)
    tokens, found = generated(of, prompt)
    plain, wanted = generated(of, prompt, use_cache=False)
    assert torch.equal(tokens, plain)
    close(found, wanted)
    long = text(design, max(LONG, design.mask.given) + 2)
    cache = DynamicCache(config=of.config)
    first = max(3, design.mask.given)
    pieces = [long[:, :first], long[:, first : first + 1], long[:, first + 1 :]]
    in_pieces = torch.cat([logits(of, piece, past_key_values=cache) for piece in pieces if piece.numel()], 1)
    close(in_pieces, logits(of, long))
    assert cache.get_seq_length() == design.registers + long.shape[1]


@every
def test_padding_changes_nothing(name):
    """A short text beside a long one: its tokens are those that it has alone, with padding before it; its logits too, with padding after it."""
    design = DESIGNS[name]
    of, tokens = model(design), text(design)
    alone, wanted = generated(of, tokens[:1, :SHORT])
    gap = LONG - SHORT
    batch = torch.cat([torch.cat([tokens[:1, :gap], tokens[:1, :SHORT]], 1), tokens[1:]])
    mask = torch.ones_like(batch)
    mask[0, :gap] = 0
    beside, found = generated(of, batch, attention_mask=mask)
    assert torch.equal(beside[:1], alone)
    close(found[:1], wanted)
    close(found[1:], generated(of, tokens[1:])[1])
    after = logits(of, torch.cat([tokens[:1, :SHORT], tokens[:1, :gap]], 1), attention_mask=mask[:1].flip(1))
    close(after[:, :SHORT], logits(of, tokens[:1, :SHORT]))


HARD = {
    "plain": {},
    "registers": {"registers": 3, "positions": T5Relative()},
    "prefix": {"mask": Prefix(length=3), "registers": 1},
    "window": {"mask": Window(size=3), "slots": (SinkLogit(),)},
    "window and registers": {"mask": Window(size=3), "registers": 2},
}
hard = pytest.mark.parametrize("changes", HARD.values(), ids=HARD)


@hard
def test_beams_and_samples(changes):
    of = made(**changes)
    prompt = text(of.model.decoder.design)
    beams = [of.generate(prompt, num_beams=3, do_sample=False, max_new_tokens=6, use_cache=use) for use in (True, False)]
    assert torch.equal(*beams)
    samples = []
    for use in (True, False):
        torch.manual_seed(0)
        samples.append(of.generate(prompt, do_sample=True, num_return_sequences=2, max_new_tokens=6, use_cache=use))
    assert torch.equal(*samples)
    assert not torch.equal(samples[0][:2, LONG:], beams[0][:, LONG:])


@hard
@pytest.mark.parametrize("new_only", [False, True], ids=["whole text", "new tokens"])
def test_a_cache_is_continued(changes, new_only):
    """A second turn, with padding in the first, given as the whole text or as what is new."""
    of = made(**changes)
    prompt = text(of.model.decoder.design)
    mask = torch.ones_like(prompt)
    mask[0, :2] = 0
    cache = DynamicCache(config=of.config)
    first = of.generate(prompt, attention_mask=mask, past_key_values=cache, do_sample=False, max_new_tokens=4)
    more = text(of.model.decoder.design, 5)[:, :3]
    whole = torch.cat([first, more], 1)
    wide = torch.cat([mask, torch.ones(2, whole.shape[1] - LONG, dtype=torch.long)], 1)
    given = whole[:, -4:] if new_only else whole  # the last generated token is not in the cache yet
    found = of.generate(given, attention_mask=wide, past_key_values=cache, do_sample=False, max_new_tokens=4)
    wanted = of.generate(whole, attention_mask=wide, do_sample=False, max_new_tokens=4, use_cache=False)
    assert torch.equal(found[:, -4:], wanted[:, -4:])
    assert cache.get_seq_length() == whole.shape[1] + 3 + of.model.decoder.design.registers


@hard
def test_padding_in_the_middle_changes_nothing(changes):
    of = made(**changes)
    tokens = text(of.model.decoder.design)[1:]
    mask = torch.tensor([[1, 1, 0, 0, 1, 1, 1]])
    wanted = logits(of, tokens[:, mask[0] == 1])
    close(logits(of, tokens, attention_mask=mask)[:, mask[0] == 1], wanted)
    cache = DynamicCache(config=of.config)
    pieces = [logits(of, tokens[:, i:j], attention_mask=mask[:, :j], past_key_values=cache) for i, j in ((0, 5), (5, 6), (6, 7))]
    close(torch.cat(pieces, 1)[:, mask[0] == 1], wanted)


@hard
def test_a_prompt_in_chunks(changes):
    of = made(**changes)
    prompt = text(of.model.decoder.design)
    found = of.generate(prompt, do_sample=False, max_new_tokens=4, prefill_chunk_size=3)
    assert torch.equal(found, of.generate(prompt, do_sample=False, max_new_tokens=4))


def test_from_embeddings_and_by_guesses():
    of = made()
    prompt = text(of.model.decoder.design)[:1]
    wanted = of.generate(prompt, do_sample=False, max_new_tokens=6)
    rows = of.get_input_embeddings()(prompt)
    assert torch.equal(of.generate(inputs_embeds=rows, do_sample=False, max_new_tokens=6), wanted[:, LONG:])
    assert torch.equal(of.generate(prompt, do_sample=False, max_new_tokens=6, prompt_lookup_num_tokens=2), wanted)
    with pytest.raises(ValueError, match="stateful"):
        made(registers=1).generate(prompt, do_sample=False, max_new_tokens=6, prompt_lookup_num_tokens=2)


class Counting(LogitsProcessor):
    """How many places the cache held at each token."""

    def __init__(self, of):
        self.lengths = []
        of.model.register_forward_hook(lambda _m, _i, out: self.lengths.append(out.past_key_values and out.past_key_values.get_seq_length()))

    def __call__(self, tokens, scores):
        return scores


@pytest.mark.parametrize("config", [None, GenerationConfig(max_new_tokens=3, do_sample=False)], ids=["without", "with a config"])
def test_what_cannot_be_cached_runs_without(config):
    short = {"max_new_tokens": 3, "do_sample": False} if config is None else {"generation_config": config}
    for changes, many, lengths in [
        ({"documents": Apart()}, LONG, [None, None, None]),
        ({"mask": Prefix(length=5)}, 4, [None, None, None]),
        ({"mask": Prefix(length=5)}, 5, [5, 6, 7]),
        ({"registers": 2}, 5, [7, 8, 9]),
    ]:
        of = made(**changes)
        seen = Counting(of)
        of.generate(text(of.model.decoder.design, many), logits_processor=LogitsProcessorList([seen]), **short)
        assert seen.lengths == lengths
    assert config is None or config.use_cache is None


def test_padding_does_not_make_a_prompt_long_enough():
    of = made(mask=Prefix(length=5))
    prompt = text(of.model.decoder.design)
    seen = Counting(of)
    mask = torch.ones_like(prompt)
    mask[1, :3] = 0
    of.generate(prompt, attention_mask=mask, max_new_tokens=2)
    prompt[1, :3] = 0
    of.generate(prompt, pad_token_id=0, max_new_tokens=2)
    assert seen.lengths == [None] * 4


# Arguments


def test_hidden_states_are_the_texts():
    of = made(registers=2)
    tokens = text(of.model.decoder.design)
    found = of(tokens, output_hidden_states=True)
    assert len(found.hidden_states) == 3
    assert all(state.shape == (2, LONG, 16) for state in found.hidden_states)
    assert torch.equal(found.hidden_states[0], of.get_input_embeddings()(tokens))
    assert torch.equal(found.hidden_states[-1], of.model(tokens).last_hidden_state)
    assert torch.equal(of.get_output_embeddings()(found.hidden_states[-1]), found.logits)
    steps = of.generate(tokens, max_new_tokens=2, do_sample=False, output_hidden_states=True, return_dict_in_generate=True).hidden_states
    assert [states[0].shape[1] for states in steps] == [LONG, 1]
    assert of(tokens).hidden_states is None


def test_a_cache_is_made_for_generating_only():
    of = made()
    tokens = text(of.model.decoder.design)
    assert of(tokens).past_key_values.get_seq_length() == LONG
    assert of(tokens, use_cache=False).past_key_values is None
    assert of.train()(tokens).past_key_values is None
    assert of(tokens, use_cache=True).past_key_values.get_seq_length() == LONG
    assert SinklabForCausalLM.wrap(of.model.decoder, use_cache=False).eval()(tokens).past_key_values is None
    prefix = made(mask=Prefix(length=LONG))
    assert prefix(tokens).past_key_values is not None
    assert prefix(tokens[:, 1:]).past_key_values is None


def test_loss():
    of = made()
    tokens = text(of.model.decoder.design)
    labels = tokens.clone()
    labels[0, 3] = -100
    found = of(tokens, labels=labels)
    each = torch.nn.functional.cross_entropy(found.logits[:, :-1].transpose(1, 2).float(), tokens[:, 1:], reduction="none")
    kept = labels[:, 1:] != -100
    torch.testing.assert_close(found.loss, each[kept].mean())
    torch.testing.assert_close(of(tokens, labels=labels, num_items_in_batch=20).loss, each[kept].sum() / 20)
    assert of.accepts_loss_kwargs
    assert found.to_tuple()[0] is found.loss
    assert len(of(tokens, return_dict=False, use_cache=False)) == 1


def test_loss_begins_after_the_prefix():
    of = made(mask=Prefix(length=3))
    tokens = text(of.model.decoder.design)
    mask = torch.ones_like(tokens)
    mask[0, :2] = 0
    for given, first in ((None, [3, 3]), (mask, [5, 3])):
        found = of(tokens, attention_mask=given, labels=tokens.masked_fill(mask == 0, -100))
        each = torch.nn.functional.cross_entropy(found.logits[:, :-1].transpose(1, 2).float(), tokens[:, 1:], reduction="none")
        wanted = torch.cat([row[start - 1 :] for row, start in zip(each, first, strict=True)]).mean()
        torch.testing.assert_close(found.loss, wanted)
    assert not of.accepts_loss_kwargs


def test_logits_to_keep_and_position_ids():
    of = made(registers=1, positions=Learned(length=20))
    tokens = text(of.model.decoder.design)
    whole = logits(of, tokens)
    close(logits(of, tokens, logits_to_keep=2), whole[:, -2:])
    close(logits(of, tokens, logits_to_keep=torch.tensor([0, 3])), whole[:, [0, 3]])
    mask = torch.ones_like(tokens)
    mask[0, :2] = 0
    places = torch.arange(LONG)[None]
    assert torch.equal(logits(of, tokens, position_ids=places), whole)
    shifted = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)  # of padding nobody asks
    assert torch.equal(logits(of, tokens, attention_mask=mask, position_ids=shifted), logits(of, tokens, attention_mask=mask))
    for wrong in (places + 1, torch.zeros_like(tokens), places[:, :3]):
        with pytest.raises(SinklabError, match="`position_ids` are not the places that `attention_mask` gives"):
            of(tokens, position_ids=wrong)
    with pytest.raises(SinklabError, match="`position_ids` are not"):
        of(tokens, attention_mask=mask, position_ids=places)


def filled(of: SinklabForCausalLM, many: int) -> DynamicCache:
    return of(text(of.model.decoder.design, many), use_cache=True).past_key_values


MAPS = torch.ones(2, 1, LONG, LONG)
PADDED = torch.tensor([[0, *[1] * 6], [1] * 7])


@pytest.mark.parametrize(
    ("changes", "given", "reason"),
    [
        ({}, lambda _of, _x: {}, "either `input_ids` or `inputs_embeds`"),
        ({}, lambda of, x: {"input_ids": x, "inputs_embeds": of.get_input_embeddings()(x)}, "either `input_ids` or `inputs_embeds`"),
        ({}, lambda _of, x: {"input_ids": x, "output_attentions": True}, "no attention maps to return"),
        (
            {},
            lambda _of, x: {"input_ids": x, "attention_mask": MAPS},
            r"\(2, 1, 7, 7\), and the texts and their tokens so far are \(2, 7\)",
        ),
        ({}, lambda of, x: {"input_ids": x, "attention_mask": PADDED, "past_key_values": filled(of, 3)}, r"so far are \(2, 10\)"),
        ({}, lambda of, x: {"input_ids": x, "past_key_values": StaticCache(config=of.config, max_cache_len=9)}, "StaticCache is no cache"),
        ({}, lambda _of, x: {"input_ids": x, "past_key_values": ((x, x), (x, x))}, "tuple is no cache for this decoder"),
        ({}, lambda _of, x: {"input_ids": x, "labels": x, "past_key_values": ((x, x), (x, x))}, "tuple is no cache for this decoder"),
        ({}, lambda _of, x: {"input_ids": x, "labels": x, "logits_to_keep": 1}, "The loss is of a whole text"),
        ({}, lambda of, x: {"input_ids": x, "labels": x, "past_key_values": filled(of, 3)}, "The loss is of a whole text"),
        (
            {"positions": Learned(length=8), "registers": 2},
            lambda _of, x: {"input_ids": x},
            r"9 places are more than the 8 that Learned\(length=8\) has",
        ),
        ({"documents": Apart()}, lambda _of, x: {"input_ids": x, "use_cache": True}, "There can be no cache: documents that are kept apart"),
        ({"documents": Apart()}, lambda _of, x: {"input_ids": x, "past_key_values": DynamicCache()}, "There can be no cache"),
        ({"documents": Apart()}, lambda of, x: {"inputs_embeds": of.get_input_embeddings()(x)}, "give `input_ids`, not `inputs_embeds`"),
        (
            {"mask": Prefix(length=5)},
            lambda of, x: {"input_ids": x, "past_key_values": filled(of, 4)},
            "The first 5 tokens see each other",
        ),
        (
            {"mask": Prefix(length=3)},
            lambda of, x: {"input_ids": x[:, :4], "past_key_values": filled(of, 3), "attention_mask": PADDED},
            "The first 3 tokens see each other",
        ),
    ],
)
def test_refused(changes, given, reason):
    of = made(**changes)
    with pytest.raises(SinklabError, match=reason):
        of(**given(of, text(of.model.decoder.design)))


def test_refused_by_name():
    of = made()
    tokens = text(of.model.decoder.design)
    with pytest.raises(TypeError, match="token_type_ids"):
        of(tokens, token_type_ids=tokens)
    with pytest.raises(SinklabError, match="StaticCache is no cache"):
        of.generate(tokens, max_new_tokens=2, cache_implementation="static")
    with pytest.raises(SinklabError, match="no attention maps"):
        of.generate(tokens, max_new_tokens=2, output_attentions=True, return_dict_in_generate=True)
    with pytest.raises(SinklabError, match="There can be no cache"):
        made(documents=Apart()).generate(tokens, max_new_tokens=2, use_cache=True)
    with pytest.raises(ValueError, match="scaled_dot_product_attention"):
        AutoModelForCausalLM.from_config(of.config, attn_implementation="sdpa")


def test_embeddings_are_exchanged_and_not_resized():
    of = made()
    tokens = text(of.model.decoder.design)
    rows, head = torch.nn.Embedding(30, 16).double(), torch.nn.Linear(16, 30, bias=False).double()
    of.set_input_embeddings(rows)
    of.set_output_embeddings(head)
    assert of.get_input_embeddings().weight is rows.weight is of.model.decoder.embed.tokens
    assert of.get_output_embeddings().weight is head.weight
    of(tokens, labels=tokens).loss.backward()
    assert rows.weight.grad.abs().max() > 0
    assert (of.get_input_embeddings().num_embeddings, of.get_input_embeddings().embedding_dim) == (30, 16)
    assert of.resize_token_embeddings(30) is of.resize_token_embeddings() is of.get_input_embeddings()
    with pytest.raises(SinklabError, match="does not take the place of one of"):
        of.set_input_embeddings(torch.nn.Embedding(31, 16))
    with pytest.raises(SinklabError, match="has no bias"):
        of.set_output_embeddings(torch.nn.Linear(16, 30))
    for size in ({"new_num_tokens": 32}, {"pad_to_multiple_of": 8}):
        with pytest.raises(SinklabError, match="vocabulary of 30 tokens is part of the design"):
            of.resize_token_embeddings(**size)


# Trained


def enable(of: SinklabForCausalLM, **settings: object) -> None:
    """Under the name that the installed transformers has for it."""
    way = getattr(of, "activation_checkpointing_enable", None) or of.gradient_checkpointing_enable
    way(*settings.pop("given", ()), **settings)


@pytest.mark.parametrize("every_n_layers", [1, 2])
def test_checkpoints_change_no_gradient(every_n_layers):
    of = made(depth=3, registers=1, positions=T5Relative(), slots=(KeyValueBias(),)).train()
    tokens = text(of.model.decoder.design)
    wanted = gradients(of, tokens)
    enable(of, every_n_layers=every_n_layers)
    calls = [0, 0, 0]
    for n, block in enumerate(of.model.decoder.blocks):
        block.ffn.register_forward_pre_hook(lambda *_, n=n: calls.__setitem__(n, calls[n] + 1))
    found = gradients(of, tokens)
    assert calls == [2, 2 if every_n_layers == 1 else 1, 2]
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    with pytest.raises(SinklabError, match="computed again would fill it twice"):
        of(tokens, use_cache=True)
    calls[:] = [0, 0, 0]
    gradients(of.eval(), tokens)
    assert calls == [1, 1, 1]


def gradients(of, tokens):
    of.zero_grad()
    of(tokens, labels=tokens).loss.backward()
    return {name: p.grad.clone() for name, p in of.named_parameters() if p.grad is not None}


def test_reentrant_checkpoints_are_refused():
    with pytest.raises(SinklabError, match="use_reentrant=False"):
        enable(made(), given=({"use_reentrant": True},))


def test_trainer(tmp_path):
    of = SinklabForCausalLM.wrap(build(Design(**BASE), seed=1))
    rows = [{"input_ids": row, "labels": row, "attention_mask": torch.ones_like(row)} for row in text(of.model.decoder.design).repeat(8, 1)]
    quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True}
    settings = TrainingArguments(tmp_path, max_steps=4, save_steps=4, learning_rate=0.01, gradient_accumulation_steps=2, **quiet)
    trainer = Trainer(of, settings, train_dataset=rows, eval_dataset=rows[:2])
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before - 0.2
    same_weights(AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-4"), of)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # peft's
def test_lora():
    peft = pytest.importorskip("peft")
    of = SinklabForCausalLM.wrap(build(Design(**BASE), seed=1))
    tuned = peft.get_peft_model(of, peft.LoraConfig(r=2, target_modules=["inputs"], task_type="CAUSAL_LM"))
    tokens = text(of.model.decoder.design)
    optimiser = torch.optim.AdamW((p for p in tuned.parameters() if p.requires_grad), lr=0.05)
    losses = []
    for _ in range(5):
        optimiser.zero_grad()
        loss = tuned(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.05
    assert tuned.generate(input_ids=tokens, max_new_tokens=2, do_sample=False).shape == (2, LONG + 2)


def test_registering_twice_does_no_harm():
    import importlib

    assert importlib.reload(sinklab.hub).SinklabConfig is SinklabConfig
