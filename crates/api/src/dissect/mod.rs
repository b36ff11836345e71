//! Details of packets as Wireshark shows them, from Wireshark's `sharkd` in a sandbox.
//!
//! | file | contents |
//! |---|---|
//! | `sandbox.rs` | the child: restricts itself, then executes `sharkd` |
//! | `child.rs` | the recorder: pipes to the child, with limits of time and output |
//! | `sharkd.rs` | requests to `sharkd`, and the tree in its answer |
//!
//! `sharkd` says in which data source a byte range is, for example in reassembled TCP segments.
//! tshark's formats do not. The packets reach the child through a pipe, so the child needs no
//! access to capture files.

mod child;
mod sandbox;
mod sharkd;

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use retroscope_pcapfile::{FileInterface, PacketOptions, PcapNgWriter, SectionOptions, WriteError};

pub use sandbox::{SandboxError, UNPROTECTED, run as run_in_sandbox};
pub(crate) use sharkd::{DataSource, FieldBody, Frame};

use self::child::{ChildError, ChildLimits};
use crate::{
    flow_packets::KeptPacket,
    problem::{Cause, Problem},
};

/// Paths of `sharkd`. `PATH` is not searched, because the recorder may run as root.
const PROGRAMS: [&str; 2] = ["/usr/bin/sharkd", "/usr/local/bin/sharkd"];
const LIMITS: ChildLimits = ChildLimits {
    time: Duration::from_secs(10),
    output_bytes: 16 << 20,
};

/// Starts dissectors.
#[derive(Debug, Clone)]
pub struct Dissector {
    /// The path of the program `retroscope`, whose hidden command `sandbox` executes `sharkd`.
    launcher: PathBuf,
}

impl Default for Dissector {
    /// Uses the running program as launcher, even if its file was replaced.
    fn default() -> Self {
        Self::new("/proc/self/exe")
    }
}

impl Dissector {
    /// Uses the program with this path as launcher.
    pub fn new(launcher: impl Into<PathBuf>) -> Self {
        let launcher = launcher.into();
        Self { launcher }
    }

    /// Dissects `packets`, and returns the details of the packet with this index.
    ///
    /// # Errors
    /// 501: `sharkd` is not installed, or the sandbox cannot be set up. 504: for example, `sharkd`
    /// reached a limit. 500: for example, the child process cannot be started.
    pub(crate) fn frame(
        &self,
        packets: &[KeptPacket],
        index: usize,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Frame, Problem> {
        let program = program().ok_or_else(|| {
            let why = "packet details need Wireshark's program sharkd: install the package tshark (Debian, Ubuntu) or wireshark-cli (Fedora, Arch)";
            Problem::new(Cause::NoDissector, why)
        })?;
        let failed = |why: &str| {
            Problem::new(
                Cause::Dissector,
                format!("Wireshark's sharkd failed: {why}"),
            )
        };
        let mut input = vec![0; 8];
        input = capture(packets, input)
            .map_err(|error| Problem::bug(format!("the packets make no file: {error}")))?;
        let length = (input.len() - 8) as u64;
        input[..8].copy_from_slice(&length.to_le_bytes());
        input.extend(sharkd::requests(sandbox::PACKETS_FILE, index + 1));
        let mut command = Command::new(&self.launcher);
        command.arg("sandbox").arg(program).arg("-");
        command.env_clear().current_dir("/");
        let output = child::run(&mut command, &input, LIMITS, is_cancelled);
        let output = output.map_err(|error| match error {
            ChildError::System(error) => Problem::bug(format!("no sandbox starts: {error}")),
            error => failed(&error.to_string()),
        })?;
        if output.status.code() == Some(i32::from(UNPROTECTED)) {
            let why = format!(
                "packet details need a sandbox, which this machine does not permit: {}",
                output.stderr
            );
            return Err(Problem::new(Cause::NoDissector, why));
        }
        sharkd::answer(&output.stdout, &packets[index].data).ok_or_else(|| {
            let last = output.stderr.lines().last().unwrap_or_default();
            failed(&format!(
                "no answer of Wireshark 4.0 or later ({}): {last}",
                output.status
            ))
        })
    }
}

fn program() -> Option<&'static Path> {
    PROGRAMS
        .map(Path::new)
        .into_iter()
        .find(|path| path.is_file())
}

/// Appends packets to `before` as a pcapng file.
fn capture(packets: &[KeptPacket], before: Vec<u8>) -> Result<Vec<u8>, WriteError> {
    let mut writer = PcapNgWriter::new(before, &SectionOptions::default())?;
    let mut interfaces: Vec<(&str, u16)> = Vec::new();
    for packet in packets {
        let own = (packet.interface.as_str(), packet.link_type.0);
        let known = interfaces.iter().position(|interface| *interface == own);
        let number = match known.map(u32::try_from) {
            Some(Ok(number)) => number,
            _ => {
                interfaces.push(own);
                writer.add_interface(&FileInterface {
                    name: packet.interface.clone(),
                    ..FileInterface::new(packet.link_type)
                })?
            }
        };
        let options = PacketOptions::default();
        writer.packet(
            number,
            packet.stamp_ns,
            packet.wire_len,
            &packet.data,
            &options,
        )?;
    }
    writer.finish()
}
