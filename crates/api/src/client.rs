//! A blocking client of the API, for `retroscope query` and other commands. Each request has a
//! separate connection.

mod endpoint;
mod tls;

use std::{fmt, io, path::PathBuf, sync::Arc, time::Duration};

use axum::body::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    Request, Response,
    body::Incoming,
    client::conn::http1::{self, SendRequest},
    header::{self, HeaderName, HeaderValue},
};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    runtime::{Builder, Runtime},
    time::timeout,
};
use tokio_rustls::{TlsConnector, rustls::ClientConfig as RustlsConfig};

pub use self::endpoint::{Endpoint, SOCKET, Url, default_socket, target};
pub use hyper::Method;

/// Time limit for making a connection, TLS included.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// Time limit for silence before and within an answer.
const SILENCE: Duration = Duration::from_secs(60);
/// Like [`SILENCE`], for an answer that needs a search of the ring or of dumps.
const SEARCH_WAIT: Duration = Duration::from_secs(3600);
/// Interval at which a caller that waits for data can do other work.
const POLL_PERIOD: Duration = Duration::from_millis(100);
/// Maximum number of bytes of an answer that is kept in memory as a whole.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// The recorder to connect to, and the credentials.
#[derive(Clone)]
pub struct ClientConfig {
    /// The recorder's address.
    pub endpoint: Endpoint,
    /// The token, which a unix socket does not need.
    pub token: Option<String>,
    /// A file of the authorities (PEM) for the server's certificate; `None`: the system's
    /// authorities.
    pub authorities: Option<PathBuf>,
    /// The client's certificate and its key (PEM), if the server demands a certificate.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

impl fmt::Debug for ClientConfig {
    /// Omits the token, which must not get into a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            endpoint,
            token,
            authorities,
            certificate,
        } = self;
        f.debug_struct("ClientConfig")
            .field("endpoint", endpoint)
            .field("token", &token.as_ref().map(|_| "(secret)"))
            .field("authorities", authorities)
            .field("certificate", certificate)
            .finish()
    }
}

/// Why a client cannot be made, or why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The configuration or the request cannot be used, or tokio's runtime cannot start.
    #[error("{0}")]
    Config(String),
    /// The client got no answer. For example, no server listens, or a time limit passed.
    #[error("{to}: {why}")]
    Connect {
        /// The address of the attempt.
        to: String,
        /// The reason.
        why: String,
    },
    /// The server answered with a refusal.
    #[error("{detail}")]
    Refused {
        /// The status code, usually 400 to 599.
        status: u16,
        /// The last word of the problem's type, such as `limit`; empty if the answer has no type.
        kind: String,
        /// If `kind` is `rule-exists`: whether the existing rule is defined as requested.
        is_as_requested: bool,
        /// The reason and the remedy.
        detail: String,
    },
    /// The answer ended early.
    #[error("{to}: the answer was cut in the middle: {why}")]
    Cut {
        /// The server's address.
        to: String,
        /// How the answer ended.
        why: String,
    },
    /// The answer cannot be used. For example, it is not valid HTTP or JSON, or larger than 64 MiB.
    #[error("{to}: this is no answer of a recorder: {why}")]
    Foreign {
        /// The server's address.
        to: String,
        /// The fault of the answer.
        why: String,
    },
}

/// A blocking client of one recorder.
#[derive(Debug)]
pub struct Client {
    runtime: Runtime,
    config: ClientConfig,
    tls: Option<Arc<RustlsConfig>>,
    authorization: Option<HeaderValue>,
}

/// A request of the API.
#[derive(Debug, Clone)]
pub struct ApiRequest {
    method: Method,
    target: String,
    headers: Vec<(HeaderName, String)>,
    body: Option<Value>,
    /// Time limit for silence of the server.
    wait: Duration,
}

impl ApiRequest {
    /// A request for a path with a query string: see [`target`].
    #[must_use]
    pub fn new(method: Method, target: impl Into<String>) -> Self {
        Self {
            method,
            target: target.into(),
            headers: Vec::new(),
            body: None,
            wait: SILENCE,
        }
    }

    /// Accepts silence of the server for an hour, because a search of a large ring takes long.
    #[must_use]
    pub fn patient(mut self) -> Self {
        self.wait = SEARCH_WAIT;
        self
    }

    /// A GET request.
    #[must_use]
    pub fn get(target: impl Into<String>) -> Self {
        Self::new(Method::GET, target)
    }

    /// Adds a JSON value as body.
    #[must_use]
    pub fn json(mut self, body: Value) -> Self {
        self.body = Some(body);
        self
    }

    /// Adds a header; `name` is in lower case.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        let name = HeaderName::from_static(name);
        self.headers.push((name, value.into()));
        self
    }
}

/// A successful answer. Its body may arrive later.
#[derive(Debug)]
pub struct ApiAnswer<'a> {
    client: &'a Client,
    response: Response<Incoming>,
    /// Time limit for silence of the server.
    wait: Duration,
    /// Dropping the sender lets the connection end.
    _sender: SendRequest<Full<Bytes>>,
}

trait ClientStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> ClientStream for S {}

impl Client {
    /// Reads the certificates. Does not connect yet.
    ///
    /// # Errors
    ///
    /// [`ClientError::Config`].
    pub fn new(config: ClientConfig) -> Result<Self, ClientError> {
        let wrong = ClientError::Config;
        let (is_tls, sends_in_clear) = match &config.endpoint {
            Endpoint::Socket(_) => (false, false),
            Endpoint::Url(url) => (url.is_tls(), !url.is_tls() && !url.is_loopback()),
        };
        if sends_in_clear {
            return Err(wrong(format!(
                "{}: token and packets would go over the network in clear: use https://, or a tunnel to this machine",
                config.endpoint
            )));
        }
        if !is_tls && (config.authorities.is_some() || config.certificate.is_some()) {
            return Err(wrong(format!(
                "{}: certificates are for https:// only",
                config.endpoint
            )));
        }
        let tls = is_tls.then(|| tls::rustls_config(&config)).transpose();
        let authorization = config.token.as_deref().map(|token| {
            let mut value = HeaderValue::try_from(format!("Bearer {token}"))?;
            value.set_sensitive(true);
            Ok::<_, header::InvalidHeaderValue>(value)
        });
        let authorization = authorization.transpose();
        Ok(Self {
            runtime: Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|error| wrong(error.to_string()))?,
            tls: tls.map_err(wrong)?,
            authorization: authorization.map_err(|_| {
                wrong(
                    "the token has characters that no token has: is it the right file?".to_owned(),
                )
            })?,
            config,
        })
    }

    /// Sends a request. Returns an answer with a success status.
    ///
    /// # Errors
    ///
    /// See [`ClientError`].
    pub fn send(&self, ask: ApiRequest) -> Result<ApiAnswer<'_>, ClientError> {
        let wait = ask.wait;
        let request = self.request(ask)?;
        let (response, sender) = self.runtime.block_on(self.exchange(request, wait))?;
        let answer = ApiAnswer {
            client: self,
            response,
            wait,
            _sender: sender,
        };
        if answer.response.status().is_success() {
            return Ok(answer);
        }
        Err(answer.refusal())
    }

    fn request(&self, ask: ApiRequest) -> Result<Request<Full<Bytes>>, ClientError> {
        let wrong = |error: hyper::http::Error| ClientError::Config(error.to_string());
        let endpoint = &self.config.endpoint;
        let mut request = Request::builder()
            .method(ask.method)
            .uri(format!("{}{}", endpoint.prefix(), ask.target))
            .header(header::HOST, endpoint.authority());
        for (name, value) in ask.headers {
            request = request.header(name, value);
        }
        if let Some(token) = &self.authorization {
            request = request.header(header::AUTHORIZATION, token);
        }
        let body = match ask.body {
            None => Full::default(),
            Some(body) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                Full::from(body.to_string())
            }
        };
        request.body(body).map_err(wrong)
    }

    async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
        wait: Duration,
    ) -> Result<(Response<Incoming>, SendRequest<Full<Bytes>>), ClientError> {
        let endpoint = &self.config.endpoint;
        let unreachable = |why: String| ClientError::Connect {
            to: endpoint.to_string(),
            why,
        };
        let stream = timeout(CONNECT_WAIT, self.connect()).await;
        let stream = stream.map_err(|_| {
            unreachable(format!("no connection within {} s", CONNECT_WAIT.as_secs()))
        })?;
        let stream = stream.map_err(|error| unreachable(endpoint.advice(&error)))?;
        let gone = |error: hyper::Error| self.foreign(&error);
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(gone)?;
        // The answer reports the errors of the connection.
        tokio::spawn(connection);
        let response = timeout(wait, sender.send_request(request)).await;
        let response =
            response.map_err(|_| unreachable(format!("no answer within {} s", wait.as_secs())))?;
        Ok((response.map_err(gone)?, sender))
    }

    async fn connect(&self) -> io::Result<Box<dyn ClientStream>> {
        match &self.config.endpoint {
            Endpoint::Socket(path) => Ok(Box::new(UnixStream::connect(path).await?)),
            Endpoint::Url(url) => {
                let stream = TcpStream::connect((url.host(), url.port())).await?;
                let Some(tls) = &self.tls else {
                    return Ok(Box::new(stream));
                };
                let name = url.server_name()?;
                let tls = TlsConnector::from(Arc::clone(tls));
                Ok(Box::new(tls.connect(name, stream).await?))
            }
        }
    }

    fn foreign(&self, error: &hyper::Error) -> ClientError {
        let to = self.config.endpoint.to_string();
        let why = causes(error);
        if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
            let why = "the connection was closed without an answer".to_owned();
            return ClientError::Connect { to, why };
        }
        match innermost_io(error) {
            Some(_) => ClientError::Connect { to, why },
            None => ClientError::Foreign { to, why },
        }
    }
}

impl ApiAnswer<'_> {
    /// The status code, 200 to 299.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// The value of a header; `None`: the header is absent or not text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// Reads the next piece of the body. `None`: the body is complete.
    ///
    /// # Errors
    ///
    /// [`ClientError::Cut`].
    pub fn piece(&mut self) -> Result<Option<Bytes>, ClientError> {
        self.piece_or(|| ())
    }

    /// Like [`Self::piece`], and calls `waiting` about every 100 ms while no data arrives.
    ///
    /// # Errors
    ///
    /// [`ClientError::Cut`].
    pub fn piece_or(&mut self, mut waiting: impl FnMut()) -> Result<Option<Bytes>, ClientError> {
        let client = self.client;
        let mut silence = Duration::ZERO;
        let cut = |why: String| ClientError::Cut {
            to: client.config.endpoint.to_string(),
            why,
        };
        loop {
            let frame = self.response.body_mut().frame();
            let frame = client
                .runtime
                .block_on(async { timeout(POLL_PERIOD, frame).await });
            let Ok(frame) = frame else {
                silence += POLL_PERIOD;
                if silence >= self.wait {
                    return Err(cut(format!("nothing came for {} s", self.wait.as_secs())));
                }
                waiting();
                continue;
            };
            let Some(frame) = frame else {
                return Ok(None);
            };
            let frame = frame.map_err(|error| cut(causes(&error)))?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
    }

    /// Reads the whole body.
    ///
    /// # Errors
    ///
    /// [`ClientError::Cut`]; [`ClientError::Foreign`] if the body is larger than 64 MiB.
    pub fn bytes(mut self) -> Result<Vec<u8>, ClientError> {
        let mut all = Vec::new();
        while let Some(piece) = self.piece()? {
            if all.len() + piece.len() > ANSWER_BYTES_MAX {
                return Err(self.foreign("it is larger than 64 MiB"));
            }
            all.extend_from_slice(&piece);
        }
        Ok(all)
    }

    /// Reads the whole body as a JSON value. `null` if the body is empty.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::bytes`]; [`ClientError::Foreign`] if the body is not JSON.
    pub fn json(self) -> Result<Value, ClientError> {
        let to = self.client.config.endpoint.to_string();
        let bytes = self.bytes()?;
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes).map_err(|error| {
            let why = error.to_string();
            ClientError::Foreign { to, why }
        })
    }

    fn foreign(&self, why: &str) -> ClientError {
        let (to, why) = (self.client.config.endpoint.to_string(), why.to_owned());
        ClientError::Foreign { to, why }
    }

    fn refusal(self) -> ClientError {
        let status = self.response.status();
        let is_problem = self.header("content-type") == Some("application/problem+json");
        if !is_problem {
            // The server's HTTP parser refuses a malformed request without problem details (RFC
            // 9457).
            return self.foreign(&format!("status {status}"));
        }
        match self.json() {
            Err(error) => error,
            Ok(problem) => {
                let detail = problem["detail"].as_str();
                let kind = problem["type"].as_str().unwrap_or_default();
                ClientError::Refused {
                    status: status.as_u16(),
                    kind: kind.rsplit(':').next().unwrap_or_default().to_owned(),
                    is_as_requested: problem["is_as_requested"] == true,
                    detail: detail.unwrap_or("refused").to_owned(),
                }
            }
        }
    }
}

/// The text of an error and of its sources, which have the details.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        next = cause.source();
    }
    text
}

fn innermost_io(error: &dyn std::error::Error) -> Option<&io::Error> {
    let mut next = error.source();
    while let Some(cause) = next {
        if let Some(io) = cause.downcast_ref() {
            return Some(io);
        }
        next = cause.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpListener,
    };

    use super::*;

    #[test]
    fn a_token_is_not_formatted() {
        let config = ClientConfig {
            endpoint: Endpoint::Url("http://127.0.0.1:1".parse().unwrap()),
            token: Some("retroscope_57a7".to_owned()),
            authorities: None,
            certificate: None,
        };
        let client = Client::new(config.clone()).unwrap();
        let shown = format!("{config:?} {client:?} {config:#?}");
        assert!(!shown.contains("57a7"), "{shown}");
        assert!(shown.contains("127.0.0.1"), "{shown}");
    }

    /// The server sends only the head of an answer.
    #[test]
    fn a_silent_answer_is_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let silent = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            assert!(stream.read(&mut request).unwrap() > 0);
            let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            stream.write_all(head).unwrap();
            while stream.read(&mut request).is_ok_and(|bytes| bytes > 0) {}
        });
        let client = Client::new(ClientConfig {
            endpoint: Endpoint::Url(url.parse().unwrap()),
            token: None,
            authorities: None,
            certificate: None,
        });
        let client = client.unwrap();
        let ask = ApiRequest {
            wait: Duration::from_secs(1),
            ..ApiRequest::get("/")
        };
        let refused = client.send(ask).unwrap().json().unwrap_err().to_string();
        assert!(refused.contains("nothing came for 1 s"), "{refused}");
        drop(client);
        silent.join().unwrap();
        assert!(ApiRequest::get("/").patient().wait > SILENCE);
    }
}
