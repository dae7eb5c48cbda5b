//! The command line, as clap reads and explains it.

use std::path::PathBuf;

use bellglass_protocol::id::JobId;
use clap::{Args, Parser, Subcommand};

use crate::render::Colours;

/// Runs coding agents under glass.
#[derive(Debug, Parser)]
#[command(
    name = "bellglass",
    version,
    about = "Runs coding agents under glass: each job in a sealed sandbox of its own.",
    after_help = "Exit codes: 0 success, 1 failure, 2 wrong usage, 3 the job failed or a log is \
                  wrong, 4 no server, 5 the server refused.",
    max_term_width = 100,
    propagate_version = true
)]
pub(crate) struct Arguments {
    /// Configuration file [default: ./bellglass.toml, then the user's, then /etc/bellglass]
    #[arg(long, global = true, value_name = "FILE", env = "BELLGLASS_CONFIG")]
    pub(crate) config: Option<PathBuf>,

    /// Print machine-readable JSON instead of text for people
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the server: API and worker in one process
    Serve(Serve),
    /// Work on jobs that servers accept, over a PostgreSQL that all of them share
    Work(Work),
    /// Run one job here and now, without a server
    Run(Run),
    /// Submit a job to a server
    Submit(Submit),
    /// Show how a job stands
    Status(OneJob),
    /// Show a job's events
    Logs(Logs),
    /// Open a terminal in a job's sandbox
    Attach(Attach),
    /// Cancel a job, queued or running
    Cancel(OneJob),
    /// Change what a job may reach while it waits or runs
    Network(Network),
    /// Show what the steps of a job did to its workspace
    Diff(Diff),
    /// Go on from a step of a job in a new job
    Fork(Fork),
    /// Make the workspace of a running job again what it was after a step
    Restore(Restore),
    /// Download a job's workspace as a ZIP
    Download(Download),
    /// List jobs, newest first
    Jobs(Jobs),
    /// Allow or refuse what a job waits for
    Approve(Approve),
    /// Look at, write, change and forget what tasks left for later ones
    #[command(subcommand)]
    Memory(Memory),
    /// Make, list and revoke the tokens of users
    #[command(subcommand)]
    Token(Token),
    /// Make a link with which others can watch a job, or take back all there are
    Share(Share),
    /// Open a job's page in the browser
    Open(Open),
    /// Offer a sandbox of its own to an MCP client, on standard input and output
    Mcp(Mcp),
    /// Build and look at sandbox images
    #[command(subcommand)]
    Image(Image),
    /// Check the hash chain of a job's log, or of the audit log
    Verify(Verify),
    /// Say what this host can and cannot give, and how to fix it
    Doctor(Doctor),
    /// Show the version
    Version,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Address to listen on [default: 127.0.0.1:8000]
    #[arg(long, value_name = "ADDRESS:PORT", env = "BELLGLASS_LISTEN")]
    pub(crate) listen: Option<String>,
    #[command(flatten)]
    pub(crate) storage: Storage,
    /// Jobs at once [default: twice the number of cores]
    #[arg(long, value_name = "N", env = "BELLGLASS_SLOTS")]
    pub(crate) slots: Option<usize>,
    /// Sandboxes kept ready at the most; 0 makes each when its job comes [default: 4]
    #[arg(long, value_name = "N", env = "BELLGLASS_WARM")]
    pub(crate) warm: Option<usize>,
    /// Accept jobs but leave the work to `bellglass work` processes; needs a shared PostgreSQL
    #[arg(long, env = "BELLGLASS_NO_WORKER")]
    pub(crate) no_worker: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Work {
    #[command(flatten)]
    pub(crate) storage: Storage,
    /// Jobs at once [default: twice the number of cores]
    #[arg(long, value_name = "N", env = "BELLGLASS_SLOTS")]
    pub(crate) slots: Option<usize>,
    /// Sandboxes kept ready at the most; 0 makes each when its job comes [default: 4]
    #[arg(long, value_name = "N", env = "BELLGLASS_WARM")]
    pub(crate) warm: Option<usize>,
}

/// Where things are kept.
#[derive(Debug, Default, Args)]
pub(crate) struct Storage {
    /// Folder for jobs and their results [default: the user's data folder]
    #[arg(long, value_name = "DIR", env = "BELLGLASS_DATA")]
    pub(crate) data: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) images: ImageFolder,
}

#[derive(Debug, Default, Args)]
pub(crate) struct ImageFolder {
    /// Folder for images, shared by all data folders [default: images in the user's data folder]
    #[arg(long = "images", value_name = "DIR", env = "BELLGLASS_IMAGES")]
    pub(crate) folder: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Start a throwaway sandbox and show what is enforced in it; fails if a claim does not hold
    #[arg(long)]
    pub(crate) sandbox: bool,
    #[command(flatten)]
    pub(crate) images: ImageFolder,
}

/// Which server to speak to.
#[derive(Debug, Args)]
pub(crate) struct Server {
    /// The server's address
    #[arg(
        long,
        value_name = "URL",
        env = "BELLGLASS_SERVER",
        default_value = "http://127.0.0.1:8000"
    )]
    pub(crate) server: String,
    /// The server's access token
    #[arg(long, value_name = "TOKEN", env = "BELLGLASS_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// A file with the job as JSON, or a task in words
    #[arg(value_name = "FILE-or-TASK")]
    pub(crate) job: String,
    /// Where to put the resulting ZIP [default: the file's name with .zip]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) images: ImageFolder,
}

#[derive(Debug, Args)]
#[command(after_help = "Keys: ctrl-] leaves; `exit` or ctrl-d ends the shell. A session of the \
                        job's goes on when you leave.")]
pub(crate) struct Attach {
    /// The job
    pub(crate) job: JobId,
    /// A session that the job opened, instead of a shell of your own
    #[arg(long, value_name = "NAME")]
    pub(crate) session: Option<String>,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct Mcp {
    /// The image that the sandbox starts from [default: the configured one]
    #[arg(long, value_name = "NAME")]
    pub(crate) image: Option<String>,
    /// What the sandbox may reach: none, registries, open, or hosts such as example.com:443
    #[arg(long, value_name = "POLICY", default_value = "registries")]
    pub(crate) network: String,
    /// Where to put the workspace as a ZIP when the client is gone
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) images: ImageFolder,
}

#[derive(Debug, Args)]
pub(crate) struct Approve {
    pub(crate) job: JobId,
    /// What waits, as the job's events name it; what waits longest by default
    pub(crate) approval: Option<String>,
    /// Refuse it instead
    #[arg(long)]
    pub(crate) refuse: bool,
    /// What the model is told about a refusal
    #[arg(long, value_name = "WORDS")]
    pub(crate) words: Option<String>,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Memory {
    /// Show memories: the newest, or the best for some words
    List {
        /// Only those of this project
        #[arg(long)]
        project: Option<String>,
        /// The best for these words
        #[arg(long, value_name = "WORDS")]
        search: Option<String>,
        #[command(flatten)]
        server: Server,
    },
    /// Write one by hand
    Add {
        project: String,
        text: String,
        #[command(flatten)]
        server: Server,
    },
    /// Give one another text
    Edit {
        id: i64,
        text: String,
        #[command(flatten)]
        server: Server,
    },
    /// Forget one
    Delete {
        id: i64,
        #[command(flatten)]
        server: Server,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    /// Make a token for a user; it is shown once
    Create {
        /// Whose it is: letters, digits, `-`, `_` and `.`
        user: String,
        /// What it lets its holder do
        #[arg(long, default_value = "user", value_parser = ["admin", "user", "viewer"])]
        role: String,
        /// What to call it, such as where it is used
        #[arg(long)]
        name: Option<String>,
        /// After so long it holds no more, such as 12h or 30d [default: until it is revoked]
        #[arg(long, value_name = "TIME")]
        expires: Option<String>,
        #[command(flatten)]
        server: Server,
    },
    /// Show the tokens that were made
    List {
        #[command(flatten)]
        server: Server,
    },
    /// Revoke one, and end the sessions begun with it
    Revoke {
        /// Its id, as the list shows it
        id: String,
        #[command(flatten)]
        server: Server,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Share {
    /// The job's id
    pub(crate) job: JobId,
    /// How long the link holds, such as 12h or 30d
    #[arg(long, value_name = "TIME", default_value = "7d")]
    pub(crate) expires: String,
    /// Do not show the job's files
    #[arg(long)]
    pub(crate) no_files: bool,
    /// Do not let the result be downloaded
    #[arg(long)]
    pub(crate) no_download: bool,
    /// Take back all links to the job instead
    #[arg(long, conflicts_with_all = ["expires", "no_files", "no_download"])]
    pub(crate) revoke: bool,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct Open {
    /// The job's id
    pub(crate) job: JobId,
    /// Print the page's address and open nothing
    #[arg(long)]
    pub(crate) print: bool,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct Submit {
    /// A file with the job as JSON (`-` for standard input), or a task in words
    #[arg(value_name = "FILE-or-TASK")]
    pub(crate) job: String,
    /// Follow the job to its end; the exit code tells how it ended
    #[arg(short, long)]
    pub(crate) follow: bool,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct OneJob {
    /// The job's id
    pub(crate) job: JobId,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct Network {
    /// The job's id
    pub(crate) job: JobId,
    /// `none`, `registries`, `open`, or hosts such as `*.example.com:443`
    #[arg(value_name = "POLICY-or-HOST", required = true)]
    pub(crate) policy: Vec<String>,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// The job's id
    pub(crate) job: JobId,
    /// Number of the step [default: each that changed something]
    pub(crate) step: Option<u32>,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct Fork {
    /// The job to go on from
    pub(crate) job: JobId,
    /// The new job begins with the files as they were after this step; 0 is before the first
    #[arg(long, value_name = "N")]
    pub(crate) step: u32,
    /// What to say to the model, which knows all that was said and done until then
    #[arg(long, value_name = "WORDS", group = "work")]
    pub(crate) message: Option<String>,
    /// A new task for a model that knows the files alone
    #[arg(long, value_name = "WORDS", group = "work")]
    pub(crate) task: Option<String>,
    /// A file with steps to run, as JSON [default: the steps that are left]
    #[arg(long, value_name = "FILE", group = "work")]
    pub(crate) steps: Option<PathBuf>,
    /// What people call the new job
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Follow the new job to its end; the exit code tells how it ended
    #[arg(short, long)]
    pub(crate) follow: bool,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// The job's id
    pub(crate) job: JobId,
    /// The workspace becomes what it was after this step; 0 is before the first
    #[arg(long, value_name = "N")]
    pub(crate) step: u32,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// The job's id
    pub(crate) job: JobId,
    /// Stay and show events as they come, until the job ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// When to use colours
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    pub(crate) color: Colours,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct Download {
    /// The job's id
    pub(crate) job: JobId,
    /// Where to put it [default: JOB.zip]; `-` for standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct Jobs {
    /// Only jobs with this status
    #[arg(long, value_parser = ["scheduled", "running", "paused", "completed", "failed", "cancelled"])]
    pub(crate) status: Option<String>,
    /// Only jobs whose name or task contains this text
    #[arg(long, value_name = "TEXT")]
    pub(crate) search: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=200))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Image {
    /// Build an image, or find it already built
    Build {
        /// Which image: `base`, or `desktop` for jobs with a screen
        #[arg(default_value = "base")]
        name: String,
        /// A recipe of your own instead
        #[arg(long, value_name = "FILE", conflicts_with = "name")]
        recipe: Option<PathBuf>,
        /// Build again even if it is there
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        images: ImageFolder,
    },
    /// List the images that were built
    List {
        #[command(flatten)]
        images: ImageFolder,
    },
    /// Remove builds that newer ones have replaced and that no sandbox lives on
    Prune {
        /// Keep so many of the replaced builds of each image [default: as configured, else none]
        #[arg(long, value_name = "N")]
        keep: Option<usize>,
        #[command(flatten)]
        images: ImageFolder,
    },
    /// Show one image: its recipe and what is installed in it
    Inspect {
        /// The image's name
        #[arg(default_value = "base")]
        name: String,
        #[command(flatten)]
        images: ImageFolder,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// A job's id, or a file with its log as JSONL (an agent.log)
    #[arg(value_name = "JOB-or-FILE", required_unless_present = "audit")]
    pub(crate) log: Option<String>,
    /// Check the audit log instead, which `GET /audit` gives; in FILE, if one is named
    #[arg(long)]
    pub(crate) audit: bool,
    #[command(flatten)]
    pub(crate) storage: Storage,
}
