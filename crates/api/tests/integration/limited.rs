//! Answers to tokens with a filter or snap length, and events about clients.

use retroscope_api::Role;
use retroscope_recorder::{Export, RecorderEvent};
use serde_json::{Value, json};

use crate::{
    access::finished,
    support::{DEADLINE, Request, Served, get, request},
};

/// Number of occurrences of a text in the metrics for a token.
fn named(served: &Served, token: &str, rule: &str) -> usize {
    let answer = served.ask(&get("/metrics").token(token));
    assert_eq!(answer.status, 200);
    answer.text().matches(rule).count()
}

#[test]
fn a_limited_token_is_told_no_rules_and_no_counts_of_others() {
    let served = Served::new();
    served.wait_for_packets(2000);
    let rule = request("PUT", "/v1/rules/of-somebody").json(&json!({ "filter": "udp port 9" }));
    served.ask_unix(&rule).done(201);
    // No generated packet matches this filter.
    let only_9 = |line: &mut retroscope_api::TokenLine| line.filter = Some("port 9".to_owned());
    let metrics = served.new_token("m", &[Role::Metrics], only_9);
    let packets = served.new_token("p", &[Role::Packets], only_9);
    let all = served.token("packets");
    assert!(named(&served, all, "of-somebody") > 0);
    assert_eq!(named(&served, &metrics, "of-somebody"), 0);
    assert!(named(&served, &metrics, "rule=\"other\"") > 0);
    let count = |token: &str| {
        let target = "/v1/query?count=true&filter=host+192.0.2.99";
        served.ask(&get(target).token(token)).done(200)
    };
    assert!(count(all)["inspected"].as_u64() >= Some(2000));
    let told = count(&packets);
    assert_eq!(told["inspected"], 0, "{told}");
    assert_eq!(told["empty"], json!({ "why": "nothing-matched", "of": 0 }));
    assert!(told.get("index").is_none(), "{told}");
    let page = served.ask(&get("/v1/packets").token(&packets)).done(200);
    assert_eq!(page["scan"]["inspected"], 0, "{page}");
    let answer = served.ask(&get("/v1/query?to=2100-01-01T00:00:00Z").token(&packets));
    let text = String::from_utf8_lossy(&answer.body);
    assert!(text.contains("\"inspected\":0,"), "{text}");
}

/// A manual dump contains packets that match the token's filter and the requested filter. A filter
/// that reads payload is refused, unless the caller may see payload.
#[test]
fn a_limited_trigger_narrows_what_is_dumped() {
    let served = Served::new();
    served.wait_for_packets(2000);
    let udp = served.new_token("udp", &[Role::Trigger], |line| {
        line.filter = Some("udp".to_owned());
    });
    let short = served.new_token("short", &[Role::Trigger, Role::Packets], |line| {
        line.snaplen = Some(42);
    });
    let trigger = |token: &str, body: &Value| {
        let trigger = request("POST", "/v1/triggers").json(body);
        served.ask(&trigger.token(token))
    };
    let mut listener = served.handle.subscribe(None);
    let mut expression = |body: &Value| {
        trigger(&udp, body).done(201);
        loop {
            let event = listener.take(DEADLINE).unwrap();
            if let RecorderEvent::Triggered { expression, .. } = event {
                break expression;
            }
        }
    };
    let flow = json!({ "src_ip": "192.0.2.1", "src_port": 1, "dest_ip": "192.0.2.2", "dest_port": 2, "proto": "UDP" });
    assert_eq!(expression(&json!({})), "(udp) and (not ip6 proto 99)");
    assert_eq!(expression(&json!({ "dump": "" })), "udp");
    assert_eq!(
        expression(&json!({ "dump": "port 7" })),
        "(udp) and (port 7)"
    );
    let of_flow = expression(&json!({ "flow": flow }));
    assert!(of_flow.ends_with(" and (udp)"), "{of_flow}");
    for filter in [
        "udp[8] = 1",
        "payload contains \"x\"",
        "mpls or mpls or mpls or mpls 74565",
    ] {
        let body = json!({ "dump": filter, "future": "0" });
        for token in [&udp, &short, served.token("trigger")] {
            let why = trigger(token, &body).refused(403);
            assert!(why.contains("bytes of packets"), "{why}");
        }
        trigger(served.token("admin"), &body).done(201);
    }
    let headers = json!({ "dump": "tcp[tcpflags] & tcp-syn != 0", "future": "0" });
    trigger(served.token("trigger"), &headers).done(201);
}

/// The report of a dump has the caller, in addition to the name that the caller chose as
/// `asked_by`.
#[test]
fn who_asks_is_told_of_with_what_they_asked_for() {
    let served = Served::new();
    served.wait_for_packets(2000);
    let some = served.new_token("some", &[Role::Packets, Role::Trigger], |line| {
        line.filter = Some("ip".to_owned());
        line.snaplen = Some(96);
    });
    let mut listener = served.handle.subscribe(None);
    let mut exported = |target: &str| -> Export {
        assert_eq!(served.ask(&get(target).token(&some)).status, 200);
        loop {
            if let RecorderEvent::Exported(export) = listener.take(DEADLINE).unwrap() {
                break export;
            }
        }
    };
    let id = "1:LQU9qZlK+B5F3KDmev6m5PMibrg=";
    let asked = format!(
        "filter=not+port+9&from=0&interfaces=eth0,eth1&community_id={}&snaplen=64",
        id.replace('+', "%2B").replace('=', "%3D")
    );
    let export = exported(&format!("/v1/query?{asked}"));
    assert_eq!((&*export.who, &*export.what), ("some", "query"));
    assert_eq!(export.filter, "(ip) and (not port 9)");
    assert_eq!(export.community_id.as_deref(), Some(id));
    assert_eq!(export.interfaces, ["eth0", "eth1"]);
    assert_eq!(
        export.from.as_deref(),
        Some("1970-01-01T00:00:00.000000000Z")
    );
    assert!(export.to.is_some());
    assert_eq!((export.snaplen, export.packets), (Some(64), Some(0)));
    let export = exported("/v1/packets?hex=true&limit=5&filter=not+port+9");
    assert_eq!(export.what, "packets");
    assert_eq!(export.filter, "(ip) and (not port 9)");
    assert_eq!((export.snaplen, export.packets), (Some(96), Some(5)));
    assert!(export.from.is_some() && export.to.is_some());
    let body = json!({ "future": "0", "asked_by": "root" });
    let trigger = request("POST", "/v1/triggers").json(&body);
    let dump = served.ask(&trigger.token(&some)).done(201);
    let report = finished(&served, dump["dump"].as_u64().unwrap());
    assert_eq!(report["asked_by"], "root");
    assert_eq!(report["caller"], "some");
    let rule = json!({ "filter": "udp port 9", "asked_by": "root" });
    let rule = request("PUT", "/v1/rules/x").json(&rule);
    let rule = served.ask_unix(&rule).done(201);
    let caller = rule["caller"].as_str().unwrap();
    assert!(
        caller.starts_with("uid ") && !caller.contains("pid"),
        "{rule}"
    );
}

/// Tokens without the role `admin` may use names of ports.
#[test]
fn only_an_admin_has_names_of_hosts_looked_up() {
    let served = Served::new();
    served.wait_for_packets(100);
    let by = |role: &str, wanted: Request| served.ask(&wanted.token(served.token(role)));
    let test = |expression: &str| {
        let body = json!({ "filter": expression, "last": "1ms" });
        request("POST", "/v1/rules/test").json(&body)
    };
    let trigger = |filter: &str| {
        let body = json!({ "dump": filter, "past": "1ms", "future": "0" });
        request("POST", "/v1/triggers").json(&body)
    };
    let named = "host+localhost+and+port+domain";
    for (role, wanted) in [
        (
            "packets",
            get(&format!("/v1/query?last=1ms&filter={named}")),
        ),
        ("view", get(&format!("/v1/packets?last=1ms&filter={named}"))),
        ("view", get(&format!("/v1/top?last=1ms&filter={named}"))),
        ("view", test("host localhost and port domain")),
        ("trigger", trigger("host localhost and port domain")),
    ] {
        let why = by(role, wanted.clone()).refused(422);
        assert!(why.contains("'localhost' is a name"), "{wanted:?}: {why}");
        let status = by("admin", wanted.clone()).status;
        assert!((200..300).contains(&status), "{wanted:?}: {status}");
    }
    let port = get("/v1/query?last=1ms&filter=port+domain+and+host+192.0.2.1");
    assert_eq!(by("packets", port).status, 200);
}
