"""The Triton program of `kernel.py`: a tile of keys stays, tiles of queries stream past.

A module of its own because importing Triton takes time and is not possible everywhere; `kernel.py` imports this one where it launches.
"""

# Triton gives arguments their types where it compiles.
# ruff: noqa: ANN001, ANN201, ANN202
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["first_b", "last_b", "queries", "keys", "heads", "shared", "all_heads", "together"])
def column_sums(q, k, lse, first, last, out,
                q_b, q_h, q_t, k_b, k_h, k_t, lse_b, lse_h, lse_t, first_b, last_b,
                queries, keys, heads, shared, all_heads, together, inner, outer,
                CAPPED: tl.constexpr, D: tl.constexpr, MAIN: tl.constexpr, TAIL: tl.constexpr, EXACT: tl.constexpr,
                KEYS: tl.constexpr, QUERIES: tl.constexpr, RAGGED: tl.constexpr):  # fmt: skip
    """A tile of keys of one head, against one piece of the queries that see any of them: `out` is (pieces, batch * heads, keys).

    Programs start with the first keys, the heaviest under a causal mask; heads that run `together` read few enough queries for the cache.
    """
    row, key_from = _place(keys, all_heads, together, KEYS)
    b, h = row // heads, row % heads
    key = key_from + tl.arange(0, KEYS)
    inside = key < keys
    begin = tl.maximum(tl.load(first + b * first_b + key, mask=inside, other=0), 0)
    end = tl.minimum(tl.load(last + b * last_b + key, mask=inside, other=-1), queries - 1)
    # Whoever is seen by nobody has no part in the bounds: padding does not make its neighbours look at each pair.
    seen = begin <= end
    start, stop = _piece(tl.min(tl.where(seen, begin, queries)), tl.max(tl.where(seen, end, -1)) + 1, QUERIES)
    full_from = tl.max(tl.where(seen, begin, 0))
    full_to = tl.min(tl.where(seen, end, queries - 1)) + 1

    k += b * k_b + h // shared * k_h + key_from.to(tl.int64) * k_t
    k_main, k_tail = _key_tiles(k, k_t, inside, D, MAIN, TAIL, EXACT, KEYS)
    q += b * q_b + h * q_h
    lse += b * lse_b + h * lse_h
    sums = tl.zeros((KEYS,), tl.float32)
    lost = tl.zeros((KEYS,), tl.float32)
    for turn in tl.range(0, tl.cdiv(stop - start, QUERIES)):
        at = start + turn * QUERIES
        bias = _bias(lse, lse_t, at, queries, QUERIES, RAGGED)
        s = _products(k_main, k_tail, k, k_t, inside, q, q_t, at, queries, D, MAIN, TAIL, EXACT, KEYS, QUERIES, RAGGED)
        part = _weights(s, bias, at, begin, end, full_from, full_to, inner, outer, CAPPED, QUERIES)
        sums, lost = _add(sums, lost, part)
    tl.store(out + (tl.program_id(1) * all_heads + row) * keys + key, tl.where(seen, sums, 0.0), mask=inside)


@triton.jit
def _place(keys, all_heads, together, KEYS: tl.constexpr):
    """Which row of (batch, heads) this program works on, and from which key on."""
    blocks = tl.cdiv(keys, KEYS)
    group = tl.program_id(0) // (together * blocks)
    place = tl.program_id(0) % (together * blocks)
    side = tl.minimum(together, all_heads - group * together)
    return (group * together + place % side).to(tl.int64), place // side * KEYS


@triton.jit
def _piece(start, stop, QUERIES: tl.constexpr):
    """This program's part of the queries from `start` to `stop`: tiles that begin at multiples of their height."""
    start = start // QUERIES * QUERIES
    step = tl.cdiv(tl.cdiv(tl.maximum(stop - start, 0), QUERIES), tl.num_programs(1)) * QUERIES
    start += tl.program_id(1) * step
    return start, tl.minimum(stop, start + step)


@triton.jit
def _key_tiles(k, k_t, inside, D: tl.constexpr, MAIN: tl.constexpr, TAIL: tl.constexpr, EXACT: tl.constexpr, KEYS: tl.constexpr):
    """The two slices of the keys; placeholders that nothing reads where there is none, or where EXACT reads slices as it goes."""
    k_main = inside
    k_tail = inside
    if not EXACT:
        k_main = _tile(k, k_t, inside, D, KEYS, MAIN, True, D < MAIN)
        if TAIL > 0:
            k_tail = _tile(k + MAIN, k_t, inside, D - MAIN, KEYS, TAIL, True, D - MAIN < TAIL)
    return k_main, k_tail


@triton.jit
def _products(k_main, k_tail, k, k_t, inside_k, q, q_t, at, queries, D: tl.constexpr, MAIN: tl.constexpr, TAIL: tl.constexpr,
              EXACT: tl.constexpr, KEYS: tl.constexpr, QUERIES: tl.constexpr, RAGGED: tl.constexpr):  # fmt: skip
    """Keys times the queries from `at` on. Tensor cores have the keys there already; EXACT reads slices of both, registers hold no more."""
    inside = at + tl.arange(0, QUERIES) < queries
    q += at.to(tl.int64) * q_t
    if EXACT:
        s = tl.zeros((KEYS, QUERIES), tl.float32)
        for d in tl.range(0, D, MAIN):
            keys = _tile(k + d, k_t, inside_k, D - d, KEYS, MAIN, True, D % MAIN > 0)
            tile = _tile(q + d, q_t, inside, D - d, QUERIES, MAIN, RAGGED, D % MAIN > 0)
            s = tl.dot(keys, tl.trans(tile), s, input_precision="ieee")
    else:
        tile = _tile(q, q_t, inside, D, QUERIES, MAIN, RAGGED, D < MAIN)
        s = tl.dot(k_main, tl.trans(tile))
        if TAIL > 0:
            tile = _tile(q + MAIN, q_t, inside, D - MAIN, QUERIES, TAIL, RAGGED, D - MAIN < TAIL)
            s = tl.dot(k_tail, tl.trans(tile), s)
    return s


@triton.jit
def _tile(pointer, stride, inside, left, COUNT: tl.constexpr, WIDTH: tl.constexpr, MASKED: tl.constexpr, CUT: tl.constexpr):
    """COUNT rows of WIDTH; zeros outside `inside` where MASKED, and past the `left` columns that there are where CUT."""
    column = tl.arange(0, WIDTH)
    at = pointer + tl.arange(0, COUNT)[:, None] * stride + column[None, :]
    if MASKED and CUT:
        tile = tl.load(at, mask=inside[:, None] & (column < left)[None, :], other=0.0)
    elif MASKED:
        tile = tl.load(at, mask=inside[:, None], other=0.0)
    elif CUT:
        tile = tl.load(at, mask=(column < left)[None, :], other=0.0)
    else:
        tile = tl.load(at)
    return tile


@triton.jit
def _bias(lse, lse_t, at, queries, QUERIES: tl.constexpr, RAGGED: tl.constexpr):
    """-lse of the queries from `at` on, to base 2; `at` is a multiple of QUERIES, which lets several be read at once."""
    at = tl.multiple_of(at, QUERIES)
    row = tl.arange(0, QUERIES)
    if RAGGED:
        bias = tl.load(lse + at.to(tl.int64) * lse_t + row * lse_t, mask=at + row < queries, other=float("inf"))
    else:
        bias = tl.load(lse + at.to(tl.int64) * lse_t + row * lse_t)
    return bias * -1.4426950408889634


@triton.jit
def _weights(s, bias, at, begin, end, full_from, full_to, inner, outer, CAPPED: tl.constexpr, QUERIES: tl.constexpr):
    """exp(score - lse), summed over the queries from `at` on; pairs are looked at one by one only where some of them are not seen."""
    if CAPPED:
        s = _tanh(s * inner)
    a = tl.exp2(tl.fma(s, outer, bias[None, :]))
    if (at < full_from) | (at + QUERIES > full_to):
        # After the exponential: a pair that is not seen may overflow, and what it gave is thrown away. One comparison for two bounds:
        # a number below zero is a large one without its sign.
        place = (at + tl.arange(0, QUERIES))[None, :] - begin[:, None]
        a = tl.where(place.to(tl.uint32, bitcast=True) <= (end - begin).to(tl.uint32, bitcast=True)[:, None], a, 0.0)
    return tl.sum(a, 1)


@triton.jit
def _add(sums, lost, part):
    """Kahan's sum: thousands of parts are added one after the other, and rounding must not grow with them."""
    part -= lost
    total = sums + part
    return total, (total - sums) - part


@triton.jit
def _tanh(x):
    """tanh to a few units of float32's last place: a polynomial fitted near zero, where 1 - 2 / (1 + e^2x) would cancel."""
    t = x * x
    near = -0.00571699390 * t + 0.0206505372
    near = near * t - 0.0537434810
    near = near * t + 0.133314911
    near = near * t - 0.333332839
    far = 1.0 - 2.0 / (1.0 + tl.exp2(x * 2.8853900817779268))
    return tl.where(tl.abs(x) < 0.625, x + x * (t * near), far)
