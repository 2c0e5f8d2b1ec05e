//! Cuts a plain SQL dump into statements and the lines of COPY, as psql does.
//!
//! # Invariants
//! - A `;` inside quotes, dollar quotes, comments or parentheses ends no statement.
//! - Each byte is looked at once, however long a statement is: the state is kept from line to line.
//! - A dump that says where it begins is whole only when it says that it is complete: one that is
//!   cut between two statements would otherwise pass for a smaller database.
//! - What has no statement at all is no dump: nothing is what a pipe gives whose writer has failed.
//!
//! # On failure
//! A file that ends before its first statement, inside a statement, inside COPY's lines or before
//! its dump is complete, one that is no UTF-8, and psql's own commands are refused.
//!
//! # Limits
//! psql's variables and commands are not known, but `\restrict` and `\unrestrict`, which newer
//! versions of pg_dump write.

use std::io::BufRead;

/// What a dump begins with, in a comment of its own; it ends with the same and [`COMPLETE`].
const TITLES: [&str; 4] = [
    "-- Telesto database dump",
    "-- Telesto dump of roles",
    "-- PostgreSQL database dump",
    "-- PostgreSQL database cluster dump",
];
const COMPLETE: &str = " complete";

/// A piece of the script.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// A statement, and the line where it begins.
    Statement { text: String, line: u64 },
    /// COPY … FROM stdin; its lines follow.
    Copy { text: String, line: u64 },
}

/// Inside of what the next byte is.
#[derive(Debug, PartialEq, Eq)]
enum Inside {
    Nothing,
    /// `'…'` or `"…"`; whether backslashes escape.
    Quote(u8, bool),
    /// `/* … */`, so deep.
    Comment(u32),
    /// `$tag$ … $tag$`.
    Dollar(Vec<u8>),
}

/// A script that is being read.
pub struct Script<R> {
    input: R,
    /// The line last read, and how much of it is done.
    buffer: Vec<u8>,
    at: usize,
    /// Its number.
    line: u64,
    /// Titles of dumps that have begun and are not complete.
    begun: Vec<&'static str>,
    /// A statement has been read.
    any: bool,
}

impl<R: BufRead> Script<R> {
    /// A script from its beginning.
    pub fn new(input: R) -> Self {
        Self { input, buffer: Vec::new(), at: 0, line: 0, begun: Vec::new(), any: false }
    }

    /// The number of the line being read.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Reads the next line; whether there is one.
    fn fill(&mut self) -> Result<bool, String> {
        self.buffer.clear();
        self.at = 0;
        let read = self.input.read_until(b'\n', &mut self.buffer);
        let read = read.map_err(|error| format!("cannot be read further: {error}"))?;
        self.line += u64::from(read > 0);
        Ok(read > 0)
    }

    /// The next statement; `None` at the end.
    ///
    /// # Errors
    /// See the module.
    pub fn next_step(&mut self) -> Result<Option<Step>, String> {
        let mut text: Vec<u8> = Vec::new();
        let mut begins = 0;
        let mut inside = Inside::Nothing;
        let mut depth = 0_u32;
        loop {
            if self.at >= self.buffer.len() {
                if !self.fill()? {
                    let rest = String::from_utf8_lossy(&text);
                    return match (without_comments(&rest).is_empty(), inside, self.begun.last()) {
                        (true, Inside::Nothing, None) if self.any => Ok(None),
                        (true, Inside::Nothing, None) => Err(
                            "the file ends before its first statement; is it cut short, or did what writes it fail?".to_owned(),
                        ),
                        (true, Inside::Nothing, Some(title)) => Err(format!(
                            "the file ends without \"{title}{COMPLETE}\"; is it cut short? What it held was restored, unless --single-transaction"
                        )),
                        _ => Err(format!(
                            "the file ends inside the statement that begins in line {begins}; is it cut short?"
                        )),
                    };
                }
                if text.is_empty() && inside == Inside::Nothing && self.psql_command()? {
                    continue;
                }
            }
            let from = self.at;
            let ended = self.scan(&mut inside, &mut depth, &mut text, &mut begins);
            if ended {
                let text = String::from_utf8(text).map_err(|_| {
                    format!("the statement that begins in line {begins} is no UTF-8; dump it with --encoding=UTF8")
                })?;
                debug_assert!(self.at > from, "a statement has an end");
                self.any = true;
                return Ok(Some(self.step(text, begins)));
            }
        }
    }

    /// A command of psql alone on its line; passed over if it is one that may be.
    fn psql_command(&mut self) -> Result<bool, String> {
        if !self.buffer.starts_with(b"\\") {
            return Ok(false);
        }
        let line = String::from_utf8_lossy(&self.buffer).trim_end().to_owned();
        let word = line.split_whitespace().next().unwrap_or_default();
        if matches!(word, "\\restrict" | "\\unrestrict") {
            self.at = self.buffer.len();
            return Ok(true);
        }
        Err(format!("{word} is a command of psql: take it out, or load the file with psql"))
    }

    /// Takes bytes of the line to `text` until the statement or the line ends; whether the
    /// statement did.
    fn scan(
        &mut self,
        inside: &mut Inside,
        depth: &mut u32,
        text: &mut Vec<u8>,
        begins: &mut u64,
    ) -> bool {
        while let Some(&byte) = self.buffer.get(self.at) {
            let next = self.buffer.get(self.at + 1).copied();
            let mut length = 1;
            let mut ended = false;
            match inside {
                Inside::Quote(quote, escapes) => {
                    if byte == b'\\' && *escapes && next.is_some() {
                        length = 2;
                    } else if byte == *quote {
                        *inside = Inside::Nothing;
                    }
                }
                Inside::Comment(deep) => match (byte, next) {
                    (b'*', Some(b'/')) => {
                        length = 2;
                        match *deep {
                            1 => *inside = Inside::Nothing,
                            more => *inside = Inside::Comment(more - 1),
                        }
                    }
                    (b'/', Some(b'*')) => {
                        length = 2;
                        *inside = Inside::Comment(*deep + 1);
                    }
                    _ => {}
                },
                Inside::Dollar(tag) => {
                    if self.buffer[self.at..].starts_with(tag) {
                        length = tag.len();
                        *inside = Inside::Nothing;
                    }
                }
                Inside::Nothing => match (byte, next) {
                    (b'-', Some(b'-')) => {
                        // Goes to the end of the line, and is no part of a statement that has not
                        // begun.
                        length = self.buffer.len() - self.at;
                        if text.is_empty() {
                            self.note();
                            self.at += length;
                            continue;
                        }
                    }
                    (b'/', Some(b'*')) => {
                        length = 2;
                        *inside = Inside::Comment(1);
                    }
                    (b'\'', _) => *inside = Inside::Quote(b'\'', escapes(text)),
                    (b'"', _) => *inside = Inside::Quote(b'"', false),
                    (b'$', _) if !ends_in_name(text) => {
                        if let Some(tag) = dollar_tag(&self.buffer[self.at..]) {
                            length = tag.len();
                            *inside = Inside::Dollar(tag);
                        }
                    }
                    (b'(', _) => *depth += 1,
                    (b')', _) => *depth = depth.saturating_sub(1),
                    (b';', _) if *depth == 0 => ended = true,
                    _ => {}
                },
            }
            let blank = text.is_empty() && (byte.is_ascii_whitespace() || ended);
            if !blank {
                if text.is_empty() {
                    *begins = self.line;
                }
                text.extend_from_slice(&self.buffer[self.at..self.at + length]);
            }
            self.at += length;
            if ended && !text.is_empty() {
                return true;
            }
        }
        false
    }

    /// Heeds a comment of its own: whether a dump begins or is complete with it.
    fn note(&mut self) {
        let comment = self.buffer[self.at..].trim_ascii_end();
        for title in TITLES {
            match comment.strip_prefix(title.as_bytes()) {
                Some(b"") => self.begun.push(title),
                Some(rest) if rest == COMPLETE.as_bytes() => self.begun.retain(|t| *t != title),
                _ => {}
            }
        }
    }

    fn step(&mut self, text: String, line: u64) -> Step {
        let words: Vec<String> = without_comments(&text)
            .split(|c: char| c.is_whitespace() || c == ';')
            .filter(|word| !word.is_empty())
            .map(str::to_ascii_lowercase)
            .collect();
        let from_stdin = words.windows(2).any(|pair| pair[0] == "from" && pair[1] == "stdin");
        if words.first().is_some_and(|word| word == "copy") && from_stdin {
            // The rows begin in the next line.
            self.at = self.buffer.len();
            return Step::Copy { text, line };
        }
        Step::Statement { text, line }
    }

    /// Appends lines of COPY until there are `most` bytes or `\.` was read; whether there are more.
    ///
    /// # Errors
    /// When the file ends before `\.`.
    pub fn copy_lines(&mut self, out: &mut Vec<u8>, most: usize) -> Result<bool, String> {
        while out.len() < most {
            if !self.fill()? {
                return Err("the file ends inside the rows of COPY; is it cut short?".to_owned());
            }
            self.at = self.buffer.len();
            if matches!(self.buffer.as_slice(), b"\\.\n" | b"\\.\r\n" | b"\\.") {
                return Ok(false);
            }
            out.extend_from_slice(&self.buffer);
        }
        Ok(true)
    }
}

/// Whether a quote that follows `text` is `E'…'`.
fn escapes(text: &[u8]) -> bool {
    match text {
        [.., before, b'e' | b'E'] => !(before.is_ascii_alphanumeric() || *before == b'_'),
        [b'e' | b'E'] => true,
        _ => false,
    }
}

fn ends_in_name(text: &[u8]) -> bool {
    text.last().is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80)
}

/// `$$` or `$name$` at the beginning; `$1` is a parameter.
fn dollar_tag(bytes: &[u8]) -> Option<Vec<u8>> {
    let end = 1 + bytes[1..].iter().position(|byte| *byte == b'$')?;
    let name = &bytes[1..end];
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80;
    let tag = name.iter().all(fits) && !name.first().is_some_and(u8::is_ascii_digit);
    tag.then(|| bytes[..=end].to_vec())
}

/// The statement without comments in front.
fn without_comments(text: &str) -> &str {
    let mut rest = text.trim_start();
    while let Some(end) = rest.strip_prefix("/*").and_then(|rest| rest.find("*/")) {
        rest = rest[end + 4..].trim_start();
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(text: &str) -> Result<Vec<(bool, String, u64)>, String> {
        let mut script = Script::new(text.as_bytes());
        let mut all = Vec::new();
        while let Some(step) = script.next_step()? {
            match step {
                Step::Statement { text, line } => all.push((false, text, line)),
                Step::Copy { text, line } => {
                    all.push((true, text, line));
                    let mut rows = Vec::new();
                    loop {
                        let mut chunk = Vec::new();
                        let more = script.copy_lines(&mut chunk, 4)?;
                        rows.extend(chunk);
                        if !more {
                            break;
                        }
                    }
                    all.push((true, String::from_utf8(rows).expect("UTF-8"), script.line()));
                }
            }
        }
        Ok(all)
    }

    #[test]
    fn dump_that_does_not_say_that_it_is_complete_is_cut_short() {
        for title in TITLES {
            let whole = format!(
                "--\n{title}\n--\n\nSET a = 1;\nSET b = 2;\n\n--\n{title} complete\n--\n\\unrestrict x\n"
            );
            assert_eq!(steps(&whole).expect("whole").len(), 2);
            let windows = whole.replace('\n', "\r\n");
            assert_eq!(steps(&windows).expect("whole").len(), 2);
            // Cut between two statements, and before the last line of all.
            for end in ["SET b", "--\n-- Tel", "--\n-- Post", " complete"] {
                let Some(at) = whole.rfind(end) else { continue };
                let error = steps(&whole[..at]).expect_err(end);
                assert!(error.contains("is it cut short?"), "{error}");
            }
            // One behind the other: each has its end.
            let both = format!("{whole}{whole}");
            assert_eq!(steps(&both).expect("whole").len(), 4);
            assert!(steps(&format!("{whole}{title}\n")).is_err());
        }
        // What says nothing of itself ends where it ends, and rows and texts say nothing of the
        // dump.
        let title = TITLES[0];
        assert_eq!(steps("SET a = 1;").expect("whole").len(), 1);
        let inside = format!("SELECT '\n{title}\n';\nCOPY t FROM stdin;\n{title}\n\\.\n");
        assert_eq!(steps(&inside).expect("whole").len(), 3);
    }

    #[test]
    fn dump_is_cut_into_statements_and_rows_with_their_lines() {
        let dump = "--\n-- a dump; of something\n--\n\n\\restrict x\nSET a = 1; SET b = ';';\n\nCREATE FUNCTION f() AS $x$\n  a; $$ b\n$x$;\n\
            COPY public.t (a, b) FROM stdin;\n1\tx;'\n2\t\\\\.\n\\.\n\n/* no; */ INSERT INTO t VALUES (E'\\';', \"a;\"\"b\", '\\');\n\\unrestrict x\n";
        let cut = steps(dump).expect("cuts");
        let expected = [
            (false, "SET a = 1;", 6),
            (false, "SET b = ';';", 6),
            (false, "CREATE FUNCTION f() AS $x$\n  a; $$ b\n$x$;", 8),
            (true, "COPY public.t (a, b) FROM stdin;", 11),
            (true, "1\tx;'\n2\t\\\\.\n", 14),
            (false, "/* no; */ INSERT INTO t VALUES (E'\\';', \"a;\"\"b\", '\\');", 16),
        ];
        let expected: Vec<_> =
            expected.into_iter().map(|(copy, text, line)| (copy, text.to_owned(), line)).collect();
        assert_eq!(cut, expected);
    }

    #[test]
    fn semicolons_in_parentheses_end_nothing() {
        let rule = "CREATE RULE r AS ON INSERT TO t DO ALSO (SELECT 1; SELECT 2);\nSELECT 3;";
        assert_eq!(steps(rule).expect("cuts").len(), 2);
    }

    #[test]
    fn what_is_cut_short_or_is_psqls_is_refused() {
        for (text, said) in [
            ("SELECT 1", "line 1"),
            ("\n\nSELECT 'a;\n", "line 3"),
            ("COPY t FROM stdin;\n1\n", "inside the rows"),
            ("\\connect other\n", "\\connect"),
            ("", "before its first statement"),
            ("\n \n", "before its first statement"),
            // The title itself is cut.
            ("--\n-- PostgreSQL databa", "before its first statement"),
            ("/* a */\n", "before its first statement"),
            ("--\n-- PostgreSQL database dump", "is it cut short?"),
        ] {
            let refused = steps(text).expect_err(text);
            assert!(refused.contains(said), "{refused}");
        }
    }
}
