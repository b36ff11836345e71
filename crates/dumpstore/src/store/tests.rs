use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use serde_json::json;

use super::{
    DeletedDump, MinFree, RetentionLimit, Space, StoreListener, WhyDeleted,
    keeper::{KeeperConfig, KeeperHandle, KeeperRequest, KeeperState, UnfinishedDump},
    lister::{Lister, Question},
    retention::{Retention, RuleRetention},
};
use crate::{
    directory::DumpDirectory,
    disk::Disk,
    tests::{
        FakeClock, S,
        fake_disk::{Deed, FakeDisk},
    },
    time::rfc3339,
};

/// One call of a [`StoreListener`].
#[derive(Debug)]
pub(super) enum News {
    Deleted(DeletedDump),
    Notice(String),
}

impl StoreListener for mpsc::Sender<News> {
    fn deleted(&self, dump: DeletedDump) {
        let _ = self.send(News::Deleted(dump));
    }

    fn notice(&self, text: String) {
        let _ = self.send(News::Notice(text));
    }
}

pub(super) const WAIT: Duration = Duration::from_secs(60);

pub(super) fn put(disk: &dyn Disk, path: &str, bytes: &[u8]) {
    let file = disk.create(Path::new(path)).unwrap();
    file.write_all_at(bytes, 0).unwrap();
}

/// Writes a sidecar and a capture, as a recorder leaves them.
pub(super) fn put_dump(
    disk: &dyn Disk,
    directory: &str,
    stem: &str,
    bytes: usize,
    made_ns: i64,
    rule: &str,
) {
    let name = format!("{stem}.pcapng");
    put(disk, &format!("{directory}/{name}"), &vec![7; bytes]);
    let into = directory.strip_prefix("dumps/");
    let mut told = told(&[(&name, bytes)]);
    told["created"] = rfc3339(made_ns).into();
    told["rule"] = rule.into();
    if let Some(into) = into {
        told["into"] = into.into();
    }
    put(
        disk,
        &format!("{directory}/{stem}.json"),
        told.to_string().as_bytes(),
    );
}

pub(super) fn told(files: &[(&str, usize)]) -> serde_json::Value {
    let files = files.iter();
    let files = files.map(|(name, bytes)| json!({"name": name, "bytes": bytes, "sha256": "00"}));
    json!({
        "program": "retroscope 0.1.0", "rule": "udp", "trigger_time": rfc3339(0), "from": rfc3339(0), "to": rfc3339(0), "packets": 1,
        "verdict": "complete", "files": files.collect::<Vec<_>>(),
    })
}

/// The state of both threads, without the threads.
struct Bench {
    disk: FakeDisk,
    clock: Arc<FakeClock>,
    keeper: KeeperHandle,
    keeping: KeeperState,
    lister: Lister,
    events: mpsc::Receiver<News>,
}

impl Bench {
    fn new(config: KeeperConfig) -> Self {
        let (disk, clock) = (FakeDisk::default(), Arc::<FakeClock>::default());
        let directory = DumpDirectory::on(Arc::new(disk.clone()), Path::new("dumps"));
        let (news, events) = mpsc::channel();
        let (keeper, keeping, lister) =
            KeeperState::new(directory, config, clock.clone(), Arc::new(news));
        Self {
            disk,
            clock,
            keeper,
            keeping,
            lister,
            events,
        }
    }

    /// Asks the dump-keeper, and lets it answer.
    fn ask<T: Send + 'static>(
        &mut self,
        request: impl FnOnce(mpsc::SyncSender<T>) -> KeeperRequest + Send + 'static,
    ) -> T {
        let keeper = self.keeper.clone();
        let asking = std::thread::spawn(move || keeper.ask(request, WAIT).unwrap());
        while !asking.is_finished() {
            self.keeping.serve_all();
            std::thread::yield_now();
        }
        asking.join().unwrap()
    }

    /// Asks the dump-lister, and lets it answer.
    fn look<T: Send + 'static>(
        &mut self,
        question: impl FnOnce(mpsc::SyncSender<T>) -> Question + Send + 'static,
    ) -> T {
        let keeper = self.keeper.clone();
        let asking = std::thread::spawn(move || keeper.look(question, WAIT).unwrap());
        while !asking.is_finished() {
            self.lister.answer_all();
            std::thread::yield_now();
        }
        asking.join().unwrap()
    }

    fn ids(&mut self) -> Vec<String> {
        let listed = self.look(Question::List);
        listed.iter().map(|dump| dump.id.clone()).collect()
    }

    /// Deleted dumps, and notices, since the previous call.
    fn news(&mut self) -> (Vec<(String, WhyDeleted)>, Vec<String>) {
        let (mut deleted, mut notices) = (Vec::new(), Vec::new());
        while let Ok(event) = self.events.try_recv() {
            match event {
                News::Deleted(dump) => deleted.push((dump.id, dump.why)),
                News::Notice(text) => notices.push(text),
            }
        }
        (deleted, notices)
    }

    fn pass(&self, seconds: i64) {
        self.clock.pass(seconds * S);
    }
}

fn keep(bytes: Option<u64>, age_s: Option<u64>) -> KeeperConfig {
    let all = RetentionLimit {
        bytes,
        age: age_s.map(Duration::from_secs),
    };
    KeeperConfig {
        limits: Retention {
            all,
            rules: HashMap::new(),
        },
        min_free: None,
    }
}

/// Foreign files, and sidecars that list foreign files, are not dumps.
#[test]
fn only_what_a_sidecar_of_ours_lists_is_a_dump() {
    let mut bench = Bench::new(keep(Some(0), None));
    let disk = &bench.disk.clone();
    put_dump(disk, "dumps", "good", 100, 1, "udp");
    put_dump(disk, "dumps/sub", "good", 100, 2, "udp");
    put(disk, "dumps/alone.pcapng", b"a capture without a sidecar");
    put(disk, "dumps/open.pcapng.part", b"another recorder's");
    put(disk, "dumps/notes.json", b"{}");
    put(disk, "dumps/broken.json", b"{\"program\":");
    put(disk, "dumps/passwd", b"root");
    put(disk, "other/x.pcapng", b"elsewhere");
    let foreign = |stem: &str, change: &dyn Fn(&mut serde_json::Value)| {
        let name = format!("{stem}.pcapng");
        put(disk, &format!("dumps/{name}"), b"packets");
        let mut told = told(&[(&name, 7)]);
        change(&mut told);
        put(
            disk,
            &format!("dumps/{stem}.json"),
            told.to_string().as_bytes(),
        );
    };
    foreign("program", &|it| it["program"] = "tool 1".into());
    foreign("absolute", &|it| {
        it["files"][0]["name"] = "/etc/passwd".into()
    });
    foreign("up", &|it| {
        it["files"][0]["name"] = "../other/x.pcapng".into()
    });
    foreign("others", &|it| {
        it["files"][0]["name"] = "alone.pcapng".into()
    });
    put(disk, "dumps/other-2.pcapng", b"packets");
    put(disk, "dumps/other.2.pcapng", b"packets");
    foreign("other", &|it| {
        it["files"][0]["name"] = "other-2.pcapng".into()
    });
    foreign("othe", &|it| it["files"][0]["name"] = "other.pcapng".into());
    foreign("ending", &|it| it["files"][0]["name"] = "ending.txt".into());
    foreign("size", &|it| it["files"][0]["bytes"] = 8.into());
    foreign("into", &|it| it["into"] = "sub".into());
    foreign("verdict", &|it| it["verdict"] = "odd".into());
    // A sidecar in a subdirectory that does not name this subdirectory is not ours.
    put(disk, "dumps/theirs/x.pcapng", b"packets");
    put(
        disk,
        "dumps/theirs/x.json",
        told(&[("x.pcapng", 7)]).to_string().as_bytes(),
    );
    assert_eq!(bench.ids(), ["good", "sub/good"]);
    for id in [
        "alone",
        "../other/x",
        "up",
        "theirs/x",
        "sub/../good",
        "",
        "/",
        "a/b/c",
        ".x",
    ] {
        let id = id.to_owned();
        let found = bench.look(move |reply| Question::Get(id, reply));
        assert!(found.is_none(), "{found:?}");
    }
    let mut before = bench.disk.names();
    bench.keeping.keep();
    let gone = |path: &PathBuf| path.to_string_lossy().contains("good");
    before.retain(|path| !gone(path));
    assert_eq!(bench.disk.names(), before);
    let why = WhyDeleted::Bytes;
    let (deleted, notices) = bench.news();
    assert_eq!(
        deleted,
        [("good".to_owned(), why), ("sub/good".to_owned(), why)]
    );
    assert!(notices.is_empty(), "{notices:?}");
}

/// The oldest dumps are deleted first, held dumps never. Dumps and hold marks of earlier runs count
/// after a restart.
#[test]
fn limits_hold_for_what_earlier_runs_left() {
    let config = keep(Some(5500), Some(1000));
    let mut bench = Bench::new(config.clone());
    let disk = bench.disk.clone();
    bench.clock.wall_ns.store(2000 * S, Ordering::SeqCst);
    for (stem, made_s) in [
        ("c", 1500),
        ("a", 900),
        ("b", 1400),
        ("held", 800),
        ("d", 1600),
    ] {
        put_dump(&disk, "dumps", stem, 1000, made_s * S, "udp");
    }
    put(&disk, "dumps/held.hold", b"");
    let sidecar = disk.read(Path::new("dumps/a.json")).unwrap().len() as u64;
    assert!(
        (200..350).contains(&sidecar),
        "{sidecar}: four dumps have 4800 to 5400 bytes"
    );
    bench.keeping.keep();
    let names = |bench: &mut Bench| bench.news().0.into_iter().collect::<Vec<_>>();
    assert_eq!(names(&mut bench), [("a".to_owned(), WhyDeleted::Age)]);
    assert_eq!(bench.ids(), ["held", "b", "c", "d"]);
    // Too many bytes: the oldest dumps that are not held are deleted, until the limit is met.
    put_dump(&disk, "dumps", "e", 1700, 1750 * S, "udp");
    bench.keeper.register_open("e", open(&[]));
    bench.keeper.register_finished("e", "e");
    bench.keeping.serve_all();
    bench.keeping.keep();
    let bytes = |id: &str| (id.to_owned(), WhyDeleted::Bytes);
    assert_eq!(names(&mut bench), [bytes("b"), bytes("c")]);
    // Another recorder in the same directory.
    let mut next = Bench::new(config);
    next.clock.wall_ns.store(2650 * S, Ordering::SeqCst);
    let directory = DumpDirectory::on(Arc::new(disk.clone()), Path::new("dumps"));
    let (news, events) = mpsc::channel();
    next.events = events;
    (next.keeper, next.keeping, next.lister) = KeeperState::new(
        directory,
        keep(Some(5500), Some(1000)),
        next.clock.clone(),
        Arc::new(news),
    );
    next.keeping.keep();
    assert_eq!(names(&mut next), [("d".to_owned(), WhyDeleted::Age)]);
    let held = next.ask(|reply| KeeperRequest::Delete("held".to_owned(), None, reply));
    assert!(held.unwrap_err().contains("held"));
    let release = |reply| KeeperRequest::Hold("held".to_owned(), false, reply);
    assert!(next.ask(release).unwrap());
    assert!(!next.ask(release).unwrap(), "it is released");
    next.pass(61);
    next.keeping.keep();
    assert_eq!(names(&mut next), [("held".to_owned(), WhyDeleted::Age)]);
    assert!(
        !disk.exists(Path::new("dumps/held.json")) && !disk.exists(Path::new("dumps/held.pcapng"))
    );
}

pub(super) fn open(files: &[(&str, u64)]) -> UnfinishedDump {
    UnfinishedDump {
        rule_name: None,
        number: 1,
        rule: "udp".to_owned(),
        trigger_ns: 0,
        files: files
            .iter()
            .map(|(path, bytes)| (path.into(), *bytes))
            .collect(),
    }
}

/// An open dump is listed, readable up to its last whole packet, held on request, and never
/// deleted. Its bytes count.
#[test]
fn open_dumps_are_listed_and_left_alone() {
    let mut bench = Bench::new(keep(Some(1000), None));
    let disk = bench.disk.clone();
    put_dump(&disk, "dumps", "old", 100, S, "udp");
    put(&disk, "dumps/new.pcapng.part", &[1; 900]);
    let part = "dumps/new.pcapng.part";
    bench.keeper.register_open("new", open(&[(part, 500)]));
    assert_eq!(bench.ids(), ["old", "new"]);
    let read = |bench: &mut Bench| {
        let open = |reply| Question::Open("new".into(), "new.pcapng.part".into(), reply);
        let file = bench.look(open).unwrap();
        let mut bytes = [0; 1000];
        assert_eq!(file.read_at(&mut bytes, file.bytes()).unwrap(), 0);
        file.read_at(&mut bytes, 100).unwrap()
    };
    assert_eq!(
        read(&mut bench),
        400,
        "what may be half a packet is left out"
    );
    let delete = |reply| KeeperRequest::Delete("new".to_owned(), None, reply);
    assert!(bench.ask(delete).unwrap_err().contains("open"));
    bench.keeping.keep();
    assert_eq!(bench.news(), (vec![], vec![]));
    bench.keeper.update_files("new", vec![(part.into(), 900)]);
    assert_eq!(read(&mut bench), 800);
    bench.keeping.keep();
    assert_eq!(bench.news().0, [("old".to_owned(), WhyDeleted::Bytes)]);
    let hold = |reply| KeeperRequest::Hold("new".to_owned(), true, reply);
    assert!(bench.ask(hold).unwrap());
    assert!(bench.look(Question::List)[0].is_held);
}

/// A dump that is being compressed has two copies on the disk, and one of them will be removed. The
/// bytes of the smaller copy count as free, so no other dump is deleted while they suffice.
#[test]
fn a_copy_that_goes_in_the_end_costs_no_dump() {
    let mut bench = Bench::new(min_free(1400));
    let disk = bench.disk.clone();
    put_dump(&disk, "dumps", "old", 500, S, "udp");
    put_dump(&disk, "dumps", "new", 1000, 2 * S, "udp");
    put(&disk, "dumps/new.pcapng.zst.part", &[2; 900]);
    let sidecar = disk.read(Path::new("dumps/old.json")).unwrap().len();
    let sidecar = sidecar + disk.read(Path::new("dumps/new.json")).unwrap().len();
    // 1,000 bytes are free, and the smaller copy has 900.
    disk.set_capacity(500 + sidecar + 1900 + 1000);
    let mut second = bench.keeper.second_copy(1000);
    second.set_bytes(900);
    bench.keeping.keep();
    assert_eq!(bench.news(), (vec![], vec![]));
    // Another program takes 600 bytes, so the bytes of the smaller copy no longer suffice.
    put(&disk, "dumps/foreign", &[3; 600]);
    bench.pass(1);
    bench.keeping.keep();
    let deleted = bench.news().0;
    assert_eq!(deleted, [("old".to_owned(), WhyDeleted::MinFree)]);
}

pub(super) fn min_free(bytes: u64) -> KeeperConfig {
    KeeperConfig {
        min_free: Some(MinFree::Bytes(bytes)),
        ..KeeperConfig::default()
    }
}

/// A dump that is finished during a listing is in the list, as open or as finished.
#[test]
fn a_dump_that_is_finished_during_a_look_is_listed() {
    let mut bench = Bench::new(keep(None, None));
    let disk = bench.disk.clone();
    put_dump(&disk, "dumps", "a", 100, 1, "udp");
    bench.keeper.register_open("x", open(&[]));
    let (keeper, finishing) = (bench.keeper.clone(), disk.clone());
    let looks = AtomicUsize::new(0);
    // The directory was listed, and its entries are being read.
    disk.set_slow(move |deed, path| {
        let is_it = deed == Deed::Look && path == Path::new("dumps/a.json");
        if is_it && looks.fetch_add(1, Ordering::SeqCst) == 0 {
            put_dump(&finishing, "dumps", "x", 100, 2, "udp");
            keeper.register_finished("x", "x");
        }
    });
    assert_eq!(bench.ids(), ["a", "x"]);
    let all = bench.look(Question::List);
    let last = all.last().unwrap();
    assert_eq!((last.id.as_str(), last.is_open), ("x", false));
}

/// The limit of a rule applies to the dumps of this rule, at once. A rule without a name of the
/// user is identified by its position and its expression.
#[test]
fn each_rule_has_a_limit_of_its_own() {
    let mut bench = Bench::new(keep(None, None));
    let disk = bench.disk.clone();
    let named = |stem: &str, name: Option<&str>, rule: &str, made_ns: i64| {
        put_dump(&disk, "dumps", stem, 100, made_ns, rule);
        let path = format!("dumps/{stem}.json");
        let file = disk.open_to_read(Path::new(&path)).unwrap();
        let mut told: serde_json::Value = serde_json::from_reader(file.reader()).unwrap();
        told["rule_name"] = name.into();
        disk.remove(Path::new(&path)).unwrap();
        put(&disk, &path, told.to_string().as_bytes());
    };
    named("a", Some("a"), "udp", 1);
    named("a-before", Some("a"), "tcp", 2);
    named("b", Some("b"), "udp", 3);
    named("1", Some("1"), "udp", 4);
    named("1-before", Some("1"), "tcp", 5);
    named("by-hand", None, "manual", 6);
    let mut tell = |rules: &[(&str, u64, Option<&str>)]| {
        let rules = rules.iter().map(|(name, bytes, expression)| {
            let keep = RetentionLimit {
                bytes: Some(*bytes),
                age: None,
            };
            let expression = expression.map(str::to_owned);
            ((*name).to_owned(), RuleRetention { keep, expression })
        });
        bench.keeper.set_rule_limits(rules.collect());
        bench.keeping.serve_all();
        bench.keeping.keep();
        let deleted = bench.news().0.into_iter();
        deleted.map(|(id, _)| id).collect::<Vec<_>>()
    };
    assert_eq!(tell(&[("c", 0, None)]), [""; 0]);
    assert_eq!(tell(&[("a", 700, None)]), ["a"]);
    assert_eq!(tell(&[]), [""; 0]);
    assert_eq!(tell(&[("a", 0, None)]), ["a-before"]);
    assert_eq!(tell(&[("1", 0, Some("udp"))]), ["1"]);
    assert_eq!(bench.ids(), ["b", "1-before", "by-hand"]);
}

/// A slow disk delays questions about an open dump, but not the threads that write this dump.
#[test]
fn nobody_who_writes_waits_for_who_looks() {
    let mut bench = Bench::new(keep(Some(1000), None));
    let disk = bench.disk.clone();
    let part = "dumps/new.pcapng.part";
    put(&disk, part, &[7; 900]);
    bench.keeper.register_open("new", open(&[(part, 500)]));
    let (keeper, looks) = (bench.keeper.clone(), Arc::new(AtomicUsize::new(0)));
    let counting = Arc::clone(&looks);
    disk.set_slow(move |deed, path| {
        if deed == Deed::Look && path.to_string_lossy().contains("new") {
            let (keeper, (done, is_done)) = (keeper.clone(), mpsc::channel());
            std::thread::spawn(move || {
                keeper.update_files("new", vec![(part.into(), 900)]);
                let _ = done.send(());
            });
            counting.fetch_add(1, Ordering::SeqCst);
            let done = is_done.recv_timeout(Duration::from_secs(10));
            done.expect("who writes waits for the disk");
        }
    });
    assert_eq!(bench.look(Question::List)[0].bytes, 500);
    let get = |reply| Question::Get("new".to_owned(), reply);
    assert!(bench.look(get).is_some());
    let read = |reply| Question::Open("new".into(), "new.pcapng.part".into(), reply);
    assert_eq!(bench.look(read).unwrap().bytes(), 900);
    assert!(looks.load(Ordering::SeqCst) >= 3);
}

/// If held dumps exceed the limit, the user is informed once until this ends.
#[test]
fn what_is_held_beyond_the_limit_is_told() {
    let mut bench = Bench::new(keep(Some(1500), None));
    let disk = bench.disk.clone();
    put_dump(&disk, "dumps", "a", 2000, S, "udp");
    put(&disk, "dumps/a.hold", b"");
    put_dump(&disk, "dumps", "b", 100, 2 * S, "udp");
    for _ in 0..2 {
        bench.pass(100);
        bench.keeping.keep();
    }
    let (deleted, notices) = bench.news();
    assert_eq!(deleted, [("b".to_owned(), WhyDeleted::Bytes)]);
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].contains("are held"), "{notices:?}");
    disk.remove(Path::new("dumps/a.hold")).unwrap();
    bench.pass(100);
    bench.keeping.keep();
    assert_eq!(bench.news().1, [""; 0]);
}

/// If the name of a held open dump was taken at its end, the dump is held under its final name.
#[test]
fn a_hold_lasts_when_a_dump_gets_another_name() {
    let mut bench = Bench::new(keep(Some(0), None));
    let disk = bench.disk.clone();
    bench.keeper.register_open("x", open(&[]));
    let hold = |reply| KeeperRequest::Hold("x".to_owned(), true, reply);
    assert!(bench.ask(hold).unwrap());
    put_dump(&disk, "dumps", "x.2", 100, 1, "udp");
    bench.keeper.register_finished("x", "x.2");
    bench.keeping.serve_all();
    assert!(!disk.exists(Path::new("dumps/x.hold")));
    bench.pass(100);
    bench.keeping.keep();
    assert_eq!(bench.ids(), ["x.2"]);
}

/// A directory that cannot be listed for a moment keeps its known dumps.
#[test]
fn what_cannot_be_listed_now_is_not_forgotten() {
    let mut bench = Bench::new(keep(None, None));
    let disk = bench.disk.clone();
    put_dump(&disk, "dumps", "a", 100, 1, "udp");
    put_dump(&disk, "dumps/sub", "b", 100, 2, "udp");
    let both = ["a", "sub/b"];
    assert_eq!(bench.ids(), both);
    for path in ["dumps", "dumps/sub"] {
        disk.set_unlisted(Some(path));
        assert_eq!(bench.ids(), both, "{path}");
    }
    disk.set_unlisted(None);
    disk.remove(Path::new("dumps/sub/b.json")).unwrap();
    assert_eq!(bench.ids(), ["a"]);
}

/// A dump that cannot be deleted stays and is reported. During the pause after the failure it is
/// not reported again; after the pause the deletion is tried again.
#[test]
fn what_cannot_be_deleted_is_told_and_tried_again() {
    let mut bench = Bench::new(keep(Some(0), None));
    let disk = bench.disk.clone();
    for stem in ["a", "b"] {
        put_dump(&disk, "dumps", stem, 100, S, "udp");
    }
    disk.set_read_only(true);
    for _ in 0..50 {
        bench.pass(1);
        bench.keeping.keep();
    }
    let (deleted, notices) = bench.news();
    assert_eq!((deleted.len(), notices.len()), (0, 1), "{notices:?}");
    assert!(
        notices[0].contains("dump a: not deleted: Read-only"),
        "{notices:?}"
    );
    disk.set_read_only(false);
    for _ in 0..70 {
        bench.pass(1);
        bench.keeping.keep();
    }
    assert_eq!(bench.news().0.len(), 2);
}

#[test]
fn a_part_of_a_file_system_is_so_many_bytes() {
    let space = Space {
        free: 5,
        total: 1000,
    };
    assert_eq!(MinFree::Percent(12.5).bytes(space), 125);
    assert_eq!(MinFree::Bytes(77).bytes(space), 77);
}
