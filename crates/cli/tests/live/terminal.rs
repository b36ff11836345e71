//! A pseudoterminal for tests, and the screens that the program draws on it.

use std::{
    os::fd::OwnedFd,
    process::Child,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{read, write},
    pty::{OpenptFlags, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

/// Time limit for a screen.
const DEADLINE: Duration = Duration::from_secs(30);
/// Sequence at the start of each screen: cursor to the first line.
const HOME: &str = "\x1b[1H";

/// Sequence that leaves the alternate screen.
pub(crate) const LEAVE: &str = "\x1b[?1049l";

/// A process that is killed even if the test fails.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A pseudoterminal.
pub(crate) struct Terminal {
    /// The master end, which keeps the pseudoterminal open.
    pub(crate) master: OwnedFd,
}

impl Terminal {
    pub(crate) fn new() -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let master = openpt(flags).unwrap();
        unlockpt(&master).unwrap();
        Self { master }
    }

    pub(crate) fn path(&self) -> String {
        let name = ptsname(&self.master, Vec::new()).unwrap();
        name.into_string().unwrap()
    }

    pub(crate) fn resize(&self, width: u16, height: u16) {
        let size = Winsize {
            ws_row: height,
            ws_col: width,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.master, size).unwrap();
    }

    pub(crate) fn press(&self, key: u8) {
        assert_eq!(write(&self.master, &[key]).unwrap(), 1);
    }

    /// Appends the program's output to `seen` until a condition holds.
    pub(crate) fn wait(&self, seen: &mut String, is_it: impl Fn(&str) -> bool) {
        let until = Instant::now() + DEADLINE;
        while !is_it(seen) {
            assert!(Instant::now() < until, "{seen:?}");
            let mut news = [PollFd::new(&self.master, PollFlags::IN)];
            let time = Timespec::try_from(Duration::from_secs(1)).unwrap();
            if poll(&mut news, Some(&time)).unwrap() > 0 {
                let mut bytes = [0; 4096];
                let len = read(&self.master, &mut bytes).unwrap();
                seen.push_str(str::from_utf8(&bytes[..len]).unwrap());
            }
        }
    }
}

/// The last whole screen in `seen`, divided at escape sequences.
fn screen(seen: &str) -> Vec<&str> {
    let mut screens = seen.rsplit(HOME).skip(1);
    let screen = screens.next().unwrap_or_default();
    screen.split("\x1b[").collect()
}

/// Whether the last whole screen contains the parts in this order.
pub(crate) fn shows(seen: &str, parts: &[&str]) -> bool {
    let mut rest = screen(seen).join("\n");
    parts.iter().all(|part| {
        let found = rest.split_once(part).map(|(_, rest)| rest.to_owned());
        found.map(|found| rest = found).is_some()
    })
}
