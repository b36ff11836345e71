//! Tests of the libpcap engine on veth interfaces in separate network namespaces. They need root
//! and `ip`.

use crate::support::{
    WAIT, generate, is_udp_of_generator,
    namespace::{Namespace, ip},
    tcpdump::{Record, Tcpdump, assert_same, send_mixture},
    traffic::{Taken, drain_beside, generate_and_take, send, sequence, take_until},
};
use retroscope_capture::{
    LossCause, Queue, QueueStatus, Source, SourceError, SourceEvent, TimeDomain,
    af_packet::LiveConfig, pcap_live::PcapSource,
};
use retroscope_packet::LinkType;

fn try_open(device: &str, buffer_bytes: Option<usize>) -> Result<Vec<Box<dyn Queue>>, SourceError> {
    let config = LiveConfig {
        buffer_bytes,
        ..LiveConfig::new(device, "retroscope")
    };
    Box::new(PcapSource(config)).open(1)
}

fn open(device: &str) -> Box<dyn Queue> {
    try_open(device, None).unwrap().remove(0)
}

/// Stops a queue, takes the rest, and checks the ledger: received = lent + lost. Returns received
/// and lost.
fn stop_and_drain(queue: &mut dyn Queue, taken: &mut Taken) -> (u64, u64) {
    queue.stop();
    assert!(take_until(queue, taken, |_| false));
    assert!(queue.burst().frames.is_empty());
    assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::End);
    let statistics = queue.statistics();
    let [(LossCause::Kernel, Some(kernel)), (LossCause::Nic, nic)] = statistics.lost[..] else {
        panic!("{statistics:?}")
    };
    let received = statistics.received.unwrap();
    let lost = kernel + nic.unwrap_or(0);
    assert_eq!(
        received,
        taken.frames.len() as u64 + lost,
        "the ledger does not close"
    );
    (received, lost)
}

/// An Ethernet frame of `length` bytes with a local experimental EtherType after `tags`. The first
/// byte after the EtherType, and all further bytes, are `marker`.
fn frame(tags: &[u8], marker: u8, length: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    frame.extend(tags);
    frame.extend([0x88, 0xb5, marker]);
    frame.resize(length, marker);
    frame
}

#[test]
fn everything_that_is_sent_comes_in_order() {
    let Some(namespace) = Namespace::with_veth("plspeed") else {
        return;
    };
    namespace.enter(|| {
        let mut queue = open("v1");
        let interface = &queue.interfaces()[0];
        assert_eq!(interface.link_type, LinkType::ETHERNET);
        assert_eq!(interface.time_domain, TimeDomain::KernelSoftware);
        assert_eq!(interface.time_resolution_ns, 1);
        let mut taken = Taken::default();
        let sent = generate_and_take(queue.as_mut(), &mut taken, 100_000);
        let (received, lost) = stop_and_drain(queue.as_mut(), &mut taken);
        assert_eq!((sent, lost), (100_000, 0));
        assert!(received >= sent);
        let ours = || {
            taken
                .frames
                .iter()
                .filter(|(_, data)| is_udp_of_generator(data))
        };
        assert!(ours().map(|(_, data)| sequence(data)).eq(0..100_000));
        assert!(
            ours().any(|(meta, _)| meta.time_ns % 1000 != 0),
            "nanoseconds"
        );
    });
}

/// tcpdump captures the same packets at the same time. Contents and order must be equal, and the
/// stamps must differ by less than a second.
#[test]
fn contents_are_those_of_tcpdump() {
    let Some(namespace) = Namespace::with_veth("plsame") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tcpdump.pcap");
    namespace.enter(|| {
        ip("link set v0 mtu 9000");
        ip("link set v1 mtu 9000");
        let Some(tcpdump) = Tcpdump::start("v1", &file, None) else {
            return;
        };
        let mut queue = open("v1");
        let sent = send_mixture("v0");
        let mut taken = Taken::default();
        take_until(queue.as_mut(), &mut taken, |taken| {
            taken.frames.len() >= sent
        });
        stop_and_drain(queue.as_mut(), &mut taken);
        let ours = taken
            .frames
            .into_iter()
            .map(|(meta, data)| Record {
                time_ns: meta.time_ns,
                wire_len: meta.wire_len,
                data,
            })
            .collect();
        assert_same(ours, &tcpdump.stop(sent));
    });
}

/// While nobody reads, the kernel's ring overflows. Every packet must be delivered or counted as
/// lost.
#[test]
fn a_stalled_reader_loses_what_is_counted() {
    let Some(namespace) = Namespace::with_veth("plstall") else {
        return;
    };
    namespace.enter(|| {
        let mut queue = try_open("v1", Some(1 << 20)).unwrap().remove(0);
        let sent = generate("v0", "generate:flows=10,count=50000");
        let mut taken = Taken::default();
        let (received, lost) = stop_and_drain(queue.as_mut(), &mut taken);
        assert!(received >= sent, "{received} of {sent}");
        assert!(lost > 10_000, "{lost} lost: the ring was to overflow");
        assert!(!taken.frames.is_empty(), "nothing was kept");
    });
}

/// An interface goes down and up, and is removed and created again: the queue goes on, and loses no
/// packet.
#[test]
fn an_interface_that_goes_comes_back() {
    let Some(namespace) = Namespace::with_veth("pldown") else {
        return;
    };
    namespace.enter(|| {
        let mut queue = open("v1");
        let mut taken = Taken::default();
        let has = |event: SourceEvent| move |taken: &Taken| taken.events.contains(&event);
        let has_frame =
            |marker| move |taken: &Taken| taken.frames.iter().any(|(_, data)| data[14] == marker);
        send("v0", &frame(&[], 1, 60));
        take_until(queue.as_mut(), &mut taken, has_frame(1));
        ip("link set v1 down");
        take_until(
            queue.as_mut(),
            &mut taken,
            has(SourceEvent::InterfaceDown(0)),
        );
        ip("link set v1 up");
        take_until(queue.as_mut(), &mut taken, has(SourceEvent::InterfaceUp(0)));
        namespace.wait_for_carrier("v0");
        send("v0", &frame(&[], 2, 60));
        take_until(queue.as_mut(), &mut taken, has_frame(2));
        for marker in 3..9 {
            taken.events.clear();
            // Packets that are in the ring at the removal still arrive, and do not prove that the
            // interface is back.
            send("v0", &frame(&[], 10 + marker, 60));
            ip("link del v0");
            let is_gone = has(SourceEvent::InterfaceGone(0));
            take_until(queue.as_mut(), &mut taken, |taken| {
                is_gone(taken) && has_frame(10 + marker)(taken)
            });
            assert!(
                !has(SourceEvent::InterfaceUp(0))(&taken),
                "{:?}",
                taken.events
            );
            ip("link add v0 type veth peer name v1");
            ip("link set v0 up");
            ip("link set v1 up");
            take_until(queue.as_mut(), &mut taken, has(SourceEvent::InterfaceUp(0)));
            namespace.wait_for_carrier("v0");
            send("v0", &frame(&[], marker, 60));
            take_until(queue.as_mut(), &mut taken, has_frame(marker));
        }
        // The queue is stopped while the interface is removed.
        ip("link del v0");
        take_until(
            queue.as_mut(),
            &mut taken,
            has(SourceEvent::InterfaceGone(0)),
        );
        let (_, lost) = stop_and_drain(queue.as_mut(), &mut taken);
        assert_eq!(lost, 0);
    });
}

/// A renamed interface is still recorded, even after another interface gets the old name.
#[test]
fn a_new_name_does_not_matter() {
    let Some(namespace) = Namespace::with_veth("plname") else {
        return;
    };
    namespace.enter(|| {
        let mut queue = open("v1");
        let mut taken = Taken::default();
        let has_frame =
            |marker| move |taken: &Taken| taken.frames.iter().any(|(_, data)| data[14] == marker);
        send("v0", &frame(&[], 1, 60));
        take_until(queue.as_mut(), &mut taken, has_frame(1));
        ip("link set v1 down");
        let is_down = |taken: &Taken| taken.events.contains(&SourceEvent::InterfaceDown(0));
        take_until(queue.as_mut(), &mut taken, is_down);
        ip("link set v1 name other");
        ip("link set other up");
        namespace.wait_for_carrier("v0");
        send("v0", &frame(&[], 2, 60));
        take_until(queue.as_mut(), &mut taken, has_frame(2));
        ip("link add v1 type veth peer name v2");
        send("v0", &frame(&[], 3, 60));
        take_until(queue.as_mut(), &mut taken, has_frame(3));
        stop_and_drain(queue.as_mut(), &mut taken);
        assert!(!taken.events.contains(&SourceEvent::InterfaceGone(0)));
    });
}

/// This crate's other live engines do not support the device `any`. Frames of `any` begin with a
/// Linux cooked header.
#[test]
fn the_any_device_is_cooked() {
    let Some(namespace) = Namespace::with_veth("plany") else {
        return;
    };
    namespace.enter(|| {
        let mut queue = open("any");
        assert_eq!(queue.interfaces()[0].link_type, LinkType::LINUX_SLL);
        send("v0", &frame(&[], 9, 60));
        let mut taken = Taken::default();
        // A Linux cooked header has 16 bytes, with the EtherType at byte 14.
        let is_ours = |data: &[u8]| data.len() >= 17 && data[14..17] == [0x88, 0xb5, 9];
        take_until(queue.as_mut(), &mut taken, |taken| {
            taken.frames.iter().any(|(_, data)| is_ours(data))
        });
        stop_and_drain(queue.as_mut(), &mut taken);
    });
}

#[test]
fn what_cannot_be_opened_is_told() {
    let Some(namespace) = Namespace::new("plcap") else {
        return;
    };
    namespace.enter(|| {
        assert!(matches!(
            try_open("no-such-if", None).unwrap_err(),
            SourceError::NoInterface { .. }
        ));
        assert!(matches!(
            try_open("lo", None).unwrap_err(),
            SourceError::InterfaceDown { .. }
        ));
        // Removes the effective capabilities of this thread only. The thread ends with the closure.
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective = rustix::thread::CapabilitySet::empty();
        rustix::thread::set_capabilities(None, sets).unwrap();
        let error = try_open("lo", None).unwrap_err();
        assert!(matches!(error, SourceError::Permission(_)), "{error:?}");
    });
}

#[test]
#[ignore = "10 seconds of full speed: run it alone, in a release build"]
fn half_a_million_a_second_for_ten_seconds() {
    let Some(namespace) = Namespace::with_veth("pllong") else {
        return;
    };
    namespace.enter(|| {
        let mut queue = open("v1");
        let mut frames = 0;
        let text = "generate:flows=1000,rate=500kpps,duration=10s";
        let sent = drain_beside(&namespace, queue.as_mut(), text, |burst| {
            frames += burst.frames.len();
        });
        println!("{sent} sent, {frames} came: {:?}", queue.statistics());
        assert_eq!((sent, frames), (5_000_000, 5_000_000));
    });
}
