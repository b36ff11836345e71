//! `-d`: prints an expression as the program that libpcap compiles.

use std::{path::Path, process::ExitCode};

use retroscope_filter::{Filter, FilterMode, LinkContext, compile};
use retroscope_packet::LinkType;
use retroscope_pcapfile::{CaptureReader, FileInterface};

use super::{input::InputFile, link_type::name, refused, say_refused, search};
use crate::failure::{Failure, put};

/// Snap length in bytes that tcpdump assumes for a capture without a snap length. A program that is
/// compiled without a file returns this number for a packet that it accepts.
const SNAPLEN_DEFAULT: u32 = 262_144;

/// Prints the program for each link type of `file`, or for `link_type` (default: Ethernet). If
/// there are several link types, a line before each program names its link type.
///
/// # Errors
/// [`Failure`]: the file cannot be read or describes no interface, or stdout cannot be written (1),
/// or the expression compiles for no link type (2).
pub(super) fn print(
    expression: &str,
    filter: &Filter,
    file: Option<&Path>,
    link_type: Option<LinkType>,
) -> Result<ExitCode, Failure> {
    let contexts = contexts(filter, file, link_type)?;
    let mut programs = Vec::new();
    let mut errors = Vec::new();
    for context in &contexts {
        match compile(expression, *context) {
            Ok(program) => programs.push((context.link_type, program)),
            Err(error) => errors.push((context.link_type, error)),
        }
    }
    match (programs.as_slice(), errors.first()) {
        ([], Some((_, error))) => return Err(refused(error)),
        ([(_, only)], None) => return put(&only.disassemble()),
        _ => {}
    }
    let mut text = String::new();
    for (link_type, program) in &programs {
        text.push_str(&format!(
            "link type {}:\n{}",
            name(*link_type),
            program.disassemble()
        ));
    }
    say_refused(&errors);
    put(&text)
}

/// The context for compiling a filter without a file. The expression may be meant for a file or for
/// live capture. So an expression that a file cannot answer, such as `inbound`, is compiled for a
/// live interface.
pub(super) fn context_alone(filter: &Filter, link_type: Option<LinkType>) -> LinkContext {
    let savefile = search::context(link_type.unwrap_or(LinkType::ETHERNET), SNAPLEN_DEFAULT);
    let live = LinkContext {
        mode: FilterMode::Live,
        ..savefile
    };
    let compiles = |context| {
        Filter::new(filter.filled().clone())
            .prepare(context)
            .is_ok()
    };
    if !compiles(savefile) && compiles(live) {
        live
    } else {
        savefile
    }
}

/// The contexts of a filter: the link types of `file` or, without a file, `link_type` (default:
/// Ethernet).
pub(super) fn contexts(
    filter: &Filter,
    file: Option<&Path>,
    link_type: Option<LinkType>,
) -> Result<Vec<LinkContext>, Failure> {
    let Some(path) = file else {
        return Ok(vec![context_alone(filter, link_type)]);
    };
    let InputFile { file, name } = InputFile::open(path)?;
    let failed = |error| Failure::failed(format_args!("{name}: {error}"));
    let mut reader = CaptureReader::new(file).map_err(failed)?;
    let is_pcapng = reader.format().pcap.is_none();
    while is_pcapng && reader.fill().map_err(failed)? > 0 {}
    let contexts = contexts_of(reader.interfaces());
    if contexts.is_empty() {
        return Err(Failure::failed(format_args!(
            "{name}: the file describes no interface, so there is no link type to compile for"
        )));
    }
    Ok(contexts)
}

/// One context for each link type, with the snap length of its first interface.
pub(super) fn contexts_of(interfaces: &[FileInterface]) -> Vec<LinkContext> {
    let mut contexts: Vec<LinkContext> = Vec::new();
    for interface in interfaces {
        let known = |context: &LinkContext| context.link_type == interface.link_type;
        if !contexts.iter().any(known) {
            contexts.push(search::context(interface.link_type, interface.snaplen));
        }
    }
    contexts
}
