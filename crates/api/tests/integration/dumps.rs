//! Dumps and their files: download, also while they grow, hold, delete.

use std::{fs, io::Write};

use retroscope_api::Role;
use retroscope_pcapfile::CaptureReader;
use serde_json::{Value, json};

use crate::{
    access::finished,
    audit::next,
    support::{Answer, DEADLINE, Served, get, request},
};

fn packets(body: &[u8]) -> u64 {
    let mut capture = CaptureReader::new(body).unwrap();
    let mut count = 0;
    while capture.next().unwrap().is_some() {
        count += 1;
    }
    count
}

/// Starts a dump with this time after the trigger.
fn trigger(served: &Served, future: &str) -> u64 {
    let body = json!({ "past": "100ms", "future": future });
    let triggered = served.ask_unix(&request("POST", "/v1/triggers").json(&body));
    triggered.done(201)["dump"].as_u64().unwrap()
}

/// The file is sent unchanged, as a whole or in part, and only to clients with access.
#[test]
fn the_file_of_a_finished_dump_is_sent_as_it_is() {
    let served = Served::new();
    served.wait_for_packets(2000);
    let number = trigger(&served, "50ms");
    let report = finished(&served, number);
    let path = report["file"].as_str().unwrap();
    let file = fs::read(path).unwrap();
    let target = format!("/v1/dumps/{number}/file");
    let ask = |method: &str, token: &str| request(method, &target).token(token);
    let (of_packets, admin) = (served.token("packets"), served.token("admin"));
    let mut listener = served.handle.subscribe(None);
    let answer = served.ask(&ask("GET", of_packets));
    assert_eq!((answer.status, answer.is_whole), (200, true));
    assert_eq!(answer.body, file);
    assert_eq!(packets(&answer.body), report["packets"]);
    let stored = &report["stored"]["files"][0];
    let tag = format!("\"{}\"", stored["sha256"].as_str().unwrap());
    assert_eq!(answer.headers["etag"], tag);
    assert_eq!(answer.headers["content-type"], "application/x-pcapng");
    let name = stored["name"].as_str().unwrap();
    assert_eq!(
        answer.headers["content-disposition"],
        format!("attachment; filename=\"{name}\"")
    );
    let exported = loop {
        if let retroscope_recorder::RecorderEvent::Exported(export) =
            listener.take(DEADLINE).unwrap()
        {
            break export;
        }
    };
    let id = report["id"].as_str().unwrap();
    assert_eq!(exported.who, "packets");
    assert_eq!(exported.what, format!("dump {id}"));
    assert_eq!(exported.bytes, file.len() as u64);
    assert_eq!(exported.packets, report["packets"].as_u64());

    for target in [
        format!("/v1/dumps/{id}/file"),
        format!("/v1/dumps/{number}/file?name={name}"),
    ] {
        assert_eq!(served.ask(&get(&target).token(admin)).body, file);
    }
    let head = served.ask(&ask("HEAD", of_packets));
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.headers["content-length"], file.len().to_string());
    let part = served.ask(&ask("GET", of_packets).header("Range", "bytes=8-15"));
    assert_eq!((part.status, &part.body[..]), (206, &file[8..16]));
    let all = file.len();
    assert_eq!(part.headers["content-range"], format!("bytes 8-15/{all}"));
    let beyond = ask("GET", of_packets).header("Range", &format!("bytes={all}-"));
    served.ask(&beyond).refused(416);
    let other = ask("GET", of_packets)
        .header("Range", "bytes=8-15")
        .header("If-Range", "\"x\"");
    assert_eq!(served.ask(&other).body, file);

    for target in [
        "/v1/dumps/0/file".to_owned(),
        "/v1/dumps/999999/file".to_owned(),
        "/v1/dumps/no-such/file".to_owned(),
        "/v1/dumps/..%2F..%2Fetc%2Fpasswd/file".to_owned(),
        "/v1/dumps/%00/file".to_owned(),
        format!("/v1/dumps/{number}/file?name=..%2F{name}"),
        format!("/v1/dumps/{number}/file?name=tokens"),
    ] {
        served.ask(&get(&target).token(admin)).refused(404);
    }
    // Tokens with a filter or a snap length get no files.
    let limits: [fn(&mut retroscope_api::TokenLine); 2] = [
        |line| line.filter = Some("udp".to_owned()),
        |line| line.snaplen = Some(64),
    ];
    for (at, limit) in limits.into_iter().enumerate() {
        let token = served.new_token(&format!("limited {at}"), &[Role::Packets], limit);
        let why = served.ask(&ask("GET", &token)).refused(403);
        assert!(why.contains("restricted"), "{why}");
    }
}

/// A growing file is sent: first the written part, then the rest.
#[test]
fn a_dump_is_sent_while_it_grows() {
    let mut served = Served::new();
    served.wait_for_packets(2000);
    let number = trigger(&served, "1500ms");
    let target = format!("/v1/dumps/{number}");
    let open = served.ask_unix(&get(&target)).done(200);
    assert_eq!(
        (&open["stored"]["is_open"], &open["report"]),
        (&json!(true), &Value::Null)
    );
    let admin = served.token("admin").to_owned();
    let delete = request("DELETE", &target).token(&admin);
    let why = served.ask(&delete).refused(409);
    assert!(why.contains("is open"), "{why}");
    let file = get(&format!("{target}/file")).token(&admin);
    let answer = served.ask(&file);
    assert_eq!((answer.status, answer.is_whole), (200, true));
    assert!(!answer.headers.contains_key("content-length"));
    let report = finished(&served, number);
    assert_eq!(packets(&answer.body), report["packets"]);
    // The copy differs from the file only in the verdict in the head.
    let whole = fs::read(report["file"].as_str().unwrap()).unwrap();
    let differ = answer.body.iter().zip(&whole).rposition(|(a, b)| a != b);
    assert_eq!(answer.body.len(), whole.len());
    assert!(differ < Some(4096), "{differ:?}");

    // A dump that the end of the recording finishes.
    let number = trigger(&served, "1h");
    let file = get(&format!("/v1/dumps/{number}/file")).token(&admin);
    let mut stream = served.connect();
    stream.write_all(&file.bytes("localhost")).unwrap();
    let reading = std::thread::spawn(move || Answer::read(&mut stream));
    let stored = served.handle.status().unwrap().stored;
    served.wait_for_packets(stored + 3000);
    served.end();
    let answer = reading.join().unwrap();
    assert_eq!((answer.status, answer.is_whole), (200, true));
    assert!(packets(&answer.body) > 2000);
}

#[test]
fn dumps_are_held_released_and_deleted() {
    let served = Served::new();
    served.wait_for_packets(2000);
    let number = trigger(&served, "50ms");
    let report = finished(&served, number);
    let path = report["file"].as_str().unwrap();
    let target = format!("/v1/dumps/{number}");
    let admin = served.token("admin");
    let ask = |method: &str, target: &str| served.ask(&request(method, target).token(admin));
    let hold = format!("{target}/hold");
    let id = &report["id"];
    let told = |held: bool, existed: bool| json!({ "id": id, "held": held, "existed": existed });
    let mut listener = served.handle.subscribe(None);
    assert_eq!(ask("PUT", &hold).done(200), told(true, false));
    assert_eq!(ask("PUT", &hold).done(200), told(true, true));
    let list = ask("GET", "/v1/dumps").done(200);
    assert_eq!(list["dumps"][0]["stored"]["is_held"], true, "{list}");
    let why = ask("DELETE", &target).refused(409);
    assert!(why.contains("release it first"), "{why}");
    assert!(fs::exists(path).unwrap());
    assert_eq!(ask("DELETE", &hold).done(200), told(false, false));
    assert_eq!(ask("DELETE", &hold).done(200), told(false, true));
    for action in ["hold-dump", "release-dump"] {
        let change = next(&mut listener, "changed");
        assert_eq!((&change["action"], &change["target"]), (&action.into(), id));
    }
    let mut listener = served.handle.subscribe(None);
    assert_eq!(ask("DELETE", &target).status, 204);
    let deleted = listener.take(DEADLINE).unwrap();
    let retroscope_recorder::RecorderEvent::Deleted(deleted) = deleted else {
        panic!("{deleted:?}");
    };
    assert_eq!(deleted.by.as_deref(), Some("admin"));
    assert!(!fs::exists(path).unwrap());
    ask("DELETE", &target).refused(404);
    ask("PUT", &hold).refused(404);
    ask("GET", &format!("{target}/file")).refused(404);
    // The report is still available.
    let gone = ask("GET", &target).done(200);
    assert_eq!((&gone["stored"], &gone["report"]["id"]), (&Value::Null, id));
    for target in ["/v1/dumps/0", "/v1/dumps/999999", "/v1/dumps/x%2Fy"] {
        ask("GET", target).refused(404);
        ask("DELETE", target).refused(404);
    }
}

#[test]
fn a_rule_keeps_what_it_says_from_then_on() {
    let served = Served::new();
    served.wait_for_packets(2000);
    let mut listener = served.handle.subscribe(None);
    let put = |name: &str, more: &Value| {
        let mut body = json!({"filter": "udp or tcp", "dump": "", "past": "10ms", "future": "10ms", "hold_off": "1h"});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let put = request("PUT", &format!("/v1/rules/{name}")).json(&body);
        let rule = served.ask_unix(&put);
        assert!(matches!(rule.status, 200 | 201), "{}", rule.text());
        rule.json()
    };
    let kept = put("a", &json!({"keep_bytes": 1_u64 << 40, "keep_age": "2h"}));
    assert_eq!(
        (&kept["keep_bytes"], &kept["keep_age"]),
        (&json!(1_u64 << 40), &json!("2h"))
    );
    put("b", &json!({}));
    let mut next = |is_it: &dyn Fn(&retroscope_recorder::RecorderEvent) -> bool| loop {
        let event = listener.take(DEADLINE).unwrap();
        if is_it(&event) {
            break event;
        }
    };
    for _ in 0..2 {
        next(&|event| matches!(event, retroscope_recorder::RecorderEvent::Finished(_)));
    }
    let list = || {
        let list = served.ask_unix(&get("/v1/dumps")).done(200);
        let dumps = list["dumps"].as_array().unwrap().iter();
        let names = dumps
            .filter_map(|dump| dump["stored"].get("rule_name"))
            .cloned();
        let mut names: Vec<String> = names.map(|it| it.as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(list(), ["a", "b"]);
    // Both rules have the same expression, but the retention of rule `a` deletes only its own
    // dumps.
    let kept = put("a", &json!({"keep_bytes": 0}));
    assert_eq!(kept["keep_age"], Value::Null);
    next(
        &|event| matches!(event, retroscope_recorder::RecorderEvent::Deleted(dump) if dump.rule == "udp or tcp"),
    );
    assert_eq!(list(), ["b"]);
}

/// A query for packets that have left the ring gets them from a dump, byte for byte.
#[test]
fn a_query_of_what_has_left_the_ring_is_answered_from_a_dump() {
    let served = Served::recording("generate:flows=10,size=1500,rate=10kpps", |_| None);
    served.wait_for_packets(2000);
    let body = json!({ "past": "100ms", "future": "50ms", "dump": "" });
    let triggered = served.ask_unix(&request("POST", "/v1/triggers").json(&body));
    let number = triggered.done(201)["dump"].as_u64().unwrap();
    let report = finished(&served, number);
    let file = fs::read(report["file"].as_str().unwrap()).unwrap();
    let [from, to] = ["from", "to"].map(|name| report[name].as_str().unwrap());
    let ask = |what: &str, token: &str| {
        let target = format!("/v1/query?from={from}&to={to}{what}");
        let answer = served.ask(&get(&target).token(token));
        assert_eq!(
            (answer.status, answer.is_whole),
            (200, true),
            "{}",
            answer.text()
        );
        answer
    };
    let of_packets = served.token("packets");
    // The ring of 32 MiB has room for about 22,000 packets of 1500 bytes.
    let stored = served.handle.status().unwrap().stored;
    served.wait_for_packets(stored + 30_000);
    let answer = ask("", of_packets);
    let all = |bytes: &[u8]| {
        let mut capture = CaptureReader::new(bytes).unwrap();
        let mut all = Vec::new();
        while let Some(packet) = capture.next().unwrap() {
            all.push((
                packet.meta.time_ns,
                packet.meta.wire_len,
                packet.data.to_vec(),
            ));
        }
        all
    };
    assert!(all(&answer.body) == all(&file), "the packets are others");
    let verdict = get(&answer.headers["location"]).token(of_packets);
    let told = served.ask(&verdict).done(200)["report"].clone();
    assert_eq!(told["verdict"], "complete", "{told}");
    let dumps = &told["dumps"];
    assert_eq!(
        (&dumps["read"], &dumps["packets"]),
        (&json!(1), &report["packets"])
    );
    assert_eq!(dumps["dumps"][0]["id"], report["id"]);
    assert_eq!(
        dumps["dumps"][0]["files"][0],
        report["stored"]["files"][0]["name"]
    );

    // A client that may not list dumps gets the number of dumps. The token's snap length and filter
    // apply to packets of dumps too.
    let limited = served.new_token("limited", &[Role::Packets], |line| {
        line.snaplen = Some(40);
        line.filter = Some("udp".to_owned());
    });
    let id = report["id"].as_str().unwrap();
    let answer = ask("", &limited);
    assert!(all(&answer.body).iter().all(|packet| packet.2.len() == 40));
    let holds = |bytes: &[u8]| bytes.windows(id.len()).any(|it| it == id.as_bytes());
    assert!(!holds(&answer.body));
    let counted = ask("&count=true", &limited).json();
    assert!(!holds(counted.to_string().as_bytes()));
    assert_eq!(counted["dumps"]["read"], 1, "{counted}");
    let packets = all(&answer.body).len();
    assert_eq!(counted["packets"], packets);
    let none = ask("&filter=tcp+port+1&count=true", of_packets).json();
    assert_eq!(
        (&none["packets"], &none["verdict"]),
        (&json!(0), &json!("complete"))
    );

    let page = get(&format!("/v1/packets?from={from}&to={to}")).token(&limited);
    let page = served.ask(&page).done(200);
    assert_eq!(page["scan"]["dumps"]["read"], 1, "{page}");
    assert!(!holds(page.to_string().as_bytes()));

    // Without the dump, the verdict reports a loss.
    let delete = request("DELETE", &format!("/v1/dumps/{number}"));
    assert_eq!(served.ask_unix(&delete).status, 204);
    let gone = ask("&count=true", of_packets).json();
    assert_eq!(
        (&gone["packets"], &gone["verdict"]),
        (&json!(0), &json!("incomplete"))
    );
    assert_eq!(gone["dumps"]["failed"], 1, "{gone}");
}
