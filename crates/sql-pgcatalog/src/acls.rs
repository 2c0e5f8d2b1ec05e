//! Access control lists as the system tables show them, and the rows of `information_schema` made
//! of them.
//!
//! # Invariants
//! An item's text is PostgreSQL's: `grantee=letters/grantor`, a `*` after each letter that may be
//! handed on.

use super::objects::PG_NAMESPACE;
use super::rows::RowSet;
use telesto_sql_catalog::acl::{BOOTSTRAP, EVERYBODY, Owner};
use telesto_sql_catalog::rights::{DATABASE_OWNER, is_predefined};
use telesto_sql_catalog::{
    Acl, AclItem, Actor, CatalogSnapshot, Granted, Guarded, PG_CATALOG_OID, PUBLIC_OID, Rights,
    Role,
};
use telesto_sql_types::Datum;

/// A role's name inside an item: in quotes where it has more than letters, digits and underlines.
fn name(catalog: &CatalogSnapshot, oid: u32) -> String {
    let name = catalog.role_name(oid);
    if name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return name;
    }
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn item(catalog: &CatalogSnapshot, item: &AclItem) -> String {
    let mut text = String::new();
    if item.grantee != EVERYBODY {
        text.push_str(&name(catalog, item.grantee));
    }
    text.push('=');
    for (right, letter, _) in Rights::ALL {
        if item.rights.has(*right) {
            text.push(*letter);
            if item.options.has(*right) {
                text.push('*');
            }
        }
    }
    text.push('/');
    text.push_str(&name(catalog, item.grantor));
    text
}

/// A list as the array that system tables show; NULL: the default.
pub(super) fn shown(catalog: &CatalogSnapshot, acl: Option<&Acl>) -> Datum {
    let Some(acl) = acl else { return Datum::Null };
    telesto_sql_expr::value::text_array(acl.0.iter().map(|i| Some(item(catalog, i))))
}

/// Rows of `pg_default_acl`.
pub(super) fn defaults(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    for default in catalog.default_acls() {
        out.row()
            .set("oid", default.oid)
            .set("defaclrole", default.role)
            .set("defaclnamespace", default.schema)
            .set("defaclobjtype", default.kind.letter())
            .set("defaclacl", shown(catalog, Some(&default.acl)));
    }
}

/// Rows of `pg_init_privs`: what schemas were granted before anybody could change it, and pg_dump
/// therefore does not write.
pub(super) fn initial(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    for (schema, owner) in [(PG_CATALOG_OID, BOOTSTRAP), (PUBLIC_OID, DATABASE_OWNER)] {
        let mut acl = Acl::default_of(Granted::Schema, Owner(owner));
        acl.0.push(AclItem {
            grantee: EVERYBODY,
            grantor: owner,
            rights: Rights::USAGE,
            options: Rights::NONE,
        });
        out.row()
            .set("objoid", schema)
            .set("classoid", PG_NAMESPACE)
            .set("objsubid", 0)
            .set("privtype", "i")
            .set("initprivs", shown(catalog, Some(&acl)));
    }
}

/// Rows of `pg_auth_members`.
pub(super) fn members(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    for role in catalog.roles() {
        for membership in &role.member_of {
            out.row()
                .set("roleid", membership.role)
                .set("member", role.oid)
                .set("grantor", membership.grantor)
                .set("admin_option", membership.admin);
        }
    }
}

/// Rows of `pg_roles` and `pg_authid`; the verifiers of passwords in the second only.
pub(super) fn roles(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    let secret = out.name() == "pg_authid";
    for role in catalog.roles() {
        let password = match (&role.password, secret) {
            (Some(verifier), true) => Datum::text(verifier.clone()),
            (None, true) => Datum::Null,
            (_, false) => Datum::text("********"),
        };
        let row = out
            .row()
            .set("oid", role.oid)
            .set("rolname", &role.name)
            .set("rolsuper", role.superuser)
            .set("rolinherit", role.inherit)
            .set("rolcreaterole", role.create_role)
            .set("rolcreatedb", role.create_db)
            .set("rolcanlogin", role.login)
            .set("rolreplication", replicates(role))
            .set("rolbypassrls", passes(role))
            .set("rolconnlimit", limit(role))
            .set("rolvaliduntil", until(role))
            .set("rolpassword", password);
        if !secret {
            row.set("rolconfig", stored(catalog, role));
        }
    }
}

/// The first role of databases that were made before these attributes had one has them all the
/// same.
fn replicates(role: &Role) -> bool {
    role.replication || role.oid == BOOTSTRAP
}

fn passes(role: &Role) -> bool {
    role.bypass_rls || role.oid == BOOTSTRAP
}

fn limit(role: &Role) -> i64 {
    role.connection_limit.map_or(-1, i64::from)
}

fn until(role: &Role) -> Datum {
    role.valid_until.map_or(Datum::Null, Datum::TimestampTz)
}

/// The settings of a role in all databases.
fn stored(catalog: &CatalogSnapshot, role: &Role) -> Option<Vec<String>> {
    catalog.settings_of(role.oid, false).map(|settings| settings.shown())
}

/// Rows of `pg_db_role_setting`.
pub(super) fn settings(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    for settings in catalog.stored_settings() {
        let database = if settings.in_database { telesto_sql_catalog::DATABASE_OID } else { 0 };
        out.row()
            .set("setdatabase", database)
            .set("setrole", settings.role)
            .set("setconfig", settings.shown());
    }
}

/// Rows of `pg_user`.
pub(super) fn users(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    for role in catalog.roles().filter(|role| role.login) {
        out.row()
            .set("usename", &role.name)
            .set("usesysid", role.oid)
            .set("usecreatedb", role.create_db)
            .set("usesuper", role.superuser)
            .set("userepl", replicates(role))
            .set("usebypassrls", passes(role))
            .set("valuntil", until(role))
            .set("passwd", "********")
            .set("useconfig", stored(catalog, role));
    }
}

/// Rows of `pg_group`.
pub(super) fn groups(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    for role in catalog.roles().filter(|role| !role.login) {
        let members: Vec<u32> = catalog
            .roles()
            .filter(|member| member.member_of.iter().any(|m| m.role == role.oid))
            .map(|member| member.oid)
            .collect();
        out.row().set("groname", &role.name).set("grosysid", role.oid).set("grolist", members);
    }
}

/// What one role gave another on an object, by right: grantor, grantee, right, whether it may be
/// handed on.
fn granted(
    catalog: &CatalogSnapshot,
    guarded: &Guarded<'_>,
) -> Vec<(u32, u32, &'static str, bool)> {
    let acl = guarded.acl.cloned().unwrap_or_else(|| Acl::default_of(guarded.kind, guarded.owner));
    let mut found = Vec::new();
    for item in &acl.0 {
        if item.grantee != EVERYBODY && catalog.role(item.grantee).is_none() {
            continue;
        }
        for (right, word) in item.rights.each() {
            let option = item.options.has(right) || item.grantee == guarded.owner.0;
            found.push((item.grantor, item.grantee, word, option));
        }
    }
    found
}

fn grantee(catalog: &CatalogSnapshot, oid: u32) -> String {
    if oid == EVERYBODY { "PUBLIC".to_owned() } else { catalog.role_name(oid) }
}

/// Whether the role sees a grant: `information_schema` shows what it gave, or was given.
fn sees(actor: &Actor, grantor: u32, grantee: u32) -> bool {
    grantee == EVERYBODY || actor.acts_as(grantor) || actor.acts_as(grantee)
}

/// Rows of `table_privileges` and `role_table_grants`.
pub(super) fn table_privileges(
    out: &mut RowSet<'_>,
    catalog: &CatalogSnapshot,
    database: &str,
    actor: &Actor,
) {
    let roles_only = out.name().starts_with("role_");
    let mut one = |guarded: Guarded<'_>, schema: u32| {
        for (by, to, right, option) in granted(catalog, &guarded) {
            if !sees(actor, by, to) || (roles_only && to == EVERYBODY) {
                continue;
            }
            out.row()
                .set("grantor", catalog.role_name(by))
                .set("grantee", grantee(catalog, to))
                .set("table_catalog", database)
                .set("table_schema", catalog.schema_name(schema))
                .set("table_name", guarded.name)
                .set("privilege_type", right)
                .set("is_grantable", option)
                .set("with_hierarchy", right == "SELECT");
        }
    };
    catalog.tables().for_each(|table| one(Guarded::table(table), table.schema));
    catalog.views().for_each(|view| one(Guarded::view(view), view.schema));
}

/// Rows of `column_privileges` and `role_column_grants`: what was granted on the table, or on the
/// column.
pub(super) fn column_privileges(
    out: &mut RowSet<'_>,
    catalog: &CatalogSnapshot,
    database: &str,
    actor: &Actor,
) {
    let roles_only = out.name().starts_with("role_");
    let mut one = |guarded: &Guarded<'_>, schema: u32, table: &str, column: &str| {
        let known: Vec<_> = Granted::Column.rights().each().map(|(_, word)| word).collect();
        for (by, to, right, option) in granted(catalog, guarded) {
            if !known.contains(&right) || !sees(actor, by, to) || (roles_only && to == EVERYBODY) {
                continue;
            }
            out.row()
                .set("grantor", catalog.role_name(by))
                .set("grantee", grantee(catalog, to))
                .set("table_catalog", database)
                .set("table_schema", catalog.schema_name(schema))
                .set("table_name", table)
                .set("column_name", column)
                .set("privilege_type", right)
                .set("is_grantable", option);
        }
    };
    for table in catalog.tables() {
        let guarded = Guarded::table(table);
        for (_, column) in table.visible_columns() {
            one(&guarded, table.schema, &table.name, &column.name);
            if column.acl.is_some() {
                let own = Guarded { kind: Granted::Column, acl: column.acl.as_ref(), ..guarded };
                one(&own, table.schema, &table.name, &column.name);
            }
        }
    }
    for view in catalog.views() {
        for (column, _) in &view.columns {
            one(&Guarded::view(view), view.schema, &view.name, column);
        }
    }
}

/// Rows of `usage_privileges` and `role_usage_grants`: sequences and domains.
pub(super) fn usage_privileges(
    out: &mut RowSet<'_>,
    catalog: &CatalogSnapshot,
    database: &str,
    actor: &Actor,
) {
    let roles_only = out.name().starts_with("role_");
    let mut one = |guarded: Guarded<'_>, schema: u32, kind: &str| {
        for (by, to, right, option) in granted(catalog, &guarded) {
            if right != "USAGE" || !sees(actor, by, to) || (roles_only && to == EVERYBODY) {
                continue;
            }
            out.row()
                .set("grantor", catalog.role_name(by))
                .set("grantee", grantee(catalog, to))
                .set("object_catalog", database)
                .set("object_schema", catalog.schema_name(schema))
                .set("object_name", guarded.name)
                .set("object_type", kind)
                .set("privilege_type", right)
                .set("is_grantable", option);
        }
    };
    catalog.sequences().for_each(|s| one(Guarded::sequence(s), s.schema, "SEQUENCE"));
    for ty in catalog.user_types() {
        if matches!(ty.kind, telesto_sql_catalog::TypeKind::Domain(_)) {
            one(Guarded::user_type(ty), ty.schema, "DOMAIN");
        }
    }
}

/// Rows of `enabled_roles`, `applicable_roles` and `administrable_role_authorizations`.
pub(super) fn applicable(out: &mut RowSet<'_>, catalog: &CatalogSnapshot, actor: &Actor) {
    if out.name() == "enabled_roles" {
        for role in catalog.roles().filter(|role| actor.acts_as(role.oid)) {
            out.row().set("role_name", &role.name);
        }
        return;
    }
    let admin_only = out.name() == "administrable_role_authorizations";
    for role in catalog.roles().filter(|role| actor.roles.contains(&role.oid) || actor.superuser) {
        for membership in &role.member_of {
            if (admin_only && !membership.admin) || is_predefined(role.oid) {
                continue;
            }
            out.row()
                .set("grantee", &role.name)
                .set("role_name", catalog.role_name(membership.role))
                .set("is_grantable", membership.admin);
        }
    }
}
