//! Sends frames out of a live interface, such as the traffic of `retroscope generate -i`.
//!
//! A [`LiveSender`] sends the bursts of any [`Queue`](crate::Queue), so the generator's queue does
//! the pacing:
//!
//! ```no_run
//! use std::{path::Path, time::Duration};
//! use retroscope_capture::{Source, QueueStatus, send::LiveSender};
//! use retroscope_generate::GeneratorSource;
//!
//! let source = Box::new(GeneratorSource::parse("generate:rate=500kpps,duration=10s")?);
//! let mut sender = LiveSender::open("veth0", Path::new("retroscope"))?;
//! for mut queue in source.open(1)? {
//!     while queue.next(Duration::from_millis(100))? != QueueStatus::End {
//!         sender.send(queue.burst())?;
//!     }
//! }
//! println!("{} frames", sender.sent);
//! # Ok::<(), retroscope_capture::SourceError>(())
//! ```
//!
//! Frames bypass the queueing discipline, and with it captures of the frames that this interface
//! sends: record at the other end. One system call sends many frames. The sender never drops a
//! frame: if the interface has no room, the sender tries the frame again, in its order, and counts
//! the failed attempts. So the driver has taken every frame that counts as sent.
//!
//! # Two ways out
//! A packet socket serves every interface. An XDP socket is faster by about half. The sender uses
//! an XDP socket only on virtual Ethernet pairs, where the sender learns the fate of each frame
//! ([`af_xdp`], `sender`). A frame that the XDP socket does not accept goes to the packet socket,
//! which reports the reason. Before that, the sender waits until the receiver has processed all
//! earlier frames, for [`LiveSender::timeout_ns`] at most. The sender never reorders frames. The
//! receiver may reorder frames if several of its CPUs receive.

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
    af_xdp::{self, XdpSender},
    clock::{self, SECOND_NS},
    interface::NamedInterface,
};

/// Initial value of [`LiveSender::timeout_ns`].
const PROGRESS_WAIT_NS: i64 = SECOND_NS;

/// Bytes of an Ethernet header, which an MTU does not count.
const HEADER_BYTES: i32 = 14;

/// Sockets for sending. Opening needs CAP_NET_RAW; sending needs no privilege.
#[derive(Debug)]
pub struct LiveSender {
    interface: NamedInterface,
    socket: PacketSocket,
    /// The faster socket. `None` if it does not suit the interface or does not open, or if the
    /// receiver has kept its frames for the timeout. Also `None` after an error in the sending of
    /// its frames, because the socket may still hold frames.
    xdp_sender: Option<XdpSender>,
    /// Longest time without progress, ns; initially one second. If the interface accepts no frame
    /// for this time, sending fails. If the receiver keeps frames of the XDP socket for this time,
    /// the sender changes to the packet socket, or fails if a refused frame is unknown. A receiver
    /// that is known to pause needs a larger value.
    pub timeout_ns: i64,
    /// Frames that the interface accepted.
    pub sent: u64,
    /// Attempts that failed because the interface had no room or refused a frame. On the XDP
    /// socket, interrupted attempts without a sent frame count too.
    pub retries: u64,
}

impl LiveSender {
    /// Opens `interface` in the calling thread's network namespace. The message about privileges
    /// names `program`.
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
        // Linux before 3.14 refuses this option. Frames then pass the queueing discipline.
        let _ = socket.bypass_queueing();
        // The socket is bound to no protocol, so it never receives.
        socket
            .bind(index, 0)
            .map_err(|error| system("bind", error))?;
        // If the XDP socket does not open for any reason, the packet socket sends all frames.
        let xdp_sender = af_xdp::can_send_on(&named.query, interface, index)
            .then(|| {
                let frame_bytes_max = named.query.mtu(interface).ok()? + HEADER_BYTES;
                XdpSender::open(index, usize::try_from(frame_bytes_max).ok()?).ok()
            })
            .flatten();
        Ok(Self {
            interface: named,
            socket,
            xdp_sender,
            timeout_ns: PROGRESS_WAIT_NS,
            sent: 0,
            retries: 0,
        })
    }

    /// Sends all frames of a burst, in order, as captured: a VLAN tag in the descriptor is not
    /// inserted. Waits for room.
    ///
    /// # Errors
    /// [`SourceError::InterfaceDown`], [`SourceError::InterfaceGone`],
    /// [`SourceError::FrameTooLong`], [`SourceError::NoRoom`] if the interface accepts no frame for
    /// [`Self::timeout_ns`], or [`SourceError::System`]. Frames that were certainly sent before the
    /// error are counted.
    pub fn send(&mut self, burst: Burst<'_>) -> Result<(), SourceError> {
        let mut frames = burst.frames;
        while !frames.is_empty() {
            let Some(mut xdp_sender) = self.xdp_sender.take() else {
                return self.send_plainly(burst.memory, frames);
            };
            if !xdp_sender.wait_for_chunks(self.timeout_ns) {
                // The receiver keeps packets, and with them chunks of the XDP socket. All frames
                // that were staged before were sent, so the packet socket sends the rest.
                continue;
            }
            let staged = xdp_sender.stage(burst.memory, frames);
            if staged == 0 {
                let sent = self.send_plainly(burst.memory, &frames[..1]);
                self.xdp_sender = Some(xdp_sender);
                sent?;
                frames = &frames[1..];
            } else {
                // After an error the XDP socket is not used again: it may hold frames that nobody
                // needs any more.
                self.send_staged(&mut xdp_sender, burst.memory, &frames[..staged])?;
                self.xdp_sender = Some(xdp_sender);
                frames = &frames[staged..];
            }
        }
        Ok(())
    }

    /// Sends the staged frames. A refused frame goes through the packet socket.
    fn send_staged(
        &mut self,
        xdp_sender: &mut XdpSender,
        memory: &[u8],
        mut frames: &[FrameMeta],
    ) -> Result<(), SourceError> {
        let mut stall = None;
        while !frames.is_empty() {
            let (taken, said) = xdp_sender.send(self.timeout_ns);
            let (done, left) = frames.split_at(taken);
            self.sent += done.len() as u64;
            frames = left;
            match said {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && taken > 0 => {
                    self.sent -= 1;
                    self.retries += 1;
                    self.send_plainly(memory, &done[taken - 1..])?;
                }
                Err(error) if !is_no_room(&error) && !is_interrupted(&error) => {
                    return Err(self.error("sendto(AF_XDP)", error, frames));
                }
                _ if taken > 0 => stall = None,
                said => self.wait(&mut stall, said.err(), frames)?,
            }
        }
        Ok(())
    }

    /// Sends frames through the packet socket.
    fn send_plainly(&mut self, memory: &[u8], mut frames: &[FrameMeta]) -> Result<(), SourceError> {
        let mut stall = None;
        while !frames.is_empty() {
            match send_frames(&self.socket, memory, frames) {
                Ok(sent) => {
                    self.sent += sent as u64;
                    frames = &frames[sent..];
                    stall = None;
                }
                Err(error) if is_interrupted(&error) => {}
                Err(error) if is_no_room(&error) => self.wait(&mut stall, Some(error), frames)?,
                Err(error) => return Err(self.error("sendmmsg", error, frames)),
            }
        }
        Ok(())
    }

    /// Waits a moment for room. `said` is the interface's error, if any. Fails if the sender has
    /// waited for the timeout. `stall`: since when the sender waits, on the monotonic clock.
    fn wait(
        &mut self,
        stall: &mut Option<i64>,
        said: Option<io::Error>,
        frames: &[FrameMeta],
    ) -> Result<(), SourceError> {
        self.retries += u64::from(said.is_some());
        let now_ns = clock::monotonic_ns();
        if now_ns - *stall.get_or_insert(now_ns) >= self.timeout_ns {
            let error = said.unwrap_or_else(|| io::Error::from_raw_os_error(libc::ENOBUFS));
            return Err(self.error("sending", error, frames));
        }
        // The receiver's softirq may need this CPU.
        std::thread::yield_now();
        Ok(())
    }

    /// Whether an XDP socket sends the frames that it accepts. A packet socket sends all other
    /// frames.
    #[must_use]
    pub fn uses_xdp(&self) -> bool {
        self.xdp_sender.is_some()
    }

    /// Why the first of `frames` was not sent.
    fn error(&self, call: &'static str, error: io::Error, frames: &[FrameMeta]) -> SourceError {
        let interface = self.interface.name.clone();
        let query = &self.interface.query;
        match error.raw_os_error() {
            // An interface goes down before it is removed, and a socket reports the error only
            // once. So a look-up by name shows whether the interface was removed.
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

fn is_no_room(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EAGAIN))
}

fn is_interrupted(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted
}

/// Largest number of frames of a sendmmsg(2): the headers fit on the stack, and in the L1 cache.
const BATCH: usize = 64;

/// Sends the first frames of `frames` on a bound packet socket, up to [`BATCH`]; their bytes are in
/// `memory`. Returns the number of sent frames, at least 1. Panics if a frame is outside `memory`.
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
