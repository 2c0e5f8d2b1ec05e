//! The wiki in use: pages are read and edited as Scalaris' wiki does it (§5): content, backlinks
//! and categories in one transaction.
//!
//! ```text
//! edit: page FOR UPDATE ─ its newest revision is the one that was edited? ─► revision, page, links and categories that came or went ─► COMMIT
//!                               └─ no: Overtaken, nothing is changed
//! ```
//! # Invariants
//! - Links and categories of a page are those of its newest revision, at every moment
//!   ([`Wiki::check`] looks).
//! - An edit of a text that somebody has changed meanwhile changes nothing.
//! - Numbers of new pages and revisions are above those of any dump.
//!
//! # On failure
//! A serialization failure (40001) repeats the edit, at most [`ATTEMPTS`] times.
//!
//! # Limits
//! Lists are cut at [`LISTED`].

use std::collections::BTreeSet;

use futures::future::try_join;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use crate::error::{Error, Result};
use crate::import::{ATTEMPTS, failed};
use crate::markup::{self, References};
use crate::schema;

/// Entries in a list.
pub const LISTED: i64 = 200;

/// A page as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Its title.
    pub title: String,
    /// Where it leads on.
    pub redirect: Option<String>,
    /// The number of its newest revision.
    pub revision: i64,
    /// That revision's text.
    pub text: String,
    /// Who wrote it.
    pub contributor: String,
    /// When, as the server writes times.
    pub made_at: String,
    /// How many pages link to it.
    pub backlinks: i64,
    /// The categories it is in.
    pub categories: Vec<String>,
}

/// A line of a page's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    /// Its number.
    pub number: i64,
    /// When, as the server writes times.
    pub made_at: String,
    /// Who wrote it.
    pub contributor: String,
    /// What was changed.
    pub comment: String,
    /// Characters of the text.
    pub length: i32,
}

/// An edit.
#[derive(Clone, Copy, Debug)]
pub struct Edit<'a> {
    /// The page.
    pub title: &'a str,
    /// The revision that was edited; nothing for a new page.
    pub base: Option<i64>,
    /// The whole new text.
    pub text: &'a str,
    /// Who edits.
    pub contributor: &'a str,
    /// What is changed.
    pub comment: &'a str,
}

/// What became of an edit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is the page's newest revision, of this number.
    Saved(i64),
    /// Somebody was faster: the page has this revision now (or is there now, or not any more).
    Overtaken(Option<i64>),
}

/// A connection to a wiki.
#[derive(Debug)]
pub struct Wiki {
    client: Client,
    read: Statement,
    backlinks: Statement,
    categories: Statement,
}

impl Wiki {
    /// Makes what is missing of the tables.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn make(client: &Client) -> Result<()> {
        for statement in schema::CREATE.iter().chain(&schema::SERVE) {
            client.batch_execute(statement).await.map_err(|e| failed("making the tables", &e))?;
        }
        Ok(())
    }

    /// Over `client`; the tables are there.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn new(client: Client) -> Result<Self> {
        let prepare =
            async |sql| client.prepare(sql).await.map_err(|e| failed("preparing statements", &e));
        let read = prepare(
            "SELECT p.title, p.redirect_to, p.latest_revision, r.content, r.contributor, CAST(r.made_at AS text), p.page_id \
             FROM wiki_page p JOIN wiki_revision r ON r.revision_id = p.latest_revision WHERE p.title = $1",
        )
        .await?;
        let backlinks = prepare("SELECT count(*) FROM wiki_link WHERE to_title = $1").await?;
        let categories =
            prepare("SELECT category FROM wiki_category WHERE page_id = $1 ORDER BY category")
                .await?;
        Ok(Self { client, read, backlinks, categories })
    }

    /// Whether the connection has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// The page `title`, if there is one. Its parts are read one after the other: an edit may come
    /// between.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn read(&self, title: &str) -> Result<Option<Shown>> {
        let doing = |e| failed(&format!("reading {title:?}"), &e);
        // Sent together.
        let named: [&(dyn ToSql + Sync); 1] = [&title];
        let row = self.client.query_opt(&self.read, &named);
        let backlinks = self.client.query_one(&self.backlinks, &named);
        let (row, backlinks) = try_join(row, backlinks).await.map_err(doing)?;
        let Some(row) = row else { return Ok(None) };
        let page: i64 = row.get(6);
        let categories = self.client.query(&self.categories, &[&page]).await.map_err(doing)?;
        Ok(Some(Shown {
            title: row.get(0),
            redirect: row.get(1),
            revision: row.get(2),
            text: row.get(3),
            contributor: row.get(4),
            made_at: row.get(5),
            backlinks: backlinks.get(0),
            categories: categories.iter().map(|row| row.get(0)).collect(),
        }))
    }

    async fn list(&self, doing: &str, statement: &str, of: &str) -> Result<Vec<String>> {
        let rows = self.client.query(statement, &[&of, &LISTED]).await;
        Ok(rows.map_err(|e| failed(doing, &e))?.iter().map(|row| row.get(0)).collect())
    }

    /// Titles of pages that link to `title`.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn backlinks(&self, title: &str) -> Result<Vec<String>> {
        let links = "SELECT p.title FROM wiki_link l JOIN wiki_page p ON p.page_id = l.from_page WHERE l.to_title = $1 ORDER BY p.title LIMIT $2";
        self.list("reading backlinks", links, title).await
    }

    /// Titles of pages in `category`.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn members(&self, category: &str) -> Result<Vec<String>> {
        let members = "SELECT p.title FROM wiki_category c JOIN wiki_page p ON p.page_id = c.page_id WHERE c.category = $1 ORDER BY p.title LIMIT $2";
        self.list("reading a category", members, category).await
    }

    /// Titles that begin with `prefix`.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn titles(&self, prefix: &str) -> Result<Vec<String>> {
        let titles = "SELECT title FROM wiki_page WHERE title >= $1 ORDER BY title LIMIT $2";
        let mut found = self.list("looking for titles", titles, prefix).await?;
        found.retain(|title| title.starts_with(prefix));
        Ok(found)
    }

    /// The newest revisions of `title`.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn history(&self, title: &str) -> Result<Vec<Revision>> {
        let history = "SELECT r.revision_id, CAST(r.made_at AS text), r.contributor, r.comment, length(r.content) FROM wiki_page p \
                       JOIN wiki_revision r ON r.page_id = p.page_id WHERE p.title = $1 ORDER BY r.revision_id DESC LIMIT $2";
        let rows = self.client.query(history, &[&title, &LISTED]).await;
        let revision = |row: &tokio_postgres::Row| Revision {
            number: row.get(0),
            made_at: row.get(1),
            contributor: row.get(2),
            comment: row.get(3),
            length: row.get(4),
        };
        Ok(rows.map_err(|e| failed("reading a history", &e))?.iter().map(revision).collect())
    }

    /// Makes an edit.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn edit(&mut self, edit: Edit<'_>) -> Result<Outcome> {
        let references = markup::references(edit.text);
        let mut attempt = 1;
        loop {
            match self.try_edit(edit, &references).await {
                Err(Error::Database { sqlstate: Some(code), .. })
                    if code == "40001" && attempt < ATTEMPTS =>
                {
                    attempt += 1;
                }
                other => return other,
            }
        }
    }

    async fn try_edit(&mut self, edit: Edit<'_>, references: &References) -> Result<Outcome> {
        let doing = |e| failed(&format!("editing {:?}", edit.title), &e);
        let transaction = self.client.transaction().await.map_err(doing)?;
        let there = "SELECT page_id, latest_revision FROM wiki_page WHERE title = $1 FOR UPDATE";
        let there = transaction.query_opt(there, &[&edit.title]).await.map_err(doing)?;
        let now: Option<(i64, i64)> = there.map(|row| (row.get(0), row.get(1)));
        let newest = now.map(|(_, revision)| revision);
        if newest != edit.base {
            transaction.rollback().await.map_err(doing)?;
            return Ok(Outcome::Overtaken(newest));
        }
        let next = "SELECT nextval('wiki_number')";
        let revision: i64 = transaction.query_one(next, &[]).await.map_err(doing)?.get(0);
        let redirect = redirect(edit.text, references);
        let page = match now {
            Some((page, _)) => {
                let update = "UPDATE wiki_page SET latest_revision = $2, redirect_to = $3 WHERE page_id = $1";
                transaction.execute(update, &[&page, &revision, &redirect]).await.map_err(doing)?;
                page
            }
            None => {
                let insert = "INSERT INTO wiki_page (page_id, namespace, title, redirect_to, latest_revision) VALUES ($1, 0, $2, $3, $1)";
                transaction
                    .execute(insert, &[&revision, &edit.title, &redirect])
                    .await
                    .map_err(doing)?;
                revision
            }
        };
        let insert = "INSERT INTO wiki_revision (revision_id, page_id, parent_id, made_at, contributor, comment, content) VALUES ($1, $2, $3, now(), $4, $5, $6)";
        transaction
            .execute(
                insert,
                &[&revision, &page, &newest, &edit.contributor, &edit.comment, &edit.text],
            )
            .await
            .map_err(doing)?;
        for (table, key, column, wanted) in [
            ("wiki_link", "from_page", "to_title", &references.links),
            ("wiki_category", "page_id", "category", &references.categories),
        ] {
            let have = format!("SELECT {column} FROM {table} WHERE {key} = $1");
            let have = transaction.query(&have, &[&page]).await.map_err(doing)?;
            let have: BTreeSet<String> = have.iter().map(|row| row.get(0)).collect();
            let gone: Vec<&String> = have.difference(wanted).collect();
            let came: Vec<&String> = wanted.difference(&have).collect();
            if !gone.is_empty() {
                let delete = format!("DELETE FROM {table} WHERE {key} = $1 AND {column} = ANY($2)");
                transaction.execute(&delete, &[&page, &gone]).await.map_err(doing)?;
            }
            if !came.is_empty() {
                let insert =
                    format!("INSERT INTO {table} ({key}, {column}) SELECT $1, unnest($2::text[])");
                transaction.execute(&insert, &[&page, &came]).await.map_err(doing)?;
            }
        }
        transaction.commit().await.map_err(doing)?;
        Ok(Outcome::Saved(revision))
    }

    /// How many pages there are, when links and categories of each are those of its newest text.
    ///
    /// # Errors
    /// [`Error::Inconsistent`] with the first page of which they are not; [`Error::Database`].
    pub async fn check(&mut self) -> Result<u64> {
        let doing = |e| failed("checking the wiki", &e);
        let transaction = self.client.build_transaction().read_only(true);
        let transaction = transaction.start().await.map_err(doing)?;
        let (mut after, mut pages) = (i64::MIN, 0);
        loop {
            let some = "SELECT p.page_id, p.title, r.content FROM wiki_page p JOIN wiki_revision r ON r.revision_id = p.latest_revision WHERE p.page_id > $1 ORDER BY p.page_id LIMIT 100";
            let some = transaction.query(some, &[&after]).await.map_err(doing)?;
            let Some(last) = some.last() else { return Ok(pages) };
            after = last.get(0);
            for row in &some {
                let (page, title, text): (i64, &str, &str) = (row.get(0), row.get(1), row.get(2));
                let wanted = markup::references(text);
                for (query, wanted) in [
                    ("SELECT to_title FROM wiki_link WHERE from_page = $1", wanted.links),
                    ("SELECT category FROM wiki_category WHERE page_id = $1", wanted.categories),
                ] {
                    let found = transaction.query(query, &[&page]).await.map_err(doing)?;
                    let found: BTreeSet<String> = found.iter().map(|row| row.get(0)).collect();
                    if found != wanted {
                        return Err(Error::Inconsistent { title: title.to_owned() });
                    }
                }
                pages += 1;
            }
        }
    }
}

/// Where a text that begins with `#REDIRECT` leads: to the first page that it links to.
fn redirect(text: &str, references: &References) -> Option<String> {
    let start = text.trim_start();
    let leads = start.get(..9).is_some_and(|word| word.eq_ignore_ascii_case("#redirect"));
    let inner = start.split_once("[[").and_then(|(_, inner)| inner.split(['|', ']']).next());
    let title = inner.filter(|_| leads).and_then(markup::normalise)?;
    references.links.contains(&title).then_some(title)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirect_leads_to_its_link_and_other_texts_nowhere() {
        let of = |text: &str| redirect(text, &markup::references(text));
        assert_eq!(of("#REDIRECT [[anarchism#History]]"), Some("Anarchism".to_owned()));
        assert_eq!(of("  #redirect: [[A|b]] {{R}}"), Some("A".to_owned()));
        assert_eq!(of("See [[A]]"), None);
        assert_eq!(of("#REDIRECT nowhere"), None);
    }
}
