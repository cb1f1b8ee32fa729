"""GSM8K: English word problems; the last number of the response against the one after ``####``.

Rows are keyed by their number in the file. Per cent is a unit here: references carry no ``%``, so ``60%``
answers 60.
"""

from __future__ import annotations

from orderlens.tasks.flaws import number_flaw
from orderlens.tasks.graders import NUMBER_GRADER, Verdict, grade_number
from orderlens.tasks.protocol import Benchmark, Document
from orderlens.texts.sources import HubFile


def write_prompt(doc: Document) -> str:
    """Ask for step-by-step reasoning with the number on the last line."""
    return (
        "Solve the problem below. Reason step by step, then write the final number on a last line of its "
        f"own, after 'Answer:'.\n\nProblem: {doc['question']}"
    )


def grade(doc: Document, response: object) -> Verdict:
    """Compare the last number with the reference after the last ``####``."""
    answer = doc.get("answer")
    golden = answer.rpartition("####")[2] if isinstance(answer, str) else answer
    return grade_number(golden, response, percent_is_unit=True)


TASK = Benchmark(
    name="gsm8k",
    summary="English word problems (1,319); an extra, not in the paper",
    hub=HubFile("openai/gsm8k", "main/test-*.parquet", "740312add88f781978c0658806c59bc2815b9866"),
    id_field=None,
    fields=("question", "answer"),
    write_prompt=write_prompt,
    graders={NUMBER_GRADER: grade},
    find_flaw=number_flaw("answer", "####"),
    max_new_tokens=512,
)
