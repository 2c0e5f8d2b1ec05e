//! Writes a dump into the database, batch by batch.
//!
//! ```text
//!   dump --pages--> batch --BEGIN; pages, revisions, links, categories; wiki_import += n; COMMIT--> database
//! ```
//!
//! # Invariants
//! - One batch is one transaction and moves `wiki_import.pages` forward by its size: the same
//!   command, run again after a crash, skips exactly the pages that are in.
//! - A page that is imported again (a newer dump) replaces its links and categories in that
//!   transaction; an older revision never replaces a newer one.
//!
//! # On failure
//! A serialization failure (40001) repeats the batch, at most [`ATTEMPTS`] times. Anything else
//! ends the import; the same command goes on where it stopped.

use std::collections::BTreeSet;

use futures::future::try_join_all;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement, Transaction};

use crate::dump::{Dump, Page};
use crate::error::{Error, Result};
use crate::markup::{self, References};
use crate::schema;

/// How often a batch is tried when it conflicts with other writers.
pub const ATTEMPTS: usize = 8;

/// How to import.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names the dump in `wiki_import`; the same name goes on where it stopped.
    pub name: String,
    /// Commit after this many pages …
    pub batch_pages: usize,
    /// … or this many bytes of text.
    pub batch_bytes: usize,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Pages found in already from an earlier run.
    pub skipped: u64,
    /// Pages imported now.
    pub pages: u64,
    /// Links written.
    pub links: u64,
    /// Categories written.
    pub categories: u64,
    /// Transactions.
    pub transactions: u64,
}

struct Statements {
    page: Statement,
    revision: Statement,
    forget_links: Statement,
    forget_categories: Statement,
    link: Statement,
    category: Statement,
    mark: Statement,
}

/// Imports `dump` through `client`; `progress` is told (bytes read, bytes in all, report) after
/// each batch.
///
/// # Errors
/// [`Error::Malformed`] or [`Error::Read`] for the dump, [`Error::Database`] for the server.
pub async fn import(
    client: &mut Client,
    dump: &mut Dump,
    options: &Options,
    mut progress: impl FnMut(u64, u64, &Report),
) -> Result<Report> {
    for statement in schema::CREATE {
        client.batch_execute(statement).await.map_err(|e| failed("making the tables", &e))?;
    }
    let statements = prepare(client).await?;
    let row = client
        .query_opt("SELECT pages FROM wiki_import WHERE dump = $1", &[&options.name])
        .await
        .map_err(|e| failed("looking for an earlier run", &e))?;
    let done: i64 = row.map_or(0, |row| row.get(0));
    let mut report = Report::default();
    let mut batch: Vec<(Page, References)> = Vec::new();
    let mut batch_bytes = 0;
    loop {
        let page = dump.next_page()?;
        let ended = page.is_none();
        if let Some(page) = page {
            if report.skipped < done.unsigned_abs() {
                report.skipped += 1;
                continue;
            }
            batch_bytes += page.revision.text.len();
            let references = markup::references(&page.revision.text);
            batch.push((page, references));
        }
        if ended || batch.len() >= options.batch_pages || batch_bytes >= options.batch_bytes {
            commit_batch(client, &statements, options, &batch, ended, &mut report).await?;
            batch.clear();
            batch_bytes = 0;
            let (read, size) = dump.progress();
            progress(read, size, &report);
        }
        if ended {
            return Ok(report);
        }
    }
}

async fn prepare(client: &Client) -> Result<Statements> {
    let prepare = |sql: &'static str| async move {
        client.prepare(sql).await.map_err(|e| failed("preparing statements", &e))
    };
    Ok(Statements {
        page: prepare(
            "INSERT INTO wiki_page (page_id, namespace, title, redirect_to, latest_revision) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (page_id) DO UPDATE SET namespace = EXCLUDED.namespace, title = EXCLUDED.title, \
             redirect_to = EXCLUDED.redirect_to, latest_revision = EXCLUDED.latest_revision \
             WHERE wiki_page.latest_revision <= EXCLUDED.latest_revision",
        )
        .await?,
        revision: prepare(
            "INSERT INTO wiki_revision (revision_id, page_id, parent_id, made_at, contributor, comment, content) \
             VALUES ($1, $2, $3, CAST($4::text AS timestamptz), $5, $6, $7) ON CONFLICT (revision_id) DO NOTHING",
        )
        .await?,
        forget_links: prepare("DELETE FROM wiki_link WHERE from_page = $1").await?,
        forget_categories: prepare("DELETE FROM wiki_category WHERE page_id = $1").await?,
        link: prepare("INSERT INTO wiki_link (from_page, to_title) VALUES ($1, $2)").await?,
        category: prepare("INSERT INTO wiki_category (page_id, category) VALUES ($1, $2)").await?,
        mark: prepare(
            "INSERT INTO wiki_import (dump, pages, finished) VALUES ($1, $2, $3) \
             ON CONFLICT (dump) DO UPDATE SET pages = EXCLUDED.pages, finished = EXCLUDED.finished",
        )
        .await?,
    })
}

async fn commit_batch(
    client: &mut Client,
    statements: &Statements,
    options: &Options,
    batch: &[(Page, References)],
    finished: bool,
    report: &mut Report,
) -> Result<()> {
    let total = report.skipped + report.pages + batch.len() as u64;
    for attempt in 1.. {
        match try_batch(client, statements, &options.name, batch, total, finished).await {
            Ok((links, categories)) => {
                report.pages += batch.len() as u64;
                report.links += links;
                report.categories += categories;
                report.transactions += 1;
                break;
            }
            Err(Error::Database { sqlstate: Some(code), .. })
                if code == "40001" && attempt < ATTEMPTS => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn try_batch(
    client: &mut Client,
    statements: &Statements,
    dump: &str,
    batch: &[(Page, References)],
    total: u64,
    finished: bool,
) -> Result<(u64, u64)> {
    let transaction = client.transaction().await.map_err(|e| failed("beginning a batch", &e))?;
    let (mut links, mut categories) = (0, 0);
    for (page, references) in batch {
        let doing = || format!("importing page {:?}", page.title);
        let (l, c) = write_page(&transaction, statements, page, references)
            .await
            .map_err(|e| failed(&doing(), &e))?;
        links += l;
        categories += c;
    }
    let total = i64::try_from(total).unwrap_or(i64::MAX);
    transaction
        .execute(&statements.mark, &[&dump, &total, &finished])
        .await
        .map_err(|e| failed("marking the batch", &e))?;
    transaction.commit().await.map_err(|e| failed("committing a batch", &e))?;
    Ok((links, categories))
}

async fn write_page(
    transaction: &Transaction<'_>,
    statements: &Statements,
    page: &Page,
    references: &References,
) -> std::result::Result<(u64, u64), tokio_postgres::Error> {
    let revision = &page.revision;
    let newest = transaction
        .execute(
            &statements.page,
            &[&page.id, &page.namespace, &page.title, &page.redirect, &revision.id],
        )
        .await?;
    transaction
        .execute(
            &statements.revision,
            &[
                &revision.id,
                &page.id,
                &revision.parent,
                &revision.timestamp,
                &revision.contributor,
                &revision.comment,
                &revision.text,
            ],
        )
        .await?;
    if newest == 0 {
        // A newer revision is in already: its links stand.
        return Ok((0, 0));
    }
    transaction.execute(&statements.forget_links, &[&page.id]).await?;
    transaction.execute(&statements.forget_categories, &[&page.id]).await?;
    let links = write_all(transaction, &statements.link, page.id, &references.links).await?;
    let categories =
        write_all(transaction, &statements.category, page.id, &references.categories).await?;
    Ok((links, categories))
}

/// One insert a title, sent without waiting for each answer.
async fn write_all(
    transaction: &Transaction<'_>,
    statement: &Statement,
    page: i64,
    titles: &BTreeSet<String>,
) -> std::result::Result<u64, tokio_postgres::Error> {
    let inserts = titles.iter().map(|title| async move {
        let parameters: [&(dyn ToSql + Sync); 2] = [&page, title];
        transaction.execute(statement, &parameters).await
    });
    Ok(try_join_all(inserts).await?.into_iter().sum())
}

pub(crate) fn failed(doing: &str, error: &tokio_postgres::Error) -> Error {
    let reason = error.as_db_error().map_or_else(
        || error.to_string(),
        |e| match e.detail() {
            Some(detail) => format!("{} ({detail})", e.message()),
            None => e.message().to_owned(),
        },
    );
    Error::Database {
        doing: doing.to_owned(),
        reason,
        sqlstate: error.code().map(|code| code.code().to_owned()),
    }
}
