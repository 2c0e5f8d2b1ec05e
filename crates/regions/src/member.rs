//! One region of a deployment, as registries keep it and as texts carry it from one to another.
//!
//! # Invariants
//! - Whoever is known by a node has joined. One that is not may have joined where nobody has told
//!   of it yet.
//!
//! # On failure
//! [`Error::Malformed`] for a text that is cut off or changed.
//!
//! # Limits
//! What a text says of a region is not signed: it comes over connections that only holders of the
//! deployment's secret have.

use serde::{Deserialize, Serialize};
use telesto_common::NodeId;

use crate::error::{Error, Result};

/// One region of a deployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Its number.
    pub id: u16,
    /// Its name.
    pub name: String,
    /// The node that carries its streams and its address; none while it is invited only.
    pub node: Option<(NodeId, String)>,
    /// It has left, or its invitation was taken back.
    #[serde(default)]
    pub removed: bool,
    /// Those that stay exchange what they have of it: of whatever has left, lest somebody waits for
    /// what another one has.
    #[serde(default, skip_serializing_if = "is_not")]
    pub lost: bool,
    /// When it was lost: the region that makes the definitions from then on, if this one made them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heir: Option<u16>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
fn is_not(flag: &bool) -> bool {
    !flag
}

impl Member {
    /// One that is invited.
    pub(crate) fn invited(id: u16, name: &str) -> Self {
        Self { id, name: name.to_owned(), node: None, removed: false, lost: false, heir: None }
    }

    /// It has joined and stays, as far as is known here.
    pub(crate) fn stays(&self) -> bool {
        !self.removed && self.node.is_some()
    }

    /// It was invited, and nobody who joined with that is known here.
    pub(crate) fn is_hearsay(&self) -> bool {
        !self.removed && self.node.is_none()
    }

    /// It was refused here before anybody was known who joined as it.
    pub(crate) fn is_refused_unseen(&self) -> bool {
        self.removed && self.node.is_none()
    }

    /// It has joined all the same, as `node`: others may have had something of it, which those that
    /// stay are to exchange.
    pub(crate) fn has_joined_after_all(&mut self, node: (NodeId, String)) {
        self.node = Some(node);
        self.lost = true;
    }

    /// The same region, which speaks from another node.
    pub(crate) fn is_elsewhere(&self, other: &Self) -> bool {
        let node = |member: &Self| member.node.as_ref().map(|(node, _)| *node);
        node(self) != node(other)
    }

    /// The text with which others take it in.
    pub(crate) fn text(&self) -> Result<String> {
        let text = toml::to_string(self).map_err(|error| Error::Config(error.to_string()))?;
        Ok(hex(text.as_bytes()))
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        let malformed = Error::malformed("the text of the region that joined");
        toml::from_str(&decoded(text)?).map_err(|error| malformed(error.to_string()))
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim().as_bytes();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.len().is_multiple_of(2).then(|| digits.chunks_exact(2).map(pair).collect())?
}

pub(crate) fn decoded(text: &str) -> Result<String> {
    let malformed = Error::malformed("the text of another region");
    let decoded = unhex(text).and_then(|bytes| String::from_utf8(bytes).ok());
    decoded.ok_or_else(|| malformed("it is cut off or changed: copy the whole of it".to_owned()))
}
