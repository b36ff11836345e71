//! Memory for machine code, and calls of machine code.
//!
//! Memory is written first and then made executable, never both at once. A run borrows the
//! [`MachineCode`], so no thread is inside the code when the memory is unmapped.
#![expect(
    unsafe_code,
    reason = "calls machine code: 5 to 10 times as fast as the interpreter"
)]

use std::{mem, time::Instant};

use memmap2::{Mmap, MmapMut};

use super::{
    NativeError, NativeInfo,
    emit::{FusedFunction, GeneratedCode, ProgramFunction},
};
use crate::FilterFrame;

/// Types of generated functions.
///
/// # Safety
/// The type is a pointer to a function.
pub(crate) unsafe trait FunctionPointer: Copy {}

// SAFETY: a pointer to a function.
unsafe impl FunctionPointer for ProgramFunction {}
// SAFETY: a pointer to a function.
unsafe impl FunctionPointer for FusedFunction {}

/// Executable machine code of a function of type `F`.
#[derive(Debug)]
pub(crate) struct MachineCode<F> {
    function: F,
    _memory: Mmap,
    /// Tables in which the code looks up constants. The code contains their addresses.
    _tables: Vec<Box<[u32]>>,
    pub(crate) info: NativeInfo,
}

// SAFETY: code and tables do not change after `MachineCode::new` and belong to no thread. The
// thread that drops the last reference unmaps the memory.
unsafe impl<F: Send> Send for MachineCode<F> {}
// SAFETY: code and tables do not change. A run writes only to the stack of its own thread, and to
// results that only this thread can reach.
unsafe impl<F: Sync> Sync for MachineCode<F> {}

impl<F: FunctionPointer> MachineCode<F> {
    /// Maps generated code. `start` is the time at which the compilation began.
    ///
    /// # Errors
    /// [`NativeError::Memory`]
    pub(super) fn new(compiled: GeneratedCode<F>, start: Instant) -> Result<Self, NativeError> {
        const { assert!(size_of::<F>() == size_of::<*const u8>()) };
        let GeneratedCode { code, tables, .. } = compiled;
        let failed = |call| {
            let bytes = code.len();
            move |source| NativeError::Memory {
                call,
                bytes,
                source,
            }
        };
        let mut memory = MmapMut::map_anon(code.len()).map_err(failed("mmap"))?;
        memory.copy_from_slice(&code);
        let memory = memory.make_exec().map_err(failed("mprotect"))?;
        let entry = memory.as_ptr();
        let info = NativeInfo {
            code_bytes: code.len(),
            table_bytes: tables.iter().map(|table| size_of_val(&**table)).sum(),
            compile_time: start.elapsed(),
        };
        Ok(Self {
            // SAFETY: `F` and `entry` are pointers of the same size. `GeneratedCode` guarantees
            // that the memory holds a function of type `F`, which `emit` or `fused_function`
            // declared with this signature and calling convention, for this processor. It stays
            // mapped as long as `_memory`, which lives next to the pointer.
            function: unsafe { mem::transmute_copy::<*const u8, F>(&entry) },
            _memory: memory,
            _tables: tables,
            info,
        })
    }
}

impl MachineCode<ProgramFunction> {
    /// See [`Program::run_many`](crate::Program::run_many). Panics if there are more frames than
    /// bits in the result.
    #[inline]
    pub(crate) fn run_many(&self, frames: &[FilterFrame<'_>]) -> u64 {
        assert!(frames.len() <= u64::BITS as usize);
        // SAFETY: the code reads `frames.len()` frames of the layout that it was generated for,
        // captured bytes within each frame's checked length, and its tables. All of these are
        // borrowed until the call returns. The code writes only to its own stack frame and calls
        // nothing.
        unsafe { (self.function)(frames.as_ptr().cast(), frames.len() as u64) }
    }
}

impl MachineCode<FusedFunction> {
    /// Fills the first `frames.len()` elements of `results`: see
    /// [`FusedPrograms::run_many`](crate::FusedPrograms::run_many). Panics if there are more frames
    /// than results.
    #[inline]
    pub(crate) fn run_many(&self, frames: &[FilterFrame<'_>], results: &mut [u64]) -> u64 {
        assert!(frames.len() <= results.len());
        // SAFETY: as in `run_many` for one program. In addition the code writes one result for each
        // frame, and there are enough results.
        unsafe {
            (self.function)(
                frames.as_ptr().cast(),
                frames.len() as u64,
                results.as_mut_ptr(),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Aux, FilterFrame, Instruction, NativeError, Program, native};

    fn mapping(address: usize) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
        let contains = |line: &&str| {
            let (start, end) = line.split(' ').next()?.split_once('-')?;
            let number = |text| usize::from_str_radix(text, 16).ok();
            Some((number(start)?..number(end)?).contains(&address))
        };
        maps.lines()
            .find(|line| contains(line) == Some(true))
            .map(str::to_owned)
    }

    /// Runs one of the tests below in a separate process. Returns its output.
    fn alone(test: &str) -> String {
        let this = std::env::current_exe().expect("a test program");
        let output = std::process::Command::new(this)
            .args(["--ignored", "--exact", "--nocapture"])
            .arg(format!("native::code::tests::{test}"))
            .output()
            .expect("it starts");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs in a separate process, because a mapping of another test may get the address of the
    /// unmapped code, with the same flags and length.
    #[test]
    #[ignore = "started by code_is_never_writable_and_given_back"]
    fn mapped() {
        let native = native::compile(&[Instruction::ret(7)], false).expect("x86-64 Linux");
        assert_eq!(
            native.run_many(&[FilterFrame::new(&[], 0, Aux::default())]),
            1
        );
        let address = native._memory.as_ptr().addr();
        let line = mapping(address).expect("mapped");
        assert_eq!(line.split(' ').nth(1), Some("r-xp"), "{line}");
        let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
        let both = maps.lines().find(|line| {
            line.split(' ')
                .nth(1)
                .is_some_and(|flags| flags.starts_with("rwx"))
        });
        assert_eq!(both, None, "writable and executable");
        drop(native);
        // The test harness may have reused the address, but not for executable memory.
        assert!(
            mapping(address).is_none_or(|new| new != line),
            "still mapped: {line}"
        );
        println!("given back: {line}");
    }

    #[test]
    fn code_is_never_writable_and_given_back() {
        let said = alone("mapped");
        assert!(said.contains("given back: "), "{said}");
    }

    /// Runs in a separate process, which gives up its right to make code.
    #[test]
    #[ignore = "started by where_code_is_refused_programs_are_interpreted"]
    fn refused() {
        const PR_SET_MDWE: libc::c_int = 65;
        const PR_MDWE_REFUSE_EXEC_GAIN: libc::c_ulong = 1;
        // SAFETY: takes numbers only. After success this process cannot make memory executable.
        let status = unsafe { libc::prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) };
        if status != 0 {
            println!("SKIP: the kernel refuses no executable memory (before Linux 6.3)");
            return;
        }
        let program = Program::new(vec![Instruction::ret(7)], false).expect("valid");
        let error = program.make_native().expect_err("refused");
        assert!(
            matches!(
                &error,
                NativeError::Memory {
                    call: "mprotect",
                    ..
                }
            ),
            "{error:?}"
        );
        assert_eq!(program.run(&[], 0, Aux::default()), 7);
        println!("refused: {error}");
    }

    #[test]
    fn where_code_is_refused_programs_are_interpreted() {
        let said = alone("refused");
        if let Some(skip) = said.lines().find(|line| line.starts_with("SKIP")) {
            println!("{skip}");
        }
        assert!(
            said.contains("refused: ") || said.contains("SKIP: "),
            "{said}"
        );
    }
}
