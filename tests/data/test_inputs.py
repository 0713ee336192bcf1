"""Token sequences: natural text, random tokens, a token repeated, prompts; BOS and chat templates; what does not fit the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklab.data.inputs import (
    Inputs,
    Reader,
    check_vocabulary,
    embedding_rows,
    front_of,
    natural,
    prompt,
    random_tokens,
    repeated,
    vocabulary,
)
from sinklab.data.sources import Files, SpeechTexts
from sinklab.errors import SinklabError
from small import BOS, SPECIAL, VOCABULARY, small_llama, small_tokenizer

KNOWN, ADDED, NONE = (small_tokenizer(bos) for bos in ("known", "added", "none"))
BOS_ID = KNOWN.convert_tokens_to_ids(BOS)


def plain(text: str) -> list[int]:
    return KNOWN(text).input_ids


def rows(folder: Path, texts: list[str]) -> Files:
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return Files((path,))


def test_natural_is_the_beginning_of_documents_that_are_long_enough(tmp_path):
    found = natural(KNOWN, rows(tmp_path, ["abcdefgh", "short", "ijklmnop", "qrstuvwx"]), 8, 2)
    assert (found.name, found.length, found.attention_mask, found.notes) == ("natural", 8, None, ())
    assert found.tokens.dtype == torch.int64
    assert found.tokens.tolist() == [plain("abcdefgh"), plain("ijklmnop")]
    assert found.source == rows(tmp_path, ["abcdefgh", "short", "ijklmnop", "qrstuvwx"]).identity()


@pytest.mark.parametrize("length", [8, 64])
def test_first_samples_do_not_depend_on_how_many(length):
    many = natural(KNOWN, SpeechTexts(), length, 20).tokens
    assert torch.equal(natural(KNOWN, SpeechTexts(), length, 7).tokens, many[:7])


def test_only_the_beginning_of_long_documents_is_read():
    texts = list(SpeechTexts().texts())[:30]
    expected = [KNOWN(text, verbose=False).input_ids[:100] for text in texts]
    assert natural(KNOWN, SpeechTexts(), 100, 30).tokens.tolist() == expected


@settings(deadline=None)
@given(st.text(min_size=1, max_size=3000), st.integers(1, 200))
def test_first_tokens_are_those_of_the_whole_text(text, length):
    assert Reader(KNOWN).first(text, length) == plain(text)[:length]


@settings(deadline=None)
@given(st.integers(1, 100))
def test_first_tokens_of_text_with_long_words(length):
    tokenizer = small_tokenizer("known")
    tokenizer.add_tokens(["x" * 60])
    text = "x" * 60 * 300
    assert Reader(tokenizer).first(text, length) == tokenizer(text).input_ids[:length] == [VOCABULARY] * length


def test_too_few_long_documents_say_how_many(tmp_path):
    source = rows(tmp_path, ["abcdefgh", "short", "ijklmnop"])
    expected = "The text is shorter than --length: only 2 of 3 documents have 8 tokens, and 3 were asked for."
    with pytest.raises(SinklabError) as caught:
        natural(KNOWN, source, 8, 3)
    assert str(caught.value) == expected


def test_plain_text_is_cut_into_parts(tmp_path):
    (tmp_path / "a.txt").write_text("abcdefghijk")
    source = Files((tmp_path / "a.txt",))
    found = natural(ADDED, source, 5, 2)
    assert found.tokens.tolist() == [[BOS_ID, *plain("abcd")], [BOS_ID, *plain("efgh")]]
    assert found.notes == ("1 of 2 sequences are later parts of the documents",)
    with pytest.raises(SinklabError, match=r"only 2 sequences of 5 tokens can be cut from it, and 3 were asked for"):
        natural(ADDED, source, 5, 3)


def test_later_parts_come_after_all_beginnings(tmp_path):
    class TwoDocuments(Files):
        windows = True

    source = TwoDocuments(rows(tmp_path, ["abcdefghi", "jklmno"]).paths)
    assert natural(KNOWN, source, 3, 5).tokens.tolist() == [plain(text) for text in ("abc", "jkl", "def", "ghi", "mno")]


def test_parts_cover_the_text_once(tmp_path):
    (tmp_path / "a.txt").write_text(next(SpeechTexts().texts())[:2000])
    parts = natural(KNOWN, Files((tmp_path / "a.txt",)), 64, 31).tokens
    assert KNOWN.decode(parts.flatten()) == (tmp_path / "a.txt").read_text()[: 64 * 31]


@pytest.mark.parametrize(
    ("tokenizer", "bos", "front"),
    [
        (ADDED, "keep", [BOS_ID]),
        (ADDED, "add", [BOS_ID]),
        (ADDED, "none", []),
        (KNOWN, "keep", []),
        (KNOWN, "add", [BOS_ID]),
        (KNOWN, "none", []),
    ],
)
def test_bos_is_in_front_once_or_not_at_all(tmp_path, tokenizer, bos, front):
    found = natural(tokenizer, rows(tmp_path, ["abcdefgh"]), 6, 1, bos)
    assert found.tokens[0].tolist() == (front + plain("abcdefgh"))[:6]
    assert prompt(tokenizer, "abc", bos).tokens[0].tolist() == front + plain("abc")


def test_bos_that_the_tokenizer_lacks(tmp_path):
    for use in (lambda: natural(NONE, rows(tmp_path, ["abcdefgh"]), 6, 1, "add"), lambda: prompt(NONE, "abc", "add")):
        with pytest.raises(SinklabError, match="the tokenizer has no BOS token"):
            use()
    assert prompt(NONE, "abc", "none").tokens.shape == (1, 3)


def test_unknown_ways_with_bos_are_refused():
    with pytest.raises(SinklabError, match=r"Unknown --bos `ad`; known are keep, add, none. Did you mean `add`\?"):
        prompt(KNOWN, "abc", "ad")


def test_front_is_what_the_tokenizer_adds_itself():
    assert front_of(ADDED) == [BOS_ID]
    assert front_of(KNOWN) == front_of(NONE) == []


@pytest.mark.parametrize("tokenizer", [ADDED, KNOWN])
def test_chat_template_writes_its_beginning_once(tokenizer):
    turn = "[user] hi\n[assistant] "
    assert prompt(tokenizer, "hi", chat_template=True).tokens[0].tolist() == [BOS_ID, *plain(turn)]
    assert prompt(tokenizer, "hi", "add", chat_template=True).tokens[0].tolist() == [BOS_ID, *plain(turn)]
    assert prompt(tokenizer, "hi", "none", chat_template=True).tokens[0].tolist() == plain(turn)


def test_chat_template_without_bos():
    turn = NONE("[user] hi\n[assistant] ").input_ids
    assert prompt(NONE, "hi", chat_template=True).tokens[0].tolist() == turn
    with pytest.raises(SinklabError, match="no BOS token"):
        prompt(NONE, "hi", "add", chat_template=True)


def test_chat_template_around_documents(tmp_path):
    found = natural(KNOWN, rows(tmp_path, ["abcdefgh" * 1000]), 12, 1, chat_template=True)
    assert found.tokens[0].tolist() == [BOS_ID, *plain("[user] abcd")]
    (tmp_path / "a.txt").write_text("abcdefghijkl" * 2)
    parts = natural(KNOWN, Files((tmp_path / "a.txt",)), 12, 2, chat_template=True)
    assert KNOWN.decode(parts.tokens[1]) == "<s>[user] abcd"


def test_chat_templates_that_cannot_be_used():
    with pytest.raises(SinklabError, match="A chat template was asked for, and the tokenizer has none"):
        prompt(small_tokenizer(chat_template=False), "hi", chat_template=True)
    strict = small_tokenizer()
    strict.chat_template = "{{ raise_exception('a system turn has to come first') }}"
    with pytest.raises(SinklabError, match="a system turn has to come first"):
        prompt(strict, "hi", chat_template=True)


@pytest.mark.parametrize("text", ["", "  \n"])
def test_empty_prompt(text):
    with pytest.raises(SinklabError, match="The prompt is empty"):
        prompt(KNOWN, text)


@settings(deadline=None)
@given(samples=st.integers(1, 12), more=st.integers(0, 12), length=st.integers(1, 40), seed=st.integers(0, 2**40))
def test_drawn_sequences_do_not_depend_on_how_many(samples, more, length, seed):
    words = vocabulary(KNOWN, VOCABULARY)
    for draw in (random_tokens, repeated):
        few, many = draw(words, length, samples, seed), draw(words, length, samples + more, seed)
        assert few.tokens.shape == (samples, length)
        assert torch.equal(few.tokens, many.tokens[:samples])
        assert set(many.tokens.flatten().tolist()) <= set(words.tolist())


def test_random_tokens_are_uniform_and_differ():
    words = vocabulary(KNOWN, VOCABULARY)
    tokens = random_tokens(words, 512, 100, 0).tokens
    counts = torch.bincount(tokens.flatten(), minlength=VOCABULARY)
    assert counts[: len(SPECIAL)].sum() == 0
    expected = tokens.numel() / len(words)
    assert ((counts[len(SPECIAL) :] - expected).abs() < 6 * expected**0.5).all()
    assert len({tuple(row) for row in tokens.tolist()}) == 100
    assert not torch.equal(tokens, random_tokens(words, 512, 100, 1).tokens)


def test_repeated_tokens():
    found = repeated(vocabulary(KNOWN, VOCABULARY), 16, 100, 0)
    assert found.name == "repeat"
    assert (found.tokens == found.tokens[:, :1]).all()
    assert len(found.tokens[:, 0].unique()) > 60
    assert not torch.equal(found.tokens[:, 0], random_tokens(vocabulary(KNOWN, VOCABULARY), 16, 100, 0).tokens[:, 0])


@pytest.mark.parametrize("draw", [random_tokens, repeated])
def test_drawn_tokens_after_bos(draw):
    words = vocabulary(KNOWN, VOCABULARY)
    with_bos, without = draw(words, 16, 10, 0, BOS_ID), draw(words, 16, 10, 0)
    assert (with_bos.tokens[:, 0] == BOS_ID).all()
    assert torch.equal(with_bos.tokens[:, 1:], without.tokens[:, 1:])
    assert not (without.tokens == BOS_ID).any()
    assert with_bos.source != without.source


def test_vocabulary_has_no_marks_and_no_token_without_a_row():
    assert vocabulary(KNOWN, 1000).tolist() == list(range(len(SPECIAL), VOCABULARY))
    assert vocabulary(KNOWN, 100).tolist() == list(range(len(SPECIAL), 100))
    assert vocabulary(None, 7).tolist() == list(range(7))
    reserved = small_tokenizer("known")
    reserved.add_tokens(["<reserved>"], special_tokens=True)
    reserved.add_tokens(["word"])
    assert vocabulary(reserved, 1000).tolist() == [*range(len(SPECIAL), VOCABULARY), VOCABULARY + 1]
    with pytest.raises(SinklabError, match="no token that is not special"):
        vocabulary(KNOWN, len(SPECIAL))


def test_tokens_that_the_model_has_no_row_for():
    found = prompt(KNOWN, "ab")
    rows = embedding_rows(small_llama(vocab_size=int(found.tokens.max())))
    with pytest.raises(SinklabError, match=f"prompt has token {rows}, and the model knows {rows} tokens"):
        check_vocabulary(found, rows)
    check_vocabulary(found, rows + 1)
    check_vocabulary(found, embedding_rows(small_llama()))


def test_inputs_are_plain_values():
    found = prompt(KNOWN, "abc")
    assert isinstance(found, Inputs)
    assert found.length == found.tokens.shape[1] == 3
    assert found.source.startswith("prompt ")
    assert found.source != prompt(KNOWN, "abd").source
