//! Answers that say why not.

use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};

const TEXT: [(header::HeaderName, &str); 1] = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];

pub(crate) fn refuse(code: StatusCode, why: impl Into<String>) -> Response {
    (code, TEXT, why.into()).into_response()
}

pub(crate) async fn not_found() -> Response {
    refuse(StatusCode::NOT_FOUND, "404 page not found\n")
}

pub(crate) async fn debugging_disabled() -> Response {
    refuse(
        StatusCode::METHOD_NOT_ALLOWED,
        "Debug endpoints are disabled.",
    )
}
