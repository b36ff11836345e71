//! tcpdump, capinfos and tshark must read what this crate's writers wrote. This crate must read the
//! copies that tcpdump and editcap make of other captures.

use std::{
    fmt::Write,
    fs::{self, File},
    path::Path,
    process::Command,
};

use crate::common::{Packet, every_encoding, packets, pcapng, read_all};
use retroscope_pcapfile::{
    ByteOrder, FileInterface, LinkType, PacketOptions, PcapNgWriter, SectionOptions,
};

/// Standard output of a tool, which must succeed and report no damage. `None`, with a message, if
/// the tool is not installed.
fn output(tool: &str, arguments: &[&str], file: &Path) -> Option<String> {
    let Ok(output) = Command::new(tool)
        .args(arguments)
        .arg(file)
        .env("TZ", "UTC")
        .output()
    else {
        eprintln!("SKIP: {tool} is not installed");
        return None;
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool} {arguments:?}: {errors}");
    assert!(
        !errors.contains("damaged") && !errors.contains("cut short"),
        "{tool}: {errors}"
    );
    Some(String::from_utf8(output.stdout).unwrap())
}

/// One line for each packet, with the text that `fields` returns.
fn expected(packets: &[Packet], fields: impl Fn(&Packet) -> String) -> String {
    packets.iter().fold(String::new(), |mut lines, packet| {
        writeln!(lines, "{}", fields(packet)).unwrap();
        lines
    })
}

fn seconds(time_ns: i64) -> String {
    format!("{}.{:09}", time_ns / 1_000_000_000, time_ns % 1_000_000_000)
}

#[test]
fn tools_read_every_encoding() {
    let directory = tempfile::tempdir().unwrap();
    for (name, file, packets) in every_encoding() {
        let path = directory.path().join(name.replace(' ', "-"));
        fs::write(&path, file).unwrap();
        if let Some(times) = output(
            "tcpdump",
            &["-nn", "-tt", "--time-stamp-precision=nano", "-r"],
            &path,
        ) {
            let times: Vec<&str> = times
                .lines()
                .filter_map(|line| line.split(' ').next())
                .filter(|time| time.contains('.'))
                .collect();
            let expected: Vec<String> = packets
                .iter()
                .map(|packet| seconds(packet.time_ns))
                .collect();
            assert_eq!(times, expected, "{name}");
        }
        let fields = [
            "-Tfields",
            "-eframe.time_epoch",
            "-eframe.len",
            "-eframe.cap_len",
            "-r",
        ];
        if let Some(lines) = output("tshark", &fields, &path) {
            let fields =
                |p: &Packet| format!("{}\t{}\t{}", seconds(p.time_ns), p.wire_len, p.data.len());
            assert_eq!(lines, expected(&packets, fields), "{name}");
        }
        if let Some(count) = output("capinfos", &["-T", "-r", "-c"], &path) {
            assert!(
                count.trim_end().ends_with(&format!("\t{}", packets.len())),
                "{name}: {count}"
            );
        }
    }
}

#[test]
fn tshark_sees_the_options() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("options.pcapng");
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let packets = packets(2);
        fs::write(&path, pcapng(&packets, order)).unwrap();
        let fields = [
            "-Tfields",
            "-eframe.interface_name",
            "-eframe.packet_flags_direction",
            "-eframe.comment",
            "-r",
        ];
        let Some(lines) = output("tshark", &fields, &path) else {
            return;
        };
        for (index, (line, packet)) in lines.lines().zip(&packets).enumerate() {
            let columns: Vec<&str> = line.split('\t').collect();
            assert_eq!(columns[0], format!("eth{}", packet.interface));
            let direction = columns[1].trim_start_matches("0x").trim_start_matches('0');
            assert_eq!(
                direction,
                packet
                    .flags
                    .map_or(String::new(), |flags| flags.to_string()),
                "{line}"
            );
            assert_eq!(
                columns[2],
                if index == 2 { "the trigger,twice" } else { "" }
            );
        }
        let Some(report) = output("capinfos", &[], &path) else {
            return;
        };
        for text in [
            "a test",
            "zwei, drei",
            "Name = eth1",
            "nanoseconds (9)",
            "Number of stat entries = 1",
        ] {
            assert!(report.contains(text), "{text:?} is not in {report}");
        }
    }
}

#[test]
fn tools_read_several_link_types() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("types.pcapng");
    let mut writer = PcapNgWriter::new(Vec::new(), &SectionOptions::default()).unwrap();
    for (link_type, time_ns) in [(LinkType::ETHERNET, 0), (LinkType::RAW, 1_000_000_001)] {
        let interface = FileInterface::new(link_type);
        let interface = writer.add_interface(&interface).unwrap();
        writer
            .packet(
                interface,
                time_ns,
                20,
                &[0x45; 20],
                &PacketOptions::default(),
            )
            .unwrap();
    }
    fs::write(&path, writer.finish().unwrap()).unwrap();
    if let Some(times) = output("tshark", &["-Tfields", "-eframe.time_epoch", "-r"], &path) {
        assert_eq!(times, "0.000000000\n1.000000001\n");
    }
}

/// The fields on which two readers of one capture must agree.
fn essence(packets: &[Packet]) -> Vec<(i64, u32, &[u8])> {
    packets
        .iter()
        .map(|packet| (packet.time_ns, packet.wire_len, &packet.data[..]))
        .collect()
}

/// Captures that tcpdump or editcap does not copy faithfully.
const COPIED_WRONGLY: [&str; 3] = [
    // The third record has 2^31 microseconds in addition to its seconds. libpcap reads the
    // microseconds as a negative number.
    "traces/malformed/td-timestamp_invalid_micro.pcap",
    // editcap joins the sections but keeps the packets' old interface numbers. A packet then
    // belongs to another interface, and exceeds that interface's snap length.
    "traces/formats/ng-be-test201.pcapng",
    "traces/formats/ng-le-test201.pcapng",
];

/// The test skips [`COPIED_WRONGLY`]. editcap copies the captures of the corpus whose interfaces
/// differ, because libpcap refuses these. tcpdump copies all other captures. The packets of a copy
/// must equal the packets of the original, or the first of these if the tool fails.
#[test]
fn copies_by_other_tools_read_the_same() {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let Ok(manifest) = fs::read_to_string(shared.join("traces/MANIFEST.tsv")) else {
        eprintln!("SKIP: no corpus of captures at {}", shared.display());
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy");
    let mut compared = 0;
    let mut wrong = Vec::new();
    for row in manifest.lines().skip(1) {
        let columns: Vec<&str> = row.split('\t').collect();
        let (file, status) = (columns[0], columns[11]);
        if COPIED_WRONGLY.contains(&file) {
            continue;
        }
        let path = shared.join(file);
        let mut command = if status.contains("different from") {
            let mut editcap = Command::new("editcap");
            editcap.args(["-F", "pcapng"]).arg(&path).arg(&copy);
            editcap
        } else {
            let mut tcpdump = Command::new("tcpdump");
            tcpdump
                .args(["--time-stamp-precision=nano", "-w", "-", "-r"])
                .arg(&path)
                .stdout(File::create(&copy).unwrap());
            tcpdump
        };
        let Ok(output) = command.output() else {
            eprintln!("SKIP: {:?} is not installed", command.get_program());
            return;
        };
        let (ours, _) = read_all(File::open(&path).unwrap());
        let (theirs, _) = read_all(File::open(&copy).unwrap());
        let same = if output.status.success() {
            ours.len() == theirs.len()
        } else {
            theirs.len() <= ours.len()
        };
        if !same || !essence(&ours).starts_with(&essence(&theirs)) {
            let first = essence(&ours)
                .iter()
                .zip(essence(&theirs))
                .position(|(a, b)| *a != b);
            wrong.push(format!(
                "{file}: {} and {} packets, first difference at {first:?}",
                ours.len(),
                theirs.len()
            ));
        }
        compared += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared > 300, "{compared} captures were compared");
}
