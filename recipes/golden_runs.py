"""Writes the golden runs: every preset without random choices, on a small model.

    python recipes/golden_runs.py

``orderlens runs diff MINE golden:llada`` compares an implementation with them. The incoherent ``hmm`` has
sharp predictions that change with every revealed token, so that two different rules soon part.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import orderlens as ol
from orderlens.analysis.diff import GOLDEN_FOLDER, GOLDEN_TABLES
from orderlens.rules import Policy
from orderlens.rules.catalogue import PRESETS

MODEL = "hmm:states=6,characters=12,incoherence=8,block=16"
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 4, 16, 32


def golden_run() -> tuple[ol.Run, dict[str, str]]:
    """Return the run with all presets, and the label of each preset's policy."""
    model = ol.load_model(MODEL)
    rng = np.random.default_rng(0)
    prompts = [ol.Sample(f"golden-{i}", rng.integers(0, 12, PROMPT_TOKENS).tolist()) for i in range(PROMPTS)]
    policies = {name: ol.parse_policy(name) for name in PRESETS.names()}
    policies = {name: policy for name, policy in policies.items() if _is_comparable(policy)}
    specs = list({policy.spec: None for policy in policies.values()})
    run = ol.generate(model, prompts, specs, max_new_tokens=NEW_TOKENS, stop_at_eos=False)
    return run, {name: policy.label for name, policy in policies.items()}


def _is_comparable(policy: Policy) -> bool:
    """Whether another implementation can repeat the rule: nothing is drawn and no target is needed."""
    parts = (policy.order, policy.commit, policy.revise)
    return (
        not policy.needs_target
        and policy.search is None
        and not any(getattr(part, "randomised", False) for part in parts)
    )


def main() -> None:
    run, labels = golden_run()
    GOLDEN_FOLDER.mkdir(exist_ok=True)
    for name in GOLDEN_TABLES:
        table = run.table(name).to_arrow()
        pq.write_table(table, GOLDEN_FOLDER / f"{name}.parquet", compression="zstd", compression_level=19)
    facts = {"presets": labels, "spec": run.spec}
    text = json.dumps(facts, indent=1, ensure_ascii=False) + "\n"
    (GOLDEN_FOLDER / "spec.json").write_text(text, encoding="utf-8")
    print({path.name: path.stat().st_size for path in sorted(Path(GOLDEN_FOLDER).iterdir())})


if __name__ == "__main__":
    main()
