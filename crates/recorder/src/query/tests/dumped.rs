//! Tests of packets that left the ring and are read from dumps, one case at a time.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read,
    num::NonZeroU32,
    sync::{
        LazyLock, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use retroscope_pcapfile::{FileInterface, PacketOptions, PcapNgWriter, SectionOptions};
use retroscope_ring::Record;
use sha2::{Digest, Sha256};

use super::{
    super::catalog::{CatalogDump, DumpCatalog, StampRange},
    *,
};
use crate::{StoredFile, dump::stream::hexadecimal};

/// A packet that a test puts into the ring or into dumps.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sent {
    pub(super) time_ns: i64,
    pub(super) interface: &'static str,
    pub(super) bytes: usize,
    pub(super) mark: u16,
    /// The packet's number among the packets of its interface.
    pub(super) record: u64,
}

/// The recording of all rings of these tests, which have the same time of creation.
static OWN: LazyLock<Recording> = LazyLock::new(|| {
    let ring = Written::new().folder;
    Recording::of(&Attached::open(&ring.path().join("ring")).unwrap().info())
});

/// The UUID of the recording of [`Dump::of_others`].
const OTHERS: &str = "8ca8d3ba-0000-8000-8000-000000000000";

impl Sent {
    pub(super) fn frame(&self) -> Vec<u8> {
        let mut frame = vec![0; self.bytes];
        frame[6..8].copy_from_slice(&self.mark.to_be_bytes());
        frame
    }

    pub(super) fn is_taken(&self, expression: &str) -> bool {
        match expression {
            "" => true,
            "len > 1000" => self.bytes > 1000,
            _ => self.mark & 1 == 0,
        }
    }
}

pub(super) const EXPRESSIONS: [&str; 3] = ["", "len > 1000", "ether[7] & 1 = 0"];

#[derive(Debug, Clone)]
pub(super) struct Dump {
    pub(super) shelved: CatalogDump,
    file: Vec<u8>,
    pub(super) is_deleted: bool,
}

/// A catalog of dumps in memory.
#[derive(Debug, Default)]
pub(super) struct Shelves {
    dumps: Vec<Dump>,
    /// IDs of dumps that were deleted after the query listed the dumps.
    deleted: Mutex<BTreeSet<String>>,
    /// Bytes that were read from files.
    read: Arc<AtomicUsize>,
    opens: AtomicUsize,
    /// Cancels the query when a file is opened, as if the client had disconnected.
    cancelled_by_open: Option<Cancel>,
    lists: Mutex<Vec<StampRange>>,
}

struct Counted(io::Cursor<Vec<u8>>, Arc<AtomicUsize>);

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(buffer)?;
        self.1.fetch_add(read, Ordering::SeqCst);
        Ok(read)
    }
}

impl DumpCatalog for Shelves {
    fn dumps(&self, wanted: StampRange) -> Result<Vec<CatalogDump>, String> {
        self.lists.lock().unwrap().push(wanted);
        let dumps = self.dumps.iter().map(|dump| dump.shelved.clone());
        let touches = |it: &CatalogDump| it.span.0 <= wanted.1 && it.span.1 >= wanted.0;
        Ok(dumps.filter(touches).collect())
    }

    fn open(&self, shelved: &CatalogDump) -> Result<(Box<dyn Read + Send>, StoredFile), String> {
        self.opens.fetch_add(1, Ordering::SeqCst);
        self.cancelled_by_open.iter().for_each(Cancel::cancel);
        let mut dumps = self.dumps.iter();
        let deleted = self.deleted.lock().unwrap();
        let is_there = |it: &&Dump| !it.is_deleted && !deleted.contains(&it.shelved.id);
        let dump = dumps.find(|it| it.shelved.id == shelved.id && is_there(it));
        let dump = dump.ok_or("it was deleted meanwhile")?;
        let file = Counted(io::Cursor::new(dump.file.clone()), Arc::clone(&self.read));
        Ok((Box::new(file), dump.shelved.files[0].clone()))
    }
}

/// A complete dump of this recording, with these packets in this order.
pub(super) fn dump<'s>(
    id: &str,
    span: StampRange,
    expression: &'static str,
    packets: impl IntoIterator<Item = &'s Sent>,
) -> Dump {
    dump_cut(id, span, expression, packets, usize::MAX)
}

pub(super) fn dump_cut<'s>(
    id: &str,
    span: StampRange,
    expression: &'static str,
    packets: impl IntoIterator<Item = &'s Sent>,
    snaplen: usize,
) -> Dump {
    let mut writer = PcapNgWriter::new(Vec::new(), &SectionOptions::default()).unwrap();
    let mut numbers = BTreeMap::new();
    for packet in packets {
        let number = *numbers.entry(packet.interface).or_insert_with(|| {
            let interface = FileInterface {
                name: packet.interface.to_owned(),
                ..FileInterface::new(LinkType::ETHERNET)
            };
            writer.add_interface(&interface).unwrap()
        });
        let (frame, wire_len) = (packet.frame(), packet.bytes.try_into().unwrap());
        let data = &frame[..frame.len().min(snaplen)];
        let producer = usize::from(packet.interface == "right");
        let options = PacketOptions {
            id: Some(OWN.id(producer, packet.record).0),
            ..PacketOptions::default()
        };
        let written = writer.packet(number, packet.time_ns, wire_len, data, &options);
        written.unwrap();
    }
    if numbers.is_empty() {
        let interface = FileInterface::new(LinkType::ETHERNET);
        writer.add_interface(&interface).unwrap();
    }
    let file = writer.finish().unwrap();
    let digest = Sha256::new_with_prefix(&file);
    Dump {
        shelved: CatalogDump {
            id: id.to_owned(),
            from: rfc3339(span.0),
            to: rfc3339(span.1),
            span,
            files: vec![StoredFile {
                name: format!("{id}.pcapng"),
                bytes: file.len() as u64,
                sha256: Some(hexadecimal(digest)),
            }],
            claims: Some(vec![span]),
            expression: expression.to_owned(),
            recording: Some(OWN.to_string()),
            gone: None,
        },
        file,
        is_deleted: false,
    }
}

impl Dump {
    /// Makes this a dump of another recording.
    pub(super) fn of_others(mut self) -> Self {
        self.shelved.claims = None;
        self.shelved.recording = Some(OTHERS.to_owned());
        self
    }

    /// Makes this a dump of an earlier version of the program, whose packets have no IDs.
    fn without_ids(self) -> Self {
        let mut old = self.of_others().damaged(|file| strip_ids(file));
        old.shelved.recording = None;
        old.shelved.files[0].sha256 = Some(hexadecimal(Sha256::new_with_prefix(&old.file)));
        old
    }

    fn damaged(mut self, damage: impl FnOnce(&mut Vec<u8>)) -> Self {
        damage(&mut self.file);
        self
    }
}

/// Gives the option `epb_packetid` (code 5, 8 bytes) of all packets an unknown code.
fn strip_ids(file: &mut [u8]) {
    for at in 0..file.len() - 4 {
        if file[at..at + 4] == [5, 0, 8, 0] {
            file[at] = 0xff;
        }
    }
}

/// A packet of an answer: stamp, interface, length on the wire, captured bytes, mark.
pub(super) type Given = (i64, String, u32, usize, u16);

pub(super) fn given(sent: &Sent, snaplen: usize) -> Given {
    let captured = sent.bytes.min(snaplen);
    let name = sent.interface.to_owned();
    let wire_len = u32::try_from(sent.bytes).unwrap();
    (
        sent.time_ns,
        name,
        wire_len,
        captured,
        if captured < 8 { 0 } else { sent.mark },
    )
}

pub(super) fn packets(out: &[u8]) -> Vec<Given> {
    let mut reader = CaptureReader::new(out).unwrap();
    let mut packets = Vec::new();
    while reader.fill().unwrap() > 0 {
        for meta in reader.records() {
            let data = &reader.memory()[meta.offset..][..meta.captured_len as usize];
            let mark = data
                .get(6..8)
                .map_or(0, |mark| u16::from_be_bytes([mark[0], mark[1]]));
            let interface = reader.interfaces()[usize::from(meta.interface)]
                .name
                .clone();
            packets.push((meta.time_ns, interface, meta.wire_len, data.len(), mark));
        }
    }
    packets
}

pub(super) struct Past {
    written: Written,
    pub(super) all: Vec<Sent>,
    shelves: Arc<Shelves>,
}

impl Past {
    pub(super) fn new() -> Self {
        Self {
            written: Written::new(),
            all: Vec::new(),
            shelves: Arc::default(),
        }
    }

    pub(super) fn send(&mut self, mut sent: Sent) {
        let mut own = self.all.iter().rev();
        let before = own.find(|it| it.interface == sent.interface);
        sent.record = before.map_or(0, |before| before.record + 1);
        let producer = usize::from(sent.interface == "right");
        let frame = sent.frame();
        let number = u16::try_from(producer).unwrap();
        let record = Record::whole(sent.time_ns, number, &frame);
        self.written.producers[producer].store(&record).unwrap();
        self.all.push(sent);
    }

    /// Stores packets of 2 KiB from the producers in turn, one every 10 ns from 1000 on.
    pub(super) fn fill(&mut self, packets: i64) {
        for number in 0..packets {
            self.send(Sent {
                time_ns: 1000 + 10 * number,
                interface: ["left", "right"][usize::from(number % 2 == 1)],
                bytes: 2048,
                mark: u16::try_from(number).unwrap(),
                ..Sent::default()
            });
        }
        self.publish();
    }

    pub(super) fn publish(&mut self) {
        for producer in &mut self.written.producers {
            producer.publish();
            producer.set_watermark(1_000_000);
        }
    }

    pub(super) fn those(&self, (from_ns, to_ns): StampRange) -> impl Iterator<Item = &Sent> {
        let window = from_ns..=to_ns;
        self.all
            .iter()
            .filter(move |it| window.contains(&it.time_ns))
    }

    pub(super) fn shelve(&mut self, dumps: Vec<Dump>) {
        self.shelves = Arc::new(Shelves {
            dumps,
            ..Shelves::default()
        });
    }

    pub(super) fn delete(&self, id: &str) {
        self.shelves.deleted.lock().unwrap().insert(id.to_owned());
    }

    pub(super) fn answer(&self, query: &Query) -> QueryAnswer {
        let attached = Attached::open(&self.written.folder.path().join("ring")).unwrap();
        let shelves = Arc::clone(&self.shelves);
        query.of(attached).unwrap().with_dumps_of(shelves)
    }

    pub(super) fn ask(&self, query: &Query) -> (QueryReport, Vec<Given>) {
        let mut out = Vec::new();
        let report = self.answer(query).write_to(&mut out).unwrap();
        let packets = packets(&out);
        assert_eq!(report.packets, packets.len() as u64);
        let counted = self.answer(query).count().unwrap();
        assert_eq!(counted, report);
        (report, packets)
    }
}

pub(super) fn named(from_ns: i64, to_ns: i64) -> Query {
    Query {
        from_ns: Some(from_ns),
        to_ns: Some(to_ns),
        dumps: DumpsAsked::Named,
        ..Query::default()
    }
}

fn causes(report: &QueryReport) -> Vec<&'static str> {
    report.missing.iter().map(|missing| missing.cause).collect()
}

fn errors(report: &QueryReport) -> Vec<String> {
    let dumps = &report.dumps.as_ref().unwrap().dumps;
    dumps.iter().filter_map(|dump| dump.error.clone()).collect()
}

#[test]
fn a_dump_of_all_gives_what_has_left_the_ring() {
    let mut past = Past::new();
    past.fill(3000); // 6 MiB of packets into a ring of 2 MiB
    let end_ns = 1000 + 10 * 2999;
    let window = (1000, 25_000);
    past.shelve(vec![dump("a", window, "", past.those(window))]);
    let (report, packets) = past.ask(&named(1000, end_ns));
    let expected: Vec<_> = past.all.iter().map(|it| given(it, usize::MAX)).collect();
    assert_eq!(packets, expected);
    assert_eq!(report.verdict, Verdict::Complete, "{report:?}");
    let dumps = report.dumps.clone().unwrap();
    assert_eq!((dumps.read, dumps.failed, dumps.uncovered.len()), (1, 0, 0));
    assert!(dumps.packets > 1000 && dumps.dumps[0].packets == dumps.packets);
    assert!(dumps.dumps[0].covers && dumps.dumps[0].files == ["a.pcapng"]);
    assert!(
        report.reasons().contains("packets from 1 dump"),
        "{}",
        report.reasons()
    );
    let nothing = Query {
        expression: "ether[0] = 7".to_owned(),
        ..named(1000, 2000)
    };
    let (report, _) = past.ask(&nothing);
    assert_eq!(report.empty, Some(Empty::NothingMatched { of: 101 }));
    assert_eq!(report.verdict, Verdict::Complete);
    let counted = Query {
        dumps: DumpsAsked::Counted,
        ..named(1000, end_ns)
    };
    let (report, _) = past.ask(&counted);
    let text = serde_json::to_string(&report).unwrap();
    assert!(
        !text.contains("pcapng") && text.contains("\"read\":1"),
        "{text}"
    );
    let resumed = Query {
        after: report.after.clone(),
        ..named(1000, end_ns)
    };
    let open = Query {
        from_ns: None,
        to_ns: None,
        ..named(0, 0)
    };
    for query in [named(28_000, end_ns), resumed, open] {
        assert_eq!(past.ask(&query).0.dumps, None, "{query:?}");
    }
}

#[test]
fn what_no_dump_covers_is_missing() {
    let mut past = Past::new();
    past.fill(3000);
    let (first, second) = ((1000, 9000), (11_000, 25_000));
    let all = |window| dump("all", window, "", past.those(window));
    let marked = |expression: &'static str| {
        let those = past
            .those((1000, 25_000))
            .filter(|it| it.is_taken(expression));
        dump("marked", (1000, 25_000), expression, those)
    };
    let even = "ether[7] & 1 = 0";
    let dumps = [
        vec![all(first), dump("more", second, "", past.those(second))],
        vec![marked(even)],
        vec![],
    ];
    let [two, one, none] = dumps;
    past.shelve(two);
    let (report, packets) = past.ask(&named(1000, 20_000));
    let hole = [
        "1970-01-01T00:00:00.000009001Z",
        "1970-01-01T00:00:00.000010999Z",
    ];
    assert_eq!(
        report.dumps.as_ref().unwrap().uncovered,
        [hole.map(str::to_owned)]
    );
    assert_eq!(causes(&report), ["evicted"]);
    assert_eq!(
        (
            report.missing[0].from.as_str(),
            report.missing[0].to.as_str()
        ),
        (hole[0], hole[1])
    );
    assert_eq!(
        packets.len(),
        past.those(first).count() + past.those((11_000, 20_000)).count()
    );
    let (report, _) = past.ask(&named(1000, 8000));
    assert_eq!(report.verdict, Verdict::Complete);

    past.shelve(one);
    for (expression, is_complete) in [
        ("", false),
        ("len > 1000", false),
        (even, true),
        ("ether[7] & 1 = 0 and len > 1000", true),
        ("ether[7] & 1 = 0 or len > 1000", false),
    ] {
        let query = Query {
            expression: expression.to_owned(),
            ..named(1000, 8000)
        };
        let (report, packets) = past.ask(&query);
        assert_eq!(
            report.verdict == Verdict::Complete,
            is_complete,
            "{expression}"
        );
        assert!(!packets.is_empty());
    }
    past.shelve(none);
    let (report, _) = past.ask(&named(1000, 8000));
    assert_eq!(causes(&report), ["evicted"]);
    assert!(
        matches!(report.empty, Some(Empty::AgedOut { .. })),
        "{:?}",
        report.empty
    );
}

#[test]
fn dumps_that_are_gone_or_damaged_are_named() {
    let mut past = Past::new();
    past.fill(3000);
    let window = (1000, 25_000);
    let whole = dump("a", window, "", past.those(window));
    let gone = |mut dump: Dump| {
        dump.shelved.gone = Some("it is deleted".to_owned());
        dump.shelved.files.clear();
        dump
    };
    let deleted = Dump {
        is_deleted: true,
        ..whole.clone()
    };
    let pcap = |mut dump: Dump| {
        dump.shelved.files[0].name = "a.pcap".to_owned();
        dump
    };
    let flipped = |it: &mut Vec<u8>| it[100_000] ^= 1;
    for (dump, error, is_empty) in [
        (
            whole.clone().damaged(|it| it.truncate(1_000_001)),
            "the file ends",
            false,
        ),
        (whole.clone().damaged(flipped), "SHA-256", false),
        (whole.clone().damaged(|it| it.fill(7)), "", true),
        (whole.clone().damaged(Vec::clear), "", true),
        (deleted, "deleted meanwhile", true),
        (gone(whole.clone()), "it is deleted", true),
        (pcap(whole.clone()), "neither interfaces", true),
    ] {
        past.shelve(vec![dump]);
        let (report, packets) = past.ask(&named(1000, 8000));
        let errors = errors(&report);
        assert!(errors.len() == 1 && errors[0].contains(error), "{errors:?}");
        assert_eq!(causes(&report), ["evicted"]);
        assert_eq!(packets.is_empty(), is_empty, "{error}");
        assert!(
            report.reasons().contains("1 not read whole"),
            "{}",
            report.reasons()
        );
        // A dump counts as read only if its file was opened and has a capture's header.
        let dumps = report.dumps.unwrap();
        assert_eq!((dumps.read, dumps.failed), (u64::from(!is_empty), 1));
    }
}

/// The catalog claims no stamp for the dump, for example because the dump reached its limit.
#[test]
fn a_dump_without_claims_covers_nothing() {
    let mut past = Past::new();
    past.fill(3000);
    let window = (1000, 25_000);
    let mut limited = dump("a", window, "", past.those(window));
    limited.shelved.claims = Some(Vec::new());
    past.shelve(vec![limited]);
    let (report, packets) = past.ask(&named(1000, 8000));
    assert!(!packets.is_empty());
    assert!(!report.dumps.unwrap().dumps[0].covers);
}

#[test]
fn other_recordings_give_what_they_have_and_cover_nothing() {
    let mut past = Past::new();
    past.fill(3000);
    let window = (200, 4000);
    let before = Sent {
        time_ns: 300,
        interface: "elsewhere",
        bytes: 300,
        mark: 7,
        ..Sent::default()
    };
    let sent: Vec<Sent> = past.those(window).cloned().collect();
    let packets = || [&before].into_iter().chain(&sent);
    let whole = dump("own", (0, 25_000), "", past.those((0, 25_000)));
    let cut = dump_cut("others", window, "", packets(), 60).of_others();
    past.shelve(vec![cut.clone()]);
    let (report, found) = past.ask(&named(200, 4000));
    assert_eq!(found.len(), packets().count());
    assert_eq!(found[0], given(&before, 60));
    assert_eq!(causes(&report), ["evicted", "not-recorded", "truncated"]);
    assert_eq!(report.missing[2].at_most, Some(found.len() as u64));
    past.shelve(vec![whole, cut]);
    let both = packets().count() + sent.len();
    let (report, found) = past.ask(&named(200, 4000));
    assert_eq!(found.len(), both);
    assert_eq!(found.iter().filter(|it| it.3 == 2048).count(), sent.len());
    assert_eq!(causes(&report), ["not-recorded", "truncated"]);
    let headers = Query {
        headers: NonZeroU32::new(50),
        ..named(200, 4000)
    };
    let (report, found) = past.ask(&headers);
    assert_eq!(causes(&report), ["not-recorded"]);
    assert!(found.iter().all(|it| it.3 == 50) && found.len() == both);
    let elsewhere = Query {
        interfaces: vec!["elsewhere".to_owned()],
        ..named(200, 4000)
    };
    assert_eq!(past.ask(&elsewhere).1, [given(&before, 60)]);
}

/// The answer has packets with equal IDs once, and both of two packets that differ only in their
/// IDs.
#[test]
fn a_packet_is_known_by_its_id() {
    let mut past = Past::new();
    past.send(Sent {
        time_ns: 1005,
        interface: "right",
        bytes: 2048,
        mark: 1,
        ..Sent::default()
    });
    for number in 0..1500 {
        past.send(Sent {
            time_ns: 1000 + 10 * number,
            interface: "left",
            bytes: 2048,
            mark: 0,
            ..Sent::default()
        });
    }
    past.publish();
    let in_ring = past.all[0].clone();
    let other = Sent {
        record: 70_000,
        ..in_ring.clone()
    };
    let both = [&in_ring, &other];
    let window = (1000, 2000);
    let right = "ether[7] & 1 = 1";
    past.shelve(vec![
        dump("a", window, right, both),
        dump("b", window, right, both),
        dump("c", window, right, [&in_ring]),
    ]);
    let query = Query {
        interfaces: vec!["right".to_owned()],
        ..named(1000, 2000)
    };
    let (report, found) = past.ask(&query);
    assert_eq!(found, both.map(|it| given(it, usize::MAX)));
    assert_eq!(report.dumps.unwrap().packets, 1);
}

#[test]
fn packets_of_dumps_have_the_ids_of_the_ring() {
    let mut past = Past::new();
    past.fill(3000);
    let (first, second) = ((1000, 15_000), (9000, 25_000));
    let all = |id, window| dump(id, window, "", past.those(window));
    let own = vec![all("a", first), all("b", second)];
    let others = vec![all("a", first).of_others(), all("b", second).of_others()];
    let ids = |past: &Past| {
        let mut out = Vec::new();
        past.answer(&named(1000, 20_000))
            .write_to(&mut out)
            .unwrap();
        let mut reader = CaptureReader::new(&out[..]).unwrap();
        let mut ids = Vec::new();
        while let Some(record) = reader.next().unwrap() {
            ids.push(record.meta.id.map(|id| OWN.read(PacketId(id))));
        }
        ids
    };
    let those = past.those((1000, 20_000));
    let place = |it: &Sent| Some((usize::from(it.interface == "right"), it.record));
    let expected: Vec<_> = those.map(place).collect();
    past.shelve(own);
    assert_eq!(ids(&past), expected);
    past.shelve(others);
    let (report, found) = past.ask(&named(1000, 4000));
    assert_eq!(found.len(), past.those((1000, 4000)).count());
    assert!(ids(&past)[..found.len()].iter().all(Option::is_none));
    assert_eq!(causes(&report), ["evicted", "not-recorded"]);
}

#[test]
fn without_ids_only_the_time_before_all_others_is_given() {
    let mut past = Past::new();
    past.fill(3000);
    let old = |id, window| dump(id, window, "", past.those(window)).without_ids();
    let those = |window| past.those(window).count();
    let own = dump("own", (9000, 25_000), "", past.those((9000, 25_000)));
    let dumps = vec![old("a", (1000, 5000)), old("b", (4000, 12_000)), own];
    let expected = those((1000, 20_000));
    let alone = vec![old("a", (1000, 25_000))];
    past.shelve(dumps);
    let (report, found) = past.ask(&named(1000, 20_000));
    assert_eq!(found.len(), expected);
    let errors_of_all = errors(&report);
    assert!(
        errors_of_all.len() == 1 && errors_of_all[0].contains("no IDs"),
        "{errors_of_all:?}"
    );
    assert!(report.reasons().contains("1 not read whole"));
    let (report, _) = past.ask(&named(1000, 3000));
    assert!(errors(&report).is_empty(), "its part is whole");
    past.shelve(alone);
    let (_, found) = past.ask(&named(1000, 31_000));
    let mut once = found.clone();
    once.dedup();
    assert_eq!((once.len(), found.len() > 2000), (found.len(), true));
    // The catalog says that the packets of this dump have IDs.
    let broken = dump("a", (1000, 25_000), "", past.those((1000, 25_000)));
    past.shelve(vec![broken.damaged(|file| strip_ids(file))]);
    let (report, found) = past.ask(&named(1000, 8000));
    assert!(errors(&report)[0].contains("without an ID"), "{report:?}");
    assert!(found.is_empty());
}

#[test]
fn a_file_whose_stamps_go_back_is_left_there() {
    let mut past = Past::new();
    past.fill(3000);
    let window = (1000, 25_000);
    let mut packets: Vec<Sent> = past.those(window).cloned().collect();
    packets[500..].iter_mut().for_each(|it| it.time_ns -= 3000);
    let stepped = dump("stepped", window, "", &packets);
    past.shelve(vec![stepped]);
    let (report, found) = past.ask(&named(1000, 20_000));
    assert!(errors(&report)[0].contains("go back"), "{report:?}");
    assert_eq!(causes(&report), ["evicted"]);
    assert_eq!(found.len(), 500);
    let (report, found) = past.ask(&named(9000, 20_000));
    assert_eq!((errors(&report).len(), found.len() > 1000), (0, true));
}

/// A clock was set back, so different packets of the recording have the same stamps, and a dump has
/// some of these packets.
#[test]
fn a_clock_that_is_set_back_gives_nothing_twice() {
    let mut past = Past::new();
    past.fill(1500);
    for producer in &mut past.written.producers {
        assert!(producer.step(0, -20_000));
    }
    for number in 1500..3000 {
        past.send(Sent {
            time_ns: 1000 + 10 * number,
            interface: "left",
            bytes: 2048,
            mark: u16::try_from(number).unwrap(),
            ..Sent::default()
        });
    }
    past.publish();
    let stamped: Vec<Sent> = past.all[2000..]
        .iter()
        .map(|it| Sent {
            time_ns: it.time_ns - 20_000,
            ..it.clone()
        })
        .collect();
    let window = (stamped[0].time_ns, stamped[stamped.len() - 1].time_ns);
    past.shelve(vec![dump("late", window, "", &stamped)]);
    let (report, mut found) = past.ask(&named(-10_000, 30_000));
    let count = found.len();
    found.sort();
    found.dedup();
    assert_eq!(found.len(), count);
    assert_eq!(report.verdict, Verdict::Incomplete);
}

/// After a step of a clock, a dump gives only the time before the oldest packet of the ring. The
/// rest of its window stays missing, although the dump has these packets.
#[test]
fn a_dump_covers_only_what_it_gives() {
    let mut past = Past::new();
    let sent = |time_ns, interface| Sent {
        time_ns,
        interface,
        bytes: 2048,
        ..Sent::default()
    };
    past.send(sent(500, "right"));
    // The bucket of this packet stays open, so the ring begins here.
    past.send(sent(1000, "left"));
    (0..3000).for_each(|number| past.send(sent(1010 + 10 * number, "right")));
    past.publish();
    let window = (0, 25_000);
    past.shelve(vec![dump("own", window, "", past.those(window))]);
    let (report, _) = past.ask(&named(0, 40_000));
    assert_eq!(report.verdict, Verdict::Complete);
    for producer in &mut past.written.producers {
        assert!(producer.step(0, 7));
    }
    past.send(sent(31_020, "right"));
    past.publish();
    let (report, found) = past.ask(&named(0, 40_000));
    assert_eq!(
        (report.verdict, causes(&report)),
        (Verdict::Incomplete, vec!["evicted"])
    );
    assert!(found.len() < past.all.len());
}

/// A query without a start reports an overwritten bucket if dumps gave packets from before that
/// bucket.
#[test]
fn the_start_does_not_move_past_packets_of_dumps() {
    let mut past = Past::new();
    let sent = |number: i64| Sent {
        time_ns: 1000 + 10 * number,
        // The buckets of "right" close late, so they outlast those of "left".
        interface: if number % 10 == 0 { "right" } else { "left" },
        bytes: 2048,
        ..Sent::default()
    };
    (0..3000).for_each(|number| past.send(sent(number)));
    past.publish();
    let ring = Query {
        dumps: DumpsAsked::No,
        ..named(0, 40_000)
    };
    let (_, kept) = past.ask(&ring);
    let first_ns = |interface| kept.iter().find(|it| it.1 == interface).unwrap().0;
    // The oldest bucket of "right" begins before the packets of the dump, which lacks packets of
    // "right".
    let (begin_ns, to_ns) = (first_ns("right"), first_ns("left") - 1);
    assert!(begin_ns + 500 < to_ns, "{begin_ns} {to_ns}");
    let window = (begin_ns + 100, to_ns);
    let left = past.those(window).filter(|it| it.interface == "left");
    past.shelve(vec![dump("own", window, "len > 1000", left)]);
    let query = Query {
        from_ns: None,
        ..named(0, to_ns)
    };
    let answer = past.answer(&query);
    (3000..6000).for_each(|number| past.send(sent(number)));
    past.publish();
    let mut out = Vec::new();
    let report = answer.write_to(&mut out).unwrap();
    let found = packets(&out);
    assert!(found.len() > 10 && found.iter().all(|it| it.1 == "left"));
    assert_eq!(causes(&report), ["evicted"], "{report:?}");
}

/// The pass after the count leaves out a dump that failed in the count and gave no packet. The
/// packets without IDs in the other dumps nevertheless keep their order.
#[test]
fn the_newest_packets_of_dumps_without_ids_are_all_there() {
    let mut past = Past::new();
    past.fill(3000);
    let old = |id, window, parity| {
        let those = past.those(window).filter(|it| it.mark & 1 == parity);
        dump(id, window, "", those).without_ids()
    };
    // Dumps "a" and "b" overlap, so "b" gives only a part of its window. No packet of "b" matches.
    let dumps = vec![
        old("a", (1000, 2000), 1),
        old("b", (1500, 4000), 1),
        old("c", (5000, 9000), 0),
    ];
    past.shelve(dumps);
    let expression = EXPRESSIONS[2];
    let query = |limit: Option<u64>| Query {
        expression: expression.to_owned(),
        newest: limit.is_some(),
        limit_packets: limit,
        ..named(0, 9000)
    };
    let (_, all) = past.ask(&query(None));
    assert!(all.len() > 100, "{}", all.len());
    for limit in [1, 7, 100] {
        let (_, found) = past.ask(&query(Some(limit)));
        assert_eq!(found.len() as u64, limit);
        assert_eq!(found, all[all.len() - found.len()..]);
    }
}

#[test]
fn a_follow_asks_dumps_once_and_goes_on() {
    let mut past = Past::new();
    past.fill(3000);
    let window = (1000, 25_000);
    past.shelve(vec![dump("a", window, "", past.those(window))]);
    for producer in &mut past.written.producers {
        producer.set_watermark(i64::MAX);
    }
    let query = Query {
        follow: true,
        to_ns: None,
        ..named(1000, 0)
    };
    let mut out = Vec::new();
    let report = past.answer(&query).write_to(&mut out).unwrap();
    let expected: Vec<_> = past.all.iter().map(|it| given(it, usize::MAX)).collect();
    assert_eq!(packets(&out), expected);
    assert_eq!(report.verdict, Verdict::Complete, "{report:?}");
    assert_eq!(past.shelves.lists.lock().unwrap().len(), 1);
}

#[test]
fn who_is_gone_has_nothing_read() {
    let mut past = Past::new();
    past.fill(3000);
    let window = (1000, 25_000);
    let rare: Vec<Dump> = (0..5)
        .map(|n| dump(&format!("{n}"), window, "", past.those(window)))
        .collect();
    let bytes: usize = rare.iter().map(|dump| dump.file.len()).sum();
    past.shelve(rare);
    let cancel = Cancel::default();
    let answer = past.answer(&named(1000, 20_000)).until(&cancel);
    let mut seen = 0;
    let report = answer.each(|_| {
        seen += 1;
        cancel.cancel();
        true
    });
    assert_eq!((report.unwrap().clipped, seen), (vec!["cancelled"], 1));
    let read = past.shelves.read.load(Ordering::SeqCst);
    assert!(read < bytes / 2, "{read} of {bytes}");
    let cancelled = Cancel::default();
    cancelled.cancel();
    let answer = past.answer(&named(1000, 20_000)).until(&cancelled);
    assert_eq!(answer.count().unwrap().packets, 0);
}

/// The client disconnects while the first file is opened.
#[test]
fn no_file_is_opened_for_a_client_that_is_gone() {
    let mut past = Past::new();
    past.fill(3000);
    let window = (1000, 25_000);
    let dumps = (0..5).map(|n| dump(&format!("{n}"), window, "", past.those(window)));
    let cancel = Cancel::default();
    past.shelves = Arc::new(Shelves {
        dumps: dumps.collect(),
        cancelled_by_open: Some(cancel.clone()),
        ..Shelves::default()
    });
    let answer = past.answer(&named(1000, 20_000)).until(&cancel);
    assert_eq!(answer.count().unwrap().clipped, ["cancelled"]);
    assert_eq!(past.shelves.opens.load(Ordering::SeqCst), 1);
}
