//! Copies that `filter -w` writes keep the file's header, its interfaces, and the matching records.

use std::fs;

use retroscope_packet::LinkType;
use retroscope_pcapfile::{
    ByteOrder, CaptureReader, FileInterface, PacketOptions, PcapNgWriter, PcapOptions, PcapWriter,
    Resolution, SectionOptions,
};

use super::support::{TIME_NS, ethernet, filter, ip, records, run, run_on, section, write};

#[test]
fn pcap_copies_keep_every_field_of_the_header() {
    let directory = tempfile::tempdir().unwrap();
    for byte_order in [ByteOrder::Little, ByteOrder::Big] {
        for resolution in [Resolution::Micro, Resolution::Nano] {
            let options = PcapOptions {
                link_type: LinkType::RAW,
                link_type_extra: 0x3400_0000,
                snaplen: 96,
                resolution,
                byte_order,
            };
            let mut writer = PcapWriter::new(Vec::new(), options).unwrap();
            writer.record(TIME_NS, 1500, &ip(6, 1, 2)).unwrap();
            let path = write(&directory, "in.pcap", &writer.finish().unwrap());
            let output = run(filter().arg("-r").arg(&path).args(["-w", "-", "tcp"]));
            assert_eq!(output.stdout, fs::read(&path).unwrap(), "{options:?}");
        }
    }
}

#[test]
fn pcapng_copies_keep_interfaces_of_all_sections() {
    let directory = tempfile::tempdir().unwrap();
    let mut bytes = section(&[("eth0", LinkType::ETHERNET), ("tun0", LinkType::RAW)]);
    let mut second = PcapNgWriter::new(Vec::new(), &SectionOptions::default()).unwrap();
    let index = second
        .add_interface(&FileInterface {
            name: "eth1".to_owned(),
            description: "uplink".to_owned(),
            snaplen: 96,
            resolution_ns: 1000,
            ..FileInterface::new(LinkType::ETHERNET)
        })
        .unwrap();
    let flags = PacketOptions {
        flags: Some(2),
        ..PacketOptions::default()
    };
    second
        .packet(index, TIME_NS, 9000, &ethernet(17, 5, 6), &flags)
        .unwrap();
    second
        .packet(
            index,
            TIME_NS,
            60,
            &ethernet(6, 7, 8),
            &PacketOptions::default(),
        )
        .unwrap();
    bytes.extend(second.finish().unwrap());
    let path = write(&directory, "in.pcapng", &bytes);
    let out = directory.path().join("out.pcapng");
    let (code, _, err) = run_on(&path, &["-w", out.to_str().unwrap(), "not port 8"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));

    let mut expected = records(&path);
    assert_eq!(expected.len(), 4);
    expected.pop();
    assert_eq!(records(&out), expected);
    let mut reader = CaptureReader::open(&out).unwrap();
    while reader.next().unwrap().is_some() {}
    let interfaces: Vec<_> = reader
        .interfaces()
        .iter()
        .map(|i| {
            (
                i.name.as_str(),
                i.description.as_str(),
                i.link_type,
                i.snaplen,
                i.resolution_ns,
            )
        })
        .collect();
    assert_eq!(
        interfaces,
        [
            ("eth0", "", LinkType::ETHERNET, 0, 1),
            ("tun0", "", LinkType::RAW, 0, 1),
            ("eth1", "uplink", LinkType::ETHERNET, 96, 1000),
        ]
    );
}

#[test]
fn a_file_without_interfaces_is_copied() {
    let directory = tempfile::tempdir().unwrap();
    let path = write(&directory, "empty.pcapng", &section(&[]));
    assert_eq!(
        run_on(&path, &["--count", "tcp"]),
        (Some(0), "0\n".to_owned(), String::new())
    );
    assert_eq!(run_on(&path, &["--count", "tcp tcp"]).0, Some(2));
    let out = directory.path().join("out.pcapng");
    assert_eq!(run_on(&path, &["-w", out.to_str().unwrap()]).0, Some(0));
    assert_eq!(records(&out), []);
}
