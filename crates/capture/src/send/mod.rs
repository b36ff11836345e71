//! Sends frames out of a live interface: the traffic of `retroscope generate -i`.
//!
//! A [`LiveSender`] takes the bursts of any [`Queue`](crate::Queue), so the generator's queue does the pacing:
//!
//! ```no_run
//! use std::{path::Path, time::Duration};
//! use retroscope_capture::{Source, Status, send::LiveSender};
//! use retroscope_generate::GeneratorSource;
//!
//! let source = Box::new(GeneratorSource::parse("generate:rate=500kpps,duration=10s")?);
//! let mut sender = LiveSender::open("veth0", Path::new("retroscope"))?;
//! for mut queue in source.open(1)? {
//!     while queue.next(Duration::from_millis(100))? != Status::End {
//!         sender.send(queue.burst())?;
//!     }
//! }
//! println!("{} frames", sender.sent);
//! # Ok::<(), retroscope_capture::SourceError>(())
//! ```
//!
//! Frames bypass the queueing discipline, and with it captures of what this interface sends: record
//! at the other end. One system call sends up to 64 frames. Nothing is dropped here: if the
//! interface has no room, the sender tries the same frame again and counts the attempts. So the
//! frames that are counted as sent are those that the driver took.

mod namespace;

use std::{
    io::{self, IoSlice},
    os::fd::AsFd,
    path::Path,
};

use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, sendmmsg};

pub use namespace::in_network_namespace_or_loopback;

use crate::{
    Burst, FrameMeta, SourceError,
    af_packet::{permission, sys::PacketSocket},
    clock::{self, SECOND_NS},
    interface::NamedInterface,
};

/// [`LiveSender::timeout_ns`] of a new sender.
const PROGRESS_WAIT_NS: i64 = SECOND_NS;

/// Bytes of an Ethernet header, which an MTU does not count.
const HEADER_BYTES: i32 = 14;

/// A packet socket that sends. Needs CAP_NET_RAW to open, nothing afterwards.
#[derive(Debug)]
pub struct LiveSender {
    interface: NamedInterface,
    socket: PacketSocket,
    /// How long the interface may refuse frames before [`Self::send`] fails, ns; a second at first.
    /// Longer for a receiver that is known to pause.
    pub timeout_ns: i64,
    /// Frames that the interface took.
    pub sent: u64,
    /// How often something was tried again because the interface had no room.
    pub retries: u64,
}

impl LiveSender {
    /// Opens `interface` in the calling thread's network namespace. `program` is named by the message about privileges.
    ///
    /// # Errors
    /// [`SourceError::NoInterface`], [`SourceError::Permission`], or [`SourceError::System`].
    pub fn open(interface: &str, program: &Path) -> Result<Self, SourceError> {
        let system = |call, error| SourceError::system(interface, call, error);
        let named = NamedInterface::new(interface)?;
        let index = named.look_up()?.index;
        let socket = PacketSocket::new().map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => permission("send on", interface, program),
            _ => system("socket(AF_PACKET)", error),
        })?;
        // Linux before 3.14 refuses the option. Frames then pass the queueing discipline.
        let _ = socket.bypass_queueing();
        // Bound to no protocol: it never receives.
        socket
            .bind(index, 0)
            .map_err(|error| system("bind", error))?;
        Ok(Self {
            interface: named,
            socket,
            timeout_ns: PROGRESS_WAIT_NS,
            sent: 0,
            retries: 0,
        })
    }

    /// Sends all frames of a burst, in order, as captured: a tag that stands beside a frame is not put in. Waits for room.
    ///
    /// # Errors
    /// [`SourceError::InterfaceDown`], [`SourceError::InterfaceGone`], [`SourceError::FrameTooLong`],
    /// [`SourceError::NoRoom`] if it takes none for a second (see [`Self::timeout_ns`]), or [`SourceError::System`]. What was sent
    /// before is counted.
    pub fn send(&mut self, burst: Burst<'_>) -> Result<(), SourceError> {
        let Burst { memory, mut frames } = burst;
        // When the interface began to refuse, on the monotonic clock.
        let mut stall_ns = None;
        while !frames.is_empty() {
            let error = match send_frames(&self.socket, memory, frames) {
                Ok(sent) => {
                    self.sent += sent as u64;
                    frames = &frames[sent..];
                    stall_ns = None;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            if !matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EAGAIN)) {
                return Err(self.error("sendmmsg", error, frames));
            }
            self.retries += 1;
            let now_ns = clock::monotonic_ns();
            if now_ns - *stall_ns.get_or_insert(now_ns) >= self.timeout_ns {
                return Err(self.error("sending", error, frames));
            }
            // The receiver's softirq may need this CPU.
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Why the first of `frames` was not sent.
    fn error(&self, call: &'static str, error: io::Error, frames: &[FrameMeta]) -> SourceError {
        let interface = self.interface.name.clone();
        let query = &self.interface.query;
        match error.raw_os_error() {
            // An interface goes down before it is gone, and a socket gets the error once.
            Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                if query.index(&interface).is_ok() {
                    SourceError::InterfaceDown { interface }
                } else {
                    SourceError::InterfaceGone { interface }
                }
            }
            Some(libc::ENOBUFS | libc::EAGAIN) => SourceError::NoRoom { interface },
            Some(libc::EMSGSIZE) => SourceError::FrameTooLong {
                frame_bytes: frames.first().map_or(0, |frame| frame.captured_len),
                frame_bytes_max: query.mtu(&interface).unwrap_or(0) + HEADER_BYTES,
                interface,
            },
            _ => SourceError::system(&interface, call, error),
        }
    }
}

/// Frames of a sendmmsg(2) at most: as many headers fit on the stack and stay in the L1 cache.
const BATCH: usize = 64;

/// Sends the first frames of `frames`, whose bytes lie in `memory`, on a bound packet socket, up to [`BATCH`] of them.
/// Returns how many went out, at least 1. Panics if a frame lies outside `memory`.
fn send_frames(socket: impl AsFd, memory: &[u8], frames: &[FrameMeta]) -> io::Result<usize> {
    let frames = &frames[..frames.len().min(BATCH)];
    let parts: [[IoSlice<'_>; 1]; BATCH] = std::array::from_fn(|index| {
        let bytes = frames.get(index).map_or(&[][..], |frame| {
            &memory[frame.offset..frame.offset + frame.captured_len as usize]
        });
        [IoSlice::new(bytes)]
    });
    let mut controls: [_; BATCH] = std::array::from_fn(|_| SendAncillaryBuffer::default());
    let mut parts = parts.iter();
    let mut messages = controls
        .each_mut()
        .map(|control| MMsgHdr::new(parts.next().map_or(&[], |part| part), control));
    let messages = &mut messages[..frames.len()];
    Ok(sendmmsg(socket, messages, SendFlags::DONTWAIT)?)
}
