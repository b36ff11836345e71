//! Reasons why a program has no machine code.

use std::io;

/// Why a program has no machine code, or several programs have no common function.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NativeError {
    /// There is no code generator for this kind of processor or operating system.
    #[error("no machine code for {architecture} processors")]
    Processor {
        /// Architecture, as in [`std::env::consts::ARCH`].
        architecture: &'static str,
    },
    /// The program has too many instructions.
    #[error("{instructions} instructions are too many to compile; the limit is {limit}")]
    TooLong {
        /// Instructions of the program.
        instructions: usize,
        /// Maximum number of instructions.
        limit: usize,
    },
    /// The programs are too long to share one function.
    #[error("{programs} programs are too much for one function")]
    NotFused {
        /// Number of programs.
        programs: usize,
    },
    /// The translator or the code generator failed, which is usually a bug.
    #[error("the code generator failed: {message}")]
    Generator {
        /// Message of the code generator, or of a panic.
        message: String,
    },
    /// The system refused executable memory: out of memory, or a security policy.
    #[error("{call} of {bytes} bytes for machine code failed")]
    Memory {
        /// Name of the system call.
        call: &'static str,
        /// Size of the memory in bytes.
        bytes: usize,
        /// The system's error.
        source: io::Error,
    },
}
