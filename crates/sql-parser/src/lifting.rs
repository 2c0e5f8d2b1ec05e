//! Statements that differ in their constants only: the same text but for literals that could as
//! well be parameters.
//!
//! # Purpose
//! Clients that write values into the text of their statements send the same statement again and
//! again. [`Cut`] takes a text apart without parsing it; [`places`] says, of a parsed one, which of
//! its literals a parameter can stand for; [`Cut::template`] is the text with parameters at some of
//! them.
//!
//! # Invariants
//! - Two texts with the same [`Cut::key`] differ in the values of numbers and plain strings, in
//!   their comments, and in nothing else.
//! - A literal has a place only where a parameter of the type that its neighbour gives it means
//!   what the literal means, if the literal is a value of that type: a side of a comparison with a
//!   column, a member of its list, a value of an INSERT or an assignment, and what is added to a
//!   column there. In these places a string may have a cast (`'…'::timestamptz`, as drivers write
//!   moments and uuids): its type is that of the cast. Literals elsewhere (`ORDER BY 1`, `LIMIT 5`,
//!   an argument, a typed `date '…'`) may decide what the statement is.
//!
//! # On failure
//! A text that this module does not surely understand has no cut, and a literal that it does not
//! find again has no place.
//!
//! # Limits
//! Texts of [`MAX_BYTES`] and [`MAX_LITERALS`] literals; none with dollar quotes, escape strings,
//! or comments inside of comments. In a text with parameters of its own no literal has a place.

use std::ops::Range;

use crate::names::fold;
use crate::sqlparser::ast::{
    AssignmentTarget, BinaryOperator, CastKind, DataType, Expr, Insert, ObjectName, Query, SetExpr,
    Statement, UnaryOperator, Update, Value, ValueWithSpan,
};

/// Longest text that is cut, bytes.
pub const MAX_BYTES: usize = 8192;
/// Most literals of such a text.
pub const MAX_LITERALS: usize = 256;

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
    /// The text with one character in place of each literal, and a blank in place of each comment.
    pub key: String,
    /// The literals in their order.
    pub literals: Vec<Literal>,
    /// It has parameters of its own (`$1`).
    pub has_parameters: bool,
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
    /// The column it is assigned to: what does not fit into that is an error, whether there is a
    /// row or not.
    pub target: Option<Target>,
    /// A cast says what type it has.
    pub cast: bool,
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte >= 0x80
}

/// What stands at a byte of a text.
enum Part {
    /// A literal up to there.
    Literal(Written, usize),
    /// A comment up to there.
    Comment(usize),
    /// `$1`, up to there.
    Parameter(usize),
    /// Anything else, up to there.
    Other(usize),
}

/// The part at `at`; `None`: the text is left alone.
fn part(sql: &str, at: usize) -> Option<Part> {
    let bytes = sql.as_bytes();
    let byte = *bytes.get(at)?;
    Some(match byte {
        b'\'' => Part::Literal(Written::String, end_of_quoted(bytes, at)?),
        b'0'..=b'9' => Part::Literal(Written::Number, end_of_number(bytes, at)?),
        b'.' if bytes.get(at + 1).is_some_and(u8::is_ascii_digit) => {
            Part::Literal(Written::Number, end_of_number(bytes, at)?)
        }
        b'"' => Part::Other(at + 1 + bytes[at + 1..].iter().position(|b| *b == b'"')? + 1),
        b'$' => Part::Parameter(end_of_parameter(bytes, at)?),
        0..=8 | b'?' | b'\\' => return None,
        b'-' if bytes.get(at + 1) == Some(&b'-') => Part::Comment(end_of_line(bytes, at)?),
        b'/' if bytes.get(at + 1) == Some(&b'*') => Part::Comment(end_of_block(bytes, at)?),
        b';' if !sql[at + 1..].trim_ascii().is_empty() => return None,
        byte if is_word(byte) => {
            let rest = bytes[at..].iter().position(|b| !is_word(*b));
            let end = rest.map_or(bytes.len(), |length| at + length);
            // `E'…'`, `B'…'` and their kin.
            if matches!(bytes.get(end), Some(b'\'' | b'&')) {
                return None;
            }
            Part::Other(end)
        }
        _ => Part::Other(at + 1),
    })
}

impl Cut {
    /// Takes `sql` apart; `None`: it is left alone.
    #[must_use]
    pub fn of(sql: &str) -> Option<Self> {
        if sql.len() > MAX_BYTES {
            return None;
        }
        let mut cut = Self { key: String::with_capacity(sql.len()), ..Self::default() };
        let (mut at, mut copied) = (0, 0);
        // Strings on two lines are one.
        let mut may_go_on = false;
        while at < sql.len() {
            match part(sql, at)? {
                Part::Other(end) => {
                    may_go_on &= sql.as_bytes()[at].is_ascii_whitespace();
                    at = end;
                }
                Part::Parameter(end) => {
                    cut.has_parameters = true;
                    may_go_on = false;
                    at = end;
                }
                Part::Comment(end) => {
                    cut.key.push_str(&sql[copied..at]);
                    cut.key.push(' ');
                    (at, copied) = (end, end);
                }
                Part::Literal(written, end) => {
                    let is_string = written == Written::String;
                    if (may_go_on && is_string) || cut.literals.len() == MAX_LITERALS {
                        return None;
                    }
                    may_go_on = is_string;
                    cut.key.push_str(&sql[copied..at]);
                    cut.key.push(if is_string { STRING } else { NUMBER });
                    cut.literals.push(Literal { written, at: at..end });
                    (at, copied) = (end, end);
                }
            }
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

/// Behind `$1`; `None`: it is no parameter.
fn end_of_parameter(bytes: &[u8], start: usize) -> Option<usize> {
    let digits = bytes[start + 1..].iter().take_while(|b| b.is_ascii_digit()).count();
    let end = start + 1 + digits;
    let goes_on = bytes.get(end).is_some_and(|b| is_word(*b));
    (digits > 0 && !goes_on).then_some(end)
}

/// Whether what begins at `start` is a comment for everybody: an operator before it could take its
/// first sign.
fn begins_comment(bytes: &[u8], start: usize) -> bool {
    let before = start.checked_sub(1).and_then(|at| bytes.get(at));
    before.is_none_or(|byte| !b"+-*/<>=~!@#%^&|`?".contains(byte))
}

/// Behind a comment of one line, at the end of that.
fn end_of_line(bytes: &[u8], start: usize) -> Option<usize> {
    let length = bytes[start..].iter().position(|b| *b == b'\n').unwrap_or(bytes.len() - start);
    let comment = &bytes[start..start + length];
    // Not everybody ends a line there.
    let lone_return = comment.strip_suffix(b"\r").unwrap_or(comment).contains(&b'\r');
    (begins_comment(bytes, start) && !lone_return).then_some(start + length)
}

/// Behind a comment between signs.
fn end_of_block(bytes: &[u8], start: usize) -> Option<usize> {
    let inner = bytes.get(start + 2..)?;
    let length = inner.windows(2).position(|two| two == b"*/")?;
    let nested = inner[..length].windows(2).any(|two| two == b"/*");
    (begins_comment(bytes, start) && !nested).then_some(start + 2 + length + 2)
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
        _ if cut.has_parameters => {}
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

    /// A literal, perhaps with a sign or a cast, has a place.
    fn operand(&mut self, expr: &Expr, summand: bool, target: Option<Target>) {
        let place = Place { literal: 0, negative: false, start: 0, summand, target, cast: false };
        match expr {
            Expr::Value(value) => self.literal(value, place),
            Expr::UnaryOp { op: UnaryOperator::Minus, expr } => {
                if let Expr::Value(value) = &**expr
                    && matches!(value.value, Value::Number(..))
                {
                    self.literal(value, Place { negative: true, ..place });
                }
            }
            Expr::Cast {
                kind: CastKind::Cast | CastKind::DoubleColon, expr, data_type, ..
            } => {
                if let Expr::Value(value) = &**expr
                    && matches!(value.value, Value::SingleQuotedString(_))
                    && has_no_modifier(data_type)
                {
                    self.literal(value, Place { cast: true, ..place });
                }
            }
            _ => {}
        }
    }

    /// `place` is that of the literal, but for where it is.
    fn literal(&mut self, value: &ValueWithSpan, place: Place) {
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
        let start = if place.negative {
            self.sql[..at].trim_ascii_end().strip_suffix('-').map(str::len)
        } else {
            Some(at)
        };
        if let (true, Some(start)) = (same, start) {
            self.places.push(Place { literal, start, ..place });
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

/// Whether a type is named by words alone: `numeric(8,2)` changes values, and an array's text has a
/// type in it.
fn has_no_modifier(data_type: &DataType) -> bool {
    !data_type.to_string().contains(['(', '[', '"'])
}

fn is_column(expr: &Expr) -> bool {
    matches!(expr, Expr::Identifier(_) | Expr::CompoundIdentifier(_))
}

/// The byte at which a line and column of the parser's are, both counted from 1, in characters.
pub(crate) fn byte_at(sql: &str, line: u64, column: u64) -> Option<usize> {
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
        let cases: [(&str, &str, &[&str]); 14] = [
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
                "SELECT a FROM t WHERE k =  $1 ::int AND k = 1 + 2 AND k = (SELECT 3)",
                &["5"],
            ),
            ("SELECT a1 FROM t2 WHERE a1 = .5", "SELECT a1 FROM t2 WHERE a1 =  $1 ", &[".5"]),
            (
                "INSERT INTO t VALUES ('2024-01-01'::timestamptz, CAST('x' AS uuid), '1'::numeric(8,2), '{1}'::int[])",
                "INSERT INTO t VALUES ( $1 ::timestamptz, CAST( $2  AS uuid), '1'::numeric(8,2), '{1}'::int[])",
                &["2024-01-01", "x"],
            ),
            (
                "UPDATE t SET d = d + '1 day'::interval WHERE k = 1::int AND '1'::int = k",
                "UPDATE t SET d = d +  $1 ::interval WHERE k = 1::int AND '1'::int = k",
                &["1 day"],
            ),
            (
                "/* a: 'b' */ SELECT a FROM t -- 1\nWHERE k = 5 /*c=2*/",
                "/* a: 'b' */ SELECT a FROM t -- 1\nWHERE k =  $1  /*c=2*/",
                &["5"],
            ),
            (
                "SELECT a FROM t WHERE k = $1 AND n = 5",
                "SELECT a FROM t WHERE k = $1 AND n = 5",
                &[],
            ),
            ("SELECT a FROM t WHERE k = 5 --", "SELECT a FROM t WHERE k =  $1  --", &["5"]),
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
        assert_eq!(key("SELECT /* x */ 1 -- y"), key("SELECT /**/ 2 -- z: 'a'"));
        assert_ne!(key("SELECT 1 /* x */"), key("SELECT 1"));
        assert_ne!(key("SELECT $1"), key("SELECT $2"));
        for sql in [
            "SELECT $1a",
            "SELECT $a",
            "SELECT 1 /* /* x */ */",
            "SELECT 1 /* x",
            "SELECT 1 +/* x */ 2",
            "SELECT 1 +--x\n2",
            "SELECT 1 --x\r2",
            "SELECT 'a' /* x */ 'b'",
            "SELECT 'a' -- x\n 'b'",
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
            if let Some(cut) = Cut::of(&sql).filter(|_| !sql.contains("--")) {
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
