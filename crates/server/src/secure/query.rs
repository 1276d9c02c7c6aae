//! Questions as URLs put them.

use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use krablet_logs::{LogOptions, Stream};

/// What was asked of a log, and of which instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LogQuery {
    pub(super) previous: bool,
    pub(super) options: LogOptions,
}

/// A channel's number is one byte, and a port has two channels.
const MAX_PORTS: usize = 128;

pub(super) type Refusal = (StatusCode, &'static str);

const UNREADABLE: Refusal = (
    StatusCode::BAD_REQUEST,
    r#"{"message": "Unable to decode query."}"#,
);
const INVALID: Refusal = (
    StatusCode::UNPROCESSABLE_ENTITY,
    r#"{"message": "Invalid request."}"#,
);

/// What was said under a name, in the order it was said in.
pub(super) fn values<'a>(
    pairs: &'a [(String, String)],
    name: &str,
) -> impl Iterator<Item = &'a str> {
    let named = pairs.iter().filter(move |(key, _)| key == name);
    named.map(|(_, value)| value.as_str())
}

/// As Go's API machinery reads a boolean: whatever is there and not false is true.
pub(super) fn truth(value: &str) -> bool {
    !matches!(value.to_ascii_lowercase().as_str(), "false" | "0")
}

fn number(value: &str) -> Result<i64, Refusal> {
    value.parse().map_err(|_| UNREADABLE)
}

fn at_least(value: i64, least: i64) -> Result<u64, Refusal> {
    match value >= least {
        true => u64::try_from(value).map_err(|_| INVALID),
        false => Err(INVALID),
    }
}

/// The first of each name counts.
pub(super) fn log_query(pairs: &[(String, String)], now: Timestamp) -> Result<LogQuery, Refusal> {
    let value = |name: &str| values(pairs, name).next();
    let flag = |name: &str| value(name).is_some_and(truth);
    let tail = match value("tail").filter(|tail| !tail.is_empty()) {
        Some("all") => None,
        Some(old) => Some(old),
        None => value("tailLines"),
    };
    let stream = match value("stream") {
        None | Some("" | "All") => None,
        Some("Stdout") => Some(Stream::Stdout),
        Some("Stderr") => Some(Stream::Stderr),
        Some(_) => return Err(INVALID),
    };
    let tail = tail.map(number).transpose()?;
    let limit = value("limitBytes").map(number).transpose()?;
    let seconds = value("sinceSeconds").map(number).transpose()?;
    let time = value("sinceTime").filter(|time| !time.is_empty());
    let time: Option<Timestamp> = time
        .map(|time| time.parse().map_err(|_| UNREADABLE))
        .transpose()?;
    if (tail.is_some() && stream.is_some()) || (seconds.is_some() && time.is_some()) {
        return Err(INVALID);
    }
    let since = match seconds {
        None => time,
        Some(seconds) => {
            let back = at_least(seconds, 1)?;
            let back = SignedDuration::from_secs(i64::try_from(back).unwrap_or(i64::MAX));
            Some(now.checked_sub(back).unwrap_or(Timestamp::MIN))
        }
    };
    Ok(LogQuery {
        previous: flag("previous"),
        options: LogOptions {
            follow: flag("follow"),
            timestamps: flag("timestamps"),
            since,
            tail: tail.map(|lines| at_least(lines, 0)).transpose()?,
            limit_bytes: limit.map(|bytes| at_least(bytes, 1)).transpose()?,
            stream,
        },
    })
}

/// What to do with the streams of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamQuery {
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) tty: bool,
}

pub(super) const NO_STREAMS: &str = "you must specify at least 1 of stdin, stdout, stderr";

/// `None`: there is nothing to stream.
pub(super) fn stream_query(pairs: &[(String, String)]) -> Option<StreamQuery> {
    let is_one = |name: &str| pairs.iter().any(|(key, value)| key == name && value == "1");
    let tty = is_one("tty");
    let query = StreamQuery {
        stdin: is_one("input"),
        stdout: is_one("output"),
        // A terminal has one stream to show.
        stderr: is_one("error") && !tty,
        tty,
    };
    (query.stdin || query.stdout || query.stderr).then_some(query)
}

/// The ports a WebSocket is for: as many pairs of channels as there are of them.
pub(super) fn ports_query(pairs: &[(String, String)]) -> Result<Vec<i32>, String> {
    let mut ports = Vec::new();
    for list in values(pairs, "port") {
        if list.is_empty() {
            return Err("query parameter \"port\" cannot be empty".to_owned());
        }
        for word in list.split(',') {
            match word.parse::<u16>() {
                Ok(0) => return Err(format!("port {list:?} must be > 0")),
                Ok(port) => ports.push(i32::from(port)),
                Err(e) => return Err(format!("unable to parse {list:?} as a port: {e}")),
            }
            if ports.len() > MAX_PORTS {
                return Err(format!("no more than {MAX_PORTS} ports at a time"));
            }
        }
    }
    match ports.is_empty() {
        true => Err("query parameter \"port\" is required".to_owned()),
        false => Ok(ports),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The pairs of a query without escapes.
    pub(in crate::secure) fn pairs(query: &str) -> Vec<(String, String)> {
        let parts = query.split('&').filter(|part| !part.is_empty());
        parts
            .map(|part| part.split_once('=').unwrap_or((part, "")))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    #[test]
    fn ports() {
        for (query, expected) in [
            ("port=80", "[80]"),
            ("port=80,8080&port=1", "[80, 8080, 1]"),
            ("ports=80", "query parameter \"port\" is required"),
            ("port=", "query parameter \"port\" cannot be empty"),
            ("port=0", "port \"0\" must be > 0"),
            (
                "port=1,x",
                "unable to parse \"1,x\" as a port: invalid digit found in string",
            ),
            (
                "port=65536",
                "unable to parse \"65536\" as a port: number too large to fit in target type",
            ),
        ] {
            let got = ports_query(&pairs(query)).map(|ports| format!("{ports:?}"));
            assert_eq!(got.unwrap_or_else(|why| why), expected, "{query}");
        }
        let many = vec!["1"; MAX_PORTS + 1].join(",");
        assert!(ports_query(&pairs(&format!("port={many}"))).is_err());
    }

    #[test]
    fn logs() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let shown = |query: &str| match log_query(&pairs(query), now) {
            Err((code, _)) => code.as_u16().to_string(),
            Ok(LogQuery { previous, options }) => {
                let mut words = Vec::new();
                for (is, word) in [
                    (previous, "previous"),
                    (options.follow, "follow"),
                    (options.timestamps, "timestamps"),
                ] {
                    words.extend(is.then(|| word.to_owned()));
                }
                words.extend(options.since.map(|t| format!("since {t}")));
                words.extend(options.tail.map(|n| format!("tail {n}")));
                words.extend(options.limit_bytes.map(|n| format!("limit {n}")));
                words.extend(options.stream.map(|s| format!("{s:?}")));
                words.join(", ")
            }
        };
        let cases = [
            ("", ""),
            (
                "follow=true&previous=1&timestamps",
                "previous, follow, timestamps",
            ),
            ("follow=false&previous=0&timestamps=False", ""),
            ("tailLines=10&limitBytes=5", "tail 10, limit 5"),
            ("tailLines=0", "tail 0"),
            ("tail=3", "tail 3"),
            ("tail=all&tailLines=3", ""),
            ("sinceSeconds=60", "since 2026-01-01T00:00:00Z"),
            (
                "sinceSeconds=9223372036854775807",
                "since -009999-01-02T01:59:59Z",
            ),
            (
                "sinceTime=2025-12-31T00:00:00Z",
                "since 2025-12-31T00:00:00Z",
            ),
            ("stream=Stderr", "Stderr"),
            ("stream=All&tailLines=1", "tail 1"),
            ("tailLines=x", "400"),
            ("sinceTime=today", "400"),
            ("tailLines=-1", "422"),
            ("limitBytes=0", "422"),
            ("sinceSeconds=0", "422"),
            ("sinceSeconds=1&sinceTime=2025-12-31T00:00:00Z", "422"),
            ("stream=Stdout&tailLines=1", "422"),
            ("stream=other", "422"),
        ];
        for (query, expected) in cases {
            assert_eq!(shown(query), expected, "{query}");
        }
    }

    #[test]
    fn streams() {
        let shown = |query: &str| {
            stream_query(&pairs(query)).map_or("none".to_owned(), |q| {
                let all = [
                    (q.stdin, 'i'),
                    (q.stdout, 'o'),
                    (q.stderr, 'e'),
                    (q.tty, 't'),
                ];
                all.iter().filter(|(is, _)| *is).map(|(_, c)| *c).collect()
            })
        };
        assert_eq!(shown("input=1&output=1&error=1"), "ioe");
        assert_eq!(shown("input=1&output=1&error=1&tty=1"), "iot");
        assert_eq!(shown("output=true"), "none");
        assert_eq!(shown("tty=1&error=1"), "none");
        assert_eq!(shown(""), "none");
    }

    /// Ports as they are meant, also far too many, and nonsense.
    fn port_list() -> impl Strategy<Value = String> {
        let numbers = proptest::collection::vec(0_u32..66_000, 1..60);
        let list = |numbers: Vec<u32>| {
            let words = numbers.iter().map(u32::to_string);
            words.collect::<Vec<_>>().join(",")
        };
        prop_oneof![numbers.prop_map(list), "[0-9,x+ -]{0,8}", "\\PC{0,4}"]
    }

    proptest! {
        #[test]
        fn any_question_is_read_or_refused(
            names in proptest::collection::vec("(follow|previous|timestamps|tail|tailLines|limitBytes|sinceSeconds|sinceTime|stream|[a-z]{1,5})", 0..8),
            values in proptest::collection::vec("(-?[0-9]{1,20}|true|false|all|All|Stdout|Stderr|[0-9TZ:+.-]{0,30}|\\PC{0,8})", 8),
        ) {
            let pairs: Vec<_> = names.into_iter().zip(values).collect();
            let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
            match log_query(&pairs, now) {
                Ok(query) => {
                    prop_assert!(query.options.limit_bytes != Some(0));
                    prop_assert!(query.options.stream.is_none() || query.options.tail.is_none());
                }
                Err((code, _)) => prop_assert!(code == 400 || code == 422),
            }
            let _ = stream_query(&pairs);
        }

        #[test]
        fn any_ports_are_read_or_refused(
            lists in proptest::collection::vec(("(port|port|ports|[a-z])", port_list()), 0..6),
        ) {
            let said: usize = lists.iter().filter(|(k, _)| k == "port").map(|(_, v)| v.split(',').count()).sum();
            match ports_query(&lists) {
                Ok(ports) => {
                    prop_assert_eq!(ports.len(), said);
                    prop_assert!((1..=MAX_PORTS).contains(&ports.len()));
                    prop_assert!(ports.iter().all(|port| (1..=65535).contains(port)));
                }
                Err(why) => prop_assert!(!why.is_empty()),
            }
        }
    }
}
