//! Commands that contact a recorder: selection of the recorder, authentication, and error messages.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    os::unix::{fs::PermissionsExt, net::UnixListener, process::CommandExt as _},
    path::Path,
    process::{Command, Output, Stdio},
    thread,
    time::Instant,
};

use rcgen::{CertificateParams, KeyPair};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    recording::{DEADLINE, Recording, record, run},
    support::{PROGRAM, skip},
};

/// The message of a failed command.
fn failed(code: i32, output: &Output) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(said.starts_with("retroscope: "), "{said}");
    said
}

#[test]
fn where_no_recorder_is_it_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("api");
    let missing = folder.path().join("answer");
    let write = missing.to_str().unwrap();
    for command in [
        &["status"][..],
        &["rules"],
        &["dumps"],
        &["trigger"],
        &["events"],
        &["stop"],
        &["pin", "a"],
        &["unpin", "a"],
        &["when-full", "record"],
        &["query", "-w", write],
    ] {
        let said = failed(1, &run(&socket, command));
        assert!(
            said.contains("No such file") && said.contains("--api unix:PATH"),
            "{said}"
        );
    }
    assert!(!missing.exists(), "nothing was answered");
    drop(UnixListener::bind(&socket).unwrap());
    let said = failed(1, &run(&socket, &["status"]));
    assert!(said.contains("Connection refused"), "{said}");
    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "").unwrap();
    failed(1, &run(&socket, &["status"]));
    let output = record(folder.path(), &[]).output().unwrap();
    assert!(failed(1, &output).contains("is no socket"));
    assert!(socket.is_file());

    let asked = |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.arg("status").args(arguments);
        command
            .env("XDG_RUNTIME_DIR", folder.path())
            .output()
            .unwrap()
    };
    // Without an option, the default is the system's socket or the user's socket.
    let said = failed(1, &asked(&[]));
    assert!(said.contains("/retroscope.sock: No such file"), "{said}");
    let said = failed(1, &asked(&["--url", "http://127.0.0.1:1"]));
    assert!(said.contains("refused"), "{said}");
    let said = failed(1, &asked(&["--url", "http://192.0.2.1:8080"]));
    assert!(said.contains("in clear"), "{said}");
    for wrong in [
        &["--url", "tap.example"][..],
        &["--url", "https://tap.example/v1"],
        &["--url", "http://127.0.0.1:1", "--socket", "x"],
        &["--token-file", "x"],
        &["--buckets"],
        &["--ring-file", "x", "--url", "http://127.0.0.1:1"],
    ] {
        failed(2, &asked(wrong));
    }
}

/// The client reports answers of a server that is no recorder, and of a server that ends during an
/// answer.
#[test]
fn an_answer_that_is_cut_or_foreign_is_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let file = folder.path().join("answer");
    let section = [
        &0x0a0d_0d0a_u32.to_le_bytes()[..],
        &28_u32.to_le_bytes(),
        &0x1a2b_3c4d_u32.to_le_bytes(),
        &[1, 0, 0, 0],
        &[0xff; 8],
        &28_u32.to_le_bytes(),
    ]
    .concat();
    let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    // A whole block, the first 10 bytes of a second block, and no last chunk.
    let cut = [
        &chunked[..],
        b"26\r\n",
        &section,
        &[5, 0, 0, 0, 40, 0, 0, 0, 0, 0],
        b"\r\n",
    ]
    .concat();
    let foreign = [
        &chunked[..],
        b"20\r\n<html>it is not here, go!</html>\r\n0\r\n\r\n",
    ]
    .concat();
    for (answer, told) in [
        (&cut[..], "cut in the middle"),
        (&foreign, "no pcapng"),
        (
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nwhat",
            "status 404",
        ),
        (
            b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",
            "status 503",
        ),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no answer of a recorder"),
        (b"", "closed without an answer"),
    ] {
        let _ = fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let said = thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
                stream.write_all(answer).unwrap();
            });
            failed(1, &run(&socket, &["query", "-w", file.to_str().unwrap()]))
        });
        assert!(said.contains(told), "{said}");
    }
    // After the last answers, which are no pcapng, the file is empty.
    assert_eq!(
        fs::metadata(&file).unwrap().len(),
        0,
        "of the foreign answer nothing"
    );
}

/// stderr names each dump that the recorder read for an answer, and why a dump gave no packets.
/// Text from the network cannot control a terminal.
#[test]
fn dumps_of_an_answer_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let body = json!({
        "from": "A", "to": "B", "packets": 4, "bytes": 240, "verdict": "incomplete",
        "reasons": "incomplete: up to 7 packets missing (evicted); 1 packet from 1 dump, 1 not read whole",
        "dumps": { "read": 1, "failed": 1, "packets": 1, "dumps": [
            { "id": "0001", "from": "F1", "to": "T1", "packets": 1 },
            { "id": "in/0002", "from": "F2", "to": "T2", "packets": 0, "error": "it is deleted\u{1b}[2J" },
        ] },
    });
    let body = body.to_string();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length:";
    let answer = format!("{head} {}\r\n\r\n{body}", body.len());
    for more in [&[][..], &["--json"]] {
        let _ = fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let output = thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
                stream.write_all(answer.as_bytes()).unwrap();
            });
            run(&socket, &[&["query", "--count"], more].concat())
        });
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        let lines = [
            "retroscope: dump 0001 from F1 to T1: 1 packet\n",
            "retroscope: dump in/0002 from F2 to T2: 0 packets: it is deleted?[2J\n",
        ];
        assert_eq!(said, lines.concat());
        let told = String::from_utf8(output.stdout).unwrap();
        let expected = "4 packets from A to B: incomplete: up to 7 packets missing (evicted); 1 packet from 1 dump, 1 not read whole\n";
        assert_eq!(told == expected, more.is_empty(), "{told}");
    }
}

/// Tokens over TCP: no token, a wrong token, a token without the needed role, and a token with the
/// role, by option and by environment.
#[test]
fn over_tcp_a_token_says_who_asks() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    let token = |name: &str, role: &str| token(folder.path(), &tokens, name, role);
    let (view, packets) = (token("v", "view"), token("p", "packets"));
    let mut recording =
        Recording::start(&["--api", "127.0.0.1:0", "--tokens", tokens.to_str().unwrap()]);
    let url = recording.url();
    let ask = |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).args(["--url", &url]);
        command
            .env_remove("RETROSCOPE_TOKEN_FILE")
            .output()
            .unwrap()
    };
    let said = failed(1, &ask(&["status"]));
    assert!(said.contains("a token is asked for"), "{said}");
    let wrong = folder.path().join("wrong");
    fs::write(&wrong, "retroscope_00\n").unwrap();
    let wrong = wrong.to_str().unwrap();
    let said = failed(1, &ask(&["status", "--token-file", wrong]));
    assert!(said.contains("this token is not known"), "{said}");
    let file = folder.path().join("answer");
    let query = ["query", "-w", file.to_str().unwrap(), "--token-file"];
    let said = failed(1, &ask(&[&query[..], &[&view]].concat()));
    assert!(
        said.contains("the role 'packets'") && said.lines().count() == 1,
        "{said}"
    );
    assert!(!file.exists());
    assert!(ask(&["status", "--token-file", &view]).status.success());
    assert!(ask(&["--token-file", &view, "rules", "list"]).status.code() == Some(2));
    assert!(
        ask(&["rules", "--token-file", &view, "list"])
            .status
            .success()
    );
    let output = ask(&[&query[..], &[&packets]].concat());
    assert!(output.status.success() && file.exists(), "{output:?}");
    for (text, told) in [
        ("", "one line"),
        ("a b", "one line"),
        ("\u{7f}", "characters"),
    ] {
        fs::write(wrong, text).unwrap();
        let said = failed(1, &ask(&["status", "--token-file", wrong]));
        assert!(said.contains(told), "{said}");
    }
    let said = failed(1, &ask(&["status", "--token-file", "/nonexistent/x"]));
    assert!(said.contains("No such file"), "{said}");
    let mut by_environment = Command::new(PROGRAM);
    by_environment.args(["status", "--url", &url]);
    by_environment.env("RETROSCOPE_TOKEN_FILE", &view);
    assert!(by_environment.output().unwrap().status.success());
    run(&recording.socket(), &["stop"]);
    assert_eq!(recording.end().0.code(), Some(0));
}

/// `token --out` creates a file that only its owner can read, even with umask 0. The program
/// follows no link, and removes the new file if a later step fails.
#[test]
fn the_file_of_a_token_is_for_its_owner_only() {
    let folder = tempfile::tempdir().unwrap();
    let (tokens, out) = (folder.path().join("tokens"), folder.path().join("out"));
    let make = |name: &str, out: &Path| {
        let script =
            "umask 0; exec \"$0\" token --role view --tokens \"$1\" --name \"$2\" --out \"$3\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, PROGRAM]).arg(&tokens);
        command.arg(name).arg(out).output().unwrap()
    };
    let made = make("a", &out);
    assert!(made.status.success() && made.stdout.is_empty(), "{made:?}");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&out), mode(&tokens)), (0o600, 0o600));
    let secret = fs::read_to_string(&out).unwrap();
    assert!(secret.starts_with("retroscope_") && secret.lines().count() == 1);
    // The tokens file has this name already, so the program removes the new file again.
    let second = folder.path().join("second");
    assert!(failed(1, &make("a", &second)).contains("already"));
    assert!(!second.exists());
    assert!(failed(1, &make("b", &out)).contains("exists"));
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(folder.path().join("target"), &link).unwrap();
    assert!(failed(1, &make("b", &link)).contains("exists"));
    assert!(!folder.path().join("target").exists());
    assert_eq!(fs::read_to_string(&out).unwrap(), secret);
    assert_eq!(fs::read_to_string(&tokens).unwrap().lines().count(), 1);
}

/// If two processes create a token of the same name at once, exactly one succeeds, and the tokens
/// file has one line.
#[test]
fn two_at_once_cannot_have_one_name() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..50 {
        let tokens = folder.path().join(round.to_string());
        let start = || {
            let mut command = Command::new(PROGRAM);
            command.args(["token", "--role", "view", "--name", "a", "--tokens"]);
            command.arg(&tokens).stdout(Stdio::null());
            command.stderr(Stdio::null()).spawn().unwrap()
        };
        let both = [start(), start()];
        let done = both.map(|mut one| one.wait().unwrap().success());
        assert_eq!(done.iter().filter(|it| **it).count(), 1, "round {round}");
        assert_eq!(fs::read_to_string(&tokens).unwrap().lines().count(), 1);
    }
}

/// TLS: no authority, a wrong authority, a file without a certificate, and the right authority
/// without and with a client certificate.
#[test]
fn over_tls_the_authority_has_to_be_known() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    let token = token(folder.path(), &tokens, "v", "view");
    let (certificate, key) = certified(&folder, "server");
    let (own, own_key) = certified(&folder, "client");
    let arguments = [
        "--api",
        "127.0.0.1:0",
        "--set",
        &format!("api.tls-cert={certificate}"),
        "--set",
        &format!("api.tls-key={key}"),
    ];
    let client = [
        "--set",
        &format!("api.tls-client-ca={own}"),
        "--tokens",
        tokens.to_str().unwrap(),
    ];
    let mut recording = Recording::start(&[&arguments[..], &client].concat());
    let url = recording.url();
    assert!(url.starts_with("https://"), "{url}");
    let ask = |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.args(["status", "--url", &url, "--token-file", &token]);
        command.args(arguments).output().unwrap()
    };
    let said = failed(1, &ask(&[]));
    assert!(said.contains("--ca FILE"), "{said}");
    let said = failed(1, &ask(&["--ca", &own]));
    assert!(said.contains("invalid peer certificate"), "{said}");
    let said = failed(1, &ask(&["--ca", &key]));
    assert!(said.contains("no certificate"), "{said}");
    failed(1, &ask(&["--ca", &certificate]));
    failed(2, &ask(&["--ca", &certificate, "--client-cert", &own]));
    let output = ask(&[
        "--ca",
        &certificate,
        "--client-cert",
        &own,
        "--client-key",
        &own_key,
    ]);
    assert!(output.status.success(), "{output:?}");
    run(&recording.socket(), &["stop"]);
    assert_eq!(recording.end().0.code(), Some(0));
}

/// `open --print` gets a link to the page over the unix socket, a new link at each call. `open`
/// fails if the recorder has no TCP address. Without `--tokens` and without the page, `record`
/// refuses a TCP address.
#[test]
fn open_prints_a_link_of_the_page() {
    let mut recording = Recording::start(&["--api", "127.0.0.1:0"]);
    let url = recording.url();
    let link = recording.told(&["open", "--print"]);
    let code = link.strip_prefix(&format!("{url}/#link=")).unwrap();
    assert_eq!(code.trim_end().len(), 64, "{link}");
    assert_ne!(link, recording.told(&["open", "--print"]));
    recording.told(&["stop"]);
    assert_eq!(recording.end().0.code(), Some(0));
    let alone = Recording::start(&[]);
    let said = failed(1, &alone.run(&["open"]));
    assert!(said.contains("--api 127.0.0.1:PORT"), "{said}");
    alone.told(&["stop"]);
    let no_page = ["--api", "127.0.0.1:0", "--set", "api.page=false"];
    let said = failed(
        1,
        &record(tempfile::tempdir().unwrap().path(), &no_page)
            .output()
            .unwrap(),
    );
    assert!(said.contains("--tokens"), "{said}");
}

/// A proxy adds a path prefix, which the recorder does not know. The request and the printed link
/// have the prefix. The program starts the browser with the link, except as root.
#[test]
fn open_starts_the_browser_behind_a_prefix() {
    let folder = tempfile::tempdir().unwrap();
    // Another process writes the files. Otherwise a child of another test could inherit a
    // descriptor that is open for writing, and nobody could run the file (ETXTBSY).
    let prepare = r#"chmod 777 . && cp "$1" retroscope && cat >xdg-open && chmod 755 xdg-open"#;
    let mut prepared = Command::new("sh")
        .args(["-c", prepare, "sh", PROGRAM])
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let opener = b"#!/bin/sh\ncd \"${0%/*}\" && echo \"$1\" >new && mv new opened\n";
    prepared.stdin.take().unwrap().write_all(opener).unwrap();
    assert!(prepared.wait().unwrap().success());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/tap", listener.local_addr().unwrap());
    let proxy = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = BufReader::new(stream.try_clone().unwrap()).lines();
        let first = head.next().unwrap().unwrap();
        while head.next().is_some_and(|line| !line.unwrap().is_empty()) {}
        let body = json!({ "url": "http://tap.example/#link=5f0c", "expires": "" }).to_string();
        let kind = "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length:";
        write!(stream, "{kind} {}\r\n\r\n{body}", body.len()).unwrap();
        first
    });
    let path = format!("{}:{}", folder.path().display(), env::var("PATH").unwrap());
    let mut command = Command::new(folder.path().join("retroscope"));
    if rustix::process::geteuid().is_root() {
        command.uid(64_992).gid(64_992);
    }
    let output = command
        .args(["open", "--url", &url])
        .env("PATH", path)
        .env("DISPLAY", ":9")
        .output()
        .unwrap();
    let link = format!("{url}/#link=5f0c\n");
    assert_eq!(String::from_utf8_lossy(&output.stdout), link, "{output:?}");
    assert_eq!(proxy.join().unwrap(), "POST /tap/v1/links HTTP/1.1");
    let (opened, deadline) = (folder.path().join("opened"), Instant::now() + DEADLINE);
    while !opened.exists() {
        assert!(Instant::now() < deadline, "no browser starts");
        thread::yield_now();
    }
    assert_eq!(fs::read_to_string(opened).unwrap(), link);
}

/// The log and the file of `--eve` have changes and refusals, with the client or its address, and
/// without the secret of a token.
#[test]
fn changes_and_refusals_are_in_the_log_and_in_eve() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    let token = token(folder.path(), &tokens, "ops", "admin");
    let wrong = folder.path().join("wrong");
    fs::write(&wrong, "retroscope_57a7\n").unwrap();
    let eve = folder.path().join("eve.json");
    let arguments = ["--api", "127.0.0.1:0", "--tokens", tokens.to_str().unwrap()];
    let file = ["--eve", eve.to_str().unwrap()];
    let mut recording = Recording::start(&[&arguments[..], &file].concat());
    let url = recording.url();
    let said = recording.lines();
    let ask = |arguments: &[&str], token: &str| {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).args(["--url", &url]);
        command.args(["--token-file", token]).output().unwrap()
    };
    let added = ask(&["rules", "add", "r", "udp port 9"], &token);
    assert!(added.status.success(), "{added:?}");
    let put = said.line("put rule 'r': udp port 9");
    assert!(put.starts_with("ops from 127.0.0.1:"), "{put}");
    for _ in 0..20 {
        failed(1, &ask(&["status"], wrong.to_str().unwrap()));
    }
    let refused = said.line("refused 127.0.0.1 (401)");
    assert!(refused.contains("this token is not known"), "{refused}");
    run(&recording.socket(), &["stop"]);
    said.line("stopped the recording");
    let rest = said.rest();
    assert!(
        !rest.contains("refused") && !rest.contains("57a7"),
        "{rest}"
    );
    assert_eq!(recording.end().0.code(), Some(0));
    let text = fs::read_to_string(&eve).unwrap();
    let of_kind = |kind: &str| text.matches(&format!("\"kind\":\"{kind}\"")).count();
    assert_eq!((of_kind("changed"), of_kind("refused")), (2, 1), "{text}");
    assert!(!text.contains("57a7"));
}

/// At SIGHUP a recorder reads tokens, certificate and key again. If the new pair of certificate and
/// key is broken, the recorder keeps the old pair.
#[test]
fn a_hangup_reads_tokens_and_certificates_again() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    let token = token(folder.path(), &tokens, "v", "view");
    let (certificate, key) = certified(&folder, "server");
    let arguments = ["--api", "127.0.0.1:0", "--tokens", tokens.to_str().unwrap()];
    let tls = [
        "--set",
        &format!("api.tls-cert={certificate}"),
        "--set",
        &format!("api.tls-key={key}"),
    ];
    let mut recording = Recording::start(&[&arguments[..], &tls].concat());
    let url = recording.url();
    let said = recording.lines();
    let pid = Pid::from_child(&recording.child);
    let hang_up = || kill_process(pid, Signal::HUP).unwrap();
    let is_served = |authority: &str| {
        let mut command = Command::new(PROGRAM);
        command.args(["status", "--url", &url, "--token-file", &token]);
        command.args(["--ca", authority]).output().unwrap().status
    };
    assert!(is_served(&certificate).success());
    // Each SIGHUP gives a report about tokens and a report about certificates, in any order. So the
    // test sends SIGHUP once for each report that it waits for.
    hang_up();
    said.line("read 1 tokens");
    hang_up();
    said.line("new connections get");
    let old = folder.path().join("old");
    fs::copy(&certificate, &old).unwrap();
    let (renewed, renewed_key) = certified(&folder, "renewed");
    fs::copy(&renewed, &certificate).unwrap();
    hang_up();
    let why = said.line("the one from before stays");
    assert!(why.contains("api.tls-key"), "{why}");
    assert!(is_served(old.to_str().unwrap()).success());
    fs::copy(&renewed_key, &key).unwrap();
    hang_up();
    said.line("new connections get");
    assert!(is_served(&renewed).success());
    assert_eq!(is_served(old.to_str().unwrap()).code(), Some(1));
}

/// A recorder that became another user reports files that it can no longer read, and continues to
/// serve.
#[test]
fn files_that_the_recorders_user_may_not_read_are_reported() {
    if !rustix::process::geteuid().is_root() {
        return skip("what another user may not read (not root)");
    }
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    let token = token(folder.path(), &tokens, "v", "view");
    let (certificate, key) = certified(&folder, "server");
    for file in [&certificate, &key] {
        fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let arguments = ["--api", "127.0.0.1:0", "--tokens", tokens.to_str().unwrap()];
    let tls = [
        "--set",
        &format!("api.tls-cert={certificate}"),
        "--set",
        &format!("api.tls-key={key}"),
        "-Z",
        "nobody",
    ];
    let mut recording = Recording::start(&[&arguments[..], &tls].concat());
    let url = recording.url();
    let said = recording.lines();
    // Writing the certificate changes the file's timestamp, which makes the recorder read the file
    // again.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let pem = fs::read(&certificate).unwrap();
    fs::write(&certificate, pem).unwrap();
    let why = said.line("the one from before stays");
    assert!(why.contains("Permission denied"), "{why}");
    assert!(why.contains("give the user that this program runs as read permission"));
    let mut command = Command::new(PROGRAM);
    command.args(["status", "--url", &url, "--token-file", &token]);
    let status = command.args(["--ca", &certificate]).output().unwrap();
    assert!(status.status.success(), "{status:?}");
}

/// The address of `api.metrics` serves only metrics, and requires a token.
#[test]
fn metrics_are_served_alone() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    let made = token(folder.path(), &tokens, "prometheus", "metrics");
    let made = fs::read_to_string(made).unwrap();
    let kept = fs::read_to_string(&tokens).unwrap();
    assert!(!kept.contains(made.trim()), "a token is stored hashed");
    let arguments = [
        "--set",
        "api.metrics=127.0.0.1:0",
        "--tokens",
        tokens.to_str().unwrap(),
    ];
    let mut recording = Recording::start(&arguments);
    let url = recording.url();
    let address = url.strip_prefix("http://").unwrap();
    let ask = |path: &str, token: &str| {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = ask("/metrics", made.trim());
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains("retroscope_build_info{"), "{answer}");
    assert!(ask("/metrics", "nonsense").starts_with("HTTP/1.1 401 "));
    assert!(ask("/v1/status", made.trim()).starts_with("HTTP/1.1 404 "));
    run(&recording.socket(), &["stop"]);
    assert_eq!(recording.end().0.code(), Some(0));
}

/// Creates a token with a role. Returns the path of the file that contains the token.
pub(crate) fn token(folder: &Path, tokens: &Path, name: &str, role: &str) -> String {
    let path = folder.join(name);
    let mut command = Command::new(PROGRAM);
    command.args(["token", "--name", name, "--role", role, "--tokens"]);
    let made = command.arg(tokens).arg("--out").arg(&path).status();
    assert!(made.unwrap().success());
    path.to_str().unwrap().to_owned()
}

/// Creates a self-signed certificate for 127.0.0.1 and its key. Returns the paths of both files.
fn certified(folder: &TempDir, name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let parameters = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = parameters.self_signed(&key).unwrap();
    let write = |kind: &str, text: String| {
        let path = folder.path().join(format!("{name}.{kind}"));
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    (
        write("cert", certificate.pem()),
        write("key", key.serialize_pem()),
    )
}
