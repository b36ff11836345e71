//! Compares AF_PACKET with the file of a tcpdump that runs at the same time. Needs root, `ip` and
//! tcpdump.

use std::collections::HashMap;

use crate::support::{
    namespace::{Namespace, ip},
    tcpdump::{Record, Tcpdump, assert_same, send_mixture},
    traffic::{Taken, stop_and_drain, take_until, with_tag},
};
use retroscope_capture::{
    FrameMeta, Offer, Source,
    af_packet::{LiveConfig, LiveSource},
};

/// The packet in the form that the recorder stores: with its tag, and at most `snaplen` bytes.
fn stored((meta, data): (FrameMeta, Vec<u8>), snaplen: Option<u32>) -> Record {
    let mut wire = with_tag(&meta, &data);
    let tag_bytes = u32::try_from(wire.len() - data.len()).unwrap();
    if let Some(snaplen) = snaplen {
        wire.truncate(usize::try_from(snaplen).unwrap());
    }
    Record {
        time_ns: meta.time_ns,
        wire_len: meta.wire_len + tag_bytes,
        data: wire,
    }
}

/// Sends a mixture of packets. Returns the packets that each of `queues` queues captured, and the
/// packets that tcpdump captured. Prints SKIP and returns `None` if this is not possible.
fn beside_tcpdump(
    tag: &str,
    queues: usize,
    snaplen: Option<u32>,
) -> Option<(Vec<Vec<Record>>, Vec<Record>)> {
    let namespace = Namespace::with_veth(tag)?;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tcpdump.pcap");
    namespace.enter(|| {
        ip("link set v0 mtu 9004");
        ip("link set v1 mtu 9004");
        let tcpdump = Tcpdump::start("v1", &file, snaplen)?;
        let source = Box::new(LiveSource(LiveConfig::new("v1", "retroscope")));
        let offer = Offer {
            snaplen: snaplen.unwrap_or(0),
            ..Offer::default()
        };
        let mut queues = source.probe(queues).unwrap().open(&offer).unwrap();
        let sent = send_mixture("v0");
        let ours = queues.iter_mut().map(|queue| {
            let mut taken = Taken::default();
            take_until(queue.as_mut(), &mut taken, |taken| !taken.frames.is_empty());
            let (_, lost) = stop_and_drain(queue.as_mut(), &mut taken);
            assert_eq!(lost, 0);
            let frames = taken.frames.into_iter();
            frames.map(|frame| stored(frame, snaplen)).collect()
        });
        Some((ours.collect(), tcpdump.stop(sent)))
    })
}

#[test]
fn contents_and_order_are_those_of_tcpdump() {
    let Some((mut ours, theirs)) = beside_tcpdump("afsame", 1, None) else {
        return;
    };
    assert_same(ours.remove(0), &theirs);
}

#[test]
fn packets_that_are_cut_are_cut_alike() {
    let Some((mut ours, theirs)) = beside_tcpdump("afcut", 1, Some(96)) else {
        return;
    };
    assert!(theirs.iter().any(|record| record.data.len() == 96));
    assert_same(ours.remove(0), &theirs);
}

/// Several queues share the flows: each flow's packets are in one queue, in order.
#[test]
fn with_two_queues_the_order_of_a_flow_is_that_of_tcpdump() {
    let Some((ours, theirs)) = beside_tcpdump("affan", 2, None) else {
        return;
    };
    // The addresses and ports of the generator's packets. Each other packet has its own length,
    // which serves as its flow.
    let flow = |record: &Record| match record.data.get(26..38) {
        Some(key) if record.data[12..14] == [8, 0] => key.to_vec(),
        _ => record.data.len().to_be_bytes().to_vec(),
    };
    let by_flow = |records: &[Record]| {
        let mut flows: HashMap<Vec<u8>, Vec<Record>> = HashMap::new();
        for record in records {
            flows.entry(flow(record)).or_default().push(record.clone());
        }
        flows
    };
    let mut theirs = by_flow(&theirs);
    assert!(ours.iter().all(|queue| !queue.is_empty()));
    for (flow, records) in ours.iter().flat_map(|queue| by_flow(queue)) {
        let same = theirs.remove(&flow).expect("a flow is in one queue");
        assert_same(records, &same);
    }
    assert!(theirs.is_empty());
}
