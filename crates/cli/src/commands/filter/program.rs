//! `-d`: an expression as the program that libpcap makes of it.

use std::{io::Write, path::Path, process::ExitCode};

use retroscope_filter::{Filter, FilterError, LinkContext, Mode, Program, compile};
use retroscope_packet::LinkType;
use retroscope_pcapfile::{Kind, Reader};

use super::{input::Input, is_broken_pipe, link_type::name, refused, search, target::Target};
use crate::failure::{Failure, say};

/// The snap length that tcpdump gives to a capture that does not say one, in bytes. Accepting programs return it.
const SNAPLEN_DEFAULT: u32 = 262_144;

/// Prints the program for each link type of `file`, or for `link_type`, Ethernet unless given. Where there are several
/// programs, a line before each names its link type.
///
/// # Errors
/// [`Failure`]: the file cannot be read (1), the expression compiles for no link type (2).
pub(super) fn print(
    expression: &str,
    file: Option<&Path>,
    link_type: Option<LinkType>,
) -> Result<ExitCode, Failure> {
    let Some(file) = file else {
        let link_type = link_type.unwrap_or(LinkType::ETHERNET);
        let program = compile_alone(expression, link_type).map_err(|error| refused(&error))?;
        return put(&program.disassemble());
    };
    let contexts = contexts(file)?;
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
    for (link_type, error) in &errors {
        say(&format!(
            "link type {}: {}",
            name(*link_type),
            error.render()
        ));
    }
    put(&text)
}

/// What a filter is compiled for without a file; see [`compile_alone`].
pub(super) fn context_alone(filter: &Filter, link_type: Option<LinkType>) -> LinkContext {
    let savefile = search::context(link_type.unwrap_or(LinkType::ETHERNET), SNAPLEN_DEFAULT);
    let live = LinkContext {
        mode: Mode::Live,
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

/// Without a file there is no telling whether a capture would be live or not: what a file cannot answer, such as
/// `inbound`, is compiled as for an interface.
fn compile_alone(expression: &str, link_type: LinkType) -> Result<Program, FilterError> {
    let savefile = search::context(link_type, SNAPLEN_DEFAULT);
    compile(expression, savefile).or_else(|error| {
        let live = LinkContext {
            mode: Mode::Live,
            ..savefile
        };
        compile(expression, live).map_err(|_| error)
    })
}

/// What the packets of a file need: one context for each link type, with the snap length of its first interface.
pub(super) fn contexts(path: &Path) -> Result<Vec<LinkContext>, Failure> {
    let input = Input::open(path)?;
    let file = input.name().to_owned();
    let failed = |error| Failure::failed(format_args!("{file}: {error}"));
    let mut reader = Reader::new(input.into_file()).map_err(failed)?;
    while reader.format().kind == Kind::PcapNg {
        match reader.fill() {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    let mut contexts: Vec<LinkContext> = Vec::new();
    for interface in reader.interfaces() {
        let known = |context: &LinkContext| context.link_type == interface.link_type;
        if !contexts.iter().any(known) {
            contexts.push(search::context(interface.link_type, interface.snaplen));
        }
    }
    if contexts.is_empty() {
        return Err(Failure::failed(format_args!(
            "{file}: the file describes no interface, so there is no link type to compile for"
        )));
    }
    Ok(contexts)
}

/// Writes stdout.
///
/// # Errors
/// [`Failure`], exit 1; nobody who listens is none.
pub(super) fn put(text: &str) -> Result<ExitCode, Failure> {
    let written = Target::Stdout
        .open()
        .and_then(|mut out| out.write_all(text.as_bytes()).map_err(anyhow::Error::new));
    match written {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(Failure::failed(format_args!(
            "cannot write stdout: {error:#}"
        ))),
    }
}
