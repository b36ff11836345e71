//! Extractors for bodies, paths and query strings of requests. Bodies have limits of size and time.

use std::time::Duration;

use axum::{
    body::{Body, Bytes},
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
    http::{HeaderMap, HeaderName, header, request::Parts},
    response::{IntoResponse, Response},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use retroscope_recorder::Condition;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    problem::{Cause, Problem},
    queries::ConcurrencyPermit,
};

/// Maximum number of bytes of a body that [`Json`] reads.
pub(crate) const BODY_BYTES_MAX: usize = 64 << 10;
/// Maximum number of bytes of a [`LargeJson`]: a notification of Alertmanager.
const LIST_BYTES_MAX: usize = 1 << 20;
/// Time limit for the arrival of a body.
const BODY_WAIT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        read(request, BODY_BYTES_MAX).await.map(Self)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct LargeJson<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for LargeJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        read(request, LIST_BYTES_MAX).await.map(Self)
    }
}

async fn read<T: DeserializeOwned>(request: Request, bytes_max: usize) -> Result<T, Problem> {
    let (parts, body) = request.into_parts();
    if !is_json(&parts.headers) {
        return Err(Problem::new(
            Cause::MediaType,
            "the body must be JSON: send it with `Content-Type: application/json`",
        ));
    }
    let too_large = || {
        let why = format!("a body has at most {bytes_max} bytes: send less");
        Problem::new(Cause::BodyTooLarge, why).with_limit(bytes_max as u64)
    };
    let length = parts.headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > bytes_max) {
        return Err(too_large());
    }
    let body = Limited::new(body, bytes_max).collect();
    let body = tokio::time::timeout(BODY_WAIT, body).await;
    let body = body.map_err(|_| {
        let why = format!("the body did not come within {} s", BODY_WAIT.as_secs());
        Problem::new(Cause::BodyTimeout, why)
    })?;
    let body = body.map_err(|error| {
        if error.is::<LengthLimitError>() {
            too_large()
        } else {
            Problem::malformed(format!("the body cannot be read: {error}"))
        }
    })?;
    serde_json::from_slice(&body.to_bytes()).map_err(|error| {
        let error = error.to_string();
        let why = renamed(&error).unwrap_or(error);
        Problem::malformed(format!("invalid request body: {why}"))
    })
}

/// Fields of earlier versions with their new names, as in the table of CHANGELOG.md.
const RENAMED: &[(&str, &str)] = &[("expression", "filter"), ("filter", "dump")];

/// Names the new name of an unknown field in an error of serde. `None`: the error is not about a
/// renamed field of this body.
fn renamed(error: &str) -> Option<String> {
    let (field, expected) = error.strip_prefix("unknown field `")?.split_once('`')?;
    let (old, new) = RENAMED.iter().find(|(old, _)| *old == field)?;
    let is_known = expected.contains(&format!("`{new}`"));
    is_known.then(|| format!("`{old}` is `{new}` now"))
}

fn is_json(headers: &HeaderMap) -> bool {
    let mut kinds = headers.get_all(header::CONTENT_TYPE).iter();
    let (kind, None) = (kinds.next(), kinds.next()) else {
        return false;
    };
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        self.answer(Bytes::from)
    }
}

impl<T: Serialize> Json<T> {
    /// A possibly large answer, which keeps `permit` until it is sent or the client has
    /// disconnected.
    pub(crate) fn keeping(self, permit: ConcurrencyPermit) -> Response {
        self.answer(|text| {
            Bytes::from_owner(KeptText {
                text,
                _permit: permit,
            })
        })
    }

    fn answer(self, bytes: impl FnOnce(Vec<u8>) -> Bytes) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(text) => {
                let kind = [(header::CONTENT_TYPE, "application/json")];
                (kind, Body::from(bytes(text))).into_response()
            }
            Err(error) => Problem::bug(format!("the answer is no JSON: {error}")).into_response(),
        }
    }
}

/// The text of an answer. The connection drops the permit together with the text.
struct KeptText {
    text: Vec<u8>,
    _permit: ConcurrencyPermit,
}

impl AsRef<[u8]> for KeptText {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

/// The condition from `If-Match` or `If-None-Match`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Precondition {
    None,
    /// `If-None-Match: *`: the object does not exist.
    New,
    /// `If-Match: *`: the object exists.
    Exists,
    /// `If-Match` with an entity tag: the object has this version.
    Unchanged(String),
}

impl Precondition {
    /// # Errors
    ///
    /// 400: both headers are given, a header is given twice, or a value is neither `*` nor, for
    /// `If-Match`, one strong entity tag.
    pub(crate) fn read(headers: &HeaderMap) -> Result<Self, Problem> {
        let one = |name: HeaderName| {
            let mut values = headers.get_all(&name).iter();
            match (values.next(), values.next()) {
                (None, _) => Ok(None),
                (Some(value), None) => Ok(Some(value.as_bytes())),
                _ => Err(Problem::malformed(format!("`{name}` is given twice"))),
            }
        };
        match (one(header::IF_MATCH)?, one(header::IF_NONE_MATCH)?) {
            (None, None) => Ok(Self::None),
            (None, Some(b"*")) => Ok(Self::New),
            (Some(b"*"), None) => Ok(Self::Exists),
            (Some([b'"', tag @ .., b'"']), None) if !tag.contains(&b'"') => {
                Ok(Self::Unchanged(String::from_utf8_lossy(tag).into_owned()))
            }
            (Some(_), None) => Err(Problem::malformed("`If-Match` is `*` or one `ETag`")),
            (None, Some(_)) => Err(Problem::malformed("`If-None-Match` is `*` or left out")),
            (Some(_), Some(_)) => Err(Problem::malformed(
                "`If-Match` and `If-None-Match` exclude each other",
            )),
        }
    }

    /// The condition for a change of an existing object.
    ///
    /// # Errors
    ///
    /// As [`Self::read`], and 400 for `If-None-Match`.
    pub(crate) fn read_existing(headers: &HeaderMap) -> Result<Self, Problem> {
        match Self::read(headers)? {
            Self::New => Err(Problem::malformed("`If-None-Match` is for PUT")),
            condition => Ok(condition),
        }
    }

    pub(crate) fn of_rule(&self) -> Condition<'_> {
        match self {
            Self::None => Condition::Any,
            Self::New => Condition::New,
            Self::Exists => Condition::Exists,
            Self::Unchanged(version) => Condition::Unchanged(version),
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct QueryParams<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let query = Query::try_from_uri(&parts.uri);
        let Query(value) = query.map_err(|error| {
            // The source of this error, the error of serde, gives the reason.
            let why = std::error::Error::source(&error)
                .map_or_else(|| error.to_string(), ToString::to_string);
            Problem::malformed(format!("invalid query string: {why}"))
        })?;
        Ok(Self(value))
    }
}

/// Splits a parameter at its commas. Leaves out empty parts.
pub(crate) fn list(text: Option<&str>) -> Vec<String> {
    let parts = text.unwrap_or_default().split(',');
    let parts = parts.filter(|part| !part.is_empty());
    parts.map(str::to_owned).collect()
}

/// The operation refuses every query parameter.
#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoQuery {}

/// The parameter of a path, such as `{name}` or `{number}`, decoded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathParam<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathParam<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        let Path(value) = path
            .map_err(|error| Problem::malformed(format!("invalid path: {}", error.body_text())))?;
        Ok(Self(value))
    }
}

/// Maximum number of bytes of the name of a rule or pin, and of an `Idempotency-Key`.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// Refuses an invalid name of a rule or pin, and an invalid `Idempotency-Key`.
pub(crate) fn check_name(name: &str) -> Result<(), Problem> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(Problem::invalid(format!(
            "a name has 1 to {NAME_BYTES_MAX} bytes, and no control characters"
        )));
    }
    Ok(())
}
