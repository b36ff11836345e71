//! Runs the engine on `net_ring`, whose rings accept packets of any shape that a NIC's driver could
//! deliver.

use std::{
    ffi::CString,
    time::{Duration, Instant},
};

use super::{
    DpdkConfig, DpdkSource, EalConfig,
    eal::environment,
    sys::{Shape, feed},
};
use retroscope_capture::{
    CpuTurns, Direction, LossCause, Queue, QueueStatus, Source, VlanTag, live::OPEN_DRAIN_NS,
};

const PLAIN: Shape = Shape {
    more: 0,
    segment: 2048,
    tci: 0,
    is_tagged: false,
};

/// Longer than any operation of these tests.
const DEADLINE: Duration = Duration::from_secs(20);

fn eal() -> EalConfig {
    EalConfig {
        arguments: Vec::new(),
        devices: vec!["net_ring0".to_owned()],
    }
}

fn config(device: &str) -> DpdkConfig {
    DpdkConfig {
        device: device.to_owned(),
        eal: eal(),
        promiscuous: true,
        take_interface: false,
        buffer_bytes: None,
        cpus: CpuTurns::default(),
    }
}

fn open(device: &str, threads: usize) -> Vec<Box<dyn Queue>> {
    let source = DpdkSource(config(device));
    Box::new(source).open(threads).unwrap()
}

/// Puts a frame into a receive queue of a device. `false`: its ring is full.
fn put(device: &str, queue: u16, bytes: &[u8], shape: Shape) -> bool {
    let ring = CString::new(format!("ETH_RXTX{queue}_{device}")).unwrap();
    feed(environment(&eal()).unwrap(), &ring, bytes, &shape).unwrap()
}

/// Lent frames: bytes and tag.
type Taken = Vec<(Vec<u8>, Option<VlanTag>)>;

fn take(queue: &mut dyn Queue, taken: &mut Taken) {
    for frame in queue.burst().iter() {
        assert_eq!(frame.meta.captured_len, frame.meta.wire_len);
        assert_eq!(frame.meta.direction, Direction::Unknown);
        assert!(frame.meta.time_ns >= queue.watermark().unwrap());
        taken.push((frame.data.to_vec(), frame.meta.vlan));
    }
}

/// Stops all queues of a device, takes the remaining packets, and checks that the received packets
/// are the lent and the lost packets. Returns the lent frames of each queue, and the numbers of
/// received and of lost packets.
fn drain(queues: &mut [Box<dyn Queue>]) -> (Vec<Taken>, u64, u64) {
    queues.iter_mut().for_each(|queue| queue.stop());
    let mut taken: Vec<Taken> = queues.iter().map(|_| Vec::new()).collect();
    let start = Instant::now();
    let mut left: Vec<usize> = (0..queues.len()).collect();
    while !left.is_empty() {
        left.retain(|&index| {
            let status = queues[index].next(Duration::ZERO).unwrap();
            take(queues[index].as_mut(), &mut taken[index]);
            status != QueueStatus::End
        });
        assert!(start.elapsed() < DEADLINE);
    }
    let (mut received, mut lost) = (0, 0);
    for queue in queues.iter_mut() {
        let statistics = queue.statistics();
        received += statistics.received.unwrap();
        lost += statistics
            .lost
            .iter()
            .map(|(_, count)| count.unwrap())
            .sum::<u64>();
        while let Some(event) = queue.event() {
            assert!(
                !format!("{event:?}").contains("did not arrive"),
                "{event:?}"
            );
        }
    }
    let lent = taken.iter().map(Vec::len).sum::<usize>() as u64;
    assert_eq!(received, lent + lost, "the ledger does not close");
    (taken, received, lost)
}

fn frame(length: usize, marker: u8) -> Vec<u8> {
    (0..length)
        .map(|index| marker ^ u8::try_from(index % 251).unwrap())
        .collect()
}

#[test]
fn frames_of_one_or_many_buffers_come_as_they_were() {
    let mut queues = open("net_ring10", 1);
    let mut sent = Taken::new();
    for (index, length) in [60, 64, 1514, 2048, 2049, 9014, 16_000, 65_536]
        .into_iter()
        .enumerate()
    {
        for segment in [2048, 1000] {
            let frame = frame(length, u8::try_from(index).unwrap());
            assert!(put("net_ring10", 3, &frame, Shape { segment, ..PLAIN }));
            sent.push((frame, None));
        }
    }
    let (taken, received, lost) = drain(&mut queues);
    assert_eq!((received, lost), (sent.len() as u64, 0));
    assert!(taken[0] == sent);
}

/// Packets that wait when the queue is stopped are delivered, however late the next call of
/// [`Queue::next`] is.
#[test]
fn a_stopped_queue_waits_for_whoever_is_slow_to_ask() {
    let mut queues = open("net_ring21", 1);
    assert!(put("net_ring21", 0, &frame(64, 1), PLAIN));
    queues[0].stop();
    let late = Duration::from_nanos(2 * OPEN_DRAIN_NS.unsigned_abs());
    let stopped = Instant::now();
    while stopped.elapsed() < late {
        std::thread::yield_now();
    }
    let (taken, received, lost) = drain(&mut queues);
    assert_eq!((taken[0].len(), received, lost), (1, 1, 0));
}

/// A failed opening closes the port and releases the lock for ports, so that the device can be
/// opened again.
#[test]
fn a_device_that_cannot_be_opened_is_in_nobodys_way() {
    let greedy = DpdkConfig {
        // The largest possible number of buffers for every queue needs more than the memory of the
        // environment.
        buffer_bytes: Some(1 << 40),
        ..config("net_ring20")
    };
    let refusal = Box::new(DpdkSource(greedy)).open(1).unwrap_err();
    assert!(refusal.to_string().contains("no memory"), "{refusal}");
    let (_, received, lost) = drain(&mut open("net_ring20", 1));
    assert_eq!((received, lost), (0, 0));
}

#[test]
fn tags_that_the_device_took_out_are_told() {
    let mut queues = open("net_ring11", 1);
    let bytes = frame(64, 1);
    for tci in [10, 0xe00a] {
        assert!(put(
            "net_ring11",
            0,
            &bytes,
            Shape {
                is_tagged: true,
                tci,
                ..PLAIN
            }
        ));
    }
    let (taken, ..) = drain(&mut queues);
    let tag = |tci| Some(VlanTag { tpid: 0x8100, tci });
    assert_eq!(taken[0], [(bytes.clone(), tag(10)), (bytes, tag(0xe00a))]);
}

/// Wrong lengths of a broken driver must not make the engine read other buffers.
#[test]
fn lengths_that_do_not_fit_are_counted() {
    let mut queues = open("net_ring12", 1);
    let good = frame(100, 7);
    // A segment that ends after its buffer; segments shorter than their head claims; a frame that
    // is too long.
    for (length, more) in [(100, 4000), (5000, 1), (100, 100_000)] {
        assert!(put(
            "net_ring12",
            0,
            &frame(length, 9),
            Shape { more, ..PLAIN }
        ));
    }
    assert!(put("net_ring12", 0, &good, PLAIN));
    let (taken, received, lost) = drain(&mut queues);
    assert_eq!(taken[0], [(good, None)]);
    assert_eq!((received, lost), (4, 3));
    let statistics = queues[0].statistics();
    assert!(
        statistics.lost.contains(&(LossCause::Oversize, Some(3))),
        "{statistics:?}"
    );
}

/// `net_ring` has 16 queues, which get packets whether a thread receives from them or not.
#[test]
fn all_queues_are_served_in_order_by_fewer_threads() {
    let mut queues = open("net_ring13", 3);
    assert_eq!(queues.len(), 3);
    let mut sent: Vec<Vec<Vec<u8>>> = vec![Vec::new(); 16];
    for round in 0..200_u8 {
        for queue in 0..16_u16 {
            let mut frame = frame(64, round);
            frame[0] = u8::try_from(queue).unwrap();
            assert!(put("net_ring13", queue, &frame, PLAIN));
            sent[usize::from(queue)].push(frame);
        }
    }
    let (taken, received, _) = drain(&mut queues);
    assert_eq!(received, 16 * 200);
    for (queue, sent) in sent.iter().enumerate() {
        let of_queue = taken[queue % 3]
            .iter()
            .map(|(data, _)| data)
            .filter(|data| usize::from(data[0]) == queue);
        assert!(of_queue.eq(sent), "queue {queue}");
    }
}

/// While nobody reads, the packets that the ring accepted wait, and the sender knows which were
/// refused.
#[test]
fn a_stalled_reader_gets_all_that_was_taken() {
    let mut queues = open("net_ring14", 1);
    let bytes = frame(64, 5);
    let accepted = (0..3000)
        .filter(|_| put("net_ring14", 0, &bytes, PLAIN))
        .count();
    assert!((512..3000).contains(&accepted), "{accepted}");
    let (taken, received, lost) = drain(&mut queues);
    assert_eq!(
        (taken[0].len(), received, lost),
        (accepted, accepted as u64, 0)
    );
}

#[test]
fn an_idle_queue_moves_its_watermark() {
    let mut queues = open("net_ring15", 1);
    let queue = &mut queues[0];
    assert_eq!(queue.next(Duration::ZERO).unwrap(), QueueStatus::Idle);
    let first_ns = queue.watermark().unwrap();
    assert_eq!(
        queue.next(Duration::from_millis(3)).unwrap(),
        QueueStatus::Idle
    );
    assert!(queue.watermark().unwrap() - first_ns >= 1_000_000);
    drain(&mut queues);
}
