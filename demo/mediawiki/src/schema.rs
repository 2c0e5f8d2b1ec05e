//! The wiki's tables, for any database that speaks the Postgres wire.
//!
//! Backlinks are an index: the server keeps it in the transaction that changes the links.

/// Statements that make the tables; each may be run again.
pub const CREATE: [&str; 7] = [
    "CREATE TABLE IF NOT EXISTS wiki_page (
        page_id bigint PRIMARY KEY,
        namespace integer NOT NULL,
        title text NOT NULL UNIQUE,
        redirect_to text,
        latest_revision bigint NOT NULL
    )",
    "CREATE TABLE IF NOT EXISTS wiki_revision (
        revision_id bigint PRIMARY KEY,
        page_id bigint NOT NULL REFERENCES wiki_page ON DELETE CASCADE,
        parent_id bigint,
        made_at timestamptz NOT NULL,
        contributor text NOT NULL,
        comment text NOT NULL,
        content text NOT NULL
    )",
    "CREATE TABLE IF NOT EXISTS wiki_link (
        from_page bigint NOT NULL REFERENCES wiki_page ON DELETE CASCADE,
        to_title text NOT NULL,
        PRIMARY KEY (from_page, to_title)
    )",
    "CREATE INDEX IF NOT EXISTS wiki_backlink ON wiki_link (to_title)",
    "CREATE TABLE IF NOT EXISTS wiki_category (
        page_id bigint NOT NULL REFERENCES wiki_page ON DELETE CASCADE,
        category text NOT NULL,
        PRIMARY KEY (page_id, category)
    )",
    "CREATE INDEX IF NOT EXISTS wiki_category_member ON wiki_category (category)",
    "CREATE TABLE IF NOT EXISTS wiki_import (
        dump text PRIMARY KEY,
        pages bigint NOT NULL,
        finished boolean NOT NULL
    )",
];

/// What a wiki that is edited needs besides; each may be run again.
pub const SERVE: [&str; 2] = [
    "CREATE SEQUENCE IF NOT EXISTS wiki_number START 1000000000000",
    "CREATE INDEX IF NOT EXISTS wiki_history ON wiki_revision (page_id, revision_id)",
];
