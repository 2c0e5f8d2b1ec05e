//! The rows of `pg_settings`: the session's parameters.
//!
//! # Invariants
//! Types, contexts, categories and descriptions are PostgreSQL 15's (`parameters.txt`, a line for
//! each: name, type, context, category, description), of those that PostgreSQL has too. A number
//! that is shown with its unit is a string.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use telesto_sql_expr::Settings;
use telesto_sql_types::Datum;

use super::rows::RowSet;

const PARAMETERS: &str = include_str!("parameters.txt");

/// Type, context, category, description.
type Described = [&'static str; 4];

/// What is known of a parameter that PostgreSQL has too.
fn described(name: &str) -> Option<Described> {
    static KNOWN: OnceLock<BTreeMap<&'static str, Described>> = OnceLock::new();
    let known = KNOWN.get_or_init(|| {
        let line = |line: &'static str| {
            let mut parts = line.splitn(5, '|');
            let name = parts.next()?;
            Some((name, [parts.next()?, parts.next()?, parts.next()?, parts.next()?]))
        };
        PARAMETERS.lines().filter_map(line).collect()
    });
    known.get(name.to_ascii_lowercase().as_str()).copied()
}

pub(super) fn rows(out: &mut RowSet<'_>, settings: &Settings, superuser: bool) {
    let mut all: BTreeMap<String, String> = settings.all().into_iter().collect();
    all.insert("is_superuser".to_owned(), if superuser { "on" } else { "off" }.to_owned());
    // As in PostgreSQL, an application's own are not among them.
    let own = |name: &str| name.contains('.') && !name.starts_with("telesto.");
    let others = settings.others.iter().filter(|(name, _)| !own(name));
    all.extend(others.map(|(name, value)| (name.clone(), value.clone())));
    let built_in = Settings::default();
    for (name, value) in all {
        let known = described(&name);
        let ty = match known.map(|[ty, ..]| ty) {
            Some("integer" | "real") if value.parse::<f64>().is_err() => "string",
            Some(ty) => ty,
            None => "string",
        };
        out.row()
            .set("name", &name)
            .set("setting", &value)
            .set("category", known.map(|[_, _, category, _]| category.to_owned()))
            .set("short_desc", known.map(|[.., description]| description.to_owned()))
            .set("context", known.map_or("user", |[_, context, ..]| context))
            .set("vartype", ty)
            .set("source", settings.source_of(&name))
            .set("boot_val", built_in.show(&name).ok())
            .set("reset_val", settings.reset_value(&name))
            .set("sourceline", Datum::Null);
    }
}
