//! pcap over IP on the loopback interface: the streams of made-up servers.

#![allow(
    clippy::unwrap_used,
    reason = "test code, also outside of test functions"
)]

use std::{
    io::Write,
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

use retroscope_capture::{
    Event, LossCause, Queue, Source, SourceError, Status, TimeDomain, pcap_over_ip::TcpSource,
};
use retroscope_packet::LinkType;
use retroscope_pcapfile::{
    InterfaceOptions, PacketOptions, PcapNgWriter, PcapOptions, PcapWriter, SectionOptions,
};

const WAIT: Duration = Duration::from_millis(5);
const DEADLINE: Duration = Duration::from_secs(20);

/// A capture of frames of 0 to 199 bytes.
fn capture() -> Vec<u8> {
    let mut writer = PcapWriter::new(Vec::new(), PcapOptions::new(LinkType::ETHERNET)).unwrap();
    for length in 0..200_u8 {
        let data = vec![length; usize::from(length)];
        writer.record(i64::from(length), 500, &data).unwrap();
    }
    writer.finish().unwrap()
}

/// The file header, and a record's header.
const HEADER: usize = 24;
const RECORD: usize = 16;

/// Connects to a server that `serve` is; it runs on a thread of its own.
fn connect(serve: impl FnOnce(TcpStream) + Send + 'static) -> Result<Box<dyn Queue>, SourceError> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("TCP@{}", listener.local_addr().unwrap());
    std::thread::spawn(move || serve(listener.accept().unwrap().0));
    let source = Box::new(TcpSource::parse(&name).unwrap());
    assert!(source.opens_once());
    assert_eq!(source.name(), name);
    source.open(3).map(|mut queues| queues.remove(0))
}

/// Reads until `count` frames came or the stream is at its end: captured lengths, and whether it ended.
fn take(queue: &mut dyn Queue, count: usize) -> (Vec<u32>, bool) {
    let (mut lengths, deadline) = (Vec::new(), Instant::now() + DEADLINE);
    while lengths.len() < count {
        assert!(Instant::now() < deadline, "{} came", lengths.len());
        match queue.next(WAIT).unwrap() {
            Status::End => return (lengths, true),
            Status::Frames => assert!(!queue.burst().frames.is_empty()),
            Status::Idle => assert!(queue.burst().frames.is_empty()),
        }
        lengths.extend(queue.burst().iter().map(|frame| {
            assert!(
                frame
                    .data
                    .iter()
                    .all(|byte| frame.data.len() == usize::from(*byte))
            );
            frame.meta.captured_len
        }));
    }
    (lengths, false)
}

#[test]
fn a_stream_comes_whole() {
    let mut queue = connect(|mut socket| {
        for piece in capture().chunks(7) {
            socket.write_all(piece).unwrap();
        }
    })
    .unwrap();
    let interface = queue.interfaces()[0].clone();
    assert!(
        interface.name.starts_with("TCP@127.0.0.1:"),
        "{interface:?}"
    );
    assert_eq!(interface.link_type, LinkType::ETHERNET);
    assert_eq!(interface.time_domain, TimeDomain::Foreign);
    assert_eq!(queue.watermark(), None);
    let (lengths, ended) = take(queue.as_mut(), usize::MAX);
    assert!(ended && lengths.into_iter().eq(0..200));
    assert_eq!(queue.next(WAIT).unwrap(), Status::End);
    assert_eq!(queue.watermark(), Some(i64::MAX));
    let statistics = queue.statistics();
    assert_eq!(statistics.received, Some(200));
    assert_eq!(statistics.lost, [(LossCause::Upstream, None)]);
}

/// A silent server holds nobody up: `next` returns when its time is over, also within a record.
#[test]
fn silence_is_idleness() {
    let (more, wanted) = std::sync::mpsc::channel::<()>();
    let mut queue = connect(move |mut socket| {
        let bytes = capture();
        // Nothing but the file header; then ten records and a part of the eleventh; then the rest.
        let part = HEADER + 10 * RECORD + (0..10).sum::<usize>() + RECORD + 3;
        for piece in [&bytes[..HEADER], &bytes[HEADER..part], &bytes[part..]] {
            socket.write_all(piece).unwrap();
            wanted.recv().unwrap();
        }
    })
    .unwrap();
    assert_eq!(queue.interfaces()[0].link_type, LinkType::ETHERNET);
    assert_eq!(queue.next(WAIT).unwrap(), Status::Idle);
    more.send(()).unwrap();
    assert_eq!(take(queue.as_mut(), 10).0.len(), 10);
    assert_eq!(queue.next(WAIT).unwrap(), Status::Idle, "within a record");
    assert_eq!(queue.statistics().received, Some(10));
    more.send(()).unwrap();
    let (lengths, _) = take(queue.as_mut(), 190);
    assert!(lengths.into_iter().eq(10..200));
    queue.stop();
    assert_eq!(queue.next(WAIT).unwrap(), Status::End);
}

#[test]
fn interfaces_appear_on_the_way() {
    let mut queue = connect(|socket| {
        let mut writer = PcapNgWriter::new(socket, &SectionOptions::default()).unwrap();
        for (index, link_type) in [LinkType::ETHERNET, LinkType::RAW].into_iter().enumerate() {
            let interface = writer
                .add_interface(&InterfaceOptions::new(link_type))
                .unwrap();
            assert_eq!(usize::try_from(interface).unwrap(), index);
            writer
                .packet(interface, 7, 1, &[1], &PacketOptions::default())
                .unwrap();
        }
        writer.finish().unwrap();
    })
    .unwrap();
    let known = queue.interfaces().len();
    assert_eq!(take(queue.as_mut(), 2).0, [1, 1]);
    let added = std::iter::from_fn(|| queue.event())
        .filter(|event| matches!(event, Event::InterfaceAdded(_)))
        .count();
    assert_eq!(known + added, 2);
    assert_eq!(queue.interfaces()[1].link_type, LinkType::RAW);
}

#[test]
fn what_is_wrong_is_told() {
    let error = connect(|mut socket| socket.write_all(b"HTTP/1.1 400 Bad Request\r\n").unwrap())
        .unwrap_err();
    let words = error.to_string();
    assert!(matches!(error, SourceError::Damaged { .. }), "{words}");
    assert!(words.starts_with("TCP@127.0.0.1:"), "{words}");

    let mut queue = connect(|mut socket| {
        let bytes = capture();
        socket.write_all(&bytes[..bytes.len() - 1]).unwrap();
    })
    .unwrap();
    assert_eq!(take(queue.as_mut(), 199).0.len(), 199);
    let deadline = Instant::now() + DEADLINE;
    let error = loop {
        match queue.next(WAIT) {
            Ok(Status::Idle) => assert!(Instant::now() < deadline),
            Ok(status) => panic!("{status:?} of a broken stream"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, SourceError::Damaged { .. }), "{error}");
    assert_eq!(queue.next(WAIT).unwrap(), Status::End);

    // A port that was just given back.
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let source = TcpSource::parse(&format!("TCP@{free}")).unwrap();
    let error = Box::new(source).open(1).unwrap_err();
    assert!(error.to_string().contains(": connect: "), "{error}");
}
