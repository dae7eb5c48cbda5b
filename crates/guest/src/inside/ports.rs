//! `list_ports`: what listens in the sandbox, and which program does.

use std::collections::{BTreeMap, HashMap};
use std::fs;

use bellglass_protocol::tunnel::{ListeningPort, MAX_PORTS};

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
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let mut listening: BTreeMap<(u16, String), u64> = BTreeMap::new();
    for table in tables {
        let text = fs::read_to_string(table).unwrap_or_default();
        for (address, port, inode) in text.lines().filter_map(listener) {
            listening.insert((port, address), inode);
        }
    }
    let owners = owners();
    let named = listening.into_iter().map(|((port, address), inode)| {
        let program = owners.get(&inode).cloned();
        ListeningPort { port, address, program }
    });
    named.take(MAX_PORTS).collect()
}

/// Address, port and socket of a line of the kernel's table, if somebody listens there.
fn listener(line: &str) -> Option<(String, u16, u64)> {
    const LISTENING: &str = "0A";
    let fields: Vec<&str> = line.split_whitespace().collect();
    if fields.get(3) != Some(&LISTENING) {
        return None;
    }
    let (address, port) = fields.get(1)?.split_once(':')?;
    let address = match address {
        "0100007F" => "127.0.0.1",
        "00000000" => "0.0.0.0",
        "00000000000000000000000001000000" => "::1",
        "00000000000000000000000000000000" => "::",
        other => other,
    };
    Some((address.into(), u16::from_str_radix(port, 16).ok()?, fields.get(9)?.parse().ok()?))
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
        assert_eq!(listener(line), Some(("127.0.0.1".into(), 8080, 4711)));
        assert_eq!(listener(&line.replace(" 0A ", " 01 ")), None);
        assert_eq!(listener("sl local_address rem_address st"), None);
        assert_eq!(listener(""), None);
    }
}
