//! What `/logs/?query=…` asks for, and what is wrong with it, in the words clients of the kubelet know.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::secure::query::values;

const MAX_LINES: i64 = 100_000;
const MAX_SERVICE_LENGTH: usize = 256;
const MAX_SERVICES: usize = 4;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeLogQuery {
    pub(super) services: Vec<String>,
    pub(super) files: Vec<String>,
    pub(super) options: Options,
}

/// They hold for services' logs, not for files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) since: Option<Timestamp>,
    pub(super) until: Option<Timestamp>,
    pub(super) tail: Option<i64>,
    /// 0 is this boot, -1 the one before.
    pub(super) boot: Option<i64>,
    pub(super) pattern: String,
}

/// Everything that is wrong, as one text.
#[derive(Default)]
struct Problems(Vec<String>);

impl Problems {
    fn invalid(&mut self, field: &str, value: Value, why: &str) {
        self.add(format!("{field}: Invalid value: {value}: {why}"));
    }

    fn add(&mut self, problem: String) {
        if !self.0.contains(&problem) {
            self.0.push(problem);
        }
    }

    fn result(self) -> Result<(), String> {
        match self.0.as_slice() {
            [] => Ok(()),
            [one] => Err(one.clone()),
            many => Err(format!("[{}]", many.join(", "))),
        }
    }
}

/// `None`: nothing of a query is in it.
pub(super) fn parse(pairs: &[(String, String)]) -> Result<Option<NodeLogQuery>, String> {
    let mut problems = Problems::default();
    let mut query = NodeLogQuery::default();
    let asked: Vec<&str> = values(pairs, "query").collect();
    for text in &asked {
        // A slash is the sign of a file.
        if text.contains(['/', '\\']) {
            query.files.push((*text).to_owned());
        } else if !text.trim().is_empty() {
            query.services.push((*text).to_owned());
        }
    }
    if !asked.is_empty() && query.files.is_empty() && query.services.is_empty() {
        problems.invalid("query", json!(asked), "may not be empty");
    }
    let first = |name: &'static str| values(pairs, name).next().filter(|v| !v.is_empty());
    let mut time = |name: &'static str| {
        let text = first(name)?;
        let time = text.parse::<Timestamp>();
        if time.is_err() {
            problems.invalid(name, json!(text), "invalid time format");
        }
        time.ok()
    };
    query.options.since = time("sinceTime");
    query.options.until = time("untilTime");
    let mut number = |name: &'static str| {
        let text = first(name)?;
        let number = integer(text);
        if let Err(why) = &number {
            problems.invalid(name, json!(text), why);
        }
        number.ok()
    };
    query.options.boot = number("boot");
    query.options.tail = number("tailLines");
    query.options.pattern = first("pattern").unwrap_or_default().to_owned();
    problems.result()?;
    Ok(Some(query).filter(|query| *query != NodeLogQuery::default()))
}

fn integer(text: &str) -> Result<i64, String> {
    use std::num::IntErrorKind::{NegOverflow, PosOverflow};
    text.parse().map_err(|e: std::num::ParseIntError| {
        let why = match e.kind() {
            PosOverflow | NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        format!("strconv.Atoi: parsing {}: {why}", json!(text))
    })
}

impl NodeLogQuery {
    /// Whether it makes sense; a file that is asked for has still to be found.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut problems = Problems::default();
        self.check_services(&mut problems);
        let (files, services) = (self.files.len(), self.services.len());
        if files == 0 && services == 0 {
            problems.add("query: Required value: cannot be empty with options".to_owned());
        } else if files > 0 && services > 0 {
            let both = format!("[{}], [{}]", self.files.join(" "), self.services.join(" "));
            problems.invalid("query", json!(both), "cannot specify a file and service");
        } else if files > 1 {
            let why = "cannot specify more than one file";
            problems.invalid("query", json!(self.files), why);
        } else if files == 1 && self.options != Options::default() {
            let why = "cannot specify file with options";
            problems.invalid("query", json!(self.files), why);
        }
        self.options.check(&mut problems);
        problems.result()
    }

    fn check_services(&self, problems: &mut Problems) {
        for service in &self.services {
            if service.len() > MAX_SERVICE_LENGTH {
                let why = format!("length must be less than {MAX_SERVICE_LENGTH}");
                problems.invalid("query", json!(service), &why);
            } else if !service.chars().all(is_safe) {
                let why = "input contains unsupported characters";
                problems.invalid("query", json!(service), why);
            }
        }
        let count = self.services.len();
        if count > MAX_SERVICES {
            let why = format!("must have at most {MAX_SERVICES} items");
            problems.add(format!("query: Too many: {count}: {why}"));
        }
    }
}

/// What may be part of a unit's name on a command line.
fn is_safe(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.:@".contains(c)
}

impl Options {
    fn check(&self, problems: &mut Problems) {
        if let (Some(since), Some(until)) = (self.since, self.until)
            && since > until
        {
            let why = "must be after `sinceTime`";
            problems.invalid("untilTime", json!(until.to_string()), why);
        }
        if let Some(boot) = self.boot.filter(|boot| *boot > 0) {
            problems.invalid("boot", json!(boot), "must be less than 1");
        }
        if let Some(tail) = self.tail.filter(|n| !(0..=MAX_LINES).contains(n)) {
            let why = format!("must be between 0 and {MAX_LINES}, inclusive");
            problems.invalid("tailLines", json!(tail), &why);
        }
        if let Err(e) = regex_syntax::ast::parse::Parser::new().parse(&self.pattern) {
            let why = format!("error parsing regexp: {}", e.kind());
            problems.invalid("pattern", json!(self.pattern), &why);
        }
    }

    /// How the journal is asked for it. Values are tied to their options: none can become an option of its own.
    pub(super) fn arguments(&self, units: &[String]) -> Vec<String> {
        let fixed = ["--utc", "--no-pager", "--output=short-precise"];
        let mut arguments: Vec<String> = fixed.map(str::to_owned).to_vec();
        let moment = |at: Timestamp| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
        arguments.extend(self.since.map(|at| format!("--since={}", moment(at))));
        arguments.extend(self.until.map(|at| format!("--until={}", moment(at))));
        if let Some(tail) = self.tail {
            arguments.extend(["--pager-end".to_owned(), format!("--lines={tail}")]);
        }
        arguments.extend(units.iter().map(|unit| format!("--unit={unit}")));
        if !self.pattern.is_empty() {
            arguments.push(format!("--grep={}", self.pattern));
        }
        arguments.extend(self.boot.map(|boot| format!("--boot={boot}")));
        arguments
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::secure::query::tests::pairs;

    #[test]
    fn what_is_asked_for() {
        let asked = |query: &str| parse(&pairs(query));
        assert_eq!(asked(""), Ok(None));
        assert_eq!(asked("other=1"), Ok(None));
        let query = asked("query=kubelet&query=crio&tailLines=5&boot=-1&pattern=a.*b");
        let query = query.unwrap().unwrap();
        assert_eq!(query.check(), Ok(()));
        assert_eq!(
            query.options.arguments(&query.services).join(" "),
            "--utc --no-pager --output=short-precise --pager-end --lines=5 --unit=kubelet --unit=crio --grep=a.*b --boot=-1"
        );
        let query = "query=x&sinceTime=2026-01-01T02:00:00%2B02:00".replace("%2B", "+");
        let query = asked(&query).unwrap().unwrap();
        let arguments = query.options.arguments(&[]);
        assert_eq!(arguments[3], "--since=2026-01-01 00:00:00 UTC");
        let query = asked("query=/kern.log").unwrap().unwrap();
        assert_eq!((query.files.len(), query.check()), (1, Ok(())));
    }

    #[test]
    fn what_cannot_be_read() {
        for (query, why) in [
            ("query=", r#"query: Invalid value: [""]: may not be empty"#),
            (
                "query=x&sinceTime=now",
                r#"sinceTime: Invalid value: "now": invalid time format"#,
            ),
            (
                "query=x&boot=y",
                r#"boot: Invalid value: "y": strconv.Atoi: parsing "y": invalid syntax"#,
            ),
            (
                "tailLines=99999999999999999999&untilTime=1",
                r#"[untilTime: Invalid value: "1": invalid time format, tailLines: Invalid value: "99999999999999999999": strconv.Atoi: parsing "99999999999999999999": value out of range]"#,
            ),
        ] {
            assert_eq!(parse(&pairs(query)), Err(why.to_owned()), "{query}");
        }
    }

    #[test]
    fn what_makes_no_sense() {
        let long = "a".repeat(257);
        for (query, why) in [
            (
                "tailLines=1",
                "query: Required value: cannot be empty with options",
            ),
            (
                "query=/a&query=b",
                r#"query: Invalid value: "[/a], [b]": cannot specify a file and service"#,
            ),
            (
                "query=/a&query=/b",
                r#"query: Invalid value: ["/a","/b"]: cannot specify more than one file"#,
            ),
            (
                "query=/a&boot=0",
                r#"query: Invalid value: ["/a"]: cannot specify file with options"#,
            ),
            (
                "query=a;b",
                r#"query: Invalid value: "a;b": input contains unsupported characters"#,
            ),
            (
                &format!("query={long}"),
                &format!(r#"query: Invalid value: "{long}": length must be less than 256"#),
            ),
            (
                "query=a&query=b&query=c&query=d&query=e",
                "query: Too many: 5: must have at most 4 items",
            ),
            (
                "query=a&boot=1",
                "boot: Invalid value: 1: must be less than 1",
            ),
            (
                "query=a&tailLines=100001",
                "tailLines: Invalid value: 100001: must be between 0 and 100000, inclusive",
            ),
            (
                "query=a&sinceTime=2026-01-02T00:00:00Z&untilTime=2026-01-01T00:00:00Z",
                r#"untilTime: Invalid value: "2026-01-01T00:00:00Z": must be after `sinceTime`"#,
            ),
            (
                "query=a&pattern=(",
                r#"pattern: Invalid value: "(": error parsing regexp: unclosed group"#,
            ),
        ] {
            let query = parse(&pairs(query)).unwrap().unwrap();
            assert_eq!(query.check(), Err(why.to_owned()));
        }
    }

    proptest! {
        #[test]
        fn no_query_becomes_an_option(
            names in proptest::collection::vec("(query|sinceTime|untilTime|boot|tailLines|pattern)", 0..6),
            values in proptest::collection::vec("(-?[0-9]{1,7}|--[a-z]{1,8}|[ -~]{0,12}|\\PC{0,6})", 6),
        ) {
            let pairs: Vec<_> = names.into_iter().zip(values).collect();
            let Ok(Some(query)) = parse(&pairs) else { return Ok(()); };
            if query.check().is_ok() {
                prop_assert!(query.services.len() <= MAX_SERVICES);
                for argument in query.options.arguments(&query.services) {
                    let known = ["--utc", "--no-pager", "--output=", "--since=", "--until=", "--pager-end", "--lines=", "--unit=", "--grep=", "--boot="];
                    prop_assert!(known.iter().any(|k| argument.starts_with(k)), "{argument}");
                }
            }
        }
    }
}
