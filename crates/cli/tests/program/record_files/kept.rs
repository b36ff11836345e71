//! Files of dumps: names, retention, and commands that run for each dump.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use super::{S, record, write_capture};
use crate::support::{PROGRAM, skip, stderr};

/// Records ten dumps of one packet each. The packets are a second apart. `more` are further
/// arguments. Returns the messages and the summary.
fn ten_dumps(dir: &Path, more: &[&str]) -> (String, serde_json::Value) {
    let capture = dir.join("in.pcap");
    write_capture(&capture, 1000, 60, S / 100, None);
    let dumps = dir.join("dumps");
    let mut args = vec![
        "-r",
        capture.to_str().unwrap(),
        "-w",
        dumps.to_str().unwrap(),
    ];
    args.extend([
        "--trigger",
        "udp port 42",
        "--past",
        "0",
        "--future",
        "0",
        "--set",
        "reorder-window=0",
    ]);
    args.extend(more);
    let (output, json) = record(&args);
    let text = stderr(&output).to_owned();
    assert_eq!(output.status.code(), Some(0), "{text}");
    (text, json.unwrap())
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn names_follow_a_template_and_collide_with_nothing() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("dumps")).unwrap();
    let foreign = dir.path().join("dumps/all-4.pcapng");
    fs::write(&foreign, "foreign").unwrap();
    ten_dumps(dir.path(), &["--set", "name=all", "--set", "sha256=true"]);
    let names = names(&dir.path().join("dumps"));
    let captures = names.iter().filter(|name| name.ends_with(".pcapng"));
    assert_eq!((captures.count(), names.len()), (11, 21), "{names:?}");
    assert!(names.contains(&"all-11.json".to_owned()), "{names:?}");
    assert_eq!(fs::read(foreign).unwrap(), b"foreign");
    let sums = Command::new("sha256sum")
        .arg("all.pcapng")
        .current_dir(dir.path().join("dumps"))
        .output();
    let told = fs::read_to_string(dir.path().join("dumps/all.json")).unwrap();
    match sums {
        Ok(sums) => {
            let sum = String::from_utf8(sums.stdout).unwrap();
            let sum = sum.split_whitespace().next().unwrap().to_owned();
            assert!(told.contains(&sum), "{sum}: {told}");
        }
        Err(_) => skip("sha256sum is not there"),
    }
}

/// `--keep` also applies with `-r`: at the end only the newest dumps, dumps with a `.hold` file,
/// and files that belong to no dump are left.
#[test]
fn dumps_are_deleted_the_oldest_first() {
    let dir = tempfile::tempdir().unwrap();
    let dumps = dir.path().join("dumps");
    ten_dumps(dir.path(), &["--set", "name={number}"]);
    let size = |name: &str| fs::metadata(dumps.join(name)).map_or(0, |meta| meta.len());
    let one = size("0001.pcapng") + size("0001.json");
    fs::write(dumps.join("0003.hold"), "").unwrap();
    fs::write(dumps.join("notes.json"), "{}").unwrap();
    // The limit is the size of ten and a half dumps, so 9 to 11 of 20 dumps are left. The dump with
    // the `.hold` file is among them.
    let most = format!("{}KiB", (one * 21 / 2).div_ceil(1024));
    let (text, _) = ten_dumps(dir.path(), &["--set", "name={number}", "--keep", &most]);
    assert!(text.contains("deleted dump 0001: "), "{text}");
    let names = names(&dumps);
    let left: Vec<_> = names
        .iter()
        .filter(|name| name.ends_with(".pcapng"))
        .collect();
    assert!((9..=11).contains(&left.len()), "{names:?}");
    assert!(
        left.iter()
            .all(|name| name.as_str() > "0010" || name.starts_with("0003")),
        "{names:?}"
    );
    for kept in [
        "0003.json",
        "0003.pcapng",
        "0003.hold",
        "notes.json",
        "0020.json",
    ] {
        assert!(names.contains(&kept.to_owned()), "{kept}: {names:?}");
    }
    // The limit of this trigger is smaller than one dump, so only the dump with the `.hold` file is
    // left.
    ten_dumps(
        dir.path(),
        &[
            "--set",
            "name={number}",
            "--set",
            "trigger=[]",
            "--set",
            "rule.1.filter=udp port 42",
            "--set",
            "rule.1.keep=0.001KiB",
        ],
    );
    let left = names_of_captures(&dumps);
    assert_eq!(left, ["0003.pcapng"]);
}

/// Two triggers have the same expression, but a limit for the dumps of one trigger deletes no dump
/// of the other trigger.
#[test]
fn what_is_kept_is_told_apart_by_trigger() {
    let dir = tempfile::tempdir().unwrap();
    ten_dumps(
        dir.path(),
        &[
            "--set",
            "rule.kept.filter=udp port 42",
            "--set",
            "rule.kept.keep=0.001KiB",
        ],
    );
    let dumps = dir.path().join("dumps");
    let sidecars = names(&dumps).into_iter();
    let sidecars = sidecars.filter(|name| name.ends_with(".json"));
    let told = sidecars.map(|name| -> serde_json::Value {
        serde_json::from_slice(&fs::read(dumps.join(name)).unwrap()).unwrap()
    });
    let rules = told.map(|told| told["rule_name"].clone());
    assert_eq!(rules.collect::<Vec<_>>(), ["1"; 10]);
}

fn names_of_captures(dumps: &Path) -> Vec<String> {
    let mut names = names(dumps);
    names.retain(|name| name.ends_with(".pcapng"));
    names
}

#[test]
fn a_command_runs_for_each_dump() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    let post = format!("cp {{file}} '{}'", out.display());
    let (_, json) = ten_dumps(dir.path(), &["--set", "name={number}", "--post", &post]);
    assert_eq!(
        (&json["post"]["done"], &json["post"]["to_be_done"]),
        (&10.into(), &0.into())
    );
    assert_eq!(names(&out).len(), 10);
    let (text, json) = ten_dumps(
        dir.path(),
        &["--post", "sh -c 'exit 3'", "--set", "post-at-once=4"],
    );
    assert_eq!(json["post"]["failed"], 10);
    assert_eq!(
        text.matches("--post failed with exit code 3").count(),
        10,
        "{text}"
    );
}

/// The exit code of a command is known even if the parent process of the recorder ignores SIGCHLD.
#[test]
fn the_end_of_a_command_is_known_where_sigchld_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcap");
    write_capture(&capture, 1000, 60, S / 100, None);
    let mut env = Command::new("env");
    env.args(["--ignore-signal=CHLD", PROGRAM, "record", "-r", "in.pcap"]);
    env.args(["-w", "dumps", "--trigger", "udp port 42"]);
    env.args(["--post", "sh -c 'exit 3'"]);
    let output = env.current_dir(dir.path()).output().unwrap();
    let text = stderr(&output);
    assert!(text.contains("--post failed with exit code 3"), "{text}");
}

/// A `--post` command runs without capabilities. With `post-user` the command runs as that user.
#[test]
fn a_command_has_its_own_identity() {
    let dir = tempfile::tempdir().unwrap();
    let probe = Command::new("setpriv")
        .args(["--reuid", "12345", "true"])
        .status();
    if !probe.is_ok_and(|status| status.success()) {
        skip("needs root, and setpriv to find that out");
        return;
    }
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    for path in [dir.path(), &out] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let script = r#"grep -E "^(Uid|Gid|Groups|CapEff|CapPrm|CapBnd|NoNewPrivs)" /proc/self/status > "$0/$$""#;
    let post = format!("sh -c '{script}' {}", out.display());
    let told = |args: &[&str]| {
        let (_, json) = ten_dumps(dir.path(), &[&["--post", &post], args].concat());
        assert_eq!(json["post"]["done"], 10, "{json}");
        let first = out.join(&names(&out)[0]);
        let told = fs::read_to_string(first).unwrap();
        for name in names(&out) {
            fs::remove_file(out.join(name)).unwrap();
        }
        assert!(told.contains("CapEff:\t0000000000000000"), "{told}");
        assert!(told.contains("CapPrm:\t0000000000000000"), "{told}");
        assert!(told.contains("NoNewPrivs:\t1"), "{told}");
        told
    };
    let theirs = told(&["--set", "post-user=12345:12346"]);
    assert!(
        theirs.contains("Uid:\t12345\t12345\t12345\t12345"),
        "{theirs}"
    );
    assert!(
        theirs.contains("Gid:\t12346\t12346\t12346\t12346"),
        "{theirs}"
    );
    let roots = told(&[]);
    assert!(roots.contains("Uid:\t0\t0\t0\t0"), "{roots}");
}
