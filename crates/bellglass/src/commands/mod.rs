//! One file for each command. Each returns how it ended; errors are for people.

mod approve;
mod attach;
mod doctor;
mod doctor_sandbox;
mod download;
mod image;
mod interruption;
mod jobs;
mod logs;
mod mcp;
mod memory;
mod network;
mod open;
mod process;
mod run;
mod serve;
mod share;
mod submit;
mod time_travel;
mod token;
mod verify;
mod work;

use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::api_client::ApiClient;
use crate::cli::{Arguments, Command};
use crate::config::Config;
use crate::exit::Exit;
use crate::logging;

/// How a command shows what it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Json,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Exit> {
    let format = if arguments.json { Format::Json } else { Format::Text };
    let config = Config::load(arguments.config.as_deref())?;
    match arguments.command {
        Command::Work(work) => {
            logging::start();
            work::work(&config, &work, format).await
        }
        Command::Serve(serve) => {
            logging::start();
            serve::serve(&config, &serve, format).await
        }
        Command::Run(run) => run::run(&config, &run, format).await,
        Command::Submit(submit) => submit::submit(&submit, format).await,
        Command::Status(one) => {
            let client = ApiClient::new(&one.server)?;
            jobs::show_status(&client, &client.status(one.job).await?, format)
        }
        Command::Logs(logs) => logs::logs(&logs, format).await,
        Command::Attach(flags) => attach::attach(&flags).await,
        Command::Cancel(one) => {
            let answer = ApiClient::new(&one.server)?.cancel(one.job).await?;
            match format {
                Format::Json => print_json(&answer)?,
                Format::Text => {
                    let status = answer["status"].as_str().unwrap_or("unknown");
                    match status {
                        "running" => println!("{}: asked to stop", one.job),
                        status => println!("{}: {status}", one.job),
                    }
                }
            }
            Ok(Exit::Success)
        }
        Command::Network(network) => network::change(&network, format).await,
        Command::Diff(diff) => time_travel::diff(&diff, format).await,
        Command::Fork(fork) => time_travel::fork(&fork, format).await,
        Command::Restore(restore) => time_travel::restore(&restore, format).await,
        Command::Download(download) => download::download(&download, format).await,
        Command::Jobs(jobs) => jobs::list(&jobs, format).await,
        Command::Approve(approve) => approve::approve(&approve, format).await,
        Command::Memory(memory) => memory::memory(&memory, format).await,
        Command::Token(token) => token::token(&token, format).await,
        Command::Share(share) => share::share(&share, format).await,
        Command::Open(open) => open::open(&config, &open, format).await,
        Command::Mcp(flags) => mcp::serve(&config, &flags).await,
        Command::Image(image) => image::image(&config, image, format).await,
        Command::Verify(verify) => verify::verify(&config, &verify, format).await,
        Command::Doctor(crate::cli::Doctor { sandbox: true, images }) => {
            doctor_sandbox::doctor_sandbox(&config, &images, format).await
        }
        Command::Doctor(doctor) => doctor::doctor(&config, &doctor.images, format).await,
        Command::Version => {
            match format {
                Format::Json => print_json(&json!({ "version": env!("CARGO_PKG_VERSION") }))?,
                Format::Text => println!("bellglass {}", env!("CARGO_PKG_VERSION")),
            }
            Ok(Exit::Success)
        }
    }
}

fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// A job's body: the content of a file (`-` is standard input), or a task in words.
fn read_job(text: &str) -> anyhow::Result<Vec<u8>> {
    if text == "-" {
        let mut body = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin(), &mut body)?;
        return Ok(body);
    }
    let path = Path::new(text);
    if path.is_file() {
        return std::fs::read(path).with_context(|| format!("cannot read {text}"));
    }
    // Something that looks like a file's name was hardly meant as a task.
    anyhow::ensure!(
        text.contains(char::is_whitespace) || path.extension().is_none(),
        "there is no file {text}"
    );
    Ok(serde_json::to_vec(&json!({ "task": text }))?)
}

/// The exit that fits a job's final status.
fn exit_of(status: &Value) -> Exit {
    match status["status"].as_str() {
        Some("failed" | "cancelled") => Exit::JobFailed,
        _ => Exit::Success,
    }
}
