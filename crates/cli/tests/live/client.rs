//! A client of a recorder's API for tests.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

use retroscope_api::client::{
    ApiAnswer, ApiRequest, Client, ClientConfig, ClientError, Endpoint, Method,
};
use serde_json::Value;

/// A client of the API on a Unix socket.
pub(crate) struct Api(Client);

impl Api {
    pub(crate) fn at(socket: &Path) -> Self {
        let config = ClientConfig {
            endpoint: Endpoint::Socket(socket.to_owned()),
            token: None,
            authorities: None,
            certificate: None,
        };
        Self(Client::new(config).unwrap())
    }

    /// Sends a request. Returns the JSON answer, or the error.
    pub(crate) fn ask(
        &self,
        method: &str,
        target: &str,
        body: Option<Value>,
    ) -> Result<Value, ClientError> {
        let ask = ApiRequest::new(method.parse::<Method>().unwrap(), target);
        let ask = match body {
            Some(body) => ask.json(body),
            None => ask,
        };
        self.0.send(ask).and_then(ApiAnswer::json)
    }

    /// Sends a request that must succeed.
    pub(crate) fn done(&self, method: &str, target: &str, body: Option<Value>) -> Value {
        let answer = self.ask(method, target, body);
        answer.unwrap_or_else(|error| panic!("{method} {target}: {error}"))
    }

    pub(crate) fn status(&self) -> Value {
        self.done("GET", "/v1/status", None)
    }

    pub(crate) fn stop(&self) {
        self.done("POST", "/v1/stop", None);
    }

    /// Queries all packets. Returns the bytes of the capture file.
    pub(crate) fn query(&self) -> Vec<u8> {
        let answer = self
            .0
            .send(ApiRequest::get("/v1/query"))
            .and_then(ApiAnswer::bytes);
        answer.unwrap()
    }
}

/// A running `retroscope events`, which prints all kept events and all later events.
pub(crate) struct Events {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Events {
    pub(crate) fn of(program: &str, socket: &Path) -> Self {
        let mut command = Command::new(program);
        command
            .args(["events", "--from", "0", "--socket"])
            .arg(socket);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Reads events up to the next one that fulfills a condition, and returns that event.
    pub(crate) fn until(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        loop {
            let mut line = String::new();
            assert!(
                self.lines.read_line(&mut line).unwrap() > 0,
                "it did not happen"
            );
            let event: Value = serde_json::from_str(&line).unwrap();
            if is_it(&event) {
                return event;
            }
        }
    }

    /// Waits for the event `end` of the recording. Returns the exit code of `retroscope events`.
    pub(crate) fn end(mut self) -> Option<i32> {
        self.until(|event| event["event"] == "end");
        self.child.wait().unwrap().code()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
