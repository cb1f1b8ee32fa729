"""CMath: Chinese primary-school word problems; the last number of the response is the answer.

Rows are keyed by their number in the file, because one question occurs twice. Per cent is part of the
number: the reference ``40%`` is 2/5, so ``0.4`` is right and ``40`` is not.
"""

from __future__ import annotations

from orderlens.tasks.flaws import number_flaw
from orderlens.tasks.graders import NUMBER_GRADER, grade_golden
from orderlens.tasks.protocol import Benchmark, Document
from orderlens.texts.sources import HubFile


def write_prompt(doc: Document) -> str:
    """Ask for step-by-step reasoning in Chinese with the number on the last line."""
    return (
        "请解答下面的应用题。先一步一步地推理，最后另起一行，写出“答案：”和最终的数。\n\n"
        f"题目：{doc['question']}"
    )


TASK = Benchmark(
    name="cmath",
    summary="Chinese primary-school word problems (1,098)",
    hub=HubFile("weitianwen/cmath", "*test*.jsonl"),
    id_field=None,
    fields=("question", "golden"),
    write_prompt=write_prompt,
    graders={NUMBER_GRADER: grade_golden},
    find_flaw=number_flaw("golden"),
    max_new_tokens=512,
)
