//! `record --trigger-lua` and `--dump-lua` from files, the program as a user runs it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use retroscope_pcapfile::CaptureReader;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::PROGRAM;

/// A packet of a dump: interface, time in ns, length on the wire, bytes.
type Packet = (u16, i64, u32, Vec<u8>);

fn program(arguments: &[&str]) -> Output {
    Command::new(PROGRAM)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// 20,000 packets in a second: 50 flows, and a trigger packet to UDP port 60000 after half a
/// second.
fn capture(directory: &TempDir) -> String {
    let file = path(directory, "traffic.pcap");
    let arguments = "generate --flows 50 --rate 20kpps --duration 1s --trigger-after 500ms -w";
    let arguments: Vec<&str> = arguments.split(' ').chain([file.as_str()]).collect();
    assert!(program(&arguments).status.success());
    file
}

fn path(directory: &TempDir, name: &str) -> String {
    directory.path().join(name).display().to_string()
}

fn example(name: &str) -> String {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../examples", name]
        .iter()
        .collect();
    path.display().to_string()
}

/// Writes a script file.
fn script(directory: &TempDir, name: &str, text: &str) -> String {
    let file = path(directory, name);
    fs::write(&file, text).unwrap();
    file
}

/// Runs `record` on a capture with a window of 0.1 s before and after the trigger. Returns exit
/// code, messages and summary.
fn record(capture: &str, arguments: &[&str]) -> (i32, String, Value) {
    let output = tempfile::tempdir().unwrap();
    record_into(output.path(), capture, arguments)
}

/// Like [`record`], but writes dumps to this empty directory.
///
/// One call of a script may take half a second of real time, which includes time without a CPU. If
/// a script other than `hangs.lua` and `greedy.lua` is stopped at a limit, this function repeats
/// the run, up to twice.
fn record_into(directory: &Path, capture: &str, arguments: &[&str]) -> (i32, String, Value) {
    let is_held_up = |line: &str| {
        line.contains(": stopped, ")
            && !["hangs.lua", "greedy.lua"]
                .iter()
                .any(|name| line.contains(name))
    };
    let mut tries = 1;
    loop {
        let outcome = try_record_into(directory, capture, arguments);
        if tries == 3 || !outcome.1.lines().any(is_held_up) {
            return outcome;
        }
        eprintln!("try {tries}: {}", outcome.1);
        fs::remove_dir_all(directory).unwrap();
        fs::create_dir(directory).unwrap();
        tries += 1;
    }
}

fn try_record_into(directory: &Path, capture: &str, arguments: &[&str]) -> (i32, String, Value) {
    let directory = directory.display().to_string();
    let fixed = [
        "record",
        "--json",
        "-q",
        "--reproducible",
        "--past",
        "100ms",
        "--future",
        "100ms",
        "-r",
        capture,
        "-w",
        &directory,
    ];
    let output = program(&[&fixed, arguments].concat());
    let stdout = String::from_utf8(output.stdout).unwrap();
    let json = stdout
        .lines()
        .last()
        .map_or(Value::Null, |line| serde_json::from_str(line).unwrap());
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stderr).unwrap(),
        json,
    )
}

/// The packets and verdicts of all dumps of a run that must succeed.
fn dumps(capture: &str, arguments: &[&str]) -> Vec<(Vec<Packet>, String)> {
    let directory = tempfile::tempdir().unwrap();
    let (code, words, json) = record_into(directory.path(), capture, arguments);
    assert_eq!(code, 0, "{arguments:?}: {words}");
    let dumps = json["dumps"].as_array().unwrap().iter();
    dumps
        .map(|dump| {
            let file = dump["file"].as_str().unwrap();
            (
                packets(Path::new(file)),
                dump["verdict"].as_str().unwrap().to_owned(),
            )
        })
        .collect()
}

fn packets(file: &Path) -> Vec<Packet> {
    let mut reader = CaptureReader::open(file).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        let meta = record.meta;
        packets.push((
            meta.interface,
            meta.time_ns,
            meta.wire_len,
            record.data.to_vec(),
        ));
    }
    packets
}

/// Scripts give the same dumps as the equivalent filters.
#[test]
fn scripts_do_what_filters_do() {
    let directory = tempfile::tempdir().unwrap();
    let capture = capture(&directory);
    let expected = dumps(
        &capture,
        &["--trigger", "udp port 60000", "--dump", "host $srcIP"],
    );
    assert_eq!((expected.len(), expected[0].1.as_str()), (1, "complete"));
    assert!(expected[0].0.len() > 50, "{} packets", expected[0].0.len());
    let predicate = script(
        &directory,
        "host.lua",
        "return function(trigger) local source = net(trigger:src()) return function(pkt) return pkt:host(source) end end",
    );
    let text = script(
        &directory,
        "text.lua",
        "return function(trigger) return 'host ' .. trigger:src() end",
    );
    let (by_port, by_payload) = (example("udp-port.lua"), example("payload-begins-with.lua"));
    for arguments in [
        ["--trigger-lua", &by_port, "--dump", "host $srcIP"],
        ["--trigger-lua", &by_payload, "--dump", "host $srcIP"],
        ["--trigger", "udp port 60000", "--dump-lua", &predicate],
        ["--trigger-code", &by_payload, "--dumper-code", &predicate],
        ["--trigger-lua", &by_port, "--dump-lua", &text],
    ] {
        assert!(dumps(&capture, &arguments) == expected, "{arguments:?}");
    }
    // For a trigger with its own dump expression, the recorder does not use the dump script.
    let nothing = script(&directory, "nothing.lua", "return function(trigger) end");
    let arguments = ["--trigger-lua", &by_port, "--dump-lua", &nothing];
    assert!(dumps(&capture, &arguments).is_empty());
    let lua = format!("rule.a.lua={by_port}");
    let rule = ["--set", &lua, "--set", "rule.a.dump=host $srcIP"];
    let its_own = [&rule[..], &arguments[2..]].concat();
    assert!(dumps(&capture, &its_own) == expected);
    let all = dumps(
        &capture,
        &["--trigger", "udp port 60000", "--dump", "net 10.0.0.0/8"],
    );
    let same_net = example("dump-same-net.lua");
    let of_net = dumps(
        &capture,
        &["--trigger-lua", &by_port, "--dump-lua", &same_net],
    );
    assert!(of_net[0].0.len() >= expected[0].0.len() && of_net[0].0.len() <= all[0].0.len());
}

/// With files, the result depends only on the packets, even for scripts with state.
#[test]
fn runs_repeat_byte_for_byte() {
    let directory = tempfile::tempdir().unwrap();
    let capture = capture(&directory);
    let every_4000th = script(
        &directory,
        "every.lua",
        "local n = 0 return function(pkt) n = n + 1 return n % 4000 == 0 end",
    );
    let every_3rd = script(
        &directory,
        "third.lua",
        "return function(trigger) local n = 0 return function(pkt) n = n + 1 return n % 3 == 0 end, trigger:time() end",
    );
    let run = || {
        let output = tempfile::tempdir().unwrap();
        let arguments = ["--trigger-lua", &every_4000th, "--dump-lua", &every_3rd];
        let (code, words, _) = record_into(output.path(), &capture, &arguments);
        assert_eq!(code, 0, "{words}");
        let files = fs::read_dir(output.path()).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        files.sort_unstable();
        let contents = files.iter().map(|file| {
            (
                file.file_name().unwrap().to_owned(),
                fs::read(file).unwrap(),
            )
        });
        contents.collect::<Vec<_>>()
    };
    let first = run();
    assert_eq!(first.len(), 2 * 5, "five dumps, each with a sidecar");
    assert!(run() == first);
}

#[test]
fn a_script_that_fails_is_counted_and_the_rest_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let capture = capture(&directory);
    let fails = script(
        &directory,
        "fails.lua",
        "local n = 0 return function(pkt)\nn = n + 1\nreturn n > 700 and pkt:u32(9000) + 1 == 2 end",
    );
    let hangs = script(
        &directory,
        "hangs.lua",
        "local n = 0 return function(pkt) n = n + 1 while n > 700 do end end",
    );
    let greedy = script(
        &directory,
        "greedy.lua",
        "local s = 'x' return function(pkt) s = s .. s end",
    );
    let arguments = [
        "--trigger",
        "udp port 60000",
        "--trigger-lua",
        &fails,
        "--trigger-lua",
        &hangs,
        "--trigger-lua",
        &greedy,
    ];
    let (code, words, json) = record(&capture, &arguments);
    assert_eq!(
        (code, &json["scripts_failed"]),
        (1, &Value::from(3)),
        "{words}"
    );
    let dumps = json["dumps"].as_array().unwrap();
    assert_eq!(
        (dumps.len(), dumps[0]["verdict"].as_str()),
        (1, Some("complete"))
    );
    for told in [
        format!("{fails}:3: "),
        format!("{hangs}: "),
        format!("{greedy}: "),
    ] {
        assert_eq!(words.matches(&told).count(), 1, "{told}\nin\n{words}");
    }
}

#[test]
fn wrong_scripts_are_refused_at_their_line() {
    let directory = tempfile::tempdir().unwrap();
    let capture = capture(&directory);
    for (text, said) in [
        ("return function(pkt", "wrong.lua:1: "),
        ("return 7", "wrong.lua: "),
        ("local x = nil\nreturn x.y", "wrong.lua:2: "),
        ("while true do end", "hangs.lua: "),
        ("return require('ffi')", "wrong.lua:1: "),
    ] {
        let name = said.split(':').next().unwrap();
        let file = script(&directory, name, text);
        for option in ["--trigger-lua", "--dump-lua"] {
            let (code, words, _) = record(&capture, &["--trigger", "udp port 9", option, &file]);
            assert!(
                code == 2 && words.contains(said),
                "{option} {text}: {code}, {words}"
            );
        }
    }
    let (code, words, _) = record(&capture, &["--trigger-lua", "/nowhere.lua"]);
    assert!(
        code == 1 && words.contains("/nowhere.lua: "),
        "{code}, {words}"
    );
    let file = example("dump-same-net.lua");
    let (code, words, _) = record(
        &capture,
        &["--trigger", "tcp", "--dump", "tcp", "--dump-lua", &file],
    );
    assert!(
        code == 2 && words.contains("--dump-lua excludes"),
        "{code}, {words}"
    );
    let (code, words, _) = record(&capture, &["--dump-lua", &file]);
    assert!(code == 2 && words.contains("--trigger"), "{code}, {words}");
}

/// With `lua-trusted`, a script may load `ffi` and read the memory of a packet. Without the key,
/// the program refuses the script.
#[test]
fn trusted_scripts_see_memory() {
    let directory = tempfile::tempdir().unwrap();
    let capture = capture(&directory);
    let text = "local ffi = require('ffi')
        return function(pkt)
            local bytes = ffi.cast('const uint8_t *', pkt:pointer())
            local hit = bytes[36] == 0xea and bytes[37] == 0x60
            if hit then print('port 60000 from', pkt:src()) end
            return hit
        end";
    let file = script(&directory, "raw.lua", text);
    let (code, words, json) = record(
        &capture,
        &["--trigger-lua", &file, "--set", "lua-trusted=true"],
    );
    assert_eq!((code, &json["triggers"]), (0, &Value::from(1)), "{words}");
    assert_eq!(
        record(&capture, &["--trigger-lua", &file]).0,
        2,
        "not without"
    );
}
