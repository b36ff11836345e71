//! Helpers of the AF_XDP tests.

use std::{process::Command, time::Instant};

use retroscope_capture::{
    CpuTurns, LossCause, Queue, QueueStatus, Source, SourceError, SourceEvent, TimeStamps,
    af_xdp::{XdpConfig, XdpSource},
};

use super::{
    DEADLINE, WAIT,
    traffic::{Taken, take_until},
};

pub(crate) fn config(interface: &str) -> XdpConfig {
    XdpConfig {
        interface: interface.to_owned(),
        promiscuous: true,
        take_interface: false,
        buffer_bytes: None,
        busy_poll: None,
        time_stamps: TimeStamps::Auto,
        cpus: CpuTurns::default(),
        program: "retroscope".into(),
    }
}

pub(crate) fn open_as(config: XdpConfig) -> Result<Vec<Box<dyn Queue>>, SourceError> {
    Box::new(XdpSource::new(config)).open(1)
}

/// Opens an interface that has one queue, and returns this queue. Prints SKIP and returns `None` if
/// the kernel has no AF_XDP.
pub(crate) fn open(config: XdpConfig) -> Option<Box<dyn Queue>> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match open_as(config.clone()) {
            Ok(mut queues) => {
                assert_eq!(queues.len(), 1);
                return Some(queues.remove(0));
            }
            Err(SourceError::Unsupported(message)) if message.contains("no AF_XDP") => {
                eprintln!("SKIP: {message}");
                return None;
            }
            // A process that another test is starting may, for an instant, keep a socket open that
            // this test has closed.
            Err(error) if error.to_string().contains("has its queue") => {
                assert!(Instant::now() < deadline, "{error}");
                std::thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Losses by cause. An unknown loss counts as 0.
pub(crate) fn losses(queue: &mut dyn Queue) -> impl Fn(LossCause) -> u64 + use<> {
    let lost = queue.statistics().lost;
    move |cause| {
        let found = lost.iter().find(|(one, _)| *one == cause);
        found.and_then(|(_, count)| *count).unwrap_or(0)
    }
}

/// Stops a queue, takes the rest, and checks the ledger: received = lent + lost. Returns the number
/// of received packets, and of packets lost in the kernel.
pub(crate) fn stop_and_drain(queue: &mut dyn Queue, taken: &mut Taken) -> (u64, u64) {
    queue.stop();
    assert!(take_until(queue, taken, |_| false));
    assert_eq!(queue.next(WAIT).unwrap(), QueueStatus::End);
    let statistics = queue.statistics();
    let lost: Option<u64> = statistics.lost.iter().map(|(_, count)| *count).sum();
    let received = statistics.received.unwrap();
    assert_eq!(
        received,
        taken.frames.len() as u64 + lost.unwrap(),
        "the ledger does not close: {statistics:?}"
    );
    let did_not_arrive = |event: &SourceEvent| matches!(event, SourceEvent::Notice(text) if text.contains("did not arrive"));
    assert!(
        !taken.events.iter().any(did_not_arrive),
        "{:?}",
        taken.events
    );
    (received, losses(queue)(LossCause::Kernel))
}

/// Whether `ip` shows an XDP program at the interface.
pub(crate) fn is_attached(interface: &str) -> bool {
    let output = Command::new("ip")
        .args(["link", "show", interface])
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).contains("xdp")
}
