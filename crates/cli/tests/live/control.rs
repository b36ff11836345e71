//! Controls a recorder of live interfaces through its Unix socket.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use retroscope_api::client::ClientError;
use retroscope_pcapfile::CaptureReader;
use rustix::{
    fs::{Gid, Uid},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    capture,
    client::{Api, Events},
    namespace::Namespace,
    privileges::{NOBODY, OPEN_FOLDER, assert_given_up},
    recorder::{PROGRAM, Recorder, words},
    shared,
    traffic::{self, Sender, udp},
};

/// A folder that every user may enter, and the path of a socket in it.
pub(crate) fn socket() -> (TempDir, PathBuf) {
    let folder = TempDir::with_prefix("retroscope-api-").unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let path = folder.path().join("api");
    (folder, path)
}

/// A client adds a rule to a recorder that has another rule. The next packet that matches the new
/// rule is dumped with its past. After its removal, the rule matches no packet. Neither these
/// changes nor a query lose a packet.
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
            "-i v1 --ring 128MiB --past 60s --future 50ms --dump 'udp dst port 60000' --trigger 'udp dst port 1' --api unix:{}",
            path.display()
        ),
    );
    let api = Api::at(&path);
    let mut events = Events::of(PROGRAM, &path);
    let mut sender = Sender::new(&namespace, "v0");
    sender.flood(5000, None, traffic::number, |_, _| {});
    sender.send(&udp(1, 1000, 60000, &0_u64.to_be_bytes()));
    recorder.settle(5001);
    let late = json!({ "filter": "udp dst port 60000" });
    let late = api.done("PUT", "/v1/rules/late", Some(late));
    assert_eq!(late["hits"], 0);
    sender.send(&udp(1, 1000, 60000, &1_u64.to_be_bytes()));
    recorder.dumps(1);
    api.done("DELETE", "/v1/rules/late", None);
    sender.send(&udp(1, 1000, 60000, &2_u64.to_be_bytes()));
    sender.flood(5000, None, traffic::number, |_, _| {});
    let answered = api.query();
    recorder.settle(10_003);
    // The rule from the command line is still active.
    sender.send(&udp(1, 1000, 1, &[0; 8]));
    recorder.dumps(2);
    events.until(|event| event["report"]["rule"] == "udp dst port 1");
    assert!(
        packets(CaptureReader::new(&answered[..]).unwrap()) >= 5002,
        "what had come is in the answer"
    );
    api.stop();
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

/// The socket belongs to the user of `-Z`. Clients that are this user, root, or in the socket's
/// group get answers. Another client is refused, even if the file mode permits access.
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
            "-i v1 --ring 128MiB -Z nobody --api unix:{}",
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
        // Only the new thread gets the other user and groups, and it ends after the request.
        std::thread::scope(|scope| {
            let ask = || {
                set_thread_groups(&groups).unwrap();
                let gid = Gid::from_raw(gid);
                set_thread_res_gid(gid, gid, gid).unwrap();
                let uid = Uid::from_raw(uid);
                set_thread_res_uid(uid, uid, uid).unwrap();
                Api::at(&path).ask("GET", "/v1/status", None)
            };
            scope.spawn(ask).join().unwrap()
        })
    };
    assert!(asked_by(0, 0, &[]).is_ok());
    assert!(asked_by(nobody, 12_345, &[]).is_ok());
    assert!(asked_by(12_345, nobody, &[]).is_ok());
    let refused = asked_by(12_345, 12_345, &[]).unwrap_err().to_string();
    assert!(
        refused.contains("it is for the recorder's user, root"),
        "{refused}"
    );
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    match asked_by(12_345, 12_345, &[]) {
        Err(ClientError::Refused {
            status: 403,
            detail,
            ..
        }) => {
            assert!(detail.contains("members of the socket's group"), "{detail}");
        }
        other => panic!("{other:?}"),
    }
    assert_given_up(&recorder);
    recorder.stop().expect_code(0);
}

/// One client repeatedly queries all packets. Another client adds and removes rules and triggers
/// dumps. Meanwhile packets arrive as fast as possible, and no packet is lost.
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
            "-i v1 --ring 256MiB --past 1s --future 10ms --trigger 'udp dst port 1' --api unix:{}",
            path.display()
        ),
    );
    let is_over = AtomicBool::new(false);
    let over = || is_over.load(Ordering::SeqCst);
    let sent = std::thread::scope(|scope| {
        let querying = scope.spawn(|| {
            let mut answers = 0;
            while !over() {
                Api::at(&path).query();
                answers += 1;
            }
            answers
        });
        let changing = scope.spawn(|| {
            let api = Api::at(&path);
            let mut changes = 0;
            while !over() {
                let name = format!("r{changes}");
                let rule = format!("/v1/rules/{name}");
                let expression = format!("host 10.9.{}.1", changes % 250);
                api.done("PUT", &rule, Some(json!({ "filter": expression })));
                // The recorder may refuse the trigger, for example if too many dumps are open.
                let _ = api.ask("POST", "/v1/triggers", Some(json!({})));
                api.done("DELETE", &rule, None);
                let status = api.status();
                let of = |name: &str| status["analyzers"][name].as_u64().unwrap();
                assert_eq!(of("stored"), of("analyzed") + of("missed") + of("unread"));
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

fn packets(mut capture: CaptureReader<&[u8]>) -> u64 {
    let mut count = 0;
    while capture.next().unwrap().is_some() {
        count += 1;
    }
    count
}
