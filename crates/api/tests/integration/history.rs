//! Answers about the past without a capture file, such as timeline, packets and rule tests.

use std::{
    collections::BTreeSet,
    io::{self, Write},
    path::Path,
    time::Instant,
};

use retroscope_api::Role;
use retroscope_recorder::rfc3339;
use serde_json::{Value, json};

use crate::{
    access::finished,
    support::{Answer, DEADLINE, Request, Served, get, request},
};

fn ask(served: &Served, request: Request, role: &str) -> Answer {
    served.ask(&request.token(served.token(role)))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

fn sum(values: &Value) -> u64 {
    values
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_u64)
        .sum()
}

#[test]
fn the_timeline_has_what_is_stored_slot_by_slot() {
    let served = Served::new();
    served.wait_for_packets(5000);
    ask(
        &served,
        request("POST", "/v1/triggers").json(&json!({})),
        "admin",
    )
    .done(201);
    let before = served.handle.status().unwrap();
    let line = ask(&served, get("/v1/timeline?slots=20"), "view").done(200);
    let after = served.handle.status().unwrap();
    assert_eq!(line["packets"].as_array().unwrap().len(), 20);
    let stored = sum(&line["packets"]);
    assert!((before.stored..=after.stored).contains(&stored), "{line}");
    assert!(sum(&line["bytes"]) >= 60 * stored);
    assert_eq!(sum(&line["triggers"]), 1);
    assert!(
        line["down"]
            .as_array()
            .unwrap()
            .iter()
            .all(|down| down == false)
    );
    assert!(line["slot_seconds"].as_f64().unwrap() > 0.0);
    let of = |query: &str| ask(&served, get(&format!("/v1/timeline?{query}")), "view");
    let old = of("from=2001-01-01T00:00:00Z&to=2001-01-02T00:00:00%2B02:00&slots=3").done(200);
    assert_eq!(old["packets"], json!([null, null, null]));
    let later = of("from=2099-01-01T00:00:00Z&to=2099-01-02T00:00:00Z&slots=2").done(200);
    assert_eq!(
        (&later["packets"], &later["triggers"]),
        (&json!([null, null]), &json!([null, null]))
    );
    assert_eq!(of("").done(200)["packets"].as_array().unwrap().len(), 240);
    for wrong in ["slots=x", "slots=-1", "slot=3", "last=1s"] {
        of(wrong).refused(400);
    }
    for senseless in ["slots=0", "slots=2001", "from=x", "from=7&to=6"] {
        of(senseless).refused(422);
    }
    assert_eq!(line["peaks"], Value::Null, "only if asked for");
    let line = of("slots=20&by=interface").done(200);
    let (peaks, series) = (&line["peaks"], &line["peaks"]["series"][0]);
    assert_eq!(peaks["known_from"], Value::Null, "{peaks}");
    assert_eq!(line["packets"], series["packets"], "one interface");
    assert_eq!(peaks["packets"], series["peak_packets"]);
    assert_eq!(peaks["bytes"], series["peak_bytes"]);
    assert!(sum(&peaks["packets"]) > 0 && sum(&peaks["packets"]) <= sum(&line["packets"]));
    let peaks = of("peaks=true").done(200)["peaks"].take();
    assert!(peaks["seconds"].as_f64().unwrap() <= 0.001);
    assert_eq!(peaks["series"], json!([]));
    of("by=port").refused(400);
    ask(&served, get("/v1/timeline"), "metrics").refused(403);
    let limited = served.new_token("part", &[Role::Admin], |line| {
        line.filter = Some("udp".to_owned())
    });
    served
        .ask(&get("/v1/timeline").token(&limited))
        .refused(403);
}

#[test]
fn the_largest_are_those_of_all_packets() {
    let served = Served::new();
    served.wait_for_packets(5000);
    let of = |query: &str| ask(&served, get(&format!("/v1/top?{query}")), "view");
    let top = of("count=100&by=packets").done(200);
    assert_eq!(number(&top["packets"]), number(&top["scan"]["inspected"]));
    assert!(number(&top["packets"]) >= 5000);
    let flows = top["flows"].as_array().unwrap();
    assert_eq!(flows.len(), 10, "as the generator has them");
    let packets = |rows: &Value| -> u64 {
        rows.as_array()
            .unwrap()
            .iter()
            .map(|row| number(&row["packets"]))
            .sum()
    };
    assert_eq!(packets(&top["flows"]), number(&top["packets"]));
    assert!(flows.is_sorted_by_key(|flow| u64::MAX - number(&flow["packets"])));
    assert_eq!(packets(&top["hosts"]), 2 * number(&top["packets"]));
    assert_eq!(packets(&top["ports"]), 2 * number(&top["packets"]));
    let bytes = |rows: &Value, field: &str| -> u64 {
        rows.as_array()
            .unwrap()
            .iter()
            .map(|row| number(&row[field]))
            .sum()
    };
    assert_eq!(bytes(&top["flows"], "bytes"), number(&top["bytes"]));
    assert_eq!(bytes(&top["hosts"], "sent_bytes"), number(&top["bytes"]));
    assert_eq!(
        (number(&top["uncertain_bytes"]), &top["scan"]["verdict"]),
        (0, &json!("complete"))
    );
    // Queries by the flow's Community ID find the flow. A query by the address of one end finds
    // this host.
    let flow = &flows[0];
    assert_eq!(
        (&flow["proto"], flow["ends"].as_array().unwrap().len()),
        (&json!(17), 2)
    );
    let id = flow["community_id"]
        .as_str()
        .unwrap()
        .replace('+', "%2B")
        .replace('/', "%2F")
        .replace('=', "%3D");
    let lines = ask(
        &served,
        get(&format!("/v1/packets?community_id={id}&limit=1")),
        "view",
    )
    .done(200);
    let summary = lines["packets"][0]["summary"].as_str().unwrap();
    for end in flow["ends"].as_array().unwrap() {
        assert!(
            summary.contains(end["address"].as_str().unwrap()),
            "{summary} {flow}"
        );
    }
    let of_flow = of(&format!("community_id={id}")).done(200);
    assert_eq!(of_flow["flows"].as_array().unwrap().len(), 1);
    assert_eq!(of_flow["flows"][0]["community_id"], flow["community_id"]);
    let host = flow["ends"][0]["address"].as_str().unwrap();
    let of_one = of(&format!("filter=host%20{host}&count=1")).done(200);
    assert_eq!(of_one["hosts"][0]["address"], host);
    assert!(number(&of_one["packets"]) < number(&top["packets"]));
    let none = of("filter=tcp").done(200);
    assert_eq!((&none["flows"], &none["packets"]), (&json!([]), &json!(0)));
    for wrong in ["count=x", "by=luck", "of=flows"] {
        of(wrong).refused(400);
    }
    for senseless in ["count=0", "count=1001", "last=soon", "from=2&to=1"] {
        of(senseless).refused(422);
    }
    let why = of("filter=udp%20prt%207").refused(422);
    assert!(why.contains("prt"), "{why}");
    ask(&served, get("/v1/top"), "metrics").refused(403);
    // A token with a filter gets results only about packets that match the filter.
    let one = served.new_token("one", &[Role::View], |line| {
        line.filter = Some(format!("host {host}"))
    });
    let own = served.ask(&get("/v1/top?count=100").token(&one)).done(200);
    assert!(own["flows"].as_array().unwrap().len() < 10, "{own}");
    assert_eq!(own["hosts"][0]["address"], host);
}

#[test]
fn packets_come_in_pages_without_gap_or_duplicate() {
    let served = Served::new();
    served.wait_for_packets(3000);
    let of = |query: &str, role: &str| ask(&served, get(&format!("/v1/packets?{query}")), role);
    // A fixed time range, which ends at a packet that is already stored.
    let all = of("limit=1", "view").done(200);
    let (from, to) = (
        all["scan"]["from"].as_str().unwrap(),
        "2099-01-01T00:00:00Z",
    );
    let last = of("limit=1000&newest=true", "view").done(200);
    assert_eq!(
        (last["packets"].as_array().unwrap().len(), &last["next"]),
        (1000, &Value::Null)
    );
    let to = last["packets"][999]["time"].as_str().unwrap_or(to);
    let window = format!("from={from}&to={to}&limit=700");
    let (mut ids, mut times, mut next) = (BTreeSet::new(), Vec::new(), String::new());
    loop {
        let after = if next.is_empty() {
            String::new()
        } else {
            format!("&after={next}")
        };
        let page = of(&format!("{window}{after}"), "view").done(200);
        for packet in page["packets"].as_array().unwrap() {
            assert!(
                ids.insert(packet["id"].as_str().unwrap().to_owned()),
                "{packet} twice"
            );
            times.push(packet["time"].as_str().unwrap().to_owned());
            assert_eq!((packet.get("hex"), &packet["link_type"]), (None, &json!(1)));
        }
        match page["next"].as_str() {
            Some(text) => text.clone_into(&mut next),
            None => break,
        }
    }
    assert!(times.is_sorted());
    let count = served
        .ask_unix(&get(&format!("/v1/top?from={from}&to={to}")))
        .done(200);
    assert_eq!(
        ids.len() as u64,
        number(&count["packets"]),
        "as many as there are"
    );
    // Only clients with the role `packets` get bytes. Each such answer is reported as an export.
    of("hex=true", "view").refused(403);
    of("hex=true", "trigger").refused(403);
    let page = of(&format!("from={from}&limit=3&hex=true"), "packets").done(200);
    let packet = &page["packets"][0];
    let hex = packet["hex"].as_str().unwrap();
    assert_eq!(hex.len() as u64, 2 * number(&packet["captured"]));
    assert!(hex.bytes().all(|digit| digit.is_ascii_hexdigit()));
    let mut events = served.handle.subscribe(Some(0));
    let mut exports = Vec::new();
    while let Ok(event) = events.take(std::time::Duration::ZERO) {
        if let retroscope_recorder::RecorderEvent::Exported(export) = event {
            exports.push(export);
        }
    }
    assert_eq!(exports.len(), 1, "only those with bytes: {exports:?}");
    assert_eq!(
        (exports[0].what.as_str(), exports[0].packets),
        ("packets", Some(3))
    );
    // A token's snap length applies to listed packets too.
    let short = served.new_token("short", &[Role::Packets], |line| line.snaplen = Some(20));
    let cut = served
        .ask(&get("/v1/packets?limit=1&hex=true").token(&short))
        .done(200);
    assert_eq!(
        (
            &cut["packets"][0]["captured"],
            cut["packets"][0]["hex"].as_str().unwrap().len()
        ),
        (&json!(20), 40)
    );
    assert!(
        !cut["packets"][0]["summary"]
            .as_str()
            .unwrap()
            .contains("UDP"),
        "{cut}"
    );
    for wrong in ["limit=x", "hex=perhaps", "page=2"] {
        of(wrong, "view").refused(400);
    }
    for senseless in [
        "filter=udp%20prt%207",
        "limit=0",
        "limit=1001",
        "last=1s&from=7",
        "after=1",
        "after=x",
        "community_id=x",
        "newest=true&after=17",
    ] {
        of(senseless, "view").refused(422);
    }
    of("", "metrics").refused(403);
}

#[test]
fn a_rule_is_tried_on_the_past() {
    let served = Served::new();
    served.wait_for_packets(3000);
    let test =
        |body: &Value, role: &str| ask(&served, request("POST", "/v1/rules/test").json(body), role);
    let all = test(&json!({ "filter": "udp", "list": 3 }), "view").done(200);
    assert_eq!(number(&all["hits"]), number(&all["scan"]["inspected"]));
    assert!(number(&all["hits"]) >= 3000);
    let listed = all["packets"].as_array().unwrap();
    assert_eq!((listed.len(), &listed[0]["time"]), (3, &all["first"]));
    assert!(all["first"].as_str() < all["last"].as_str());
    assert!(listed.iter().all(|packet| packet.get("hex").is_none()));
    let most = number(&all["most_in_a_second"]);
    assert!(most >= 100 && most <= number(&all["hits"]), "{most}");
    let none = test(&json!({ "filter": "tcp port 9" }), "view").done(200);
    assert_eq!(
        (&none["hits"], &none["first"], &none["packets"]),
        (&json!(0), &Value::Null, &json!([]))
    );
    assert!(number(&none["scan"]["inspected"]) >= 3000);
    // Testing a rule does not add the rule.
    assert_eq!(served.handle.rules().len(), 1);
    let odd = test(
        &json!({ "filter": "udp and payload contains \"x\"", "last": "1s", "list": 0 }),
        "view",
    )
    .done(200);
    assert_eq!(odd["packets"], json!([]));
    for (body, status) in [
        (json!({}), 400),
        (json!({ "filter": "udp", "list": 1001 }), 422),
        (json!({ "filter": "udp", "list": -1 }), 400),
        (json!({ "filter": "udp", "last": "soon" }), 422),
        (json!({ "filter": "udp", "name": "x" }), 400),
        (json!({ "filter": "udp prt 9" }), 422),
        (json!({ "filter": "host $srcIP" }), 422),
        (json!({ "filter": " " }), 422),
    ] {
        test(&body, "view").refused(status);
    }
    test(&json!({ "filter": "udp" }), "metrics").refused(403);
    served.ask_unix(&get("/v1/rules/test")).refused(405);
    let one = served.new_token("one", &[Role::View], |line| {
        line.filter = Some("tcp".to_owned())
    });
    let own = served.ask(
        &request("POST", "/v1/rules/test")
            .json(&json!({ "filter": "udp" }))
            .token(&one),
    );
    assert_eq!(own.done(200)["hits"], 0, "of what it may see");
    let out = served.ask(
        &request("POST", "/v1/rules/test")
            .json(&json!({ "filter": "udp) or (udp" }))
            .token(&one),
    );
    out.refused(422);
}

#[test]
fn a_rule_acts_on_the_past() {
    let served = Served::new();
    served.wait_for_packets(3000);
    let put = |name: &str, body: &Value| {
        let request = request("PUT", &format!("/v1/rules/{name}")).json(body);
        ask(&served, request, "admin")
    };
    let rule = json!({ "filter": "udp", "scan_past": "1h", "single": true });
    let made = put("past", &rule).done(201);
    let scan = &made["scan"];
    assert_eq!(
        (&scan["past"], &scan["running"]),
        (&json!("1h"), &json!(false)),
        "{made}"
    );
    assert_eq!(
        (&scan["dumps"], &made["enabled"]),
        (&json!(1), &json!(false)),
        "{made}"
    );
    assert!(
        scan["stopped"].as_str().unwrap().contains("single"),
        "{made}"
    );
    let rule = json!({ "filter": "udp and greater 1", "scan_past": "1h", "max_dumps": 1 });
    let made = put("all", &rule).done(201);
    let scan = &made["scan"];
    assert!(number(&scan["hits"]) >= 3000, "{made}");
    assert_eq!(scan["hits"], scan["scan"]["inspected"], "{made}");
    assert_eq!(
        (&scan["stopped"], &made["scan_past"]),
        (&Value::Null, &Value::Null)
    );
    let got = ask(&served, get("/v1/rules/all"), "view").done(200);
    assert_eq!(got["scan"]["hits"], scan["hits"]);
    assert!(number(&got["hits"]) >= number(&scan["hits"]));
    // A retry scans nothing. The answer of GET can be sent back.
    put("all", &rule).done(200);
    put("all", &got).done(200);
    put("new", &json!({ "filter": "tcp" })).done(201);
    let soon = json!({ "filter": "udp", "scan_past": "soon" });
    let disabled = json!({ "filter": "udp", "scan_past": "1h", "enabled": false });
    let tried = json!({ "filter": "tcp", "scan_past": "1h" });
    let held = json!({ "filter": "udp", "scan_past": "1h", "hold_off": "soon" });
    for (name, rule, status, field) in [
        ("1", soon, 422, "scan_past"),
        ("1", disabled, 422, "scan_past"),
        ("new", tried, 409, "scan_past"),
        ("1", held, 422, "hold_off"),
    ] {
        let answer = put(name, &rule);
        answer.refused(status);
        assert_eq!(answer.json()["field"], field);
    }
}

/// An address of `api.metrics` serves metrics and health checks only.
#[test]
fn metrics_may_have_an_address_of_their_own() {
    let served = Served::new();
    let ask = |request: Request| {
        let mut stream = std::net::TcpStream::connect(served.metrics).unwrap();
        stream
            .write_all(&request.bytes(&served.metrics.to_string()))
            .unwrap();
        Answer::read(&mut stream)
    };
    let of = |role: &str| ask(get("/metrics").token(served.token(role)));
    for role in ["metrics", "view", "admin"] {
        assert!(
            of(role)
                .text()
                .contains("retroscope_stored_packets_total{source="),
            "{role}"
        );
    }
    ask(get("/metrics")).refused(401);
    ask(get("/metrics").token("nonsense")).refused(401);
    ask(get("/metrics")
        .token(served.token("metrics"))
        .host("elsewhere.example"))
    .refused(421);
    for target in ["/healthz", "/readyz"] {
        assert_eq!(ask(get(target)).status, 200, "{target}");
    }
    for target in ["/v1/status", "/v1/openapi.json", "/v1/query", "/"] {
        ask(get(target)).refused(401);
        ask(get(target).token(served.token("admin"))).refused(404);
    }
    ask(request("POST", "/metrics").token(served.token("admin"))).refused(405);
}

/// The report of a dump whose packets the ring has overwritten.
fn overwritten_dump(served: &Served) -> Value {
    served.wait_for_packets(5000);
    let trigger = json!({ "dump": "udp", "past": "100ms", "future": "0s" });
    let made = served
        .ask_unix(&request("POST", "/v1/triggers").json(&trigger))
        .done(201);
    let report = finished(served, number(&made["dump"]));
    let end_ns = retroscope_recorder::parse_time(report["to"].as_str().unwrap()).unwrap();
    let deadline = Instant::now() + DEADLINE;
    let oldest = || served.handle.status().unwrap().oldest_stamp_ns;
    while oldest().is_none_or(|oldest| oldest <= end_ns) {
        assert!(
            Instant::now() < deadline,
            "the ring keeps the dump's packets"
        );
        std::thread::yield_now();
    }
    report
}

#[test]
fn packets_that_left_the_ring_come_from_dumps() {
    let served = Served::recording("generate:flows=10,size=1000,rate=20kpps", |_| None);
    let report = overwritten_dump(&served);
    let in_dump = number(&report["packets"]);
    assert!(in_dump > 1000, "{report}");
    let (from, to) = (&report["from"], &report["to"]);
    let window = format!(
        "from={}&to={}",
        from.as_str().unwrap(),
        to.as_str().unwrap()
    );
    let (mut times, mut after) = (Vec::new(), String::new());
    loop {
        let query = format!("/v1/packets?{window}&limit=600{after}");
        let page = ask(&served, get(&query), "packets").done(200);
        assert_eq!(page["scan"]["dumps"]["read"], 1, "{page}");
        let packets = page["packets"].as_array().unwrap().iter();
        times.extend(packets.map(|packet| packet["time"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert!(times.is_sorted());
    assert_eq!(times.len() as u64, in_dump);
    let top = ask(&served, get(&format!("/v1/top?{window}")), "packets").done(200);
    assert_eq!(number(&top["packets"]), in_dump);
    for wrong in ["time:", "time:1", "time:x-1", "time:1-x"] {
        let page = format!("/v1/packets?{window}&after={wrong}");
        ask(&served, get(&page), "packets").refused(422);
    }
    // A stamp may be before 1970.
    let page = format!("/v1/packets?to={}&after=time:-5-1", rfc3339(0));
    ask(&served, get(&page), "packets").done(200);
}

/// The pages are in order of time and have each packet of the dump once, although the ring moves on
/// between two pages.
#[test]
fn pages_lead_from_a_dump_into_the_ring() {
    let served = Served::recording("generate:flows=10,size=1000,rate=20kpps", |_| None);
    let report = overwritten_dump(&served);
    let in_dump = number(&report["packets"]);
    let from = report["from"].as_str().unwrap();
    let (mut times, mut after) = (Vec::new(), String::new());
    for _ in 0..in_dump.div_ceil(300) + 3 {
        let query = format!("/v1/packets?from={from}&limit=300{after}");
        let page = ask(&served, get(&query), "packets").done(200);
        let packets = page["packets"].as_array().unwrap().iter();
        times.extend(packets.map(|packet| packet["time"].as_str().unwrap().to_owned()));
        after = format!("&after={}", page["next"].as_str().unwrap());
        assert!(after.starts_with("&after=time:"), "{after}");
    }
    assert!(times.is_sorted());
    let end = report["to"].as_str().unwrap();
    let of_dump = times.iter().filter(|time| time.as_str() <= end).count() as u64;
    assert_eq!(of_dump, in_dump, "of {}", times.len());
    assert_eq!(times.len() as u64, 300 * (in_dump.div_ceil(300) + 3));
}

#[test]
fn a_pinned_range_stays_complete() {
    let served = Served::recording("generate:flows=10,size=1000,rate=20kpps", |_| None);
    served.wait_for_packets(5000);
    let pin = request("PUT", "/v1/pins/kept").json(&json!({ "last": "100ms" }));
    let pin = served.ask_unix(&pin).done(201);
    assert_eq!(pin["evicted_before"], 0, "{pin}");
    let time = |name: &str| retroscope_recorder::parse_time(pin[name].as_str().unwrap()).unwrap();
    let (from_ns, to_ns) = (time("from"), time("to"));
    let ms = 1_000_000;
    let count = |from_ns: i64, to_ns: i64| {
        let (from, to) = (rfc3339(from_ns), rfc3339(to_ns));
        let query = format!("/v1/query?count=true&from={from}&to={to}");
        ask(&served, get(&query), "packets").done(200)
    };
    let wait_for_loss = |from_ns, to_ns| {
        let deadline = Instant::now() + DEADLINE;
        while count(from_ns, to_ns)["missing"][0]["cause"] != "evicted" {
            assert!(Instant::now() < deadline, "nothing was overwritten");
            std::thread::yield_now();
        }
    };
    wait_for_loss(to_ns + 500 * ms, to_ns + 501 * ms);
    let report = count(from_ns, to_ns);
    assert_eq!(report["verdict"], "complete", "{report}");
    assert!(number(&report["packets"]) > 1900, "{report}");
    let report = count(from_ns, to_ns + 501 * ms);
    assert_eq!(report["missing"][0]["cause"], "evicted", "{report}");
    served
        .ask_unix(&request("DELETE", "/v1/pins/kept"))
        .done(204);
    wait_for_loss(from_ns, to_ns);
}

/// A request to check a filter succeeds even if the filter is wrong.
#[test]
fn a_filter_is_checked_while_it_is_typed() {
    let served = Served::new();
    let check = |filter: &str| {
        ask(
            &served,
            get(&format!("/v1/filters?filter={filter}")),
            "view",
        )
    };
    assert_eq!(check("udp%20port%2053").done(200)["problem"], Value::Null);
    let wrong = &check("udp%20prt%2053").done(200)["problem"];
    assert_eq!(
        (&wrong["filter"], &wrong["offset"]),
        (&json!("udp prt 53"), &json!(4))
    );
    // Only an admin may make the recorder look up the name of a host.
    let named = &check("host%20www.example").done(200)["problem"];
    assert_eq!(named["offset"], json!(5), "{named}");
    served
        .ask(&get("/v1/filters").token(served.token("view")))
        .refused(400);
}

/// The answer of a client whose token is removed ends, although the dissector never answers.
#[test]
fn details_end_with_their_token() {
    if !["/usr/bin/sharkd", "/usr/local/bin/sharkd"]
        .map(Path::new)
        .iter()
        .any(|it| it.exists())
    {
        let _ = writeln!(
            io::stderr(),
            "SKIP: no sharkd; the end of details was not tested"
        );
        return;
    }
    let served = Served::new();
    served.wait_for_packets(100);
    let token = served.new_token("gone", &[Role::Packets], |_| {});
    let page = get("/v1/packets?limit=1&newest=true").token(&token);
    let page = served.ask(&page).done(200);
    let id = page["packets"][0]["id"].as_str().unwrap();
    let mut stream = served.connect();
    let details = get(&format!("/v1/details?id={id}")).token(&token);
    stream
        .write_all(&details.bytes(&served.address.to_string()))
        .unwrap();
    served.wait_for_dissector();
    served.revoke("gone");
    let why = Answer::read(&mut stream).refused(401);
    assert!(why.contains("removed"), "{why}");
}
