//! The speed of live sending and recording over veth. Ignored by default. On a quiet machine, run
//! `cargo test --release --test capture live_speed -- --ignored --nocapture --test-threads 1`.
use std::time::Instant;

use crate::support::{
    generate, is_udp_of_generator,
    namespace::Namespace,
    open,
    traffic::{drain_beside, sequence},
};

#[test]
#[ignore = "speed: run it alone, in a release build"]
fn the_sender_alone() {
    let Some(namespace) = Namespace::with_veth("mpps") else {
        return;
    };
    namespace.enter(|| {
        // The CPU time of this thread. Other processes of a busy machine do not count.
        let cpu_seconds = || {
            let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
        };
        let (start, start_cpu) = (Instant::now(), cpu_seconds());
        let sent = generate("v0", "generate:flows=1000,count=3000000");
        let cpu_mpps = sent as f64 / (cpu_seconds() - start_cpu) / 1e6;
        let mpps = sent as f64 / start.elapsed().as_secs_f64() / 1e6;
        println!("{cpu_mpps:.2} Mpps of processor time, {mpps:.2} Mpps of time");
        // This sender reached 1.27 Mpps; loops in C reached 1.28 with an XDP socket and 0.88 with
        // sendmmsg. So nearly all of the sender's time is spent in the kernel.
        assert!(cpu_mpps >= 1.0, "{cpu_mpps} Mpps");
    });
}

#[test]
#[ignore = "10 seconds of full speed: run it alone, in a release build"]
fn half_a_million_a_second_for_ten_seconds() {
    let Some(namespace) = Namespace::with_veth("long") else {
        return;
    };
    namespace.enter(|| {
        let mut queue = open("v1");
        let (mut frames, mut next_sequence, mut bytes) = (0_u64, 0, 0);
        let text = "generate:flows=1000,rate=500kpps,duration=10s";
        let sent = drain_beside(&namespace, queue.as_mut(), text, |burst| {
            for frame in burst.iter() {
                frames += 1;
                bytes += frame.data.len();
                if is_udp_of_generator(frame.data) {
                    assert_eq!(sequence(frame.data), next_sequence, "a gap");
                    next_sequence += 1;
                }
            }
        });
        println!("{sent} sent, {frames} frames of {bytes} bytes came");
        assert_eq!((sent, next_sequence), (5_000_000, 5_000_000));
        assert_eq!(queue.statistics().received, Some(frames));
    });
}
