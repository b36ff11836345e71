//! The control socket of a recorder on live interfaces.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use rustix::{
    fs::{Gid, Uid},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    capture,
    client::Client,
    namespace::Namespace,
    privileges::{NOBODY, OPEN_FOLDER, assert_given_up},
    recorder::{Recorder, words},
    shared,
    traffic::{self, Sender, udp},
};

/// A folder that anyone may look into, and a socket's path there.
fn socket() -> (TempDir, PathBuf) {
    let folder = TempDir::with_prefix("retroscope-control-").unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let path = folder.path().join("control");
    (folder, path)
}

/// A rule that is added while inserters look for another: the next packet that it takes is dumped, with the past; one that is removed
/// takes none. Packets of the ring are asked for under traffic, and none is lost.
#[test]
fn rules_change_under_traffic() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("ctl") else {
        return;
    };
    let (_folder, path) = socket();
    let recorder = Recorder::start(
        &namespace,
        &format!(
            "-i v1 --ring 128MiB --past 60s --future 50ms --dump 'udp dst port 60000' --trigger 'udp dst port 1' --control {}",
            path.display()
        ),
    );
    let mut client = Client::of(&path).unwrap();
    let mut sender = Sender::new(&namespace, "v0");
    sender.flood(5000, None, traffic::number, |_, _| {});
    sender.send(&udp(1, 1000, 60000, &0_u64.to_be_bytes()));
    recorder.settle(5001);
    let add = json!({ "command": "add-rule", "name": "late", "expression": "udp dst port 60000" });
    assert_eq!(client.done(&add)["existed"], false);
    sender.send(&udp(1, 1000, 60000, &1_u64.to_be_bytes()));
    recorder.dumps(1);
    client.done(&json!({ "command": "remove-rule", "name": "late" }));
    sender.send(&udp(1, 1000, 60000, &2_u64.to_be_bytes()));
    sender.flood(5000, None, traffic::number, |_, _| {});
    client.done(&json!({ "command": "query" }));
    recorder.settle(10_003);
    // The rule that was there from the start goes on.
    sender.send(&udp(1, 1000, 1, &[0; 8]));
    recorder.dumps(2);
    client.until(|line| !line["report"].is_null());
    client.done(&json!({ "command": "stop" }));
    let outcome = recorder.wait();
    outcome.expect_code(0);
    assert_eq!(
        (outcome.source().stored, outcome.source().lost),
        (10_004, 0)
    );
    let dump = outcome.dump_of("udp dst port 60000");
    assert_eq!(dump["verdict"], "complete");
    assert_eq!(capture::read(dump).packets.len(), 2, "its past and itself");
    assert_eq!(
        capture::read(outcome.dump_of("udp dst port 1"))
            .packets
            .len(),
        3
    );
    assert!(!path.exists());
}

/// The socket belongs to the user that the recorder becomes. Who is neither that user, nor root, nor of the group gets no answer, even where
/// the file lets anyone in.
#[test]
fn only_its_own_may_control_it() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("own") else {
        return;
    };
    let (_folder, path) = socket();
    let recorder = Recorder::start_wrapped(
        &namespace,
        &OPEN_FOLDER,
        &words(&format!(
            "-i v1 --ring 128MiB -Z nobody --control {}",
            path.display()
        )),
    );
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(
        (metadata.uid().to_string(), metadata.mode() & 0o777),
        (NOBODY.to_owned(), 0o660)
    );
    let nobody = 65_534;
    let asked_by = |uid, gid, groups: &[u32]| {
        let groups: Vec<Gid> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        // A thread's identity is its own, and goes with it.
        std::thread::scope(|scope| {
            let ask = || {
                set_thread_groups(&groups).unwrap();
                let gid = Gid::from_raw(gid);
                set_thread_res_gid(gid, gid, gid).unwrap();
                let uid = Uid::from_raw(uid);
                set_thread_res_uid(uid, uid, uid).unwrap();
                Client::of(&path).map(|mut client| client.ask(&json!({ "command": "status" })))
            };
            scope.spawn(ask).join().unwrap()
        })
    };
    assert_eq!(asked_by(0, 0, &[]).unwrap()["ok"], true);
    assert_eq!(asked_by(nobody, 12_345, &[]).unwrap()["ok"], true);
    assert_eq!(asked_by(12_345, nobody, &[]).unwrap()["ok"], true);
    assert!(asked_by(12_345, 12_345, &[]).is_err());
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    let refused = asked_by(12_345, 12_345, &[]).unwrap();
    let why = refused["error"].as_str().unwrap();
    assert!(
        why.contains("only this user, root and the socket's group"),
        "{why}"
    );
    assert_given_up(&recorder);
    recorder.stop().expect_code(0);
}

/// Two queries of everything, a rule change, dumps by hand: at some hundred thousand packets a second nothing is lost.
#[test]
fn commands_lose_no_packet() {
    let _machine = crate::quiet();
    let Some(namespace) = Namespace::with_veth("load") else {
        return;
    };
    let (_folder, path) = socket();
    let recorder = Recorder::start(
        &namespace,
        &format!(
            "-i v1 --ring 256MiB --past 1s --future 10ms --trigger 'udp dst port 1' --control {}",
            path.display()
        ),
    );
    let is_over = AtomicBool::new(false);
    let over = || is_over.load(Ordering::SeqCst);
    let sent = std::thread::scope(|scope| {
        let querying = scope.spawn(|| {
            let mut answers = 0;
            while !over() {
                let mut client = Client::of(&path).unwrap();
                client.ask(&json!({ "command": "query" }));
                client.until(|line| !line["report"].is_null());
                answers += 1;
            }
            answers
        });
        let changing = scope.spawn(|| {
            let mut client = Client::of(&path).unwrap();
            let mut changes = 0;
            while !over() {
                let name = format!("r{changes}");
                let add = json!({ "command": "add-rule", "name": name, "expression": format!("host 10.9.{}.1", changes % 250) });
                client.done(&add);
                // Refused where too many dumps are open.
                client.ask(&json!({ "command": "trigger", "key": name }));
                client.done(&json!({ "command": "remove-rule", "name": name }));
                let status = client.done(&json!({ "command": "status" }));
                let of = |name: &str| status["analyzers"][name].as_u64().unwrap();
                assert_eq!(of("stored"), of("analyzed") + of("lapped") + of("unread"));
                changes += 1;
            }
            changes
        });
        let mut sender = Sender::new(&namespace, "v0");
        let start = Instant::now();
        for _ in 0..if crate::soak() { 40 } else { 8 } {
            sender.flood(50_000, None, traffic::number, |_, _| {});
        }
        eprintln!("{} packets in {:.1?}", sender.sent(), start.elapsed());
        is_over.store(true, Ordering::SeqCst);
        let (answers, changes) = (querying.join().unwrap(), changing.join().unwrap());
        eprintln!("{answers} queries, {changes} changes");
        assert!(answers > 0 && changes > 0);
        sender.sent()
    });
    recorder.settle(sent);
    let outcome = recorder.stop();
    assert_eq!((outcome.source().stored, outcome.source().lost), (sent, 0));
}
