//! Refusals, as `application/problem+json`: RFC 9457.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use retroscope_filter::FilterError;
use retroscope_recorder::{CommandError, QueryError};
use serde::Serialize;
use utoipa::{
    PartialSchema as _,
    openapi::{RefOr, schema::Schema},
};

use crate::role::Role;

/// Value of `Retry-After` for a suppressed manual trigger, for example because of a limit.
const TRIGGER_AGAIN: Duration = Duration::from_secs(10);

macro_rules! causes {
    ($($cause:ident $status:ident $urn:tt $title:literal, $when:literal;)*) => {
        /// The cause of a refusal, by which programs tell refusals apart.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, utoipa::ToSchema)]
        #[schema(as = ProblemType)]
        pub(crate) enum Cause {
            $(#[serde(rename = $urn)] $cause,)*
        }

        impl Cause {
            pub(crate) const ALL: &[Self] = &[$(Self::$cause),*];

            pub(crate) fn urn(self) -> &'static str {
                match self { $(Self::$cause => $urn,)* }
            }

            pub(crate) fn title(self) -> &'static str {
                match self { $(Self::$cause => $title,)* }
            }

            /// The last word of `type`, for the metrics.
            pub(crate) fn word(self) -> &'static str {
                let urn = self.urn();
                urn.rsplit_once(':').map_or(urn, |(_, name)| name)
            }

            fn status(self) -> StatusCode {
                match self { $(Self::$cause => StatusCode::$status,)* }
            }

            /// When clients get this cause, for the OpenAPI document.
            fn when(self) -> &'static str {
                match self { $(Self::$cause => $when,)* }
            }
        }
    };
}

causes! {
    Malformed BAD_REQUEST "urn:retroscope:problem:malformed" "The request is malformed",
        "A body, parameter, header or path cannot be parsed, or has an unknown field.";
    Unauthenticated UNAUTHORIZED "urn:retroscope:problem:unauthenticated" "The client needs a valid token",
        "The token is missing, unknown or expired, or the session has ended.";
    Forbidden FORBIDDEN "urn:retroscope:problem:forbidden" "The client may not do this",
        "The client may not do this. `role` is the missing role.";
    NotFound NOT_FOUND "urn:retroscope:problem:not-found" "The object does not exist",
        "The object or path does not exist.";
    Method METHOD_NOT_ALLOWED "urn:retroscope:problem:method" "The path does not have this method",
        "The path does not have this method.";
    BodyTimeout REQUEST_TIMEOUT "urn:retroscope:problem:body-timeout" "The body did not arrive in time",
        "The body took more than 10 s.";
    Conflict CONFLICT "urn:retroscope:problem:conflict" "The state of the recorder does not permit this",
        "The state does not permit the request, for example because a dump is open or a list is full.";
    RuleExists PRECONDITION_FAILED "urn:retroscope:problem:rule-exists" "The rule exists",
        "The request has `If-None-Match: *`, and the rule exists.";
    PinExists PRECONDITION_FAILED "urn:retroscope:problem:pin-exists" "The pin exists",
        "The request has `If-None-Match: *`, and the pin exists.";
    Changed PRECONDITION_FAILED "urn:retroscope:problem:changed" "The object has changed",
        "The request has `If-Match`, and the rule has changed or does not exist.";
    BodyTooLarge PAYLOAD_TOO_LARGE "urn:retroscope:problem:body-too-large" "The body is too large",
        "The body has more bytes than `limit`: 64 KiB, for Alertmanager 1 MiB.";
    MediaType UNSUPPORTED_MEDIA_TYPE "urn:retroscope:problem:media-type" "The body is not JSON",
        "The body is not JSON.";
    Range RANGE_NOT_SATISFIABLE "urn:retroscope:problem:range" "The file does not have this range",
        "The file, of `limit` bytes, has none of the bytes of `Range`.";
    Host MISDIRECTED_REQUEST "urn:retroscope:problem:host" "The API does not have this name",
        "The API does not have the name in `Host`.";
    Invalid UNPROCESSABLE_ENTITY "urn:retroscope:problem:invalid-value" "A value is invalid",
        "A value is out of range, no time or duration, or no name.";
    FilterSyntax UNPROCESSABLE_ENTITY "urn:retroscope:problem:filter" "The filter is invalid",
        "`filter` does not compile. The faulty word begins at byte `offset`.";
    Limit TOO_MANY_REQUESTS "urn:retroscope:problem:limit" "A limit is reached",
        "The client is at its limit of requests (`limit`) or failed logins, or too many manual dumps are open.";
    Internal INTERNAL_SERVER_ERROR "urn:retroscope:problem:internal" "The recorder has a bug",
        "The recorder has a bug.";
    Busy SERVICE_UNAVAILABLE "urn:retroscope:problem:busy" "The recorder is busy",
        "For example, all clients together are at a limit, or the disk is slow.";
    Ended SERVICE_UNAVAILABLE "urn:retroscope:problem:ended" "The recording has ended",
        "The recording has ended.";
    NoDissector NOT_IMPLEMENTED "urn:retroscope:problem:no-dissector" "Wireshark cannot run here",
        "Wireshark's `sharkd` is not installed, or this machine cannot restrict it. `detail` says what is missing.";
    Dissector GATEWAY_TIMEOUT "urn:retroscope:problem:dissector" "Wireshark gave no details",
        "Wireshark took more than 10 s, or failed. `detail` says which.";
    HttpVersion HTTP_VERSION_NOT_SUPPORTED "urn:retroscope:problem:http-version" "The answer needs HTTP/1.1",
        "An answer of unknown length needs HTTP/1.1, because with HTTP/1.0 a cut answer looks complete.";
}

/// Why a request was refused, and what the client can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemBody {
    r#type: Cause,
    /// The meaning of `type`, for people.
    title: &'static str,
    /// The status code.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// A sentence with the reason and the remedy.
    detail: String,
    /// `forbidden`: the role that the operation needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    role: Option<&'static str>,
    /// `limit`, `busy`: the limit, such as a number of requests or queries. `body-too-large`: the
    /// limit in bytes. `range`: bytes of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    limit: Option<u64>,
    /// The field of the request that has a wrong duration, or `scan_past` if the rule cannot act on
    /// the past.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    field: Option<&'static str>,
    /// `filter`: the filter's text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    filter: Option<String>,
    /// `filter`: byte of the filter's text at which the faulty word begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    offset: Option<u64>,
    /// `rule-exists`: whether the existing rule is the requested rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    is_as_requested: Option<bool>,
}

/// The schema of `type`, with the status and the meaning of each value.
pub(crate) fn cause_schema() -> RefOr<Schema> {
    let mut schema = Cause::schema();
    if let RefOr::T(Schema::Object(object)) = &mut schema {
        let causes = Cause::ALL.iter().map(|cause| {
            let status = cause.status().as_u16();
            format!("\n- `{}` ({status}): {}", cause.urn(), cause.when())
        });
        let causes: String = causes.collect();
        object
            .description
            .get_or_insert_default()
            .push_str(&format!("\n{causes}"));
    }
    schema
}

#[derive(Debug, Clone)]
pub(crate) struct Problem {
    body: Box<ProblemBody>,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Whether the guard reports the refusal as an event.
    is_reported: bool,
}

impl Problem {
    pub(crate) fn new(cause: Cause, detail: impl Into<String>) -> Self {
        Self {
            body: Box::new(ProblemBody {
                r#type: cause,
                title: cause.title(),
                status: cause.status().as_u16(),
                detail: detail.into(),
                role: None,
                limit: None,
                field: None,
                filter: None,
                offset: None,
                is_as_requested: None,
            }),
            headers: Vec::new(),
            is_reported: matches!(
                cause,
                Cause::Unauthenticated | Cause::Forbidden | Cause::Host
            ),
        }
    }

    /// The request is malformed: 400.
    pub(crate) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(Cause::Malformed, detail)
    }

    /// A value in a well-formed request is invalid: 422.
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(Cause::Invalid, detail)
    }

    /// The object does not exist: 404.
    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(Cause::NotFound, detail)
    }

    /// The state of the recorder does not permit the request: 409.
    pub(crate) fn conflict(detail: impl Into<String>) -> Self {
        Self::new(Cause::Conflict, detail)
    }

    /// The client may not do this: 403.
    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(Cause::Forbidden, detail)
    }

    /// The recorder cannot do this now: 503, with the time after which the client may ask again.
    pub(crate) fn busy(detail: impl Into<String>, again: Duration) -> Self {
        Self::new(Cause::Busy, detail).retry_after(again)
    }

    /// A bug of the recorder, or an unexpected failure of the system: 500.
    pub(crate) fn bug(detail: impl Into<String>) -> Self {
        Self::new(Cause::Internal, detail)
    }

    pub(crate) fn into_body(self) -> ProblemBody {
        *self.body
    }

    /// The JSON object as text.
    pub(crate) fn text(&self) -> String {
        // Serializing a struct of strings, numbers and booleans cannot fail.
        serde_json::to_string(&self.body).unwrap_or_default()
    }

    pub(crate) fn is(&self, cause: Cause) -> bool {
        self.body.r#type == cause
    }

    pub(crate) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    pub(crate) fn with_role(mut self, role: Role) -> Self {
        self.body.role = Some(role.as_str());
        self
    }

    pub(crate) fn with_limit(mut self, limit: u64) -> Self {
        self.body.limit = Some(limit);
        self
    }

    pub(crate) fn of_field(mut self, field: &'static str) -> Self {
        self.body.field = Some(field);
        self
    }

    /// Makes the guard report the refusal as an event.
    pub(crate) fn reported(self) -> Self {
        Self {
            is_reported: true,
            ..self
        }
    }

    pub(crate) fn retry_after(self, again: Duration) -> Self {
        let seconds = HeaderValue::from(again.as_secs().max(1));
        self.with(header::RETRY_AFTER, seconds)
    }

    /// Changes the status of a limit from 429 to 503, for a client that repeats requests only after
    /// a 5xx.
    pub(crate) fn for_alertmanager(mut self) -> Self {
        if self.body.r#type == Cause::Limit {
            self.body.status = StatusCode::SERVICE_UNAVAILABLE.as_u16();
        }
        self
    }
}

impl From<CommandError> for Problem {
    fn from(error: CommandError) -> Self {
        let text = error.to_string();
        match error {
            CommandError::Filter(error) => error.into(),
            CommandError::Refused(_) | CommandError::Gone(_) => Self::conflict(text),
            CommandError::NoScan(_) => Self::conflict(text).of_field("scan_past"),
            CommandError::Suppressed(_) => Self::new(Cause::Limit, text).retry_after(TRIGGER_AGAIN),
            CommandError::RuleExists { is_as_wanted, .. } => {
                let mut problem = Self::new(Cause::RuleExists, text);
                problem.body.is_as_requested = Some(is_as_wanted);
                problem
            }
            CommandError::PinExists(_) => Self::new(Cause::PinExists, text),
            CommandError::RuleChangedBefore(_) => Self::new(Cause::Changed, text),
            CommandError::Busy
            | CommandError::Late
            | CommandError::DiskLate
            | CommandError::RuleChanged => Self::busy(text, Duration::from_secs(1)),
            _ => Self::new(Cause::Ended, text).retry_after(Duration::from_secs(60)),
        }
    }
}

impl From<FilterError> for Problem {
    fn from(error: FilterError) -> Self {
        let mut problem = Self::new(Cause::FilterSyntax, error.render());
        problem.body.offset = Some(error.span().start as u64);
        problem.body.filter = Some(error.text().to_owned());
        problem
    }
}

impl From<QueryError> for Problem {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::Filter(error) => error.into(),
            QueryError::Usage(why) => Self::invalid(why),
            QueryError::Ended => CommandError::Ended.into(),
            error => Self::bug(error.to_string()),
        }
    }
}

/// The reason and the client of a refusal that the guard reports as an event.
#[derive(Debug, Clone)]
pub(crate) struct WhyRefused {
    pub(crate) reason: String,
    /// The name of the refused client. `None`: the guard uses the name of the client that it
    /// admitted, if any.
    pub(crate) who: Option<Arc<str>>,
}

/// A refused request of a client whose name may be known.
#[derive(Debug)]
pub(crate) struct Denied {
    pub(crate) who: Option<Arc<str>>,
    pub(crate) problem: Problem,
}

impl From<Problem> for Denied {
    fn from(problem: Problem) -> Self {
        Self { who: None, problem }
    }
}

impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        let mut response = self.problem.into_response();
        if let Some(why) = response.extensions_mut().get_mut::<WhyRefused>() {
            why.who = self.who;
        }
        response
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.text()));
        let ProblemBody {
            r#type: cause,
            detail,
            status,
            ..
        } = *self.body;
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
        response.extensions_mut().insert(cause);
        if self.is_reported {
            let (reason, who) = (detail, None);
            response.extensions_mut().insert(WhyRefused { reason, who });
        }
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        let headers = self.headers.into_iter();
        response
            .headers_mut()
            .extend(headers.map(|(name, value)| (Some(name), value)));
        response
    }
}
