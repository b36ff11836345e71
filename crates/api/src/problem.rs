//! Refusals, as `application/problem+json`: RFC 9457.

use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use retroscope_filter::FilterError;
use retroscope_recorder::{CommandError, QueryError};
use serde::Serialize;

/// Why a request was not carried out, and what to do. Its `type` is `about:blank`, which RFC 9457 has for what the status code says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemBody {
    /// `about:blank`.
    r#type: &'static str,
    /// What the status code means.
    title: &'static str,
    /// The status code.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// A sentence: why, and what to do.
    detail: String,
}

/// A refusal on its way to a client.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    status: StatusCode,
    detail: String,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
            headers: Vec::new(),
        }
    }

    /// The request is malformed: 400.
    pub(crate) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// It is well-formed, and makes no sense: 422.
    pub(crate) fn senseless(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    /// There is no such thing: 404.
    pub(crate) fn absent(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// It is against what is there: 409.
    pub(crate) fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, detail)
    }

    /// Not this one: 403.
    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, detail)
    }

    /// Not now: 503, and when to ask again.
    pub(crate) fn unavailable(detail: impl Into<String>, again: Duration) -> Self {
        let seconds = HeaderValue::from(again.as_secs().max(1));
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail).with(header::RETRY_AFTER, seconds)
    }

    /// A fault of ours: 500.
    pub(crate) fn bug(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
    }

    /// The object, as it is sent.
    pub(crate) fn text(&self) -> String {
        let body = ProblemBody {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Unknown"),
            status: self.status.as_u16(),
            detail: self.detail.clone(),
        };
        // A struct of strings and a number is always JSON.
        serde_json::to_string(&body).unwrap_or_default()
    }

    pub(crate) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }
}

impl From<CommandError> for Problem {
    fn from(error: CommandError) -> Self {
        let text = error.to_string();
        match error {
            CommandError::Filter(error) => error.into(),
            CommandError::Refused(_) | CommandError::Suppressed(_) | CommandError::Gone(_) => {
                Self::conflict(text)
            }
            CommandError::RuleExists { .. } => Self::new(StatusCode::PRECONDITION_FAILED, text),
            CommandError::Busy
            | CommandError::Late
            | CommandError::DiskLate
            | CommandError::RuleChanged => Self::unavailable(text, Duration::from_secs(1)),
            _ => Self::unavailable(text, Duration::from_secs(60)),
        }
    }
}

impl From<FilterError> for Problem {
    fn from(error: FilterError) -> Self {
        Self::senseless(error.render())
    }
}

impl From<QueryError> for Problem {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::Filter(error) => error.into(),
            QueryError::Usage(why) => Self::senseless(why),
            QueryError::Ended => CommandError::Ended.into(),
            error => Self::bug(error.to_string()),
        }
    }
}

/// The reason in an answer that refuses a client by its identity or origin, for the guard's report.
#[derive(Debug, Clone)]
pub(crate) struct WhyRefused(pub(crate) String);

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.text()));
        *response.status_mut() = self.status;
        if matches!(
            self.status,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::MISDIRECTED_REQUEST
        ) {
            response.extensions_mut().insert(WhyRefused(self.detail));
        }
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response.headers_mut().extend(
            self.headers
                .into_iter()
                .map(|(name, value)| (Some(name), value)),
        );
        response
    }
}
