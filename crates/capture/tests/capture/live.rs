//! Tests of AF_PACKET on veth, tun and loopback interfaces in separate network namespaces. They
//! need root and `ip`.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use crate::support::{
    DEADLINE, WAIT, generate, generate_while, is_udp_of_generator,
    namespace::{Namespace, ip, try_ip},
    open,
    traffic::{
        Taken, frame, generate_and_take, is_ours, now_ns, send, send_with, sequence,
        stop_and_drain, take_until, with_tag,
    },
    try_open,
};
use retroscope_capture::{
    Direction, QueueStatus, Source, SourceError, SourceEvent,
    af_packet::{interfaces, offloads},
    send::{LiveSender, in_network_namespace_or_loopback},
};
use retroscope_generate::GeneratorSource;
use retroscope_packet::LinkType;

#[test]
fn everything_that_is_sent_at_speed_comes() {
    let Some(namespace) = Namespace::with_veth("speed") else {
        return;
    };
    namespace.enter(|| {
        let mut queue = open("v1");
        assert_eq!(queue.interfaces()[0].link_type, LinkType::ETHERNET);
        let mut taken = Taken::default();
        let before_ns = now_ns();
        let sent = generate_and_take(queue.as_mut(), &mut taken, 100_000);
        let (received, lost) = stop_and_drain(queue.as_mut(), &mut taken);
        assert_eq!((sent, lost), (100_000, 0));
        assert!(received >= sent);
        let ours: Vec<_> = taken
            .frames
            .iter()
            .filter(|(_, data)| is_udp_of_generator(data))
            .collect();
        assert_eq!(ours.len(), 100_000);
        assert!(
            ours.iter()
                .zip(0..)
                .all(|((_, data), number)| sequence(data) == number),
            "in order, without gaps"
        );
        assert!(
            ours.iter()
                .all(|(meta, _)| meta.direction == Direction::Inbound && meta.wire_len == 64)
        );
        assert!(
            ours.iter()
                .all(|(meta, _)| (before_ns..=now_ns()).contains(&meta.time_ns))
        );
        assert!(
            ours.iter().any(|(meta, _)| meta.time_ns % 1000 != 0),
            "nanoseconds"
        );
    });
}

#[test]
fn what_this_host_sends_is_outbound() {
    let Some(namespace) = Namespace::with_veth("out") else {
        return;
    };
    namespace.enter(|| {
        ip("addr add 10.8.0.1/24 dev v0");
        ip("neigh add 10.8.0.2 lladdr 02:00:00:00:00:02 dev v0");
        let mut queue = open("v0");
        let socket = std::net::UdpSocket::bind("10.8.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        socket.send_to(b"out", "10.8.0.2:9").unwrap();
        let mut taken = Taken::default();
        let is_sent = |data: &[u8]| data.len() == 45 && data[34..36] == port.to_be_bytes();
        take_until(queue.as_mut(), &mut taken, |taken| {
            taken.frames.iter().any(|(_, data)| is_sent(data))
        });
        let sent = taken.frames.iter().find(|(_, data)| is_sent(data));
        assert_eq!(sent.unwrap().0.direction, Direction::Outbound);
    });
}

#[test]
fn overload_closes_to_the_packet() {
    let Some(namespace) = Namespace::with_veth("over") else {
        return;
    };
    namespace.enter(|| {
        // 4 blocks of 256 KiB hold far fewer packets than arrive before the test reads the first
        // packet.
        let mut queue = try_open("v1", 1, Some(1)).unwrap().remove(0);
        let sent = generate("v0", "generate:flows=100,count=50000");
        let mut taken = Taken::default();
        let (received, lost) = stop_and_drain(queue.as_mut(), &mut taken);
        assert!(lost > 0, "this was to be an overload");
        assert!(received >= sent);
    });
}

#[test]
fn a_stop_under_fire_is_exact() {
    let Some(namespace) = Namespace::with_veth("fire") else {
        return;
    };
    for queues in [1, 2] {
        namespace.enter(|| {
            let mut queues = try_open("v1", queues, None).unwrap();
            // Relaxed: the threads share only these two values.
            let (sent, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let sender = scope.spawn(|| {
                    namespace.enter(|| {
                        generate_while("v0", "generate:flows=10,duration=1m", |count| {
                            sent.store(count, Relaxed);
                            !is_over.load(Relaxed)
                        })
                    })
                });
                let mut received = 0;
                for queue in &mut queues {
                    let mut taken = Taken::default();
                    take_until(queue.as_mut(), &mut taken, |taken| {
                        taken.frames.len() > 1000
                    });
                    received += stop_and_drain(queue.as_mut(), &mut taken).0;
                }
                let (at_stop, deadline) = (sent.load(Relaxed), Instant::now() + DEADLINE);
                while sent.load(Relaxed) == at_stop {
                    assert!(
                        Instant::now() < deadline,
                        "the sender was to fire all the time"
                    );
                    std::thread::yield_now();
                }
                is_over.store(true, Relaxed);
                assert!(sender.join().unwrap() > received);
            });
        });
    }
}

#[test]
fn tags_round_trip() {
    let Some(namespace) = Namespace::with_veth("vlan") else {
        return;
    };
    namespace.enter(|| {
        let mut queue = open("v1");
        let sent = [
            frame(&[], 1),
            frame(&[0x81, 0, 0x20, 10], 2),
            frame(&[0x88, 0xa8, 0, 20, 0x81, 0, 0, 30], 3),
            frame(&[0x81, 0, 0, 40, 0x81, 0, 0, 50], 4),
        ];
        for frame in &sent {
            send("v0", frame);
        }
        let mut taken = Taken::default();
        let ours = |taken: &Taken| {
            taken
                .frames
                .iter()
                .filter(|(_, data)| is_ours(data))
                .count()
        };
        take_until(queue.as_mut(), &mut taken, |taken| {
            ours(taken) >= sent.len()
        });
        let came: Vec<_> = taken
            .frames
            .iter()
            .filter(|(_, data)| is_ours(data))
            .map(|(meta, data)| {
                assert_eq!(meta.wire_len, meta.captured_len);
                with_tag(meta, data)
            })
            .collect();
        assert_eq!(came, sent);
        stop_and_drain(queue.as_mut(), &mut taken);
    });
}

#[test]
fn loopback_shows_each_packet_once() {
    let Some(namespace) = Namespace::new("lo") else {
        return;
    };
    namespace.enter(|| {
        ip("link set lo up");
        for queues in [1, 2] {
            let mut queues = try_open("lo", queues, None).unwrap();
            let receiver = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            let port = receiver.local_addr().unwrap().port();
            let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            for number in 0..100_u8 {
                sender.send_to(&[number], ("127.0.0.1", port)).unwrap();
            }
            let mut numbers = Vec::new();
            for queue in &mut queues {
                let mut taken = Taken::default();
                stop_and_drain(queue.as_mut(), &mut taken);
                let is_ours = |data: &[u8]| data[36..38] == port.to_be_bytes();
                numbers.extend(
                    taken
                        .frames
                        .iter()
                        .filter(|(_, data)| is_ours(data))
                        .map(|(_, data)| data[42]),
                );
            }
            assert_eq!(
                numbers,
                (0..100).collect::<Vec<_>>(),
                "{} queues",
                queues.len()
            );
        }
        assert!(in_network_namespace_or_loopback("lo"));
    });
}

#[test]
fn a_silent_link_moves_its_watermark() {
    let Some(namespace) = Namespace::with_veth("idle") else {
        return;
    };
    namespace.enter(|| {
        let mut queue = open("v1");
        let mut lags_ns = Vec::new();
        let end = Instant::now() + Duration::from_millis(300);
        let mut previous_ns = queue.watermark().unwrap();
        let first_ns = now_ns();
        while Instant::now() < end || previous_ns <= first_ns {
            queue.next(Duration::from_millis(1)).unwrap();
            let watermark_ns = queue.watermark().unwrap();
            assert!(watermark_ns >= previous_ns && watermark_ns <= now_ns());
            previous_ns = watermark_ns;
            lags_ns.push(now_ns() - watermark_ns);
            assert!(Instant::now() < end + DEADLINE, "it does not move");
        }
        // The test uses the median, because a long interruption of this thread may increase a few
        // of the measured lags.
        lags_ns.sort_unstable();
        let median_ns = lags_ns[lags_ns.len() / 2];
        println!("{:.1} ms behind", median_ns as f64 / 1e6);
        assert!(median_ns < 100_000_000, "{median_ns} ns behind");
        // The queue delivers a single packet soon after its arrival.
        let mut sender = LiveSender::open("v0", Path::new("retroscope")).unwrap();
        let took: Vec<Duration> = (0..5)
            .map(|marker| {
                let mut taken = Taken::default();
                let sent_at = Instant::now();
                send_with(&mut sender, &frame(&[], marker));
                take_until(queue.as_mut(), &mut taken, |taken| {
                    taken.frames.iter().any(|(_, data)| is_ours(data))
                });
                sent_at.elapsed()
            })
            .collect();
        println!("lone packets after {took:?}");
        assert!(took.iter().min() < Some(&Duration::from_millis(100)));
        assert!(queue.statistics().as_of_ns.unwrap() >= previous_ns);
    });
}

#[test]
fn two_queues_share_the_flows() {
    let Some(namespace) = Namespace::with_veth("fan") else {
        return;
    };
    namespace.enter(|| {
        let mut queues = try_open("v1", 2, None).unwrap();
        assert_eq!(queues.len(), 2);
        let sent = generate("v0", "generate:flows=64,count=20000,rate=400kpps");
        let (mut total, mut flows_before) = (0, std::collections::HashSet::new());
        for queue in &mut queues {
            let mut taken = Taken::default();
            let (_, lost) = stop_and_drain(queue.as_mut(), &mut taken);
            assert_eq!(lost, 0);
            let ours: Vec<_> = taken
                .frames
                .iter()
                .filter(|(_, data)| is_udp_of_generator(data))
                .collect();
            let flows: std::collections::HashSet<_> =
                ours.iter().map(|(_, data)| data[26..38].to_vec()).collect();
            assert!(!flows.is_empty(), "a queue without a flow of 64");
            assert!(flows.is_disjoint(&flows_before), "a flow in both queues");
            flows_before = flows;
            total += ours.len() as u64;
        }
        assert_eq!(total, sent);
    });
}

#[test]
fn an_interface_that_goes_down_comes_back_or_is_removed() {
    let Some(namespace) = Namespace::with_veth("down") else {
        return;
    };
    namespace.enter(|| {
        let mut queue = open("v1");
        let mut taken = Taken::default();
        ip("link set v1 down");
        take_until(queue.as_mut(), &mut taken, |taken| {
            taken.events.contains(&SourceEvent::InterfaceDown(0))
        });
        let watermark_ns = queue.watermark().unwrap();
        assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::Idle);
        assert!(
            queue.watermark().unwrap() > watermark_ns,
            "moves while down"
        );
        ip("link set v1 up");
        take_until(queue.as_mut(), &mut taken, |taken| {
            taken.events.contains(&SourceEvent::InterfaceUp(0))
        });
        namespace.wait_for_carrier("v0");
        send("v0", &frame(&[], 5));
        take_until(queue.as_mut(), &mut taken, |taken| {
            taken.frames.iter().any(|(_, data)| is_ours(data))
        });
        ip("link del v1");
        take_until(queue.as_mut(), &mut taken, |taken| {
            taken.events.last() == Some(&SourceEvent::InterfaceGone(0))
        });
        assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::Idle, "it waits");
        stop_and_drain(queue.as_mut(), &mut taken);
        assert!(matches!(
            try_open("v1", 1, None).unwrap_err(),
            SourceError::NoInterface { .. }
        ));
    });
}

/// An interface is removed while it is down. At the removal, the kernel raises no error for the
/// socket. The queue must report the removal nevertheless.
#[test]
fn an_interface_is_removed_after_it_went_down() {
    let Some(namespace) = Namespace::with_veth("downgone") else {
        return;
    };
    namespace.enter(|| {
        let mut queue = open("v1");
        let mut taken = Taken::default();
        ip("link set v1 down");
        take_until(queue.as_mut(), &mut taken, |taken| {
            taken.events.contains(&SourceEvent::InterfaceDown(0))
        });
        ip("link del v1");
        take_until(queue.as_mut(), &mut taken, |taken| {
            taken.events.last() == Some(&SourceEvent::InterfaceGone(0))
        });
        stop_and_drain(queue.as_mut(), &mut taken);
    });
}

/// An interface is removed and created again three times, with one queue and with two. Each new
/// interface must be captured, and each frame must arrive once.
#[test]
fn an_interface_that_was_removed_comes_back() {
    let Some(namespace) = Namespace::with_veth("back") else {
        return;
    };
    namespace.enter(|| {
        for count in [1, 2] {
            let mut queues = try_open("v1", count, None).unwrap();
            let mut taken: Vec<Taken> = queues.iter().map(|_| Taken::default()).collect();
            for round in 1..=3 {
                generate("v0", "generate:flows=64,count=200");
                ip("link del v1");
                for (queue, taken) in queues.iter_mut().zip(&mut taken) {
                    take_until(queue.as_mut(), taken, |taken| {
                        let gone = |event: &&SourceEvent| **event == SourceEvent::InterfaceGone(0);
                        taken.events.iter().filter(gone).count() == round
                    });
                }
                ip("link add v0 type veth peer name v1");
                ip("link set v0 up");
                ip("link set v1 up");
                namespace.wait_for_carrier("v0");
                for (queue, taken) in queues.iter_mut().zip(&mut taken) {
                    take_until(queue.as_mut(), taken, |taken| {
                        taken.events.last() == Some(&SourceEvent::InterfaceUp(0))
                    });
                }
            }
            generate("v0", "generate:flows=64,count=200");
            let mut ours = Vec::new();
            for (queue, taken) in queues.iter_mut().zip(&mut taken) {
                stop_and_drain(queue.as_mut(), taken);
                let frames = taken
                    .frames
                    .iter()
                    .filter(|(_, data)| is_udp_of_generator(data));
                ours.push(frames.count());
            }
            assert_eq!(ours.iter().sum::<usize>(), 4 * 200, "{ours:?}");
            assert!(ours.iter().all(|share| *share > 0), "{ours:?}");
        }
    });
}

#[test]
fn an_interface_may_be_down_at_the_start() {
    let Some(namespace) = Namespace::with_veth("late") else {
        return;
    };
    namespace.enter(|| {
        ip("link set v1 down");
        let mut queue = open("v1");
        let mut taken = Taken::default();
        take_until(queue.as_mut(), &mut taken, |taken| {
            taken.events.contains(&SourceEvent::InterfaceDown(0))
        });
        ip("link set v1 up");
        take_until(queue.as_mut(), &mut taken, |taken| {
            taken.events.contains(&SourceEvent::InterfaceUp(0))
        });
        namespace.wait_for_carrier("v0");
        send("v0", &frame(&[], 6));
        take_until(queue.as_mut(), &mut taken, |taken| {
            taken.frames.iter().any(|(_, data)| is_ours(data))
        });
        stop_and_drain(queue.as_mut(), &mut taken);
    });
}

#[test]
fn a_tun_interface_delivers_bare_ip() {
    let Some(namespace) = Namespace::new("tun") else {
        return;
    };
    if !Path::new("/dev/net/tun").exists() {
        eprintln!("SKIP: no /dev/net/tun");
        return;
    }
    namespace.enter(|| {
        ip("tuntap add dev t0 mode tun");
        ip("addr add 10.9.0.1/24 dev t0");
        ip("link set t0 up");
        let interface = interfaces()
            .unwrap()
            .into_iter()
            .find(|interface| interface.name == "t0")
            .unwrap();
        assert_eq!(interface.link_type, Some(LinkType::RAW));
        assert_eq!(interface.kind, "tun");
        assert!(interface.up);
        let queue = open("t0");
        assert_eq!(queue.interfaces()[0].link_type, LinkType::RAW);
    });
}

#[test]
fn large_frames_come_whole() {
    let Some(namespace) = Namespace::with_veth("jumbo") else {
        return;
    };
    namespace.enter(|| {
        ip("link set v0 mtu 9000");
        ip("link set v1 mtu 9000");
        let mut queue = open("v1");
        generate("v0", "generate:size=9014,count=100,rate=10kpps");
        let mut taken = Taken::default();
        stop_and_drain(queue.as_mut(), &mut taken);
        let ours: Vec<_> = taken
            .frames
            .iter()
            .filter(|(_, data)| is_udp_of_generator(data))
            .collect();
        assert_eq!(ours.len(), 100);
        assert!(
            ours.iter()
                .all(|(meta, data)| data.len() == 9014 && meta.wire_len == 9014)
        );
    });
}

#[test]
fn what_cannot_be_recorded_is_refused() {
    let Some(namespace) = Namespace::new("other") else {
        return;
    };
    namespace.enter(|| {
        let error = try_open("any", 1, None).unwrap_err();
        assert!(matches!(error, SourceError::Unsupported(_)), "{error}");
        if try_ip("link add s0 type sit remote 10.1.1.1 local 10.1.1.2")
            .status
            .success()
        {
            let error = try_open("s0", 1, None).unwrap_err();
            assert!(matches!(error, SourceError::Unsupported(_)), "{error}");
        }
        // This thread is in another network namespace than the test's parent processes, such as
        // cargo. So the name of the interface does not matter.
        assert!(in_network_namespace_or_loopback("whatever"));
    });
}

#[test]
fn without_the_capability_it_is_refused() {
    let Some(namespace) = Namespace::new("cap") else {
        return;
    };
    namespace.enter(|| {
        // Removes the effective capabilities of this thread only. The thread ends with the closure.
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective = rustix::thread::CapabilitySet::empty();
        rustix::thread::set_capabilities(None, sets).unwrap();
        let error = try_open("lo", 1, None).unwrap_err();
        assert!(matches!(error, SourceError::Permission(_)), "{error:?}");
        let error = LiveSender::open("lo", Path::new("retroscope")).unwrap_err();
        assert!(matches!(error, SourceError::Permission(_)), "{error:?}");
        assert!(
            !interfaces().unwrap().is_empty(),
            "listing needs no privilege"
        );
    });
}

#[test]
fn interfaces_and_offloads_of_this_namespace() {
    let Some(namespace) = Namespace::with_veth("list") else {
        return;
    };
    namespace.enter(|| {
        let list = interfaces().unwrap();
        let veth = list
            .iter()
            .find(|interface| interface.name == "v0")
            .unwrap();
        assert!(veth.up && !veth.loopback && veth.kind == "veth" && veth.mtu == Some(1500));
        assert!(
            list.iter()
                .all(|interface| ["lo", "v0", "v1"].contains(&interface.name.as_str())),
            "{list:?}"
        );
        let offloads = offloads("v0").unwrap();
        assert_eq!(offloads.large_receive, Some(false));
        assert!(offloads.generic_receive.is_some() && offloads.vlan_extraction.is_some());
    });
}

#[test]
fn a_sender_to_nowhere_gives_up() {
    let Some(namespace) = Namespace::with_veth("dead") else {
        return;
    };
    namespace.enter(|| {
        ip("link set v0 down");
        let mut sender = LiveSender::open("v0", Path::new("retroscope")).unwrap();
        let mut queue = Box::new(GeneratorSource::parse("generate:count=1").unwrap())
            .open(1)
            .unwrap()
            .remove(0);
        assert_eq!(queue.next(DEADLINE).unwrap(), QueueStatus::Frames);
        let error = sender.send(queue.burst()).unwrap_err();
        assert!(
            matches!(error, SourceError::InterfaceDown { .. }),
            "{error}"
        );
        assert_eq!(sender.sent, 0);
    });
}
