//! What an API server, or the way to it, can answer instead of success.

use std::time::Duration;

use serde::Deserialize;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The server's own words.
    #[error("{message}")]
    Status {
        code: u16,
        reason: String,
        message: String,
        retry_after: Option<Duration>,
    },
    #[error("no answer within {0:?}")]
    Deadline(Duration),
    /// The server was not reached, or the connection broke.
    #[error("{0}")]
    Connection(String),
    /// The server does not show a certificate of the configured authority, or refuses ours.
    #[error("{0}")]
    Tls(String),
    /// There are no credentials to ask with.
    #[error("{0}")]
    Credentials(String),
    #[error("cannot read the answer: {0}")]
    Decode(String),
}

/// Whatever a server asks for: one that errs, or is none, must not silence a node for a day.
const LONGEST_RETRY: Duration = Duration::from_secs(5 * 60);

/// The `Status` object in the body of a failure.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Body {
    reason: Option<String>,
    message: Option<String>,
    details: Option<Details>,
    code: Option<u16>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    retry_after_seconds: Option<u64>,
}

impl ApiError {
    /// Of an answer with this code, body, and `Retry-After` header.
    pub fn from_answer(code: u16, body: &[u8], retry_after: Option<Duration>) -> Self {
        let status: Body = serde_json::from_slice(body).unwrap_or_default();
        let text = || {
            let text = String::from_utf8_lossy(&body[..body.len().min(512)]);
            format!("the server answered {code}: {}", text.trim())
        };
        let told = status.details.and_then(|d| d.retry_after_seconds);
        ApiError::Status {
            code,
            reason: status.reason.unwrap_or_default(),
            message: status.message.unwrap_or_else(text),
            retry_after: retry_after
                .or(told.map(Duration::from_secs))
                .map(|told| told.min(LONGEST_RETRY)),
        }
    }

    /// Of the object of a watch's ERROR line.
    pub fn from_watch(object: &[u8]) -> Self {
        let code = serde_json::from_slice::<Body>(object).ok();
        let code = code.and_then(|body| body.code).unwrap_or(500);
        Self::from_answer(code, object, None)
    }

    /// A server was there and said something.
    pub fn is_answer(&self) -> bool {
        matches!(self, ApiError::Status { .. } | ApiError::Decode(_))
    }

    pub fn code(&self) -> Option<u16> {
        match self {
            ApiError::Status { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// In the words of an API server: whatever stands before it may answer with this code, too, and knows nothing of
    /// objects.
    fn has(&self, wanted: u16, wanted_reason: &str) -> bool {
        match self {
            ApiError::Status { code, reason, .. } => *code == wanted && reason == wanted_reason,
            _ => false,
        }
    }

    pub fn is_not_found(&self) -> bool {
        self.has(404, "NotFound")
    }

    pub fn is_already_exists(&self) -> bool {
        self.has(409, "AlreadyExists")
    }

    pub fn is_conflict(&self) -> bool {
        self.has(409, "Conflict")
    }

    /// The resource version asked for is too old: list anew.
    pub fn is_expired(&self) -> bool {
        self.code() == Some(410)
    }

    pub fn is_unauthorized(&self) -> bool {
        self.code() == Some(401)
    }

    pub fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            ApiError::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// The same call may go well later: the server was not reached, is busy, or erred.
    pub fn is_passing(&self) -> bool {
        match self {
            ApiError::Status { code, .. } => *code == 429 || *code >= 500,
            ApiError::Deadline(_) | ApiError::Connection(_) => true,
            ApiError::Tls(_) | ApiError::Credentials(_) | ApiError::Decode(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_are_no_success() {
        let gone = br#"{"kind":"Status","reason":"Expired","message":"too old","code":410}"#;
        assert!(ApiError::from_answer(410, gone, None).is_expired());
        assert!(ApiError::from_watch(gone).is_expired());
        let busy = br#"{"message":"wait","details":{"retryAfterSeconds":3}}"#;
        let busy = ApiError::from_answer(429, busy, None);
        assert_eq!(busy.retry_after(), Some(Duration::from_secs(3)));
        assert!(busy.is_passing());
        let exists = br#"{"reason":"AlreadyExists","message":"m"}"#;
        let exists = ApiError::from_answer(409, exists, None);
        assert!(exists.is_already_exists() && !exists.is_conflict());
        let missing = br#"{"kind":"Status","reason":"NotFound","message":"pods \"a\" not found"}"#;
        assert!(ApiError::from_answer(404, missing, None).is_not_found());
        for strange in [b"default backend - 404".as_slice(), b"{}", b""] {
            assert!(!ApiError::from_answer(404, strange, None).is_not_found());
            assert!(!ApiError::from_answer(409, strange, None).is_conflict());
        }
        let longest = format!(r#"{{"details": {{"retryAfterSeconds": {}}}}}"#, u64::MAX);
        let for_ever = ApiError::from_answer(429, longest.as_bytes(), None);
        assert_eq!(for_ever.retry_after(), Some(LONGEST_RETRY));
        let header = Some(Duration::from_secs(u64::MAX));
        let for_ever = ApiError::from_answer(429, b"", header);
        assert_eq!(for_ever.retry_after(), Some(LONGEST_RETRY));
        let odd = ApiError::from_answer(502, b"<html>bad gateway</html>", None);
        assert_eq!(
            odd.to_string(),
            "the server answered 502: <html>bad gateway</html>"
        );
    }
}
