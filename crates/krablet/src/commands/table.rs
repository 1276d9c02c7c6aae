//! Text tables with columns as wide as they need to be.

/// Lays out rows under a header, two spaces between columns, nothing after the last.
pub fn render(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|h| h.len()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let mut push = |cells: Vec<&str>| {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(&widths) {
            line.push_str(cell);
            let pad = width.saturating_sub(cell.chars().count()) + 2;
            line.extend(std::iter::repeat_n(' ', pad));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    };
    push(header.to_vec());
    for row in rows {
        push(row.iter().map(String::as_str).collect());
    }
    text
}

/// `45s`, `3m12s`, `2h5m`, `4d3h`.
pub fn age(seconds: i64) -> String {
    match seconds {
        s if s < 120 => format!("{s}s"),
        s if s < 600 => format!("{}m{}s", s / 60, s % 60),
        s if s < 3 * 3600 => format!("{}m", s / 60),
        s if s < 8 * 3600 => format!("{}h{}m", s / 3600, s % 3600 / 60),
        s if s < 48 * 3600 => format!("{}h", s / 3600),
        s => format!("{}d{}h", s / 86400, s % 86400 / 3600),
    }
}

/// Cuts a text to `width` characters, with an ellipsis if something is lost; control characters of
/// outside text never reach the terminal.
pub fn cut(text: &str, width: usize) -> String {
    let clean: Vec<char> = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if clean.len() <= width {
        return clean.into_iter().collect();
    }
    let mut kept: String = clean[..width.saturating_sub(1)].iter().collect();
    kept.push('…');
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = vec![
            vec!["web".to_owned(), "1/1".to_owned()],
            vec!["longer-name".to_owned(), String::new()],
        ];
        let text = render(&["NAME", "READY"], &rows);
        assert_eq!(text, "NAME         READY\nweb          1/1\nlonger-name\n");
    }

    #[test]
    fn ages_and_cuts() {
        let ages = [
            (5, "5s"),
            (119, "119s"),
            (125, "2m5s"),
            (7200, "120m"),
            (14_700, "4h5m"),
            (300_000, "3d11h"),
        ];
        for (seconds, text) in ages {
            assert_eq!(age(seconds), text);
        }
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("a\u{1b}[31mb", 20), "a [31mb");
    }
}
