//! Packets of one address pair, flow or datagram are in one shard of a ring file. Dumps do not
//! depend on the number of analyzers.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ffi::OsString,
    net::IpAddr,
};

use retroscope_packet::{FlowKey, FragmentKey, LinkType, flow_of, fragment_of, parse};
use retroscope_ring::{Attached, AttachedState, Buffer};

use super::{captures, record, shared};

/// All packets with the same key must be in one shard.
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
    // The test leaves out malformed captures, because the recorder refuses some of them at once.
    captures.retain(|file| !file.starts_with(shared.join("traces/malformed")));
    for files in captures.chunks(40) {
        let dir = tempfile::tempdir().unwrap();
        let ring = dir.path().join("ring");
        let [dir, path] = [dir.path(), &ring].map(|path| path.to_str().unwrap());
        let args = [
            "-w",
            dir,
            "--ring",
            "64MiB",
            "--ring-file",
            path,
            "-q",
            "--set",
            "analyzers=2",
        ];
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

/// A script that counts the packets of each flow, and triggers at the third.
const THIRD_OF_FLOW: &str = "partition = 'flow'
local counts = {}
return function(pkt)
  local a, b = pkt:src(), pkt:dst()
  if not a or not pkt:src_port() then return false end
  a, b = a .. ' ' .. pkt:src_port(), b .. ' ' .. pkt:dst_port()
  if a > b then a, b = b, a end
  local key = pkt:proto() .. a .. b
  counts[key] = (counts[key] or 0) + 1
  return counts[key] == 3
end";

/// The files are the same with 1, 2 and 4 analyzers. (With `-r`, `auto` and `inline` mean one
/// analyzer.)
#[test]
fn dumps_do_not_depend_on_who_looks_at_packets() {
    let Some(shared) = shared("") else { return };
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("third.lua");
    std::fs::write(&script, THIRD_OF_FLOW).unwrap();
    let script = script.to_str().unwrap();
    let lua = format!("rule.third.lua={script}");
    let rules: &[&[&str]] = &[
        &[
            "--trigger",
            "udp",
            "--set",
            "rule.syn.filter=tcp[tcpflags] & tcp-syn != 0",
            "--set",
            "rule.syn.dump=host $srcIP and tcp",
        ],
        &[
            "--set",
            &lua,
            "--trigger",
            "icmp or arp",
            "--set",
            "rule.third.dump=$communityId and not arp",
        ],
        &[
            "--trigger",
            "ip or ip6",
            "--set",
            "max-dumps=4",
            "--set",
            "dump-packets=20",
        ],
        &["--trigger", "udp", "--single"],
    ];
    let (mut dumps, mut rules) = (0, rules.iter().cycle());
    for files in captures(&shared).chunks(6) {
        let rules = rules.next().unwrap();
        let mut first: Option<BTreeMap<OsString, Vec<u8>>> = None;
        for analyzers in ["1", "2", "4"] {
            let out = tempfile::tempdir().unwrap();
            let mut args = vec!["-w", out.path().to_str().unwrap(), "--ring", "48MiB", "-q"];
            args.extend([
                "--reproducible",
                "--dump",
                "$flow",
                "--past",
                "1s",
                "--future",
                "1s",
            ]);
            let analyzers = format!("analyzers={analyzers}");
            args.extend(["--set", &analyzers]);
            args.extend(*rules);
            for file in files {
                args.extend(["-r", file.to_str().unwrap()]);
            }
            let (output, _) = record(&args);
            let told = String::from_utf8_lossy(&output.stderr);
            assert!(!told.contains("analyzers"), "{analyzers}: {told}");
            let mut found = BTreeMap::new();
            for entry in std::fs::read_dir(out.path()).unwrap() {
                let entry = entry.unwrap();
                found.insert(entry.file_name(), std::fs::read(entry.path()).unwrap());
            }
            dumps += found.len();
            match &first {
                None => first = Some(found),
                Some(first) => {
                    let names =
                        |of: &BTreeMap<OsString, Vec<u8>>| of.keys().cloned().collect::<Vec<_>>();
                    assert_eq!(
                        names(first),
                        names(&found),
                        "{analyzers} {files:?} {output:?}"
                    );
                    for (name, bytes) in first {
                        assert!(found[name] == *bytes, "{analyzers}: {name:?} of {files:?}");
                    }
                }
            }
        }
    }
    assert!(dumps > 1000, "{dumps}");
}
