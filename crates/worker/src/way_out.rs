//! A job's way out of its sandbox: opened when its policy first gives it one, changed when the
//! policy changes, and the record of what used it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bellglass_protocol::event::JobError;
use bellglass_protocol::job::JobSpec;
use bellglass_protocol::network::NetworkPolicy;
use bellglass_protocol::task_request::APPROVE_NETWORK;
use bellglass_protocol::wire::Equipment;
use bellglass_sandbox::client::{ClientError, GuestClient};
use bellglass_sandbox::egress::{Authority, BoundSecret, Egress, equipment, trust_of_chromium};
use tokio::sync::{Mutex, Notify};
use tokio_util::task::AbortOnDropHandle;

use crate::connection_log::NetworkJournal;
use crate::host_approval::HostApprovals;
use crate::job_log::JobLog;
use crate::queue::Shared;
use crate::spool;

/// Closed for a job that reaches nothing: its sandbox then has no proxy at all.
pub(crate) struct WayOut {
    shared: Arc<Shared>,
    log: JobLog,
    opened: Mutex<Option<Opened>>,
}

struct Opened {
    egress: Arc<Egress>,
    journal: NetworkJournal,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum WayOutError {
    #[error("there is no secret named `{0}` any more; add it under [secrets] in bellglass.toml")]
    NoSecret(String),
    #[error("the job's certificate authority cannot be kept: {0}")]
    Authority(io::Error),
    #[error("the sandbox cannot be given its way out: {0}")]
    Guest(#[from] ClientError),
}

impl From<WayOutError> for JobError {
    fn from(error: WayOutError) -> Self {
        let code = match error {
            WayOutError::NoSecret(_) => "secret_not_found",
            WayOutError::Authority(_) | WayOutError::Guest(_) => "way_out_failed",
        };
        Self { code: code.into(), message: error.to_string() }
    }
}

impl WayOut {
    pub(crate) fn new(shared: Arc<Shared>, log: JobLog) -> Arc<Self> {
        Arc::new(Self { shared, log, opened: Mutex::new(None) })
    }

    /// Puts a policy in force.
    pub(crate) async fn apply(
        &self,
        guest: &GuestClient,
        policy: NetworkPolicy,
    ) -> Result<(), WayOutError> {
        let mut opened = self.opened.lock().await;
        match &*opened {
            Some(Opened { egress, .. }) => egress.set_policy(policy),
            None if policy == NetworkPolicy::None && !self.asks() => {}
            None => *opened = Some(self.open(guest, policy).await?),
        }
        Ok(())
    }

    /// Whether the user is asked for hosts that the policy does not allow.
    fn asks(&self) -> bool {
        self.log.look(|view| view.spec.approve.iter().any(|name| name == APPROVE_NETWORK))
    }

    /// Puts every policy in force that the log tells of from now on, and every change of settings.
    pub(crate) fn follow(
        self: &Arc<Self>,
        guest: GuestClient,
        news: Arc<Notify>,
    ) -> AbortOnDropHandle<()> {
        let way_out = self.clone();
        AbortOnDropHandle::new(tokio::spawn(async move {
            let mut settings = way_out.shared.network.changes();
            loop {
                tokio::select! {
                    () = news.notified() => way_out.catch_up(&guest).await,
                    Ok(()) = settings.changed() => way_out.renew_settings().await,
                }
            }
        }))
    }

    /// Puts in force what the log says.
    async fn catch_up(&self, guest: &GuestClient) {
        let job = self.log.job;
        let applied = match self.shared.store.job(job).await {
            // What it may reach now may be what cannot be read.
            Ok(view) if view.misread => return self.log.stop_as_misread(),
            Ok(view) => self.apply(guest, view.network).await,
            Err(error) => {
                tracing::error!(%job, %error, "cannot read what the job may reach now");
                return;
            }
        };
        if let Err(error) = applied {
            tracing::warn!(%job, %error, "the job's new network policy is not in force");
        }
    }

    async fn renew_settings(&self) {
        if let Some(Opened { egress, .. }) = &*self.opened.lock().await {
            egress.set_settings(self.shared.network.settings().await);
        }
    }

    async fn open(
        &self,
        guest: &GuestClient,
        policy: NetworkPolicy,
    ) -> Result<Opened, WayOutError> {
        let settings = self.shared.network.settings().await;
        let spec = self.log.look(|view| view.spec.clone());
        let secrets = self.secrets(&spec)?;
        let image = self.shared.images.rootfs(&spec.image).await;
        let image = image.as_deref().unwrap_or(Path::new("/nonexistent"));
        let mut certificates = settings.certificates.clone();
        if certificates.is_empty() {
            let own = image.join("etc/ssl/certs/ca-certificates.crt");
            certificates = tokio::fs::read_to_string(own).await.unwrap_or_default();
        }
        let journal = NetworkJournal::start(self.log.clone());
        let mut egress = Egress::new(policy, settings.clone(), journal.gathering());
        if self.asks() {
            egress = egress.with_asker(HostApprovals::new(self.log.clone()));
        }
        if !secrets.is_empty() {
            let authority = self.authority().await.map_err(WayOutError::Authority)?;
            egress = egress.with_secrets(secrets.clone(), authority.clone(), &certificates);
            certificates.push('\n');
            certificates.push_str(authority.certificate());
        }
        let codename = codename(image).await;
        let chromium = tokio::fs::try_exists(image.join("usr/bin/chromium")).await;
        let trust = chromium.unwrap_or(false).then(|| trust_of_chromium(&certificates));
        let mut equipment: Equipment =
            equipment(&settings.packages, certificates, codename.as_deref(), &secrets);
        equipment.files.extend(trust);
        let egress = Arc::new(egress);
        guest.open_way_out(egress.clone(), equipment).await?;
        Ok(Opened { egress, journal })
    }

    fn secrets(&self, spec: &JobSpec) -> Result<Vec<BoundSecret>, WayOutError> {
        let find = |(variable, name): (&String, &String)| {
            let secret = self.shared.network.secret(name);
            let secret = secret.ok_or_else(|| WayOutError::NoSecret(name.clone()))?;
            Ok(BoundSecret { variable: variable.clone(), secret })
        };
        spec.secrets.iter().map(find).collect()
    }

    /// The same one for as long as the job's sandbox lives, whichever process drives it.
    async fn authority(&self) -> io::Result<Arc<Authority>> {
        let file = spool::job_folder(&self.shared.spools, self.log.job).join("authority");
        let name = format!("Bellglass job {}", self.log.job);
        let kept = tokio::task::spawn_blocking(move || Authority::kept_in(&file, &name));
        kept.await.map_err(io::Error::other)?.map(Arc::new)
    }

    /// Ends all connections, and records the last of them.
    pub(crate) async fn close(&self) {
        if let Some(Opened { egress, journal }) = self.opened.lock().await.take() {
            egress.close().await;
            journal.finish().await;
        }
    }
}

/// The Debian release that an image is made of.
async fn codename(image: &Path) -> Option<String> {
    let text = tokio::fs::read_to_string(image.join("etc/os-release")).await.ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
    Some(line.trim_matches('"').to_owned())
}
