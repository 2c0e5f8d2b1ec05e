//! `pg_policy` and `pg_policies`.
//!
//! # Limits
//! Expressions are shown as they were written, with the schemas of relations and of users' types.

use super::definitions::{as_written, shown_expression};
use super::rows::RowSet;
use telesto_sql_catalog::CatalogSnapshot;
use telesto_sql_expr::Settings;

pub(super) fn policies(out: &mut RowSet<'_>, catalog: &CatalogSnapshot, settings: &Settings) {
    let shown = |text: &str| shown_expression(catalog, settings, &as_written(text));
    for table in catalog.tables() {
        for policy in &table.row_security.policies {
            out.row()
                .set("oid", policy.oid)
                .set("polname", &policy.name)
                .set("polrelid", table.id.0)
                .set("polcmd", policy.command.letter())
                .set("polpermissive", policy.permissive)
                .set("polroles", policy.roles.clone())
                .set("polqual", policy.using.as_deref().map(shown))
                .set("polwithcheck", policy.check.as_deref().map(shown));
        }
    }
}

pub(super) fn policy_views(out: &mut RowSet<'_>, catalog: &CatalogSnapshot, settings: &Settings) {
    let shown = |text: &str| shown_expression(catalog, settings, &as_written(text));
    for table in catalog.tables() {
        for policy in &table.row_security.policies {
            let role = |oid: &u32| match oid {
                0 => "public".to_owned(),
                oid => catalog.role_name(*oid).to_owned(),
            };
            let mut roles: Vec<String> = policy.roles.iter().map(role).collect();
            roles.sort();
            out.row()
                .set("schemaname", catalog.schema_name(table.schema))
                .set("tablename", &table.name)
                .set("policyname", &policy.name)
                .set("permissive", if policy.permissive { "PERMISSIVE" } else { "RESTRICTIVE" })
                .set("roles", roles)
                .set("cmd", policy.command.word())
                .set("qual", policy.using.as_deref().map(shown))
                .set("with_check", policy.check.as_deref().map(shown));
        }
    }
}
