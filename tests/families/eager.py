"""What a model says itself about its attention: maps, learned sinks and the mass on them, read without any of the package under test."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from families.special import LISTS, SINK_ON_OUTPUT


@torch.no_grad()
def eager_maps(model: PreTrainedModel, inputs: dict[str, Tensor]) -> dict[int, Tensor]:
    """The attention map of each decoder layer that has one, as the model returns it; by calls where layers attend several times."""
    owners, queries = _Owners(model), inputs["input_ids"].shape[1]
    try:
        attentions = model(**inputs, output_attentions=True, use_cache=False).attentions
    finally:
        owners.close()
    maps = [x for x in attentions if isinstance(x, Tensor) and x.shape[-2] == queries]  # linear attention may return its state among them
    prefix = LISTS.get(model.config.model_type, "")
    found = [(layer, x.float()) for x in maps for layer, name in [owners.place(x)] if name.startswith(prefix)]
    repeated = len({layer for layer, _ in found}) < len(found)
    return dict(enumerate(x for _, x in found)) if repeated else dict(found)


def sink_logits(model: PreTrainedModel, layer: int) -> Tensor | None:
    """(H,): the learned logits that compete with the keys of a layer; None without any, and where each query computes its own."""
    found = [p for name, p in model.named_parameters() if name.endswith(".sinks") and f".{layer}." in name]
    return found[0].detach().float() if found else None


@torch.no_grad()
def virtual_mass(model: PreTrainedModel, inputs: dict[str, Tensor]) -> dict[int, Tensor]:
    """(B, H, T): what each query gives to a learned sink, for the layers that have a map."""
    maps = eager_maps(model, inputs)
    if model.config.model_type not in SINK_ON_OUTPUT:
        return {layer: 1 - a.sum(-1) for layer, a in maps.items()}
    with _Normalisers() as normalisers:
        model(**inputs, use_cache=False)
    sinks = {layer: sink_logits(model, layer) for layer in maps}
    return {layer: torch.sigmoid(sinks[layer][:, None] - lse) for layer, lse in zip(maps, normalisers.found, strict=True)}


@torch.no_grad()
def weights(model: PreTrainedModel, inputs: dict[str, Tensor]) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Maps and virtual masses on one footing: a row of the map and its virtual mass sum to one."""
    maps, virtual = eager_maps(model, inputs), virtual_mass(model, inputs)
    if model.config.model_type in SINK_ON_OUTPUT:
        maps = {layer: a * (1 - virtual[layer])[..., None] for layer, a in maps.items()}
    return maps, virtual


class _Normalisers(TorchFunctionMode):
    """What the model's own code gets from `torch.logsumexp`, in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.logsumexp and out.ndim == 3:
            self.found.append(out)
        return out


class _Owners:
    """Which layer of the outermost list of layers returned a tensor: shared modules are told apart by where they are called."""

    def __init__(self, model: nn.Module) -> None:
        self.layer: dict[int, tuple[tuple[int, str], Tensor]] = {}
        self.stack: list[tuple[int, str]] = []
        self.hooks = [module.register_forward_hook(self.note) for module in model.modules() if not isinstance(module, nn.ModuleList)]
        for name, layers in model.named_modules():
            for index, module in enumerate(layers if isinstance(layers, nn.ModuleList) else ()):
                self.hooks.append(module.register_forward_pre_hook(lambda *_, place=(index, name): self.stack.append(place)))
                self.hooks.append(module.register_forward_hook(self.leave))

    def place(self, x: Tensor) -> tuple[int, str]:
        """(index, name of the list) of the layer that returned a map."""
        return self.layer[id(x)][0]

    def note(self, module: nn.Module, args: Any, output: Any) -> None:
        """Writes down the layer of every tensor that a module returns, and keeps it alive so that its id stays its own."""
        for x in output if isinstance(output, tuple | list) and self.stack else ():
            if isinstance(x, Tensor) and x.ndim == 4:
                self.layer.setdefault(id(x), (self.stack[0], x))

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self.stack.pop()

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()
