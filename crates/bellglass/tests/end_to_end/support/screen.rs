//! A terminal of the kind that people sit at, for programs that behave otherwise in one.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command};

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// The side of a terminal at which a person sits.
pub(crate) struct Screen {
    hands: File,
    shown: UnboundedReceiver<Vec<u8>>,
    text: String,
}

impl Screen {
    /// Starts a program in a terminal of its own.
    pub(crate) fn start(mut command: Command, columns: u16, rows: u16) -> (Self, Child) {
        let hands = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&hands).unwrap();
        unlockpt(&hands).unwrap();
        let name = ptsname(&hands, Vec::new()).unwrap();
        let screen = open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let hands = File::from(hands);
        set_size(&hands, columns, rows);
        let stream = || File::from(screen.try_clone().unwrap());
        command.stdin(stream()).stdout(stream()).stderr(stream());
        let child = command.spawn().unwrap();
        // Both hold the program's side, which is to be closed when the program ends.
        drop((command, screen));
        let mut eyes = hands.try_clone().unwrap();
        let (sender, shown) = unbounded_channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // The end of the program reads as an error.
            while let Ok(count @ 1..) = eyes.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        (Self { hands, shown, text: String::new() }, child)
    }

    pub(crate) fn types(&mut self, keys: &str) {
        self.hands.write_all(keys.as_bytes()).unwrap();
    }

    /// Makes it another size. Whoever does this also tells the program, as a terminal's kernel does for
    /// programs that it belongs to.
    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        set_size(&self.hands, columns, rows);
    }

    /// Whether what is typed is shown and gathered into lines, as it is before a program takes every key.
    pub(crate) fn is_usual(&self) -> bool {
        let modes = tcgetattr(&self.hands).unwrap().local_modes;
        modes.contains(LocalModes::ICANON) && modes.contains(LocalModes::ECHO)
    }

    /// Waits until something is shown; all that was shown until then.
    pub(crate) async fn shows(&mut self, words: &str) -> &str {
        while !self.text.contains(words) {
            let Some(more) = self.shown.recv().await else {
                panic!("{words:?} was never shown: {:?}", self.text)
            };
            self.text.push_str(&String::from_utf8_lossy(&more));
        }
        &self.text
    }

    /// All that is shown until the program has ended.
    pub(crate) async fn shows_at_the_end(mut self) -> String {
        while let Some(more) = self.shown.recv().await {
            self.text.push_str(&String::from_utf8_lossy(&more));
        }
        self.text
    }
}

fn set_size(hands: &File, columns: u16, rows: u16) {
    let size = Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(hands, size).unwrap();
}
