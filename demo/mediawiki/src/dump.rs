//! Reads a MediaWiki XML export (schema 0.10 and 0.11) as a stream of pages.
//!
//! # Invariants
//! - Memory holds one page at a time.
//! - Plain, bzip2 (also multistream) and UTF-16 files (by byte order mark) are recognised by their
//!   first bytes, not by their names.
//!
//! # On failure
//! [`Error::Malformed`] with the offset in the decompressed XML. A page without title, id or
//! revision is malformed, not skipped.
//!
//! # Limits
//! A page keeps its last revision in the file only ("pages-articles" dumps have one each). A page
//! larger than [`MAX_PAGE_BYTES`] is refused.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bzip2::read::MultiBzDecoder;
use encoding_rs_io::DecodeReaderBytes;
use quick_xml::Reader;
use quick_xml::events::Event;

use crate::error::{Error, Result};

/// Largest text of one page that is accepted, bytes.
pub const MAX_PAGE_BYTES: usize = 64 << 20;

/// One page with its newest revision in the dump.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The wiki's page id.
    pub id: i64,
    /// Namespace number; 0 holds articles.
    pub namespace: i32,
    /// Full title, with the namespace's name.
    pub title: String,
    /// Where a redirect leads.
    pub redirect: Option<String>,
    /// Newest revision.
    pub revision: Revision,
}

/// One revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revision {
    /// The wiki's revision id.
    pub id: i64,
    /// The revision it followed.
    pub parent: Option<i64>,
    /// When, as in the dump: `2014-10-26T04:50:23Z`.
    pub timestamp: String,
    /// User name or address.
    pub contributor: String,
    /// The editor's comment.
    pub comment: String,
    /// Wikitext.
    pub text: String,
}

/// A dump being read.
pub struct Dump {
    path: String,
    reader: Reader<Box<dyn BufRead + Send>>,
    consumed: Arc<AtomicU64>,
    size_bytes: u64,
    buffer: Vec<u8>,
}

/// Counts the bytes taken from the file, for the progress bar.
struct Counted<R> {
    inner: R,
    consumed: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(out)?;
        self.consumed.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

impl Dump {
    /// Opens a dump file.
    ///
    /// # Errors
    /// [`Error::Read`] when the file cannot be opened or read.
    pub fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let failed = |source| Error::Read { path: name.clone(), source };
        let file = File::open(path).map_err(failed)?;
        let size_bytes = file.metadata().map_err(failed)?.len();
        let consumed = Arc::new(AtomicU64::new(0));
        let mut raw = BufReader::with_capacity(
            1 << 16,
            Counted { inner: file, consumed: Arc::clone(&consumed) },
        );
        let packed = raw.fill_buf().map_err(failed)?.starts_with(b"BZh");
        let plain: Box<dyn Read + Send> =
            if packed { Box::new(MultiBzDecoder::new(raw)) } else { Box::new(raw) };
        let text = DecodeReaderBytes::new(plain);
        Ok(Self::over(
            name,
            Box::new(BufReader::with_capacity(1 << 16, text)),
            consumed,
            size_bytes,
        ))
    }

    /// Reads XML from memory, for tests and fuzzing.
    #[must_use]
    pub fn from_xml(xml: &str) -> Self {
        let bytes = std::io::Cursor::new(xml.to_owned().into_bytes());
        Self::over("memory".to_owned(), Box::new(bytes), Arc::default(), xml.len() as u64)
    }

    fn over(
        path: String,
        input: Box<dyn BufRead + Send>,
        consumed: Arc<AtomicU64>,
        size_bytes: u64,
    ) -> Self {
        Self { path, reader: Reader::from_reader(input), consumed, size_bytes, buffer: Vec::new() }
    }

    /// Bytes of the file taken so far, and its size.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        (self.consumed.load(Ordering::Relaxed), self.size_bytes)
    }

    fn malformed(&self, reason: impl Into<String>) -> Error {
        Error::Malformed {
            path: self.path.clone(),
            offset: self.reader.buffer_position(),
            reason: reason.into(),
        }
    }

    /// The next page; `None` at the end of a complete dump.
    ///
    /// # Errors
    /// [`Error::Malformed`] when the XML is broken, cut short, or a page lacks a mandatory field.
    pub fn next_page(&mut self) -> Result<Option<Page>> {
        let mut seen_root = self.reader.buffer_position() > 0;
        loop {
            match self.event()? {
                Token::Open(name) if name == "page" => return self.page().map(Some),
                Token::Open(name) if name == "mediawiki" => seen_root = true,
                Token::Close(name) if name == "mediawiki" => return Ok(None),
                Token::Open(name) if !seen_root => {
                    return Err(
                        self.malformed(format!("root element is <{name}>, not <mediawiki>"))
                    );
                }
                Token::End => {
                    return Err(
                        self.malformed("the file ends before </mediawiki>: it is cut short")
                    );
                }
                _ => {}
            }
        }
    }

    fn page(&mut self) -> Result<Page> {
        let mut page = Page::default();
        let (mut has_title, mut has_id, mut has_revision) = (false, false, false);
        loop {
            match self.event()? {
                Token::Open(name) => match name.as_str() {
                    "title" => {
                        page.title = self.text("title")?;
                        has_title = !page.title.is_empty();
                    }
                    "ns" => page.namespace = self.number("ns")?,
                    "id" => {
                        page.id = self.number("id")?;
                        has_id = true;
                    }
                    "revision" => {
                        page.revision = self.revision()?;
                        has_revision = true;
                    }
                    other => self.skip(other)?,
                },
                Token::Redirect(title) => page.redirect = title,
                Token::Close(name) if name == "page" => break,
                Token::End => return Err(self.malformed("the file ends inside <page>")),
                _ => {}
            }
        }
        match (has_title, has_id, has_revision) {
            (true, true, true) => Ok(page),
            (false, _, _) => Err(self.malformed("a page has no title")),
            (_, false, _) => Err(self.malformed(format!("page {:?} has no id", page.title))),
            _ => Err(self.malformed(format!("page {:?} has no revision", page.title))),
        }
    }

    fn revision(&mut self) -> Result<Revision> {
        let mut revision = Revision::default();
        loop {
            match self.event()? {
                Token::Open(name) => match name.as_str() {
                    "id" => revision.id = self.number("id")?,
                    "parentid" => revision.parent = Some(self.number("parentid")?),
                    "timestamp" => revision.timestamp = self.text("timestamp")?,
                    "contributor" => revision.contributor = self.contributor()?,
                    "comment" => revision.comment = self.text("comment")?,
                    "text" => revision.text = self.text("text")?,
                    other => self.skip(other)?,
                },
                Token::Close(name) if name == "revision" => break,
                Token::End => return Err(self.malformed("the file ends inside <revision>")),
                _ => {}
            }
        }
        if revision.timestamp.is_empty() {
            return Err(self.malformed(format!("revision {} has no timestamp", revision.id)));
        }
        Ok(revision)
    }

    fn contributor(&mut self) -> Result<String> {
        let mut who = String::new();
        loop {
            match self.event()? {
                Token::Open(name) => match name.as_str() {
                    "username" | "ip" => who = self.text(&name)?,
                    _ => self.skip(&name)?,
                },
                Token::Close(name) if name == "contributor" => return Ok(who),
                Token::End => return Err(self.malformed("the file ends inside <contributor>")),
                _ => {}
            }
        }
    }

    fn number<T: std::str::FromStr>(&mut self, element: &str) -> Result<T> {
        let text = self.text(element)?;
        text.trim()
            .parse()
            .map_err(|_| self.malformed(format!("<{element}> holds {text:?}, not a number")))
    }

    /// Collects the text up to the end of `element`, which is open.
    fn text(&mut self, element: &str) -> Result<String> {
        let mut out = String::new();
        loop {
            match self.event()? {
                Token::Text(text) => {
                    if out.len() + text.len() > MAX_PAGE_BYTES {
                        return Err(
                            self.malformed(format!("<{element}> is over {MAX_PAGE_BYTES} bytes"))
                        );
                    }
                    out.push_str(&text);
                }
                Token::Close(name) if name == element => return Ok(out),
                Token::End => {
                    return Err(self.malformed(format!("the file ends inside <{element}>")));
                }
                _ => {}
            }
        }
    }

    fn skip(&mut self, element: &str) -> Result<()> {
        loop {
            match self.event()? {
                Token::Open(inner) => self.skip(&inner)?,
                Token::Close(name) if name == element => return Ok(()),
                Token::End => {
                    return Err(self.malformed(format!("the file ends inside <{element}>")));
                }
                _ => {}
            }
        }
    }

    fn event(&mut self) -> Result<Token> {
        self.buffer.clear();
        let event = match self.reader.read_event_into(&mut self.buffer) {
            Ok(event) => event,
            Err(error) => {
                let (offset, reason) = (self.reader.error_position(), error.to_string());
                return Err(Error::Malformed { path: self.path.clone(), offset, reason });
            }
        };
        Ok(match event {
            Event::Start(tag) => Token::Open(tag.local_name().as_ref().to_owned()),
            Event::End(tag) => Token::Close(tag.local_name().as_ref().to_owned()),
            Event::Empty(tag) if tag.local_name().as_ref() == "redirect" => {
                let title = tag
                    .attributes()
                    .flatten()
                    .find(|attribute| attribute.key.as_ref() == "title")
                    .map(|attribute| unescape(&attribute.value));
                Token::Redirect(title)
            }
            Event::Text(text) => Token::Text(text.xml10_content().into_owned()),
            Event::CData(text) => Token::Text(text.xml10_content().into_owned()),
            Event::GeneralRef(reference) => Token::Text(unescape(&format!("&{};", &*reference))),
            Event::Eof => Token::End,
            _ => Token::Other,
        })
    }
}

/// Resolves the five XML entities and character references; anything else stays as it is.
fn unescape(text: &str) -> String {
    quick_xml::escape::unescape(text).map_or_else(|_| text.to_owned(), std::borrow::Cow::into_owned)
}

enum Token {
    Open(String),
    Close(String),
    Redirect(Option<String>),
    Text(String),
    Other,
    End,
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "<mediawiki><siteinfo><sitename>W</sitename></siteinfo><page><title>A &amp; B</title>\
        <ns>0</ns><id>7</id><redirect title=\"C &lt;D&gt;\" /><revision><id>70</id><parentid>69</parentid>\
        <timestamp>2014-10-26T04:50:23Z</timestamp><contributor><username>U</username><id>1</id></contributor>\
        <comment>c</comment><text xml:space=\"preserve\">x &lt;ref&gt; &#8211; [[Y]]\n</text></revision></page></mediawiki>";

    #[test]
    fn page_with_entities_is_read_whole() {
        let mut dump = Dump::from_xml(PAGE);
        let page = dump.next_page().expect("well formed").expect("one page");
        assert_eq!((page.id, page.title.as_str(), page.namespace), (7, "A & B", 0));
        assert_eq!(page.redirect.as_deref(), Some("C <D>"));
        assert_eq!(page.revision.text, "x <ref> \u{2013} [[Y]]\n");
        assert_eq!((page.revision.id, page.revision.parent), (70, Some(69)));
        assert_eq!(page.revision.contributor, "U");
        assert_eq!(dump.next_page().expect("well formed"), None);
    }

    #[test]
    fn dump_cut_anywhere_is_refused() {
        for cut in (1..PAGE.len()).filter(|at| PAGE.is_char_boundary(*at)) {
            let mut dump = Dump::from_xml(&PAGE[..cut]);
            let result = loop {
                match dump.next_page() {
                    Ok(Some(_)) => {}
                    other => break other,
                }
            };
            assert!(matches!(result, Err(Error::Malformed { .. })), "cut at {cut}: {result:?}");
        }
    }

    #[test]
    fn other_documents_are_refused_with_the_reason() {
        for (xml, reason) in [
            ("<html><body/></html>", "not <mediawiki>"),
            ("<mediawiki><page><ns>0</ns></page></mediawiki>", "no title"),
            ("<mediawiki><page><title>T</title><id>x</id></page></mediawiki>", "not a number"),
            ("<mediawiki><page><title>T</title><id>1</id></page></mediawiki>", "no revision"),
        ] {
            let error = Dump::from_xml(xml).next_page().expect_err("refused").to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
