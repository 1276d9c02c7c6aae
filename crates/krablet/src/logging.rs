//! Log lines as klog writes them, or as JSON: what node operators' tools already read.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use krablet_linux::WallClock;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::vmodule::ByFile;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    Json,
}

/// From this verbosity (`-v`) on, debug lines are shown; from the other, trace lines.
const DEBUG_VERBOSITY: u32 = 4;
const TRACE_VERBOSITY: u32 = 6;

/// `-v`, or what it was set to since; for whoever holds it and the log it belongs to.
#[derive(Clone, Debug, Default)]
pub struct Verbosity(Arc<AtomicU32>);

impl Verbosity {
    fn new(verbosity: u32) -> Self {
        Self(Arc::new(AtomicU32::new(verbosity)))
    }

    /// From now on as if the agent had been started with this `-v`.
    pub fn set(&self, verbosity: u32) {
        self.0.store(verbosity, Ordering::Relaxed);
        // What was found to be shown or not to be shown was remembered.
        tracing::callsite::rebuild_interest_cache();
    }

    fn level(&self) -> Level {
        level_of(self.0.load(Ordering::Relaxed))
    }
}

/// Sends all log lines of this process to standard error.
pub fn init(
    format: Format,
    verbosity: u32,
    by_file: ByFile,
    clock: Arc<dyn WallClock>,
) -> Verbosity {
    let verbosity = Verbosity::new(verbosity);
    let lines = Lines {
        verbosity: verbosity.clone(),
        by_file,
        format,
        clock,
        zone: TimeZone::system(),
        pid: std::process::id(),
    };
    // A second subscriber in one process would be a programming error; the first one stays.
    let _ = tracing_subscriber::registry().with(lines).try_init();
    verbosity
}

/// The least important lines that are shown at a verbosity.
pub fn level_of(verbosity: u32) -> Level {
    match verbosity {
        TRACE_VERBOSITY.. => Level::TRACE,
        DEBUG_VERBOSITY.. => Level::DEBUG,
        _ => Level::INFO,
    }
}

struct Lines {
    verbosity: Verbosity,
    by_file: ByFile,
    format: Format,
    clock: Arc<dyn WallClock>,
    zone: TimeZone,
    pid: u32,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        let of_file = self.by_file.level(metadata.file());
        let shown = of_file.map_or(self.verbosity.level(), |level| {
            level.max(self.verbosity.level())
        });
        // Other crates' chatter is theirs; only ours is written for operators.
        *metadata.level() <= shown && metadata.target().starts_with("krablet")
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        let all = self.verbosity.level();
        let most = self.by_file.most().map_or(all, |level| level.max(all));
        Some(most.into())
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let now = self.clock.now();
        let line = match self.format {
            Format::Text => self.text(event.metadata(), &fields, now),
            Format::Json => json(event.metadata(), &fields, now),
        };
        // Nobody is left to tell if standard error is closed.
        let _ = io::stderr().lock().write_all(line.as_bytes());
    }
}

/// A field's value as it is to be shown.
#[derive(Clone, Debug)]
enum Value {
    Text(String),
    Plain(String),
}

#[derive(Default)]
struct Fields {
    message: String,
    rest: Vec<(&'static str, Value)>,
}

impl Fields {
    fn push(&mut self, field: &Field, value: Value) {
        // `message` is also a field of events; the line's own message comes first.
        self.rest.push((field.name(), value));
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" && self.message.is_empty() {
            self.message = text;
        } else {
            self.push(field, Value::Text(text));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" && self.message.is_empty() {
            self.message = value.to_owned();
        } else {
            self.push(field, Value::Text(value.to_owned()));
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, Value::Plain(value.to_string()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field, Value::Plain(value.to_string()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push(field, Value::Plain(value.to_string()));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push(field, Value::Text(value.to_string()));
    }
}

fn place(metadata: &Metadata<'_>) -> String {
    let file = metadata.file().unwrap_or("unknown");
    let file = file.rsplit('/').next().unwrap_or(file);
    format!("{file}:{}", metadata.line().unwrap_or_default())
}

fn letter(level: Level) -> char {
    match level {
        Level::ERROR => 'E',
        Level::WARN => 'W',
        _ => 'I',
    }
}

impl Lines {
    /// `I1115 22:46:42.123456    1234 file.rs:12] "Message" key="value"`.
    fn text(&self, metadata: &Metadata<'_>, fields: &Fields, now: Timestamp) -> String {
        let time = now.to_zoned(self.zone.clone());
        let mut line = format!(
            "{}{:02}{:02} {:02}:{:02}:{:02}.{:06} {:>7} {}] {}",
            letter(*metadata.level()),
            time.month(),
            time.day(),
            time.hour(),
            time.minute(),
            time.second(),
            time.subsec_nanosecond() / 1000,
            self.pid,
            place(metadata),
            quoted(&fields.message),
        );
        for (name, value) in &fields.rest {
            let _ = match value {
                Value::Text(text) => write!(line, " {name}={}", quoted(text)),
                Value::Plain(text) => write!(line, " {name}={text}"),
            };
        }
        line.push('\n');
        line
    }
}

/// One JSON object on a line; `v` is the verbosity for what is no error.
fn json(metadata: &Metadata<'_>, fields: &Fields, now: Timestamp) -> String {
    let mut line = format!(
        "{{\"ts\":{}.{:03},\"caller\":{},\"msg\":{}",
        now.as_millisecond(),
        now.subsec_nanosecond().rem_euclid(1_000_000) / 1000,
        quoted(&place(metadata)),
        quoted(&fields.message),
    );
    match *metadata.level() {
        Level::ERROR => {}
        Level::DEBUG => line.push_str(",\"v\":4"),
        Level::TRACE => line.push_str(",\"v\":6"),
        _ => line.push_str(",\"v\":0"),
    }
    for (name, value) in &fields.rest {
        let _ = match value {
            Value::Text(text) => write!(line, ",{}:{}", quoted(name), quoted(text)),
            Value::Plain(text) => write!(line, ",{}:{text}", quoted(name)),
        };
    }
    line.push_str("}\n");
    line
}

/// A JSON string, which is also how klog quotes.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    struct Fixed;

    impl WallClock for Fixed {
        fn now(&self) -> Timestamp {
            "2026-11-15T22:46:42.123456Z".parse().unwrap()
        }
    }

    /// Keeps lines instead of printing them.
    struct Kept(Lines, Arc<Mutex<String>>);

    impl<S: Subscriber> Layer<S> for Kept {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let mut fields = Fields::default();
            event.record(&mut fields);
            let line = match self.0.format {
                Format::Text => self.0.text(event.metadata(), &fields, self.0.clock.now()),
                Format::Json => json(event.metadata(), &fields, self.0.clock.now()),
            };
            self.1.lock().unwrap().push_str(&line);
        }
    }

    fn logged(format: Format, f: impl FnOnce()) -> String {
        let lines = Lines {
            verbosity: Verbosity::new(TRACE_VERBOSITY),
            by_file: ByFile::default(),
            format,
            clock: Arc::new(Fixed),
            zone: TimeZone::UTC,
            pid: 42,
        };
        let kept = Arc::new(Mutex::new(String::new()));
        let subscriber = tracing_subscriber::registry().with(Kept(lines, kept.clone()));
        tracing::subscriber::with_default(subscriber, f);
        let text = kept.lock().unwrap().clone();
        // The line number moves with every edit of this file.
        let (before, after) = text.split_once("logging.rs:").unwrap();
        format!(
            "{before}logging.rs:N{}",
            after.trim_start_matches(char::is_numeric)
        )
    }

    #[test]
    fn text_lines_look_like_klog() {
        let line = logged(Format::Text, || {
            tracing::warn!(pod = %"ns/web", n = 3, ok = true, err = "a \"b\"\nc", "Odd thing");
        });
        assert_eq!(
            line,
            "W1115 22:46:42.123456      42 logging.rs:N] \"Odd thing\" pod=\"ns/web\" n=3 ok=true err=\"a \\\"b\\\"\\nc\"\n"
        );
    }

    #[test]
    fn json_lines_are_objects() {
        let line = logged(Format::Json, || {
            tracing::info!(pod = "ns/web", n = 3, "Odd thing");
        });
        assert_eq!(
            line,
            "{\"ts\":1794782802123.456,\"caller\":\"logging.rs:N\",\"msg\":\"Odd thing\",\"v\":0,\"pod\":\"ns/web\",\"n\":3}\n"
        );
        assert!(serde_json::from_str::<serde_json::Value>(line.trim()).is_ok());
    }

    #[test]
    fn verbosity_opens_levels() {
        for (v, level) in [
            (0, Level::INFO),
            (3, Level::INFO),
            (4, Level::DEBUG),
            (10, Level::TRACE),
        ] {
            assert_eq!(level_of(v), level);
        }
    }
}
