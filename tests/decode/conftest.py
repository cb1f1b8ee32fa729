"""Models with a fault, for the tests of decoding."""

from __future__ import annotations

import pytest

from orderlens.errors import DeviceMemoryError


@pytest.fixture
def forgetful():
    """Return a function that lets a model run out of memory again and again, and the list of failures."""
    failures: list[int] = []

    def make(model, every):
        """Every ``every``-th evaluation fails, unless it is of one or two states."""
        open_session, calls = model.open_session, 0

        def open_cramped():
            session = open_session()
            evaluate = session.evaluate

            def sometimes(states):
                nonlocal calls
                calls += 1
                if calls % every == 0 and len(states.slots_N) > 2:
                    failures.append(len(states.slots_N))
                    raise DeviceMemoryError("no room")
                return evaluate(states)

            session.evaluate = sometimes
            return session

        model.open_session = open_cramped
        return model

    return make, failures
