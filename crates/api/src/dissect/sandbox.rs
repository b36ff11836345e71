//! The child's side of the sandbox: the process restricts itself for good, then executes a
//! dissector.
//!
//! A dissector is a large C program that parses hostile packets. The sandbox restricts an attacker
//! who has taken over the dissector:
//!
//! | access to | restricted by |
//! |---|---|
//! | files | Landlock: reads system libraries, Wireshark's data; seccomp: only opens to read |
//! | network, other sockets | seccomp: no `socket`; Landlock's TCP rights and scopes in addition |
//! | other processes | seccomp: no `fork`, `kill`, `ptrace`, `F_SETOWN`; `prlimit64` only reads |
//! | the recorder's descriptors | `close_range`: leaves three pipes and a sealed packet file |
//! | memory, processor, files | resource limits, lowest priority, preferred by the OOM killer |
//! | many threads | a limit for the threads of the user; root has no such limit |
//! | capabilities | dropped, and `no_new_privs` |
//!
//! The program does not run without these restrictions. Exceptions: the rank for the OOM killer,
//! and Landlock rights that the kernel does not know yet.

use std::{
    ffi::OsString,
    fmt, fs,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd},
        unix::process::CommandExt,
    },
    path::Path,
    process::Command,
};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope, path_beneath_rules,
};
use retroscope_unix::close_from;
use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create},
    process::{Resource, Rlimit, Signal, getuid, nice, set_parent_process_death_signal, setrlimit},
    thread::{CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities},
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// The path at which the dissector opens the file with the packets.
pub(super) const PACKETS_FILE: &str = "/proc/self/fd/3";
const PACKETS_DESCRIPTOR: i32 = 3;
/// Maximum number of bytes of the file with the packets.
pub(super) const PACKETS_BYTES_MAX: u64 = 16 << 20;

/// Limits for [`setrlimit`]: `As` in bytes, `Cpu` in seconds. With `Fsize` 0 the process cannot
/// write to regular files.
const LIMITS: [(Resource, u64); 6] = [
    (Resource::As, 1 << 30),
    (Resource::Cpu, 10),
    (Resource::Core, 0),
    (Resource::Memlock, 0),
    (Resource::Nofile, 64),
    (Resource::Fsize, 0),
];

/// Room for the dissector's threads: `RLIMIT_NPROC` is at least the present number of threads of
/// the user plus this number.
const THREADS_MAX: u64 = 64;
/// Smallest value for `RLIMIT_NPROC`. The kernel also counts threads in other containers of the
/// same user, which `/proc` does not show.
const THREADS_LEAST: u64 = 4096;

/// Files and directories that the dissector may read: libraries, plug-ins and tables.
const READABLE: [&str; 10] = [
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/share",
    "/usr/local/lib",
    "/usr/local/share",
    "/etc/wireshark",
    "/etc/ld.so.cache",
    "/etc/localtime",
];
/// Devices that libraries may read.
const DEVICES: [&str; 2] = ["/dev/null", "/dev/urandom"];
/// Directories that contain the dynamic loader (ld.so(8)). Their files may be executed, because the
/// kernel executes the loader.
const LOADERS: [&str; 4] = ["/lib", "/lib64", "/usr/lib", "/usr/lib64"];

/// Exit status of the child after a failure of [`run`]. stderr has the reason.
pub const UNPROTECTED: u8 = 117;

/// The reason of a failure of [`run`].
#[derive(Debug)]
pub struct SandboxError {
    what: &'static str,
    why: String,
}

impl fmt::Display for SandboxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)
    }
}

/// Converts the error of a step to a [`SandboxError`]. `what` names the step.
trait OrRefuse<T> {
    fn or_refuse(self, what: &'static str) -> Result<T, SandboxError>;
}

impl<T, E: fmt::Display> OrRefuse<T> for Result<T, E> {
    fn or_refuse(self, what: &'static str) -> Result<T, SandboxError> {
        self.map_err(|why| SandboxError {
            what,
            why: why.to_string(),
        })
    }
}

/// Restricts this process for good, and replaces it by `program`. stdin begins with a file: its
/// length, 8 bytes in little-endian order, and its bytes. The program reads this file at
/// `/proc/self/fd/3`, and the rest of stdin. Returns only after a failure.
///
/// Call this at the start of a process with one thread: descriptors from 3 on are closed.
#[must_use]
pub fn run(program: &Path, arguments: &[OsString]) -> SandboxError {
    match restrict(program) {
        Err(error) => error,
        Ok(()) => SandboxError {
            what: "the program does not start",
            why: Command::new(program)
                .args(arguments)
                .env_clear()
                .envs([
                    ("HOME", "/nonexistent"),
                    ("LC_ALL", "C.UTF-8"),
                    ("TZ", "UTC"),
                ])
                .exec()
                .to_string(),
        },
    }
}

fn restrict(program: &Path) -> Result<(), SandboxError> {
    close_from(3).or_refuse("close_range(2)")?;
    set_parent_process_death_signal(Some(Signal::KILL)).or_refuse("prctl(2)")?;
    std::env::set_current_dir("/").or_refuse("chdir(2)")?;
    packets_file().or_refuse("the packets cannot be stored")?;
    // Optional: a failure changes only the choice of the OOM killer.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    nice(19).or_refuse("nice(2)")?;
    let threads = threads_of_user().or_refuse("/proc")? + THREADS_MAX;
    let threads = threads.max(THREADS_LEAST);
    for (resource, limit) in LIMITS.into_iter().chain([(Resource::Nproc, threads)]) {
        let limit = Rlimit {
            current: Some(limit),
            maximum: Some(limit),
        };
        setrlimit(resource, limit).or_refuse("setrlimit(2)")?;
    }
    let none = CapabilitySet::empty();
    let sets = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    clear_ambient_capability_set().or_refuse("capabilities(7)")?;
    set_capabilities(None, sets).or_refuse("capabilities(7)")?;
    restrict_files(program)?;
    let filter = system_calls().or_refuse("seccomp(2)")?;
    seccompiler::apply_filter(&filter).or_refuse("seccomp(2)")
}

/// Copies the file at the start of stdin into memory, as a descriptor that the program inherits.
/// Leaves the bytes after the file in stdin.
fn packets_file() -> io::Result<()> {
    let flags = MemfdFlags::ALLOW_SEALING;
    let mut file = fs::File::from(memfd_create(c"packets", flags)?);
    if file.as_raw_fd() != PACKETS_DESCRIPTOR {
        return Err(io::Error::other("a descriptor is left"));
    }
    let mut input = fs::File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut length = [0; 8];
    input.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > PACKETS_BYTES_MAX {
        return Err(io::Error::other("the file is too long"));
    }
    if io::copy(&mut input.take(length), &mut file)? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    file.flush()?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    fcntl_add_seals(&file, seals)?;
    // The program inherits the descriptor.
    std::mem::forget(file);
    Ok(())
}

/// Number of threads of this process's user, all processes together, as `RLIMIT_NPROC` counts.
fn threads_of_user() -> io::Result<u64> {
    let user = getuid().as_raw().to_string();
    let mut threads = 0;
    for process in fs::read_dir("/proc")? {
        let process = process?;
        // Other entries, for example `self`, are no further processes.
        if !process.file_name().as_encoded_bytes()[0].is_ascii_digit() {
            continue;
        }
        // A process may end meanwhile.
        let Ok(status) = fs::read_to_string(process.path().join("status")) else {
            continue;
        };
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
        let is_own = field("Uid:").and_then(|ids| ids.split_whitespace().next()) == Some(&user);
        let own = field("Threads:").filter(|_| is_own);
        threads += own
            .and_then(|number| number.trim().parse::<u64>().ok())
            .unwrap_or(0);
    }
    Ok(threads)
}

/// Restricts access to files by Landlock. Kernels without Landlock ABI 6 do not know some rights.
/// The filter of system calls denies these rights too.
fn restrict_files(program: &Path) -> Result<(), SandboxError> {
    const LANDLOCK: &str = "Landlock";
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V1))
        .map_err(|_| "Linux 5.13 or later has it, if it is enabled and permitted")
        .or_refuse(LANDLOCK)?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V5))
        .or_refuse(LANDLOCK)?
        .handle_access(AccessNet::from_all(ABI::V4))
        .or_refuse(LANDLOCK)?
        .scope(Scope::from_all(ABI::V6))
        .or_refuse(LANDLOCK)?
        .create()
        .or_refuse(LANDLOCK)?;
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let status = ruleset
        .add_rules(path_beneath_rules(READABLE, read))
        .or_refuse(LANDLOCK)?
        .add_rules(path_beneath_rules(DEVICES, AccessFs::ReadFile))
        .or_refuse(LANDLOCK)?
        .add_rules(path_beneath_rules(LOADERS, AccessFs::Execute))
        .or_refuse(LANDLOCK)?
        .add_rules(path_beneath_rules(
            [program],
            AccessFs::Execute | AccessFs::ReadFile,
        ))
        .or_refuse(LANDLOCK)?
        .restrict_self()
        .or_refuse(LANDLOCK)?;
    if status.ruleset == RulesetStatus::NotEnforced || !status.no_new_privs {
        return Err("the kernel does not enforce it").or_refuse(LANDLOCK);
    }
    Ok(())
}

/// Permitted system calls, with any arguments. A call without a rule fails with `ENOSYS`, as on a
/// kernel without the call, so that the C library uses an older call.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_execve,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_futex,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_getresgid,
    libc::SYS_getresuid,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_newfstatat,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    // Without capabilities, a process can change its IDs only to its real, effective or saved IDs.
    // Wireshark exits if the calls fail.
    libc::SYS_setresgid,
    libc::SYS_setresuid,
    libc::SYS_sigaltstack,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Further permitted system calls of x86-64. arm64 does not have these calls.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[libc::c_long] = &[
    libc::SYS_access,
    libc::SYS_arch_prctl,
    libc::SYS_dup2,
    libc::SYS_lstat,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_stat,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[libc::c_long] = &[];

/// Permitted system calls that open a file, each with the index of its flags argument.
#[cfg(target_arch = "x86_64")]
const OPENING: &[(libc::c_long, u8)] = &[(libc::SYS_open, 1), (libc::SYS_openat, 2)];
#[cfg(not(target_arch = "x86_64"))]
const OPENING: &[(libc::c_long, u8)] = &[(libc::SYS_openat, 2)];

/// Permitted commands of fcntl(2). With `F_SETOWN` and `F_SETSIG`, a process can send any signal to
/// other processes of the user. Landlock prevents that only since Linux 6.12.
const FCNTL_COMMANDS: [libc::c_int; 6] = [
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
];

fn system_calls() -> seccompiler::Result<BpfProgram> {
    let calls = ALLOWED.iter().chain(ALLOWED_HERE);
    let calls = calls.map(|call| (*call, Vec::new()));
    // Threads, but no processes. clone3(2) fails, because a filter cannot read its flags.
    let thread = u64::from(libc::CLONE_THREAD.cast_unsigned());
    let is_thread = SeccompCondition::new(
        0,
        SeccompCmpArgLen::Qword,
        SeccompCmpOp::MaskedEq(thread),
        thread,
    )?;
    // With new limits, prlimit64 could change the recorder's limits.
    let only_reads = SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?;
    let mut commands = Vec::new();
    for command in FCNTL_COMMANDS {
        let is_permitted = SeccompCondition::new(
            1,
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::Eq,
            u64::from(command.cast_unsigned()),
        )?;
        commands.push(SeccompRule::new(vec![is_permitted])?);
    }
    let mut conditional = vec![
        (libc::SYS_clone, vec![SeccompRule::new(vec![is_thread])?]),
        (
            libc::SYS_prlimit64,
            vec![SeccompRule::new(vec![only_reads])?],
        ),
        (libc::SYS_fcntl, commands),
    ];
    // Landlock does not check the access mode 3, and forbids truncation only since Linux 6.2.
    let changes = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC;
    for (call, flags) in OPENING {
        let is_reading = SeccompCondition::new(
            *flags,
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::MaskedEq(u64::from(changes.cast_unsigned())),
            0,
        )?;
        conditional.push((*call, vec![SeccompRule::new(vec![is_reading])?]));
    }
    let filter = SeccompFilter::new(
        calls.chain(conditional).collect(),
        SeccompAction::Errno(libc::ENOSYS.cast_unsigned()),
        SeccompAction::Allow,
        std::env::consts::ARCH.try_into()?,
    )?;
    Ok(filter.try_into()?)
}
