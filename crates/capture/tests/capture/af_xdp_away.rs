//! Reactions of AF_XDP when its interface goes away and comes back. Needs root, `ip`, and a kernel
//! with AF_XDP.

use std::{
    net::UdpSocket,
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

use crate::support::{
    DEADLINE, WAIT,
    namespace::{Namespace, ip},
    traffic::{Taken, frame, send, take_until},
    xdp::{config, is_attached, losses, open, open_as, stop_and_drain},
};
use retroscope_capture::{
    LossCause, Queue, QueueStatus, Source, SourceError, SourceEvent, af_xdp::XdpConfig,
    send::LiveSender,
};
use retroscope_generate::GeneratorSource;
use rustix::{
    process::{Resource, Rlimit, Uid, getrlimit, setrlimit},
    thread::{CapabilitySet, capabilities, set_capabilities, set_thread_res_uid},
};

/// The queue reports the state of its interface, and captures from the next interface with the same
/// name. The counts cover all interfaces since the opening.
#[test]
fn an_interface_goes_down_comes_back_and_is_another_one() {
    let Some(namespace) = Namespace::with_veth("xdown") else {
        return;
    };
    namespace.enter(|| {
        let Some(mut queue) = open(config("v1")) else {
            return;
        };
        send("v0", &frame(&[], 1));
        let mut taken = Taken::default();
        ip("link set v1 down");
        take_until(
            queue.as_mut(),
            &mut taken,
            has(SourceEvent::InterfaceDown(0)),
        );
        ip("link set v1 up");
        take_until(queue.as_mut(), &mut taken, has(SourceEvent::InterfaceUp(0)));
        namespace.wait_for_carrier("v0");
        send("v0", &frame(&[], 2));
        take_until(queue.as_mut(), &mut taken, |taken| taken.frames.len() == 2);
        for marker in 3..6 {
            taken.events.clear();
            // Packets that are in the ring at the removal still arrive.
            send("v0", &frame(&[], 10 + marker));
            ip("link del v0");
            take_until(
                queue.as_mut(),
                &mut taken,
                has(SourceEvent::InterfaceGone(0)),
            );
            ip("link add v0 type veth peer name v1");
            ip("link set v0 up");
            ip("link set v1 up");
            take_until(queue.as_mut(), &mut taken, has(SourceEvent::InterfaceUp(0)));
            namespace.wait_for_carrier("v0");
            assert!(is_attached("v1"));
            send("v0", &frame(&[], marker));
            let is_it = |taken: &Taken| {
                taken
                    .frames
                    .last()
                    .is_some_and(|(_, data)| data[14] == marker)
            };
            take_until(queue.as_mut(), &mut taken, is_it);
        }
        let (received, lost) = stop_and_drain(queue.as_mut(), &mut taken);
        assert_eq!((received, lost), (8, 0));
        let markers: Vec<u8> = taken.frames.iter().map(|(_, data)| data[14]).collect();
        assert_eq!(markers, [1, 2, 13, 3, 14, 4, 15, 5]);
        let times = taken.frames.iter().map(|(meta, _)| meta.time_ns);
        assert!(times.is_sorted());
        drop(queue);
        assert!(!is_attached("v1"));
    });
}

/// Packets arrive at full rate until the interface is removed. The recording is stopped just before
/// or just after the removal is noticed. All received packets must be lent or counted as lost.
#[test]
fn a_stop_at_a_removal_closes_the_ledger() {
    let Some(namespace) = Namespace::with_veth("xstop") else {
        return;
    };
    namespace.enter(|| {
        for is_seen in [false, true, false, true] {
            let Some(mut queue) = open(config("v1")) else {
                return;
            };
            let mut taken = Taken::default();
            assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::Idle);
            let mut sender = LiveSender::open("v0", Path::new("retroscope")).unwrap();
            let is_removed = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let text = "generate:flows=10";
                    let mut packets = Box::new(GeneratorSource::parse(text).unwrap())
                        .open(1)
                        .unwrap()
                        .remove(0);
                    // Relaxed: the threads share only the flag. The loop also ends when the
                    // sender's interface is gone.
                    while !is_removed.load(Relaxed)
                        && packets.next(WAIT).unwrap() != QueueStatus::End
                    {
                        if sender.send(packets.burst()).is_err() {
                            break;
                        }
                    }
                });
                scope.spawn(|| {
                    ip("link del v0");
                    is_removed.store(true, Relaxed);
                });
                take_until(queue.as_mut(), &mut taken, |taken| {
                    taken.events.contains(&SourceEvent::InterfaceGone(0))
                        || !is_seen && is_removed.load(Relaxed)
                });
                stop_and_drain(queue.as_mut(), &mut taken);
            });
            ip("link add v0 type veth peer name v1");
            ip("link set v0 up");
            ip("link set v1 up");
            namespace.wait_for_carrier("v0");
        }
    });
}

/// Each return of the interface takes a spare socket. Without a spare socket the queue ends with a
/// message, and no program stays attached.
#[test]
fn spare_sockets_have_an_end() {
    let Some(namespace) = Namespace::with_veth("xspare") else {
        return;
    };
    namespace.enter(|| {
        let Some((mut queue, mut taken)) = begin() else {
            return;
        };
        for _ in 0..4 {
            taken.events.clear();
            ip("link del v0");
            take_until(
                queue.as_mut(),
                &mut taken,
                has(SourceEvent::InterfaceGone(0)),
            );
            ip("link add v0 type veth peer name v1");
            ip("link set v1 up");
            take_until(queue.as_mut(), &mut taken, has(SourceEvent::InterfaceUp(0)));
        }
        ip("link del v0");
        ip("link add v0 type veth peer name v1");
        ip("link set v1 up");
        let deadline = Instant::now() + DEADLINE;
        let error = loop {
            assert!(Instant::now() < deadline);
            if let Err(error) = queue.next(WAIT) {
                break error;
            }
        };
        assert!(error.to_string().contains("too often"), "{error}");
        assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::End);
        drop(queue);
        assert!(!is_attached("v1"));
    });
}

/// With a lower limit of locked memory there are fewer spare sockets, and the user gets a notice at
/// the start.
#[test]
fn few_spare_sockets_are_told() {
    let Some(namespace) = Namespace::with_veth("xfew") else {
        return;
    };
    namespace.enter(|| {
        let few = |interface| XdpConfig {
            buffer_bytes: Some(1 << 20),
            ..config(interface)
        };
        let Some(mut queue) = open(few("v1")) else {
            return;
        };
        let told = "no more memory may be locked";
        let notices = |queue: &mut dyn Queue| Taken {
            events: std::iter::from_fn(|| queue.event()).collect(),
            ..Taken::default()
        };
        assert!(!says(&notices(queue.as_mut()), told));
        // The limit belongs to the process, but restricts this thread only: the other threads keep
        // CAP_IPC_LOCK. No socket was bound to `v0` before, so `open` needs only one attempt, and
        // only the memory of one attempt.
        let limit = getrlimit(Resource::Memlock);
        let low = Rlimit {
            current: Some(7 << 19),
            ..limit
        };
        setrlimit(Resource::Memlock, low).unwrap();
        // The kernel charges locked memory to the real user, so the thread takes a user number
        // without other processes. The effective user stays root.
        let number = 10_000 + std::process::id() % 50_000;
        let _ = set_thread_res_uid(Uid::from_raw(number), Uid::ROOT, Uid::ROOT);
        let mut sets = capabilities(None).unwrap();
        sets.effective -= CapabilitySet::IPC_LOCK;
        set_capabilities(None, sets).unwrap();
        let queue = open(few("v0"));
        setrlimit(Resource::Memlock, limit).unwrap();
        let notices = notices(queue.unwrap().as_mut());
        assert!(says(&notices, told), "{notices:?}");
    });
}

/// An interface that was moved to another network namespace comes back with its index. The queue
/// must capture from the interface again.
#[test]
fn an_interface_may_come_back_itself() {
    let (Some(namespace), Some(other)) =
        (Namespace::with_veth("xaway"), Namespace::new("xaway-there"))
    else {
        return;
    };
    namespace.enter(|| {
        let Some((mut queue, mut taken)) = begin() else {
            return;
        };
        for marker in 1..3 {
            taken.events.clear();
            ip(&format!("link set v1 netns {}", other.name()));
            take_until(
                queue.as_mut(),
                &mut taken,
                has(SourceEvent::InterfaceGone(0)),
            );
            other.enter(|| assert!(!is_attached("v1")));
            other.enter(|| ip(&format!("link set v1 netns {}", namespace.name())));
            ip("link set v1 up");
            take_until(queue.as_mut(), &mut taken, has(SourceEvent::InterfaceUp(0)));
            namespace.wait_for_carrier("v0");
            send("v0", &frame(&[], marker));
            let is_it = |taken: &Taken| taken.frames.iter().any(|(_, data)| data[14] == marker);
            take_until(queue.as_mut(), &mut taken, is_it);
        }
        stop_and_drain(queue.as_mut(), &mut taken);
    });
}

/// An interface that comes back with an address belongs to the host, until the address is removed.
#[test]
fn what_the_host_uses_is_not_taken_again() {
    let Some(namespace) = Namespace::with_veth("xback") else {
        return;
    };
    namespace.enter(|| {
        let Some((mut queue, mut taken)) = begin() else {
            return;
        };
        remove(queue.as_mut(), &mut taken);
        ip("link add v0 type veth peer name v1");
        ip("addr add 10.9.0.1/32 dev v1");
        ip("link set v0 up");
        ip("link set v1 up");
        let is_refused = |taken: &Taken| {
            let refused =
                |event: &&SourceEvent| matches!(event, SourceEvent::Notice(text) if text.contains("address"));
            taken.events.iter().filter(refused).count()
        };
        take_until(queue.as_mut(), &mut taken, |taken| is_refused(taken) > 0);
        assert!(!is_attached("v1"));
        ip("addr del 10.9.0.1/32 dev v1");
        take_until(queue.as_mut(), &mut taken, has(SourceEvent::InterfaceUp(0)));
        assert!(is_attached("v1"));
        assert_eq!(is_refused(&taken), 1, "it is told once");
        stop_and_drain(queue.as_mut(), &mut taken);
    });
}

/// If an interface gets an address after its return, it belongs to the host until the address is
/// removed.
#[test]
fn an_address_gives_an_interface_back() {
    let Some(namespace) = Namespace::with_veth("xclaim") else {
        return;
    };
    namespace.enter(|| {
        let Some((mut queue, mut taken)) = begin() else {
            return;
        };
        remove(queue.as_mut(), &mut taken);
        ip("link add v0 type veth peer name v1");
        ip("link set v0 up");
        ip("link set v1 up");
        take_until(queue.as_mut(), &mut taken, has(SourceEvent::InterfaceUp(0)));
        namespace.wait_for_carrier("v0");
        send("v0", &frame(&[], 1));
        take_until(queue.as_mut(), &mut taken, |taken| taken.frames.len() == 1);
        taken.events.clear();
        assert!(is_promiscuous("v1"));
        ip("addr add 10.9.0.1/32 dev v1");
        take_until(
            queue.as_mut(),
            &mut taken,
            has(SourceEvent::InterfaceLeft(0)),
        );
        assert!(!is_attached("v1") && !is_promiscuous("v1"));
        assert!(says(&taken, "v1 is the host's again"), "{taken:?}");
        assert!(says(&taken, "it has an address"), "{taken:?}");
        // This packet goes to the host.
        send("v0", &frame(&[], 2));
        ip("addr del 10.9.0.1/32 dev v1");
        take_until(queue.as_mut(), &mut taken, has(SourceEvent::InterfaceUp(0)));
        assert!(is_attached("v1") && is_promiscuous("v1"));
        assert!(!says(&taken, "is not taken"), "it was told before");
        assert!(!taken.events.contains(&SourceEvent::InterfaceGone(0)));
        send("v0", &frame(&[], 3));
        take_until(queue.as_mut(), &mut taken, |taken| taken.frames.len() == 2);
        assert_eq!(stop_and_drain(queue.as_mut(), &mut taken), (2, 0));
        assert_eq!(taken.frames[1].1[14], 3);
    });
}

fn is_promiscuous(interface: &str) -> bool {
    let mut command = std::process::Command::new("ip");
    let output = command.args(["-d", "link", "show", interface]).output();
    String::from_utf8_lossy(&output.unwrap().stdout).contains("promiscuity 1")
}

fn says(taken: &Taken, words: &str) -> bool {
    let is_it =
        |event: &SourceEvent| matches!(event, SourceEvent::Notice(text) if text.contains(words));
    taken.events.iter().any(is_it)
}

/// Opens `v1`, which has received no packets. Prints SKIP and returns `None` if the kernel has no
/// AF_XDP.
fn begin() -> Option<(Box<dyn Queue>, Taken)> {
    let mut queue = open(config("v1"))?;
    assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::Idle);
    Some((queue, Taken::default()))
}

/// Whether the queue has reported this event.
fn has(event: SourceEvent) -> impl Fn(&Taken) -> bool {
    move |taken| taken.events.contains(&event)
}

/// Removes the veth pair of a queue, and waits until the queue reports the removal.
fn remove(queue: &mut dyn Queue, taken: &mut Taken) {
    ip("link del v0");
    take_until(queue, taken, has(SourceEvent::InterfaceGone(0)));
}

/// Adds a veth pair with `queues` queues at each end, and sets both ends up.
fn add_with_queues(namespace: &Namespace, names: [&str; 2], queues: usize) {
    let side = format!("numtxqueues {queues} numrxqueues {queues}");
    let [one, other] = names;
    ip(&format!(
        "link add {one} {side} type veth peer name {other} {side}"
    ));
    for name in names {
        ip(&format!("link set {name} up"));
    }
    namespace.wait_for_carrier(one);
}

/// The two queues of a new `v1`. Prints SKIP and returns `None` if the kernel has no AF_XDP.
fn open_two(namespace: &Namespace) -> Option<[Served; 2]> {
    add_with_queues(namespace, ["v0", "v1"], 2);
    let queues = match open_as(config("v1")) {
        Ok(queues) => queues,
        Err(SourceError::Unsupported(message)) => {
            eprintln!("SKIP: {message}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let served = |queue| (queue, Taken::default());
    Some(<[_; 2]>::try_from(queues).unwrap().map(served))
}

/// A queue, and the frames and events that it delivered.
type Served = (Box<dyn Queue>, Taken);

/// Takes from the queues in turn until `is_done`.
fn serve(served: &mut [Served], is_done: impl Fn(&[Served]) -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !is_done(served) {
        for (queue, taken) in served.iter_mut() {
            assert_ne!(queue.next(Duration::ZERO).unwrap(), QueueStatus::End);
            let frames = queue.burst();
            let frames = frames.iter().map(|one| (one.meta, one.data.to_vec()));
            taken.frames.extend(frames);
            taken.events.extend(std::iter::from_fn(|| queue.event()));
        }
        let events = || {
            let taken = served.iter().map(|(_, taken)| &taken.events);
            taken.collect::<Vec<_>>()
        };
        assert!(Instant::now() < deadline, "{:?}", events());
    }
}

/// Sends one packet of each of 200 flows out of `v0`, and returns their number. The network stack
/// spreads the flows over the queues of the other end.
fn send_flows(payload_bytes: usize) -> u64 {
    ip("addr replace 10.9.0.1/24 dev v0");
    ip("neigh replace 10.9.0.2 lladdr 02:00:00:00:00:02 dev v0 nud permanent");
    for _ in 0..200 {
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        socket
            .send_to(&vec![0; payload_bytes], "10.9.0.2:9")
            .unwrap();
    }
    200
}

/// A renamed interface keeps its queues. The new owner of its old name is not captured before the
/// renamed interface is gone.
#[test]
fn a_new_name_changes_nothing() {
    let Some(namespace) = Namespace::new("xname") else {
        return;
    };
    namespace.enter(|| {
        let Some(mut served) = open_two(&namespace) else {
            return;
        };
        let told = |one: &Served, what: &SourceEvent| one.1.events.contains(what);
        let all_told =
            |what: SourceEvent| move |all: &[Served]| all.iter().all(|one| told(one, &what));
        let rename = || {
            ip("link set v1 down");
            ip("link set v1 name other");
            ip("link set other up");
            namespace.wait_for_carrier("v0");
        };
        let forget = |served: &mut [Served]| {
            served.iter_mut().for_each(|one| one.1.events.clear());
        };
        serve(&mut served, |_| is_attached("v1"));
        // The interface comes back with one queue and is renamed. Another interface gets the name
        // `v1`.
        ip("link del v0");
        serve(&mut served, all_told(SourceEvent::InterfaceGone(0)));
        add_with_queues(&namespace, ["v0", "v1"], 1);
        serve(&mut served, |all| {
            told(&all[0], &SourceEvent::InterfaceUp(0))
        });
        assert!(says(&served[1].1, "no receive queue 1"));
        rename();
        add_with_queues(&namespace, ["v2", "v1"], 2);
        let until = Instant::now() + Duration::from_millis(100);
        serve(&mut served, |_| Instant::now() > until);
        assert!(is_attached("other") && !is_attached("v1"));
        send("v0", &frame(&[], 1));
        serve(&mut served, |all| all[0].1.frames.len() == 1);
        forget(&mut served);
        ip("link set other down");
        serve(&mut served, |all| {
            told(&all[0], &SourceEvent::InterfaceDown(0))
        });
        // The renamed interface, `other`, is removed with its peer `v0`. Now the interface that has
        // the name `v1` is captured, with both queues.
        ip("link del v0");
        serve(&mut served, |all| {
            told(&all[0], &SourceEvent::InterfaceGone(0))
                && all_told(SourceEvent::InterfaceUp(0))(all)
        });
        assert!(is_attached("v1"));
        // The next interface is renamed before the second queue has found this interface.
        forget(&mut served);
        ip("link del v2");
        serve(&mut served, all_told(SourceEvent::InterfaceGone(0)));
        add_with_queues(&namespace, ["v0", "v1"], 2);
        serve(&mut served[..1], |_| is_attached("v1"));
        rename();
        serve(&mut served, all_told(SourceEvent::InterfaceUp(0)));
        assert!(is_attached("other"));
        for (queue, taken) in &mut served {
            stop_and_drain(queue.as_mut(), taken);
        }
    });
}

/// If another socket occupies a receive queue, only the engine's queue for this receive queue ends,
/// with an error. The other queue goes on, and reports that the interface is up. After a stop no
/// packet counts, not even a packet of a receive queue that the engine does not serve.
#[test]
fn a_queue_that_fails_holds_up_no_other() {
    let Some(namespace) = Namespace::new("xpart") else {
        return;
    };
    namespace.enter(|| {
        let Some(mut served) = open_two(&namespace) else {
            return;
        };
        let told = |one: &Served, what: &SourceEvent| one.1.events.contains(what);
        serve(&mut served, |_| is_attached("v1"));
        ip("link del v0");
        serve(&mut served, |all| {
            all.iter()
                .all(|one| told(one, &SourceEvent::InterfaceGone(0)))
        });
        // `LiveSender` occupies queue 0 of a veth interface that has one transmit queue.
        let (one, other) = ("numtxqueues 3 numrxqueues 1", "numtxqueues 1 numrxqueues 3");
        ip(&format!("link add v0 {one} type veth peer name v1 {other}"));
        ip("link set v0 up");
        ip("link set v1 up");
        namespace.wait_for_carrier("v0");
        let sender = LiveSender::open("v1", Path::new("retroscope")).unwrap();
        let [(mut first, _), second] = served;
        let mut second = [second];
        let deadline = Instant::now() + DEADLINE;
        let error = loop {
            assert!(Instant::now() < deadline);
            if let Err(error) = first.next(WAIT) {
                break error;
            }
        };
        assert!(error.to_string().contains("has its queue 0"), "{error}");
        serve(&mut second, |all| {
            told(&all[0], &SourceEvent::InterfaceUp(0))
        });
        assert!(is_attached("v1"));
        drop(sender);
        let mut unseen = || losses(first.as_mut())(LossCause::Unseen);
        send_flows(4);
        let before = unseen();
        assert!((1..200).contains(&before), "the third queue: {before}");
        // Packets that no chunk has room for go on to the host too.
        ip("link set v0 mtu 3000");
        ip("link set v1 mtu 3000");
        send_flows(2500);
        let large = unseen() - before;
        assert!((1..200).contains(&large), "the third queue: {large}");
        second[0].0.stop();
        let before = before + large;
        send_flows(4);
        assert_eq!(unseen(), before, "stopped");
        stop_and_drain(second[0].0.as_mut(), &mut second[0].1);
    });
}

/// An interface comes back with one, four and two receive queues, while the engine has two queues.
/// Every packet must be delivered or counted as lost.
#[test]
fn the_next_interface_may_have_other_queues() {
    let Some(namespace) = Namespace::new("xother") else {
        return;
    };
    namespace.enter(|| {
        let Some(mut served) = open_two(&namespace) else {
            return;
        };
        let told = |one: &Served, what: &SourceEvent| one.1.events.contains(what);
        let mut sent = 0;
        for count in [1, 4, 2] {
            served.iter_mut().for_each(|one| one.1.events.clear());
            ip("link del v0");
            serve(&mut served, |all| {
                told(&all[0], &SourceEvent::InterfaceGone(0))
                    && (told(&all[1], &SourceEvent::InterfaceGone(0)) || sent > 0)
            });
            add_with_queues(&namespace, ["v0", "v1"], count);
            serve(&mut served, |all| {
                told(&all[0], &SourceEvent::InterfaceUp(0))
            });
            assert_eq!(says(&served[1].1, "no receive queue 1"), count == 1);
            sent += send_flows(4);
            serve(&mut served, |all| {
                count <= 2 || says(&all[0].1, "more receive queues")
            });
        }
        let mut received = 0;
        let mut unseen = 0;
        for (queue, taken) in &mut served {
            queue.stop();
            take_until(queue.as_mut(), taken, |_| false);
            let statistics = queue.statistics();
            let lost: Option<u64> = statistics.lost.iter().map(|(_, count)| *count).sum();
            let came = taken.frames.len() as u64;
            assert_eq!(
                statistics.received,
                lost.map(|lost| came + lost),
                "{statistics:?}"
            );
            received += statistics.received.unwrap();
            unseen += losses(queue.as_mut())(LossCause::Unseen);
        }
        assert_eq!(received, sent);
        assert!(
            (1..200).contains(&unseen),
            "of the 4 queues 2 are served: {unseen}"
        );
    });
}
