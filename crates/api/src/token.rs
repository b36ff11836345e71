//! Tokens, which authenticate clients over TCP.
//!
//! `retroscope token` makes tokens of 256 random bits. The token file has only the SHA-256 of a
//! token. A slow password hash would add nothing: nobody can try 2²⁵⁶ values.
//!
//! A line of the token file is a [`TokenLine`] in JSON. Blank lines and lines that begin with `#`
//! are ignored.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use retroscope_filter::{Filter, FilterError, FilterMode, FilterProblem, LinkContext, Template};
use retroscope_packet::LinkType;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::{
    caller::Caller,
    role::Role,
    stamp::{FileStamp, stamp},
};

/// The prefix of new tokens, by which secret scanners can find tokens in public places.
const PREFIX: &str = "retroscope_";
const TOKENS_MAX: usize = 1000;
const FILE_BYTES_MAX: u64 = 4 << 20;
const NAME_BYTES_MAX: usize = 64;

/// A line of the token file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenLine {
    /// The holder of the token, for the audit events: 1 to 64 bytes, no control characters.
    pub name: String,
    /// The token's roles, at least one.
    pub roles: Vec<Role>,
    /// SHA-256 of the token, 64 hexadecimal digits.
    pub sha256: String,
    /// The time from which on the token is refused, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// The token sees only packets that match this pcap-filter(7) expression. Names of hosts,
    /// networks, ports or protocols that must be looked up are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Maximum number of bytes of each packet that the token may see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snaplen: Option<u32>,
}

impl TokenLine {
    /// Makes a token. Returns its line, without expiry, filter and snap length, and the token
    /// itself.
    ///
    /// # Errors
    ///
    /// The system provides no random numbers.
    pub fn random(name: &str, roles: Vec<Role>) -> io::Result<(Self, String)> {
        let token = format!("{PREFIX}{}", random_text()?);
        let line = Self {
            name: name.to_owned(),
            roles,
            sha256: hex(&Sha256::digest(&token)),
            expires: None,
            filter: None,
            snaplen: None,
        };
        Ok((line, token))
    }

    /// Appends the line to a token file. Creates a missing file with mode 0600. A lock (flock(2))
    /// on the file orders concurrent calls, so that each name is written once.
    ///
    /// # Errors
    ///
    /// A sentence: the line is wrong, its name is taken, or the file has 1,000 tokens, is invalid,
    /// or cannot be read or written.
    pub fn append_to(&self, path: &Path) -> Result<(), String> {
        let shown = path.display();
        let failed = |error: io::Error| format!("{shown}: {error}");
        self.check()?;
        let mut file = open_locked(path).map_err(failed)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(failed)?;
        let tokens = parse(&text).map_err(|why| format!("{shown}: {why}"))?;
        if tokens.iter().any(|token| *token.name == *self.name) {
            let name = &self.name;
            return Err(format!(
                "{shown}: there is a token '{name}' already: remove its line first, or choose another name"
            ));
        }
        if tokens.len() >= TOKENS_MAX {
            return Err(format!(
                "{shown}: {TOKENS_MAX} tokens are the limit: remove some lines"
            ));
        }
        let break_before = if text.is_empty() || text.ends_with('\n') {
            ""
        } else {
            "\n"
        };
        let line = serde_json::to_string(self).map_err(|error| error.to_string())?;
        let written = file.write_all(format!("{break_before}{line}\n").as_bytes());
        written.map_err(|error| {
            // Half a line would make the whole file invalid.
            let _ = file.set_len(text.len() as u64);
            failed(error)
        })
    }

    /// Checks whether the line is valid in a token file.
    ///
    /// # Errors
    ///
    /// A sentence with the fault.
    pub fn check(&self) -> Result<(), String> {
        self.token().map(drop)
    }

    fn token(&self) -> Result<Token, String> {
        let name = &self.name;
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return Err(format!(
                "a token's name has 1 to {NAME_BYTES_MAX} bytes, and no control characters"
            ));
        }
        if self.roles.is_empty() {
            return Err(format!("token '{name}' has no role"));
        }
        if self.snaplen == Some(0) {
            return Err(format!("token '{name}': a snap length is at least 1"));
        }
        if let Some(filter) = &self.filter {
            check_filter(filter).map_err(|error| match error.problem() {
                FilterProblem::NameTooLate(word) => format!(
                    "token '{name}': its filter names '{word}': write numbers and addresses, because the server that \
                     answers a look-up would decide what the token may see"
                ),
                _ => format!("token '{name}': {}", error.render()),
            })?;
        }
        let hash = unhex(&self.sha256);
        Ok(Token {
            name: name.as_str().into(),
            roles: self.roles.as_slice().into(),
            hash: hash.ok_or_else(|| {
                format!("token '{name}': sha256 is not 64 hexadecimal digits: make it by `retroscope token`")
            })?,
            expires: self.expires,
            filter: self.filter.as_deref().map(Arc::from),
            snaplen: self.snaplen,
        })
    }
}

/// Opens a token file for reading and appending, and locks the file until it is closed. Opens the
/// file again if another program replaced it meanwhile.
fn open_locked(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600);
    loop {
        let file = options.open(path)?;
        file.lock()?;
        let locked = file.metadata()?;
        match fs::metadata(path) {
            Ok(there) if (there.dev(), there.ino()) == (locked.dev(), locked.ino()) => {
                return Ok(file);
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
}

/// Refuses a filter with the name of a host, network, port or protocol, because each query would
/// look up the name again. Refuses a filter that compiles neither for Ethernet packets nor for
/// packets that begin with IP.
fn check_filter(text: &str) -> Result<(), FilterError> {
    Template::parse(text)?.without_names()?;
    let compile = |link_type| {
        Filter::plain(text)?.prepare(LinkContext {
            link_type,
            snaplen: 65_535,
            mode: FilterMode::Live,
            optimize: true,
        })
    };
    compile(LinkType::ETHERNET).or_else(|error| compile(LinkType::RAW).map_err(|_| error))
}

/// A token from a valid line of the file. The token may have expired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    name: Arc<str>,
    roles: Arc<[Role]>,
    hash: [u8; 32],
    expires: Option<Timestamp>,
    filter: Option<Arc<str>>,
    snaplen: Option<u32>,
}

impl Token {
    fn has_expired(&self, now_ns: i64) -> bool {
        let is_over = |expires: Timestamp| i128::from(now_ns) >= expires.as_nanosecond();
        self.expires.is_some_and(is_over)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TokenRefusal {
    Unknown,
    /// The token with this name has expired.
    Expired(Arc<str>),
}

/// The tokens of a file. A check of a request's token takes no lock and does not access the file.
pub(crate) struct Tokens {
    path: PathBuf,
    known: ArcSwap<Vec<Arc<Token>>>,
    stamp: Mutex<FileStamp>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").field("path", &self.path).finish()
    }
}

impl Tokens {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// A sentence for the user: the file cannot be read, is too large or invalid, or can be written
    /// by anyone.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let stamp = stamp(path);
        Ok(Self {
            path: path.to_owned(),
            known: ArcSwap::from_pointee(read(path)?),
            stamp: Mutex::new(stamp),
        })
    }

    /// Reads the file again if it has changed, or if `is_asked`. Returns a sentence for the user if
    /// `is_asked`, or if the file cannot be used. Requests use the old tokens meanwhile.
    pub(crate) fn refresh(&self, is_asked: bool) -> Option<String> {
        let mut known = self.stamp.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = stamp(&self.path);
        if stamp == *known && !is_asked {
            return None;
        }
        *known = stamp;
        match read(&self.path) {
            Ok(tokens) => {
                let count = tokens.len();
                self.known.store(Arc::new(tokens));
                let path = self.path.display();
                is_asked.then(|| format!("read {count} tokens from {path} again"))
            }
            Err(why) => Some(format!(
                "the changed tokens cannot be read, and the tokens from before stay: {why}"
            )),
        }
    }

    /// Finds the client of a token. `now_ns` counts from the UNIX epoch.
    pub(crate) fn caller(&self, presented: &str, now_ns: i64) -> Result<Caller, TokenRefusal> {
        let hash: [u8; 32] = Sha256::digest(presented).into();
        let tokens = self.known.load();
        // Each comparison takes constant time.
        let mut found = None;
        for token in tokens.iter() {
            if bool::from(token.hash.ct_eq(&hash)) {
                found = Some(token);
            }
        }
        let token = found.ok_or(TokenRefusal::Unknown)?;
        if token.has_expired(now_ns) {
            return Err(TokenRefusal::Expired(Arc::clone(&token.name)));
        }
        Ok(Caller {
            token: Some(Arc::clone(token)),
            name: Arc::clone(&token.name),
            account: Arc::clone(&token.name),
            roles: Arc::clone(&token.roles),
            filter: token.filter.clone(),
            snaplen: token.snaplen,
            address: None,
            session: None,
        })
    }

    /// Checks that a token that was accepted before is still valid and unchanged. `now_ns` counts
    /// from the UNIX epoch.
    ///
    /// # Errors
    ///
    /// A sentence: the token was removed or changed, or has expired.
    pub(crate) fn check(&self, token: &Arc<Token>, now_ns: i64) -> Result<(), String> {
        let name = &token.name;
        let tokens = self.known.load();
        match tokens.iter().find(|other| other.name == *name) {
            None => Err(format!("token '{name}' was removed")),
            Some(other) if other != token => Err(format!("token '{name}' was changed")),
            Some(_) if token.has_expired(now_ns) => Err(format!("token '{name}' has expired")),
            Some(_) => Ok(()),
        }
    }
}

fn read(path: &Path) -> Result<Vec<Arc<Token>>, String> {
    let shown = path.display();
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("{shown}: {error}: let the user that the recorder runs as read it")
        }
        _ => format!("{shown}: {error}"),
    };
    let metadata = fs::metadata(path).map_err(failed)?;
    if metadata.len() > FILE_BYTES_MAX {
        return Err(format!(
            "{shown} is larger than {FILE_BYTES_MAX} bytes: it is no file of tokens"
        ));
    }
    if metadata.mode() & 0o002 != 0 {
        return Err(format!(
            "{shown} can be written by anyone, who could add tokens: chmod 600 it"
        ));
    }
    let text = fs::read_to_string(path).map_err(failed)?;
    parse(&text).map_err(|why| format!("{shown}: {why}"))
}

fn parse(text: &str) -> Result<Vec<Arc<Token>>, String> {
    let mut tokens: Vec<Arc<Token>> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |why: String| format!("line {number}: {why}");
        let line: TokenLine =
            serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
        let token = line.token().map_err(wrong)?;
        if tokens.iter().any(|other| other.name == token.name) {
            return Err(wrong(format!(
                "there are two tokens of the name '{}'",
                token.name
            )));
        }
        if tokens.len() >= TOKENS_MAX {
            return Err(wrong(format!("more than {TOKENS_MAX} tokens")));
        }
        tokens.push(Arc::new(token));
    }
    Ok(tokens)
}

/// 256 random bits as 64 hexadecimal digits.
///
/// # Errors
///
/// The system provides no random numbers.
pub(crate) fn random_text() -> io::Result<String> {
    let mut bits = [0_u8; 32];
    let got = getrandom(&mut bits, GetRandomFlags::empty())?;
    if got != bits.len() {
        return Err(io::Error::other("getrandom gave too few bytes"));
    }
    Ok(hex(&bits))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let text = text.as_bytes();
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        let digits = std::str::from_utf8(digits).ok()?;
        *byte = u8::from_str_radix(digits, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt, sync::Barrier, thread::scope};

    use super::*;

    #[test]
    fn a_token_is_taken_until_it_expires_and_no_other_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let (line, token) = TokenLine::random("a", vec![Role::View]).unwrap();
        assert!(token.len() == PREFIX.len() + 64 && token.starts_with(PREFIX));
        let expires: Timestamp = "2026-11-20T00:00:00Z".parse().unwrap();
        let (short, brief) = TokenLine::random("b", vec![Role::Packets]).unwrap();
        let short = TokenLine {
            expires: Some(expires),
            filter: Some("udp".to_owned()),
            snaplen: Some(64),
            ..short
        };
        line.append_to(&path).unwrap();
        short.append_to(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains(&token[PREFIX.len()..]), "{text}");
        assert!(line.append_to(&path).unwrap_err().contains("already"));
        let tokens = Tokens::read(&path).unwrap();
        let found = tokens.caller(&token, 0).unwrap();
        assert_eq!((&*found.name, found.filter), ("a", None));
        let end_ns = i64::try_from(expires.as_nanosecond()).unwrap();
        let found = tokens.caller(&brief, end_ns - 1).unwrap();
        assert_eq!(
            (found.filter.as_deref(), found.snaplen),
            (Some("udp"), Some(64))
        );
        let refused = tokens.caller(&brief, end_ns).unwrap_err();
        assert_eq!(refused, TokenRefusal::Expired("b".into()));
        for wrong in [
            "",
            PREFIX,
            &token[1..],
            &format!("{token} "),
            &hex(&[7; 32]),
        ] {
            assert_eq!(tokens.caller(wrong, 0).unwrap_err(), TokenRefusal::Unknown);
        }
    }

    #[test]
    fn one_of_many_writers_has_a_name() {
        let folder = tempfile::tempdir().unwrap();
        for round in 0..1000 {
            let path = folder.path().join(round.to_string());
            let start = Barrier::new(8);
            let write = || {
                let (line, _) = TokenLine::random("a", vec![Role::View]).unwrap();
                start.wait();
                line.append_to(&path)
            };
            let written = scope(|scope| {
                let all = [(); 8].map(|()| scope.spawn(write));
                all.map(|one| one.join().unwrap())
            });
            let done = written.iter().filter(|written| written.is_ok()).count();
            assert_eq!(done, 1, "round {round}: {written:?}");
            assert_eq!(read(&path).unwrap().len(), 1, "round {round}");
        }
    }

    #[test]
    fn wrong_files_are_refused_with_the_line() {
        let good = serde_json::to_string(&TokenLine::random("a", vec![Role::View]).unwrap().0);
        let good = good.unwrap();
        assert_eq!(parse(&format!("# who\n\n {good} \n")).unwrap().len(), 1);
        for (wrong, told) in [
            ("x".to_owned(), "line 1"),
            (format!("{good}\n{good}"), "line 2: there are two"),
            (good.replace("view", "viewer"), "viewer"),
            (good.replace("[\"view\"]", "[]"), "no role"),
            (good.replace("\"a\"", "\"\""), "1 to 64"),
            (good.replace("sha256", "sha"), "unknown field"),
            (
                good.replace("\"sha256\":\"", "\"sha256\":\"0"),
                "64 hexadecimal",
            ),
            (good.replace('}', ",\"filter\":\"udp prt 9\"}"), "prt"),
            (
                good.replace('}', ",\"filter\":\"host slow.example\"}"),
                "'slow.example'",
            ),
            (
                good.replace('}', ",\"filter\":\"udp and port domain\"}"),
                "'domain'",
            ),
            (good.replace('}', ",\"snaplen\":0}"), "at least 1"),
            (good.replace('}', ",\"expires\":\"soon\"}"), "line 1"),
        ] {
            let refused = parse(&wrong).unwrap_err();
            assert!(refused.contains(told), "{wrong}: {refused}");
        }
    }

    #[test]
    fn a_changed_file_is_read_again_and_a_wrong_one_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let (line, token) = TokenLine::random("a", vec![Role::View]).unwrap();
        line.append_to(&path).unwrap();
        let tokens = Tokens::read(&path).unwrap();
        fs::write(&path, "nonsense").unwrap();
        let refused = tokens.refresh(false).unwrap();
        assert!(refused.contains("line 1"), "{refused}");
        assert_eq!(tokens.refresh(false), None, "it is told once");
        let taken = tokens.caller(&token, 0).unwrap().token.unwrap();
        let check = |now_ns| {
            tokens.refresh(false);
            tokens.check(&taken, now_ns)
        };
        assert_eq!(check(0), Ok(()));
        // The token is valid until its own line changes.
        let (other, _) = TokenLine::random("b", vec![Role::View]).unwrap();
        let expires = Some("2026-11-20T00:00:00Z".parse().unwrap());
        let roles = vec![Role::View, Role::Metrics];
        let changed = [
            TokenLine {
                expires,
                ..line.clone()
            },
            TokenLine {
                roles,
                ..line.clone()
            },
            TokenLine {
                filter: Some("udp".to_owned()),
                ..line.clone()
            },
            TokenLine {
                snaplen: Some(64),
                ..line.clone()
            },
            TokenLine {
                sha256: other.sha256.clone(),
                ..line.clone()
            },
        ];
        for (lines, expected) in [
            (vec![&other, &line], Ok(())),
            (vec![&changed[0]], Err("token 'a' was changed".to_owned())),
            (vec![&changed[1]], Err("token 'a' was changed".to_owned())),
            (vec![&changed[2]], Err("token 'a' was changed".to_owned())),
            (vec![&changed[3]], Err("token 'a' was changed".to_owned())),
            (vec![&changed[4]], Err("token 'a' was changed".to_owned())),
            (vec![&other], Err("token 'a' was removed".to_owned())),
        ] {
            fs::remove_file(&path).unwrap();
            lines.iter().for_each(|line| line.append_to(&path).unwrap());
            assert_eq!(check(0), expected, "{lines:?}");
        }
        fs::write(&path, "# nobody\n").unwrap();
        assert_eq!(tokens.refresh(false), None);
        assert_eq!(tokens.caller(&token, 0).unwrap_err(), TokenRefusal::Unknown);
        let told = tokens.refresh(true).unwrap();
        assert!(told.contains("read 0 tokens"), "{told}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let refused = read(&path).unwrap_err();
        assert!(refused.contains("chmod 600"), "{refused}");
    }
}
