//! How bash is made to take commands from us while the terminal belongs to the programs it runs.
//!
//! Bash is interactive, so ctrl-c ends the command and not the shell, and programs get the terminal
//! as usual. It never reads the terminal itself: before each prompt it runs a loop of ours that takes
//! the name of a file from a pipe, runs what is in the file, and marks its end in the output, where
//! it cannot be overtaken. After an interrupt bash prompts anew, and so comes back to the loop.

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags};

use super::text::{ASTRAY, MARK};

/// The files by which a session's shell is fed. They go with it.
pub(super) struct Feed {
    folder: PathBuf,
    /// Both ends of the pipe: it is never at its end, whoever has it open.
    orders: OwnedFd,
}

impl Feed {
    pub(super) fn prepare(folder: PathBuf, token: &str, terminal: &str) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let pipe = folder.join("orders");
        let _ = fs::remove_file(&pipe);
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::from(0o600), 0)?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let orders = rustix::fs::openat(CWD, &pipe, flags, Mode::empty())?;
        let feed = Self { folder, orders };
        feed.write("start", &start_file(&pipe, token, terminal))?;
        Ok(feed)
    }

    /// What bash reads when it starts.
    pub(super) fn start_file(&self) -> PathBuf {
        self.folder.join("start")
    }

    /// Has the shell run this text once it is ready. The shell marks its end with the number.
    pub(super) fn order(&mut self, number: u64, command: &str) -> io::Result<()> {
        // The one before was read when it was begun.
        let _ = fs::remove_file(self.folder.join(format!("command-{}", number.saturating_sub(1))));
        let name = format!("command-{number}");
        let path = self.write(&name, command)?;
        let mut order = path.into_os_string().into_encoded_bytes();
        order.push(0);
        // Far less than a pipe holds, so it is written whole.
        rustix::io::write(&self.orders, &order)?;
        Ok(())
    }

    fn write(&self, name: &str, text: &str) -> io::Result<PathBuf> {
        let path = self.folder.join(name);
        let _ = fs::remove_file(&path);
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(text.as_bytes())?;
        Ok(path)
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
        let _ = self.folder.parent().map(fs::remove_dir);
    }
}

fn start_file(pipe: &Path, token: &str, terminal: &str) -> String {
    let pipe = quoted(&pipe.to_string_lossy());
    // The terminal goes by its own name, since gVisor's kernel does not open it as /dev/tty.
    // A user's own `printf`, `read` and `eval` are not ours. `read` takes the name of a file; what is in it runs with the last command's status in `$?`.
    format!(
        r#"PS0= PS2='> ' PS1='\[\033]{MARK}{token};{ASTRAY}\007\]'
unset HISTFILE
__bellglass_status=0 __bellglass_number=0
__bellglass_return() {{ return "$1"; }}
__bellglass_mark() {{
    __bellglass_status=$1
    builtin printf '\033]{MARK}{token};%d;%d;%s\007' "$__bellglass_number" "$1" "$PWD" >{terminal}
}}
readonly PROMPT_COMMAND='__bellglass_mark "$?"
while IFS= builtin read -r -d "" __bellglass_file <{pipe}; do
    __bellglass_number=${{__bellglass_file##*-}} __bellglass_text=$(<"$__bellglass_file")
    builtin eval "__bellglass_return $__bellglass_status; $__bellglass_text"
    __bellglass_mark "$?"
done'
"#
    )
}

/// A text as bash reads it back unchanged.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
