"""What ``orderlens models`` says about each family, and why some known networks are not supported.

Data only: a test compares it with the code of the families. Does not depend on torch or on a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from orderlens.models.protocol import Attention


@dataclass(frozen=True, slots=True)
class FamilyFacts:
    """What ``orderlens models`` says about a family, besides its summary.

    Attributes:
        models: published checkpoints.
        attention: what a position sees.
        grid: tokens per block, and where the block grid starts.
        shifted: row i − 1 of the network predicts position i.
        mask: the mask's published id.
        rule: the rule of its authors' decoder.
        checked: what its numbers were compared with.
        causal_past: finished blocks are seen token by token, and the token before a block predicts its first.
    """

    models: str
    attention: Attention
    grid: str
    mask: str
    rule: str
    checked: str
    shifted: bool = False
    causal_past: bool = False

    @property
    def row(self) -> dict[str, str]:
        """The facts in words, by column."""
        return {
            "models": self.models,
            "attention": f"{self.attention}, causal past" if self.causal_past else self.attention,
            "grid": self.grid,
            "logits": "shifted by one"
            if self.shifted
            else f"unshifted{', but the first of a block shifted' if self.causal_past else ''}",
            "mask": self.mask,
            "authors' rule": self.rule,
            "exact cache": "yes, by block"
            if self.attention == "block-causal"
            else "none: every pass reads the whole canvas",
            "checked against": self.checked,
        }


FACTS: dict[str, FamilyFacts] = {
    "llada2_moe": FamilyFacts(
        "LLaDA-2.0, 2.1, 2.2, mini and flash",
        "block-causal",
        "32 or block_size, from 0",
        "156895",
        "presets llada2.0, llada2.1; 2.2 edits lengths",
        "published code (2.0, 2.1); 2.2: a second implementation",
    ),
    "mdlm": FamilyFacts(
        "MDLM",
        "full",
        "32, from the prompt's end",
        "50257",
        "random",
        "published code",
    ),
    "bd3lm": FamilyFacts(
        "BD3-LM, blocks of 4, 8 and 16",
        "block-causal",
        "4, 8 or 16 (block_size), from 0",
        "50257",
        "random",
        "published code",
    ),
    "sedd": FamilyFacts(
        "SEDD small and medium, absorbing",
        "full",
        "32, from the prompt's end",
        "50257",
        "random",
        "published code",
    ),
    "llada": FamilyFacts(
        "LLaDA-8B, LLaDA-1.5, d3LLM-LLaDA",
        "full",
        "32, from the prompt's end",
        "126336",
        "max-prob",
        "published code",
    ),
    "lladamoe": FamilyFacts(
        "LLaDA-MoE-7B-A1B",
        "full",
        "32, from the prompt's end",
        "156895",
        "max-prob",
        "published code (dllm)",
    ),
    "Dream": FamilyFacts(
        "Dream-7B, Dream-Coder-7B, DiffuCoder-7B, d3LLM-Dream",
        "full",
        "32, from the prompt's end",
        "151666",
        "random, max-prob, top-margin or entropy",
        "published code",
        shifted=True,
    ),
    "sdar": FamilyFacts(
        "SDAR 1.7B to 8B, TraDo-4B and 8B",
        "block-causal",
        "4, block_size or -bN in the name, from 0",
        "151669",
        "max-prob+above=0.85",
        "published code",
    ),
    "sdar_moe": FamilyFacts(
        "SDAR-30B-A3B",
        "block-causal",
        "4, block_size or -bN in the name, from 0",
        "151669",
        "max-prob+above=0.85",
        "layers of the published code; Qwen3-MoE of transformers",
    ),
    "Fast_dLLM_Qwen": FamilyFacts(
        "Fast-dLLM v2 1.5B and 7B",
        "block-causal",
        "32 or bd_size, from 0",
        "151665",
        "max-prob+threshold in sub-blocks of 8",
        "published code",
        shifted=True,
    ),
    "nemotron_labs_diffusion": FamilyFacts(
        "Nemotron-Labs-Diffusion 3B, 8B and 14B",
        "block-causal",
        "32 or block_size, from the prompt's end",
        "100",
        "seed-first; ar_generate is --block-size 1",
        "Ministral 3 of transformers; a second implementation of its sampler",
        causal_past=True,
    ),
    "xlnet": FamilyFacts(
        "XLNet base and large",
        "full",
        "32, from the prompt's end",
        "6",
        "none",
        "transformers",
    ),
    "bert": FamilyFacts(
        "BERT",
        "full",
        "32, from the prompt's end",
        "103",
        "none",
        "transformers",
    ),
    "roberta": FamilyFacts(
        "RoBERTa",
        "full",
        "32, from the prompt's end",
        "50264",
        "none",
        "transformers",
    ),
    "modernbert": FamilyFacts(
        "ModernBERT base and large",
        "full",
        "32, from the prompt's end",
        "50284",
        "none",
        "transformers",
    ),
}
"""Family → its facts; folders of ``orderlens train`` state their own."""

_WRAP = "; ol.wrap serves its own module (docs/models.md, Networks that are not loaded)"
_REASONS: dict[tuple[str, ...], str] = {
    ("DreamForCausalLM",): "Dream-Reasoner shares model_type Dream with Dream-7B, but it is block-causal, "
    f"unshifted and normalises queries and keys{_WRAP}",
    (
        "WeDLMForCausalLM",
        "wedlm",
    ): "WeDLM is causal over a reordered sequence: known tokens first, then masks; "
    f"no prefix cache of this package is exact for it{_WRAP}",
    ("DiffusionGemmaForBlockDiffusion", "diffusion_gemma"): "DiffusionGemma has no mask token: each step "
    "replaces all open positions by new random tokens, so nothing is revealed and no order can be scored; "
    "its decoder can be recorded (docs/import.md, Record a decoder)",
}
UNSUPPORTED: dict[str, str] = {
    name.casefold(): reason for names, reason in _REASONS.items() for name in names
}
"""Name of a known network in ``architectures`` or ``model_type`` (lower case) → why it is not supported."""


def facts(name: str) -> dict[str, str]:
    """Return the family's facts by column, none for plugins and for folders that state them."""
    return FACTS[name].row if name in FACTS else {}


def refused() -> dict[str, str]:
    """Return the known networks that are not supported, each with the reason."""
    return {names[0]: reason for names, reason in _REASONS.items()}
