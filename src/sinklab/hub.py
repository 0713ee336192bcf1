"""Registers our decoder with transformers: `import sinklab.hub`, and AutoModelForCausalLM knows its folders."""

from sinklab.model.hub import SinklabForCausalLM, SinklabModel
from sinklab.model.hub_config import SinklabConfig

__all__ = ["SinklabConfig", "SinklabForCausalLM", "SinklabModel"]
