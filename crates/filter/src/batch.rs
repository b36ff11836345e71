//! An expression with terms of our own, on many packets together.
//!
//! A set of packets is the bits of a `u64`. Each part of the expression is asked about the packets that are still
//! undecided: programs about all of them at once, the payload only of those that programs left.

use retroscope_packet::{LinkType, parse};

use crate::{Frame, Program, Variable, plan::Plan};

/// Fewer packets than this go through a program one by one: together all would go, also the decided ones.
const TOGETHER_MIN: u32 = 8;

/// Packets of one link type and interface, at most [`Program::MANY`].
pub(crate) struct Batch<'b, 'p> {
    link_type: LinkType,
    /// Whether `$iface` holds for them.
    is_interface: bool,
    programs: &'b [Program],
    frames: &'b [Frame<'p>],
    /// The payloads of `parsed` packets.
    payloads: [Option<&'p [u8]>; Program::MANY],
    parsed: u64,
}

impl<'b, 'p> Batch<'b, 'p> {
    /// Panics if there are more than [`Program::MANY`] frames.
    pub(crate) fn new(
        link_type: LinkType,
        is_interface: bool,
        programs: &'b [Program],
        frames: &'b [Frame<'p>],
    ) -> Self {
        assert!(frames.len() <= Program::MANY);
        Self {
            link_type,
            is_interface,
            programs,
            frames,
            payloads: [None; Program::MANY],
            parsed: 0,
        }
    }

    /// All of the packets.
    pub(crate) fn all(&self) -> u64 {
        (0..self.frames.len()).fold(0, |set, index| set | 1 << index)
    }

    /// Those of `among` that `plan` takes. Nothing is remembered between packets, so of terms about the trigger packet
    /// there may be none but `$iface`; others take nothing.
    pub(crate) fn find(&mut self, plan: &Plan, among: u64) -> u64 {
        if among == 0 {
            return 0;
        }
        match plan {
            Plan::Piece(index) => self.piece(*index, among),
            Plan::Term(Variable::Iface) if self.is_interface => among,
            Plan::Term(_) => 0,
            Plan::Payload(test) => self.those(among, |payload| test.holds(payload)),
            Plan::AnyString(strings) => self.those(among, |payload| strings.holds(payload)),
            Plan::Not(inner) => among & !self.find(inner, among),
            Plan::All(parts) => parts.iter().fold(among, |left, part| self.find(part, left)),
            Plan::Any(parts) => parts
                .iter()
                .fold(0, |found, part| found | self.find(part, among & !found)),
        }
    }

    fn piece(&self, index: usize, among: u64) -> u64 {
        let Some(program) = self.programs.get(index) else {
            return 0;
        };
        if among.count_ones() >= TOGETHER_MIN {
            return among & program.run_many(self.frames);
        }
        ones(among).fold(0, |kept, index| {
            let frame = &self.frames[index];
            kept | u64::from(program.keeps(frame)) << index
        })
    }

    /// Those of `among` that have a payload for which `holds` holds.
    fn those(&mut self, among: u64, holds: impl Fn(&[u8]) -> bool) -> u64 {
        for index in ones(among & !self.parsed) {
            let data = self.frames[index].data();
            self.payloads[index] = parse(self.link_type, data).payload(data);
        }
        self.parsed |= among;
        ones(among).fold(0, |found, index| {
            let is_one = self.payloads[index].is_some_and(&holds);
            found | u64::from(is_one) << index
        })
    }
}

/// The indexes of the bits that are set.
fn ones(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let index = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(index)
    })
}
