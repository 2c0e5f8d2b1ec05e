//! Which database a node's folder belongs to. What the folder has of the log, and what it says of
//! loglets that have ended, is about that one: beside another database it would be taken for that
//! one's.
//!
//! ```text
//! at the start, before anything is written:   folder/database is the writer of the chain's first version?    no ──> refused
//! once the database is open:                  folder/database is written, if it is not there
//! ```
//! # Stored form
//! `database`: lines of text as in [`crate::node`], with a checksum.
//!
//! # Invariants
//! - The first version of a chain stays for ever, and its writer's token is random: a copy of a
//!   bucket is the same database, another one never.
//! - Refusing changes nothing, in the bucket and in the folder.
//!
//! # Limits
//! A folder of an older version belongs to the first database that it is started on.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use telesto_bucket::Bucket;
use telesto_common::{Env, ShardId};

use crate::error::{Error, Result};
use crate::node::{Node, replace};

/// Bound on a look at the chain.
const LOOK: Duration = Duration::from_secs(60);
const FILE: &str = "database";
const HEADER: &str = "telesto database 1";

fn form(writer: &str) -> String {
    let body = format!("{HEADER}\n{writer}\n");
    format!("{body}{:08x}\n", crc32c::crc32c(body.as_bytes()))
}

fn parse(text: &str) -> Option<String> {
    let writer = text.lines().nth(1)?;
    (form(writer) == text).then(|| writer.to_owned())
}

async fn first_writer(
    env: &Env,
    bucket: &Arc<dyn Bucket>,
    shard: ShardId,
) -> Result<Option<String>> {
    let (bucket, by) = (Arc::clone(bucket), env.deadline(LOOK));
    let first = telesto_log::chain_version(bucket, env.clone(), shard, 1, by);
    let first = first.await.map_err(telesto_txn::Error::from)?;
    Ok(first.map(|chain| chain.writer.to_string()))
}

/// Refuses the folder of `node` when it is another database's than `bucket`'s.
///
/// # Errors
/// [`Error::DataDir`], and those of the bucket.
pub async fn check(env: &Env, node: &Node, bucket: &Arc<dyn Bucket>, shard: ShardId) -> Result<()> {
    let fail =
        |reason: String| Error::DataDir { folder: node.folder.display().to_string(), reason };
    let own = match fs::read(node.folder.join(FILE)) {
        Ok(bytes) => std::str::from_utf8(&bytes).ok().and_then(parse).ok_or_else(|| {
            fail("its file `database` is damaged; delete it if you know that the folder is this database's".to_owned())
        })?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(fail(error.to_string())),
    };
    let there = first_writer(env, bucket, shard).await?;
    if there.as_deref() == Some(&*own) {
        return Ok(());
    }
    let what = match there {
        Some(_) => "has another database",
        None => "has no database",
    };
    Err(fail(format!(
        "it belongs to a database that is not in {}, which {what}; name the bucket of this node's database, or a folder of its own for this one with --data-dir",
        bucket.url()
    )))
}

/// The folder of `node` belongs to the database in `bucket`, which is open, from now on.
///
/// # Errors
/// [`Error::DataDir`], and those of the bucket.
pub async fn remember(
    env: &Env,
    node: &Node,
    bucket: &Arc<dyn Bucket>,
    shard: ShardId,
) -> Result<()> {
    let file = node.folder.join(FILE);
    if file.exists() {
        return Ok(());
    }
    let Some(writer) = first_writer(env, bucket, shard).await? else { return Ok(()) };
    let text = form(&writer);
    let fail =
        |reason: String| Error::DataDir { folder: node.folder.display().to_string(), reason };
    let written = env.blocking("writing down whose folder it is", move || replace(&file, &text));
    written.await.map_err(|error| fail(error.to_string()))?.map_err(|error| fail(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_read_back_and_damage_is_told() {
        assert_eq!(parse(&form("0123")).as_deref(), Some("0123"));
        for damaged in ["", "telesto database 1\n0123\n00000000\n", "telesto database 2\n0123\n"] {
            assert_eq!(parse(damaged), None, "{damaged:?}");
        }
    }
}
