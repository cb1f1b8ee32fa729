"""One definition per verb: what the command line, Python and the reference say of an option is the same."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest

import orderlens as ol
from orderlens.api import Score
from orderlens.cli.command import Verb, request_of
from orderlens.cli.main import VERBS, load_verb, main
from orderlens.errors import UserInputError
from orderlens.runs.request import NEEDED, BadValueError, Opt, Request, options, verb


@dataclass(frozen=True, kw_only=True)
class Order(Request):
    """Order something."""

    name: Annotated[str, Opt("Its name.", "-n", given=NEEDED)] = "tea"
    count: Annotated[int, Opt("How many.", least=1, most=9)] = 1
    price: Annotated[float | None, Opt("At most.")] = None
    size: Annotated[Literal["small", "large"], Opt("Of the cup.")] = "small"
    with_: Annotated[Sequence[str], Opt("What goes into it.", name="with")] = ()
    note: Annotated[Sequence[str], Opt("Said to the cook.", repeat=True)] = ()
    to_go: Annotated[bool, Opt("In a bag.", negative=True)] = True
    place: Annotated[Path | None, Opt("Where to.")] = None
    waiter: object = None


COMMAND = Verb(Order, lambda _: None, Order)


def request_from(*words):
    return request_of(COMMAND, words)


def test_words_become_the_same_request_as_keywords():
    words = [
        "-n",
        "milk",
        "--count",
        "2",
        "--price",
        "1.5",
        "--size",
        "large",
        "--with",
        "ice, foam",
        "--no-to-go",
    ]
    words += ["--note", "now, please", "--note", "-hot", "--place", "x/y"]
    found = request_from(*words)
    assert found == Order(
        name="milk", count=2, price=1.5, size="large", with_=["ice", "foam"], to_go=False,
        note=("now, please", "-hot"), place="x/y",
    )  # fmt: skip
    assert found.place == Path("x/y")
    assert request_from("--name=-x").name == "-x"
    assert Order(price=2).price == 2.0
    assert Order(with_="a,b").with_ == ("a", "b")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--count", "0"], "--count 0 must be at least 1"),
        (["--count", "10"], "--count 10 must be at most 9"),
        (["--count", "two"], "--count 'two' must be a whole number"),
        (["--price", "cheap"], "--price 'cheap' must be a number"),
        (["--size", "larg"], "--size 'larg' is unknown; allowed: small, large; did you mean 'large'?"),
        (["--siz", "large"], "unknown option --siz; did you mean '--size'? --help lists all"),
        (["--count"], "--count needs a value"),
        (["--count", "--price", "3"], "--count needs a value"),
        (["water"], "unexpected argument 'water'; separate list items with commas, without spaces"),
        (["a", "b"], "unexpected argument 'a b'; separate list items with commas"),
    ],
)
def test_what_cannot_be_is_one_line_with_value_and_remedy(words, said):
    with pytest.raises(UserInputError) as caught:
        request_from("-n", "x", *words)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_what_is_needed_is_named():
    with pytest.raises(UserInputError, match=r"--name is missing: its name\."):
        request_from("--count", "2")


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"count": "2"}, "count='2' must be a whole number"),
        ({"count": True}, "count=True must be a whole number"),
        ({"count": 2**70}, "must fit into 64 bits"),
        ({"price": "1"}, "price='1' must be a number"),
        ({"size": "huge"}, "size='huge' is unknown; allowed: small, large"),
        ({"with_": 3}, "with_=3 must be a list"),
        ({"to_go": 1}, "to_go=1 must be True or False"),
        ({"name": 3}, "name=3 must be text"),
    ],
)
def test_values_from_python_are_read_strictly(keywords, said):
    with pytest.raises(BadValueError, match=said):
        Order(**keywords)


def test_a_function_takes_what_its_request_takes():
    def run_order(request: Order) -> str:
        """What was ordered."""
        return request.name

    order = verb(Order, run_order)
    assert order(name="milk") == "milk"
    assert list(inspect.signature(order).parameters)[:2] == ["name", "count"]
    assert "name: Its name." in order.__doc__
    assert order.__doc__.endswith("Returns:\n    What was ordered.")
    with pytest.raises(TypeError, match=r"order\(\) got an .* argument 'cuont'; did you mean 'count'"):
        order(cuont=3)


def test_errors_of_a_function_name_arguments_not_options():
    def run_order(request: Order) -> str:
        """What was ordered."""
        raise UserInputError("leave out --to-go; 'orderlens order --name' or --other does it")

    with pytest.raises(
        UserInputError, match="leave out `to_go`; 'orderlens order --name' or --other does it"
    ):
        verb(Order, run_order)(name="milk")


def test_postponed_annotations_are_refused():
    with pytest.raises(TypeError, match="cannot postpone its annotations"):
        options(
            dataclass(type("Late", (Request,), {"__annotations__": {"x": "Annotated[int, Opt('')]"}, "x": 1}))
        )


def test_help_signature_and_reference_agree(capsys):
    assert main(["score", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    parameters = inspect.signature(ol.score).parameters
    for item in options(Score):
        assert item.name in parameters
        assert item.flag in text
        if "--" not in item.opt.help:
            assert f"{item.name}: {item.opt.help}" in ol.score.__doc__
        assert " ".join(item.opt.help.split()[:4]) in text
    assert "limit_states: With `states`: maximum" in ol.score.__doc__
    assert "--" not in ol.census.__doc__


def test_every_option_has_one_help_unless_a_verb_says_otherwise():
    """Options that verbs share are defined once: those of the machine say the same everywhere."""
    told = {}
    for name in VERBS:
        for item in options(load_verb(name).kind):
            if item.opt.panel:
                told.setdefault(item.flag, set()).add(item.opt.help)
    assert {flag: len(texts) for flag, texts in told.items()} == dict.fromkeys(told, 1)
    machine = {"--engine", "--workers", "--address", "--batch-size", "--dtype", "--weights", "--anchor"}
    assert set(told) == machine
