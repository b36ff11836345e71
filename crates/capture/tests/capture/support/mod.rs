//! Helpers of the tests of live interfaces.
#![allow(dead_code, reason = "no test needs all of it")]

pub(crate) mod namespace;
pub(crate) mod tcpdump;
pub(crate) mod traffic;
pub(crate) mod xdp;

use std::{path::Path, time::Duration};

use retroscope_capture::{
    Queue, QueueStatus, Source, SourceError,
    af_packet::{LiveConfig, LiveSource},
    send::LiveSender,
};
use retroscope_generate::GeneratorSource;

/// Longer than any operation of these tests: a test that waits this long has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);
pub(crate) const WAIT: Duration = Duration::from_millis(5);

pub(crate) fn try_open(
    interface: &str,
    queues: usize,
    buffer_bytes: Option<usize>,
) -> Result<Vec<Box<dyn Queue>>, SourceError> {
    open_as(
        LiveConfig {
            buffer_bytes,
            ..LiveConfig::new(interface, "retroscope")
        },
        queues,
    )
}

pub(crate) fn open_as(
    config: LiveConfig,
    queues: usize,
) -> Result<Vec<Box<dyn Queue>>, SourceError> {
    Box::new(LiveSource(config)).open(queues)
}

pub(crate) fn open(interface: &str) -> Box<dyn Queue> {
    try_open(interface, 1, None).unwrap().remove(0)
}

/// Sends the traffic that `text` describes. Returns the number of sent frames.
pub(crate) fn generate(interface: &str, text: &str) -> u64 {
    generate_while(interface, text, |_| true)
}

/// Sends the traffic that `text` describes, while `go_on` returns true. After each burst, `go_on`
/// gets the number of sent frames. Returns this number at the end.
pub(crate) fn generate_while(
    interface: &str,
    text: &str,
    mut go_on: impl FnMut(u64) -> bool,
) -> u64 {
    let mut sender = LiveSender::open(interface, Path::new("retroscope")).unwrap();
    let mut queue = Box::new(GeneratorSource::parse(text).unwrap())
        .open(1)
        .unwrap()
        .remove(0);
    while queue.next(DEADLINE).unwrap() != QueueStatus::End {
        sender.send(queue.burst()).unwrap();
        if !go_on(sender.sent) {
            break;
        }
    }
    assert_eq!(queue.statistics().received, Some(sender.sent));
    sender.sent
}

/// Whether a captured frame is a frame of the generator.
pub(crate) fn is_udp_of_generator(data: &[u8]) -> bool {
    data.len() >= 42 && data[12..14] == [8, 0] && data[23] == 17 && data[26..28] == [10, 0]
}
