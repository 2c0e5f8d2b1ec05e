//! Tables of text, aligned.
//!
//! # Invariants
//! The first column is flush left, all others flush right.

/// A table as text.
pub fn text(title: &str, head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (at, (cell, width)) in cells.zip(&widths).enumerate() {
            line += &if at == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") };
        }
        line.trim_end().to_owned() + "\n"
    };
    let mut text = format!("\n{title}\n\n");
    text += &line(&mut head.iter().copied());
    let ruled: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    text += &line(&mut ruled.iter().map(String::as_str));
    for row in rows {
        text += &line(&mut row.iter().map(String::as_str));
    }
    text
}

/// Dollars or seconds with three significant digits.
pub fn short(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = value.abs().log10().floor() as i32;
    let digits = usize::try_from(2 - magnitude).unwrap_or(0).min(9);
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_numbers_keep_three_digits() {
        let all = [
            (0.0, "0"),
            (11.34, "11.3"),
            (0.15, "0.150"),
            (0.000_123_4, "0.000123"),
            (2345.6, "2346"),
        ];
        for (value, expected) in all {
            assert_eq!(short(value), expected);
        }
    }

    #[test]
    fn columns_are_aligned() {
        let table = text("T", &["a", "bb"], &[vec!["long".into(), "1".into()]]);
        assert_eq!(table, "\nT\n\na     bb\n----  --\nlong   1\n");
    }
}
