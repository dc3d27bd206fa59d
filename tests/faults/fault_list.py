"""The faults that a run must survive, and the tests in which each of them happens.

A test belongs here if it asks for `evidence`: it counts how often its fault happened, as measured, and what it checked
after it. Numbers are those of the list of faults; what has a name came later.
"""

from __future__ import annotations

from dataclasses import dataclass, field

LIST = """
1: death of a task: source, head, body, sink
  on_ray/recovery each_role_may_die_in_its_turn
2: death at each step of a cut and of a recovery
  on_ray/steps a_process_that_dies_at_a_step_of_a_cut
  on_ray/steps a_process_that_dies_while_it_restores_is_replaced_as_well
  on_ray/steps a_process_that_dies_before_it_has_reported_its_mailbox_leaves_no_folder
3: death of a Ray node
  on_ray/daemons a_run_waits_for_a_daemon_and_survives_the_death_of_another[daemon]
4: death of the GCS
  on_ray/lost_cluster a_run_whose_cluster_is_lost_goes_on_in_another_one[gcs_server]
5: death of the driver
  on_ray/resuming a_driver_that_is_killed_leaves_no_process_and_the_run_goes_on
  on_ray/detached a_run_outlives_its_driver_a_task_and_its_supervisor
6: two coordinators of one job
  on_ray/resuming of_two_runs_of_one_job_the_later_says_that_it_takes_over_and_the_other_is_fenced
7: a zombie
  on_ray/actor_loop messages_of_another_attempt_are_counted_and_without_effect
  on_ray/broken_processes a_zombie_that_wakes_up_when_another_run_is_through_changes_nothing
9: a message lost, doubled, swapped, damaged
  on_ray/actor_loop a_batch_that_is_disturbed_fails_the_attempt
  on_ray/broken_processes a_batch_that_was_disturbed_costs_an_attempt_and_no_record
10: a slow task
  on_ray/broken_processes a_process_that_stands_still_for_a_while_costs_a_cut_and_no_attempt
11: a late acknowledgement of an aborted epoch
  on_ray/steps a_late_acknowledgement_of_an_aborted_epoch_completes_nothing
12: a periodic cut and a savepoint overlap
  on_ray/steps a_savepoint_and_a_periodic_cut_that_overlap_are_both_complete
13: nested, entangled and shared loops, killed
  on_ray/drawn_on_ray a_drawn_flow_gives_the_same_though_its_processes_are_killed[1]
  on_ray/drawn_on_ray a_drawn_flow_gives_the_same_though_its_processes_are_killed[12]
  on_ray/drawn_on_ray a_drawn_flow_gives_the_same_though_its_processes_are_killed[17]
14: a source that is idle, and one that has ended
  on_ray/recovery a_death_while_a_source_has_ended_and_another_is_idle_loses_nothing
15: a crash near the end of a loop
  on_ray/recovery a_death_near_the_end_loses_nothing
16: a loop that grows, with tiny queues
  on_ray/loops a_loop_that_doubles_ten_times_with_credit_for_one_batch_finishes_in_bounded_memory
  on_ray/loops a_loop_that_outgrows_its_disk_fails_the_run_in_words
17: a full disk
  on_ray/full_disk a_run_whose_disk_is_full_fails_in_words_and_goes_on_later
  on_ray/full_disk epochs_that_find_no_room_are_given_up_and_the_run_goes_on_when_there_is_some
18: a snapshot that is torn or half written
  stores/faults a_file_cut_at_any_length_is_refused_by_its_path
  stores/deaths a_death_in_any_write_leaves_every_cut_whole_or_not_complete
19: a flipped bit in each file of a cut
  stores/faults a_flipped_bit_is_refused_by_the_files_path
  on_ray/resuming a_file_that_was_damaged_fails_the_run_at_once_with_its_path
20: a manifest or the job's file is missing
  stores/faults a_missing_file_is_told_by_its_path_and_no_earlier_cut_is_taken
  stores/opening a_lost_identity_is_told_and_no_new_one_is_made
21: a commit fails, loses its answer, comes late
  databases/marked_commits a_commit_that_fails_for_good_keeps_its_records_until_the_table_takes_them
  databases/marked_commits each_row_is_in_postgres_once_whatever_happens[few-marked]
  databases/marked_commits each_row_is_in_postgres_once_whatever_happens[few-prepared]
  extending/connectors a_sink_publishes_each_record_once_whatever_happens[json lines-few]
  databases/prepared_commits a_step_whose_reply_is_lost_has_happened_or_not
  lakes/lake_commits of_two_processes_that_commit_a_transaction_at_the_same_time_one_does
  lakes/lake_commits a_commit_that_another_program_is_ahead_of_is_repeated
22: a poison record
  on_ray/user_code a_poison_record_fails_the_run_at_once_and_the_mended_function_goes_on
  on_ray/user_code records_that_fail_are_set_aside_exactly_once_though_processes_die
23: state that cannot be serialised
  on_ray/user_code state_that_does_not_pickle_fails_the_run_and_leaves_the_cuts_before_intact
24: another graph or parallelism at a restore
  on_ray/changed_graphs a_changed_flow_goes_on_from_the_cut_and_again_if_it_is_killed_before_its_own_first_cut
  on_ray/resuming a_run_goes_on_under_another_parallelism
25: one pipeline of two dies
  on_ray/pipelines_on_ray one_pipeline_dies_and_the_other_keeps_its_attempt_and_its_processes
28: names that lead out of the folder, and links
  graphs/operator_errors name_that_is_no_folder_name_is_refused_everywhere
  stores/opening a_job_of_a_bad_name_is_refused_and_nothing_is_written
  stores/faults nothing_is_written_through_a_planted_link
29: a forged manifest, a wrong key, no signature
  stores/faults a_planted_pickle_is_never_run
  stores/faults with_a_key_even_a_forgery_of_everything_is_refused
  stores/opening a_store_is_opened_with_the_key_it_was_made_with
supervisor: the supervisor is lost
  on_ray/recovery a_supervisor_that_dies_is_replaced_and_the_run_ends_once
  on_ray/live_rescales a_free_loop_is_rescaled_three_times_and_keeps_its_tasks_when_its_supervisor_dies
stopped: the supervisor is stopped, or its host stands still and wakes up
  on_ray/detached a_supervisor_that_is_stopped_is_told_of_and_replaced
  on_ray/recovery a_supervisor_that_is_stopped_between_two_attempts_is_replaced
  on_ray/daemons a_supervisor_whose_host_stands_still_is_replaced_and_harms_nothing_when_it_wakes_up
driver: the driver is interrupted
  on_ray/resuming a_driver_that_is_interrupted_ends_its_run_and_leaves_a_cut
memory: deaths and damage while processes share memory
  on_ray/shared_ring a_sender_that_is_killed_leaves_no_file_behind
  on_ray/shared_ring memory_that_somebody_writes_to_fails_the_attempt
  on_ray/shared_ring processes_that_die_while_they_share_memory_lose_nothing
host: a host is lost with all its processes
  on_ray/daemons a_run_waits_for_a_daemon_and_survives_the_death_of_another[host]
gcs: the GCS is lost with the whole cluster
  on_ray/lost_cluster a_run_whose_cluster_is_lost_goes_on_in_another_one[everything]
race: two runs claim one entry in an object store
  objects/object_faults of_two_runs_that_claim_the_next_entry_one_wins
reply: the reply to a conditional create is lost
  objects/object_faults a_creation_whose_reply_is_lost_is_not_taken_for_that_of_another
  objects/runs_on_objects kills_and_failing_requests_lose_nothing_and_double_nothing
deltas: crashes and failing requests while deltas are read and written
  on_ray/incremental_cuts a_process_that_dies_between_two_files_of_its_state_reads_them_again
  objects/runs_on_objects deltas_are_written_and_restored_while_requests_fail
compaction: a crash during a compaction
  on_ray/incremental_cuts a_process_that_dies_in_a_compaction_loses_nothing
commit: a commit is lost, or its reply
  databases/marked_commits a_commit_whose_reply_is_lost_counts_once
  lakes/lake_commits a_commit_whose_reply_is_lost_counts_once
  lakes/delta_on_s3 a_commit_whose_request_or_reply_is_lost_counts_once
  on_ray/steps a_process_that_dies_at_a_step_of_a_cut[the commit is lost]
postgres: PostgreSQL is killed at each step
  databases/server_deaths a_server_that_is_killed_at_a_step_loses_nothing
"""
"""A line for each fault, and under it one for each of its tests: its file, and its name or one of its parameters.

Of the drawn flows, these have every shape: loops within each other, entangled, with two back edges; iterations, nested.
"""


@dataclass(frozen=True)
class Fault:
    """One fault, by number or name, and the tests in which it happens."""

    number: str
    name: str
    tests: list[str] = field(default_factory=list[str])

    def has(self, nodeid: str) -> bool:
        """Whether this is one of its tests, under any parameters."""
        return any(nodeid == test or nodeid.startswith(f"{test}[") for test in self.tests)


def listed() -> list[Fault]:
    """The faults of the list."""
    found: list[Fault] = []
    for line in LIST.strip().splitlines():
        if line.startswith(" "):
            folder_and_file, name = line.split(maxsplit=1)
            folder, _, file = folder_and_file.partition("/")
            found[-1].tests.append(f"tests/{folder}/test_{file}.py::test_{name}")
        else:
            number, _, name = line.partition(": ")
            found.append(Fault(number, name))
    return found


FAULTS = listed()
