"""Our decoder as a transformers model: saved, loaded, generated from, fine-tuned and measured as any other. Every argument is honoured or refused."""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, DynamicCache, GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from sinklab.errors import SinklabError
from sinklab.model import card
from sinklab.model.decoder import Block, Decoder, Places, build
from sinklab.model.design import Design
from sinklab.model.hub_config import UNCACHED, SinklabConfig, cached
from sinklab.model.tensors import Tensors


class SinklabPreTrained(PreTrainedModel):
    """What both models share: how they are saved and loaded, and what of them is exchanged."""

    config_class = SinklabConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ("Decoder",)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: Any,
        *args: Any,
        output_loading_info: bool = False,
        ignore_mismatched_sizes: bool = False,
        **settings: Any,
    ) -> Any:
        """As transformers does it, and never with a tensor that the folder does not hold."""
        name = pretrained_model_name_or_path
        if ignore_mismatched_sizes:
            raise SinklabError("A decoder of which a part is drawn anew is not the one that was saved: `ignore_mismatched_sizes` is refused.")
        _check_devices(name, settings.get("device_map"))
        model, info = super().from_pretrained(name, *args, output_loading_info=True, ignore_mismatched_sizes=True, **settings)
        _check_tensors(name, info)
        _check_devices(name, getattr(model, "hf_device_map", None))
        return (model, info) if output_loading_info else model

    def save_pretrained(self, save_directory: Any, is_main_process: bool = True, **settings: Any) -> None:
        """As transformers does it, and a model card."""
        super().save_pretrained(save_directory, is_main_process=is_main_process, **settings)
        if is_main_process and not getattr(self, "_hf_peft_config_loaded", False):  # then an adapter is saved, without the model
            self._write_card(save_directory, Path(save_directory).resolve().name)

    def _upload_modified_files(self, working_dir: Any, repo_id: str, *args: Any, **settings: Any) -> Any:
        self._write_card(working_dir, repo_id)  # transformers has written its own over it
        return super()._upload_modified_files(working_dir, repo_id, *args, **settings)

    def _write_card(self, folder: Any, name: str) -> None:
        decoder = self.get_decoder().decoder
        Path(folder, "README.md").write_text(card.card(name, decoder.design, decoder, self.config.training), encoding="utf-8")

    def _returned(self, output: Any, return_dict: bool | None) -> Any:
        return output if (self.config.return_dict if return_dict is None else return_dict) else output.to_tuple()

    def get_decoder(self) -> "SinklabModel":
        """The model without its head."""
        return cast("SinklabModel", self.base_model)

    def get_input_embeddings(self) -> nn.Module:
        """Tokens -> rows."""
        return self.get_decoder().lookup

    def set_input_embeddings(self, value: nn.Module) -> None:
        """The weight of another module of the same shape, shared with it."""
        embed = self.get_decoder().decoder.embed
        embed.tokens = _same_shape(value, embed.tokens)

    def resize_token_embeddings(self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, **_settings: Any) -> nn.Module:
        """The vocabulary is part of the design: only the size that it has is taken."""
        own = self.config.vocab_size
        if new_num_tokens not in (None, own) or own % (pad_to_multiple_of or 1):
            raise SinklabError(f"The vocabulary of {own} tokens is part of the design and is not resized: make a design with another one.")
        return self.get_input_embeddings()

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: first weights are drawn where the decoder is made, all at once and each by its name."""

    def _set_gradient_checkpointing(self, enable: bool = True, gradient_checkpointing_func: Any = None, every_n_layers: int = 1) -> None:
        if enable and getattr(gradient_checkpointing_func, "keywords", {}).get("use_reentrant"):
            raise SinklabError(
                "Checkpoints with `use_reentrant=True` lose the gradients of what blocks share: use `use_reentrant=False`, the default."
            )
        model = self.get_decoder()
        model.gradient_checkpointing, model.again, model.every = enable, gradient_checkpointing_func if enable else None, every_n_layers


class SinklabModel(SinklabPreTrained):
    """Tokens -> hidden states."""

    def __init__(self, config: SinklabConfig, decoder: Decoder | None = None) -> None:
        super().__init__(config)
        self.decoder = _drawn(config) if decoder is None else decoder
        self.lookup: Lookup
        object.__setattr__(self, "lookup", Lookup(self.decoder.embed))  # beside the modules, or its weight would be saved twice
        self.gradient_checkpointing, self.every = False, 1
        self.again: Callable[..., Tensor] | None = None
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> BaseModelOutputWithPast | tuple[Any, ...]:
        """The mask says of every token so far whether it is one (1) or padding (0), wherever the padding stands."""
        if self.config.output_attentions if output_attentions is None else output_attentions:
            raise SinklabError("The decoder has no attention maps to return; `sinklab.measure` and `sinklab.watch` measure attention without them.")
        design = self.decoder.design
        x = self._embedded(design, input_ids, inputs_embeds)
        cache = self._cache(design, past_key_values, use_cache, x.shape[1])
        before = _tokens_in(cache, design)
        real = _real(attention_mask, before, x)
        _check_places(design, position_ids, real, before, x)
        tokens = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device) if input_ids is None else input_ids
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        states: list[Tensor] | None = [] if wanted else None
        last = self.decoder(tokens, real, cache, x, partial(self._run, states, x.shape[1]))
        return self._returned(BaseModelOutputWithPast(last, cache, (*states, last) if states is not None else None), return_dict)

    def _embedded(self, design: Design, tokens: Tensor | None, embeddings: Tensor | None) -> Tensor:
        if (tokens is None) == (embeddings is None):
            raise SinklabError("Give either `input_ids` or `inputs_embeds`.")
        if tokens is not None:
            return self.lookup(tokens)
        if not cached(design):
            raise SinklabError("Documents that are kept apart are told by their tokens: give `input_ids`, not `inputs_embeds`.")
        return cast("Tensor", embeddings).to(self.dtype)

    def _cache(self, design: Design, given: Any, use_cache: bool | None, many: int) -> Cache | None:
        """The one that is given, or a new one, or none; of itself none is made that could not be continued."""
        again = self.gradient_checkpointing and self.training
        if given is None and not use_cache:
            wanted = use_cache is None and self.config.use_cache and not self.training and many >= design.mask.given
            return DynamicCache(config=self.config) if wanted else None
        if not cached(design) or again:
            raise SinklabError(f"There can be no cache: {'blocks that are computed again would fill it twice' if again else UNCACHED}.")
        if given is None:
            return DynamicCache(config=self.config)
        if not isinstance(given, Cache) or given.is_compileable or any(given.is_sliding):
            raise SinklabError(
                f"{type(given).__name__} is no cache for this decoder, which needs one that grows and keeps all places: use DynamicCache."
            )
        return given

    def _run(self, states: list[Tensor] | None, many: int, block: nn.Module, x: Tensor, places: Places) -> Tensor:
        """One block, and what is asked of it on the way."""
        if states is not None:
            states.append(x[:, -many:])  # without learned sink tokens
        if self.again is not None and self.training and cast("Block", block).attention.layer % self.every == 0:
            return self.again(block.__call__, x, places)
        return block(x, places)


class SinklabForCausalLM(SinklabPreTrained, GenerationMixin):
    """Tokens -> logits of the next ones, and their loss."""

    def __init__(self, config: SinklabConfig, decoder: Decoder | None = None) -> None:
        super().__init__(config)
        self.model = SinklabModel(config, decoder)
        self._is_stateful = bool(config.parsed().registers)  # or guesses would be taken back by a length that counts learned sink tokens
        self.post_init()

    @classmethod
    def wrap(cls, decoder: Decoder, **settings: Any) -> Self:
        """A decoder that is there, itself and not a copy; `settings` are the config's, `training` among them."""
        return cls(SinklabConfig.of(decoder.design, **settings), decoder).train(decoder.training)

    @property
    def accepts_loss_kwargs(self) -> bool:
        """Whether every label is predicted, as those take it who count them; a prefix is not."""
        return self.model.decoder.design.mask.given == 1

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Labels are the tokens themselves, -100 where none is to be predicted; of a prefix none is."""
        if labels is not None and (not isinstance(logits_to_keep, int) or logits_to_keep or _tokens_in(past_key_values, self.model.decoder.design)):
            raise SinklabError("The loss is of a whole text: labels go neither with `logits_to_keep` nor with a cache that holds a part of it.")
        found = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            return_dict=True,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.model.decoder.logits(found.last_hidden_state[:, kept])
        loss = None if labels is None else self._loss(logits, labels, attention_mask, num_items_in_batch)
        return self._returned(CausalLMOutputWithPast(loss, logits, found.past_key_values, found.hidden_states), return_dict)

    def _loss(self, logits: Tensor, labels: Tensor, mask: Tensor | None, predictions: Tensor | int | None) -> Tensor:
        places = torch.arange(labels.shape[1], device=labels.device)[None] if mask is None else mask.long().cumsum(-1) - 1
        labels = labels.masked_fill(places < self.model.decoder.design.mask.given, -100)
        return self.loss_function(logits=logits, labels=labels, vocab_size=logits.shape[-1], num_items_in_batch=predictions)

    def generate(self, inputs: Tensor | None = None, generation_config: GenerationConfig | None = None, *args: Any, **settings: Any) -> Any:
        """As transformers does it; without a cache where one would not give the same."""
        free = settings.get("past_key_values") is None and not settings.get("use_cache")
        if free and not self._continues(inputs, generation_config, settings):
            if generation_config is None:
                settings["use_cache"] = False
            else:
                generation_config = copy.deepcopy(generation_config)
                generation_config.use_cache = False
        return super().generate(inputs, generation_config, *args, **settings)

    def _continues(self, inputs: Tensor | None, config: GenerationConfig | None, settings: dict[str, Any]) -> bool:
        """Whether what a cache holds after the prompt is what later tokens see: given tokens, which see each other, must all be in it."""
        design = self.model.decoder.design
        if not cached(design) or design.mask.given == 1:
            return cached(design)
        prompt = next((x for x in (inputs, settings.get("input_ids"), settings.get("inputs_embeds")) if x is not None), None)
        pads = (settings.get("pad_token_id"), getattr(config, "pad_token_id", None), self.generation_config.pad_token_id)
        pad = next((x for x in pads if x is not None), None)
        return _shortest(prompt, settings.get("attention_mask"), pad) >= design.mask.given

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: Cache | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        is_first_iteration: bool | None = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Of a prompt that a cache holds in part, transformers leaves out as many tokens as the cache has places; learned sink tokens are none."""
        if is_first_iteration and next_sequence_length is not None and past_key_values is not None and past_key_values.get_seq_length():
            next_sequence_length += self.model.decoder.design.registers
        given = (input_ids, next_sequence_length, past_key_values, attention_mask, inputs_embeds, is_first_iteration)
        return super().prepare_inputs_for_generation(*given, **kwargs)

    def get_output_embeddings(self) -> nn.Module:
        """Hidden states -> logits."""
        return self.model.decoder.head

    def set_output_embeddings(self, value: nn.Module) -> None:
        """The weight of another module of the same shape, shared with it."""
        if getattr(value, "bias", None) is not None:
            raise SinklabError("The decoder's head has no bias.")
        self.model.decoder.head.weight = _same_shape(value, self.model.decoder.head.weight)


class Lookup(nn.Module):
    """The decoder's embedding as a module of its own, as tools ask for it; the parameter stays where it is."""

    embed: Tensors

    def __init__(self, embed: Tensors) -> None:
        super().__init__()
        object.__setattr__(self, "embed", embed)

    @property
    def weight(self) -> Tensor:
        """(vocabulary, width)."""
        return self.embed.tokens

    @property
    def num_embeddings(self) -> int:
        """The vocabulary."""
        return self.weight.shape[0]

    @property
    def embedding_dim(self) -> int:
        """The width."""
        return self.weight.shape[1]

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) -> (B, T, d)."""
        return nn.functional.embedding(tokens, self.weight)


def _drawn(config: SinklabConfig) -> Decoder:
    """First weights are the same numbers whatever the default dtype and device are; on the meta device there are none, and a file brings them."""
    device, dtype = torch.get_default_device(), torch.get_default_dtype()
    if device.type == "meta":
        return build(config.parsed(), device="meta")
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            return build(config.parsed(), config.seed).to(device, dtype)
    finally:
        torch.set_default_dtype(dtype)


def _tokens_in(cache: Cache | None, design: Design) -> int:
    """Of the text: learned sink tokens lie before them."""
    return max(0, cache.get_seq_length() - design.registers) if isinstance(cache, Cache) else 0


def _real(mask: Tensor | None, before: int, x: Tensor) -> Tensor | None:
    """Boolean (B, all tokens so far); None where there is no padding."""
    if mask is None:
        return None
    wanted = (x.shape[0], before + x.shape[1])
    if tuple(mask.shape) != wanted:
        raise SinklabError(f"`attention_mask` has the shape {tuple(mask.shape)}, and the texts and their tokens so far are {wanted}.")
    real = mask.bool()
    return None if not torch.compiler.is_compiling() and bool(real.all()) else real


def _check_places(design: Design, said: Tensor | None, real: Tensor | None, before: int, x: Tensor) -> None:
    """Places are counted over the tokens that are real, and those that are given see each other."""
    many = x.shape[1]
    counted = torch.arange(1, before + many + 1, device=x.device)[None] if real is None else real.cumsum(-1)
    if before and design.mask.given > 1 and int(counted[:, before - 1].min()) < design.mask.given:
        raise SinklabError(f"The first {design.mask.given} tokens see each other: they must be in the cache at once, or there can be none.")
    if said is None:
        return
    places, here = counted[:, before:] - 1, True if real is None else real[:, before:]
    if said.shape[-1] != many or bool(((said != places) & here).any()):
        raise SinklabError("`position_ids` are not the places that `attention_mask` gives: tokens that are real, counted from 0.")


def _shortest(prompt: Tensor | None, mask: Tensor | None, pad: int | None) -> int:
    """The fewest tokens that a text of the batch is sure to have."""
    if mask is not None:
        return int(mask.sum(-1).min())
    if prompt is None:
        return 1
    return int((prompt != pad).sum(-1).min()) if prompt.ndim == 2 and pad is not None else prompt.shape[1]


def _same_shape(module: nn.Module, own: Tensor) -> nn.Parameter:
    weight = cast("nn.Parameter", module.weight)
    if weight.shape != own.shape:
        raise SinklabError(
            f"A weight of the shape {tuple(weight.shape)} does not take the place of one of {tuple(own.shape)}, which the design asks for."
        )
    return weight


def _check_tensors(name: Any, info: dict[str, Any]) -> None:
    """The folder holds the tensors of its design, and no others."""
    for tensor, found, wanted in sorted(info["mismatched_keys"]):
        raise SinklabError(f"`{name}` holds `{tensor}` in the shape {tuple(found)}, and by its design it is {tuple(wanted)}.")
    if missing := sorted(info["missing_keys"]):
        raise SinklabError(f"`{name}` lacks {len(missing)} of the tensors of its design: `{missing[0]}`{' and others' if missing[1:] else ''}.")
    if strange := sorted(info["unexpected_keys"]):
        raise SinklabError(
            f"`{name}` holds {len(strange)} tensors that its design has no place for: `{strange[0]}`{' and others' if strange[1:] else ''}."
        )


def _check_devices(name: Any, given: Any) -> None:
    places = sorted({str(place) for place in given.values()}) if isinstance(given, dict) else []
    if len(places) > 1 or "disk" in places:
        raise SinklabError(f"`{name}` is not spread over {', '.join(places)}: a decoder lies on one device.")


AutoConfig.register(SinklabConfig.model_type, SinklabConfig, exist_ok=True)
AutoModel.register(SinklabConfig, SinklabModel, exist_ok=True)
AutoModelForCausalLM.register(SinklabConfig, SinklabForCausalLM, exist_ok=True)
