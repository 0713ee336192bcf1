"""Four tiny models that between them have grouped heads, sliding windows, score caps and learned sinks; and how two results are compared."""

import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, GptOssConfig, GptOssForCausalLM, MistralConfig, MistralForCausalLM

from small import small_llama

SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
    "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.4,
}  # fmt: skip


def mistral():
    torch.manual_seed(0)
    return MistralForCausalLM(MistralConfig(**SMALL, sliding_window=7)).eval()


def gemma():
    torch.manual_seed(0)
    config = Gemma2Config(**SMALL, head_dim=8, sliding_window=7, query_pre_attn_scalar=8, attn_logit_softcapping=3.0)
    model = Gemma2ForCausalLM(config).eval()
    model.set_attn_implementation("eager")  # transformers' SDPA has no score cap, and some versions of it leave the cap out in silence
    return model


def gpt_oss():
    torch.manual_seed(0)
    model = GptOssForCausalLM(GptOssConfig(**SMALL, head_dim=8, sliding_window=7, num_local_experts=2, num_experts_per_tok=2)).eval()
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    return model


MODELS = {"llama": small_llama, "mistral": mistral, "gemma": gemma, "gpt_oss": gpt_oss}


def tokens(rows=2, length=20, seed=0):
    return torch.randint(3, 128, (rows, length), generator=torch.Generator().manual_seed(seed))


def generated(model, ids, **settings):
    return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=9, min_new_tokens=9, do_sample=False, **settings)


def agree(a, b, tolerance=1e-5):
    assert set(a.numbers) == set(b.numbers)
    for name in set(a.numbers) - {"matrix-entropy", "massive"}:
        x, y = torch.as_tensor(a.numbers[name]), torch.as_tensor(b.numbers[name])
        scale = max(1.0, float(x.nan_to_num().abs().max()))
        torch.testing.assert_close(x, y, rtol=0, atol=tolerance * scale, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}")
