use std::{
    fs,
    io::{self, Read},
    os::unix::{
        fs::{MetadataExt, symlink},
        net::{UnixListener, UnixStream},
    },
    path::Path,
    sync::{Arc, Mutex},
};

use retroscope_flow::{Secret, Tracker, TrackerConfig};
use retroscope_packet::LinkType;
use serde_json::{Value, json};

use super::*;

#[derive(Debug, Clone, Default)]
struct Said(Arc<Mutex<Vec<String>>>);

impl Said {
    fn tell(&self) -> Box<dyn FnMut(&str) + Send> {
        let said = Arc::clone(&self.0);
        Box::new(move |sentence| said.lock().unwrap().push(sentence.to_owned()))
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn at_once() -> Options {
    Options {
        patience: Some(Duration::ZERO),
        ..Options::default()
    }
}

fn open(target: &str, options: Options, said: &Said) -> Result<EveWriter, String> {
    EveWriter::open(target.parse()?, options, said.tell())
}

fn file(path: &Path, options: Options, said: &Said) -> EveWriter {
    open(path.to_str().unwrap(), options, said).unwrap()
}

/// Writes an event. All events of a test have the same length.
fn put(writer: &mut EveWriter, number: u64) {
    writer.event(0, &json!({"number": 1_000_000 + number}));
}

/// The numbers of the events. All lines must be whole.
fn numbers(text: &str) -> Vec<u64> {
    assert!(text.is_empty() || text.ends_with('\n'), "{text:?}");
    let number = |line| {
        let value: Value = serde_json::from_str(line).unwrap();
        value["retroscope"]["number"].as_u64().unwrap() - 1_000_000
    };
    text.lines().map(number).collect()
}

fn counters(lines: u64, lost: u64) -> Counters {
    Counters {
        lines,
        lost,
        not_ip: 0,
    }
}

#[test]
fn targets_are_files_stdout_and_sockets() {
    let target = |text: &str| text.parse::<EveTarget>();
    assert_eq!(target("-"), Ok(EveTarget::Stdout));
    assert_eq!(target("./unix:s"), Ok(EveTarget::File("./unix:s".into())));
    assert_eq!(target("unix:/run/s"), Ok(EveTarget::Unix("/run/s".into())));
    let longest = format!("unix:{}", "s".repeat(108));
    assert_eq!(target(&longest).unwrap().to_string(), longest);
    for (wrong, what) in [
        ("", "names no file"),
        ("unix:", "names no socket"),
        (
            &format!("{longest}s"),
            "at most 108 bytes, this one has 109",
        ),
    ] {
        let refused = target(wrong).unwrap_err();
        assert!(refused.contains(what), "{refused}");
    }
}

#[test]
fn what_cannot_be_written_is_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("file"), "").unwrap();
    drop(UnixListener::bind(at("dead")).unwrap());
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    let shown = folder.path().display();
    for (target, why) in [
        (format!("{shown}"), "it is a directory"),
        (format!("{shown}/dead"), "it is a socket: write unix:"),
        (format!("{shown}/pipe"), "it is a pipe: write -"),
        (format!("{shown}/none/f"), "No such file or directory"),
        (format!("{shown}/file/f"), "Not a directory"),
        (format!("unix:{shown}/dead"), "nobody listens there"),
        (format!("unix:{shown}/none"), "No such file or directory"),
        (format!("unix:{shown}/file"), "nobody listens there"),
    ] {
        let refused = open(&target, at_once(), &Said::default()).err().unwrap();
        assert!(refused.starts_with("cannot write EVE to "), "{refused}");
        assert!(refused.contains(why), "{refused}");
        assert!(!refused.contains('\n'), "{refused}");
    }
}

#[test]
fn a_file_is_appended_to_and_for_its_group_only() {
    let folder = tempfile::tempdir().unwrap();
    let (path, said) = (folder.path().join("eve.json"), Said::default());
    let mut writer = file(&path, at_once(), &said);
    put(&mut writer, 1);
    assert_eq!(writer.close(), counters(1, 0));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777 & !0o640, 0);
    let mut writer = file(&path, at_once(), &said);
    put(&mut writer, 2);
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1);
    writer.flush();
    assert_eq!(writer.counters(), counters(1, 0));
    assert_eq!(numbers(&fs::read_to_string(&path).unwrap()), [1, 2]);
    assert_eq!(said.take(), Vec::<String>::new());
}

/// Another user plants a link, or a second name of root's file.
#[test]
fn a_file_that_another_user_names_is_not_appended_to() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP: needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (theirs, victim) = (folder.path().join("theirs"), folder.path().join("victim"));
    fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::chown(&theirs, Some(12_345), Some(12_345)).unwrap();
    fs::create_dir(&victim).unwrap();
    fs::write(victim.join("passwd"), "root\n").unwrap();
    symlink(victim.join("passwd"), theirs.join("link")).unwrap();
    symlink(victim.join("new"), theirs.join("dangling")).unwrap();
    symlink(&victim, theirs.join("directory")).unwrap();
    fs::hard_link(victim.join("passwd"), theirs.join("second")).unwrap();
    let write = |name: &str| {
        let target = theirs.join(name).display().to_string();
        let writer = open(&target, at_once(), &Said::default());
        writer.map(|mut writer| put(&mut writer, 1)).err()
    };
    let refused = ["link", "dangling", "directory/new", "second"].map(write);
    assert_eq!(fs::read(victim.join("passwd")).unwrap(), b"root\n");
    assert!(!victim.join("new").exists());
    assert!(refused.iter().all(Option::is_some), "{refused:?}");
    assert_eq!(write("eve.json"), None);
}

#[test]
fn flows_name_their_interface_and_what_is_not_ip_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f");
    let mut tracker = Tracker::new(&TrackerConfig::default(), Secret::random());
    let mut flows = Vec::new();
    let mut udp = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0];
    udp.extend([10, 0, 0, 1, 10, 0, 0, 2, 0, 53, 0, 54, 0, 8, 0, 0]);
    let arp = [[2; 12].as_slice(), &[8, 6], &[0; 28]].concat();
    let packets = [
        (0, LinkType::RAW, &udp),
        (1, LinkType::ETHERNET, &arp),
        (7, LinkType::RAW, &udp),
    ];
    for (interface, link_type, data) in packets {
        let mut ended = |flow| flows.push(flow);
        tracker.packet((interface, link_type), (0, 60), data, &mut ended);
        tracker.finish(&mut ended);
    }
    let mut writer = file(&path, at_once(), &Said::default());
    writer.interface(7, "eth\"7");
    writer.flows(&flows);
    let expected = Counters {
        lines: 2,
        lost: 0,
        not_ip: 1,
    };
    assert_eq!(writer.close(), expected);
    let text = fs::read_to_string(&path).unwrap();
    let names = text.lines().map(|line| {
        let value: Value = serde_json::from_str(line).unwrap();
        value
            .get("in_iface")
            .map(|name| name.as_str().unwrap().to_owned())
    });
    assert_eq!(names.collect::<Vec<_>>(), [None, Some("eth\"7".to_owned())]);
}

#[test]
fn a_line_that_somebody_did_not_end_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("eve.json");
    fs::write(&path, "{\"timest").unwrap();
    let mut writer = file(&path, at_once(), &Said::default());
    put(&mut writer, 1);
    writer.close();
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(numbers(text.strip_prefix("{\"timest\n").unwrap()), [1]);
}

#[test]
fn a_renamed_file_is_left_at_hup() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let said = Said::default();
    let mut writer = file(&at("f"), at_once(), &said);
    put(&mut writer, 1);
    fs::rename(at("f"), at("old")).unwrap();
    put(&mut writer, 2);
    writer.rotate();
    put(&mut writer, 3);
    writer.flush();
    assert_eq!(numbers(&fs::read_to_string(at("old")).unwrap()), [1, 2]);
    assert_eq!(numbers(&fs::read_to_string(at("f")).unwrap()), [3]);

    fs::remove_file(at("f")).unwrap();
    fs::create_dir(at("f")).unwrap();
    writer.rotate();
    put(&mut writer, 4);
    assert_eq!(writer.close(), counters(4, 0));
    let said = said.take();
    assert!(
        said[0].contains("it is a directory") && said.len() == 1,
        "{said:?}"
    );
}

#[test]
fn a_full_disk_is_told_once_and_lines_go_on_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let (path, said) = (folder.path().join("f"), Said::default());
    symlink("/dev/full", &path).unwrap();
    let mut writer = file(&path, at_once(), &said);
    for number in 0..3 {
        put(&mut writer, number);
        writer.flush();
    }
    assert_eq!(writer.counters(), counters(0, 3));
    let sentences = said.take();
    assert_eq!(sentences.len(), 1, "{sentences:?}");
    assert!(
        sentences[0].contains("No space left on device"),
        "{sentences:?}"
    );
    fs::remove_file(&path).unwrap();
    writer.rotate();
    put(&mut writer, 3);
    assert_eq!(writer.close(), counters(1, 3));
    assert_eq!(numbers(&fs::read_to_string(&path).unwrap()), [3]);
    let sentences = said.take();
    assert!(
        sentences.len() == 1 && sentences[0].ends_with("3 lines lost"),
        "{sentences:?}"
    );
}

#[test]
fn trouble_is_told_once_a_minute() {
    let (said, script) = (Said::default(), Scripted::default());
    let mut writer = EveWriter::new(
        EveTarget::Stdout,
        at_once(),
        Box::new(script.clone()),
        said.tell(),
    );
    let begun = Instant::now();
    let mut turn = |seconds, takes| {
        script.0.lock().unwrap().room = takes;
        put(&mut writer, 1);
        writer.deliver(begun + Duration::from_secs(seconds));
        said.take().len()
    };
    assert_eq!(turn(0, 0), 1);
    assert_eq!(turn(1, 1000), 1);
    assert_eq!(turn(2, 0), 0);
    assert_eq!(turn(3, 1000), 0);
    assert_eq!(turn(60, 0), 1);
    assert_eq!(turn(61, 0), 0);
    script.0.lock().unwrap().room = 1000;
    put(&mut writer, 1);
    writer.deliver(begun + Duration::from_secs(62));
    // The count includes lines that were lost while messages were suppressed.
    assert!(said.take()[0].ends_with("3 lines lost"));
    assert_eq!(writer.close(), counters(3, 4));
}

#[derive(Debug, Clone, Default)]
struct Scripted(Arc<Mutex<Script>>);

#[derive(Debug, Default)]
struct Script {
    /// Bytes that the output still accepts.
    room: usize,
    is_gone: bool,
    /// Written bytes, one text for each connection.
    written: Vec<String>,
}

impl LineOutput for Scripted {
    fn write(&mut self, bytes: &[u8], _: &mut Option<Duration>) -> Result<usize, Trouble> {
        let mut script = self.0.lock().unwrap();
        if script.is_gone {
            return Err(Trouble::Gone("gone".to_owned()));
        }
        let taken = bytes.len().min(script.room);
        if taken == 0 {
            return Err(Trouble::Full("full".to_owned()));
        }
        script.room -= taken;
        let text = str::from_utf8(&bytes[..taken]).unwrap();
        if script.written.is_empty() {
            script.written.push(String::new());
        }
        script.written.last_mut().unwrap().push_str(text);
        Ok(taken)
    }

    fn renew(&mut self, _: Instant) -> bool {
        let mut script = self.0.lock().unwrap();
        script.is_gone = false;
        script.written.push(String::new());
        true
    }
}

#[test]
fn the_rest_of_a_line_goes_first() {
    let (said, script) = (Said::default(), Scripted::default());
    let mut writer = EveWriter::new(
        EveTarget::Stdout,
        at_once(),
        Box::new(script.clone()),
        said.tell(),
    );
    put(&mut writer, 0);
    let line = writer.collected.len();
    // The output accepts only `part` bytes of the first line.
    for part in 0..=line {
        let script = || script.0.lock().unwrap();
        (1..3).for_each(|number| put(&mut writer, number));
        script().room = part;
        writer.flush();
        put(&mut writer, 3);
        script().room = 0;
        writer.flush();
        put(&mut writer, 4);
        script().room = usize::MAX;
        writer.flush();
        let expected = if part == 0 { vec![4] } else { vec![0, 4] };
        assert_eq!(
            numbers(&script().written.concat()),
            expected,
            "{part} bytes"
        );
        script().written.clear();
        put(&mut writer, 0);
    }
    let total = 5 * (line as u64 + 1);
    let written = 2 * line as u64 + 1;
    script.0.lock().unwrap().room = 1;
    assert_eq!(writer.close(), counters(written, total - written + 1));
}

#[test]
fn who_comes_next_begins_with_a_whole_line() {
    let (said, script) = (Said::default(), Scripted::default());
    let mut writer = EveWriter::new(
        EveTarget::Stdout,
        at_once(),
        Box::new(script.clone()),
        said.tell(),
    );
    put(&mut writer, 0);
    let line = writer.collected.len();
    (1..4).for_each(|number| put(&mut writer, number));
    script.0.lock().unwrap().room = line + 7;
    writer.flush();
    put(&mut writer, 4);
    *script.0.lock().unwrap() = Script {
        room: usize::MAX,
        is_gone: true,
        ..Script::default()
    };
    writer.flush();
    assert_eq!(numbers(&script.0.lock().unwrap().written.concat()), [1, 4]);
    assert_eq!(writer.close(), counters(3, 2));
}

fn connection(path: &Path, said: &Said) -> (EveWriter, UnixListener, UnixStream) {
    let listener = UnixListener::bind(path).unwrap();
    let writer = open(&format!("unix:{}", path.display()), at_once(), said).unwrap();
    let stream = listener.accept().unwrap().0;
    (writer, listener, stream)
}

#[test]
fn a_slow_reader_gets_whole_lines_and_the_others_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let said = Said::default();
    let (mut writer, _listener, mut stream) = connection(&folder.path().join("s"), &said);
    let mut number = 0;
    while writer.counters().lost == 0 {
        put(&mut writer, number);
        number += 1;
        assert!(number < 1_000_000, "it takes all");
    }
    // The reader reads again, and receives the rest of the line first.
    let mut text = String::new();
    stream.set_nonblocking(true).unwrap();
    let wait = stream.read_to_string(&mut text).unwrap_err();
    assert_eq!(wait.kind(), io::ErrorKind::WouldBlock);
    put(&mut writer, number);
    let counted = writer.close();
    stream.set_nonblocking(false).unwrap();
    stream.read_to_string(&mut text).unwrap();
    let numbers = numbers(&text);
    assert_eq!(numbers.last(), Some(&number));
    assert_eq!(
        counted,
        counters(numbers.len() as u64, number + 1 - numbers.len() as u64)
    );
    let said = said.take();
    assert!(said[0].contains("its reader is too slow"), "{said:?}");
}

#[test]
fn a_reader_that_comes_back_is_found_once_a_second() {
    let folder = tempfile::tempdir().unwrap();
    let (path, said) = (folder.path().join("s"), Said::default());
    let (mut writer, listener, stream) = connection(&path, &said);
    let begun = Instant::now();
    let turn = |writer: &mut EveWriter, number, millis| {
        put(writer, number);
        writer.deliver(begun + Duration::from_millis(millis));
        writer.counters()
    };
    assert_eq!(turn(&mut writer, 0, 0), counters(1, 0));
    drop((stream, listener));
    assert_eq!(
        turn(&mut writer, 1, 1100),
        counters(1, 1),
        "tried, and nobody is there"
    );
    fs::remove_file(&path).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    assert_eq!(turn(&mut writer, 2, 2000), counters(1, 2), "not yet");
    assert_eq!(turn(&mut writer, 3, 2100), counters(2, 2));
    let mut text = String::new();
    writer.close();
    listener
        .accept()
        .unwrap()
        .0
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(numbers(&text), [3]);
    let said = said.take();
    assert!(
        said.len() == 2 && said[0].contains("its reader has gone"),
        "{said:?}"
    );
    assert!(said[1].ends_with("2 lines lost"), "{said:?}");
}

fn to_pipe(options: Options) -> (EveWriter, io::PipeReader) {
    let (reader, writer) = io::pipe().unwrap();
    let output = Box::new(stdout::Stdout(writer.into()));
    let writer = EveWriter::new(EveTarget::Stdout, options, output, Said::default().tell());
    (writer, reader)
}

#[test]
fn a_slow_reader_of_stdout_is_not_waited_for() {
    let (mut writer, mut reader) = to_pipe(at_once());
    let mut number = 0;
    while writer.counters().lost == 0 {
        put(&mut writer, number);
        number += 1;
        assert!(number < 1_000_000, "it takes all");
    }
    let read = std::thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    });
    // The writer now waits for the reader without a limit, so no more lines are lost.
    writer.options.patience = None;
    let counted = writer.close();
    let numbers = numbers(&read.join().unwrap());
    assert_eq!(
        counted,
        counters(numbers.len() as u64, number - numbers.len() as u64)
    );
}

#[test]
fn the_reader_of_stdout_may_leave() {
    let (mut writer, reader) = to_pipe(Options::default());
    put(&mut writer, 0);
    writer.flush();
    assert!(!writer.has_left());
    drop(reader);
    put(&mut writer, 1);
    writer.flush();
    assert!(writer.has_left());
    assert_eq!(writer.close(), counters(1, 1));
}
