//! What every store must do, one function a rule, run against each kind of store.
//!
//! [`World::tell`] compares every record with what another store on the same ledger reads; [`audit`] looks at the whole
//! ledger afterwards. What is left to a rule is to say what must come of its commands.

mod audit;
mod batches;
mod claims;
mod clocks;
mod counts;
mod damage;
mod doubt;
mod journal;
mod keeping;
mod lanes;
mod lists;
mod names;
mod notes;
mod people;
mod records;
mod recovery;
mod seals;
mod transfer;
mod watching;

pub use audit::audit;

use crate::world::{Kind, World};

/// Runs one rule on a ledger of its own.
async fn check(kind: Kind, audited: bool, rule: impl AsyncFnOnce(&World)) {
    let world = World::new(kind).await;
    rule(&world).await;
    if audited {
        audit(&world.other).await;
    }
    world.end().await;
}

macro_rules! on_store {
    ($store:ident $kind:ident $audited:literal $($subject:ident { $($rule:ident)* })*) => {
        mod $store {
            $(mod $subject {
                use crate::conformance::{Kind, check, $subject};
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $rule() {
                        check(Kind::$kind, $audited, $subject::$rule).await;
                    }
                )*
            })*
        }
    };
}

macro_rules! every_store {
    ($($rules:tt)*) => {
        on_store! { memory Memory true $($rules)* }
        on_store! { sqlite Sqlite true $($rules)* }
        on_store! { remembering Remembering true $($rules)* }
        on_store! { postgres Postgres true $($rules)* }
        on_store! { pgbouncer PgBouncer true $($rules)* }
    };
}

/// The database's clock cannot be set wrong from here.
macro_rules! stores_with_a_clock_of_ours {
    ($($rules:tt)*) => {
        on_store! { memory_by_the_clock Memory true $($rules)* }
        on_store! { sqlite_by_the_clock Sqlite true $($rules)* }
    };
}

/// Memory has no tables to change by hand; and what was changed is not audited.
macro_rules! stores_with_tables {
    ($($rules:tt)*) => {
        on_store! { sqlite_by_hand Sqlite false $($rules)* }
        on_store! { remembering_by_hand Remembering false $($rules)* }
        on_store! { postgres_by_hand Postgres false $($rules)* }
        on_store! { pgbouncer_by_hand PgBouncer false $($rules)* }
    };
}

every_store! {
    notes {
        notes_are_kept_by_kind_and_name
        keys_for_a_purpose_are_the_same_for_everybody
    }
    names {
        s3_names_of_any_characters_survive
        s3_names_that_differ_a_little_are_different_intents
    }
    claims {
        s1_64_callers_of_one_key_get_one_permit
        s1_repetitions_among_first_claims_get_the_first_answer
        s5_other_input_is_refused_while_something_may_have_been_sent
        s5_other_input_is_a_correction_where_nothing_was_sent
        s4_another_recipe_is_told_the_first_one
        s7_a_claim_is_visible_to_everybody_at_once
        s29_what_others_changed_is_seen_at_once
        s11_fences_grow_over_attempts_and_generations
        s11_a_stale_report_cannot_write
        s11_of_two_who_believe_the_same_only_one_writes_what_it_decided
        s12_the_same_claim_gets_the_same_permit
        s12_the_same_report_is_taken_once
        s14_what_was_agreed_first_stands
        a_wrong_belief_is_put_right
        an_intent_that_is_gone_is_not_invented
    }
    batches {
        commands_about_one_intent_keep_their_order
        nothing_at_all_is_a_batch_too
        a_batch_may_mention_an_intent_many_times
        s12_the_same_batch_again_changes_nothing
        a_thousand_at_once_are_not_too_many
        a_word_that_cannot_be_kept_does_not_take_its_batch_with_it
    }
    records {
        an_attempt_and_its_answer_survive
        s20_a_body_that_was_not_kept_survives
        s18_a_refusal_and_how_long_it_is_given_again_survive
        s30_an_approval_by_two_survives
        s11_a_kept_answer_and_evidence_survive
        s24_what_is_known_of_a_lookup_survives
        s31_requests_survive_until_the_next_generation
        s31_requests_of_every_length_survive
        s29_answers_of_earlier_generations_survive
        everything_is_there_after_a_restart
        times_and_figures_of_every_policy_survive
    }
    lanes {
        s15_one_at_a_time
        s15_what_waits_is_sorted_by_version
        s15_a_place_lapses_unless_it_is_asked_for_again
        s15_an_older_snapshot_is_superseded
        s15_equal_snapshots_take_turns_as_they_came
        s15_a_late_one_is_marked
        s15_doubt_holds_the_lane
        s15_a_review_blocks_or_lets_pass
        s15_a_forgotten_intent_does_not_keep_its_lane
        s15_many_callers_of_one_lane_take_turns
        s15_what_was_accepted_waits_in_order_and_keeps_its_place
        s31_the_agenda_is_read_page_by_page
    }
    doubt {
        s23_a_lapsed_lease_is_decided_by_whoever_meets_it_first
        s23_a_sweep_finds_what_lapsed
        s23_a_sweep_finds_later_permits_too
        s24_repeat_is_tried_again
        s24_a_native_key_is_sent_again_only_in_time
        s24_a_lookup_is_due_and_counts_when_nothing_can_arrive
        s26_retries_and_accepted_intents_come_due
    }
    people {
        s30_nothing_goes_before_a_person_said_yes
        s30_nobody_said_yes_in_time
        s30_the_first_decision_stands
        s12_a_resolution_is_taken_once
        s26_a_person_decides_a_review
        s29_a_reset_starts_a_generation
        s32_what_was_undone_stays_undone
    }
    keeping {
        s28_answers_then_tombstones_go
        s28_what_went_and_came_back_is_another_one
        s28_nothing_goes_while_its_work_is_open
        s28_what_cannot_go_yet_is_looked_at_later
        s40_what_is_forgotten_still_deduplicates
        s40_what_is_forgotten_can_start_afresh
    }
    journal {
        s40_every_transition_has_its_row
        s40_words_of_any_kind_are_chained
        s40_a_long_journal_is_whole
    }
    lists {
        every_filter_finds_its_own
        what_nothing_can_be_called_finds_nothing
        pages_join_without_gap_or_overlap
        lists_by_time_join_too
        a_filter_that_matches_little_reads_no_more_than_people_wait_for
        scopes_are_found_by_prefix
        the_steps_of_a_work_are_listed_oldest_first
    }
    counts {
        standing_counts_follow_every_change
        doors_can_count_what_they_care_about
        events_are_counted_once
        counts_are_the_same_before_and_after_they_are_added_up
        replays_waits_and_mismatches_are_counted
        recoveries_are_counted_with_their_time
    }
    watching {
        s8_a_change_through_another_store_is_noticed
        s8_a_change_through_the_same_store_is_noticed
        s8_a_change_that_came_before_the_wait_is_noticed
        s8_a_change_whose_caller_went_away_is_noticed
        s8_many_wait_for_many
    }
    transfer {
        a_ledger_is_the_same_in_every_other_store
        an_excerpt_has_one_scope_and_what_is_below_it
        an_export_shows_one_moment
        what_happened_is_adopted
    }
    recovery {
        s43_a_ledger_that_lost_its_tail_doubts_what_it_does_not_know
    }
}

stores_with_a_clock_of_ours! {
    clocks {
        s10_ledger_time_never_runs_backwards
        s10_a_jump_ends_nothing
        s10_who_was_idle_does_not_move_the_others
        s24_a_jump_does_not_make_a_lookup_count
        s24_a_destination_may_have_forgotten_what_the_clock_says_it_has
        s28_a_clock_that_is_years_ahead_makes_no_key_new
    }
}

stores_with_tables! {
    damage {
        a_row_that_cannot_be_read_does_not_take_its_batch_with_it
        a_row_with_another_name_is_nobodys_answer
        s1_a_ledger_found_by_other_hashes_is_not_opened
        a_row_that_cannot_be_written_does_not_take_its_batch_with_it
        s40_a_changed_row_is_found
        s40_a_deleted_row_is_found
        s40_a_cut_end_is_found
        half_a_request_is_not_sent
        s40_forgotten_text_is_nowhere
        s1_uniqueness_is_a_constraint
        s28_what_is_replicated_is_swept_too
    }
    seals {
        s49_a_changed_record_is_not_acted_on
        s49_a_changed_answer_is_not_given_again
        s49_a_changed_request_is_not_sent
        s49_what_is_put_back_fits_again
        s49_a_journal_that_is_cut_and_put_together_again_does_not_fit
        s49_a_record_that_moved_to_another_name_does_not_fit
        s49_an_edited_export_does_not_fit_its_seal
        s49_an_export_says_which_records_do_not_fit
        s40_forgetting_takes_everything_that_was_said
        s15_a_lane_goes_when_nobody_is_in_it_any_more
    }
}
