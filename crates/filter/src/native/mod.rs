//! Native code for programs: classic BPF through Cranelift to machine code.
//!
//! One file a pass:
//! - `need` looks at the program backwards: how many captured bytes must there be for a packet to be accepted from here?
//! - `known` is what the translator knows when it stands at an instruction: lengths that were checked, bytes that were read, and
//!   what holds for all packets that a translation is for.
//! - `translate` makes Cranelift's intermediate code from instructions, with `operate` for those that compute and `branch` for
//!   those that decide; `constants` is for long lists of constants.
//! - `emit` wraps that into a function with the loop over packets, and lets Cranelift compile it.
//! - `code` maps the result and calls it: the only unsafe code here.
//! - `fused_function` makes one function of many programs, and leaves out of them what is known of a class of packets.
//! - `compiler` is a thread that does all this beside the data path.
//!
//! The meaning is that of the interpreter, to the bit. A load beyond the captured bytes ends with 0, so a check may be merged
//! with a later and larger one wherever every way to an accepted packet leads through both: nobody can see the difference
//! between two ways to be rejected.

mod branch;
mod code;
mod compiler;
mod constants;
mod emit;
mod error;
mod fused_function;
mod known;
mod need;
mod operate;
mod translate;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::OnceLock,
    time::{Duration, Instant},
};

pub(crate) use code::MachineCode;
pub use compiler::{Compiler, CompilerCounts};
pub(crate) use emit::{FusedFunction, ProgramFunction};
pub use error::NativeError;
pub(crate) use fused_function::{EACH_MAX, compile_fused, has_room};

use crate::Instruction;

/// What became of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct NativeInfo {
    /// Bytes of machine code.
    pub code_bytes: usize,
    /// Bytes of tables that the code looks constants up in.
    pub table_bytes: usize,
    /// How long it took to make.
    pub compile_time: Duration,
}

/// Compiles checked instructions to machine code; `ancillary` as in [`crate::Program::new`].
///
/// # Errors
/// [`NativeError`]
pub(crate) fn compile(
    instructions: &[Instruction],
    ancillary: bool,
) -> Result<MachineCode<ProgramFunction>, NativeError> {
    let start = Instant::now();
    MachineCode::new(emit::compile(instructions, ancillary)?, start)
}

/// Fills the place of code that `make` makes, unless that was done before.
///
/// # Errors
/// Those of [`guarded`].
pub(crate) fn fill<F>(
    place: &OnceLock<MachineCode<F>>,
    make: impl FnOnce() -> Result<MachineCode<F>, NativeError>,
) -> Result<(), NativeError> {
    if place.get().is_none() {
        // Another thread may have been faster: its code is as good.
        let _ = place.set(guarded(make)?);
    }
    Ok(())
}

/// Runs `make`. A panic in it, a bug in the translator or in the code generator, is an error like others, and leaves the
/// program to the interpreter: it must not end the compiling thread, in whose queue other programs wait.
///
/// # Errors
/// Those of `make`; [`NativeError::Generator`] with the panic's message.
fn guarded<T>(make: impl FnOnce() -> Result<T, NativeError>) -> Result<T, NativeError> {
    // What `make` leaves unfinished is dropped with it: nothing is shared until it succeeds.
    catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(NativeError::Generator {
            message: format!("it panicked: {}", text.unwrap_or("no message")),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_code_generator_is_an_error() {
        type Make = fn() -> Result<MachineCode<ProgramFunction>, NativeError>;
        let cases: [(Make, &str); 3] = [
            (|| panic!("register {}", 7), "it panicked: register 7"),
            (|| panic!("bare"), "it panicked: bare"),
            (|| std::panic::panic_any(1), "it panicked: no message"),
        ];
        for (make, said) in cases {
            match guarded(make) {
                Err(NativeError::Generator { message }) => assert_eq!(message, said),
                other => panic!("{other:?}"),
            }
        }
        let made = guarded(|| compile(&[Instruction::ret(5)], false));
        assert!(made.is_ok(), "{made:?}");
    }
}
