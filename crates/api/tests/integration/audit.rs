//! Events about changes by clients and about refused clients.

use std::{
    fs::{self, Permissions},
    io::{Write, stderr},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    process::Command,
};

use retroscope_api::{EventBody, Role};
use retroscope_recorder::Subscription;
use serde_json::{Value, json};

use crate::support::{DEADLINE, Request, Served, get, request};

/// The next event of a kind, without its `kind`.
pub(crate) fn next(listener: &mut Subscription, kind: &str) -> Value {
    loop {
        let event = listener.take(DEADLINE).unwrap();
        let (found, body) = EventBody::of(&event);
        if found == kind {
            let mut data = serde_json::to_value(&body).unwrap();
            let named = data.as_object_mut().unwrap().remove("kind");
            assert_eq!(named, Some(kind.into()));
            return data;
        }
    }
}

/// Requests that change something, each with its event, without the caller and the address.
fn changes() -> Vec<(Request, Value)> {
    let all = [
        (
            "PUT",
            "/v1/rules/r",
            json!({ "filter": "udp port 9" }),
            "put-rule",
            "r",
        ),
        (
            "PATCH",
            "/v1/rules/r",
            json!({ "enabled": false }),
            "disable-rule",
            "r",
        ),
        (
            "PATCH",
            "/v1/rules/r",
            json!({ "enabled": true }),
            "enable-rule",
            "r",
        ),
        ("DELETE", "/v1/rules/r", Value::Null, "remove-rule", "r"),
        ("PUT", "/v1/pins/p", json!({}), "pin", "p"),
        ("DELETE", "/v1/pins/p", Value::Null, "unpin", "p"),
        (
            "PUT",
            "/v1/when-full",
            json!({ "mode": "protect" }),
            "set-when-full",
            "protect",
        ),
        (
            "PUT",
            "/v1/when-full",
            json!({ "mode": "record" }),
            "set-when-full",
            "record",
        ),
    ];
    let all = all.into_iter().map(|(method, path, body, action, target)| {
        let request = match body {
            Value::Null => request(method, path),
            body => request(method, path).json(&body),
        };
        let mut expected = json!({ "action": action, "target": target });
        if action == "put-rule" {
            expected["detail"] = "udp port 9".into();
        }
        (request, expected)
    });
    all.chain([(request("POST", "/v1/stop"), json!({ "action": "stop" }))])
        .collect()
}

/// Over TCP, the event of a change also has the address of the caller.
#[test]
fn changes_are_events_with_the_caller() {
    let served = Served::new();
    served.wait_for_packets(100);
    let mut listener = served.handle.subscribe(None);
    let made = changes();
    let (stop, others) = made.split_last().unwrap();
    for (request, expected) in others {
        let status = served.ask_unix(request).status;
        assert!((200..300).contains(&status), "{request:?}: {status}");
        let mut told = next(&mut listener, "changed");
        let who = told.as_object_mut().unwrap().remove("caller").unwrap();
        assert!(who.as_str().unwrap().starts_with("uid "), "{who}");
        assert_eq!(told, *expected);
    }
    for (request, expected) in others.iter().chain([stop]) {
        let by_admin = request.clone().token(served.token("admin"));
        let status = served.ask(&by_admin).status;
        assert!((200..300).contains(&status), "{request:?}: {status}");
        let mut told = next(&mut listener, "changed");
        let told = told.as_object_mut().unwrap();
        assert_eq!(told.remove("caller").unwrap(), "admin");
        let address = told.remove("address").unwrap();
        assert!(address.as_str().unwrap().starts_with("127.0.0.1:"));
        assert_eq!(Value::Object(told.clone()), *expected);
    }
}

/// Refused requests, and requests for the present state, make no `changed` event.
#[test]
fn requests_that_change_nothing_are_no_changes() {
    let served = Served::new();
    let rule = request("PUT", "/v1/rules/same").json(&json!({ "filter": "udp port 9" }));
    served.ask_unix(&rule).done(201);
    let mut listener = served.handle.subscribe(None);
    for (method, path, body) in [
        ("DELETE", "/v1/rules/none", Value::Null),
        ("DELETE", "/v1/pins/none", Value::Null),
        ("PUT", "/v1/rules/r", json!({ "filter": "udp prt 9" })),
        ("PATCH", "/v1/rules/none", json!({ "enabled": true })),
        ("POST", "/v1/reload", Value::Null),
    ] {
        let request = match body {
            Value::Null => request(method, path),
            body => request(method, path).json(&body),
        };
        assert!(served.ask_unix(&request).status >= 400, "{path}");
    }
    served.ask_unix(&rule).done(200);
    let same = request("GET", "/v1/rules/same").token(served.token("admin"));
    let back = request("PUT", "/v1/rules/same").json(&served.ask(&same).done(200));
    served.ask(&back.token(served.token("admin"))).done(200);
    let enable = request("PATCH", "/v1/rules/same").json(&json!({ "enabled": true }));
    served.ask_unix(&enable).done(200);
    let mode = served.ask_unix(&get("/v1/when-full")).done(200);
    served
        .ask_unix(&request("PUT", "/v1/when-full").json(&mode))
        .done(200);
    served.handle.tell_notice("behind".to_owned());
    loop {
        match EventBody::of(&listener.take(DEADLINE).unwrap()) {
            ("notice", EventBody::Notice { text: "behind" }) => break,
            (kind, _) => assert_ne!(kind, "changed"),
        }
    }
}

/// A flood of unknown tokens does not hide the refusal of a known token. No `refused` event
/// contains an unknown token.
#[test]
fn refused_logins_are_events_and_a_flood_is_few() {
    let served = Served::new();
    let expired = served.new_token("late", &[Role::Admin], |line| {
        line.expires = Some("2026-01-01T00:00:00Z".parse().unwrap());
    });
    // If the later token is valid, the expired token was read too.
    served.new_token("later", &[Role::View], |_| {});
    let first = served.handle.subscribe(None).cursor();
    for number in 0..200 {
        let wrong = format!("retroscope_{number:064}");
        served.ask(&get("/v1/status").token(&wrong)).refused(401);
    }
    served.ask(&get("/v1/status").token(&expired)).refused(401);
    let protect = request("PUT", "/v1/when-full").json(&json!({ "mode": "protect" }));
    let view = protect.token(served.token("view"));
    served.ask(&view).refused(403);
    served.ask(&view).refused(403);
    served.handle.tell_notice("behind".to_owned());
    let mut listener = served.handle.subscribe(Some(first));
    let mut refused = Vec::new();
    loop {
        let event = listener.take(DEADLINE).unwrap();
        match EventBody::of(&event) {
            ("notice", EventBody::Notice { text: "behind" }) => break,
            ("refused", body) => refused.push(serde_json::to_value(&body).unwrap()),
            _ => {}
        }
    }
    let told = Value::from(refused);
    assert!(!told.to_string().contains("retroscope_0"), "{told}");
    let known = |of: &Value| {
        (
            of["caller"].clone(),
            of["status"].clone(),
            of["count"].clone(),
        )
    };
    let all: Vec<_> = told.as_array().unwrap().iter().map(known).collect();
    let late = ("late".into(), 401.into(), 1.into());
    let view = ("view".into(), 403.into(), 1.into());
    let unknown: Vec<_> = all.iter().filter(|(who, ..)| who.is_null()).collect();
    assert!(unknown.len() <= 1, "{told}");
    assert!(all.contains(&late) && all.contains(&view), "{told}");
    assert_eq!(all.len() - unknown.len(), 2, "{told}");
    assert!(
        told.as_array()
            .unwrap()
            .iter()
            .all(|of| of["address"] == "127.0.0.1")
    );
}

/// The event has the ID of the refused user, who is not in the socket's group.
#[test]
fn a_refused_user_of_the_unix_socket_is_an_event() {
    if !rustix::process::geteuid().is_root() || Command::new("curl").arg("-V").output().is_err() {
        let _ = writeln!(
            stderr(),
            "SKIP: a user of the unix socket (not root, or no curl)"
        );
        return;
    }
    let served = Served::new();
    let folder = served.socket.parent().unwrap();
    for (path, mode) in [(folder, 0o755), (&served.socket, 0o666)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let mut listener = served.handle.subscribe(None);
    let mut curl = Command::new("curl");
    curl.args(["-s", "--unix-socket"]).arg(&served.socket);
    curl.arg("http://localhost/v1/status")
        .uid(12_345)
        .gid(12_345);
    let answer = curl.output().unwrap();
    let refused = next(&mut listener, "refused");
    let text = String::from_utf8_lossy(&answer.stdout);
    assert!(text.contains("socket's group"), "{answer:?}");
    let reason = refused["reason"].as_str().unwrap();
    assert!(reason.contains("socket's group"), "{refused}");
    let expected = json!({ "caller": "uid 12345", "status": 403, "reason": reason, "count": 1 });
    assert_eq!(refused, expected);
}
