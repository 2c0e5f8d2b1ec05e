//! Result tables as psql draws them.
//!
//! # Limits
//! The whole result is in memory; column widths count characters, not terminal cells.

/// A result: column names, rows of texts (`None` is NULL).
#[derive(Debug, Default)]
pub struct Table {
    /// Column names.
    pub columns: Vec<String>,
    /// Rows.
    pub rows: Vec<Vec<Option<String>>>,
}

impl Table {
    /// The table with borders of spaces and bars, and the row count.
    #[must_use]
    pub fn render(&self) -> String {
        let cell = |value: &Option<String>| value.as_deref().unwrap_or("").replace('\n', "↵");
        let mut widths: Vec<usize> = self.columns.iter().map(|name| name.chars().count()).collect();
        for row in &self.rows {
            for (width, value) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell(value).chars().count());
            }
        }
        // Numbers are set to the right, as psql does.
        let numeric: Vec<bool> = (0..self.columns.len())
            .map(|column| {
                let mut values = self.rows.iter().filter_map(|row| row.get(column)?.as_deref());
                values.clone().next().is_some() && values.all(|text| text.parse::<f64>().is_ok())
            })
            .collect();
        let mut out = String::new();
        let heads: Vec<String> = self
            .columns
            .iter()
            .zip(&widths)
            .map(|(name, width)| format!(" {name:^width$} "))
            .collect();
        push_line(&mut out, &heads.join("|"));
        let rules: Vec<String> = widths.iter().map(|width| "-".repeat(width + 2)).collect();
        push_line(&mut out, &rules.join("+"));
        for row in &self.rows {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .zip(&numeric)
                .map(|((value, width), numeric)| match (cell(value), numeric) {
                    (text, true) => format!(" {text:>width$} "),
                    (text, false) => format!(" {text:<width$} "),
                })
                .collect();
            push_line(&mut out, &cells.join("|"));
        }
        let rows = self.rows.len();
        push_line(&mut out, &format!("({rows} {})", if rows == 1 { "row" } else { "rows" }));
        out
    }
}

fn push_line(out: &mut String, line: &str) {
    out.push_str(line.trim_end());
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_drawn_as_psql_draws_it() {
        let text = |text: &str| Some(text.to_owned());
        let table = Table {
            columns: vec!["id".to_owned(), "name".to_owned()],
            rows: vec![vec![text("1"), text("ada")], vec![text("20"), None]],
        };
        let expected = " id | name\n----+------\n  1 | ada\n 20 |\n(2 rows)\n";
        assert_eq!(table.render(), expected);
    }
}
