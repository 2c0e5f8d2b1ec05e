//! Statements out of a client's randomness.
//!
//! # Invariants
//! Few keys: clients meet. Parameters are bigint, text or boolean, so that one statement text
//! serves literals and prepared plans alike.

use std::fmt;
use std::sync::Arc;

use telesto_sql::Datum;

/// The tables; one transaction.
pub(super) const SCHEMA: &str = "
BEGIN;
CREATE TABLE account (
    id bigint PRIMARY KEY, email text NOT NULL UNIQUE, tenant bigint, code bigint, nick text, active boolean NOT NULL,
    parent bigint REFERENCES account (id) ON DELETE SET NULL ON UPDATE CASCADE,
    CONSTRAINT account_code UNIQUE NULLS NOT DISTINCT (tenant, code));
CREATE UNIQUE INDEX account_nick ON account (lower(nick));
CREATE UNIQUE INDEX account_active ON account (tenant) WHERE active;
CREATE INDEX account_by_code ON account (code DESC NULLS LAST);
CREATE INDEX account_by_parent ON account (parent);
CREATE TABLE product (id bigint PRIMARY KEY, sku text UNIQUE, price bigint NOT NULL CHECK (price > 0));
CREATE TABLE purchase (
    id bigint PRIMARY KEY, account bigint NOT NULL REFERENCES account (id) ON DELETE CASCADE ON UPDATE CASCADE,
    product bigint CONSTRAINT purchase_product REFERENCES product (id) ON DELETE RESTRICT, quantity bigint NOT NULL, note text);
CREATE INDEX purchase_by_account ON purchase (account, quantity);
CREATE INDEX purchase_noted ON purchase (upper(note)) WHERE quantity > 2;
CREATE TABLE line (
    purchase bigint REFERENCES purchase (id) ON DELETE CASCADE, no bigint, product_sku text REFERENCES product (sku)
        ON DELETE SET NULL ON UPDATE CASCADE, PRIMARY KEY (purchase, no));
CREATE TABLE done (session bigint, seq bigint, PRIMARY KEY (session, seq));
COMMIT";

/// A value of a parameter.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Null,
    Number(i64),
    Text(String),
    Bool(bool),
}

impl Value {
    pub(super) fn datum(&self) -> Datum {
        match self {
            Self::Null => Datum::Null,
            Self::Number(number) => Datum::Int8(*number),
            Self::Text(text) => Datum::Text(Arc::from(text.as_str())),
            Self::Bool(value) => Datum::Bool(*value),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("NULL"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "'{text}'"),
            Self::Bool(value) => write!(f, "{value}"),
        }
    }
}

/// A statement with `$1`, `$2`, … and their values.
#[derive(Clone, Debug)]
pub(super) struct Statement {
    pub(super) sql: &'static str,
    pub(super) values: Vec<Value>,
}

impl Statement {
    /// With its values as literals.
    pub(super) fn text(&self) -> String {
        let mut text = self.sql.to_owned();
        for (at, value) in self.values.iter().enumerate().rev() {
            text = text.replace(&format!("${}", at + 1), &value.to_string());
        }
        text
    }
}

/// What a `$n` may be.
#[derive(Clone, Copy)]
enum Draw {
    Account,
    Product,
    Purchase,
    Small,
    SmallOrNull,
    AccountOrNull,
    ProductOrNull,
    Email,
    Nick,
    Sku,
    Flag,
}
use Draw::{
    Account, AccountOrNull, Email, Flag, Nick, Product, ProductOrNull, Purchase, Sku, Small,
    SmallOrNull,
};

/// Changes of rows and reads, each with what its parameters are.
const STATEMENTS: &[(&str, &[Draw])] = &[
    (
        "INSERT INTO account (id, email, tenant, code, nick, active, parent) VALUES ($1, $2, $3, $4, $5, $6, $7)",
        &[Account, Email, SmallOrNull, SmallOrNull, Nick, Flag, AccountOrNull],
    ),
    (
        "INSERT INTO account (id, email, tenant, code, nick, active, parent) VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
        &[Account, Email, SmallOrNull, SmallOrNull, Nick, Flag, AccountOrNull],
    ),
    (
        "INSERT INTO account (id, email, tenant, code, active) VALUES ($1, $2, $3, $4, $5) ON CONFLICT (email) DO UPDATE SET tenant = EXCLUDED.tenant, code = EXCLUDED.code, active = EXCLUDED.active",
        &[Account, Email, SmallOrNull, SmallOrNull, Flag],
    ),
    (
        "INSERT INTO account (id, email, nick, active) VALUES ($1, $2, $3, false) ON CONFLICT (lower(nick)) DO UPDATE SET email = EXCLUDED.email",
        &[Account, Email, Nick],
    ),
    ("UPDATE account SET email = $2 WHERE id = $1", &[Account, Email]),
    ("UPDATE account SET nick = $2, active = NOT active WHERE id = $1", &[Account, Nick]),
    ("UPDATE account SET code = code + 1 WHERE tenant = $1", &[Small]),
    (
        "UPDATE account SET tenant = $2, code = $3 WHERE email = $1",
        &[Email, SmallOrNull, SmallOrNull],
    ),
    ("UPDATE account SET parent = $2 WHERE id = $1", &[Account, AccountOrNull]),
    ("UPDATE account SET id = 31 - id WHERE id = $1", &[Account]),
    ("UPDATE account SET id = 31 - id WHERE id > 15 AND code = $1", &[Small]),
    ("DELETE FROM account WHERE id = $1", &[Account]),
    ("DELETE FROM account WHERE lower(nick) = lower($1)", &[Nick]),
    ("DELETE FROM account WHERE tenant = $1 AND active", &[Small]),
    (
        "MERGE INTO account a USING (VALUES ($1::bigint, $2::text, $3::bigint)) v (id, email, code) ON a.id = v.id \
         WHEN MATCHED AND a.code = v.code THEN DELETE WHEN MATCHED THEN UPDATE SET email = v.email, code = v.code \
         WHEN NOT MATCHED THEN INSERT (id, email, code, active) VALUES (v.id, v.email, v.code, false)",
        &[Account, Email, Small],
    ),
    ("INSERT INTO product (id, sku, price) VALUES ($1, $2, $3 + 1)", &[Product, Sku, Small]),
    (
        "INSERT INTO product (id, sku, price) VALUES ($1, $2, 5) ON CONFLICT (id) DO UPDATE SET sku = EXCLUDED.sku",
        &[Product, Sku],
    ),
    ("UPDATE product SET sku = $2 WHERE id = $1", &[Product, Sku]),
    ("DELETE FROM product WHERE id = $1", &[Product]),
    (
        "INSERT INTO purchase (id, account, product, quantity, note) VALUES ($1, $2, $3, $4, $5)",
        &[Purchase, Account, ProductOrNull, Small, Nick],
    ),
    (
        "INSERT INTO purchase (id, account, product, quantity) VALUES ($1, $2, $3, 1) ON CONFLICT (id) DO UPDATE SET quantity = purchase.quantity + 1",
        &[Purchase, Account, ProductOrNull],
    ),
    (
        "INSERT INTO purchase (id, account, quantity, note) SELECT id + $1, id, coalesce(code, 0), email FROM account WHERE tenant = $2 ON CONFLICT DO NOTHING",
        &[Purchase, Small],
    ),
    (
        "UPDATE purchase SET account = $2, product = $3 WHERE id = $1",
        &[Purchase, Account, ProductOrNull],
    ),
    (
        "UPDATE purchase SET quantity = quantity + 1, note = note || 'x' WHERE account = $1",
        &[Account],
    ),
    ("DELETE FROM purchase WHERE account = $1 AND quantity > $2", &[Account, Small]),
    (
        "WITH gone AS (DELETE FROM purchase WHERE id = $1 RETURNING product) UPDATE product SET price = price + 1 WHERE id IN (SELECT product FROM gone)",
        &[Purchase],
    ),
    (
        "INSERT INTO line (purchase, no, product_sku) VALUES ($1, $2, $3) ON CONFLICT (purchase, no) DO UPDATE SET product_sku = EXCLUDED.product_sku",
        &[Purchase, Small, Sku],
    ),
    ("DELETE FROM line WHERE product_sku = $1", &[Sku]),
    ("SELECT id, email FROM account WHERE tenant = $1 ORDER BY id", &[Small]),
    ("SELECT count(*) FROM purchase WHERE account = $1", &[Account]),
    (
        "SELECT a.email, p.note FROM account a JOIN purchase p ON p.account = a.id WHERE a.id = $1 ORDER BY p.id",
        &[Account],
    ),
];

/// Changes of definitions that may stand in a block.
const DEFINITIONS: &[&str] = &[
    "CREATE INDEX IF NOT EXISTS account_by_tenant ON account (tenant, email)",
    "DROP INDEX IF EXISTS account_by_tenant",
    "CREATE UNIQUE INDEX IF NOT EXISTS account_pair ON account (parent, code) WHERE tenant > 1",
    "DROP INDEX IF EXISTS account_pair",
    "ALTER TABLE account ADD COLUMN IF NOT EXISTS extra bigint DEFAULT 7",
    "CREATE INDEX IF NOT EXISTS account_by_extra ON account (extra, id)",
    "ALTER TABLE account ALTER COLUMN extra TYPE text",
    "UPDATE account SET extra = '5' WHERE code = 2",
    "ALTER TABLE account DROP COLUMN IF EXISTS extra",
    "ALTER TABLE purchase DROP CONSTRAINT IF EXISTS purchase_product",
    "ALTER TABLE purchase ADD CONSTRAINT purchase_product FOREIGN KEY (product) REFERENCES product (id) ON DELETE RESTRICT",
    "CREATE INDEX IF NOT EXISTS purchase_by_product ON purchase (product)",
    "DROP INDEX IF EXISTS purchase_by_product",
    "TRUNCATE line",
    "ALTER TABLE account DROP CONSTRAINT IF EXISTS account_code",
    "ALTER TABLE account ADD CONSTRAINT account_code UNIQUE NULLS NOT DISTINCT (tenant, code)",
];

/// Changes of definitions that stand alone.
const ALONE: &[&str] = &[
    "CREATE INDEX CONCURRENTLY IF NOT EXISTS purchase_by_note ON purchase (note, id)",
    "DROP INDEX IF EXISTS purchase_by_note",
    "CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS purchase_once ON purchase (account, product, quantity)",
    "DROP INDEX IF EXISTS purchase_once",
];

fn pick<T: Copy>(from: &[T], below: &mut impl FnMut(u64) -> u64) -> Option<T> {
    from.get(below(from.len() as u64) as usize).copied()
}

/// A change of rows, or a read.
pub(super) fn statement(below: &mut impl FnMut(u64) -> u64) -> Option<Statement> {
    let (sql, draws) = pick(STATEMENTS, below)?;
    Some(Statement { sql, values: draws.iter().map(|draw| value(*draw, below)).collect() })
}

/// A change of a definition.
pub(super) fn definition(below: &mut impl FnMut(u64) -> u64) -> Option<&'static str> {
    pick(DEFINITIONS, below)
}

/// One that PostgreSQL takes outside of blocks only.
pub(super) fn alone(below: &mut impl FnMut(u64) -> u64) -> Option<&'static str> {
    pick(ALONE, below)
}

fn value(draw: Draw, below: &mut impl FnMut(u64) -> u64) -> Value {
    let mut number = |limit| i64::try_from(below(limit)).unwrap_or_default();
    match draw {
        Account => Value::Number(number(16)),
        Product => Value::Number(number(6)),
        Purchase => Value::Number(number(24)),
        Small => Value::Number(number(4)),
        SmallOrNull => match number(5) {
            4 => Value::Null,
            n => Value::Number(n),
        },
        AccountOrNull => match number(24) {
            n if n < 16 => Value::Number(n),
            _ => Value::Null,
        },
        ProductOrNull => match number(8) {
            n if n < 6 => Value::Number(n),
            _ => Value::Null,
        },
        Email => Value::Text(format!("e{}", number(20))),
        // In two cases, for the index on lower(nick).
        Nick => match number(24) {
            n if n >= 20 => Value::Null,
            n if n % 2 == 0 => Value::Text(format!("Nick{}", n / 2)),
            n => Value::Text(format!("nick{}", n / 2)),
        },
        Sku => Value::Text(format!("s{}", number(8))),
        Flag => Value::Bool(number(2) == 0),
    }
}
