//! Tests of sending over veth: the socket that sends the frames, and the order and count of frames.
//! In some tests the other end refuses frames, or another CPU receives. Other tests check the
//! errors of an interface that accepts no frame. Needs root and `ip`; prints SKIP otherwise.
use std::{path::Path, process::Command, time::Instant};

use crate::support::{
    DEADLINE,
    namespace::{Namespace, ip},
    open,
    traffic::{Taken, stop_and_drain, take_until},
};
use retroscope_capture::{Burst, Direction, FrameMeta, Queue, SourceError, send::LiveSender};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

fn sender(interface: &str) -> LiveSender {
    LiveSender::open(interface, Path::new("retroscope")).unwrap()
}

/// A sender through an XDP socket, which waits up to 20 s while the other end refuses frames.
/// Repeats the opening until the XDP socket opens: a process that another test is starting may keep
/// the previous XDP socket open for an instant.
fn quick_sender(interface: &str) -> LiveSender {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let mut sender = sender(interface);
        if sender.uses_xdp() {
            sender.timeout_ns = DEADLINE.as_nanos().try_into().unwrap();
            return sender;
        }
        assert!(Instant::now() < deadline, "{sender:?}");
        std::thread::yield_now();
    }
}

/// Frames that contain consecutive numbers, made by hand.
struct Frames {
    memory: Vec<u8>,
    metas: Vec<FrameMeta>,
}

impl Frames {
    fn new(first: u64, lengths: impl IntoIterator<Item = usize>) -> Self {
        let (mut memory, mut metas) = (Vec::new(), Vec::new());
        for (number, length) in (first..).zip(lengths) {
            let offset = memory.len();
            memory.extend([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
            memory.extend(number.to_be_bytes());
            memory.resize(offset + length, 0x5a);
            let captured_len = u32::try_from(length).unwrap();
            metas.push(FrameMeta {
                time_ns: 0,
                offset,
                captured_len,
                wire_len: captured_len,
                interface: 0,
                direction: Direction::Unknown,
                vlan: None,
            });
        }
        Self { memory, metas }
    }

    fn burst(&self) -> Burst<'_> {
        Burst {
            memory: &self.memory,
            frames: &self.metas,
        }
    }
}

/// Stops a queue and checks that it captured exactly the frames 0, 1, 2 … in order, without loss,
/// with these lengths.
fn assert_came(queue: &mut dyn Queue, mut taken: Taken, lengths: &[usize]) {
    assert_eq!(stop_and_drain(queue, &mut taken), (lengths.len() as u64, 0));
    for (number, (_, data)) in taken.frames.iter().enumerate() {
        assert_eq!(data[14..22], (number as u64).to_be_bytes(), "out of order");
        assert_eq!(data.len(), lengths[number]);
        assert!(data[22..].iter().all(|byte| *byte == 0x5a));
    }
}

#[test]
fn frames_of_all_lengths_go_out_in_order() {
    let Some(namespace) = Namespace::with_veth("lengths") else {
        return;
    };
    all_lengths_in_order(&namespace);
}

#[test]
fn frames_of_all_lengths_go_out_in_order_where_another_cpu_receives() {
    let Some(namespace) = with_another_receiver("lengths-rps") else {
        return;
    };
    all_lengths_in_order(&namespace);
}

fn all_lengths_in_order(namespace: &Namespace) {
    namespace.enter(|| {
        ip("link set v0 mtu 9000");
        ip("link set v1 mtu 9000");
        let mut queue = open("v1");
        let mut sender = sender("v0");
        assert!(sender.uses_xdp());
        // Lengths around the 2048 bytes of a chunk, in bursts around the 32 frames of a batch.
        let lengths: Vec<usize> = [60, 1514, 2047, 2048, 2049, 9014, 64, 65]
            .into_iter()
            .cycle()
            .take(600)
            .collect();
        let mut taken = Taken::default();
        let mut sent = 0;
        for count in [1, 0, 31, 32, 33, 64, 65, 374] {
            let frames = Frames::new(sent as u64, lengths[sent..sent + count].iter().copied());
            sender.send(frames.burst()).unwrap();
            sent += count;
            // Takes the frames of each burst at once, so that the queue's ring does not overflow.
            take_until(queue.as_mut(), &mut taken, |taken| {
                taken.frames.len() == sent
            });
        }
        assert_eq!((sent, sender.sent), (600, 600));
        assert!(sender.uses_xdp());
        assert_came(queue.as_mut(), taken, &lengths);
    });
}

#[test]
fn a_frame_that_is_too_long_stops_there() {
    let Some(namespace) = Namespace::with_veth("long") else {
        return;
    };
    namespace.enter(|| {
        // The other end would accept a frame of 1600 bytes, but the MTU of `v0` is 1500.
        ip("link set v1 mtu 9000");
        let mut queue = open("v1");
        let mut sender = sender("v0");
        assert!(sender.uses_xdp());
        let lengths: Vec<usize> = (0..30)
            .map(|number| if number == 10 { 1600 } else { 60 })
            .collect();
        let error = sender.send(Frames::new(0, lengths).burst()).unwrap_err();
        assert!(
            matches!(
                error,
                SourceError::FrameTooLong {
                    frame_bytes: 1600,
                    frame_bytes_max: 1514,
                    ..
                }
            ),
            "{error:?}"
        );
        assert_eq!(sender.sent, 10);
        assert!(sender.uses_xdp(), "it held nothing");
        sender.send(Frames::new(10, [60; 40]).burst()).unwrap();
        assert_eq!(sender.sent, 50);
        assert_came(queue.as_mut(), Taken::default(), &[60; 50]);
    });
}

#[test]
fn a_refused_frame_goes_out_in_its_place() {
    let Some(namespace) = Namespace::with_veth("refused") else {
        return;
    };
    refused_in_their_places(&namespace, 1);
}

/// If another CPU receives, the kernel may free packets after the sending call has returned, and
/// frees a refused packet before earlier packets. The frames must still arrive in order.
#[test]
fn a_refused_frame_goes_out_in_its_place_where_another_cpu_receives() {
    let Some(namespace) = with_another_receiver("refused-rps") else {
        return;
    };
    refused_in_their_places(&namespace, 20);
}

/// Sends a hundred frames per round. In each round, the other end refuses the long frames until the
/// test raises the MTU of the other end. All frames must arrive in order.
fn refused_in_their_places(namespace: &Namespace, rounds: usize) {
    // With an MTU of 1000, the other end refuses frames of 1200 bytes. The sender's MTU of 1500
    // allows frames of this length.
    let lengths: Vec<usize> = (0..100 * rounds)
        .map(|number| if number % 20 == 9 { 1200 } else { 60 })
        .collect();
    let (mut queue, mut sender) = namespace.enter(|| (open("v1"), quick_sender("v0")));
    let mut taken = Taken::default();
    for lengths in lengths.chunks(100) {
        let before = (taken.frames.len(), sender.retries);
        namespace.enter(|| ip("link set v1 mtu 1000"));
        let frames = Frames::new(before.0 as u64, lengths.iter().copied());
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| sender.send(frames.burst()).unwrap());
            // The other end refuses the tenth frame, and no later frame may pass the tenth.
            let first = before.0 + 9;
            take_until(queue.as_mut(), &mut taken, |taken| {
                taken.frames.len() >= first
            });
            assert_eq!(taken.frames.len(), first);
            namespace.enter(|| ip("link set v1 mtu 1500"));
            sending.join().unwrap();
        });
        let sent = before.0 + 100;
        assert_eq!(sender.sent, sent as u64);
        assert!(sender.uses_xdp() && sender.retries > before.1);
        take_until(queue.as_mut(), &mut taken, |taken| {
            taken.frames.len() == sent
        });
    }
    assert_came(queue.as_mut(), taken, &lengths);
}

/// The test changes the MTU of the other end all the time, so the other end refuses frames at any
/// position in a batch. The captured frames must be in order, each once, and all other frames must
/// count as lost.
#[test]
fn all_that_is_counted_comes_in_order_where_another_cpu_receives() {
    const FRAMES: u64 = 100_000;
    let Some(namespace) = with_another_receiver("many-rps") else {
        return;
    };
    let (mut queue, mut sender) = namespace.enter(|| (open("v1"), quick_sender("v0")));
    let mut taken = Taken::default();
    // The test lowers the MTU before the first frame, so that frames are refused from the start.
    namespace.enter(|| ip("link set v1 mtu 1000"));
    let lost = std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let lengths = (0..100).map(|number| if number % 7 == 3 { 1200 } else { 60 });
            for first in (0..FRAMES).step_by(100) {
                let frames = Frames::new(first, lengths.clone());
                sender.send(frames.burst()).unwrap();
            }
            assert_eq!(sender.sent, FRAMES);
            assert!(sender.uses_xdp() && sender.retries > 0, "{sender:?}");
        });
        // The other end refuses the fourth frame, so the first three frames arrive.
        take_until(queue.as_mut(), &mut taken, |taken| taken.frames.len() >= 3);
        while !sending.is_finished() {
            take_until(queue.as_mut(), &mut taken, |_| true);
            namespace.enter(|| ip("link set v1 mtu 1500"));
            take_until(queue.as_mut(), &mut taken, |_| true);
            namespace.enter(|| ip("link set v1 mtu 1000"));
        }
        sending.join().unwrap();
        let (received, lost) = stop_and_drain(queue.as_mut(), &mut taken);
        assert_eq!(received, FRAMES);
        lost
    });
    // The queue may have no room for all frames. The captured frames are in order, and each frame
    // is captured at most once.
    let numbers = taken.frames.iter();
    let numbers: Vec<u64> = numbers
        .map(|(_, data)| u64::from_be_bytes(data[14..22].try_into().unwrap()))
        .collect();
    assert!(numbers.is_sorted_by(|one, next| one < next));
    assert_eq!(numbers.len() as u64 + lost, FRAMES);
}

/// Makes a namespace where `v1` passes packets on to a link of ten bytes per second, after the
/// first 2 KiB. The chunks of an XDP socket at `v0` wait at this link. Prints SKIP and returns
/// `None` if this is not possible.
fn with_a_slow_receiver(name: &str) -> Option<Namespace> {
    let namespace = Namespace::with_veth(name)?;
    let is_slow = namespace.enter(|| {
        ip("link add x0 type veth peer name x1");
        ip("link add b0 type bridge");
        let slow = "qdisc add dev x0 root tbf rate 80bit burst 2k limit 1m";
        let tc = Command::new("tc").args(slow.split(' ')).output();
        if !tc.is_ok_and(|output| output.status.success()) {
            eprintln!("SKIP: 'tc qdisc add' does not work here");
            return false;
        }
        for port in ["x0", "v1"] {
            ip(&format!("link set {port} master b0"));
        }
        for interface in ["b0", "x0", "x1"] {
            ip(&format!("link set {interface} up"));
        }
        namespace.wait_for_carrier("x0");
        true
    });
    is_slow.then_some(namespace)
}

#[test]
fn where_the_other_end_keeps_packets_the_rest_goes_through_the_packet_socket() {
    let Some(namespace) = with_a_slow_receiver("kept") else {
        return;
    };
    namespace.enter(|| {
        let mut sender = sender("v0");
        assert!(sender.uses_xdp());
        sender.send(Frames::new(0, [1000; 60]).burst()).unwrap();
        assert_eq!((sender.sent, sender.retries), (60, 0));
        assert!(!sender.uses_xdp());
    });
}

/// The other end refuses a frame while earlier frames wait at the slow link. So the sender cannot
/// know which frame was refused: it fails, sends no frame again, and does not count the refused
/// frame.
#[test]
fn a_refusal_behind_packets_that_are_kept_ends_it() {
    let Some(namespace) = with_a_slow_receiver("kept-refused") else {
        return;
    };
    namespace.enter(|| {
        let mut sender = sender("v0");
        assert!(sender.uses_xdp());
        ip("link set v1 mtu 1000");
        let lengths = (0..20).map(|number| if number == 9 { 1200 } else { 900 });
        let error = sender.send(Frames::new(0, lengths).burst()).unwrap_err();
        let is_timeout = |error: &std::io::Error| error.raw_os_error() == Some(libc::ETIMEDOUT);
        assert!(
            matches!(&error, SourceError::System { error, .. } if is_timeout(error)),
            "{error:?}"
        );
        // The sender counts only frames that it knows to be received: at most the two frames that
        // pass the slow link at once (2 KiB).
        let sent = sender.sent;
        assert!(sent <= 2, "{sent}");
        assert!(!sender.uses_xdp());
        sender.send(Frames::new(20, [60; 3]).burst()).unwrap();
        assert_eq!(sender.sent, sent + 3);
    });
}

#[test]
fn the_quick_way_only_where_it_suits() {
    let Some(namespace) = Namespace::with_veth("ways") else {
        return;
    };
    namespace.enter(|| {
        ip("link set lo up");
        ip("link add q0 numtxqueues 2 numrxqueues 2 type veth peer name q1");
        assert!(!sender("lo").uses_xdp(), "not a veth");
        assert!(!sender("q0").uses_xdp(), "two transmit queues");
        let first = sender("v0");
        assert!(first.uses_xdp());
        let mut queue = open("v1");
        let mut second = sender("v0");
        assert!(!second.uses_xdp(), "another socket has the queue");
        second.send(Frames::new(0, [60; 3]).burst()).unwrap();
        assert_came(queue.as_mut(), Taken::default(), &[60; 3]);
        drop(first);
        // The transmit queue of `v0` is free again.
        drop(quick_sender("v0"));
        let tc = Command::new("tc")
            .args("qdisc add dev v0 root pfifo".split(' '))
            .output();
        if tc.is_ok_and(|output| output.status.success()) {
            assert!(!sender("v0").uses_xdp(), "a queueing discipline");
        } else {
            eprintln!("SKIP: 'tc qdisc add' does not work here");
        }
    });
}

#[test]
fn down_gone_or_without_another_end() {
    let Some(namespace) = Namespace::with_veth("away") else {
        return;
    };
    namespace.enter(|| {
        let frames = Frames::new(0, [60; 5]);
        let error = |sender: &mut LiveSender| sender.send(frames.burst()).unwrap_err();
        let mut waiting = sender("v0");
        ip("link set v1 down");
        let refused = error(&mut waiting);
        assert!(matches!(refused, SourceError::NoRoom { .. }), "{refused}");
        assert_eq!(waiting.sent, 0);
        assert!(waiting.retries > 0);
        drop(waiting);

        ip("link set v1 up");
        namespace.wait_for_carrier("v0");
        let (mut xdp_sender, mut plain) = (quick_sender("v0"), sender("v0"));
        assert!(!plain.uses_xdp());
        for sender in [&mut xdp_sender, &mut plain] {
            sender.send(frames.burst()).unwrap();
        }
        ip("link set v0 down");
        for sender in [&mut xdp_sender, &mut plain] {
            let refused = error(sender);
            assert!(
                matches!(refused, SourceError::InterfaceDown { .. }),
                "{refused}"
            );
        }
        let mut xdp_sender = sender("v0");
        ip("link del v0");
        for sender in [&mut xdp_sender, &mut plain] {
            let refused = error(sender);
            assert!(
                matches!(refused, SourceError::InterfaceGone { .. }),
                "{refused}"
            );
        }
        assert_eq!((xdp_sender.sent, plain.sent), (0, 5));
    });
}

/// Makes a namespace where one CPU receives the packets of `v1`. Moves the calling thread, and the
/// threads that it starts, to another CPU. Prints SKIP and returns `None` if this is not possible.
fn with_another_receiver(tag: &str) -> Option<Namespace> {
    let namespace = Namespace::with_veth(tag)?;
    let mut own = sched_getaffinity(None).unwrap();
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| own.is_set(*cpu));
    let (Some(sending), Some(receiving)) = (cpus.next(), cpus.next()) else {
        eprintln!("SKIP: needs two CPUs");
        return None;
    };
    if !namespace.enter(|| receive_on(receiving)) {
        eprintln!("SKIP: needs rps_cpus, and a CPU below 32 in it");
        return None;
    }
    own.clear();
    own.set(sending);
    sched_setaffinity(None, &own).unwrap();
    Some(namespace)
}

/// Lets one CPU receive the packets of `v1`, whichever CPU sends. Returns whether this succeeded.
/// Must run inside the namespace: sysfs shows the interfaces of the namespace that mounted it.
fn receive_on(cpu: usize) -> bool {
    let mask = match u32::try_from(cpu)
        .ok()
        .and_then(|cpu| 1_u32.checked_shl(cpu))
    {
        Some(mask) => format!("{mask:x}"),
        None => return false,
    };
    let script =
        format!("mount -t sysfs none /sys && echo {mask} > /sys/class/net/v1/queues/rx-0/rps_cpus");
    let unshared = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .output();
    unshared.is_ok_and(|output| output.status.success())
}
