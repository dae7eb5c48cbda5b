//! Looks around the sandbox from inside and tries the doors, as a tool process would.
//!
//! A process is confined as every tool is and writes down what it finds; meanwhile the guest makes itself
//! ready and takes the wire. It starts no program: that would cost more, and confinement is complete before
//! a program starts. What the findings mean is decided outside.

mod findings;
mod looking;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use bellglass_protocol::launch::GuestConfig;
use bellglass_protocol::report::Probe;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;

use super::confine::Confinement;
use super::standby::Spare;
use looking::END;
pub(super) use looking::look_around;

/// More than any sandbox has to say.
const MOST_FINDINGS: u64 = 1 << 20;
/// What most have to say.
const USUAL_FINDINGS: usize = 16 << 10;

/// Somebody who looks around.
pub(super) struct Look {
    findings: OwnedFd,
    config: GuestConfig,
}

impl Look {
    /// Sends somebody to look around, under a supervisor that then waits for a program.
    pub(super) fn begin(
        config: &GuestConfig,
        confinement: &Confinement,
    ) -> io::Result<(Self, Spare)> {
        let (findings, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        let attempts = Attempts::prepare(config)?;
        let spare = Spare::make(confinement, Some((theirs.as_raw_fd(), &attempts)))?;
        Ok((Self { findings, config: config.clone() }, spare))
    }

    /// What was found. Whatever could not be looked at shows as not enforced.
    pub(super) async fn end(self) -> Probe {
        // First: the other is still at it.
        let mut notes = looking::look_at_what_is_shared();
        let found = self.read().await.unwrap_or_default();
        notes.extend_from_slice(found.strip_suffix(&[END]).unwrap_or_default());
        findings::understand(&self.config, &String::from_utf8_lossy(&notes))
    }

    async fn read(&self) -> io::Result<Vec<u8>> {
        let findings = pipe::Receiver::from_owned_fd(self.findings.try_clone()?)?;
        let mut findings = findings.take(MOST_FINDINGS);
        let mut found = Vec::with_capacity(USUAL_FINDINGS);
        while found.last() != Some(&END) && findings.read_buf(&mut found).await? > 0 {}
        Ok(found)
    }
}

pub(super) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// What is tried, made before the fork because nothing can be allocated after it.
pub(super) struct Attempts {
    /// Folders that nobody may write to. A file is made in each, without a name, so that none is left.
    closed: Vec<CString>,
    /// Folders that may be written to. To ask whether they can be is enough, and much cheaper.
    open: Vec<CString>,
    /// Kernel settings that are opened for writing.
    settings: Vec<CString>,
    /// Where a device file is tried to be made, in a folder that tools may write to.
    device: CString,
    /// Addresses outside that are tried to be reached.
    addresses: Vec<Address>,
}

/// An address outside of every sandbox.
struct Address {
    name: &'static str,
    socket: libc::sockaddr_storage,
    length: libc::socklen_t,
}

impl Attempts {
    fn prepare(config: &GuestConfig) -> io::Result<Self> {
        const READ_ONLY_FOLDERS: [&str; 13] = [
            "/", "/bin", "/boot", "/dev", "/etc", "/home", "/opt", "/proc", "/root", "/run",
            "/sys", "/usr", "/var",
        ];
        const SETTINGS: [&str; 3] = [
            "/proc/sys/kernel/core_pattern",
            "/proc/sys/kernel/modprobe",
            "/proc/sys/user/max_user_namespaces",
        ];
        Ok(Self {
            closed: READ_ONLY_FOLDERS.into_iter().map(CString::new).collect::<Result<_, _>>()?,
            open: config
                .writable_folders()
                .map(CString::new)
                .into_iter()
                .collect::<Result<_, _>>()?,
            settings: SETTINGS.into_iter().map(CString::new).collect::<Result<_, _>>()?,
            device: CString::new(format!("{}/.bellglass-device", config.workspace))?,
            addresses: vec![
                // Set aside for documentation, so that nobody is there.
                Address::v4("192.0.2.1", [192, 0, 2, 1]),
                Address::v4("169.254.169.254", [169, 254, 169, 254]),
                Address::v6(
                    "2001:db8::1",
                    [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
                ),
            ],
        })
    }
}

impl Address {
    const PORT: u16 = 80;

    fn v4(name: &'static str, octets: [u8; 4]) -> Self {
        let address = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: Self::PORT.to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(octets) },
            sin_zero: [0; 8],
        };
        // SAFETY: every kind of address fits and is plain data.
        unsafe { Self::of(name, address) }
    }

    fn v6(name: &'static str, octets: [u8; 16]) -> Self {
        let address = libc::sockaddr_in6 {
            sin6_family: libc::AF_INET6 as libc::sa_family_t,
            sin6_port: Self::PORT.to_be(),
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: octets },
            sin6_scope_id: 0,
        };
        // SAFETY: every kind of address fits and is plain data.
        unsafe { Self::of(name, address) }
    }

    /// # Safety
    /// `T` must be one of the kernel's addresses.
    unsafe fn of<T>(name: &'static str, address: T) -> Self {
        // SAFETY: all zero is a valid storage, and it is at least as large as every address.
        let socket = unsafe {
            let mut socket: libc::sockaddr_storage = std::mem::zeroed();
            std::ptr::write((&raw mut socket).cast(), address);
            socket
        };
        Self { name, socket, length: size_of::<T>() as libc::socklen_t }
    }
}
