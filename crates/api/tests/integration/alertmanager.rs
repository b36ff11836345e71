//! Alerts of Prometheus' Alertmanager, over the webhook.

use retroscope_pcapfile::CaptureReader;
use retroscope_recorder::{Clock, RecorderEvent, SystemClock, rfc3339};
use serde_json::{Value, json};

use crate::{
    access::finished,
    support::{Answer, Served, get, request},
};

/// A recorder with a rule for alerts, `web`.
struct Alerted {
    served: Served,
    /// The address of one end of a recorded flow. `port` is the port of the same end.
    host: String,
    port: u16,
}

impl Alerted {
    fn new() -> Self {
        let served = Served::new();
        served.wait_for_packets(3000);
        let all = served.ask_unix(&get("/v1/query?limit_packets=1"));
        let mut capture = CaptureReader::new(&all.body[..]).unwrap();
        let packet = capture.next().unwrap().unwrap().data.to_vec();
        let parsed = retroscope_packet::parse(retroscope_packet::LinkType::ETHERNET, &packet);
        let host = parsed.network.unwrap().src.to_string();
        let port = parsed.transport.unwrap().src;
        let alerted = Self { served, host, port };
        alerted.put("web", json!({ "alert_dump": "host {instance} and port {instance}", "past": "10s", "future": "0s", "into": "web", "asked_by": "a test" }));
        alerted
    }

    /// The dump filter of a dump, from the event `Triggered`.
    fn expression(&self, dump: u64) -> String {
        let mut events = self.served.handle.subscribe(Some(0));
        loop {
            match events.take(crate::support::DEADLINE).unwrap() {
                RecorderEvent::Triggered {
                    number, expression, ..
                } if number == dump => return expression,
                _ => {}
            }
        }
    }

    fn next_event(&self) -> u64 {
        let status = self.served.ask_unix(&get("/v1/status")).done(200);
        status["next_event"].as_u64().unwrap()
    }

    /// The first notice among the events from number `from` on.
    fn notice(&self, from: u64) -> String {
        let mut events = self.served.handle.subscribe(Some(from));
        let deadline = std::time::Instant::now() + crate::support::DEADLINE;
        loop {
            assert!(std::time::Instant::now() < deadline, "no notice");
            if let Ok(RecorderEvent::Notice(text)) = events.take(std::time::Duration::from_secs(1))
            {
                return text;
            }
        }
    }

    fn put(&self, name: &str, rule: Value) {
        let put = request("PUT", &format!("/v1/rules/{name}")).json(&rule);
        self.served.ask_unix(&put).done(201);
    }

    fn send(&self, target: &str, body: &Value) -> Answer {
        let post = request("POST", target).json(body);
        self.served.ask(&post.token(self.served.token("trigger")))
    }

    /// A firing alert in the format of Alertmanager 0.27.
    fn alert(&self, fingerprint: &str) -> Value {
        let now = rfc3339(SystemClock.now().wall_ns);
        json!({
            "status": "firing",
            "labels": { "alertname": "SlowAnswers", "instance": format!("{}:{}", self.host, self.port), "severity": "page", "retroscope_rule": "web" },
            "annotations": { "summary": "answers take long" },
            "startsAt": now, "endsAt": "0001-01-01T00:00:00Z",
            "generatorURL": "http://prometheus:9090/graph?g0.expr=up",
            "fingerprint": fingerprint,
        })
    }
}

fn notification(alerts: &[Value]) -> Value {
    json!({
        "version": "4", "groupKey": "{}:{alertname=\"SlowAnswers\"}", "truncatedAlerts": 2, "status": "firing", "receiver": "retroscope",
        "groupLabels": { "alertname": "SlowAnswers" }, "commonLabels": {}, "commonAnnotations": {}, "externalURL": "http://alertmanager:9093",
        "alerts": alerts,
    })
}

#[test]
fn an_alert_that_fires_has_one_dump_of_its_rule() {
    let alerted = Alerted::new();
    let alert = alerted.alert("a30cca2921f1e0d7");
    let sent = notification(std::slice::from_ref(&alert));
    let answer = alerted.send("/v1/alertmanager", &sent).done(200);
    assert_eq!(
        (&answer["alerts"][0]["outcome"], &answer["truncated"]),
        (&json!("dump"), &json!(2)),
        "{answer}"
    );
    let number = answer["alerts"][0]["dump"].as_u64().unwrap();
    let report = finished(&alerted.served, number);
    let expression = format!("host {} and port {}", alerted.host, alerted.port);
    assert_eq!(alerted.expression(number), expression);
    assert_eq!(
        (
            &report["rule"],
            &report["asked_by"],
            &report["trigger_time"]
        ),
        (&json!("web"), &json!("a test"), &alert["startsAt"])
    );
    // The client that sent the alert, not the client that put the rule.
    assert_eq!(report["caller"], "trigger");
    assert!(report["packets"].as_u64() > Some(0), "{report}");
    let reason = report["reason"].as_str().unwrap();
    assert!(
        reason.contains("SlowAnswers") && reason.contains("a30cca2921f1e0d7"),
        "{reason}"
    );
    assert!(report.to_string().contains("/web/"), "{report}");

    // The same alert, from another instance of Alertmanager. Then a notification with three alerts.
    let again = alerted.send("/v1/alertmanager", &sent).done(200);
    assert_eq!(
        again["alerts"][0],
        json!({ "fingerprint": "a30cca2921f1e0d7", "outcome": "existed", "dump": number })
    );
    let anew = alerted.alert("a30cca2921f1e0d7");
    let mut over = anew.clone();
    over["status"] = json!("resolved");
    let all = notification(&[alert.clone(), anew, over]);
    let answer = alerted.send("/v1/alertmanager?rule=web", &all).done(200);
    let outcomes: Vec<_> = (0..3)
        .map(|at| answer["alerts"][at]["outcome"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(outcomes, ["existed", "dump", "resolved"], "{answer}");
    let (metrics, token) = (get("/metrics"), alerted.served.token("metrics"));
    let metrics = alerted.served.ask(&metrics.token(token)).text().to_owned();
    assert!(
        metrics.contains("retroscope_triggers_total{rule=\"web\",outcome=\"dump\"} 2\n"),
        "{metrics}"
    );
    // Without a fingerprint, the labels identify the alert.
    let mut plain = alerted.alert("");
    plain.as_object_mut().unwrap().remove("fingerprint");
    let sent = notification(&[plain]);
    let first = alerted.send("/v1/alertmanager", &sent).done(200);
    let again = alerted.send("/v1/alertmanager", &sent).done(200);
    assert_eq!(
        (&first["alerts"][0]["dump"], &again["alerts"][0]["outcome"]),
        (&again["alerts"][0]["dump"], &json!("existed"))
    );
}

/// A restarted recorder knows no earlier alerts. An alert that is still firing gets no empty dump.
#[test]
fn an_alert_from_before_the_recording_has_no_dump() {
    let alerted = Alerted::new();
    let mut old = alerted.alert("old");
    let began = SystemClock.now().wall_ns - 3_600_000_000_000;
    old["startsAt"] = json!(rfc3339(began));
    let from = alerted.next_event();
    let answer = alerted
        .send("/v1/alertmanager", &notification(&[old.clone()]))
        .done(200);
    let told = &answer["alerts"][0];
    assert_eq!(
        (&told["outcome"], &told["dump"]),
        (&json!("not-recorded"), &Value::Null),
        "{answer}"
    );
    let why = told["reason"].as_str().unwrap();
    assert!(why.contains("before the recording began"), "{why}");
    let notice = alerted.notice(from);
    assert!(
        notice.starts_with("1 of 1 alerts") && notice.ends_with(why),
        "{notice}"
    );
    // If the window reaches into the recording, the alert gets a dump of the recorded part.
    alerted.put(
        "long",
        json!({ "alert_dump": "", "past": "10s", "future": "1h" }),
    );
    let answer = alerted
        .send("/v1/alertmanager?rule=long", &notification(&[old]))
        .done(200);
    assert_eq!(answer["alerts"][0]["outcome"], "dump", "{answer}");
}

/// Labels are from outside and may have any value.
#[test]
fn what_does_not_fit_is_refused_with_a_reason() {
    let alerted = Alerted::new();
    let with = |label: &str, value: &str| {
        let mut alert = alerted.alert("f");
        alert["labels"][label] = json!(value);
        alert
    };
    for instance in [
        "www.example.com:80",
        "192.0.2.7:80 or tcp",
        "192.0.2.7) or (tcp",
        "$srcIP",
        "",
        "0.0.0.0/0",
        "\u{0}",
        "ip[0:4]=0x45",
        &"9".repeat(10_000),
    ] {
        let why = alerted
            .send(
                "/v1/alertmanager",
                &notification(&[with("instance", instance)]),
            )
            .refused(422);
        assert!(why.contains("label `instance`") && why.len() < 500, "{why}");
    }
    for (label, value, told) in [
        ("retroscope_rule", "none", "there is no rule"),
        ("retroscope_rule", "1", "not for alerts"),
    ] {
        let why = alerted
            .send("/v1/alertmanager", &notification(&[with(label, value)]))
            .refused(422);
        assert!(why.contains(told), "{why}");
    }
    for (time, told) in [
        ("0001-01-01T00:00:00Z", "time"),
        ("1969-01-01T00:00:00Z", "never began"),
        ("soon", "not a time"),
    ] {
        let mut alert = alerted.alert("f");
        alert["startsAt"] = json!(time);
        let why = alerted
            .send("/v1/alertmanager", &notification(&[alert]))
            .refused(422);
        assert!(why.contains(told), "{why}");
    }
    let mut nameless = alerted.alert("f");
    nameless["labels"]
        .as_object_mut()
        .unwrap()
        .remove("retroscope_rule");
    let why = alerted
        .send(
            "/v1/alertmanager",
            &notification(std::slice::from_ref(&nameless)),
        )
        .refused(422);
    assert!(why.contains("names a rule"), "{why}");
    // The other alerts of the notification get dumps, and an event reports the refusal.
    let from = alerted.next_event();
    let mixed = notification(&[with("instance", "x y"), alerted.alert("g")]);
    let answer = alerted.send("/v1/alertmanager", &mixed).done(200);
    assert_eq!(
        (
            &answer["alerts"][0]["outcome"],
            &answer["alerts"][1]["outcome"]
        ),
        (&json!("refused"), &json!("dump")),
        "{answer}"
    );
    let text = alerted.notice(from);
    assert!(text.starts_with("1 of 2 alerts"), "{text}");
    // The rule in the URL applies to all alerts.
    let sent = notification(&[with("retroscope_rule", "none"), nameless]);
    let answer = alerted.send("/v1/alertmanager?rule=web", &sent).done(200);
    assert_eq!(answer["alerts"][0]["outcome"], "dump", "{answer}");
    alerted
        .send("/v1/alertmanager?rule=none", &sent)
        .refused(404);
    alerted
        .send("/v1/alertmanager?rules=web", &sent)
        .refused(400);
    let mut other = sent.clone();
    other["version"] = json!("5");
    let why = alerted.send("/v1/alertmanager", &other).refused(422);
    assert!(why.contains("\"5\""), "{why}");
    for body in [
        json!({}),
        json!([]),
        json!({ "version": 4, "alerts": [] }),
        json!({ "version": "4", "alerts": [], "truncatedAlerts": 1_u64 << 63 }),
        json!({ "version": "4", "alerts": [{ "status": "odd" }] }),
    ] {
        alerted.send("/v1/alertmanager", &body).refused(400);
    }
    // In JSON 2 and 2.0 are the same number.
    let body = json!({ "version": "4", "alerts": [], "truncatedAlerts": 2.0 });
    let answer = alerted.send("/v1/alertmanager", &body).done(200);
    assert_eq!(answer["truncated"], 2);
    let many = vec![json!({ "status": "resolved", "labels": {}, "startsAt": "" }); 1025];
    let why = alerted
        .send("/v1/alertmanager", &notification(&many))
        .refused(422);
    assert!(why.contains("max_alerts"), "{why}");
    let answer = alerted
        .send("/v1/alertmanager", &notification(&many[1..]))
        .done(200);
    assert_eq!(answer["alerts"].as_array().unwrap().len(), 1024);
    alerted
        .send(
            "/v1/alertmanager",
            &notification(&[with("x", &"y".repeat(1 << 20))]),
        )
        .refused(413);
    let view = alerted.served.token("view");
    let post = request("POST", "/v1/alertmanager").json(&sent).token(view);
    alerted.served.ask(&post).refused(403);
}

/// The rule's limits apply to alerts, a template can name an interface, and the token's filter
/// restricts the dump.
#[test]
fn a_rule_for_alerts_is_a_rule_and_a_token_sees_its_part() {
    let alerted = Alerted::new();
    let interfaces = alerted.served.ask_unix(&get("/v1/interfaces")).done(200);
    let device = interfaces["interfaces"][0]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    alerted.put("all", json!({ "alert_dump": "interface {device}", "past": "10s", "future": "0s", "dumps_per_minute": 1 }));
    let on = |device: &str, fingerprint| {
        let mut alert = alerted.alert(fingerprint);
        alert["labels"]["device"] = json!(device);
        alerted.send("/v1/alertmanager?rule=all", &notification(&[alert]))
    };
    assert!(
        on("eth77", "a")
            .refused(422)
            .contains("no interface \"eth77\"")
    );
    let answer = on(&device, "b").done(200);
    let report = finished(
        &alerted.served,
        answer["alerts"][0]["dump"].as_u64().unwrap(),
    );
    assert!(report["packets"].as_u64() > Some(1000), "{report}");
    let answer = on(&device, "c").done(200);
    assert_eq!(answer["alerts"][0]["outcome"], "suppressed", "{answer}");
    assert!(
        answer["alerts"][0]["reason"]
            .as_str()
            .unwrap()
            .contains("dumps in a minute"),
        "{answer}"
    );

    let own = alerted
        .served
        .new_token("narrow", &[retroscope_api::Role::Trigger], |line| {
            line.filter = Some("greater 9000".to_owned());
        });
    let post = request("POST", "/v1/alertmanager").json(&notification(&[alerted.alert("d")]));
    let answer = alerted.served.ask(&post.token(&own)).done(200);
    let number = answer["alerts"][0]["dump"].as_u64().unwrap();
    let report = finished(&alerted.served, number);
    assert_eq!(report["packets"], 0, "{report}");
    let expression = alerted.expression(number);
    assert!(
        expression.starts_with("(greater 9000) and (host "),
        "{expression}"
    );
    let rule = json!({ "alert_dump": "host {a} or {b}" });
    let put = request("PUT", "/v1/rules/wrong").json(&rule);
    assert!(
        alerted
            .served
            .ask_unix(&put)
            .refused(422)
            .contains("before {b}")
    );
}
