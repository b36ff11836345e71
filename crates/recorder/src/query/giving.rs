//! Puts packets into the answer: limits, counts and the destination.

use std::io;

use retroscope_ring::InterfaceEntry;

use super::{merge::MatchedPacket, reading::AnswerReading};

impl<W: io::Write> AnswerReading<'_, W> {
    /// Puts a packet of the window into the answer, if there is room. `dump`: the packet's dump, if
    /// any. Returns whether the answer may have more packets.
    pub(super) fn give(
        &mut self,
        entry: &InterfaceEntry,
        packet: &MatchedPacket,
        data: &[u8],
        dump: Option<usize>,
    ) -> io::Result<bool> {
        let query = &self.answer.query;
        let recording = self.answer.recording;
        let tally = &mut self.tally;
        if !self.newest.is_none_or(|newest| newest.takes(packet)) {
            return Ok(true);
        }
        let bytes = tally.bytes + u64::from(packet.captured);
        let is_full = query
            .limit_packets
            .is_some_and(|limit| tally.packets >= limit)
            || query.limit_bytes.is_some_and(|limit| bytes > limit);
        if is_full {
            tally.ended_by = Some("limit");
            return Ok(false);
        }
        if self.answer.cancel.is_cancelled() {
            // Checked for each packet: if the client reads slowly, writing the waiting packets
            // takes long.
            tally.ended_by = Some("cancelled");
            return Ok(false);
        }
        tally.packets += 1;
        tally.bytes = bytes;
        tally.restamped += u64::from(packet.stamp_ns < 0);
        tally.first_ns = tally.first_ns.or(Some(packet.stamp_ns));
        tally.last_ns = Some(packet.stamp_ns);
        if let Some(last) = &mut self.last {
            last.push(packet);
        }
        match (dump, &mut self.dumped) {
            (Some(dump), Some(dumped)) => dumped.count(dump, packet, entry.snaplen, query),
            _ => self.progress[packet.producer].last = packet.id(recording),
        }
        if let Some(stream) = &mut self.stream {
            stream.packet(entry, packet, data)?;
        }
        if let Some(visitor) = &mut self.visitor
            && !(visitor.0)(entry, packet, data)
        {
            tally.ended_by = Some("limit");
        }
        let is_full =
            query.limit_packets == Some(tally.packets) || query.limit_bytes == Some(tally.bytes);
        if is_full && !query.newest {
            tally.ended_by = Some("limit");
        }
        Ok(tally.ended_by.is_none())
    }
}
