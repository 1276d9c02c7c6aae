//! A strict reader of the exposition format: it takes exactly what a scraper must be able to rely on.
//! Tests and measurements read scrapes with it.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    pub name: String,
    pub help: String,
    pub kind: String,
    pub samples: Vec<Sample>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Sample {
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(String::as_str)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct ParseError {
    pub line: usize,
    pub why: String,
}

/// Reads a whole scrape, by family name.
pub fn parse(text: &str) -> Result<BTreeMap<String, Family>, ParseError> {
    let mut families: Vec<Family> = Vec::new();
    if !text.is_empty() && !text.ends_with('\n') {
        return Err(ParseError {
            line: text.lines().count(),
            why: "the last line does not end".into(),
        });
    }
    for (index, line) in text.lines().enumerate() {
        read_line(line, &mut families).map_err(|why| ParseError {
            line: index + 1,
            why,
        })?;
    }
    let mut all = BTreeMap::new();
    for family in families {
        let name = family.name.clone();
        let complaint = match check(&family) {
            Err(why) => Some(why),
            Ok(()) => all
                .insert(name.clone(), family)
                .map(|_| "told twice".into()),
        };
        if let Some(why) = complaint {
            let line = text.lines().position(|l| l.contains(&name)).unwrap_or(0) + 1;
            let why = format!("{name}: {why}");
            return Err(ParseError { line, why });
        }
    }
    Ok(all)
}

fn read_line(line: &str, families: &mut Vec<Family>) -> Result<(), String> {
    if let Some(rest) = line.strip_prefix("# HELP ") {
        let (name, help) = rest.split_once(' ').ok_or("no help")?;
        families.push(Family {
            name: metric_name(name)?,
            help: help.to_owned(),
            kind: String::new(),
            samples: Vec::new(),
        });
        return Ok(());
    }
    let family = families.last_mut().ok_or("no family yet")?;
    if let Some(rest) = line.strip_prefix("# TYPE ") {
        let (name, kind) = rest.split_once(' ').ok_or("no type")?;
        if name != family.name || !family.kind.is_empty() {
            return Err(format!("type of {name} out of place"));
        }
        if !["counter", "gauge", "histogram"].contains(&kind) {
            return Err(format!("unknown type {kind}"));
        }
        family.kind = kind.to_owned();
        return Ok(());
    }
    let sample = read_sample(line)?;
    let suffixes: &[&str] = match family.kind.as_str() {
        "" => return Err("a sample before its type".into()),
        "histogram" => &["_bucket", "_sum", "_count"],
        _ => &[""],
    };
    let suffix = sample.name.strip_prefix(&family.name);
    if !suffix.is_some_and(|s| suffixes.contains(&s)) {
        return Err(format!("{} is no sample of {}", sample.name, family.name));
    }
    family.samples.push(sample);
    Ok(())
}

fn read_sample(line: &str) -> Result<Sample, String> {
    let end = line.find(['{', ' ']).ok_or("no value")?;
    let name = metric_name(&line[..end])?;
    let mut rest = &line[end..];
    let mut labels = BTreeMap::new();
    if let Some(mut inside) = rest.strip_prefix('{') {
        loop {
            let (label, after) = inside.split_once("=\"").ok_or("a label without a value")?;
            let (value, after) = quoted(after)?;
            if labels.insert(label_name(label)?, value).is_some() {
                return Err(format!("label {label} is there twice"));
            }
            if let Some(after) = after.strip_prefix('}') {
                rest = after;
                break;
            }
            inside = after.strip_prefix(',').ok_or("labels without a comma")?;
        }
    }
    let value = rest.strip_prefix(' ').ok_or("no space before the value")?;
    let value = match value {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        number => number.parse().map_err(|_| format!("{number}: no number"))?,
    };
    Ok(Sample {
        name,
        labels,
        value,
    })
}

/// The text up to the closing quote, and what comes after it.
fn quoted(text: &str) -> Result<(String, &str), String> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => value.push(match chars.next() {
                Some((_, 'n')) => '\n',
                Some((_, c @ ('\\' | '"'))) => c,
                _ => return Err("an escape that is none".into()),
            }),
            c => value.push(c),
        }
    }
    Err("a label value without an end".into())
}

fn metric_name(name: &str) -> Result<String, String> {
    word(name, |c| c == '_' || c == ':')
}

fn label_name(name: &str) -> Result<String, String> {
    word(name, |c| c == '_')
}

fn word(name: &str, also: impl Fn(char) -> bool) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || also(c);
    if name.is_empty()
        || name.starts_with(|c: char| c.is_ascii_digit())
        || !name.chars().all(allowed)
    {
        return Err(format!("{name:?} is no name"));
    }
    Ok(name.to_owned())
}

fn check(family: &Family) -> Result<(), String> {
    if family.samples.is_empty() {
        return Err("no samples".into());
    }
    let mut seen = BTreeSet::new();
    let mut label_names = BTreeSet::new();
    for sample in &family.samples {
        if !seen.insert((&sample.name, &sample.labels)) {
            return Err(format!("{:?} is there twice", sample.labels));
        }
        if family.kind != "gauge" && (sample.value.is_nan() || sample.value < 0.0) {
            return Err(format!("a {} of {}", family.kind, sample.value));
        }
        let names = sample.labels.keys().filter(|name| *name != "le");
        label_names.insert(names.collect::<Vec<_>>());
    }
    if label_names.len() != 1 {
        return Err("samples with different labels".into());
    }
    match family.kind.as_str() {
        "histogram" => check_histograms(family),
        _ => Ok(()),
    }
}

#[derive(Default)]
struct Parts {
    buckets: Vec<(f64, f64)>,
    sum: bool,
    count: Option<f64>,
}

fn check_histograms(family: &Family) -> Result<(), String> {
    let mut sets: BTreeMap<BTreeMap<String, String>, Parts> = BTreeMap::new();
    for sample in &family.samples {
        let mut labels = sample.labels.clone();
        let bound = labels.remove("le");
        let parts = sets.entry(labels).or_default();
        match (sample.name.strip_prefix(&family.name), bound.as_deref()) {
            (Some("_bucket"), Some("+Inf")) => parts.buckets.push((f64::INFINITY, sample.value)),
            (Some("_bucket"), Some(bound)) => {
                let bound = bound.parse().map_err(|_| format!("a bound of {bound}"))?;
                parts.buckets.push((bound, sample.value));
            }
            (Some("_sum"), None) => parts.sum = true,
            (Some("_count"), None) => parts.count = Some(sample.value),
            _ => return Err(format!("{} with or without bound", sample.name)),
        }
    }
    for (labels, parts) in sets {
        let rising = parts.buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1);
        let last = parts.buckets.last();
        let whole = last.is_some_and(|(bound, n)| bound.is_infinite() && Some(*n) == parts.count);
        if !rising || !whole || !parts.sum {
            return Err(format!("{labels:?} is no whole histogram"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_values() {
        let text = "# HELP a b c\n# TYPE a gauge\na{x=\"1\\\"\\\\\\n,}\",y=\"\"} -2.5\n";
        let families = parse(text).unwrap();
        let sample = &families["a"].samples[0];
        assert_eq!(sample.label("x"), Some("1\"\\\n,}"));
        assert_eq!((sample.label("y"), sample.value), (Some(""), -2.5));
    }

    #[test]
    fn what_is_refused() {
        let head = "# HELP a b\n# TYPE a histogram\n";
        let cases = [
            "a 1",
            "a 1\n",
            "# HELP a b\n",
            "# HELP a b\na 1\n",
            "# HELP a b\n# TYPE a set\na 1\n",
            "# HELP a b\n# TYPE a gauge\n",
            "# HELP a b\n# TYPE a gauge\nb 1\n",
            "# HELP a b\n# TYPE a gauge\na 1\na 1\n",
            "# HELP a b\n# TYPE a gauge\na x\n",
            "# HELP a b\n# TYPE a gauge\na{x=\"\\t\"} 1\n",
            "# HELP a b\n# TYPE a gauge\na{x=\"1} 1\n",
            "# HELP a b\n# TYPE a gauge\na{1=\"1\"} 1\n",
            "# HELP a b\n# TYPE a gauge\na{x=\"1\"} 1\na{y=\"1\"} 1\n",
            "# HELP a b\n# TYPE a gauge\na 1\n# HELP a b\n# TYPE a gauge\na 1\n",
            "# HELP a b\n# TYPE a counter\na -1\n",
            &format!("{head}a_bucket{{le=\"+Inf\"}} 1\na_sum 1\na_count 2\n"),
            &format!("{head}a_bucket{{le=\"1\"}} 1\na_sum 1\na_count 1\n"),
            &format!(
                "{head}a_bucket{{le=\"1\"}} 2\na_bucket{{le=\"+Inf\"}} 1\na_sum 1\na_count 1\n"
            ),
            &format!("{head}a_bucket{{le=\"+Inf\"}} 1\na_count 1\n"),
        ];
        for text in cases {
            assert!(parse(text).is_err(), "{text}");
        }
        let good = format!("{head}a_bucket{{le=\"+Inf\"}} 1\na_sum 1\na_count 1\n");
        assert_eq!(parse(&good).unwrap()["a"].samples.len(), 3);
        assert!(parse("").unwrap().is_empty());
    }
}
