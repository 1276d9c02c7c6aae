//! Rows of results, as a table for people and as one line of JSON for machines.

use std::fmt::Write as _;

use serde_json::{Value, json};

/// One result, with its promise if it has one.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The measure it belongs to: what `--only` takes.
    pub measure: &'static str,
    pub name: String,
    pub value: f64,
    pub unit: &'static str,
    /// What it is compared with, in words.
    pub remark: String,
    /// The value is to be at most this.
    pub promise: Option<f64>,
}

impl Row {
    pub fn new(
        measure: &'static str,
        name: impl Into<String>,
        value: f64,
        unit: &'static str,
    ) -> Self {
        Self {
            measure,
            name: name.into(),
            value,
            unit,
            remark: String::new(),
            promise: None,
        }
    }

    pub fn remark(mut self, remark: impl Into<String>) -> Self {
        self.remark = remark.into();
        self
    }

    pub fn at_most(mut self, promise: f64) -> Self {
        self.promise = Some(promise);
        self
    }

    pub fn is_missed(&self) -> bool {
        self.promise.is_some_and(|promise| self.value > promise)
    }

    fn verdict(&self) -> &'static str {
        match self.promise {
            None => "",
            Some(_) if self.is_missed() => "MISSED",
            Some(_) => "kept",
        }
    }

    fn cells(&self) -> [String; 5] {
        let promise = self.promise.map_or_else(String::new, |promise| {
            format!("≤ {} {}", number(promise), self.unit)
        });
        [
            self.name.clone(),
            format!("{} {}", number(self.value), self.unit),
            promise,
            self.verdict().to_owned(),
            self.remark.clone(),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "measure": self.measure,
            "name": self.name,
            "value": (self.value * 10_000.0).round() / 10_000.0,
            "unit": self.unit,
            "promise": self.promise,
            "kept": self.promise.map(|_| !self.is_missed()),
        })
    }
}

/// Two digits after the point where they tell something.
fn number(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The table, one row a line.
pub fn table(rows: &[Row]) -> String {
    let head = ["measure", "measured", "promise", "", ""].map(str::to_owned);
    let lines: Vec<[String; 5]> = std::iter::once(head)
        .chain(rows.iter().map(Row::cells))
        .collect();
    let width = |column: usize| {
        let cells = lines.iter().map(|cells| cells[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..5).map(width).collect();
    let mut text = String::new();
    for cells in &lines {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// What was promised and not kept, one a line; empty if all was.
pub fn missed(rows: &[Row]) -> String {
    let missed = rows.iter().filter(|row| row.is_missed());
    missed.fold(String::new(), |mut text, row| {
        let [name, value, promise, ..] = row.cells();
        let _ = writeln!(text, "MISSED: {name}: {value}, promised {promise}");
        text
    })
}

/// The same as one line of JSON.
pub fn json_line(rows: &[Row], pods: usize) -> String {
    let results: Vec<Value> = rows.iter().map(Row::json).collect();
    json!({
        "pods": pods,
        "missed": rows.iter().filter(|row| row.is_missed()).count(),
        "results": results,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        vec![
            Row::new("starts", "110 pods to running", 1.0949, "× floor")
                .at_most(1.15)
                .remark("14.2 s"),
            Row::new("memory", "empty", 17.04, "MB").at_most(16.0),
            Row::new("starts", "calls", 12.0, ""),
        ]
    }

    #[test]
    fn the_table_lines_up_and_names_what_was_missed() {
        let text = table(&rows());
        let expected = "\
measure              measured      promise
110 pods to running  1.09 × floor  ≤ 1.15 × floor  kept    14.2 s
empty                17.0 MB       ≤ 16.0 MB       MISSED
calls                12.0
";
        assert_eq!(text, expected);
        assert_eq!(
            missed(&rows()),
            "MISSED: empty: 17.0 MB, promised ≤ 16.0 MB\n"
        );
    }

    #[test]
    fn machines_read_one_line() {
        let line = json_line(&rows(), 110);
        assert!(!line.contains('\n'));
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["missed"], 1);
        assert_eq!(value["results"][0]["kept"], true);
        assert_eq!(value["results"][2]["kept"], Value::Null);
        assert_eq!(value["results"][0]["value"], 1.0949);
    }
}
