//! Composite types in the system tables: their rows in `pg_class` and `pg_attribute`,
//! `information_schema.attributes` and `user_defined_types`.
//!
//! Nothing here fails.

use super::information_schema::shape;
use super::relations::{Class, attribute, class};
use super::rows::RowSet;
use telesto_sql_catalog::{CatalogSnapshot, Composite, TypeKind, UserType};
use telesto_sql_types::CompositeType;

/// Composite types: as they are defined, and with the fields that values need.
fn all(catalog: &CatalogSnapshot) -> impl Iterator<Item = (&UserType, &Composite, &CompositeType)> {
    catalog.user_types().filter_map(|ty| match &ty.kind {
        TypeKind::Composite(composite) => Some((&**ty, composite, &**catalog.composite(ty.oid)?)),
        _ => None,
    })
}

/// The type whose row in `pg_class` has this OID.
pub(super) fn of_relation(catalog: &CatalogSnapshot, oid: u32) -> Option<u32> {
    all(catalog).find(|(_, composite, _)| composite.relation == oid).map(|(ty, ..)| ty.oid)
}

/// Rows of `pg_class`.
pub(super) fn classes(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    for (ty, composite, _) in all(catalog) {
        class(
            out,
            &Class {
                oid: composite.relation,
                name: &ty.name,
                schema: ty.schema,
                owner: ty.owner.0,
                kind: "c",
                columns: composite.fields.len(),
                checks: 0,
                indexed: false,
                row_type: ty.oid,
            },
        );
    }
}

/// Rows of `pg_attribute`.
pub(super) fn attributes(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    for (_, composite, linked) in all(catalog) {
        for field in &linked.fields {
            let number = usize::from(field.number);
            attribute(out, composite.relation, number, &field.name, &field.ty);
        }
    }
}

/// Rows of `information_schema.attributes`.
pub(super) fn standard_attributes(out: &mut RowSet<'_>, catalog: &CatalogSnapshot, database: &str) {
    for (_, _, linked) in all(catalog) {
        for field in &linked.fields {
            out.row()
                .set("udt_catalog", database)
                .set("udt_schema", &linked.schema)
                .set("udt_name", &linked.name)
                .set("attribute_name", &field.name)
                .set("ordinal_position", i32::from(field.number))
                .set("is_nullable", true)
                .set("dtd_identifier", field.number.to_string())
                .set("is_derived_reference_attribute", false);
            shape(out, database, &field.ty, "attribute_udt");
        }
    }
}

/// Rows of `information_schema.user_defined_types`.
pub(super) fn standard_types(out: &mut RowSet<'_>, catalog: &CatalogSnapshot, database: &str) {
    for (_, _, linked) in all(catalog) {
        out.row()
            .set("user_defined_type_catalog", database)
            .set("user_defined_type_schema", &linked.schema)
            .set("user_defined_type_name", &linked.name)
            .set("user_defined_type_category", "STRUCTURED")
            .set("is_instantiable", true);
    }
}
