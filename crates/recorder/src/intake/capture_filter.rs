//! The capture filter: which frames are recorded at all.

use std::sync::Arc;

use retroscope_capture::{Burst, FrameMeta, Instruction};
use retroscope_filter::{Aux, FilterFrame, PacketView, Program};
use retroscope_packet::{Direction, LinkType};

use crate::{
    analysis::{native::NativeCode, prepared::PreparedFilter},
    intake::inserter::frame::WireFrame,
};

/// The capture filter, or the filter of a class of flows.
#[derive(Debug, Clone)]
pub(crate) struct CaptureFilter {
    pub(crate) prepared: PreparedFilter,
    native: Arc<NativeCode>,
    scratch: Vec<u8>,
}

impl CaptureFilter {
    /// Most frames in one call of [`Self::takes_many`].
    pub(crate) const MANY: usize = Program::MANY;

    pub(crate) fn new(prepared: PreparedFilter, native: &Arc<NativeCode>) -> Self {
        prepared.compile(native);
        Self {
            prepared,
            native: Arc::clone(native),
            scratch: Vec::new(),
        }
    }

    fn prepare(&mut self, link_type: LinkType) {
        if self.prepared.prepare(link_type) {
            self.prepared.compile(&self.native);
        }
    }

    /// The filter as BPF programs, by link type. Without a link type whose packets no single
    /// program can decide about.
    pub(crate) fn programs(
        &mut self,
        link_types: &[LinkType],
    ) -> Vec<(LinkType, Vec<Instruction>)> {
        let mut programs = Vec::new();
        for &link_type in link_types {
            self.prepare(link_type);
            let program = self.prepared.program(link_type);
            programs.extend(program.map(|program| (link_type, program.instructions().to_vec())));
        }
        programs
    }

    /// The frames that match, of at most [`Self::MANY`] frames without tags to restore: bit `n` is
    /// for frame `n`.
    pub(crate) fn takes_many(
        &mut self,
        link_type: LinkType,
        burst: &Burst<'_>,
        frames: &[FrameMeta],
    ) -> u64 {
        self.prepare(link_type);
        let mut views = [FilterFrame::new(&[], 0, Aux::default()); Self::MANY];
        for (view, meta) in views.iter_mut().zip(frames) {
            let data = &burst.memory[meta.offset..meta.offset + meta.captured_len as usize];
            *view = FilterFrame::new(data, meta.wire_len, meta.direction.into());
        }
        // A capture filter's result does not depend on the interface.
        self.prepared
            .matches_many(link_type, 0, &views[..frames.len()])
    }

    pub(crate) fn takes(
        &mut self,
        link_type: LinkType,
        interface: u16,
        frame: &WireFrame<'_>,
    ) -> bool {
        self.prepare(link_type);
        let data = match frame.parts() {
            [whole, [], []] => whole,
            parts => {
                self.scratch.clear();
                parts
                    .iter()
                    .for_each(|part| self.scratch.extend_from_slice(part));
                &self.scratch
            }
        };
        let view = PacketView {
            link_type,
            mode: self.prepared.mode,
            interface,
            aux: Direction::from_bits(frame.direction).into(),
            data,
            wire_len: frame.wire_len,
        };
        self.prepared.filter.matches(&view)
    }
}
