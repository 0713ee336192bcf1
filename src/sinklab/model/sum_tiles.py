"""The Triton programs of `summing.py`: what stays is a tile of queries or of keys, what it meets streams past.

Nothing competes, so nothing is rescaled: each tile of weights is made, used and forgotten. Tiles are full, where every pair is seen, or on
an edge (the diagonal, a window's far side, a ragged end), where pairs are looked at one by one; each kind has a loop of its own.
A module of its own because importing Triton takes time and is not possible everywhere; `summing.py` imports this one where it launches.

Heads come in two slices of columns, `main` and `tail`, whose widths are powers of two. Where there is no tail, something small stands in its
place that nothing reads.
"""

# Triton gives arguments their types where it compiles.
# ruff: noqa: ANN001, ANN201, ANN202
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

PLAIN_NUMBERS = ["length", "heads", "rows", "together", "window"]  # one compiled program serves all their values


@triton.jit(do_not_specialize=PLAIN_NUMBERS)
def forward(q, k, v, out, sums, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, length, heads, rows, together, window, scale,
            SIGMOID: tl.constexpr, POWER: tl.constexpr, D: tl.constexpr, MAIN: tl.constexpr, TAIL: tl.constexpr,
            QUERIES: tl.constexpr, KEYS: tl.constexpr, FAST: tl.constexpr):  # fmt: skip
    """Queries stay, keys stream: `out` is (batch, length, heads, D) contiguous, `sums` (batch, heads, length)."""
    row, block = _place(length, rows, together, QUERIES)
    i = (tl.cdiv(length, QUERIES) - 1 - block) * QUERIES  # the last queries, the heaviest, come first
    b, h = row // heads, row % heads
    q, k, v = q + b * q_b + h * q_h, k + b * k_b + h * k_h, v + b * v_b + h * v_h
    q_main, q_tail = _tiles(q, q_t, i, length, D, MAIN, TAIL, QUERIES, False)
    query = i + tl.arange(0, QUERIES)
    out_main, out_tail = _zeros(QUERIES, MAIN, TAIL)
    total = tl.zeros((QUERIES,), tl.float32)
    start, full_from, full_to, stop = _keys_seen(i, length, window, QUERIES, KEYS)
    for FULL in tl.static_range(2):
        for turn in tl.range(0, _turns(start, full_from, full_to, stop, KEYS, FULL)):
            j = _at(turn, start, full_from, full_to, KEYS, FULL)
            k_main, k_tail = _tiles(k, k_t, j, length, D, MAIN, TAIL, KEYS, FULL)
            v_main, v_tail = _tiles(v, v_t, j, length, D, MAIN, TAIL, KEYS, FULL)
            f = _function(_products(q_main, q_tail, k_main, k_tail, TAIL), scale, SIGMOID, FAST)
            if not FULL:
                f = _where_seen(f, query[:, None], (j + tl.arange(0, KEYS))[None, :], window)
            total += tl.sum(_raised(f, POWER), 1)
            out_main, out_tail = _add(out_main, out_tail, f, v_main, v_tail, TAIL)
    _store(out, out_main, out_tail, b, h, i, length, heads, D, MAIN, TAIL, QUERIES)
    tl.store(sums + row * length + query, total, mask=query < length)


@triton.jit(do_not_specialize=PLAIN_NUMBERS)
def backward_queries(q, k, v, d_out, d_sums, d_q, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t, s_b, s_h, s_t,
                     length, heads, rows, together, window, scale,
                     SIGMOID: tl.constexpr, POWER: tl.constexpr, SUMS: tl.constexpr, D: tl.constexpr, MAIN: tl.constexpr, TAIL: tl.constexpr,
                     QUERIES: tl.constexpr, KEYS: tl.constexpr, FAST: tl.constexpr):  # fmt: skip
    """Queries stay, keys stream: `d_q` is (batch, length, heads, D) contiguous. SUMS says whether `d_sums` is there."""
    row, block = _place(length, rows, together, QUERIES)
    i = (tl.cdiv(length, QUERIES) - 1 - block) * QUERIES
    b, h = row // heads, row % heads
    q, k, v, d_out = q + b * q_b + h * q_h, k + b * k_b + h * k_h, v + b * v_b + h * v_h, d_out + b * o_b + h * o_h
    q_main, q_tail = _tiles(q, q_t, i, length, D, MAIN, TAIL, QUERIES, False)
    o_main, o_tail = _tiles(d_out, o_t, i, length, D, MAIN, TAIL, QUERIES, False)
    pull = _numbers(d_sums + b * s_b + h * s_h, s_t, i, length, QUERIES, SUMS, False)[:, None]
    query = i + tl.arange(0, QUERIES)
    d_main, d_tail = _zeros(QUERIES, MAIN, TAIL)
    start, full_from, full_to, stop = _keys_seen(i, length, window, QUERIES, KEYS)
    for FULL in tl.static_range(2):
        for turn in tl.range(0, _turns(start, full_from, full_to, stop, KEYS, FULL)):
            j = _at(turn, start, full_from, full_to, KEYS, FULL)
            k_main, k_tail = _tiles(k, k_t, j, length, D, MAIN, TAIL, KEYS, FULL)
            v_main, v_tail = _tiles(v, v_t, j, length, D, MAIN, TAIL, KEYS, FULL)
            f = _function(_products(q_main, q_tail, k_main, k_tail, TAIL), scale, SIGMOID, FAST)
            if not FULL:
                f = _where_seen(f, query[:, None], (j + tl.arange(0, KEYS))[None, :], window)
            d_s = _pulled(f, _products(o_main, o_tail, v_main, v_tail, TAIL), pull, SIGMOID, POWER, SUMS)
            d_main, d_tail = _add(d_main, d_tail, d_s, k_main, k_tail, TAIL)
    _store(d_q, d_main * scale, d_tail * scale, b, h, i, length, heads, D, MAIN, TAIL, QUERIES)


@triton.jit(do_not_specialize=PLAIN_NUMBERS)
def backward_keys(q, k, v, d_out, d_sums, d_k, d_v, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t, s_b, s_h, s_t,
                  length, heads, rows, together, window, scale,
                  SIGMOID: tl.constexpr, POWER: tl.constexpr, SUMS: tl.constexpr, D: tl.constexpr, MAIN: tl.constexpr, TAIL: tl.constexpr,
                  QUERIES: tl.constexpr, KEYS: tl.constexpr, FAST: tl.constexpr):  # fmt: skip
    """Keys stay, queries stream; tiles of weights are keys by queries, so that none is transposed. Results as in `backward_queries`."""
    row, block = _place(length, rows, together, KEYS)
    j = block * KEYS  # the first keys, the heaviest, come first
    b, h = row // heads, row % heads
    q, k, v, d_out = q + b * q_b + h * q_h, k + b * k_b + h * k_h, v + b * v_b + h * v_h, d_out + b * o_b + h * o_h
    d_sums += b * s_b + h * s_h
    k_main, k_tail = _tiles(k, k_t, j, length, D, MAIN, TAIL, KEYS, False)
    v_main, v_tail = _tiles(v, v_t, j, length, D, MAIN, TAIL, KEYS, False)
    key = j + tl.arange(0, KEYS)
    dk_main, dk_tail = _zeros(KEYS, MAIN, TAIL)
    dv_main, dv_tail = _zeros(KEYS, MAIN, TAIL)
    start, full_from, full_to, stop = _queries_that_see(j, length, window, QUERIES, KEYS)
    for FULL in tl.static_range(2):
        for turn in tl.range(0, _turns(start, full_from, full_to, stop, QUERIES, FULL)):
            i = _at(turn, start, full_from, full_to, QUERIES, FULL)
            q_main, q_tail = _tiles(q, q_t, i, length, D, MAIN, TAIL, QUERIES, FULL)
            o_main, o_tail = _tiles(d_out, o_t, i, length, D, MAIN, TAIL, QUERIES, FULL)
            pull = _numbers(d_sums, s_t, i, length, QUERIES, SUMS, FULL)[None, :]
            s = _products(k_main, k_tail, q_main, q_tail, TAIL)
            d_f = _products(v_main, v_tail, o_main, o_tail, TAIL)
            f = _function(s, scale, SIGMOID, FAST)
            if not FULL:
                f = _where_seen(f, (i + tl.arange(0, QUERIES))[None, :], key[:, None], window)
            dv_main, dv_tail = _add(dv_main, dv_tail, f, o_main, o_tail, TAIL)
            d_s = _pulled(f, d_f, pull, SIGMOID, POWER, SUMS)
            dk_main, dk_tail = _add(dk_main, dk_tail, d_s, q_main, q_tail, TAIL)
    _store(d_k, dk_main * scale, dk_tail * scale, b, h, j, length, heads, D, MAIN, TAIL, KEYS)
    _store(d_v, dv_main, dv_tail, b, h, j, length, heads, D, MAIN, TAIL, KEYS)


@triton.jit
def _place(length, rows, together, STAY: tl.constexpr):
    """Which row of (batch, heads) this program works on, and on which tile of it; rows that run `together` fit into the cache."""
    blocks = tl.cdiv(length, STAY)
    group = tl.program_id(0) // (together * blocks)
    place = tl.program_id(0) % (together * blocks)
    side = tl.minimum(together, rows - group * together)
    return (group * together + place % side).to(tl.int64), place // side


@triton.jit
def _keys_seen(i, length, window, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """For queries from i on: where tiles of keys begin, where those begin and end that each query sees in full, and where all end."""
    start = tl.maximum(i + 1 - window, 0) // KEYS * KEYS
    full_to = (i + 1) // KEYS * KEYS
    full_from = tl.minimum(tl.cdiv(tl.maximum(i + QUERIES - window, 0), KEYS) * KEYS, full_to)
    return start, full_from, full_to, tl.minimum(i + QUERIES, length)


@triton.jit
def _queries_that_see(j, length, window, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """The same for keys from j on; a last tile that is not whole is not full."""
    start = j // QUERIES * QUERIES
    stop = tl.minimum(j + KEYS - 1 + window, length)
    full_from = tl.minimum(tl.cdiv(j + KEYS - 1, QUERIES), tl.cdiv(stop, QUERIES)) * QUERIES
    full_to = tl.maximum(tl.minimum(j + window, length) // QUERIES * QUERIES, full_from)
    return start, full_from, full_to, stop


@triton.jit
def _turns(start, full_from, full_to, stop, STEP: tl.constexpr, FULL: tl.constexpr):
    """How many tiles are full, or how many there are before and behind those."""
    return (full_to - full_from) // STEP if FULL else (full_from - start) // STEP + tl.cdiv(tl.maximum(stop - full_to, 0), STEP)


@triton.jit
def _at(turn, start, full_from, full_to, STEP: tl.constexpr, FULL: tl.constexpr):
    """Where the tile begins that comes at this turn."""
    if FULL:
        at = full_from + turn * STEP
    else:
        at = start + turn * STEP
        at = tl.where(at < full_from, at, at + (full_to - full_from))
    return tl.multiple_of(at, STEP)


@triton.jit
def _where_seen(f, query, key, window):
    """Weights of pairs with 0 <= query - key < window, zeros for others. One comparison: a number below zero is a large one without its sign."""
    return tl.where((query - key).to(tl.uint32, bitcast=True) < window.to(tl.uint32), f, 0.0)


@triton.jit
def _function(s, scale, SIGMOID: tl.constexpr, FAST: tl.constexpr):
    """f(scale * s)."""
    if SIGMOID:
        f = _reciprocal_of_one_more(tl.exp2(s * (scale * -1.4426950408889634)), FAST)
    else:
        t = s * scale
        f = tl.where(t > 0, t + 1.0, tl.exp2(s * (scale * 1.4426950408889634)))
    return f


@triton.jit
def _reciprocal_of_one_more(e, FAST: tl.constexpr):
    """1 / (1 + e). FAST is one instruction of the chip, good to a unit in the last place, where a division takes several."""
    if FAST:
        f = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [1.0 + e], dtype=tl.float32, is_pure=True, pack=1)
    else:
        f = 1.0 / (1.0 + e)
    return f


@triton.jit
def _raised(f, POWER: tl.constexpr):
    """f^p; zero where f is."""
    if POWER == 1:
        g = f
    elif POWER == 2:
        g = f * f
    else:
        g = tl.exp2(tl.log2(f) * POWER)
    return g


@triton.jit
def _pulled(f, d_f, pull, SIGMOID: tl.constexpr, POWER: tl.constexpr, SUMS: tl.constexpr):
    """The gradient of a score whose weight f is pulled at through the output by d_f, through the sum of f^p by `pull`."""
    if SUMS and POWER == 1:
        d_f += pull
    d_s = d_f * (f - f * f if SIGMOID else tl.minimum(f, 1.0))
    if SUMS and POWER != 1:
        d_s += pull * _slope_of_raised(f, SIGMOID, POWER)
    return d_s


@triton.jit
def _slope_of_raised(f, SIGMOID: tl.constexpr, POWER: tl.constexpr):
    """d f^p / ds, without a quotient that f = 0 would break."""
    if SIGMOID:
        slope = POWER * _raised(f, POWER) * (1.0 - f)
    elif POWER == 2:
        slope = 2.0 * f * tl.minimum(f, 1.0)
    else:
        slope = POWER * tl.exp2(tl.log2(f) * tl.where(f > 1, POWER - 1.0, POWER))
    return slope


@triton.jit
def _products(a_main, a_tail, b_main, b_tail, TAIL: tl.constexpr):
    """Each row of a with each row of b."""
    s = tl.dot(a_main, tl.trans(b_main), input_precision="ieee")
    if TAIL > 0:
        s = tl.dot(a_tail, tl.trans(b_tail), s, input_precision="ieee")
    return s


@triton.jit
def _add(main, tail, w, x_main, x_tail, TAIL: tl.constexpr):
    """The rows of x, weighted, onto what is there; weights are rounded to the type of x, as flash attention does."""
    w = w.to(x_main.dtype)
    main = tl.dot(w, x_main, main, input_precision="ieee")
    if TAIL > 0:
        tail = tl.dot(w, x_tail, tail, input_precision="ieee")
    return main, tail


@triton.jit
def _zeros(COUNT: tl.constexpr, MAIN: tl.constexpr, TAIL: tl.constexpr):
    main = tl.zeros((COUNT, MAIN), tl.float32)
    tail = tl.zeros((COUNT,), tl.float32)
    if TAIL > 0:
        tail = tl.zeros((COUNT, TAIL), tl.float32)
    return main, tail


@triton.jit
def _tiles(pointer, stride, at, length, D: tl.constexpr, MAIN: tl.constexpr, TAIL: tl.constexpr, COUNT: tl.constexpr, WHOLE: tl.constexpr):
    """COUNT rows from `at` on, in two slices; zeros past `length`, unless they are WHOLE."""
    inside = at + tl.arange(0, COUNT) < length
    pointer += at.to(tl.int64) * stride
    main = _slice(pointer, stride, inside, D, COUNT, MAIN, WHOLE, D < MAIN)
    tail = inside
    if TAIL > 0:
        tail = _slice(pointer + MAIN, stride, inside, D - MAIN, COUNT, TAIL, WHOLE, D - MAIN < TAIL)
    return main, tail


@triton.jit
def _slice(pointer, stride, inside, left, COUNT: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr, CUT: tl.constexpr):
    """COUNT rows of WIDTH; zeros outside `inside` unless WHOLE, and past the `left` columns that there are where CUT."""
    column = tl.arange(0, WIDTH)
    at = pointer + tl.arange(0, COUNT)[:, None] * stride + column[None, :]
    if WHOLE and CUT:
        tile = tl.load(at, mask=(column < left)[None, :], other=0.0)
    elif WHOLE:
        tile = tl.load(at)
    elif CUT:
        tile = tl.load(at, mask=inside[:, None] & (column < left)[None, :], other=0.0)
    else:
        tile = tl.load(at, mask=inside[:, None], other=0.0)
    return tile


@triton.jit
def _numbers(pointer, stride, at, length, COUNT: tl.constexpr, THERE: tl.constexpr, WHOLE: tl.constexpr):
    """One number for each row; zeros where there are none."""
    row = tl.arange(0, COUNT)
    numbers = tl.zeros((COUNT,), tl.float32)
    if THERE and WHOLE:
        numbers = tl.load(pointer + at.to(tl.int64) * stride + row * stride)
    elif THERE:
        numbers = tl.load(pointer + at.to(tl.int64) * stride + row * stride, mask=at + row < length, other=0.0)
    return numbers


@triton.jit
def _store(pointer, main, tail, b, h, at, length, heads, D: tl.constexpr, MAIN: tl.constexpr, TAIL: tl.constexpr, COUNT: tl.constexpr):
    """Rows from `at` on of one head, into (batch, length, heads, D) contiguous."""
    row = at + tl.arange(0, COUNT)
    place = pointer + ((b * length + row) * heads + h)[:, None] * D
    column = tl.arange(0, MAIN)[None, :]
    tl.store(place + column, main.to(pointer.dtype.element_ty), mask=(row < length)[:, None] & (column < D))
    if TAIL > 0:
        column = MAIN + tl.arange(0, TAIL)[None, :]
        tl.store(place + column, tail.to(pointer.dtype.element_ty), mask=(row < length)[:, None] & (column < D))
