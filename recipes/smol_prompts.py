"""Instructions for distilling `smol`: templates, fillers, and checkable constraints on the form of an answer.

An instruction is a task (a template with filled slots) and sometimes a constraint on the form of the answer ("in
at most 40 words"). A constraint has a check, so that answers that violate it can be dropped. All functions are
pure functions of the generator. No text of any benchmark is used.

    python recipes/smol_prompts.py 20        prints 20 examples
"""

# ruff: noqa: E501  constraints are laid out as a table

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from smol_words import ACTIONS, CLOSERS, FILLERS, KINDS, OPENERS, OPINIONS, SUBJECTS, TAILS, TEMPLATES, split

Check = Callable[[str], bool]


@dataclass(frozen=True)
class Instruction:
    """An instruction, and a check of the answer's form."""

    text: str
    check: Check | None = None


def pick(items: Sequence[str], rng: np.random.Generator) -> str:
    """Draw one item (much faster than ``rng.choice``, which converts all items to an array)."""
    return items[int(rng.integers(len(items)))]


def fill(template: str, rng: np.random.Generator) -> str:
    """Fill every slot with a separate random filler."""

    def one(match: re.Match[str]) -> str:
        slot = match[1]
        if slot == "sentence":
            parts = [pick(part, rng) for part in (SUBJECTS, ACTIONS, TAILS)]
            return " ".join(parts).capitalize() + "."
        if slot == "opinion":
            return pick(OPINIONS, rng)
        if slot in NUMBERS:
            return str(rng.integers(*NUMBERS[slot]))
        return pick(FILLERS[slot], rng)

    return re.sub(r"\{(\w+)\}", one, template)


NUMBERS = {
    "n": (2, 9),
    "a": (2, 60),
    "b": (2, 60),
    "c": (60, 120),
    "d": (2, 10),
    "e": (2, 10),
    "f": (11, 20),
    "g": (4, 50),
}


IMPERATIVES = split("""
    Write, Give, Tell, Explain, Describe, List, Name, Compose, Create, Make, Plan, Help, Suggest, Invent, Imagine, Compare""")
IMPERATIVES += split("""
    Summarise, Rewrite, Shorten, Continue, Find, Add, Repeat, Say, Turn, Put, Answer, Classify, Count, Recommend, Introduce""")


def as_request(task: str, rng: np.random.Generator) -> str:
    """Turn some commands into polite requests: templates that start with a verb get two more wordings."""
    verb = task.split(" ", 1)[0]
    if verb not in IMPERATIVES or rng.random() < 0.7:
        return task
    lowered = verb.lower() + task[len(verb) :]
    if rng.random() < 0.5 and task.endswith(".") and task.count(".") == 1:
        return f"{rng.choice(['Could you', 'Can you', 'Would you'])} {lowered[:-1]}?"
    return f"{rng.choice(['Please', 'I would like you to', 'I need you to', 'Your task:'])} {lowered}"


def choice_question(rng: np.random.Generator) -> str:
    """Return a question with lettered options, one of which is of the requested kind."""
    kinds = list(rng.permutation(list(KINDS)))
    options = [pick(KINDS[kind], rng) for kind in kinds[:4]]
    order = rng.permutation(4)
    question = rng.choice(
        [f"Which of these is a {kinds[0]}?", f"Pick the {kinds[0]}.", f"Which word names a {kinds[0]}?"]
    )
    shown = "\n".join(f"{letter}. {options[place]}" for letter, place in zip("ABCD", order, strict=True))
    ending = rng.choice(
        ["Answer with the letter.", "Give the letter and the word.", "Answer:", "Explain your choice."]
    )
    return f"{question}\n{shown}\n{ending}"


# ---- constraints on the form -----------------------------------------------------------------------------


def words(answer: str) -> list[str]:
    return re.findall(r"\w+(?:['’-]\w+)*", answer)


def sentences(answer: str) -> int:
    return len(re.findall(r"[.!?]+(?=\s|$)", answer.strip()))


def bullets(answer: str) -> int:
    return len(re.findall(r"^\s*[*-] \S", answer, re.MULTILINE))


def is_json(answer: str) -> bool:
    text = re.sub(r"^```(?:json)?|```$", "", answer.strip()).strip()
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def constraint(rng: np.random.Generator) -> tuple[str, Check]:
    """Return a constraint in words and its check."""
    n = int(rng.integers(2, 6))
    few, many = int(rng.choice([20, 30, 40, 50, 60, 80])), int(rng.choice([30, 50, 80, 100]))
    word, other = (str(item) for item in rng.choice(FILLERS["noun"], 2, replace=False))
    ending = str(
        rng.choice(["That is all.", "I hope this helps.", "Any questions?", "Thank you for reading."])
    )
    start = str(rng.choice(["Of course", "Here is", "Well", "In short"]))
    table: list[tuple[list[str], Check]] = [
        (["Use only lowercase letters.", "Write everything in lowercase.", "No capital letters, please."],
         lambda text: text == text.lower()),
        (["Write in capital letters only.", "Answer in ALL CAPS.", "Use only uppercase letters."],
         lambda text: text == text.upper()),
        (["Do not use any commas.", "Avoid commas.", "Your answer must not contain a comma."], lambda text: "," not in text),
        ([f"Use at most {few} words.", f"Keep it under {few + 1} words.", f"No more than {few} words."],
         lambda text: len(words(text)) <= few),
        ([f"Use at least {many} words.", f"Write {many} words or more.", f"Your answer needs at least {many} words."],
         lambda text: len(words(text)) >= many),
        ([f"Answer in at most {n} sentences.", f"Use no more than {n} sentences."], lambda text: sentences(text) <= n),
        ([f"Write at least {n} sentences.", f"Use {n} sentences or more."], lambda text: sentences(text) >= n),
        ([f"Use exactly {n} bullet points.", f"Give exactly {n} bullet points, like * this.",
          f"Answer with {n} bullet points in markdown."], lambda text: bullets(text) == n),
        ([f"Mention the word {word}.", f"Include the word '{word}'.", f"The word \"{word}\" must appear."],
         lambda text: word in text.lower()),
        ([f"Include the words {word} and {other}.", f"Use both '{word}' and '{other}'."],
         lambda text: word in text.lower() and other in text.lower()),
        ([f"Do not use the word '{word}'.", f"Leave out the word {word}."], lambda text: word not in text.lower()),
        ([f"End with the exact words: {ending}", f"Finish your answer with \"{ending}\""],
         lambda text: text.strip().strip('"').endswith(ending)),
        ([f"Begin your answer with \"{start}\".", f"Start with the words {start}."],
         lambda text: text.strip().strip('"').startswith(start)),
        (["Put your whole answer in double quotation marks.", "Wrap the whole answer in double quotes."],
         lambda text: text.strip().startswith('"') and text.strip().endswith('"')),
        (["Give it a title in double angle brackets, like <<title>>.", "Add a title wrapped in << and >>."],
         lambda text: re.search(r"<<[^\n]+>>", text) is not None),
        (["Answer in JSON format.", "Give the entire answer as JSON."], is_json),
        (["Add a postscript that starts with P.S.", "At the end add a note starting with P.S."],
         lambda text: "P.S." in text),
        ([f"Write {n} paragraphs separated by ***.", f"There should be {n} paragraphs, divided by the markdown divider: ***"],
         lambda text: len([part for part in text.split("***") if part.strip()]) == n),
        (["Give two different answers, separated by ******.", "Give two responses with ****** between them."],
         lambda text: len([part for part in text.split("******") if part.strip()]) == 2),
        (["Highlight one word with *asterisks*.", "Highlight at least one part with markdown, like *this*."],
         lambda text: re.search(r"\*[^\s*][^*\n]*\*", text) is not None),
        (["Use at least one placeholder in square brackets, such as [name].", "Include a placeholder like [address]."],
         lambda text: re.search(r"\[[^\]\n]+\]", text) is not None),
        (["Answer with yes or no first.", "Start with 'Yes' or 'No'."],
         lambda text: text.strip().lower().startswith(("yes", "no"))),
    ]  # fmt: skip
    phrases, check = table[int(rng.integers(len(table)))]
    return pick(phrases, rng), check


# ---- instructions ----------------------------------------------------------------------------------------

SHARES = {"open": 0.62, "sentence": 0.12, "opinion": 0.05, "sum": 0.12, "choice": 0.09}


def instruction(rng: np.random.Generator) -> Instruction:
    """Draw one instruction."""
    kind = str(rng.choice(list(SHARES), p=list(SHARES.values())))
    if kind == "choice":
        return Instruction(choice_question(rng))
    task = as_request(fill(pick(TEMPLATES[kind], rng), rng), rng)
    if kind == "open" and rng.random() < 0.35:
        text, check = constraint(rng)
        return Instruction(f"{task} {text}" if rng.random() < 0.8 else f"{text} {task}", check)
    return Instruction(pick(OPENERS, rng) + task + pick(CLOSERS, rng))


def worth_keeping(answer: str, instruction: Instruction) -> bool:
    """Return whether an answer is non-empty, has the requested form and does not repeat itself."""
    found = words(answer)
    if not found or (instruction.check is not None and not instruction.check(answer)):
        return False
    runs = [tuple(found[place : place + 4]) for place in range(len(found) - 3)]
    return len(set(runs)) >= 0.7 * len(runs)


if __name__ == "__main__":
    source = np.random.default_rng(0)
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 20):
        print("-", instruction(source).text)
    print(sum(len(group) for group in TEMPLATES.values()), "templates")
