//! The text of a path, read.

use serde_json::Value;
use telesto_sql_types::error::{Error, Result};

use super::{Access, Arithmetic, Comparing, Node, Path, invalid_regex_flags};

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Number(String),
    Text(String),
    /// A key or a keyword.
    Word(String),
    Variable(String),
    Symbol(&'static str),
}

/// Symbols, the longer of two that begin alike first.
const SYMBOLS: &[&str] = &[
    "**", "==", "!=", "<>", "<=", ">=", "&&", "||", "$", "@", "(", ")", "[", "]", "{", "}", ".",
    ",", "?", "*", "+", "-", "/", "%", "<", ">", "!", "=",
];

/// Nesting beyond which a path is refused.
const MAX_DEPTH: usize = 200;

fn syntax(near: &str) -> Error {
    match near.is_empty() {
        true => Error::syntax("syntax error at end of jsonpath input"),
        false => Error::syntax(format!("syntax error at or near \"{near}\" of jsonpath input")),
    }
}

fn tokens(text: &str) -> Result<Vec<Token>> {
    let mut out = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        let Some(first) = rest.chars().next() else { return Ok(out) };
        if let Some(behind) = rest.strip_prefix("/*") {
            let Some(end) = behind.find("*/") else { return Err(syntax("/*")) };
            rest = &behind[end + 2..];
            continue;
        }
        if first == '"' {
            let (string, behind) = quoted(&rest[1..])?;
            out.push(Token::Text(string));
            rest = behind;
            continue;
        }
        let number = first.is_ascii_digit()
            || first == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit());
        // `$[1].5` is no number: there a key follows.
        if number {
            let length = number_length(rest);
            out.push(Token::Number(rest[..length].to_owned()));
            rest = &rest[length..];
            if rest.starts_with(is_word) {
                return Err(syntax(rest));
            }
            continue;
        }
        if let Some(behind) = rest.strip_prefix('$') {
            if let Some(behind) = behind.strip_prefix('"') {
                let (name, behind) = quoted(behind)?;
                out.push(Token::Variable(name));
                rest = behind;
                continue;
            }
            let length = word_length(behind);
            if length > 0 {
                out.push(Token::Variable(behind[..length].to_owned()));
                rest = &behind[length..];
                continue;
            }
        }
        if is_word(first) {
            let length = word_length(rest);
            out.push(Token::Word(rest[..length].to_owned()));
            rest = &rest[length..];
            continue;
        }
        let found = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol));
        let symbol = found.ok_or_else(|| syntax(rest))?;
        out.push(Token::Symbol(symbol));
        rest = &rest[symbol.len()..];
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || !c.is_ascii() && !c.is_whitespace()
}

fn word_length(text: &str) -> usize {
    text.find(|c| !is_word(c)).unwrap_or(text.len())
}

fn number_length(text: &str) -> usize {
    let digits = |from: usize| {
        from + text[from..].find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len() - from)
    };
    let mut at = digits(0);
    if text[at..].starts_with('.') && !text[at..].starts_with("..") {
        at = digits(at + 1);
    }
    if text[at..].starts_with(['e', 'E']) {
        let sign = at + 1 + usize::from(text[at + 1..].starts_with(['+', '-']));
        if digits(sign) > sign {
            at = digits(sign);
        }
    }
    at
}

/// What stands before the closing quotation mark, and what behind it.
fn quoted(text: &str) -> Result<(String, &str)> {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' if !escaped => {
                let read = serde_json::from_str::<String>(&format!("\"{}\"", &text[..at]));
                return Ok((read.map_err(|_| syntax(text))?, &text[at + 1..]));
            }
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    Err(syntax(text))
}

/// Reads a path.
///
/// # Errors
/// 42601.
pub(super) fn path(text: &str) -> Result<Path> {
    if text.trim().is_empty() {
        return Err(Error::new(
            telesto_sql_types::SqlState::INVALID_TEXT_REPRESENTATION,
            format!("invalid input syntax for type jsonpath: \"{text}\""),
        ));
    }
    let mut parser = Parser { tokens: tokens(text)?, at: 0, depth: 0 };
    let strict = parser.word("strict");
    let lax = !strict;
    if lax {
        parser.word("lax");
    }
    let root = parser.or()?;
    match parser.tokens.get(parser.at) {
        None => Ok(Path { lax, root }),
        Some(_) => Err(parser.wrong()),
    }
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn wrong(&self) -> Error {
        let near = match self.tokens.get(self.at) {
            None => String::new(),
            Some(Token::Symbol(symbol)) => (*symbol).to_owned(),
            Some(Token::Variable(name)) => format!("${name}"),
            Some(Token::Number(text) | Token::Text(text) | Token::Word(text)) => text.clone(),
        };
        syntax(&near)
    }

    fn symbol(&mut self, wanted: &str) -> bool {
        let found = matches!(self.tokens.get(self.at), Some(Token::Symbol(s)) if *s == wanted);
        self.at += usize::from(found);
        found
    }

    fn word(&mut self, wanted: &str) -> bool {
        let found = matches!(self.tokens.get(self.at), Some(Token::Word(w)) if w == wanted);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, wanted: &str) -> Result<()> {
        if self.symbol(wanted) { Ok(()) } else { Err(self.wrong()) }
    }

    fn value(&self, node: Node) -> Result<Box<Node>> {
        if node.is_predicate() { Err(self.wrong()) } else { Ok(Box::new(node)) }
    }

    fn predicate(&self, node: Node) -> Result<Box<Node>> {
        if node.is_predicate() { Ok(Box::new(node)) } else { Err(self.wrong()) }
    }

    fn or(&mut self) -> Result<Node> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Error::new(
                telesto_sql_types::SqlState::STATEMENT_TOO_COMPLEX,
                "a jsonpath is nested too deeply",
            ));
        }
        let mut left = self.and()?;
        while self.symbol("||") {
            let right = self.and()?;
            left = Node::Or(self.predicate(left)?, self.predicate(right)?);
        }
        self.depth -= 1;
        Ok(left)
    }

    fn and(&mut self) -> Result<Node> {
        let mut left = self.compared()?;
        while self.symbol("&&") {
            let right = self.compared()?;
            left = Node::And(self.predicate(left)?, self.predicate(right)?);
        }
        Ok(left)
    }

    fn compared(&mut self) -> Result<Node> {
        if self.symbol("!") {
            // What is negated stands in parentheses, or is an exists().
            let inner = match self.word("exists") {
                true => self.exists()?,
                false => {
                    self.expect("(")?;
                    let inner = self.or()?;
                    self.expect(")")?;
                    inner
                }
            };
            return Ok(Node::Not(self.predicate(inner)?));
        }
        if matches!(self.tokens.get(self.at), Some(Token::Word(w)) if w == "exists") {
            self.at += 1;
            return self.exists();
        }
        let left = self.sum()?;
        if self.word("is") {
            if !self.word("unknown") {
                return Err(self.wrong());
            }
            return Ok(Node::IsUnknown(self.predicate(left)?));
        }
        if self.word("starts") {
            if !self.word("with") {
                return Err(self.wrong());
            }
            let start = self.primary()?;
            if !matches!(start, Node::Constant(Value::String(_)) | Node::Variable(_)) {
                return Err(self.wrong());
            }
            return Ok(Node::StartsWith(self.value(left)?, Box::new(start)));
        }
        if self.word("like_regex") {
            return self.like_regex(left);
        }
        let comparisons = [
            ("==", Comparing::Equal),
            ("!=", Comparing::NotEqual),
            ("<>", Comparing::NotEqual),
            ("<=", Comparing::LessEqual),
            (">=", Comparing::GreaterEqual),
            ("<", Comparing::Less),
            (">", Comparing::Greater),
        ];
        for (symbol, comparing) in comparisons {
            if self.symbol(symbol) {
                let right = self.sum()?;
                return Ok(Node::Compare(comparing, self.value(left)?, self.value(right)?));
            }
        }
        Ok(left)
    }

    fn exists(&mut self) -> Result<Node> {
        self.expect("(")?;
        let inner = self.or()?;
        self.expect(")")?;
        Ok(Node::Exists(self.value(inner)?))
    }

    fn like_regex(&mut self, left: Node) -> Result<Node> {
        let Some(Token::Text(pattern)) = self.tokens.get(self.at).cloned() else {
            return Err(self.wrong());
        };
        self.at += 1;
        let mut flags = String::new();
        if self.word("flag") {
            let Some(Token::Text(given)) = self.tokens.get(self.at).cloned() else {
                return Err(self.wrong());
            };
            self.at += 1;
            flags = given;
        }
        if let Some(flag) = flags.chars().find(|flag| !"ismxq".contains(*flag)) {
            return Err(invalid_regex_flags(flag));
        }
        if flags.contains('x') && !flags.contains('q') {
            return Err(Error::unsupported("the flag x of like_regex"));
        }
        // A pattern that is none is told now.
        crate::functions::regexps::matches("", &pattern, &super::evaluate::regex_flags(&flags))?;
        Ok(Node::LikeRegex(self.value(left)?, pattern, flags))
    }

    fn sum(&mut self) -> Result<Node> {
        let mut left = self.product()?;
        loop {
            let op = match () {
                () if self.symbol("+") => Arithmetic::Add,
                () if self.symbol("-") => Arithmetic::Subtract,
                () => return Ok(left),
            };
            let right = self.product()?;
            left = Node::Arithmetic(op, self.value(left)?, self.value(right)?);
        }
    }

    fn product(&mut self) -> Result<Node> {
        let mut left = self.signed()?;
        loop {
            let op = match () {
                () if self.symbol("*") => Arithmetic::Multiply,
                () if self.symbol("/") => Arithmetic::Divide,
                () if self.symbol("%") => Arithmetic::Modulo,
                () => return Ok(left),
            };
            let right = self.signed()?;
            left = Node::Arithmetic(op, self.value(left)?, self.value(right)?);
        }
    }

    fn signed(&mut self) -> Result<Node> {
        for (symbol, negates) in [("+", false), ("-", true)] {
            if self.symbol(symbol) {
                self.depth += 1;
                if self.depth > MAX_DEPTH {
                    return Err(self.wrong());
                }
                let inner = self.signed()?;
                self.depth -= 1;
                return Ok(Node::Sign(negates, self.value(inner)?));
            }
        }
        self.accessed()
    }

    fn accessed(&mut self) -> Result<Node> {
        let mut node = self.primary()?;
        loop {
            let access = match () {
                () if self.symbol(".") => self.member()?,
                () if self.symbol("[") => self.subscripts()?,
                () if self.symbol("?") => {
                    self.expect("(")?;
                    let condition = self.or()?;
                    self.expect(")")?;
                    Access::Filter(self.predicate(condition)?)
                }
                () => return Ok(node),
            };
            node = Node::Access(Box::new(node), access);
        }
    }

    fn member(&mut self) -> Result<Access> {
        if self.symbol("**") {
            return self.levels();
        }
        if self.symbol("*") {
            return Ok(Access::Members);
        }
        let (key, method) = match self.tokens.get(self.at) {
            Some(Token::Word(word)) => (word.clone(), true),
            Some(Token::Text(text)) => (text.clone(), false),
            _ => return Err(self.wrong()),
        };
        self.at += 1;
        if method && self.symbol("(") {
            self.expect(")")?;
            return Ok(Access::Method(key));
        }
        Ok(Access::Key(key))
    }

    /// Of `.**{…}`; `None`: the last level.
    fn levels(&mut self) -> Result<Access> {
        if !self.symbol("{") {
            return Ok(Access::Levels(Some(0), None));
        }
        let first = self.level()?;
        let last = match self.word("to") {
            true => self.level()?,
            false => first,
        };
        self.expect("}")?;
        Ok(Access::Levels(first, last))
    }

    fn level(&mut self) -> Result<Option<u32>> {
        if self.word("last") {
            return Ok(None);
        }
        let Some(Token::Number(text)) = self.tokens.get(self.at) else { return Err(self.wrong()) };
        let level = text.parse().map_err(|_| self.wrong())?;
        self.at += 1;
        Ok(Some(level))
    }

    fn subscripts(&mut self) -> Result<Access> {
        if self.symbol("*") {
            self.expect("]")?;
            return Ok(Access::Elements);
        }
        let mut ranges = Vec::new();
        loop {
            let from = self.sum()?;
            let from = *self.value(from)?;
            let to = match self.word("to") {
                true => {
                    let to = self.sum()?;
                    Some(*self.value(to)?)
                }
                false => None,
            };
            ranges.push((from, to));
            if !self.symbol(",") {
                break;
            }
        }
        self.expect("]")?;
        Ok(Access::Subscripts(ranges))
    }

    fn primary(&mut self) -> Result<Node> {
        if self.symbol("(") {
            let inner = self.or()?;
            self.expect(")")?;
            return Ok(inner);
        }
        let token = self.tokens.get(self.at).cloned().ok_or_else(|| self.wrong())?;
        let node = match token {
            Token::Symbol("$") => Node::Root,
            Token::Symbol("@") => Node::Current,
            Token::Variable(name) => Node::Variable(name),
            Token::Text(text) => Node::Constant(Value::String(text)),
            Token::Number(text) => {
                let number =
                    telesto_sql_types::Numeric::parse(&text).ok_or_else(|| self.wrong())?;
                Node::Constant(super::number(&number)?)
            }
            Token::Word(word) => match word.as_str() {
                "null" => Node::Constant(Value::Null),
                "true" => Node::Constant(Value::Bool(true)),
                "false" => Node::Constant(Value::Bool(false)),
                "last" => Node::Last,
                _ => return Err(self.wrong()),
            },
            Token::Symbol(_) => return Err(self.wrong()),
        };
        self.at += 1;
        Ok(node)
    }
}
