//! Rows about regions: which there are and how they stand, what is measured between them, where
//! tables are, and which writes lost.
//!
//! # Invariants
//! Names come from the catalog, which is the same in every region; how the streams stand is told by
//! the node that carries them, whichever node of the region is asked. A statement that only takes
//! the names ([`KNOWN`]) asks nobody.
//!
//! # On failure
//! 08006 when no node that carries the streams answers in time.
//!
//! # Limits
//! In a process that has no way to the streams (one that opened the bucket for itself), what they
//! do is not known: NULL, and no rows.

use std::collections::BTreeSet;

use super::SystemTable;
use super::rows::RowSet;
use telesto_common::key::KeyReader;
use telesto_common::{RegionId, Timestamp};
use telesto_sql_catalog::merging::Merging;
use telesto_sql_catalog::regions::Home;
use telesto_sql_catalog::{Actor, CatalogSnapshot, Guarded, Rights, Table};
use telesto_sql_expr::Settings;
use telesto_sql_plan::{SessionView, row_security};
use telesto_sql_types::Datum;
use telesto_sql_types::error::Result;
use telesto_txn::regions::{ConflictView, LinkView, RegionView, RegionsView};

/// 2000-01-01 in microseconds since 1970.
const EPOCH_MICROS: i64 = 946_684_800_000_000;

/// Columns of `telesto_regions` that every node knows, the first ones: number, name, address, which
/// region this is and which one defines.
const KNOWN: usize = 5;

/// Fills the table if it is one of these, with what the catalog says; whether it is.
pub(super) fn fill(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) -> bool {
    match out.name() {
        "telesto_regions" => regions(out, catalog, None),
        "telesto_placement" => placement(out, catalog),
        _ => return false,
    }
    true
}

/// Whether the table shows what only the node that carries the streams knows.
pub(super) fn is_of_streams(table: &SystemTable) -> bool {
    matches!(table.name, "telesto_regions" | "telesto_links" | "telesto_conflicts")
}

/// Whether these columns of the table are asked of the node that carries the streams.
pub(super) fn is_asked(table: &SystemTable, positions: &[usize]) -> bool {
    // Behind the table's own columns are the hidden ones.
    let asks = |at: &usize| (KNOWN..table.columns.len()).contains(at);
    is_of_streams(table) && (table.name != "telesto_regions" || positions.iter().any(asks))
}

/// Fills the table with what the node that carries the streams tells.
pub(super) async fn ask(
    out: &mut RowSet<'_>,
    catalog: &CatalogSnapshot,
    settings: &Settings,
    live: &SessionView,
) -> Result<()> {
    let control = live.database.as_ref().and_then(|database| database.regions());
    match (out.name(), control) {
        ("telesto_links", Some(control)) => links(out, catalog, control.links().await?),
        ("telesto_conflicts", Some(control)) => {
            let actor = catalog.actor(settings.current_role);
            conflicts(out, catalog, &actor, control.conflicts().await?);
        }
        ("telesto_regions", Some(control)) => regions(out, catalog, Some(control.view().await?)),
        ("telesto_regions", None) => regions(out, catalog, None),
        _ => {}
    }
    Ok(())
}

fn count(number: u64) -> Datum {
    Datum::Int8(i64::try_from(number).unwrap_or(i64::MAX))
}

fn time(at: Timestamp) -> Datum {
    if at == Timestamp::ZERO {
        return Datum::Null;
    }
    let micros = i64::try_from(at.wall_micros()).unwrap_or(i64::MAX);
    Datum::TimestampTz(micros.saturating_sub(EPOCH_MICROS))
}

fn regions(out: &mut RowSet<'_>, catalog: &CatalogSnapshot, view: Option<RegionsView>) {
    for region in catalog.regions() {
        let is_self = region.id == catalog.me().0;
        let of = |view: &RegionView| view.id == RegionId(region.id);
        let peer = view.as_ref().and_then(|view| view.peers.iter().find(|peer| of(peer)));
        let told = |value: &dyn Fn(&RegionView) -> Datum| peer.map_or(Datum::Null, value);
        let own_trouble = view.as_ref().filter(|_| is_self).and_then(|view| view.trouble.clone());
        let own = view.as_ref().filter(|_| is_self);
        let own_plane = own.map(|view| &*view.plane);
        let tree = own.map(|view| &view.tree).filter(|tree| tree.epoch > 0 || tree.by_label > 0);
        let own_trouble = own_trouble.or_else(|| own.and_then(|view| view.tree.trouble.clone()));
        let trouble = own_trouble.or_else(|| peer.and_then(|peer| peer.trouble.clone()));
        out.row()
            .set("id", i32::from(region.id))
            .set("name", &region.name)
            .set("address", &region.address)
            .set("is_self", is_self)
            .set("defines", region.id == catalog.defining().0)
            .set("connected", told(&|peer| Datum::Bool(peer.connected)))
            .set("filling", told(&|peer| Datum::Bool(peer.filling)))
            .set("entries_behind", told(&|peer| count(peer.behind)))
            .set("sent_transactions", told(&|peer| count(peer.sent)))
            .set("sent_bytes", told(&|peer| count(peer.sent_bytes)))
            .set("applied_transactions", told(&|peer| count(peer.applied)))
            .set("waiting_transactions", told(&|peer| count(peer.waiting as u64)))
            .set("passed", told(&|peer| time(peer.passed)))
            .set(
                "visible_after_ms",
                told(&|peer| Datum::Float8(peer.visible_after.as_secs_f64() * 1000.0)),
            )
            .set("trouble", trouble.map_or(Datum::Null, |text| Datum::text(text.as_str())))
            .set("plane", own_plane.map_or(Datum::Null, Datum::text))
            .set("tree", tree.map_or(Datum::Null, |tree| Datum::text(&*tree.state)))
            .set("tree_epoch", tree.map_or(Datum::Null, |tree| count(tree.epoch)))
            .set("applied_by_label", tree.map_or(Datum::Null, |tree| count(tree.by_label)))
            .set("applied_by_past", tree.map_or(Datum::Null, |tree| count(tree.by_past)));
    }
}

fn links(out: &mut RowSet<'_>, catalog: &CatalogSnapshot, links: Vec<LinkView>) {
    let millis = |time: Option<std::time::Duration>| {
        time.map_or(Datum::Null, |time| Datum::Float8(time.as_secs_f64() * 1000.0))
    };
    let named = |region: RegionId| catalog.regions().any(|named| named.id == region.0);
    for link in links {
        if !named(link.from) || !named(link.to) {
            continue;
        }
        let [mean, p50, p99] = link.visible;
        out.row()
            .set("from_region", catalog.region_name(link.from.0))
            .set("to_region", catalog.region_name(link.to.0))
            .set("round_trip_ms", millis(link.round_trip))
            .set("sent_transactions", count(link.sent))
            .set("sent_bytes", count(link.sent_bytes))
            .set("metadata_bytes", count(link.metadata_bytes))
            .set("visible_mean_ms", millis(mean))
            .set("visible_p50_ms", millis(p50))
            .set("visible_p99_ms", millis(p99))
            .set("told_ms_ago", count(u64::try_from(link.age.as_millis()).unwrap_or(u64::MAX)));
    }
}

/// A row's key has values of the row in it: it is shown to who may read the whole table, and to a
/// superuser where the table is gone.
fn conflicts(
    out: &mut RowSet<'_>,
    catalog: &CatalogSnapshot,
    actor: &Actor,
    conflicts: Vec<ConflictView>,
) {
    let may_see = |table: &Table| {
        Guarded::table(table).rights_of(actor).has(Rights::SELECT)
            && !row_security::applies(table, catalog, actor)
    };
    for conflict in conflicts {
        let place = KeyReader::new(&conflict.key).prefix().ok();
        let table = place.and_then(|(database, storage, _)| {
            let own = |table: &&std::sync::Arc<_>| -> bool {
                let table: &telesto_sql_catalog::Table = table;
                table.storage == storage && database == catalog.database
            };
            catalog.tables().find(own)
        });
        let told = table.map_or(actor.superuser, |table| may_see(table));
        let key = if told { Datum::Bytea(conflict.key[..].into()) } else { Datum::Null };
        let text = |text: &str| Datum::text(text);
        let name = |region: RegionId| catalog.region_name(region.0);
        out.row()
            .set("type", &*conflict.kind)
            .set("schema_name", table.map_or(Datum::Null, |t| text(catalog.schema_name(t.schema))))
            .set("table_name", table.map_or(Datum::Null, |t| text(&t.name)))
            .set("row_key", key)
            .set("kept_region", name(conflict.kept.1))
            .set("kept_at", time(conflict.kept.0))
            .set("passed_over_region", name(conflict.passed_over.1))
            .set("passed_over_at", time(conflict.passed_over.0));
    }
}

fn placement(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    if !catalog.is_regional() {
        return;
    }
    let names = |ids: &[u16]| {
        let names: Vec<_> = ids.iter().map(|id| catalog.region_name(*id)).collect();
        Datum::text(names.join(", "))
    };
    for table in catalog.tables() {
        if telesto_sql_catalog::temp::is_temporary(table.id.0) {
            continue;
        }
        let placement = &table.placement;
        let home = match placement.home {
            Home::Any => "any".to_owned(),
            Home::Row => "by row".to_owned(),
            Home::Region(home) => catalog.region_name(home),
        };
        let merging = placement.merging.as_ref();
        let columns = |ids: &[u16]| {
            let of = table.columns.iter().filter(|column| ids.contains(&column.id));
            let names: Vec<_> = of.map(|column| column.name.clone()).collect();
            if names.is_empty() { Datum::Null } else { Datum::text(names.join(", ")) }
        };
        let merges = |which: fn(&Merging) -> &Vec<u16>| {
            merging.map_or(Datum::Null, |merging| columns(which(merging)))
        };
        let rule = placement.by_row.as_ref();
        let places = || rule.into_iter().flat_map(|rule| rule.values.values());
        let listed = |ids: Vec<u16>| {
            let ids: Vec<u16> = ids.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
            if ids.is_empty() { Datum::Null } else { names(&ids) }
        };
        let moved = placement.moved.iter().chain(places().filter_map(|place| place.moved.as_ref()));
        let moved = listed(moved.flat_map(|moved| moved.from.iter().copied()).collect());
        let gaining = placement.gaining.iter();
        let gaining = gaining.chain(places().filter_map(|place| place.gaining.as_ref()));
        let gaining = listed(gaining.flat_map(|g| g.regions.iter().copied()).collect());
        let regions = match rule {
            Some(rule) => Datum::text(rule.text(table, catalog)),
            None => placement.regions.as_ref().map_or(Datum::text("all"), |ids| names(ids)),
        };
        out.row()
            .set("schema_name", catalog.schema_name(table.schema))
            .set("table_name", &table.name)
            .set("home", home)
            .set("regions", regions)
            .set("moved_from", moved)
            .set("gaining", gaining)
            .set("counters", merges(|merging| &merging.counters))
            .set("max_columns", merges(|merging| &merging.max))
            .set("min_columns", merges(|merging| &merging.min));
    }
}
