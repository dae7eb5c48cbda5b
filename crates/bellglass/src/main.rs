//! The one executable: server, worker and client, each a subcommand.
//!
//! The only crate that reads the environment and the configuration file.

// Before all others: it replaces `println!` and `eprintln!` in them.
#[macro_use]
mod output;
mod plain_output;
mod port_range;

mod api_client;
mod cli;
mod cluster_config;
mod commands;
mod config;
mod elsewhere;
mod exit;
mod host_network;
mod image_registries;
mod image_retention;
mod installation;
mod live_files;
mod live_streams;
mod logging;
mod mcp_config;
mod model_config;
mod progress;
mod proxy_config;
mod render;
mod run_folder;
mod secret_config;
mod storage_config;
mod telemetry;
mod worker_name;

use clap::Parser as _;

/// Most of what the server does under load is to make and drop small texts.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use exit::Exit;

fn main() -> std::process::ExitCode {
    let arguments = cli::Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("bellglass: cannot start: {error}");
            return Exit::Failure.into();
        }
    };
    let exit = match runtime.block_on(commands::run(arguments)) {
        Ok(exit) => match output::failure() {
            Some(error) => {
                eprintln!("bellglass: cannot write to standard output: {error}");
                Exit::Failure
            }
            None => exit,
        },
        Err(error) => {
            // One line for each cause: the first says what failed, the others why.
            eprintln!("bellglass: {error}");
            error.chain().skip(1).for_each(|cause| eprintln!("  because: {cause}"));
            exit::of_error(&error)
        }
    };
    // Blocking work that nobody waits for any more must not hold up the exit.
    runtime.shutdown_background();
    exit.into()
}
