//! Helpers of the tests of `filter` and `dev`: run the program, write captures, read captures.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use retroscope_packet::LinkType;
use retroscope_pcapfile::{
    CaptureReader, FileInterface, PacketOptions, PcapNgWriter, PcapOptions, PcapWriter,
    SectionOptions,
};
use tempfile::TempDir;

use crate::support::{PROGRAM, shared};

/// 2026-11-20T19:15:03.123456789Z in ns since the epoch.
pub(crate) const TIME_NS: i64 = 1_795_202_103_123_456_789;

pub(crate) const SNAPLEN: u32 = 65_535;

/// The command `retroscope filter`.
pub(crate) fn filter() -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("filter");
    command
}

/// The command `retroscope dev TOOL`.
pub(crate) fn dev(tool: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["dev", tool]);
    command
}

pub(crate) fn run(command: &mut Command) -> Output {
    command.output().expect("the program starts")
}

/// Runs `retroscope filter -r FILE` with further arguments. Returns exit code, stdout and stderr.
pub(crate) fn run_on(file: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    told(&run(filter().arg("-r").arg(file).args(arguments)))
}

/// Runs `retroscope dev TOOL -r FILE` with further arguments. Returns exit code, stdout and stderr.
pub(crate) fn dev_on(tool: &str, file: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    told(&run(dev(tool).arg("-r").arg(file).args(arguments)))
}

fn told(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// An IPv4 packet without a link header, from 10.0.0.1 to 10.0.0.2. `protocol` is 6 or 17.
pub(crate) fn ip(protocol: u8, source_port: u16, destination_port: u16) -> Vec<u8> {
    let mut packet = vec![
        0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ];
    packet.extend(source_port.to_be_bytes());
    packet.extend(destination_port.to_be_bytes());
    packet.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0, 0, 0, 0, 0, 0]);
    packet
}

/// The packet of [`ip`] after an Ethernet header.
pub(crate) fn ethernet(protocol: u8, source_port: u16, destination_port: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend(ip(protocol, source_port, destination_port));
    frame
}

/// A directory with `t.pcap`, which has three Ethernet frames: TCP to 80, UDP to 53, TCP to 443.
pub(crate) fn small_pcap() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.pcap");
    let options = PcapOptions {
        snaplen: SNAPLEN,
        ..PcapOptions::new(LinkType::ETHERNET)
    };
    let mut writer = PcapWriter::new(File::create(&path).unwrap(), options).unwrap();
    for (index, frame) in [
        ethernet(6, 1000, 80),
        ethernet(17, 1001, 53),
        ethernet(6, 1002, 443),
    ]
    .iter()
    .enumerate()
    {
        let time_ns = TIME_NS + i64::try_from(index).unwrap();
        writer.record(time_ns, 60, frame).unwrap();
    }
    writer.finish().unwrap();
    (directory, path)
}

/// One section of a pcapng file with the given interfaces, and one packet from each interface.
pub(crate) fn section(interfaces: &[(&str, LinkType)]) -> Vec<u8> {
    let mut writer = PcapNgWriter::new(Vec::new(), &SectionOptions::default()).unwrap();
    for (name, link_type) in interfaces {
        let index = writer
            .add_interface(&FileInterface {
                name: (*name).to_owned(),
                ..FileInterface::new(*link_type)
            })
            .unwrap();
        let frame = if *link_type == LinkType::RAW {
            ip(6, 1, 2)
        } else {
            ethernet(6, 1, 2)
        };
        writer
            .packet(index, TIME_NS, 60, &frame, &PacketOptions::default())
            .unwrap();
    }
    writer.finish().unwrap()
}

/// Multi-link Frame Relay. libpcap refuses protocol tests such as `tcp` for this link type.
pub(crate) const MFR: LinkType = LinkType(182);

pub(crate) fn write(directory: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = directory.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// A record in comparable form: interface, time in ns, wire length, flags, bytes.
pub(crate) type Record = (u16, i64, u32, Option<u32>, Vec<u8>);

/// All records before the end of the file or the first error.
pub(crate) fn records(path: &Path) -> Vec<Record> {
    let mut reader =
        CaptureReader::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut records = Vec::new();
    while let Ok(Some(record)) = reader.next() {
        let meta = record.meta;
        records.push((
            meta.interface,
            meta.time_ns,
            meta.wire_len,
            meta.flags,
            record.data.to_vec(),
        ));
    }
    records
}

/// All captures in the folders of `shared/traces`, the corpus. `None`, with a message, if the
/// corpus is missing.
pub(crate) fn corpus() -> Option<Vec<PathBuf>> {
    let root = shared("traces")?;
    let mut captures = Vec::new();
    for folder in fs::read_dir(&root).unwrap().map(Result::unwrap) {
        if folder.path().is_dir() {
            captures.extend(
                fs::read_dir(folder.path())
                    .unwrap()
                    .map(|file| file.unwrap().path()),
            );
        }
    }
    captures.retain(|path| path.extension().is_none_or(|extension| extension != "tsv"));
    captures.sort();
    assert!(
        captures.len() > 200,
        "the corpus has {} captures",
        captures.len()
    );
    Some(captures)
}
