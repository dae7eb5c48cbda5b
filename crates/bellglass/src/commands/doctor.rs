//! `bellglass doctor`: what this host can and cannot give, and how to fix each.

use std::io::IsTerminal as _;

use bellglass_sandbox::host::{Finding, Verdict, check_host};
use bellglass_sandbox::image::ImageStore;
use bellglass_sandbox::{NamespaceBackend, Sandbox, SandboxName, SandboxOrder};
use serde_json::json;

use super::{Format, print_json};
use crate::cli;
use crate::config::Config;
use crate::exit::Exit;

pub(super) async fn doctor(
    config: &Config,
    images: &cli::ImageFolder,
    format: Format,
) -> anyhow::Result<Exit> {
    let mut findings = check_host(config.cluster());
    findings.push(model(config));
    findings.extend(image_and_sandbox(config, images).await?);
    let works = findings.iter().all(|finding| finding.verdict != Verdict::Missing);
    match format {
        Format::Json => print_json(&json!({ "works": works, "findings": findings }))?,
        Format::Text => {
            findings.iter().for_each(print);
            println!();
            println!(
                "{}",
                match works {
                    true => "Jobs can run on this host.",
                    false => "Jobs cannot run on this host until what is marked ✘ is fixed.",
                }
            );
        }
    }
    Ok(if works { Exit::Success } else { Exit::Failure })
}

fn print(finding: &Finding) {
    let (mark, colour) = match finding.verdict {
        Verdict::Good => ("✔", "32"),
        Verdict::Limited => ("!", "33"),
        Verdict::Absent => ("-", "2"),
        Verdict::Missing => ("✘", "31"),
    };
    let mark = match std::io::stdout().is_terminal() {
        true => format!("\x1b[{colour}m{mark}\x1b[0m"),
        false => mark.to_owned(),
    };
    println!("{mark} {:19} {}", finding.subject, finding.detail);
    if let Some(fix) = &finding.fix {
        println!("  {:19} → {fix}", "");
    }
}

fn model(config: &Config) -> Finding {
    const SUBJECT: &str = "model";
    let fix = "correct the model's name, or give its provider a key";
    match config.models() {
        Ok(models) => {
            if let Some(name) = models.offer().default {
                return Finding::good(
                    SUBJECT,
                    format!("tasks get {name} unless they name another"),
                );
            }
        }
        Err(error) => {
            return Finding::other(SUBJECT, Verdict::Missing, error.to_string(), fix);
        }
    }
    let fix = "set OPENAI_API_KEY or ANTHROPIC_API_KEY, or base_url under [model]; jobs with \
               `steps` need no model";
    Finding::other(SUBJECT, Verdict::Absent, "none is configured", fix)
}

/// The proof of all the rest: a sandbox is started and asked what it sees.
async fn image_and_sandbox(
    config: &Config,
    images: &cli::ImageFolder,
) -> anyhow::Result<Vec<Finding>> {
    let images = ImageStore::new(config.images(images)?);
    let name = &config.file.image.default;
    let Some(image) = images.find(name) else {
        let fix = "`bellglass image build`";
        let detail = format!("the image `{name}` was not built yet");
        return Ok(vec![Finding::other("image", Verdict::Missing, detail, fix)]);
    };
    let mut findings = vec![Finding::good("image", format!("`{name}`, {}", image.hash.short()))];
    let folder = tempfile::Builder::new().prefix("bellglass-doctor-").tempdir()?;
    let backend = NamespaceBackend::new(folder.path().join("sandboxes"))?;
    let order = SandboxOrder {
        name: SandboxName::throwaway(),
        rootfs: image.rootfs,
        limits: config.file.limits,
        egress: false,
        orphaned_after: Some(std::time::Duration::from_secs(60)),
    };
    findings.push(match Sandbox::start(&backend, &order, name, None).await {
        Ok(sandbox) => {
            sandbox.destroy().await?;
            Finding::good("sandbox", "one was started, answered, and was removed")
        }
        Err(error) => Finding::other(
            "sandbox",
            Verdict::Missing,
            format!("cannot be started: {error}"),
            "see the lines above that are not marked ✔",
        ),
    });
    Ok(findings)
}
