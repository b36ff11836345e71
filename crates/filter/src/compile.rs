//! Compiles pcap-filter(7) text to a program with the system's libpcap.

use std::{ffi::CString, ops::Range};

use crate::{
    FilterError, FilterMode, FilterProblem, Instruction, LinkContext, Program, locate,
    parts::ExpressionParts,
    sys::CompileHandle,
    words::{Word, WordKind, words},
};

/// Maximum length of an expression in bytes. A list of 25,000 hosts takes a quarter of a second to
/// compile.
pub const EXPRESSION_BYTES_MAX: usize = 512 << 10;

/// Length in bytes above which an expression is cut into parts, if possible.
const SHORT_BYTES: usize = 4 << 10;
/// Number of primitives above which an expression is cut into parts, if possible. libpcap takes 60
/// ms for 100 hosts and 3 s for 300 ports.
const SHORT_PRIMITIVES: usize = 100;
/// Maximum length, in bytes, of a text that libpcap compiles as a whole.
const WHOLE_BYTES_MAX: usize = 16 << 10;
/// Maximum number of primitives that libpcap compiles as a whole. libpcap's time grows with the
/// cube of the number: more than ten seconds for this many ports.
const WHOLE_PRIMITIVES_MAX: usize = 500;
/// libpcap usually compiles at most this many primitives and bytes within a millisecond, plus the
/// time of name look-ups (0.4 ms for 8 ports).
const QUICK_PRIMITIVES: usize = 6;
const QUICK_BYTES: usize = 512;
/// Arithmetic operators. libpcap's optimizer takes seconds for thousands of these.
const ARITHMETIC: [&str; 10] = ["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"];
/// Largest program, in instructions before optimization, that libpcap's optimizer gets from a text
/// of more than [`SHORT_BYTES`]. The optimizer needs 2 s for 9,000 instructions.
const OPTIMIZED_INSTRUCTIONS_MAX: usize = 10_000;
/// libpcap's maximum snap length for all but a few link types (`MAXIMUM_SNAPLEN` of `pcap-int.h`).
const SNAPLEN_MAX: u32 = 262_144;

/// libpcap's message for an expression that its optimizer proves to match nothing.
const REJECTS_ALL: &str = "expression rejects all packets";

/// Compiles a pcap-filter(7) expression.
///
/// An empty expression matches everything, also on link types for which libpcap has no filtering.
/// An expression that libpcap proves to match nothing becomes a program that returns 0.
///
/// Any number of threads may call this function at the same time. libpcap looks names up in the
/// system's tables and resolver, which may take seconds.
///
/// libpcap's time grows steeply with the length of an expression. Above 4 KiB or 100 primitives the
/// expression is compiled in parts and linked, if the cut keeps its meaning. A text that libpcap
/// compiles as a whole is not optimized if it exceeds 4 KiB and gives more than 10,000
/// instructions.
///
/// # Errors
/// [`FilterError`], pointing into `expr`.
pub fn compile(expr: &str, link: LinkContext) -> Result<Program, FilterError> {
    if expr.trim_ascii().is_empty() {
        let snaplen = match link.snaplen {
            0 => SNAPLEN_MAX,
            bytes => bytes.min(SNAPLEN_MAX),
        };
        return Ok(Program::constant(snaplen));
    }
    check_len(expr, EXPRESSION_BYTES_MAX)?;
    let mut handle = CompileHandle::open(&link)
        .map_err(|message| FilterError::whole(FilterProblem::Library(message), expr))?;
    let is_long = expr.len() > SHORT_BYTES || primitives(expr) > SHORT_PRIMITIVES;
    let parts = is_long.then(|| ExpressionParts::split(expr)).flatten();
    let instructions = match parts {
        Some(parts) => parts.compile(|part| {
            let here = |span: Range<usize>| span.start + part.start..span.end + part.start;
            let compiled = compile_whole(&expr[part.clone()], &mut handle, link.optimize);
            compiled.map_err(|error| error.relocated(expr, here))
        })?,
        None => compile_whole(expr, &mut handle, link.optimize)?,
    };
    Program::new(instructions, link.mode == FilterMode::Live)
        .map_err(|error| FilterError::whole(FilterProblem::Program(error), expr))
}

pub(crate) fn check_len(text: &str, limit_bytes: usize) -> Result<(), FilterError> {
    let bytes = text.len();
    if bytes > limit_bytes {
        return Err(FilterError::whole(
            FilterProblem::TooLong { bytes, limit_bytes },
            text,
        ));
    }
    Ok(())
}

fn compile_whole(
    expr: &str,
    handle: &mut CompileHandle,
    optimize: bool,
) -> Result<Vec<Instruction>, FilterError> {
    check_len(expr, WHOLE_BYTES_MAX)?;
    let primitives = primitives(expr);
    if primitives > WHOLE_PRIMITIVES_MAX {
        let limit = WHOLE_PRIMITIVES_MAX;
        return Err(FilterError::whole(
            FilterProblem::TooMany { primitives, limit },
            expr,
        ));
    }
    let text = CString::new(expr).map_err(|nul| {
        let at = nul.nul_position();
        FilterError::new(FilterProblem::Syntax, expr, at..at + 1)
    })?;
    match instructions(handle, &text, optimize) {
        Ok(instructions) => Ok(instructions),
        Err(message) if message == REJECTS_ALL => Ok(vec![Instruction::ret(0)]),
        Err(message) => Err(locate::refusal(expr, &message, handle)),
    }
}

/// Approximate number of primitives and arithmetic operands.
fn primitives(expr: &str) -> usize {
    let joins = |word: &&Word| match word.kind {
        WordKind::And | WordKind::Or => true,
        _ => ARITHMETIC.contains(&&expr[word.span.clone()]),
    };
    words(expr).iter().filter(joins).count() + 1
}

/// Whether libpcap usually compiles an expression within a millisecond, plus name look-ups.
pub(crate) fn is_quick(expr: &str) -> bool {
    expr.len() <= QUICK_BYTES && primitives(expr) <= QUICK_PRIMITIVES
}

fn instructions(
    handle: &mut CompileHandle,
    text: &CString,
    optimize: bool,
) -> Result<Vec<Instruction>, String> {
    if optimize && text.as_bytes().len() > SHORT_BYTES {
        let plain = handle.compile(text, false)?;
        if plain.len() > OPTIMIZED_INSTRUCTIONS_MAX {
            return Ok(plain);
        }
    }
    handle.compile(text, optimize)
}
