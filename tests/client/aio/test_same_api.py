"""Tests of the synchronous client that also run over the client for asyncio.

What both clients share is tested there. These tests protect what asyncio does differently: sending, receiving and
waiting.
"""

# ruff: noqa: F401

from tests.client.connection.test_restart import (
    durable,
    go,
    test_a_sampler_goes_on_and_its_updates_hold,
    test_a_server_that_lost_its_tables_is_not_mistaken_for_the_old_one,
    test_single_inserts_lose_and_double_nothing,
)
from tests.client.connection.test_time_limits import test_the_first_calls_of_clients_end_in_time_if_the_server_hangs
from tests.client.data.test_parquet import (
    copy,
    file,
    test_every_dtype_and_shape_comes_back_bit_by_bit,
)
from tests.client.rows.test_torch import (
    test_a_sampler_with_a_device_gives_tensors,
    test_an_update_before_the_end_is_sent,
    test_arrays_handed_over_may_be_reused_at_once,
    test_its_errors_come_with_the_next_batch,
    test_its_updates_are_in_force_for_the_draws_after_them,
    test_on_a_gpu_the_tensors_are_there,
    test_priorities_on_the_gpu_are_not_waited_for,
)
from tests.client.tables.test_channels import (
    name,
    test_a_name_that_was_dropped_begins_anew,
    test_a_reader_waits_for_the_first_and_for_newer_ones,
    test_the_newest_of_many_is_read,
    test_time_limits_end_the_wait,
)
from tests.client.tables.test_episodes import (
    test_a_drawn_row_leads_to_its_episode,
    test_an_episode_of_a_row_that_is_not_live_has_no_rows,
)
from tests.client.tables.test_mixed_sampler import (
    names,
    tables,
    test_a_table_without_rows_is_named_and_what_the_others_drew_is_kept,
    test_batches_have_rows_of_every_table_and_updates_go_to_theirs,
)
from tests.client.tables.test_row_reader import (
    test_episodes_come_whole_and_in_order_of_their_steps,
)
from tests.client.tables.test_sampler import (
    telling,
    test_a_batch_knows_of_all_updates_but_the_last_few,
    test_a_dropped_table_and_a_new_one_are_told_apart,
    test_a_sampler_may_wait_for_rows,
    test_an_empty_table_is_said_to_be_empty_until_it_is_not,
    test_an_update_that_the_server_refuses_is_raised_once,
    test_batches_asked_for_together_know_of_as_many_updates_or_more,
    test_flush_gives_up_in_time_and_goes_on_later,
    test_flush_waits_for_updates_and_keeps_the_batches,
    test_leaving_the_block_sends_the_last_update,
    test_the_server_is_told_how_many_batches_were_on_their_way,
)
from tests.client.tables.test_table import (
    test_a_batch_says_what_it_is,
    test_an_empty_table_has_nothing_to_draw,
    test_more_keys_than_one_call_takes_go_in_several,
    test_more_rows_than_the_ring_can_spare_are_all_inserted,
    test_only_live_keys_are_read,
    test_reset_takes_the_rows_and_leaves_the_table,
    test_rows_come_back_as_they_went,
)
from tests.client.tables.test_updated_rows import (
    test_a_batch_asked_for_later_has_the_new_values,
    test_a_row_has_the_values_that_were_written_last,
    test_a_sampler_with_a_device_takes_tensors,
    test_what_cannot_be_written_is_named_and_changes_nothing,
)
from tests.client.tables.test_writer import (
    test_a_row_does_not_wait_for_its_block_to_fill,
    test_a_writer_of_a_dropped_table_says_so_and_keeps_its_rows,
    test_an_error_of_the_block_is_not_hidden,
    test_an_unused_writer_and_one_closed_twice_are_no_problem,
    test_append_waits_rather_than_grow_while_the_server_is_slow,
    test_rows_arrive_once_each_and_in_order,
)
from tests.client.tables.test_writer_streams import (
    test_a_row_for_each_stream_at_once,
    test_more_streams_than_rows_in_a_block,
    test_rows_of_all_streams_arrive_once_and_in_their_order,
)

ALL_DATA_PATHS = True
