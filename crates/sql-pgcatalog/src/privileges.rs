//! `has_…_privilege` and `pg_has_role`.
//!
//! # Invariants
//! They say what the checks do, for they ask the same ([`Guarded`], [`CatalogSnapshot::actor`]).
//!
//! # On failure
//! 42704 for a role there is not, 22023 for a privilege there is not; an OID that names nothing
//! gives NULL.

use telesto_sql_catalog::rights::Actor;
use telesto_sql_catalog::{CatalogSnapshot, DATABASE_OID, Granted, Guarded, Rights, Table};
use telesto_sql_expr::cast::reg_input;
use telesto_sql_expr::context::Call;
use telesto_sql_expr::fault;
use telesto_sql_expr::registry::{Function, function};
use telesto_sql_expr::ty::Tag::{Bool, Int2, Name, Oid, Reg, RegType, Text};
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{Datum, SqlType};

/// The functions of this module.
pub const TABLE: &[Function] = &[
    function("has_table_privilege", &[Reg, Text], Bool, |a, c| table(&own(c)?, a, c)).stable(),
    function("has_table_privilege", &[Name, Reg, Text], Bool, |a, c| {
        table(&named(&a[0], c)?, &a[1..], c)
    })
    .stable(),
    function("has_table_privilege", &[Oid, Reg, Text], Bool, |a, c| {
        table(&numbered(&a[0], c), &a[1..], c)
    })
    .stable(),
    function("has_any_column_privilege", &[Reg, Text], Bool, |a, c| any_column(&own(c)?, a, c))
        .stable(),
    function("has_any_column_privilege", &[Name, Reg, Text], Bool, |a, c| {
        any_column(&named(&a[0], c)?, &a[1..], c)
    })
    .stable(),
    function("has_any_column_privilege", &[Oid, Reg, Text], Bool, |a, c| {
        any_column(&numbered(&a[0], c), &a[1..], c)
    })
    .stable(),
    function("has_column_privilege", &[Reg, Text, Text], Bool, |a, c| column(&own(c)?, a, c))
        .stable(),
    function("has_column_privilege", &[Reg, Int2, Text], Bool, |a, c| column(&own(c)?, a, c))
        .stable(),
    function("has_column_privilege", &[Name, Reg, Text, Text], Bool, |a, c| {
        column(&named(&a[0], c)?, &a[1..], c)
    })
    .stable(),
    function("has_column_privilege", &[Oid, Reg, Text, Text], Bool, |a, c| {
        column(&numbered(&a[0], c), &a[1..], c)
    })
    .stable(),
    function("has_column_privilege", &[Name, Reg, Int2, Text], Bool, |a, c| {
        column(&named(&a[0], c)?, &a[1..], c)
    })
    .stable(),
    function("has_column_privilege", &[Oid, Reg, Int2, Text], Bool, |a, c| {
        column(&numbered(&a[0], c), &a[1..], c)
    })
    .stable(),
    function("has_sequence_privilege", &[Reg, Text], Bool, |a, c| sequence(&own(c)?, a, c))
        .stable(),
    function("has_sequence_privilege", &[Name, Reg, Text], Bool, |a, c| {
        sequence(&named(&a[0], c)?, &a[1..], c)
    })
    .stable(),
    function("has_sequence_privilege", &[Oid, Reg, Text], Bool, |a, c| {
        sequence(&numbered(&a[0], c), &a[1..], c)
    })
    .stable(),
    function("has_schema_privilege", &[Text, Text], Bool, |a, c| schema(&own(c)?, a, c)).stable(),
    function("has_schema_privilege", &[Oid, Text], Bool, |a, c| schema(&own(c)?, a, c)).stable(),
    function("has_schema_privilege", &[Name, Text, Text], Bool, |a, c| {
        schema(&named(&a[0], c)?, &a[1..], c)
    })
    .stable(),
    function("has_schema_privilege", &[Oid, Text, Text], Bool, |a, c| {
        schema(&numbered(&a[0], c), &a[1..], c)
    })
    .stable(),
    function("has_schema_privilege", &[Name, Oid, Text], Bool, |a, c| {
        schema(&named(&a[0], c)?, &a[1..], c)
    })
    .stable(),
    function("has_schema_privilege", &[Oid, Oid, Text], Bool, |a, c| {
        schema(&numbered(&a[0], c), &a[1..], c)
    })
    .stable(),
    function("has_database_privilege", &[Text, Text], Bool, |a, c| database(&own(c)?, a, c))
        .stable(),
    function("has_database_privilege", &[Oid, Text], Bool, |a, c| database(&own(c)?, a, c))
        .stable(),
    function("has_database_privilege", &[Name, Text, Text], Bool, |a, c| {
        database(&named(&a[0], c)?, &a[1..], c)
    })
    .stable(),
    function("has_database_privilege", &[Oid, Text, Text], Bool, |a, c| {
        database(&numbered(&a[0], c), &a[1..], c)
    })
    .stable(),
    function("has_function_privilege", &[Text, Text], Bool, |a, c| callable(&a[0], &a[1], c))
        .stable(),
    function("has_function_privilege", &[Oid, Text], Bool, |a, c| callable(&a[0], &a[1], c))
        .stable(),
    function("has_function_privilege", &[Name, Text, Text], Bool, |a, c| {
        role_named(&a[0], c)?;
        callable(&a[1], &a[2], c)
    })
    .stable(),
    function("has_function_privilege", &[Oid, Text, Text], Bool, |a, c| callable(&a[1], &a[2], c))
        .stable(),
    function("has_function_privilege", &[Name, Oid, Text], Bool, |a, c| {
        role_named(&a[0], c)?;
        callable(&a[1], &a[2], c)
    })
    .stable(),
    function("has_function_privilege", &[Oid, Oid, Text], Bool, |a, c| callable(&a[1], &a[2], c))
        .stable(),
    function("has_type_privilege", &[RegType, Text], Bool, |a, c| user_type(&own(c)?, a, c))
        .stable(),
    function("has_type_privilege", &[Name, RegType, Text], Bool, |a, c| {
        user_type(&named(&a[0], c)?, &a[1..], c)
    })
    .stable(),
    function("has_type_privilege", &[Oid, RegType, Text], Bool, |a, c| {
        user_type(&numbered(&a[0], c), &a[1..], c)
    })
    .stable(),
    function("pg_has_role", &[Name, Text], Bool, |a, c| {
        let role = role_named(&a[0], c)?;
        member(c.context.settings.current_role, role, &a[1], c)
    })
    .stable(),
    function("pg_has_role", &[Oid, Text], Bool, |a, c| {
        let role = oid_of(&a[0]);
        if c.context.catalog.role(role).is_none() {
            return Ok(Datum::Null);
        }
        member(c.context.settings.current_role, role, &a[1], c)
    })
    .stable(),
    function("pg_has_role", &[Name, Name, Text], Bool, |a, c| {
        member(role_named(&a[0], c)?, role_named(&a[1], c)?, &a[2], c)
    })
    .stable(),
    function("pg_has_role", &[Name, Oid, Text], Bool, |a, c| {
        member(role_named(&a[0], c)?, oid_of(&a[1]), &a[2], c)
    })
    .stable(),
    function("pg_has_role", &[Oid, Name, Text], Bool, |a, c| {
        member(oid_of(&a[0]), role_named(&a[1], c)?, &a[2], c)
    })
    .stable(),
    function("pg_has_role", &[Oid, Oid, Text], Bool, |a, c| {
        member(oid_of(&a[0]), oid_of(&a[1]), &a[2], c)
    })
    .stable(),
];

fn oid_of(value: &Datum) -> u32 {
    match value {
        Datum::Oid(oid) => *oid,
        _ => 0,
    }
}

/// Rights with whether they are asked for WITH GRANT OPTION.
type Asked = Vec<(Rights, bool)>;

fn words(text: &Datum, kind: Granted) -> Result<Asked> {
    let text = text.as_str().unwrap_or_default();
    let mut asked = Vec::new();
    for part in text.split(',').map(str::trim) {
        let unknown = || {
            Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("unrecognized privilege type: \"{part}\""),
            )
        };
        let upper = part.to_ascii_uppercase();
        let (word, option) = match upper.strip_suffix(" WITH GRANT OPTION") {
            Some(word) => (word.trim_end(), true),
            None => (upper.as_str(), false),
        };
        if word == "RULE" && kind == Granted::Table {
            continue;
        }
        let right = Rights::named(word).filter(|right| kind.rights().has(*right));
        asked.push((right.ok_or_else(unknown)?, option));
    }
    Ok(asked)
}

fn own(call: &Call<'_>) -> Result<Actor> {
    Ok(call.context.catalog.actor(call.context.settings.current_role))
}

fn role_named(name: &Datum, call: &Call<'_>) -> Result<u32> {
    let name = name.as_str().unwrap_or_default();
    let settings = call.context.settings;
    match call.context.catalog.role_named(name) {
        Some(role) => Ok(role.oid),
        // Where nobody is asked for a password a session may have a name that no role has.
        None if name == settings.session_user => Ok(settings.session_role),
        None => Err(fault::error("42704", format!("role \"{name}\" does not exist"))),
    }
}

fn named(name: &Datum, call: &Call<'_>) -> Result<Actor> {
    if name.as_str() == Some("public") {
        // What everybody may, a role of no membership may.
        return Ok(Actor { oid: 0, superuser: false, roles: vec![0] });
    }
    Ok(call.context.catalog.actor(role_named(name, call)?))
}

/// A role by its OID; one that there is not is given nothing but what everybody has.
fn numbered(oid: &Datum, call: &Call<'_>) -> Actor {
    call.context.catalog.actor(oid_of(oid))
}

fn holds(actor: &Actor, guarded: &Guarded<'_>, asked: &Asked) -> bool {
    let (rights, options) = (guarded.rights_of(actor), guarded.options_of(actor));
    asked
        .iter()
        .any(|(right, option)| if *option { options.has(*right) } else { rights.has(*right) })
}

fn with_relation<T>(
    catalog: &CatalogSnapshot,
    oid: u32,
    use_it: impl FnOnce(&Guarded<'_>, Option<&Table>) -> T,
) -> Option<T> {
    if let Some(table) = catalog.tables().find(|table| table.id.0 == oid) {
        return Some(use_it(&Guarded::table(table), Some(table)));
    }
    if let Some(view) = catalog.views().find(|view| view.oid == oid) {
        return Some(use_it(&Guarded::view(view), None));
    }
    let sequence = catalog.sequences().find(|sequence| sequence.oid == oid)?;
    // Asked as a table, it has the rights of a table that it has.
    Some(use_it(&Guarded::sequence(sequence), None))
}

/// Whether the OID is of a system table, which everybody reads; but for those with secrets.
fn system(actor: &Actor, oid: u32, asked: &Asked) -> Option<bool> {
    let table = telesto_sql_catalog::builtin::tables::all().find(|table| table.oid == oid)?;
    let secret = matches!(table.name, "pg_authid" | "pg_shadow" | "pg_statistic");
    let reads = asked.iter().any(|(right, option)| *right == Rights::SELECT && !option);
    Some(!asked.is_empty() && (actor.superuser || (reads && !secret)))
}

/// Whether a function, named by its signature or its OID, may be called: by everybody, since all
/// are part of the server; and nobody can hand that on.
fn callable(function: &Datum, asked: &Datum, call: &Call<'_>) -> Result<Datum> {
    let asked = words(asked, Granted::Function)?;
    let oid = match function.as_str() {
        Some(signature) => oid_of(&reg_input(signature, &SqlType::RegProcedure, call.context)?),
        None => oid_of(function),
    };
    let known = telesto_sql_catalog::builtin::procedures::find(oid).is_some();
    Ok(if known { Datum::Bool(asked.iter().any(|(_, option)| !option)) } else { Datum::Null })
}

fn table(actor: &Actor, args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let asked = words(&args[1], Granted::Table)?;
    let (catalog, oid) = (call.context.catalog, oid_of(&args[0]));
    let found = with_relation(catalog, oid, |guarded, _| holds(actor, guarded, &asked));
    Ok(found.or_else(|| system(actor, oid, &asked)).map_or(Datum::Null, Datum::Bool))
}

fn sequence(actor: &Actor, args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let asked = words(&args[1], Granted::Sequence)?;
    let oid = oid_of(&args[0]);
    match call.context.catalog.sequence(oid) {
        Some(sequence) => Ok(Datum::Bool(holds(actor, &Guarded::sequence(sequence), &asked))),
        None => {
            let known =
                with_relation(call.context.catalog, oid, |guarded, _| guarded.name.to_owned());
            match known {
                Some(name) => Err(fault::error("42809", format!("\"{name}\" is not a sequence"))),
                None => Ok(Datum::Null),
            }
        }
    }
}

fn holds_column(
    catalog: &CatalogSnapshot,
    actor: &Actor,
    table: &Table,
    at: usize,
    asked: &Asked,
) -> bool {
    let whole = Guarded::table(table);
    let acl = table.columns[at].acl.as_ref();
    let options = acl.map_or(Rights::NONE, |acl| acl.options_of(&actor.roles));
    let options = options.or(whole.options_of(actor));
    let rights = catalog.column_rights(actor, table, at);
    asked
        .iter()
        .any(|(right, option)| if *option { options.has(*right) } else { rights.has(*right) })
}

/// Columns that every table has by itself.
const SYSTEM_COLUMNS: [&str; 6] = ["tableoid", "cmax", "xmax", "cmin", "xmin", "ctid"];

fn any_column(actor: &Actor, args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let asked = words(&args[1], Granted::Column)?;
    let (catalog, oid) = (call.context.catalog, oid_of(&args[0]));
    let found = with_relation(catalog, oid, |guarded, table| {
        let any = |table: &Table| {
            let mut columns = table.visible_columns();
            columns.any(|(at, _)| holds_column(catalog, actor, table, at, &asked))
        };
        holds(actor, guarded, &asked) || table.is_some_and(any)
    });
    Ok(found.or_else(|| system(actor, oid, &asked)).map_or(Datum::Null, Datum::Bool))
}

fn column(actor: &Actor, args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let asked = words(&args[2], Granted::Column)?;
    let (catalog, oid) = (call.context.catalog, oid_of(&args[0]));
    let found = with_relation(catalog, oid, |guarded, table| {
        let missing = |name: &str| {
            let relation = guarded.name;
            fault::error(
                "42703",
                format!("column \"{name}\" of relation \"{relation}\" does not exist"),
            )
        };
        let Some(table) = table else {
            let view = catalog.views().find(|view| view.oid == oid);
            let names: Vec<&str> = match view {
                Some(view) => view.columns.iter().map(|(name, _)| name.as_str()).collect(),
                None => vec!["last_value", "log_cnt", "is_called"],
            };
            return match &args[1] {
                Datum::Int2(number) => {
                    let there =
                        usize::try_from(*number).is_ok_and(|n| (1..=names.len()).contains(&n));
                    Ok::<_, Error>(there.then(|| holds(actor, guarded, &asked)))
                }
                name => {
                    let name = name.as_str().unwrap_or_default();
                    let there = names.contains(&name).then(|| holds(actor, guarded, &asked));
                    there.map(Some).ok_or_else(|| missing(name))
                }
            };
        };
        let at = match &args[1] {
            // Columns that every table has by itself have the rights of the table.
            Datum::Int2(-6..=-1) => return Ok(Some(holds(actor, guarded, &asked))),
            Datum::Int2(number) => {
                let mut columns = table.visible_columns();
                match columns.find(|(_, column)| i32::from(column.id) == i32::from(*number)) {
                    Some((at, _)) => at,
                    None => return Ok(None),
                }
            }
            name => {
                let name = name.as_str().unwrap_or_default();
                match table.column_position(name) {
                    Some(at) => at,
                    None if SYSTEM_COLUMNS.contains(&name) => {
                        return Ok(Some(holds(actor, guarded, &asked)));
                    }
                    None => return Err(missing(name)),
                }
            }
        };
        Ok(Some(holds_column(catalog, actor, table, at, &asked)))
    });
    match found {
        Some(found) => Ok(found?.map_or(Datum::Null, Datum::Bool)),
        None => system_column(actor, oid, &args[1], &asked),
    }
}

/// As [`system`], of one column.
fn system_column(actor: &Actor, oid: u32, column: &Datum, asked: &Asked) -> Result<Datum> {
    let Some(table) = telesto_sql_catalog::builtin::tables::all().find(|table| table.oid == oid)
    else {
        return Ok(Datum::Null);
    };
    let columns = &table.columns;
    let known = match column {
        Datum::Int2(number) => {
            let at = usize::try_from(*number).ok().and_then(|number| number.checked_sub(1));
            if at.is_none_or(|at| at >= columns.len()) {
                return Ok(Datum::Null);
            }
            true
        }
        name => columns.iter().any(|column| Some(column.0) == name.as_str()),
    };
    if !known {
        let (name, table) = (column.as_str().unwrap_or_default(), table.name);
        let text = format!("column \"{name}\" of relation \"{table}\" does not exist");
        return Err(fault::error("42703", text));
    }
    Ok(system(actor, oid, asked).map_or(Datum::Null, Datum::Bool))
}

fn user_type(actor: &Actor, args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let asked = words(&args[1], Granted::Type)?;
    let oid = oid_of(&args[0]);
    let holds =
        match call.context.catalog.user_types().find(|ty| ty.oid == oid || ty.array_oid == oid) {
            Some(ty) => holds(actor, &Guarded::user_type(ty), &asked),
            // Everybody may use the types that are part of the server, and nobody can hand that on.
            None => asked.iter().any(|(_, option)| !option),
        };
    Ok(Datum::Bool(holds))
}

fn schema(actor: &Actor, args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let asked = words(&args[1], Granted::Schema)?;
    let catalog = call.context.catalog;
    let found = match &args[0] {
        Datum::Oid(oid) => match catalog.schema_by_oid(*oid) {
            Some(schema) => schema,
            None => return Ok(Datum::Null),
        },
        name => {
            let name = name.as_str().unwrap_or_default();
            catalog
                .schema(name)
                .ok_or_else(|| fault::error("3F000", format!("schema \"{name}\" does not exist")))?
        }
    };
    let own = telesto_sql_catalog::temp::is_temporary(found.oid);
    Ok(Datum::Bool(own || holds(actor, &Guarded::schema(found), &asked)))
}

fn database(actor: &Actor, args: &[Datum], call: &Call<'_>) -> Result<Datum> {
    let asked = words(&args[1], Granted::Database)?;
    let catalog = call.context.catalog;
    match &args[0] {
        Datum::Oid(DATABASE_OID) => {}
        Datum::Oid(_) => return Ok(Datum::Null),
        name => {
            let name = name.as_str().unwrap_or_default();
            if name != catalog.database_name && name != "postgres" {
                return Err(fault::error("3D000", format!("database \"{name}\" does not exist")));
            }
        }
    }
    Ok(Datum::Bool(holds(actor, &catalog.guarded_database(), &asked)))
}

fn member(member: u32, role: u32, how: &Datum, call: &Call<'_>) -> Result<Datum> {
    let catalog = call.context.catalog;
    let text = how.as_str().unwrap_or_default();
    let mut found = false;
    for part in text.split(',').map(str::trim) {
        let upper = part.to_ascii_uppercase();
        found |= match upper.as_str() {
            "USAGE" => catalog.actor(member).acts_as(role),
            "MEMBER" => catalog.may_become(member, role),
            "USAGE WITH GRANT OPTION"
            | "USAGE WITH ADMIN OPTION"
            | "MEMBER WITH GRANT OPTION"
            | "MEMBER WITH ADMIN OPTION" => catalog.is_admin(member, role),
            _ => {
                return Err(Error::new(
                    SqlState::INVALID_PARAMETER_VALUE,
                    format!("unrecognized privilege type: \"{part}\""),
                ));
            }
        };
    }
    Ok(Datum::Bool(found))
}
