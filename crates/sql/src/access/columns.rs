//! Which columns of which relations a statement reads: names attributed as PostgreSQL resolves
//! them.
//!
//! # Invariants
//! A name belongs to the innermost level that has it. Where a level has relations whose columns are
//! not known (subqueries, functions), what is found further out counts as read all the same: rather
//! too much than too little.

use std::collections::BTreeSet;
use std::sync::Arc;

use telesto_sql_catalog::{Table, View};

/// What a relation in FROM is.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// A table, whose columns are counted.
    Table(Arc<Table>),
    /// Something whose rights are those of the whole, and were looked at; its columns, if they are
    /// known.
    Whole(Option<Vec<String>>),
}

/// A relation in FROM, by the name it has in the statement.
#[derive(Clone, Debug)]
pub(super) struct Member {
    /// The alias, or the relation's own name.
    pub(super) name: String,
    /// What the alias calls the first columns.
    pub(super) renamed: Vec<String>,
    /// What it is.
    pub(super) source: Source,
    /// The columns read, by position.
    pub(super) read: BTreeSet<usize>,
    /// The view it is.
    pub(super) view: Option<Arc<View>>,
    /// Whether the statement asks for it as a whole, be it for no column (`count(*)`).
    pub(super) asked: bool,
}

impl Member {
    pub(super) fn table(name: String, table: Arc<Table>, asked: bool) -> Self {
        Self { asked, source: Source::Table(table), ..Self::whole(name, None) }
    }

    pub(super) fn whole(name: String, columns: Option<Vec<String>>) -> Self {
        Self {
            name,
            renamed: Vec::new(),
            source: Source::Whole(columns),
            read: BTreeSet::new(),
            view: None,
            asked: true,
        }
    }

    /// The position of a column in the table; `Some(None)`: it has such a column, and which one
    /// does not matter.
    fn column(&self, name: &str) -> Option<Option<usize>> {
        match &self.source {
            Source::Table(table) => {
                if let Some(at) = self.renamed.iter().position(|known| known == name) {
                    return table.visible_columns().nth(at).map(|(at, _)| Some(at));
                }
                let (at, _) = table
                    .visible_columns()
                    .enumerate()
                    .find(|(nth, (_, column))| *nth >= self.renamed.len() && column.name == name)
                    .map(|(_, found)| found)?;
                Some(Some(at))
            }
            Source::Whole(Some(columns)) => {
                columns.iter().position(|known| known == name).map(Some)
            }
            Source::Whole(None) => None,
        }
    }

    /// The names of its columns, if they are known.
    fn names(&self) -> Option<Vec<String>> {
        match &self.source {
            Source::Table(table) => {
                let mut names: Vec<String> =
                    table.visible_columns().map(|(_, column)| column.name.clone()).collect();
                for (name, given) in names.iter_mut().zip(&self.renamed) {
                    name.clone_from(given);
                }
                Some(names)
            }
            Source::Whole(columns) => columns.clone(),
        }
    }

    /// Counts all columns as read.
    pub(super) fn read_all(&mut self) {
        match &self.source {
            Source::Table(table) => self.read.extend(table.visible_columns().map(|(at, _)| at)),
            Source::Whole(columns) => self.read.extend(0..columns.as_ref().map_or(0, Vec::len)),
        }
    }
}

/// The relations that names can mean at one level of a statement, and those around it.
#[derive(Clone, Debug, Default)]
pub(super) struct Level {
    /// From the innermost outwards.
    pub(super) levels: Vec<Vec<Member>>,
}

impl Level {
    /// This level, inside `outer`.
    pub(super) fn inside(outer: &Self, members: Vec<Member>) -> Self {
        let mut levels = vec![members];
        levels.extend(outer.levels.iter().cloned());
        Self { levels }
    }

    /// The own members.
    pub(super) fn own(&mut self) -> &mut [Member] {
        self.levels.first_mut().map_or(&mut [], Vec::as_mut_slice)
    }

    /// Counts what NATURAL JOIN compares as read: names that several members have; everything,
    /// where they are not all known.
    pub(super) fn natural(&mut self) {
        let known: Option<Vec<Vec<String>>> = self.own().iter().map(Member::names).collect();
        let Some(known) = known else {
            return self.own().iter_mut().for_each(Member::read_all);
        };
        for (at, names) in known.iter().enumerate() {
            for name in names {
                if known[at + 1..].iter().any(|others| others.contains(name)) {
                    self.name(name);
                }
            }
        }
    }

    /// Counts a name without a relation as read.
    pub(super) fn name(&mut self, name: &str) {
        for level in &mut self.levels {
            let mut found = false;
            for member in level.iter_mut() {
                match member.column(name) {
                    Some(Some(at)) => {
                        member.read.insert(at);
                        found = true;
                    }
                    Some(None) => found = true,
                    None => {}
                }
            }
            if found {
                return;
            }
            // A row as a value.
            for member in level.iter_mut().filter(|member| member.name == name) {
                member.read_all();
                found = true;
            }
            if found {
                return;
            }
        }
    }

    /// Counts a column of a named relation as read; false: no level has a relation of that name.
    pub(super) fn qualified(&mut self, relation: &str, column: &str) -> bool {
        for level in &mut self.levels {
            let mut found = false;
            for member in level.iter_mut().filter(|member| member.name == relation) {
                found = true;
                match member.column(column) {
                    Some(Some(at)) => drop(member.read.insert(at)),
                    Some(None) => {}
                    // `relation.function`, a system column: the row.
                    None => member.read_all(),
                }
            }
            if found {
                return true;
            }
        }
        false
    }

    /// Counts all columns of a named relation as read.
    pub(super) fn all_of(&mut self, relation: &str) {
        for level in &mut self.levels {
            let mut found = false;
            for member in level.iter_mut().filter(|member| member.name == relation) {
                member.read_all();
                found = true;
            }
            if found {
                return;
            }
        }
    }

    /// Takes over what an inner level found of the outer ones.
    pub(super) fn merge(&mut self, inner: &Self) {
        let outer = inner.levels.len().saturating_sub(self.levels.len());
        for (own, found) in self.levels.iter_mut().zip(inner.levels.iter().skip(outer)) {
            for (own, found) in own.iter_mut().zip(found) {
                own.read.extend(found.read.iter().copied());
            }
        }
    }
}
