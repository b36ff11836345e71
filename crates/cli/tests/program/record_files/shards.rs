//! The shards of packets from files, as a ring file keeps them.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
};

use retroscope_packet::{FlowKey, FragmentKey, LinkType, flow_of, fragment_of, parse};
use retroscope_ring::{Attached, AttachedState, Buffer};

use super::{captures, record, shared};

/// What is never divided.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Whole {
    Addresses(IpAddr, IpAddr),
    Flow(FlowKey),
    Datagram(FragmentKey),
}

#[test]
fn pairs_flows_and_datagrams_of_real_captures_are_whole() {
    let Some(shared) = shared("") else { return };
    let (mut shards, mut fragments, mut buffer) = (HashSet::new(), 0, Buffer::new());
    let mut captures = captures(&shared);
    // Some of these are refused at once.
    captures.retain(|file| !file.starts_with(shared.join("traces/malformed")));
    for files in captures.chunks(40) {
        let dir = tempfile::tempdir().unwrap();
        let ring = dir.path().join("ring");
        let [dir, path] = [dir.path(), &ring].map(|path| path.to_str().unwrap());
        let args = ["-w", dir, "--ring", "64MiB", "--ring-file", path, "-q"];
        let mut args = [&args[..], &["--trigger", "greater 262144"]].concat();
        for file in files {
            args.extend(["-r", file.to_str().unwrap()]);
        }
        let (output, _) = record(&args);
        let attached = Attached::open(&ring).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let (interfaces, _) = attached.interfaces().unwrap();
        let mut known = HashMap::new();
        let mut packets = 0;
        for bucket in attached.buckets().unwrap() {
            if !matches!(bucket.state, AttachedState::Open | AttachedState::Closed) {
                continue;
            }
            attached.copy_bucket(bucket.bucket, &mut buffer).unwrap();
            for packet in buffer.packets() {
                let link_type = interfaces[usize::from(packet.interface)].link_type;
                let parsed = parse(LinkType(link_type), packet.data);
                let addresses = parsed
                    .network
                    .map(|ip| Whole::Addresses(ip.src.min(ip.dst), ip.src.max(ip.dst)));
                let datagram = fragment_of(&parsed).map(Whole::Datagram);
                fragments += u32::from(datagram.is_some());
                let wholes = [addresses, flow_of(&parsed).map(Whole::Flow), datagram];
                for whole in wholes.into_iter().flatten() {
                    let text = format!("{whole:?}");
                    let shard = known.entry(whole).or_insert(packet.shard);
                    assert_eq!(*shard, packet.shard, "{text}");
                }
                shards.insert(packet.shard);
                packets += 1;
            }
        }
        assert!(packets > 100, "{packets}: {output:?}");
    }
    assert_eq!(shards.len(), 32);
    assert!(fragments > 100, "{fragments}");
}
