//! A veth pair in a network namespace that is removed when the value is dropped.

use std::{
    fs::File,
    io,
    os::fd::AsFd,
    path::Path,
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::measure::Failure;

/// Setup inside the namespace. IPv6 is disabled, because it would send neighbor discovery at any
/// time. On a kernel without IPv6 the writes fail, which is ignored.
const SETUP: &str =
    "for s in all default; do echo 1 > /proc/sys/net/ipv6/conf/$s/disable_ipv6; done 2>/dev/null
ip link add v0 $QUEUES type veth peer name v1 $QUEUES && ip link set v0 up && ip link set v1 up";

/// The namespace, by name. Traffic flows from `v0` to `v1`.
#[derive(Debug)]
pub(crate) struct Veth(String);

impl Veth {
    /// Makes the namespace. Needs root and iproute2.
    pub(crate) fn new() -> Result<Self, Failure> {
        Self::made("")
    }

    /// As [`Self::new`], with a number of queues for each direction.
    pub(super) fn with_queues(queues: usize) -> Result<Self, Failure> {
        Self::made(&format!("numtxqueues {queues} numrxqueues {queues}"))
    }

    fn made(queues: &str) -> Result<Self, Failure> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Relaxed);
        let veth = Self(format!("rs-bench-{}-{number}", std::process::id()));
        ip(&["netns", "add", &veth.0])?;
        let setup = SETUP.replace("$QUEUES", queues);
        ip(&["netns", "exec", &veth.0, "sh", "-c", &setup])?;
        Ok(veth)
    }

    /// Moves the calling thread into the namespace.
    pub(crate) fn enter(&self) -> Result<(), Failure> {
        let namespace = File::open(Path::new("/run/netns").join(&self.0));
        let kind = Some(LinkNameSpaceType::Network);
        let entered = namespace.and_then(|namespace| {
            move_into_link_name_space(namespace.as_fd(), kind).map_err(io::Error::from)
        });
        entered.map_err(|error| Failure::CannotRun(format!("entering a namespace: {error}")))
    }

    /// A command that runs in the namespace. The process id is the program's own, because `ip`
    /// replaces itself with the program.
    pub(super) fn command(&self, words: impl IntoIterator<Item = String>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0]).args(words);
        command
    }

    /// Sets attributes of an interface: `ip link set`.
    pub(super) fn set(&self, interface: &str, attributes: &[&str]) -> Result<(), Failure> {
        let set = ["-n", &self.0, "link", "set", interface];
        ip(&[&set[..], attributes].concat()).map(drop)
    }

    /// Runs a command in the namespace. Returns what it prints.
    pub(super) fn output(&self, words: &[&str]) -> Result<String, Failure> {
        ip(&[&["netns", "exec", &self.0], words].concat())
    }

    /// Runs `work` on a thread in the namespace.
    pub(super) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Failure> {
        let run = || self.enter().map(|()| work());
        thread::scope(|scope| scope.spawn(run).join())
            .map_err(Failure::panicked)
            .flatten()
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        // A namespace that cannot be removed stays.
        let _ = ip(&["netns", "del", &self.0]);
    }
}

fn ip(arguments: &[&str]) -> Result<String, Failure> {
    let output = Command::new("ip").args(arguments).output();
    printed(output, &format!("ip {} (needs root)", arguments.join(" ")))
}

/// The output of a program.
///
/// # Errors
/// [`Failure::CannotRun`]: the program is missing, or failed. [`Failure::Wrong`]: it did not start.
pub(crate) fn printed(output: io::Result<Output>, what: &str) -> Result<String, Failure> {
    let output = output.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::CannotRun(format!("{what}: not installed")),
        _ => Failure::system(what, error),
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Failure::CannotRun(format!("{what}: {said}")))
}
