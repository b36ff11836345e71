//! A recorder with an API, and a client that sends raw bytes.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::PathBuf,
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::{Duration, Instant},
};

use retroscope_api::{
    Address, BoundApi, Config, Dissector, Notifier, Page, Role, Server, Services, TlsFiles,
    TokenLine,
    doctor::{Doctor, DoctorReport, Finding},
};
use retroscope_capture::Source;
use retroscope_generate::GeneratorSource;
use retroscope_recorder::{Config as RecorderConfig, Recorder, RecorderHandle, SystemClock};
use serde_json::Value;
use tempfile::TempDir;

/// Time limit for waits in tests.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);
const TRAFFIC: &str = "generate:flows=10,rate=10kpps";

/// A recorder of generated traffic. Its API listens on TCP and on a unix socket.
pub(crate) struct Served {
    pub(crate) handle: RecorderHandle,
    pub(crate) address: SocketAddr,
    /// The address for metrics and health checks, or else the address of the API.
    pub(crate) metrics: SocketAddr,
    pub(crate) socket: PathBuf,
    pub(crate) tokens: PathBuf,
    of_role: BTreeMap<&'static str, String>,
    pub(crate) said: Arc<Mutex<Vec<String>>>,
    server: Option<Server>,
    recorder: Option<Recorder>,
    folder: TempDir,
}

impl Served {
    pub(crate) fn new() -> Self {
        Self::with_tls(|_| None)
    }

    pub(crate) fn with_tls(tls: impl FnOnce(&TempDir) -> Option<TlsFiles>) -> Self {
        Self::recording(TRAFFIC, tls)
    }

    /// Starts a recorder. `configure` changes the configuration of its API.
    pub(crate) fn with(configure: impl FnOnce(&mut Config)) -> Self {
        Self::start(TRAFFIC, |config, _| configure(config))
    }

    pub(crate) fn recording(traffic: &str, tls: impl FnOnce(&TempDir) -> Option<TlsFiles>) -> Self {
        Self::start(traffic, |config, folder| config.tls = tls(folder))
    }

    fn start(traffic: &str, configure: impl FnOnce(&mut Config, &TempDir)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let tokens = folder.path().join("tokens");
        let socket = folder.path().join("socket");
        let of_role = Role::ALL.map(|role| {
            let (line, token) = TokenLine::random(role.as_str(), vec![role]).unwrap();
            line.append_to(&tokens).unwrap();
            (role.as_str(), token)
        });
        let said = Arc::new(Mutex::new(Vec::new()));
        let hearing = Arc::clone(&said);
        let say = Notifier(Arc::new(move |text: &str| {
            hearing.lock().unwrap().push(text.to_owned())
        }));
        let mut config = Config {
            addresses: vec![
                Address::Tcp("127.0.0.1:0".parse().unwrap()),
                Address::Unix(socket.clone()),
            ],
            metrics: vec![Address::Tcp("127.0.0.1:0".parse().unwrap())],
            hosts: vec!["tap.example".to_owned()],
            tokens: Some(tokens.clone()),
            tls: None,
            page: Some(Page {
                idle: Duration::from_secs(1800),
                lifetime: Duration::from_secs(86_400),
            }),
            owner: (None, None),
        };
        configure(&mut config, &folder);
        let bound = BoundApi::new(&config, &say).unwrap();
        let addresses = bound.tcp_addresses();
        // Without an address for metrics, the last address is that of the API.
        let (address, metrics) = (addresses[0], addresses[addresses.len() - 1]);
        let config = RecorderConfig {
            ring_bytes: 32 << 20,
            triggers: vec!["tcp port 9".to_owned()],
            past: Duration::from_secs(1),
            future: Duration::from_millis(50),
            manual_dump: "not ip6 proto 99".to_owned(),
            directory: Some(folder.path().join("dumps")),
            ..RecorderConfig::default()
        };
        let sources = || -> Result<Vec<Box<dyn Source>>, _> {
            Ok(vec![Box::new(GeneratorSource::parse(traffic)?)])
        };
        let mut opened = || Ok(());
        let recorder = Recorder::start(
            &config,
            &sources,
            &[],
            Arc::new(SystemClock),
            None,
            &mut opened,
        );
        let recorder = recorder.unwrap();
        let handle = recorder.handle();
        let stop = Arc::<AtomicBool>::default();
        let services = services(&folder);
        let server = Server::start(bound, handle.clone(), stop, services, || Ok(())).unwrap();
        Self {
            handle,
            address,
            metrics,
            socket,
            tokens,
            of_role: of_role.into_iter().collect(),
            said,
            server: Some(server),
            recorder: Some(recorder),
            folder,
        }
    }

    pub(crate) fn token(&self, role: &str) -> &str {
        &self.of_role[role]
    }

    /// Adds a token to the file, and waits until the API accepts the token. Does not wait for a
    /// token with an expiry time.
    pub(crate) fn new_token(
        &self,
        name: &str,
        roles: &[Role],
        more: impl FnOnce(&mut TokenLine),
    ) -> String {
        let (mut line, token) = TokenLine::random(name, roles.to_vec()).unwrap();
        more(&mut line);
        line.append_to(&self.tokens).unwrap();
        // The recorder checks the file once a second.
        let deadline = Instant::now() + DEADLINE;
        let ask = || self.ask(&get("/v1/openapi.json").token(&token)).status;
        while ask() == 401 && line.expires.is_none() {
            assert!(Instant::now() < deadline, "the token is not taken up");
            std::thread::yield_now();
        }
        token
    }

    pub(crate) fn revoke(&self, name: &str) {
        let text = std::fs::read_to_string(&self.tokens).unwrap();
        let start = format!("{{\"name\":\"{name}\"");
        let (gone, left): (Vec<_>, Vec<_>) = text
            .split_inclusive('\n')
            .partition(|line| line.starts_with(&start));
        assert_eq!(gone.len(), 1, "{text}");
        std::fs::write(&self.tokens, left.concat()).unwrap();
    }

    /// Waits until a dissector has started. The dissector never answers.
    pub(crate) fn wait_for_dissector(&self) {
        let deadline = Instant::now() + DEADLINE;
        while !self.folder.path().join("dissects").exists() {
            assert!(Instant::now() < deadline, "no dissector starts");
            std::thread::yield_now();
        }
    }

    pub(crate) fn ask(&self, request: &Request) -> Answer {
        let mut stream = self.connect();
        send(&mut stream, &request.bytes(&self.address.to_string()));
        Answer::read(&mut stream)
    }

    /// Sends a request over the unix socket, as root or the recorder's user.
    pub(crate) fn ask_unix(&self, request: &Request) -> Answer {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        send(&mut stream, &request.bytes("localhost"));
        Answer::read(&mut stream)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    pub(crate) fn wait_for_packets(&self, count: u64) {
        let deadline = Instant::now() + DEADLINE;
        while self.handle.status().unwrap().stored < count {
            assert!(Instant::now() < deadline, "nothing is stored");
            std::thread::yield_now();
        }
    }

    pub(crate) fn refresh(&self) -> bool {
        self.server.as_ref().unwrap().refresh()
    }

    /// Ends the recording, and then the server. Returns the number of stored packets.
    pub(crate) fn end(&mut self) -> u64 {
        self.handle.stop();
        let summary = self.recorder.take().unwrap().join();
        assert!(!summary.panicked);
        self.server.take().unwrap().end(|| false);
        assert!(!self.socket.exists(), "the socket is removed");
        summary.stored
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(recorder) = self.recorder.take() {
            self.handle.abort();
            drop(recorder.join());
        }
    }
}

/// Services of a machine with one interface, and a dissector that never answers.
fn services(folder: &TempDir) -> Services {
    let launcher = folder.path().join("launcher");
    let begun = folder.path().join("dissects");
    let script = format!(
        "#!/bin/sh\n: >'{}'\nexec /bin/sleep 1000\n",
        begun.display()
    );
    std::fs::write(&launcher, script).unwrap();
    std::fs::set_permissions(&launcher, PermissionsExt::from_mode(0o700)).unwrap();
    Services {
        reload: None,
        dissector: Dissector::new(launcher),
        doctor: Doctor(Arc::new(|wanted| match wanted {
            [] => {
                let finding = Finding::warn("state", "is down", "ip link set eth0 up").on("eth0");
                Ok(DoctorReport::new(vec![finding], &["clock", "state"]))
            }
            [name, ..] => Err(format!("there is no interface {name}")),
        })),
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    /// The header `Host`. `None`: the argument of [`Self::bytes`].
    pub(crate) host: Option<String>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

pub(crate) fn request(method: &str, target: &str) -> Request {
    Request {
        method: method.to_owned(),
        target: target.to_owned(),
        host: None,
        headers: Vec::new(),
        body: Vec::new(),
    }
}

pub(crate) fn get(target: &str) -> Request {
    request("GET", target)
}

impl Request {
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn host(mut self, host: &str) -> Self {
        self.host = Some(host.to_owned());
        self
    }

    pub(crate) fn token(self, token: &str) -> Self {
        self.header("Authorization", &format!("Bearer {token}"))
    }

    pub(crate) fn json(mut self, body: &Value) -> Self {
        self.body = body.to_string().into_bytes();
        self.header("Content-Type", "application/json")
    }

    pub(crate) fn bytes(&self, host: &str) -> Vec<u8> {
        let host = self.host.as_deref().unwrap_or(host);
        let mut head = format!(
            "{} {} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n",
            self.method, self.target
        );
        for (name, value) in &self.headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        if !self.body.is_empty() {
            let _ = write!(head, "Content-Length: {}\r\n", self.body.len());
        }
        head.push_str("\r\n");
        [head.into_bytes(), self.body.clone()].concat()
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
    /// Whether the answer ended as HTTP demands.
    pub(crate) is_whole: bool,
}

impl Answer {
    pub(crate) fn read(stream: &mut impl Read) -> Self {
        let mut bytes = Vec::new();
        // A server that refuses a body may reset the connection after its answer.
        let _ = stream.read_to_end(&mut bytes);
        Self::parse(&bytes)
    }

    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no head: {:?}", String::from_utf8_lossy(bytes)));
        let head = std::str::from_utf8(&bytes[..end]).unwrap();
        let (first, rest) = head.split_once("\r\n").unwrap_or((head, ""));
        let status = first.split(' ').nth(1).unwrap().parse().unwrap();
        let headers = fields(rest);
        let mut body = &bytes[end + 4..];
        let (mut whole, mut is_whole) = (Vec::new(), true);
        if headers
            .get("transfer-encoding")
            .is_some_and(|it| it == "chunked")
        {
            is_whole = false;
            while let Some(end) = body.windows(2).position(|window| window == b"\r\n") {
                let length = std::str::from_utf8(&body[..end]).unwrap();
                let length = usize::from_str_radix(length, 16).unwrap();
                body = &body[end + 2..];
                if length == 0 {
                    is_whole = body.ends_with(b"\r\n");
                    break;
                }
                let Some(data) = body.get(..length) else {
                    break;
                };
                whole.extend_from_slice(data);
                body = body.get(length + 2..).unwrap_or_default();
            }
        } else {
            whole = body.to_vec();
            if let Some(length) = headers.get("content-length") {
                is_whole = length.parse() == Ok(whole.len());
            }
        }
        Self {
            status,
            headers,
            body: whole,
            is_whole,
        }
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Asserts that the answer is a refusal with this status. Returns the reason.
    pub(crate) fn refused(&self, status: u16) -> String {
        assert_eq!(
            self.status,
            status,
            "{:?}",
            String::from_utf8_lossy(&self.body)
        );
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(self.headers["cache-control"], "no-store");
        let problem = self.json();
        let kind = problem["type"].as_str().unwrap();
        assert!(kind.starts_with("urn:retroscope:problem:"), "{kind}");
        assert_eq!(problem["status"], status);
        assert!(problem["title"].is_string());
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.len() > 10, "{detail}");
        detail.to_owned()
    }

    /// Asserts the status of the answer. Returns the JSON body, or null if the body is empty.
    pub(crate) fn done(&self, status: u16) -> Value {
        assert_eq!(
            self.status,
            status,
            "{:?}",
            String::from_utf8_lossy(&self.body)
        );
        if self.body.is_empty() {
            Value::Null
        } else {
            self.json()
        }
    }
}

/// The recorder may refuse a large body, and close the connection before it has read the body.
fn send(stream: &mut impl Write, request: &[u8]) {
    match stream.write_all(request) {
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
            ) => {}
        sent => sent.unwrap(),
    }
}

fn fields(lines: &str) -> BTreeMap<String, String> {
    let lines = lines.split("\r\n").filter_map(|line| line.split_once(':'));
    lines
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect()
}
