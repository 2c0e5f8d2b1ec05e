//! What pages are made of: the frame, tables, figures, errors.
//!
//! # Purpose
//! One look for all pages.
//!
//! # Invariants
//! - All text goes through the template engine, which escapes it; nothing here makes markup out of
//!   text.
//! - Each table has a caption and heads with a scope; each figure a name; each page one `h1`, a
//!   skip link, and its place in the navigation.
//!
//! # On failure
//! A [`Problem`] is shown where the data would be.
//!
//! # Limits
//! Values longer than [`LONG`] characters are cut in tables, and say so.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};

use crate::assets;
use crate::error::Problem;
use crate::model::Part;
use crate::query::Table;
use crate::visit::Visitor;

/// Longest value shown whole in a table, characters.
const LONG: usize = 400;

/// The pages: path, name.
pub const PAGES: [(&str, &str); 8] = [
    ("/", "Overview"),
    ("/sql", "SQL"),
    ("/data", "Data"),
    ("/statements", "Statements"),
    ("/cluster", "Cluster"),
    ("/regions", "Regions"),
    ("/cost", "Cost"),
    ("/settings", "Settings"),
];

/// A page: its title, its place in the navigation, its body, further scripts.
pub struct Page<'a> {
    pub title: &'a str,
    pub place: &'a str,
    pub body: Markup,
    pub scripts: &'a [&'a str],
    /// For the style sheets that the editor makes.
    pub nonce: Option<String>,
}

impl<'a> Page<'a> {
    pub fn new(title: &'a str, place: &'a str, body: Markup) -> Self {
        Self { title, place, body, scripts: &[], nonce: None }
    }

    /// The page as `visitor` gets it.
    pub fn response(self, visitor: &Visitor) -> Response {
        let policy = policy(self.nonce.as_deref());
        let options = &visitor.console.options;
        let board = options.board.is_some() || options.probes;
        let markup = html! {
            (DOCTYPE)
            html lang="en" data-theme=[visitor.theme] {
                (head(self.title, self.scripts, Some(&visitor.session.csrf), self.nonce.as_deref()))
                body {
                    a.skip href="#main" { "Skip to the content" }
                    header.top {
                        a.brand href="/" { (logo()) span { "Telesto" } }
                        div.who {
                            span.role title="The role whose rights bind here" { (visitor.session.user) }
                            (theme_button())
                            form method="post" action="/logout" {
                                input type="hidden" name="csrf" value=(visitor.session.csrf);
                                button.quiet type="submit" { "Log out" }
                            }
                        }
                    }
                    div.frame {
                        nav.pages aria-label="Pages" {
                            ul {
                                @for (path, name) in PAGES {
                                    (place(path, name, self.place))
                                }
                                @if board { (place("/board", "Board", self.place)) }
                            }
                        }
                        main #main tabindex="-1" {
                            h1 { (self.title) }
                            (self.body)
                        }
                    }
                }
            }
        };
        let mut response = html_response(&markup, &policy);
        if let Some(cookie) = &visitor.new_cookie
            && let Ok(cookie) = cookie.parse()
        {
            response.headers_mut().append(header::SET_COOKIE, cookie);
        }
        response
    }
}

fn place(path: &str, name: &str, here: &str) -> Markup {
    html! { li { a href=(path) aria-current=[(path == here).then_some("page")] { (name) } } }
}

/// What a page may load and do; without scripts of its own.
pub fn policy(nonce: Option<&str>) -> String {
    let nonce = nonce.map(|nonce| format!(" 'nonce-{nonce}'")).unwrap_or_default();
    format!(
        "default-src 'none'; script-src 'self'; style-src 'self'{nonce}; img-src 'self' data:; connect-src 'self'; \
         form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    )
}

pub fn html_response(markup: &Markup, policy: &str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, policy),
    ];
    (headers, markup.0.clone()).into_response()
}

pub fn head(title: &str, scripts: &[&str], csrf: Option<&str>, nonce: Option<&str>) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            title { (title) " · Telesto" }
            link rel="icon" href=(assets::url("icon.svg")) type="image/svg+xml";
            link rel="stylesheet" href=(assets::url("app.css"));
            @if let Some(csrf) = csrf { meta name="csrf" content=(csrf); }
            @if let Some(nonce) = nonce { meta name="style-nonce" content=(nonce); }
            script type="module" src=(assets::url("app.js")) {}
            @for script in scripts { script type="module" src=(assets::url(script)) {} }
        }
    }
}

pub fn logo() -> Markup {
    html! { img src=(assets::url("icon.svg")) alt="" width="20" height="20"; }
}

pub fn theme_button() -> Markup {
    html! { button.quiet #theme type="button" hidden { "Theme" } }
}

/// An error in the place of what could not be shown.
pub fn problem(problem: &Problem) -> Markup {
    html! {
        div.problem role="alert" {
            p { strong { (problem.message) } " " span.code { (problem.code) } }
            @if let Some(detail) = &problem.detail { p { (detail) } }
            @if let Some(hint) = &problem.hint { p { (hint) } }
        }
    }
}

/// A part of a page: rows, or why there are none.
pub fn part(caption: &str, part: &Part, cell: Option<Cell<'_>>) -> Markup {
    match part {
        Part::Rows(rows) => table(caption, rows, cell),
        Part::Missing { missing } => html! {
            section.absent { h2 { (caption) } p { (missing) } }
        },
        Part::Failed { error } => html! { h2 { (caption) } (problem(error)) },
    }
}

/// How a cell is shown, by the name of its column: `None` for as usual.
pub type Cell<'a> = &'a dyn Fn(&str, &str, &[Option<String>]) -> Option<Markup>;

/// A table with its caption, and the SQL that it comes from.
pub fn table(caption: &str, table: &Table, cell: Option<Cell<'_>>) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(caption) {
            table {
                caption { (caption) }
                thead { tr {
                    @for column in &table.columns {
                        th scope="col" .number[column.number] title=(column.kind) { (column.name) }
                    }
                } }
                tbody {
                    @for row in &table.rows {
                        tr {
                            @for (column, value) in table.columns.iter().zip(row) {
                                @let special = cell.and_then(|cell| cell(&column.name, value.as_deref().unwrap_or_default(), row));
                                td .number[column.number] {
                                    @if let Some(special) = special { (special) }
                                    @else if let Some(value) = value { (text(value)) }
                                    @else { span.null { "NULL" } }
                                }
                            }
                        }
                    }
                    @if table.rows.is_empty() {
                        tr { td.none colspan=(table.columns.len().max(1)) { "no rows" } }
                    }
                }
            }
        }
        @if table.cut { p.note { "There are more rows than these." } }
        (source(&table.sql))
    }
}

/// A value, cut if it is long.
pub fn text(value: &str) -> Markup {
    match value.char_indices().nth(LONG) {
        Some((at, _)) => html! { (&value[..at]) span.note { "… (" (value.len()) " bytes)" } },
        None => html! { (value) },
    }
}

/// The SQL behind what is shown.
pub fn source(sql: &str) -> Markup {
    sources(&[sql])
}

/// The SQL behind what is shown together.
pub fn sources(all: &[&str]) -> Markup {
    if all.iter().all(|sql| sql.is_empty()) {
        return html! {};
    }
    html! {
        details.source {
            summary { "SQL" }
            @for sql in all { pre tabindex="0" { code { (sql) } } }
        }
    }
}

/// Figures, each with its name and what it means.
pub fn figures(figures: &[(&str, String, String)]) -> Markup {
    html! {
        dl.figures {
            @for (name, value, note) in figures {
                div { dt { (name) } dd { (value) } @if !note.is_empty() { dd.note { (note) } } }
            }
        }
    }
}

/// Shares of a whole as bars: name, share from 0 to 1, what stands beside it.
pub fn bars(shares: &[(String, f64, String)]) -> Markup {
    html! {
        dl.bars {
            @for (name, share, note) in shares {
                div {
                    dt { (name) }
                    dd {
                        meter min="0" max="1" value=(share) aria-label={ (name) ", share of all" } {}
                        span { (note) " · " (number(share * 100.0)) " %" }
                    }
                }
            }
        }
    }
}

/// A figure that is not there is a dash.
pub fn or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "–".to_owned())
}

/// Dollars, with as many places as a small sum needs.
pub fn dollars(amount: f64) -> String {
    // A sum of nothing is -0.0.
    let amount = amount + 0.0;
    let places = match amount.abs() {
        0.0 => 2,
        amount if amount < 0.0001 => 7,
        amount if amount < 0.01 => 5,
        amount if amount < 1.0 => 4,
        _ => 2,
    };
    format!("${amount:.places$}")
}

/// Milliseconds.
pub fn millis(amount: f64) -> String {
    match amount {
        amount if amount < 1.0 => format!("{amount:.2} ms"),
        amount if amount < 10.0 => format!("{amount:.1} ms"),
        amount if amount < 10_000.0 => format!("{amount:.0} ms"),
        amount => format!("{:.1} s", amount / 1000.0),
    }
}

/// A number with one or no place.
pub fn number(amount: f64) -> String {
    if amount >= 100.0 || amount.fract() == 0.0 {
        format!("{amount:.0}")
    } else {
        format!("{amount:.1}")
    }
}

/// A share in per cent; never rounded up to all.
pub fn share(part: f64, all: f64) -> Option<String> {
    if all <= 0.0 {
        return None;
    }
    let hundredths = (part / all * 10_000.0).floor() / 100.0;
    Some(format!("{hundredths:.2} %"))
}

/// Percent-encoded, for a part of a path or a query.
pub fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => out.push(char::from(byte)),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::Column;

    #[test]
    fn table_of_hostile_text_has_no_markup_of_it() {
        let hostile = "<script>alert(1)</script>\"'&";
        let rows = Table {
            sql: hostile.to_owned(),
            columns: vec![Column {
                name: hostile.to_owned(),
                kind: hostile.to_owned(),
                number: false,
            }],
            rows: vec![vec![Some(hostile.to_owned())], vec![None]],
            cut: false,
        };
        let markup = table(hostile, &rows, None).0;
        assert!(!markup.contains("<script"), "{markup}");
        assert!(markup.contains("&lt;script&gt;") && !markup.contains("\"'&\""), "{markup}");
        let error = Problem::bad_request(hostile);
        assert!(!problem(&error).0.contains("<script"));
    }

    #[test]
    fn long_values_are_cut_between_characters() {
        let long = "é".repeat(LONG + 5);
        assert!(text(&long).0.contains("… (810 bytes)"));
        assert_eq!(text("short").0, "short");
    }

    #[test]
    fn policy_lets_no_inline_script_and_no_other_host_in() {
        for policy in [policy(None), policy(Some("n"))] {
            assert!(policy.contains("script-src 'self';") && policy.contains("default-src 'none'"));
            assert!(!policy.contains("unsafe") && !policy.contains("http"));
        }
    }

    #[test]
    fn figures_are_written_as_people_read_them() {
        assert_eq!((dollars(0.0), dollars(-0.0)), ("$0.00".to_owned(), "$0.00".to_owned()));
        assert_eq!((number(66.0), number(0.25)), ("66".to_owned(), "0.2".to_owned()));
        assert_eq!(dollars(0.000_000_4), "$0.0000004");
        assert_eq!(dollars(12.345), "$12.35");
        assert_eq!((millis(0.123), millis(12_345.0)), ("0.12 ms".to_owned(), "12.3 s".to_owned()));
        assert_eq!(share(9_999.9, 10_000.0).as_deref(), Some("99.99 %"));
        assert_eq!(share(0.0, 0.0), None);
        assert_eq!(encode("a/b?é"), "a%2Fb%3F%C3%A9");
    }
}
