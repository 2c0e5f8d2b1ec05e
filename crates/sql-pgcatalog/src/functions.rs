//! Functions over the catalog: what psql, drivers and ORMs call beside the system tables.
//!
//! # Invariants
//! An OID that names nothing gives NULL, as in PostgreSQL, not an error.

use super::definitions::{
    constraint_definition, index_column, index_definition, shown_expression, view_definition,
};
use super::objects::{DATABASE_OID, row_types};
use super::shown::{Over, Reader};
use telesto_sql_catalog::{CatalogSnapshot, Index, Table};
use telesto_sql_expr::context::Call;
use telesto_sql_expr::registry::{Function, function};
use telesto_sql_expr::shown_names::name_in;
use telesto_sql_expr::ty::Tag::{
    Bool, Int2, Int4, Int8, InternalChar, Name, Oid, Reg, Text, TextArray,
};
use telesto_sql_expr::value::i64_of;
use telesto_sql_plan::updatable_view::written_columns;
use telesto_sql_types::error::Result;
use telesto_sql_types::identifier::quote_ident;
use telesto_sql_types::{Datum, SqlType};

/// The functions of this module.
pub const TABLE: &[Function] = &[
    function("pg_get_indexdef", &[Oid], Text, index_def).stable(),
    function("pg_get_indexdef", &[Oid, Int4, Bool], Text, index_def).stable(),
    function("pg_get_constraintdef", &[Oid], Text, constraint_def).stable(),
    function("pg_get_constraintdef", &[Oid, Bool], Text, constraint_def).stable(),
    function("pg_get_expr", &[Text, Oid], Text, expression).stable(),
    function("pg_get_expr", &[Text, Oid, Bool], Text, expression).stable(),
    function("pg_get_viewdef", &[Oid], Text, view_def).stable(),
    function("pg_get_viewdef", &[Oid, Bool], Text, view_def).stable(),
    function("pg_get_viewdef", &[Text], Text, view_def).stable(),
    function("pg_get_viewdef", &[Text, Bool], Text, view_def).stable(),
    function("pg_index_column_has_property", &[Reg, Int4, Text], Bool, index_column_property)
        .stable(),
    function("pg_get_userbyid", &[Oid], Name, user_by_id).stable(),
    function("format_type", &[Oid, Int4], Text, format_type).lax().stable(),
    function("pg_table_is_visible", &[Oid], Bool, visible).stable(),
    function("pg_type_is_visible", &[Oid], Bool, type_visible).stable(),
    function("pg_function_is_visible", &[Oid], Bool, |_, _| yes()).stable(),
    function("pg_ts_config_is_visible", &[Oid], Bool, |_, _| Ok(Datum::Null)).stable(),
    function("pg_ts_dict_is_visible", &[Oid], Bool, |_, _| Ok(Datum::Null)).stable(),
    function("pg_ts_parser_is_visible", &[Oid], Bool, |_, _| Ok(Datum::Null)).stable(),
    function("pg_ts_template_is_visible", &[Oid], Bool, |_, _| Ok(Datum::Null)).stable(),
    function("pg_collation_is_visible", &[Oid], Bool, |_, _| yes()).stable(),
    function("pg_operator_is_visible", &[Oid], Bool, |_, _| yes()).stable(),
    function("pg_opclass_is_visible", &[Oid], Bool, |_, _| yes()).stable(),
    function("pg_relation_is_publishable", &[Reg], Bool, |_, _| yes()).stable(),
    function("pg_encoding_to_char", &[Int4], Name, |a, _| encoding(a)),
    function("obj_description", &[Oid, Name], Text, object_comment).stable(),
    function("obj_description", &[Oid], Text, object_comment).stable(),
    function("shobj_description", &[Oid, Name], Text, |_, _| Ok(Datum::Null)).stable(),
    function("col_description", &[Oid, Int4], Text, column_comment).stable(),
    // As in pg_sequences: the position is in the sequence itself.
    function("pg_sequence_last_value", &[Reg], Int8, |_, _| Ok(Datum::Null)).stable(),
    function("pg_get_partkeydef", &[Oid], Text, |_, _| Ok(Datum::Null)).stable(),
    function("pg_get_triggerdef", &[Oid], Text, |_, _| Ok(Datum::Null)).stable(),
    function("pg_get_triggerdef", &[Oid, Bool], Text, |_, _| Ok(Datum::Null)).stable(),
    function("acldefault", &[InternalChar, Oid], TextArray, default_rights).stable(),
    function("pg_get_ruledef", &[Oid], Text, |_, _| Ok(Datum::Null)).stable(),
    function("pg_get_ruledef", &[Oid, Bool], Text, |_, _| Ok(Datum::Null)).stable(),
    function("pg_get_statisticsobjdef_columns", &[Oid], Text, |_, _| Ok(Datum::Null)).stable(),
    function("pg_get_statisticsobjdef", &[Oid], Text, |_, _| Ok(Datum::Null)).stable(),
    // There are no functions of users.
    function("pg_get_functiondef", &[Oid], Text, |_, _| Ok(Datum::Null)).stable(),
    function("pg_get_function_result", &[Oid], Text, |a, _| {
        let found = telesto_sql_catalog::builtin::procedures::signature(oid_of(&a[0]));
        text_or_null(found.map(|(_, result, set)| {
            format!("{}{}", if set { "SETOF " } else { "" }, builtin_type(result))
        }))
    })
    .stable(),
    function("pg_get_function_arguments", &[Oid], Text, function_arguments).stable(),
    function("pg_get_function_identity_arguments", &[Oid], Text, function_arguments).stable(),
    function("pg_my_temp_schema", &[], Oid, |_, c| {
        Ok(Datum::Oid(c.context.catalog.temp.as_ref().map_or(0, |temp| temp.schema)))
    })
    .stable(),
    function("pg_is_other_temp_schema", &[Oid], Bool, |_, _| Ok(Datum::Bool(false))).stable(),
    function("pg_tablespace_location", &[Oid], Text, |_, _| Ok(Datum::text(""))).stable(),
    function("row_security_active", &[Reg], Bool, |a, c| {
        let table = c.context.catalog.table(telesto_common::TableId(oid_of(&a[0])));
        let actor = c.context.catalog.actor(c.context.settings.current_role);
        Ok(Datum::Bool(table.is_some_and(|table| {
            telesto_sql_plan::row_security::applies(table, c.context.catalog, &actor)
        })))
    })
    .stable(),
    function("pg_column_is_updatable", &[Reg, Int2, Bool], Bool, |a, c| {
        let number = i64_of(&a[1])?;
        Ok(Datum::Bool(match written(oid_of(&a[0]), c) {
            Written::Table => number > 0,
            Written::View(columns) => usize::try_from(number - 1)
                .is_ok_and(|at| columns.get(at).copied().unwrap_or_default()),
            Written::Nothing => false,
        }))
    })
    .stable(),
    function("pg_relation_is_updatable", &[Reg, Bool], Int4, |a, c| {
        /// The bit of DELETE.
        const DELETE: i32 = 16;
        /// The bits of UPDATE, INSERT and DELETE.
        const ALL: i32 = 4 | 8 | DELETE;
        Ok(Datum::Int4(match written(oid_of(&a[0]), c) {
            Written::Nothing => 0,
            Written::View(columns) if !columns.contains(&true) => DELETE,
            Written::Table | Written::View(_) => ALL,
        }))
    })
    .stable(),
];

/// What of a relation can be written.
enum Written {
    Table,
    /// These columns.
    View(Vec<bool>),
    Nothing,
}

fn written(oid: u32, call: &Call<'_>) -> Written {
    let (catalog, settings) = (call.context.catalog, call.context.settings);
    if catalog.tables().any(|table| table.id.0 == oid) {
        return Written::Table;
    }
    let view = catalog.views().find(|view| view.oid == oid);
    view.and_then(|view| written_columns(view, catalog, &settings.effective_search_path()))
        .map_or(Written::Nothing, Written::View)
}

fn yes() -> Result<Datum> {
    Ok(Datum::Bool(true))
}

fn oid_of(value: &Datum) -> u32 {
    value.as_i64().and_then(|v| u32::try_from(v).ok()).unwrap_or(0)
}

fn number_of(value: &Datum) -> i64 {
    value.as_i64().unwrap_or(0)
}

pub(super) fn find_index(catalog: &CatalogSnapshot, oid: u32) -> Option<(&Table, &Index)> {
    catalog.tables().find_map(|table| {
        table.known_indexes().find(|index| index.oid == oid).map(|index| (table.as_ref(), index))
    })
}

fn text_or_null(text: Option<String>) -> Result<Datum> {
    Ok(text.map_or(Datum::Null, Datum::text))
}

/// The SQL name of a type that is no user's.
fn builtin_type(oid: u32) -> String {
    let pseudo = telesto_sql_catalog::builtin::pseudo_types::name(oid).map(str::to_owned);
    pseudo.or_else(|| SqlType::from_oid(oid).map(|ty| ty.to_string())).unwrap_or("???".to_owned())
}

/// The types of a function's arguments, as its declaration lists them.
fn function_arguments(args: &[Datum], _: &Call<'_>) -> Result<Datum> {
    let found = telesto_sql_catalog::builtin::procedures::signature(oid_of(&args[0]));
    text_or_null(found.map(|(arguments, ..)| {
        arguments.into_iter().map(builtin_type).collect::<Vec<_>>().join(", ")
    }))
}

/// The rights that an object of a kind has when none were given, in PostgreSQL's letters.
fn default_rights(args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let owner = oid_of(&args[1]);
    let owner = call.context.catalog.roles().find(|role| role.oid == owner);
    let owner = quote_ident(owner.map_or("postgres", |role| &role.name));
    let Datum::InternalChar(kind) = args[0] else {
        return Err(telesto_sql_types::error::Error::internal("acldefault of a kind"));
    };
    let (everybody, own) = match kind {
        b'c' => ("", ""),
        b'r' => ("", "arwdDxt"),
        b's' => ("", "rwU"),
        b'd' => ("Tc", "CTc"),
        b'f' => ("X", "X"),
        b'l' | b'T' => ("U", "U"),
        b'L' => ("", "rw"),
        b'n' => ("", "UC"),
        b'p' => ("", "sA"),
        b't' => ("", "C"),
        b'F' | b'S' => ("", "U"),
        other => {
            return Err(telesto_sql_expr::fault::error(
                "XX000",
                format!("unrecognized object type abbreviation: {}", char::from(other)),
            ));
        }
    };
    let mut rights = Vec::new();
    if !everybody.is_empty() {
        rights.push(Some(format!("={everybody}/{owner}")));
    }
    if !own.is_empty() {
        rights.push(Some(format!("{owner}={own}/{owner}")));
    }
    Ok(telesto_sql_expr::value::text_array(rights.into_iter()))
}

fn index_def(args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let found = find_index(call.context.catalog, oid_of(&args[0]));
    let Some((table, index)) = found else { return Ok(Datum::Null) };
    let pretty = (args.get(2).and_then(Datum::as_bool) == Some(true)).then_some(call.context);
    match args.get(1).map(number_of) {
        None | Some(0) => {
            Ok(Datum::text(index_definition(call.context.catalog, table, index, pretty)))
        }
        Some(number) => {
            let at = usize::try_from(number - 1).ok();
            let key = at.and_then(|at| index.columns.get(at));
            let included =
                at.and_then(|at| index.include.get(at.checked_sub(index.columns.len())?));
            text_or_null(match (key, included) {
                (Some(column), _) => Some(index_column(table, column, pretty)),
                (None, Some(column)) => {
                    table.columns.get(*column).map(|column| quote_ident(&column.name))
                }
                (None, None) => None,
            })
        }
    }
}

/// A property of an index's column; NULL where there is no such column or property.
fn index_column_property(args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let found = find_index(call.context.catalog, oid_of(&args[0]));
    let Some((_, index)) = found else { return Ok(Datum::Null) };
    let at = usize::try_from(number_of(&args[1]) - 1).ok();
    let key = at.and_then(|at| index.columns.get(at));
    let included = at.is_some_and(|at| at < index.columns.len() + index.include.len());
    let property = telesto_sql_expr::value::str_of(&args[2])?.to_ascii_lowercase();
    let descending =
        key.is_some_and(|key| key.direction == telesto_common::key::Direction::Descending);
    let of_key = |value: bool| if key.is_some() { Datum::Bool(value) } else { Datum::Null };
    if !included {
        return Ok(Datum::Null);
    }
    Ok(match property.as_str() {
        "asc" => of_key(!descending),
        "desc" => of_key(descending),
        "nulls_first" => of_key(key.is_some_and(telesto_sql_catalog::IndexColumn::nulls_first)),
        "nulls_last" => of_key(key.is_some_and(|key| !key.nulls_first())),
        "orderable" | "search_array" | "search_nulls" => Datum::Bool(key.is_some()),
        "distance_orderable" => Datum::Bool(false),
        "returnable" => Datum::Bool(true),
        _ => Datum::Null,
    })
}

fn constraint_def(args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let (oid, context) = (oid_of(&args[0]), call.context);
    let pretty = args.get(1).and_then(Datum::as_bool) == Some(true);
    let check = Reader::new(context.catalog, context.settings).check_of(oid, pretty);
    text_or_null(check.or_else(|| constraint_definition(context.catalog, context.settings, oid)))
}

fn view_def(args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let oid = match args[0].as_str() {
        Some(name) => call.context.relation_oid(name)?,
        None => oid_of(&args[0]),
    };
    let (catalog, settings) = (call.context.catalog, call.context.settings);
    let view = catalog.views().find(|v| v.oid == oid);
    text_or_null(view.map(|view| {
        let pretty = args.get(1).and_then(Datum::as_bool) == Some(true);
        view_definition(catalog, settings, view, pretty)
    }))
}

fn expression(args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let (catalog, settings) = (call.context.catalog, call.context.settings);
    let pretty = args.get(2).and_then(Datum::as_bool) == Some(true);
    text_or_null(args[0].as_str().map(|text| {
        if !pretty {
            return shown_expression(catalog, settings, text);
        }
        let table = catalog.tables().find(|table| table.id.0 == oid_of(&args[1]));
        let over = table.map_or(Over::Nothing, |table| Over::Columns(table));
        Reader::new(catalog, settings).pretty(text, &over)
    }))
}

fn user_by_id(args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let oid = oid_of(&args[0]);
    let catalog = call.context.catalog;
    let name = catalog.roles().find(|role| role.oid == oid).map(|role| role.name.clone());
    let name = name.unwrap_or_else(|| format!("unknown (OID={oid})"));
    Ok(Datum::text(name))
}

fn format_type(args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    if args[0].is_null() {
        return Ok(Datum::Null);
    }
    let oid = oid_of(&args[0]);
    let typmod = args[1].as_i64().and_then(|v| i32::try_from(v).ok()).unwrap_or(-1);
    let (catalog, settings) = (call.context.catalog, call.context.settings);
    if let Some(shown) = telesto_sql_expr::shown_names::user_type_name(catalog, settings, oid) {
        return Ok(Datum::text(shown));
    }
    let Some(ty) = SqlType::from_oid(oid) else {
        if let Some(name) = telesto_sql_catalog::builtin::pseudo_types::name(oid) {
            return Ok(Datum::text(name));
        }
        let row = row_types(catalog).find(|row| row.oid == oid);
        return Ok(Datum::text(row.map_or_else(
            || if oid == 0 { "-".to_owned() } else { "???".to_owned() },
            |row| name_in(catalog, row.schema, row.name),
        )));
    };
    let shown = with_modifier(ty, typmod);
    // Without a modifier argument, bpchar is shown as its SQL name.
    Ok(Datum::text(match (&shown, args[1].is_null()) {
        (SqlType::Char(None), true) => "character".to_owned(),
        // A bare word would be read as bit(1).
        (SqlType::Bit(None), false) => "\"bit\"".to_owned(),
        (SqlType::Array(element), false) if **element == SqlType::Bit(None) => {
            "\"bit\"[]".to_owned()
        }
        (shown, _) => shown.to_string(),
    }))
}

fn with_modifier(ty: SqlType, typmod: i32) -> SqlType {
    use telesto_sql_types::sql_type::NumericMod;
    if typmod < 0 {
        return ty;
    }
    let length = u32::try_from(typmod - 4).ok();
    let precision = u8::try_from(typmod).ok();
    match ty {
        SqlType::Bit(_) => SqlType::Bit(u32::try_from(typmod).ok()),
        SqlType::Varbit(_) => SqlType::Varbit(u32::try_from(typmod).ok()),
        SqlType::Varchar(_) => SqlType::Varchar(length),
        SqlType::Char(_) => SqlType::Char(length),
        SqlType::Time(_) => SqlType::Time(precision),
        SqlType::TimeTz(_) => SqlType::TimeTz(precision),
        SqlType::Timestamp(_) => SqlType::Timestamp(precision),
        SqlType::TimestampTz(_) => SqlType::TimestampTz(precision),
        SqlType::Numeric(_) if typmod >= 4 => {
            let packed = typmod - 4;
            // The scale is 11 bits, signed.
            let scale = ((packed & 0x7FF) ^ 0x400) - 0x400;
            SqlType::Numeric(Some(NumericMod {
                precision: u16::try_from(packed >> 16).unwrap_or(0),
                scale: i16::try_from(scale).unwrap_or(0),
            }))
        }
        SqlType::Array(element) => with_modifier(*element, typmod).array_of(),
        other => other,
    }
}

fn type_visible(args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let oid = oid_of(&args[0]);
    let context = call.context;
    let found = telesto_sql_expr::shown_names::type_visible(context.catalog, context.settings, oid);
    let row = || row_types(context.catalog).any(|row| row.oid == oid);
    Ok(match found {
        Some(visible) => Datum::Bool(visible),
        None if row() => Datum::Bool(true),
        None => Datum::Null,
    })
}

fn visible(args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let oid = oid_of(&args[0]);
    let catalog = call.context.catalog;
    if let Some(system) = super::all().find(|table| table.oid == oid) {
        return Ok(Datum::Bool(system.schema == "pg_catalog"));
    }
    let place = catalog
        .tables()
        .find_map(|table| {
            if table.id.0 == oid {
                return Some((table.schema, table.name.clone()));
            }
            let index = table.known_indexes().find(|index| index.oid == oid)?;
            Some((table.schema, index.name.clone()))
        })
        .or_else(|| catalog.sequences().find(|s| s.oid == oid).map(|s| (s.schema, s.name.clone())))
        .or_else(|| catalog.views().find(|v| v.oid == oid).map(|v| (v.schema, v.name.clone())));
    let Some((schema, name)) = place else {
        return match super::composites::of_relation(catalog, oid) {
            Some(ty) => type_visible(&[Datum::Oid(ty)], call),
            None => Ok(Datum::Null),
        };
    };
    // Visible when it is the first of its name on the search path.
    let path = call.context.settings.effective_search_path();
    Ok(Datum::Bool(catalog.visible_in(&name, &path) == Some(schema)))
}

fn encoding(args: &[Datum]) -> Result<Datum> {
    Ok(Datum::text(match number_of(&args[0]) {
        6 => "UTF8",
        0 => "SQL_ASCII",
        _ => "",
    }))
}

fn object_comment(args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let oid = oid_of(&args[0]);
    let catalog = call.context.catalog;
    if oid == DATABASE_OID {
        return Ok(Datum::Null);
    }
    let comment = catalog
        .tables()
        .find_map(|table| {
            if table.id.0 == oid {
                return Some(table.comment.clone());
            }
            table.known_indexes().find(|index| index.oid == oid).map(|index| index.comment.clone())
        })
        .or_else(|| catalog.views().find(|v| v.oid == oid).map(|v| v.comment.clone()))
        .or_else(|| catalog.sequences().find(|s| s.oid == oid).map(|s| s.comment.clone()))
        .or_else(|| catalog.user_type(oid).map(|t| t.comment.clone()))
        .or_else(|| catalog.schema_by_oid(oid).map(|s| s.comment.clone()))
        .or_else(|| constraint_comment(catalog, oid));
    text_or_null(comment.flatten())
}

fn constraint_comment(catalog: &CatalogSnapshot, oid: u32) -> Option<Option<String>> {
    catalog.tables().find_map(|table| {
        super::definitions::constraint_comments(table)
            .find(|(constraint, _)| *constraint == oid)
            .map(|(_, comment)| Some(comment.to_owned()))
    })
}

fn column_comment(args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let (oid, number) = (oid_of(&args[0]), number_of(&args[1]));
    let table = call.context.catalog.tables().find(|table| table.id.0 == oid);
    let column = table.and_then(|t| t.columns.iter().find(|c| i64::from(c.id) == number));
    let of_view = || {
        let view = call.context.catalog.views().find(|view| view.oid == oid)?;
        view.column_comments.get(&u16::try_from(number).ok()?).cloned()
    };
    text_or_null(column.and_then(|c| c.comment.clone()).or_else(of_view))
}
