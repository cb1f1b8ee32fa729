"""Replays and first differences against simulations of random histories, pass by pass."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.show.views import canvas, first_divergence
from orderlens.testing import make_run, make_trace

N = 4


def history(seed, n_passes=10):
    """Random events by pass: reveals of masked places, edits and remasks of held ones; all filled at last."""
    rng = np.random.default_rng(seed)
    held, out = {}, []
    for _ in range(n_passes):
        events = []
        for place in range(N):
            if place not in held and rng.random() < 0.4:
                events.append(("reveal", place, int(rng.integers(2, 30))))
            elif place in held and rng.random() < 0.15:
                token = int(rng.integers(2, 30))
                if token != held[place]:
                    events.append(("edit", place, token))
            elif place in held and rng.random() < 0.2:
                events.append(("remask", place, None))
        for _, place, token in events:
            held[place] = token
            if token is None:
                del held[place]
        out.append(events)
    out.append([("reveal", place, 2 + place) for place in range(N) if place not in held])
    return out


def stored(passes, order="max-prob+edit=0.9"):
    """The tables of a history: the last reveal of every place, everything else as revisions."""
    key = {"sample_id": "a", "order": order, "temperature": 0.0}
    last = {e[1]: (f, e[2]) for f, events in enumerate(passes) for e in events if e[0] == "reveal"}
    ranked = sorted(last, key=lambda place: (last[place][0], place))
    revisions, stands = [], {}
    for forward, events in enumerate(passes):
        for event, place, token in events:
            if event == "reveal" and (forward, token) == last[place]:
                stands[place] = token
                continue
            row = {"event": event, "forward": forward, "position": place, "new_token": token}
            if event != "reveal":
                row["old_token"] = stands[place]
            stands[place] = token
            revisions.append(key | row)
    trace = make_trace(
        "a", order, np.full(N, -0.1), path=ranked, tokens=[last[place][1] for place in range(N)],
        forward=[last[place][0] for place in ranked], temperature=0.0,
    )  # fmt: skip
    return trace, revisions


def view(passes, order="max-prob+edit=0.9"):
    trace, revisions = stored(passes, order)
    return make_run([trace], revisions=revisions).sample("a").traces[0]


def simulated(passes, forward):
    """Place → (state, token) after a pass, by doing what happened."""
    cells = dict.fromkeys(range(N), ("masked", None))
    for events in passes[: forward + 1]:
        cells = {
            place: ("masked", None) if state == "remasked" else (state if token is None else "earlier", token)
            for place, (state, token) in cells.items()
        }
        for event, place, token in events:
            now = {"reveal": "new", "edit": "edited", "remask": "remasked"}[event]
            cells[place] = (now, cells[place][1] if event == "remask" else token)
    return [cells[place] for place in range(N)]


@pytest.mark.parametrize("seed", range(12))
def test_every_canvas_is_what_the_events_leave(seed):
    passes = history(seed)
    trace = view(passes)
    for forward in range(-1, len(passes)):
        found = [(cell.state, cell.token_id) for cell in canvas(trace, forward)]
        assert found == simulated(passes, forward), forward


@pytest.mark.parametrize("seed", range(12))
def test_the_first_difference_in_time_and_in_the_text(seed):
    """The second history is the first one up to a pass, then another."""
    one, other = history(seed), history(seed + 100)
    same = seed % 6
    half = [*one[:same]]
    held = {}
    for events in half:
        for _, place, token in events:
            held[place] = token
            if token is None:
                del held[place]
    rest = [("reveal", place, 40 + place) for place in range(N) if place not in held]
    other = [*half, rest] if rest else [*half, [("edit", 0, 77)]]
    a, b = view(one), view(other, "entropy+edit=0.9")
    found = first_divergence(a, b)
    events = [{(place, token) for _, place, token in events} for events in one]
    others = [{(place, token) for _, place, token in events} for events in other]
    longest = max(len(events), len(others))
    events += [set()] * (longest - len(events))
    others += [set()] * (longest - len(others))
    assert found.forward == next(f for f in range(longest) if events[f] != others[f])
    ends = [[token for _, token in simulated(passes, len(passes))] for passes in (one, other)]
    differing = [place for place in range(N) if ends[0][place] != ends[1][place]]
    assert found.position == min(differing, default=None)
    assert first_divergence(a, a).forward is None
    assert first_divergence(a, a).position is None


def test_the_step_of_a_difference_is_the_first_reveal_of_that_pass():
    a = make_trace("a", "x", np.full(4, -1.0), path=[0, 1, 2, 3], forward=[0, 1, 1, 2])
    b = make_trace("a", "y", np.full(4, -1.0), path=[0, 1, 3, 2], forward=[0, 1, 1, 2])
    traces = make_run([a, b]).sample("a").traces
    found = first_divergence(*traces)
    assert (found.forward, found.step, found.position) == (1, 1, None)


def test_an_edited_place_says_so_ever_after():
    key = {"sample_id": "a", "order": "x", "temperature": 0.0}
    trace = make_trace("a", "x", [-1.0, -1.0], tokens=[5, 6], temperature=0.0)
    change = key | {"event": "edit", "forward": 1, "position": 0, "old_token": 5, "new_token": 9}
    one = make_run([trace], revisions=[change]).sample("a").traces[0]
    first, second = canvas(one, 5)
    assert (first.token_id, first.edited, first.state, first.step) == (9, True, "earlier", 0)
    assert (second.token_id, second.edited, second.step) == (6, False, 1)
    assert not canvas(one, 0)[0].edited
