//! The table of operations. Access control, the OpenAPI document and most routes are made from the
//! table.

use std::sync::Arc;

use axum::{Router, http::Method, middleware::from_fn_with_state, routing};
use utoipa::OpenApi;

use crate::{app::App, guard::guard, openapi::Common, page, role::Role, routes};

/// Whether a token with a filter or a snap length may use the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limited {
    /// Yes: the operation shows only packets that the token may see, and perhaps counters of all
    /// packets.
    May,
    /// No: the operation shows more than counters of all packets, or changes the recorder.
    MayNot,
}

#[derive(Debug, Clone)]
pub(crate) struct Operation {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    /// The operation's name in the document, for generated clients.
    pub(crate) id: &'static str,
    /// The required role; `None`: the guard does not identify the client.
    pub(crate) role: Option<Role>,
    pub(crate) limited: Limited,
}

macro_rules! operations {
    ($($method:ident $name:ident $path:literal $id:ident $module:ident::$handler:ident $role:expr, $limited:ident;)*) => {
        /// All operations, without the files of the page.
        pub(crate) const OPERATIONS: &[Operation] = &[
            $(Operation { method: Method::$name, path: $path, id: stringify!($id), role: $role, limited: Limited::$limited },)*
        ];

        /// The OpenAPI document.
        #[derive(OpenApi)]
        #[openapi(
            info(
                title = "Retroscope",
                license(name = "MIT OR Apache-2.0"),
            ),
            modifiers(&Common),
            paths($(routes::$module::$handler,)*),
        )]
        pub(crate) struct Document;

        fn routes() -> Router<Arc<App>> {
            Router::new()$(.route($path, routing::$method(routes::$module::$handler)))*
        }
    };
}

operations! {
    get GET "/healthz" getHealth health::healthz None, May;
    get GET "/readyz" getReadiness health::readyz None, May;
    get GET "/metrics" getMetrics health::metrics Some(Role::Metrics), May;
    get GET "/v1/openapi.json" getOpenApi document::openapi Some(Role::Metrics), May;
    get GET "/v1/session" getSession session::read None, May;
    post POST "/v1/session" createSession session::create None, May;
    delete DELETE "/v1/session" deleteSession session::end Some(Role::Metrics), May;
    delete DELETE "/v1/sessions" deleteSessions session::end_all Some(Role::Admin), May;
    post POST "/v1/links" createLink session::link Some(Role::View), May;
    get GET "/v1/status" getStatus status::status Some(Role::View), May;
    get GET "/v1/interfaces" listInterfaces status::interfaces Some(Role::View), May;
    get GET "/v1/doctor" checkMachine status::doctor Some(Role::View), May;
    get GET "/v1/events" followEvents events::events Some(Role::View), MayNot;
    get GET "/v1/rules" listRules rules::list Some(Role::View), MayNot;
    post POST "/v1/rules/test" testRule rule_test::test Some(Role::View), May;
    get GET "/v1/rules/{name}" getRule rules::read Some(Role::View), MayNot;
    put PUT "/v1/rules/{name}" putRule rules::put Some(Role::Admin), MayNot;
    patch PATCH "/v1/rules/{name}" enableRule rules::enable Some(Role::Admin), MayNot;
    delete DELETE "/v1/rules/{name}" deleteRule rules::remove Some(Role::Admin), MayNot;
    post POST "/v1/triggers" trigger triggers::trigger Some(Role::Trigger), May;
    post POST "/v1/alertmanager" notifyAlerts alertmanager::notify Some(Role::Trigger), May;
    get GET "/v1/dumps" listDumps dumps::list Some(Role::View), MayNot;
    get GET "/v1/dumps/{number}" getDump dumps::read Some(Role::View), MayNot;
    delete DELETE "/v1/dumps/{number}" deleteDump dump_files::delete Some(Role::Admin), MayNot;
    get GET "/v1/dumps/{number}/file" getDumpFile dump_files::file Some(Role::Packets), MayNot;
    put PUT "/v1/dumps/{number}/hold" holdDump dump_files::hold Some(Role::Admin), MayNot;
    delete DELETE "/v1/dumps/{number}/hold" releaseDump dump_files::release Some(Role::Admin), MayNot;
    get GET "/v1/pins" listPins pins::list Some(Role::View), MayNot;
    get GET "/v1/pins/{name}" getPin pins::read Some(Role::View), MayNot;
    put PUT "/v1/pins/{name}" putPin pins::put Some(Role::Admin), MayNot;
    delete DELETE "/v1/pins/{name}" deletePin pins::remove Some(Role::Admin), MayNot;
    get GET "/v1/filters" checkFilter filters::check Some(Role::View), May;
    get GET "/v1/query" queryPackets query::query Some(Role::Packets), May;
    get GET "/v1/queries/{id}" getQuery query::verdict Some(Role::Packets), May;
    delete DELETE "/v1/queries/{id}" cancelQuery query::cancel Some(Role::Packets), May;
    get GET "/v1/packets" listPackets packets::list Some(Role::View), May;
    get GET "/v1/details" getPacketDetails details::details Some(Role::Packets), May;
    get GET "/v1/stream" followStream details::stream Some(Role::Packets), May;
    get GET "/v1/timeline" getTimeline timeline::timeline Some(Role::View), MayNot;
    get GET "/v1/top" getTop top::top Some(Role::View), May;
    get GET "/v1/when-full" getWhenFull control::when_full Some(Role::View), May;
    put PUT "/v1/when-full" setWhenFull control::set_when_full Some(Role::Admin), MayNot;
    post POST "/v1/reload" reload control::reload Some(Role::Admin), MayNot;
    post POST "/v1/stop" stop control::stop Some(Role::Admin), MayNot;
}

/// Finds the operation of a method and a matched path. HEAD is GET without a body: RFC 9110,
/// section 9.3.2.
pub(crate) fn find(method: &Method, path: &str) -> Option<&'static Operation> {
    let method = if method == Method::HEAD {
        &Method::GET
    } else {
        method
    };
    served().find(|operation| operation.path == path && operation.method == method)
}

fn served() -> impl Iterator<Item = &'static Operation> {
    OPERATIONS.iter().chain(page::OPERATIONS)
}

/// The methods of a path, as value of `Allow`.
pub(crate) fn methods(path: &str) -> String {
    let own = served().filter(|operation| operation.path == path);
    let names = own.map(|operation| match operation.method {
        Method::GET => "GET, HEAD",
        ref method => method.as_str(),
    });
    names.collect::<Vec<_>>().join(", ")
}

/// The operations that an address serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouteSet {
    All,
    /// `/metrics`, `/healthz` and `/readyz`.
    Metrics,
}

fn metrics() -> Router<Arc<App>> {
    Router::new()
        .route("/metrics", routing::get(routes::health::metrics))
        .route("/healthz", routing::get(routes::health::healthz))
        .route("/readyz", routing::get(routes::health::readyz))
}

/// The routes of an address, with access control.
pub(crate) fn router(app: &Arc<App>, part: RouteSet) -> Router {
    let routes = match part {
        RouteSet::All if app.has_page => routes().merge(page::routes()),
        RouteSet::All => routes(),
        RouteSet::Metrics => metrics(),
    };
    routes
        .layer(from_fn_with_state(Arc::clone(app), guard))
        .with_state(Arc::clone(app))
}
