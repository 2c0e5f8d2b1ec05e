//! Rows of `pg_stat_ssl` and `pg_stat_gssapi`: how clients came in.
//!
//! # Invariants
//! As in PostgreSQL, a session is shown that a client has over the network and whose role the
//! asking one may look at: its own, and those that it is a member of, or all with
//! `pg_read_all_stats`. Of others there is no row.
//!
//! # Limits
//! Sessions of nodes that do not answer within a second, or do not know how theirs are encrypted,
//! are left out. There is no GSSAPI: nobody came in by it.

use telesto_sql_catalog::CatalogSnapshot;
use telesto_sql_catalog::rights::READ_ALL_STATS;
use telesto_sql_expr::Settings;
use telesto_sql_plan::SessionView;
use telesto_sql_plan::everywhere;
use telesto_sql_types::Datum;
use telesto_sql_types::numeric::Numeric;

use super::rows::RowSet;

/// Fills the table if it is one of these; whether it is.
pub(super) async fn fill(
    out: &mut RowSet<'_>,
    catalog: &CatalogSnapshot,
    settings: &Settings,
    live: &SessionView,
) -> bool {
    let of_tls = match out.name() {
        "pg_stat_ssl" => true,
        "pg_stat_gssapi" => false,
        _ => return false,
    };
    let mut sessions = live.backends.shown();
    if let Some(database) = &live.database {
        sessions.extend(match of_tls {
            true => everywhere::encrypted(database).await,
            false => everywhere::shown(database).await,
        });
    }
    let actor = catalog.actor(settings.current_role);
    for (pid, shown) in sessions {
        let told = actor.acts_as(shown.role) || actor.acts_as(READ_ALL_STATS);
        if shown.client.is_none() || !told {
            continue;
        }
        let row = out.row().set("pid", pid);
        if !of_tls {
            continue;
        }
        let Some(encrypted) = shown.encrypted else {
            row.set("bits", Datum::Null);
            continue;
        };
        let row = row
            .set("ssl", true)
            .set("version", &encrypted.version)
            .set("cipher", &encrypted.cipher)
            .set("bits", i32::try_from(encrypted.bits).unwrap_or(i32::MAX));
        if let Some(certificate) = &encrypted.client {
            let serial = Numeric::parse(&certificate.serial).map_or(Datum::Null, Datum::numeric);
            row.set("client_dn", &certificate.subject)
                .set("client_serial", serial)
                .set("issuer_dn", &certificate.issuer);
        }
    }
    true
}
