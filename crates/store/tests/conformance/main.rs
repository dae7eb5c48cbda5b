//! What every store does, whichever database is under it. One function for each behaviour.

#[path = "../support/mod.rs"]
mod support;
#[path = "../support/postgres.rs"]
mod test_database;

mod access;
mod audit;
mod cancelling;
mod claiming;
mod leases;
mod listing;
mod log;
mod memories;
mod network;
mod steering;

use std::sync::Arc;

use bellglass_store::{SqliteStore, Store};
use tempfile::TempDir;
use test_database::TestDatabase;

/// Makes a test of each behaviour for the database that `$fresh` opens empty.
macro_rules! conformance {
    ($database:ident, $fresh:path: $($module:ident :: $behaviour:ident,)*) => {
        mod $database {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
                async fn $behaviour() {
                    let (store, _guard) = $fresh().await;
                    super::$module::$behaviour(store).await;
                }
            )*
        }
    };
}

macro_rules! for_every_behaviour {
    ($database:ident, $fresh:path) => {
        conformance! { $database, $fresh:
            access::tokens_hold_until_they_run_out_or_are_revoked,
            access::jobs_are_listed_by_whose_they_are,
            access::what_a_user_has_used_is_counted,
            access::a_share_key_is_kept_until_it_is_dropped,
            access::projects_of_one_name_are_told_apart_by_whose_they_are,
            audit::changes_of_the_server_are_in_one_chain,
            claiming::higher_priority_first_then_older,
            claiming::nothing_to_claim_is_no_error,
            claiming::no_job_is_claimed_twice,
            claiming::a_claim_shows_the_job_with_the_claim_in_it,
            leases::a_lease_keeps_others_away,
            leases::a_job_whose_lease_ran_out_is_taken_over,
            leases::a_predecessor_is_fenced_off,
            leases::renewing_reports_what_was_lost,
            leases::a_renewed_lease_holds,
            leases::released_leases_can_be_claimed_at_once,
            leases::a_worker_that_starts_again_goes_on_with_what_it_held,
            leases::a_worker_knows_what_it_holds_and_others_where_it_is,
            cancelling::a_waiting_job_ends_at_once,
            cancelling::a_running_job_gets_one_event,
            cancelling::an_ended_job_stays_as_it_is,
            cancelling::a_cancelled_job_without_holder_is_still_claimed,
            cancelling::an_unknown_job_is_not_found,
            memories::memories_are_kept_found_and_forgotten,
            steering::a_paused_job_stays_paused_in_other_hands,
            steering::wishes_that_cannot_be_are_refused,
            log::pages_are_exact_and_the_chain_holds,
            log::a_page_is_bounded_by_bytes_too,
            log::a_claim_carries_no_texts,
            log::many_writers_share_one_log_store,
            log::an_append_is_all_or_nothing,
            log::nothing_comes_after_the_end,
            log::only_the_holder_appends,
            log::an_unknown_job_has_no_log,
            log::times_never_run_backwards,
            log::changes_are_told_after_they_are_readable,
            network::a_change_is_told_and_outlives_its_holder,
            network::only_a_living_job_is_given_another_policy,
            listing::newest_first_in_pages,
            listing::by_status,
            listing::search_takes_text_literally,
            listing::search_finds_text_beyond_the_title,
            listing::text_with_a_character_of_number_0_is_kept,
            listing::the_index_agrees_with_the_log,
            listing::every_status_is_counted,
            listing::only_what_has_ended_is_forgotten,
            listing::what_another_job_goes_on_from_is_kept,
            listing::nothing_goes_on_from_what_is_about_to_be_forgotten,
            listing::a_fork_and_its_parents_end_do_not_pass_each_other,
        }
    };
}

for_every_behaviour!(sqlite, crate::open_sqlite);
for_every_behaviour!(postgres, crate::open_postgres);

async fn open_sqlite() -> (Arc<dyn Store>, TempDir) {
    let dir = TempDir::new().unwrap();
    let store = SqliteStore::open(&dir.path().join("store.db")).await.unwrap();
    store.ping().await.unwrap();
    (Arc::new(store), dir)
}

async fn open_postgres() -> (Arc<dyn Store>, TestDatabase) {
    let database = TestDatabase::create().await;
    let store = database.open().await;
    store.ping().await.unwrap();
    (Arc::new(store), database)
}
