//! One stored object of the catalog, of whatever kind.

use serde::{Deserialize, Serialize};
use telesto_meter::caps::Cap;
use telesto_sql_types::SqlType;

use crate::acl::Owner;
use crate::model::{DatabaseRights, DefaultAcl, Dropped, Role, Schema, Sequence, Table};
use crate::regions::Region;
use crate::stored_settings::StoredSettings;
use crate::types::{TypeKind, UserType};
use crate::view::View;

/// One stored object.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant, reason = "one at a time, on its way to bytes or from them")]
pub enum Object {
    /// A schema.
    Schema(Schema),
    /// A table with its columns, indexes and constraints.
    Table(Table),
    /// A sequence.
    Sequence(Sequence),
    /// A view.
    View(View),
    /// A role.
    Role(Role),
    /// A user's type.
    Type(UserType),
    /// Keys of something dropped, until they are swept.
    Dropped(Dropped),
    /// A region.
    Region(Region),
    /// A spend cap.
    Cap(Cap),
    /// Whose the database is.
    Database(DatabaseRights),
    /// What new objects of a role begin with.
    DefaultAcl(DefaultAcl),
    /// What sessions begin with.
    Settings(StoredSettings),
}

/// Whether a type is, or is made of, inet or cidr.
pub(crate) fn has_networks(ty: &SqlType) -> bool {
    ty.element_type().unwrap_or(ty).is_network()
}

/// Whether a type is, or is made of, bit or bit varying.
pub(crate) fn has_bits(ty: &SqlType) -> bool {
    ty.element_type().unwrap_or(ty).is_bits()
}

/// Whether a type is, or is made of, time with time zone.
pub(crate) fn has_zoned_times(ty: &SqlType) -> bool {
    matches!(ty.element_type().unwrap_or(ty), SqlType::TimeTz(_))
}

/// Whether a type is, or is made of, jsonb.
pub(crate) fn has_jsonb(ty: &SqlType) -> bool {
    matches!(ty.element_type().unwrap_or(ty), SqlType::Jsonb)
}

/// Whether a type is, or is made of, a composite type.
pub(crate) fn has_composites(ty: &SqlType) -> bool {
    matches!(ty.element_type().unwrap_or(ty), SqlType::Composite(_))
}

/// Whether a type is, or is made of, a range or a multirange.
pub(crate) fn has_ranges(ty: &SqlType) -> bool {
    ty.element_type().unwrap_or(ty).is_ranged()
}

impl Object {
    /// The types it is stored with: of columns, of expressions that indexes keep, below a domain.
    pub(crate) fn types(&self) -> Box<dyn Iterator<Item = &SqlType> + '_> {
        match self {
            Self::Table(table) => {
                let keys = table.known_indexes().flat_map(|index| &index.columns);
                let computed = keys.filter_map(|key| key.expression.as_ref().map(|e| &e.ty));
                Box::new(table.columns.iter().map(|column| &column.ty).chain(computed))
            }
            Self::View(view) => Box::new(view.columns.iter().map(|(_, ty)| ty)),
            Self::Type(ty) => match &ty.kind {
                TypeKind::Domain(domain) => Box::new(std::iter::once(&domain.base)),
                TypeKind::Composite(composite) => {
                    Box::new(composite.fields.iter().map(|field| &field.ty))
                }
                TypeKind::Enum(_) => Box::new(std::iter::empty()),
            },
            Self::Schema(_)
            | Self::Sequence(_)
            | Self::Role(_)
            | Self::Dropped(_)
            | Self::Region(_)
            | Self::Cap(_)
            | Self::Database(_)
            | Self::DefaultAcl(_)
            | Self::Settings(_) => Box::new(std::iter::empty()),
        }
    }

    /// Whether somebody but the first superuser has a say in it.
    pub(crate) fn has_rights(&self) -> bool {
        let (owner, acl) = match self {
            Self::Schema(o) => (o.owner, &o.acl),
            Self::Table(o) => {
                if o.columns.iter().any(|column| column.acl.is_some()) {
                    return true;
                }
                (o.owner, &o.acl)
            }
            Self::Sequence(o) => (o.owner, &o.acl),
            Self::View(o) => {
                if o.security_invoker {
                    return true;
                }
                (o.owner, &o.acl)
            }
            Self::Type(o) => (o.owner, &o.acl),
            Self::Role(role) => return role.is_extended(),
            Self::Database(_) | Self::DefaultAcl(_) => return true,
            Self::Dropped(_) | Self::Region(_) | Self::Cap(_) | Self::Settings(_) => return false,
        };
        owner != Owner::BOOTSTRAP || acl.is_some()
    }

    pub(crate) fn oid(&self) -> u32 {
        match self {
            Self::Schema(o) => o.oid,
            Self::Table(o) => o.id.0,
            Self::Sequence(o) => o.oid,
            Self::View(o) => o.oid,
            Self::Role(o) => o.oid,
            Self::Type(o) => o.oid,
            Self::Dropped(o) => o.oid,
            Self::Region(o) => o.oid,
            Self::Cap(o) => o.oid,
            Self::Database(o) => o.oid,
            Self::DefaultAcl(o) => o.oid,
            Self::Settings(o) => o.oid,
        }
    }
}
