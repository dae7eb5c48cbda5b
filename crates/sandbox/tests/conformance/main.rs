//! What every backend does, whatever its sandboxes are made of. One function for each behaviour;
//! every sandbox here is a real one.

mod fixture;
mod lifetime;
mod limits;
mod tools;

/// Makes a test of each behaviour for the backend that `$fresh` sets up.
macro_rules! conformance {
    ($backend:ident, $fresh:path: $($module:ident :: $behaviour:ident,)*) => {
        mod $backend {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $behaviour() {
                    // Where the host cannot give such sandboxes, the fixture has checked that the
                    // backend says so and leaves nothing behind.
                    if let Some(fixture) = $fresh().await {
                        super::$module::$behaviour(&fixture).await;
                        fixture.close().await;
                        fixture.assert_nothing_left();
                    }
                }
            )*
        }
    };
}

/// What holds inside a sandbox, wherever it came from.
macro_rules! for_every_behaviour_inside {
    ($backend:ident, $fresh:path $(, $($module:ident :: $behaviour:ident,)*)?) => {
        conformance! { $backend, $fresh:
            tools::the_first_command_speaks,
            tools::a_command_runs_whoever_waits_for_it,
            tools::who_waits_for_a_command_is_no_way_in,
            tools::tools_run_on_every_processor,
            tools::every_interpreter_runs,
            tools::files_are_written_and_read,
            tools::file_tools_stay_in_the_workspace,
            tools::tools_are_another_user_without_privileges,
            tools::there_is_no_network_but_loopback,
            tools::the_report_tells_the_level,
            limits::memory_is_bounded_and_the_sandbox_goes_on,
            limits::processes_are_bounded_and_the_sandbox_goes_on,
            limits::a_full_disk_is_full_inside_only,
            limits::a_time_limit_ends_everything,
            $($($module::$behaviour,)*)?
        }
    };
}

macro_rules! for_every_behaviour {
    ($backend:ident, $fresh:path) => {
        for_every_behaviour_inside! { $backend, $fresh,
            lifetime::a_stopped_sandbox_is_gone,
            lifetime::a_failed_start_leaves_nothing,
            lifetime::a_sandbox_outlives_who_started_it,
            lifetime::a_killed_sandbox_is_noticed_and_removed,
            lifetime::a_removed_sandbox_is_gone,
            lifetime::a_sweep_removes_all_but_what_is_kept,
            lifetime::a_sandbox_left_alone_ends_itself,
        }
    };
}

for_every_behaviour!(namespace, crate::fixture::namespace);
for_every_behaviour!(gvisor, crate::fixture::gvisor);
// How these begin and end is tried from end to end: they are known outside by two names.
for_every_behaviour_inside!(made_ahead, crate::fixture::made_ahead);
