//! A veth pair in a network namespace that goes away with the value.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use crate::measure::Failure;

/// The namespace; traffic goes from [`Veth::FROM`] to [`Veth::TO`].
#[derive(Debug)]
pub(super) struct Veth {
    name: String,
}

impl Veth {
    /// The sending end.
    pub(super) const FROM: &str = "v0";
    /// The receiving end.
    pub(super) const TO: &str = "v1";

    /// Needs root and iproute2.
    pub(super) fn new() -> Result<Self, Failure> {
        let name = format!("rs-bench-{}", std::process::id());
        ip(&["netns", "add", &name])?;
        let veth = Self { name };
        let (from, to) = (Self::FROM, Self::TO);
        // IPv6 would send neighbour discovery whenever it likes.
        let quiet =
            "for s in all default; do echo 1 > /proc/sys/net/ipv6/conf/$s/disable_ipv6; done";
        let mut sysctl = veth.command(Path::new("sh"));
        // Where there is no IPv6 there is nothing to switch off.
        let _ = sysctl.args(["-c", quiet]).stderr(Stdio::null()).status();
        for line in [
            format!("link add {from} type veth peer name {to}"),
            format!("link set {from} up"),
            format!("link set {to} up"),
        ] {
            let words = line.split(' ');
            let arguments: Vec<&str> = ["-n", &veth.name].into_iter().chain(words).collect();
            ip(&arguments)?;
        }
        Ok(veth)
    }

    /// A command that runs inside. The process is the program's own: `ip` makes way for it.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        // Nothing can be done about a namespace that stays.
        let _ = ip(&["netns", "del", &self.name]);
    }
}

fn ip(arguments: &[&str]) -> Result<(), Failure> {
    let what = format!("ip {}", arguments.join(" "));
    let output = Command::new("ip")
        .args(arguments)
        .output()
        .map_err(|error| Failure::system(&what, error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Failure::CannotRun(format!("{what}: {said} (needs root)")))
}
