//! How deep a tree the parser will make of tokens.
//!
//! # Invariants
//! A tree is no deeper than what is counted here: its depth is the parentheses that are open, and
//! of each of them the operators that chain up in the item under way. What a comma or a clause's
//! word begins anew does not add up.
//!
//! # On failure
//! 54001.
//!
//! # Limits
//! Over-counting is allowed, since it only costs stack: a word that is a name here may be an
//! operator elsewhere.

use super::too_deep;
use crate::sqlparser::keywords::Keyword;
use crate::sqlparser::tokenizer::{Token, TokenWithSpan};
use telesto_sql_types::error::Result;

/// Parentheses, brackets and CASEs that may be open at once. PostgreSQL's parser gives up at some
/// thousands.
pub const MAX_NESTED: usize = 1_000;

/// Operators and set operations that may chain up. PostgreSQL's stack ends at some thousands.
pub const MAX_CHAINED: usize = 5_000;

/// ANDs and ORs that may chain up. They are joined in a loop, so that only the text bounds them in
/// PostgreSQL.
pub const MAX_JOINED: usize = 100_000;

/// The depth of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Parentheses and CASEs in each other.
    pub nested: usize,
    /// Operators in each other, but those of `joined`.
    pub chained: usize,
    /// ANDs and ORs in each other, before they are balanced.
    pub joined: usize,
}

/// What one open parenthesis has chained up.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    case: bool,
    /// Operators of the operand under way.
    tight: usize,
    /// ANDs and ORs of the expression under way.
    joins: usize,
    /// Set operations, joins and the like of the query under way.
    sets: usize,
}

enum Kind {
    Open(bool),
    Close(bool),
    /// A comma or a clause: the expression before is done.
    Anew,
    Join,
    Set,
    Operator,
    Other,
}

impl Depth {
    /// The depth of the tree of `tokens`.
    ///
    /// # Errors
    /// 54001 beyond the limits.
    pub fn of(tokens: &[TokenWithSpan]) -> Result<Self> {
        let mut levels = vec![Level::default()];
        let mut now = Self::default();
        let mut most = Self::default();
        for token in tokens {
            let kind = kind(&token.token);
            let open = levels.len();
            let Some(level) = levels.last_mut() else { break };
            match kind {
                Kind::Other => continue,
                Kind::Open(case) => {
                    // A subscript or a call hangs on what stands before it.
                    level.tight += 1;
                    now.chained += 1;
                    levels.push(Level { case, ..Level::default() });
                }
                // END also ends other things.
                Kind::Close(case) if open == 1 || level.case != case => continue,
                Kind::Close(_) => {
                    now.chained -= level.tight + level.sets;
                    now.joined -= level.joins;
                    levels.pop();
                }
                Kind::Anew => {
                    now.chained -= std::mem::take(&mut level.tight);
                    now.joined -= std::mem::take(&mut level.joins);
                }
                Kind::Join => {
                    level.joins += 1;
                    now.joined += 1;
                    now.chained -= std::mem::take(&mut level.tight);
                }
                Kind::Set => {
                    level.sets += 1;
                    now.chained += 1;
                    now.chained -= std::mem::take(&mut level.tight);
                    now.joined -= std::mem::take(&mut level.joins);
                }
                Kind::Operator => {
                    level.tight += 1;
                    now.chained += 1;
                }
            }
            now.nested = levels.len();
            most.nested = most.nested.max(now.nested);
            most.chained = most.chained.max(now.chained);
            most.joined = most.joined.max(now.joined);
            let within =
                now.nested <= MAX_NESTED && now.chained <= MAX_CHAINED && now.joined <= MAX_JOINED;
            if !within {
                return Err(too_deep());
            }
        }
        Ok(most)
    }
}

fn kind(token: &Token) -> Kind {
    match token {
        Token::Whitespace(_)
        | Token::Number(..)
        | Token::SingleQuotedString(_)
        | Token::EscapedStringLiteral(_)
        | Token::DollarQuotedString(_)
        | Token::NationalStringLiteral(_)
        | Token::UnicodeStringLiteral(_)
        | Token::HexStringLiteral(_)
        | Token::SingleQuotedByteStringLiteral(_)
        | Token::Placeholder(_)
        | Token::Period
        | Token::EOF => Kind::Other,
        Token::LParen | Token::LBracket | Token::LBrace => Kind::Open(false),
        Token::RParen | Token::RBracket | Token::RBrace => Kind::Close(false),
        Token::Comma | Token::SemiColon => Kind::Anew,
        Token::Word(word) if word.quote_style.is_some() => Kind::Other,
        Token::Word(word) => match word.keyword {
            Keyword::CASE => Kind::Open(true),
            Keyword::END => Kind::Close(true),
            Keyword::WHEN
            | Keyword::THEN
            | Keyword::ELSE
            | Keyword::SELECT
            | Keyword::FROM
            | Keyword::WHERE
            | Keyword::ON
            | Keyword::GROUP
            | Keyword::HAVING
            | Keyword::ORDER
            | Keyword::LIMIT
            | Keyword::RETURNING
            | Keyword::SET
            | Keyword::VALUES
            | Keyword::JOIN => Kind::Anew,
            Keyword::AND | Keyword::OR => Kind::Join,
            Keyword::UNION | Keyword::INTERSECT | Keyword::EXCEPT => Kind::Set,
            Keyword::NOT
            | Keyword::IS
            | Keyword::IN
            | Keyword::LIKE
            | Keyword::ILIKE
            | Keyword::BETWEEN
            | Keyword::SIMILAR
            | Keyword::COLLATE
            | Keyword::AT
            | Keyword::NOTNULL
            | Keyword::OPERATOR
            | Keyword::OVERLAPS
            | Keyword::ARRAY
            | Keyword::INTERVAL => Kind::Operator,
            // One in another is a level of the parser's largest function, and nothing closes it.
            Keyword::EXPLAIN => Kind::Open(false),
            _ if word.value.eq_ignore_ascii_case("ISNULL") => Kind::Operator,
            _ => Kind::Other,
        },
        // Every other token is an operator.
        _ => Kind::Operator,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syntax::tokens;

    fn depth(sql: &str) -> Result<Depth> {
        Depth::of(&tokens(sql).expect("tokens"))
    }

    #[test]
    fn lists_do_not_add_up_and_chains_do() {
        let list = format!("select {} from t", vec!["a + b"; 3_000].join(", "));
        assert_eq!(depth(&list).expect("flat").chained, 1);
        let chain = format!("select {}", vec!["1"; 3_000].join(" + "));
        assert_eq!(depth(&chain).expect("chain").chained, 2_999);
        let union =
            vec!["select a + b + c from t where x = 1 and y = 2"; 1_000].join(" union all ");
        let union = depth(&union).expect("union");
        assert!(union.chained < 1_010 && union.joined == 1, "{union:?}");
    }

    #[test]
    fn what_is_too_deep_is_told_as_such() {
        for sql in [
            format!("select {}1{}", "(".repeat(1_001), ")".repeat(1_001)),
            format!("select {}1{}", "case when true then ".repeat(1_001), " end".repeat(1_001)),
            format!("select {}", vec!["1"; 6_000].join("+")),
            format!("select '{{}}'::int{}", "[3]".repeat(6_000)),
            vec!["select 1"; 6_000].join(" intersect "),
        ] {
            assert_eq!(depth(&sql).expect_err("deep").code().0, "54001", "{}", &sql[..60]);
        }
        // A case that is a name, and an END that ends nothing.
        depth("end").expect("end");
        depth(") end ] select 1").expect("more closed than open");
    }
}
