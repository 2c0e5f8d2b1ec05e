//! Paths into `jsonb`: the language of `jsonb_path_query` and its kin, `@?` and `@@`.
//!
//! # Invariants
//! - PostgreSQL 15's rules: lax and strict mode, conditions in three values, an error inside of a
//!   condition is unknown.
//! - A value is computed with numerics, as SQL's.
//!
//! # On failure
//! 42601 for what is no path; the SQLSTATEs of class 22 that PostgreSQL has for what does not fit
//! the document (none where the call is silent); 42704 for an unknown variable.
//!
//! # Limits
//! A path is text: there is no type `jsonpath`. `.datetime()` and `.keyvalue()` are refused
//! (0A000), as is the flag `x` of `like_regex`.

mod evaluate;
mod parse;

use serde_json::{Map, Value};
use telesto_sql_types::Numeric;
use telesto_sql_types::error::{Error, Result, SqlState};

/// A path, read.
#[derive(Debug)]
pub struct Path {
    lax: bool,
    root: Node,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparing {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
}

/// An expression of a path: what gives items, and conditions.
#[derive(Debug)]
enum Node {
    Root,
    Current,
    Last,
    Variable(String),
    Constant(Value),
    Access(Box<Node>, Access),
    Arithmetic(Arithmetic, Box<Node>, Box<Node>),
    /// Whether it negates.
    Sign(bool, Box<Node>),
    Compare(Comparing, Box<Node>, Box<Node>),
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    Not(Box<Node>),
    Exists(Box<Node>),
    IsUnknown(Box<Node>),
    StartsWith(Box<Node>, Box<Node>),
    /// Pattern and flags.
    LikeRegex(Box<Node>, String, String),
}

/// What follows an expression.
#[derive(Debug)]
enum Access {
    Key(String),
    Members,
    Elements,
    Subscripts(Vec<(Node, Option<Node>)>),
    /// `.**` from a level to a level; `None`: what has nothing below it.
    Levels(Option<u32>, Option<u32>),
    Filter(Box<Node>),
    Method(String),
}

impl Node {
    fn is_predicate(&self) -> bool {
        matches!(
            self,
            Self::Compare(..)
                | Self::And(..)
                | Self::Or(..)
                | Self::Not(_)
                | Self::Exists(_)
                | Self::IsUnknown(_)
                | Self::StartsWith(..)
                | Self::LikeRegex(..)
        )
    }
}

fn invalid_regex_flags(flag: char) -> Error {
    Error::syntax("invalid input syntax for type jsonpath")
        .detail(format!("Unrecognized flag character \"{flag}\" in LIKE_REGEX predicate."))
}

/// A number of a document.
fn number(value: &Numeric) -> Result<Value> {
    serde_json::from_str(&value.to_string())
        .map_err(|_| Error::new(SqlState::NUMERIC_OUT_OF_RANGE, "a number that JSON has not"))
}

/// Reads a path.
///
/// # Errors
/// 42601.
pub fn read(text: &str) -> Result<Path> {
    parse::path(text)
}

impl Path {
    /// The items the path leads to.
    ///
    /// # Errors
    /// See the module.
    pub fn query(&self, document: &Value, variables: &Map<String, Value>) -> Result<Vec<Value>> {
        let mut items = Vec::new();
        self.query_into(document, variables, &mut items)?;
        Ok(items)
    }

    /// Adds the items the path leads to; on an error those before it.
    ///
    /// # Errors
    /// See the module.
    pub fn query_into(
        &self,
        document: &Value,
        variables: &Map<String, Value>,
        items: &mut Vec<Value>,
    ) -> Result<()> {
        evaluate::items(self, document, variables, items)
    }

    /// Whether it leads to anything. In lax mode the first item decides, whatever fails behind it.
    ///
    /// # Errors
    /// See the module.
    pub fn exists(&self, document: &Value, variables: &Map<String, Value>) -> Result<bool> {
        let mut items = Vec::new();
        match evaluate::items(self, document, variables, &mut items) {
            Err(error) if !self.lax || items.is_empty() => Err(error),
            _ => Ok(!items.is_empty()),
        }
    }

    /// The truth of the condition that it is; `None`: unknown.
    ///
    /// # Errors
    /// 22038 where it is no condition, and see the module.
    pub fn matches(
        &self,
        document: &Value,
        variables: &Map<String, Value>,
    ) -> Result<Option<bool>> {
        match &self.query(document, variables)?[..] {
            [Value::Bool(truth)] => Ok(Some(*truth)),
            [Value::Null] => Ok(None),
            _ => Err(Error::new(SqlState("22038"), "single boolean result is expected")),
        }
    }
}
