//! `bellglass doctor --sandbox`: the report of a throwaway sandbox, as every job's log begins with it.

use anyhow::Context as _;
use bellglass_protocol::job::image_build_command;
use bellglass_protocol::report::SandboxReport;
use bellglass_sandbox::SandboxError;
use bellglass_sandbox::image::ImageStore;

use super::doctor::Trial;
use super::{Format, print_json};
use crate::cli;
use crate::config::Config;
use crate::exit::Exit;

pub(super) async fn doctor_sandbox(
    config: &Config,
    images: &cli::ImageFolder,
    format: Format,
) -> anyhow::Result<Exit> {
    let images = ImageStore::new(config.images(images)?);
    let name = &config.file.image.default;
    let rootfs = images.rootfs(name).with_context(|| {
        let how = image_build_command(name);
        format!("the image `{name}` was not built yet; build it with `{how}`")
    })?;
    let trial = Trial::prepare(config, name, rootfs)?;
    let (report, exit) = match trial.start().await {
        Ok(sandbox) => {
            sandbox.destroy().await?;
            (sandbox.report().clone(), Exit::Success)
        }
        // It was removed already. What it was found to be is what was asked for.
        Err(SandboxError::NotSealed(report)) => (*report, Exit::Failure),
        Err(error) => return Err(error).context("a sandbox cannot be started"),
    };
    match format {
        Format::Json => print_json(&report)?,
        Format::Text => print(&report),
    }
    Ok(exit)
}

fn print(report: &SandboxReport) {
    println!("A sandbox of the backend `{}` from the image `{}`.", report.backend, report.image);
    print_list("Enforced", "✔", &report.enforced);
    print_list("Not to be had on this host", "!", &report.missing);
    println!();
    println!("Checked");
    let width = report.checks.iter().map(|check| check.subject.len()).max().unwrap_or(0);
    for check in &report.checks {
        let subject = &check.subject;
        match check.holds {
            true => println!("✔ {subject:width$}  {}", check.found),
            false => println!("✘ {subject:width$}  {}; claimed was {}", check.found, check.claimed),
        }
    }
    println!();
    println!("Mounts, as tools see them");
    let mounts = &report.inside.mount_list;
    let width = mounts.iter().map(|mount| mount.path.len()).max().unwrap_or(0);
    for mount in mounts {
        println!("  {:width$}  {:8}  {}", mount.path, mount.kind, mount.flags);
    }
    println!();
    match report.checks.iter().all(|check| check.holds) {
        true => println!("Everything that is claimed holds."),
        false => println!("Not everything that is claimed holds: jobs are not run like this."),
    }
}

fn print_list(heading: &str, mark: &str, lines: &[String]) {
    if !lines.is_empty() {
        println!();
        println!("{heading}");
        lines.iter().for_each(|line| println!("{mark} {line}"));
    }
}
