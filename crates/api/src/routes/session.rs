//! Sessions of the page: login, logout, and links that log in once.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Extension,
    extract::{FromRequest, Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use jiff::Timestamp;
use retroscope_recorder::{Action, Clock, SystemClock};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{AppState, CallerExtension};
use crate::{
    app::App,
    caller::Caller,
    extract::{Json, NoQuery, QueryParams},
    guard::{Lack, Transport, authenticate, cookie_name, identify, lack, unauthenticated},
    operations::OPERATIONS,
    problem::{Cause, Denied, Problem},
    sessions::LINK_LIFETIME,
};

/// The client of the request, and what the client may do.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Session)]
pub(crate) struct SessionBody {
    /// The token's name, or the user at the unix socket; `null`: no login.
    caller: Option<String>,
    /// Whether there is a token file. Without a token file only links log in.
    tokens: bool,
    /// Present if somebody is logged in.
    #[serde(flatten)]
    #[schema(inline)]
    client: Option<ClientBody>,
}

/// What a client may do.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClientBody {
    /// The token's roles. A role may include others.
    roles: Vec<&'static str>,
    /// What the token sees of packets; `null`: everything.
    restricted: Option<RestrictionBody>,
    /// When the session ends if it is not used, RFC 3339; `null`: no session.
    expires: Option<String>,
    /// Time without use after which a session ends, seconds.
    idle_seconds: u64,
    /// The program's version.
    version: &'static str,
    /// The UUID of the recording; `null`: the recording has ended.
    recording: Option<String>,
    /// By `operationId`, why the client's roles, filter or snap length forbid the operation.
    may_not: BTreeMap<&'static str, String>,
}

/// The part of the packets that a token sees.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Restriction)]
struct RestrictionBody {
    /// The token's filter; `null`: all packets.
    filter: Option<String>,
    /// Bytes of each packet; `null`: all bytes.
    snaplen: Option<u32>,
}

/// The login by a link.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Login)]
pub(crate) struct LoginBody {
    /// The code after `#link=` of a link.
    link: String,
}

/// A link that logs in once.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Link)]
pub(crate) struct LinkBody {
    /// The address of the page with the code.
    url: String,
    /// End of the link's validity, RFC 3339.
    expires: String,
}

/// Ended sessions.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = EndedSessions)]
pub(crate) struct EndedBody {
    /// Number of sessions that have ended.
    ended: usize,
}

impl SessionBody {
    fn of(app: &App, caller: Option<&Caller>) -> Self {
        Self {
            caller: caller.map(|caller| caller.name.to_string()),
            tokens: app.tokens.is_some(),
            client: caller.map(|caller| ClientBody::of(app, caller)),
        }
    }
}

impl ClientBody {
    fn of(app: &App, caller: &Caller) -> Self {
        let session = caller.session.as_ref();
        let may_not = OPERATIONS.iter().filter_map(|operation| {
            let why = match lack(operation, caller)? {
                Lack::Role(role) => format!("needs the role '{role}'"),
                Lack::Packets => {
                    "shows all packets, and this token is restricted by a filter or snap length"
                        .to_owned()
                }
            };
            Some((operation.id, why))
        });
        Self {
            roles: caller.roles.iter().map(|role| role.as_str()).collect(),
            restricted: caller.is_restricted().then(|| RestrictionBody {
                filter: caller.filter.as_deref().map(str::to_owned),
                snaplen: caller.snaplen,
            }),
            expires: session.map(|session| after(app.sessions.left(session, Instant::now()))),
            idle_seconds: app.sessions.idle.as_secs(),
            version: env!("CARGO_PKG_VERSION"),
            recording: app.handle.recording(),
            may_not: may_not.collect(),
        }
    }
}

/// The time `wait` after now, RFC 3339, in whole seconds.
fn after(wait: Duration) -> String {
    let now = i128::from(SystemClock.now().wall_ns);
    let then = now + i128::try_from(wait.as_nanos()).unwrap_or_default();
    let seconds = i64::try_from(then / 1_000_000_000).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).map_or_else(|_| String::new(), |time| time.to_string())
}

/// The client of this request
///
/// Without a login, `caller` is `null`.
#[utoipa::path(get, path = "/v1/session", tag = "session", responses((status = 200, body = SessionBody)))]
pub(crate) async fn read(
    State(app): AppState,
    Extension(transport): Extension<Transport>,
    _: QueryParams<NoQuery>,
    headers: HeaderMap,
) -> Result<Json<SessionBody>, Denied> {
    let caller = match identify(&app, &Method::GET, &headers, transport) {
        Ok(caller) => Some(caller),
        // The client has neither a token nor a valid session.
        Err(denied) if denied.problem.is(Cause::Unauthenticated) && !has_token(&headers) => None,
        Err(denied) => return Err(denied),
    };
    Ok(Json(SessionBody::of(&app, caller.as_ref())))
}

fn has_token(headers: &HeaderMap) -> bool {
    headers.contains_key(header::AUTHORIZATION)
}

/// Log in: exchange a token or a link for a session
///
/// The token is in the header `Authorization`, a link is in the body. The answer sets a cookie,
/// which stands for the token in later requests. Over TCP only.
#[utoipa::path(
    post, path = "/v1/session", tag = "session",
    request_body(content = Option<LoginBody>, description = "Left out with a token."),
    responses((status = 200, body = SessionBody, headers(("Set-Cookie" = String, description = "The cookie of the session.")))),
)]
pub(crate) async fn create(
    State(app): AppState,
    Extension(transport): Extension<Transport>,
    _: QueryParams<NoQuery>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Denied> {
    needs_page(&app)?;
    let Transport::Tcp { address, is_tls } = transport else {
        let why = "a unix socket needs no session: each request is that of the socket's user";
        return Err(Problem::malformed(why).into());
    };
    let limited = app.sessions.may_try(address.ip(), Instant::now());
    limited.map_err(|wait| {
        let why = "too many failed logins from this address: try again later";
        Problem::new(Cause::Limit, why)
            .retry_after(wait + Duration::from_secs(1))
            .reported()
    })?;
    let caller = credentials(&app, &headers, request).await;
    let caller = caller.inspect_err(|denied| {
        if denied.problem.is(Cause::Unauthenticated) {
            app.sessions.count_failure(address.ip(), Instant::now());
        }
    })?;
    let caller = Caller {
        address: Some(address),
        ..caller
    };
    let (caller, value) = app
        .sessions
        .start(caller, Instant::now())
        .map_err(no_random)?;
    app.handle.tell_change(caller.change(Action::LogIn));
    // Without `Path`, the browser sends the cookie only to the folder of this request's path,
    // including a prefix that a proxy removes (RFC 6265, section 5.1.4). So recorders below
    // different prefixes of a host have separate sessions.
    let name = cookie_name(&headers, is_tls);
    let secure = if is_secure(&headers, is_tls) {
        "; Secure"
    } else {
        ""
    };
    let cookie = format!("{name}={value}; HttpOnly; SameSite=Strict{secure}");
    let body = Json(SessionBody::of(&app, Some(&caller)));
    Ok(with_cookie(body.into_response(), &cookie))
}

/// Whether the browser uses TLS, to this recorder or to a proxy. The guard has checked `Origin`,
/// which names a proxy.
fn is_secure(headers: &HeaderMap, is_tls: bool) -> bool {
    let origin = headers.get(header::ORIGIN);
    is_tls || origin.is_some_and(|origin| origin.as_bytes().starts_with(b"https:"))
}

fn with_cookie(mut response: Response, cookie: &str) -> Response {
    // The cookie's name and value have only letters, digits and hyphens.
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

async fn credentials(app: &App, headers: &HeaderMap, request: Request) -> Result<Caller, Denied> {
    if has_token(headers) {
        return authenticate(app, headers);
    }
    if !headers.contains_key(header::CONTENT_TYPE) {
        let why = "log in with `Authorization: Bearer TOKEN`, or with a body {\"link\": CODE}";
        return Err(Problem::malformed(why).into());
    }
    let Json(LoginBody { link }) = Json::from_request(request, &()).await?;
    let caller = app.sessions.redeem(&link, Instant::now());
    let caller = caller.ok_or_else(|| {
        unauthenticated("this link was used, or is too old: `retroscope open` makes another one")
    })?;
    match app.check(&caller) {
        Ok(()) => Ok(caller),
        Err(why) => Err(Denied {
            who: Some(caller.name),
            problem: unauthenticated(&why),
        }),
    }
}

/// Log out: end the session of this request
#[utoipa::path(
    delete, path = "/v1/session", tag = "session",
    responses((status = 204, description = "The session has ended.")),
)]
pub(crate) async fn end(
    State(app): AppState,
    Extension(caller): CallerExtension,
    Extension(transport): Extension<Transport>,
    _: QueryParams<NoQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (Some(session), Transport::Tcp { is_tls, .. }) = (&caller.session, transport) else {
        return Err(Problem::not_found(
            "this request has no session: it has a token, or is from the unix socket",
        ));
    };
    app.sessions.end(session);
    app.handle.tell_change(caller.change(Action::LogOut));
    let cookie = format!("{}=; Max-Age=0", cookie_name(&headers, is_tls));
    Ok(with_cookie(StatusCode::NO_CONTENT.into_response(), &cookie))
}

/// End all sessions and links
#[utoipa::path(
    delete, path = "/v1/sessions", tag = "session",
    responses((status = 200, body = EndedBody)),
)]
pub(crate) async fn end_all(
    State(app): AppState,
    Extension(caller): CallerExtension,
    _: QueryParams<NoQuery>,
) -> Json<EndedBody> {
    let ended = app.sessions.end_unless(|_| false);
    app.handle
        .tell_change(caller.change(Action::LogOut).of("all"));
    Json(EndedBody { ended })
}

/// Make a link that logs in to the page once, as this client
///
/// The link is valid for 60 s. A request with a session cannot make links.
#[utoipa::path(
    post, path = "/v1/links", tag = "session",
    responses((status = 201, body = LinkBody)),
)]
pub(crate) async fn link(
    State(app): AppState,
    Extension(caller): CallerExtension,
    Extension(transport): Extension<Transport>,
    _: QueryParams<NoQuery>,
    headers: HeaderMap,
) -> Result<(StatusCode, Json<LinkBody>), Problem> {
    needs_page(&app)?;
    if caller.session.is_some() {
        return Err(Problem::forbidden(
            "a session makes no links, so that it ends with its logout",
        ));
    }
    let base = match transport {
        Transport::Unix { .. } => app.page_url.clone(),
        Transport::Tcp { is_tls, .. } => page_of(&headers, is_tls),
    };
    let base = base.ok_or_else(|| {
        Problem::conflict("the page has no address: start the recorder with --api 127.0.0.1:PORT")
    })?;
    // A session may outlive the process that made the link, and all processes of a user share the
    // user's account. So the session's name contains the user but no process.
    let name = match &caller.token {
        Some(_) => Arc::clone(&caller.name),
        None => Arc::clone(&caller.account),
    };
    let of_link = Caller {
        name,
        address: None::<SocketAddr>,
        ..caller.clone()
    };
    let code = app
        .sessions
        .link(of_link, Instant::now())
        .map_err(no_random)?;
    app.handle.tell_change(caller.change(Action::MakeLink));
    let body = LinkBody {
        url: format!("{base}#link={code}"),
        expires: after(LINK_LIFETIME),
    };
    Ok((StatusCode::CREATED, Json(body)))
}

/// The page's address, from the address that the client uses.
fn page_of(headers: &HeaderMap, is_tls: bool) -> Option<String> {
    let host = headers.get(header::HOST)?.to_str().ok()?;
    let scheme = if is_secure(headers, is_tls) {
        "https"
    } else {
        "http"
    };
    Some(format!("{scheme}://{host}/"))
}

fn needs_page(app: &App) -> Result<(), Problem> {
    match app.has_page {
        true => Ok(()),
        false => Err(Problem::not_found(
            "there are no sessions, because there is no page: api.page is false",
        )),
    }
}

fn no_random(error: io::Error) -> Problem {
    Problem::busy(
        format!("the system has no random numbers: {error}"),
        Duration::from_secs(1),
    )
}
