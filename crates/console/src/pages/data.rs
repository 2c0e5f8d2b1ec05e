//! `/data`: schemas, tables and their rows.
//!
//! # Purpose
//! Looks around without writing SQL; each table shows the SQL that it comes from.
//!
//! # Invariants
//! Links carry names percent-encoded; names are shown escaped.
//!
//! # On failure
//! A schema or table that this role cannot see is told as not found.
//!
//! # Limits
//! [`limits::PAGE`] rows a page.

use axum::extract::{Path, Query};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;

use crate::error::Problem;
use crate::limits;
use crate::model::data::{self, Place, Relation, Rows};
use crate::pages::diagram;
use crate::show::{self, Page, encode};
use crate::visit::Visitor;

#[derive(Debug, Default, Deserialize)]
pub struct Where {
    after: Option<String>,
    before: Option<String>,
    pub limit: Option<usize>,
}

impl Where {
    /// The place that is asked for: a key is a JSON array of texts.
    pub fn place(&self) -> Result<Place, Problem> {
        let key = |text: &str| {
            serde_json::from_str::<Vec<String>>(text)
                .map_err(|_| Problem::bad_request("a key is a JSON array of texts, like [\"7\"]"))
        };
        match (&self.after, &self.before) {
            (Some(after), _) => Ok(Place::After(key(after)?)),
            (None, Some(before)) => Ok(Place::Before(key(before)?)),
            (None, None) => Ok(Place::First),
        }
    }
}

pub async fn schemas(visitor: Visitor) -> Response {
    let schemas = data::schemas(&visitor.reader()).await;
    let link = |column: &str, value: &str, _: &[Option<String>]| -> Option<Markup> {
        (column == "schema").then(|| html! { a href={ "/data/" (encode(value)) } { (value) } })
    };
    let body = show::part("Schemas", &schemas, Some(&link));
    Page::new("Data", "/data", body).response(&visitor)
}

pub async fn schema(visitor: Visitor, Path(schema): Path<String>) -> Response {
    let reader = visitor.reader();
    let (tables, keys, columns) = futures::join!(
        data::tables(&reader, &schema),
        data::foreign_keys(&reader, &schema),
        data::columns(&reader, Some(&schema)),
    );
    let link = |column: &str, value: &str, _: &[Option<String>]| -> Option<Markup> {
        (column == "name").then(|| table_link(&schema, value))
    };
    let to = |column: &str, value: &str, row: &[Option<String>]| -> Option<Markup> {
        match column {
            "table" => Some(table_link(&schema, value)),
            "referenced" => Some(table_link(row.get(3)?.as_deref()?, value)),
            _ => None,
        }
    };
    let body = html! {
        p.path { a href="/data" { "Data" } " / " (schema) }
        (show::part("Tables and views", &tables, Some(&link)))
        @if let (Some(columns), Some(keys)) = (columns.rows(), keys.rows()) {
            (diagram::section(&schema, columns, keys))
        }
        (show::part("Foreign keys", &keys, Some(&to)))
    };
    let title = format!("Schema {schema}");
    Page::new(&title, "/data", body).response(&visitor)
}

fn table_link(schema: &str, table: &str) -> Markup {
    html! { a href={ "/data/" (encode(schema)) "/" (encode(table)) } { (table) } }
}

pub async fn table(
    visitor: Visitor,
    Path((schema, name)): Path<(String, String)>,
    Query(at): Query<Where>,
) -> Response {
    let reader = visitor.reader();
    let relation = match data::relation(&reader, &schema, &name).await {
        Ok(relation) => relation,
        Err(problem) => return failed(&visitor, &problem),
    };
    let rows = match at.place() {
        Ok(place) => data::rows(&reader, &relation, &place, limits::PAGE).await,
        Err(problem) => Err(problem),
    };
    let title = format!("{} {name}", capital(&relation.kind));
    let body = html! {
        p.path { a href="/data" { "Data" } " / " a href={ "/data/" (encode(&schema)) } { (schema) } " / " (name) }
        @match &rows {
            Ok(rows) => { (page_of_rows(&relation, rows)) }
            Err(problem) => { (show::problem(problem)) }
        }
        (show::part("Columns", &relation.columns, None))
        (show::part("Indexes", &relation.indexes, None))
        (show::part("Constraints", &relation.constraints, None))
    };
    Page::new(&title, "/data", body).response(&visitor)
}

fn page_of_rows(relation: &Relation, rows: &Rows) -> Markup {
    let here = format!("/data/{}/{}", encode(&relation.schema), encode(&relation.name));
    let link = |name: &str, key: &Option<Vec<String>>| {
        let key = serde_json::to_string(key.as_ref()?).ok()?;
        Some(format!("{here}?{name}={}", encode(&key)))
    };
    html! {
        (show::table("Rows", &rows.rows, None))
        nav.pager aria-label="Pages of rows" {
            @if let Some(previous) = link("before", &rows.previous) { a href=(previous) rel="prev" { "← Previous" } }
            @if rows.previous.is_some() { a href=(here) { "First" } }
            @if let Some(next) = link("after", &rows.next) { a href=(next) rel="next" { "Next →" } }
            a href={ "/sql?sql=" (encode(&rows.rows.sql)) } { "Open in SQL" }
        }
        @if relation.key.is_empty() {
            p.note { "No primary key to go along: the first " (limits::PAGE) " rows only." }
        }
    }
}

fn capital(kind: &str) -> String {
    let mut characters = kind.chars();
    characters
        .next()
        .map(|first| first.to_uppercase().chain(characters).collect())
        .unwrap_or_default()
}

fn failed(visitor: &Visitor, problem: &Problem) -> Response {
    let body = html! { (show::problem(problem)) p { a href="/data" { "To the schemas" } } };
    let mut response = Page::new("Data", "/data", body).response(visitor);
    let missing = problem.status == StatusCode::NOT_FOUND;
    *response.status_mut() = if missing { StatusCode::NOT_FOUND } else { problem.status };
    response
}
