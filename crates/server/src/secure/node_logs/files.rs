//! Files of the log directory, and lists of what is in it, as a web server shows them.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::Stream;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use jiff::fmt::rfc2822::{DateTimeParser, DateTimePrinter};
use krablet_logs::{Found, Listing, NodeFile, find};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncSeekExt as _};

use crate::secure::answers::refuse;

const PIECE: usize = 32 * 1024;
/// So many bytes tell a text from what is none.
const SAMPLE: usize = 512;

/// Off the async threads: the directory may lie on a file system that hangs.
pub(super) async fn look(directory: &Path, name: &str) -> io::Result<Found> {
    let (directory, name) = (directory.to_owned(), PathBuf::from(name));
    let looked = tokio::task::spawn_blocking(move || find(&directory, &name)).await;
    looked.map_err(io::Error::other)?
}

pub(super) async fn serve(directory: &Path, path: &str, asked: &HeaderMap) -> Response {
    let last = path.trim_end_matches('/').rsplit('/').next();
    let last = last.unwrap_or_default();
    let slash = path.is_empty() || path.ends_with('/');
    match look(directory, path).await {
        Ok(Found::Directory(_)) if !slash => moved(&format!("{}/", in_url(last))),
        Ok(Found::Directory(listing)) => page(&listing),
        Ok(Found::File(_)) if slash => moved(&format!("../{}", in_url(last))),
        Ok(Found::File(file)) => match content(file, last, asked).await {
            Ok(response) => response,
            Err(e) => failed(&e),
        },
        Err(e) => failed(&e),
    }
}

fn failed(e: &io::Error) -> Response {
    use io::ErrorKind::{InvalidInput, NotADirectory, NotFound, PermissionDenied};
    match e.kind() {
        NotFound | NotADirectory | InvalidInput => {
            refuse(StatusCode::NOT_FOUND, "404 page not found\n")
        }
        PermissionDenied => refuse(StatusCode::FORBIDDEN, "403 Forbidden\n"),
        _ => refuse(
            StatusCode::INTERNAL_SERVER_ERROR,
            "500 Internal Server Error\n",
        ),
    }
}

fn moved(to: &str) -> Response {
    let location = HeaderValue::from_str(to).unwrap_or(HeaderValue::from_static("./"));
    let head = [(header::LOCATION, location)];
    (StatusCode::MOVED_PERMANENTLY, head).into_response()
}

fn page(listing: &Listing) -> Response {
    let html = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
    (html, page_text(listing)).into_response()
}

fn page_text(listing: &Listing) -> String {
    let mut text =
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n"
            .to_owned();
    for name in &listing.names {
        let (link, shown) = (in_url(name), in_html(name));
        text.push_str(&format!("<a href=\"{link}\">{shown}</a>\n"));
    }
    if listing.cut {
        text.push_str("(there are more)\n");
    }
    text.push_str("</pre>\n");
    text
}

fn in_url(name: &str) -> String {
    let mut url = String::new();
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' => url.push(char::from(byte)),
            b'-' | b'_' | b'.' | b'~' | b'/' | b'$' | b'+' | b',' | b'=' | b'@' => {
                url.push(char::from(byte));
            }
            other => url.push_str(&format!("%{other:02X}")),
        }
    }
    url
}

fn in_html(name: &str) -> String {
    let marks = [
        ('&', "&amp;"),
        ('<', "&lt;"),
        ('>', "&gt;"),
        ('"', "&#34;"),
        ('\'', "&#39;"),
    ];
    let mark = |c: char| marks.iter().find(|(mark, _)| *mark == c);
    name.chars().fold(String::new(), |mut text, c| {
        match mark(c) {
            Some((_, written)) => text.push_str(written),
            None => text.push(c),
        }
        text
    })
}

async fn content(found: NodeFile, name: &str, asked: &HeaderMap) -> io::Result<Response> {
    let NodeFile {
        file,
        size,
        modified,
    } = found;
    let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&modified);
    let date = date.unwrap_or_default();
    let known = asked.get(header::IF_MODIFIED_SINCE);
    let known = known.and_then(|v| DateTimeParser::new().parse_timestamp(v.to_str().ok()?).ok());
    if known.is_some_and(|known| known >= modified) {
        return Ok(StatusCode::NOT_MODIFIED.into_response());
    }
    let wanted = asked.get(header::RANGE).and_then(|v| v.to_str().ok());
    let (code, part) = match wanted.map_or(Wanted::All, |range| part_of(range, size)) {
        Wanted::All => (StatusCode::OK, 0..size),
        Wanted::Part(part) => (StatusCode::PARTIAL_CONTENT, part),
        Wanted::Nothing => {
            let head = [(header::CONTENT_RANGE, format!("bytes */{size}"))];
            return Ok((StatusCode::RANGE_NOT_SATISFIABLE, head).into_response());
        }
    };
    let mut sample = [0; SAMPLE];
    let (file, sampled, sample) = tokio::task::spawn_blocking(move || {
        let sampled = file.read_at(&mut sample, 0);
        (file, sampled, sample)
    })
    .await
    .map_err(io::Error::other)?;
    let kind = kind(name, &sample[..sampled?]);
    let mut file = tokio::fs::File::from_std(file);
    file.seek(io::SeekFrom::Start(part.start)).await?;
    let length = part.end - part.start;
    let body = Body::from_stream(pieces(file.take(length)));
    let mut response = (code, body).into_response();
    let head = response.headers_mut();
    let mut set = |name, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            head.insert(name, value);
        }
    };
    set(header::CONTENT_TYPE, kind.to_owned());
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned());
    set(header::ACCEPT_RANGES, "bytes".to_owned());
    set(header::LAST_MODIFIED, date);
    set(header::CONTENT_LENGTH, length.to_string());
    if code == StatusCode::PARTIAL_CONTENT {
        let (first, last) = (part.start, part.end - 1);
        set(
            header::CONTENT_RANGE,
            format!("bytes {first}-{last}/{size}"),
        );
    }
    Ok(response)
}

fn kind(name: &str, sample: &[u8]) -> &'static str {
    let is_text = |byte: &u8| matches!(byte, 0x09 | 0x0A | 0x0C | 0x0D | 0x1B | 0x20..);
    match name.rsplit_once('.') {
        Some((_, "gz")) => "application/gzip",
        _ if sample.iter().all(is_text) => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    All,
    Part(Range<u64>),
    /// There is no such part.
    Nothing,
}

/// One range, that is. Of several ranges, and of what cannot be read, all is given.
fn part_of(range: &str, size: u64) -> Wanted {
    let Some((first, last)) = range.strip_prefix("bytes=").and_then(|r| r.split_once('-')) else {
        return Wanted::All;
    };
    let number = |text: &str| text.trim().parse::<u64>();
    let part = match (first.trim(), last.trim()) {
        ("", last) => number(last).map(|count| size.saturating_sub(count)..size),
        (first, "") => number(first).map(|first| first..size),
        (first, last) => match (number(first), number(last)) {
            (Ok(first), Ok(last)) => Ok(first..last.saturating_add(1).min(size)),
            _ => return Wanted::All,
        },
    };
    match part {
        Ok(part) if part.start < part.end => Wanted::Part(part),
        Ok(_) => Wanted::Nothing,
        Err(_) => Wanted::All,
    }
}

/// What a reader gives, a piece at a time, as fast as it is taken.
pub(super) fn pieces(
    reader: impl AsyncRead + Send + Unpin + 'static,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    futures::stream::try_unfold(reader, |mut reader| async move {
        let mut piece = vec![0; PIECE];
        let count = reader.read(&mut piece).await?;
        piece.truncate(count);
        Ok((count > 0).then(|| (piece.into(), reader)))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_of_files() {
        let part = |range: &str| match part_of(range, 10) {
            Wanted::Part(part) => format!("{}..{}", part.start, part.end),
            other => format!("{other:?}"),
        };
        for (range, expected) in [
            ("bytes=0-3", "0..4"),
            ("bytes=4-", "4..10"),
            ("bytes=-3", "7..10"),
            ("bytes=-30", "0..10"),
            ("bytes=5-99", "5..10"),
            ("bytes=10-", "Nothing"),
            ("bytes=-0", "Nothing"),
            ("bytes=3-1", "Nothing"),
            ("bytes=0-18446744073709551615", "0..10"),
            ("bytes=0-1,3-4", "All"),
            ("lines=1-2", "All"),
            ("bytes=", "All"),
            ("bytes=x-1", "All"),
        ] {
            assert_eq!(part(range), expected, "{range}");
        }
    }

    #[test]
    fn names_do_no_harm_in_a_page() {
        let listing = Listing {
            names: vec!["a b/".into(), "<script>.log".into(), "javascript:x".into()],
            cut: true,
        };
        let text = page_text(&listing);
        assert!(text.contains("<a href=\"a%20b/\">a b/</a>\n"));
        assert!(text.contains("<a href=\"%3Cscript%3E.log\">&lt;script&gt;.log</a>\n"));
        assert!(text.contains("<a href=\"javascript%3Ax\">"));
        assert!(text.ends_with("(there are more)\n</pre>\n"));
    }

    #[test]
    fn kinds_of_files() {
        assert_eq!(
            kind("a.log", b"plain \x1b[1m\n"),
            "text/plain; charset=utf-8"
        );
        assert_eq!(kind("a.html", b"<html>"), "text/plain; charset=utf-8");
        assert_eq!(kind("wtmp", b"\0\0"), "application/octet-stream");
        assert_eq!(kind("a.log.1.gz", b"\x1f\x8b"), "application/gzip");
    }

    proptest! {
        /// What is sent lies in the file, and is never nothing.
        #[test]
        fn any_range_is_a_part_of_the_file(
            range in "(bytes=)?(-?[0-9]{0,20}(-[0-9]{0,20})?(, ?[0-9]{0,3}-[0-9]{0,3})?|[ -~]{0,12})",
            size in prop_oneof![0_u64..20, any::<u64>()],
        ) {
            if let Wanted::Part(part) = part_of(&range, size) {
                prop_assert!(part.start < part.end && part.end <= size, "{part:?}");
            }
        }
    }
}
