//! `list_ports`: what listens in the sandbox, and which program does.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use bellglass_protocol::tunnel::{ListeningPort, MAX_PORTS};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::answer::Answer;

pub(super) fn list() -> Answer {
    let mut text = String::new();
    for ListeningPort { port, address, program } in listening() {
        let program = program.as_deref().unwrap_or("unknown");
        text.push_str(&format!("{port}  {address}  {program}\n"));
    }
    Answer::text(if text.is_empty() { "nothing listens\n".into() } else { text })
}

/// What listens, by port.
pub(super) fn listening() -> Vec<ListeningPort> {
    let owners = owners();
    let named = listeners().into_iter().map(|((address, port), inode)| {
        let program = owners.get(&inode).cloned();
        ListeningPort { port, address: address.to_string(), program }
    });
    let mut named: Vec<_> = named.collect();
    named.sort_by_key(|listening| listening.port);
    named.truncate(MAX_PORTS);
    named
}

/// The sockets on which somebody listens, by address and port.
fn listeners() -> BTreeMap<(IpAddr, u16), u64> {
    let mut listeners = BTreeMap::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = fs::read_to_string(table).unwrap_or_default();
        for (address, port, inode) in text.lines().filter_map(listener) {
            listeners.insert((address, port), inode);
        }
    }
    listeners
}

/// Address, port and socket of a line of the kernel's table, if somebody listens there.
fn listener(line: &str) -> Option<(IpAddr, u16, u64)> {
    const LISTENING: &str = "0A";
    let fields: Vec<&str> = line.split_whitespace().collect();
    if fields.get(3) != Some(&LISTENING) {
        return None;
    }
    let (address, port) = fields.get(1)?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    Some((address_of(address)?, port, fields.get(9)?.parse().ok()?))
}

/// The kernel writes an address as numbers of four bytes each, in its own order of them.
fn address_of(text: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let number = u32::from_str_radix(text.get(at..at + 8)?, 16).ok()?;
        Some(number.to_ne_bytes())
    };
    match text.len() {
        8 => Some(word(0)?.into()),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?].concat();
            Some(<[u8; 16]>::try_from(words).ok()?.into())
        }
        _ => None,
    }
}

/// Where nearly all that listens can be reached.
const USUAL: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// Other addresses of the sandbox at which a port is tried.
const MOST_OTHERS: usize = 8;

/// Connects to a port, at whichever of the sandbox's addresses somebody listens; at each for so long.
pub(super) async fn reach(port: u16, patience: Duration) -> Option<TcpStream> {
    for address in USUAL {
        if let Some(stream) = dial(address, port, patience).await {
            return Some(stream);
        }
    }
    // The kernel's tables may be long, so they are read only where nobody answered, and not here.
    let others = tokio::task::spawn_blocking(move || others_that_listen(port)).await;
    for address in others.unwrap_or_default() {
        if let Some(stream) = dial(address, port, patience).await {
            return Some(stream);
        }
    }
    None
}

async fn dial(address: IpAddr, port: u16, patience: Duration) -> Option<TcpStream> {
    timeout(patience, TcpStream::connect((address, port))).await.ok()?.ok()
}

fn others_that_listen(port: u16) -> Vec<IpAddr> {
    let addresses = listeners().into_keys().filter(|(_, other)| *other == port);
    let others = addresses.map(|(address, _)| address);
    others
        .filter(|address| !address.is_unspecified() && !USUAL.contains(address))
        .take(MOST_OTHERS)
        .collect()
}

/// Which program holds which socket.
fn owners() -> HashMap<u64, String> {
    let mut owners = HashMap::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let name = fs::read(process.path().join("comm")).unwrap_or_default();
        let name: String =
            String::from_utf8_lossy(&name).chars().filter(|c| !c.is_control()).collect();
        for open in fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten() {
            let target = fs::read_link(open.path()).unwrap_or_default();
            let target = target.to_string_lossy();
            let inode = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
            if let Some(inode) = inode.and_then(|inode| inode.parse().ok()) {
                owners.entry(inode).or_insert_with(|| format!("{name} (process {pid})"));
            }
        }
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listeners_are_found() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0";
        assert_eq!(listener(line), Some((Ipv4Addr::LOCALHOST.into(), 8080, 4711)));
        assert_eq!(listener(&line.replace(" 0A ", " 01 ")), None);
        assert_eq!(listener("sl local_address rem_address st"), None);
        assert_eq!(listener(""), None);
    }

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for (text, address) in [
            ("0200007F", "127.0.0.2"),
            ("00000000", "0.0.0.0"),
            ("00000000000000000000000001000000", "::1"),
            ("0000000000000000FFFF00000100007F", "::ffff:127.0.0.1"),
        ] {
            assert_eq!(address_of(text), Some(address.parse().unwrap()), "{text}");
        }
        assert_eq!(address_of("0100007"), None);
        assert_eq!(address_of("ééééé"), None);
    }
}
