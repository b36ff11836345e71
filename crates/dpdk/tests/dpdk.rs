//! DPDK's vdevs: generated traffic, files, and interfaces of separate network namespaces.
//!
//! Without the feature `dpdk` this file is empty. `scripts/dpdk.sh` runs these tests, or reports
//! why not. All tests of a process share one DPDK environment (EAL), so these tests have a separate
//! binary. Tests of interfaces need root and `ip`.
#![cfg(feature = "dpdk")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "test code, also outside of test functions"
)]

#[path = "../../capture/tests/capture/support/mod.rs"]
mod support;

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use retroscope_capture::{
    CpuTurns, FrameMeta, LossCause, Queue, QueueStatus, Source, SourceError, SourceEvent,
    TimeDomain, VlanTag,
};
use retroscope_dpdk::{DpdkConfig, DpdkSource, EalConfig};
use support::{
    DEADLINE, WAIT, generate,
    namespace::{Namespace, ip},
    traffic::{assert_in_order, drain_beside, frame, now_ns, send_all, with_tag},
};

fn config(device: &str) -> DpdkConfig {
    DpdkConfig {
        device: device.to_owned(),
        eal: EalConfig {
            arguments: Vec::new(),
            devices: vec!["net_null".to_owned()],
        },
        promiscuous: true,
        take_interface: false,
        buffer_bytes: None,
        cpus: CpuTurns::default(),
    }
}

fn try_open(device: &str, threads: usize) -> Result<Vec<Box<dyn Queue>>, SourceError> {
    Box::new(DpdkSource(config(device))).open(threads)
}

fn open(device: &str) -> Box<dyn Queue> {
    let mut queues = try_open(device, 1).unwrap();
    assert_eq!(queues.len(), 1);
    queues.remove(0)
}

/// Frames and notices of a queue.
#[derive(Debug, Default)]
struct Taken {
    frames: Vec<(FrameMeta, Vec<u8>)>,
    notices: Vec<String>,
}

/// Takes frames and notices from a queue until `taken` has `count` frames in all, or until the
/// queue ends.
fn take(queue: &mut dyn Queue, taken: &mut Taken, count: usize) {
    let start = Instant::now();
    while taken.frames.len() < count {
        let status = queue.next(WAIT).unwrap();
        for frame in queue.burst().iter() {
            if let Some(watermark_ns) = queue.watermark() {
                assert!(frame.meta.time_ns >= watermark_ns);
            }
            taken.frames.push((frame.meta, frame.data.to_vec()));
        }
        while let Some(event) = queue.event() {
            if let SourceEvent::Notice(text) = event {
                taken.notices.push(text);
            }
        }
        if status == QueueStatus::End {
            return;
        }
        assert!(
            start.elapsed() < DEADLINE,
            "{} frames, {:?}",
            taken.frames.len(),
            taken.notices
        );
    }
}

/// Stops a queue, takes the remaining frames, and checks that every received packet was taken or
/// counted as lost. Returns received packets, and lost packets by cause.
fn drain(queue: &mut dyn Queue, taken: &mut Taken) -> (u64, Vec<(LossCause, Option<u64>)>) {
    queue.stop();
    take(queue, taken, usize::MAX);
    assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::End);
    let statistics = queue.statistics();
    let lost: u64 = statistics.lost.iter().filter_map(|(_, count)| *count).sum();
    let received = statistics.received.unwrap();
    assert_eq!(
        received,
        taken.frames.len() as u64 + lost,
        "the ledger does not close: {statistics:?}"
    );
    assert!(
        !taken
            .notices
            .iter()
            .any(|text| text.contains("did not arrive")),
        "{:?}",
        taken.notices
    );
    (received, statistics.lost)
}

fn nic(lost: &[(LossCause, Option<u64>)]) -> Option<u64> {
    lost.iter()
        .find(|(cause, _)| *cause == LossCause::Nic)
        .unwrap()
        .1
}

#[test]
fn made_up_traffic_comes_for_ever_and_stops_at_once() {
    let mut queues = try_open("net_null20,size=100", 2).unwrap();
    assert_eq!(queues.len(), 2);
    let (mut received, mut lent) = (0, 0);
    let mut taken = [Taken::default(), Taken::default()];
    for (queue, taken) in queues.iter_mut().zip(&mut taken) {
        let before_ns = now_ns();
        assert_eq!(queue.interfaces()[0].time_domain, TimeDomain::Fetch);
        take(queue.as_mut(), taken, 10_000);
        let is_of_now = |time_ns: i64| (before_ns..=now_ns()).contains(&time_ns);
        assert!(
            taken
                .frames
                .iter()
                .all(|(meta, data)| is_of_now(meta.time_ns) && data.len() == 100)
        );
    }
    queues.iter_mut().for_each(|queue| queue.stop());
    for (queue, taken) in queues.iter_mut().zip(&mut taken).rev() {
        let before = taken.frames.len();
        take(queue.as_mut(), taken, usize::MAX);
        assert_eq!(taken.frames.len(), before, "frames after the stop");
    }
    for (queue, taken) in queues.iter_mut().zip(&taken) {
        let statistics = queue.statistics();
        assert!(
            statistics.lost.iter().all(|(_, count)| *count == Some(0)),
            "{statistics:?}"
        );
        received += statistics.received.unwrap();
        lent += taken.frames.len() as u64;
    }
    assert_eq!(received, lent);
}

/// Writes a pcap file with stamps in µs.
fn write_pcap(path: &Path, frames: &[(i64, Vec<u8>)]) {
    let mut bytes = Vec::new();
    bytes.extend(0xa1b2_c3d4_u32.to_ne_bytes());
    bytes.extend([2_u16, 4].iter().flat_map(|number| number.to_ne_bytes()));
    bytes.extend(
        [0_u32, 0, 262_144, 1]
            .iter()
            .flat_map(|number| number.to_ne_bytes()),
    );
    for (time_ns, frame) in frames {
        let length = u32::try_from(frame.len()).unwrap();
        let seconds = u32::try_from(time_ns / 1_000_000_000).unwrap();
        let microseconds = u32::try_from(time_ns % 1_000_000_000 / 1000).unwrap();
        bytes.extend(
            [seconds, microseconds, length, length]
                .iter()
                .flat_map(|number| number.to_ne_bytes()),
        );
        bytes.extend(frame);
    }
    fs::write(path, bytes).unwrap();
}

fn numbered(length: usize, number: usize) -> Vec<u8> {
    (0..length)
        .map(|index| u8::try_from((index + number) % 253).unwrap())
        .collect()
}

#[test]
fn files_come_as_they_are_with_their_stamps() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.pcap");
    let start_ns = 1_600_000_000_123_456_000;
    let lengths = [60, 64, 1514, 2048, 2049, 9014, 30_000, 60];
    let sent: Vec<(i64, Vec<u8>)> = (0..2000)
        .map(|number| {
            (
                start_ns + 7000 * i64::try_from(number).unwrap(),
                numbered(lengths[number % 8], number),
            )
        })
        .collect();
    write_pcap(&file, &sent);
    let mut queue = open(&format!("net_pcap21,rx_pcap={}", file.display()));
    let interface = &queue.interfaces()[0];
    assert_eq!(
        (interface.name.as_str(), interface.time_domain),
        ("net_pcap21", TimeDomain::File)
    );
    assert_eq!(
        (interface.time_resolution_ns, queue.watermark()),
        (1000, None)
    );
    let mut taken = Taken::default();
    take(queue.as_mut(), &mut taken, sent.len());
    let (received, lost) = drain(queue.as_mut(), &mut taken);
    assert_eq!((received, nic(&lost)), (2000, Some(0)));
    for (number, ((meta, data), (time_ns, sent))) in taken.frames.iter().zip(&sent).enumerate() {
        assert_eq!(
            (meta.time_ns, meta.wire_len as usize),
            (*time_ns, sent.len()),
            "frame {number}"
        );
        assert!(data == sent, "frame {number}");
    }
}

/// Each file of a device is a separate queue, and the engine must serve every queue, even with one
/// thread.
#[test]
fn all_files_of_a_device_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut device = "net_pcap22".to_owned();
    for number in 0..3 {
        let file = folder.path().join(format!("{number}.pcap"));
        let frames: Vec<(i64, Vec<u8>)> = (0..50).map(|_| (0, numbered(60 + number, 0))).collect();
        write_pcap(&file, &frames);
        device += &format!(",rx_pcap={}", file.display());
    }
    let mut queue = open(&device);
    let mut taken = Taken::default();
    take(queue.as_mut(), &mut taken, 150);
    assert_eq!(drain(queue.as_mut(), &mut taken).0, 150);
    for length in 60..63 {
        assert_eq!(
            taken
                .frames
                .iter()
                .filter(|(_, data)| data.len() == length)
                .count(),
            50
        );
    }
    assert!(
        taken.notices[0].contains("3 receive queues, 1 thread"),
        "{:?}",
        taken.notices
    );
}

#[test]
fn an_interface_through_libpcap_loses_what_is_counted() {
    let Some(namespace) = Namespace::with_veth("dpcap") else {
        return;
    };
    namespace.enter(|| {
        let mut queue = open("net_pcap23,rx_iface=v1");
        assert_eq!(
            queue.interfaces()[0].time_domain,
            TimeDomain::KernelSoftware
        );
        // While nobody reads, libpcap's buffer of 2 MiB is soon full.
        let sent = generate("v0", "generate:flows=10,count=60000,size=200");
        let mut taken = Taken::default();
        let (received, lost) = drain(queue.as_mut(), &mut taken);
        assert_eq!(received, sent);
        assert!(
            nic(&lost).unwrap() > 0 && !taken.frames.is_empty(),
            "{lost:?}"
        );
    });
}

const RING: &str = "framecnt=65536,blocksz=1048576";

#[test]
fn contents_and_order_are_those_that_were_sent() {
    let Some(namespace) = Namespace::with_veth("dsame") else {
        return;
    };
    namespace.enter(|| {
        ip("link set v0 mtu 9000");
        ip("link set v1 mtu 9000");
        let mut queue = open("net_af_packet24,iface=v1,framesz=16384,framecnt=1024,blocksz=65536");
        let mut sent = Vec::new();
        for length in [60, 64, 1514, 1518, 2048, 2049, 4096, 9014] {
            for tags in [
                &[][..],
                &[0x81, 0, 0, 10],
                &[0x81, 0, 0x20, 20, 0x81, 0, 0xe0, 10],
            ] {
                let mut frame = frame(tags, u8::try_from(sent.len()).unwrap());
                frame.extend(numbered(length, 0));
                frame.truncate(length);
                sent.push(frame);
            }
        }
        send_all("v0", &sent);
        let mut taken = Taken::default();
        take(queue.as_mut(), &mut taken, sent.len());
        assert_eq!(drain(queue.as_mut(), &mut taken).0, sent.len() as u64);
        for (index, ((meta, data), sent)) in taken.frames.iter().zip(&sent).enumerate() {
            assert_eq!(&with_tag(meta, data), sent, "frame {index}");
        }
        let tag = Some(VlanTag {
            tpid: 0x8100,
            tci: 10,
        });
        assert_eq!(taken.frames[1].0.vlan, tag, "the driver took it out");
    });
}

#[test]
fn everything_comes_at_speed_and_in_order() {
    let Some(namespace) = Namespace::with_veth("dspeed") else {
        return;
    };
    namespace.enter(|| {
        let mut queue = open(&format!("net_af_packet25,iface=v1,{RING}"));
        let mut taken = Taken::default();
        let sent = std::thread::scope(|scope| {
            let text = "generate:flows=100,count=60000,rate=50kpps,seed=5";
            let sender = scope.spawn(|| namespace.enter(|| generate("v0", text)));
            take(queue.as_mut(), &mut taken, 60_000);
            sender.join().unwrap()
        });
        let (received, lost) = drain(queue.as_mut(), &mut taken);
        assert_eq!((sent, received), (60_000, 60_000));
        assert_eq!(nic(&lost), None, "the driver does not ask the kernel");
        assert_in_order(&taken.frames, 60_000);
    });
}

#[test]
fn a_stalled_reader_gets_what_the_kernels_ring_holds() {
    let Some(namespace) = Namespace::with_veth("dstall") else {
        return;
    };
    namespace.enter(|| {
        let mut queue = open("net_af_packet26,iface=v1,framecnt=512");
        let sent = generate("v0", "generate:flows=10,count=5000");
        let mut taken = Taken::default();
        let (received, lost) = drain(queue.as_mut(), &mut taken);
        assert_eq!((sent, received, taken.frames.len()), (5000, 512, 512));
        assert_eq!(nic(&lost), None, "4488 were lost, and nobody counted them");
    });
}

/// The kernel's promiscuity count of an interface: how many users have set promiscuous mode.
fn promiscuity(interface: &str) -> String {
    let output = Command::new("ip")
        .args(["-d", "link", "show", interface])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut words = text
        .split_whitespace()
        .skip_while(|word| *word != "promiscuity");
    words.nth(1).unwrap().to_owned()
}

#[test]
fn an_interface_is_as_it_was_when_the_queue_goes() {
    let Some(namespace) = Namespace::with_veth("dprom") else {
        return;
    };
    namespace.enter(|| {
        let queue = open("net_af_packet27,iface=v1");
        assert_eq!(promiscuity("v1"), "1");
        drop(queue);
        // A child process that another test is starting may still have the queue's socket for an
        // instant.
        let start = Instant::now();
        while promiscuity("v1") != "0" {
            assert!(start.elapsed() < DEADLINE);
        }
        let quiet = DpdkConfig {
            promiscuous: false,
            ..config("net_af_packet27,iface=v1")
        };
        let queue = Box::new(DpdkSource(quiet)).open(1).unwrap();
        assert_eq!(promiscuity("v1"), "0");
        drop(queue);
    });
}

#[test]
fn an_interface_goes_down_and_comes_back() {
    let Some(namespace) = Namespace::with_veth("ddown") else {
        return;
    };
    namespace.enter(|| {
        let mut queue = open("net_af_packet28,iface=v1");
        let wait_for = |queue: &mut dyn Queue, wanted: SourceEvent| {
            let start = Instant::now();
            loop {
                queue.next(WAIT).unwrap();
                if std::iter::from_fn(|| queue.event()).any(|event| event == wanted) {
                    return;
                }
                assert!(start.elapsed() < DEADLINE, "{wanted:?}");
            }
        };
        ip("link set v1 down");
        wait_for(queue.as_mut(), SourceEvent::InterfaceDown(0));
        ip("link set v1 up");
        wait_for(queue.as_mut(), SourceEvent::InterfaceUp(0));
        namespace.wait_for_carrier("v0");
        send_all("v0", &[frame(&[], 1)]);
        let mut taken = Taken::default();
        take(queue.as_mut(), &mut taken, 1);
    });
}

/// After the removal of an interface the driver keeps its socket. The socket receives no more
/// packets, even if an interface of the same name exists again.
#[test]
fn a_removed_interface_ends_its_device() {
    for (name, device) in [
        ("dgone", "net_af_packet32,iface=v1"),
        ("dgonep", "net_pcap32,rx_iface=v1"),
    ] {
        let Some(namespace) = Namespace::with_veth(name) else {
            return;
        };
        namespace.enter(|| {
            let mut queue = open(device);
            send_all("v0", &[frame(&[], 1), frame(&[], 2)]);
            let mut taken = Taken::default();
            take(queue.as_mut(), &mut taken, 2);
            ip("link del v0");
            ip("link add v0 type veth peer name v1");
            ip("link set v1 up");
            let start = Instant::now();
            let error = loop {
                match queue.next(WAIT) {
                    Err(error) => break error.to_string(),
                    Ok(_) => assert!(start.elapsed() < DEADLINE, "{device} goes on"),
                }
            };
            assert!(error.contains("v1 was removed"), "{error}");
            let statistics = queue.statistics();
            assert_eq!(statistics.received, Some(2), "{statistics:?}");
            let damaged = (LossCause::Damaged, Some(0));
            assert!(statistics.lost.contains(&damaged), "{statistics:?}");
            assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::End);
        });
    }
}

/// The first queue reports the counters of both queues, and finds the removal while packets still
/// wait in the other queue.
#[test]
fn a_removed_interface_ends_a_device_of_two_queues() {
    let Some(namespace) = Namespace::with_veth("dgonetwo") else {
        return;
    };
    namespace.enter(|| {
        let device = "net_af_packet33,iface=v1,qpairs=2,framecnt=1024";
        let mut queues = try_open(device, 2).unwrap();
        assert_eq!(queues.len(), 2);
        generate("v0", "generate:flows=100,count=500");
        ip("link del v0");
        // Longer than 50 ms, the time between two checks of the interface by a queue.
        let alone = Duration::from_millis(100);
        let (mut lent, mut received) = ([0, 0], 0);
        let (mut left, start) = (vec![0, 1], Instant::now());
        while !left.is_empty() {
            left.retain(|&index: &usize| {
                if index == 1 && start.elapsed() < alone {
                    return true;
                }
                let status = queues[index].next(WAIT);
                lent[index] += queues[index].burst().frames.len() as u64;
                let Err(error) = status else {
                    return true;
                };
                assert!(error.to_string().contains("v1 was removed"), "{error}");
                received += queues[index].statistics().received.unwrap();
                assert_eq!(queues[index].next(WAIT).unwrap(), QueueStatus::End);
                false
            });
            assert!(start.elapsed() < DEADLINE, "{device} goes on: {lent:?}");
        }
        assert!(lent.iter().all(|lent| *lent > 0), "{lent:?}");
        assert_eq!(received, lent.iter().sum(), "the ledger does not close");
    });
}

#[test]
fn refusals_name_what_to_do() {
    let refusal = |device: &str| try_open(device, 1).unwrap_err().to_string();
    assert!(refusal("eth0").contains("net_af_packet0,iface=eth0"));
    assert!(refusal("net_nothing0").contains("rte_dev_probe"));
    let no_interface = refusal("net_af_packet29,iface=no-such-if");
    assert!(no_interface.contains("no-such-if"), "{no_interface}");
    let no_file = refusal("net_pcap29,rx_pcap=/no/such/file");
    assert!(no_file.contains("/no/such/file"), "{no_file}");
}

#[test]
fn what_the_host_uses_is_refused() {
    let Some(namespace) = Namespace::with_veth("dhost") else {
        return;
    };
    namespace.enter(|| {
        ip("addr add 10.9.0.1/32 dev v0");
        let message = try_open("net_af_xdp30,iface=v0", 1)
            .unwrap_err()
            .to_string();
        assert!(message.contains("address"), "{message}");
        assert!(message.contains("take-interface"), "{message}");
        // `net_af_packet` copies the packets, and the host still gets its packets. So the device is
        // accepted.
        open("net_af_packet30,iface=v0");
    });
}

#[test]
#[ignore = "10 seconds of full speed: run it alone, in a release build"]
fn two_hundred_thousand_a_second_for_ten_seconds() {
    let Some(namespace) = Namespace::with_veth("dlong") else {
        return;
    };
    namespace.enter(|| {
        let mut queue = open(&format!("net_af_packet31,iface=v1,{RING}"));
        let mut frames = 0;
        let text = "generate:flows=1000,rate=200kpps,duration=10s";
        let sent = drain_beside(&namespace, queue.as_mut(), text, |burst| {
            frames += burst.frames.len();
        });
        println!("{sent} sent, {frames} came: {:?}", queue.statistics());
        assert_eq!((sent, frames), (2_000_000, 2_000_000));
    });
}
