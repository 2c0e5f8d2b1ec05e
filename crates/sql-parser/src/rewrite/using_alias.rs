//! `JOIN … USING (a, b) AS j`, which the parser does not know, written as `USING (j.a, j.b)`.
//!
//! # Invariants
//! PostgreSQL's grammar has no qualified names in a list of USING, and where a client writes some
//! they are refused: the parser's node for them is this module's own. [`alias`] reads it,
//! [`restore`] gives it the form in which it was written.
//!
//! # On failure
//! 42601.

use std::ops::ControlFlow;

use crate::sqlparser::ast::{
    Ident, Join, JoinConstraint, JoinOperator, ObjectName, Query, Select, VisitMut, VisitorMut,
};
use crate::sqlparser::keywords::Keyword;
use crate::sqlparser::tokenizer::{Token, TokenWithSpan};
use telesto_sql_types::error::{Error, Result};

/// The alias of the columns that a join merges.
#[must_use]
pub fn alias(names: &[ObjectName]) -> Option<&Ident> {
    match names.first()?.0.as_slice() {
        [alias, _] => alias.as_ident(),
        _ => None,
    }
}

fn keyword(token: Option<&Token>) -> Keyword {
    match token {
        Some(Token::Word(word)) if word.quote_style.is_none() => word.keyword,
        _ => Keyword::NoKeyword,
    }
}

/// Writes the lists of a statement that have an alias so; `kept`: the text is not a client's, and
/// may have the node.
///
/// # Errors
/// See the module.
pub fn spell(tokens: &mut Vec<TokenWithSpan>, kept: bool) -> Result<()> {
    if !tokens.iter().any(|token| keyword(Some(&token.token)) == Keyword::JOIN) {
        return Ok(());
    }
    let solid: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    let token = |nth: usize| solid.get(nth).map(|at| &tokens[*at].token);
    let mut found: Vec<(Vec<usize>, usize, usize)> = Vec::new();
    for nth in 0..solid.len() {
        if keyword(token(nth)) != Keyword::USING || token(nth + 1) != Some(&Token::LParen) {
            continue;
        }
        let mut names = Vec::new();
        let mut at = nth + 2;
        // USING (subquery) of MERGE and of DELETE is another one.
        let close = loop {
            match (token(at), token(at + 1)) {
                (Some(Token::Word(_)), Some(Token::Comma)) => names.push(solid[at]),
                (Some(Token::Word(_)), Some(Token::RParen)) => {
                    names.push(solid[at]);
                    break Some(at + 1);
                }
                (Some(Token::Word(_)), Some(dot @ Token::Period)) if !kept => {
                    let qualified = matches!(token(at + 3), Some(Token::Comma | Token::RParen));
                    if qualified {
                        return Err(Error::syntax(format!("syntax error at or near \"{dot}\"")));
                    }
                    break None;
                }
                _ => break None,
            }
            at += 2;
        };
        if let Some(close) = close
            && keyword(token(close + 1)) == Keyword::AS
            && matches!(token(close + 2), Some(Token::Word(_)))
        {
            found.push((names, solid[close + 1], solid[close + 2]));
        }
    }
    // From behind, so that what is put in moves nothing that is yet to be changed.
    for (names, from, to) in found.into_iter().rev() {
        let alias = tokens[to].clone();
        tokens.drain(from..=to);
        for at in names.into_iter().rev() {
            let span = alias.span;
            tokens.splice(at..at, [alias.clone(), TokenWithSpan::new(Token::Period, span)]);
        }
    }
    Ok(())
}

/// What a join says of its rows.
#[must_use]
pub fn constraint(join: &Join) -> Option<&JoinConstraint> {
    match &join.join_operator {
        JoinOperator::Join(constraint)
        | JoinOperator::Inner(constraint)
        | JoinOperator::Left(constraint)
        | JoinOperator::LeftOuter(constraint)
        | JoinOperator::Right(constraint)
        | JoinOperator::RightOuter(constraint)
        | JoinOperator::FullOuter(constraint)
        | JoinOperator::CrossJoin(constraint) => Some(constraint),
        _ => None,
    }
}

/// Gives the joins of a query the form in which they are written: for its text, not for a binder.
pub fn restore(query: &mut Query) {
    struct Joins;
    impl VisitorMut for Joins {
        type Break = ();

        fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
            for join in select.from.iter_mut().flat_map(|from| from.joins.iter_mut()) {
                restored(join);
            }
            ControlFlow::Continue(())
        }

        fn post_visit_table_factor(
            &mut self,
            factor: &mut crate::sqlparser::ast::TableFactor,
        ) -> ControlFlow<()> {
            if let crate::sqlparser::ast::TableFactor::NestedJoin { table_with_joins, .. } = factor
            {
                table_with_joins.joins.iter_mut().for_each(restored);
            }
            ControlFlow::Continue(())
        }
    }
    let _ = query.visit(&mut Joins);
}

fn restored(join: &mut Join) {
    let Some(JoinConstraint::Using(names)) = constraint(join) else { return };
    let Some(alias) = alias(names) else { return };
    let columns = names.iter().filter_map(|name| name.0.last()).map(ToString::to_string);
    let columns = columns.collect::<Vec<_>>().join(", ");
    let text = format!("{} USING ({columns}) AS {alias}", join.relation);
    join.relation = super::rows_from::as_text(text);
    if let JoinOperator::Join(constraint)
    | JoinOperator::Inner(constraint)
    | JoinOperator::Left(constraint)
    | JoinOperator::LeftOuter(constraint)
    | JoinOperator::Right(constraint)
    | JoinOperator::RightOuter(constraint)
    | JoinOperator::FullOuter(constraint) = &mut join.join_operator
    {
        *constraint = JoinConstraint::None;
    }
}
