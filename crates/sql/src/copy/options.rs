//! Options of COPY.

use crate::catalog::Table;
use crate::error::{Error, Result, SqlState};
use crate::expr::fold;
use crate::plan::CopyFormat;
use crate::sqlparser::ast::{CopyLegacyCsvOption, CopyLegacyOption, CopyOption, Ident};
use telesto_sql_parser::marks::{COPY_CONDITION, HEADER_MATCH, NO_BYTE};

/// How the data is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Options {
    /// text, csv or binary.
    pub format: CopyFormat,
    /// Between columns.
    pub delimiter: u8,
    /// What stands for NULL.
    pub null: String,
    /// The first line names the columns.
    pub header: bool,
    /// HEADER MATCH: it must name the columns.
    pub header_match: bool,
    /// What it must name then, once that is known.
    pub header_names: Vec<String>,
    /// Around csv values.
    pub quote: u8,
    /// Before a quote inside a quoted value.
    pub escape: u8,
    /// Columns quoted always; empty for none. `*` stands for all.
    pub force_quote: Vec<String>,
    /// Columns in which what stands for NULL is a text.
    pub force_not_null: Vec<String>,
    /// Columns in which what stands for NULL is NULL in quotes too.
    pub force_null: Vec<String>,
    /// The text of COPY FROM's WHERE.
    pub condition: Option<String>,
}

/// The names of columns in an option.
fn names(columns: &[Ident]) -> Vec<String> {
    columns.iter().map(fold).collect()
}

/// For each of the copied columns whether the option `what` names it.
///
/// # Errors
/// 42703 for a name that is none of `table`, 42P10 for one that is not copied.
pub(super) fn flags(
    wanted: &[String],
    copied: &[String],
    what: &str,
    table: Option<&Table>,
) -> Result<Vec<bool>> {
    if let Some(name) = wanted.iter().find(|name| *name != "*" && !copied.contains(name)) {
        return Err(match table {
            Some(table) if table.column_position(name).is_some() => {
                let text = format!("{what} column \"{name}\" not referenced by COPY");
                Error::new(SqlState::INVALID_COLUMN_REFERENCE, text)
            }
            Some(table) => crate::exec::no_column(table, name),
            None => {
                let text = format!("column \"{name}\" does not exist");
                Error::new(SqlState::UNDEFINED_COLUMN, text)
            }
        });
    }
    Ok(copied.iter().map(|name| wanted.iter().any(|w| w == name || w == "*")).collect())
}

fn one_byte(name: &str, value: char) -> Result<u8> {
    u8::try_from(value).ok().filter(|byte| byte.is_ascii() && value != NO_BYTE).ok_or_else(|| {
        Error::new(
            SqlState::FEATURE_NOT_SUPPORTED,
            format!("COPY {name} must be a single one-byte character"),
        )
    })
}

/// Encodings that PostgreSQL 15 knows, without what `clean` leaves out.
const ENCODINGS: &[&str] = &[
    "abc",
    "alt",
    "big5",
    "euccn",
    "eucjis2004",
    "eucjp",
    "euckr",
    "euctw",
    "gb18030",
    "gbk",
    "iso88591",
    "iso885910",
    "iso885913",
    "iso885914",
    "iso885915",
    "iso885916",
    "iso88592",
    "iso88593",
    "iso88594",
    "iso88595",
    "iso88596",
    "iso88597",
    "iso88598",
    "iso88599",
    "johab",
    "koi8",
    "koi8r",
    "koi8u",
    "latin1",
    "latin10",
    "latin2",
    "latin3",
    "latin4",
    "latin5",
    "latin6",
    "latin7",
    "latin8",
    "latin9",
    "mskanji",
    "muleinternal",
    "shiftjis",
    "shiftjis2004",
    "sjis",
    "sqlascii",
    "tcvn",
    "tcvn5712",
    "uhc",
    "vscii",
    "win",
    "win1250",
    "win1251",
    "win1252",
    "win1253",
    "win1254",
    "win1255",
    "win1256",
    "win1257",
    "win1258",
    "win866",
    "win874",
    "win932",
    "win936",
    "win949",
    "win950",
    "windows1250",
    "windows1251",
    "windows1252",
    "windows1253",
    "windows1254",
    "windows1255",
    "windows1256",
    "windows1257",
    "windows1258",
    "windows866",
    "windows874",
    "windows932",
    "windows936",
    "windows949",
    "windows950",
];

/// Refuses encodings that are not UTF-8, and what is none.
fn check_encoding(name: &str) -> Result<()> {
    let letters = name.chars().filter(char::is_ascii_alphanumeric);
    let clean = letters.collect::<String>().to_ascii_lowercase();
    if matches!(clean.as_str(), "utf8" | "unicode") {
        return Ok(());
    }
    if ENCODINGS.contains(&clean.as_str()) {
        return Err(Error::unsupported(format!("COPY in the encoding {name}"))
            .hint("Convert the data to UTF-8, for example with iconv."));
    }
    Err(Error::new(
        SqlState::INVALID_PARAMETER_VALUE,
        "argument to option \"encoding\" must be a valid encoding name",
    ))
}

/// Refuses an option that is given twice.
fn refuse_twice(options: &[CopyOption], legacy: &[CopyLegacyOption]) -> Result<()> {
    let mut seen = Vec::with_capacity(options.len());
    for option in options {
        // HEADER MATCH and WHERE came with options of their own.
        if !matches!(option, CopyOption::Encoding(name) if name.starts_with('\0')) {
            seen.push(std::mem::discriminant(option));
        }
    }
    let again = |at: usize| seen[..at].contains(&seen[at]);
    let old: Vec<_> = legacy.iter().map(std::mem::discriminant).collect();
    let again_old = |at: usize| old[..at].contains(&old[at]);
    if (0..seen.len()).any(again) || (0..old.len()).any(again_old) {
        return Err(Error::syntax("conflicting or redundant options"));
    }
    Ok(())
}

/// Options that say how text is written have no place in binary format.
fn refuse_in_binary(options: &[CopyOption], legacy: &[CopyLegacyOption]) -> Result<()> {
    let refused = |name: &str| Err(Error::syntax(format!("cannot specify {name} in BINARY mode")));
    for option in options {
        match option {
            CopyOption::Delimiter(_) => return refused("DELIMITER"),
            CopyOption::Null(_) => return refused("NULL"),
            CopyOption::Header(_) => return refused("HEADER"),
            CopyOption::Quote(_) | CopyOption::Escape(_) | CopyOption::ForceQuote(_) => {
                return refused("csv options");
            }
            _ => {}
        }
    }
    for option in legacy {
        match option {
            CopyLegacyOption::Delimiter(_) => return refused("DELIMITER"),
            CopyLegacyOption::Null(_) => return refused("NULL"),
            CopyLegacyOption::Header => return refused("HEADER"),
            CopyLegacyOption::Csv(_) => return refused("CSV"),
            _ => {}
        }
    }
    Ok(())
}

impl Options {
    /// The options a statement gives, the defaults of its format for the rest.
    pub fn of(options: &[CopyOption], legacy: &[CopyLegacyOption]) -> Result<Self> {
        refuse_twice(options, legacy)?;
        let (mut csv, mut binary) = (false, false);
        for option in options {
            if let CopyOption::Format(name) = option {
                match name.value.to_lowercase().as_str() {
                    "text" => {}
                    "csv" => csv = true,
                    "binary" => binary = true,
                    other => {
                        return Err(Error::new(
                            SqlState::INVALID_PARAMETER_VALUE,
                            format!("COPY format \"{other}\" not recognized"),
                        ));
                    }
                }
            }
        }
        binary |= legacy.iter().any(|option| matches!(option, CopyLegacyOption::Binary));
        csv |= legacy.iter().any(|option| matches!(option, CopyLegacyOption::Csv(_)));
        if binary {
            refuse_in_binary(options, legacy)?;
        }
        let mut out = Self {
            format: match (binary, csv) {
                (true, _) => CopyFormat::Binary,
                (false, true) => CopyFormat::Csv,
                (false, false) => CopyFormat::Text,
            },
            delimiter: if csv { b',' } else { b'\t' },
            null: if csv { String::new() } else { "\\N".to_owned() },
            header: false,
            header_match: false,
            header_names: Vec::new(),
            quote: b'"',
            escape: b'"',
            force_quote: Vec::new(),
            force_not_null: Vec::new(),
            force_null: Vec::new(),
            condition: None,
        };
        let (mut quote, mut escape) = (None, None);
        for option in options {
            match option {
                CopyOption::Delimiter(c) => out.delimiter = one_byte("delimiter", *c)?,
                CopyOption::Null(text) => out.null.clone_from(text),
                CopyOption::Header(on) => out.header = *on,
                CopyOption::Quote(c) => quote = Some(one_byte("quote", *c)?),
                CopyOption::Escape(c) => escape = Some(one_byte("escape", *c)?),
                CopyOption::ForceQuote(columns) => out.force_quote = names(columns),
                CopyOption::ForceNotNull(columns) => out.force_not_null = names(columns),
                CopyOption::ForceNull(columns) => out.force_null = names(columns),
                CopyOption::Encoding(name) if name == HEADER_MATCH => out.header_match = true,
                CopyOption::Encoding(name) if name.starts_with(COPY_CONDITION) => {
                    out.condition = name.strip_prefix(COPY_CONDITION).map(str::to_owned);
                }
                CopyOption::Encoding(name) => {
                    check_encoding(name)?;
                }
                CopyOption::Format(_) | CopyOption::Freeze(_) => {}
            }
        }
        for option in legacy {
            match option {
                CopyLegacyOption::Delimiter(c) => out.delimiter = one_byte("delimiter", *c)?,
                CopyLegacyOption::Null(text) => out.null.clone_from(text),
                CopyLegacyOption::Header => out.header = true,
                CopyLegacyOption::Csv(parts) => {
                    for part in parts {
                        match part {
                            CopyLegacyCsvOption::Header => out.header = true,
                            CopyLegacyCsvOption::Quote(c) => quote = Some(one_byte("quote", *c)?),
                            CopyLegacyCsvOption::Escape(c) => {
                                escape = Some(one_byte("escape", *c)?)
                            }
                            CopyLegacyCsvOption::ForceQuote(columns) => {
                                out.force_quote = names(columns);
                            }
                            CopyLegacyCsvOption::ForceNotNull(columns) => {
                                out.force_not_null = names(columns);
                            }
                        }
                    }
                }
                CopyLegacyOption::Binary => {}
                other => return Err(Error::unsupported(format!("the COPY option {other}"))),
            }
        }
        if !csv && (quote.is_some() || escape.is_some()) {
            return Err(Error::new(
                SqlState::FEATURE_NOT_SUPPORTED,
                "COPY quote and escape available only in CSV mode",
            ));
        }
        out.quote = quote.unwrap_or(out.quote);
        out.escape = escape.unwrap_or(out.quote);
        out.check()?;
        Ok(out)
    }

    /// Refuses options of the other format or direction.
    ///
    /// # Errors
    /// 0A000.
    pub(super) fn check_direction(&self, to: bool) -> Result<()> {
        let refuse = |text: String| Err(Error::new(SqlState::FEATURE_NOT_SUPPORTED, text));
        if to && self.header_match {
            return refuse("cannot use \"match\" with HEADER in COPY TO".to_owned());
        }
        for (columns, what, goes_to) in [
            (&self.force_quote, "quote", true),
            (&self.force_not_null, "not null", false),
            (&self.force_null, "null", false),
        ] {
            if columns.is_empty() {
                continue;
            }
            if self.format != CopyFormat::Csv {
                return refuse(format!("COPY force {what} available only in CSV mode"));
            }
            if to != goes_to {
                let word = if goes_to { "TO" } else { "FROM" };
                return refuse(format!("COPY force {what} only available using COPY {word}"));
            }
        }
        Ok(())
    }

    /// Refuses options under which a row could not be told from another.
    pub(super) fn check(&self) -> Result<()> {
        let invalid = |message: &str| Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, message));
        let refuse = |message: &str| Err(Error::new(SqlState::FEATURE_NOT_SUPPORTED, message));
        let csv = self.format == CopyFormat::Csv;
        if matches!(self.delimiter, b'\r' | b'\n') {
            return invalid("COPY delimiter cannot be newline or carriage return");
        }
        if csv && self.delimiter == self.quote {
            return invalid("COPY delimiter and quote must be different");
        }
        if self.null.contains(['\r', '\n']) {
            return invalid("COPY null representation cannot use newline or carriage return");
        }
        // As PostgreSQL: these would be read as part of an escape or of the end of the data.
        if !csv && b"\\.abcdefghijklmnopqrstuvwxyz0123456789".contains(&self.delimiter) {
            return invalid(&format!(
                "COPY delimiter cannot be \"{}\"",
                char::from(self.delimiter)
            ));
        }
        if self.null.as_bytes().contains(&self.delimiter) {
            return refuse("COPY delimiter must not appear in the NULL specification");
        }
        if csv && self.null.as_bytes().contains(&self.quote) {
            return refuse("CSV quote character must not appear in the NULL specification");
        }
        Ok(())
    }
}
