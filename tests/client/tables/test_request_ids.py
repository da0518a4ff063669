"""Insert ids: which ones can be reused after a refusal."""

from __future__ import annotations

import pytest
from replay_client._transport.request_ids import RequestIds
from replay_client.errors import LimitedError


def id_after_a_refusal(attempts: int, reason: str) -> tuple[bytes, int, bytes, int]:
    """Writer id and sequence number of a refused insert, and of the next insert."""
    ids = RequestIds()
    refusal = LimitedError("refused", reason=reason)
    refusal.attempts = attempts
    with pytest.raises(LimitedError), ids.lend() as lent:
        raise refusal
    with ids.lend() as following:
        return lent.sender_id, lent.sequence, following.sender_id, following.sequence


def test_ids_count_the_inserts_that_were_applied() -> None:
    ids = RequestIds()
    with ids.lend() as first:
        first_id, first_sequence = first.sender_id, first.sequence
    with ids.lend() as second:
        assert (second.sender_id, second.sequence) == (first_id, first_sequence + 1)


def test_an_insert_that_was_refused_without_effect_leaves_its_number_to_the_next() -> None:
    refused_id, refused_sequence, sender_id, sequence = id_after_a_refusal(1, "LIMITED")
    assert (sender_id, sequence) == (refused_id, refused_sequence)


@pytest.mark.parametrize(("attempts", "reason"), [(2, "LIMITED"), (1, "NO_SPACE")])
def test_an_insert_whose_outcome_is_unknown_takes_its_id_along(attempts: int, reason: str) -> None:
    """An earlier attempt may have been applied: with the same id, the server would treat the next rows as a retry."""
    refused_id, _, sender_id, sequence = id_after_a_refusal(attempts, reason)
    assert sender_id != refused_id
    assert sequence == 1
