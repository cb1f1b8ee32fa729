"""An interrupt waits for the running step; a second one does not."""

from __future__ import annotations

import signal

import pytest

from orderlens.training.steps import DeferredSignals


@pytest.fixture(autouse=True)
def interruptible():
    """A process in the background of a shell may have been started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_signal_waits_until_it_is_delivered():
    with DeferredSignals() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.pending == signal.SIGINT
    with pytest.raises(KeyboardInterrupt):
        stop.deliver()


def test_a_second_signal_acts_at_once_and_handlers_come_back():
    before = signal.getsignal(signal.SIGINT)
    with DeferredSignals() as stop:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert stop.pending == signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is before


def test_a_quiet_block_delivers_nothing():
    with DeferredSignals() as stop:
        pass
    assert stop.pending is None
    stop.deliver()  # raises nothing
