//! Why there is no machine code for a program.

use std::io;

/// Why a program stays with the interpreter. None of these is the program's fault, except its length.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NativeError {
    /// There is no code generator for this kind of processor; [`crate::Program::run`] interprets.
    #[error("no machine code for {architecture} processors")]
    Processor {
        /// As in [`std::env::consts::ARCH`].
        architecture: &'static str,
    },
    /// The program has more instructions than are compiled.
    #[error("{instructions} instructions are too many to compile; the limit is {limit}")]
    TooLong {
        /// Instructions of the program.
        instructions: usize,
        /// The limit.
        limit: usize,
    },
    /// Programs that were to run as one function are too long for that; each runs by itself.
    #[error("{programs} programs are too much for one function")]
    NotFused {
        /// How many they are.
        programs: usize,
    },
    /// The code generator refused what the translator made: a bug in one of them.
    #[error("the code generator failed: {message}")]
    Generator {
        /// What it said.
        message: String,
    },
    /// The system gave no memory for code, or did not let it become executable: out of memory, or a security policy.
    #[error("{call} of {bytes} bytes for machine code failed")]
    Memory {
        /// Name of the system call.
        call: &'static str,
        /// Bytes it was for.
        bytes: usize,
        /// What the system said.
        source: io::Error,
    },
}
