"""What the paper found at the setting that everything is compared with (Gu et al., 2410.10781, Table 1; Jamba from its appendix)."""

CITATION = "Gu et al., 2410.10781, Table 1"
LENGTH, EPSILON = 64, 0.3

# percent of (sequence, layer, head) with alpha_1 above 0.3, at 64 tokens, over 100 sequences
NATURAL = {
    "GPT2-XL": 77.00, "Jamba-v0.1": 88.48, "LLaMA2-13B": 91.69, "LLaMA2-7B": 92.47, "Mistral-7B": 97.49, "LLaMA3-8B": 99.02,
}  # fmt: skip
RANDOM = {"GPT2-XL": 70.29, "Mistral-7B": 75.21, "LLaMA2-7B": 90.13, "LLaMA3-8B": 91.23}
REPEAT = {"GPT2-XL": 62.28, "Mistral-7B": 0.00, "LLaMA2-7B": 0.00, "LLaMA3-8B": 0.00}
INPUTS = {"natural": NATURAL, "random": RANDOM, "repeat": REPEAT}


def peers(name: str, length: int) -> dict[str, float]:
    """The paper's models on the same kind of input; nothing at another length, with which percentages fall."""
    return INPUTS.get(name, {}) if length == LENGTH else {}
