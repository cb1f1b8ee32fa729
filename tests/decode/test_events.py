"""What a generation recorded, against histories that are replayed event by event."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.decode.passes import NO_TOKEN, TraceRecorder

FIELDS = ("sample", "order", "step", "forward", "position", "token_id", "logq", "n_lookahead")


def reveal(sample, order, step, forward, position, token, logq=-1.0, tried=0):
    values = (sample, order, step, forward, position, token, logq, tried)
    return {name: np.array([value]) for name, value in zip(FIELDS, values, strict=True)}


def remask(sample, order, forward, position, token):
    values = {"sample": sample, "order": order, "forward": forward, "position": position}
    values |= {"event": "remask", "old_token": token, "old_logq": -1.0, "new_token": 9, "logq": np.nan}
    return {name: np.array([value]) for name, value in values.items()}


def rows(columns, *names):
    return list(zip(*(columns[name].tolist() for name in names), strict=True))


def test_reveals_are_sorted_by_trace_and_step_and_empty_passes_leave_nothing():
    recorder = TraceRecorder()
    recorder.add_reveals(reveal(1, 0, 1, 1, 5, 3))
    recorder.add_reveals(reveal(0, 1, 0, 0, 4, 2))
    recorder.add_reveals({name: np.zeros(0) for name in FIELDS})
    recorder.add_reveals(reveal(1, 0, 0, 0, 6, 1))
    recorder.add_reveals(reveal(0, 0, 0, 0, 7, 8))
    reveals, revisions = recorder.columns()
    assert rows(reveals, "sample", "order", "step", "position") == [
        (0, 0, 0, 7),
        (0, 1, 0, 4),
        (1, 0, 0, 6),
        (1, 0, 1, 5),
    ]
    assert revisions == {}


def test_a_position_that_came_back_keeps_its_last_reveal():
    recorder = TraceRecorder()
    recorder.add_reveals(reveal(0, 0, 0, 0, 4, 2, -0.5, tried=3))
    recorder.add_reveals(reveal(0, 0, 1, 1, 5, 3, -0.7, tried=2))
    recorder.add_revisions(remask(0, 0, 1, 4, 2))
    recorder.add_reveals(reveal(0, 0, 2, 2, 4, 6, -0.1))
    reveals, revisions = recorder.columns()
    assert rows(reveals, "step", "forward", "position", "token_id") == [(0, 1, 5, 3), (1, 2, 4, 6)]
    assert rows(revisions, "forward", "event", "position", "old_token", "new_token") == [
        (0, "reveal", 4, NO_TOKEN, 2),
        (1, "remask", 4, 2, 9),
    ]
    assert reveals["n_lookahead"].tolist() == [2 + 3, 0]
    assert revisions["logq"][0] == -0.5
    assert np.isnan(revisions["old_logq"][0])


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_are_whole(seed):
    """Reveals and remasks in random turns: together the two tables are everything that happened."""
    rng = np.random.default_rng(seed)
    recorder, history = TraceRecorder(), {}
    for sample, order in ((0, 0), (0, 1), (1, 0)):
        held, told, step = {}, [], 0
        for forward in range(12):
            free = [p for p in range(4) if p not in held]
            take_back = bool(held) and (not free or rng.random() < 0.4)
            if take_back:
                position = int(rng.choice(list(held)))
                recorder.add_revisions(remask(sample, order, forward, position, held.pop(position)))
                told.append(("remask", forward, position))
            else:
                position, token = int(rng.choice(free)), int(rng.integers(100))
                tried = int(rng.integers(5))
                recorder.add_reveals(reveal(sample, order, step, forward, position, token, tried=tried))
                held[position] = token
                told.append(("reveal", forward, position, token, tried))
                step += 1
        history[sample, order] = told, held
    reveals, revisions = recorder.columns()
    for (sample, order), (told, held) in history.items():
        mine = (reveals["sample"] == sample) & (reveals["order"] == order)
        one = {name: values[mine] for name, values in reveals.items()}
        assert one["step"].tolist() == list(range(int(mine.sum())))
        assert (np.diff(one["forward"]) > 0).all()
        shown = [event for event in told if event[0] == "reveal"]
        last = {event[2]: event for event in shown}
        assert sorted(rows(one, "position", "token_id", "forward")) == sorted(
            (position, event[3], event[1]) for position, event in last.items()
        )
        assert {p: t for p, t, _ in rows(one, "position", "token_id", "forward") if p in held} == held
        assert one["n_lookahead"].sum() == sum(event[4] for event in shown)
        there = (revisions["sample"] == sample) & (revisions["order"] == order)
        changed = {name: values[there] for name, values in revisions.items()}
        wanted = sorted((event[1], event[2], event[0]) for event in told if last.get(event[2]) is not event)
        assert rows(changed, "forward", "position", "event") == wanted
