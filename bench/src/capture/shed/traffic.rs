//! The traffic of `make bench-shed`: frames of a capture or of one size, and a sender that sleeps.

use std::{
    path::{Path, PathBuf},
    thread::park_timeout,
    time::{Duration, Instant},
};

use retroscope_capture::{Burst, Direction, FrameMeta, send::LiveSender};
use retroscope_pcapfile::CaptureReader;

use crate::{latency::cpu_time, measure::Failure};

/// The capture, next to the checkout.
const MIX: &str = "../../shared/traces/large/mix-a.pcap";
/// Bytes of an Ethernet header.
const HEADER_LEN: usize = 14;
/// The sender sleeps this long between bursts, so that its CPU time is the time of sending.
const PAUSE: Duration = Duration::from_millis(1);

/// Frames of any length, stored consecutively.
#[derive(Debug, Default)]
pub(super) struct Frames {
    memory: Vec<u8>,
    frames: Vec<FrameMeta>,
}

/// The time that sending took.
#[derive(Debug)]
pub(super) struct SendTime {
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
}

impl Frames {
    /// The frames of the capture with a whole Ethernet header, `copies` times with different
    /// addresses, without VLAN tags.
    ///
    /// # Errors
    /// [`Failure::CannotRun`]: the capture is missing. [`Failure::Wrong`]: it cannot be read.
    pub(super) fn read(copies: u8) -> Result<Self, Failure> {
        let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), MIX].iter().collect();
        if !path.exists() {
            return Err(Failure::CannotRun(format!(
                "needs the capture {}",
                path.display()
            )));
        }
        let failed = |error| Failure::system("reading the capture", error);
        let mut frames = Self::default();
        for copy in 0..copies {
            let mut reader = CaptureReader::open(&path).map_err(failed)?;
            while let Some(record) = reader.next().map_err(failed)? {
                if record.data.len() >= HEADER_LEN {
                    frames.push(&changed(record.data, copy));
                }
            }
        }
        Ok(frames)
    }

    /// 200,000 frames of 512 bytes: UDP over IPv4 from 256 ports.
    pub(super) fn alike() -> Self {
        let mut frame = [0; 512];
        frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
        frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 1, 242, 0, 0, 0, 0, 64, 17]);
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        frame[36..40].copy_from_slice(&[7, 208, 1, 222]);
        let mut frames = Self::default();
        for number in 0..200_000_u32 {
            frame[34] = number.to_le_bytes()[0];
            frames.push(&frame);
        }
        frames
    }

    fn push(&mut self, frame: &[u8]) {
        let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        self.frames.push(FrameMeta {
            time_ns: 0,
            offset: self.memory.len(),
            captured_len: len,
            wire_len: len,
            interface: 0,
            direction: Direction::Unknown,
            vlan: None,
        });
        self.memory.extend(frame);
    }

    /// Number of frames.
    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Bytes of the first `count` frames.
    pub(super) fn bytes(&self, count: usize) -> usize {
        self.frames
            .get(count)
            .map_or(self.memory.len(), |frame| frame.offset)
    }

    /// Sends the first `count` frames out of an interface of the calling thread's network
    /// namespace, at `rate` frames a second.
    ///
    /// # Errors
    /// [`Failure::Wrong`]: a call failed.
    pub(super) fn send(
        &self,
        interface: &str,
        count: usize,
        rate: f64,
    ) -> Result<SendTime, Failure> {
        let failed = |error| Failure::system("sending", error);
        let program = Path::new("retroscope-bench");
        let mut sender = LiveSender::open(interface, program).map_err(failed)?;
        let (start, start_cpu) = (Instant::now(), cpu_time());
        let mut sent = 0;
        while sent < count {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "saturates; the rate is positive"
            )]
            let due = ((start.elapsed().as_secs_f64() * rate) as usize).min(count);
            let burst = Burst {
                memory: &self.memory,
                frames: &self.frames[sent..due],
            };
            sender.send(burst).map_err(failed)?;
            sent = due;
            park_timeout(PAUSE);
        }
        Ok(SendTime {
            seconds: start.elapsed().as_secs_f64(),
            cpu_seconds: (cpu_time() - start_cpu).as_secs_f64(),
        })
    }
}

/// The frame without VLAN tags, and with one byte of both addresses XORed with `by`, except in
/// group addresses. Checksums are not corrected, because no receiver checks them here.
fn changed(frame: &[u8], by: u8) -> Vec<u8> {
    let (ends, mut rest) = frame.split_at(HEADER_LEN - 2);
    while rest.starts_with(&[0x81, 0]) || rest.starts_with(&[0x88, 0xa8]) {
        rest = rest.get(4..).unwrap_or_default();
    }
    let mut frame = [ends, rest].concat();
    // Offset of the first address after the frame's header, length of an address, index of the
    // changed byte, and first byte of group addresses.
    let (first, len, at, group) = match rest {
        [8, 0, ..] => (12, 4, 1, 224),
        [0x86, 0xdd, ..] => (8, 16, 5, 255),
        _ => return frame,
    };
    for start in [HEADER_LEN + first, HEADER_LEN + first + len] {
        if let Some(address) = frame.get_mut(start..start + len)
            && address[0] < group
        {
            address[at] ^= by;
        }
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_have_other_addresses_and_no_tags() {
        let ip = |from: u8, to: u8| {
            let addresses = [[10, from, 0, 1], [224, to, 0, 2]].concat();
            [&[0x45; 12][..], &addresses].concat()
        };
        let macs = [2; 12];
        let tagged = [&macs[..], &[0x81, 0, 0, 5, 8, 0], &ip(7, 9)].concat();
        let plain = [&macs[..], &[8, 0], &ip(7 ^ 3, 9)].concat();
        assert_eq!(changed(&tagged, 3), plain);
        let arp = [&macs[..], &[8, 6], &[0; 28]].concat();
        assert_eq!(changed(&arp, 3), arp);
    }

    #[test]
    fn the_first_frames_are_counted_in_bytes() {
        let mut frames = Frames::default();
        frames.push(&[0; 60]);
        frames.push(&[0; 70]);
        assert_eq!(
            [0, 1, 2, 9].map(|count| frames.bytes(count)),
            [0, 60, 130, 130]
        );
    }
}
