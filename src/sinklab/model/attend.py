"""(q, k, v) -> (out, lse): one attention, by the fastest kernel that also returns the logarithm of its normaliser.

Everything that wants more than the output (weights of single keys, learned sinks, column sums) starts from `lse`:
A[i, k] = exp(s_ik - lse_i).
"""

# PyTorch's public function hides lse; the operators beneath it return it.
# ruff: noqa: SLF001

import torch
import torch.nn.functional as F
from torch import Tensor

_aten = torch.ops.aten
LONG = 1024  # queries from which on cuDNN, which makes a plan for each new shape (about 35 ms), is worth its while


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """(B, Hkv, T, D) -> (B, heads, T, D): each key head stands before the query heads that it serves."""
    batch, kv_heads, length, dim = x.shape
    if kv_heads == heads:
        return x
    return x[:, :, None].expand(batch, kv_heads, heads // kv_heads, length, dim).reshape(batch, heads, length, dim)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Softmax attention without dropout; `mask` is boolean (B or 1, H or 1, Tq, Tk), True where a key may be seen, and excludes `causal`.

    The output is (B, H, Tq, Dv) in q's dtype and lse is float32 (B, H, Tq). Rows that see nothing give an output of zero and lse = -inf.
    """
    width = v.shape[-1]
    if q.is_cuda and q.dtype in (torch.float16, torch.bfloat16, torch.float32):
        out, lse = _cuda(*_same_width(q, k, v), scale, causal, mask)
    elif q.device.type == "cpu" and q.dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        q, k, v = _same_width(q, repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1]))
        out, lse = _aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=_additive(mask, q.dtype), scale=scale)
    else:
        out, lse = plain(q, repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1]), scale, causal, mask)
    if mask is not None:  # kernels disagree about rows without any key
        lse = lse.masked_fill(~mask.any(-1), -torch.inf)
    return out[..., :width], lse.float()


def plain(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The specification: a map, its row sums, its product with v. Materialises (Tq, Tk)."""
    scores = (q @ k.transpose(-1, -2)).float() * scale
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0)[..., None])
    return weights.to(v.dtype) @ v, lse


def _same_width(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Kernels want one head size, a multiple of 8 on CUDA: zeros change neither scores nor the columns that are kept."""
    width = max(q.shape[-1], v.shape[-1])
    width += -width % 8 if q.is_cuda else 0
    return tuple(x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1])) for x in (q, k, v))  # type: ignore[return-value]


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if mask is None else torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -torch.inf)


def _cuda(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """cuDNN where it is the faster one, else FlashAttention 2, which both know grouped heads; else the memory-efficient kernel."""
    generation, _ = torch.cuda.get_device_capability(q.device)
    if mask is not None or q.dtype == torch.float32 or q.shape[-1] > 256 or generation < 8:
        return _efficient(q, k, v, scale, causal, mask)
    widest = 128 if q.requires_grad else 256
    if generation in (9, 10) and q.shape[-1] <= widest and q.shape[2] >= LONG:
        out, lse = _aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False, scale=scale)[:2]
        return out, lse.reshape(q.shape[:3])
    out, lse = _aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)[:2]
    return out, lse


def _efficient(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Takes any mask, and float32 in full precision."""
    k, v, bias = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1]), None
    if mask is not None:  # the kernel wants rows that start at multiples of 8 elements
        keys = k.shape[2]
        padded = torch.zeros(*mask.shape[:-1], keys + -keys % 8, dtype=q.dtype, device=q.device)
        padded[..., :keys].masked_fill_(~mask, -torch.inf)
        bias = padded[..., :keys].expand(q.shape[0], q.shape[1], q.shape[2], keys)
    out, lse = _aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, 0.0, causal, scale=scale)[:2]
    return out, lse[..., : q.shape[2]]
