//! `dev filter-bench`: measures how fast each method evaluates an expression on the packets of a
//! file.
//!
//! The packets are first read into memory and then evaluated repeatedly, so small files are
//! measured in the CPU cache. Every method receives runs of up to 64 packets of one interface. The
//! methods take turns, so that other load on the machine affects all methods about equally.

use std::{
    fmt::Write,
    hint::black_box,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use retroscope_filter::{
    Certainty, Filter, FilterMode, LinkContext, Matches, Program, RuleId, RuleSet,
};
use retroscope_packet::LinkType;

use super::{
    Prepared,
    link_type::name,
    packets::{FilePackets, PacketRun},
    refused,
};
use crate::{
    failure::{Failure, put, say},
    units::counted,
};

/// Number of measured turns of each method.
const TURNS: usize = 5;
/// Approximate duration of a turn of the first method, machine code. A turn has at least one pass
/// over the packets, so it takes longer if there are many packets. The other methods make the same
/// number of passes in a turn, which takes them more or less time.
const TURN: Duration = Duration::from_millis(50);

/// A method of evaluating the expression.
struct Way<'f> {
    name: &'static str,
    /// Returns the bit mask of the matching packets of a run.
    find: Box<dyn FnMut(&PacketRun<'_>) -> u64 + 'f>,
    /// Nanoseconds for each packet, by turn.
    figures: Vec<f64>,
}

/// Measures `filter` on the packets of `file` and prints a table.
///
/// # Errors
/// [`Failure`]: the file cannot be read or has no packets, the methods disagree, or stdout cannot
/// be written (1). The expression compiles for no link type of the file (2).
pub(super) fn print(filter: Filter, file: &Path) -> Result<ExitCode, Failure> {
    let packets = FilePackets::read(file)?;
    let runs = packets.runs();
    let contexts = &packets.contexts;
    let fresh = Filter::new(filter.filled().clone());
    let Prepared {
        filter: interpreted,
        refused: errors,
        ..
    } = Prepared::new(fresh, contexts)?;
    let native = Prepared::new(filter, contexts)?.filter;
    for error in compile(&native, &packets) {
        say(&format!("without machine code: {error}"));
    }
    let mut rules = RuleSet::new(FilterMode::Savefile);
    for context in contexts {
        rules.add_link_type(context.link_type);
    }
    let inserted = rules.insert(RuleId(0), &native);
    let _ = inserted.map_err(|error| refused(&error))?;

    let (mut reader, mut of_set) = (rules.reader(), Matches::default());
    let mut ways = vec![
        Way::new("machine code", |run| run.matches(&native)),
        Way::new("interpreter", |run| run.matches(&interpreted)),
    ];
    // libpcap takes part only for plain expressions, because it does not know our own terms.
    let is_plain = |context: &LinkContext| is_plain(&interpreted, context.link_type);
    if contexts.iter().all(is_plain) {
        ways.push(Way::new("libpcap", |run| {
            let program = interpreted.program(run.link_type, FilterMode::Savefile);
            program.map_or(0, |program| program.run_many_in_libpcap(&run.frames))
        }));
    }
    ways.push(Way::new("rule set", |run| {
        reader.match_many(run.link_type, run.interface, &run.frames, &mut of_set);
        let (mut found, mut asked) = (0, 0);
        for (index, _, sure) in of_set.iter() {
            match sure {
                Certainty::Certain => found |= 1 << index,
                Certainty::AskFilter => asked |= 1 << index,
            }
        }
        if asked == 0 {
            return found;
        }
        // The rule set leaves the packets in `asked` to the filter.
        found | asked & run.matches(&native)
    }));

    let matches = agree(&mut ways, &runs)?;
    let passes = TURN.as_secs_f64() / time(&mut ways[0], &runs, 1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates; times are positive"
    )]
    let passes = (passes as u32).clamp(1, 1 << 24);
    for _ in 0..TURNS {
        for way in &mut ways {
            let seconds = time(way, &runs, passes);
            let ns = seconds * 1e9 / (f64::from(passes) * packets.packets.len() as f64);
            way.figures.push(ns);
        }
    }
    for (link_type, error) in &errors {
        say(&format!(
            "packets of link type {} do not match: {}",
            name(*link_type),
            error.render()
        ));
    }
    put(&table(&packets, matches, &ways))
}

impl<'f> Way<'f> {
    fn new(name: &'static str, find: impl FnMut(&PacketRun<'_>) -> u64 + 'f) -> Self {
        Self {
            name,
            find: Box::new(find),
            figures: Vec::with_capacity(TURNS),
        }
    }
}

impl PacketRun<'_> {
    /// The bit mask of the matching packets.
    #[inline]
    fn matches(&self, filter: &Filter) -> u64 {
        filter.matches_many(
            (self.link_type, FilterMode::Savefile),
            self.interface,
            &self.frames,
        )
    }
}

/// Compiles all programs to machine code. Returns the errors of programs that cannot be compiled.
fn compile(filter: &Filter, packets: &FilePackets) -> Vec<String> {
    let contexts = packets.contexts.iter();
    let programs = contexts.filter_map(|link| filter.programs(link.link_type, link.mode));
    let made = programs.flatten().map(Program::make_native);
    made.filter_map(|made| made.err().map(|error| error.to_string()))
        .collect()
}

/// Whether a single program of libpcap decides about all packets of the link type, or whether none
/// of them matches because the expression does not compile for the link type.
fn is_plain(filter: &Filter, link_type: LinkType) -> bool {
    filter.program(link_type, FilterMode::Savefile).is_some()
        || !filter.is_prepared(link_type, FilterMode::Savefile)
}

/// The number of packets that match. Fails if the methods disagree about a packet.
fn agree(ways: &mut [Way<'_>], runs: &[PacketRun<'_>]) -> Result<u64, Failure> {
    let mut matches = 0;
    for run in runs {
        let (first, others) = ways.split_at_mut(1);
        let set = (first[0].find)(run);
        for way in others {
            let differ = (way.find)(run) ^ set;
            if differ != 0 {
                return Err(Failure::failed(format_args!(
                    "{} and {} disagree about packet {}: please report this with the file",
                    first[0].name,
                    way.name,
                    run.first + u64::from(differ.trailing_zeros()) + 1
                )));
            }
        }
        matches += u64::from(set.count_ones());
    }
    Ok(matches)
}

/// Seconds for `passes` passes over all packets.
fn time(way: &mut Way<'_>, runs: &[PacketRun<'_>], passes: u32) -> f64 {
    let start = Instant::now();
    for _ in 0..passes {
        for run in black_box(runs) {
            black_box((way.find)(run));
        }
    }
    start.elapsed().as_secs_f64()
}

fn table(packets: &FilePackets, matches: u64, ways: &[Way<'_>]) -> String {
    let mut text = format!(
        "{}, {}, of which {} {}{}\n\n",
        counted(packets.packets.len() as u64, "packet"),
        counted(packets.bytes.len() as u64, "byte"),
        counted(matches, "packet"),
        if matches == 1 { "matches" } else { "match" },
        if packets.is_part {
            " (the start of the file)"
        } else {
            ""
        }
    );
    let _ = writeln!(
        text,
        "{:14}{:>12}   least to greatest of {TURNS}",
        "", "ns a packet"
    );
    for way in ways {
        let mut sorted = way.figures.clone();
        sorted.sort_by(f64::total_cmp);
        let (Some(least), Some(median), Some(greatest)) =
            (sorted.first(), sorted.get(sorted.len() / 2), sorted.last())
        else {
            continue;
        };
        let _ = writeln!(
            text,
            "{:14}{median:12.2}   {least:.2} to {greatest:.2}",
            way.name
        );
    }
    text
}
