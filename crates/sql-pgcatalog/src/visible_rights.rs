//! What `information_schema` shows to a role: what it owns, and what it was granted something on
//! (SQL:2016, part 11).
//!
//! # Invariants
//! As PostgreSQL 15's views: tables and columns with any right, constraints with one beside SELECT,
//! what only an owner may know (the columns that a constraint uses, a view's text) with none.
//!
//! # On failure
//! Nothing fails.

use telesto_sql_catalog::acl::Rights;
use telesto_sql_catalog::rights::{Actor, Guarded};
use telesto_sql_catalog::{CatalogSnapshot, Schema, Sequence, Table, View};

const ON_COLUMNS: Rights =
    Rights::SELECT.or(Rights::INSERT).or(Rights::UPDATE).or(Rights::REFERENCES);

/// Who looks.
pub(super) struct Seen<'a> {
    catalog: &'a CatalogSnapshot,
    actor: Actor,
}

impl<'a> Seen<'a> {
    pub(super) fn by(catalog: &'a CatalogSnapshot, role: u32) -> Self {
        Self { catalog, actor: catalog.actor(role) }
    }

    fn has_any(&self, guarded: &Guarded<'_>, rights: Rights) -> bool {
        self.actor.owns(guarded.owner) || !guarded.rights_of(&self.actor).and(rights).is_empty()
    }

    /// Whether it may do anything with a schema.
    pub(super) fn schema(&self, schema: &Schema) -> bool {
        self.has_any(&Guarded::schema(schema), Rights::CREATE.or(Rights::USAGE))
    }

    /// Whether it may do anything with a table or one of its columns.
    pub(super) fn table(&self, table: &Table) -> bool {
        let guarded = Guarded::table(table);
        self.has_any(&guarded, guarded.kind.rights()) || self.any_column(table, ON_COLUMNS)
    }

    /// Whether it sees a table's constraints: by more than SELECT.
    pub(super) fn constraints(&self, table: &Table) -> bool {
        let guarded = Guarded::table(table);
        self.has_any(&guarded, guarded.kind.rights().without(Rights::SELECT))
            || self.any_column(table, ON_COLUMNS.without(Rights::SELECT))
    }

    /// Whether it may do anything with a column.
    pub(super) fn column(&self, table: &Table, position: usize) -> bool {
        self.actor.owns(table.owner) || self.column_has(table, position, ON_COLUMNS)
    }

    /// Whether it may do anything with a view.
    pub(super) fn view(&self, view: &View) -> bool {
        let guarded = Guarded::view(view);
        self.has_any(&guarded, guarded.kind.rights())
    }

    /// Whether it may do anything with a sequence.
    pub(super) fn sequence(&self, sequence: &Sequence) -> bool {
        let guarded = Guarded::sequence(sequence);
        self.has_any(&guarded, guarded.kind.rights())
    }

    /// Whether it counts as a table's owner.
    pub(super) fn owns(&self, table: &Table) -> bool {
        self.actor.owns(table.owner)
    }

    /// Whether it counts as a view's owner.
    pub(super) fn owns_view(&self, view: &View) -> bool {
        self.actor.owns(view.owner)
    }

    fn any_column(&self, table: &Table, rights: Rights) -> bool {
        table.visible_columns().any(|(position, _)| self.column_has(table, position, rights))
    }

    fn column_has(&self, table: &Table, position: usize, rights: Rights) -> bool {
        !self.catalog.column_rights(&self.actor, table, position).and(rights).is_empty()
    }
}
