//! A disk that fills up or turns read-only fails dumps, is reported, and never stops the recording.
//!
//! The dump directory is a tmpfs in the recorder's own mount namespace. The test reaches this
//! directory through `/proc/PID/root`.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
};

use serde_json::{Value, json};

use crate::{
    capture,
    client::{Api, Events},
    control::socket,
    namespace::Namespace,
    recorder::{Outcome, PROGRAM, Recorder, words},
    shared,
    traffic::{Sender, udp},
};

/// Trigger of the tests: a UDP packet whose first payload byte is 1.
const TRIGGER: &str = "udp[8] = 1";

/// A frame of 1,000 bytes of a host's only flow. With `triggers` it matches [`TRIGGER`].
fn packet(host: u8, triggers: bool) -> Vec<u8> {
    udp(host, 1000, 60000, &[u8::from(triggers); 958])
}

/// Starts a recorder whose dump directory is a file system of `size_kib` KiB. `more` are further
/// arguments, split by [`words`]. `None`, with a message, if the test may not mount.
fn start(namespace: &Namespace, size_kib: u32, more: &str) -> Option<Recorder> {
    let mount =
        format!(r#"mkdir -p "$0" && mount -t tmpfs -o size={size_kib}k tmpfs "$0" && exec "$@""#);
    // Set the propagation explicitly, so that no mount leaves the namespace.
    let wrapper = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        &mount,
        "DIR",
    ];
    let can_mount = Command::new("unshare")
        .args([
            "--mount",
            "--propagation",
            "private",
            "mount",
            "-t",
            "tmpfs",
            "tmpfs",
            "/mnt",
        ])
        .output();
    if !can_mount.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIP: no mounting in a namespace of our own here");
        return None;
    }
    let line = format!("-i v1 --ring 128MiB --past 60s --future 50ms --trigger '{TRIGGER}' {more}");
    Some(Recorder::start_wrapped(namespace, &wrapper, &words(&line)))
}

/// Path of the recorder's file or directory, as seen by the test.
fn seen(recorder: &Recorder, name: &str) -> PathBuf {
    let root = PathBuf::from(format!("/proc/{}/root", recorder.pid().as_raw_nonzero()));
    root.join(recorder.directory().strip_prefix("/").unwrap())
        .join(name)
}

/// The names in the recorder's directory, sorted.
fn names(recorder: &Recorder) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(seen(recorder, ""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Truncates a file and removes it. Truncating frees the space at once, even if a process that
/// another test is starting holds the file open.
fn remove(path: &Path) {
    File::options()
        .write(true)
        .open(path)
        .and_then(|file| file.set_len(0))
        .unwrap();
    fs::remove_file(path).unwrap();
}

/// The verdicts of all dumps.
fn verdicts(outcome: &Outcome) -> Vec<&Value> {
    outcome
        .dumps()
        .iter()
        .map(|dump| &dump["verdict"])
        .collect()
}

/// A dump does not fit on the disk and fails. Its `.part` file stays, and a message names the file.
/// After space is freed, the next dump succeeds.
#[test]
fn a_full_disk_fails_one_dump() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("full") else {
        return;
    };
    let Some(recorder) = start(&namespace, 256, "") else {
        return;
    };
    let mut sender = Sender::new(&namespace, "v0");
    // With the trigger packet, 400 kB in one flow.
    for _ in 0..399 {
        sender.send(&packet(1, false));
    }
    recorder.settle(399);
    sender.send(&packet(1, true));
    let (_, line) = recorder.dumps(1).remove(0);
    assert!(line.contains(": failed: "), "{line}");
    let left = names(&recorder);
    let part = left.iter().find(|name| name.ends_with(".part")).unwrap();
    assert!(
        !left.iter().any(|name| name.ends_with(".pcapng")),
        "{left:?}"
    );
    let readable = capture::readable(&seen(&recorder, part));
    remove(&seen(&recorder, part));
    let part = recorder.directory().join(part);

    sender.send(&packet(2, true));
    recorder.dumps(2);
    let left = names(&recorder);
    let dump = left.iter().find(|name| name.ends_with(".pcapng")).unwrap();
    assert_eq!(capture::read_file(&seen(&recorder, dump)).packets.len(), 1);
    let outcome = recorder.stop();
    outcome.expect_code(3);
    assert_eq!(verdicts(&outcome), [&json!("failed"), &json!("complete")]);
    assert_eq!(outcome.source().stored, 401);
    let failed = &outcome.dumps()[0];
    assert_eq!(failed["file"], part.to_str().unwrap());
    assert!(
        failed["error"].as_str().unwrap().contains("No space left"),
        "{failed}"
    );
    let missing = &failed["missing"][0];
    assert_eq!(missing["cause"], "disk");
    // The packets in the file and the refused packets together are all packets of the dump.
    assert_eq!(failed["packets"], readable);
    assert_eq!(missing["packets"], 400 - readable);
    assert!(
        outcome.said(&format!("unfinished: {}", part.display())),
        "{:#?}",
        outcome.words
    );
}

/// While the file system is read-only, a dump fails and leaves no file. After the file system is
/// writable again, the next dump succeeds.
#[test]
fn a_read_only_disk_fails_one_dump() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("readonly") else {
        return;
    };
    let Some(recorder) = start(&namespace, 256, "") else {
        return;
    };
    let remount = |how: &str| {
        let pid = recorder.pid().as_raw_nonzero().to_string();
        let output = Command::new("nsenter")
            .args(["-t", &pid, "-m", "mount", "-o", &format!("remount,{how}")])
            .arg(recorder.directory())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    let mut sender = Sender::new(&namespace, "v0");
    remount("ro");
    sender.send(&packet(1, true));
    let (_, line) = recorder.dumps(1).remove(0);
    assert!(line.contains(": failed: "), "{line}");
    assert_eq!(names(&recorder), Vec::<String>::new());
    remount("rw");
    sender.send(&packet(2, true));
    recorder.dumps(2);
    let outcome = recorder.stop();
    outcome.expect_code(3);
    assert_eq!(verdicts(&outcome), [&json!("failed"), &json!("complete")]);
    let failed = &outcome.dumps()[0];
    assert!(
        failed["error"].as_str().unwrap().contains("Read-only"),
        "{failed}"
    );
    assert_eq!(outcome.source().stored, 2);
}

/// Sets a flag for another thread when dropped, even if the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Fills a file until the disk is full, then truncates the file to a random part of its size after
/// a random time. Repeats this until the flag is set, then removes the file.
fn fill(path: &Path, mut random: fastrand::Rng, is_over: &AtomicBool) {
    let open = File::options().append(true).create(true).open(path);
    let mut file = open.unwrap();
    let mut lasts = |most: u32| {
        let turns = random.u32(..most);
        (0..turns).for_each(|_| std::thread::yield_now());
        random.u8(1..8)
    };
    while !is_over.load(Ordering::Relaxed) {
        let full = std::iter::repeat_with(|| file.write_all(&[0x5a; 4096]));
        let full = full.filter_map(Result::err).next().unwrap();
        assert_eq!(full.kind(), ErrorKind::StorageFull);
        let eighths = lasts(20_000);
        let bytes = file.metadata().unwrap().len();
        file.set_len(bytes / 8 * u64::from(eighths)).unwrap();
        lasts(2000);
    }
    remove(path);
}

/// Facts from events about dumps. A dump is named by its file name without extension.
#[derive(Debug, Default)]
struct Noted {
    deleted: BTreeSet<String>,
    /// Dumps whose sidecar found no room, and is not written yet.
    without_sidecar: BTreeSet<String>,
    /// Number of sidecars that found no room at first and were written later.
    late_sidecars: usize,
}

/// Reads the next event, notes its facts and returns its kind. Asserts that no dump is deleted
/// twice.
fn told(events: &mut Events, noted: &mut Noted) -> String {
    let event = events.until(|_| true);
    if event["event"] == "deleted" {
        let id = event["id"].as_str().unwrap();
        let is_new = noted.deleted.insert(id.to_owned());
        assert!(is_new, "{id} is deleted twice");
    }
    let id = |path: &str| {
        let name = Path::new(path).file_name().unwrap().to_str().unwrap();
        let id = name.trim_end_matches(".part").trim_end_matches(".pcapng");
        id.to_owned()
    };
    let text = event["text"].as_str().unwrap_or_default();
    if let Some((path, why)) = text.split_once(": no sidecar: ") {
        assert!(why.contains("No space left"), "{event}");
        assert!(noted.without_sidecar.insert(id(path)), "{event}");
    }
    if let Some(path) = text.strip_suffix(": its sidecar is written now") {
        assert!(noted.without_sidecar.remove(&id(path)), "{event}");
        noted.late_sidecars += 1;
    }
    event["event"].as_str().unwrap().to_owned()
}

/// Reads events until a dump is finished.
fn finished(events: &mut Events, noted: &mut Noted) {
    while told(events, noted) != "finished" {}
}

/// Another writer repeatedly fills the disk and frees it again, while dumps are written and old
/// dumps are deleted. The verdict of each dump reports its losses, and dumps without a competing
/// writer are complete. The recording itself loses no packet. No held dump is deleted, and every
/// deletion is reported by an event.
#[test]
fn another_writer_fills_the_disk() {
    const ROUNDS: usize = 24;
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("another") else {
        return;
    };
    let seed =
        std::env::var("DISK_SEED").map_or_else(|_| fastrand::u64(..), |s| s.parse().unwrap());
    eprintln!("DISK_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (_folder, path) = socket();
    let more = format!(
        "--keep 1500KiB --set min-free=5% --api unix:{}",
        path.display()
    );
    let Some(recorder) = start(&namespace, 4096, &more) else {
        return;
    };
    let (api, mut events) = (Api::at(&path), Events::of(PROGRAM, &path));
    let mut sender = Sender::new(&namespace, "v0");
    let (mut held, mut noted) = (BTreeSet::new(), Noted::default());
    let mut due = Vec::new();
    for round in 0..ROUNDS {
        let host = u8::try_from(2 * round).unwrap();
        let packets = random.u64(..500);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _ends = Ends(&is_over);
            let (other, random) = (seen(&recorder, "other"), random.fork());
            let is_over = &is_over;
            scope.spawn(move || fill(&other, random, is_over));
            (0..packets).for_each(|_| sender.send(&packet(host, false)));
            sender.send(&packet(host, true));
            finished(&mut events, &mut noted);
        });
        // The other writer removed its file, so there is room for the missing sidecars.
        while !noted.without_sidecar.is_empty() {
            told(&mut events, &mut noted);
        }
        sender.send(&packet(host + 1, true));
        finished(&mut events, &mut noted);
        due.extend([packets + 1, 1]);
        if held.len() < 3 && random.u8(..3) == 0 {
            let number = 2 * round + 2;
            let target = format!("/v1/dumps/{number}");
            // The dump may already be deleted.
            if api.ask("PUT", &format!("{target}/hold"), None).is_ok() {
                let id = api.done("GET", &target, None)["stored"]["id"].clone();
                held.insert(id.as_str().unwrap().to_owned());
            }
        }
    }
    recorder.settle(sender.sent());
    let listed = api.done("GET", "/v1/dumps?limit=1000", None)["dumps"].clone();
    let stored = listed.as_array().unwrap().iter();
    let stored = stored.map(|dump| &dump["stored"]);
    let stored: Vec<_> = stored.filter(|stored| !stored.is_null()).collect();
    let left: BTreeSet<String> = names(&recorder).into_iter().collect();
    for dump in &stored {
        let file = seen(&recorder, dump["files"][0]["name"].as_str().unwrap());
        assert_eq!(dump["packets"], capture::readable(&file), "{dump}");
    }
    assert_eq!(api.status()["analyzers"]["missed"], 0);
    api.stop();
    while told(&mut events, &mut noted) != "end" {}
    let Noted {
        deleted,
        late_sidecars,
        ..
    } = noted;
    let outcome = recorder.wait();
    assert_eq!(
        (outcome.source().stored, outcome.source().lost),
        (sender.sent(), 0)
    );
    assert!(deleted.is_disjoint(&held), "{deleted:?} {held:?}");
    let mut expected: BTreeSet<String> = held.iter().map(|id| format!("{id}.hold")).collect();
    let mut failed = 0;
    for ((number, dump), due) in outcome.dumps().iter().enumerate().zip(due) {
        let missing = dump["missing"].as_array().unwrap();
        let lost: u64 = missing
            .iter()
            .map(|it| it["packets"].as_u64().unwrap())
            .sum();
        assert_eq!(dump["packets"].as_u64().unwrap() + lost, due, "{dump}");
        let path = capture::path(dump);
        let name = path.file_name().unwrap().to_str().unwrap();
        let id = name.trim_end_matches(".part").trim_end_matches(".pcapng");
        if dump["verdict"] == "complete" {
            assert!(missing.is_empty(), "{dump}");
        } else {
            failed += 1;
            assert!(number % 2 == 0, "a dump with the disk alone: {dump}");
            assert_eq!(dump["verdict"], "failed", "{dump}");
            assert!(
                dump["error"].as_str().unwrap().contains("No space left"),
                "{dump}"
            );
            assert!(missing.iter().all(|it| it["cause"] == "disk"), "{dump}");
        }
        let sidecar = format!("{id}.json");
        let is_there = left.contains(name) && left.contains(&sidecar);
        // A failed dump may have found no room even for an empty file.
        let never_was = dump["verdict"] == "failed" && !left.contains(name);
        assert!(is_there || deleted.contains(id) || never_was, "{dump}");
        expected.extend([name.to_owned(), sidecar]);
    }
    let more: Vec<_> = left.difference(&expected).collect();
    assert!(more.is_empty(), "left over: {more:?}");
    for id in &held {
        assert!(
            left.contains(&format!("{id}.pcapng")),
            "{id} is held: {left:?}"
        );
    }
    eprintln!(
        "{failed} of {ROUNDS} failed, {} deleted, {late_sidecars} with a late sidecar, {} held",
        deleted.len(),
        held.len()
    );
    assert!(failed > 0 && !deleted.is_empty());
    outcome.expect_code(3);
}
