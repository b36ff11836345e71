//! From pcap-filter(7) text to a program, by the system's libpcap.

use std::{ffi::CString, ops::Range};

use crate::{
    FilterError, FilterMode, FilterProblem, Instruction, LinkContext, Program, locate,
    parts::ExpressionParts,
    sys::CompileHandle,
    words::{Word, WordKind, words},
};

/// Longest expression in bytes: a list of 25,000 hosts takes a quarter of a second to compile.
pub const EXPRESSION_BYTES_MAX: usize = 512 << 10;

/// Longest expression in bytes that libpcap gets whole without a thought.
const SHORT_BYTES: usize = 4 << 10;
/// Most primitives that libpcap gets whole without a thought. It takes 60 ms for 100 hosts, 3 s for 300 ports.
const SHORT_PRIMITIVES: usize = 100;
/// Longest text in bytes that libpcap gets whole at all.
const WHOLE_BYTES_MAX: usize = 16 << 10;
/// Most primitives that libpcap gets at once. Its time grows with the cube of their number: some seconds for this many
/// ports, minutes for three times as many.
const WHOLE_PRIMITIVES_MAX: usize = 500;
/// Most primitives, and bytes, that libpcap compiles within a millisecond whatever they are: it takes 0.4 ms for 8 ports.
const QUICK_PRIMITIVES: usize = 6;
const QUICK_BYTES: usize = 512;
/// Operators of arithmetic: libpcap's optimizer takes seconds for thousands of them.
const ARITHMETIC: [&str; 10] = ["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"];
/// Largest program, in instructions before optimization, that libpcap's optimizer gets: it needs 2 s for 9,000.
const OPTIMIZED_INSTRUCTIONS_MAX: usize = 10_000;
/// libpcap's maximum snap length for all but a few link types (`MAXIMUM_SNAPLEN` of `pcap-int.h`).
const SNAPLEN_MAX: u32 = 262_144;

/// What libpcap says about an expression that its optimizer proves to match nothing.
const REJECTS_ALL: &str = "expression rejects all packets";

/// Compiles a pcap-filter(7) expression.
///
/// An empty expression takes everything, also on link types for which libpcap has no filtering. One that libpcap proves
/// to match nothing becomes a program that returns 0.
///
/// Any thread may call this, several at a time. It may read `/etc/services`, `/etc/protocols` and the like, and where
/// the expression names a host or network, the system's resolver is asked: that takes as long as the resolver takes
/// (seconds, where a name server does not answer).
///
/// libpcap's time grows steeply with the length of an expression. One above 4 KiB or 100 primitives is compiled in parts
/// that are linked together, where that cannot change its meaning; else, if it is above 4 KiB and makes more than 10,000
/// instructions, it is not optimized.
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

/// Refuses a text of more bytes.
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

/// Lets libpcap compile the whole text.
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

/// How many primitives and operands of arithmetic there are, near enough to tell what libpcap will take.
fn primitives(expr: &str) -> usize {
    let joins = |word: &&Word| match word.kind {
        WordKind::And | WordKind::Or => true,
        _ => ARITHMETIC.contains(&&expr[word.span.clone()]),
    };
    words(expr).iter().filter(joins).count() + 1
}

/// Whether libpcap compiles an expression within a millisecond, names apart.
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
