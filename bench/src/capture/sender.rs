//! The sender: `retroscope generate` at one end of a veth pair, on a CPU of its own where there are three.
//!
//! The kernel receives on the CPU that sends. With the sender on the first CPU and the program that captures on the others, a
//! program's time is its own, and the scheduler cannot put it behind the sender in one run and beside it in the next. With a single CPU
//! they share it.

use std::path::Path;

use super::{Load, veth::Veth};
use crate::{contest::Failure, pin};

/// What the sender did.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) packets: u64,
    /// Packets a second.
    pub(super) rate: f64,
}

/// The CPU of the sender; none where there are fewer than three.
fn cpus() -> &'static [usize] {
    split(pin::cpus()).0
}

/// The CPUs of the programs that capture; none where there are fewer than three: two threads that share the only one left
/// would take turns on it, and that is not what they do where nobody pins them.
pub(super) fn cpus_left() -> &'static [usize] {
    split(pin::cpus()).1
}

fn split(cpus: &[usize]) -> (&[usize], &[usize]) {
    match cpus {
        [] | [_] | [_, _] => (&[], &[]),
        several => several.split_at(1),
    }
}

/// Sends the load from [`Veth::FROM`].
pub(super) fn send(retroscope: &Path, veth: &Veth, load: Load) -> Result<Sent, Failure> {
    let mut command = veth.command(retroscope);
    command.args(["generate", "-i", Veth::FROM, "--yes", "-q", "--json"]);
    command.args(["--size", &load.size.to_string()]);
    command.args(["-c", &load.count.to_string()]);
    if let Some(rate) = load.rate {
        command.args(["--rate", &format!("{rate}pps")]);
    }
    let output = pin::confined(cpus(), || command.output())
        .map_err(|error| Failure::system("starting the sender", error))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Failure::CannotRun(format!("the sender: {said}")));
    }
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| Failure::system("the sender's summary", error))?;
    let sent = summary["packets"]
        .as_u64()
        .zip(summary["seconds"].as_f64())
        .filter(|(_, seconds)| *seconds > 0.0);
    let (packets, seconds) =
        sent.ok_or_else(|| Failure::Unsound(format!("the sender told no count: {summary}")))?;
    Ok(Sent {
        packets,
        rate: packets as f64 / seconds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_of_its_own_if_there_are_two_others() {
        assert_eq!(split(&[0, 2, 1, 3]), (&[0][..], &[2, 1, 3][..]));
        assert_eq!(split(&[4]), (&[][..], &[][..]));
        assert_eq!(split(&[4, 5]), (&[][..], &[][..]));
    }
}
