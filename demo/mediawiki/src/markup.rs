//! Finds links, categories in wikitext.
//!
//! # Invariants
//! - Titles come out normalised as MediaWiki stores them: underscores as spaces, runs of spaces as
//!   one, first letter upper case, no fragment, no leading colon.
//! - Sorted, each once.
//!
//! # Limits
//! Looks at `[[…]]` outside comments, `<nowiki>` and `<pre>`; templates are not expanded; links to
//! files and other wikis are left out.

use std::collections::BTreeSet;

/// What a page's text refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// Titles of pages linked to.
    pub links: BTreeSet<String>,
    /// Categories, without the namespace's name.
    pub categories: BTreeSet<String>,
}

const HIDDEN: [(&str, &str); 3] = [("<!--", "-->"), ("<nowiki>", "</nowiki>"), ("<pre", "</pre>")];
const FILES: [&str; 4] = ["file", "image", "media", "special"];

/// Finds the references in `text`.
#[must_use]
pub fn references(text: &str) -> References {
    let mut found = References::default();
    let mut rest = text;
    while let Some(at) = rest.find(['[', '<']) {
        rest = &rest[at..];
        if let Some((_, close)) = HIDDEN.iter().find(|(open, _)| starts_with_tag(rest, open)) {
            match find_ignore_case(rest, close) {
                Some(end) => rest = &rest[end + close.len()..],
                None => break,
            }
        } else if let Some(inner) = rest.strip_prefix("[[") {
            let end = inner.find(['[', ']', '\n']).unwrap_or(inner.len());
            if inner[end..].starts_with("]]") {
                note(&inner[..end], &mut found);
            }
            rest = inner;
        } else {
            rest = &rest[1..];
        }
    }
    found
}

fn starts_with_tag(text: &str, tag: &str) -> bool {
    text.get(..tag.len()).is_some_and(|start| start.eq_ignore_ascii_case(tag))
}

fn find_ignore_case(text: &str, what: &str) -> Option<usize> {
    text.char_indices().map(|(at, _)| at).find(|at| starts_with_tag(&text[*at..], what))
}

fn note(inner: &str, found: &mut References) {
    let target = inner.split('|').next().unwrap_or_default();
    let explicit = target.trim_start_matches(blank).starts_with(':');
    let Some(title) = normalise(target) else { return };
    match title.split_once(':') {
        Some((space, name)) if space.eq_ignore_ascii_case("category") => {
            if explicit {
                found.links.insert(title);
            } else if let Some(name) = normalise(name) {
                found.categories.insert(name);
            }
        }
        Some((space, _)) if FILES.iter().any(|f| space.eq_ignore_ascii_case(f)) => {}
        // Prefixes in lower case name other wikis and languages ("de:Titel").
        Some((space, _))
            if !explicit
                && space.len() <= 12
                && inner.trim_start().starts_with(|c: char| c.is_ascii_lowercase())
                && space.chars().all(|c| c.is_ascii_alphabetic() || c == '-') => {}
        _ => {
            found.links.insert(title);
        }
    }
}

/// Whether it separates the words of a title.
fn blank(c: char) -> bool {
    c == '_' || c.is_whitespace()
}

/// A title as MediaWiki stores it; `None` when nothing is left.
#[must_use]
pub fn normalise(raw: &str) -> Option<String> {
    let bare = raw.trim_start_matches(|c| c == ':' || blank(c)).split('#').next();
    let words: Vec<&str> =
        bare.unwrap_or_default().split(blank).filter(|word| !word.is_empty()).collect();
    let joined = words.join(" ");
    let first = joined.chars().next()?;
    Some(first.to_uppercase().chain(joined.chars().skip(1)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(text: &str) -> (Vec<String>, Vec<String>) {
        let references = references(text);
        (references.links.into_iter().collect(), references.categories.into_iter().collect())
    }

    #[test]
    fn links_and_categories_are_normalised_and_unique() {
        let (links, categories) = found(
            "[[anarchism|A]] [[Anarchism#History]] [[political_ philosophy]] [[Category:Far-left politics|*]] \
             [[category:far-left politics]] [[:Category:Politics]] [[File:A.jpg|thumb|see [[inner link]] there]] \
             [[de:Anarchismus]] [[#Top]] [[ ]] [[broken\nlink]]",
        );
        assert_eq!(links, ["Anarchism", "Category:Politics", "Inner link", "Political philosophy"]);
        assert_eq!(categories, ["Far-left politics"]);
    }

    /// Found by `any_text_is_survived_and_titles_are_stable`: a colon behind an underscore was a
    /// title.
    #[test]
    fn colons_lead_behind_underscores_too() {
        let (links, categories) = found("[[_:]] [[_:_a b]] [[_:Category:Politics]]");
        assert_eq!((links, categories), (vec!["A b".into(), "Category:Politics".into()], vec![]));
    }

    #[test]
    fn hidden_text_is_not_searched() {
        let (links, _) =
            found("<!-- [[A]] --> <NoWiki>[[B]]</nowiki> <pre>[[C]]</pre> [[D]] <!-- [[E]]");
        assert_eq!(links, ["D"]);
    }

    proptest! {
        #[test]
        fn any_text_is_survived_and_titles_are_stable(text in "[\\[\\]<>!|#:_ a-cé\n-]{0,80}") {
            for title in references(&text).links {
                prop_assert_eq!(normalise(&title), Some(title));
            }
        }
    }
}
