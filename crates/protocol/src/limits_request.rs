//! The limits that a job asks for, held against what this installation gives.

use serde::{Deserialize, Serialize};

use crate::job::Limits;
use crate::quantity::{ByteSize, Seconds};
use crate::request::{Offer, RequestError, invalid};

/// Limits that differ from the defaults.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LimitsRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<ByteSize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Seconds>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_time: Option<Seconds>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<ByteSize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_output: Option<ByteSize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<ByteSize>,
}

impl LimitsRequest {
    pub(crate) fn resolve(self, offer: &Offer) -> Result<Limits, RequestError> {
        let (defaults, maxima) = (&offer.defaults, &offer.maxima);
        let memory =
            pick("memory", self.memory, ByteSize::mib(16), defaults.memory, maxima.memory)?;
        // A job that only asks for less memory does not mean to reserve room on the host's disk.
        let disk = match self.memory {
            Some(memory) => defaults.disk.min(ByteSize(memory.0 / 2)),
            None => defaults.disk,
        };
        Ok(Limits {
            memory,
            disk: pick("disk", self.disk, ByteSize::mib(1), disk, maxima.disk)?,
            processes: pick("processes", self.processes, 8, defaults.processes, maxima.processes)?,
            cpus: pick("cpus", self.cpus, 0.01, defaults.cpus, maxima.cpus)?,
            open_files: pick(
                "open_files",
                self.open_files,
                16,
                defaults.open_files,
                maxima.open_files,
            )?,
            time: pick("time", self.time, Seconds::whole(0), defaults.time, maxima.time)?,
            step_time: pick(
                "step_time",
                self.step_time,
                Seconds::whole(0),
                defaults.step_time,
                maxima.step_time,
            )?,
            output: pick("output", self.output, ByteSize(0), defaults.output, maxima.output)?,
            total_output: pick(
                "total_output",
                self.total_output,
                ByteSize(0),
                defaults.total_output,
                maxima.total_output,
            )?,
            checkpoints: pick(
                "checkpoints",
                self.checkpoints,
                ByteSize(0),
                defaults.checkpoints,
                maxima.checkpoints,
            )?,
        })
    }
}

impl From<Limits> for LimitsRequest {
    fn from(limits: Limits) -> Self {
        Self {
            memory: Some(limits.memory),
            disk: Some(limits.disk),
            processes: Some(limits.processes),
            cpus: Some(limits.cpus),
            open_files: Some(limits.open_files),
            time: Some(limits.time),
            step_time: Some(limits.step_time),
            output: Some(limits.output),
            total_output: Some(limits.total_output),
            checkpoints: Some(limits.checkpoints),
        }
    }
}

/// One limit of a job. What the job does not name is the default, within what is allowed.
fn pick<T: PartialOrd + Copy + std::fmt::Display>(
    field: &str,
    wanted: Option<T>,
    least: T,
    default: T,
    most: T,
) -> Result<T, RequestError> {
    let Some(wanted) = wanted else { return Ok(if default > most { most } else { default }) };
    // Written so that a NaN fails too.
    if wanted >= least && wanted <= most {
        Ok(wanted)
    } else {
        Err(invalid(&format!("limits.{field}"), &format!("must be from {least} to {most}")))
    }
}
