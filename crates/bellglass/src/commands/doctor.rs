//! `bellglass doctor`: what this host can and cannot give, and how to fix each.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::sync::Arc;

use bellglass_protocol::job::IsolationLevel;
use bellglass_sandbox::host::{Finding, Verdict, check_host};
use bellglass_sandbox::image::ImageStore;
use bellglass_sandbox::trial::try_out;
use bellglass_sandbox::{
    GvisorBackend, NamespaceBackend, Sandbox, SandboxError, SandboxName, SandboxOrder,
};
use serde_json::json;

use super::{Format, print_json};
use crate::cli;
use crate::config::Config;
use crate::exit::Exit;
use crate::installation::GVISOR_REMEDY;

pub(super) async fn doctor(
    config: &Config,
    images: &cli::ImageFolder,
    format: Format,
) -> anyhow::Result<Exit> {
    let images = ImageStore::new(config.images(images)?);
    let mut findings = check_host(config.cluster(), &images);
    findings.push(gvisor(config).await?);
    findings.push(model(config));
    findings.extend(image_and_sandbox(config, &images).await?);
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

/// A sandbox is started on gVisor's kernel: nothing less would tell.
async fn gvisor(config: &Config) -> anyhow::Result<Finding> {
    const SUBJECT: &str = "gVisor";
    let settings = config.sandboxes();
    let folder = tempfile::Builder::new().prefix("bellglass-doctor-").tempdir()?;
    let backend = GvisorBackend::new(folder.path().join("sandboxes"), &settings.runsc)?;
    Ok(match try_out(Arc::new(backend)).await {
        Ok(report) => {
            let runsc = settings.runsc.display();
            let kernel = report.inside.kernel;
            Finding::good(SUBJECT, format!("{runsc}: a sandbox started, its kernel is {kernel}"))
        }
        Err(error) => {
            // Without it everything works, unless the operator wants it for every job.
            let verdict = match settings.isolation > IsolationLevel::Namespace {
                true => Verdict::Missing,
                false => Verdict::Absent,
            };
            let fix = format!("for jobs that demand it: {GVISOR_REMEDY}");
            Finding::other(SUBJECT, verdict, format!("cannot be used: {error}"), fix)
        }
    })
}

fn model(config: &Config) -> Finding {
    const SUBJECT: &str = "model";
    let fix = "correct the model's name, or give its provider a key";
    match config.data(None).and_then(|data| config.models(&data)) {
        Ok(models) => {
            if let Some(name) = models.offer().default {
                return Finding::good(
                    SUBJECT,
                    format!("tasks get {name} unless they name another; it is not asked here"),
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
async fn image_and_sandbox(config: &Config, images: &ImageStore) -> anyhow::Result<Vec<Finding>> {
    let name = &config.file.image.default;
    let Some(image) = images.find(name) else {
        let fix = "`bellglass image build`";
        let detail = format!("the image `{name}` was not built yet");
        return Ok(vec![Finding::other("image", Verdict::Missing, detail, fix)]);
    };
    let mut findings = vec![Finding::good("image", format!("`{name}`, {}", image.hash.short()))];
    let trial = Trial::prepare(config, name, image.rootfs)?;
    findings.push(match trial.start().await {
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

/// A sandbox that is only made to be looked at.
pub(super) struct Trial {
    backend: NamespaceBackend,
    order: SandboxOrder,
    image: String,
    _folder: tempfile::TempDir,
}

impl Trial {
    pub(super) fn prepare(config: &Config, image: &str, rootfs: PathBuf) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("bellglass-doctor-").tempdir()?;
        Ok(Self {
            backend: NamespaceBackend::new(folder.path().join("sandboxes"))?,
            order: SandboxOrder {
                name: SandboxName::throwaway(),
                rootfs,
                limits: config.file.limits,
                nested_sandboxing: false,
                orphaned_after: Some(std::time::Duration::from_secs(60)),
            },
            image: image.to_owned(),
            _folder: folder,
        })
    }

    pub(super) async fn start(&self) -> Result<Sandbox, SandboxError> {
        Sandbox::start(&self.backend, &self.order, &self.image).await
    }
}
