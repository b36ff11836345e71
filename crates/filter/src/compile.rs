//! From pcap-filter(7) text to a program, by the system's libpcap.

use std::ffi::CString;

use crate::{
    FilterError, Instruction, LinkContext, Mode, Place, Program,
    locate::{self, Refusal},
    sys::Handle,
};

/// Longest expression in bytes. libpcap needs time that grows with the square of the number of primitives: an
/// expression of this length, made of or-ed hosts, takes it about half a minute without its optimizer.
pub const EXPRESSION_BYTES_MAX: usize = 64 << 10;

/// Longest expression in bytes that is optimized without a look at its size first.
const SHORT_BYTES: usize = 4 << 10;
/// Largest program, in instructions before optimization, that is optimized. libpcap's optimizer takes time that grows
/// with the cube: 2 s for 300 or-ed hosts (9,000 instructions), a minute for 1,000.
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
/// (seconds, where a name server does not answer). Expressions that compile to more than 10,000 instructions are not
/// optimized, whatever `link` says: the optimizer would take minutes.
///
/// # Errors
/// [`FilterError`], pointing into `expr`.
pub fn compile(expr: &str, link: LinkContext) -> Result<Program, FilterError> {
    if expr.trim_ascii().is_empty() {
        let snaplen = if link.snaplen == 0 {
            SNAPLEN_MAX
        } else {
            link.snaplen.min(SNAPLEN_MAX)
        };
        return Ok(Program::constant(snaplen));
    }
    let whole = || Place::new(expr, 0..expr.len());
    if expr.len() > EXPRESSION_BYTES_MAX {
        return Err(FilterError::TooLong {
            place: whole(),
            limit_bytes: EXPRESSION_BYTES_MAX,
        });
    }
    let text = CString::new(expr).map_err(|nul| {
        let at = nul.nul_position();
        FilterError::Syntax {
            place: Place::new(expr, at..at + 1),
        }
    })?;
    let mut handle = Handle::open(&link).map_err(|message| FilterError::Library {
        place: whole(),
        message,
    })?;
    let instructions = match instructions(&mut handle, &text, link.optimize) {
        Ok(instructions) => instructions,
        Err(message) if message == REJECTS_ALL => return Ok(Program::constant(0)),
        Err(message) => return Err(refusal(expr, &message, &mut handle)),
    };
    Program::new(instructions, link.mode == Mode::Live).map_err(|error| FilterError::Program {
        place: whole(),
        error,
    })
}

fn instructions(
    handle: &mut Handle,
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

fn refusal(expr: &str, message: &str, handle: &mut Handle) -> FilterError {
    let Refusal {
        syntax,
        message,
        span,
    } = locate::refusal(expr, message, handle);
    let place = Place::new(expr, span);
    if syntax {
        FilterError::Syntax { place }
    } else {
        FilterError::Refused { place, message }
    }
}
