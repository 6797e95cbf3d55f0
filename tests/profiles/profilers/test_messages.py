"""The cost of a message at its ends, by two ranks that send to each other."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from meshwright.profiles.profilers import messages

from ...runtime.fork import fork

NUM_BYTES = 1 << 16


def test_every_rank_spends_time_on_each_message() -> None:
    for samples in fork(2, lambda rank: messages.ends(NUM_BYTES, 1.0)):
        assert len(samples) == 2 * messages.CALLS
        assert all(0 < seconds < 1.0 for seconds in samples)


def test_messages_are_short_and_long_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.1 ms and 1 ns a byte, of half a core."""
    monkeypatch.setattr(messages, "_end_s", lambda num_bytes: 1e-4 + 1e-9 * num_bytes)
    assert messages.line(messages.ends(NUM_BYTES, 0.5), NUM_BYTES) == pytest.approx([2e-4, 0.5e9])


def test_a_rank_of_half_a_core_takes_twice_the_seconds() -> None:
    assert messages.line([0.4, 1.8], NUM_BYTES) == pytest.approx([0.2, NUM_BYTES / 0.2])
    assert messages.line([0.8, 3.6], NUM_BYTES) == pytest.approx([0.4, NUM_BYTES / 0.4])


def test_neither_the_call_nor_a_byte_takes_less_than_nothing() -> None:
    assert messages.line([0.4, 0.3], NUM_BYTES) == (0.4, float("inf"))
    assert messages.line([0.1, 1.6], NUM_BYTES)[0] == 0.0
