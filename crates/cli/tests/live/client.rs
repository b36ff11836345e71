//! A client of a control socket that speaks for itself.

use std::{
    io::{self, BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use serde_json::Value;

/// Longer than any answer takes.
const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) struct Client(pub(crate) BufReader<UnixStream>);

impl Client {
    pub(crate) fn of(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        Ok(Self(BufReader::new(stream)))
    }

    pub(crate) fn say(&mut self, bytes: &[u8]) {
        // It may have been thrown out.
        let _ = self.0.get_mut().write_all(bytes);
    }

    /// The next line; `null` at the end.
    pub(crate) fn hear(&mut self) -> Value {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(0) | Err(_) => Value::Null,
            Ok(_) => serde_json::from_str(&line).unwrap(),
        }
    }

    /// The next line that is such; until then it must be told of no error.
    pub(crate) fn until(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        loop {
            let line = self.hear();
            assert_eq!(line["ok"], true, "{line}");
            if is_it(&line) {
                return line;
            }
        }
    }

    pub(crate) fn ask(&mut self, request: &Value) -> Value {
        self.say(format!("{request}\n").as_bytes());
        self.hear()
    }

    /// The same; it must be carried out.
    pub(crate) fn done(&mut self, request: &Value) -> Value {
        let answer = self.ask(request);
        assert_eq!(answer["ok"], true, "{request}: {answer}");
        answer
    }
}
