//! `ALTER TABLE … SET (telesto.regions = 'by row (column)')`,
//! `'by row (column): value = home, other; …'`: rows placed by a value.
//!
//! # Invariants
//! - The column is NOT NULL, of type text or varchar or an enum, and the first of the primary key
//!   and of every other index.
//! - Every row has a value that the rule names: rows that are there are looked at when the rule is
//!   made, in the region that alone writes the table then; a value leaves the rule when that region
//!   writes it and no row has it.
//! - Who wrote rows of a value before is kept with it, and so is who does not have them yet, as of
//!   a table ([`crate::placement`]).
//!
//! # On failure
//! 22023 for what is no rule, 42703 for a column that is not there, 55000 for what does not fit,
//! with the ways out.

use std::collections::BTreeMap;

use telesto_common::key::KeyRange;
use telesto_sql_catalog::by_row::{ByRow, MOST_VALUES, RowParts, ValuePlace};
use telesto_sql_catalog::regions::{Home, TablePlacement};
use telesto_sql_catalog::{CatalogSnapshot, Index, Table, codec};
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_txn::{ReadFor, ScanOptions};

use super::Ddl;
use super::placement::{HOME, REGIONS};

/// What is behind the words `by row`.
fn after_words(text: &str) -> Option<&str> {
    let mut rest = text.trim();
    for word in ["by", "row"] {
        let (head, tail) = rest.split_at_checked(word.len())?;
        if !head.eq_ignore_ascii_case(word) {
            return None;
        }
        rest = tail.trim_start();
    }
    rest.starts_with('(').then_some(rest)
}

/// Whether the setting places rows by a value.
pub(super) fn is_rule(text: &str) -> bool {
    after_words(text).is_some()
}

/// A rule's column and, by value, the names of its regions; `None`: values are the regions' names.
type Written<'a> = (&'a str, Option<Vec<(&'a str, Vec<&'a str>)>>);

fn parse(text: &str) -> Result<Written<'_>> {
    let bad = |why: String| {
        Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("{REGIONS} is no rule: {why}"))
            .hint("by row (column), or by row (column): value = home, other region; other value = its home"))
    };
    let rest = after_words(text).and_then(|rest| rest.strip_prefix('(')).unwrap_or_default();
    let Some((column, rest)) = rest.split_once(')') else {
        return bad("the column's name is not closed by a parenthesis".to_owned());
    };
    let rest = rest.trim();
    if rest.is_empty() {
        return Ok((column.trim(), None));
    }
    let Some(list) = rest.strip_prefix(':') else {
        return bad(format!("\"{rest}\" stands behind the column where a colon is expected"));
    };
    let mut values: Vec<(&str, Vec<&str>)> = Vec::new();
    for one in list.split(';').map(str::trim).filter(|one| !one.is_empty()) {
        let Some((value, regions)) = one.split_once('=') else {
            return bad(format!("\"{one}\" does not say where the value is"));
        };
        let value = value.trim();
        let regions: Vec<_> =
            regions.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        if value.is_empty() || regions.is_empty() {
            return bad(format!("\"{one}\" names no value, or no region"));
        }
        if values.iter().any(|(other, _)| *other == value) {
            return bad(format!("value \"{value}\" is placed twice"));
        }
        values.push((value, regions));
    }
    match values.len() {
        0 => bad("it names no value".to_owned()),
        many if many > MOST_VALUES => {
            bad(format!("it names {many} values, and {MOST_VALUES} are the most"))
        }
        _ => Ok((column.trim(), Some(values))),
    }
}

fn refused(text: String, hint: impl Into<String>) -> Error {
    Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, text).hint(hint)
}

/// Refuses a column by which no key ranges could be told.
fn check_column(table: &Table, rule: &ByRow) -> Result<()> {
    let found = table.columns.iter().enumerate().find(|(_, column)| column.id == rule.column);
    let Some((position, column)) = found else {
        return Err(Error::internal("a rule of a column that is not there"));
    };
    let (name, table_name) = (&column.name, &table.name);
    if !matches!(column.ty, SqlType::Text | SqlType::Varchar(_) | SqlType::Enum(_)) {
        return Err(refused(
            format!(
                "rows of table \"{table_name}\" cannot be placed by column \"{name}\": it is of type {}",
                column.ty
            ),
            format!("ALTER TABLE … ALTER COLUMN {name} TYPE text first."),
        ));
    }
    if let SqlType::Enum(ty) = &column.ty
        && !rule.named
    {
        rule.values.keys().try_for_each(|value| ty.by_label(value).map(drop))?;
    }
    if !column.not_null {
        return Err(refused(
            format!(
                "rows of table \"{table_name}\" cannot be placed by column \"{name}\": it may be NULL"
            ),
            format!("ALTER TABLE … ALTER COLUMN {name} SET NOT NULL first."),
        ));
    }
    let leads = |index: &Index| index.columns.first().is_some_and(|first| first.column == position);
    let Some(primary) = &table.primary else {
        return Err(refused(
            format!(
                "rows of table \"{table_name}\" cannot be placed by a value: it has no primary key"
            ),
            format!("ALTER TABLE … ADD PRIMARY KEY ({name}, …) first."),
        ));
    };
    if !leads(primary) {
        return Err(refused(
            format!(
                "rows of table \"{table_name}\" cannot be placed by column \"{name}\": it is not the first one of the primary key"
            ),
            format!(
                "Drop the primary key and add one that begins with it: PRIMARY KEY ({name}, …)."
            ),
        ));
    }
    if let Some(index) = table.known_indexes().find(|index| index.deferral.is_some()) {
        return Err(refused(
            format!(
                "rows of table \"{table_name}\" cannot be placed by a value: its key \"{}\" is deferrable",
                index.name
            ),
            "Drop the key and add it without DEFERRABLE.".to_owned(),
        ));
    }
    if let Some(index) = table.indexes.iter().find(|index| !leads(index)) {
        let what = if index.is_key() { "unique key" } else { "index" };
        return Err(refused(
            format!(
                "rows of table \"{table_name}\" cannot be placed by column \"{name}\": it is not the first one of {what} \"{}\"",
                index.name
            ),
            format!(
                "Drop the {what} and make one that begins with it: ({name}, …). A key that holds the column is unique everywhere, since each value is written in one region."
            ),
        ));
    }
    if !table.building.is_empty() {
        return Err(refused(
            format!("an index of table \"{table_name}\" is being built"),
            "Wait until it is built, or drop it.",
        ));
    }
    Ok(())
}

/// What every value of a table that is not placed by values yet was.
fn before_rules(catalog: &CatalogSnapshot, placement: &TablePlacement) -> ValuePlace {
    let others = catalog.regions().map(|region| region.id);
    let me = catalog.defining().0;
    let mut regions = vec![me];
    regions.extend(
        others.filter(|id| {
            *id != me && placement.regions.as_ref().is_none_or(|some| some.contains(id))
        }),
    );
    ValuePlace { regions, moved: None, gaining: placement.gaining.clone() }
}

impl Ddl<'_> {
    /// The rule that a setting says.
    pub(super) fn by_row(&self, table: &Table, text: &str) -> Result<ByRow> {
        let (column, list) = parse(text)?;
        let found = table.visible_columns().find(|(_, known)| known.name == column);
        let Some((_, column)) = found else {
            return Err(Error::new(
                SqlState::UNDEFINED_COLUMN,
                format!("column \"{column}\" of relation \"{}\" does not exist", table.name),
            )
            .hint(format!("{REGIONS} names the column as it is spelled in the catalog.")));
        };
        let named = list.is_none();
        let values: BTreeMap<String, ValuePlace> = match list {
            None => {
                let of = |region: &std::sync::Arc<telesto_sql_catalog::regions::Region>| {
                    let place = ValuePlace { regions: vec![region.id], ..ValuePlace::default() };
                    (region.name.clone(), place)
                };
                self.catalog().regions().map(of).collect()
            }
            Some(list) => list
                .into_iter()
                .map(|(value, names)| {
                    let mut regions: Vec<u16> = Vec::new();
                    for name in names {
                        let id = self.region(name)?;
                        if !regions.contains(&id) {
                            regions.push(id);
                        }
                    }
                    Ok((value.to_owned(), ValuePlace { regions, ..ValuePlace::default() }))
                })
                .collect::<Result<_>>()?,
        };
        Ok(ByRow { column: column.id, named, values })
    }

    /// Checks that rows can be placed so, and keeps with each value who wrote its rows before and
    /// who is getting them.
    pub(super) async fn check_by_row(
        &mut self,
        table: &Table,
        placement: &mut TablePlacement,
    ) -> Result<()> {
        let Some(mut rule) = placement.by_row.take() else { return Ok(()) };
        if telesto_sql_catalog::temp::is_temporary(table.id.0) {
            return Err(refused(
                format!("table \"{}\" is temporary: it is in this session alone", table.name),
                "Place the rows of a table that is not.",
            ));
        }
        if placement.merging.is_some() {
            return Err(refused(
                format!("table \"{}\" has columns that merge", table.name),
                "ALTER TABLE … RESET (telesto.counter, telesto.max, telesto.min) first: a row that one region writes needs none.",
            ));
        }
        if table.curated.is_some() {
            return Err(refused(
                format!(
                    "table \"{}\" is curated: what waits for its curators is kept in one region",
                    table.name
                ),
                "ALTER TABLE … RESET (telesto.curated) first.",
            ));
        }
        check_column(table, &rule)?;
        let (at, me) = (self.change.oid(), self.catalog().me().0);
        match &table.placement.by_row {
            None => {
                self.check_known_values(table, &rule).await?;
                let before = before_rules(self.catalog(), &table.placement);
                for place in rule.values.values_mut() {
                    place.follow(&before, at, me);
                }
            }
            Some(old) if old.column != rule.column => {
                return Err(refused(
                    format!(
                        "rows of table \"{}\" are placed by column \"{}\"",
                        table.name,
                        old.column_name(table)
                    ),
                    format!(
                        "RESET ({REGIONS}), wait until telesto_placement shows no moved_from and nobody gaining, and place them by another column then."
                    ),
                ));
            }
            Some(old) => {
                let old = old.clone();
                self.check_left_out(table, &old, &rule).await?;
                for (value, place) in &mut rule.values {
                    // Of a value that nobody could write there is nothing to wait for.
                    if let Some(before) = old.values.get(value) {
                        place.follow(before, at, me);
                    }
                }
            }
        }
        placement.regions = None;
        placement.home = Home::Row;
        placement.moved = None;
        placement.gaining = None;
        placement.by_row = Some(rule);
        placement.sent_by_all = true;
        Ok(())
    }

    /// Refuses a rule that leaves a row nowhere. Every row is here, and nobody else writes the
    /// table.
    async fn check_known_values(&self, table: &Table, rule: &ByRow) -> Result<()> {
        let before = &table.placement;
        let me = self.catalog().defining();
        let gained = before.gaining.as_ref().is_some_and(|g| g.regions.contains(&me.0));
        if before.home != self.catalog().usual_home() || before.moved.is_some() || gained {
            let defining = self.catalog().region_name(me.0);
            return Err(refused(
                format!(
                    "rows of table \"{}\" are placed by their values while region \"{defining}\" alone writes it",
                    table.name
                ),
                format!(
                    "SET ({HOME} = '{defining}'), wait until telesto_placement shows no moved_from and nobody gaining, and set {REGIONS} again."
                ),
            ));
        }
        let Some(primary) = &table.primary else { return Ok(()) };
        let database = self.context.catalog.database;
        let parts = RowParts::new(database, table, rule)?;
        let whole = codec::table_range(database, table, primary.id);
        let mut start = whole.start.clone();
        let mut gaps = Vec::new();
        for part in parts.parts().iter().filter(|part| whole.contains(&part.range.start)) {
            gaps.push(KeyRange::new(start, part.range.start.clone()));
            start = part.range.end.clone();
        }
        gaps.push(KeyRange::new(start, whole.end));
        for gap in gaps.into_iter().filter(|gap| !gap.is_empty()) {
            if let Some(value) = self.first_value(table, rule, gap).await? {
                return Err(CatalogSnapshot::placed_nowhere(table, rule, &value));
            }
        }
        Ok(())
    }

    /// Refuses to leave a value out that a row may have.
    async fn check_left_out(&self, table: &Table, old: &ByRow, rule: &ByRow) -> Result<()> {
        let gone = old.values.iter().filter(|(value, _)| !rule.values.contains_key(*value));
        for (value, place) in gone {
            let me = self.catalog().defining().0;
            let defining = self.catalog().region_name(me);
            let here = place.home() == Some(me) && place.moved.is_none() && !place.is_gained_by(me);
            if !here {
                return Err(refused(
                    format!(
                        "value \"{value}\" cannot be left out of the rule: rows may have it, and region \"{defining}\" does not write them"
                    ),
                    format!(
                        "Place it there first ({value} = {defining}), wait until telesto_placement shows no moved_from and nobody gaining, and delete its rows or change their value."
                    ),
                ));
            }
            let parts = RowParts::new(self.context.catalog.database, table, old)?;
            for part in parts.parts().iter().filter(|part| part.value == *value) {
                if self.first_value(table, old, part.range.clone()).await?.is_some() {
                    return Err(refused(
                        format!(
                            "value \"{value}\" cannot be left out of the rule: rows of table \"{}\" have it",
                            table.name
                        ),
                        "Delete them, or change their value, first.",
                    ));
                }
            }
        }
        Ok(())
    }

    /// The value of the first row, or entry, in a range.
    async fn first_value(
        &self,
        table: &Table,
        rule: &ByRow,
        range: KeyRange,
    ) -> Result<Option<String>> {
        let options = ScanOptions { reverse: false, limit: Some(1), read_for: ReadFor::Constraint };
        let mut scan = self.context.txn.scan(range, options);
        let Some((key, _)) = scan.next_batch(1).await?.pop() else { return Ok(None) };
        let damaged = |error: telesto_common::Error| {
            Error::corrupt(format!("a key of table {}: {error}", table.name))
        };
        let mut reader = telesto_common::key::KeyReader::new(&key);
        let (_, _, index) = reader.prefix().map_err(damaged)?;
        let index = table.known_indexes().find(|known| known.id == index);
        let Some(first) = index.and_then(|index| index.columns.first()) else {
            return Ok(Some(rule.column_name(table).to_owned()));
        };
        let value = codec::read_index_key(&mut reader, table, first)?;
        Ok(Some(ByRow::value_of(&value).unwrap_or_default().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use telesto_sql_catalog::regions::{Gaining, Moved};

    use super::*;

    #[test]
    fn rules_are_read_as_they_are_meant_or_refused() {
        for text in ["by row (region)", " BY  ROW(region) ", "by row ( region ): "] {
            assert!(is_rule(text), "{text}");
        }
        for text in ["eu, us", "all", "by row", "by rows (region)", "bye row (x)"] {
            assert!(!is_rule(text), "{text}");
        }
        assert_eq!(parse("by row (region)").expect("a rule"), ("region", None));
        let (column, values) = parse("By Row ( r ) : eu west = eu, us; b=us ;").expect("a rule");
        assert_eq!(column, "r");
        assert_eq!(values, Some(vec![("eu west", vec!["eu", "us"]), ("b", vec!["us"])]));
        for text in [
            "by row (region",
            "by row (region) eu = eu",
            "by row (region):",
            "by row (region): eu",
            "by row (region): eu =",
            "by row (region): = eu",
            "by row (region): a = eu; a = us",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    fn place(regions: &[u16]) -> ValuePlace {
        ValuePlace { regions: regions.to_vec(), ..ValuePlace::default() }
    }

    #[test]
    fn value_keeps_who_wrote_it_and_who_is_getting_it() {
        // From the defining region: it stops with the definition itself.
        let mut next = place(&[1, 2]);
        next.follow(&place(&[0, 1]), 9, 0);
        assert_eq!(next.moved, None);
        assert_eq!(next.gaining, Some(Gaining { at: 9, regions: vec![2] }));
        // On to another home before that is settled: who was getting it still is.
        let mut third = place(&[2, 1]);
        third.follow(&next, 10, 0);
        assert_eq!(third.moved, Some(Moved { at: 10, from: vec![1] }));
        assert_eq!(third.gaining, Some(Gaining { at: 10, regions: vec![2] }));
        // The same home: who wrote before is remembered still.
        let mut fourth = place(&[2]);
        fourth.follow(&third, 11, 0);
        assert_eq!(fourth.moved, third.moved);
        // Back: nobody else has written.
        let mut back = place(&[1]);
        back.follow(&place(&[1, 2]), 12, 0);
        assert_eq!((back.moved, back.gaining), (None, None));
    }
}
