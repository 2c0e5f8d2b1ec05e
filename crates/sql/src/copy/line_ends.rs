//! Where lines of COPY end.
//!
//! # Invariants
//! The first line end says what a line end is from then on: newline, carriage return, or both, as
//! in PostgreSQL. Another one is refused, but in a quoted csv value.
//!
//! # On failure
//! 22P04.

use super::lines::malformed;
use crate::error::Result;

/// What ends a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Newline,
    Return,
    Both,
}

/// The end of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LineEnd {
    /// Where the line ends.
    pub at: usize,
    /// Where the next one begins.
    pub next: usize,
    /// The line ends with the mark that ends the data; what is before the mark is a row, if it is
    /// anything.
    pub mark: bool,
}

/// Finds ends of lines, however the data is cut.
#[derive(Debug, Default)]
pub(super) struct LineEnds {
    kind: Option<Kind>,
    /// Bytes of the line known to hold no end of it.
    scanned: usize,
    /// The scan is inside a quoted csv value.
    quoted: bool,
}

/// What the scan looks for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    /// Backslashes escape.
    Text,
    /// Quotes and escapes are these.
    Csv { quote: u8, escape: u8 },
}

impl LineEnds {
    /// Bytes that were looked at without finding an end.
    pub fn scanned(&self) -> usize {
        self.scanned
    }

    /// Whether a quoted value is open.
    pub fn quoted(&self) -> bool {
        self.quoted
    }

    /// The line was taken.
    pub fn restart(&mut self) {
        self.scanned = 0;
        self.quoted = false;
    }

    /// The end of the line that `data` begins with; `None`: it is not there yet. At the end of the
    /// data (`last`) nothing is waited for.
    ///
    /// # Errors
    /// 22P04 for a line end of another kind, or an end mark with something behind it.
    pub fn find(&mut self, data: &[u8], form: Form, last: bool) -> Result<Option<LineEnd>> {
        match form {
            Form::Text => self.find_text(data, last),
            Form::Csv { quote, escape } => self.find_csv(data, quote, escape, last),
        }
    }

    fn find_text(&mut self, data: &[u8], last: bool) -> Result<Option<LineEnd>> {
        loop {
            let rest = data.get(self.scanned..).unwrap_or_default();
            let Some(found) = memchr::memchr3(b'\n', b'\r', b'\\', rest) else {
                self.scanned = data.len();
                return Ok(None);
            };
            self.scanned += found;
            if data[self.scanned] != b'\\' {
                return self.ended(data, "literal", last);
            }
            match data.get(self.scanned + 1) {
                // The byte after it belongs to the value; wait for it.
                None => return Ok(None),
                Some(b'.') => return self.marked(data, last),
                Some(_) => self.scanned += 2,
            }
        }
    }

    fn find_csv(
        &mut self,
        data: &[u8],
        quote: u8,
        escape: u8,
        last: bool,
    ) -> Result<Option<LineEnd>> {
        while let Some(byte) = data.get(self.scanned).copied() {
            if self.quoted && byte == escape && escape != quote {
                // The byte after it belongs to the value; wait for it.
                if data.len() == self.scanned + 1 {
                    return Ok(None);
                }
                self.scanned += 2;
                continue;
            }
            if byte == quote {
                self.quoted = !self.quoted;
            }
            if matches!(byte, b'\n' | b'\r') && !self.quoted {
                return self.ended(data, "unquoted", last);
            }
            self.scanned += 1;
        }
        Ok(None)
    }

    /// At a newline or a carriage return.
    fn ended(&mut self, data: &[u8], how: &str, last: bool) -> Result<Option<LineEnd>> {
        let at = self.scanned;
        let next = data.get(at + 1);
        let (kind, width) = match (data[at], self.kind) {
            (b'\n', None | Some(Kind::Newline)) => (Kind::Newline, 1),
            (b'\n', _) => return Err(malformed(format!("{how} newline found in data"))),
            (_, Some(Kind::Return)) => (Kind::Return, 1),
            (_, None | Some(Kind::Both)) if next == Some(&b'\n') => (Kind::Both, 2),
            (_, None | Some(Kind::Both)) if next.is_none() && !last => return Ok(None),
            (_, None) => (Kind::Return, 1),
            _ => return Err(malformed(format!("{how} carriage return found in data"))),
        };
        self.kind = Some(kind);
        Ok(Some(LineEnd { at, next: at + width, mark: false }))
    }

    /// At the end mark of text.
    fn marked(&mut self, data: &[u8], last: bool) -> Result<Option<LineEnd>> {
        let at = self.scanned;
        let behind = &data[at + 2..];
        let corrupt = || Err(malformed("end-of-copy marker corrupt"));
        let width = match (behind, self.kind) {
            ([], _) if last => 0,
            ([], _) => return Ok(None),
            ([b'\n', ..], None | Some(Kind::Newline)) => 1,
            ([b'\r'], None | Some(Kind::Both)) if !last => return Ok(None),
            ([b'\r', b'\n', ..], None | Some(Kind::Both)) => 2,
            ([b'\r', ..], None | Some(Kind::Return)) => 1,
            ([b'\r' | b'\n', ..], _) => {
                return Err(malformed("end-of-copy marker does not match previous newline style"));
            }
            _ => return corrupt(),
        };
        Ok(Some(LineEnd { at, next: at + 2 + width, mark: true }))
    }
}
