//! A pass over a capture file.

use std::io::Read;

use retroscope_filter::{
    Aux, Filter, FilterError, FilterMode, FilterProblem, LinkContext, PacketView,
};
use retroscope_packet::LinkType;
use retroscope_pcapfile::{CaptureReader, FileInterface, ReadError};

use super::output::MatchOutput;

/// Result of a pass.
#[derive(Debug)]
pub(super) struct SearchSummary {
    /// The error that ended reading. Packets before the damage were processed.
    pub(super) damage: Option<ReadError>,
    /// Link types of the file for which the expression does not compile, although it compiles for
    /// other link types.
    pub(super) unsupported: Vec<(LinkType, FilterError)>,
    /// Packets in the output file whose time the reader or the writer clamped, or is `i64::MAX`.
    pub(super) times_changed: u64,
}

/// The reason why a pass ended early.
#[derive(Debug)]
pub(super) enum SearchError {
    /// The expression compiles for no link type of the file. Nothing was written.
    Refused(FilterError),
    /// Writing the output failed.
    Output(anyhow::Error),
}

impl From<anyhow::Error> for SearchError {
    fn from(error: anyhow::Error) -> Self {
        Self::Output(error)
    }
}

/// Passes every packet that matches `filter` to `output`.
///
/// An output of lines or packets is opened at the first link type for which the expression
/// compiles, or at the end of a file without interfaces. So a refused expression leaves an existing
/// file unchanged. The loop allocates nothing per packet.
///
/// # Errors
/// [`SearchError`]. Damage of the file is no error here; [`SearchSummary`] contains it.
pub(super) fn search<R: Read>(
    reader: &mut CaptureReader<R>,
    filter: Filter,
    mut output: MatchOutput,
) -> Result<SearchSummary, SearchError> {
    let mut links = Links {
        filter,
        known: 0,
        compiled: false,
        refused: Vec::new(),
    };
    let damage = loop {
        let filled = reader.fill();
        let learnt = links.learn(reader.interfaces());
        learnt.map_err(SearchError::Refused)?;
        if links.compiled {
            output.interfaces(reader.format(), reader.interfaces())?;
        }
        match filled {
            Ok(0) => break None,
            Ok(_) => {}
            Err(error) => break Some(error),
        }
        let (interfaces, memory) = (reader.interfaces(), reader.memory());
        for record in reader.records() {
            let interface = &interfaces[usize::from(record.interface)];
            let data = &memory[record.offset..record.offset + record.captured_len as usize];
            let packet = PacketView {
                link_type: interface.link_type,
                mode: FilterMode::Savefile,
                interface: record.interface,
                aux: Aux::default(),
                data,
                wire_len: record.wire_len,
            };
            if links.filter.matches(&packet) {
                output.packet(interface, record, data)?;
            }
        }
        output.burst_end()?;
    };
    let unsupported = links.into_unsupported().map_err(SearchError::Refused)?;
    output.interfaces(reader.format(), reader.interfaces())?;
    let times_changed = output.finish()?;
    Ok(SearchSummary {
        damage,
        unsupported,
        times_changed,
    })
}

/// The filter and the state of its compilation for link types.
struct Links {
    filter: Filter,
    /// Number of interfaces of the file that `learn` has seen. For some of these the filter may not
    /// have compiled.
    known: usize,
    /// Whether the filter compiled for at least one link type.
    compiled: bool,
    refused: Vec<(LinkType, FilterError)>,
}

impl Links {
    /// Compiles the filter for new interfaces. Fails at once on a syntax error, because a syntax
    /// error is an error for every link type.
    fn learn(&mut self, interfaces: &[FileInterface]) -> Result<(), FilterError> {
        for interface in &interfaces[self.known..] {
            let link_type = interface.link_type;
            let was_refused = |(other, _): &(LinkType, FilterError)| *other == link_type;
            if self.refused.iter().any(was_refused) {
                continue;
            }
            match self.filter.prepare(context(link_type, interface.snaplen)) {
                Ok(()) => self.compiled = true,
                Err(error) if *error.problem() == FilterProblem::Syntax => return Err(error),
                Err(error) => self.refused.push((link_type, error)),
            }
        }
        self.known = interfaces.len();
        Ok(())
    }

    /// The link types for which the expression does not compile, if it compiles for another link
    /// type of the file. For a file without interfaces, checks only the expression's syntax.
    fn into_unsupported(mut self) -> Result<Vec<(LinkType, FilterError)>, FilterError> {
        if self.known == 0
            && let Err(error) = self.filter.prepare(context(LinkType::ETHERNET, 0))
            && *error.problem() == FilterProblem::Syntax
        {
            return Err(error);
        }
        if !self.compiled && !self.refused.is_empty() {
            return Err(self.refused.swap_remove(0).1);
        }
        Ok(self.refused)
    }
}

/// The context of a filter for a file, as in `tcpdump -r`.
pub(super) fn context(link_type: LinkType, snaplen: u32) -> LinkContext {
    LinkContext::new(link_type, snaplen, FilterMode::Savefile)
}
