//! Frames made by hand, and functions that take all frames of a queue.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use retroscope_capture::{
    Burst, Direction, FrameMeta, LossCause, Queue, QueueStatus, SourceEvent, VlanTag,
    send::LiveSender,
};

use super::{DEADLINE, WAIT, generate, generate_while, is_udp_of_generator, namespace::Namespace};

/// The system clock in ns since the UNIX epoch.
pub(crate) fn now_ns() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Frames and events of a queue.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub(crate) frames: Vec<(FrameMeta, Vec<u8>)>,
    pub(crate) events: Vec<SourceEvent>,
}

/// State of the machine that shows interference with a test. A packet may be older than the
/// watermark if the host of a virtual machine takes a CPU away between the packet's stamp and its
/// placement in the ring. A step of the system clock has the same effect.
struct Machine {
    /// Stolen time in hundredths of a second, of all CPUs together.
    stolen: i64,
    /// System clock minus monotonic clock, ns.
    ahead_ns: i64,
}

impl Machine {
    fn look() -> Self {
        let monotonic_ns = || {
            let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            time.tv_sec * 1_000_000_000 + time.tv_nsec
        };
        // Reads the clocks again if 1 ms or more passed between the readings, because the thread
        // was interrupted.
        let ahead_ns = loop {
            let (before_ns, now_ns) = (monotonic_ns(), now_ns());
            if monotonic_ns() - before_ns < 1_000_000 {
                break now_ns - before_ns;
            }
        };
        let all = std::fs::read_to_string("/proc/stat").unwrap();
        // "cpu", user, nice, system, idle, iowait, irq, softirq, steal.
        let stolen = all.split_whitespace().nth(8).unwrap().parse().unwrap();
        Self { stolen, ahead_ns }
    }

    /// Judges a packet that is `late_ns` older than the watermark. Returns if, since `self` was
    /// read, CPUs were stolen for about this time or longer, or the clock was set by this amount or
    /// more, at least 10 ms. Otherwise panics after 100 ms, because the kernel counts stolen time a
    /// little later.
    fn excuses(&self, late_ns: i64) {
        let deadline = Instant::now() + Duration::from_millis(100);
        loop {
            let now = Self::look();
            let stolen_ns = (now.stolen - self.stolen) * 10_000_000;
            let set_ns = (now.ahead_ns - self.ahead_ns).abs();
            // The kernel counts only whole hundredths of a second, so up to 10 ms may be uncounted.
            if stolen_ns > 0 && stolen_ns + 10_000_000 >= late_ns
                || set_ns >= late_ns.max(10_000_000)
            {
                eprintln!(
                    "a packet is {late_ns} ns older than the watermark: CPUs were stolen, or the clock was set"
                );
                return;
            }
            assert!(
                Instant::now() < deadline,
                "a packet is {late_ns} ns older than the watermark, {stolen_ns} ns were stolen"
            );
            std::thread::yield_now();
        }
    }
}

/// Takes frames and events from a queue until `enough` returns true or the queue ends. Returns
/// whether the queue has ended. Panics if a packet is older than the watermark and
/// [`Machine::excuses`] finds no cause for this. Also panics after [`DEADLINE`].
pub(crate) fn take_until(
    queue: &mut dyn Queue,
    taken: &mut Taken,
    mut enough: impl FnMut(&Taken) -> bool,
) -> bool {
    let (machine, deadline) = (Machine::look(), Instant::now() + DEADLINE);
    loop {
        let before_ns = queue.watermark();
        let status = queue.next(WAIT).unwrap();
        for frame in queue.burst().iter() {
            let late_ns = before_ns.max(queue.watermark()).unwrap_or(i64::MIN);
            let late_ns = late_ns.saturating_sub(frame.meta.time_ns);
            if late_ns > 0 {
                machine.excuses(late_ns);
            }
            taken.frames.push((frame.meta, frame.data.to_vec()));
        }
        taken.events.extend(std::iter::from_fn(|| queue.event()));
        if status == QueueStatus::End {
            return true;
        }
        if enough(taken) {
            return false;
        }
        assert!(
            Instant::now() < deadline,
            "{} frames, {:?}",
            taken.frames.len(),
            taken.events
        );
    }
}

/// Stops a queue, takes the rest, and checks the ledger: received = lent + lost. Returns received
/// and lost.
pub(crate) fn stop_and_drain(queue: &mut dyn Queue, taken: &mut Taken) -> (u64, u64) {
    queue.stop();
    assert!(take_until(queue, taken, |_| false));
    assert!(queue.burst().frames.is_empty());
    assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::End);
    let statistics = queue.statistics();
    let lost = match statistics.lost[..] {
        // The first queue of an interface reports the NIC's losses; veth has no such losses.
        [(LossCause::Nic, Some(0)), (LossCause::Kernel, Some(lost))] => lost,
        [(LossCause::Kernel, Some(lost))] => lost,
        _ => panic!("{statistics:?}"),
    };
    let received = statistics.received.unwrap();
    assert_eq!(
        received,
        taken.frames.len() as u64 + lost,
        "the ledger does not close"
    );
    (received, lost)
}

/// Sends `count` frames of the generator out of `v0` at full speed, and takes the captured frames
/// meanwhile, on the same thread. Whenever about 10,000 sent frames are not taken yet, the thread
/// takes them. So even if the thread is interrupted, and the kernel closes blocks that are not
/// full, only a part of the ring's blocks waits.
pub(crate) fn generate_and_take(queue: &mut dyn Queue, taken: &mut Taken, count: u64) -> u64 {
    let text = format!("generate:flows=100,count={count},seed=5");
    generate_while("v0", &text, |sent| {
        if sent.saturating_sub(taken.frames.len() as u64) >= 10_000 || sent == count {
            let all = |taken: &Taken| taken.frames.len() as u64 >= sent;
            take_until(queue, taken, all);
        }
        true
    })
}

/// Sends the traffic that `text` describes out of `v0` on another thread. `look` gets each burst
/// that the queue lends meanwhile and afterwards, until the queue ends. Returns the number of sent
/// frames.
pub(crate) fn drain_beside(
    namespace: &Namespace,
    queue: &mut dyn Queue,
    text: &str,
    mut look: impl FnMut(Burst<'_>),
) -> usize {
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| namespace.enter(|| generate("v0", text)));
        let (mut is_stopped, deadline) = (false, Instant::now() + 2 * DEADLINE);
        loop {
            match queue.next(WAIT).unwrap() {
                QueueStatus::End => break,
                QueueStatus::Idle if sender.is_finished() && !is_stopped => {
                    is_stopped = true;
                    queue.stop();
                }
                QueueStatus::Idle | QueueStatus::Frames => {}
            }
            look(queue.burst());
            assert!(Instant::now() < deadline, "the queue does not end");
        }
        usize::try_from(sender.join().unwrap()).unwrap()
    })
}

/// The sequence number of a frame of the generator.
pub(crate) fn sequence(data: &[u8]) -> u64 {
    u64::from_be_bytes(data[42..50].try_into().unwrap())
}

/// Asserts that the queue delivered exactly the generator's first `count` frames, in order.
pub(crate) fn assert_in_order(frames: &[(FrameMeta, Vec<u8>)], count: u64) {
    let mut frames = frames.iter().map(|(_, data)| data.as_slice());
    assert!(frames.clone().all(is_udp_of_generator));
    assert!(frames.by_ref().map(sequence).eq(0..count));
}

/// Sends one frame.
pub(crate) fn send(interface: &str, frame: &[u8]) {
    send_all(interface, &[frame.to_vec()]);
}

/// Sends frames, one after the other.
pub(crate) fn send_all(interface: &str, frames: &[Vec<u8>]) {
    let mut sender = LiveSender::open(interface, Path::new("retroscope")).unwrap();
    for frame in frames {
        send_with(&mut sender, frame);
    }
}

/// Sends one frame.
pub(crate) fn send_with(sender: &mut LiveSender, frame: &[u8]) {
    let length = u32::try_from(frame.len()).unwrap();
    let meta = FrameMeta {
        time_ns: 0,
        offset: 0,
        captured_len: length,
        wire_len: length,
        interface: 0,
        direction: Direction::Unknown,
        vlan: None,
    };
    sender
        .send(Burst {
            memory: frame,
            frames: &[meta],
        })
        .unwrap();
}

/// An Ethernet frame with a local experimental EtherType after `tags`.
pub(crate) fn frame(tags: &[u8], marker: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    frame.extend(tags);
    frame.extend([0x88, 0xb5, marker]);
    frame.resize(80, marker);
    frame
}

/// Whether a captured frame has the EtherType of [`frame`], possibly after up to two tags.
pub(crate) fn is_ours(data: &[u8]) -> bool {
    data.windows(2)
        .skip(12)
        .take(9)
        .any(|kind| kind == [0x88, 0xb5])
}

/// The frame in the form that it had on the wire.
pub(crate) fn with_tag(meta: &FrameMeta, data: &[u8]) -> Vec<u8> {
    let Some(VlanTag { tpid, tci }) = meta.vlan else {
        return data.to_vec();
    };
    [
        &data[..12],
        &tpid.to_be_bytes(),
        &tci.to_be_bytes(),
        &data[12..],
    ]
    .concat()
}
