//! SEARCH and CYCLE behind a query of WITH RECURSIVE, which the parser does not know, and the node
//! that carries them.
//!
//! ```text
//! (q) SEARCH DEPTH FIRST BY a, b SET o                 ->   (q |> CALL search_depth(o, a, b))
//! (q) CYCLE a SET c TO 'Y' DEFAULT 'N' USING p         ->   (q |> CALL cycle(c, p, 'Y', 'N', a))
//! ```
//!
//! # Invariants
//! `|>` is an operator of nobody's in PostgreSQL, and the tokenizer gives it as such: the token
//! that the parser takes for a step of a query comes from here alone. [`of`] reads the steps,
//! [`keep`] makes them again of a text that the catalog keeps.
//!
//! # On failure
//! 42601.

use std::ops::ControlFlow;

use crate::names::fold;
use crate::sqlparser::ast::{
    Cte, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, PipeOperator,
    Query, VisitMut, VisitorMut,
};
use crate::sqlparser::keywords::Keyword;
use crate::sqlparser::tokenizer::{Token, TokenWithSpan};
use telesto_sql_types::error::{Error, Result};

/// `SEARCH … FIRST BY columns SET sequence`.
pub struct Search {
    /// Whether what is found from a row comes before its neighbours.
    pub depth_first: bool,
    /// The columns.
    pub columns: Vec<String>,
    /// The column that tells the order.
    pub sequence: String,
}

/// `CYCLE columns SET mark TO value DEFAULT default USING path`.
pub struct Cycle {
    /// The columns.
    pub columns: Vec<String>,
    /// The column that tells a row that was there before.
    pub mark: String,
    /// Its value for such a row.
    pub value: Expr,
    /// Its value for others.
    pub default: Expr,
    /// The column of the rows on the way.
    pub path: String,
}

/// What stands behind a query of WITH.
#[must_use]
pub fn of(query: &Query) -> (Option<Search>, Option<Cycle>) {
    let (mut search, mut cycle) = (None, None);
    for step in &query.pipe_operators {
        let PipeOperator::Call { function, .. } = step else { continue };
        let Some(args) = arguments(function) else { continue };
        let named = |args: &[&Expr]| args.iter().map(|arg| name(arg)).collect::<Option<Vec<_>>>();
        match (function.name.to_string().as_str(), args.as_slice()) {
            ("cycle", [mark, path, value, default, columns @ ..]) => {
                if let (Some(mark), Some(path), Some(columns)) =
                    (name(mark), name(path), named(columns))
                {
                    let (value, default) = ((*value).clone(), (*default).clone());
                    cycle = Some(Cycle { columns, mark, value, default, path });
                }
            }
            (kind, [sequence, columns @ ..]) => {
                if let (Some(sequence), Some(columns)) = (name(sequence), named(columns)) {
                    search = Some(Search { depth_first: kind == DEPTH, columns, sequence });
                }
            }
            _ => {}
        }
    }
    (search, cycle)
}

/// The step that is a search for what is deeper first.
const DEPTH: &str = "search_depth";

/// The step that is a search for what is nearer first.
const BREADTH: &str = "search_breadth";

fn arguments(function: &Function) -> Option<Vec<&Expr>> {
    let FunctionArguments::List(list) = &function.args else { return None };
    let argument = |arg| match arg {
        &FunctionArg::Unnamed(FunctionArgExpr::Expr(ref expr)) => Some(expr),
        _ => None,
    };
    list.args.iter().map(argument).collect()
}

fn name(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Identifier(name) => Some(fold(name)),
        _ => None,
    }
}

/// Tokens that are no white space, read one after the other.
struct Words<'t> {
    tokens: &'t [TokenWithSpan],
    solid: &'t [usize],
    at: usize,
}

impl<'t> Words<'t> {
    fn peek(&self) -> Option<&'t TokenWithSpan> {
        self.solid.get(self.at).map(|at| &self.tokens[*at])
    }

    fn take(&mut self, word: Keyword) -> bool {
        let found = matches!(
            self.peek().map(|token| &token.token),
            Some(Token::Word(w)) if w.quote_style.is_none() && w.keyword == word
        );
        self.at += usize::from(found);
        found
    }

    fn unexpected<T>(&self) -> Result<T> {
        Err(Error::syntax(match self.peek() {
            Some(token) => format!("syntax error at or near \"{}\"", token.token),
            None => "syntax error at end of input".to_owned(),
        }))
    }

    fn expect(&mut self, word: Keyword) -> Result<()> {
        if self.take(word) { Ok(()) } else { self.unexpected() }
    }

    /// A name, quoted, so that the parser takes no word for one of its own.
    fn name(&mut self) -> Result<Token> {
        let Some(Token::Word(word)) = self.peek().map(|token| &token.token) else {
            return self.unexpected();
        };
        self.at += 1;
        Ok(match word.quote_style {
            Some(_) => Token::Word(word.clone()),
            None => Token::make_word(&word.value.to_lowercase(), Some('"')),
        })
    }

    fn names(&mut self) -> Result<Vec<Token>> {
        let mut names = vec![self.name()?];
        while self.peek().is_some_and(|token| token.token == Token::Comma) {
            self.at += 1;
            names.push(self.name()?);
        }
        Ok(names)
    }

    /// The tokens of a constant, up to a word: a number, a string, TRUE, FALSE or NULL, or a type's
    /// name before a string.
    fn constant(&mut self, ends: Keyword) -> Result<Vec<Token>> {
        let mut constant = Vec::new();
        let mut ended = false;
        while !self.take(ends) {
            let Some(token) = self.peek() else { return self.unexpected() };
            let named = !constant.is_empty();
            let fits = match &token.token {
                Token::Word(word) => {
                    // What follows a string may be the fields of an interval.
                    let alone = word.quote_style.is_none()
                        && matches!(word.keyword, Keyword::TRUE | Keyword::FALSE | Keyword::NULL);
                    ended = alone || ended;
                    !alone || !named
                }
                Token::Period => named && !ended,
                Token::Number(..) => {
                    ended = true;
                    !named
                }
                Token::SingleQuotedString(_)
                | Token::EscapedStringLiteral(_)
                | Token::UnicodeStringLiteral(_)
                | Token::NationalStringLiteral(_)
                | Token::DollarQuotedString(_)
                | Token::SingleQuotedByteStringLiteral(_)
                | Token::HexStringLiteral(_) => !std::mem::replace(&mut ended, true),
                _ => false,
            };
            if !fits {
                return self.unexpected();
            }
            constant.push(token.token.clone());
            self.at += 1;
        }
        if ended { Ok(constant) } else { self.unexpected() }
    }
}

fn step(function: &str, args: Vec<Vec<Token>>) -> Vec<Token> {
    let mut step = vec![
        Token::VerticalBarRightAngleBracket,
        Token::make_keyword("CALL"),
        Token::make_word(function, None),
        Token::LParen,
    ];
    for (nth, arg) in args.into_iter().enumerate() {
        if nth > 0 {
            step.push(Token::Comma);
        }
        step.extend(arg);
    }
    step.push(Token::RParen);
    step
}

/// Writes the clauses of a statement so.
///
/// # Errors
/// See the module.
pub fn spell(tokens: &mut Vec<TokenWithSpan>) -> Result<()> {
    let is = |token: &Token, known: Keyword| matches!(token, Token::Word(w) if w.quote_style.is_none() && w.keyword == known);
    let has = |known: Keyword| tokens.iter().any(|token| is(&token.token, known));
    if !has(Keyword::RECURSIVE) && !has(Keyword::WITH)
        || !has(Keyword::SEARCH) && !has(Keyword::CYCLE)
    {
        return Ok(());
    }
    let solid: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    // The parenthesis, where the clauses end, and what goes before the parenthesis.
    let mut found: Vec<(usize, usize, Vec<Token>)> = Vec::new();
    for nth in 0..solid.len() {
        if tokens[solid[nth]].token != Token::RParen {
            continue;
        }
        let mut words = Words { tokens, solid: &solid, at: nth + 1 };
        let mut steps = Vec::new();
        if words.take(Keyword::SEARCH) {
            let Some(kind) = kind(&mut words) else { continue };
            words.expect(Keyword::FIRST)?;
            words.expect(Keyword::BY)?;
            let columns = words.names()?;
            words.expect(Keyword::SET)?;
            let names = std::iter::once(words.name()?).chain(columns);
            steps.extend(step(kind, names.map(|name| vec![name]).collect()));
        }
        let before = words.at;
        if words.take(Keyword::CYCLE) {
            let Ok(columns) = words.names() else { continue };
            if !words.take(Keyword::SET) {
                // An option of a sequence.
                if steps.is_empty() {
                    continue;
                }
                words.at = before;
                return words.unexpected();
            }
            let mark = words.name()?;
            let (mut value, mut default) =
                (vec![Token::make_keyword("TRUE")], vec![Token::make_keyword("FALSE")]);
            if words.take(Keyword::TO) {
                value = words.constant(Keyword::DEFAULT)?;
                default = words.constant(Keyword::USING)?;
            } else {
                words.expect(Keyword::USING)?;
            }
            let path = words.name()?;
            let columns = columns.into_iter().map(|name| vec![name]);
            let args = [vec![mark], vec![path], value, default].into_iter().chain(columns);
            steps.extend(step("cycle", args.collect()));
        }
        if !steps.is_empty() {
            found.push((solid[nth], solid[words.at - 1], steps));
        }
    }
    for (close, end, steps) in found.into_iter().rev() {
        let span = tokens[close].span;
        tokens.drain(close + 1..=end);
        let steps = steps.into_iter().map(|token| TokenWithSpan::new(token, span));
        tokens.splice(close..close, steps.collect::<Vec<_>>());
    }
    Ok(())
}

fn kind(words: &mut Words<'_>) -> Option<&'static str> {
    let Some(Token::Word(word)) = words.peek().map(|token| &token.token) else { return None };
    let kind = match word.value.to_ascii_lowercase().as_str() {
        _ if word.quote_style.is_some() => return None,
        "depth" => DEPTH,
        "breadth" => BREADTH,
        _ => return None,
    };
    words.at += 1;
    Some(kind)
}

/// Makes the steps of a text that the catalog keeps what the parser knows:
/// [`crate::syntax::kept_tokens`] gives the sign of each as a backslash, which is none of SQL's
/// outside of strings.
pub fn keep(tokens: &mut [TokenWithSpan]) {
    for token in tokens {
        if token.token == Token::Backslash {
            token.token = Token::VerticalBarRightAngleBracket;
        }
    }
}

/// Gives the clauses of a query the form in which they are written: for its text, not for a binder.
pub fn restore(query: &mut Query) {
    struct Clauses;
    impl VisitorMut for Clauses {
        type Break = ();

        fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
            for cte in query.with.iter_mut().flat_map(|with| with.cte_tables.iter_mut()) {
                restored(cte);
            }
            ControlFlow::Continue(())
        }
    }
    let _ = query.visit(&mut Clauses);
}

/// Behind the parenthesis the parser's tree has a place for a name alone, with FROM before it:
/// [`shown`] takes that out.
fn restored(cte: &mut Cte) {
    let (search, cycle) = of(&cte.query);
    let mut clauses = Vec::new();
    let list = |names: &[String]| {
        let names = names.iter().map(|name| crate::names::ident(name).to_string());
        names.collect::<Vec<_>>().join(", ")
    };
    if let Some(search) = search {
        let first = if search.depth_first { "DEPTH" } else { "BREADTH" };
        let (columns, set) = (list(&search.columns), list(&[search.sequence]));
        clauses.push(format!("SEARCH {first} FIRST BY {columns} SET {set}"));
    }
    if let Some(cycle) = cycle {
        let (columns, mark, path) =
            (list(&cycle.columns), list(&[cycle.mark]), list(&[cycle.path]));
        let (value, default) = (cycle.value.to_string(), cycle.default.to_string());
        let plain = value.eq_ignore_ascii_case("true") && default.eq_ignore_ascii_case("false");
        let to = if plain { String::new() } else { format!(" TO {value} DEFAULT {default}") };
        clauses.push(format!("CYCLE {columns} SET {mark}{to} USING {path}"));
    }
    if !clauses.is_empty() {
        cte.query.pipe_operators.clear();
        cte.from = Some(Ident::new(format!("{HOLE}{}", clauses.join(" "))));
    }
}

/// Stands before what the tree has a FROM in front of.
const HOLE: char = '\0';

/// The text of a query whose clauses were restored.
pub fn shown(text: &str) -> String {
    text.replace(&format!(" FROM {HOLE}"), " ")
}
