//! The sender: `retroscope generate` at one end of a veth pair, and the assignment of CPUs.
//!
//! The kernel receives on the sending CPU. With the sender on the first CPU and the capture program
//! on the other CPUs, the program's time contains no work of the sender. The scheduler cannot queue
//! the program after the sender in one run and run both in parallel in the next.

use super::{CaptureLoad, path, veth::Veth};
use crate::{measure::Failure, pin, session::Session};

/// The CPUs of the sender and of the capture program. Empty: any CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seats {
    pub(super) sender: &'static [usize],
    pub(super) program: &'static [usize],
}

impl Seats {
    /// One CPU for the sender and the others for the program; any CPU for both if there are fewer
    /// than three. With two CPUs, two threads of the program would have to share one CPU, and
    /// unpinned threads need not.
    pub(super) fn spread(cpus: &'static [usize]) -> Self {
        let (sender, program) = match cpus {
            [] | [_] | [_, _] => (&[][..], &[][..]),
            several => several.split_at(1),
        };
        Self { sender, program }
    }

    /// One CPU for the sender, and one CPU for all threads of the program: the setup of a user who
    /// needs the other CPUs.
    pub(super) fn one_each(cpus: &'static [usize]) -> Result<Self, Failure> {
        let ([sender, ..], [_, program, ..]) = (cpus, cpus) else {
            return Err(Failure::CannotRun("this machine has one CPU".to_owned()));
        };
        let [sender, program] = [sender, program].map(std::slice::from_ref);
        Ok(Self { sender, program })
    }
}

/// Sends the load from `v0`.
pub(super) fn send(
    session: &Session,
    veth: &Veth,
    seats: Seats,
    load: CaptureLoad,
) -> Result<(), Failure> {
    let retroscope = path(session.programs.retroscope.as_ref())?;
    let CaptureLoad { size, count, rate } = load;
    let line = format!("generate -i v0 --yes -q --size {size} -c {count} --rate {rate}pps");
    let words = line.split(' ').map(str::to_owned);
    let mut command = veth.command([retroscope].into_iter().chain(words));
    let output = pin::confined(seats.sender, || command.output())
        .map_err(|error| Failure::system("starting the sender", error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Failure::CannotRun(format!("the sender: {said}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_of_its_own_if_there_are_two_others() {
        let spread = |cpus| {
            let seats = Seats::spread(cpus);
            (seats.sender, seats.program)
        };
        assert_eq!(spread(&[0, 2, 1, 3]), (&[0][..], &[2, 1, 3][..]));
        assert_eq!(spread(&[4]), (&[][..], &[][..]));
        assert_eq!(spread(&[4, 5]), (&[][..], &[][..]));
    }

    #[test]
    fn one_cpu_each_however_many_there_are() {
        let one_each = |cpus| {
            let seats = Seats::one_each(cpus)?;
            Ok((seats.sender, seats.program))
        };
        assert_eq!(one_each(&[4, 5]), Ok((&[4][..], &[5][..])));
        assert_eq!(one_each(&[0, 2, 1, 3]), Ok((&[0][..], &[2][..])));
        assert!(matches!(one_each(&[4]), Err(Failure::CannotRun(_))));
    }
}
