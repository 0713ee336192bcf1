"""One block, forward and backward: each variant of ours over our own softmax, and our softmax over transformers' Llama. Prints one table.

python benchmarks/attention.py                   two shapes for a CPU
python benchmarks/attention.py --device cuda     the paper's 60M block at 2,048 and 256 tokens
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from sinklab.model.compiled import compiled as compile_whole
from sinklab.model.decoder import build
from sinklab.model.design import Design
from sinklab.model.masks import Apart, Prefix, Window
from sinklab.model.norms import QKNorm
from sinklab.model.positions import Alibi
from sinklab.model.slots import ElementGate, HeadGate, KeyBias, KeyValueBias, OffByOne, SinkLogit
from sinklab.model.weights import EluPlusOne, Linear, RowSum, Sigmoid, Softpick


@dataclass(frozen=True)
class Shape:
    """A block and what runs through it."""

    width: int
    heads: int
    hidden: int
    length: int
    sequences: int

    def __str__(self) -> str:
        return f"d={self.width}, {self.heads} heads, T={self.length}, {self.sequences} sequences"


SHAPES = {
    "cpu": (Shape(128, 4, 256, 128, 32), Shape(384, 8, 768, 256, 8)),
    "cuda": (Shape(768, 8, 1536, 2048, 32), Shape(768, 8, 1536, 256, 256)),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "sigmoid": {"weights": Sigmoid()},
    "sigmoid, normalised": {"weights": Sigmoid(normaliser=RowSum())},
    "elu+1": {"weights": EluPlusOne()},
    "K bias": {"slots": (KeyBias(),)},
    "KV bias": {"slots": (KeyValueBias(),)},
    "sink logit": {"slots": (SinkLogit(),)},
    "off by one": {"slots": (OffByOne(),)},
    "head gate": {"slots": (HeadGate(),)},
    "element gate": {"slots": (ElementGate(),)},
    "ALiBi": {"positions": Alibi()},
    "window": {},
    "prefix": {"mask": Prefix(length=5)},
    "documents": {"documents": Apart()},
    "QK-norm": {"head_norm": QKNorm()},
    "softpick": {"weights": Softpick()},
    "identity": {"weights": Linear()},
}


def main() -> None:
    """Build everything, take turns, print the table."""
    asked = _arguments()
    torch._dynamo.config.recompile_limit = 1  # a second compilation of one variant is an error, not a slow path
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    for shape in SHAPES[asked.device][asked.shape :: 2] if asked.shape is not None else SHAPES[asked.device]:
        torch._dynamo.reset()
        steps = dict(_steps(shape, asked.device, asked.only))
        times = _turns(steps, asked.rounds, asked.device)
        _show(shape, times, asked.device)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(SHAPES), default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shape", type=int, choices=(0, 1), help="one of the two")
    parser.add_argument("--only", nargs="*", default=[], help="names of variants, beside softmax and transformers'")
    return parser.parse_args()


def _steps(shape: Shape, device: str, only: list[str]) -> Iterator[tuple[str, Callable[[], None]]]:
    for dtype in (torch.float32, torch.bfloat16) if device == "cpu" else (torch.bfloat16,):
        for whole in (False, True):
            for attention in ("sdpa", "eager") if device == "cpu" else ("sdpa",):
                yield _peer(shape, device, dtype, whole, attention)
    for name, changed in VARIANTS.items():
        if name == "softmax" or not only or name in only:
            yield f"ours: {name}", _ours(shape, device, {"mask": Window(size=shape.length // 4)} if name == "window" else changed)


def _ours(shape: Shape, device: str, changed: dict[str, Any]) -> Callable[[], None]:
    design = Design(
        vocabulary=64, width=shape.width, depth=1, heads=shape.heads, head_size=shape.width // shape.heads, hidden=shape.hidden, **changed
    )
    decoder = build(design).to(device)
    tokens = torch.randint(1, 64, (shape.sequences, shape.length), device=device)
    tokens[:, shape.length // 3] = 0  # a document ends
    run = compile_whole(lambda x: decoder(tokens, embeddings=x))
    return _step(run, shape, device, torch.bfloat16, [p for name, p in decoder.named_parameters() if "embed" not in name and name != "head.weight"])


def _peer(shape: Shape, device: str, dtype: torch.dtype, whole: bool, attention: str) -> tuple[str, Callable[[], None]]:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=64, hidden_size=shape.width, intermediate_size=shape.hidden, num_hidden_layers=1, num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads, max_position_embeddings=shape.length, attn_implementation=attention, use_cache=False,
    )  # fmt: skip
    model = LlamaModel(config).to(device)

    def forward(x: Tensor) -> Tensor:
        return model(inputs_embeds=x).last_hidden_state

    name = f"Llama, {attention}: {str(dtype).removeprefix('torch.')}{', compiled' if whole else ''}"
    weights = [p for name, p in model.named_parameters() if "embed" not in name]
    return name, _step(compile_whole(forward) if whole else forward, shape, device, dtype, weights)


def _step(run: Callable[[Tensor], Tensor], shape: Shape, device: str, dtype: torch.dtype, weights: list[Any]) -> Callable[[], None]:
    x = torch.randn(shape.sequences, shape.length, shape.width, device=device, requires_grad=True)
    grad = torch.randn_like(x)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=dtype == torch.bfloat16):
            out = run(x)
        torch.autograd.grad(out, [x, *weights], grad.to(out.dtype))

    return step


def _turns(steps: dict[str, Callable[[], None]], rounds: int, device: str) -> dict[str, float]:
    """Median seconds of each, a round after another, so that all see the same machine."""
    for step in steps.values():
        for _ in range(3):
            step()
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            taken[name].append(_seconds(step, device))
    return {name: statistics.median(found) for name, found in taken.items()}


def _seconds(step: Callable[[], None], device: str) -> float:
    many = 5
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(many):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / many


def _show(shape: Shape, times: dict[str, float], device: str) -> None:
    softmax = times["ours: softmax"]
    table = Table(title=f"One block, forward and backward, {device}: {shape}", title_justify="left")
    for column in ("what", "ms", "speed over our softmax"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for name, seconds in times.items():
        table.add_row(name, f"{1000 * seconds:.2f}", f"{softmax / seconds:.2f}")
    peers = {name: seconds for name, seconds in times.items() if name.startswith("Llama")}
    console = Console(width=120)
    console.print(table)
    if peers:
        best = min(peers, key=lambda name: peers[name])
        console.print(f"Our softmax is {peers[best] / softmax:.2f} times as fast as the best of transformers' ({best}).\n")


if __name__ == "__main__":
    main()
