//! Access control: the host and origin of a request, its client, and the client's roles.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use axum::{
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use retroscope_recorder::{Clock, Refusal, SystemClock};
use retroscope_unix::Peer;

use crate::{
    app::{App, PERMIT},
    caller::Caller,
    operations::{self, Limited, Operation},
    page::CONTENT_SECURITY_POLICY,
    problem::{Cause, Denied, Problem, WhyRefused},
    role::Role,
    stream::no_body,
    token::TokenRefusal,
};

/// A response header: pages of other origins, such as other ports of this machine, cannot embed the
/// answer.
const SAME_ORIGIN_RESOURCES: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
/// A request header that browsers set (Fetch Metadata): whether the requesting page is from the
/// API's origin, the API's site, or another site.
const SEC_FETCH_SITE: &str = "sec-fetch-site";
/// Maximum number of session cookies of a request that the API tries. Proxies can give a browser
/// several cookies of the same name.
const COOKIES_MAX: usize = 4;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Transport {
    Tcp {
        is_tls: bool,
        address: SocketAddr,
    },
    Unix {
        /// The client's user and process; `None`: the client may not use the socket.
        peer: Option<Peer>,
        /// The client's user ID; `None`: unknown.
        uid: Option<u32>,
    },
}

impl Transport {
    fn address(self) -> Option<SocketAddr> {
        match self {
            Self::Tcp { address, .. } => Some(address),
            Self::Unix { .. } => None,
        }
    }

    /// The client's host or user. Clients of one origin that need no token share the request limit.
    fn origin(self) -> String {
        match self {
            Self::Tcp { address, .. } => address.ip().to_string(),
            Self::Unix { uid: Some(uid), .. } => format!("uid {uid}"),
            Self::Unix { uid: None, .. } => "an unknown user".to_owned(),
        }
    }
}

/// Middleware for all requests: admits or refuses a request, reports refusals that are about the
/// client, and sets security headers.
pub(crate) async fn guard(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    let transport = request.extensions().get::<Transport>().copied();
    let admitted = admit(&app, &request, transport).and_then(|caller| {
        let permit = app.request_limit.take(&caller);
        let permit = permit.map_err(|problem| match request.uri().path() {
            "/v1/alertmanager" => problem.for_alertmanager(),
            _ => problem,
        })?;
        Ok((caller, permit))
    });
    let (who, mut response) = match admitted {
        Ok((caller, permit)) => {
            let who = (!caller.roles.is_empty()).then(|| Arc::clone(&caller.name));
            request.extensions_mut().insert(caller);
            let permit = Arc::new(permit);
            let mut response = if request.method() == Method::HEAD && is_costly(&request) {
                Response::new(no_body())
            } else {
                PERMIT.scope(Arc::clone(&permit), next.run(request)).await
            };
            // The connection keeps the concurrency permit until the answer ends.
            response.extensions_mut().insert(permit);
            (who, response)
        }
        Err(denied) => (None, denied.into_response()),
    };
    let refusal = response.extensions().get::<Cause>().map(|it| it.word());
    app.counts.add(response.status().as_u16(), refusal);
    if let Some(refused) = response.extensions_mut().remove::<WhyRefused>() {
        let address = transport.and_then(Transport::address);
        let address = address.map(|address| address.ip());
        let status = Some(response.status().as_u16());
        let who = refused.who.or(who);
        app.refuse(Refusal::new(
            who.as_deref(),
            address,
            status,
            &refused.reason,
        ));
    }
    let headers = response.headers_mut();
    // Answers with the page's files already have a value.
    let cached = headers.entry(header::CACHE_CONTROL);
    cached.or_insert(HeaderValue::from_static("no-store"));
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (SAME_ORIGIN_RESOURCES, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Whether HEAD gets an empty answer without GET's handler, because the handler reads the ring or
/// the disk, inspects the machine, or waits for events.
fn is_costly(request: &Request) -> bool {
    let path = request.extensions().get::<MatchedPath>();
    let path = path.map(MatchedPath::as_str).unwrap_or_default();
    let costly = [
        "details", "doctor", "dumps", "events", "packets", "query", "stream", "timeline", "top",
    ];
    path.strip_prefix("/v1/")
        .is_some_and(|path| costly.contains(&path))
}

fn admit(app: &App, request: &Request, transport: Option<Transport>) -> Result<Caller, Denied> {
    let transport =
        transport.ok_or_else(|| Problem::bug("it is not known how the request came"))?;
    if let Transport::Tcp { is_tls, .. } = transport {
        let host = check_host(request.uri(), request.headers(), &app.hosts)?;
        check_origin(request.headers(), is_tls, &host, &app.hosts)?;
    }
    let path = request.extensions().get::<MatchedPath>();
    let path = path.map(MatchedPath::as_str);
    let operation = path.and_then(|path| operations::find(request.method(), path));
    let needed = operation.map(|operation| operation.role);
    if needed == Some(None) {
        return Ok(Caller::anybody(&transport.origin()));
    }
    let caller = identify(app, request.method(), request.headers(), transport)?;
    let Some(path) = path else {
        let asked = request.uri().path();
        let why = format!(
            "there is nothing at {asked:?}: /v1/openapi.json lists what there is at addresses of --api"
        );
        return Err(Problem::not_found(why).into());
    };
    let Some(operation) = operation else {
        let allowed = operations::methods(path);
        let why = format!("{} is not for {path}: use {allowed}", request.method());
        let problem = Problem::new(Cause::Method, why);
        // Method names are valid header values.
        let problem = match HeaderValue::from_str(&allowed) {
            Ok(allowed) => problem.with(header::ALLOW, allowed),
            Err(_) => problem,
        };
        return Err(problem.into());
    };
    match check_operation(operation, &caller) {
        Ok(()) => Ok(caller),
        Err(problem) => Err(Denied {
            who: Some(caller.name),
            problem,
        }),
    }
}

/// Why a caller may not use an operation.
pub(crate) enum Lack {
    Role(Role),
    /// The token restricts which packets the caller may see, and the operation is not for such
    /// callers.
    Packets,
}

pub(crate) fn lack(operation: &Operation, caller: &Caller) -> Option<Lack> {
    match operation.role {
        Some(role) if !caller.may(role) => Some(Lack::Role(role)),
        _ if operation.limited == Limited::MayNot && caller.is_restricted() => Some(Lack::Packets),
        _ => None,
    }
}

fn check_operation(operation: &Operation, caller: &Caller) -> Result<(), Problem> {
    let name = &caller.name;
    match lack(operation, caller) {
        None => Ok(()),
        Some(Lack::Role(role)) => Err(Problem::forbidden(format!(
            "token '{name}' does not have the role '{role}', which this operation needs"
        ))
        .with_role(role)),
        Some(Lack::Packets) => Err(Problem::forbidden(format!(
            "this operation shows all packets, and token '{name}' is restricted by a filter or snap length"
        ))),
    }
}

/// The client of a request: by its token, its session's cookie, or the unix socket.
pub(crate) fn identify(
    app: &App,
    method: &Method,
    headers: &HeaderMap,
    transport: Transport,
) -> Result<Caller, Denied> {
    let (address, is_tls) = match transport {
        Transport::Unix {
            peer: Some(peer), ..
        } => return Ok(Caller::of_peer(peer.uid, peer.pid)),
        Transport::Unix { peer: None, uid } => {
            let why = "only the recorder's user, root and members of the socket's group may connect to this socket";
            return Err(Denied {
                who: uid.map(|uid| format!("uid {uid}").into()),
                problem: Problem::forbidden(why),
            });
        }
        Transport::Tcp { address, is_tls } => (address, is_tls),
    };
    let values = session_values(headers, is_tls);
    let caller = match values.is_empty() || headers.contains_key(header::AUTHORIZATION) {
        true => authenticate(app, headers)?,
        false => resume(app, method, headers, &values)?,
    };
    let address = Some(address);
    Ok(Caller { address, ..caller })
}

/// The name of the session cookie. It contains the port that the browser uses, because browsers
/// send a cookie to all ports of a host.
pub(crate) fn cookie_name(headers: &HeaderMap, is_tls: bool) -> String {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let host = host.and_then(|host| host.parse::<Authority>().ok());
    let port = host.and_then(|host| host.port_u16());
    format!(
        "retroscope-{}",
        port.unwrap_or(if is_tls { 443 } else { 80 })
    )
}

fn session_values(headers: &HeaderMap, is_tls: bool) -> Vec<&str> {
    let cookies = headers.get_all(header::COOKIE).iter();
    let cookies = cookies.filter_map(|value| value.to_str().ok());
    let mut cookies = cookies.flat_map(|value| value.split(';')).peekable();
    if cookies.peek().is_none() {
        return Vec::new();
    }
    let name = cookie_name(headers, is_tls);
    let values = cookies.filter_map(|cookie| {
        let (of, value) = cookie.trim().split_once('=')?;
        (of == name).then_some(value)
    });
    values.take(COOKIES_MAX).collect()
}

/// Finds the client of a session by the values of its cookie. A browser may attach the cookie to a
/// request from a page of another origin. So a request must show, by `Sec-Fetch-Site` or `Origin`,
/// that it is from a page of this origin. GET and HEAD may lack both headers.
fn resume(
    app: &App,
    method: &Method,
    headers: &HeaderMap,
    values: &[&str],
) -> Result<Caller, Denied> {
    let site = headers.get(SEC_FETCH_SITE).map(HeaderValue::as_bytes);
    let is_reading = matches!(*method, Method::GET | Method::HEAD);
    // `check_origin` has refused every other `Origin`.
    let is_own = match site {
        Some(b"same-origin") => true,
        // The user entered the address, or opened a bookmark.
        Some(b"none") => is_reading,
        Some(_) => false,
        None => is_reading || headers.contains_key(header::ORIGIN),
    };
    if !is_own {
        let why = "only a page of this recorder may use its session: send `Origin`, or a token instead of the cookie";
        return Err(Problem::forbidden(why).into());
    }
    let now = Instant::now();
    let caller = values
        .iter()
        .find_map(|value| app.sessions.find(value, now));
    let caller = caller.ok_or_else(|| unauthenticated("this session has ended: log in again"))?;
    if let Err(why) = app.check(&caller) {
        app.end_sessions_of_lost_tokens();
        return Err(Denied {
            who: Some(caller.name),
            problem: unauthenticated(&format!("{why}: log in again")),
        });
    }
    Ok(caller)
}

/// The value of `WWW-Authenticate`, unless the client sent an unknown or expired token.
const ASK: &str = r#"Bearer realm="retroscope""#;

fn refuse(challenge: &'static str, why: &str) -> Problem {
    let problem = Problem::new(Cause::Unauthenticated, why);
    problem.with(
        header::WWW_AUTHENTICATE,
        HeaderValue::from_static(challenge),
    )
}

/// The refusal (401) of a client without a valid token or session.
pub(crate) fn unauthenticated(why: &str) -> Problem {
    refuse(ASK, why)
}

/// The client whose token is in the header `Authorization`.
pub(crate) fn authenticate(app: &App, headers: &HeaderMap) -> Result<Caller, Denied> {
    let wrong = r#"Bearer realm="retroscope", error="invalid_token""#;
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (given, more) = (given.next(), given.next());
    let given = given.ok_or_else(|| {
        refuse(ASK, "a token is asked for: send `Authorization: Bearer TOKEN`, with one that `retroscope token` made")
    })?;
    let token = given.to_str().ok().and_then(|text| {
        let (scheme, token) = text.split_once(' ')?;
        (scheme.eq_ignore_ascii_case("bearer") && more.is_none()).then_some(token.trim())
    });
    let token = token
        .ok_or_else(|| refuse(ASK, "send exactly one header `Authorization: Bearer TOKEN`"))?;
    let tokens = app.tokens.as_ref().ok_or_else(|| {
        refuse(
            ASK,
            "there are no tokens: `retroscope open` logs in to the page",
        )
    })?;
    tokens
        .caller(token, SystemClock.now().wall_ns)
        .map_err(|refused| match refused {
            TokenRefusal::Unknown => refuse(
                wrong,
                "this token is not known: `retroscope token` makes one that is",
            )
            .into(),
            TokenRefusal::Expired(name) => Denied {
                who: Some(name),
                problem: refuse(
                    wrong,
                    "this token has expired: make another one by `retroscope token`",
                ),
            },
        })
}

/// The host that a request was sent to. Refuses unknown host names, because a page of another site
/// can make its own name resolve to this machine (DNS rebinding).
fn check_host(uri: &Uri, headers: &HeaderMap, hosts: &[String]) -> Result<Authority, Problem> {
    let mut given = headers.get_all(header::HOST).iter();
    let (given, more) = (given.next(), given.next());
    let read = |value: &HeaderValue| value.to_str().ok()?.parse::<Authority>().ok();
    let host = given.filter(|_| more.is_none()).and_then(read);
    let host = host.ok_or_else(|| {
        Problem::malformed(
            "one `Host` header is needed, with the address or name that was asked for",
        )
    })?;
    // An absolute URI has an authority, which must be equal to `Host`: RFC 9112, sections 3.2 and
    // 3.2.2.
    if uri.authority().is_some_and(|authority| *authority != host) {
        return Err(Problem::malformed(
            "`Host` is another one than that of the request line",
        ));
    }
    let name = host.host().to_ascii_lowercase();
    let is_address = name.parse::<std::net::Ipv4Addr>().is_ok()
        || name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'))
            .is_some_and(|name| name.parse::<std::net::Ipv6Addr>().is_ok());
    let has_user = host.as_str().contains('@');
    if has_user || !(is_address || name == "localhost" || hosts.contains(&name)) {
        return Err(Problem::new(
            Cause::Host,
            format!(
                "the API is not asked for by the name {name:?}: use its address, or start the recorder with `--set api.host=NAME`"
            ),
        ));
    }
    Ok(host)
}

/// Refuses requests from pages of other origins: RFC 6454. A name in `hosts` may be that of a proxy
/// that ends TLS, so the scheme of the page's origin may be `https`.
fn check_origin(
    headers: &HeaderMap,
    is_tls: bool,
    host: &Authority,
    hosts: &[String],
) -> Result<(), Problem> {
    let scheme = if is_tls { "https" } else { "http" };
    let own = format!("{scheme}://{host}");
    let of_proxy = hosts.contains(&host.host().to_ascii_lowercase());
    let of_proxy = of_proxy.then(|| format!("https://{host}"));
    for origin in headers.get_all(header::ORIGIN) {
        let is = |own: &str| origin.as_bytes().eq_ignore_ascii_case(own.as_bytes());
        if !is(&own) && !of_proxy.as_deref().is_some_and(is) {
            let origin = String::from_utf8_lossy(origin.as_bytes());
            return Err(Problem::forbidden(format!(
                "pages of {origin:?} may not use the API: the only origin that may is {own}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(of: &[(HeaderName, &str)]) -> HeaderMap {
        let all = of.iter();
        all.map(|(name, value)| (name.clone(), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn names_that_may_lead_anywhere_are_refused() {
        let hosts = ["tap.example".to_owned()];
        let check = |host: &str| {
            check_host(
                &Uri::from_static("/"),
                &headers(&[(header::HOST, host)]),
                &hosts,
            )
        };
        for good in [
            "127.0.0.1",
            "127.0.0.1:80",
            "192.0.2.1:1",
            "[::1]",
            "[::1]:8080",
            "LocalHost:80",
            "localhost",
            "TAP.example:443",
        ] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in [
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil",
            "tap.example.evil",
            "",
            "a b",
            "[::1",
            "::1",
            "0x7f000001",
            "user@127.0.0.1",
            "127.0.0.1/x",
            "[localhost]",
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
        let none = check_host(&Uri::from_static("/"), &headers(&[]), &hosts);
        assert!(none.is_err());
        let two = headers(&[(header::HOST, "localhost"), (header::HOST, "localhost")]);
        assert!(check_host(&Uri::from_static("/"), &two, &hosts).is_err());
        let absolute = |uri| {
            check_host(
                &Uri::from_static(uri),
                &headers(&[(header::HOST, "localhost")]),
                &hosts,
            )
        };
        assert!(absolute("http://localhost/v1").is_ok());
        assert!(absolute("http://evil.example/v1").is_err());
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let host = Authority::from_static("127.0.0.1:8080");
        let check = |origin: &str, is_tls| {
            check_origin(&headers(&[(header::ORIGIN, origin)]), is_tls, &host, &[])
        };
        assert!(check_origin(&headers(&[]), false, &host, &[]).is_ok());
        assert!(check("http://127.0.0.1:8080", false).is_ok());
        assert!(check("https://127.0.0.1:8080", true).is_ok());
        for origin in [
            "null",
            "",
            "https://127.0.0.1:8080",
            "http://127.0.0.1",
            "http://127.0.0.1:8081",
            "http://localhost:8080",
            "http://evil.example",
            "http://127.0.0.1:8080.evil.example",
        ] {
            assert!(check(origin, false).is_err(), "{origin}");
        }
        let named = Authority::from_static("Tap.example:8443");
        let behind_proxy = |origin: &str| {
            let origin = headers(&[(header::ORIGIN, origin)]);
            check_origin(&origin, false, &named, &["tap.example".to_owned()]).is_ok()
        };
        assert!(behind_proxy("https://tap.example:8443"));
        assert!(!behind_proxy("https://tap.example") && !behind_proxy("https://127.0.0.1:8443"));
    }
}
