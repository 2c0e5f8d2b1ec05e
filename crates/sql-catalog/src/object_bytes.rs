//! A catalog object as bytes: a version, then JSON (`docs/reference/formats/sql.md`).
//!
//! # Invariants
//! - An object is written with the least version that knows all that it has, so that older
//!   processes go on reading what they understand, and refuse what they would get wrong.
//!
//! # On failure
//! A version from after this one is refused with the way out, and so are bytes that are no object.
//!
//! # Limits
//! Every version so far is JSON of the same object: a new one is due when an older process would
//! leave a field out.

use bytes::Bytes;

use super::model::Table;
use super::object::{
    Object, has_bits, has_composites, has_jsonb, has_networks, has_ranges, has_zoned_times,
};
use super::types::TypeKind;
use telesto_sql_types::error::{Error, Result};

pub(crate) const OBJECT_VERSION: u8 = 1;
/// Tables with partial indexes, indexes on expressions, INCLUDE, NULLS NOT DISTINCT, or an index
/// being built: a version that does not know them must not touch such a table.
const INDEX_FORMS_VERSION: u8 = 2;
/// A note of dropped keys: a version that does not know it would leave them for ever.
const DROPPED_VERSION: u8 = 3;
/// Columns of inet or cidr: a version that does not know these types cannot read the object.
const NETWORK_VERSION: u8 = 4;
/// Regions, and tables that are placed or written otherwise than all are: a version that does not
/// know them would write them where they must not be written.
const REGIONS_VERSION: u8 = 5;
/// A spend cap: a version that does not know it would spend as if there were none.
const CAP_VERSION: u8 = 6;
/// Owners other than the first superuser, and what was granted: a version that does not know them
/// would let everybody in.
const RIGHTS_VERSION: u8 = 7;
/// Of tables with row security: a version that does not know it must not show their rows.
const POLICY_VERSION: u8 = 8;
/// Of curated tables: a version that does not know them would let everybody write at once.
const CURATED_VERSION: u8 = 9;
/// Of tables with columns that merge: a version that does not know them would write rows without
/// what they keep beside their values.
const MERGING_VERSION: u8 = 10;
/// Of tables whose rows are placed by value: a version that does not know it would show parts of
/// them as the whole.
const BY_ROW_VERSION: u8 = 11;
/// Of tables with a key: a version that does not know it would write their rows in clear.
const KEYED_VERSION: u8 = 12;
/// Objects with a type bit or bit varying.
const BITS_VERSION: u8 = 13;
/// Of views with a barrier or a check: a version that does not know them would show conditions what
/// the view hides, and write rows that it must not write.
const BARRIER_VERSION: u8 = 14;
/// Objects with a range or multirange type.
const RANGES_VERSION: u8 = 15;
/// Tables with a key that is deferrable: its index holds rows that a reader of [`RANGES_VERSION`]
/// would not compare.
const DEFERRABLE_VERSION: u8 = 16;
/// Composite types, and objects with one.
const COMPOSITE_VERSION: u8 = 17;
/// Objects with a type time with time zone.
const ZONED_TIME_VERSION: u8 = 18;
/// Tables with a key or an index over jsonb: a version that does not know them would refuse every
/// row.
pub(crate) const JSONB_KEYS_VERSION: u8 = 19;
/// What sessions begin with: a version that does not know it would begin them without, read-only
/// ones and time-outs too.
pub(crate) const SETTINGS_VERSION: u8 = 20;
/// Tables with a foreign key that sets only some of its columns when a row goes: a version that
/// does not know it would set them all.
const DELETE_COLUMNS_VERSION: u8 = 21;
/// Regions that have taken over the definitions: a version that does not know it would go on making
/// them elsewhere.
const DEFINES_VERSION: u8 = 22;
/// The newest of them.
pub(crate) const NEWEST_VERSION: u8 = DEFINES_VERSION;

pub(crate) fn encode_object(object: &Object) -> Result<Bytes> {
    let version = match object {
        Object::Region(region) if region.defines.is_some() => DEFINES_VERSION,
        Object::Table(table)
            if table.foreign_keys.iter().any(|key| !key.delete_columns.is_empty()) =>
        {
            DELETE_COLUMNS_VERSION
        }
        Object::Table(table) if has_jsonb_keys(table) => JSONB_KEYS_VERSION,
        object if object.types().any(has_zoned_times) => ZONED_TIME_VERSION,
        Object::Type(ty) if matches!(ty.kind, TypeKind::Composite(_)) => COMPOSITE_VERSION,
        object if object.types().any(has_composites) => COMPOSITE_VERSION,
        Object::Table(table) if table.known_indexes().any(|index| index.deferral.is_some()) => {
            DEFERRABLE_VERSION
        }
        object if object.types().any(has_ranges) => RANGES_VERSION,
        Object::View(view) if view.security_barrier || view.check_option.is_some() => {
            BARRIER_VERSION
        }
        object if object.types().any(has_bits) => BITS_VERSION,
        Object::Table(table) if table.key.is_some() => KEYED_VERSION,
        Object::Table(table) if table.placement.sent_by_all => BY_ROW_VERSION,
        Object::Dropped(note) if note.by_row => BY_ROW_VERSION,
        Object::Table(table) if table.placement.merging.is_some() => MERGING_VERSION,
        Object::Table(table) if table.curated.is_some() => CURATED_VERSION,
        Object::Table(table) if !table.row_security.is_default() => POLICY_VERSION,
        object if object.has_rights() => RIGHTS_VERSION,
        Object::Region(_) => REGIONS_VERSION,
        Object::Table(table) if !table.placement.is_default() => REGIONS_VERSION,
        object if object.types().any(has_networks) => NETWORK_VERSION,
        Object::Table(table)
            if !table.building.is_empty()
                || table.known_indexes().any(super::model::Index::is_extended) =>
        {
            INDEX_FORMS_VERSION
        }
        Object::Dropped(_) => DROPPED_VERSION,
        Object::Cap(_) => CAP_VERSION,
        Object::Settings(_) => SETTINGS_VERSION,
        _ => OBJECT_VERSION,
    };
    let mut out = vec![version];
    serde_json::to_writer(&mut out, object)
        .map_err(|error| Error::internal(format!("encoding a catalog object: {error}")))?;
    Ok(Bytes::from(out))
}

/// Whether a table has a key or an index over jsonb.
fn has_jsonb_keys(table: &Table) -> bool {
    let mut keys = table.known_indexes().flat_map(|index| &index.columns);
    keys.any(|key| has_jsonb(key.ty(table).of_values()))
}

pub(crate) fn decode_object(bytes: &[u8]) -> Result<Object> {
    match bytes.split_first() {
        Some((&(OBJECT_VERSION..=NEWEST_VERSION), json)) => serde_json::from_slice(json)
            .map_err(|error| Error::corrupt(format!("a catalog object: {error}"))),
        Some((version, _)) => Err(Error::corrupt(format!(
            "catalog object format {version}, this version reads up to {NEWEST_VERSION}; use a newer telesto"
        ))),
        None => Err(Error::corrupt("an empty catalog object")),
    }
}
