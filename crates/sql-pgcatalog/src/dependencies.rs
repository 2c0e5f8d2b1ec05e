//! `pg_depend` and `pg_rewrite`: what needs what.

use super::objects::{PG_ATTRDEF, PG_CLASS, PG_REWRITE};
use super::relations::default_oid;
use super::rows::RowSet;
use telesto_sql_catalog::CatalogSnapshot;

/// `pg_depend`.
pub(super) fn rows(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    of_sequences(out, catalog);
    of_defaults(out, catalog);
    of_views(out, catalog);
}

/// Sequences that belong to columns.
fn of_sequences(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    for sequence in catalog.sequences() {
        if let Some((table, column)) = sequence.owned_by {
            let number =
                catalog.table(table).and_then(|t| t.columns.get(column)).map_or(0, |c| c.id);
            out.row()
                .set("classid", PG_CLASS)
                .set("objid", sequence.oid)
                .set("refclassid", PG_CLASS)
                .set("refobjid", table.0)
                .set("refobjsubid", i32::from(number))
                .set("deptype", if sequence.identity { "i" } else { "a" });
        }
    }
}

/// The sequences that defaults name, by their OID, and the column each default is of.
fn of_defaults(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    let sequences: Vec<(u32, String)> = catalog
        .sequences()
        .map(|sequence| (sequence.oid, format!("'{}'::regclass", sequence.oid)))
        .collect();
    for table in catalog.tables() {
        for (_, column) in table.visible_columns() {
            let Some(text) = &column.default else { continue };
            let text = text.to_ascii_lowercase();
            let mut depends = |on: u32, part: i32, kind: &str| {
                out.row()
                    .set("classid", PG_ATTRDEF)
                    .set("objid", default_oid(table, column.id))
                    .set("refclassid", PG_CLASS)
                    .set("refobjid", on)
                    .set("refobjsubid", part)
                    .set("deptype", kind);
            };
            depends(table.id.0, i32::from(column.id), "a");
            for (oid, _) in sequences.iter().filter(|(_, named)| text.contains(named.as_str())) {
                depends(*oid, 0, "n");
            }
        }
    }
}

/// The rule of a view has the view's OID, in a table of its own.
pub(super) fn rewrites(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    for view in catalog.views() {
        out.row()
            .set("oid", view.oid)
            .set("rulename", "_RETURN")
            .set("ev_class", view.oid)
            .set("ev_type", "1")
            .set("ev_enabled", "O")
            .set("is_instead", true);
    }
}

/// What the rules of views need: their view, and the relations that it names.
fn of_views(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    let mut relations: Vec<(u32, u32, &str)> = Vec::new();
    relations.extend(catalog.tables().map(|table| (table.id.0, table.schema, &*table.name)));
    relations.extend(catalog.views().map(|view| (view.oid, view.schema, &*view.name)));
    let mut depends = |rule: u32, on: u32, kind: &str| {
        out.row()
            .set("classid", PG_REWRITE)
            .set("objid", rule)
            .set("refclassid", PG_CLASS)
            .set("refobjid", on)
            .set("deptype", kind);
    };
    for view in catalog.views() {
        depends(view.oid, view.oid, "i");
        let named = relations.iter().map(|(_, schema, name)| (catalog.schema_name(*schema), *name));
        let found = telesto_sql_parser::view_query::relations_in(&view.query, named);
        for ((oid, ..), used) in relations.iter().zip(found) {
            if used && *oid != view.oid {
                depends(view.oid, *oid, "n");
            }
        }
    }
}
