//! Sends frames out of a live interface: the traffic of `retroscope generate -i`.
//!
//! A [`LiveSender`] takes the bursts of any [`Queue`](crate::Queue), so the generator's queue does the pacing:
//!
//! ```no_run
//! use std::{path::Path, time::Duration};
//! use retroscope_capture::{Source, Status, generator::GeneratorSource, send::LiveSender};
//!
//! let source = Box::new(GeneratorSource::parse("generate:rate=500kpps,duration=10s")?);
//! let mut sender = LiveSender::open("veth0", Path::new("retroscope"))?;
//! for mut queue in source.open(1)? {
//!     while queue.next(Duration::from_millis(100))? != Status::End {
//!         sender.send(queue.burst())?;
//!     }
//! }
//! println!("{} frames", sender.sent());
//! # Ok::<(), retroscope_capture::SourceError>(())
//! ```
//!
//! Frames bypass the queueing discipline (and with it captures of what this interface sends: record at the other end), go
//! out many to a system call, and are never dropped here: where the interface
//! has no room they are tried again, and the attempts counted.

mod sys;

use std::{io, path::Path};

use crate::{
    Burst, SourceError,
    af_packet::{
        permission,
        sys::{InterfaceQuery, PacketSocket},
    },
    clock::{self, SECOND_NS},
};

/// Without any progress for so long the interface does not take frames: its other end is down.
const STALL_NS: i64 = SECOND_NS;

/// A packet socket to send with. Needs CAP_NET_RAW to open, nothing afterwards.
#[derive(Debug)]
pub struct LiveSender {
    interface: String,
    socket: PacketSocket,
    sent: u64,
    retries: u64,
}

impl LiveSender {
    /// Opens `interface` in the calling thread's network namespace. `program` is named by the message about privileges.
    ///
    /// # Errors
    /// [`SourceError::NoInterface`], [`SourceError::Permission`], or [`SourceError::System`].
    pub fn open(interface: &str, program: &Path) -> Result<Self, SourceError> {
        let system = |call, error| SourceError::System {
            interface: interface.to_owned(),
            call,
            error,
        };
        let query = InterfaceQuery::new().map_err(|error| system("socket(AF_UNIX)", error))?;
        let index = query
            .index(interface)
            .map_err(|error| match error.raw_os_error() {
                Some(libc::ENODEV) => SourceError::NoInterface {
                    interface: interface.to_owned(),
                },
                _ => system("ioctl(SIOCGIFINDEX)", error),
            })?;
        let socket = PacketSocket::new().map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => permission("send on", interface, program),
            _ => system("socket(AF_PACKET)", error),
        })?;
        // Refused before Linux 3.14: then frames take the longer way.
        let _ = socket.bypass_queueing();
        // Bound to no protocol: it never receives.
        socket
            .bind(index, 0)
            .map_err(|error| system("bind", error))?;
        Ok(Self {
            interface: interface.to_owned(),
            socket,
            sent: 0,
            retries: 0,
        })
    }

    /// Sends all frames of a burst, in order, as captured: a tag that stands beside a frame is not put in. Waits for room.
    ///
    /// # Errors
    /// [`SourceError::System`] if the interface goes down, does not take a frame (too long), or takes none for a second.
    /// What was sent before is counted.
    pub fn send(&mut self, burst: Burst<'_>) -> Result<(), SourceError> {
        let mut frames = burst.frames;
        let mut stalled_since_ns = None;
        while !frames.is_empty() {
            match sys::send_frames(&self.socket, burst.memory, frames) {
                Ok(sent) => {
                    self.sent += sent as u64;
                    frames = &frames[sent..];
                    stalled_since_ns = None;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_no_room(&error) => {
                    self.retries += 1;
                    let now_ns = clock::monotonic_ns();
                    if now_ns - *stalled_since_ns.get_or_insert(now_ns) >= STALL_NS {
                        return Err(self.error(error));
                    }
                    // The receiver's softirq may need this CPU.
                    std::thread::yield_now();
                }
                Err(error) => return Err(self.error(error)),
            }
        }
        Ok(())
    }

    /// Frames that the interface took.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// System calls that were repeated because the interface had no room.
    #[must_use]
    pub fn retries(&self) -> u64 {
        self.retries
    }

    fn error(&self, error: io::Error) -> SourceError {
        SourceError::System {
            interface: self.interface.clone(),
            call: "sendmmsg",
            error,
        }
    }
}

fn is_no_room(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EAGAIN))
}

/// Whether frames sent on `interface` stay away from the machine's real network: it is the loopback interface, or this
/// process is in another network namespace than one of its ancestors, up to the first process. Ancestors that may not
/// be looked at do not count: where none may, the answer is `false`, ask the user.
#[must_use]
pub fn in_network_namespace_or_loopback(interface: &str) -> bool {
    let is_loopback = || {
        InterfaceQuery::new()
            .and_then(|query| query.flags(interface))
            .is_ok_and(|flags| flags.is_loopback())
    };
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let is_elsewhere = || {
        let Some(own) = namespace("thread-self") else {
            return false;
        };
        let mut ancestors = std::iter::successors(parent("self"), |process| parent(process));
        ancestors.any(|process| namespace(&process).is_some_and(|theirs| theirs != own))
    };
    is_loopback() || is_elsewhere()
}

/// The parent of a process by the kernel's account; `None` for the first one.
fn parent(process: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    Some(line.trim().to_owned()).filter(|parent| parent != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_harmless() {
        if InterfaceQuery::new()
            .and_then(|query| query.index("lo"))
            .is_err()
        {
            eprintln!("SKIP: no interface lo");
            return;
        }
        assert!(in_network_namespace_or_loopback("lo"));
    }

    #[test]
    fn no_such_interface() {
        let error = LiveSender::open("no-such-if", Path::new("retroscope")).unwrap_err();
        assert_eq!(error.to_string(), "no interface no-such-if");
    }
}
