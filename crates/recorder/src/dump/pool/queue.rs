//! The dumper's end of a sink: it encodes the packets and queues the blocks.

use std::sync::Arc;

use super::{
    budget::{Charge, Load},
    work::{PoolShared, SinkWork},
};
use crate::{
    dump::{
        block::Block,
        captures::Captures,
        encode::DumpFormat,
        names::Directory,
        output::EncodedPiece,
        packet::PacketMeta,
        sink::{PacketGap, SinkContents},
        stream::Heading,
    },
    intake::interfaces::RecordedInterface,
};

/// Upper bound of the header, the options and the padding of a packet without comments, bytes.
const AROUND_PACKET_BYTES: usize = 64;

/// The dumper's end of a sink. Dropping the queue drops the work that is not done yet.
#[derive(Debug)]
pub(in crate::dump) struct SinkQueue {
    id: u64,
    pub(in crate::dump) format: DumpFormat,
    shared: Arc<PoolShared>,
    captures: Captures,
    /// Covers the bytes that are encoded and not handed over.
    open: Charge,
    /// A block with at least this many bytes is handed over.
    block_bytes: usize,
    /// Whether a full block was handed over since the last [`Self::hand_over`].
    is_busy: bool,
    /// From files: the dumper waits until the sink has done its work.
    waits: bool,
    /// The failure of the sink, if it has failed.
    pub(in crate::dump) fault: Option<SinkFault>,
    /// The contents that the sink reported last, except with a fault.
    pub(in crate::dump) completed: SinkContents,
    #[cfg(test)]
    pub(in crate::dump) is_full: bool,
}

/// The failure of a sink, and the contents that it has nevertheless.
#[derive(Debug, Clone)]
pub(in crate::dump) struct SinkFault {
    pub(in crate::dump) error: String,
    /// The cause in the report's `missing`: [`DISK`] or [`STOPPED`].
    pub(in crate::dump) cause: &'static str,
    pub(in crate::dump) held: SinkContents,
}

/// Cause of a loss: an error when packets were encoded or a file was written.
pub(in crate::dump) const DISK: &str = "disk";

/// Cause of a loss: the dump was not completed because the recording was abandoned.
pub(in crate::dump) const STOPPED: &str = "stopped";

impl SinkQueue {
    pub(super) fn new(
        id: u64,
        (captures, directory): (Captures, &Directory),
        (held, waits): (SinkContents, bool),
        shared: &Arc<PoolShared>,
    ) -> Self {
        Self {
            id,
            format: directory.format,
            shared: Arc::clone(shared),
            captures,
            open: Charge::new(&Arc::default(), &shared.limits),
            block_bytes: directory.block_bytes,
            is_busy: false,
            waits,
            fault: None,
            completed: held,
            #[cfg(test)]
            is_full: false,
        }
    }

    /// Queues the creation of the first file. Called once, before the first packet.
    pub(super) fn begin(&mut self) {
        let charge = self.open.with(0);
        let first = self.captures.begin();
        let first = first.map(|piece| Arc::new(Load { piece, charge }));
        self.give(first.map_or_else(SinkWork::Fail, SinkWork::Create));
        self.wait();
    }

    /// The contents that the sink reported last. A failed sink: the contents that it reported with
    /// its failure.
    pub(in crate::dump) fn held(&self) -> &SinkContents {
        let failed = self.fault.as_ref().map(|fault| &fault.held);
        failed.unwrap_or(&self.completed)
    }

    /// Whether the sink accepts a packet of this length. A failed sink accepts every packet, and
    /// drops the packet.
    pub(in crate::dump) fn has_room(&self, bytes: usize) -> bool {
        #[cfg(test)]
        if self.is_full {
            return false;
        }
        self.fault.is_some() || self.waits || self.open.has_room(bytes + AROUND_PACKET_BYTES)
    }

    /// Encodes a packet. The caller has asked for [room](Self::has_room).
    pub(in crate::dump) fn packet(&mut self, meta: &PacketMeta, data: &[u8]) {
        if self.fault.is_some() {
            // The bytes in the encoder will not be written, and must not count against the budget.
            self.end();
            return;
        }
        let output = match self.captures.packet(meta, data) {
            Ok(output) => output,
            Err(error) => return self.give(SinkWork::Fail(error)),
        };
        if output.bytes() < self.block_bytes {
            self.open.cover(self.captures.bytes());
            return;
        }
        let piece = output.take(self.shared.limits.spares.take());
        self.is_busy = true;
        self.write(piece);
    }

    pub(in crate::dump) fn interface(&mut self, id: u16, interface: &Arc<RecordedInterface>) {
        self.captures.interface(id, interface);
    }

    /// Notes that packets are missing before the next packet.
    pub(in crate::dump) fn gap(&mut self, gap: &PacketGap) {
        self.captures.gap(gap);
    }

    /// Hands over the encoded bytes, so that readers of the file see the bytes soon. False: the
    /// caller must flush again later. Live, while earlier bytes are in work, a flush hands over
    /// nothing, so that a slow disk gets few large blocks.
    pub(in crate::dump) fn flush(&mut self) -> bool {
        let is_blocked = !self.waits && self.fault.is_none() && self.open.is_followed();
        if is_blocked && self.captures.bytes() > 0 {
            return false;
        }
        let was_busy = self.is_busy;
        self.hand_over();
        self.wait();
        !was_busy
    }

    /// Hands over the encoded bytes, and ends the encoding.
    pub(in crate::dump) fn end(&mut self) -> Captures {
        self.hand_over();
        self.open.set(0);
        let none = Captures::new(self.format, Heading::default());
        std::mem::replace(&mut self.captures, none)
    }

    /// Queues work after all earlier work.
    pub(in crate::dump) fn submit(&mut self, work: SinkWork) {
        self.hand_over();
        self.give(work);
        self.wait();
    }

    fn hand_over(&mut self) {
        if self.fault.is_some() {
            return;
        }
        let is_busy = std::mem::take(&mut self.is_busy);
        let spares = &self.shared.limits.spares;
        let outputs = self.captures.outputs.iter_mut();
        let pieces: Vec<EncodedPiece> = outputs
            .filter_map(|output| {
                if !is_busy && let Some(block) = output.give_back() {
                    spares.put(block);
                }
                let next = || match is_busy {
                    true => spares.take(),
                    false => Block::default(),
                };
                (output.bytes() > 0).then(|| output.take(next()))
            })
            .collect();
        pieces.into_iter().for_each(|piece| self.write(piece));
    }

    fn write(&mut self, piece: EncodedPiece) {
        let charge = self.open.with(piece.block.len());
        self.open.set(self.captures.bytes());
        self.give(SinkWork::Write(Arc::new(Load { piece, charge })));
        if self.waits && !self.open.has_room(0) {
            self.shared.wait_for_digests(self.id);
        }
    }

    fn give(&self, work: SinkWork) {
        self.shared.submit(self.id, work);
    }

    fn wait(&self) {
        if self.waits {
            self.shared.wait(self.id);
        }
    }
}

impl Drop for SinkQueue {
    fn drop(&mut self) {
        self.give(SinkWork::Close);
    }
}
