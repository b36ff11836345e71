//! The page, its sessions, and links that log in.

use std::{
    io::{Read, Write},
    time::{Duration, Instant},
};

use retroscope_api::{Page, Role};
use serde_json::{Value, json};

use crate::{
    audit::next,
    support::{Answer, DEADLINE, Request, Served, get, request},
};

fn login(token: &str) -> Request {
    request("POST", "/v1/session").token(token)
}

fn redeem(code: &str) -> Request {
    request("POST", "/v1/session").json(&json!({ "link": code }))
}

fn cookie(answer: &Answer) -> String {
    answer.done(200);
    let cookie = &answer.headers["set-cookie"];
    cookie.split(';').next().unwrap().to_owned()
}

fn logged_in(served: &Served, token: &str) -> String {
    cookie(&served.ask(&login(token)))
}

/// Sends a request with `Cookie` and `Origin`, as the recorder's page does.
fn of_page(served: &Served, request: Request, cookie: &str) -> Answer {
    let origin = format!("http://{}", served.address);
    served.ask(&request.header("Cookie", cookie).header("Origin", &origin))
}

fn status(served: &Served, cookie: &str) -> u16 {
    of_page(served, get("/v1/status"), cookie).status
}

/// Makes a link at the unix socket. Returns its code.
fn link(served: &Served) -> String {
    let link = served.ask_unix(&request("POST", "/v1/links")).done(201);
    let url = link["url"].as_str().unwrap();
    let start = format!("http://{}/#link=", served.address);
    url.strip_prefix(&start).unwrap().to_owned()
}

#[test]
fn a_token_is_exchanged_for_a_session_with_its_roles() {
    let served = Served::new();
    let nobody = served.ask(&get("/v1/session")).done(200);
    assert_eq!(nobody, json!({ "caller": null, "tokens": true }));
    let answer = served.ask(&login(served.token("view")));
    let session = answer.done(200);
    let set = &answer.headers["set-cookie"];
    let (pair, flags) = set.split_once("; ").unwrap();
    let (name, value) = pair.split_once('=').unwrap();
    assert_eq!(name, format!("retroscope-{}", served.address.port()));
    assert!(value.len() == 64 && !served.token("view").contains(value));
    // Without `Path` the cookie is for `v1/` below the prefix that the browser sees.
    assert_eq!(flags, "HttpOnly; SameSite=Strict");
    assert_eq!(
        (
            &session["caller"],
            &session["roles"],
            &session["restricted"]
        ),
        (&json!("view"), &json!(["view"]), &Value::Null)
    );
    let may_not = session["may_not"].as_object().unwrap();
    assert_eq!(may_not["putPin"], "needs the role 'admin'");
    assert!(!may_not.contains_key("getStatus") && may_not.contains_key("queryPackets"));
    assert_eq!(session["recording"].as_str().unwrap().len(), 36);
    let read = of_page(&served, get("/v1/session"), pair).done(200);
    assert_eq!(read["may_not"], session["may_not"]);
    assert!(read["expires"].is_string());
    assert_eq!(status(&served, pair), 200);
    of_page(&served, get("/v1/query?last=1ms"), pair).refused(403);
    let pin = || request("PUT", "/v1/pins/p").json(&json!({}));
    of_page(&served, pin(), pair).refused(403);
    let admin = logged_in(&served, served.token("admin"));
    of_page(&served, pin(), &admin).done(201);
    // Other cookies and an old value of the same name do not matter.
    let both = format!("a=b; {name}=00; {admin}; c");
    assert_eq!(status(&served, &both), 200);
    let udp = served.new_token("udp", &[Role::Packets], |line| {
        line.filter = Some("udp".to_owned());
        line.snaplen = Some(96);
    });
    let limited = logged_in(&served, &udp);
    let session = of_page(&served, get("/v1/session"), &limited).done(200);
    assert_eq!(
        session["restricted"],
        json!({ "filter": "udp", "snaplen": 96 })
    );
    let why = session["may_not"]["listDumps"].as_str().unwrap();
    assert!(why.contains("restricted"), "{why}");
    of_page(&served, get("/v1/dumps"), &limited).refused(403);
}

/// Browsers attach the cookie also to requests of other pages of the host.
#[test]
fn only_pages_of_the_recorder_use_its_sessions() {
    let served = Served::new();
    let cookie = logged_in(&served, served.token("admin"));
    let with = |request: Request| served.ask(&request.header("Cookie", &cookie));
    let site = |request: Request, site: &str| with(request.header("Sec-Fetch-Site", site)).status;
    let change = || request("PUT", "/v1/when-full").json(&json!({ "mode": "record" }));
    assert_eq!(with(get("/v1/status")).status, 200);
    with(change()).refused(403);
    for (name, may_read, may_change) in [
        ("same-origin", 200, 200),
        ("none", 200, 403),
        ("same-site", 403, 403),
        ("cross-site", 403, 403),
    ] {
        assert_eq!(site(get("/v1/status"), name), may_read, "{name}");
        assert_eq!(site(change(), name), may_change, "{name}");
    }
    assert_eq!(of_page(&served, change(), &cookie).status, 200);
    let other = change().header("Origin", "http://127.0.0.1:1");
    with(other).refused(403);
    with(get("/v1/status").host("evil.example")).refused(421);
    // A request with a token instead of the cookie needs no `Origin`.
    let by_token = change().token(served.token("admin"));
    assert_eq!(served.ask(&by_token).status, 200);
}

#[test]
fn a_session_ends_with_its_token() {
    let served = Served::new();
    let token = served.new_token("ops", &[Role::View], |_| {});
    let cookie = logged_in(&served, &token);
    let mut events = served.connect();
    let follow = get("/v1/events").header("Cookie", &cookie);
    events
        .write_all(&follow.bytes(&served.address.to_string()))
        .unwrap();
    let line = std::fs::read_to_string(&served.tokens).unwrap();
    let line = line.lines().last().unwrap().to_owned();
    served.revoke("ops");
    let mut told = String::new();
    events.read_to_string(&mut told).unwrap();
    assert!(
        told.contains("event: end") && told.contains("token 'ops' was removed"),
        "{told}"
    );
    of_page(&served, get("/v1/status"), &cookie).refused(401);
    // The token is valid again, but the session that ended before stays ended.
    let mut text = std::fs::read_to_string(&served.tokens).unwrap();
    text += &format!("{line}\n");
    std::fs::write(&served.tokens, text).unwrap();
    served.refresh();
    let deadline = Instant::now() + DEADLINE;
    while served.ask(&get("/v1/status").token(&token)).status != 200 {
        assert!(Instant::now() < deadline, "the token is not read");
    }
    of_page(&served, get("/v1/status"), &cookie).refused(401);
    let nobody = of_page(&served, get("/v1/session"), &cookie).done(200);
    assert_eq!(nobody["caller"], Value::Null);
}

#[test]
fn a_session_ends_by_logout_and_all_end_by_an_admin() {
    let served = Served::new();
    let mut listener = served.handle.subscribe(None);
    let [first, second] = [(); 2].map(|()| logged_in(&served, served.token("view")));
    let out = of_page(&served, request("DELETE", "/v1/session"), &first);
    assert_eq!(out.status, 204);
    assert!(out.headers["set-cookie"].ends_with("=; Max-Age=0"));
    assert_eq!(
        (status(&served, &first), status(&served, &second)),
        (401, 200)
    );
    let by_token = request("DELETE", "/v1/session").token(served.token("view"));
    served.ask(&by_token).refused(404);
    of_page(&served, request("DELETE", "/v1/sessions"), &second).refused(403);
    let ended = served
        .ask_unix(&request("DELETE", "/v1/sessions"))
        .done(200);
    assert_eq!(ended, json!({ "ended": 1 }));
    assert_eq!(status(&served, &second), 401);
    let told = [(); 4].map(|()| next(&mut listener, "changed"));
    let actions = told
        .each_ref()
        .map(|change| change["action"].as_str().unwrap());
    assert_eq!(actions, ["log-in", "log-in", "log-out", "log-out"]);
    assert_eq!(told[0]["caller"], "view");
    assert!(
        told[0]["address"]
            .as_str()
            .unwrap()
            .starts_with("127.0.0.1:")
    );
    assert_eq!(told[3]["target"], "all");
}

/// The maximum idle time is zero here; the unit tests in `sessions.rs` test the time.
#[test]
fn an_idle_session_ends() {
    let served = Served::with(|config| {
        config.page = Some(Page {
            idle: Duration::ZERO,
            lifetime: Duration::from_secs(86_400),
        });
    });
    let cookie = logged_in(&served, served.token("view"));
    let why = of_page(&served, get("/v1/status"), &cookie).refused(401);
    assert!(why.contains("log in again"), "{why}");
    let nobody = of_page(&served, get("/v1/session"), &cookie).done(200);
    assert_eq!(nobody["caller"], Value::Null);
}

#[test]
fn a_link_of_the_unix_socket_logs_in_once() {
    let served = Served::with(|config| {
        config.tokens = None;
        config.metrics.clear();
    });
    let nobody = served.ask(&get("/v1/session")).done(200);
    assert_eq!(nobody["tokens"], false);
    let mut listener = served.handle.subscribe(None);
    let code = link(&served);
    assert_eq!(next(&mut listener, "changed")["action"], "make-link");
    let session = served.ask(&redeem(&code));
    let cookie = cookie(&session);
    let session = session.json();
    let caller = session["caller"].as_str().unwrap();
    assert!(
        caller.starts_with("uid ") && !caller.contains("pid"),
        "{caller}"
    );
    assert_eq!(
        (&session["roles"], &session["may_not"]),
        (&json!(["admin"]), &json!({}))
    );
    let change = next(&mut listener, "changed");
    assert_eq!(
        (&change["action"], &change["caller"]),
        (&json!("log-in"), &session["caller"])
    );
    let again = served.ask(&redeem(&code)).refused(401);
    assert!(again.contains("retroscope open"), "{again}");
    let refused = next(&mut listener, "refused");
    let expected = json!({ "address": "127.0.0.1", "status": 401, "reason": again, "count": 1 });
    assert_eq!(refused, expected);
    served.ask(&redeem("wrong")).refused(401);
    served.ask(&get("/v1/status").token("any")).refused(401);
    let change = request("PUT", "/v1/when-full").json(&json!({ "mode": "record" }));
    assert_eq!(of_page(&served, change, &cookie).status, 200);
    let another = of_page(&served, request("POST", "/v1/links"), &cookie);
    assert!(another.refused(403).contains("logout"));
}

/// The link has the roles of the token, and the address at which the client asked for the link.
#[test]
fn a_link_of_a_token_is_of_this_token() {
    let served = Served::new();
    let make = |role: &str| served.ask(&request("POST", "/v1/links").token(served.token(role)));
    make("metrics").refused(403);
    let link = make("view").done(201);
    let (base, code) = link["url"].as_str().unwrap().split_once("#link=").unwrap();
    assert_eq!(base, format!("http://{}/", served.address));
    let session = served.ask(&redeem(code)).done(200);
    assert_eq!(
        (&session["caller"], &session["roles"]),
        (&json!("view"), &json!(["view"]))
    );
    let late = make("view").done(201);
    served.revoke("view");
    let deadline = Instant::now() + DEADLINE;
    while served
        .ask(&get("/v1/status").token(served.token("view")))
        .status
        != 401
    {
        assert!(Instant::now() < deadline, "the token is still valid");
    }
    let code = late["url"]
        .as_str()
        .unwrap()
        .split_once("#link=")
        .unwrap()
        .1;
    served.ask(&redeem(code)).refused(401);
}

#[test]
fn failed_logins_are_limited_and_reported() {
    let served = Served::new();
    let mut listener = served.handle.subscribe(None);
    for number in 0..10 {
        let wrong = format!("retroscope_{number:064}");
        served.ask(&login(&wrong)).refused(401);
    }
    let limited = served.ask(&login(served.token("view")));
    assert!(limited.refused(429).contains("failed logins"));
    let again: u64 = limited.headers["retry-after"].parse().unwrap();
    assert!((1..=61).contains(&again), "{again}");
    served.ask(&redeem("any")).refused(429);
    // The limit applies to logins, not to requests with a token.
    assert_eq!(
        served
            .ask(&get("/v1/status").token(served.token("view")))
            .status,
        200
    );
    let refused = next(&mut listener, "refused");
    assert_eq!(
        (&refused["address"], &refused["status"]),
        (&json!("127.0.0.1"), &json!(401))
    );
}

#[test]
fn wrong_logins_are_refused() {
    let served = Served::new();
    served.ask(&request("POST", "/v1/session")).refused(400);
    served
        .ask(&request("POST", "/v1/session").json(&json!({ "code": "x" })))
        .refused(400);
    served.ask_unix(&redeem("x")).refused(400);
    let foreign = login(served.token("view")).header("Origin", "http://evil.example");
    served.ask(&foreign).refused(403);
}

#[test]
fn the_page_is_served_with_a_strict_policy() {
    let served = Served::new();
    let page = served.ask(&get("/"));
    assert_eq!(page.status, 200);
    assert!(page.text().starts_with("<!doctype html>"));
    let policy = &page.headers["content-security-policy"];
    assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"));
    assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"));
    let of_api = served.ask(&get("/v1/session"));
    assert_eq!(of_api.headers["cache-control"], "no-store");
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
        ("content-security-policy", policy),
    ] {
        assert_eq!(page.headers[name], value);
        assert_eq!(of_api.headers[name], value);
    }
    assert_eq!(page.headers["cache-control"], "no-cache");
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/app.js", "text/javascript; charset=utf-8"),
        ("/app.css", "text/css; charset=utf-8"),
        ("/icon.svg", "image/svg+xml"),
    ] {
        let plain = served.ask(&get(path));
        assert_eq!(plain.headers["content-type"], kind);
        let gzip = served.ask(&get(path).header("Accept-Encoding", "gzip, br"));
        assert_eq!(gzip.headers["content-encoding"], "gzip");
        let mut unpacked = Vec::new();
        let mut decoder = flate2::read::GzDecoder::new(&gzip.body[..]);
        decoder.read_to_end(&mut unpacked).unwrap();
        assert_eq!(unpacked, plain.body, "{path}");
        let tag = &gzip.headers["etag"];
        assert_ne!(*tag, plain.headers["etag"]);
        let known = get(path)
            .header("Accept-Encoding", "gzip")
            .header("If-None-Match", tag);
        let known = served.ask(&known);
        assert_eq!((known.status, known.body.len()), (304, 0));
        assert_eq!(known.headers["etag"], *tag);
        let head = served.ask(&request("HEAD", path));
        assert_eq!((head.status, head.body.len()), (200, 0));
    }
    let post = served.ask(&request("POST", "/").token(served.token("view")));
    post.refused(405);
    assert_eq!(post.headers["allow"], "GET, HEAD");
    served.ask(&get("/").host("evil.example")).refused(421);
    served.ask(&get("/app.js.map")).refused(401);
    let mut metrics = std::net::TcpStream::connect(served.metrics).unwrap();
    let bytes = get("/").bytes(&served.metrics.to_string());
    metrics.write_all(&bytes).unwrap();
    Answer::read(&mut metrics).refused(401);
}

#[test]
fn without_the_page_there_is_only_the_api() {
    let served = Served::with(|config| config.page = None);
    served.ask(&get("/")).refused(401);
    served.ask_unix(&get("/")).refused(404);
    let why = served.ask(&login(served.token("admin"))).refused(404);
    assert!(why.contains("api.page"), "{why}");
    served.ask_unix(&request("POST", "/v1/links")).refused(404);
    let with_cookie = get("/v1/status").header("Cookie", "retroscope-80=00");
    served
        .ask(&with_cookie.token(served.token("view")))
        .done(200);
}

/// The proxy ends TLS, removes a path prefix and keeps `Host`. The browser's origin is https.
#[test]
fn the_page_works_behind_a_proxy_with_tls_and_a_prefix() {
    let served = Served::new();
    let by_proxy = |request: Request| {
        let request = request.host("tap.example:8443");
        served.ask(&request.header("Origin", "https://tap.example:8443"))
    };
    let answer = by_proxy(login(served.token("admin")));
    let set = &answer.headers["set-cookie"];
    assert!(set.starts_with("retroscope-8443="), "{set}");
    assert!(
        set.ends_with("; HttpOnly; SameSite=Strict; Secure"),
        "{set}"
    );
    let cookie = cookie(&answer);
    let change = request("PUT", "/v1/when-full").json(&json!({ "mode": "record" }));
    let change = change.header("Cookie", &cookie);
    assert_eq!(by_proxy(change.clone()).status, 200);
    // The name must be one of `api.host`.
    let other = change
        .host("127.0.0.1:8443")
        .header("Origin", "https://127.0.0.1:8443");
    served.ask(&other).refused(403);
    let link = by_proxy(request("POST", "/v1/links").token(served.token("admin"))).done(201);
    let url = link["url"].as_str().unwrap();
    assert!(url.starts_with("https://tap.example:8443/#link="), "{url}");
}

#[test]
fn downloads_of_a_session_are_events_of_its_token() {
    let served = Served::new();
    served.wait_for_packets(1000);
    let mut listener = served.handle.subscribe(None);
    let cookie = logged_in(&served, served.token("packets"));
    let target = "/v1/query?to=2100-01-01T00:00:00Z";
    assert_eq!(of_page(&served, get(target), &cookie).status, 200);
    let export = next(&mut listener, "exported");
    assert_eq!(export["caller"], "packets");
    assert!(export["packets"].as_u64() > Some(0), "{export}");
    assert!(
        export["address"]
            .as_str()
            .unwrap()
            .starts_with("127.0.0.1:")
    );
}
