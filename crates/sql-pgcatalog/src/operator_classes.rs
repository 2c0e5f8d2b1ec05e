//! `pg_opclass`: by which order an index keeps a type. PostgreSQL's numbers and names; each type
//! has one, the default.

use super::objects::OWNER_OID;
use super::rows::RowSet;
use telesto_sql_catalog::builtin::BTREE;
use telesto_sql_catalog::{Index, PG_CATALOG_OID, Table};
use telesto_sql_types::SqlType;

/// OID, name, operator family, input type. Polymorphic types stand for all arrays and all enums.
const CLASSES: &[(u32, &str, u32, u32)] = &[
    (1978, "int4_ops", 1976, 23),
    (1979, "int2_ops", 1976, 21),
    (1981, "oid_ops", 1989, 26),
    (3122, "date_ops", 434, 1082),
    (3123, "float8_ops", 1970, 701),
    (3124, "int8_ops", 1976, 20),
    (3125, "numeric_ops", 1988, 1700),
    (3126, "text_ops", 1994, 25),
    (3127, "timestamptz_ops", 434, 1184),
    (3128, "timestamp_ops", 434, 1114),
    (10000, "array_ops", 397, 2277),
    (10002, "bit_ops", 423, 1560),
    (10003, "bool_ops", 424, 16),
    (10004, "bpchar_ops", 426, 1042),
    (10006, "bytea_ops", 428, 17),
    (10007, "char_ops", 429, 18),
    (10012, "float4_ops", 1970, 700),
    (10015, "inet_ops", 1974, 869),
    (10022, "interval_ops", 1982, 1186),
    (10028, "name_ops", 1994, 19),
    (10038, "time_ops", 1996, 1083),
    (10041, "timetz_ops", 2000, 1266),
    (10043, "varbit_ops", 2002, 1562),
    (10065, "uuid_ops", 2968, 2950),
    (10069, "enum_ops", 3522, 3500),
    (10076, "range_ops", 3901, 3831),
    (10080, "multirange_ops", 4199, 4537),
    (10088, "jsonb_ops", 4033, 3802),
];

/// The class that orders a type; 0: no index can be over it.
pub(super) fn class_of(ty: &SqlType) -> u32 {
    match ty {
        SqlType::Domain(domain) => class_of(&domain.base),
        SqlType::Enum(_) => 10069,
        SqlType::Varchar(_) => 3126,
        SqlType::Cidr => 10015,
        SqlType::Range(_) => 10076,
        SqlType::Multirange(_) => 10080,
        ty if ty.is_oid_like() => 1981,
        ty if ty.element_type().is_some() => 10000,
        ty => CLASSES.iter().find(|class| class.3 == ty.oid()).map_or(0, |class| class.0),
    }
}

/// `pg_index.indclass`.
pub(super) fn of_index(table: &Table, index: &Index) -> Vec<i64> {
    let types = index.columns.iter().map(|part| match &part.expression {
        Some(expression) => Some(&expression.ty),
        None => table.columns.get(part.column).map(|column| &column.ty),
    });
    types.map(|ty| ty.map_or(0, |ty| i64::from(class_of(ty)))).collect()
}

/// `pg_opclass`.
pub(super) fn classes(out: &mut RowSet<'_>) {
    for (oid, name, family, input) in CLASSES {
        out.row()
            .set("oid", *oid)
            .set("opcmethod", BTREE)
            .set("opcname", *name)
            .set("opcnamespace", PG_CATALOG_OID)
            .set("opcowner", OWNER_OID)
            .set("opcfamily", *family)
            .set("opcintype", *input)
            .set("opcdefault", true)
            // Names are kept as C strings.
            .set("opckeytype", if *name == "name_ops" { 2275 } else { 0 });
    }
}

/// Whether it is the OID of an operator family that these classes are of.
pub(super) fn is_family(oid: u32) -> bool {
    CLASSES.iter().any(|class| class.2 == oid)
}
