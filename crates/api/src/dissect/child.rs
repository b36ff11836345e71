//! Runs a child process with limits of time and output. One thread serves the child's three pipes.

use std::{
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    process::{Pid, PidfdFlags, pidfd_open},
};

#[derive(Debug, Clone, Copy)]
pub(super) struct ChildLimits {
    pub(super) time: Duration,
    /// Maximum number of bytes of stdout. Also the maximum number of dropped bytes of stderr.
    pub(super) output_bytes: usize,
}

/// Maximum number of bytes of stderr that are kept: the last bytes.
const ERRORS_BYTES_MAX: usize = 4 << 10;
/// Maximum interval between checks whether the run was cancelled.
const CANCEL_CHECK_PERIOD: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct ChildOutput {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    /// The end of stderr.
    pub(super) stderr: String,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ChildError {
    #[error("it took longer than {} s", .0.as_secs())]
    Time(Duration),
    #[error("it wrote more than {} MiB", .0 >> 20)]
    Output(usize),
    #[error("the client has left")]
    Cancelled,
    #[error("{0}")]
    System(#[from] io::Error),
}

/// A child that is killed when dropped.
struct KilledChild(Child);

impl Drop for KilledChild {
    fn drop(&mut self) {
        // Both calls do nothing if the child has ended and was waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a child until it ends. Kills the child at a limit, on an error, or if `is_cancelled`
/// returns true.
pub(super) fn run(
    command: &mut Command,
    input: &[u8],
    limits: ChildLimits,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<ChildOutput, ChildError> {
    let deadline = Instant::now() + limits.time;
    let command = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = KilledChild(command.spawn()?);
    let pipes = &mut child.0;
    let id = Pid::from_child(pipes);
    let end = pidfd_open(id, PidfdFlags::empty()).map_err(io::Error::from)?;
    let mut stdin = pipes.stdin.take();
    let mut stdout = pipes.stdout.take();
    let mut stderr = pipes.stderr.take();
    not_blocking(stdin.as_ref())?;
    not_blocking(stdout.as_ref())?;
    not_blocking(stderr.as_ref())?;
    let (mut rest, mut output, mut errors) = (input, Vec::new(), Vec::new());
    let mut dropped = 0;
    while stdout.is_some() || stderr.is_some() {
        wait_for(
            [
                stdin.as_ref().map(|pipe| (pipe.as_fd(), PollFlags::OUT)),
                stdout.as_ref().map(|pipe| (pipe.as_fd(), PollFlags::IN)),
                stderr.as_ref().map(|pipe| (pipe.as_fd(), PollFlags::IN)),
            ],
            deadline,
        )?;
        if Instant::now() >= deadline {
            return Err(ChildError::Time(limits.time));
        }
        if is_cancelled() {
            return Err(ChildError::Cancelled);
        }
        write_some(&mut stdin, &mut rest)?;
        read_some(&mut stdout, &mut output)?;
        read_some(&mut stderr, &mut errors)?;
        let excess = errors.len().saturating_sub(ERRORS_BYTES_MAX);
        errors.drain(..excess);
        dropped += excess;
        if output.len().max(dropped) > limits.output_bytes {
            return Err(ChildError::Output(limits.output_bytes));
        }
    }
    drop(stdin);
    // A child that has closed its output may still run.
    loop {
        if let Some(status) = child.0.try_wait()? {
            return Ok(ChildOutput {
                status,
                stdout: output,
                stderr: String::from_utf8_lossy(&errors).trim().to_owned(),
            });
        }
        wait_for([Some((end.as_fd(), PollFlags::IN))], deadline)?;
        if Instant::now() >= deadline {
            return Err(ChildError::Time(limits.time));
        }
        if is_cancelled() {
            return Err(ChildError::Cancelled);
        }
    }
}

fn not_blocking(pipe: Option<impl AsFd>) -> io::Result<()> {
    let Some(pipe) = pipe else { return Ok(()) };
    let flags = fcntl_getfl(&pipe)?;
    Ok(fcntl_setfl(&pipe, flags | OFlags::NONBLOCK)?)
}

/// Waits until a descriptor is ready, at most for [`CANCEL_CHECK_PERIOD`] and until `deadline`.
fn wait_for<const N: usize>(
    pipes: [Option<(BorrowedFd<'_>, PollFlags)>; N],
    deadline: Instant,
) -> io::Result<()> {
    let pipes = pipes.into_iter().flatten();
    let mut pipes: Vec<_> = pipes
        .map(|(pipe, flags)| PollFd::from_borrowed_fd(pipe, flags))
        .collect();
    let left = deadline.saturating_duration_since(Instant::now());
    let wait = Timespec::try_from(left.min(CANCEL_CHECK_PERIOD)).ok();
    match poll(&mut pipes, wait.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Writes as much as the pipe accepts. Closes the pipe after the last byte, or if nobody reads.
fn write_some(pipe: &mut Option<impl Write>, rest: &mut &[u8]) -> io::Result<()> {
    while let Some(writer) = pipe
        && !rest.is_empty()
    {
        match writer.write(rest) {
            Ok(count) => *rest = &rest[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => *rest = &[],
            Err(error) => return Err(error),
        }
    }
    *pipe = None;
    Ok(())
}

/// Reads once. Closes the pipe at its end.
fn read_some(pipe: &mut Option<impl Read>, bytes: &mut Vec<u8>) -> io::Result<()> {
    let Some(reader) = pipe else { return Ok(()) };
    let mut piece = [0; 64 << 10];
    match reader.read(&mut piece) {
        Ok(0) => *pipe = None,
        Ok(count) => bytes.extend_from_slice(&piece[..count]),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            ) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ChildLimits = ChildLimits {
        time: Duration::from_secs(30),
        output_bytes: 8 << 20,
    };

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn input_and_output_larger_than_a_pipe_do_not_block() {
        let input: Vec<u8> = (0..4 << 20).map(|at: u32| at.to_le_bytes()[1]).collect();
        let done = run(
            &mut shell("cat; echo end >&2; exit 3"),
            &input,
            LIMITS,
            &|| false,
        );
        let done = done.unwrap();
        assert!(done.stdout == input);
        assert_eq!((done.status.code(), done.stderr.as_str()), (Some(3), "end"));
        // A child that does not read its input.
        let done = run(&mut shell("exec true"), &input, LIMITS, &|| false).unwrap();
        assert!(done.status.success());
    }

    #[test]
    fn endless_children_are_ended() {
        let endless = "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done";
        let refused = run(&mut shell(endless), &[], LIMITS, &|| false);
        assert!(matches!(refused, Err(ChildError::Output(_))), "{refused:?}");
        let short = ChildLimits {
            time: Duration::from_millis(50),
            ..LIMITS
        };
        // The first child keeps its stdout and stderr open, the second child closes them.
        for script in ["while :; do :; done", "exec >&- 2>&-; while :; do :; done"] {
            let refused = run(&mut shell(script), &[], short, &|| false);
            assert!(matches!(refused, Err(ChildError::Time(_))), "{refused:?}");
        }
        let errors = format!("({endless}) >&2");
        let refused = run(&mut shell(&errors), &[], LIMITS, &|| false);
        assert!(matches!(refused, Err(ChildError::Output(_))), "{refused:?}");
        let refused = run(&mut shell("while :; do :; done"), &[], LIMITS, &|| true);
        assert!(matches!(refused, Err(ChildError::Cancelled)), "{refused:?}");
        // The client leaves after the child has closed its output.
        let directory = tempfile::tempdir().unwrap();
        let closed = directory.path().join("closed");
        let script = format!(
            "exec >&- 2>&-; : >{}; while :; do :; done",
            closed.display()
        );
        let refused = run(&mut shell(&script), &[], LIMITS, &|| closed.exists());
        assert!(matches!(refused, Err(ChildError::Cancelled)), "{refused:?}");
    }
}
