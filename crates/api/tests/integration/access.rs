//! Access control: tokens, roles, hosts, origins.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    os::unix::fs::OpenOptionsExt,
};

use retroscope_api::Role;
use retroscope_pcapfile::CaptureReader;
use serde_json::{Value, json};

use crate::support::{Request, Served, get, request};

/// A request that gives a client with the right role a success, or a refusal other than 401 and
/// 403.
fn sample(method: &str, path: &str) -> Request {
    let path = path
        .replace("{name}", "no-such")
        .replace("{number}", "999999")
        .replace("{id}", "0123456789abcdef");
    let sample = request(method, &path);
    match (method, path.as_str()) {
        ("POST", "/v1/triggers") => {
            sample.json(&json!({ "dump": "udp", "past": "1ms", "future": "0" }))
        }
        ("PUT", "/v1/when-full") => sample.json(&json!({ "mode": "record" })),
        ("PUT", "/v1/rules/no-such") => sample.json(&json!({ "filter": "udp prt 9" })),
        ("PATCH", _) => sample.json(&json!({ "enabled": true })),
        ("PUT", "/v1/pins/no-such") => sample.json(&json!({ "last": "1s", "to": "7" })),
        ("GET", "/v1/query") => get("/v1/query?last=1ms"),
        ("GET", "/v1/filters") => get("/v1/filters?filter=udp"),
        _ => sample,
    }
}

fn operations(served: &Served) -> Vec<(String, String, Option<String>)> {
    let document = served.ask_unix(&get("/v1/openapi.json")).done(200);
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let role = operation["x-role"].as_str().map(str::to_owned);
            assert_eq!(role.is_some(), operation["security"].is_array(), "{path}");
            all.push((method.to_uppercase(), path.clone(), role));
        }
    }
    assert!(all.len() > 15);
    all
}

/// The guard admits a request if the caller's roles include the role in the document.
#[test]
fn each_role_may_what_it_is_for_and_nothing_else() {
    let served = Served::new();
    served.wait_for_packets(100);
    // A second copy of the rules of `Role::includes`, written by hand.
    let includes: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("metrics", &["metrics"][..]),
        ("view", &["metrics", "view"]),
        ("packets", &["metrics", "view", "packets"]),
        ("trigger", &["metrics", "view", "trigger"]),
        ("admin", &["metrics", "view", "packets", "trigger", "admin"]),
    ]);
    for (method, path, needed) in operations(&served) {
        // `/v1/stop` would end the recording, and `/v1/events` would never end, so the test sends
        // only refused requests to them.
        let is_kept = path == "/v1/stop" || path == "/v1/events";
        let sample = sample(&method, &path);
        for (role, included) in &includes {
            let may = needed
                .as_ref()
                .is_none_or(|needed| included.contains(&needed.as_str()));
            if may && is_kept {
                continue;
            }
            let answer = served.ask(&sample.clone().token(served.token(role)));
            assert_eq!(
                answer.status != 403,
                may,
                "{role}: {method} {path}: {}",
                answer.status
            );
            if !may {
                let why = answer.refused(403);
                assert!(why.contains(needed.as_deref().unwrap()), "{why}");
            }
        }
        let nobody = served.ask(&sample);
        assert_eq!(nobody.status == 401, needed.is_some(), "{method} {path}");
        if needed.is_some() {
            nobody.refused(401);
            assert!(nobody.headers["www-authenticate"].starts_with("Bearer "));
        }
    }
    let health = served.ask(&get("/healthz"));
    assert_eq!((health.status, health.text()), (200, "ok\n"));
    assert_eq!(served.ask(&get("/readyz")).status, 200);
    assert_eq!(served.ask_unix(&get("/v1/status")).done(200)["rules"], 1);
}

#[test]
fn wrong_expired_and_removed_tokens_are_refused() {
    let served = Served::new();
    let admin = served.token("admin");
    let status = |request: Request| served.ask(&request);
    assert_eq!(status(get("/v1/status").token(admin)).status, 200);
    for wrong in [
        get("/v1/status").token("retroscope_0"),
        get("/v1/status").token(&admin[..admin.len() - 1]),
        get("/v1/status").token(""),
        get("/v1/status").header("Authorization", admin),
        get("/v1/status").header("Authorization", &format!("Basic {admin}")),
        get("/v1/status").token(admin).token(admin),
        get(&format!("/v1/status?token={admin}")),
        // A client without a token does not learn which paths exist.
        get("/v1/nothing"),
        request("BREW", "/v1/status"),
    ] {
        status(wrong).refused(401);
    }
    let expired = served.new_token("late", &[Role::Admin], |line| {
        line.expires = Some("2026-01-01T00:00:00Z".parse().unwrap());
    });
    // If the later token is valid, the expired token was read too.
    served.new_token("later", &[Role::View], |_| {});
    let why = status(get("/v1/status").token(&expired)).refused(401);
    assert!(why.contains("expired"), "{why}");
    let text = fs::read_to_string(&served.tokens).unwrap();
    let kept = text.lines().filter(|line| !line.contains("\"admin\""));
    let kept: String = kept.map(|line| format!("{line}\n")).collect();
    fs::write(&served.tokens, kept).unwrap();
    let deadline = std::time::Instant::now() + crate::support::DEADLINE;
    while status(get("/v1/status").token(admin)).status != 401 {
        assert!(
            std::time::Instant::now() < deadline,
            "a removed token is taken"
        );
    }
    assert_eq!(served.said.lock().unwrap().as_slice(), [] as [&str; 0]);
}

/// Requests with a token do not wait while a read of the token file hangs.
#[test]
fn logins_go_on_while_the_tokens_cannot_be_read() {
    let served = Served::new();
    let text = fs::read_to_string(&served.tokens).unwrap();
    let pipe = served.tokens.with_extension("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    fs::rename(&pipe, &served.tokens).unwrap();
    let is_answered = || {
        let mut stream = served.connect();
        let wait = std::time::Duration::from_secs(5);
        stream.set_read_timeout(Some(wait)).unwrap();
        let asked = get("/v1/status").token(served.token("view"));
        let bytes = asked.bytes(&served.address.to_string());
        stream.write_all(&bytes).unwrap();
        stream.read(&mut [0; 64]).is_ok_and(|read| read > 0)
    };
    // Opening succeeds once the recorder has opened the pipe for reading: open(2), ENXIO.
    let mut options = fs::OpenOptions::new();
    options.write(true).custom_flags(nonblocking());
    let deadline = std::time::Instant::now() + crate::support::DEADLINE;
    let mut writer = loop {
        assert!(is_answered(), "a login waits for the tokens");
        match options.open(&served.tokens) {
            Ok(writer) => break writer,
            Err(error) => assert!(std::time::Instant::now() < deadline, "{error}"),
        }
    };
    for _ in 0..10 {
        assert!(is_answered(), "a login waits for the tokens");
    }
    // The file in the pipe has no token `view`, so this token is refused.
    let kept = text.lines().filter(|line| !line.contains("\"view\""));
    let kept: String = kept.map(|line| format!("{line}\n")).collect();
    writer.write_all(kept.as_bytes()).unwrap();
    drop(writer);
    let view = || served.ask(&get("/v1/status").token(served.token("view")));
    while view().status != 401 {
        assert!(std::time::Instant::now() < deadline, "they are not read");
    }
}

fn nonblocking() -> i32 {
    rustix::fs::OFlags::NONBLOCK.bits().try_into().unwrap()
}

#[test]
fn other_sites_and_names_are_refused() {
    let served = Served::new();
    let token = served.token("admin");
    let port = served.address.port();
    let ask = |request: Request| served.ask(&request.token(token));
    for host in [
        &format!("localhost:{port}"),
        "127.0.0.1",
        "[::1]:80",
        "tap.example",
        "TAP.example:443",
    ] {
        assert_eq!(ask(get("/v1/status").host(host)).status, 200, "{host}");
    }
    for host in [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "x@127.0.0.1",
    ] {
        assert!(
            [400, 421].contains(&ask(get("/v1/status").host(host)).status),
            "{host}"
        );
        // Pages of other sites get no health check either.
        assert_ne!(
            served.ask(&get("/healthz").host(host)).status,
            200,
            "{host}"
        );
    }
    ask(get("/v1/status").host("evil.example")).refused(421);
    ask(get("/v1/status").header("Host", "localhost")).refused(400);
    ask(get("http://evil.example/v1/status")).refused(400);
    assert_eq!(
        ask(get(&format!("http://{}/v1/status", served.address))).status,
        200
    );
    let own = format!("http://{}", served.address);
    assert_eq!(ask(get("/v1/status").header("Origin", &own)).status, 200);
    for origin in [
        "null",
        "http://evil.example",
        &format!("https://{}", served.address),
        "http://localhost",
    ] {
        let why = ask(get("/v1/status").header("Origin", origin)).refused(403);
        assert!(why.contains("pages"), "{why}");
    }
    // A browser's preflight request. The answer does not permit the page's request.
    let preflight = request("OPTIONS", "/v1/status").header("Origin", "http://evil.example");
    let answer = served.ask(&preflight.header("Access-Control-Request-Method", "GET"));
    answer.refused(403);
    assert!(
        !answer
            .headers
            .keys()
            .any(|name| name.starts_with("access-control"))
    );
}

/// A client of the unix socket is an admin without a token.
#[test]
fn the_unix_socket_needs_no_token() {
    let mut served = Served::new();
    let rule = json!({ "filter": "tcp port 7" });
    let put = request("PUT", "/v1/rules/a").json(&rule);
    served.ask_unix(&put).done(201);
    served
        .ask_unix(&get("/v1/rules/a").host("what.ever"))
        .done(200);
    served.ask_unix(&get("/v1/nothing")).refused(404);
    served.ask_unix(&request("BREW", "/v1/status")).refused(405);
    let head = |target: &str| served.ask_unix(&request("HEAD", target));
    for target in ["/v1/status", "/healthz", "/v1/rules", "/v1/query?last=1ms"] {
        let answer = head(target);
        assert_eq!((answer.status, answer.body.len()), (200, 0), "{target}");
    }
    assert_eq!(
        (head("/v1/nothing").status, head("/v1/stop").status),
        (404, 405)
    );
    assert_eq!(head("/v1/stop").headers["allow"], "POST");
    let doctor = served.ask_unix(&get("/v1/doctor")).done(200);
    assert_eq!(doctor["findings"][0]["do"], "ip link set eth0 up");
    assert_eq!(doctor["loses_packets"], true);
    served
        .ask_unix(&get("/v1/doctor?interfaces=eth7"))
        .refused(422);
    let events = served.ask_unix(&request("POST", "/v1/stop"));
    assert_eq!(events.status, 202);
    served.end();
}

/// A token with a filter gets only packets that match the filter, and no events, rules, dumps or
/// pins.
#[test]
fn a_limited_token_sees_a_part() {
    let served = Served::new();
    served.wait_for_packets(2000);
    let roles = [Role::Packets, Role::Trigger];
    let some = served.new_token("some", &roles, |line| {
        line.filter = Some("src port 1 or src port 2".to_owned())
    });
    let udp = served.new_token("udp", &roles, |line| line.filter = Some("udp".to_owned()));
    let all = served.token("packets");
    let packets = |token: &str, filter: &str| {
        let target = format!(
            "/v1/query?to=2100-01-01T00:00:00Z&filter={}",
            filter.replace(' ', "%20")
        );
        let answer = served.ask(&get(&target).token(token));
        assert_eq!(answer.status, 200, "{}", answer.text());
        let mut capture = CaptureReader::new(&answer.body[..]).unwrap();
        std::iter::from_fn(|| capture.next().unwrap().map(drop)).count()
    };
    assert!(packets(all, "") > 1000);
    assert_eq!(packets(&some, ""), 0);
    assert!(packets(&udp, "") > 0);
    assert_eq!(packets(&some, "udp or tcp"), 0);
    assert_eq!(packets(&udp, "tcp"), 0);
    // The requested filter cannot leave its parentheses.
    for wrong in ["udp) or (tcp", "udp) or tcp or (udp", "udp or (tcp", ")"] {
        let target = format!("/v1/query?filter={}", wrong.replace(' ', "%20"));
        served.ask(&get(&target).token(&some)).refused(422);
    }
    for target in ["/v1/events", "/v1/rules", "/v1/dumps", "/v1/pins"] {
        let why = served.ask(&get(target).token(&udp)).refused(403);
        assert!(why.contains("restricted"), "{why}");
    }
    let pin = request("PUT", "/v1/pins/secret").json(&json!({}));
    served.ask_unix(&pin).done(201);
    let pins = |token: &str| served.ask(&get("/v1/status").token(token)).done(200)["pins"].clone();
    assert_eq!((pins(&udp), pins(all) == json!([])), (json!([]), false));
    let trigger = request("POST", "/v1/triggers").json(&json!({ "past": "1s", "future": "0s" }));
    let dump: Value = served.ask(&trigger.token(&udp)).done(201);
    let number = dump["dump"].as_u64().unwrap();
    let report = finished(&served, number);
    assert_eq!(
        (&report["asked_by"], &report["verdict"]),
        (&json!("udp"), &json!("complete"))
    );
    let text = report.to_string();
    assert!(report["packets"].as_u64() > Some(0), "{text}");
}

#[test]
fn filters_tell_nothing_of_bytes_that_are_not_to_be_seen() {
    let served = Served::new();
    served.wait_for_packets(2000);
    let short = served.new_token("short", &[Role::Packets], |line| line.snaplen = Some(42));
    let hits = |token: &str, filter: &str| {
        let test = request("POST", "/v1/rules/test").json(&json!({ "filter": filter }));
        let tested = served.ask(&test.token(token)).done(200);
        tested["hits"].as_u64().unwrap()
    };
    let of_header = "udp[6:2] >= 0";
    let of_payload = "udp[8] >= 0";
    for token in [served.token("view"), served.token("trigger"), &short] {
        assert!(hits(token, of_header) > 0);
        assert_eq!(hits(token, of_payload), 0);
    }
    assert!(hits(served.token("packets"), of_payload) > 0);
    let count = |token: &str| {
        let target = "/v1/query?count=true&filter=udp%5B8%5D%3E%3D0";
        served.ask(&get(target).token(token)).done(200)["packets"].clone()
    };
    assert_eq!(count(&short), 0);
    assert!(count(served.token("packets")).as_u64() > Some(0));
}

/// The report of a finished dump.
pub(crate) fn finished(served: &Served, number: u64) -> Value {
    let deadline = std::time::Instant::now() + crate::support::DEADLINE;
    loop {
        let answer = served.ask_unix(&get(&format!("/v1/dumps/{number}")));
        let dump = if answer.status == 200 {
            answer.json()
        } else {
            answer.refused(404);
            Value::Null
        };
        if let Value::Object(mut report) = dump["report"].clone() {
            for name in ["number", "stored"] {
                report.insert(name.to_owned(), dump[name].clone());
            }
            return report.into();
        }
        assert!(
            std::time::Instant::now() < deadline,
            "the dump is not finished"
        );
    }
}
