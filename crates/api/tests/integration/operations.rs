//! The operations and their refusals.

use std::io::{BufRead, BufReader, Write};

use retroscope_pcapfile::CaptureReader;
use serde_json::{Value, json};

use crate::{
    access::finished,
    support::{Request, Served, get, request},
};

fn packets(body: &[u8]) -> u64 {
    let mut capture = CaptureReader::new(body).unwrap();
    let mut count = 0;
    while capture.next().unwrap().is_some() {
        count += 1;
    }
    count
}

#[test]
fn rules_come_change_and_go() {
    let served = Served::new();
    let ask = |request: Request| served.ask(&request.token(served.token("admin")));
    let put =
        |name: &str, body: &Value| ask(request("PUT", &format!("/v1/rules/{name}")).json(body));
    let list = ask(get("/v1/rules")).done(200);
    assert_eq!(list["rules"][0]["filter"], "tcp port 9");
    let wanted = json!({ "filter": "udp port 53", "past": "2s", "packets": 3, "dump": "host $srcIP", "into": "dns" });
    let made = put("dns", &wanted).done(201);
    assert_eq!(
        (
            &made["past"],
            &made["packets"],
            &made["enabled"],
            &made["asked_by"]
        ),
        (&json!("2s"), &json!(3), &json!(true), &json!("admin"))
    );
    assert_eq!(put("dns", &wanted).done(200), made);
    // The answer of GET can be sent back with PUT: unchanged, or edited if no other client changed
    // the rule meanwhile.
    let read = ask(get("/v1/rules/dns"));
    let tag = read.headers["etag"].clone();
    let rule = read.done(200);
    let put_back = |rule: &Value, tag: &str| {
        let put = request("PUT", "/v1/rules/dns").json(rule);
        served.ask_unix(&put.header("If-Match", tag))
    };
    let answer = put_back(&rule, &tag);
    assert_eq!(answer.headers["etag"], tag);
    assert_eq!(answer.done(200), rule, "also from another caller");
    let mut edited = rule.clone();
    edited["past"] = json!("1500ms");
    let answer = put_back(&edited, &tag);
    assert_ne!(answer.headers["etag"], tag);
    assert_eq!(answer.done(200)["past"], "1500ms");
    assert_eq!(
        put_back(&edited, &tag).done(200)["past"],
        "1500ms",
        "a retry"
    );
    let mut other = edited.clone();
    other["past"] = json!("3s");
    let refused = put_back(&other, &tag);
    assert_eq!(refused.json()["type"], "urn:retroscope:problem:changed");
    refused.refused(412);
    put("dns", &wanted).done(200);
    let first = ask(get("/v1/rules/1")).done(200);
    assert_eq!(put("1", &first).done(200), first, "a rule of the start");
    let other = json!({ "filter": "udp port 5353", "enabled": false });
    let only_new = request("PUT", "/v1/rules/dns")
        .json(&other)
        .header("If-None-Match", "*");
    let why = ask(only_new).refused(412);
    assert!(why.contains("another filter"), "{why}");
    let only_new = |name: &str| {
        let put = request("PUT", &format!("/v1/rules/{name}")).json(&wanted);
        ask(put.header("If-None-Match", "*"))
    };
    let why = only_new("dns").refused(412);
    assert!(why.contains("as it is wanted"), "{why}");
    only_new("new").done(201);
    ask(request("DELETE", "/v1/rules/new")).done(204);
    let changed = put("dns", &other).done(200);
    assert_eq!(
        (&changed["filter"], &changed["enabled"]),
        (&json!("udp port 5353"), &json!(false))
    );
    let patch =
        |name: &str, body: &Value| ask(request("PATCH", &format!("/v1/rules/{name}")).json(body));
    assert_eq!(
        patch("dns", &json!({ "enabled": true })).done(200)["enabled"],
        true
    );
    assert_eq!(ask(get("/v1/rules/dns")).done(200)["enabled"], true);
    // A rule's name may contain `/`, `..`, spaces and letters that are not ASCII.
    let odd = "%2e%2e%2f%C3%BC%20%3F";
    put(odd, &wanted).done(201);
    let names = ask(get("/v1/rules")).done(200);
    assert!(names.to_string().contains("../ü ?"), "{names}");
    ask(request("DELETE", &format!("/v1/rules/{odd}"))).done(204);
    let why = patch("dns", &json!({ "filter": "udp" })).refused(400);
    assert!(why.contains("`filter`") && !why.contains("`dump`"), "{why}");
    ask(request("DELETE", "/v1/rules/dns")).done(204);
    ask(request("DELETE", "/v1/rules/dns")).refused(404);
    ask(get("/v1/rules/dns")).refused(404);
    patch("dns", &json!({ "enabled": true })).refused(404);

    let refused = |status, body: Value| put("x", &body).refused(status);
    let why = refused(422, json!({ "filter": "udp prt 9" }));
    assert!(why.contains("prt") && why.contains('^'), "the place: {why}");
    for (body, told) in [
        (json!({ "filter": 7 }), "a string"),
        (json!({ "filter": "udp", "pasta": "1s" }), "pasta"),
        (
            json!({ "expression": "udp" }),
            "`expression` is `filter` now",
        ),
        (json!({ "filter": "udp", "past": 1 }), "a string"),
        (json!({ "filter": "udp", "packets": -1 }), "whole number"),
        (json!([]), "body"),
    ] {
        let why = refused(400, body.clone());
        assert!(why.contains(told), "{body}: {why}");
    }
    let why = refused(422, json!({}));
    assert!(why.contains("alert_dump"), "{why}");
    refused(422, json!({ "filter": "udp", "past": "soon" }));
    refused(422, json!({ "filter": "udp", "into": "../x" }));
    refused(400, json!({ "filter": "udp", "packets": u64::MAX }));
    put(&"n".repeat(65), &wanted).refused(422);
    put("a%00b", &wanted).refused(422);
    put(
        "x",
        &json!({ "filter": "udp", "asked_by": "y".repeat(257) }),
    )
    .refused(422);
    put("%ff", &wanted).refused(400);
    ask(request("PUT", "/v1/rules/x")
        .json(&wanted)
        .header("If-None-Match", "\"1\""))
    .refused(400);
    assert_eq!(
        ask(get("/v1/rules")).done(200)["rules"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn a_change_may_have_a_condition() {
    let served = Served::new();
    let rule = json!({ "filter": "udp port 53" });
    let send = |method: &str, body: &Value, headers: &[(&str, &str)]| {
        let request = request(method, "/v1/rules/dns").json(body);
        let add = |request: Request, it: &(&str, &str)| request.header(it.0, it.1);
        served.ask_unix(&headers.iter().fold(request, add))
    };
    send("PUT", &rule, &[("If-Match", "*")]).refused(412);
    let made = send("PUT", &rule, &[("If-None-Match", "*")]);
    let old = made.headers["etag"].clone();
    made.done(201);
    for headers in [
        &[("If-Match", "\"1\", \"2\"")][..],
        &[("If-Match", "\"1\""), ("If-Match", "\"2\"")],
        &[("If-Match", "1")],
        &[("If-Match", "*"), ("If-None-Match", "*")],
    ] {
        for method in ["PUT", "PATCH", "DELETE"] {
            let body = match method {
                "PATCH" => json!({ "enabled": true }),
                _ => rule.clone(),
            };
            send(method, &body, headers).refused(400);
        }
    }
    let disable = json!({ "enabled": false });
    send("PATCH", &disable, &[("If-None-Match", "*")]).refused(400);
    send("PATCH", &disable, &[("If-Match", "\"1\"")]).refused(412);
    let disabled = send("PATCH", &disable, &[("If-Match", &old)]);
    let new = disabled.headers["etag"].clone();
    assert_eq!(disabled.done(200)["enabled"], false);
    send("PATCH", &disable, &[("If-Match", &old)]).done(200);
    send("DELETE", &json!({}), &[("If-Match", &old)]).refused(412);
    send("DELETE", &json!({}), &[("If-Match", &new)]).done(204);
    send("DELETE", &json!({}), &[("If-Match", "*")]).refused(404);

    let pin = || request("PUT", "/v1/pins/p").json(&json!({ "last": "1s" }));
    served
        .ask_unix(&pin().header("If-None-Match", "*"))
        .done(201);
    let refused = served.ask_unix(&pin().header("If-None-Match", "*"));
    assert_eq!(refused.json()["type"], "urn:retroscope:problem:pin-exists");
    served.ask_unix(&pin()).done(200);
    served.ask_unix(&pin().header("If-Match", "*")).refused(400);
}

#[test]
fn a_rule_that_comes_disabled_has_no_hit() {
    let served = Served::new();
    served.wait_for_packets(1000);
    let put = |name: &str, enabled: bool| {
        let wanted = json!({ "filter": format!("udp or port {name}"), "enabled": enabled });
        let put = request("PUT", &format!("/v1/rules/{name}")).json(&wanted);
        served.ask_unix(&put).done(201)
    };
    let mut hits = Vec::new();
    for number in 1..=20 {
        put(&(10 + number).to_string(), false);
        served.wait_for_packets(served.handle.status().unwrap().stored + 10);
    }
    put("9", true);
    served.wait_for_packets(served.handle.status().unwrap().stored + 1000);
    let rules = served.ask_unix(&get("/v1/rules")).done(200);
    for rule in rules["rules"].as_array().unwrap() {
        if rule["enabled"] == false {
            hits.push(rule["hits"].as_u64().unwrap());
        }
    }
    assert_eq!(hits, [0; 20]);
}

#[test]
fn a_trigger_starts_one_dump_for_a_key() {
    let served = Served::new();
    served.wait_for_packets(1000);
    let ask = |request: Request| served.ask(&request.token(served.token("trigger")));
    let trigger = |body: &Value, key: Option<&str>| {
        let post = request("POST", "/v1/triggers").json(body);
        ask(match key {
            Some(key) => post.header("Idempotency-Key", key),
            None => post,
        })
    };
    let wanted = json!({ "dump": "udp or tcp", "past": "10s", "future": "0s", "packets": 5, "asked_by": "a test" });
    let first = trigger(&wanted, Some("incident-17"));
    let body = first.done(201);
    let number = body["dump"].as_u64().unwrap();
    assert_eq!(first.headers["location"], format!("/v1/dumps/{number}"));
    let again = trigger(&wanted, Some("incident-17")).done(200);
    assert_eq!(
        (&again["dump"], &again["existed"]),
        (&body["dump"], &json!(true))
    );
    assert!(body["window_end"].as_str().unwrap().ends_with('Z'));
    assert_eq!(again["window_end"], Value::Null);
    let other = json!({ "dump": "udp", "past": "10s", "future": "0s" });
    let why = trigger(&other, Some("incident-17")).refused(422);
    assert!(why.contains("another trigger"), "{why}");
    let report = finished(&served, number);
    assert_eq!(
        (
            &report["packets"],
            &report["asked_by"],
            report["clipped"].to_string().contains("\"limit\"")
        ),
        (&json!(5), &json!("a test"), true)
    );
    let why = trigger(&json!({ "dump": "port $srcPort" }), None).refused(422);
    assert!(why.contains("$srcPort"), "{why}");
    for key in ["", &"k".repeat(65)] {
        trigger(&wanted, Some(key)).refused(422);
    }
    for key in ["a b", "a\tb", "\u{fc}"] {
        trigger(&wanted, Some(key)).refused(400);
    }
    trigger(&other, None).done(201);
    let list = ask(get("/v1/dumps?state=complete&rule=manual&since=0")).done(200);
    assert_eq!(list["dumps"][0]["number"], json!(number), "{list}");
    let mut numbers = Vec::new();
    let mut after = String::new();
    loop {
        let page = ask(get(&format!("/v1/dumps?limit=1{after}"))).done(200);
        numbers.push(page["dumps"][0]["number"].as_u64().unwrap());
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    let all = ask(get("/v1/dumps")).done(200);
    assert_eq!(all["dumps"].as_array().unwrap().len(), numbers.len());
    assert!(numbers.is_sorted() && numbers.len() > 1, "{numbers:?}");
    let newest = ask(get("/v1/dumps?newest=true&limit=1")).done(200);
    assert_eq!(newest["dumps"][0]["number"].as_u64(), numbers.pop());
    let next = newest["next"].as_str().unwrap();
    let newest = ask(get(&format!("/v1/dumps?newest=true&limit=1&after={next}"))).done(200);
    assert_eq!(newest["dumps"][0]["number"].as_u64(), numbers.pop());
    for (wrong, status) in [
        ("limit=0", 422),
        ("after=x", 422),
        ("since=x", 422),
        ("state=x", 400),
    ] {
        ask(get(&format!("/v1/dumps?{wrong}"))).refused(status);
    }
    ask(get("/v1/dumps/x")).refused(404);
    ask(get("/v1/dumps/999")).refused(404);
}

#[test]
fn pins_keep_a_time_until_they_are_given_up() {
    let served = Served::new();
    served.wait_for_packets(100);
    let ask = |request: Request| served.ask(&request.token(served.token("admin")));
    let put =
        |name: &str, body: &Value| ask(request("PUT", &format!("/v1/pins/{name}")).json(body));
    let pin = put("lunch", &json!({ "last": "1s" })).done(201);
    assert_eq!(
        (&pin["name"], &pin["revoked"]),
        (&json!("lunch"), &json!(false))
    );
    let replaced = put("lunch", &json!({})).done(200);
    assert_eq!(
        (&pin["from"].is_null(), &replaced["from"]),
        (&false, &Value::Null)
    );
    let pin = replaced;
    assert_eq!(ask(get("/v1/pins")).done(200), json!({ "pins": [pin] }));
    assert_eq!(ask(get("/v1/pins/lunch")).done(200), pin);
    assert_eq!(ask(get("/v1/status")).done(200)["pins"], json!([pin]));
    ask(request("DELETE", "/v1/pins/lunch")).done(204);
    ask(request("DELETE", "/v1/pins/lunch")).refused(404);
    ask(get("/v1/pins/lunch")).refused(404);
    for (body, status) in [
        (json!({ "last": "1s", "from": "7" }), 422),
        (json!({ "from": "7", "to": "6" }), 422),
        (json!({ "from": "yesterday" }), 422),
        (json!({ "until": "7" }), 400),
        (json!({ "lease": "500ms" }), 422),
        (json!({ "lease": "2h" }), 422),
    ] {
        put("x", &body).refused(status);
    }
    let leased = json!({ "from": "7", "to": "8", "lease": "1m" });
    for status in [201, 200] {
        let pin = put("tab", &leased).done(status);
        let left = pin["lease_seconds"].as_f64().unwrap();
        assert!(left > 59.0 && left <= 60.0, "{pin}");
    }
    ask(request("DELETE", "/v1/pins/tab")).done(204);
    for number in 0..64 {
        put(&number.to_string(), &json!({ "last": "1s" })).done(201);
    }
    let why = put("x", &json!({ "last": "1s" })).refused(409);
    assert!(why.contains("64 pins"), "{why}");
}

#[test]
fn a_full_ring_does_as_it_is_told() {
    let served = Served::new();
    let ask = |request: Request| served.ask(&request.token(served.token("admin")));
    let put = |body: &Value| ask(request("PUT", "/v1/when-full").json(body));
    assert_eq!(
        ask(get("/v1/when-full")).done(200),
        json!({ "mode": "record" })
    );
    assert_eq!(
        put(&json!({ "mode": "protect" })).done(200),
        json!({ "mode": "protect" })
    );
    assert_eq!(ask(get("/v1/status")).done(200)["when_full"], "protect");
    put(&json!({ "mode": "wait" })).refused(409);
    put(&json!({ "mode": "later" })).refused(400);
    put(&json!({})).refused(400);
    assert_eq!(
        ask(get("/v1/when-full")).done(200),
        json!({ "mode": "protect" })
    );
}

#[test]
fn a_query_gives_packets_a_verdict_and_is_told_of() {
    let served = Served::new();
    served.wait_for_packets(5000);
    let token = served.token("packets");
    let ask = |target: &str| served.ask(&get(target).token(token));
    let answer = ask("/v1/query");
    assert_eq!((answer.status, answer.is_whole), (200, true));
    assert_eq!(answer.headers["content-type"], "application/x-pcapng");
    let disposition = &answer.headers["content-disposition"];
    assert!(
        disposition.starts_with("attachment; filename=\"retroscope-2"),
        "{disposition}"
    );
    let count = packets(&answer.body);
    assert!(count >= 5000, "{count}");
    let record = ask(&answer.headers["location"]).done(200);
    assert_eq!(
        (
            &record["state"],
            &record["report"]["packets"],
            record["reasons"].as_str().unwrap().starts_with("complete")
        ),
        (&json!("done"), &json!(count), true)
    );
    let other = served.new_token("other", &[retroscope_api::Role::Packets], |_| {});
    served
        .ask(&get(&answer.headers["location"]).token(&other))
        .refused(404);
    served.ask_unix(&get(&answer.headers["location"])).done(200);
    ask("/v1/queries/nonsense").refused(404);
    assert!(ask("/v1/query?last=1ms").is_whole);
    assert!(packets(&ask("/v1/query?filter=udp%20and%20tcp").body) == 0);
    let why = ask("/v1/query?filter=udp%20prt%209").refused(422);
    assert!(why.contains("prt"), "{why}");
    for (wrong, status) in [
        ("last=soon", 422),
        ("from=x", 422),
        ("last=1s&from=7", 422),
        ("from=7&to=6", 422),
        ("filtre=udp", 400),
        ("last=1s&last=2s", 400),
    ] {
        ask(&format!("/v1/query?{wrong}")).refused(status);
    }
    let events = served.handle.subscribe(Some(0));
    let exports = std::iter::successors(Some(events), |_| None).flat_map(|mut events| {
        let mut all = Vec::new();
        while let Ok(event) = events.take(std::time::Duration::ZERO) {
            if let retroscope_recorder::RecorderEvent::Exported(export) = event {
                all.push(export);
            }
        }
        all
    });
    let exports: Vec<_> = exports.collect();
    assert_eq!(exports.len(), 3, "{exports:?}");
    assert_eq!(
        (exports[0].who.as_str(), exports[0].what.as_str()),
        ("packets", "query")
    );
    assert_eq!(
        (exports[0].packets, exports[0].bytes),
        (Some(count), answer.body.len() as u64)
    );
    assert_eq!(exports[2].filter, "udp and tcp");
}

#[test]
fn events_come_as_they_happen_and_from_where_another_was() {
    let mut served = Served::new();
    served.wait_for_packets(100);
    let listen = |request: Request| {
        let mut stream = served.connect();
        stream
            .write_all(&request.token(served.token("view")).bytes("localhost"))
            .unwrap();
        BufReader::new(stream)
    };
    let until = |listener: &mut dyn BufRead, wanted: &str| {
        let (mut id, mut kind) = (String::new(), String::new());
        loop {
            let mut line = String::new();
            assert!(
                listener.read_line(&mut line).unwrap() > 0,
                "it ended before {wanted}"
            );
            if let Some(next) = line.strip_prefix("id: ") {
                id = next.trim().to_owned();
            } else if let Some(event) = line.strip_prefix("event: ") {
                kind = event.trim().to_owned();
            } else if let Some(data) = line.strip_prefix("data: ").filter(|_| kind == wanted) {
                return (id, serde_json::from_str::<Value>(data).unwrap());
            }
        }
    };
    let mut listener = listen(get("/v1/events?from=0"));
    let trigger = request("POST", "/v1/triggers").json(&json!({ "past": "1s", "future": "0s" }));
    let dump = served.ask_unix(&trigger).done(201)["dump"].clone();
    let (_, triggered) = until(&mut listener, "triggered");
    assert_eq!(
        (&triggered["dump"], &triggered["rule"]),
        (&dump, &json!("manual"))
    );
    let (id, done) = until(&mut listener, "finished");
    assert_eq!(
        (&done["dump"], &done["report"]["verdict"]),
        (&dump, &json!("complete"))
    );
    served.ask_unix(&get("/v1/query?last=1ms"));
    let mut later = listen(get("/v1/events").header("Last-Event-ID", &id));
    for listener in [&mut listener, &mut later] {
        let (_, export) = until(listener, "exported");
        let who = export["caller"].as_str().unwrap();
        assert!(
            export["what"] == "query" && who.starts_with("uid "),
            "{export}"
        );
    }
    served
        .ask(
            &get("/v1/events")
                .header("Last-Event-ID", "x")
                .token(served.token("view")),
        )
        .refused(400);
    served
        .ask(&get("/v1/events?from=-1").token(served.token("view")))
        .refused(400);
    served.handle.stop();
    for listener in [&mut listener, &mut later] {
        until(listener, "end");
    }
    served.end();
}

#[test]
fn the_rest_is_told() {
    let served = Served::new();
    served.wait_for_packets(100);
    let status = served.ask_unix(&get("/v1/status")).done(200);
    let of = |name: &str| status["analyzers"][name].as_u64().unwrap();
    assert_eq!(of("stored"), of("analyzed") + of("missed") + of("unread"));
    let interfaces = served.ask_unix(&get("/v1/interfaces")).done(200);
    assert_eq!(interfaces["interfaces"][0]["link_type"], 1);
    let metrics = served.ask(&get("/metrics").token(served.token("metrics")));
    assert!(
        metrics.headers["content-type"].starts_with("text/plain"),
        "{metrics:?}"
    );
    assert!(metrics.text().contains("retroscope_received_packets_total"));
    served
        .ask(&get("/v1/status").token(served.token("metrics")))
        .refused(403);
    let metrics = served.ask(&get("/metrics").token(served.token("metrics")));
    let text = metrics.text();
    for line in [
        "retroscope_api_requests_total{code=\"403\"} 1\n",
        "retroscope_api_refusals_total{type=\"forbidden\"} 1\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
    for target in [
        "/v1/status?x=1",
        "/v1/rules?all",
        "/healthz?x",
        "/v1/openapi.json?v=3",
    ] {
        served.ask_unix(&get(target)).refused(400);
    }
}

/// HEAD starts no search and reports no export.
#[test]
fn head_costs_nothing() {
    let served = Served::new();
    served.wait_for_packets(2000);
    let token = served.token("admin");
    let triggered = served
        .ask_unix(&request("POST", "/v1/triggers").json(&json!({ "past": "1s", "future": "0s" })));
    let number = triggered.done(201)["dump"].as_u64().unwrap();
    finished(&served, number);
    let mut listener = served.handle.subscribe(None);
    for target in [
        "/v1/query",
        "/v1/query?follow=true",
        "/v1/events",
        "/v1/dumps",
        "/v1/top",
    ] {
        let answer = served.ask(&request("HEAD", target).token(token));
        assert_eq!((answer.status, answer.body.len()), (200, 0), "{target}");
        assert!(!answer.headers.contains_key("content-length"), "{target}");
    }
    let open = served
        .ask_unix(&request("POST", "/v1/triggers").json(&json!({ "past": "1s", "future": "1h" })));
    let open = open.done(201)["dump"].as_u64().unwrap();
    let answer = served.ask(&request("HEAD", &format!("/v1/dumps/{open}/file")).token(token));
    assert_eq!((answer.status, answer.body.len()), (200, 0));
    assert!(!answer.headers.contains_key("content-length"), "open dump");
    let file = format!("/v1/dumps/{number}/file");
    let answer = served.ask(&request("HEAD", &file).token(token));
    assert!(answer.headers["content-length"] != "0" && answer.headers.contains_key("etag"));
    served.ask(&request("HEAD", "/v1/rules/none").token(token));
    // The first export is the GET's.
    let sent = served.ask(&get(&file).token(token)).body.len() as u64;
    let exported = loop {
        if let retroscope_recorder::RecorderEvent::Exported(export) =
            listener.take(crate::support::DEADLINE).unwrap()
        {
            break export;
        }
    };
    assert_eq!(exported.bytes, sent);
}

#[test]
fn a_query_is_limited_counted_resumed_and_followed() {
    let served = Served::new();
    served.wait_for_packets(2000);
    let token = served.token("packets");
    let ask = |target: &str| served.ask(&get(target).token(token));
    let longest = |body: &[u8]| {
        let mut capture = CaptureReader::new(body).unwrap();
        let mut longest = 0;
        while let Some(packet) = capture.next().unwrap() {
            longest = longest.max(packet.data.len());
        }
        longest
    };
    let first = ask("/v1/query?limit_packets=10");
    assert_eq!(packets(&first.body), 10);
    let record = ask(&first.headers["location"]).done(200);
    let after = record["report"]["after"][0].as_str().unwrap().to_owned();
    let next = ask(&format!("/v1/query?limit_packets=7&after={after}"));
    assert_eq!(packets(&next.body), 7);
    let answer = ask("/v1/query?count=true&last=1s");
    let counted = answer.done(200);
    assert!(
        counted["packets"].as_u64() > Some(0) && counted["verdict"] == "complete",
        "{counted}"
    );
    let record = ask(&answer.headers["location"]).done(200);
    assert_eq!(record["report"]["packets"], counted["packets"]);
    assert_eq!(
        packets(&ask("/v1/query?limit_packets=3&newest=true").body),
        3
    );
    assert!(longest(&first.body) > 20);
    assert_eq!(
        longest(&ask("/v1/query?snaplen=20&limit_packets=9").body),
        20
    );
    let short = served.new_token("short", &[retroscope_api::Role::Packets], |line| {
        line.snaplen = Some(16)
    });
    for target in [
        "/v1/query?limit_packets=9",
        "/v1/query?limit_packets=9&snaplen=40",
    ] {
        assert_eq!(longest(&served.ask(&get(target).token(&short)).body), 16);
    }
    // The query continues after the packets in the ring until the limit.
    let stored = served.handle.status().unwrap().stored;
    let followed = ask(&format!(
        "/v1/query?follow=true&limit_packets={}",
        stored + 3000
    ));
    assert_eq!(
        (packets(&followed.body), followed.is_whole),
        (stored + 3000, true)
    );
    let none = ask("/v1/query?interfaces=nonsense&count=true").done(200);
    assert_eq!(none["empty"]["why"], "no-interface");
    for (wrong, status) in [
        ("snaplen=0", 400),
        ("snaplen=262145", 422),
        ("limit_packets=-1", 400),
        ("newest=maybe", 400),
        ("after=x", 422),
        ("newest=true", 422),
        ("community_id=1:x", 422),
        ("follow=true&count=true", 422),
    ] {
        ask(&format!("/v1/query?{wrong}")).refused(status);
    }
    // A following query whose client disconnects releases its permit.
    for _ in 0..20 {
        let mut stream = served.connect();
        stream
            .write_all(
                &get("/v1/query?follow=true&filter=port%209")
                    .token(token)
                    .bytes("localhost"),
            )
            .unwrap();
        let mut head = [0; 12];
        std::io::Read::read_exact(&mut stream, &mut head).unwrap();
        if &head[9..] == b"429" {
            let deadline = std::time::Instant::now() + crate::support::DEADLINE;
            while ask("/v1/query?follow=true&limit_packets=1").status != 200 {
                assert!(
                    std::time::Instant::now() < deadline,
                    "followers that have left stay"
                );
            }
        }
    }
}

#[test]
fn a_trigger_may_be_for_a_flow_and_for_a_time() {
    let served = Served::new();
    served.wait_for_packets(5000);
    let ask = |body: &Value| served.ask_unix(&request("POST", "/v1/triggers").json(body));
    let all = served.ask_unix(&get("/v1/query"));
    let mut capture = CaptureReader::new(&all.body[..]).unwrap();
    let packet = capture.next().unwrap().unwrap().data.to_vec();
    let parsed = retroscope_packet::parse(retroscope_packet::LinkType::ETHERNET, &packet);
    let id = retroscope_packet::community_id(&parsed, 0).unwrap();
    let (ip, ports) = (parsed.network.unwrap(), parsed.transport.unwrap());
    let proto = ip.proto.unwrap().to_string();
    // The same flow, seen from its other end.
    let flow = json!({ "src_ip": ip.dst, "src_port": ports.dst, "dest_ip": ip.src, "dest_port": ports.src, "proto": proto });
    let now = served.ask_unix(&get("/v1/query?count=true")).done(200);
    let time = now["to"].as_str().unwrap().to_owned();
    let counted = |filter: &str| {
        let target = format!("/v1/query?count=true&to={time}{filter}");
        served.ask_unix(&get(&target)).done(200)["packets"]
            .as_u64()
            .unwrap()
    };
    let escaped = id.replace('+', "%2B").replace('=', "%3D");
    let of_flow = counted(&format!("&community_id={escaped}"));
    assert!(of_flow > 0 && of_flow < counted(""));
    let until = |body: Value| {
        let mut body = body;
        body["time"] = json!(time);
        body["past"] = json!("1h");
        body["future"] = json!("0s");
        let number = ask(&body).done(201)["dump"].as_u64().unwrap();
        let report = finished(&served, number);
        assert_eq!(
            (&report["verdict"], &report["trigger_time"]),
            (&json!("complete"), &json!(time)),
            "{report}"
        );
        report["packets"].as_u64().unwrap()
    };
    assert_eq!(until(json!({ "flow": flow })), of_flow);
    assert_eq!(until(json!({ "community_id": id })), of_flow);
    assert_eq!(until(json!({ "flow": flow, "dump": "greater 9000" })), 0);
    assert_eq!(until(json!({ "dump": "" })), counted(""));
    for (body, status) in [
        (json!({ "flow": flow, "community_id": id }), 422),
        (json!({ "community_id": "1:x" }), 422),
        (
            json!({ "flow": { "src_ip": "::1", "dest_ip": "127.0.0.1", "proto": "ICMP" } }),
            422,
        ),
        (
            json!({ "flow": { "src_ip": "::1", "dest_ip": "::2", "proto": "TCP" } }),
            422,
        ),
        (
            json!({ "flow": { "src_ip": "x", "dest_ip": "::2", "proto": "TCP" } }),
            422,
        ),
        (
            json!({ "flow": { "src_ip": "::1", "dest_ip": "::2", "proto": "QUIC" } }),
            422,
        ),
        (json!({ "flow": flow, "dump": "port $srcPort" }), 422),
        (json!({ "flow": flow, "dump": "udp) or (tcp" }), 422),
        (json!({ "time": "2100-01-01T00:00:00Z" }), 409),
        (json!({ "time": "yesterday" }), 422),
    ] {
        ask(&body).refused(status);
    }
}
