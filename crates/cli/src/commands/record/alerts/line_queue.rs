//! The queue of lines between the thread that reads sockets and the thread that parses lines.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    time::Duration,
};

/// Maximum number of waiting lines of all sockets.
const LINES_MAX: usize = 65_536;
/// Maximum number of bytes of the waiting lines of all sockets. Lines of 1 KiB reach both maxima at
/// the same time.
const BYTES_MAX: usize = 64 << 20;

/// The end of the queue for the thread that reads sockets.
#[derive(Debug)]
pub(super) struct LineSender {
    lines: SyncSender<Vec<u8>>,
    waiting_bytes: Arc<AtomicUsize>,
}

/// The end of the queue for the thread that parses lines.
#[derive(Debug)]
pub(super) struct LineReceiver {
    lines: Receiver<Vec<u8>>,
    /// All accesses are `Relaxed`, because this number only limits the queue; the channel
    /// synchronizes the lines.
    waiting_bytes: Arc<AtomicUsize>,
}

/// An empty queue of at most 65,536 lines and 64 MiB.
pub(super) fn line_queue() -> (LineSender, LineReceiver) {
    let (sender, receiver) = sync_channel(LINES_MAX);
    let waiting_bytes = Arc::new(AtomicUsize::new(0));
    let sender = LineSender {
        lines: sender,
        waiting_bytes: Arc::clone(&waiting_bytes),
    };
    let receiver = LineReceiver {
        lines: receiver,
        waiting_bytes,
    };
    (sender, receiver)
}

impl LineSender {
    /// Appends a copy of a line, without waiting. Returns `false` if there is no room for the line.
    pub(super) fn send(&self, line: &[u8]) -> bool {
        let before = self.waiting_bytes.fetch_add(line.len(), Relaxed);
        let has_room = before + line.len() <= BYTES_MAX;
        let is_sent = has_room
            && match self.lines.try_send(line.to_vec()) {
                Ok(()) => true,
                Err(TrySendError::Full(_)) => false,
                // The recording ends, so the line is not counted as lost.
                Err(TrySendError::Disconnected(_)) => return true,
            };
        if !is_sent {
            self.waiting_bytes.fetch_sub(line.len(), Relaxed);
        }
        is_sent
    }
}

impl LineReceiver {
    /// The next line.
    ///
    /// # Errors
    /// No line arrived within `wait`, or the sender is dropped and the queue is empty.
    pub(super) fn receive(&self, wait: Duration) -> Result<Vec<u8>, RecvTimeoutError> {
        let line = self.lines.recv_timeout(wait)?;
        self.waiting_bytes.fetch_sub(line.len(), Relaxed);
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of lines of this length that an empty queue takes. The queue takes as many after all
    /// lines were received.
    fn room(line_bytes: usize) -> usize {
        let (sender, receiver) = line_queue();
        let line = vec![b'x'; line_bytes];
        let tries = 0..2 * LINES_MAX.min(BYTES_MAX / line_bytes);
        let fill = || tries.clone().take_while(|_| sender.send(&line)).count();
        let lines = fill();
        for _ in 0..lines {
            assert_eq!(receiver.receive(Duration::ZERO), Ok(line.clone()));
        }
        let nothing = receiver.receive(Duration::ZERO);
        assert_eq!(nothing, Err(RecvTimeoutError::Timeout));
        assert_eq!(fill(), lines);
        lines
    }

    #[test]
    fn waiting_lines_are_bounded_in_number_and_in_bytes() {
        assert_eq!(room(100), 65_536);
        assert_eq!(room(1024), 65_536);
        // The bound on the number of lines alone would allow 64 GiB.
        assert_eq!(room(1 << 20), 64);
    }
}
