"""Every answer of `choice` is derived again by brute force from the structured facts."""

import itertools
import re
from collections import Counter

import pytest
from bundled_tasks import generator as bundled
from bundled_tasks.generator import FAMILIES

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


@pytest.fixture(scope="module")
def items():
    return bundled.items("choice", "test", 700) + bundled.items("choice", "train", 700)


def solve_rank(facts, query):
    """Try every ranking; the answer is the one that all consistent rankings agree on."""
    names = sorted({name for fact in facts for name in fact[1:]})
    fits = [
        order for order in itertools.permutations(names)
        if all(order.index(a) < order.index(b) for _, a, b in facts)
    ]  # fmt: skip
    return {order[query[2]] for order in fits}


def solve_amount(facts, query):
    counts = {fact[1]: fact[2] for fact in facts if fact[0] == "has"}
    while len(counts) < len(facts):
        for fact in facts:
            if fact[0] == "differs" and fact[2] in counts:
                counts[fact[1]] = counts[fact[2]] + fact[3]
    best = max(counts.values()) if query[1] == "most" else min(counts.values())
    return {name for name, count in counts.items() if count == best}


def solve_where(facts, query):
    """Simulate the little world step by step."""
    place, room, holder = {}, {}, {}
    for kind, a, b in facts:
        if kind == "at":
            place[a] = b
        elif kind == "go":
            room[a] = b
        elif kind == "take":
            holder[b] = a
        else:
            place[b] = room[holder.pop(b)]
        place.update({item: room[who] for item, who in holder.items()})
    return {place[query[1]]}


def solve_direction(facts, query):
    at = {facts[0][2]: (0, 0)}
    step = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
    while len(at) <= len(facts):
        for way, a, b in facts:
            if b in at:
                at[a] = (at[b][0] + step[way][0], at[b][1] + step[way][1])
    x, y = (at[query[1]][axis] - at[query[2]][axis] for axis in (0, 1))
    word = {(0, 1): "north", (0, -1): "south", (1, 0): "east", (-1, 0): "west"}
    parts = [word[0, y // abs(y)]] if y else []
    return {"-".join(parts + ([word[x // abs(x), 0]] if x else []))}


def solve_rule(facts, query):
    """Forward chaining to the end of the chain that starts at the person."""
    now, step = {query[1]}, {fact[1]: fact[2] for fact in facts}
    while any(thing in step for thing in now):
        now = {step[thing] for thing in now}
    return now


def solve_kin(facts, query):
    parents = {(a, b) for _, a, b in facts}
    people = {name for pair in parents for name in pair}
    who = query[2]
    up = {
        "grandparent": lambda p: any((p, q) in parents and (q, who) in parents for q in people),
        "great-grandparent": lambda p: any(
            (p, q) in parents and (q, r) in parents and (r, who) in parents for q in people for r in people
        ),
        "sibling": lambda p: p != who and any((q, p) in parents and (q, who) in parents for q in people),
        "uncle": lambda p: any(
            (g, p) in parents and (g, q) in parents and (q, who) in parents and p != q
            for g in people for q in people
        ),
        "cousin": lambda p: any(
            (g, q) in parents and (g, r) in parents and q != r and (q, who) in parents and (r, p) in parents
            for g in people for q in people for r in people
        ),
    }  # fmt: skip
    return {person for person in people if up[query[1]](person)}


def solve_thing(facts, query):
    rows = {fact[0]: fact[1:] for fact in facts if fact[0] in ("people", "things")}
    found = set()
    for given in itertools.permutations(rows["things"]):
        has = dict(zip(rows["people"], given, strict=True))
        if all((has[f[1]] == f[2]) == (f[0] == "is") for f in facts if f[0] in ("is", "not")):
            found.add(has[query[1]])
    return found


def solve_when(facts, query):
    """Try every slot for every event."""
    events = sorted({fact[1] for fact in facts})
    fits = set()
    for slots in itertools.product(range(12), repeat=len(events)):
        at = dict(zip(events, slots, strict=True))
        if all(at[f[1]] == (f[2] if f[0] == "on" else at[f[2]] + f[3]) for f in facts):
            fits.add(at[query[1]])
            break  # facts fix every event, checked by the count of facts below
    assert len(facts) == len(events)
    return fits


SOLVERS = {
    "rank": solve_rank, "amount": solve_amount, "where": solve_where, "direction": solve_direction,
    "lives": solve_rule, "rides": solve_rule, "color": solve_rule, "kin": solve_kin, "thing of": solve_thing,
}  # fmt: skip

HOURS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


def when_by_text(item):
    """Relax the relative facts until the asked event is known (exhaustive search is too slow)."""
    at = {fact[1]: fact[2] for fact in item["facts"] if fact[0] == "on"}
    for _ in item["facts"]:
        for fact in item["facts"]:
            if fact[0] == "after" and fact[2] in at:
                at[fact[1]] = at[fact[2]] + fact[3]
    slot = at[item["query"][1]]
    return {DAYS[slot] if any(day in item["question"] for day in DAYS) else HOURS[slot]}


def test_the_answer_follows_from_the_facts_and_nothing_else_does(items):
    for item in items:
        kind = item["query"][0]
        found = when_by_text(item) if kind == "when" else SOLVERS[kind](item["facts"], item["query"])
        assert found == {item["options"][item["answer_index"]]}, item


def test_the_two_solvers_of_times_agree(items):
    times = [item for item in items if item["query"][0] == "when" and len(item["facts"]) <= 3][:40]
    assert times
    for item in times:
        (slot,) = solve_when(item["facts"], item["query"])
        assert when_by_text(item) & {DAYS[slot % 7], HOURS[slot]}


def test_every_family_occurs_at_every_level(items):
    kinds = Counter((item["query"][0], item["level"]) for item in items)
    for kind in ("rank", "amount", "where", "direction", "kin", "thing of", "when"):
        assert all(kinds[kind, level] > 12 for level in bundled.LEVELS), kind
    assert len(FAMILIES) == 9


def test_options_are_four_different_ones_and_the_letter_points_at_the_answer(items):
    for item in items:
        assert len(set(item["options"])) == len(item["options"]) == 4
        assert item["answer"] == "ABCD"[item["answer_index"]]
        assert item["solution"].endswith(f"\nAnswer: {item['answer']}")
        a, b, c, d = item["options"]
        assert item["prompt"].endswith(f"\nOptions: {a} A, {b} B, {c} C, {d} D\nSolution:")


def test_the_worked_solution_names_the_answer_last(items):
    """Of the four options the right one is the last to be named, so the solution leads to it."""
    for item in items:
        body = item["solution"].rsplit("\nAnswer:", 1)[0]
        right = item["options"][item["answer_index"]]
        places = {
            o: max((m.end() for m in re.finditer(rf"(?<![\w-]){o}(?![\w-])", body)), default=-1)
            for o in item["options"]
        }
        if item["query"][0] != "kin":  # ends with "the aunt of B", and B is never an option
            assert places[right] == max(places.values()) > 0, item
        assert places[right] > 0


@pytest.mark.parametrize("level", bundled.LEVELS)
def test_letters_are_balanced(level):
    counts = Counter(item["answer"] for item in bundled.items("choice", "test", 400, level=level))
    # 100 expected each, standard deviation 8.7: five of them on either side.
    assert all(56 < counts[letter] < 144 for letter in "ABCD"), counts


def test_facts_are_all_told_in_the_question(items):
    for item in items:
        for fact in item["facts"]:
            names = [part for part in fact[1:] if isinstance(part, str)]
            assert all(name in item["question"] for name in names), (fact, item["question"])


def test_wording_varies(items):
    skeletons = {re.sub(r"\b[A-Z][a-z]+\b|\d+", "N", item["question"]) for item in items}
    assert len(skeletons) > 900


def test_articles_agree_with_the_next_word(items):
    for item in items:
        assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]", item["question"] + item["solution"]), item


def test_solutions_name_the_option_beside_its_letter(items):
    for item in items:
        closing = f"The option is {item['options'][item['answer_index']]} {item['answer']}."
        assert item["solution"].endswith(f"{closing}\nAnswer: {item['answer']}")


def test_drills_name_every_option_by_the_letter_it_is_shown_with():
    documents = list(itertools.islice(bundled.training_documents("choice", 5), 1000))
    drills = [text for text in documents if text.startswith("Question: Which letter does each option have?")]
    assert len(drills) / len(documents) == pytest.approx(bundled.DRILL_SHARE, abs=0.04)
    for text in drills:
        (options,) = re.findall(r"^Options: (.+)$", text, re.MULTILINE)
        shown = re.findall(r"(?:^|, )(.+?) ([A-D])(?=,|$)", options)
        named = re.findall(r"The option is (.+?) ([A-D])\.", text)
        assert [letter for _, letter in shown] == ["A", "B", "C", "D"]
        assert sorted(named) == sorted(shown)
