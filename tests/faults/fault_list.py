"""The faults that a run must survive, and the tests in which each of them happens.

A test belongs here if it asks for `evidence`: it counts how often its fault happened, as measured, and what it checked
after it. Numbers are those of the list of faults; what has a name came later.
"""

from __future__ import annotations

from tests.faults.recorder import Fault

RECOVERY = "tests/on_ray/test_recovery.py::test_"
STEPS = "tests/on_ray/test_steps.py::test_"
PIPELINES = "tests/on_ray/test_pipelines_on_ray.py::test_"
PROCESSES = "tests/on_ray/test_broken_processes.py::test_"
RESUMING = "tests/on_ray/test_resuming.py::test_"
USER_CODE = "tests/on_ray/test_user_code.py::test_"
FULL_DISK = "tests/on_ray/test_full_disk.py::test_"
LOOPS = "tests/on_ray/test_loops.py::test_"
SHARED = "tests/on_ray/test_shared_ring.py::test_"
STORES = "tests/stores/test_faults.py::test_"
OPENING = "tests/stores/test_opening.py::test_"
OBJECTS = "tests/objects/test_object_faults.py::test_"
MARKED = "tests/databases/test_marked_commits.py::test_"
PREPARED = "tests/databases/test_prepared_commits.py::test_"
DRAWN = "tests/on_ray/test_drawn_on_ray.py::test_a_drawn_flow_gives_the_same_though_its_processes_are_killed"
DAEMONS = "tests/on_ray/test_daemons.py::test_a_run_waits_for_a_daemon_and_survives_the_death_of_another"
CLUSTER = "tests/on_ray/test_lost_cluster.py::test_a_run_whose_cluster_is_lost_goes_on_in_another_one"

DRAWN_SEEDS = (1, 12, 17)
"""Together they have every shape: loops within each other, entangled, with two back edges; iterations, nested too."""

FAULTS = (
    Fault(1, "death of a task: source, head, body, sink", (f"{RECOVERY}each_role_may_die_in_its_turn",)),
    Fault(
        2,
        "death at each step of a cut and of a recovery",
        (
            f"{STEPS}a_process_that_dies_at_a_step_of_a_cut",
            f"{STEPS}a_process_that_dies_while_it_restores_is_replaced_as_well",
            f"{STEPS}a_process_that_dies_before_it_has_reported_its_mailbox_leaves_no_folder",
        ),
    ),
    Fault(3, "death of a Ray node", (f"{DAEMONS}[daemon]",)),
    Fault(4, "death of the GCS", (f"{CLUSTER}[gcs_server]",)),
    Fault(5, "death of the driver", (f"{RESUMING}a_driver_that_is_killed_leaves_no_process_and_the_run_goes_on",)),
    Fault(
        6,
        "two coordinators of one job",
        (f"{RESUMING}of_two_runs_of_one_job_the_later_says_that_it_takes_over_and_the_other_is_fenced",),
    ),
    Fault(
        7,
        "a zombie",
        (
            "tests/on_ray/test_actor_loop.py::test_messages_of_another_attempt_are_counted_and_without_effect",
            f"{PROCESSES}a_zombie_that_wakes_up_when_another_run_is_through_changes_nothing",
        ),
    ),
    Fault(
        9,
        "a message lost, doubled, swapped, damaged",
        (
            "tests/on_ray/test_broken_channels.py::test_two_batches_that_are_swapped_fail_the_attempt",
            f"{PROCESSES}a_batch_that_was_disturbed_costs_an_attempt_and_no_record",
        ),
    ),
    Fault(10, "a slow task", (f"{PROCESSES}a_process_that_stands_still_for_a_while_costs_a_cut_and_no_attempt",)),
    Fault(
        11,
        "a late acknowledgement of an aborted epoch",
        (f"{STEPS}a_late_acknowledgement_of_an_aborted_epoch_completes_nothing",),
    ),
    Fault(
        12,
        "a periodic cut and a savepoint overlap",
        (f"{STEPS}a_savepoint_and_a_periodic_cut_that_overlap_are_both_complete",),
    ),
    Fault(13, "nested, entangled and shared loops, killed", tuple(f"{DRAWN}[{seed}]" for seed in DRAWN_SEEDS)),
    Fault(
        14,
        "a source that is idle, and one that has ended",
        (f"{RECOVERY}a_death_while_a_source_has_ended_and_another_is_idle_loses_nothing",),
    ),
    Fault(15, "a crash near the end of a loop", (f"{RECOVERY}a_death_near_the_end_loses_nothing",)),
    Fault(
        16,
        "a loop that grows, with tiny queues",
        (
            f"{LOOPS}a_loop_that_doubles_ten_times_with_credit_for_one_batch_finishes_in_bounded_memory",
            f"{LOOPS}a_loop_that_outgrows_its_disk_fails_the_run_in_words",
        ),
    ),
    Fault(
        17,
        "a full disk",
        (
            f"{FULL_DISK}a_run_whose_disk_is_full_fails_in_words_and_goes_on_later",
            f"{FULL_DISK}epochs_that_find_no_room_are_given_up_and_the_run_goes_on_when_there_is_some",
        ),
    ),
    Fault(
        18,
        "a snapshot that is torn or half written",
        (
            f"{STORES}a_file_cut_at_any_length_is_refused_by_its_path",
            "tests/stores/test_deaths.py::test_a_death_in_any_write_leaves_every_cut_whole_or_not_complete",
        ),
    ),
    Fault(
        19,
        "a flipped bit in each file of a cut",
        (
            f"{STORES}a_flipped_bit_is_refused_by_the_files_path",
            f"{RESUMING}a_file_that_was_damaged_fails_the_run_at_once_with_its_path",
        ),
    ),
    Fault(
        20,
        "a manifest or the job's file is missing",
        (
            f"{STORES}a_missing_file_is_told_by_its_path_and_no_earlier_cut_is_taken",
            f"{OPENING}a_lost_identity_is_told_and_no_new_one_is_made",
        ),
    ),
    Fault(
        21,
        "a commit fails, loses its answer, comes late",
        (
            f"{MARKED}a_commit_that_fails_for_good_keeps_its_records_until_the_table_takes_them",
            f"{MARKED}a_repeated_commit_changes_nothing",
            f"{MARKED}a_writer_of_an_earlier_attempt_commits_nothing_more",
            f"{PREPARED}a_step_whose_reply_is_lost_has_happened_or_not",
        ),
    ),
    Fault(
        22,
        "a poison record",
        (
            f"{USER_CODE}a_poison_record_fails_the_run_at_once_and_the_mended_function_goes_on",
            f"{USER_CODE}records_that_fail_are_set_aside_exactly_once_though_processes_die",
        ),
    ),
    Fault(
        23,
        "state that cannot be serialised",
        (f"{USER_CODE}state_that_does_not_pickle_fails_the_run_and_leaves_the_cuts_before_intact",),
    ),
    Fault(
        24,
        "another graph or parallelism at a restore",
        (
            "tests/on_ray/test_changed_graphs.py::"
            "test_a_changed_flow_goes_on_from_the_cut_and_again_if_it_is_killed_before_its_own_first_cut",
            f"{RESUMING}a_run_goes_on_under_another_parallelism",
        ),
    ),
    Fault(
        25,
        "one pipeline of two dies",
        (f"{PIPELINES}one_pipeline_dies_and_the_other_keeps_its_attempt_and_its_processes",),
    ),
    Fault(
        28,
        "names that lead out of the folder, and links",
        (
            "tests/graphs/test_operator_errors.py::test_name_that_is_no_folder_name_is_refused_everywhere",
            f"{OPENING}a_job_of_a_bad_name_is_refused_and_nothing_is_written",
            f"{STORES}nothing_is_written_through_a_planted_link",
        ),
    ),
    Fault(
        29,
        "a forged manifest, a wrong key, no signature",
        (
            f"{STORES}a_planted_pickle_is_never_run",
            f"{STORES}with_a_key_even_a_forgery_of_everything_is_refused",
            f"{OPENING}a_store_is_opened_with_the_key_it_was_made_with",
        ),
    ),
    Fault(
        "supervisor", "the supervisor is lost", (f"{RECOVERY}a_supervisor_that_dies_is_replaced_and_the_run_ends_once",)
    ),
    Fault(
        "stopped",
        "the supervisor is stopped, or its host stands still and wakes up",
        (
            "tests/on_ray/test_detached.py::test_a_supervisor_that_is_stopped_is_told_of_and_replaced",
            f"{RECOVERY}a_supervisor_that_is_stopped_between_two_attempts_is_replaced",
            "tests/on_ray/test_daemons.py::"
            "test_a_supervisor_whose_host_stands_still_is_replaced_and_harms_nothing_when_it_wakes_up",
        ),
    ),
    Fault(
        "driver",
        "the driver is interrupted",
        (f"{RESUMING}a_driver_that_is_interrupted_ends_its_run_and_leaves_a_cut",),
    ),
    Fault(
        "memory",
        "deaths and damage while processes share memory",
        (
            f"{SHARED}a_sender_that_is_killed_leaves_no_file_behind",
            f"{SHARED}memory_that_somebody_writes_to_fails_the_attempt",
            f"{SHARED}processes_that_die_while_they_share_memory_lose_nothing",
        ),
    ),
    Fault("host", "a host is lost with all its processes", (f"{DAEMONS}[host]",)),
    Fault("gcs", "the GCS is lost with the whole cluster", (f"{CLUSTER}[everything]",)),
    Fault(
        "race",
        "two runs claim one entry in an object store",
        (f"{OBJECTS}of_two_runs_that_claim_the_next_entry_one_wins",),
    ),
    Fault(
        "reply",
        "the reply to a conditional create is lost",
        (
            f"{OBJECTS}a_creation_whose_reply_is_lost_is_not_taken_for_that_of_another",
            "tests/objects/test_runs_on_objects.py::test_kills_and_failing_requests_lose_nothing_and_double_nothing",
        ),
    ),
    Fault(
        "deltas",
        "crashes and failing requests while deltas are read and written",
        (
            "tests/on_ray/test_incremental_cuts.py::"
            "test_a_process_that_dies_between_two_files_of_its_state_reads_them_again",
            "tests/objects/test_runs_on_objects.py::test_deltas_are_written_and_restored_while_requests_fail",
        ),
    ),
    Fault(
        "compaction",
        "a crash during a compaction",
        ("tests/on_ray/test_incremental_cuts.py::test_a_process_that_dies_in_a_compaction_loses_nothing",),
    ),
    Fault(
        "commit",
        "a commit is lost, or its reply",
        (
            f"{MARKED}a_commit_whose_reply_is_lost_counts_once",
            f"{STEPS}a_process_that_dies_at_a_step_of_a_cut[the commit is lost]",
        ),
    ),
    Fault(
        "postgres",
        "PostgreSQL is killed at each step",
        ("tests/databases/test_server_deaths.py::test_a_server_that_is_killed_at_a_step_loses_nothing",),
    ),
)
