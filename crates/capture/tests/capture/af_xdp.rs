//! AF_XDP over veth interfaces in separate network namespaces. Needs root, `ip`, and a kernel with
//! AF_XDP.

use std::{
    fs,
    net::SocketAddr,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use crate::support::{
    WAIT, generate, is_udp_of_generator,
    namespace::{Namespace, ip},
    traffic::{Taken, assert_in_order, drain_beside, frame, now_ns, send_all, take_until},
    xdp::{config, is_attached, losses, open, open_as, stop_and_drain},
};
use retroscope_capture::{
    Direction, HostUse, LossCause, Queue, QueueStatus, Shunt, ShuntedFlow, SourceError,
    SourceEvent, TimeDomain, TimeStamps, UNSEEN, af_xdp::XdpConfig, send::LiveSender,
};
use rustix::{
    process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open},
    thread::CapabilitySet,
};

/// Takes until `count` frames have arrived, while `send` runs on another thread.
fn take_beside(
    namespace: &Namespace,
    queue: &mut dyn Queue,
    count: usize,
    send: impl FnOnce() -> u64 + Send,
) -> (u64, Taken) {
    let mut taken = Taken::default();
    let sent = std::thread::scope(|scope| {
        let sender = scope.spawn(|| namespace.enter(send));
        take_until(queue, &mut taken, |taken| taken.frames.len() >= count);
        sender.join().unwrap()
    });
    (sent, taken)
}

#[test]
fn contents_and_order_are_those_that_were_sent() {
    let Some(namespace) = Namespace::with_veth("xsame") else {
        return;
    };
    namespace.enter(|| {
        ip("link set v0 mtu 9000");
        ip("link set v1 mtu 9000");
        let Some(mut queue) = open(config("v1")) else {
            return;
        };
        let mut sent = Vec::new();
        for length in [60, 64, 1514, 1518, 3840, 3841, 4096, 7680, 9014] {
            for tags in [
                &[][..],
                &[0x81, 0, 0, 10],
                &[0x88, 0xa8, 0, 20, 0x81, 0, 0xe0, 10],
            ] {
                let mut frame = frame(tags, u8::try_from(sent.len()).unwrap());
                let next = |index: usize| u8::try_from(index % 251).unwrap();
                let from = frame.len().min(length);
                frame.extend((from..length).map(next));
                frame.truncate(length);
                sent.push(frame);
            }
        }
        let before_ns = now_ns();
        let mut taken = Taken::default();
        // The queue receives packets from its opening on, before the first call of `next`.
        send_all("v0", &sent);
        take_until(queue.as_mut(), &mut taken, |taken| {
            taken.frames.len() >= sent.len()
        });
        let (received, lost) = stop_and_drain(queue.as_mut(), &mut taken);
        assert_eq!((received, lost), (sent.len() as u64, 0));
        for (index, ((meta, data), sent)) in taken.frames.iter().zip(&sent).enumerate() {
            assert_eq!(data, sent, "frame {index}");
            assert_eq!(meta.wire_len as usize, sent.len());
            assert_eq!(meta.direction, Direction::Inbound);
        }
        let times: Vec<_> = taken.frames.iter().map(|(meta, _)| meta.time_ns).collect();
        assert!(
            times
                .iter()
                .all(|time| (before_ns..now_ns()).contains(time))
        );
        assert!(
            times.windows(2).filter(|two| two[1] > two[0]).count() > 20,
            "{times:?}"
        );
    });
}

#[test]
fn everything_comes_at_speed() {
    let Some(namespace) = Namespace::with_veth("xspeed") else {
        return;
    };
    namespace.enter(|| {
        let Some(mut queue) = open(config("v1")) else {
            return;
        };
        assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::Idle);
        // Fewer frames than the queue has chunks (32,768), so no frame is lost if this thread does
        // not run in between.
        let (sent, mut taken) = take_beside(&namespace, queue.as_mut(), 30_000, || {
            generate("v0", "generate:flows=100,count=30000,rate=50kpps,seed=5")
        });
        let (received, lost) = stop_and_drain(queue.as_mut(), &mut taken);
        assert_eq!((sent, received, lost), (30_000, 30_000, 0));
        assert_in_order(&taken.frames, 30_000);
        let nic = (LossCause::Nic, Some(0));
        assert!(queue.statistics().lost.contains(&nic), "it is copy mode");
    });
}

/// With busy polling the queue's thread polls the driver itself. All packets must still arrive;
/// whether they arrive earlier depends on the driver.
#[test]
fn busy_polling_loses_nothing() {
    let Some(namespace) = Namespace::with_veth("xbusy") else {
        return;
    };
    namespace.enter(|| {
        let busy = XdpConfig {
            busy_poll: Some(Duration::from_micros(50)),
            ..config("v1")
        };
        let opened = open_as(busy);
        if let Err(SourceError::Unsupported(message)) = &opened {
            eprintln!("SKIP: {message}");
            return;
        }
        let mut queue = opened.unwrap().remove(0);
        assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::Idle);
        let (sent, mut taken) = take_beside(&namespace, queue.as_mut(), 20_000, || {
            generate("v0", "generate:flows=100,count=20000,rate=50kpps,seed=5")
        });
        let (received, lost) = stop_and_drain(queue.as_mut(), &mut taken);
        assert_eq!((sent, received, lost), (20_000, 20_000, 0));
    });
}

/// For a driver without XDP, the kernel's network stack runs the program. The queue must report
/// generic XDP in copy mode, and deliver all frames in order.
#[test]
fn drivers_without_xdp_are_served_by_the_stack() {
    let Some(namespace) = Namespace::with_veth("xgeneric") else {
        return;
    };
    namespace.enter(|| {
        ip("link add link v1 name m1 type macvlan mode passthru");
        ip("link set m1 up");
        let Some(mut queue) = open(config("m1")) else {
            return;
        };
        let sent: Vec<_> = (0..50).map(|marker| frame(&[], marker)).collect();
        let before_ns = now_ns();
        assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::Idle);
        send_all("v0", &sent);
        let mut taken = Taken::default();
        take_until(queue.as_mut(), &mut taken, |taken| taken.frames.len() >= 50);
        let is_generic = |event: &SourceEvent| matches!(event, SourceEvent::Notice(text) if text.contains("generic XDP, copy mode"));
        assert!(taken.events.iter().any(is_generic), "{:?}", taken.events);
        let mode = queue.xdp_mode().unwrap();
        assert!(!mode.is_native && mode.is_multi_buffer, "{mode:?}");
        stop_and_drain(queue.as_mut(), &mut taken);
        let came: Vec<_> = taken.frames.iter().map(|(_, data)| data).collect();
        assert_eq!(came, sent.iter().collect::<Vec<_>>());
        let is_of_now = |time: i64| (before_ns..=now_ns()).contains(&time);
        assert!(taken.frames.iter().all(|(meta, _)| is_of_now(meta.time_ns)));
    });
}

/// The driver of veth gives XDP programs the NIC's stamps, and every stamp is 0, because there is
/// no NIC. So packets have the stamps of the program, which is for this interface alone. After a
/// return of the interface, the program for any interface is attached. A driver that gives no
/// stamps is refused.
#[test]
fn packets_without_a_stamp_of_the_nic_have_the_programs() {
    let Some(namespace) = Namespace::with_veth("xnic") else {
        return;
    };
    namespace.enter(|| {
        let hardware = |interface| XdpConfig {
            time_stamps: TimeStamps::Hardware,
            ..config(interface)
        };
        let opened = open_as(hardware("v1"));
        if let Err(SourceError::Unsupported(message)) = &opened {
            eprintln!("SKIP: {message}");
            return;
        }
        let mut queue = opened.unwrap().remove(0);
        let domains: Vec<_> = queue.interfaces().iter().map(|it| it.time_domain).collect();
        assert_eq!(domains, [TimeDomain::KernelSoftware, TimeDomain::Nic]);
        let sent: Vec<_> = (0..9).map(|marker| frame(&[], marker)).collect();
        let mut taken = Taken::default();
        let before_ns = now_ns();
        send_all("v0", &sent);
        take_until(queue.as_mut(), &mut taken, |taken| taken.frames.len() >= 9);
        let is_told = |event: &SourceEvent| matches!(event, SourceEvent::Notice(text) if text.contains("no stamp of the NIC"));
        let told = taken.events.iter().filter(|event| is_told(event)).count();
        assert_eq!(told, 1, "{:?}", taken.events);

        ip("link del v0");
        ip("link add v0 type veth peer name v1");
        ip("link set v0 up");
        ip("link set v1 up");
        take_until(queue.as_mut(), &mut taken, |taken| {
            taken.events.contains(&SourceEvent::InterfaceUp(0))
        });
        send_all("v0", &sent);
        take_until(queue.as_mut(), &mut taken, |taken| taken.frames.len() >= 18);
        assert!(taken.frames.len() >= 18, "{:?}", taken.events);
        let mut times_ns = taken.frames.iter().map(|(meta, _)| meta.time_ns);
        assert!(times_ns.all(|time_ns| (before_ns..=now_ns()).contains(&time_ns)));
        assert!(taken.frames.iter().all(|(meta, _)| meta.interface == 0));
        assert_eq!(queue.nic_stamped(), Some(0));
        drop(queue);

        ip("link add link v1 name m1 type macvlan mode passthru");
        ip("link set m1 up");
        let refused = open_as(hardware("m1")).unwrap_err();
        assert!(
            matches!(&refused, SourceError::Unsupported(why) if why.contains("no stamps of the NIC")),
            "{refused}"
        );
    });
}

/// While nobody reads, the 64 chunks of the queue are soon full. The queue must deliver 64 packets,
/// and count all other packets as lost.
#[test]
fn a_stalled_reader_loses_what_is_counted() {
    let Some(namespace) = Namespace::with_veth("xstall") else {
        return;
    };
    namespace.enter(|| {
        let small = XdpConfig {
            buffer_bytes: Some(0),
            ..config("v1")
        };
        let Some(mut queue) = open(small) else {
            return;
        };
        assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::Idle);
        let sent = generate("v0", "generate:flows=10,count=50000");
        let mut taken = Taken::default();
        let (received, lost) = stop_and_drain(queue.as_mut(), &mut taken);
        assert_eq!(received, sent);
        assert_eq!((taken.frames.len(), lost), (64, 50_000 - 64));
    });
}

/// Each of four receive queues has a socket, so the queues together deliver every packet.
#[test]
fn all_receive_queues_are_served() {
    let Some(namespace) = Namespace::new("xqueues") else {
        return;
    };
    namespace.enter(|| {
        ip("link add v0 numtxqueues 4 numrxqueues 4 type veth peer name v1 numtxqueues 4 numrxqueues 4");
        ip("link set v0 up");
        ip("link set v1 up");
        namespace.wait_for_carrier("v0");
        let mut queues = match open_as(config("v1")) {
            Ok(queues) => queues,
            Err(SourceError::Unsupported(message)) => {
                eprintln!("SKIP: {message}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(queues.len(), 4);
        for queue in &mut queues {
            queue.next(WAIT).unwrap();
        }
        let sent = generate("v0", "generate:flows=100,count=10000");
        let mut came = 0;
        for queue in &mut queues {
            let mut taken = Taken::default();
            stop_and_drain(queue.as_mut(), &mut taken);
            came += taken.frames.iter().filter(|(_, data)| is_udp_of_generator(data)).count() as u64;
        }
        assert_eq!(came, sent);
    });
}

#[test]
fn shunted_flows_are_dropped_and_counted() {
    let Some(namespace) = Namespace::with_veth("xshunt") else {
        return;
    };
    namespace.enter(|| {
        let opened = open_as(config("v1"));
        let Ok(mut queues) = opened else {
            eprintln!("SKIP: {}", opened.unwrap_err());
            return;
        };
        let mut queue = queues.remove(0);
        assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::Idle);
        let shunt = |silence_ns, class| Some(Shunt { silence_ns, class });
        let long = shunt(60_000_000_000, 0);
        let start = Instant::now();
        for (version, class) in [(4, 1), (6, 3)] {
            queue
                .shunt(&flow(2, version, 17), shunt(60_000_000_000, class))
                .unwrap();
            queue.shunt(&flow(3, version, 17), long).unwrap();
            queue.shunt(&flow(3, version, 17), None).unwrap();
            queue.shunt(&flow(3, version, 17), None).unwrap();
            // Any silence is longer than 0 ns, so the flow's first packet ends this shunt.
            queue.shunt(&flow(4, version, 17), shunt(0, 0)).unwrap();
        }
        let sent = [4, 6].into_iter().flat_map(|version| {
            let of = move |number| (0..50).map(move |_| udp(number, version));
            [1, 2, 3, 4].into_iter().flat_map(of)
        });
        let sent: Vec<_> = sent.collect();
        send_all("v0", &sent);
        let mut taken = Taken::default();
        take_until(queue.as_mut(), &mut taken, |taken| {
            taken.frames.len() >= 300
        });
        // The engine still delivers at most one packet of a shunted flow in 100 ms.
        let most = start.elapsed().as_millis() / 100;
        let count = |taken: &Taken, frame: &[u8]| {
            let frames = taken.frames.iter();
            frames.filter(|(_, data)| data == frame).count()
        };
        let mut of_shunted = [0; 2];
        for (number, version) in [1, 2, 3, 4].into_iter().flat_map(|n| [(n, 4), (n, 6)]) {
            let came = count(&taken, &udp(number, version));
            if number == 2 {
                of_shunted[usize::from(version == 6)] += came as u64;
                assert!(came as u128 <= most, "{came} in {most} tenths of a second");
            } else {
                assert_eq!(came, 50, "{number} {version}");
            }
        }
        let shed = losses(queue.as_mut());
        let shed = [0, 1, 2, 3].map(|class| shed(LossCause::Shed(class)));
        assert_eq!(shed, [0, 50 - of_shunted[0], 0, 50 - of_shunted[1]]);
        // The engine delivers packets of a shunted flow that begin or end a connection. A SYN
        // without ACK ends the shunt in both directions.
        for version in [4, 6] {
            let data = [false, true].map(|is_reply| tcp(version, is_reply, ACK));
            let flow = flow(9, version, 6);
            let reply = ShuntedFlow {
                source: flow.destination,
                destination: flow.source,
                ..flow
            };
            queue.shunt(&flow, long).unwrap();
            queue.shunt(&reply, long).unwrap();
            let start = Instant::now();
            let flags = [SYN | ACK, FIN | ACK, RST];
            let kept: Vec<_> = flags
                .iter()
                .map(|flags| tcp(version, true, *flags))
                .collect();
            let sent: Vec<_> = data.iter().chain(&kept).chain(&data).cloned().collect();
            send_all("v0", &sent);
            take_until(queue.as_mut(), &mut taken, |taken| {
                kept.iter().all(|frame| count(taken, frame) == 1)
            });
            let syn = [&[tcp(version, false, SYN)][..], &data, &data].concat();
            send_all("v0", &syn);
            let is_syn = |taken: &Taken| count(taken, &syn[0]) > 0;
            take_until(queue.as_mut(), &mut taken, is_syn);
            let came = data.iter().map(|frame| count(&taken, frame)).sum::<usize>();
            let most = start.elapsed().as_millis() / 100 * 2;
            // Packets after the SYN may have arrived together with the SYN.
            assert!(came as u128 <= most + 4, "{version}: {came}");
            let before = losses(queue.as_mut())(LossCause::Shed(0));
            send_all("v0", &data);
            take_until(queue.as_mut(), &mut taken, |taken| {
                data.iter().all(|frame| count(taken, frame) >= 3)
            });
            assert_eq!(
                losses(queue.as_mut())(LossCause::Shed(0)),
                before,
                "{version}"
            );
        }
        let (received, _) = stop_and_drain(queue.as_mut(), &mut taken);
        assert_eq!(received, 400 + 2 * (7 + 5 + 2));
    });
}

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// The flow of the frames of [`udp`] with this number, or of [`tcp`] (number 9).
fn flow(number: u8, version: u8, protocol: u8) -> ShuntedFlow {
    let address = |host: u8| -> SocketAddr {
        match version {
            4 => format!("10.1.2.{host}:7"),
            _ => format!("[2001:db8::{host:x}]:7"),
        }
        .parse()
        .unwrap()
    };
    ShuntedFlow {
        source: address(number),
        destination: address(200),
        protocol,
    }
}

/// An Ethernet frame with a TCP segment of flow 9. `is_reply`: of the opposite direction.
fn tcp(version: u8, is_reply: bool, flags: u8) -> Vec<u8> {
    let mut frame = udp(9, version);
    let (protocol, addresses, len) = match version {
        4 => (23, 26, 4),
        _ => (20, 22, 16),
    };
    frame[protocol] = 6;
    if is_reply {
        let (source, destination) = frame[addresses..].split_at_mut(len);
        source.swap_with_slice(&mut destination[..len]);
    }
    frame.truncate(addresses + 2 * len);
    frame.extend([
        0, 7, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0,
    ]);
    // The length fields: IPv4 counts the whole packet, IPv6 the bytes after its header.
    match version {
        4 => frame[17] = 40,
        _ => frame[19] = 20,
    }
    frame.resize(80, 0);
    frame
}

/// An Ethernet frame with a UDP packet of flow `number`.
fn udp(number: u8, version: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    match version {
        4 => {
            frame.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0]);
            frame.extend([10, 1, 2, number, 10, 1, 2, 200]);
        }
        _ => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64]);
            for host in [number, 200] {
                frame.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
            }
        }
    }
    frame.extend([0, 7, 0, 7, 0, 8, 0, 0]);
    frame.resize(64, 0);
    frame
}

#[test]
fn what_the_host_uses_is_refused() {
    let Some(namespace) = Namespace::with_veth("xhost") else {
        return;
    };
    namespace.enter(|| {
        ip("addr add 10.9.0.1/32 dev v0");
        let message = refusal("v0").unwrap();
        assert!(message.contains("address"), "{message}");
        assert!(message.contains("take-interface"), "{message}");
        assert!(!is_attached("v0"));
        ip("route add 10.7.0.0/16 dev v1");
        assert!(refusal("v1").unwrap().contains("route"));
        let taken = XdpConfig {
            take_interface: true,
            ..config("v1")
        };
        let Some(queue) = open(taken) else { return };
        assert!(is_attached("v1"));
        // A second program does not replace the first.
        let again = XdpConfig {
            take_interface: true,
            ..config("v1")
        };
        let message = open_as(again).unwrap_err().to_string();
        assert!(message.contains("ip link show v1"), "{message}");
        drop(queue);
        assert!(!is_attached("v1"), "the program went with the queue");
        assert!(matches!(
            open_as(config("no-such-if")).unwrap_err(),
            SourceError::NoInterface { .. }
        ));
        assert!(matches!(
            open_as(config("lo")).unwrap_err(),
            SourceError::Unsupported(_)
        ));
        ip("link set v1 down");
        let down = XdpConfig {
            take_interface: true,
            ..config("v1")
        };
        let message = open_as(down).unwrap_err().to_string();
        assert!(message.contains("ip link set v1 up"), "{message}");
    });
}

/// Why the host's use of an interface prevents the capture, or `None`.
fn refusal(interface: &str) -> Option<String> {
    match open_as(config(interface)) {
        Ok(_) => None,
        Err(SourceError::Usage(message)) => Some(message),
        Err(error) => panic!("{error}"),
    }
}

/// A bridge port, and the lower interface of a macvlan, belong to the host even if bridge and
/// macvlan are down.
#[test]
fn what_the_host_builds_on_is_refused() {
    let Some(namespace) = Namespace::with_veth("xbuilt") else {
        return;
    };
    namespace.enter(|| {
        if open(config("v1")).is_none() {
            return;
        }
        ip("link add br0 type bridge");
        ip("link set v1 master br0");
        assert!(refusal("v1").unwrap().contains(" br0 (bridge)"));
        assert!(!is_attached("v1"));
        ip("link add link br0 name b1 type macvlan");
        let names_both =
            |text: &str| text.contains(" br0 (bridge)") && text.contains(" b1 (macvlan)");
        let message = refusal("v1").unwrap();
        assert!(names_both(&message), "{message}");
        let taken = XdpConfig {
            take_interface: true,
            ..config("v1")
        };
        let mut queue = open(taken).unwrap();
        let told: Vec<_> = std::iter::from_fn(|| queue.event()).collect();
        let is_told =
            |event: &SourceEvent| matches!(event, SourceEvent::Notice(text) if names_both(text));
        assert!(told.iter().any(is_told), "{told:?}");
        drop(queue);
        ip("link set v1 nomaster");
        assert_eq!(refusal("v1"), None, "and not for its other end, v0");
        ip("link add link v1 name m1 type macvlan");
        let message = refusal("v1").unwrap();
        assert!(message.contains(" m1 (macvlan)"), "{message}");
        assert!(!message.contains("br0"), "{message}");
        ip("link del m1");
        assert_eq!(refusal("v1"), None);
    });
}

/// A macvlan in another network namespace does not count as a use of the interface. A notice says
/// that such a use is invisible.
#[test]
fn an_upper_interface_in_another_namespace_is_not_seen() {
    let (Some(namespace), Some(other)) = (Namespace::with_veth("xlower"), Namespace::new("xupper"))
    else {
        return;
    };
    namespace.enter(|| {
        ip("link add link v1 name m1 type macvlan");
        assert!(HostUse::of("v1").to_string().contains("m1 (macvlan)"));
        ip(&format!("link set m1 netns {}", other.name()));
        assert!(!HostUse::of("v1").is_used());
        let Some(mut queue) = open(config("v1")) else {
            return;
        };
        let is_told = |event: &SourceEvent| matches!(event, SourceEvent::Notice(text) if text.contains(UNSEEN));
        assert!(std::iter::from_fn(|| queue.event()).any(|event| is_told(&event)));
    });
}

/// A copy of the link's descriptor, as a child process has between fork and exec, does not keep the
/// program attached.
#[test]
fn copies_of_its_descriptors_keep_nothing() {
    let Some(namespace) = Namespace::with_veth("xcopy") else {
        return;
    };
    namespace.enter(|| {
        let Some(queue) = open(config("v1")) else {
            return;
        };
        let itself = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        let is_link = |path: &Path| {
            let target = fs::read_link(path);
            target.is_ok_and(|of| of.to_string_lossy().contains("bpf_link"))
        };
        let copies: Vec<OwnedFd> = fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|entry| {
                let path = entry.unwrap().path();
                let number = path.file_name()?.to_str()?.parse().ok()?;
                let copy = || pidfd_getfd(&itself, number, PidfdGetfdFlags::empty());
                let copy = is_link(&path).then(copy)?.ok()?;
                // Another test may have closed the descriptor meanwhile, and opened another file.
                is_link(Path::new(&format!("/proc/self/fd/{}", copy.as_raw_fd()))).then_some(copy)
            })
            .collect();
        assert!(!copies.is_empty(), "the link is nowhere");
        assert!(is_attached("v1"));
        drop(queue);
        assert!(!is_attached("v1"));
        drop(copies);
    });
}

/// A sender through an XDP socket occupies queue 0 of its interface, also for receiving. The
/// capture must fail with an error that names the queue.
#[test]
fn what_somebody_sends_on_is_refused() {
    let Some(namespace) = Namespace::with_veth("xsent") else {
        return;
    };
    namespace.enter(|| {
        let sender = LiveSender::open("v1", Path::new("retroscope")).unwrap();
        if !sender.uses_xdp() {
            eprintln!("SKIP: this kernel sends through no XDP socket here");
            return;
        }
        let message = open_as(config("v1")).unwrap_err().to_string();
        let words = "has its queue 0";
        assert!(message.contains(words), "{message}");
        assert!(!is_attached("v1"));
        drop(sender);
        assert!(open(config("v1")).is_some(), "it is free again");
    });
}

#[test]
fn without_the_capabilities_it_is_refused() {
    let Some(namespace) = Namespace::with_veth("xcap") else {
        return;
    };
    namespace.enter(|| {
        // Removes the effective capabilities of this thread only. The thread ends with the closure.
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective = CapabilitySet::empty();
        rustix::thread::set_capabilities(None, sets).unwrap();
        let error = open_as(config("v1")).unwrap_err();
        assert!(matches!(error, SourceError::Permission(_)), "{error:?}");
        let words = error.to_string();
        let named = "cap_net_raw,cap_net_admin,cap_bpf,cap_ipc_lock=eip retroscope";
        assert!(words.contains(named), "{words}");
        // The capabilities in the message are sufficient.
        sets.effective = CapabilitySet::NET_RAW
            | CapabilitySet::NET_ADMIN
            | CapabilitySet::BPF
            | CapabilitySet::IPC_LOCK;
        rustix::thread::set_capabilities(None, sets).unwrap();
        open(config("v1"));
    });
}

#[test]
#[ignore = "10 seconds of full speed: run it alone, in a release build"]
fn two_hundred_thousand_a_second_for_ten_seconds() {
    let Some(namespace) = Namespace::with_veth("xlong") else {
        return;
    };
    namespace.enter(|| {
        let mut queue = open(config("v1")).unwrap();
        assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::Idle);
        let mut frames = 0;
        let text = "generate:flows=1000,rate=200kpps,duration=10s";
        let sent = drain_beside(&namespace, &mut *queue, text, |burst| {
            frames += burst.frames.len();
        });
        println!("{sent} sent, {frames} came: {:?}", queue.statistics());
        assert_eq!((sent, frames), (2_000_000, 2_000_000));
    });
}
