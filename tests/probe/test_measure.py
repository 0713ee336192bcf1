"""Measuring equals the mathematics written out over whole maps, needs no map itself, and refuses what it cannot do in a sentence."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    JambaConfig,
    JambaForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    MambaForCausalLM,
    MptConfig,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)  # fmt: skip

import sinklab
from four_models import MODELS, SMALL
from sinklab.errors import NotMeasurable, SinklabError
from sinklab.probe.measure import check_length
from sinklab.probe.probes import ALL
from small import small_llama


def tokens(rows=3, length=26, seed=0):
    return torch.randint(3, 120, (rows, length), generator=torch.Generator().manual_seed(seed))


def alpha_of_maps(model, ids, mask, virtual=None):
    """The definition, from eager maps: sums over real queries, by how many of them may see the key."""
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = torch.stack(model(ids, attention_mask=mask, output_attentions=True, use_cache=False).attentions, 1)
    model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    i, j = torch.arange(ids.shape[1])[:, None], torch.arange(ids.shape[1])
    sees = torch.ones(len(maps[0]), *i.shape[:1], len(j), dtype=torch.bool)
    for layer, kind in enumerate(getattr(model.config, "layer_types", None) or []):
        if "sliding" in kind:
            sees[layer] = i - j < model.config.sliding_window
    if model.config.model_type == "mistral":
        sees[:] = i - j < model.config.sliding_window
    sees = (sees & (j <= i))[None] & real[:, None, :, None] & real[:, None, None, :]
    return (maps * sees[:, :, None]).sum(-2) / sees.sum(-2)[:, :, None]


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=6, deadline=None)
@given(length=st.integers(1, 40), left=st.integers(0, 12), right=st.integers(0, 12), seed=st.integers(0, 99))
def test_alpha_equals_the_definition_over_eager_maps(name, length, left, right, seed):
    model, ids = MODELS[name](), tokens(2, length, seed)
    mask = torch.ones_like(ids)
    left, right = min(left, length - 1), min(right, length - 1)
    mask[0, :left] = 0
    mask[1, length - right :] = 0
    expected = alpha_of_maps(model, ids, mask)
    result = sinklab.measure(model, ids, mask)
    torch.testing.assert_close(result.alpha[0, ..., : length - left], expected[0, ..., left:], atol=1e-5, rtol=0)
    torch.testing.assert_close(result.alpha[1, ..., : length - right], expected[1, ..., : length - right], atol=1e-5, rtol=0)
    assert result.alpha[0, ..., length - left :].isnan().all() and result.alpha[1, ..., length - right :].isnan().all()


def test_virtual_mass_is_what_the_rows_lack():
    model, ids = MODELS["gpt_oss"](), tokens()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = torch.stack(model(ids, output_attentions=True).attentions, 1)
    expected = 1 - maps.sum(-1).mean(-1)
    result = sinklab.measure(model, ids)
    torch.testing.assert_close(result.virtual, expected, atol=1e-5, rtol=0)
    assert (result.virtual > 0).all()
    star = (1 + 26 * result.virtual) / 27  # the paper counts a dummy query, all on the sink
    assert result.sink(position=0, epsilon=0.08).percent == pytest.approx(100 * float((star > 0.08).float().mean()))
    assert sinklab.measure(small_llama(), ids).sink(position=0, epsilon=0.001).percent == 0


def llama4():
    torch.manual_seed(0)
    config = Llama4TextConfig(**SMALL | {"intermediate_size": 32}, intermediate_size_mlp=48, head_dim=8, attention_chunk_size=8, num_local_experts=2)
    return Llama4ForCausalLM(config).eval()


def test_chunked_attention_is_divided_by_who_may_see():
    model, ids = llama4(), tokens(2, 20)
    result = sinklab.measure(model, ids)
    chunked = [i for i, kind in enumerate(model.config.layer_types) if kind == "chunked_attention"]
    assert chunked
    expected = [8 - j % 8 if j < 16 else 20 - j for j in range(20)]
    assert result.numbers["queries"][0, chunked[0], 0].tolist() == expected


def jamba():
    torch.manual_seed(0)
    return JambaForCausalLM(
        JambaConfig(
            **SMALL | {"num_hidden_layers": 4},
            attn_layer_period=2,
            attn_layer_offset=1,
            num_experts=2,
            mamba_d_state=4,
            use_mamba_kernels=False,
        )
    ).eval()


def qwen3_next():
    torch.manual_seed(0)
    kinds = ["linear_attention", "full_attention"] * 2
    return Qwen3NextForCausalLM(
        Qwen3NextConfig(
            **SMALL | {"num_hidden_layers": 4}, head_dim=8, layer_types=kinds, linear_num_key_heads=2, linear_num_value_heads=4,
            linear_key_head_dim=8, linear_value_head_dim=8, num_experts=2, num_experts_per_tok=1,
            moe_intermediate_size=16, shared_expert_intermediate_size=16,
        )
    ).eval()  # fmt: skip


@pytest.mark.parametrize("make", [jamba, qwen3_next])
def test_layers_without_attention_are_nan_and_not_counted(make):
    model, ids = make(), tokens()
    result = sinklab.measure(model, ids, probes=list(ALL.values()))
    assert result.attends.tolist() == [False, True, False, True]
    assert result.alpha[:, [0, 2]].isnan().all() and not result.alpha[:, [1, 3]].isnan().any()
    assert result.sink().layers == 2
    gate = result.numbers["gate"][:, [1, 3]]
    assert (gate > 0.05).all() if make is qwen3_next else (abs(gate) < 1e-5).all()  # Qwen3-Next gates its attention, Jamba does not


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("padded", [False, True])
def test_loss_in_pieces_is_the_loss(name, padded, monkeypatch):
    model, ids = MODELS[name](), tokens()
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :5] = 0
    monkeypatch.setattr("sinklab.probe.loss.PIECE_NUMBERS", 3 * 7 * model.config.vocab_size)
    with torch.no_grad():
        logits = model(ids, attention_mask=mask).logits
    each = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(3, -1)
    counted = mask[:, 1:] * mask[:, :-1]
    result = sinklab.measure(model, ids, mask, loss=True)
    torch.testing.assert_close(torch.from_numpy(result.loss), (each * counted).sum(-1) / counted.sum(-1), atol=1e-4, rtol=1e-5)


class Largest(TorchDispatchMode):
    """The largest tensor that any operation makes."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, torch.Tensor) and x.untyped_storage().nbytes() >= x.numel() * x.element_size():  # not a broadcast view
                self.numbers = max(self.numbers, x.numel())
        return out


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("padded", [False, True])
def test_no_map_exists_at_any_time(name, padded, monkeypatch):
    """All heads' maps of one layer would be 4 * T * T = 16 M numbers here; chunks are kept below a tenth of one head's map."""
    model, ids = MODELS[name](), tokens(1, 2048)
    model.config.max_position_embeddings = 4096
    mask = torch.ones_like(ids)
    mask[0, : 100 * padded] = 0
    monkeypatch.setattr("sinklab.probe.call.CHUNK_NUMBERS", 1 << 18)
    monkeypatch.setattr("sinklab.probe.measure.check_length", lambda *_: None)
    with Largest() as largest:
        result = sinklab.measure(model, ids, mask)
    assert largest.numbers <= 2048 * 264 + 1  # the embeddings and hidden states of one text, and no (T, T)
    assert (result.numbers["alpha"][0, :, :, 0] > 0).all()


@given(size=st.integers(1, 5))
@settings(max_examples=5, deadline=None)
def test_batches_change_nothing(size):
    model, ids = MODELS["gemma"](), tokens(5)
    mask = torch.ones_like(ids)
    mask[3, :7] = 0
    whole = sinklab.measure(model, ids, mask, batch_size=5, loss=True)
    pieces = sinklab.measure(model, ids, mask, batch_size=size, loss=True)
    torch.testing.assert_close(pieces.alpha, whole.alpha, atol=1e-6, rtol=1e-5, equal_nan=True)
    torch.testing.assert_close(torch.from_numpy(pieces.loss), torch.from_numpy(whole.loss))


def test_models_that_draw_their_own_maps_are_measured_from_them():
    torch.manual_seed(0)
    model = BloomForCausalLM(BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=128, initializer_range=0.4)).eval()
    ids = tokens()
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    result = sinklab.measure(model, ids, mask, loss=True)
    assert result.ways == ("map", "map")
    expected = alpha_of_maps(model, ids, mask)
    torch.testing.assert_close(result.alpha[0, ..., :22], expected[0, ..., 4:], atol=1e-6, rtol=0)
    torch.testing.assert_close(result.alpha[1:], expected[1:], atol=1e-6, rtol=0)


def test_what_cannot_be_measured_says_why():
    mamba = MambaForCausalLM(MambaConfig(hidden_size=16, num_hidden_layers=2, vocab_size=128, state_size=4))
    with pytest.raises(NotMeasurable, match="no softmax attention"):
        sinklab.measure(mamba, tokens())
    config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32, vocab_size=128)
    with pytest.raises(NotMeasurable, match="not causal"):
        sinklab.measure(BertForMaskedLM(config), tokens())
    with pytest.raises(NotMeasurable, match="not a transformers model"):
        sinklab.measure(torch.nn.Linear(2, 2), tokens())
    config.is_decoder = True
    assert sinklab.measure(BertLMHeadModel(config), tokens()).attends.all()


def test_bad_tokens_are_refused_in_a_sentence():
    model = small_llama()
    with pytest.raises(SinklabError, match="vocabulary of 264"):
        sinklab.measure(model, torch.tensor([[1, 264]]))
    with pytest.raises(SinklabError, match="513 tokens are more than the 512 positions"):
        sinklab.measure(model, torch.ones(1, 513, dtype=torch.long))
    with pytest.raises(SinklabError, match=r"\(sequences, tokens\)"):
        sinklab.measure(model, torch.ones(3, dtype=torch.long))
    with pytest.raises(SinklabError, match="without a single token"):
        sinklab.measure(model, tokens(), torch.zeros_like(tokens()))
    with pytest.raises(SinklabError, match=r"attention_mask is \(3, 5\)"):
        sinklab.measure(model, tokens(), torch.ones(3, 5))


@pytest.mark.parametrize("config", [LlamaConfig(max_position_embeddings=64), GPT2Config(n_positions=64), MptConfig(max_seq_len=64)])
def test_more_tokens_than_positions(config):
    check_length(config, 64)
    with pytest.raises(SinklabError, match="65 tokens are more than the 64 positions"):
        check_length(config, 65)


def test_packed_documents_with_padding_are_refused():
    mask = torch.ones_like(tokens())
    mask[0, :3] = 0
    positions = torch.cat([torch.arange(13), torch.arange(13)])[None]
    with pytest.raises(NotMeasurable, match="leave it out"):
        sinklab.measure(small_llama(), tokens(), mask, positions)


def test_measuring_leaves_training_mode_and_dropout_as_they_were():
    model = small_llama(attention_dropout=0.5).train()
    model.model.layers[1].eval()
    modes = [module.training for module in model.modules()]
    first, second = sinklab.measure(model, tokens()), sinklab.measure(model, tokens())
    assert torch.equal(first.alpha, second.alpha)
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_sums_in_float32(dtype):
    model = small_llama().to(dtype)
    result = sinklab.measure(model, tokens(2, 200))
    mass = (result.alpha * torch.from_numpy(result.numbers["queries"])).sum(-1) / 200
    assert result.alpha.dtype == torch.float32
    torch.testing.assert_close(mass, torch.ones_like(mass), atol=2e-3, rtol=0)


def test_named_positions_and_packed_documents_are_refused():
    positions = torch.cat([torch.arange(13), torch.arange(13)])[None].expand(3, -1)
    with pytest.raises(NotMeasurable, match="packed"):
        sinklab.measure(small_llama(), tokens(), position_ids=positions, positions=[1])


def test_the_loss_of_packed_documents_leaves_out_their_borders():
    positions = torch.cat([torch.arange(10), torch.arange(16)])[None].expand(3, -1)
    packed = sinklab.measure(small_llama(), tokens(), position_ids=positions, loss=True).loss
    parts = [sinklab.measure(small_llama(), part, loss=True).loss for part in (tokens()[:, :10], tokens()[:, 10:])]
    torch.testing.assert_close(torch.from_numpy(packed), torch.from_numpy((parts[0] * 9 + parts[1] * 15) / 24), atol=1e-5, rtol=0)


def test_learned_positions_begin_at_the_first_token():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=128, n_positions=64, initializer_range=0.5)).eval()
    mask = torch.ones_like(tokens())
    mask[0, :9] = 0
    alone = sinklab.measure(model, tokens()[:1, 9:]).alpha
    torch.testing.assert_close(sinklab.measure(model, tokens(), mask).alpha[:1, ..., :17], alone, atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft asks transformers by an old name
def test_adapters_of_prompts_and_models_with_encoders_are_refused():
    peft = pytest.importorskip("peft")
    prompted = peft.get_peft_model(small_llama(), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))
    with pytest.raises(NotMeasurable, match="prompts or prefixes"):
        sinklab.measure(prompted, tokens())
    adapted = peft.get_peft_model(small_llama(), peft.LoraConfig(task_type="CAUSAL_LM", r=2))
    assert torch.equal(sinklab.measure(adapted, tokens()).alpha, sinklab.measure(small_llama(), tokens()).alpha)  # untrained, it adds nothing
    t5 = T5ForConditionalGeneration(T5Config(d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2, vocab_size=128))
    with pytest.raises(NotMeasurable, match="encoder"):
        sinklab.measure(t5, tokens())
