//! Users' types in the catalog.
//!
//! # Invariants
//! - A type's OID and that of its array type never change. Labels of an enum are never removed;
//!   what is stored of a label (OID in rows, order bytes in keys) never changes.
//! - Stored definitions name a user's type by its OID. `CatalogSnapshot::link_types` puts the type
//!   itself in its place whenever the catalog is read or changed, so that a column's type always
//!   knows all labels and fields.
//!
//! # On failure
//! A definition whose type is not there keeps a type without labels; using it gives XX001.
//!
//! # Limits
//! After a change every table and view with a user's type is looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::model::{CheckConstraint, Owner, Table};
use super::snapshot::CatalogSnapshot;
use super::view::View;
use telesto_sql_types::domains::DomainType;
use telesto_sql_types::{CompositeField, CompositeType, EnumLabel, EnumType, SqlType};

/// What a user's type is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TypeKind {
    /// An enum with its labels, by their order.
    Enum(Vec<Arc<EnumLabel>>),
    /// A domain.
    Domain(Domain),
    /// A composite type.
    Composite(Composite),
}

/// The fields of a composite type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Composite {
    /// OID of its row in `pg_class`.
    pub relation: u32,
    /// Fields, in order.
    pub fields: Vec<CompositeField>,
    /// The number the next field gets: no number is given twice.
    pub next: u16,
}

/// What a domain adds to the type it is made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Domain {
    /// The type values have: that of the innermost domain.
    pub base: SqlType,
    /// The domain it is made of, by OID.
    #[serde(default)]
    pub parent: Option<u32>,
    /// NOT NULL.
    pub not_null: bool,
    /// DEFAULT, as SQL text.
    #[serde(default)]
    pub default: Option<String>,
    /// CHECK constraints over VALUE.
    pub checks: Vec<CheckConstraint>,
}

/// A type of the user's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UserType {
    /// OID.
    pub oid: u32,
    /// OID of its array type.
    pub array_oid: u32,
    /// OID of the schema.
    pub schema: u32,
    /// Name.
    pub name: String,
    /// Owner.
    pub owner: Owner,
    /// What was granted on it; `None`: the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acl: Option<crate::acl::Acl>,
    /// What it is.
    pub kind: TypeKind,
    /// COMMENT ON.
    #[serde(default)]
    pub comment: Option<String>,
}

impl UserType {
    /// The name of its array type.
    #[must_use]
    pub fn array_name(&self) -> String {
        telesto_sql_types::text::cut_name(&format!("_{}", self.name)).to_owned()
    }
}

/// How deep composite types may be nested: what walks them is recursive, and texts of values double
/// with each level.
pub const MAX_NESTED: usize = 32;

/// Whether a type is, or is made of, a user's type; its OID.
#[must_use]
pub fn user_oid(ty: &SqlType) -> Option<u32> {
    match ty {
        SqlType::Enum(ty) => Some(ty.oid),
        SqlType::Composite(ty) => Some(ty.oid),
        SqlType::Domain(ty) => Some(ty.oid),
        SqlType::Array(element) => user_oid(element),
        _ => None,
    }
}

/// Whether a user's type with this OID is used by `ty`.
#[must_use]
pub fn is_made_of(ty: &SqlType, oid: u32) -> bool {
    user_oid(ty) == Some(oid)
}

impl CatalogSnapshot {
    /// All users' types, by OID.
    pub fn user_types(&self) -> impl Iterator<Item = &Arc<UserType>> {
        self.types.values()
    }

    /// The user's type with this OID.
    #[must_use]
    pub fn user_type(&self, oid: u32) -> Option<&Arc<UserType>> {
        self.types.get(&oid)
    }

    /// The user's type called `name` in the schema with OID `schema`.
    #[must_use]
    pub fn user_type_named(&self, schema: u32, name: &str) -> Option<&Arc<UserType>> {
        self.types.values().find(|ty| ty.schema == schema && ty.name == name)
    }

    /// The user's type (or array of one) called `name`, in `schema` if given, else in the first
    /// schema of `search_path` that has it.
    #[must_use]
    pub fn resolve_type(
        &self,
        schema: Option<&str>,
        name: &str,
        search_path: &[String],
    ) -> Option<SqlType> {
        let within = |schema: &str| {
            let schema = *self.schema_names.get(schema)?;
            self.types.values().filter(|ty| ty.schema == schema).find_map(|ty| {
                if ty.name == name {
                    self.linked(ty.oid)
                } else if ty.array_name() == name {
                    self.linked(ty.oid).map(SqlType::array_of)
                } else {
                    None
                }
            })
        };
        match schema {
            Some(schema) => within(schema),
            None => search_path.iter().find_map(|schema| within(schema)),
        }
    }

    /// The type with this OID, the system's or a user's, without a modifier.
    #[must_use]
    pub fn type_of_oid(&self, oid: u32) -> Option<SqlType> {
        SqlType::from_oid(oid).or_else(|| self.linked(oid)).or_else(|| {
            let ty = self.types.values().find(|ty| ty.array_oid == oid && oid != 0)?;
            self.linked(ty.oid).map(SqlType::array_of)
        })
    }

    /// The user's type with this OID, with all that values need of it.
    fn linked(&self, oid: u32) -> Option<SqlType> {
        let domain = || self.domains.get(&oid).cloned().map(SqlType::Domain);
        let composite = || self.composites.get(&oid).cloned().map(SqlType::Composite);
        self.enums.get(&oid).cloned().map(SqlType::Enum).or_else(composite).or_else(domain)
    }

    /// `ty` as this catalog knows it; `None`: it is that already.
    #[must_use]
    pub fn relinked(&self, ty: &SqlType) -> Option<SqlType> {
        match ty {
            SqlType::Enum(known) => {
                let now = self.enums.get(&known.oid)?;
                (!Arc::ptr_eq(now, known)).then(|| SqlType::Enum(Arc::clone(now)))
            }
            SqlType::Composite(known) => {
                let now = self.composites.get(&known.oid)?;
                (!Arc::ptr_eq(now, known)).then(|| SqlType::Composite(Arc::clone(now)))
            }
            SqlType::Array(element) => self.relinked(element).map(SqlType::array_of),
            _ => None,
        }
    }

    /// Links a composite type, those it is made of first. Each is looked at once, and none is
    /// nested deeper than [`MAX_NESTED`]: deeper definitions are refused, as are those that would
    /// make a type a field of itself.
    fn link_composite(&mut self, ty: &Arc<UserType>, done: &mut BTreeSet<u32>) {
        let TypeKind::Composite(composite) = &ty.kind else { return };
        if !done.insert(ty.oid) {
            return;
        }
        for inner in composite.fields.iter().filter_map(|field| user_oid(&field.ty)) {
            if let Some(inner) = self.types.get(&inner).cloned() {
                self.link_composite(&inner, done);
            }
        }
        let schema = self.schemas.get(&ty.schema).map_or("", |schema| schema.name.as_str());
        let same = self.composites.get(&ty.oid).is_some_and(|known| {
            known.name == ty.name
                && known.schema == schema
                && known.fields == composite.fields
                && known.fields.iter().all(|field| self.relinked(&field.ty).is_none())
        });
        if same {
            return;
        }
        let linked = |field: &CompositeField| {
            let now = self.relinked(&field.ty);
            CompositeField { ty: now.unwrap_or_else(|| field.ty.clone()), ..field.clone() }
        };
        let fields = composite.fields.iter().map(linked).collect();
        let (oids, schema) = ((ty.oid, ty.array_oid), schema.to_owned());
        let linked = CompositeType::new(oids, schema, ty.name.clone(), fields);
        self.composites.insert(ty.oid, Arc::new(linked));
    }

    /// A domain with all it inherits.
    fn whole_domain(&self, ty: &UserType) -> Option<DomainType> {
        let TypeKind::Domain(own) = &ty.kind else { return None };
        let mut whole = DomainType {
            oid: ty.oid,
            array_oid: ty.array_oid,
            schema: self.schema_name(ty.schema).to_owned(),
            name: ty.name.clone(),
            base: self.relinked(&own.base).unwrap_or_else(|| own.base.clone()),
            not_null: own.not_null,
            default: own.default.clone(),
            checks: Vec::new(),
            bound: std::sync::OnceLock::new(),
        };
        let mut next = Some(own);
        while let Some(domain) = next {
            let checks = domain.checks.iter().map(|c| (c.name.clone(), c.expression.clone()));
            // PostgreSQL checks those of one domain by name, the innermost domain's first.
            let mut checks: Vec<_> = checks.collect();
            checks.sort();
            whole.checks.splice(0..0, checks);
            whole.not_null |= domain.not_null;
            next = domain.parent.and_then(|oid| match &self.types.get(&oid)?.kind {
                TypeKind::Domain(parent) => Some(parent),
                TypeKind::Enum(_) | TypeKind::Composite(_) => None,
            });
        }
        Some(whole)
    }

    /// The domain with this OID, with all it inherits.
    #[must_use]
    pub fn domain(&self, oid: u32) -> Option<&Arc<DomainType>> {
        self.domains.get(&oid)
    }

    /// The composite type with this OID, with its fields.
    #[must_use]
    pub fn composite(&self, oid: u32) -> Option<&Arc<CompositeType>> {
        self.composites.get(&oid)
    }

    /// How deep composite types are nested in the user's type with this OID, itself included; 0: it
    /// is no composite type.
    #[must_use]
    pub fn nested(&self, oid: u32) -> usize {
        self.nested_above(oid, &mut BTreeMap::new())
    }

    fn nested_above(&self, oid: u32, known: &mut BTreeMap<u32, usize>) -> usize {
        if let Some(depth) = known.get(&oid) {
            return *depth;
        }
        let Some(TypeKind::Composite(composite)) = self.types.get(&oid).map(|ty| &ty.kind) else {
            return 0;
        };
        let inner = composite.fields.iter().filter_map(|field| user_oid(&field.ty));
        let depth = 1 + inner.map(|inner| self.nested_above(inner, known)).max().unwrap_or(0);
        known.insert(oid, depth);
        depth
    }

    /// Whether the user's type with OID `outer` is the one with OID `inner`, or has a field of it,
    /// however deep.
    #[must_use]
    pub fn is_nested_in(&self, inner: u32, outer: u32) -> bool {
        let mut waiting = vec![outer];
        let mut seen = BTreeSet::new();
        while let Some(oid) = waiting.pop() {
            if oid == inner {
                return true;
            }
            if let Some(TypeKind::Composite(composite)) = self.types.get(&oid).map(|ty| &ty.kind) {
                let fields = composite.fields.iter().filter_map(|field| user_oid(&field.ty));
                waiting.extend(fields.filter(|field| seen.insert(*field)));
            }
        }
        false
    }

    /// Puts the types that definitions name by OID in their places.
    pub(super) fn link_types(&mut self) {
        self.enums.retain(|oid, _| self.types.contains_key(oid));
        self.domains.clear();
        for ty in self.types.values() {
            let TypeKind::Enum(labels) = &ty.kind else { continue };
            let schema = self.schemas.get(&ty.schema).map_or("", |schema| schema.name.as_str());
            let same = self.enums.get(&ty.oid).is_some_and(|known| {
                known.name == ty.name && known.schema == schema && known.labels == *labels
            });
            if !same {
                let linked = EnumType {
                    oid: ty.oid,
                    array_oid: ty.array_oid,
                    schema: schema.to_owned(),
                    name: ty.name.clone(),
                    labels: labels.clone(),
                };
                self.enums.insert(ty.oid, Arc::new(linked));
            }
        }
        let types = &self.types;
        self.composites.retain(|oid, _| types.contains_key(oid));
        let mut done = BTreeSet::new();
        let composites = |ty: &&Arc<UserType>| matches!(ty.kind, TypeKind::Composite(_));
        for ty in self.types.values().filter(composites).cloned().collect::<Vec<_>>() {
            self.link_composite(&ty, &mut done);
        }
        for ty in self.types.values() {
            if let Some(domain) = self.whole_domain(ty) {
                self.domains.insert(ty.oid, Arc::new(domain));
            }
        }
        if self.enums.is_empty() && self.composites.is_empty() {
            return;
        }
        let tables: Vec<Table> = self
            .tables
            .values()
            .filter(|table| table.columns.iter().any(|c| self.relinked(&c.ty).is_some()))
            .map(|table| {
                let mut table = (**table).clone();
                for column in &mut table.columns {
                    if let Some(ty) = self.relinked(&column.ty) {
                        column.ty = ty;
                    }
                }
                table
            })
            .collect();
        for table in tables {
            self.tables.insert(table.id.0, Arc::new(table));
        }
        let views: Vec<View> = self
            .views
            .values()
            .filter(|view| view.columns.iter().any(|(_, ty)| self.relinked(ty).is_some()))
            .map(|view| {
                let mut view = (**view).clone();
                for (_, ty) in &mut view.columns {
                    if let Some(linked) = self.relinked(ty) {
                        *ty = linked;
                    }
                }
                view
            })
            .collect();
        for view in views {
            self.views.insert(view.oid, Arc::new(view));
        }
    }
}
