"""The second way: models that draw their own map.

Each map is read where softmax makes it, inside an attention module, and is gone before the next layer.
"""

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sinklab.errors import NotMeasurable
from sinklab.probe.attach import chooses
from sinklab.probe.ledger import Ledger
from sinklab.probe.seen import SeenMap
from sinklab.probe.visible import Visible, describe, drawn

_SOFTMAX = {torch.softmax, torch.nn.functional.softmax, Tensor.softmax, torch.special.softmax}
_NEVER_SEEN = 1000.0  # a score this far below its row's largest has no weight in any floating type: masks are drawn as numbers like -1e4 or less


class MapReader(TorchFunctionMode):
    """Hands every attention map to `read(module, seen)`."""

    def __init__(self, attention: dict[nn.Module, int], read: Callable[[nn.Module, SeenMap], None], ledger: Callable[[], Ledger]) -> None:
        super().__init__()
        self.attention, self.read, self.ledger = attention, read, ledger
        self._inside: list[tuple[nn.Module, Tensor | None]] = []  # with the mask that each was given
        self._hooks = ExitStack()

    def __enter__(self) -> Self:
        for module in self.attention:
            self._hooks.callback(module.register_forward_pre_hook(self._enter_module, with_kwargs=True).remove)
            self._hooks.callback(module.register_forward_hook(self._leave_module, always_call=True).remove)
        return super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._hooks.close()
        super().__exit__(kind, error, trace)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in _SOFTMAX and self._inside and isinstance(out, Tensor) and out.dim() in (3, 4, 5):
            scores = args[0] if args else kwargs["input"]
            with torch.no_grad(), torch._C.DisableTorchFunction():
                self._read(scores.detach(), out.detach())
        return out

    def _read(self, scores: Tensor, weights: Tensor) -> None:
        (module, mask), ledger = self._inside[-1], self.ledger()
        if scores.dim() == 5:
            raise NotMeasurable(f"{type(module).__name__} attends in several streams, so that a token has no single row of weights.")
        if scores.dim() == 3:  # (B * H, Tq, Tk)
            scores, weights = (x.unflatten(0, (ledger.batch, -1)) for x in (scores, weights))
        queries, columns = scores.shape[-2:]
        keys = min(columns, ledger.length)
        if queries > ledger.length or columns - keys > 1 or scores.shape[0] != ledger.batch:
            raise NotMeasurable(f"{type(module).__name__} attends over {columns} things where the text has {ledger.length} tokens.")
        visible = self._visible(module, mask, scores[..., :keys], ledger)
        weights = weights.float() * visible.queries_real[:, None, :, None]
        rest = weights[..., keys] if columns > keys else None
        self.read(module, SeenMap(self.attention[module], weights[..., :keys], visible, rest))

    def _visible(self, module: nn.Module, mask: Tensor | None, scores: Tensor, ledger: Ledger) -> Visible:
        queries, offset = scores.shape[-2], ledger.length - scores.shape[-2]
        real = ledger.real_until(ledger.length)
        if chooses(type(module)):  # keys chosen by content: those that lost could have been seen, and got nothing
            if mask is not None:
                return drawn(mask[..., : scores.shape[-1]], real, offset)
            return describe(ledger.batch, queries, scores.shape[-1], offset, 0, None, real, scores.device)
        scores = scores.float()
        return drawn(scores > scores.amax(-1, keepdim=True) - _NEVER_SEEN, real, offset)

    def _enter_module(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        mask = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments.get("attention_mask")
        self._inside.append((module, mask if isinstance(mask, Tensor) and mask.dim() == 4 else None))

    def _leave_module(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        self._inside.pop()
