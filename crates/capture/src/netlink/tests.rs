//! Tests with messages in the kernel's layout, and with the kernel's own answers.

use rustix::net::socketpair;

use super::*;

pub(crate) fn message(kind: u16, sequence: u32, body: &NetlinkRequest) -> Vec<u8> {
    let mut bytes = body.numbered(sequence, 0);
    bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
    bytes
}

/// Adds an attribute of any length to a message.
pub(crate) fn with_long(mut request: NetlinkRequest, kind: u16, value: &[u8]) -> NetlinkRequest {
    let length = u16::try_from(ATTRIBUTE + value.len()).unwrap();
    request.0.extend(length.to_ne_bytes());
    request.0.extend(kind.to_ne_bytes());
    request.0.extend(value);
    request.padded()
}

pub(crate) fn first(bytes: &[u8]) -> Option<NetlinkMessage<'_>> {
    NetlinkMessage::first(bytes).map(|(message, _)| message)
}

/// The message that ends a list. `code` is 0, or a negative `errno`.
pub(crate) fn done(sequence: u32, code: i32) -> Vec<u8> {
    message(
        DONE,
        sequence,
        &NetlinkRequest::new(DONE, &code.to_ne_bytes()),
    )
}

/// `message`, marked as part of a list that changed meanwhile.
pub(crate) fn interrupted(mut message: Vec<u8>) -> Vec<u8> {
    message[6..8].copy_from_slice(&INTERRUPTED.to_ne_bytes());
    message
}

/// An `RTM_NEWLINK` message with a structure of 16 bytes, a name, and `number` as attribute 5.
fn numbered(number: u32) -> Vec<u8> {
    let body = NetlinkRequest::new(16, &[0; 16])
        .with(3, b"abc\0\0")
        .with(5, &number.to_ne_bytes());
    message(16, 7, &body)
}

fn read(message: NetlinkMessage<'_>) -> Option<Option<u32>> {
    let (_, found) = message.parts(NEW_LINK, LINK_BYTES)?;
    Some(word(found.get(&5)?, 0))
}

fn taken(parts: &[Vec<u8>]) -> (io::Result<()>, List<u32>) {
    let mut list = List::EMPTY;
    let outcome = parts
        .iter()
        .try_for_each(|part| list.take(part, 7, &mut read));
    (outcome, list)
}

#[test]
fn a_list_is_whole_or_an_error() {
    let first = [numbered(1), numbered(2)].concat();
    let last = [numbered(3), done(7, 0), numbered(4)].concat();
    let (outcome, list) = taken(&[first.clone(), last.clone()]);
    outcome.unwrap();
    assert_eq!(
        (list.kept, list.is_done, list.was_interrupted),
        (vec![1, 2, 3], true, false)
    );
    for length in 0..first.len() {
        let (outcome, list) = taken(&[first[..length].to_vec()]);
        let at_a_message = length == 0 || length == numbered(1).len();
        assert_eq!(outcome.is_ok(), at_a_message, "{length}");
        assert!(!list.is_done);
    }
    // An acknowledgement ends a single answer.
    let acknowledged = message(ERROR, 7, &NetlinkRequest::new(ERROR, &0_i32.to_ne_bytes()));
    let (outcome, list) = taken(&[numbered(1), acknowledged]);
    outcome.unwrap();
    assert_eq!((list.kept, list.is_done), (vec![1], true));
    let (outcome, _) = taken(&[first.clone(), done(7, -libc::ENOMEM)]);
    assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    let refused = message(
        ERROR,
        7,
        &NetlinkRequest::new(ERROR, &(-libc::EPERM).to_ne_bytes()),
    );
    let (outcome, _) = taken(&[refused]);
    assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::EPERM));
    let (outcome, list) = taken(&[interrupted(numbered(1)), done(7, 0)]);
    assert!(outcome.is_ok() && list.was_interrupted);
}

#[test]
fn what_was_left_of_another_question_is_passed_over() {
    let mut other = numbered(9);
    other[8..12].copy_from_slice(&6_u32.to_ne_bytes());
    let (outcome, list) = taken(&[[other, numbered(1), done(7, 0)].concat()]);
    outcome.unwrap();
    assert_eq!(list.kept, [1]);
}

#[test]
fn damaged_attributes_are_errors() {
    for (at, value) in [(HEADER + 16, 3_u16), (HEADER + 16, 500), (HEADER + 28, 9)] {
        let mut damaged = numbered(1);
        damaged[at..at + 2].copy_from_slice(&value.to_ne_bytes());
        let (outcome, _) = taken(&[damaged]);
        assert_eq!(outcome.unwrap_err().kind(), DAMAGED, "{at}");
    }
}

/// The kernel's own list: every network namespace has a loopback interface.
#[test]
fn the_kernel_lists_interfaces() {
    let mut netlink = Netlink::new().unwrap();
    let request = link_request(0);
    let names = netlink.list(&request, |message| {
        let (_, found) = message.parts(NEW_LINK, LINK_BYTES)?;
        Some(Some(found.get(&3)?.to_vec()))
    });
    assert!(names.unwrap().contains(&b"lo\0".to_vec()));
    let refused = netlink.list::<()>(&NetlinkRequest::new(0x7ff0, &[0; 16]), |_| Some(None));
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
}

/// Parses an answer that has a foreign attribute before the counters, and the first `words` words
/// of the counters.
fn told(fifo: u64, missed: u64, words: usize) -> Option<LinkCounters> {
    let value: Vec<u8> = (0..words)
        .flat_map(|index| {
            let word: u64 = match index {
                DROPPED => 77,
                FIFO => fifo,
                MISSED => missed,
                _ => 1000,
            };
            word.to_ne_bytes()
        })
        .collect();
    let body = NetlinkRequest::new(NEW_STATS, &[0; STATS_BYTES]).with(9, &[1]);
    let bytes = message(NEW_STATS, 7, &with_long(body, LINK_64, &value));
    first(&bytes).and_then(counters)
}

#[test]
fn the_greater_counter_counts() {
    for (fifo, missed, greater) in [(0, 0, 0), (3, 5, 5), (5, 3, 5)] {
        let counters = told(fifo, missed, 24).unwrap();
        assert_eq!((counters.missed, counters.dropped), (greater, 77));
    }
    assert_eq!(told(3, 5, MISSED), None, "an older kernel's");
}

#[test]
fn the_loopback_interface_loses_nothing() {
    let mut netlink = Netlink::new().unwrap();
    assert_eq!(netlink.counters(1).unwrap().missed, 0);
    let error = netlink.counters(i32::MAX).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
}

#[test]
fn the_loopback_interface_has_no_queue() {
    let mut netlink = Netlink::new().unwrap();
    assert_eq!(netlink.queueing(1).unwrap(), "noqueue");
    let error = netlink.queueing(i32::MAX).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
}

/// Requests a list from a thread that answers like the kernel. The first `changes` answers are
/// marked as changed. Each answer contains its own number.
fn list_that_changes(changes: u32) -> io::Result<Vec<u32>> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (kernel, socket) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    let mut netlink = Netlink {
        socket,
        sequence: 0,
        part: vec![0; PART_BYTES],
    };
    let answer = std::thread::spawn(move || {
        let mut request = [0; PART_BYTES];
        for try_number in 1_u32.. {
            let (length, _) = recv(&kernel, &mut request[..], RecvFlags::empty()).unwrap();
            if length == 0 {
                return; // the requesting side closed its socket
            }
            let body =
                NetlinkRequest::new(NEW_LINK, &[0; LINK_BYTES]).with(5, &try_number.to_ne_bytes());
            let mut first = message(NEW_LINK, try_number, &body);
            if try_number <= changes {
                first = interrupted(first);
            }
            let answer = [first, done(try_number, 0)].concat();
            send(&kernel, &answer, SendFlags::empty()).unwrap();
        }
    });
    let list = netlink.list(&NetlinkRequest::new(GET_LINK, &[0; LINK_BYTES]), read);
    drop(netlink);
    answer.join().unwrap();
    list
}

#[test]
fn a_list_that_changes_is_read_again_and_then_said_to_have_changed() {
    assert_eq!(list_that_changes(0).unwrap(), [1]);
    assert_eq!(
        list_that_changes(40).unwrap(),
        [41],
        "the last reading only"
    );
    let error = list_that_changes(u32::MAX).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Interrupted);
    assert!(error.to_string().contains("try again"), "{error}");
}
