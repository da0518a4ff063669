"""Insert ids: which ones can be reused after a refusal."""

from __future__ import annotations

import pytest
from replay_client._transport.insert_ids import InsertIds
from replay_client.errors import LimitedError


def id_after_a_refusal(attempts: int, reason: str) -> tuple[bytes, int, bytes, int]:
    """Writer id and sequence number of a refused insert, and of the next insert."""
    ids = InsertIds()
    refusal = LimitedError("refused", reason=reason)
    refusal.attempts = attempts
    with pytest.raises(LimitedError), ids.lend() as lent:
        raise refusal
    with ids.lend() as following:
        return lent.writer_id, lent.sequence, following.writer_id, following.sequence


def test_ids_count_the_inserts_that_were_applied() -> None:
    ids = InsertIds()
    with ids.lend() as first:
        first_id, first_sequence = first.writer_id, first.sequence
    with ids.lend() as second:
        assert (second.writer_id, second.sequence) == (first_id, first_sequence + 1)


def test_an_insert_that_was_refused_without_effect_leaves_its_number_to_the_next() -> None:
    refused_id, refused_sequence, writer_id, sequence = id_after_a_refusal(1, "LIMITED")
    assert (writer_id, sequence) == (refused_id, refused_sequence)


@pytest.mark.parametrize(("attempts", "reason"), [(2, "LIMITED"), (1, "NO_SPACE")])
def test_an_insert_whose_outcome_is_unknown_takes_its_id_along(attempts: int, reason: str) -> None:
    """An earlier attempt may have been applied: with the same id, the server would treat the next rows as a retry."""
    refused_id, _, writer_id, sequence = id_after_a_refusal(attempts, reason)
    assert writer_id != refused_id
    assert sequence == 1
