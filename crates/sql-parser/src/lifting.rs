//! Statements that differ in their constants only: the same text but for literals that could as well be parameters.
//!
//! # Purpose
//! Clients that write values into the text of their statements send the same statement again and again. [`Cut`] takes a text apart
//! without parsing it; [`places`] says, of a parsed one, which of its literals a parameter can stand for; [`Cut::template`] is the text
//! with parameters at some of them.
//!
//! # Invariants
//! - Two texts with the same [`Cut::key`] differ in the values of numbers and plain strings and in nothing else.
//! - A literal has a place only where a parameter of the type that its neighbour gives it means what the literal means, if the
//!   literal is a value of that type: a side of a comparison with a column, a member of its list, a value of an INSERT or an
//!   assignment, and what is added to a column there. Literals elsewhere (`ORDER BY 1`, `LIMIT 5`, an argument, a typed
//!   `date '…'`) may decide what the statement is.
//!
//! # On failure
//! A text that this module does not surely understand has no cut, and a literal that it does not find again has no place.
//!
//! # Limits
//! Texts of [`MAX_BYTES`] and [`MAX_LITERALS`] literals; none with comments, parameters, dollar quotes or escape strings.

use std::ops::Range;

use crate::names::fold;
use crate::sqlparser::ast::{
    AssignmentTarget, BinaryOperator, Expr, Insert, ObjectName, Query, SetExpr, Statement,
    UnaryOperator, Update, Value, ValueWithSpan,
};

/// Longest text that is cut, bytes.
pub const MAX_BYTES: usize = 4096;
/// Most literals of such a text.
pub const MAX_LITERALS: usize = 64;

/// Stand for a number and a string in a key; no text has them.
const NUMBER: char = '\u{1}';
const STRING: char = '\u{2}';

/// What a literal is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Digits, perhaps with a point and an exponent, without a sign.
    Number,
    /// Between single quotes.
    String,
}

/// A literal of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Literal {
    /// How it is written.
    pub written: Written,
    /// Its bytes in the text, quotes included.
    pub at: Range<usize>,
}

/// A text taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// The text with one character in place of each literal.
    pub key: String,
    /// The literals in their order.
    pub literals: Vec<Literal>,
}

/// The column that a value is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Of this name.
    Named(String),
    /// By its position in the table.
    Position(usize),
}

/// A literal that a parameter can stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which literal of the cut.
    pub literal: usize,
    /// A minus sign before it belongs to it.
    pub negative: bool,
    /// Where the sign or the literal begins in the text.
    start: usize,
    /// It is added to a column, or taken from it: the type of the result is that of both.
    pub summand: bool,
    /// The column it is assigned to: what does not fit into that is an error, whether there is a row or not.
    pub target: Option<Target>,
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte >= 0x80
}

impl Cut {
    /// Takes `sql` apart; `None`: it is left alone.
    #[must_use]
    pub fn of(sql: &str) -> Option<Self> {
        if sql.len() > MAX_BYTES {
            return None;
        }
        let bytes = sql.as_bytes();
        let mut cut = Self { key: String::with_capacity(sql.len()), literals: Vec::new() };
        let mut at = 0;
        let mut copied = 0;
        while let Some(&byte) = bytes.get(at) {
            let (written, end) = match byte {
                b'\'' => (Written::String, end_of_quoted(bytes, at)?),
                b'0'..=b'9' => (Written::Number, end_of_number(bytes, at)?),
                b'.' if bytes.get(at + 1).is_some_and(u8::is_ascii_digit) => {
                    (Written::Number, end_of_number(bytes, at)?)
                }
                b'"' => {
                    at += 1 + bytes[at + 1..].iter().position(|b| *b == b'"')? + 1;
                    continue;
                }
                b'$' | 0..=8 | b'?' | b'\\' => return None,
                b'-' if bytes.get(at + 1) == Some(&b'-') => return None,
                b'/' if bytes.get(at + 1) == Some(&b'*') => return None,
                b';' if !sql[at + 1..].trim_ascii().is_empty() => return None,
                byte if is_word(byte) => {
                    while bytes.get(at).is_some_and(|b| is_word(*b)) {
                        at += 1;
                    }
                    // `E'…'`, `B'…'` and their kin.
                    if matches!(bytes.get(at), Some(b'\'' | b'&')) {
                        return None;
                    }
                    continue;
                }
                _ => {
                    at += 1;
                    continue;
                }
            };
            cut.key.push_str(&sql[copied..at]);
            cut.key.push(if written == Written::Number { NUMBER } else { STRING });
            // Strings on two lines are one.
            let goes_on = cut.literals.last().is_some_and(|before: &Literal| {
                before.written == Written::String && sql[before.at.end..at].trim_ascii().is_empty()
            });
            if goes_on || cut.literals.len() == MAX_LITERALS {
                return None;
            }
            cut.literals.push(Literal { written, at: at..end });
            (at, copied) = (end, end);
        }
        cut.key.push_str(&sql[copied..]);
        Some(cut)
    }

    /// The value of a literal as a client would send it for a parameter.
    #[must_use]
    pub fn value(&self, sql: &str, place: &Place) -> Option<String> {
        let literal = self.literals.get(place.literal)?;
        let text = sql.get(literal.at.clone())?;
        Some(match literal.written {
            Written::Number if place.negative => format!("-{text}"),
            Written::Number => text.to_owned(),
            Written::String => text[1..text.len() - 1].replace("''", "'"),
        })
    }

    /// The text with `$1`, `$2`, … at these places, which stand in their order.
    #[must_use]
    pub fn template(&self, sql: &str, places: &[Place]) -> String {
        let mut out = String::with_capacity(sql.len());
        let mut copied = 0;
        for (index, place) in places.iter().enumerate() {
            out.push_str(&sql[copied..place.start]);
            // Blanks, because a sign may have stood between it and a word.
            out.push_str(&format!(" ${} ", index + 1));
            copied = self.literals[place.literal].at.end;
        }
        out.push_str(&sql[copied..]);
        out
    }
}

fn end_of_quoted(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        at += bytes.get(at..)?.iter().position(|b| *b == b'\'')? + 1;
        if bytes.get(at) != Some(&b'\'') {
            return Some(at);
        }
        at += 1;
    }
}

fn end_of_number(bytes: &[u8], start: usize) -> Option<usize> {
    let digits = |mut at: usize| {
        while bytes.get(at).is_some_and(u8::is_ascii_digit) {
            at += 1;
        }
        at
    };
    let mut at = digits(start);
    if bytes.get(at) == Some(&b'.') {
        at = digits(at + 1);
    }
    if matches!(bytes.get(at), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
        let end = digits(at + 1 + sign);
        if end == at + 1 + sign {
            return None;
        }
        at = end;
    }
    // `1abc`, `0x1F` and `1.2.3` are somebody else's.
    if bytes.get(at).is_some_and(|b| is_word(*b) || *b == b'.') { None } else { Some(at) }
}

/// The literals of a statement that parameters can stand for, in their order.
#[must_use]
pub fn places(sql: &str, cut: &Cut, statement: &Statement) -> Vec<Place> {
    let mut finder = Finder { sql, cut, places: Vec::new() };
    match statement {
        Statement::Query(query) => finder.query(query),
        Statement::Insert(insert) => finder.insert(insert),
        Statement::Update(update) => finder.update(update),
        Statement::Delete(delete) => {
            delete.selection.iter().for_each(|condition| finder.condition(condition));
        }
        _ => {}
    }
    let mut places = finder.places;
    places.sort_by_key(|place| place.start);
    places.dedup_by_key(|place| place.literal);
    places
}

struct Finder<'a> {
    sql: &'a str,
    cut: &'a Cut,
    places: Vec<Place>,
}

impl Finder<'_> {
    fn query(&mut self, query: &Query) {
        if query.with.is_none()
            && let SetExpr::Select(select) = &*query.body
        {
            select.selection.iter().for_each(|condition| self.condition(condition));
        }
    }

    fn insert(&mut self, insert: &Insert) {
        let Some(source) = &insert.source else { return };
        let SetExpr::Values(values) = &*source.body else { return };
        for row in &values.rows {
            for (position, value) in row.content.iter().enumerate() {
                let target = match insert.columns.get(position) {
                    Some(name) => column_name(name),
                    None => Some(Target::Position(position)),
                };
                if target.is_some() {
                    self.operand(value, false, target);
                }
            }
        }
    }

    fn update(&mut self, update: &Update) {
        for assignment in &update.assignments {
            if let AssignmentTarget::ColumnName(name) = &assignment.target
                && let Some(target) = column_name(name)
            {
                self.operand(&assignment.value, false, Some(target));
            }
            if let Expr::BinaryOp { left, op: BinaryOperator::Plus | BinaryOperator::Minus, right } =
                &assignment.value
                && is_column(left)
            {
                self.operand(right, true, None);
            }
        }
        update.selection.iter().for_each(|condition| self.condition(condition));
    }

    fn condition(&mut self, condition: &Expr) {
        match condition {
            Expr::Nested(inner) => self.condition(inner),
            Expr::BinaryOp { left, op: BinaryOperator::And | BinaryOperator::Or, right } => {
                self.condition(left);
                self.condition(right);
            }
            Expr::BinaryOp {
                left,
                op:
                    BinaryOperator::Eq
                    | BinaryOperator::NotEq
                    | BinaryOperator::Lt
                    | BinaryOperator::LtEq
                    | BinaryOperator::Gt
                    | BinaryOperator::GtEq,
                right,
            } if is_column(left) => self.operand(right, false, None),
            Expr::InList { expr, list, .. } if is_column(expr) => {
                list.iter().for_each(|member| self.operand(member, false, None));
            }
            Expr::Between { expr, low, high, .. } if is_column(expr) => {
                self.operand(low, false, None);
                self.operand(high, false, None);
            }
            _ => {}
        }
    }

    /// A literal, perhaps with a sign, has a place.
    fn operand(&mut self, expr: &Expr, summand: bool, target: Option<Target>) {
        match expr {
            Expr::Value(value) => self.literal(value, false, summand, target),
            Expr::UnaryOp { op: UnaryOperator::Minus, expr } => {
                if let Expr::Value(value) = &**expr
                    && matches!(value.value, Value::Number(..))
                {
                    self.literal(value, true, summand, target);
                }
            }
            _ => {}
        }
    }

    fn literal(
        &mut self,
        value: &ValueWithSpan,
        negative: bool,
        summand: bool,
        target: Option<Target>,
    ) {
        let Some(at) = byte_at(self.sql, value.span.start.line, value.span.start.column) else {
            return;
        };
        let found = self.cut.literals.iter().position(|literal| literal.at.start == at);
        let Some(literal) = found else { return };
        let text = &self.sql[self.cut.literals[literal].at.clone()];
        let same = match &value.value {
            Value::Number(digits, false) => digits == text,
            Value::SingleQuotedString(string) => {
                text.starts_with('\'') && text[1..text.len() - 1].replace("''", "'") == *string
            }
            _ => false,
        };
        let start = if negative {
            self.sql[..at].trim_ascii_end().strip_suffix('-').map(str::len)
        } else {
            Some(at)
        };
        if let (true, Some(start)) = (same, start) {
            self.places.push(Place { literal, negative, start, summand, target });
        }
    }
}

/// The column that a name of one part means.
fn column_name(name: &ObjectName) -> Option<Target> {
    match name.0.as_slice() {
        [part] => part.as_ident().map(|ident| Target::Named(fold(ident))),
        _ => None,
    }
}

fn is_column(expr: &Expr) -> bool {
    matches!(expr, Expr::Identifier(_) | Expr::CompoundIdentifier(_))
}

/// The byte at which a line and column of the parser's are, both counted from 1, in characters.
fn byte_at(sql: &str, line: u64, column: u64) -> Option<usize> {
    let lines_before = usize::try_from(line.checked_sub(1)?).ok()?;
    let begin = match lines_before {
        0 => 0,
        n => sql.match_indices('\n').nth(n - 1)?.0 + 1,
    };
    let before = usize::try_from(column.checked_sub(1)?).ok()?;
    let (at, _) = sql[begin..].char_indices().nth(before)?;
    Some(begin + at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::parse::parse;

    fn lifted(sql: &str) -> (String, Vec<String>) {
        let cut = Cut::of(sql).expect("a cut");
        let parsed = parse(sql).expect("parses").remove(0);
        let places = places(sql, &cut, parsed.statement.as_ref().expect("a statement"));
        let values = places.iter().map(|place| cut.value(sql, place).expect("a value")).collect();
        (cut.template(sql, &places), values)
    }

    #[test]
    fn literals_beside_columns_are_lifted_and_others_stay() {
        let cases: [(&str, &str, &[&str]); 9] = [
            (
                "SELECT a, 7 FROM t WHERE k = 5 ORDER BY 1 LIMIT 3",
                "SELECT a, 7 FROM t WHERE k =  $1  ORDER BY 1 LIMIT 3",
                &["5"],
            ),
            (
                "select * from t where a='it''s' and (b<-2 or c in (1,-3))",
                "select * from t where a= $1  and (b< $2  or c in ( $3 , $4 ))",
                &["it's", "-2", "1", "-3"],
            ),
            (
                "SELECT é FROM t\nWHERE \"é ' 1\" = 'ü' AND x BETWEEN 1.5 AND 2e3;",
                "SELECT é FROM t\nWHERE \"é ' 1\" =  $1  AND x BETWEEN  $2  AND  $3 ;",
                &["ü", "1.5", "2e3"],
            ),
            (
                "INSERT INTO t VALUES (1, 'a', now(), f(2)), (- 3, NULL, 'b', 4)",
                "INSERT INTO t VALUES ( $1 ,  $2 , now(), f(2)), ( $3 , NULL,  $4 ,  $5 )",
                &["1", "a", "-3", "b", "4"],
            ),
            (
                "UPDATE t SET n = n + -12, m = 5, o = o * 2 WHERE k = 9",
                "UPDATE t SET n = n +  $1 , m =  $2 , o = o * 2 WHERE k =  $3 ",
                &["-12", "5", "9"],
            ),
            (
                "DELETE FROM t WHERE d > date '2020-01-01' AND k <> 4",
                "DELETE FROM t WHERE d > date '2020-01-01' AND k <>  $1 ",
                &["4"],
            ),
            (
                "SELECT a FROM t WHERE lower(a) = 'x' AND a LIKE 'y%' AND 5 = k",
                "SELECT a FROM t WHERE lower(a) = 'x' AND a LIKE 'y%' AND 5 = k",
                &[],
            ),
            (
                "SELECT a FROM t WHERE k = '5'::int AND k = 1 + 2 AND k = (SELECT 3)",
                "SELECT a FROM t WHERE k = '5'::int AND k = 1 + 2 AND k = (SELECT 3)",
                &[],
            ),
            ("SELECT a1 FROM t2 WHERE a1 = .5", "SELECT a1 FROM t2 WHERE a1 =  $1 ", &[".5"]),
        ];
        for (sql, template, values) in cases {
            assert_eq!(
                lifted(sql),
                (template.to_owned(), values.iter().map(|v| (*v).to_owned()).collect()),
                "{sql}"
            );
        }
    }

    #[test]
    fn keys_are_the_same_for_other_values_only() {
        let key = |sql: &str| Cut::of(sql).map(|cut| cut.key);
        assert_eq!(key("SELECT 1 FROM t WHERE a = 'x'"), key("SELECT 22 FROM t WHERE a = ''"));
        assert_ne!(key("SELECT 1 FROM t WHERE a = 'x'"), key("SELECT 1 FROM t WHERE a = 7"));
        assert_ne!(key("SELECT a FROM t1"), key("SELECT a FROM t2"));
        assert_ne!(key("SELECT \"1\" FROM t"), key("SELECT \"2\" FROM t"));
        for sql in [
            "SELECT $1",
            "SELECT 1 -- x",
            "SELECT /* x */ 1",
            "SELECT E'a'",
            "SELECT $$a$$",
            "SELECT 1; SELECT 2",
            "SELECT 'a' 'b'",
            "SELECT 'a'\n'b'",
            "SELECT 1abc",
            "SELECT 0x1F",
            "SELECT 'a",
            "SELECT U&'a'",
            "SELECT 1.2.3",
            "SELECT \"a",
        ] {
            assert_eq!(key(sql), None, "{sql}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_cut_or_left_alone(sql in "[a-z'\"0-9 .;$\\-+é\n(),=eE]{0,40}") {
            if let Some(cut) = Cut::of(&sql) {
                // What was cut out and what is left are the whole.
                let mut whole = String::new();
                let mut literals = cut.literals.iter();
                for c in cut.key.chars() {
                    match c {
                        NUMBER | STRING => whole.push_str(&sql[literals.next().expect("one more").at.clone()]),
                        c => whole.push(c),
                    }
                }
                prop_assert_eq!(whole, sql);
            }
        }
    }
}
