//! The dumper's end of a sink.

use std::sync::Arc;

use retroscope_alert::Alert;

use super::{
    Pool,
    budget::Charge,
    work::{Body, Outcome, Shared, Work},
};
use crate::{
    dump::{
        behind::{Block, Blocks},
        captures::Captures,
        encode::Format,
        names::Directory,
        output::Piece,
        packet::PacketMeta,
        sink::{Gap, Held},
        stream::Heading,
    },
    intake::interfaces::Interface,
};

/// What a packet in a block counts for in addition to its bytes, at most: header, direction, padding.
const AROUND_PACKET_BYTES: usize = 64;

/// The dumper's end of a sink. Dropped, it gives up what was not written yet.
#[derive(Debug)]
pub(in crate::dump) struct SinkQueue {
    id: u64,
    pub(in crate::dump) format: Format,
    shared: Arc<Shared>,
    /// Encodes the packets.
    captures: Captures,
    /// What is encoded and was not handed over.
    open: Charge,
    /// Memory for blocks of large dumps.
    blocks: Blocks,
    /// From so many encoded bytes on a block is handed over.
    block_bytes: usize,
    /// Such a block came since the last flush.
    is_busy: bool,
    /// It was told that nothing comes, and nothing came since.
    is_resting: bool,
    /// The sink, where the dumper does the work itself.
    pub(super) body: Option<Body>,
    /// Why it has failed.
    pub(in crate::dump) fault: Option<Fault>,
    /// What it held when it was complete, or where it was to be.
    pub(in crate::dump) completed: Held,
    /// A test says that it has no room.
    #[cfg(test)]
    pub(in crate::dump) is_full: bool,
}

/// Why a sink failed, and what it holds all the same.
#[derive(Debug, Clone)]
pub(in crate::dump) struct Fault {
    pub(in crate::dump) error: String,
    /// As `missing` names it: [`DISK`] or [`STOPPED`].
    pub(in crate::dump) cause: &'static str,
    pub(in crate::dump) held: Held,
}

/// The file system refused what was to be written.
pub(in crate::dump) const DISK: &str = "disk";

/// The dump was not to be completed.
pub(in crate::dump) const STOPPED: &str = "stopped";

impl SinkQueue {
    /// Without a sink of its own: the pool has it.
    pub(super) fn new(
        id: u64,
        (captures, directory): (Captures, &Directory),
        held: Held,
        shared: &Arc<Shared>,
    ) -> Self {
        Self {
            id,
            format: directory.format,
            shared: Arc::clone(shared),
            captures,
            open: Charge::new(&Arc::default(), &shared.limits),
            blocks: directory.behind.clone(),
            block_bytes: directory.block_bytes,
            is_busy: false,
            is_resting: false,
            body: None,
            fault: None,
            completed: held,
            #[cfg(test)]
            is_full: false,
        }
    }

    /// Makes the first file. Called once, before all others.
    pub(super) fn begin(&mut self) {
        let work = self.captures.begin().map_or_else(Work::Fail, Work::Create);
        self.give(work);
    }

    /// What the sink holds, as far as it was told.
    pub(in crate::dump) fn held(&self) -> &Held {
        let failed = self.fault.as_ref().map(|fault| &fault.held);
        failed.unwrap_or(&self.completed)
    }

    /// Whether a packet of so many bytes may come. Who has failed takes, and forgets, anything.
    pub(in crate::dump) fn has_room(&self, bytes: usize) -> bool {
        #[cfg(test)]
        if self.is_full {
            return false;
        }
        let is_free = self.fault.is_some() || self.body.is_some();
        is_free || self.open.has_room(bytes + AROUND_PACKET_BYTES)
    }

    /// Takes a packet, for which there is room.
    pub(in crate::dump) fn packet(&mut self, meta: &PacketMeta, data: &[u8]) {
        if self.fault.is_some() {
            return;
        }
        let output = match self.captures.packet(meta, data) {
            Ok(output) => output,
            Err(error) => return self.give(Work::Fail(error)),
        };
        if output.bytes() < self.block_bytes {
            self.open.cover(self.captures.bytes());
            return;
        }
        let piece = output.take(self.blocks.spare());
        self.is_busy = true;
        self.write(piece);
    }

    /// As in [`Captures::interface`].
    pub(in crate::dump) fn interface(&mut self, id: u16, interface: &Arc<Interface>) {
        self.captures.interface(id, interface);
    }

    /// Something is missing here.
    pub(in crate::dump) fn gap(&mut self, gap: &Gap) {
        self.captures.gap(gap);
    }

    /// See [`Captures::mark`].
    pub(in crate::dump) fn mark(&mut self, alert: &Arc<Alert>) {
        self.captures.mark(alert);
    }

    /// Nothing came for a while: the sink may give back what it keeps for more.
    pub(in crate::dump) fn rest(&mut self) {
        if self.body.is_none() && !self.is_resting && self.captures.bytes() == 0 {
            self.give(Work::Rest);
            self.is_resting = true;
        }
    }

    /// What came is to be seen soon. False: earlier bytes are still on their way, and this is to be
    /// called again. So a slow disk gets large blocks, and little work waits.
    pub(in crate::dump) fn flush(&mut self) -> bool {
        if self.fault.is_some() || self.captures.bytes() == 0 && self.body.is_none() {
            return true;
        }
        if self.body.is_none() && self.open.is_followed() {
            return false;
        }
        self.hand_over();
        if let Some(body) = &mut self.body {
            let failed = body.attempt(|file| file.flush());
            body.count_files();
            self.fault = self.fault.take().or(failed);
        }
        true
    }

    /// Hands over all that is encoded, and ends the encoding.
    pub(in crate::dump) fn end(&mut self) -> Captures {
        self.hand_over();
        self.open.set(0);
        let none = Captures::new(self.format, Heading::default());
        std::mem::replace(&mut self.captures, none)
    }

    /// Something to do after all that came before.
    pub(in crate::dump) fn submit(&mut self, work: Work, pool: &mut Pool) {
        self.hand_over();
        if let Some(outcome) = self.perform(work) {
            // The pool holds the other end.
            let _ = pool.news_tx.send((self.id, outcome));
        }
    }

    /// Hands over what was encoded.
    fn hand_over(&mut self) {
        if self.fault.is_some() {
            return;
        }
        let is_busy = std::mem::take(&mut self.is_busy);
        let outputs = self.captures.outputs.iter_mut();
        let pieces: Vec<Piece> = outputs
            .filter_map(|output| {
                let next = || {
                    if is_busy {
                        self.blocks.spare()
                    } else {
                        Block::default()
                    }
                };
                (output.bytes() > 0).then(|| output.take(next()))
            })
            .collect();
        pieces.into_iter().for_each(|piece| self.write(piece));
    }

    fn write(&mut self, piece: Piece) {
        let charge = self.open.with(piece.block.len());
        self.open.set(self.captures.bytes());
        self.is_resting = false;
        self.give(Work::Write(piece, charge));
    }

    /// Gives the sink work that has no answer.
    fn give(&mut self, work: Work) {
        self.perform(work);
    }

    /// Gives the sink work. Returns the answer, where the dumper does the work itself.
    fn perform(&mut self, work: Work) -> Option<Outcome> {
        let Some(body) = &mut self.body else {
            self.shared.submit(self.id, work);
            return None;
        };
        match body.perform(work, false) {
            Some(Outcome::Failed(fault)) => {
                self.fault.get_or_insert(fault);
                None
            }
            outcome => outcome,
        }
    }
}

impl Drop for SinkQueue {
    fn drop(&mut self) {
        if self.body.is_none() {
            self.shared.submit(self.id, Work::Leave);
        }
    }
}
