"""What measuring costs, in one run and one table: ours beside a plain forward, beside eager maps, and beside the procedure of 2410.10781.

    python benchmarks/measure.py                 on a CPU: the demo model, and a random Llama for 32,768 tokens
    python benchmarks/measure.py --device cuda   on a GPU: four layers of Llama-3-8B's shape with random weights

Every case runs in a process of its own, so that its peak of memory is its own; within it ours and the peer take turns, and the table shows the median
ratio. Plain is the model's own SDPA forward without logits.
"""

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 1 << 20
NAMED = (1, 2, 3, 4, 17, 64, 256, 1024)
CPU_CASES = ["float32-4096", "bfloat16-4096", "eager-2048", "paper-100x64", "whole-8192", "long-32768", "long-32768-padded", "help"]
CUDA_CASES = ["cuda-64", "cuda-2048", "cuda-8192", "cuda-32768", "cuda-131072"]


def main() -> None:
    """Run the cases that are asked for, each in its own process, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="names of cases")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(case(args.case, args.threads, args.rounds)))
        return
    names = args.only or (CPU_CASES if args.device == "cpu" else CUDA_CASES)
    show([row for name in names for row in in_its_own_process(name, args)])


def in_its_own_process(name: str, args: argparse.Namespace) -> list[dict[str, str]]:
    """The rows of one case; what went wrong, if something did."""
    command = [sys.executable, __file__, "--case", name, "--threads", str(args.threads), "--rounds", str(args.rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return [{"case": name, "what": "failed", "figure": done.stderr.strip().splitlines()[-1][:120]}]
    return json.loads(done.stdout.splitlines()[-1])


def case(name: str, threads: int, rounds: int) -> list[dict[str, str]]:
    """One case by its name."""
    if name == "help":
        return help_case()
    import torch

    torch.set_num_threads(threads)
    kind, _, rest = name.partition("-")
    if kind == "cuda":
        return cuda_case(int(rest), rounds)
    if kind in ("float32", "bfloat16"):
        return forward_case(int(rest), getattr(torch, kind), rounds)
    if kind == "long":
        return long_case(int(rest.split("-")[0]), rest.endswith("padded"))
    return {"eager": eager_case, "paper": paper_case, "whole": whole_case}[kind](rounds)


def forward_case(length: int, dtype: Any, rounds: int) -> list[dict[str, str]]:
    """All positions and eight of them, over the plain forward."""
    import sinklab

    model, ids = demo(dtype), speech(1, length)
    ways = {
        "plain": lambda: plain(model, ids),
        "plain, multiplied as we do": lambda: multiplied_as_we_do(model, ids),
        "all positions": lambda: sinklab.measure(model, ids),
        "eight positions": lambda: sinklab.measure(model, ids, positions=NAMED),
    }
    times, peaks = take_turns(ways, rounds)
    what = f"T={length}, {str(dtype).removeprefix('torch.')}"
    return [
        {
            "case": what,
            "what": name,
            "figure": f"{ratio(times, name, 'plain'):.2f} x plain",
            "memory": f"{extra(peaks, name, 'plain'):.0f} MiB more",
        }
        for name in ways
        if name != "plain"
    ] + [{"case": what, "what": "plain", "figure": f"{statistics.median(times['plain']):.2f} s", "memory": ""}]


def eager_case(rounds: int) -> list[dict[str, str]]:
    """All positions, beside eager attention with its maps."""
    import sinklab

    model, ids = demo(), speech(1, 2048)
    ways = {"plain": lambda: plain(model, ids), "ours": lambda: sinklab.measure(model, ids), "eager": lambda: eager(model, ids)}
    times, peaks = take_turns(ways, max(2, rounds // 2))
    ours, theirs = extra(peaks, "ours", "plain"), extra(peaks, "eager", "plain")
    return [
        {"case": "T=2048, float32", "what": "eager maps over ours", "figure": f"{ratio(times, 'eager', 'ours'):.1f} x slower",
         "memory": f"{theirs:.0f} against {ours:.0f} MiB more: {theirs / max(ours, 1):.0f} x"}
    ]  # fmt: skip


def paper_case(rounds: int) -> list[dict[str, str]]:
    """100 sequences of 64 tokens, beside one `generate` with maps for each; the numbers must be the same."""
    import torch

    import sinklab

    model, ids = demo(), speech(100, 64)
    found: dict[str, Any] = {}
    ways = {
        "ours": lambda: found.update(ours=sinklab.measure(model, ids).alpha),
        "paper": lambda: found.update(paper=by_the_paper(model, ids)),
    }
    times, _ = take_turns(ways, max(2, rounds // 2))
    apart = float((found["ours"] - found["paper"]).abs().max())
    same = bool(torch.equal(found["ours"][..., 0] > 0.3, found["paper"][..., 0] > 0.3))
    note = f"alpha apart by {apart:.1e}, Sink_1 {'the same' if same else 'DIFFERENT'}"
    return [
        {
            "case": "100 x 64, float32",
            "what": "the paper's procedure over ours",
            "figure": f"{ratio(times, 'paper', 'ours'):.1f} x slower",
            "memory": note,
        }
    ]


def whole_case(_rounds: int) -> list[dict[str, str]]:
    """The longest text of the demo model, with all of Python in the memory."""
    import sinklab

    model, ids = demo(), speech(1, 8192)
    begin = time.perf_counter()
    sinklab.measure(model, ids)
    took = f"{time.perf_counter() - begin:.1f} s"
    return [{"case": "T=8192, float32", "what": "all positions", "figure": took, "memory": f"{peak():.0f} MiB resident in all"}]


def long_case(length: int, padded: bool) -> list[dict[str, str]]:
    """32,768 tokens through a random Llama of two layers."""
    import torch

    import sinklab

    model = random_llama(hidden_size=512, intermediate_size=1024, num_attention_heads=8, num_key_value_heads=2, vocab_size=4096)
    ids = torch.randint(0, 4096, (1, length))
    mask = None
    if padded:
        mask = torch.ones_like(ids)
        mask[:, :1000] = 0
    sinklab.measure(model, ids[:, :256])
    before = peak_from_here()
    begin = time.perf_counter()
    sinklab.measure(model, ids, mask)
    took = f"{time.perf_counter() - begin:.1f} s"
    what = f"T={length}, two layers{', padded' if padded else ''}"
    return [{"case": what, "what": "all positions", "figure": took, "memory": f"{peak() - before:.0f} MiB more than the model"}]


def help_case() -> list[dict[str, str]]:
    """The command's help, from a cold process."""
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "sinklab", "--help"], check=True, capture_output=True)
        times.append(time.perf_counter() - begin)
    return [{"case": "sinklab --help", "what": "", "figure": f"{statistics.median(times):.2f} s", "memory": ""}]


def cuda_case(length: int, rounds: int) -> list[dict[str, str]]:
    """Four layers of Llama-3-8B: with all columns over without, with eight positions over without, and the kernel alone beside its peer."""
    import torch

    import sinklab
    from sinklab.probe.probes import Alpha
    from sinklab.probe.watch import Watch

    model = random_llama(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=4, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256
    )
    model = model.to(torch.bfloat16)
    ids = torch.randint(0, 128256, (100 if length == 64 else 1, length), device="cuda")

    batches = 1 if length > 10_000 else 4

    def forwards() -> None:
        for _ in range(batches):
            plain(model, ids)

    def watched(*positions: int) -> None:
        """One watch serves all batches of a measurement."""
        with Watch(model, [Alpha(positions)]):
            forwards()

    ways: dict[str, Callable[[], object]] = {"plain": forwards, "all": watched, "eight": lambda: watched(*NAMED[: 8 if length > 1024 else 6])}
    if length <= 8192:
        ways["eager"] = lambda: [eager(model, ids) for _ in range(batches)]
    times, peaks = take_turns(ways, rounds if length < 100_000 else 3)
    columns, eight = ratio(times, "all", "plain"), ratio(times, "eight", "plain")
    row = {
        "case": f"T={length}" + (" x 100" if length == 64 else ""),
        "what": f"plain {1000 * statistics.median(times['plain']) / batches:.1f} ms; columns {columns:.2f} x, eight {eight:.2f} x"
        + (f", eager {ratio(times, 'eager', 'plain'):.2f} x" if "eager" in times else ""),
        "figure": beside_colreduce(ids.shape[0], length),
        "memory": f"{extra(peaks, 'all', 'plain'):.0f} MiB more" + (f", eager {extra(peaks, 'eager', 'plain'):.0f}" if "eager" in peaks else ""),
    }
    assert sinklab.measure(model, ids[:, :64]).ways[0] == "kernel"
    return [row]


def beside_colreduce(batch: int, length: int) -> str:
    """The kernel alone, on the tensors of one layer, and PyPI `flash-colreduce` where it is installed."""
    import torch

    from sinklab.model.attend import attend
    from sinklab.probe import kernel

    q, k = (torch.randn(batch, heads, length, 128, device="cuda", dtype=torch.bfloat16) for heads in (32, 8))
    lse = attend(q, k, k, 128**-0.5, causal=True)[1]
    first = torch.arange(length, device="cuda", dtype=torch.int32)[None]
    last = torch.full_like(first, length - 1)
    ours = on_the_clock(lambda: kernel.column_sums(q, k, lse, first, last, 128**-0.5))
    tera = 2 * batch * 32 * length * (length + 1) / 2 * 128 / ours / 1e12
    text = f"kernel {1000 * ours:.2f} ms, {tera:.0f} TFLOP/s"
    try:
        from flash_colreduce import flash_colreduce
    except ImportError:
        return text
    wide = k.repeat_interleave(4, 1)
    theirs = on_the_clock(lambda: flash_colreduce(q, wide, reduction="sum", is_causal=True, scale=128**-0.5))
    return f"{text}; flash-colreduce {1000 * theirs:.2f} ms: {theirs / ours:.1f} x"


def on_the_clock(work: Callable[[], object]) -> float:
    """Seconds on the GPU, the median of ten after a warm-up."""
    import torch

    times = []
    for _ in range(12):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return statistics.median(times[2:])


def take_turns(ways: dict[str, Callable[[], object]], rounds: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds per round and peak of memory in MiB of each way, one warm-up apart."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    peaks: dict[str, float] = {}
    for turn in range(rounds + 1):
        for name, work in ways.items():
            gc.collect()
            peak_from_here()
            begin = time.perf_counter()
            work()
            synchronize()
            if turn:
                times[name].append(time.perf_counter() - begin)
            peaks[name] = peak()
    return times, peaks


def ratio(times: dict[str, list[float]], one: str, other: str) -> float:
    """The median over rounds of one over the other."""
    return statistics.median(a / b for a, b in zip(times[one], times[other], strict=True))


def extra(peaks: dict[str, float], one: str, other: str) -> float:
    """MiB."""
    return peaks[one] - peaks[other]


def synchronize() -> None:
    """A GPU works on while Python goes on."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_from_here() -> float:
    """Forget the peak so far; MiB now."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> float:
    """MiB at most since then: of the GPU where there is one, else resident."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / MIB
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def plain(model: Any, ids: Any) -> None:
    """The forward that everybody runs, without logits."""
    import torch

    with torch.no_grad():
        model.model(ids, use_cache=False)


def multiplied_as_we_do(model: Any, ids: Any) -> None:
    """The same by the library that `measure` chooses for float32, so that only what measuring adds is left between the two."""
    from sinklab.probe.products import fastest_float32

    with fastest_float32(model):
        plain(model, ids)


def eager(model: Any, ids: Any) -> None:
    """What transformers offers to whoever wants attention."""
    import torch

    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = model.model(ids, use_cache=False, output_attentions=True).attentions
        [a.sum(-2) for a in maps]
    model.set_attn_implementation("sdpa")


def by_the_paper(model: Any, ids: Any) -> Any:
    """2410.10781's protocol: one `generate` per sequence, all maps kept, then alpha."""
    import torch

    model.set_attn_implementation("eager")
    kept = []
    for row in ids:
        given = row[None]
        out = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=1,
            output_attentions=True,
            return_dict_in_generate=True,
            do_sample=False,
        )
        kept.append(torch.stack([a[0] for a in out.attentions[0]]))
    model.set_attn_implementation("sdpa")
    maps = torch.stack(kept)
    return maps.sum(-2) / torch.arange(ids.shape[1], 0, -1)


def demo(dtype: Any = None) -> Any:
    """The demo model."""
    from sinklab.models import load_model

    model = load_model("demo", device="cpu").model
    return model if dtype is None else model.to(dtype)


def random_llama(**settings: Any) -> Any:
    """A Llama with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        return LlamaForCausalLM(LlamaConfig(**{"num_hidden_layers": 2, "max_position_embeddings": 1 << 18} | settings)).eval()


def speech(many: int, length: int) -> Any:
    """Tokens of real text."""
    from sinklab.data.inputs import natural
    from sinklab.data.sources import SpeechTexts
    from sinklab.models import load_model

    return natural(load_model("demo", device="cpu").reader(), SpeechTexts(), length, many).tokens


def show(rows: list[dict[str, str]]) -> None:
    """One table, in plain text."""
    names = ["case", "what", "figure", "memory"]
    widths = [max(len(str(row.get(name, ""))) for row in [dict.fromkeys(names, ""), *rows]) for name in names]
    for row in rows:
        print("  ".join(str(row.get(name, "")).ljust(width) for name, width in zip(names, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
