//! The wiki's pages.
//!
//! # Invariants
//! Every text of an author is escaped; nothing is loaded from elsewhere, and no script is run
//! (Content-Security-Policy).
//!
//! # On failure
//! A page that says what was wrong, with status 503 when the database did not do it.
//!
//! # Limits
//! Editors are nobody: their name is what they give.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Form, Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::get;
use maud::{DOCTYPE, Markup, html};
use serde::Deserialize;
use telesto_mediawiki::markup::normalise;
use telesto_mediawiki::wiki::{Edit, Outcome, Shown};

use super::render::{address, page as rendered};
use super::{Lent, Pool};

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:1rem auto;padding:0 1rem;color:#1b1b1f;background:#fff}\
nav,footer{color:#5a5a63;font-size:.9rem}nav a,footer a{margin-right:1rem}h1{line-height:1.2}textarea{width:100%;height:24rem;font:14px/1.4 ui-monospace,monospace}\
input,button{font:inherit;padding:.2rem .5rem}pre{overflow:auto;background:#f2f2f5;padding:.5rem}\
@media(prefers-color-scheme:dark){body{background:#161618;color:#e6e6ea}a{color:#8ab4ff}nav,footer{color:#a0a0aa}pre,textarea,input,button{background:#222226;color:inherit}}";
const POLICY: &str = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

type Shared = State<Arc<Pool>>;

/// The routes of the wiki over `pool`.
pub fn router(pool: Arc<Pool>) -> Router {
    Router::new()
        .route("/", get(search))
        .route("/style.css", get(async || ([(header::CONTENT_TYPE, "text/css")], STYLE)))
        .route("/wiki/{title}", get(read))
        .route("/edit/{title}", get(form).post(save))
        .route("/history/{title}", get(history))
        .route("/links/{title}", get(links))
        .route("/category/{title}", get(category))
        .layer(DefaultBodyLimit::max(2 << 20))
        .with_state(pool)
}

/// A whole page.
fn whole(title: &str, body: &Markup, behind: &str) -> Response {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                link rel="stylesheet" href="/style.css";
            }
            body {
                nav { a href="/" { "All pages" } }
                main { h1 { (title) } (body) }
                footer { (behind) }
            }
        }
    };
    ([(header::CONTENT_SECURITY_POLICY, POLICY)], Html(page.into_string())).into_response()
}

fn wrong(why: &str) -> Response {
    let body = html! { p { (why) } };
    (StatusCode::SERVICE_UNAVAILABLE, whole("This did not work", &body, "")).into_response()
}

fn none(title: &str) -> Response {
    let body = html! { p { "There is no page of this name. " a href=(address("edit", title)) { "Write it" } } };
    (StatusCode::NOT_FOUND, whole(title, &body, "")).into_response()
}

/// A title as it stands in an address.
fn titled(raw: &str) -> String {
    normalise(raw).unwrap_or_else(|| "Main Page".to_owned())
}

fn told(lent: &Lent, begun: Instant) -> String {
    format!("{:.1} ms, node {}", begun.elapsed().as_secs_f64() * 1e3, lent.node + 1)
}

/// Lets `work` make a page by a connection.
async fn by(
    pool: &Arc<Pool>,
    work: impl AsyncFnOnce(&mut Lent, Instant) -> Result<Response, String>,
) -> Response {
    let begun = Instant::now();
    let made = match pool.lend().await {
        Ok(mut lent) => work(&mut lent, begun).await,
        Err(why) => Err(why),
    };
    made.unwrap_or_else(|why| wrong(&why))
}

fn listed(at: &str, titles: &[String]) -> Markup {
    html! {
        @if titles.is_empty() { p { "Nothing." } }
        ul { @for title in titles { li { a href=(address(at, title)) { (title) } } } }
    }
}

#[derive(Deserialize)]
struct Asked {
    #[serde(default)]
    q: String,
}

async fn search(State(pool): Shared, Query(asked): Query<Asked>) -> Response {
    by(&pool, async |lent, begun| {
        let prefix = normalise(&asked.q).unwrap_or_default();
        let titles = lent.with(async |wiki| wiki.titles(&prefix).await).await?;
        let body = html! {
            form action="/" { label { "Titles that begin with " input name="q" value=(asked.q); } " " button { "Look" } }
            (listed("wiki", &titles))
        };
        Ok(whole("A wiki in a bucket", &body, &told(lent, begun)))
    })
    .await
}

async fn read(State(pool): Shared, Path(title): Path<String>) -> Response {
    by(&pool, async |lent, begun| {
        let title = titled(&title);
        let Some(shown) = lent.with(async |wiki| wiki.read(&title).await).await? else {
            return Ok(none(&title));
        };
        Ok(whole(&shown.title, &article(&shown), &told(lent, begun)))
    })
    .await
}

fn article(shown: &Shown) -> Markup {
    html! {
        nav {
            a href=(address("edit", &shown.title)) { "Edit" }
            a href=(address("history", &shown.title)) { "History" }
            a href=(address("links", &shown.title)) { (shown.backlinks) " pages link here" }
        }
        @if let Some(to) = &shown.redirect { p { "Goes on at " a href=(address("wiki", to)) { (to) } } }
        (rendered(&shown.text))
        @if !shown.categories.is_empty() {
            p { "Categories: " @for name in &shown.categories { a href=(address("category", name)) { (name) } " " } }
        }
        footer { "Revision " (shown.revision) " by " (shown.contributor) ", " (shown.made_at) }
    }
}

async fn history(State(pool): Shared, Path(title): Path<String>) -> Response {
    by(&pool, async |lent, begun| {
        let title = titled(&title);
        let revisions = lent.with(async |wiki| wiki.history(&title).await).await?;
        let body = html! {
            nav { a href=(address("wiki", &title)) { "The page" } }
            ul { @for one in &revisions {
                li { (one.made_at) ", " (one.contributor) ": " (one.comment) " (revision " (one.number) ", " (one.length) " characters)" }
            } }
        };
        Ok(whole(&format!("History of {title}"), &body, &told(lent, begun)))
    })
    .await
}

async fn links(State(pool): Shared, Path(title): Path<String>) -> Response {
    by(&pool, async |lent, begun| {
        let title = titled(&title);
        let titles = lent.with(async |wiki| wiki.backlinks(&title).await).await?;
        Ok(whole(
            &format!("Pages that link to {title}"),
            &listed("wiki", &titles),
            &told(lent, begun),
        ))
    })
    .await
}

async fn category(State(pool): Shared, Path(name): Path<String>) -> Response {
    by(&pool, async |lent, begun| {
        let name = titled(&name);
        let titles = lent.with(async |wiki| wiki.members(&name).await).await?;
        Ok(whole(&format!("Category {name}"), &listed("wiki", &titles), &told(lent, begun)))
    })
    .await
}

fn editing(title: &str, base: Option<i64>, text: &str, note: &str) -> Markup {
    html! {
        @if !note.is_empty() { p { strong { (note) } } }
        form method="post" action=(address("edit", title)) {
            input type="hidden" name="base" value=(base.map(|base| base.to_string()).unwrap_or_default());
            // The first line break behind the tag is not part of the text.
            textarea name="text" aria-label="Text" { "\n" (text) }
            p { label { "Name " input name="contributor" value="anybody" maxlength="100"; } }
            p { label { "What is changed " input name="comment" maxlength="500"; } " " button { "Save" } }
        }
    }
}

async fn form(State(pool): Shared, Path(title): Path<String>) -> Response {
    by(&pool, async |lent, begun| {
        let title = titled(&title);
        let shown = lent.with(async |wiki| wiki.read(&title).await).await?;
        let (base, text) =
            shown.map_or((None, String::new()), |shown| (Some(shown.revision), shown.text));
        let body = editing(&title, base, &text, "");
        Ok(whole(&format!("Edit {title}"), &body, &told(lent, begun)))
    })
    .await
}

#[derive(Deserialize)]
struct Sent {
    base: String,
    text: String,
    contributor: String,
    comment: String,
}

/// Whether a page of this wiki sends it, as far as the browser says so.
fn is_own(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value: &header::HeaderValue| value.to_str().ok());
    match (text("sec-fetch-site"), text("origin"), text("host")) {
        (Some(site), _, _) => site == "same-origin",
        (None, Some(origin), Some(host)) => {
            origin.split_once("://").is_some_and(|(_, at)| at == host)
        }
        // No browser.
        (None, None, _) => true,
        (None, Some(_), None) => false,
    }
}

async fn save(
    State(pool): Shared,
    Path(title): Path<String>,
    headers: HeaderMap,
    Form(sent): Form<Sent>,
) -> Response {
    let title = titled(&title);
    if !is_own(&headers) {
        let body = html! { p { "Another site has sent this edit; it was not taken." } };
        return (StatusCode::FORBIDDEN, whole(&title, &body, "")).into_response();
    }
    by(&pool, async |lent, begun| {
        // Browsers send line breaks as \r\n.
        let text = sent.text.replace("\r\n", "\n");
        let edit = Edit {
            title: &title,
            base: sent.base.parse().ok(),
            text: &text,
            contributor: &sent.contributor,
            comment: &sent.comment,
        };
        match lent.with(async |wiki| wiki.edit(edit).await).await? {
            Outcome::Saved(_) => Ok(Redirect::to(&address("wiki", &title)).into_response()),
            Outcome::Overtaken(now) => {
                let there = lent.with(async |wiki| wiki.read(&title).await).await?;
                let note = "Somebody has changed this page meanwhile. Your text is below, theirs under it: bring them together and save again.";
                let body = html! {
                    (editing(&title, now, &text, note))
                    h2 { "The page now" }
                    pre { (there.map(|shown| shown.text).unwrap_or_default()) }
                };
                let page = whole(&format!("Edit {title}"), &body, &told(lent, begun));
                Ok((StatusCode::CONFLICT, page).into_response())
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_of_another_site_is_not_taken() {
        let of = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(*name, header::HeaderValue::from_static(value));
            }
            is_own(&headers)
        };
        assert!(of(&[("sec-fetch-site", "same-origin"), ("origin", "http://a"), ("host", "b")]));
        assert!(!of(&[("sec-fetch-site", "cross-site"), ("origin", "http://a"), ("host", "a")]));
        assert!(of(&[("origin", "http://127.0.0.1:1"), ("host", "127.0.0.1:1")]));
        assert!(!of(&[("origin", "http://evil.example"), ("host", "127.0.0.1:1")]));
        assert!(!of(&[("origin", "null"), ("host", "127.0.0.1:1")]));
        assert!(of(&[("host", "127.0.0.1:1")]));
    }
}
