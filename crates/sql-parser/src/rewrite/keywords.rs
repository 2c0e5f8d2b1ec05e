//! Words the parser does not know, written in words it does, before it parses.
//!
//! | written | as |
//! | --- | --- |
//! | `ABORT` | `ROLLBACK` |
//! | `CREATE RECURSIVE VIEW v (a) AS q` | `CREATE VIEW v (a) AS WITH RECURSIVE v (a) AS (q) SELECT a FROM v` |
//! | `RESET SESSION AUTHORIZATION` | `RESET session_authorization` |
//! | `SET LOCAL SESSION AUTHORIZATION r`, `SET SESSION SESSION AUTHORIZATION r` | `SET LOCAL AUTHORIZATION r`, `SET SESSION AUTHORIZATION r` |
//! | `TABLE t` as a query | `SELECT * FROM t` |
//! | `FOR NO KEY UPDATE`, `FOR KEY SHARE`, `OF a, b` behind one | `FOR UPDATE`, `FOR SHARE`, `OF a`: no lock is taken anyhow |
//! | `SELECT 1 FOR UPDATE` | `SELECT 1`: without FROM there is nothing to lock, and the parser takes FOR for a name |
//! | `… UNION SELECT 1 FOR UPDATE`, `SELECT DISTINCT 1 FOR UPDATE` | `… 1 WHERE TRUE FOR UPDATE`, to be refused behind the parser |
//! | `FOR UPDATE … LIMIT n`, OFFSET, FETCH | `LIMIT n FOR UPDATE …` |
//! | `FETCH FIRST (n) ROWS ONLY` | `LIMIT (n)` |
//! | `FETCH FIRST (n) ROWS WITH TIES` | `LIMIT (n) FETCH FIRST ROWS WITH TIES` |
//! | `INSERT … OVERRIDING SYSTEM VALUE` | a column more, named [`OVERRIDING_SYSTEM`] |
//! | `ORDER BY a USING >`, `<` | `ORDER BY a DESC`, `ASC` |
//! | `top` | `"top"`: the parser takes it for a clause of another dialect |
//! | `FROM t *` | `FROM t`: what inherits is read in any case, and there is nothing that does |
//! | `FROM ONLY t`, `JOIN ONLY (t)`, `UPDATE ONLY t`, `MERGE INTO ONLY t USING ONLY u` | the same without ONLY, for the same reason |
//! | `START TRANSACTION …, DEFERRABLE` | `START TRANSACTION …`: a transaction that reads never waits for others |
//! | `SELECT ((SELECT 1) UNION …)` | `SELECT (WITH "…" AS (SELECT 1) (SELECT 1) UNION …)` |
//! | `(… ROWS … EXCLUDE TIES)`, GROUP, CURRENT ROW of a window | a window it is made of, named [`EXCLUDE`] and what is left out |
//! | `MERGE … THEN DO NOTHING` | an assignment or INSERT of a column named [`DO_NOTHING`] |
//! | `MERGE … THEN INSERT DEFAULT VALUES` | an INSERT of a column named [`DEFAULT_VALUES`] |
//!
//! # Invariants
//! The names made here begin with a NUL, which no client can send.

use crate::marks::{DEFAULT_VALUES, DO_NOTHING, EXCLUDE, OVERRIDING_SYSTEM, OVERRIDING_USER};
use crate::sqlparser::tokenizer::{Token, TokenWithSpan, Word};

/// One statement's tokens.
struct Words<'t> {
    tokens: &'t mut Vec<TokenWithSpan>,
    /// Where the tokens are that are no white space.
    solid: Vec<usize>,
}

impl Words<'_> {
    /// The word at solid place `at`, in upper case; empty when there is something else.
    fn word(&self, at: usize) -> String {
        match self.token(at) {
            Some(Token::Word(word)) if word.quote_style.is_none() => {
                word.value.to_ascii_uppercase()
            }
            _ => String::new(),
        }
    }

    fn token(&self, at: usize) -> Option<&Token> {
        self.solid.get(at).map(|at| &self.tokens[*at].token)
    }

    fn are(&self, at: usize, words: &[&str]) -> bool {
        words.iter().enumerate().all(|(offset, word)| self.word(at + offset) == *word)
    }

    /// Puts `new` in the place of `count` solid tokens from `at` on.
    fn replace(&mut self, at: usize, count: usize, new: Vec<Token>) {
        let begin = self.solid[at];
        let end = self.solid.get(at + count).copied().unwrap_or(self.tokens.len());
        let span = self.tokens[begin].span;
        let space = TokenWithSpan::new(
            Token::Whitespace(crate::sqlparser::tokenizer::Whitespace::Space),
            span,
        );
        let mut spelled: Vec<TokenWithSpan> = Vec::with_capacity(new.len() * 2);
        for token in new {
            spelled.push(TokenWithSpan::new(token, span));
            spelled.push(space.clone());
        }
        self.tokens.splice(begin..end, spelled);
        self.find_solid();
    }

    fn find_solid(&mut self) {
        let solid = |token: &TokenWithSpan| !matches!(token.token, Token::Whitespace(_));
        let places = self.tokens.iter().enumerate().filter(|(_, token)| solid(token));
        self.solid = places.map(|(at, _)| at).collect();
    }
}

fn keyword(word: &str) -> Token {
    Token::make_keyword(word)
}

fn quoted(name: &str) -> Token {
    Token::Word(Word {
        value: name.to_owned(),
        quote_style: Some('"'),
        keyword: crate::sqlparser::keywords::Keyword::NoKeyword,
    })
}

/// `INSERT (name) VALUES (NULL)`.
fn insert_of(name: &str) -> Vec<Token> {
    vec![
        keyword("INSERT"),
        Token::LParen,
        quoted(name),
        Token::RParen,
        keyword("VALUES"),
        Token::LParen,
        keyword("NULL"),
        Token::RParen,
    ]
}

/// Rewrites the tokens of one statement.
pub fn respell(tokens: &mut Vec<TokenWithSpan>) {
    let mut words = Words { tokens, solid: Vec::new() };
    words.find_solid();
    match words.word(0).as_str() {
        "ABORT" => words.replace(0, 1, vec![keyword("ROLLBACK")]),
        "TABLE" => words.replace(0, 1, vec![keyword("SELECT"), Token::Mul, keyword("FROM")]),
        "CREATE" => recursive_view(&mut words),
        "RESET" if words.are(1, &["SESSION", "AUTHORIZATION"]) => {
            words.replace(1, 2, vec![Token::make_word("session_authorization", None)]);
        }
        "SET"
            if matches!(words.word(1).as_str(), "LOCAL" | "SESSION")
                && words.are(2, &["SESSION", "AUTHORIZATION"]) =>
        {
            words.replace(2, 1, Vec::new());
        }
        _ => {}
    }
    let transaction = matches!(words.word(0).as_str(), "START" | "BEGIN")
        || words.are(0, &["SET", "TRANSACTION"])
        || words.are(0, &["SET", "SESSION", "CHARACTERISTICS"]);
    let mut merge = false;
    let mut at = 0;
    while at < words.solid.len() {
        match words.word(at).as_str() {
            "MERGE" => merge = true,
            "FOR" => locks(&mut words, at),
            "FETCH" => fetch(&mut words, at),
            "USING" => direction(&mut words, at),
            "TOP" => words.replace(at, 1, vec![quoted("top")]),
            "FROM" if words.token(at + 2) == Some(&Token::Mul) => inherited(&mut words, at),
            "ONLY" if at > 0 => only(&mut words, at),
            "DEFERRABLE" if transaction => deferrable(&mut words, at),
            "SELECT" | "EXISTS" | "ARRAY" => united(&mut words, at + 1),
            "OVERRIDING" => overriding(&mut words, at),
            "THEN" if merge => when(&mut words, at),
            "EXCLUDE" => excluded(&mut words, at),
            "TABLE" if at > 0 => table_query(&mut words, at),
            _ => {}
        }
        at += 1;
    }
    super::nested_joins::enclose_merge_source(words.tokens);
    super::nested_joins::enclose(words.tokens);
}

/// `TABLE t` where a query stands.
fn table_query(words: &mut Words<'_>, at: usize) {
    let before = words.word(at - 1);
    // Behind a parenthesis: of WITH, of the columns of an INSERT, of the options of EXPLAIN.
    let begins = matches!(words.token(at - 1), Some(Token::LParen | Token::RParen))
        || matches!(
            before.as_str(),
            "AS" | "UNION" | "INTERSECT" | "EXCEPT" | "ALL" | "DISTINCT" | "EXPLAIN" | "FOR"
        )
        || matches!(before.as_str(), "ANALYZE" | "VERBOSE") && words.word(0) == "EXPLAIN"
        || written_into(words, at);
    // `GRANT … ON ALL TABLE` is nothing, and `TABLE (` a function.
    // Nor is `a AS table FROM b`: no table is called like a clause.
    let clause = [
        "FROM",
        "WHERE",
        "GROUP",
        "HAVING",
        "WINDOW",
        "ORDER",
        "LIMIT",
        "OFFSET",
        "FETCH",
        "FOR",
        "INTO",
        "UNION",
        "INTERSECT",
        "EXCEPT",
    ];
    let named = matches!(words.token(at + 1), Some(Token::Word(_)))
        && !clause.contains(&words.word(at + 1).as_str());
    if begins && named {
        words.replace(at, 1, vec![keyword("SELECT"), Token::Mul, keyword("FROM")]);
    }
}

/// Whether `INSERT INTO t` (with a schema, an alias) or `OVERRIDING … VALUE` ends before `at`.
fn written_into(words: &Words<'_>, at: usize) -> bool {
    let mut target = at;
    if words.word(at - 1) == "VALUE" && at > 3 && words.word(at - 3) == "OVERRIDING" {
        return true;
    }
    if at > 3 && words.word(at - 2) == "AS" {
        target -= 2;
    }
    let is_name = |at: usize| matches!(words.token(at), Some(Token::Word(_)));
    while target > 2 && is_name(target - 1) && words.token(target - 2) == Some(&Token::Period) {
        target -= 2;
    }
    target > 2 && is_name(target - 1) && words.are(target - 3, &["INSERT", "INTO"])
}

/// `EXCLUDE …` at the end of a window's frame.
fn excluded(words: &mut Words<'_>, at: usize) {
    let known: [(&[&str], &str); 4] = [
        (&["CURRENT", "ROW"], "row"),
        (&["GROUP"], "group"),
        (&["TIES"], "ties"),
        (&["NO", "OTHERS"], ""),
    ];
    let Some((left_out, mark)) = known.iter().find(|(left_out, _)| words.are(at + 1, left_out))
    else {
        return;
    };
    let count = 1 + left_out.len();
    if words.token(at + count) != Some(&Token::RParen) {
        return;
    }
    // Where the window begins, and whether it has a frame.
    let (mut depth, mut framed, mut begin) = (0, false, at);
    loop {
        let Some(before) = begin.checked_sub(1) else { return };
        begin = before;
        match words.token(begin) {
            Some(Token::RParen) => depth += 1,
            Some(Token::LParen) if depth == 0 => break,
            Some(Token::LParen) => depth -= 1,
            _ => {}
        }
        framed |= depth == 0 && matches!(words.word(begin).as_str(), "ROWS" | "RANGE" | "GROUPS");
    }
    if !framed {
        return;
    }
    words.replace(at, count, Vec::new());
    if mark.is_empty() {
        return;
    }
    let base = match words.token(begin + 1) {
        Some(Token::Word(word)) if word.quote_style.is_some() => Some(word.value.clone()),
        Some(Token::Word(word)) => match words.word(begin + 1).as_str() {
            "PARTITION" | "ORDER" | "ROWS" | "RANGE" | "GROUPS" => None,
            _ => Some(word.value.to_lowercase()),
        },
        _ => None,
    };
    let name = format!("{EXCLUDE}{mark} {}", base.as_deref().unwrap_or_default());
    words.replace(begin + 1, usize::from(base.is_some()), vec![quoted(&name)]);
}

/// `USING >` behind what is sorted by.
fn direction(words: &mut Words<'_>, at: usize) {
    let order = match words.token(at + 1) {
        Some(Token::Gt | Token::GtEq) => "DESC",
        Some(Token::Lt | Token::LtEq) => "ASC",
        _ => return,
    };
    words.replace(at, 2, vec![keyword(order)]);
}

/// `FROM t *`; a product (`extract(day FROM a * b)`) has something behind the sign.
fn inherited(words: &mut Words<'_>, at: usize) {
    let ends = match words.token(at + 3) {
        None | Some(Token::RParen | Token::Comma | Token::SemiColon) => true,
        _ => matches!(
            words.word(at + 3).as_str(),
            "AS" | "WHERE"
                | "GROUP"
                | "ORDER"
                | "LIMIT"
                | "JOIN"
                | "LEFT"
                | "RIGHT"
                | "INNER"
                | "CROSS"
                | "NATURAL"
                | "UNION"
        ),
    };
    if ends && matches!(words.token(at + 1), Some(Token::Word(_))) {
        words.replace(at + 2, 1, Vec::new());
    }
}

/// `ONLY t` and `ONLY (t)` where a table is named that is read or written.
fn only(words: &mut Words<'_>, at: usize) {
    let named = match words.token(at - 1) {
        Some(Token::Comma) => in_from(words, at - 1),
        // The first of a join in parentheses.
        Some(Token::LParen) if at > 1 => {
            matches!(words.word(at - 2).as_str(), "FROM" | "JOIN" | "USING")
        }
        _ => match words.word(at - 1).as_str() {
            "FROM" | "JOIN" | "UPDATE" | "USING" => true,
            "INTO" => at > 1 && words.word(at - 2) == "MERGE",
            _ => false,
        },
    };
    if !named {
        return;
    }
    match words.token(at + 1) {
        Some(Token::Word(_)) => words.replace(at, 1, Vec::new()),
        Some(Token::LParen) => {
            let mut end = at + 2;
            while matches!(words.token(end), Some(Token::Word(_) | Token::Period)) {
                end += 1;
            }
            if end > at + 2 && words.token(end) == Some(&Token::RParen) {
                words.replace(end, 1, Vec::new());
                words.replace(at, 2, Vec::new());
            }
        }
        _ => {}
    }
}

/// Whether the comma at `at` stands between tables: what it is in began with FROM or USING.
fn in_from(words: &Words<'_>, at: usize) -> bool {
    let mut depth = 0_usize;
    for before in (0..at).rev() {
        match words.token(before) {
            Some(Token::RParen) => depth += 1,
            Some(Token::LParen) => match depth.checked_sub(1) {
                Some(less) => depth = less,
                None => return false,
            },
            _ if depth > 0 => {}
            _ => match words.word(before).as_str() {
                "FROM" | "USING" => return true,
                "SELECT" | "WHERE" | "BY" | "SET" | "HAVING" | "RETURNING" | "VALUES" => {
                    return false;
                }
                _ => {}
            },
        }
    }
    false
}

/// `[,] [NOT] DEFERRABLE` of a transaction.
fn deferrable(words: &mut Words<'_>, at: usize) {
    let mut begin = at;
    if words.word(begin - 1) == "NOT" {
        begin -= 1;
    }
    if words.token(begin - 1) == Some(&Token::Comma) {
        begin -= 1;
    }
    words.replace(begin, at + 1 - begin, Vec::new());
}

/// A parenthesis at `at` that holds a parenthesised query and a set operation behind it.
fn united(words: &mut Words<'_>, at: usize) {
    if words.token(at) != Some(&Token::LParen)
        || words.token(at + 1) != Some(&Token::LParen)
        || !matches!(words.word(at + 2).as_str(), "SELECT" | "VALUES" | "WITH")
    {
        return;
    }
    let mut depth = 0_usize;
    let close = (at + 1..words.solid.len()).find(|place| {
        match words.token(*place) {
            Some(Token::LParen) => depth += 1,
            Some(Token::RParen) => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0
    });
    let next = close.map_or(String::new(), |close| words.word(close + 1));
    if matches!(next.as_str(), "UNION" | "INTERSECT" | "EXCEPT") {
        let mut new = vec![Token::LParen, keyword("WITH"), quoted("\0none"), keyword("AS")];
        new.extend([Token::LParen, keyword("SELECT"), Token::Number("1".to_owned(), false)]);
        new.push(Token::RParen);
        words.replace(at, 1, new);
    }
}

/// `CREATE RECURSIVE VIEW v (a, b) AS query`.
fn recursive_view(words: &mut Words<'_>) {
    let Some(at) = (1..5).find(|at| words.are(*at, &["RECURSIVE", "VIEW"])) else { return };
    let mut open = at + 2;
    while matches!(words.token(open), Some(Token::Word(_) | Token::Period)) {
        open += 1;
    }
    let mut close = open;
    while matches!(words.token(close), Some(Token::LParen | Token::Word(_) | Token::Comma)) {
        close += 1;
    }
    // Without a list of columns it is none: the parser says so.
    if words.token(open) != Some(&Token::LParen)
        || words.token(close) != Some(&Token::RParen)
        || words.word(close + 1) != "AS"
    {
        return;
    }
    let tokens = |words: &Words<'_>, from: usize, to: usize| -> Vec<Token> {
        (from..to).filter_map(|at| words.token(at).cloned()).collect()
    };
    let name = tokens(words, open - 1, open);
    let columns = tokens(words, open + 1, close);
    let end = words.solid.len();
    let mut query = vec![keyword("WITH"), keyword("RECURSIVE")];
    query.extend(name.iter().cloned().chain([Token::LParen]));
    query.extend(columns.iter().cloned().chain([Token::RParen, keyword("AS"), Token::LParen]));
    query.extend(tokens(words, close + 2, end));
    query.extend([Token::RParen, keyword("SELECT")]);
    query.extend(columns.into_iter().chain([keyword("FROM")]).chain(name));
    words.replace(close + 2, end - close - 2, query);
    words.replace(at, 1, Vec::new());
}

/// `FOR NO KEY UPDATE OF a, b`.
fn locks(words: &mut Words<'_>, at: usize) {
    let next = if words.are(at, &["FOR", "NO", "KEY", "UPDATE"]) {
        words.replace(at + 1, 3, vec![keyword("UPDATE")]);
        at + 2
    } else if words.are(at, &["FOR", "KEY", "SHARE"]) {
        words.replace(at + 1, 2, vec![keyword("SHARE")]);
        at + 2
    } else if matches!(words.word(at + 1).as_str(), "UPDATE" | "SHARE") {
        at + 2
    } else {
        return;
    };
    let locked = locked(words, at);
    if locked == (Locked::Refused { bare: true }) {
        // The clause comes again, behind what is no name.
        words.replace(at, 0, vec![keyword("WHERE"), keyword("TRUE")]);
        return;
    }
    if locked == Locked::Nothing {
        let how = match words.word(next).as_str() {
            "NOWAIT" => 1,
            "SKIP" => 2,
            _ => 0,
        };
        words.replace(at, 2 + how, Vec::new());
        return;
    }
    let mut end = next;
    if words.word(next) == "OF" {
        while words.token(next + 2) == Some(&Token::Comma) {
            words.replace(next + 2, 2, Vec::new());
        }
        end += 2;
    }
    end += match words.word(end).as_str() {
        "NOWAIT" => 1,
        "SKIP" => 2,
        _ => 0,
    };
    bounds_first(words, at, end);
}

/// Puts the LIMIT, OFFSET or FETCH at `bounds` in front of the locking clause at `lock`.
fn bounds_first(words: &mut Words<'_>, lock: usize, bounds: usize) {
    if !matches!(words.word(bounds).as_str(), "LIMIT" | "OFFSET" | "FETCH") {
        return;
    }
    let mut depth = 0_usize;
    let end = (bounds..words.solid.len()).find(|place| {
        match words.token(*place) {
            Some(Token::LParen) => depth += 1,
            Some(Token::RParen) if depth == 0 => return true,
            Some(Token::RParen) => depth -= 1,
            Some(Token::SemiColon) => return true,
            _ => {}
        }
        depth == 0
            && matches!(words.word(*place).as_str(), "FOR" | "UNION" | "INTERSECT" | "EXCEPT")
    });
    let end = end.unwrap_or(words.solid.len());
    let tokens = |from: usize, to: usize| (from..to).filter_map(|at| words.token(at).cloned());
    let turned: Vec<Token> = tokens(bounds, end).chain(tokens(lock, bounds)).collect();
    words.replace(lock, end - lock, turned);
    if words.word(lock) == "FETCH" {
        fetch(words, lock);
    }
}

/// What a locking clause is about.
#[derive(PartialEq, Eq)]
enum Locked {
    Rows,
    /// A SELECT without FROM.
    Nothing,
    /// The same, and no locks are allowed there. `bare`: nothing parts its output from the clause.
    Refused {
        bare: bool,
    },
}

/// What the locking clause at `at` is about.
fn locked(words: &Words<'_>, at: usize) -> Locked {
    let mut depth = 0_usize;
    let mut bare = true;
    for place in (0..at).rev() {
        match words.token(place) {
            Some(Token::RParen) => depth += 1,
            Some(Token::LParen) if depth == 0 => return Locked::Nothing,
            Some(Token::LParen) => depth = depth.saturating_sub(1),
            _ if depth > 0 => {}
            _ => match words.word(place).as_str() {
                "SELECT" if words.word(place + 1) == "DISTINCT" || is_combined(words, place) => {
                    return Locked::Refused { bare };
                }
                "SELECT" => return Locked::Nothing,
                "FROM" => return Locked::Rows,
                "WHERE" | "GROUP" | "HAVING" | "WINDOW" | "ORDER" | "LIMIT" | "OFFSET"
                | "FETCH" => bare = false,
                _ => {}
            },
        }
    }
    // What is no SELECT (`VALUES … FOR UPDATE`) is left to the parser.
    Locked::Rows
}

/// Whether UNION or its kin stands before the SELECT at `at`.
fn is_combined(words: &Words<'_>, at: usize) -> bool {
    let before = |count: usize| at.checked_sub(count).map(|at| words.word(at)).unwrap_or_default();
    let combines = |word: &str| matches!(word, "UNION" | "INTERSECT" | "EXCEPT");
    combines(&before(1))
        || (matches!(before(1).as_str(), "ALL" | "DISTINCT") && combines(&before(2)))
}

/// `FETCH FIRST (n) ROWS ONLY`.
fn fetch(words: &mut Words<'_>, at: usize) {
    let first = matches!(words.word(at + 1).as_str(), "FIRST" | "NEXT");
    if !first || words.token(at + 2) != Some(&Token::LParen) {
        return;
    }
    let mut depth = 0_usize;
    let close = (at + 2..words.solid.len()).find(|place| {
        match words.token(*place) {
            Some(Token::LParen) => depth += 1,
            Some(Token::RParen) => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0
    });
    if let Some(close) = close
        && matches!(words.word(close + 1).as_str(), "ROW" | "ROWS")
    {
        match words.word(close + 2).as_str() {
            "ONLY" => words.replace(close + 1, 2, Vec::new()),
            "WITH" => words.replace(
                close + 1,
                1,
                vec![keyword("FETCH"), keyword("FIRST"), keyword("ROWS")],
            ),
            _ => return,
        }
        words.replace(at, 2, vec![keyword("LIMIT")]);
    }
}

/// `INSERT INTO t [(columns)] OVERRIDING SYSTEM VALUE`.
fn overriding(words: &mut Words<'_>, at: usize) {
    let name = match (words.word(at + 1).as_str(), words.word(at + 2).as_str()) {
        ("SYSTEM", "VALUE") => OVERRIDING_SYSTEM,
        ("USER", "VALUE") => OVERRIDING_USER,
        _ => return,
    };
    match at.checked_sub(1).and_then(|before| words.token(before)) {
        Some(Token::RParen) => {
            words.replace(at, 3, Vec::new());
            words.replace(at - 1, 1, vec![Token::Comma, quoted(name), Token::RParen]);
        }
        _ => words.replace(at, 3, vec![Token::LParen, quoted(name), Token::RParen]),
    }
}

/// `WHEN … THEN DO NOTHING`, `… THEN INSERT … DEFAULT VALUES`.
fn when(words: &mut Words<'_>, at: usize) {
    if words.are(at + 1, &["DO", "NOTHING"]) {
        // The WHEN this belongs to: the last one before that is no CASE's.
        let begin = (0..at).rev().find(|place| {
            words.word(*place) == "WHEN"
                && (words.word(place + 1) == "MATCHED" || words.are(place + 1, &["NOT", "MATCHED"]))
        });
        let matched = begin.is_some_and(|begin| words.word(begin + 1) == "MATCHED");
        let new = if matched {
            vec![keyword("UPDATE"), keyword("SET"), quoted(DO_NOTHING), Token::Eq, keyword("NULL")]
        } else {
            insert_of(DO_NOTHING)
        };
        words.replace(at + 1, 2, new);
    } else if words.are(at + 1, &["INSERT", "DEFAULT", "VALUES"]) {
        words.replace(at + 1, 3, insert_of(DEFAULT_VALUES));
    }
}

#[cfg(test)]
mod tests {
    use crate::parse::parse;

    #[test]
    fn only_is_left_out_where_a_table_is_named_and_nowhere_else() {
        let written = |sql: &str| {
            let parsed = parse(sql).expect(sql);
            parsed[0].statement.as_ref().expect("a statement").to_string()
        };
        for (text, as_written) in [
            ("SELECT * FROM ONLY a.t", "SELECT * FROM a.t"),
            ("SELECT * FROM t, ONLY (a.u) AS u", "SELECT * FROM t, a.u AS u"),
            ("SELECT a FROM t JOIN ONLY u ON true", "SELECT a FROM t JOIN u ON true"),
            ("UPDATE ONLY t SET a = 1", "UPDATE t SET a = 1"),
            ("DELETE FROM ONLY (t)", "DELETE FROM t"),
            ("SELECT a, \"only\" FROM \"only\"", "SELECT a, \"only\" FROM \"only\""),
        ] {
            assert_eq!(written(text), as_written);
        }
        // Not in a select list, where PostgreSQL finds a syntax error: another column than what is
        // asked for would be read.
        assert!(written("SELECT a, ONLY b FROM t").contains("ONLY"));
        assert!(written("SET TRANSACTION READ ONLY").contains("READ ONLY"));
    }
}
