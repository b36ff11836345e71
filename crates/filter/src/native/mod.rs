//! Machine code for programs, made from classic BPF by Cranelift.
//!
//! - `need` analyzes the program backwards: how many captured bytes must a packet have to be
//!   accepted from an instruction on?
//! - `known` holds the facts that the translator knows at an instruction, and the facts about all
//!   packets of a class.
//! - `translate` makes Cranelift's intermediate code. `operate` translates instructions that
//!   compute, and `branch` conditional jumps. `constants` makes tables for long lists of constants.
//! - `emit` adds the loop over packets, and runs Cranelift.
//! - `code` maps the result and calls it, with the only unsafe code here.
//! - `fused_function` makes one function of many programs.
//! - `compiler` is a thread for all this.
//!
//! The machine code keeps the same packets as the interpreter. A load beyond the captured bytes
//! rejects the packet. So one length check may include a later, larger check if every path to
//! acceptance passes the two checks.

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

/// Data about a program's machine code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct NativeInfo {
    /// Bytes of machine code.
    pub code_bytes: usize,
    /// Bytes of tables with constants.
    pub table_bytes: usize,
    /// Duration of the compilation.
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

/// Stores the code that `make` makes in `place`, unless there is code already.
///
/// # Errors
/// Errors of [`guarded`].
pub(crate) fn fill<F>(
    place: &OnceLock<MachineCode<F>>,
    make: impl FnOnce() -> Result<MachineCode<F>, NativeError>,
) -> Result<(), NativeError> {
    if place.get().is_none() {
        // If another thread was faster, its code is equivalent.
        let _ = place.set(guarded(make)?);
    }
    Ok(())
}

/// Runs `make` and turns a panic, which is a bug in the translator or in the code generator, into
/// an error. A panic must not end the compiler's thread, which has other programs in its queue.
///
/// # Errors
/// Errors of `make`; [`NativeError::Generator`] with the panic's message.
fn guarded<T>(make: impl FnOnce() -> Result<T, NativeError>) -> Result<T, NativeError> {
    // After a panic, no value that `make` has changed is used.
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
