//! Users' types in the system tables: rows of `pg_type` and `pg_enum`, names as `format_type` gives
//! them.
//!
//! # Invariants
//! A type that the search path does not lead to is shown with its schema.

use super::objects::category;
use super::relations::{align_of, collation_of, storage_of};
use super::rows::RowSet;
use super::shown::{Over, Reader};
use telesto_sql_catalog::{CatalogSnapshot, TypeKind};

/// Rows of `pg_type`.
pub(super) fn types(out: &mut RowSet<'_>, catalog: &CatalogSnapshot, reader: &Reader<'_>) {
    for ty in catalog.user_types() {
        let owner = ty.owner.0;
        out.row()
            .set("oid", ty.oid)
            .set("typname", &ty.name)
            .set("typnamespace", ty.schema)
            .set("typowner", owner)
            .set("typacl", super::acls::shown(catalog, ty.acl.as_ref()))
            .set("typisdefined", true)
            .set("typdelim", ",")
            .set("typarray", ty.array_oid);
        match &ty.kind {
            TypeKind::Enum(_) => {
                out.last()
                    .set("typlen", 4)
                    .set("typbyval", true)
                    .set("typtype", "e")
                    .set("typcategory", "E")
                    .set("typinput", "enum_in")
                    .set("typoutput", "enum_out")
                    .set("typreceive", "enum_recv")
                    .set("typsend", "enum_send")
                    .set("typalign", "i")
                    .set("typstorage", "p")
                    .set("typtypmod", -1);
            }
            TypeKind::Composite(composite) => {
                out.last()
                    .set("typlen", -1)
                    .set("typbyval", false)
                    .set("typtype", "c")
                    .set("typcategory", "C")
                    .set("typrelid", composite.relation)
                    .set("typinput", "record_in")
                    .set("typoutput", "record_out")
                    .set("typreceive", "record_recv")
                    .set("typsend", "record_send")
                    .set("typalign", "d")
                    .set("typstorage", "x")
                    .set("typtypmod", -1);
            }
            TypeKind::Domain(domain) => {
                let base = &domain.base;
                out.last()
                    .set("typlen", i32::from(base.typlen()))
                    .set("typbyval", matches!(base.typlen(), 1..=8))
                    .set("typtype", "d")
                    .set("typcategory", category(base))
                    .set("typinput", "domain_in")
                    .set("typoutput", format!("{}out", base.internal_name()))
                    .set("typreceive", "domain_recv")
                    .set("typsend", format!("{}send", base.internal_name()))
                    .set("typalign", align_of(base))
                    .set("typstorage", storage_of(base))
                    .set("typcollation", collation_of(base))
                    .set("typnotnull", domain.not_null)
                    .set("typbasetype", domain.parent.unwrap_or_else(|| base.oid()))
                    .set("typtypmod", if domain.parent.is_some() { -1 } else { base.typmod() });
                if let Some(default) = &domain.default {
                    let shown = reader.default_of(default, &Over::Nothing, base);
                    out.last().set("typdefault", shown.clone()).set("typdefaultbin", shown);
                }
            }
        }
        out.row()
            .set("oid", ty.array_oid)
            .set("typname", ty.array_name())
            .set("typnamespace", ty.schema)
            .set("typowner", owner)
            .set("typlen", -1)
            .set("typtype", "b")
            .set("typcategory", "A")
            .set("typisdefined", true)
            .set("typdelim", ",")
            .set("typelem", ty.oid)
            .set("typsubscript", "array_subscript_handler")
            .set("typinput", "array_in")
            .set("typoutput", "array_out")
            .set("typreceive", "array_recv")
            .set("typsend", "array_send")
            .set("typalign", if matches!(ty.kind, TypeKind::Composite(_)) { "d" } else { "i" })
            .set("typstorage", "x")
            .set("typtypmod", -1);
    }
}

/// Rows of `pg_enum`.
pub(super) fn labels(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    for ty in catalog.user_types() {
        let TypeKind::Enum(labels) = &ty.kind else { continue };
        for label in labels {
            out.row()
                .set("oid", label.oid)
                .set("enumtypid", ty.oid)
                .set("enumsortorder", telesto_sql_types::Datum::Float4(label.sort))
                .set("enumlabel", &label.label);
        }
    }
}

/// Rows of `pg_constraint` for domains.
pub(super) fn constraints(out: &mut RowSet<'_>, catalog: &CatalogSnapshot, reader: &Reader<'_>) {
    for ty in catalog.user_types() {
        let TypeKind::Domain(domain) = &ty.kind else { continue };
        for check in &domain.checks {
            out.row()
                .set("oid", check.oid)
                .set("conname", &check.name)
                .set("connamespace", ty.schema)
                .set("contype", "c")
                .set("convalidated", check.validated)
                .set("contypid", ty.oid)
                .set("confupdtype", " ")
                .set("confdeltype", " ")
                .set("confmatchtype", " ")
                .set("conislocal", true)
                .set("conbin", reader.condition(&check.expression, &Over::Value(domain), false));
        }
    }
}

/// Rows of `information_schema.domain_constraints`.
pub(super) fn domain_constraints(out: &mut RowSet<'_>, catalog: &CatalogSnapshot, database: &str) {
    for ty in catalog.user_types() {
        let TypeKind::Domain(domain) = &ty.kind else { continue };
        let schema = catalog.schema_name(ty.schema);
        for check in &domain.checks {
            out.row()
                .set("constraint_catalog", database)
                .set("constraint_schema", schema)
                .set("constraint_name", &check.name)
                .set("domain_catalog", database)
                .set("domain_schema", schema)
                .set("domain_name", &ty.name)
                .set("is_deferrable", false)
                .set("initially_deferred", false);
        }
    }
}
