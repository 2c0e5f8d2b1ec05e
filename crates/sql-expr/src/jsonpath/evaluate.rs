//! Paths followed through a document.

use std::cmp::Ordering;

use serde_json::{Map, Value};
use telesto_sql_types::Numeric;
use telesto_sql_types::error::{Error, Result, SqlState};

use super::{Access, Arithmetic, Comparing, Node, Path, number};
use crate::fault;
use crate::functions::regexps;

fn fault(code: &'static str, text: impl Into<String>) -> Error {
    Error::new(SqlState(code), text)
}

/// What an expression is evaluated in.
#[derive(Clone, Copy)]
struct Within<'a> {
    lax: bool,
    root: &'a Value,
    variables: &'a Map<String, Value>,
    current: &'a Value,
    /// The last subscript of the innermost array.
    last: Option<usize>,
}

/// Adds the items of a path.
pub(super) fn items(
    path: &Path,
    root: &Value,
    variables: &Map<String, Value>,
    out: &mut Vec<Value>,
) -> Result<()> {
    let within = Within { lax: path.lax, root, variables, current: root, last: None };
    within.items(&path.root, out)
}

impl Within<'_> {
    fn items(&self, node: &Node, out: &mut Vec<Value>) -> Result<()> {
        telesto_sql_types::interrupt::check()?;
        match node {
            Node::Root => out.push(self.root.clone()),
            Node::Current => out.push(self.current.clone()),
            Node::Last => {
                let last = self
                    .last
                    .ok_or_else(|| Error::syntax("LAST is allowed only in array subscripts"))?;
                out.push(Value::from(last));
            }
            Node::Variable(name) => {
                let value = self.variables.get(name).ok_or_else(|| {
                    let text = format!("could not find jsonpath variable \"{name}\"");
                    Error::new(SqlState::UNDEFINED_OBJECT, text)
                })?;
                out.push(value.clone());
            }
            Node::Constant(value) => out.push(value.clone()),
            Node::Access(base, access) => {
                let mut bases = Vec::new();
                let before = self.items(base, &mut bases);
                // What stands behind `.**` meets items of every kind.
                let anywhere = matches!(**base, Node::Access(_, Access::Levels(..)));
                for base in &bases {
                    self.access(base, access, self.lax, anywhere, out)?;
                }
                before?;
            }
            Node::Arithmetic(op, left, right) => {
                let left = self.operand(left, *op, "left")?;
                let right = self.operand(right, *op, "right")?;
                let value = match op {
                    Arithmetic::Add => Some(left.add(&right)),
                    Arithmetic::Subtract => Some(left.sub(&right)),
                    Arithmetic::Multiply => left.mul(&right),
                    Arithmetic::Divide | Arithmetic::Modulo if right.is_zero() => {
                        return Err(fault::division_by_zero());
                    }
                    Arithmetic::Divide => left.div(&right),
                    Arithmetic::Modulo => left.rem(&right),
                };
                let value = value.ok_or_else(|| {
                    Error::new(SqlState::NUMERIC_OUT_OF_RANGE, "value overflows numeric format")
                })?;
                out.push(number(&value)?);
            }
            Node::Sign(negates, inner) => {
                for item in self.unwrapped(inner)? {
                    let value = numeric(&item).ok_or_else(|| {
                        let sign = if *negates { "-" } else { "+" };
                        let text = format!(
                            "operand of unary jsonpath operator {sign} is not a numeric value"
                        );
                        fault("2203B", text)
                    })?;
                    out.push(if *negates { number(&value.neg())? } else { item });
                }
            }
            condition => out.push(match self.truth(condition) {
                Some(truth) => Value::Bool(truth),
                None => Value::Null,
            }),
        }
        Ok(())
    }

    /// The items, in lax mode with arrays replaced by their elements.
    fn unwrapped(&self, node: &Node) -> Result<Vec<Value>> {
        let mut found = Vec::new();
        self.items(node, &mut found)?;
        if !self.lax {
            return Ok(found);
        }
        let mut out = Vec::with_capacity(found.len());
        for item in found {
            match item {
                Value::Array(elements) => out.extend(elements),
                item => out.push(item),
            }
        }
        Ok(out)
    }

    fn operand(&self, node: &Node, op: Arithmetic, side: &str) -> Result<Numeric> {
        let found = self.unwrapped(node)?;
        let one = match &found[..] {
            [one] => numeric(one),
            _ => None,
        };
        one.ok_or_else(|| {
            let op = match op {
                Arithmetic::Add => "+",
                Arithmetic::Subtract => "-",
                Arithmetic::Multiply => "*",
                Arithmetic::Divide => "/",
                Arithmetic::Modulo => "%",
            };
            let text =
                format!("{side} operand of jsonpath operator {op} is not a single numeric value");
            fault("22038", text)
        })
    }

    /// Adds what an accessor finds in an item. `unwrap`: an array stands for its elements.
    fn access(
        &self,
        item: &Value,
        access: &Access,
        unwrap: bool,
        anywhere: bool,
        out: &mut Vec<Value>,
    ) -> Result<()> {
        let forgiving = self.lax || anywhere;
        let elements = match item {
            Value::Array(elements) if unwrap => Some(elements),
            _ => None,
        };
        match (access, item) {
            (Access::Key(key), Value::Object(members)) => match members.get(key) {
                Some(value) => out.push(value.clone()),
                None if forgiving => {}
                None => {
                    let text = format!("JSON object does not contain key \"{key}\"");
                    return Err(fault("2203A", text));
                }
            },
            (Access::Members, Value::Object(members)) => out.extend(members.values().cloned()),
            (Access::Elements, Value::Array(elements)) => out.extend(elements.iter().cloned()),
            (Access::Subscripts(ranges), Value::Array(elements)) => {
                self.subscripts(ranges, elements, out)?;
            }
            (Access::Levels(first, last), item) => {
                if *first == Some(0) {
                    out.push(item.clone());
                }
                if *last != Some(0) {
                    levels(item, 1, (*first, *last), out)?;
                }
            }
            (Access::Filter(_) | Access::Key(_) | Access::Members, _) if elements.is_some() => {
                for element in elements.into_iter().flatten() {
                    self.access(element, access, false, anywhere, out)?;
                }
            }
            (Access::Method(name), _) if elements.is_some() && name != "type" && name != "size" => {
                for element in elements.into_iter().flatten() {
                    self.access(element, access, false, anywhere, out)?;
                }
            }
            (Access::Filter(condition), item) => {
                let inside = Within { current: item, ..*self };
                if inside.truth(condition) == Some(true) {
                    out.push(item.clone());
                }
            }
            (Access::Method(name), item) => out.push(self.method(name, item)?),
            (Access::Elements, item) if self.lax => out.push(item.clone()),
            (Access::Subscripts(ranges), item) if self.lax => {
                self.subscripts(ranges, std::slice::from_ref(item), out)?;
            }
            (Access::Key(_) | Access::Members | Access::Elements | Access::Subscripts(_), _)
                if forgiving => {}
            (Access::Key(_), _) => {
                let text = "jsonpath member accessor can only be applied to an object";
                return Err(fault("2203A", text));
            }
            (Access::Members, _) => {
                let text = "jsonpath wildcard member accessor can only be applied to an object";
                return Err(fault("2203C", text));
            }
            (Access::Elements, _) => {
                let text = "jsonpath wildcard array accessor can only be applied to an array";
                return Err(fault("22039", text));
            }
            (Access::Subscripts(_), _) => {
                let text = "jsonpath array accessor can only be applied to an array";
                return Err(fault("22039", text));
            }
        }
        Ok(())
    }

    fn subscripts(
        &self,
        ranges: &[(Node, Option<Node>)],
        elements: &[Value],
        out: &mut Vec<Value>,
    ) -> Result<()> {
        let inside = Within { last: Some(elements.len().saturating_sub(1)), ..*self };
        let size = elements.len() as i64;
        // The last one of an empty array is the one before the first.
        let at = |node: &Node| match node {
            Node::Last => Ok(size - 1),
            node => inside.subscript(node),
        };
        for (from, to) in ranges {
            let from = at(from)?;
            let to = to.as_ref().map_or(Ok(from), at)?;
            if !self.lax && (from < 0 || from > to || to >= size) {
                return Err(fault("22033", "jsonpath array subscript is out of bounds"));
            }
            for at in from.max(0)..=to.min(size - 1) {
                out.extend(usize::try_from(at).ok().and_then(|at| elements.get(at)).cloned());
            }
        }
        Ok(())
    }

    fn subscript(&self, node: &Node) -> Result<i64> {
        let mut found = Vec::new();
        self.items(node, &mut found)?;
        let one = match &found[..] {
            [one] => numeric(one),
            _ => None,
        };
        let one = one.ok_or_else(|| {
            fault("22033", "jsonpath array subscript is not a single numeric value")
        })?;
        one.truncated(0)
            .to_i64()
            .filter(|at| i32::try_from(*at).is_ok())
            .ok_or_else(|| fault("22033", "jsonpath array subscript is out of integer range"))
    }

    fn method(&self, name: &str, item: &Value) -> Result<Value> {
        let only = |code, what: &str| {
            let text = format!("jsonpath item method .{name}() can only be applied to {what}");
            fault(code, text)
        };
        match (name, item) {
            ("type", item) => Ok(Value::from(match item {
                Value::Null => "null",
                Value::Bool(_) => "boolean",
                Value::Number(_) => "number",
                Value::String(_) => "string",
                Value::Array(_) => "array",
                Value::Object(_) => "object",
            })),
            ("size", Value::Array(elements)) => Ok(Value::from(elements.len())),
            ("size", _) if self.lax => Ok(Value::from(1)),
            ("size", _) => Err(only("22039", "an array")),
            ("double", Value::Number(_) | Value::String(_)) => {
                let text = match item {
                    Value::String(text) => text.clone(),
                    number => number.to_string(),
                };
                let value = text.trim().parse::<f64>().ok().filter(|value| value.is_finite());
                let value = value.ok_or_else(|| only("22036", "a numeric value"))?;
                match item {
                    Value::Number(_) => Ok(item.clone()),
                    _ => super::number(&Numeric::from_f64(value)),
                }
            }
            ("double", _) => Err(only("22036", "a string or numeric value")),
            ("abs" | "floor" | "ceiling", item) => {
                let value = numeric(item).ok_or_else(|| only("22036", "a numeric value"))?;
                let whole = value.truncated(0);
                let rest = value.sub(&whole).signum();
                let one = Numeric::new(1, 0);
                super::number(&match (name, rest) {
                    ("abs", _) => value.abs(),
                    ("floor", Some(-1)) => whole.sub(&one),
                    ("ceiling", Some(1)) => whole.add(&one),
                    _ => whole,
                })
            }
            ("datetime" | "keyvalue", _) => {
                Err(Error::unsupported(format!(".{name}() in a jsonpath")))
            }
            _ => {
                Err(Error::syntax(format!("syntax error at or near \"{name}\" of jsonpath input")))
            }
        }
    }

    /// The truth of a condition; `None`: unknown.
    fn truth(&self, node: &Node) -> Option<bool> {
        match node {
            Node::And(left, right) => match (self.truth(left), self.truth(right)) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (Some(true), Some(true)) => Some(true),
                _ => None,
            },
            Node::Or(left, right) => match (self.truth(left), self.truth(right)) {
                (Some(true), _) | (_, Some(true)) => Some(true),
                (Some(false), Some(false)) => Some(false),
                _ => None,
            },
            Node::Not(inner) => self.truth(inner).map(|truth| !truth),
            Node::IsUnknown(inner) => Some(self.truth(inner).is_none()),
            Node::Exists(inner) => {
                let mut found = Vec::new();
                match self.items(inner, &mut found) {
                    Err(_) if !self.lax || found.is_empty() => None,
                    _ => Some(!found.is_empty()),
                }
            }
            Node::Compare(comparing, left, right) => {
                let (left, right) = (self.unwrapped(left).ok()?, self.unwrapped(right).ok()?);
                let pairs = left.iter().flat_map(|a| right.iter().map(move |b| (a, b)));
                self.any(pairs.map(|(a, b)| compared(*comparing, a, b)))
            }
            Node::StartsWith(text, start) => {
                let mut found = Vec::new();
                self.items(start, &mut found).ok()?;
                let [Value::String(start)] = &found[..] else { return None };
                let texts = self.unwrapped(text).ok()?;
                self.any(texts.iter().map(|text| Some(text.as_str()?.starts_with(start.as_str()))))
            }
            Node::LikeRegex(text, pattern, flags) => {
                let texts = self.unwrapped(text).ok()?;
                let matches = |text: &Value| {
                    regexps::matches(text.as_str()?, pattern, &regex_flags(flags)).ok()
                };
                self.any(texts.iter().map(matches))
            }
            _ => None,
        }
    }

    /// Whether a condition holds for any of several items: in lax mode the first decides, in strict
    /// mode all are looked at.
    fn any(&self, truths: impl Iterator<Item = Option<bool>>) -> Option<bool> {
        let (mut found, mut unknown) = (false, false);
        for truth in truths {
            match truth {
                None if !self.lax => return None,
                None => unknown = true,
                Some(true) if self.lax => return Some(true),
                Some(truth) => found |= truth,
            }
        }
        match (found, unknown) {
            (true, _) => Some(true),
            (false, true) => None,
            (false, false) => Some(false),
        }
    }
}

/// The items below, from level to level.
fn levels(
    item: &Value,
    level: u32,
    (first, last): (Option<u32>, Option<u32>),
    out: &mut Vec<Value>,
) -> Result<()> {
    telesto_sql_types::interrupt::check()?;
    let below: Vec<&Value> = match item {
        Value::Array(elements) => elements.iter().collect(),
        Value::Object(members) => members.values().collect(),
        _ => Vec::new(),
    };
    for inner in below {
        let leaf = !inner.is_array() && !inner.is_object();
        let wanted = match (first, last) {
            (None, _) => leaf,
            (Some(first), _) => level >= first,
        };
        if wanted {
            out.push(inner.clone());
        }
        if last.is_none_or(|last| level < last) {
            levels(inner, level + 1, (first, last), out)?;
        }
    }
    Ok(())
}

fn numeric(value: &Value) -> Option<Numeric> {
    match value {
        Value::Number(number) => Numeric::parse(&number.to_string()),
        _ => None,
    }
}

fn compared(comparing: Comparing, a: &Value, b: &Value) -> Option<bool> {
    let order = match (a, b) {
        (Value::Null, Value::Null) => Ordering::Equal,
        // NULL is unlike everything else.
        (Value::Null, _) | (_, Value::Null) => return Some(comparing == Comparing::NotEqual),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Number(_), Value::Number(_)) => numeric(a)?.cmp(&numeric(b)?),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        _ => return None,
    };
    Some(match comparing {
        Comparing::Equal => order.is_eq(),
        Comparing::NotEqual => order.is_ne(),
        Comparing::Less => order.is_lt(),
        Comparing::LessEqual => order.is_le(),
        Comparing::Greater => order.is_gt(),
        Comparing::GreaterEqual => order.is_ge(),
    })
}

/// The flags of `like_regex` as those of SQL's regular expressions, where lines are told apart by
/// others.
pub(super) fn regex_flags(flags: &str) -> String {
    let has = |flag| flags.contains(flag);
    let mut out = String::new();
    if has('i') {
        out.push('i');
    }
    if has('q') {
        out.push('q');
        return out;
    }
    out.push(match (has('s'), has('m')) {
        (true, true) => 'w',
        (true, false) => 's',
        (false, true) => 'n',
        (false, false) => 'p',
    });
    out
}
