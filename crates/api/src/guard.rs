//! Access control: the host and origin of a request, its client, and the client's roles.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, HeaderValue, Method, Uri, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use retroscope_recorder::{Clock, Refusal, SystemClock};
use retroscope_unix::Peer;

use crate::{
    app::{App, PERMIT},
    caller::Caller,
    operations::{self, Limited, Operation},
    problem::{Cause, Problem, WhyRefused},
    stream::no_body,
    token::TokenRefusal,
};

/// How a request arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Transport {
    /// Over TCP.
    Tcp {
        /// Whether the connection uses TLS.
        is_tls: bool,
        /// The client's address and port.
        address: SocketAddr,
    },
    /// Over a unix socket.
    Unix {
        /// The client's process; `None`: the client's user may not connect.
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

    /// The client's host or user, which is the account of a client without a token.
    fn origin(self) -> String {
        match self {
            Self::Tcp { address, .. } => address.ip().to_string(),
            Self::Unix { uid: Some(uid), .. } => format!("uid {uid}"),
            Self::Unix { uid: None, .. } => "an unknown user".to_owned(),
        }
    }
}

/// A refused request.
struct Denied {
    /// The client's name, if it is known.
    who: Option<Arc<str>>,
    problem: Problem,
}

impl From<Problem> for Denied {
    fn from(problem: Problem) -> Self {
        Self { who: None, problem }
    }
}

/// Admits or refuses a request, whatever it asks for. Reports refusals that are about the client.
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
            let who = Arc::clone(&caller.name);
            request.extensions_mut().insert(caller);
            let permit = Arc::new(permit);
            let mut response = if request.method() == Method::HEAD && is_costly(&request) {
                Response::new(no_body())
            } else {
                PERMIT.scope(Arc::clone(&permit), next.run(request)).await
            };
            // The connection keeps the concurrency permit until the answer ends.
            response.extensions_mut().insert(permit);
            (Some(who), response)
        }
        Err(Denied { who, problem }) => (who, problem.into_response()),
    };
    let refusal = response.extensions().get::<Cause>().map(|it| it.word());
    app.counts.add(response.status().as_u16(), refusal);
    if let Some(WhyRefused(why)) = response.extensions_mut().remove() {
        let address = transport.and_then(Transport::address);
        let address = address.map(|address| address.ip());
        let status = Some(response.status().as_u16());
        app.refuse(Refusal::new(who.as_deref(), address, status, &why));
    }
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let nosniff = HeaderValue::from_static("nosniff");
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    response
}

/// Whether GET reads the ring or the disk. HEAD must not do that: its headers are known without
/// reading.
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
        check_origin(request.headers(), is_tls, &host)?;
    }
    let path = request.extensions().get::<MatchedPath>();
    let path = path.map(MatchedPath::as_str);
    let operation = path.and_then(|path| operations::find(request.method(), path));
    let needed = operation.map(|operation| operation.role);
    if needed == Some(None) {
        return Ok(Caller::anybody(&transport.origin()));
    }
    let caller = match transport {
        Transport::Unix {
            peer: Some(peer), ..
        } => Caller::of_peer(peer.uid, peer.pid),
        Transport::Unix { peer: None, uid } => {
            let why = "only the recorder's user, root and members of the socket's group may connect to this socket";
            return Err(Denied {
                who: uid.map(|uid| format!("uid {uid}").into()),
                problem: Problem::forbidden(why),
            });
        }
        Transport::Tcp { address, .. } => Caller {
            address: Some(address),
            ..authenticate(app, request.headers())?
        },
    };
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
        // Method names are always valid header values.
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

/// Refuses an operation that the caller's roles do not include. Refuses an operation that reports
/// all packets to a caller that may see a part of the packets.
fn check_operation(operation: &Operation, caller: &Caller) -> Result<(), Problem> {
    let name = &caller.name;
    if let Some(role) = operation.role
        && !caller.may(role)
    {
        return Err(Problem::forbidden(format!(
            "token '{name}' does not have the role '{role}', which this operation needs"
        ))
        .with_role(role));
    }
    if operation.limited == Limited::MayNot && caller.is_restricted() {
        return Err(Problem::forbidden(format!(
            "this operation shows all packets, and token '{name}' is restricted by a filter or snap length"
        )));
    }
    Ok(())
}

fn authenticate(app: &App, headers: &HeaderMap) -> Result<Caller, Denied> {
    let refuse = |challenge: &'static str, why: &str| {
        let problem = Problem::new(Cause::Unauthenticated, why);
        problem.with(
            header::WWW_AUTHENTICATE,
            HeaderValue::from_static(challenge),
        )
    };
    let ask = r#"Bearer realm="retroscope""#;
    let wrong = r#"Bearer realm="retroscope", error="invalid_token""#;
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (given, more) = (given.next(), given.next());
    let given = given.ok_or_else(|| {
        refuse(ask, "a token is asked for: send `Authorization: Bearer TOKEN`, with one that `retroscope token` made")
    })?;
    let token = given.to_str().ok().and_then(|text| {
        let (scheme, token) = text.split_once(' ')?;
        (scheme.eq_ignore_ascii_case("bearer") && more.is_none()).then_some(token.trim())
    });
    let token = token
        .ok_or_else(|| refuse(ask, "send exactly one header `Authorization: Bearer TOKEN`"))?;
    let tokens = app
        .tokens
        .as_ref()
        .ok_or_else(|| refuse(ask, "there are no tokens"))?;
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

/// The host that a request was sent to. Refuses a host name that the API does not have. A page of
/// another site can make its own name resolve to this machine (DNS rebinding), but no other name.
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
    // An absolute URI has an authority, which must be equal to `Host`: RFC 9112, section 3.2.2.
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

/// Refuses requests from pages of other sites: RFC 6454.
fn check_origin(headers: &HeaderMap, is_tls: bool, host: &Authority) -> Result<(), Problem> {
    let scheme = if is_tls { "https" } else { "http" };
    let own = format!("{scheme}://{host}");
    for origin in headers.get_all(header::ORIGIN) {
        if !origin.as_bytes().eq_ignore_ascii_case(own.as_bytes()) {
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
    use axum::http::HeaderName;

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
            check_origin(&headers(&[(header::ORIGIN, origin)]), is_tls, &host)
        };
        assert!(check_origin(&headers(&[]), false, &host).is_ok());
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
    }
}
