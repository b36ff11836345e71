//! The OpenAPI document.

use std::sync::LazyLock;

use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use utoipa::OpenApi;

use crate::{
    extract::{NoQuery, QueryParams},
    openapi::without_rust,
    operations::Document,
};

/// The document as the API serves it. `openapi.json` contains the same text.
pub(crate) static TEXT: LazyLock<String> = LazyLock::new(|| {
    // Serializing the document does not fail. If it did, the golden test would fail.
    without_rust(&Document::openapi().to_pretty_json().unwrap_or_default()) + "\n"
});

/// This document
#[utoipa::path(get, path = "/v1/openapi.json", tag = "document", responses((status = 200, content_type = "application/json", body = Object)))]
pub(crate) async fn openapi(_: QueryParams<NoQuery>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], TEXT.as_str()).into_response()
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        fs,
        io::{self, Write},
        path::Path,
        process::Command,
    };

    use super::*;
    use crate::operations::OPERATIONS;

    /// `UPDATE_GOLDEN=1 cargo test -p retroscope-api` writes the file `openapi.json`.
    #[test]
    fn the_document_is_as_the_file_says() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&path, &*TEXT).unwrap();
        }
        let kept = fs::read_to_string(&path).unwrap();
        assert!(
            kept == *TEXT,
            "the API changed: UPDATE_GOLDEN=1 writes openapi.json anew, for review"
        );
    }

    #[test]
    fn the_document_has_the_operations_of_the_table() {
        let document: serde_json::Value = serde_json::from_str(&TEXT).unwrap();
        let told = document["paths"].as_object().unwrap().iter();
        let told = told.flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap().keys();
            methods.map(|method| (path.clone(), method.to_uppercase()))
        });
        let told: BTreeSet<(String, String)> = told.collect();
        let known = OPERATIONS.iter();
        let known = known.map(|it| (it.path.to_owned(), it.method.to_string()));
        assert_eq!(told, known.collect());
        let ids: BTreeSet<&str> = OPERATIONS.iter().map(|it| it.id).collect();
        assert_eq!(ids.len(), OPERATIONS.len(), "operationIds are unique");
    }

    #[test]
    fn descriptions_have_no_syntax_of_rust() {
        for line in TEXT.lines().filter(|line| !line.contains(r#""pattern":"#)) {
            for syntax in ["`None`", "Some(", "::", "crate", "[`", "Vec<"] {
                assert!(!line.contains(syntax), "{syntax}: {line}");
            }
        }
    }

    /// `kind` selects the schemas of events, and the status field `alerts` has a named schema.
    #[test]
    fn events_and_counts_of_alerts_have_types() {
        let document: serde_json::Value = serde_json::from_str(&TEXT).unwrap();
        let schemas = &document["components"]["schemas"];
        let events = &schemas["RecorderEvent"];
        let kinds = events["discriminator"]["mapping"].as_object().unwrap();
        assert_eq!(events["discriminator"]["propertyName"], "kind");
        assert_eq!(kinds.len(), events["oneOf"].as_array().unwrap().len());
        assert_eq!(kinds["alert"], "#/components/schemas/AlertEvent");
        assert!(schemas["AlertEvent"].is_object());
        let alerts = &schemas["RecorderStatus"]["properties"]["alerts"];
        assert_eq!(alerts["$ref"], "#/components/schemas/AlertSummary");
    }

    /// Checks the document by `openapi-spec-validator` (`pip install openapi-spec-validator`).
    /// Skipped without the program.
    #[test]
    fn the_document_is_valid() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
        let judged = Command::new("openapi-spec-validator").arg(path).output();
        match judged {
            Ok(judged) => assert!(
                judged.status.success(),
                "{}",
                String::from_utf8_lossy(&judged.stdout)
            ),
            Err(error) => {
                let _ = writeln!(io::stderr(), "SKIP: no openapi-spec-validator: {error}");
            }
        }
    }
}
