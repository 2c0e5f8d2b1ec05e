//! Compares everything in one snapshot: tables with indexes, rows with the rules over them,
//! executor with executor.
//!
//! # Invariants
//! Rows are read by DataFusion from the tables themselves, in a form no index serves, and judged
//! here: neither an index nor the query planner takes part in the verdict on them.

use std::collections::{BTreeMap, BTreeSet};

use telesto_sql::{Error, Session};

use super::rows::{TextRow, run};

const TABLES: [&str; 5] = ["account", "product", "purchase", "line", "done"];

const ACCOUNT: &str = "id, email, tenant, code, lower(nick), active, parent";

/// A query both executors take, and the same in a form that no index serves.
const PAIRS: &[(&str, &str)] = &[
    (
        "SELECT id, email FROM account WHERE email IN ('e1', 'e5', 'e9', 'e12', 'e19') ORDER BY id",
        "SELECT id, email FROM account WHERE email || '' IN ('e1', 'e5', 'e9', 'e12', 'e19') ORDER BY id",
    ),
    (
        "SELECT id, code FROM account WHERE tenant = 2 AND active ORDER BY id",
        "SELECT id, code FROM account WHERE tenant + 0 = 2 AND active ORDER BY id",
    ),
    (
        "SELECT id, nick FROM account WHERE lower(nick) = 'nick3'",
        "SELECT id, nick FROM account WHERE lower(nick) || '' = 'nick3'",
    ),
    (
        "SELECT id, code FROM account WHERE code >= 1 ORDER BY code DESC NULLS LAST, id",
        "SELECT id, code FROM account WHERE code + 0 >= 1 ORDER BY code DESC NULLS LAST, id",
    ),
    (
        "SELECT id, parent FROM account WHERE parent IN (1, 3, 5, 7, 9, 11) ORDER BY id",
        "SELECT id, parent FROM account WHERE parent + 0 IN (1, 3, 5, 7, 9, 11) ORDER BY id",
    ),
    (
        "SELECT p.id, a.email FROM purchase p JOIN account a ON a.id = p.account WHERE p.id BETWEEN 1 AND 40 ORDER BY p.id",
        "SELECT p.id, a.email FROM purchase p JOIN account a ON a.id + 0 = p.account + 0 WHERE p.id + 0 BETWEEN 1 AND 40 ORDER BY p.id",
    ),
    (
        "SELECT a.id, p.id FROM account a LEFT JOIN purchase p ON p.account = a.id WHERE a.id IN (2, 4, 6, 8) ORDER BY a.id, p.id",
        "SELECT a.id, p.id FROM account a LEFT JOIN purchase p ON p.account + 0 = a.id + 0 WHERE a.id + 0 IN (2, 4, 6, 8) ORDER BY a.id, p.id",
    ),
    (
        "SELECT id, note FROM purchase WHERE upper(note) = 'NICK4' AND quantity > 2 ORDER BY id",
        "SELECT id, note FROM purchase WHERE upper(note) || '' = 'NICK4' AND quantity > 2 ORDER BY id",
    ),
    (
        "SELECT count(*) FROM purchase WHERE account = 3",
        "SELECT count(*) FROM purchase WHERE account + 0 = 3",
    ),
];

/// What an audit found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Audited {
    pub(crate) violations: Vec<String>,
    /// Rows of `done`; none when the audit ended early, because an index and its table differ.
    pub(crate) done: Option<BTreeSet<(u64, u64)>>,
    /// Every row of every table, as text.
    pub(crate) everything: Vec<String>,
}

/// One read-only snapshot, audited.
pub(super) async fn audit(session: &mut Session) -> Result<Audited, Error> {
    run(session, "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY").await?;
    run(session, "SET LOCAL telesto.executor = auto").await?;
    let audited = inside(session).await?;
    run(session, "COMMIT").await?;
    Ok(audited)
}

async fn inside(session: &mut Session) -> Result<Audited, Error> {
    let mut audited = Audited::default();
    for table in TABLES {
        if let Err(error) = run(session, &format!("SELECT telesto_check_table('{table}')")).await {
            if error.code() != telesto_sql::SqlState::DATA_CORRUPTED {
                return Err(error);
            }
            audited.violations.push(format!("index and table differ: {error}"));
            // The block has failed; what else is wrong, another audit tells.
            run(session, "ROLLBACK").await?;
            return Ok(audited);
        }
    }
    run(session, "SET LOCAL telesto.executor = datafusion").await?;
    let rules = rules(session).await?;
    let mut tables = BTreeMap::new();
    for (table, columns) in [
        ("account", ACCOUNT),
        ("product", "id, sku, price"),
        ("purchase", "id, account, product, quantity, note"),
        ("line", "purchase, no, product_sku"),
        ("done", "session, seq"),
    ] {
        let mut rows = run(session, &format!("SELECT {columns} FROM {table}")).await?.rows;
        rows.sort();
        audited.everything.extend(rows.iter().map(|row| format!("{table} {row:?}")));
        tables.insert(table, rows);
    }
    audited.violations.extend(broken_rules(&tables, &rules));
    let number = |cell: &Option<String>| cell.as_deref().and_then(|text| text.parse().ok());
    let done =
        tables["done"].iter().filter_map(|row| Some((number(row.first()?)?, number(row.get(1)?)?)));
    audited.done = Some(done.collect());
    for (query, plain) in PAIRS {
        let truth = run(session, plain).await?.rows;
        for executor in ["datafusion", "key"] {
            run(session, &format!("SET LOCAL telesto.executor = {executor}")).await?;
            let found = run(session, query).await?.rows;
            if found != truth {
                audited.violations.push(format!(
                    "executor {executor}: {query}: {found:?}, but the rows are {truth:?}"
                ));
            }
        }
        run(session, "SET LOCAL telesto.executor = datafusion").await?;
    }
    Ok(audited)
}

/// Names of the unique indexes and foreign keys that hold in this snapshot: definitions change.
async fn rules(session: &mut Session) -> Result<BTreeSet<String>, Error> {
    let names = run(
        session,
        "SELECT c.relname::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indisunique AND i.indisvalid \
         UNION ALL SELECT conname::text FROM pg_constraint WHERE contype = 'f' AND convalidated",
    );
    Ok(names.await?.rows.into_iter().filter_map(|mut row| row.pop().flatten()).collect())
}

type Tables = BTreeMap<&'static str, Vec<TextRow>>;

/// Columns of a row, by position; `None` when one of them is NULL.
fn columns(row: &TextRow, at: &[usize]) -> Option<Vec<String>> {
    at.iter().map(|at| row.get(*at).cloned().flatten()).collect()
}

fn broken_rules(tables: &Tables, rules: &BTreeSet<String>) -> Vec<String> {
    let mut broken = Vec::new();
    let truth = |cell: Option<&Option<String>>| cell.and_then(|c| c.as_deref()) == Some("t");
    // Index, table, columns, which rows.
    type Which = fn(&TextRow) -> bool;
    let unique: [(&str, &str, &[usize], Which); 8] = [
        ("account_pkey", "account", &[0], |_| true),
        ("account_email_key", "account", &[1], |_| true),
        ("account_nick", "account", &[4], |_| true),
        ("account_pair", "account", &[6, 3], |row| {
            row[2].as_deref().and_then(|t| t.parse::<i64>().ok()).is_some_and(|tenant| tenant > 1)
        }),
        ("product_sku_key", "product", &[1], |_| true),
        ("purchase_pkey", "purchase", &[0], |_| true),
        ("purchase_once", "purchase", &[1, 2, 3], |_| true),
        ("line_pkey", "line", &[0, 1], |_| true),
    ];
    for (index, table, at, which) in unique {
        if !rules.contains(index) {
            continue;
        }
        let mut seen = BTreeSet::new();
        for row in tables[table].iter().filter(|row| which(row)) {
            if let Some(key) = columns(row, at)
                && !seen.insert(key)
            {
                broken.push(format!("{index} is not unique: {row:?} has its key with another row"));
            }
        }
    }
    let (mut active, mut codes) = (BTreeSet::new(), BTreeSet::new());
    for row in &tables["account"] {
        if truth(row.get(5)) && row[2].is_some() && !active.insert(&row[2]) {
            broken.push(format!("account_active is not unique: {row:?}"));
        }
        // NULLS NOT DISTINCT: NULL is a key like any other.
        if rules.contains("account_code") && !codes.insert((&row[2], &row[3])) {
            broken.push(format!("account_code is not unique: {row:?}"));
        }
    }
    for (name, child, at, parent, key) in [
        ("account_parent_fkey", "account", 6, "account", 0),
        ("purchase_account_fkey", "purchase", 1, "account", 0),
        ("purchase_product", "purchase", 2, "product", 0),
        ("line_purchase_fkey", "line", 0, "purchase", 0),
        ("line_product_sku_fkey", "line", 2, "product", 1),
    ] {
        if !rules.contains(name) {
            continue;
        }
        let parents: BTreeSet<_> =
            tables[parent].iter().filter_map(|row| columns(row, &[key])).collect();
        for row in &tables[child] {
            if columns(row, &[at]).is_some_and(|key| !parents.contains(&key)) {
                broken.push(format!("{name} does not hold: {child} {row:?} has no {parent}"));
            }
        }
    }
    broken
}

/// What the last audits of all nodes and the fates of all transactions come to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Final {
    /// Audits after healing, by the session that made them.
    pub(crate) audits: Vec<(u64, Audited)>,
    /// Transactions that were acknowledged, and those that certainly failed.
    pub(crate) fates: BTreeMap<(u64, u64), bool>,
}

/// The violations in it.
pub(crate) fn judge(last: &Final) -> Vec<String> {
    let mut violations = Vec::new();
    for (session, audited) in &last.audits {
        let say = |what: &str| format!("final audit by session {session}: {what}");
        violations.extend(audited.violations.iter().map(|violation| say(violation)));
        let Some(done) = &audited.done else { continue };
        for (transaction, committed) in &last.fates {
            if done.contains(transaction) != *committed {
                violations.push(say(&format!(
                    "transaction {transaction:?} was told {}, but {}",
                    if *committed { "committed" } else { "failed" },
                    if *committed { "is not there" } else { "is there" }
                )));
            }
        }
    }
    for pair in last.audits.windows(2) {
        if let [(one, first), (other, second)] = pair
            && first.done.is_some()
            && second.done.is_some()
            && first.everything != second.everything
        {
            violations.push(format!("sessions {one} and {other} read different tables at the end"));
        }
    }
    violations
}
