//! The body of `POST /schedule`: read from hostile bytes, checked whole, turned into a [`JobSpec`].
//!
//! Either everything is right and there is a spec, or there is an error that says what to change.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::job::{
    Budget, DESKTOP_IMAGE, InitialFile, IsolationLevel, JobSpec, Limits, OnError, PlanMode,
    Priority, Screen, Session, Work,
};
use crate::limits_request::LimitsRequest;
use crate::mcp::{self, McpServer};
use crate::model_offer::ModelOffer;
use crate::network::NetworkPolicy;
use crate::request_shape::{self, Expected, ShapeFault};
use crate::secrets;
use crate::task_request::{self, check_budget};
use crate::tool::{Encoding, ToolCall};

/// What a client may send. Exactly one of `task`, `prompt`, `steps` and `session` is needed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// A task in natural language, for a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Another word for `task`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// A fixed list of tool calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<Vec<ToolCall>>,
    /// No work at all: a sandbox that is used at `/jobs/{id}/mcp` until the job is cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
    /// A name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What a failing step does to a steps job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_error: Option<OnError>,
    /// From -100 to 100; higher runs first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// The image that the sandbox starts from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitsRequest>,
    /// What the sandbox may reach: `none`, `registries`, `open`, or `{"allow": ["host:port"]}`.
    /// Steps reach nothing unless they say so; a task reaches the registries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkPolicy>,
    /// Secrets of this installation that the job may use, by the environment variable that stands
    /// for each inside: `{"GITHUB_TOKEN": "github"}`. The variable holds a placeholder; the value
    /// takes its place on the way to the hosts that the operator bound it to, and only there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, String>,
    /// The least isolation that the job accepts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<IsolationLevel>,
    /// Lets tools make user namespaces of their own, as a browser's own sandbox does. Off unless
    /// asked for: such a namespace opens much of the kernel to whatever runs in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nested_sandboxing: Option<bool>,
    /// Files that lie in the workspace when the job starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<InitialFile>,
    /// The model for a task, such as `openai/gpt-5.1`, `anthropic/claude-sonnet-4-5` or
    /// `local/NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// A desktop that runs from the beginning on: `true`, or its size as
    /// `{"width": 1280, "height": 800}`. The image `desktop` is used unless another is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desktop: Option<DesktopRequest>,
    /// Whether a task's plan is shown for approval before anything is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanMode>,
    /// What a task may spend at the most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// MCP servers whose tools a task's model may use, by name. A `command` runs inside the sandbox; a
    /// `url` is spoken to by the worker and must be public.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mcp: BTreeMap<String, McpServer>,
    /// Tools of a task whose every call waits for approval, by name; `network` stands for hosts that
    /// the job's policy does not allow, which are then asked for instead of refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approve: Vec<String>,
    /// The project that a task belongs to: it is told what was learnt in the project's earlier tasks,
    /// and what it learns is kept for later ones. A task without a project does neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// Reserved: a repository to clone. Refused until this build can reach one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub repository: Option<Reserved>,
    /// Reserved: an address to call at the end. Refused until this build can call one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub webhook: Option<Reserved>,
}

/// How a job asks for a desktop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum DesktopRequest {
    Wanted(bool),
    Sized(Screen),
}

impl DesktopRequest {
    fn screen(self) -> Result<Option<Screen>, RequestError> {
        let screen = match self {
            Self::Wanted(false) => return Ok(None),
            Self::Wanted(true) => Screen::default(),
            Self::Sized(screen) => screen,
        };
        let fits = |side| (Screen::SMALLEST..=Screen::LARGEST).contains(&side);
        match fits(screen.width) && fits(screen.height) {
            true => Ok(Some(screen)),
            false => Err(invalid("desktop", "must be from 320 to 4096 pixels wide and high")),
        }
    }
}

/// The value of a field that is refused whatever it says, so nothing of it is kept.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Reserved;

impl<'de> Deserialize<'de> for Reserved {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

/// What this installation gives to jobs: decides about requests, read from the configuration.
#[derive(Clone, Debug)]
pub struct Offer {
    pub defaults: Limits,
    /// No job may ask for more than this.
    pub maxima: Limits,
    pub default_image: String,
    /// The least isolation of jobs that demand none. Whether a level can be had is for others to say.
    pub isolation: IsolationLevel,
    pub models: ModelOffer,
    /// What a task may spend unless it says otherwise.
    pub budget: Budget,
    /// The names of secrets that jobs may use.
    pub secrets: BTreeSet<String>,
}

/// Why a request was refused. Each variant is one stable error code.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RequestError {
    #[error("the body is not valid JSON: {0}")]
    InvalidJson(String),
    #[error("{message}")]
    InvalidField { pointer: String, message: String },
    #[error(
        "there is no tool named `{name}` in step {step}; the tools are {}",
        ToolCall::NAMES.join(", ")
    )]
    UnknownTool { step: usize, name: String },
    #[error(
        "the job has nothing to do: give exactly one of `task`, `prompt`, `steps` or `session`"
    )]
    NoWork,
    #[error(
        "the job has more than one thing to do: give exactly one of `task`, `prompt`, `steps` or `session`"
    )]
    AmbiguousWork,
    #[error(
        "no model is configured, so a task cannot be worked on. Set OPENAI_API_KEY or \
         ANTHROPIC_API_KEY in the server's environment, or `base_url` under [model] in \
         bellglass.toml for any OpenAI-compatible server, and start the server again. \
         A job with `steps` needs no model"
    )]
    NoModel,
    #[error("`{field}` is not available here: {why}")]
    NotAvailable { field: &'static str, why: String },
}

impl RequestError {
    /// The stable code that clients may rely on.
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidJson(_) => "invalid_json",
            Self::InvalidField { .. } => "invalid_request",
            Self::UnknownTool { .. } => "unknown_tool",
            Self::NoWork => "no_work",
            Self::AmbiguousWork => "ambiguous_work",
            Self::NoModel => "no_model_configured",
            Self::NotAvailable { .. } => "not_available",
        }
    }

    /// Where in the request the error is, as a JSON pointer-like path such as `steps[2].command`.
    pub fn pointer(&self) -> Option<&str> {
        match self {
            Self::InvalidField { pointer, .. } if !pointer.is_empty() => Some(pointer),
            Self::NotAvailable { field, .. } => Some(field),
            _ => None,
        }
    }
}

const LONGEST_TASK: usize = 1 << 20;
const LONGEST_NAME: usize = 200;
const EXPECTED: Expected<'_> =
    Expected { tools: &ToolCall::NAMES, most_steps: 10_000, most_files: 1_000 };

impl JobRequest {
    /// Reads a request from the bytes of a body.
    pub fn from_json(body: &[u8]) -> Result<Self, RequestError> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Err(RequestError::InvalidJson("it is empty".into()));
        }
        request_shape::check(body, &EXPECTED).map_err(|fault| match fault {
            ShapeFault::Syntax(error) => RequestError::InvalidJson(error),
            ShapeFault::NotAnObject(pointer) => {
                let place = if pointer.is_empty() { "the body" } else { &pointer };
                let message = format!("{place} must be a JSON object");
                RequestError::InvalidField { pointer, message }
            }
            ShapeFault::UnknownTool { index, name } => {
                RequestError::UnknownTool { step: index + 1, name }
            }
            ShapeFault::TooMany { list: "files" } => {
                invalid("files", "has more than 1000 files; upload a ZIP and unpack it")
            }
            ShapeFault::TooMany { list } => invalid(list, "has more than 10000 items"),
        })?;
        let mut deserializer = serde_json::Deserializer::from_slice(body);
        serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
            if !error.inner().is_data() {
                // Half a character, for example, which shows only to who reads the text.
                return RequestError::InvalidJson(error.inner().to_string());
            }
            let pointer = error.path().to_string();
            let pointer = if pointer == "." { String::new() } else { pointer };
            let place = if pointer.is_empty() { String::new() } else { format!(" in `{pointer}`") };
            RequestError::InvalidField { message: format!("{}{place}", error.inner()), pointer }
        })
    }

    /// Checks the request against what this installation offers.
    pub fn into_spec(self, offer: &Offer) -> Result<JobSpec, RequestError> {
        self.refuse_what_is_not_here()?;
        if self.task.is_none() && self.prompt.is_none() {
            self.refuse_what_tasks_have()?;
        }
        mcp::check(&self.mcp)?;
        task_request::check_approvals(&self.approve)?;
        task_request::check_project(&self.project)?;
        let (work, model, budget) = match (self.task, self.prompt, self.steps, self.session) {
            (None, None, None, None) => return Err(RequestError::NoWork),
            (Some(task), None, None, None) | (None, Some(task), None, None) => {
                check_task(&task)?;
                let model = offer.models.choose(self.model)?;
                let budget = self.budget.unwrap_or_default().or(offer.budget);
                check_budget(&budget, &model, &offer.models)?;
                (Work::Task(task), Some(model), budget)
            }
            (None, None, Some(steps), None) => {
                check_steps(&steps)?;
                (Work::Steps(steps), None, Budget::default())
            }
            (None, None, None, Some(session)) => (Work::Session(session), None, Budget::default()),
            _ => return Err(RequestError::AmbiguousWork),
        };
        if let Some(name) = &self.name
            && (name.trim().is_empty()
                || name.chars().count() > LONGEST_NAME
                || name.chars().any(char::is_control))
        {
            return Err(invalid("name", "must be 1 to 200 characters without control characters"));
        }
        let priority = self.priority.unwrap_or_default();
        if !(Priority::LOWEST..=Priority::HIGHEST).contains(&priority) {
            return Err(invalid("priority", "must be from -100 to 100"));
        }
        check_files(&self.files)?;
        let network = self.network.unwrap_or_else(|| default_network(&work));
        secrets::check(&self.secrets, &network, &offer.secrets)
            .map_err(|(pointer, why)| invalid(&pointer, why))?;
        let desktop = self.desktop.map(DesktopRequest::screen).transpose()?.flatten();
        let image = self.image.unwrap_or_else(|| match desktop {
            Some(_) => DESKTOP_IMAGE.into(),
            None => offer.default_image.clone(),
        });
        if !is_image_name(&image) {
            return Err(invalid(
                "image",
                "must be a name of lower-case letters, digits, `-` and `_`, at most 64 long",
            ));
        }
        Ok(JobSpec {
            name: self.name,
            work,
            on_error: self.on_error.unwrap_or_default(),
            priority: Priority(priority),
            image,
            limits: self.limits.unwrap_or_default().resolve(offer)?,
            network,
            isolation: self.isolation.unwrap_or(offer.isolation),
            nested_sandboxing: self.nested_sandboxing.unwrap_or_default(),
            desktop,
            secrets: self.secrets,
            files: self.files,
            model,
            budget,
            plan: self.plan.unwrap_or_default(),
            mcp: self.mcp,
            approve: self.approve,
            project: self.project,
            fork: None,
            owner: None,
        })
    }

    /// What makes sense only where a model works.
    fn refuse_what_tasks_have(&self) -> Result<(), RequestError> {
        let given = [
            ("model", self.model.is_some(), "steps need no model"),
            ("budget", self.budget.is_some(), "use `limits`"),
            ("plan", self.plan.is_some(), "steps are a plan"),
            ("mcp", !self.mcp.is_empty(), "steps use no other tools"),
            ("approve", !self.approve.is_empty(), "steps are known beforehand"),
            ("project", self.project.is_some(), "steps remember nothing"),
        ];
        match given.iter().find(|(_, is_given, _)| *is_given) {
            Some((field, _, why)) => Err(invalid(field, &format!("is for a `task`; {why}"))),
            None => Ok(()),
        }
    }

    fn refuse_what_is_not_here(&self) -> Result<(), RequestError> {
        let refuse = |field, why: &str| Err(RequestError::NotAvailable { field, why: why.into() });
        if self.repository.is_some() {
            return refuse(
                "repository",
                "clone it in a step, with `network`, or upload with `files`",
            );
        }
        if self.webhook.is_some() {
            return refuse("webhook", "this build calls no webhooks; follow `events_url`");
        }
        Ok(())
    }
}

impl Offer {
    /// Whether a job could be given these limits, whoever asks: they must be large enough to run
    /// anything, and must be numbers.
    pub fn check(&self) -> Result<(), RequestError> {
        LimitsRequest::from(self.maxima).resolve(self)?;
        let within = Self { maxima: self.defaults, ..self.clone() };
        LimitsRequest::from(self.defaults).resolve(&within).map(|_| ())
    }
}

pub(crate) fn invalid(pointer: &str, message: &str) -> RequestError {
    RequestError::InvalidField {
        pointer: pointer.into(),
        message: format!("`{pointer}` {message}"),
    }
}

fn check_task(task: &str) -> Result<(), RequestError> {
    if task.trim().is_empty() {
        return Err(invalid("task", "is empty; say what is to be done"));
    }
    if task.len() > LONGEST_TASK {
        return Err(invalid("task", "is longer than 1 MiB; upload long material with `files`"));
    }
    Ok(())
}

fn check_steps(steps: &[ToolCall]) -> Result<(), RequestError> {
    if steps.is_empty() {
        return Err(invalid("steps", "is empty; give at least one step"));
    }
    for (index, step) in steps.iter().enumerate() {
        if let Some((field, why)) = step.fault() {
            return Err(invalid(&format!("steps[{index}].{field}"), why));
        }
    }
    Ok(())
}

/// What a job reaches that does not say: a task must be able to install what it needs, and steps
/// are known beforehand.
fn default_network(work: &Work) -> NetworkPolicy {
    match work {
        Work::Task(_) => NetworkPolicy::Registries,
        Work::Steps(_) => NetworkPolicy::None,
        Work::Session(_) => NetworkPolicy::Registries,
    }
}

fn check_files(files: &[InitialFile]) -> Result<(), RequestError> {
    for (index, file) in files.iter().enumerate() {
        if let Err(why) = crate::step::check_workspace_path(&file.path) {
            return Err(invalid(&format!("files[{index}].path"), why));
        }
        if file.encoding == Encoding::Base64 && crate::step::decode_base64(&file.content).is_err() {
            return Err(invalid(&format!("files[{index}].content"), "is not valid base64"));
        }
    }
    check_places(files)
}

/// No two files may want one place, and none may want to be the folder of another.
fn check_places(files: &[InitialFile]) -> Result<(), RequestError> {
    let place = |file: &InitialFile| -> Vec<String> {
        let parts = crate::step::workspace_relative(&file.path).split('/');
        parts.filter(|part| !matches!(*part, "" | ".")).map(str::to_owned).collect()
    };
    let mut places: Vec<(Vec<String>, usize)> =
        files.iter().enumerate().map(|(index, file)| (place(file), index)).collect();
    // Sorted by their parts, whatever lies below a place comes right after it.
    places.sort();
    for pair in places.windows(2) {
        let [(above, first), (below, second)] = pair else { continue };
        if below.starts_with(above) {
            let why = if above == below {
                format!("names the same file as `files[{first}].path`")
            } else {
                format!("lies below `files[{first}].path`, which is a file and not a folder")
            };
            return Err(invalid(&format!("files[{second}].path"), &why));
        }
    }
    Ok(())
}

/// Whether a text can be the name of an image: it becomes part of a path.
pub fn is_image_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    !name.is_empty()
        && name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && name.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::ByteSize;

    fn offer() -> Offer {
        Offer {
            defaults: Limits::default(),
            maxima: Limits { memory: ByteSize::gib(16), ..Limits::default() },
            default_image: "base".into(),
            isolation: IsolationLevel::Namespace,
            models: ModelOffer::default(),
            budget: Budget::default(),
            secrets: BTreeSet::from(["github".to_owned()]),
        }
    }

    fn code_of(body: &str) -> String {
        match JobRequest::from_json(body.as_bytes()).and_then(|r| r.into_spec(&offer())) {
            Ok(_) => "accepted".into(),
            Err(error) => error.code().into(),
        }
    }

    #[test]
    fn each_mistake_has_its_code() {
        for (body, code) in [
            (r#"{"steps":[{"tool":"shell","command":"ls"}]}"#, "accepted"),
            (r#"{"task":"Build me a todo app"}"#, "no_model_configured"),
            (r#"{"prompt":"Build me a todo app"}"#, "no_model_configured"),
            ("", "invalid_json"),
            ("{", "invalid_json"),
            ("\u{1}", "invalid_json"),
            ("[]", "invalid_request"),
            ("3", "invalid_request"),
            ("{}", "no_work"),
            (r#"{"steps":[["shell","ls"]]}"#, "invalid_request"),
            (r#"{"steps":[{"tool":"shell","command":"ls"}],"limits":[]}"#, "invalid_request"),
            (r#"{"task":"x","steps":[]}"#, "ambiguous_work"),
            (r#"{"task":"  "}"#, "invalid_request"),
            (r#"{"task":7}"#, "invalid_request"),
            (r#"{"steps":[]}"#, "invalid_request"),
            (r#"{"steps":{}}"#, "invalid_request"),
            (r#"{"steps":[{"tool":"shell","command":" "}]}"#, "invalid_request"),
            (r#"{"steps":[{"tool":"shell","command":"a\u0000b"}]}"#, "invalid_request"),
            (r#"{"steps":[{"tool":"fly"}]}"#, "unknown_tool"),
            (r#"{"steps":[{"tool":"shell","command":"ls","x":1}]}"#, "invalid_request"),
            (r#"{"stepz":[]}"#, "invalid_request"),
            (r#"{"steps":[{"tool":"shell","command":"ls"}],"network":"open"}"#, "accepted"),
            (
                r#"{"steps":[{"tool":"shell","command":"ls"}],"network":{"allow":["a.b:443"]}}"#,
                "accepted",
            ),
            (
                r#"{"steps":[{"tool":"shell","command":"ls"}],"network":{"allow":["a b"]}}"#,
                "invalid_request",
            ),
            (r#"{"steps":[{"tool":"shell","command":"ls"}],"network":"all"}"#, "invalid_request"),
            (r#"{"steps":[{"tool":"shell","command":"ls"}],"network":"none"}"#, "accepted"),
            (r#"{"steps":[{"tool":"shell","command":"ls"}],"isolation":"gvisor"}"#, "accepted"),
            (r#"{"steps":[{"tool":"shell","command":"ls"}],"isolation":"x"}"#, "invalid_request"),
            (r#"{"steps":[{"tool":"shell","command":"ls"}],"image":"../x"}"#, "invalid_request"),
            (r#"{"steps":[{"tool":"shell","command":"ls"}],"priority":1000}"#, "invalid_request"),
            (
                r#"{"steps":[{"tool":"shell","command":"ls"}],"limits":{"memory":"64GiB"}}"#,
                "invalid_request",
            ),
            (
                r#"{"steps":[{"tool":"shell","command":"ls"}],"files":[{"path":"../a","content":""}]}"#,
                "invalid_request",
            ),
        ] {
            assert_eq!(code_of(body), code, "{body}");
        }
    }

    #[test]
    fn files_must_not_be_in_each_others_way() {
        for (paths, pointer) in [
            (&["a", "b", "ab", "a-b/c", "a.b"][..], None),
            (&["d/a", "d/b", "d/e/a"], None),
            (&["a", "b", "a/b"], Some("files[2].path")),
            (&["a/b/c", "a-b", "a"], Some("files[0].path")),
            (&["x", "a", "a"], Some("files[2].path")),
            (&["a", "/workspace/a"], Some("files[1].path")),
            (&["a/b", "./a//./b"], Some("files[1].path")),
        ] {
            let files: Vec<_> = paths
                .iter()
                .map(|path| serde_json::json!({ "path": path, "content": "" }))
                .collect();
            let steps = serde_json::json!([{ "tool": "shell", "command": "ls" }]);
            let body = serde_json::json!({ "steps": steps, "files": files }).to_string();
            let checked = JobRequest::from_json(body.as_bytes()).unwrap().into_spec(&offer());
            let error = checked.err();
            assert_eq!(error.as_ref().and_then(RequestError::pointer), pointer, "{paths:?}");
            assert!(error.is_none_or(|error| error.code() == "invalid_request"));
        }
    }

    #[test]
    fn an_error_says_where_it_is() {
        let error = JobRequest::from_json(br#"{"steps":[{"tool":"shell","command":3}]}"#);
        let error = error.unwrap_err();
        assert_eq!(error.pointer(), Some("steps[0]"));
        assert!(error.to_string().contains("expected a string"), "{error}");
    }

    #[test]
    fn tasks_reach_registries_and_steps_reach_nothing() {
        assert_eq!(default_network(&Work::Task("x".into())), NetworkPolicy::Registries);
        assert_eq!(default_network(&Work::Steps(Vec::new())), NetworkPolicy::None);
    }

    #[test]
    fn limits_come_from_the_offer_unless_named() {
        let body = r#"{"steps":[{"tool":"shell","command":"ls"}],"limits":{"memory":"64MiB"}}"#;
        let spec = JobRequest::from_json(body.as_bytes()).unwrap().into_spec(&offer()).unwrap();
        assert_eq!(spec.limits.memory, ByteSize::mib(64));
        assert_eq!(spec.limits.processes, Limits::default().processes);
        // Files fit into that memory, unless a disk was asked for.
        assert_eq!((spec.limits.disk, spec.nested_sandboxing), (ByteSize::mib(32), false));
        let body = r#"{"steps":[{"tool":"shell","command":"ls"}],"nested_sandboxing":true,
                       "limits":{"memory":"64MiB","disk":"1GiB"}}"#;
        let spec = JobRequest::from_json(body.as_bytes()).unwrap().into_spec(&offer()).unwrap();
        assert_eq!((spec.limits.disk, spec.nested_sandboxing), (ByteSize::gib(1), true));
    }

    #[test]
    fn no_job_gets_more_than_is_allowed_by_naming_nothing() {
        let body = r#"{"steps":[{"tool":"shell","command":"ls"}]}"#;
        let maxima = Limits { memory: ByteSize::mib(512), ..Limits::default() };
        let offer = Offer { maxima, ..offer() };
        let spec = JobRequest::from_json(body.as_bytes()).unwrap().into_spec(&offer).unwrap();
        assert_eq!(spec.limits.memory, ByteSize::mib(512));
    }
}
