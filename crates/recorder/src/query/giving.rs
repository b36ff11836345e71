//! Putting packets into the answer, one by one: limits, counts, and where they go.

use std::io;

use retroscope_ring::InterfaceEntry;

use super::{
    Cancel, Query,
    merge::Found,
    newest::Newest,
    packet_id::Numbering,
    reading::{Progress, Tally},
    seen::Looker,
    stream::Stream,
};

/// What became of a packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Given {
    /// It is in the answer.
    pub(super) is_given: bool,
    /// More are wanted.
    pub(super) goes_on: bool,
}

/// Puts packets into the answer.
pub(super) struct Giving<'a, 'v, W: io::Write> {
    pub(super) query: &'a Query,
    pub(super) numbering: Numbering,
    pub(super) cancel: &'a Cancel,
    pub(super) stream: &'a mut Option<Stream<W>>,
    pub(super) looker: &'a mut Option<Looker<'v>>,
    pub(super) tally: &'a mut Tally,
    pub(super) newest: &'a mut Option<Newest>,
    pub(super) progress: &'a mut [Progress],
}

impl<W: io::Write> Giving<'_, '_, W> {
    /// Puts a packet of the window into the answer, if there is room.
    pub(super) fn give(
        &mut self,
        entry: &InterfaceEntry,
        packet: &Found,
        data: &[u8],
    ) -> io::Result<Given> {
        let Self {
            query,
            tally,
            newest,
            ..
        } = self;
        let left_out = |goes_on| Given {
            is_given: false,
            goes_on,
        };
        let captured = u64::from(packet.captured);
        if !newest
            .as_mut()
            .is_none_or(|newest| newest.takes(packet.stamp_ns))
        {
            return Ok(left_out(true));
        }
        let bytes = tally.bytes + captured;
        let is_full = query
            .limit_packets
            .is_some_and(|limit| tally.packets >= limit)
            || query.limit_bytes.is_some_and(|limit| bytes > limit);
        if is_full {
            tally.ended_by = Some("limit");
            return Ok(left_out(false));
        }
        if self.cancel.is_cancelled() {
            // A reader that is slow would hold up the end for all of what waits here.
            tally.ended_by = Some("cancelled");
            return Ok(left_out(false));
        }
        tally.packets += 1;
        tally.bytes = bytes;
        tally.restamped += u64::from(packet.stamp_ns < 0);
        tally.first_ns = tally.first_ns.or(Some(packet.stamp_ns));
        tally.last_ns = Some(packet.stamp_ns);
        if let Some(progress) = self.progress.get_mut(packet.producer) {
            progress.last = packet.id(self.numbering);
        }
        if let Some(stream) = self.stream {
            stream.packet(entry, packet, data)?;
        }
        if let Some(looker) = self.looker
            && !looker.look(entry, packet, data, self.numbering)
        {
            tally.ended_by = Some("limit");
        }
        let is_full =
            query.limit_packets == Some(tally.packets) || query.limit_bytes == Some(tally.bytes);
        if is_full && !query.newest {
            tally.ended_by = Some("limit");
        }
        Ok(Given {
            is_given: true,
            goes_on: tally.ended_by.is_none(),
        })
    }
}
