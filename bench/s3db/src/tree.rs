//! B-link trees over pages (§3.4): look-up, insertion with splits, and scans along the leaves.
//!
//! # Protocol
//! ```text
//! split: new right page -> old page, now with a link to it -> entry in the parent (-> and so on upwards)
//! root:  both halves to new pages -> root rewritten as their parent
//! ```
//!
//! # Invariants
//! - A reader that arrives at a page which was split meanwhile goes right: it is never blocked and
//!   misses nothing.
//! - A page is written before anything refers to it.
//! - Whoever inserts holds the tree's lock token, except at the level without any protocol, where
//!   splits may lose records.

use std::sync::Arc;

use bytes::Bytes;
use telesto_bucket::Cause;

use crate::error::Result;
use crate::node::{Content, Node, PageRef};
use crate::pages::Pages;
use crate::workload::{Key, Table};

/// How large pages may get, bytes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub leaf: usize,
    pub inner: usize,
}

impl Sizes {
    fn of(&self, node: &Node) -> usize {
        match node.content {
            Content::Leaf(_) => self.leaf,
            Content::Inner(_) => self.inner,
        }
    }
}

/// A leaf and the way to it.
#[derive(Clone, Debug)]
pub struct Found {
    /// Inner pages, from the root down.
    pub path: Vec<PageRef>,
    pub page: PageRef,
    pub node: Arc<Node>,
}

/// The leaf that holds `key`; `fresh`: as it is in the bucket now.
pub async fn find(
    pages: &Pages,
    cause: Cause,
    table: Table,
    key: Key,
    fresh: bool,
) -> Result<Found> {
    let mut path = Vec::new();
    let mut page = PageRef::root(table);
    loop {
        let mut node = pages.get(cause, page, false).await?;
        if fresh && node.child(key).is_none() {
            node = pages.get(cause, page, true).await?;
        }
        if let Some(right) = node.beyond(key) {
            page.id = right;
        } else if let Some(child) = node.child(key) {
            path.push(page);
            page.id = child;
        } else {
            return Ok(Found { path, page, node });
        }
    }
}

/// Writes a changed node, split as often as it must be, and tells the parents.
pub async fn write(
    pages: &Pages,
    cause: Cause,
    sizes: Sizes,
    mut path: Vec<PageRef>,
    mut page: PageRef,
    mut node: Node,
) -> Result<()> {
    loop {
        let (right, high, limit) = (node.right, node.high, sizes.of(&node));
        let checkpointed = node.checkpointed;
        let mut pieces = node.cut(limit);
        let is_root = page == PageRef::root(page.table);
        let kept = usize::from(!is_root);
        if pieces.len() == 1 {
            let Some((_, node)) = pieces.pop() else { return Ok(()) };
            return pages.put(cause, page, node).await;
        }
        // Where each piece goes; the first stays where the page is, unless that is the root.
        let ids: Vec<u64> = (0..pieces.len())
            .map(|at| if at < kept { page.id } else { pages.fresh_id() })
            .collect();
        let lows: Vec<Key> = pieces.iter().map(|(low, _)| *low).collect();
        for (at, (_, mut piece)) in pieces.into_iter().enumerate().rev() {
            piece.right = ids.get(at + 1).copied().or(right);
            piece.high = lows.get(at + 1).copied().or(high);
            pages.put(cause, PageRef { table: page.table, id: ids[at] }, piece).await?;
        }
        let children = lows.into_iter().zip(ids);
        if is_root {
            // Keys below the smallest belong to the first child.
            let entries =
                children.enumerate().map(|(at, (low, id))| (if at == 0 { 0 } else { low }, id));
            return pages.put(cause, page, Node::inner(entries.collect(), checkpointed)).await;
        }
        let added: Vec<(Key, u64)> = children.skip(1).collect();
        page = path.pop().unwrap_or(PageRef::root(page.table));
        let mut parent = pages.get(cause, page, true).await?;
        while let Some(right) = added.first().and_then(|(low, _)| parent.beyond(*low)) {
            page.id = right;
            parent = pages.get(cause, page, true).await?;
        }
        node = Node::clone(&parent);
        for (low, id) in added {
            node.adopt(low, id);
        }
    }
}

/// Fills a table's tree; leaves are `fill` full.
pub async fn load(
    pages: &Pages,
    sizes: Sizes,
    fill: f64,
    table: Table,
    records: impl Iterator<Item = (Key, Bytes)>,
) -> Result<()> {
    let now = pages.env().clock.wall_micros();
    let node = Node::leaf(records.collect(), now);
    let full = Sizes { leaf: (sizes.leaf as f64 * fill) as usize, ..sizes };
    pages.put(Cause::Admin, PageRef::header(table), Node::inner(Default::default(), now)).await?;
    write(pages, Cause::Admin, full, Vec::new(), PageRef::root(table), node).await
}

/// Every record of a table, in order.
pub async fn scan(pages: &Pages, table: Table) -> Result<Vec<(Key, Bytes)>> {
    let mut found = find(pages, Cause::Admin, table, 0, true).await?;
    let mut records = Vec::new();
    loop {
        if let Content::Leaf(leaf) = &found.node.content {
            records.extend(leaf.iter().map(|(key, payload)| (*key, payload.clone())));
        }
        let Some(right) = found.node.right else { return Ok(records) };
        found.page.id = right;
        found.node = pages.get(Cause::Admin, found.page, true).await?;
    }
}
