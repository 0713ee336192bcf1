"""Loading a model by name, with its tokenizer, or one sentence that says why not."""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

import sinklab.hub  # noqa: F401 - transformers knows our own folders from here on
from sinklab import demo
from sinklab.checkpoints import DEMO, Checkpoint, check_weights, find
from sinklab.errors import SinklabError, nearest, one_line

DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
}
Device = str | Mapping[str, str | int]


@dataclass(frozen=True)
class Loaded:
    """A model that is ready to be measured, and what has to be said beside its numbers."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    revision: str | None
    notes: tuple[str, ...] = ()

    def reader(self) -> PreTrainedTokenizerBase:
        """The tokenizer, for inputs that are text."""
        if self.tokenizer is None:
            raise SinklabError(f"`{self.name}` has no tokenizer, so it cannot read text; random and repeated tokens can be measured.")
        return self.tokenizer


def load_model(
    name: str,
    *,
    revision: str | None = None,
    dtype: str | torch.dtype | None = None,
    device: Device = "auto",
    trust_remote_code: bool = False,
) -> Loaded:
    """The model of that name: a Hub id, a folder, a `.gguf` file, a PEFT adapter or `demo`.

    Without a `dtype` it is float32 on a CPU and the checkpoint's own elsewhere. `device` is `auto` (spread over what there is),
    a device, or a map from the names of modules to devices as accelerate takes it.
    """
    wanted, placed = chosen_dtype(dtype), placement(device)
    with quiet():
        checkpoint = find_demo(revision) if name == DEMO else find(name, revision)
        with one_sentence(name):
            config = AutoConfig.from_pretrained(**checkpoint.where, trust_remote_code=trust_remote_code)
        check_causal(name, config)
        default = torch.float32 if on_cpu(placed) and quantisation(config) is None else "auto"
        model, notes = load_weights(checkpoint, config, wanted or default, placed, trust_remote_code)
        tokenizer, silence = load_tokenizer(checkpoint, trust_remote_code)
    return Loaded(name, model, tokenizer, checkpoint.revision, (*checkpoint.notes, *silence, *notes))


def chosen_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """The dtype that was asked for, None if none was."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in DTYPES:
        raise SinklabError(f"Unknown dtype `{dtype}`; known are {', '.join(DTYPES)}.{nearest(dtype, DTYPES)}")
    return DTYPES[dtype]


def placement(device: Device) -> dict[str, Any]:
    """The `device_map` for a device or a spread; nothing for a plain CPU."""
    if not isinstance(device, str):
        for place in {str(place) for place in device.values()} - {"cpu", "disk"}:
            check_device(place)
        return {"device_map": dict(device)}
    if device == "auto":
        return {"device_map": "auto"} if torch.accelerator.is_available() else {}
    if device == "cpu":
        return {}
    check_device(device)
    return {"device_map": {"": device}}


def check_device(device: str) -> None:
    """A device that this machine has."""
    try:
        wanted = torch.device(int(device) if device.isdigit() else device)
    except RuntimeError as error:
        known = ["auto", "cpu", "cuda", "mps"]
        raise SinklabError(f"Unknown device `{device}`; known are {', '.join(known)}.{nearest(device, known)}") from error
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None or found.type != wanted.type:
        raise SinklabError(f"PyTorch {torch.__version__} finds no {wanted.type} device on this machine.")
    if (wanted.index or 0) >= torch.accelerator.device_count():
        raise SinklabError(f"There is no {device}: this machine has {torch.accelerator.device_count()} such device(s), counted from 0.")


def on_cpu(placed: dict[str, Any]) -> bool:
    """Whether nothing is computed elsewhere."""
    places = placed.get("device_map", {})
    return not isinstance(places, str) and {str(place) for place in places.values()} <= {"cpu", "disk"}


def find_demo(revision: str | None) -> Checkpoint:
    """The demo model: its dense copy in the user's cache, or its own file where nothing can be kept."""
    if revision is not None:
        raise SinklabError(f"A revision belongs to a model on the Hub, and `{DEMO}` is in a package.")
    folder = demo.dense_copy(write_dense, whole)
    if folder is None:
        return packed_demo()
    return Checkpoint(DEMO, str(folder), notes=(demo.NOTE,))


def packed_demo() -> Checkpoint:
    """The demo model as its package holds it."""
    path = demo.gguf_file()
    return Checkpoint(DEMO, str(path.parent), gguf=path.name, notes=(demo.NOTE,))


def write_dense(folder: Path) -> None:
    """The demo model dequantised to float32, exactly, in a folder from which it loads in a second."""
    checkpoint = packed_demo()
    with one_sentence(DEMO):
        config = AutoConfig.from_pretrained(**checkpoint.where)
    model, _ = load_weights(checkpoint, config, torch.float32, {}, trust_remote_code=False)
    tokenizer, _ = load_tokenizer(checkpoint, trust_remote_code=False)
    try:
        model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
    except SafetensorError as error:
        raise OSError(f"The dense copy cannot be written: {one_line(error)}") from error


def whole(folder: Path) -> bool:
    """Whether a folder in the cache is there and not torn."""
    try:
        check_weights(folder)
    except SinklabError:
        return False
    return (folder / "config.json").is_file()


def check_causal(name: str, config: PreTrainedConfig) -> None:
    """A type whose attention is causal."""
    kind = config.model_type
    made = f" ({', '.join(config.architectures)})" if config.architectures else ""
    own_code = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    known = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or type(config) in MODEL_FOR_CAUSAL_LM_MAPPING  # by name, or registered
    if not known and not own_code:
        raise SinklabError(f"`{name}` is of type {kind}{made}, which transformers does not know as a causal language model.")
    reads_both_ways = kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_encoder_decoder", False)
    if getattr(config, "causal", None) is False or (reads_both_ways and getattr(config, "is_decoder", None) is False):
        raise SinklabError(f"`{name}` is an encoder of type {kind}{made}: its tokens see those after them, and only causal models are measured.")


def load_weights(
    checkpoint: Checkpoint, config: PreTrainedConfig, dtype: torch.dtype | str, placed: dict[str, Any], trust_remote_code: bool
) -> tuple[PreTrainedModel, tuple[str, ...]]:
    """The model with its weights and its adapter, and notes on them."""
    settings = {"dtype": dtype, "use_safetensors": True, "output_loading_info": True, "trust_remote_code": trust_remote_code} | placed
    if checkpoint.gguf:
        settings |= dequantised()
    with one_sentence(checkpoint.name), offload_folder(settings) as keep, no_bars(checkpoint):
        model, info = AutoModelForCausalLM.from_pretrained(**checkpoint.where, config=config, **settings)
        if checkpoint.adapter:
            put_adapter(model, checkpoint)
        keep(model)
    return model, (*quantisation_note(model), *missing_note(checkpoint.name, model, info["missing_keys"]), *spread_note(model))


def dequantised() -> dict[str, Any]:
    """What asks for dense weights of a GGUF file; before transformers knew packed ones, they always were."""
    import transformers

    packed = getattr(transformers, "GgufConfig", None)
    return {"quantization_config": packed(dequantize=True)} if packed else {}


@contextlib.contextmanager
def offload_folder(settings: dict[str, Any]) -> Iterator[Any]:
    """Where layers go for which no device has room; it is there for as long as the model that is given to the function."""
    if "device_map" not in settings:
        yield id  # a model that lies nowhere else keeps nothing
        return
    folder = tempfile.mkdtemp(prefix="sinklab-offload-")
    kept: list[PreTrainedModel] = []
    settings["offload_folder"] = folder
    try:
        yield kept.append
    finally:
        if kept:
            weakref.finalize(kept.pop(), shutil.rmtree, folder, ignore_errors=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def put_adapter(model: PreTrainedModel, checkpoint: Checkpoint) -> None:
    """The adapter's weights over the model's, in place."""
    info = model.load_adapter(str(checkpoint.adapter))
    if strange := sorted({*info.missing_keys, *info.unexpected_keys}):
        raise SinklabError(f"The adapter `{checkpoint.name}` does not fit its base: {len(strange)} weights differ, such as {strange[0]}.")


def quantisation(config: PreTrainedConfig) -> str | None:
    """The method by which a checkpoint is quantised, if it is."""
    settings = getattr(config, "quantization_config", None)
    if settings is None:
        return None
    settings = settings if isinstance(settings, dict) else settings.to_dict()
    method = settings.get("quant_method") or ("bitsandbytes" if settings.get("load_in_4bit") or settings.get("load_in_8bit") else "unknown")
    return str(getattr(method, "value", method))


def quantisation_note(model: PreTrainedModel) -> tuple[str, ...]:
    """That weights are quantised; for a GGUF file its checkpoint says so."""
    method = quantisation(model.config)
    return () if method in (None, "gguf") else (f"quantised weights ({method}), computed in {str(model.dtype).removeprefix('torch.')}",)


def missing_note(name: str, model: PreTrainedModel, missing: set[str]) -> tuple[str, ...]:
    """A missing output head spoils only the loss; anything else that transformers drew at random spoils everything."""
    head = model.get_output_embeddings()
    names = {key for key, weight in model.named_parameters() if head is not None and any(weight is own for own in head.parameters())}
    if others := sorted(set(missing) - names):
        raise SinklabError(f"The weights of `{name}` do not fit its config.json: {len(others)} are missing, such as {others[0]}.")
    return ("no output head in the checkpoint: its loss means nothing",) if missing else ()


def spread_note(model: PreTrainedModel) -> tuple[str, ...]:
    """Over which devices the model is spread, if over several."""
    places = sorted({str(place) for place in getattr(model, "hf_device_map", {}).values()})
    return (f"spread over {', '.join(places)}",) if len(places) > 1 else ()


def load_tokenizer(checkpoint: Checkpoint, trust_remote_code: bool) -> tuple[PreTrainedTokenizerBase | None, tuple[str, ...]]:
    """The tokenizer of the adapter or of the model; without one that works, None and a note."""
    places = [checkpoint.where]
    if checkpoint.adapter:
        places.insert(0, {"pretrained_model_name_or_path": str(checkpoint.adapter)})
    note = "no tokenizer"
    for place in places:
        try:
            tokenizer = AutoTokenizer.from_pretrained(**place, trust_remote_code=trust_remote_code)
        except Exception as error:  # noqa: BLE001  the tokenizers library raises no narrower class
            absent = str(error).startswith(("Couldn't instantiate", "Can't load tokenizer"))
            note = "no tokenizer" if absent else f"no tokenizer: {one_line(error)}"
        else:
            if len(tokenizer) > len(tokenizer.all_special_ids):  # without files some classes make an empty one
                return tokenizer, ()
    return None, (note,)


@contextlib.contextmanager
def one_sentence(name: str) -> Iterator[None]:
    """What goes wrong inside of transformers, as one sentence about the model."""
    try:
        yield
    except ImportError as error:
        raise SinklabError(f"`{name}` needs a package that is not there: {one_line(error)}.") from error
    except StrictDataclassError as error:
        raise SinklabError(f"The config.json of `{name}` is wrong: {' '.join(str(error).split()).rstrip('.')}.") from error
    except SafetensorError as error:
        raise SinklabError(f"The weights of `{name}` are torn or truncated: {one_line(error)}.") from error
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, IndexError, AssertionError, MemoryError) as error:
        text = one_line(error)
        if "contains custom code" in text:
            raise SinklabError(f"`{name}` brings its own code, which runs only with --trust-remote-code.") from error
        if "does not appear to have a file named" in text and "safetensors" in str(error):
            text = "it holds no weights in safetensors, and pickled ones can run code when they are read"
        raise SinklabError(f"`{name}` cannot be loaded: {text}.") from error


def no_bars(checkpoint: Checkpoint) -> contextlib.AbstractContextManager[object]:
    """Nothing on stderr while a GGUF file is read: that bar of transformers knows no switch."""
    return contextlib.redirect_stderr(io.StringIO()) if checkpoint.gguf else contextlib.nullcontext()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the bars and warnings of transformers; what matters in them is in the notes. Downloads keep their bars."""
    from huggingface_hub.utils import logging as hub_logging
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, enable_progress_bars
    from transformers.utils import logging as transformers_logging

    accelerate = logging.getLogger("accelerate")
    levels = transformers_logging.get_verbosity(), hub_logging.get_verbosity(), accelerate.level
    bars, downloads = transformers_logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers_logging.set_verbosity_error()
        hub_logging.set_verbosity_error()
        accelerate.setLevel(logging.ERROR)
        transformers_logging.disable_progress_bar()
        if downloads:
            enable_progress_bars()
        try:
            yield
        finally:
            transformers_logging.set_verbosity(levels[0])
            hub_logging.set_verbosity(levels[1])
            accelerate.setLevel(levels[2])
            if bars:
                transformers_logging.enable_progress_bar()
