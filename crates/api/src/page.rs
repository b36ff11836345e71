//! The page: files that are part of the program. The folder `page/` of the repository contains
//! their source. The files are the same for everybody, so the files need no token.

use std::{
    io::{self, Write},
    sync::{Arc, LazyLock},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::MatchedPath,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
    routing,
};
use flate2::{Compression, write::GzEncoder};
use sha2::{Digest, Sha256};

use crate::{
    app::App,
    operations::{Limited, Operation},
};

/// The value of `Content-Security-Policy`, which the guard adds to its answers. The browser may
/// load scripts and styles from, and send requests to, only the API's origin.
pub(crate) const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

macro_rules! assets {
    ($($path:literal $file:literal $kind:literal;)*) => {
        /// The files as operations without a role, which the OpenAPI document does not list.
        pub(crate) const OPERATIONS: &[Operation] = &[$(Operation {
            method: Method::GET,
            path: $path,
            id: "getPage",
            role: None,
            limited: Limited::May,
        },)*];

        static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| {
            vec![$(Asset::new($path, $kind, include_bytes!(concat!("../page/", $file))),)*]
        });
    };
}

assets! {
    "/" "index.html" "text/html; charset=utf-8";
    "/app.js" "app.js" "text/javascript; charset=utf-8";
    "/app.css" "app.css" "text/css; charset=utf-8";
    "/icon.svg" "icon.svg" "image/svg+xml";
}

/// A file of the page.
struct Asset {
    path: &'static str,
    kind: &'static str,
    plain: &'static [u8],
    /// The file as gzip; `None`: the compression failed.
    gzip: Option<Bytes>,
    /// The entity tag of the uncompressed file, without quotes.
    tag: String,
}

impl Asset {
    fn new(path: &'static str, kind: &'static str, plain: &'static [u8]) -> Self {
        let hash = Sha256::digest(plain);
        Self {
            path,
            kind,
            plain,
            gzip: gzip(plain).ok().map(Bytes::from),
            tag: hash[..8].iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }

    fn answer(&self, request: &HeaderMap) -> Response {
        let gzip = self.gzip.clone().filter(|_| takes_gzip(request));
        let suffix = if gzip.is_some() { "-gzip" } else { "" };
        let tag = format!("\"{}{suffix}\"", self.tag);
        let known = request.get_all(header::IF_NONE_MATCH).iter();
        let mut known = known.filter_map(|value| value.to_str().ok());
        let is_known = known.any(|value| value.trim() == "*" || value.contains(&tag));
        let mut response = match (&gzip, is_known) {
            (_, true) => StatusCode::NOT_MODIFIED.into_response(),
            (Some(gzip), _) => Body::from(gzip.clone()).into_response(),
            (None, _) => Body::from(self.plain).into_response(),
        };
        let mut set = |name: HeaderName, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                response.headers_mut().insert(name, value);
            }
        };
        set(header::ETAG, &tag);
        // The browser asks each time whether the file has changed, and so does not use the page of
        // an older program.
        set(header::CACHE_CONTROL, "no-cache");
        set(header::VARY, "accept-encoding");
        if !is_known {
            set(header::CONTENT_TYPE, self.kind);
            if gzip.is_some() {
                set(header::CONTENT_ENCODING, "gzip");
            }
        }
        response
    }
}

fn gzip(plain: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(plain)?;
    encoder.finish()
}

/// Whether a client accepts gzip: RFC 9110, section 12.5.3.
fn takes_gzip(request: &HeaderMap) -> bool {
    let values = request.get_all(header::ACCEPT_ENCODING).iter();
    let values = values.filter_map(|value| value.to_str().ok());
    let mut codings = values.flat_map(|value| value.split(','));
    codings.any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = weight.trim().strip_prefix("q=").unwrap_or("1");
        name.trim().eq_ignore_ascii_case("gzip") && weight.parse().is_ok_and(|it: f32| it > 0.0)
    })
}

pub(crate) fn routes() -> Router<Arc<App>> {
    OPERATIONS.iter().fold(Router::new(), |routes, operation| {
        routes.route(operation.path, routing::get(serve))
    })
}

async fn serve(path: MatchedPath, request: HeaderMap) -> Response {
    let asset = ASSETS.iter().find(|asset| asset.path == path.as_str());
    asset.map_or_else(
        || StatusCode::NOT_FOUND.into_response(),
        |asset| asset.answer(&request),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_for_clients_that_accept_it() {
        for (accepted, expected) in [
            ("gzip", true),
            ("deflate, GZIP;q=0.5, br", true),
            ("gzip;q=0", false),
            ("gzip; q=0.000", false),
            ("br, xgzip", false),
            ("", false),
        ] {
            let value = HeaderValue::from_static(accepted);
            let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, value)]);
            assert_eq!(takes_gzip(&headers), expected, "{accepted}");
        }
    }

    /// The page must work below any path prefix of a proxy.
    #[test]
    fn the_page_refers_to_its_own_files_by_relative_paths() {
        let page = std::str::from_utf8(ASSETS[0].plain).unwrap();
        for wrong in ["=\"/", "='/", "=/", "://", "<style", " style=", "<base"] {
            assert!(!page.contains(wrong), "{wrong}");
        }
        for script in page.split("<script").skip(1) {
            let (tag, inside) = script.split_once('>').unwrap();
            assert!(tag.contains(" src=\"") && inside.starts_with("</script>"));
        }
        let linked = page.split(['"', '\'']).filter(|text| text.contains('.'));
        for file in linked.filter(|text| !text.contains(' ')) {
            let path = format!("/{}", file.trim_start_matches("./"));
            assert!(ASSETS.iter().any(|asset| asset.path == path), "{file}");
        }
        let whole: usize = ASSETS
            .iter()
            .filter_map(|it| Some(it.gzip.as_ref()?.len()))
            .sum();
        assert!(whole <= 100_000, "{whole} bytes of gzip");
    }
}
