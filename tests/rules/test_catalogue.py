"""Policy specs: grammar, canonical spelling, and one clear line for every mistake."""

from __future__ import annotations

import pytest

import orderlens as ol
from orderlens.errors import UserInputError
from orderlens.rules import Policy, parse_order, parse_policies, parse_policy


@pytest.mark.parametrize(
    ("text", "label", "seed"),
    [
        ("max-prob", "max-prob", None),
        ("max-prob+top=1", "max-prob", None),
        ("max-prob+threshold=.90", "max-prob+threshold=0.9", None),
        ("max-prob:argmax+threshold=1", "max-prob:select=argmax+threshold=1", None),
        ("random:3+top=4", "random+top=4", 3),
        ("forced-ar + top=4", "forced-ar+top=4", None),
        ("entropy+edit=0.90:16+top=2", "entropy+top=2+edit=0.9", None),
        ("entropy+edit=0.9:3", "entropy+edit=0.9:3", None),
        ("oracle-min-q+threshold=0.00001", "oracle-min-q+threshold=0.00001", None),
    ],
)
def test_canonical_spelling(text, label, seed):
    policy = parse_policy(text)
    assert (policy.label, policy.seed) == (label, seed)
    assert parse_policy(policy.spec).spec == policy.spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max-prob+treshold=0.9", "did you mean 'threshold'"),
        ("max-prob+", "unknown rule ''"),
        ("max-prob+threshold", "takes one value, e.g. threshold=0.9"),
        ("max-prob+threshold=", "takes one value"),
        ("max-prob+threshold=1.5", "between 0 and 1"),
        ("max-prob+threshold=nan", "between 0 and 1"),
        ("max-prob+threshold=0.5:2", "takes one value"),
        ("max-prob+top=0", "whole number of at least 1"),
        ("max-prob+top=2.5", "whole number"),
        ("max-prob+top=99999999999999999999", "at most 999,999,999"),
        ("max-prob+top=2+threshold=0.9", "two rules of one kind"),
        ("max-prob+edit=2", "between 0 and 1"),
        ("max-prob+edit=0.9:1:2", "takes 1 to 2 values, e.g. edit=0.9"),
        ("max-prob+klass=0.9:x", "'klass': EPS is 'x' and must be a finite number of at least 0"),
        ("max-prob+bound=inf", "'bound=inf': the value must be a finite number"),
        ("max-prob+credit=0.9:1", "'credit' takes 1 value or 4"),
        ("max-prob+spaced+threshold=0.9", "'spaced' may follow another commit rule"),
        ("max-prob+threshold:0.9", "write 'threshold=0.9' instead of 'threshold:0.9'"),
        ("max-prob+entropy", "names a second order, 'entropy'"),
        ("threshold=0.9", r"'threshold' is a rule, no order; .* e.g. max-prob\+threshold=0.9"),
        ("remdm-fb=8", r"'remdm-fb' is a rule, no order; .* e.g. random\+remdm-fb=8"),
        ("klass=0.6:0.01", r"preset 'klass' takes no values; write 'max-prob\+klass=0.9:0.01' with others"),
        ("+top=4", r"names no order; write one first, e.g. max-prob\+top=4"),
        ("oracle-max-q+edit=0.9", "can only score, 'edit' can only generate; leave one of them out"),
        ("nothing+top=2", "unknown order 'nothing'"),
        ("random+top=2,random:0+top=2", "both mean"),
        ("max-prob,max-prob+top=1", "both mean"),
        ("max-prob,max-prob", "given twice"),
    ],
)
def test_mistakes_are_named(text, message):
    with pytest.raises(UserInputError, match=message):
        parse_policies(text)


def test_orders_and_policies_pass_through():
    order = parse_order("entropy")
    assert parse_policies([order, parse_policy("max-prob+top=2"), "random"])[0].order is order
    with pytest.raises(UserInputError, match="3 is not an order"):
        parse_policies([3])


@pytest.mark.parametrize(
    ("text", "spec", "label", "seed"),
    [
        ("max-prob+ancestral=4", "max-prob:0+ancestral=4", "max-prob+ancestral=4", 0),
        ("max-prob:3+ancestral=4", "max-prob:3+ancestral=4", "max-prob+ancestral=4", 3),
        (
            "forced-ar:12+ancestral=4+spaced",
            "forced-ar:12+ancestral=4+spaced",
            "forced-ar+ancestral=4+spaced",
            12,
        ),
        ("max-prob:argmax:3+ancestral=4", "max-prob:select=argmax:3+ancestral=4", None, 3),
        ("random:3+ancestral=4", "random:3+ancestral=4", "random+ancestral=4", 3),
        (
            "lookahead-gain:temp=0:3+ancestral=4",
            "lookahead-gain:temp=0:3+ancestral=4",
            "lookahead-gain:temp=0+ancestral=4",
            3,
        ),
        (
            "entropy:2+ancestral=4+edit=0.9",
            "entropy:2+ancestral=4+edit=0.9",
            "entropy+ancestral=4+edit=0.9",
            2,
        ),
        ("mdlm:5", "random:5+ancestral=128", "random+ancestral=128", 5),
        ("max-prob+top=2", "max-prob+top=2", "max-prob+top=2", None),
    ],
)
def test_a_rule_that_draws_has_a_seed_whatever_its_order(text, spec, label, seed):
    policy = parse_policy(text)
    assert (policy.spec, policy.seed) == (spec, seed)
    assert policy.label == (label or "max-prob:select=argmax+ancestral=4")
    again = parse_policy(policy.spec)
    assert (again.spec, again.label, again.seed) == (policy.spec, policy.label, policy.seed)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-prob:3+top=2", "max-prob:3"),
        ("max-prob:x+ancestral=4", "max-prob:x"),
        ("random:1:2+ancestral=4", "random:1:2"),
        ("max-prob:3:4+ancestral=4", "max-prob:3"),
        (f"max-prob:{'9' * 19}+ancestral=4", "max-prob:999"),
    ],
)
def test_a_seed_that_nothing_draws_with_is_refused(text, words):
    with pytest.raises(UserInputError, match=words):
        parse_policy(text)
    with pytest.raises(UserInputError, match="leave out the seed 3"):
        Policy(parse_policy("random").order, parse_policy("random+ancestral=4").commit, None, 3)


def test_two_seeds_of_a_drawn_schedule_are_two_policies():
    samples = [ol.Sample(str(i), "hello", " there she is") for i in range(3)]
    orders = ["max-prob+ancestral=4", "max-prob:1+ancestral=4", "max-prob:2+ancestral=4"]
    frame = ol.score("hmm:block=8", samples, orders).samples().to_pandas()
    assert set(frame["order"]) == {"max-prob+ancestral=4"}
    assert sorted(frame["seed"].unique()) == [0, 1, 2]
    assert set(frame["likelihood"]) == {"estimate"}
    assert frame.groupby("seed")["log_prob"].apply(tuple).nunique() == 3


@pytest.mark.parametrize(
    ("text", "scored", "drawn"),
    [
        ("forced-ar", "exact", "exact"),
        ("max-prob+threshold=0.9", "exact", "none"),
        ("max-prob:argmax+threshold=0.9", "exact", "exact"),
        ("entropy+top=4", "exact", "exact"),
        ("random:2+top=4", "estimate", "estimate"),
        ("forced-ar+ancestral=4+spaced", "estimate", "estimate"),
        ("oracle-max-q", "none", "none"),
        ("max-prob+edit=0.9", "none", "none"),
    ],
)
def test_what_the_sum_of_log_q_is(text, scored, drawn):
    policy = parse_policy(text)
    assert (policy.likelihood(), policy.likelihood(0.0), policy.likelihood(0.7)) == (scored, scored, drawn)
