//! Wikitext as HTML, as far as a reader needs it.
//!
//! # Invariants
//! What an author wrote is text in the page, never markup: each piece is escaped, and links lead to
//! this wiki or to `http` and `https` alone.
//!
//! # On failure
//! A text that the parser gives up on is shown as it is written.
//!
//! # Limits
//! Templates, images, tables and references are left out.

use std::time::Duration;

use maud::{Markup, html};
use parse_wiki_text_2::{Configuration, ListItem, Node};
use telesto_mediawiki::markup::normalise;

/// How long a text may take.
const PARSING: Duration = Duration::from_secs(1);

/// The address of a page.
pub fn address(at: &str, title: &str) -> String {
    let mut address = format!("/{at}/");
    for byte in title.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'(' | b')' | b',' => {
                address.push(char::from(byte));
            }
            b' ' => address.push('_'),
            other => address.push_str(&format!("%{other:02X}")),
        }
    }
    address
}

/// The text of a page.
pub fn page(text: &str) -> Markup {
    let configuration = Configuration::default();
    match configuration.parse_with_timeout(text, PARSING) {
        Ok(parsed) => blocks(&parsed.nodes),
        Err(_) => html! { pre { (text) } },
    }
}

/// Whether it stands by itself, and not in a paragraph.
fn is_block(node: &Node<'_>) -> bool {
    matches!(
        node,
        Node::Heading { .. }
            | Node::UnorderedList { .. }
            | Node::OrderedList { .. }
            | Node::DefinitionList { .. }
            | Node::HorizontalDivider { .. }
            | Node::Preformatted { .. }
            | Node::Table { .. }
    )
}

fn blocks(nodes: &[Node<'_>]) -> Markup {
    let mut paragraphs: Vec<&[Node<'_>]> = Vec::new();
    let mut begin = 0;
    for (at, node) in nodes.iter().enumerate() {
        if is_block(node) || matches!(node, Node::ParagraphBreak { .. }) {
            paragraphs.push(&nodes[begin..at]);
            paragraphs.push(&nodes[at..=at]);
            begin = at + 1;
        }
    }
    paragraphs.push(&nodes[begin..]);
    html! {
        @for part in paragraphs {
            @if part.len() == 1 && is_block(&part[0]) { (block(&part[0])) }
            @else if part.iter().any(is_seen) { p { (inline(part)) } }
        }
    }
}

/// Whether a reader sees anything of it.
fn is_seen(node: &Node<'_>) -> bool {
    match node {
        Node::Text { value, .. } => !value.trim().is_empty(),
        Node::Link { .. } | Node::ExternalLink { .. } | Node::CharacterEntity { .. } => true,
        Node::Tag { name, .. } => name == "nowiki",
        Node::Redirect { .. } => true,
        _ => false,
    }
}

fn block(node: &Node<'_>) -> Markup {
    match node {
        Node::Heading { level, nodes, .. } => match level {
            0..=2 => html! { h2 { (inline(nodes)) } },
            3 => html! { h3 { (inline(nodes)) } },
            _ => html! { h4 { (inline(nodes)) } },
        },
        Node::UnorderedList { items, .. } => html! { ul { (list(items)) } },
        Node::OrderedList { items, .. } => html! { ol { (list(items)) } },
        Node::DefinitionList { items, .. } => html! {
            dl { @for item in items { dd { (inline(&item.nodes)) } } }
        },
        Node::Preformatted { nodes, .. } => html! { pre { (inline(nodes)) } },
        Node::HorizontalDivider { .. } => html! { hr; },
        _ => html! {},
    }
}

fn list(items: &[ListItem<'_>]) -> Markup {
    html! {
        @for item in items {
            li {
                (inline(&item.nodes))
                @for node in item.nodes.iter().filter(|node| is_block(node)) { (block(node)) }
            }
        }
    }
}

fn inline(nodes: &[Node<'_>]) -> Markup {
    // Quotes switch: bold and italic end where they stand again, or at the end.
    let (mut bold, mut italic) = (false, false);
    html! {
        @for node in nodes {
            @match node {
                Node::Bold { .. } => { ({ bold = !bold; html! {} }) }
                Node::Italic { .. } => { ({ italic = !italic; html! {} }) }
                Node::BoldItalic { .. } => { ({ bold = !bold; italic = !italic; html! {} }) }
                other => {
                    @match (bold, italic) {
                        (false, false) => (piece(other)),
                        (true, false) => b { (piece(other)) },
                        (false, true) => i { (piece(other)) },
                        (true, true) => b { i { (piece(other)) } },
                    }
                }
            }
        }
    }
}

fn piece(node: &Node<'_>) -> Markup {
    match node {
        Node::Text { value, .. } => html! { (value) },
        Node::CharacterEntity { character, .. } => html! { (character) },
        Node::Link { target, text, .. } => match normalise(target) {
            Some(title) => html! { a href=(address("wiki", &title)) { (inline(text)) } },
            None => inline(text),
        },
        Node::Redirect { target, .. } => match normalise(target) {
            Some(title) => html! { "Goes on at " a href=(address("wiki", &title)) { (title) } },
            None => html! {},
        },
        Node::ExternalLink { nodes, .. } => external(nodes),
        Node::Tag { name, nodes, .. } if name == "nowiki" => inline(nodes),
        _ => html! {},
    }
}

fn external(nodes: &[Node<'_>]) -> Markup {
    let Some(Node::Text { value, .. }) = nodes.first() else { return inline(nodes) };
    let (target, words) = value.split_once(' ').unwrap_or((value, value));
    let leads = target.starts_with("https://") || target.starts_with("http://");
    html! {
        @if leads { a href=(target) rel="noreferrer nofollow" { (words) } } @else { (words) }
        (inline(&nodes[1..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_becomes_links_lists_and_headings_and_markup_of_others_stays_text() {
        let shown = page("'''Bold''' and ''it'' of [[anarchism|A]].\n\n== Part ==\n* one\n* two <script>alert(1)</script>\n").into_string();
        assert!(shown.contains("<b>Bold</b>") && shown.contains("<i>it</i>"), "{shown}");
        assert!(shown.contains("<a href=\"/wiki/Anarchism\">A</a>"), "{shown}");
        assert!(shown.contains("<h2>") && shown.contains("<li>one</li>"), "{shown}");
        assert!(!shown.contains("<script"), "{shown}");
        let shown = page(
            "[javascript:alert(1) here] [https://a.example/?q=\"x\" there] <b onclick=\"x\">y</b>",
        )
        .into_string();
        assert!(
            !shown.contains("href=\"javascript") && !shown.contains("onclick=\"x\""),
            "{shown}"
        );
        assert!(shown.contains("href=\"https://a.example/?q=&quot;x&quot;\""), "{shown}");
        assert!(!page("{{template|[[x]]}}").into_string().contains("template"));
    }

    #[test]
    fn address_is_one_segment_of_a_path_whatever_the_title() {
        assert_eq!(address("wiki", "Ada Lovelace"), "/wiki/Ada_Lovelace");
        assert_eq!(address("wiki", "A/B?c#d\"é"), "/wiki/A%2FB%3Fc%23d%22%C3%A9");
    }
}
