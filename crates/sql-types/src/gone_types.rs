//! Types of which nothing is left but the name: another session dropped a user's type that
//! something temporary is of.

use std::sync::Arc;

use crate::composites::CompositeType;
use crate::enums::EnumType;
use crate::sql_type::SqlType;

impl SqlType {
    /// The name of the user's type that it is made of and that is dropped: nothing is known of it
    /// but that.
    #[must_use]
    pub fn gone(&self) -> Option<&str> {
        match self {
            Self::Enum(ty) if ty.array_oid == 0 && ty.labels.is_empty() => Some(&ty.name),
            Self::Composite(ty) if ty.array_oid == 0 && ty.fields.is_empty() => Some(&ty.name),
            Self::Array(element) => element.gone(),
            _ => None,
        }
    }

    /// It once the user's type it is made of, which was called `name`, is dropped.
    #[must_use]
    pub fn without_its_type(&self, name: &str) -> Self {
        match self {
            Self::Enum(ty) => {
                let name = name.to_owned();
                Self::Enum(Arc::new(EnumType { name, ..EnumType::unlinked(ty.oid) }))
            }
            Self::Composite(ty) => {
                let oids = (ty.oid, 0);
                let gone = CompositeType::new(oids, String::new(), name.to_owned(), Vec::new());
                Self::Composite(Arc::new(gone))
            }
            Self::Array(element) => element.without_its_type(name).array_of(),
            other => other.clone(),
        }
    }
}
