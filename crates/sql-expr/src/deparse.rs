//! Bound expressions as SQL text, as PostgreSQL's `pg_get_expr` and `pg_get_indexdef` print them.
//!
//! # Invariants
//! - The text binds again to the same expression. Who stores it checks that (whoever compiles the
//!   table) and keeps what the user wrote where it does not hold.
//! - Implicit casts are shown, as PostgreSQL does, but for those between integer widths around a
//!   comparison, for which it has operators.
//!
//! # Limits
//! What binding has forgotten cannot be shown: `substring(a, 1)` and `substring(a from 1)` both
//! give the latter; a constant that was cast gives the cast's result, unless it was bound as
//! written ([`super::Binder::as_written`]).

mod values;

use super::bound::{Bounds, Comparison, Expr, Node};
use super::context::EvalContext;
use super::ty::CastContext;
use telesto_sql_parser::rewrite::collation::KEY;
use telesto_sql_parser::rewrite::variadic::plain_name;
use telesto_sql_types::identifier::quote_ident;
use telesto_sql_types::{Datum, SqlType};

/// How to print.
#[derive(Clone, Copy)]
pub struct Deparse<'a> {
    /// Names of columns by position.
    pub column: &'a dyn Fn(usize) -> String,
    /// Without the parentheses that precedence makes needless (what psql shows).
    pub pretty: bool,
    /// Whose search path says which names of types and relations need their schema. Then the
    /// expression was bound as written, and constants are shown as such. `None`: for the catalog's
    /// own text.
    pub reader: Option<&'a EvalContext<'a>>,
    /// Columns are VALUE of a domain over a domain: operators and functions are those of its base
    /// type, for which it is cast.
    pub inner_domain: bool,
}

impl std::fmt::Debug for Deparse<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Deparse").field("pretty", &self.pretty).finish_non_exhaustive()
    }
}

/// Where an expression stands.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Top,
    /// An argument, an item of a list: no parentheses needed.
    Item,
    And,
    Or,
    Not,
    /// Beside an operator.
    Operand,
}

fn symbol(comparison: Comparison) -> &'static str {
    match comparison {
        Comparison::Eq => "=",
        Comparison::NotEq => "<>",
        Comparison::Lt => "<",
        Comparison::LtEq => "<=",
        Comparison::Gt => ">",
        Comparison::GtEq => ">=",
    }
}

/// Whether the text of `expr` is a function call, which an index definition shows without
/// parentheses.
#[must_use]
pub fn looks_like_function(expr: &Expr) -> bool {
    match &expr.node {
        // Rows and their fields are calls here, and are not written as such.
        Node::Call(function, ..) => {
            function.name.starts_with(|c: char| c.is_alphabetic())
                && !function.name.starts_with("row#")
        }
        Node::Coalesce(_) | Node::Extreme(..) | Node::NullIf(..) => true,
        _ => false,
    }
}

/// Whether PostgreSQL compares the two types without a cast.
fn have_operators(a: &SqlType, b: &SqlType) -> bool {
    use SqlType as T;
    let moment = |ty: &T| matches!(ty, T::Date | T::Timestamp(_) | T::TimestampTz(_));
    let float = |ty: &T| matches!(ty, T::Float4 | T::Float8);
    a.is_integer() && b.is_integer() || moment(a) && moment(b) || float(a) && float(b)
}

/// SIMILAR TO is a regular expression that a function makes of the pattern: the operator, the text,
/// that function's arguments.
fn as_similar(expr: &Expr) -> Option<(&'static str, &Expr, &[Expr])> {
    let (symbol, call) = match &expr.node {
        Node::Not(inner) => ("!~", &**inner),
        _ => ("~", expr),
    };
    match &call.node {
        Node::Call(function, args, _) if function.name == "similar" => {
            args.split_first().map(|(text, pattern)| (symbol, text, pattern))
        }
        _ => None,
    }
}

/// Functions that are written without parentheses.
fn is_word_call(name: &str) -> bool {
    matches!(
        name,
        "current_date"
            | "current_time"
            | "current_timestamp"
            | "localtime"
            | "localtimestamp"
            | "current_user"
            | "current_role"
            | "session_user"
            | "user"
            | "current_catalog"
            | "current_schema"
    )
}

impl Deparse<'_> {
    /// The text.
    #[must_use]
    pub fn text(&self, expr: &Expr) -> String {
        self.expr(expr, Place::Top)
    }

    fn paren(&self, text: String, needed: bool) -> String {
        if needed || !self.pretty { format!("({text})") } else { text }
    }

    fn list(&self, items: &[Expr]) -> String {
        items.iter().map(|e| self.expr(e, Place::Item)).collect::<Vec<_>>().join(", ")
    }

    /// What has an operator around it.
    fn infix(&self, text: String, place: Place) -> String {
        self.paren(text, place == Place::Operand)
    }

    fn expr(&self, expr: &Expr, place: Place) -> String {
        if let Some((symbol, [text, pattern])) = expr.as_like() {
            let (text, pattern) =
                (self.argument(text, Place::Operand), self.argument(pattern, Place::Operand));
            return self.infix(format!("{text} {symbol} {pattern}"), place);
        }
        if let Some((symbol, text, pattern)) = as_similar(expr) {
            let text = self.argument(text, Place::Operand);
            let pattern = format!("similar_to_escape({})", self.list(pattern));
            return self.infix(format!("{text} {symbol} {pattern}"), place);
        }
        match &expr.node {
            Node::Const(value) => self.constant(value, &expr.ty),
            Node::Column(at) => (self.column)(*at),
            Node::Param(number) => format!("${number}"),
            Node::And(items) | Node::Or(items) => {
                let and = matches!(expr.node, Node::And(_));
                let (word, inside) = if and { (" AND ", Place::And) } else { (" OR ", Place::Or) };
                let text =
                    items.iter().map(|e| self.expr(e, inside)).collect::<Vec<_>>().join(word);
                let needed = match place {
                    Place::Top | Place::Item => false,
                    Place::And => !and,
                    Place::Or => false,
                    Place::Not | Place::Operand => true,
                };
                self.paren(text, needed)
            }
            Node::Not(item) => self.infix(format!("NOT {}", self.expr(item, Place::Not)), place),
            Node::Compare(comparison, a, b) => {
                let text =
                    format!("{} {} {}", self.compared(a), symbol(*comparison), self.compared(b));
                self.infix(text, place)
            }
            Node::Distinct(negated, a, b) => {
                let text = format!(
                    "{} IS DISTINCT FROM {}",
                    self.argument(a, Place::Operand),
                    self.argument(b, Place::Operand)
                );
                if *negated {
                    self.infix(format!("NOT {}", self.paren(text, false)), place)
                } else {
                    self.infix(text, place)
                }
            }
            Node::IsNull(negated, item) => {
                let word = if *negated { "IS NOT NULL" } else { "IS NULL" };
                self.infix(format!("{} {word}", self.expr(item, Place::Operand)), place)
            }
            Node::IsTruth(wanted, negated, item) => {
                let not = if *negated { "NOT " } else { "" };
                let word = match wanted {
                    Some(true) => "TRUE",
                    Some(false) => "FALSE",
                    None => "UNKNOWN",
                };
                self.infix(format!("{} IS {not}{word}", self.expr(item, Place::Operand)), place)
            }
            Node::InList(value, list, negated) => self.in_list(value, list, *negated, place),
            Node::QuantifiedCall(value, function, list, all) => {
                let word = if *all { "ALL" } else { "ANY" };
                let (value, list) =
                    (self.argument(value, Place::Operand), self.expr(list, Place::Item));
                self.infix(format!("{value} {} {word} ({list})", function.name), place)
            }
            Node::Quantified(value, comparison, list, all) => {
                let word = if *all { "ALL" } else { "ANY" };
                // The operator takes integers of two widths.
                let list = match &list.node {
                    Node::Cast(inner, CastContext::Implicit)
                        if inner.ty.element_type().is_some_and(SqlType::is_integer) =>
                    {
                        inner
                    }
                    _ => list,
                };
                let text = format!(
                    "{} {} {word} ({})",
                    self.argument(value, Place::Operand),
                    symbol(*comparison),
                    self.expr(list, Place::Item)
                );
                // PostgreSQL keeps these parentheses in its pretty form.
                self.paren(text, place != Place::Top)
            }
            Node::RowCompare(Comparison::Eq, pairs) => {
                let items: Vec<String> = pairs
                    .iter()
                    .map(|(a, b)| {
                        self.paren(format!("{} = {}", self.compared(a), self.compared(b)), false)
                    })
                    .collect();
                self.paren(items.join(" AND "), !matches!(place, Place::Top | Place::And))
            }
            Node::RowCompare(comparison, pairs) => {
                let (left, right): (Vec<String>, Vec<String>) = pairs
                    .iter()
                    .map(|(a, b)| (self.expr(a, Place::Item), self.expr(b, Place::Item)))
                    .unzip();
                let text = format!(
                    "ROW({}) {} ROW({})",
                    left.join(", "),
                    symbol(*comparison),
                    right.join(", ")
                );
                self.infix(text, place)
            }
            Node::Once(number, value, whole) => self.once(*number, value, whole, place),
            Node::Held(number) => format!("${number}"),
            Node::Case(branches, otherwise) => {
                let mut out = String::from("\nCASE");
                for (condition, result) in branches {
                    out.push_str(&format!(
                        "\n    WHEN {} THEN {}",
                        self.expr(condition, Place::Item),
                        self.expr(result, Place::Item)
                    ));
                }
                let otherwise = otherwise.as_ref().map_or_else(
                    || self.constant(&Datum::Null, &expr.ty),
                    |e| self.expr(e, Place::Item),
                );
                out.push_str(&format!("\n    ELSE {otherwise}\nEND"));
                out
            }
            Node::Coalesce(items) => format!("COALESCE({})", self.list(items)),
            Node::Extreme(greatest, items) => {
                let word = if *greatest { "GREATEST" } else { "LEAST" };
                format!("{word}({})", self.list(items))
            }
            Node::NullIf(equal, _) => match &equal.node {
                Node::Compare(_, a, b) => {
                    format!("NULLIF({}, {})", self.expr(a, Place::Item), self.expr(b, Place::Item))
                }
                _ => format!("NULLIF({})", self.expr(equal, Place::Item)),
            },
            Node::Cast(inner, how) => self.cast(inner, &expr.ty, *how),
            Node::Call(function, args, _) => self.call(function.name, args, place),
            Node::Array(items, _) if items.is_empty() => {
                format!("ARRAY[]::{}", self.type_text(&expr.ty))
            }
            Node::Array(items, _) => format!("ARRAY[{}]", self.list(items)),
            Node::Subscript(value, subscripts) => {
                let subscripts: String =
                    subscripts.iter().map(|s| format!("[{}]", self.expr(s, Place::Item))).collect();
                format!("{}{subscripts}", self.primary(value))
            }
            Node::Slice(value, bounds) => {
                let bounds: String = bounds.iter().map(|pair| self.bounds(pair)).collect();
                format!("{}{bounds}", self.primary(value))
            }
        }
    }

    /// `CASE value WHEN`, or NULLIF, of a value that is computed once.
    fn once(&self, number: u32, value: &Expr, whole: &Expr, place: Place) -> String {
        let text = self.expr(&whole.given(number, value), place);
        let Node::Case(branches, _) = &whole.node else { return text };
        let mut out = text.replacen("CASE", &format!("CASE {}", self.expr(value, Place::Item)), 1);
        for (condition, _) in branches {
            let Node::Compare(_, _, wanted) = &condition.node else { return text };
            let before =
                format!("WHEN {} THEN", self.expr(&condition.given(number, value), Place::Item));
            let after = format!("WHEN {} THEN", self.expr(wanted, Place::Item));
            out = out.replacen(&before, &after, 1);
        }
        out
    }

    /// `[low:high]`.
    fn bounds(&self, (low, high): &Bounds) -> String {
        let end = |e: &Option<Box<Expr>>| {
            e.as_ref().map_or_else(String::new, |e| self.expr(e, Place::Item))
        };
        format!("[{}:{}]", end(low), end(high))
    }

    /// What a cast or a subscript may follow: in parentheses unless it is a column.
    fn primary(&self, expr: &Expr) -> String {
        let text = self.expr(expr, Place::Operand);
        match &expr.node {
            Node::Column(_) => text,
            _ => format!("({text})"),
        }
    }

    fn cast(&self, inner: &Expr, ty: &SqlType, how: CastContext) -> String {
        if let Some(shown) = self.written_cast(inner, ty, how) {
            return shown;
        }
        self.plain_cast(inner, ty)
    }

    fn plain_cast(&self, inner: &Expr, ty: &SqlType) -> String {
        let (text, ty_text) = (self.expr(inner, Place::Operand), self.type_text(ty));
        let simple = matches!(
            inner.node,
            Node::Column(_) | Node::Const(_) | Node::Cast(..) | Node::Array(..)
        ) || looks_like_function(inner);
        // An operator expression has its own parentheses in the pretty form.
        if self.pretty && (simple || text.starts_with('(')) {
            format!("{text}::{ty_text}")
        } else {
            format!("({text})::{ty_text}")
        }
    }

    /// A side of a comparison.
    fn compared(&self, expr: &Expr) -> String {
        match &expr.node {
            Node::Cast(inner, CastContext::Implicit) if have_operators(&inner.ty, &expr.ty) => {
                self.argument(inner, Place::Operand)
            }
            Node::Const(value)
                if self.reader.is_none()
                    && expr.ty.is_integer()
                    && value.as_i64().is_some_and(|v| v >= 0) =>
            {
                self.constant(&value.as_i64().map_or(Datum::Null, Datum::Int8), &SqlType::Int4)
            }
            _ => self.argument(expr, Place::Operand),
        }
    }

    /// What an operator or a function takes.
    fn argument(&self, expr: &Expr, place: Place) -> String {
        match &expr.node {
            Node::Column(_) if self.inner_domain => self.plain_cast(expr, &expr.ty),
            _ => self.expr(expr, place),
        }
    }

    fn in_list(&self, value: &Expr, list: &[Expr], negated: bool, place: Place) -> String {
        let (op, word) = if negated { ("<>", "ALL") } else { ("=", "ANY") };
        let left = self.compared(value);
        if let [one] = list {
            return self.infix(format!("{left} {op} {}", self.compared(one)), place);
        }
        let from_varchar =
            matches!(&value.node, Node::Cast(inner, _) if matches!(inner.ty, SqlType::Varchar(_)));
        let array = if from_varchar && value.ty == SqlType::Text {
            let items: Vec<String> = list
                .iter()
                .map(|item| match &item.node {
                    Node::Const(value) => self.constant(value, &SqlType::Varchar(None)),
                    _ => self.expr(item, Place::Item),
                })
                .collect();
            let array = format!("ARRAY[{}]", items.join(", "));
            if self.pretty { format!("{array}::text[]") } else { format!("({array})::text[]") }
        } else {
            let item = |item: &Expr| match self.reader {
                Some(_) => self.expr(item, Place::Item),
                None => self.compared(item),
            };
            let items: Vec<String> = list.iter().map(item).collect();
            format!("ARRAY[{}]", items.join(", "))
        };
        let text = format!("{left} {op} {word} ({array})");
        self.paren(text, place != Place::Top)
    }

    /// A side of an operator: arithmetic that binds tighter needs no parentheses in the pretty
    /// form.
    fn operand(&self, expr: &Expr, parent: &str, left: bool) -> String {
        let low = |op: &str| matches!(op, "+" | "-");
        let high = |op: &str| matches!(op, "*" | "/" | "%");
        let inner = match &expr.node {
            Node::Call(function, args, _) if args.len() == 2 => function.name,
            _ => "",
        };
        let arithmetic = (low(inner) || high(inner)) && (low(parent) || high(parent));
        let tighter = high(inner) && low(parent) || left && !(low(inner) && high(parent));
        let place = if arithmetic && tighter { Place::Item } else { Place::Operand };
        match &expr.node {
            // `%` and the bit operators have no form for two widths.
            Node::Cast(wide, CastContext::Implicit)
                if matches!(parent, "+" | "-" | "*" | "/")
                    && wide.ty.is_integer()
                    && expr.ty.is_integer() =>
            {
                self.argument(wide, place)
            }
            _ => self.argument(expr, place),
        }
    }

    fn call(&self, name: &str, args: &[Expr], place: Place) -> String {
        if let Some(text) = self.of_rows(name, args, place) {
            return text;
        }
        let operator = !name.starts_with(|c: char| c.is_alphabetic() || c == '_');
        let arg = |e: &Expr| self.argument(e, Place::Item);
        if name == "interval_of_fields"
            && let Some(text) = self.of_fields(args)
        {
            return text;
        }
        match (name, args) {
            (_, []) if is_word_call(name) => name.to_uppercase(),
            (_, [one]) if operator => self
                .paren(format!("{name} {}", self.expr(one, Place::Operand)), place != Place::Top),
            (_, [a, b]) if operator => {
                let text = format!(
                    "{} {name} {}",
                    self.operand(a, name, true),
                    self.operand(b, name, false)
                );
                self.infix(text, place)
            }
            ("timezone", [zone, at]) => {
                format!(
                    "({} AT TIME ZONE {})",
                    self.expr(at, Place::Operand),
                    self.expr(zone, Place::Operand)
                )
            }
            ("extract", [Expr { node: Node::Const(field), .. }, from])
                if field.as_str().is_some() =>
            {
                format!("EXTRACT({} FROM {})", field.as_str().unwrap_or_default(), arg(from))
            }
            (KEY, [text, Expr { node: Node::Const(language), .. }]) => self.infix(
                format!(
                    "{} COLLATE \"{}-x-icu\"",
                    self.expr(text, Place::Operand),
                    language.as_str().unwrap_or_default()
                ),
                place,
            ),
            ("substring", [text, from]) => format!("SUBSTRING({} FROM {})", arg(text), arg(from)),
            ("substring", [text, from, length]) => {
                format!("SUBSTRING({} FROM {} FOR {})", arg(text), arg(from), arg(length))
            }
            ("position", [text, part]) => format!("POSITION(({}) IN ({}))", arg(part), arg(text)),
            ("btrim", [text]) => format!("TRIM(BOTH FROM {})", arg(text)),
            _ => {
                let mut args: Vec<String> = args.iter().map(arg).collect();
                let plain = plain_name(name);
                if let (Some(_), Some(last)) = (plain, args.last_mut()) {
                    last.insert_str(0, "VARIADIC ");
                }
                format!("{}({})", quote_ident(plain.unwrap_or(name)), args.join(", "))
            }
        }
    }
}
