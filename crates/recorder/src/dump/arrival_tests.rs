//! A dump's files do not depend on the order in which packets arrive, except for packets of one
//! time and source.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use retroscope_capture::TimeDomain;
use retroscope_packet::LinkType;
use retroscope_pcapfile::CaptureReader;

use super::{
    captures::Captures,
    encode::{DumpFormat, InterfaceTotals},
    file::{DumpFile, FileFacts},
    names::Directory,
    packet::{PacketKey, PacketMeta},
    sink::SinkEnd,
    stream::Heading,
    template::NameFacts,
};
use crate::{
    control::packet_id::Recording, intake::interfaces::RecordedInterface,
    tests::fake_disk::FakeDisk,
};

const INTERFACES: u16 = 8;

fn interface(id: u16) -> RecordedInterface {
    let link_types = [1, 101, 12, 228];
    RecordedInterface {
        source: usize::from(id) % 3,
        name: format!("eth{id}"),
        link_type: LinkType(link_types[usize::from(id) % 4]),
        time_resolution_ns: 1,
        time_domain: TimeDomain::File,
    }
}

/// The files, by name, of a dump whose packets arrive in this order, and a text with their paths
/// and interfaces.
fn dump(format: DumpFormat, packets: &[PacketMeta]) -> (BTreeMap<String, Vec<u8>>, String) {
    let disk = FakeDisk::default();
    let directory = Directory::on(Arc::new(disk.clone()), Path::new("dumps"), format);
    let facts = FileFacts {
        names: NameFacts {
            rule: "rule".to_owned(),
            ..NameFacts::default()
        },
        number: 1,
        name_number: 1,
        next_number: Arc::default(),
        rule_name: None,
        heading: Heading {
            recording: Some(Recording::of_test()),
            ..Heading::default()
        },
    };
    let heading = facts.heading.clone();
    let mut file = DumpFile::new(&directory, facts);
    let mut captures = Captures::new(format, heading);
    // The trigger's interface, which may have no packet.
    captures.interface(5, &Arc::new(interface(5)));
    let mut digests = captures.create(&mut file);
    for meta in packets {
        captures.interface(meta.interface, &Arc::new(interface(meta.interface)));
        let data = meta.key.record.to_be_bytes();
        if captures.packet(meta, &data).unwrap().bytes() > 500 {
            captures.write_to(&mut file, &mut digests);
        }
    }
    captures.write_to(&mut file, &mut digests);
    let totals = InterfaceTotals {
        start_ns: 0,
        end_ns: 0,
        received: None,
        dropped: None,
        written: 0,
    };
    let end = SinkEnd {
        verdict: "verdict: complete".to_owned(),
        totals: (0..INTERFACES).map(|id| (id, totals)).collect(),
    };
    file.finish(&end, captures, &mut digests).unwrap();
    let held = file.held();
    let names = disk.names().into_iter();
    let files = names.map(|path| (path.display().to_string(), disk.read(&path).unwrap()));
    let described = format!("{:?} {:?}", held.locations, held.interfaces);
    (files.collect(), described)
}

fn check_ids(files: &BTreeMap<String, Vec<u8>>) {
    let (_, file) = files.first_key_value().unwrap();
    let mut reader = CaptureReader::new(&file[..]).unwrap();
    while let Some(record) = reader.next().unwrap() {
        let number = u64::from_be_bytes(record.data.try_into().unwrap());
        let id = Recording::of_test().id(0, number);
        assert_eq!(record.meta.id, Some(id.0));
    }
}

/// Packets of several sources, interfaces and link types, many with equal times, arrive in random
/// orders. Packets of one source and time keep their order.
#[test]
fn the_order_of_arrival_changes_nothing() {
    let seed = 0xa441;
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..200 {
        let interfaces = random.u16(1..=INTERFACES);
        let count = random.u64(1..40);
        let mut packets: Vec<PacketMeta> = (0..count)
            .map(|record| {
                let id = random.u16(0..interfaces);
                let time_ns = random.i64(0..10);
                let source = interface(id).source;
                PacketMeta {
                    key: PacketKey {
                        time_ns,
                        source,
                        producer: 0,
                        record,
                    },
                    stamp_ns: time_ns + if source == 1 { 3600 } else { 0 },
                    wire_len: 8,
                    interface: id,
                    direction: 0,
                    is_trigger: record == count / 2,
                }
            })
            .collect();
        packets.sort_by_key(|meta| meta.key);
        for format in [DumpFormat::PcapNg, DumpFormat::Pcap] {
            let expected = dump(format, &packets);
            if format == DumpFormat::PcapNg {
                check_ids(&expected.0);
            }
            for _ in 0..5 {
                let mut arrival: Vec<_> =
                    packets.iter().map(|meta| (random.u8(..), meta)).collect();
                arrival.sort_by_key(|(at, _)| at % 4);
                let mut those: Vec<PacketMeta> = arrival.iter().map(|(_, meta)| **meta).collect();
                // Sorts packets of one time and source by record.
                let mut places: BTreeMap<_, Vec<usize>> = BTreeMap::new();
                for (place, meta) in those.iter().enumerate() {
                    let key = (meta.key.time_ns, meta.key.source);
                    places.entry(key).or_default().push(place);
                }
                for same in places.values() {
                    let mut metas: Vec<_> = same.iter().map(|place| those[*place]).collect();
                    metas.sort_by_key(|meta| meta.key);
                    same.iter()
                        .zip(metas)
                        .for_each(|(place, meta)| those[*place] = meta);
                }
                let found = dump(format, &those);
                assert_eq!(
                    found.1, expected.1,
                    "seed {seed:#x}, round {round}, {format:?}"
                );
                assert!(
                    found.0 == expected.0,
                    "seed {seed:#x}, round {round}, {format:?}"
                );
            }
        }
    }
}
