//! AF_XDP with frames of several lengths: the requested driver mode, and a changing MTU. Needs
//! root, `ip`, and a kernel with AF_XDP.

use std::time::{Duration, Instant};

use crate::support::{
    WAIT,
    namespace::{Namespace, ip},
    traffic::{Taken, frame, send_all, take_until},
    xdp::{config, losses, open, stop_and_drain},
};
use retroscope_capture::{LossCause, Queue, QueueStatus, SourceEvent, af_xdp::CopyReason};
use rustix::io::Errno;

/// A frame of `length` bytes.
fn long(marker: u8, length: usize) -> Vec<u8> {
    let mut frame = frame(&[], marker);
    frame.resize(length, marker);
    frame
}

/// Sends frames of these lengths on `v0`, and takes the frames of at most `max` bytes. Returns the
/// number of longer frames.
fn only_fitting(queue: &mut dyn Queue, taken: &mut Taken, lengths: &[usize], max: usize) -> u64 {
    let frames: Vec<_> = (0_u8..)
        .zip(lengths)
        .map(|(marker, length)| long(marker, *length))
        .collect();
    let fitting: Vec<_> = frames.iter().filter(|frame| frame.len() <= max).collect();
    taken.frames.clear();
    send_all("v0", &frames);
    take_until(queue, taken, |taken| taken.frames.len() >= fitting.len());
    let came: Vec<_> = taken.frames.iter().map(|(_, data)| data).collect();
    assert_eq!(came, fitting);
    (frames.len() - fitting.len()) as u64
}

fn mode(queue: &dyn Queue) -> (bool, bool) {
    let mode = queue.xdp_mode().unwrap();
    // veth has no zero-copy mode, which the kernel reports by EOPNOTSUPP.
    let refused = CopyReason::Refused(Errno::OPNOTSUPP.raw_os_error());
    assert!(!mode.is_native || mode.copied == Some(refused), "{mode:?}");
    (mode.is_native, mode.is_multi_buffer)
}

/// Several chunks per frame are not requested if frames of the MTU fit one chunk. A notice reports
/// an MTU that is raised later, and longer frames are counted.
#[test]
fn frames_that_do_not_fit_any_more_are_told_and_counted() {
    let Some(namespace) = Namespace::with_veth("xmtu") else {
        return;
    };
    namespace.enter(|| {
        let Some(mut queue) = open(config("v1")) else {
            return;
        };
        assert_eq!(mode(queue.as_ref()), (true, false));
        let mut taken = Taken::default();
        assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::Idle);
        taken.events.extend(std::iter::from_fn(|| queue.event()));
        let is_told = |taken: &Taken, words: &[&str]| {
            let has_all = |text: &str| words.iter().all(|word| text.contains(word));
            let is_it =
                |event: &&SourceEvent| matches!(event, SourceEvent::Notice(text) if has_all(text));
            taken.events.iter().filter(is_it).count()
        };
        let copy_mode = &["copy mode"];
        assert_eq!(is_told(&taken, copy_mode), 1, "{:?}", taken.events);
        assert_eq!(
            only_fitting(queue.as_mut(), &mut taken, &[60, 1514], 1792),
            0
        );
        let raised = &["3000", "1792"];
        for times in 1..=2 {
            // A veth pair passes frames that both ends allow.
            ip("link set v0 mtu 3000");
            ip("link set v1 mtu 3000");
            take_until(queue.as_mut(), &mut taken, |taken| {
                is_told(taken, raised) == times
            });
            let lost = only_fitting(
                queue.as_mut(),
                &mut taken,
                &[60, 1792, 1793, 3014, 61],
                1792,
            );
            assert_eq!(lost, 2);
            ip("link set v0 mtu 1500");
            ip("link set v1 mtu 1500");
            // The queue checks the MTU every 250 ms.
            let until = Instant::now() + Duration::from_millis(600);
            take_until(queue.as_mut(), &mut taken, |_| Instant::now() > until);
        }
        assert_eq!(is_told(&taken, raised), 2, "once for each rise");
        taken.frames.clear();
        queue.stop();
        assert!(take_until(queue.as_mut(), &mut taken, |_| false));
        let statistics = queue.statistics();
        assert_eq!(statistics.received, Some(2 + 10));
        assert_eq!(losses(queue.as_mut())(LossCause::Oversize), 4);
    });
}

/// If a large chunk is sufficient, the engine uses large chunks instead of several chunks per
/// frame.
#[test]
fn a_larger_chunk_comes_before_several() {
    let Some(namespace) = Namespace::with_veth("xlarge") else {
        return;
    };
    namespace.enter(|| {
        ip("link set v0 mtu 3400");
        ip("link set v1 mtu 3400");
        let Some(mut queue) = open(config("v1")) else {
            return;
        };
        assert_eq!(mode(queue.as_ref()), (true, false));
        assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::Idle);
        let mut taken = Taken::default();
        assert_eq!(
            only_fitting(queue.as_mut(), &mut taken, &[60, 3000, 3414], 3840),
            0
        );
        assert_eq!(stop_and_drain(queue.as_mut(), &mut taken), (3, 0));
        drop(queue);
        ip("link set v0 mtu 9000");
        ip("link set v1 mtu 9000");
        let queue = open(config("v1")).unwrap();
        assert_eq!(
            mode(queue.as_ref()),
            (true, true),
            "nine kilobytes need several"
        );
    });
}

/// The other end of the pair may send longer frames, so the veth driver runs only programs that
/// accept several buffers per packet. The program must run in the driver, and the socket must use
/// one chunk per frame. Frames above 3840 bytes count as lost.
#[test]
fn a_driver_that_wants_several_buffers_stays_native() {
    let Some(namespace) = Namespace::with_veth("xbuffers") else {
        return;
    };
    namespace.enter(|| {
        ip("link set v0 mtu 9000");
        ip("link set v1 mtu 3400");
        let Some(mut queue) = open(config("v1")) else {
            return;
        };
        assert_eq!(mode(queue.as_ref()), (true, false));
        assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::Idle);
        ip("link set v1 mtu 9000");
        let mut taken = Taken::default();
        let lengths = [60, 3414, 3840, 3841, 5000, 9014, 61];
        assert_eq!(only_fitting(queue.as_mut(), &mut taken, &lengths, 3840), 3);
        queue.stop();
        assert!(take_until(queue.as_mut(), &mut taken, |_| false));
        assert_eq!(queue.statistics().received, Some(7));
        assert_eq!(losses(queue.as_mut())(LossCause::Oversize), 3);
    });
}
