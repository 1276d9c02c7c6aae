//! The Prometheus text of a scrape whose samples say when they were read. A page of a full node has megabytes, most of
//! them the same labels again and again: samples are kept small, and the text is made family by family while it is sent.

use std::collections::BTreeMap;
use std::fmt::Write as _;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
}

/// Name, type and help of a family.
#[derive(Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    pub help: &'static str,
}

pub const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric {
        name,
        kind: Kind::Counter,
        help,
    }
}

pub const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric {
        name,
        kind: Kind::Gauge,
        help,
    }
}

/// Labels of a page, written down in it once: those that many samples have in common, and more.
#[derive(Clone, Copy, Debug, Default)]
pub struct Labels {
    common: Entry,
    more: Entry,
}

impl Labels {
    pub fn and(self, more: More) -> Self {
        let More(more) = more;
        Self { more, ..self }
    }
}

/// Labels to add to others.
#[derive(Clone, Copy, Debug)]
pub struct More(Entry);

/// Its number in the book; none for the first.
#[derive(Clone, Copy, Debug, Default)]
struct Entry(u32);

/// All labels of a page, one behind the other.
#[derive(Debug, Default)]
struct Book {
    letters: String,
    ends: Vec<usize>,
}

impl Book {
    fn write(&mut self, pairs: &[(&str, &str)]) -> Entry {
        let start = self.letters.len();
        for (name, value) in pairs {
            if self.letters.len() > start {
                self.letters.push(',');
            }
            self.letters.push_str(name);
            self.letters.push_str("=\"");
            escape(value, &mut self.letters);
            self.letters.push('"');
        }
        self.ends.push(self.letters.len());
        Entry(u32::try_from(self.ends.len()).unwrap_or_default())
    }

    fn read(&self, Entry(number): Entry) -> &str {
        let end = |number: usize| self.ends.get(number.checked_sub(1)?).copied();
        let number = number as usize;
        let Some(to) = end(number) else {
            return "";
        };
        let from = end(number.saturating_sub(1)).unwrap_or_default();
        self.letters.get(from..to).unwrap_or_default()
    }
}

fn escape(value: &str, out: &mut String) {
    let mut rest = value;
    while let Some(at) = rest.find(['\\', '"', '\n']) {
        let (plain, special) = rest.split_at(at);
        out.push_str(plain);
        out.push_str(match special.as_bytes().first() {
            Some(b'\\') => "\\\\",
            Some(b'"') => "\\\"",
            _ => "\\n",
        });
        rest = special.get(1..).unwrap_or_default();
    }
    out.push_str(rest);
}

#[derive(Debug)]
struct Sample {
    labels: Labels,
    value: f64,
}

#[derive(Debug)]
struct Family {
    metric: &'static Metric,
    /// In milliseconds since the epoch; of all its samples.
    at: Option<i64>,
    samples: Vec<Sample>,
}

#[derive(Debug, Default)]
pub struct Text {
    book: Book,
    /// By where their metrics are, which is quicker to compare than a name.
    families: BTreeMap<usize, Family>,
}

impl Text {
    pub fn labels(&mut self, pairs: &[(&str, &str)]) -> Labels {
        Labels {
            common: self.book.write(pairs),
            more: Entry::default(),
        }
    }

    pub fn more(&mut self, pairs: &[(&str, &str)]) -> More {
        More(self.book.write(pairs))
    }

    /// `at` in milliseconds since the epoch, and the same for all samples of a metric.
    pub fn put(&mut self, metric: &'static Metric, labels: Labels, value: f64, at: Option<i64>) {
        let family = self
            .families
            .entry(std::ptr::from_ref(metric).addr())
            .or_insert_with(|| Family {
                metric,
                at,
                samples: Vec::new(),
            });
        family.samples.push(Sample { labels, value });
    }

    /// The page in pieces, each made when it is asked for.
    pub fn pieces(self) -> impl Iterator<Item = String> + Send {
        let mut families: Vec<Family> = self.families.into_values().collect();
        families.sort_by_key(|family| family.metric.name);
        let book = self.book;
        families.into_iter().map(move |family| family.text(&book))
    }
}

impl Family {
    fn text(self, book: &Book) -> String {
        let kind = match self.metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        let Metric { name, help, .. } = self.metric;
        let at = self.at.map(|at| format!(" {at}")).unwrap_or_default();
        // Braces, a comma, a number and the end of the line.
        let each = name.len() + at.len() + 28;
        let labels = |s: &Sample| book.read(s.labels.common).len() + book.read(s.labels.more).len();
        let lines = self.samples.iter().map(|sample| each + labels(sample));
        let mut out =
            String::with_capacity(lines.sum::<usize>() + 2 * name.len() + help.len() + 32);
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for Sample { labels, value } in &self.samples {
            out.push_str(name);
            put_labels(book.read(labels.common), book.read(labels.more), &mut out);
            out.push(' ');
            put_number(*value, &mut out);
            out.push_str(&at);
            out.push('\n');
        }
        out
    }
}

fn put_labels(common: &str, more: &str, out: &mut String) {
    if common.is_empty() && more.is_empty() {
        return;
    }
    out.push('{');
    out.push_str(common);
    if !common.is_empty() && !more.is_empty() {
        out.push(',');
    }
    out.push_str(more);
    out.push('}');
}

/// Most are whole, and those are written quicker.
fn put_number(value: f64, out: &mut String) {
    const EXACT: f64 = (1_u64 << 53) as f64;
    let whole = value as u64;
    let _ = match value.is_sign_positive() && value < EXACT && whole as f64 == value {
        true => write!(out, "{whole}"),
        false => write!(out, "{value}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    static A: Metric = gauge("a", "First.");
    static B: Metric = counter("b", "Second.");

    #[test]
    fn families_in_order_and_values_escaped() {
        let mut text = Text::default();
        let base = text.labels(&[("x", "1\"\\\n")]);
        let more = text.more(&[("y", ""), ("z", "ü")]);
        text.put(&B, base.and(more), 2.5, Some(1700));
        text.put(&B, base, f64::NAN, Some(1700));
        text.put(&A, Labels::default(), 1e15, None);
        assert_eq!(
            text.pieces().collect::<String>(),
            "# HELP a First.\n# TYPE a gauge\na 1000000000000000\n\
             # HELP b Second.\n# TYPE b counter\nb{x=\"1\\\"\\\\\\n\",y=\"\",z=\"ü\"} 2.5 1700\n\
             b{x=\"1\\\"\\\\\\n\"} NaN 1700\n"
        );
    }

    #[test]
    fn numbers_are_written_as_ever() {
        let cases = [
            0.0,
            -0.0,
            7.0,
            0.25,
            -1.0,
            9e15,
            9_007_199_254_740_992.0,
            1e20,
            1e-7,
        ];
        for value in cases.into_iter().chain([f64::INFINITY, f64::MAX]) {
            let mut out = String::new();
            put_number(value, &mut out);
            assert_eq!(out, value.to_string());
        }
    }
}
