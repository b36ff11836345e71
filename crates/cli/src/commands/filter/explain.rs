//! `dev filter-explain`: shows how a rule set evaluates an expression, and the programs of the
//! expression for each link type.

use std::{fmt::Write, path::Path, process::ExitCode, time::Duration};

use retroscope_filter::{
    Filter, FilterError, LinkContext, Program, RuleId, RulePlacement, RuleSet,
};
use retroscope_packet::LinkType;

use super::{Prepared, link_type::name, program, refused, say_refused};
use crate::{
    failure::{Failure, put},
    units::counted,
};

/// Maximum number of look-ups in the output. Further look-ups are only counted.
const LOOK_UPS_SHOWN: usize = 8;
/// The only rule of the set.
const RULE: RuleId = RuleId(0);

/// Prints the compilation of `filter` for each link type of `file`, or for `link_type` (default:
/// Ethernet).
///
/// # Errors
/// [`Failure`]: the file cannot be read or describes no interface, or stdout cannot be written (1),
/// or the expression compiles for no link type (2).
pub(super) fn print(
    filter: Filter,
    file: Option<&Path>,
    link_type: Option<LinkType>,
) -> Result<ExitCode, Failure> {
    let contexts = program::contexts(&filter, file, link_type)?;
    let prepared = Prepared::new(filter, &contexts)?;
    let mut text = format!("expression: {}\n\n", prepared.filter.filled());
    rule(&mut text, &prepared).map_err(|error| refused(&error))?;
    for (context, time) in &prepared.links {
        text.push('\n');
        programs(&mut text, &prepared.filter, *context, *time);
    }
    say_refused(&prepared.refused);
    put(&text)
}

/// Prints how a rule set evaluates the expression.
fn rule(text: &mut String, prepared: &Prepared) -> Result<(), FilterError> {
    let mut set = RuleSet::new(prepared.links[0].0.mode);
    for (context, _) in &prepared.links {
        set.add_link_type(context.link_type);
    }
    let _ = set.insert(RULE, &prepared.filter)?;
    let Some(explanation) = set.explain(RULE) else {
        return Ok(());
    };
    let found_by = match explanation.placement {
        RulePlacement::LookUp => "by look-ups alone",
        RulePlacement::LookUpThenProgram => "by look-ups; its program is run on what they find",
        RulePlacement::Program if explanation.programs.iter().all(|(_, one)| one.can_fuse()) => {
            "by its program, which is run on every packet, as one function with those of other such rules"
        }
        RulePlacement::Program => "by its program, which is run on every packet, by itself",
        RulePlacement::LookUpThenCaller => {
            "by look-ups; the whole expression is evaluated on what they find"
        }
        RulePlacement::Caller => "by evaluating the whole expression on every packet",
    };
    let _ = writeln!(text, "as one rule of many, found {found_by}");
    let shown = LOOK_UPS_SHOWN.min(explanation.look_ups.len());
    for (sought, compared) in &explanation.look_ups[..shown] {
        let compared = match compared {
            0 => String::new(),
            count => format!(", then compare {}", counted(*count as u64, "primitive")),
        };
        let _ = writeln!(text, "  look up {sought}{compared}");
    }
    if let more @ 1.. = explanation.look_ups.len() - shown {
        let _ = writeln!(text, "  and {more} look-ups more");
    }
    Ok(())
}

/// The programs for one link type.
fn programs(text: &mut String, filter: &Filter, context: LinkContext, time: Duration) {
    let LinkContext {
        link_type, mode, ..
    } = context;
    let programs = filter.programs(link_type, mode).unwrap_or_default();
    let _ = writeln!(text, "link type {}", name(link_type));
    let alone = filter.program(link_type, mode).is_some();
    let _ = match (programs.len(), alone) {
        (0, _) => writeln!(text, "  no program: it has terms of our own only"),
        (_, true) => Ok(()),
        (1, false) => writeln!(text, "  a program for what is pcap-filter text in it"),
        (count, false) => writeln!(
            text,
            "  {count} programs, one for each piece of pcap-filter text"
        ),
    };
    if !programs.is_empty() {
        let _ = writeln!(text, "  libpcap: {} ms", ms(time));
    }
    for program in programs {
        one(text, program);
    }
}

fn one(text: &mut String, program: &Program) {
    let instructions = counted(program.instructions().len() as u64, "instruction");
    let _ = match (program.make_native(), program.native()) {
        (Ok(()), Some(native)) => {
            let tables = match native.table_bytes {
                0 => String::new(),
                bytes => format!(", tables of {bytes} bytes"),
            };
            writeln!(
                text,
                "  {instructions}; machine code: {} bytes{tables}, {} ms",
                native.code_bytes,
                ms(native.compile_time)
            )
        }
        (Err(error), _) => writeln!(text, "  {instructions}; interpreted: {error}"),
        (Ok(()), None) => writeln!(text, "  {instructions}; interpreted"),
    };
}

fn ms(time: Duration) -> String {
    format!("{:.2}", time.as_secs_f64() * 1e3)
}
