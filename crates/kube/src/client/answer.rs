//! Bodies of answers: whole, or line by line as a watch brings them. Both bounded.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use http::header::{HeaderMap, RETRY_AFTER};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};

use super::pool::Stream;
use crate::{ApiError, Watch};

/// Far more than a list of all that one node has to do with.
const MAX_BODY: usize = 64 << 20;
/// An object cannot be larger than a request to the store behind the API server, which is some megabytes.
const MAX_LINE: usize = 16 << 20;
/// As much of a failure's body as can hold its `Status`.
const MAX_FAILURE: usize = 1 << 20;

/// The rest of an answer, with the connection it comes by, which must live on until then.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) retry_after: Option<Duration>,
    body: Incoming,
    connection: Stream,
}

impl Answer {
    pub(super) fn new(response: http::Response<Incoming>, connection: Stream) -> Self {
        let (head, body) = response.into_parts();
        Self {
            status: head.status.as_u16(),
            retry_after: retry_after(&head.headers),
            body,
            connection,
        }
    }

    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub(super) async fn whole(mut self) -> Result<Bytes, ApiError> {
        let most = if self.is_success() {
            MAX_BODY
        } else {
            MAX_FAILURE
        };
        let told = usize::try_from(self.body.size_hint().lower()).unwrap_or(usize::MAX);
        let too_large = || ApiError::Decode(format!("larger than {most} bytes"));
        if told > most {
            return Err(too_large());
        }
        let mut whole = BytesMut::with_capacity(told);
        while let Some(data) = self.next().await? {
            if whole.len() + data.len() > most {
                return Err(too_large());
            }
            whole.extend_from_slice(&data);
        }
        Ok(whole.freeze())
    }

    /// What the server said instead of success.
    pub(super) async fn failure(self) -> ApiError {
        let (status, retry_after) = (self.status, self.retry_after);
        // Without its body a failure is still a failure.
        let body = self.whole().await.unwrap_or_default();
        ApiError::from_answer(status, &body, retry_after)
    }

    pub(super) fn lines(self) -> Watch {
        let lines = Lines {
            answer: self,
            held: BytesMut::new(),
            searched: 0,
            ended: false,
        };
        let lines = futures::stream::unfold(lines, |mut lines| async move {
            let next = lines.next().await?;
            lines.ended |= next.is_err();
            Some((next, lines))
        });
        Box::pin(lines.fuse())
    }

    /// Some more of the body.
    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(self.connection.failure(&error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}

struct Lines {
    answer: Answer,
    /// Bytes of a line whose end has not come yet, and whatever came behind a line.
    held: BytesMut,
    /// How far there is no end of a line in there.
    searched: usize,
    ended: bool,
}

impl Lines {
    async fn next(&mut self) -> Option<Result<Bytes, ApiError>> {
        if self.ended {
            return None;
        }
        loop {
            if let Some(line) = take_line(&mut self.held, &mut self.searched) {
                return Some(Ok(line));
            }
            if self.held.len() > MAX_LINE {
                let problem = format!("a line of a watch is longer than {MAX_LINE} bytes");
                return Some(Err(ApiError::Decode(problem)));
            }
            match self.answer.next().await {
                Ok(Some(data)) => self.held.extend_from_slice(&data),
                Ok(None) if self.held.iter().all(u8::is_ascii_whitespace) => return None,
                Ok(None) => {
                    let problem = "the watch ended in the middle of a line";
                    return Some(Err(ApiError::Connection(problem.into())));
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// The first whole line, without its end; empty ones are passed over.
fn take_line(held: &mut BytesMut, searched: &mut usize) -> Option<Bytes> {
    loop {
        let unseen = held.get(*searched..).unwrap_or_default();
        let Some(end) = unseen.iter().position(|byte| *byte == b'\n') else {
            *searched = held.len();
            return None;
        };
        let line = held.split_to(*searched + end + 1).freeze();
        *searched = 0;
        let line = line.slice(..line.len() - 1);
        if !line.iter().all(u8::is_ascii_whitespace) {
            return Some(line);
        }
    }
}

/// In seconds; a date is not understood.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?;
    seconds.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        let text = b"{\"a\":1}\n\n{\"b\":2}\n{\"c\"";
        for cut in 1..text.len() {
            let (mut held, mut searched, mut lines) = (BytesMut::new(), 0, Vec::new());
            for piece in text.chunks(cut) {
                held.extend_from_slice(piece);
                while let Some(line) = take_line(&mut held, &mut searched) {
                    lines.push(line);
                }
            }
            assert_eq!(lines, [&b"{\"a\":1}"[..], b"{\"b\":2}"], "{cut}");
            assert_eq!(held, &b"{\"c\""[..]);
        }
    }

    #[test]
    fn seconds_to_wait() {
        let of = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, http::HeaderValue::from_static(text));
            retry_after(&headers)
        };
        assert_eq!(of("7"), Some(Duration::from_secs(7)));
        assert_eq!(of("Wed, 21 Oct 2015 07:28:00 GMT"), None);
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }
}
