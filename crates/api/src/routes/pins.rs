//! Pins: time ranges that the ring keeps.

use axum::{
    Extension,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use retroscope_recorder::{Action, PinChange};
use serde::Serialize;
use utoipa::ToSchema;

use super::{AppState, CallerExtension};
use crate::{
    app::{App, run_blocking},
    bodies::{request::PinRequestBody, status::PinBody},
    extract::{Json, NoQuery, PathParam, Precondition, QueryParams, check_name},
    problem::Problem,
};

/// All pins.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Pins)]
pub(crate) struct PinsBody {
    pins: Vec<PinBody>,
}

/// The pins, by name
#[utoipa::path(get, path = "/v1/pins", tag = "pins", responses((status = 200, body = PinsBody)))]
pub(crate) async fn list(
    State(app): AppState,
    _: QueryParams<NoQuery>,
) -> Result<Json<PinsBody>, Problem> {
    run_blocking(move || Ok(Json(PinsBody { pins: all(&app)? }))).await
}

/// A pin
#[utoipa::path(
    get, path = "/v1/pins/{name}", tag = "pins",
    params(("name" = String, Path, description = "The pin's name.", min_length = 1, max_length = 64)),
    responses((status = 200, body = PinBody)),
)]
pub(crate) async fn read(
    State(app): AppState,
    _: QueryParams<NoQuery>,
    PathParam(name): PathParam<String>,
) -> Result<Json<PinBody>, Problem> {
    run_blocking(move || {
        let found = all(&app)?.into_iter().find(|pin| pin.name() == name);
        found.map(Json).ok_or_else(|| no_pin(&name))
    })
    .await
}

/// Creates or replaces a pin: the ring keeps the packets of a time range
///
/// The body `{}` means all packets up to now. If dumps and pins need all packets in the ring, new
/// packets may overwrite packets of the pin, and the pin is then revoked, unless `/v1/when-full` is
/// `protect`. With `If-None-Match: *` the request fails with 412 if the pin exists.
///
/// With `lease` the pin ends after that time. A repeated request with the same `from` and `to`
/// renews the lease and keeps the pin's packets.
#[utoipa::path(
    put, path = "/v1/pins/{name}", tag = "pins",
    params(
        ("name" = String, Path, description = "The pin's name.", min_length = 1, max_length = 64),
        ("If-None-Match" = Option<String>, Header, description = "`*`: replace no existing pin.", pattern = r"^\*$"),
    ),
    request_body = PinRequestBody,
    responses(
        (status = 200, description = "The pin replaces an older pin, or its lease is renewed.", body = PinBody),
        (status = 201, description = "The pin is new.", body = PinBody),
    ),
)]
pub(crate) async fn put(
    State(app): AppState,
    Extension(caller): CallerExtension,
    _: QueryParams<NoQuery>,
    PathParam(name): PathParam<String>,
    headers: HeaderMap,
    Json(asked): Json<PinRequestBody>,
) -> Result<(StatusCode, Json<PinBody>), Problem> {
    check_name(&name)?;
    let only_new = match Precondition::read(&headers)? {
        Precondition::None => false,
        Precondition::New => true,
        _ => return Err(Problem::malformed("a pin has no `ETag` for `If-Match`")),
    };
    let (stretch, lease) = asked.read()?;
    run_blocking(move || {
        let (pin, change) = app.handle.pin(&name, stretch, lease, only_new)?;
        if change != PinChange::Renewed {
            app.handle.tell_change(caller.change(Action::Pin).of(&name));
        }
        let status = match change {
            PinChange::Made => StatusCode::CREATED,
            PinChange::Replaced | PinChange::Renewed => StatusCode::OK,
        };
        Ok((status, Json(PinBody::from(&pin))))
    })
    .await
}

/// Remove a pin
#[utoipa::path(
    delete, path = "/v1/pins/{name}", tag = "pins",
    params(("name" = String, Path, description = "The pin's name.", min_length = 1, max_length = 64)),
    responses((status = 204, description = "The object was removed.")),
)]
pub(crate) async fn remove(
    State(app): AppState,
    Extension(caller): CallerExtension,
    _: QueryParams<NoQuery>,
    PathParam(name): PathParam<String>,
) -> Result<StatusCode, Problem> {
    run_blocking(move || {
        if app.handle.unpin(&name)? {
            app.handle
                .tell_change(caller.change(Action::Unpin).of(&name));
            Ok(StatusCode::NO_CONTENT)
        } else {
            Err(no_pin(&name))
        }
    })
    .await
}

fn all(app: &App) -> Result<Vec<PinBody>, Problem> {
    let pins = app.handle.status()?.pins;
    Ok(pins.iter().map(PinBody::from).collect())
}

fn no_pin(name: &str) -> Problem {
    Problem::not_found(format!("there is no pin {name:?}: GET /v1/pins lists them"))
}
